//! Comparison of tensors, with messages that say where two results part.

use std::fmt;

use tallow_reference::Array;

/// How far a result may be from the expected one. NaN must meet NaN, and an infinity itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// The same bits; all NaN are one, and -0 is not 0.
    Bits,
    /// The same values: as bits, but -0 is 0.
    Values,
    /// Normalized mean squared error at most this, see [`nmse`].
    Nmse(f64),
    /// Each element within `abs + rel * |expected|`.
    Each {
        /// Absolute part.
        abs: f64,
        /// Part relative to the expected element.
        rel: f64,
    },
}

impl Tolerance {
    /// Reads `bits`, `values`, `nmse:1e-6`, or `each:1e-5,1e-3` (absolute, relative).
    pub fn parse(text: &str) -> Option<Tolerance> {
        let number = |t: &str| t.parse::<f64>().ok().filter(|x| *x >= 0.0);
        match text.split_once(':') {
            None if text == "bits" => Some(Tolerance::Bits),
            None if text == "values" => Some(Tolerance::Values),
            Some(("nmse", limit)) => number(limit).map(Tolerance::Nmse),
            Some(("each", both)) => {
                let (abs, rel) = both.split_once(',')?;
                Some(Tolerance::Each { abs: number(abs)?, rel: number(rel)? })
            }
            _ => None,
        }
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tolerance::Bits => f.write_str("bits"),
            Tolerance::Values => f.write_str("values"),
            Tolerance::Nmse(limit) => write!(f, "nmse:{limit:e}"),
            Tolerance::Each { abs, rel } => write!(f, "each:{abs:e},{rel:e}"),
        }
    }
}

/// `sum (expected - got)^2 / sum expected^2`, over elements where both are finite; the measure of ggml's
/// backend tests. If all expected elements are 0, the plain sum of squares of `got`.
pub fn nmse(expected: &[f64], got: &[f64]) -> f64 {
    let finite = || expected.iter().zip(got).filter(|(e, g)| e.is_finite() && g.is_finite());
    let error: f64 = finite().map(|(e, g)| (e - g) * (e - g)).sum();
    let energy: f64 = finite().map(|(e, _)| e * e).sum();
    if energy == 0.0 { error } else { error / energy }
}

/// Compares two tensors; the error says at which index they part and by how much.
pub fn compare(expected: &Array, got: &Array, tolerance: Tolerance) -> Result<(), String> {
    if expected.ty != got.ty || expected.shape != got.shape {
        let ty = |a: &Array| format!("{}{:?}", a.ty, a.shape);
        return Err(format!("expected {}, got {}", ty(expected), ty(got)));
    }
    let (e, g) = (expected.to_f64s(), got.to_f64s());
    if e.len() != g.len() {
        return Err(format!("expected {} elements, got {}", e.len(), g.len()));
    }
    // Integers are compared as integers: f64 would merge neighbours above 2^53.
    if !expected.ty.is_float() && expected.data != got.data {
        let at = e.iter().zip(&g).position(|(e, g)| e != g).unwrap_or(0);
        return Err(report(expected, &e, &g, at, Tolerance::Bits, String::new()));
    }
    let unlike =
        |e: f64, g: f64| e.is_nan() != g.is_nan() || ((e.is_infinite() || g.is_infinite()) && e != g);
    let bad = |e: f64, g: f64| match tolerance {
        _ if e.is_nan() && g.is_nan() => false,
        Tolerance::Bits => e.to_bits() != g.to_bits(),
        Tolerance::Values => e != g,
        Tolerance::Nmse(_) => unlike(e, g),
        Tolerance::Each { abs, rel } => unlike(e, g) || (e - g).abs() > abs + rel * e.abs(),
    };
    if let Some(at) = e.iter().zip(&g).position(|(e, g)| bad(*e, *g)) {
        return Err(report(expected, &e, &g, at, tolerance, String::new()));
    }
    if let Tolerance::Nmse(limit) = tolerance {
        let found = nmse(&e, &g);
        if found > limit {
            let error = |i: &usize| if e[*i].is_finite() { (e[*i] - g[*i]).abs() } else { 0.0 };
            let worst = (0..e.len()).max_by(|a, b| error(a).total_cmp(&error(b))).unwrap_or(0);
            return Err(report(expected, &e, &g, worst, tolerance, format!("nmse {found:e}, worst ")));
        }
    }
    Ok(())
}

