//! Results of both sides, collected and compared.

use candle_core as candle;
use half::{bf16, f16};
use tallow::{DType, Device};

/// How far results may be apart.
#[derive(Clone, Copy)]
pub enum Bound {
    /// Not at all: elements are moved, or the arithmetic is exact.
    Exact,
    /// So many times the distance of neighbouring numbers at the size of the largest element, or at 1.
    Steps(f64),
}

/// Distance from 1 to the next number; 0 for integers, which are exact.
fn step(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => f16::EPSILON.to_f64(),
        DType::BF16 => bf16::EPSILON.to_f64(),
        DType::F8E4M3 => 0.125,
        DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 | DType::Block(_) => 0.0,
    }
}

/// Whether the sides may differ in what they accept; each case that says so says why.
#[derive(Clone, Copy, PartialEq)]
pub enum Apart {
    Never,
    /// Tallow may accept more.
    More,
    /// Candle may accept more.
    Less,
}

struct Pending {
    name: String,
    ours: Vec<tallow::Tensor>,
    theirs: Vec<candle::Tensor>,
    bound: Bound,
}

/// Collects results of one device.
pub struct Suite {
    pub device: Device,
    pending: Vec<Pending>,
    failures: Vec<String>,
    both_fail: usize,
}

impl Suite {
    pub fn new(device: &Device) -> Suite {
        Suite { device: device.clone(), pending: vec![], failures: vec![], both_fail: 0 }
    }

    /// One case: both sides fail, or both results are compared later. `apart` is why one side may accept what
    /// the other does not.
    pub fn add(
        &mut self,
        name: String,
        bound: Bound,
        apart: Apart,
        ours: tallow::Result<Vec<tallow::Tensor>>,
        theirs: Result<Vec<candle::Tensor>, String>,
    ) {
        match (ours, theirs) {
            // Not every device has 64-bit types, and the interpreter has shown them.
            (Ok(ours), Ok(_))
                if !self.device.is_cpu() && ours.iter().any(|t| t.dtype().size_in_bytes() == 8) => {}
            (Ok(ours), Ok(theirs)) => self.pending.push(Pending { name, ours, theirs, bound }),
            (Err(ours), Err(_)) => {
                self.both_fail += 1;
                if ours.to_string().is_empty() {
                    self.failures.push(format!("{name}: an error without words"));
                }
            }
            (Ok(_), Err(_)) if apart == Apart::More => {}
            (Err(_), Ok(_)) if apart == Apart::Less => {}
            (Ok(ours), Err(theirs)) => self.failures.push(format!("{name}: gives {ours:?}, Candle {theirs}")),
            (Err(ours), Ok(theirs)) => self.failures.push(format!("{name}: {ours}, Candle {theirs:?}")),
        }
    }

    /// Computes and compares.
    pub fn finish(mut self) {
        // One plan for many results; a device compiles few of them.
        const BATCH: usize = 200;
        for batch in self.pending.chunks(BATCH) {
            let all: Vec<&tallow::Tensor> = batch.iter().flat_map(|p| &p.ours).collect();
            if let Err(error) = tallow::eval(&all) {
                self.failures.push(format!("{} to {}: {error}", batch[0].name, batch[batch.len() - 1].name));
            }
        }
        for case in &self.pending {
            if case.ours.len() != case.theirs.len() {
                let counts = (case.ours.len(), case.theirs.len());
                self.failures.push(format!("{}: {counts:?} results", case.name));
            }
            for (ours, theirs) in case.ours.iter().zip(&case.theirs) {
                if let Err(why) = same(ours, theirs, case.bound) {
                    self.failures.push(format!("{}: {why}", case.name));
                }
            }
        }
        println!("{}: {} results, {} errors on both sides", self.device, self.pending.len(), self.both_fail);
        // The first one of each expression says enough.
        let expression = |failure: &String| failure.split(" of ").next().map(String::from);
        let mut seen = std::collections::HashSet::new();
        let first = self.failures.iter().filter(|failure| seen.insert(expression(failure)));
        let shown = first.take(40).cloned().collect::<Vec<_>>().join("\n");
        assert!(self.failures.is_empty(), "{} differences:\n{shown}", self.failures.len());
    }
}

/// The elements as f64, in row-major order.
pub fn elements(tensor: &tallow::Tensor) -> tallow::Result<Vec<f64>> {
    fn all<T: tallow::WithDType>(tensor: &tallow::Tensor) -> tallow::Result<Vec<f64>> {
        Ok(tensor.to_flat_vec::<T>()?.into_iter().map(T::to_f64).collect())
    }
    match tensor.dtype() {
        DType::U8 => all::<u8>(tensor),
        DType::U32 => all::<u32>(tensor),
        DType::I16 => all::<i16>(tensor),
        DType::I32 => all::<i32>(tensor),
        DType::I64 => all::<i64>(tensor),
        DType::F16 => all::<f16>(tensor),
        DType::BF16 => all::<bf16>(tensor),
        DType::F32 => all::<f32>(tensor),
        DType::F64 => all::<f64>(tensor),
        DType::F8E4M3 | DType::Block(_) => unreachable!("the suite draws none"),
    }
}

