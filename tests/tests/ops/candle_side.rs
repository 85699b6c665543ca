//! Candle on the CPU: operands in the same layouts, and its results.

use candle_core as candle;
use tallow_ir::DType;

use crate::case::{Case, stored};
use crate::layout;
use crate::row::{Bound, Candle, Leaf};

/// Candle's name for an element type.
pub fn dtype(dtype: DType) -> candle::DType {
    match dtype {
        DType::U8 => candle::DType::U8,
        DType::U32 => candle::DType::U32,
        DType::I16 => candle::DType::I16,
        DType::I32 => candle::DType::I32,
        DType::I64 => candle::DType::I64,
        DType::F8E4M3 => candle::DType::F8E4M3,
        DType::F16 => candle::DType::F16,
        DType::BF16 => candle::DType::BF16,
        DType::F32 => candle::DType::F32,
        DType::F64 => candle::DType::F64,
        DType::Block(_) => unreachable!("Candle's blocks are not compared here"),
    }
}

/// Narrow floats as f32.
pub fn wide(x: &candle::Tensor) -> candle::Result<candle::Tensor> {
    match x.dtype() {
        candle::DType::F16 | candle::DType::BF16 | candle::DType::F8E4M3 => x.to_dtype(candle::DType::F32),
        _ => Ok(x.clone()),
    }
}

/// As f64. Candle's own cast of f8e4m3 to f64 calls itself without end; that to f32 is exact, too.
pub fn to_f64(x: &candle::Tensor) -> candle::Result<candle::Tensor> {
    let x = if x.dtype() == candle::DType::F8E4M3 { x.to_dtype(candle::DType::F32)? } else { x.clone() };
    x.to_dtype(candle::DType::F64)
}

/// What came of a comparison.
pub enum Compared {
    /// Equal within the bound.
    Same,
    /// The row says that there is nothing to compare with.
    Lacks,
    /// Candle fails.
    Refused(String),
}

/// The interpreter's result against Candle's.
pub fn compare(case: &Case<'_>, ours: &tallow_reference::Array) -> Result<Compared, String> {
    let Candle::Has(side, bound) = &case.row.candle else { return Ok(Compared::Lacks) };
    let run = || -> candle::Result<(candle::DType, Vec<usize>, Vec<f64>)> {
        let mut operands = vec![];
        for (operand, data) in case.operands.iter().zip(&case.data) {
            let stored = stored(operand, case.class);
            let plain = candle::Tensor::from_vec(data.to_f64s(), stored, &candle::Device::Cpu)?;
            let plain = plain.to_dtype(dtype(operand.dtype))?;
            operands.push(match operand.leaf {
                Leaf::Input => layout::candle(&plain, &operand.dims, case.class)?,
                Leaf::Blocks(_) | Leaf::State => plain,
            });
        }
        let result = side(&operands)?;
        let wide = if result.elem_count() == 0 {
            vec![]
        } else {
            to_f64(&result)?.contiguous()?.flatten_all()?.to_vec1::<f64>()?
        };
        Ok((result.dtype(), result.dims().to_vec(), wide))
    };
    // Where Candle panics, that counts as an error.
    let (ty, shape, expected) = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => {
            return Ok(Compared::Refused(error.to_string().lines().next().unwrap_or_default().into()));
        }
        Err(_) => return Ok(Compared::Refused("panics".into())),
    };
    if ty != dtype(ours.ty) || shape != ours.shape {
        return Err(format!("{}{:?}, Candle gives {}{shape:?}", ours.ty, ours.shape, ty.as_str()));
    }
    within(&expected, &ours.to_f64s(), ours.ty, *bound).map(|()| Compared::Same)
}

/// Whether `got` is `expected` up to the bound; zeros of both signs are one.
pub fn within(expected: &[f64], got: &[f64], dtype: DType, bound: Bound) -> Result<(), String> {
    let largest = expected.iter().filter(|x| x.is_finite()).fold(0f64, |m, x| m.max(x.abs()));
    for (i, (e, g)) in expected.iter().zip(got).enumerate() {
        let limit = bound.limit(dtype, *e, largest);
        let equal = e == g || e.is_nan() && g.is_nan() || (e - g).abs() <= limit;
        if !equal {
            let all = expected.iter().zip(got).filter(|(e, g)| e != g).count();
            return Err(format!(
                "element {i} is {g:?}, not {e:?} (limit {limit:e}; {all} of {} differ)",
                got.len()
            ));
        }
    }
    Ok(())
}

/// Silences the messages of Candle's panics.
pub fn quiet() {
    static QUIET: std::sync::Once = std::sync::Once::new();
    QUIET.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let at = info.location().map(|at| at.file().to_string()).unwrap_or_default();
            if !["candle-core", "float8", "half", "gemm"].iter().any(|name| at.contains(name)) {
                usual(info);
            }
        }));
    });
}