fn report(of: &Array, e: &[f64], g: &[f64], at: usize, tolerance: Tolerance, what: String) -> String {
    let mut index = vec![0; of.shape.len()];
    let mut rest = at;
    for (slot, n) in index.iter_mut().zip(&of.shape).rev() {
        *slot = rest % n.max(&1);
        rest /= n.max(&1);
    }
    let parting = e.iter().zip(g).filter(|(e, g)| e != g && !(e.is_nan() && g.is_nan())).count();
    format!(
        "{what}at {index:?} of {}{:?}: expected {:?}, got {:?} ({parting} of {} elements differ, tolerance {tolerance})",
        of.ty,
        of.shape,
        e[at],
        g[at],
        e.len()
    )
}

/// Panics with the message of [`compare`].
#[track_caller]
pub fn assert_close(expected: &Array, got: &Array, tolerance: Tolerance) {
    if let Err(why) = compare(expected, got, tolerance) {
        panic!("{why}");
    }
}

#[cfg(test)]
mod tests {
    use tallow_ir::DType;

    use super::*;

    fn array(values: &[f64]) -> Array {
        Array::from_f64s(DType::F64, &[values.len()], values).expect("fits")
    }

    #[test]
    fn each_tolerance_accepts_and_refuses() {
        let all = ["bits", "values", "nmse:1e-6", "each:1e-3,0"].map(|t| Tolerance::parse(t).expect(t));
        let accepted = |e: &[f64], g: &[f64]| all.map(|t| compare(&array(e), &array(g), t).is_ok());
        assert_eq!(accepted(&[1.0, f64::NAN], &[1.0, f64::NAN]), [true; 4]);
        assert_eq!(accepted(&[0.0], &[-0.0]), [false, true, true, true]);
        assert_eq!(accepted(&[1.0], &[1.0001]), [false, false, true, true]);
        assert_eq!(accepted(&[1.0, 100.0], &[1.01, 100.0]), [false, false, true, false]);
        assert_eq!(accepted(&[1.0], &[1.01]), [false; 4]);
        assert_eq!(accepted(&[1.0, 1.0], &[1.0, f64::NAN]), [false; 4]);
        assert_eq!(accepted(&[f64::INFINITY], &[f64::NEG_INFINITY]), [false; 4]);
        assert_eq!(accepted(&[f64::INFINITY], &[1e300]), [false; 4]);
        assert_eq!(accepted(&[1.0], &[1.0, 2.0]), [false; 4]);
        for bad in ["nmse", "nmse:x", "nmse:-1", "each:1", "exact"] {
            assert_eq!(Tolerance::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn messages_say_where() {
        let a = Array::from_f64s(DType::F32, &[2, 2], &[1.0, 2.0, 3.0, 4.0]).expect("fits");
        let b = Array::from_f64s(DType::F32, &[2, 2], &[1.0, 2.0, 7.0, 4.5]).expect("fits");
        let first = "at [1, 0] of f32[2, 2]: expected 3.0, got 7.0 (2 of 4 elements differ, tolerance bits)";
        assert_eq!(compare(&a, &b, Tolerance::Bits), Err(first.into()));
        let why = compare(&a, &b, Tolerance::Nmse(1e-3)).expect_err("too far");
        assert!(why.starts_with("nmse 5.4") && why.contains("worst at [1, 0]"), "{why}");
    }

    #[test]
    fn large_integers_are_told_apart() {
        let big = |x: i64| Array::from_bytes(DType::I64, &[1], &x.to_le_bytes()).expect("fits");
        let x = (1i64 << 60) + 1;
        assert!(compare(&big(x), &big(x), Tolerance::Nmse(1.0)).is_ok());
        assert!(compare(&big(x), &big(x - 1), Tolerance::Nmse(1.0)).is_err());
    }
}