/// Compares type, shape and elements.
pub fn same(ours: &tallow::Tensor, theirs: &candle::Tensor, bound: Bound) -> Result<(), String> {
    if ours.dtype().as_str() != theirs.dtype().as_str() {
        return Err(format!("{} is not {}", ours.dtype(), theirs.dtype().as_str()));
    }
    let dims = ours.dims();
    if dims != theirs.dims() {
        return Err(format!("{dims:?} is not {:?}", theirs.dims()));
    }
    if theirs.elem_count() == 0 {
        // Nothing to read, which Candle cannot do for every view of nothing.
        return elements(ours).map(|_| ()).map_err(|e| e.to_string());
    }
    let wide = theirs.flatten_all().and_then(|t| t.to_dtype(candle::DType::F64)?.to_vec1::<f64>());
    let (got, expected) = (elements(ours).map_err(|e| e.to_string())?, wide.map_err(|e| e.to_string())?);
    let largest = expected.iter().filter(|x| x.is_finite()).fold(1f64, |m, x| m.max(x.abs()));
    let limit = match bound {
        Bound::Exact => 0.0,
        Bound::Steps(n) => n * step(ours.dtype()) * largest,
    };
    for (i, (a, b)) in got.iter().zip(&expected).enumerate() {
        let equal = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= limit;
        if !equal {
            return Err(format!("element {i} is {a}, Candle's {b} (limit {limit:e})"));
        }
    }
    Ok(())
}

/// What an expression may give: one tensor or several.
pub trait Outputs<T> {
    fn outputs(self) -> Vec<T>;
}

macro_rules! outputs {
    ($($tensor:ty),*) => {$(
        impl Outputs<$tensor> for $tensor {
            fn outputs(self) -> Vec<$tensor> {
                vec![self]
            }
        }

        impl Outputs<$tensor> for Vec<$tensor> {
            fn outputs(self) -> Vec<$tensor> {
                self
            }
        }
    )*};
}
outputs!(tallow::Tensor, candle::Tensor);

/// Runs Candle's side; where it panics, that counts as an error.
pub fn candles(
    run: impl FnOnce() -> candle::Result<Vec<candle::Tensor>>,
) -> Result<Vec<candle::Tensor>, String> {
    // The messages of these panics are of no use.
    static QUIET: std::sync::Once = std::sync::Once::new();
    QUIET.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.location().is_some_and(|at| at.file().contains("candle-core")) {
                usual(info);
            }
        }));
    });
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(_) => Err("panics".into()),
    }
}

/// One expression on both sides: `both!(suite, input, Bound::Exact, |a| a.x.t()?)`. After the bound may stand why
/// Tallow accepts `more` or `less` than Candle.
#[macro_export]
macro_rules! both {
    ($suite:expr, $input:expr, $bound:expr, $(more: $more:literal,)? $(less: $less:literal,)? |$a:ident| $body:expr) => {{
        let input = &$input;
        let ours = {
            #[allow(unused_imports)]
            use tallow::{D, DType, Device, IndexOp, Module, Tensor};
            #[allow(unused_imports)]
            use $crate::inputs::ours::*;
            let run = |$a: &$crate::inputs::In<Tensor>| -> tallow::Result<Vec<Tensor>> {
                Ok($crate::suite::Outputs::<Tensor>::outputs($body))
            };
            run(&input.ours)
        };
        let theirs = {
            #[allow(unused_imports)]
            use candle_core::{D, DType, Device, IndexOp, Module, Tensor};
            #[allow(unused_imports)]
            use $crate::inputs::theirs::*;
            let run = |$a: &$crate::inputs::In<Tensor>| -> candle_core::Result<Vec<Tensor>> {
                Ok($crate::suite::Outputs::<Tensor>::outputs($body))
            };
            $crate::suite::candles(|| run(&input.theirs))
        };
        #[allow(unused_mut, unused_assignments)]
        let mut apart = $crate::suite::Apart::Never;
        $(let _why: &str = $more; apart = $crate::suite::Apart::More;)?
        $(let _why: &str = $less; apart = $crate::suite::Apart::Less;)?
        let name = format!("{} of {}", stringify!($body), input.name);
        $suite.add(name, $bound, apart, ours, theirs);
    }};
}
