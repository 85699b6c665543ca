//! Printing: nested brackets, long axes abbreviated, type and shape below.

use std::fmt;

use tallow_ir::DType;

use crate::error::Result;
use crate::tensor::Tensor;

/// Tensors of more elements are abbreviated.
const WHOLE: usize = 1000;
/// How many parts are shown at either end of an abbreviated axis.
const ENDS: usize = 3;

impl fmt::Display for Tensor {
    /// The values, computed if need be. An error is printed in their place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.texts() {
            Ok((texts, dims)) => {
                let width = texts.iter().flatten().map(String::len).max().unwrap_or(0);
                let short = texts.len() > WHOLE;
                write_part(f, &texts, dims, 1, width, short)?;
                writeln!(f)?;
            }
            Err(error) => writeln!(f, "<{error}>")?,
        }
        write!(f, "Tensor[{}; {}]", self.shape(), self.dtype())
    }
}

impl Tensor {
    /// One text per element; `None` where abbreviation hides it.
    fn texts(&self) -> Result<(Vec<Option<String>>, &[usize])> {
        let dims = self.dims()?;
        let bytes = self.bytes("display")?;
        let array = crate::resident::array(self.dtype(), dims, &bytes)?;
        let values = array.to_f64s();
        let short = values.len() > WHOLE;
        let visible = |i: usize| {
            let mut rest = i;
            dims.iter().rev().all(|extent| {
                let at = rest % extent;
                rest /= extent;
                at < ENDS || at + ENDS >= *extent
            })
        };
        let shown: Vec<Option<f64>> =
            values.iter().enumerate().map(|(i, x)| (!short || visible(i)).then_some(*x)).collect();
        let style = Style::of(self.dtype(), shown.iter().flatten());
        Ok((shown.into_iter().map(|x| x.map(|x| style.text(x))).collect(), dims))
    }
}

/// How numbers are written, the same for all of a tensor.
#[derive(Clone, Copy)]
enum Style {
    Integer,
    Fixed,
    Scientific,
}

impl Style {
    fn of<'a>(dtype: DType, values: impl Iterator<Item = &'a f64> + Clone) -> Style {
        let sizes = values.map(|x| x.abs()).filter(|x| x.is_finite() && *x != 0.0);
        if dtype.is_int() {
            Style::Integer
        } else if sizes.clone().any(|x| x >= 1e6)
            || (sizes.clone().any(|_| true) && sizes.clone().all(|x| x < 1e-3))
        {
            Style::Scientific
        } else {
            Style::Fixed
        }
    }

    fn text(self, x: f64) -> String {
        match self {
            Style::Integer => format!("{x:.0}"),
            Style::Fixed => format!("{x:.4}"),
            Style::Scientific => format!("{x:.4e}"),
        }
    }
}

fn write_part(
    f: &mut fmt::Formatter<'_>,
    texts: &[Option<String>],
    dims: &[usize],
    depth: usize,
    width: usize,
    short: bool,
) -> fmt::Result {
    let Some((extent, inner)) = dims.split_first() else {
        return write!(f, "{:>width$}", texts.first().and_then(Option::as_deref).unwrap_or(""));
    };
    let size: usize = inner.iter().product();
    let separator = if inner.is_empty() { ", ".into() } else { format!(",\n{}", " ".repeat(depth)) };
    write!(f, "[")?;
    for i in 0..*extent {
        let hidden = short && i >= ENDS && i + ENDS < *extent;
        if hidden && i > ENDS {
            continue;
        }
        if i > 0 {
            f.write_str(&separator)?;
        }
        if hidden {
            write!(f, "...")?;
        } else {
            write_part(f, &texts[i * size..(i + 1) * size], inner, depth + 1, width, short)?;
        }
    }
    write!(f, "]")
}
