//! Elementwise ops on constants, by the meaning in their table row.

use crate::dtype::DType;
use crate::elementwise::{ElementwiseOp, Meaning};
use crate::round;
use crate::scalar::Scalar;

/// The value of `op` on `operands`, rounded once; `None` where the types do not fit.
pub fn elementwise(op: ElementwiseOp, operands: &[Scalar]) -> Option<Scalar> {
    let dtypes: Vec<DType> = operands.iter().map(|s| s.dtype()).collect();
    let dtype = op.result_dtype(&dtypes).ok()?;
    let float = dtypes.last()?.is_float();
    let (f, i) = (|k: usize| operands[k].as_f64(), |k: usize| operands[k].as_i64());
    Some(match op.meaning() {
        Meaning::Unary(on_float, _) if float => Scalar::float(dtype, on_float(f(0))),
        Meaning::Unary(_, on_int) => Scalar::int(dtype, on_int(i(0))),
        Meaning::Binary(on_float, _) if float => Scalar::float(dtype, on_float(f(0), f(1))),
        Meaning::Binary(_, on_int) => Scalar::int(dtype, on_int(i(0), i(1))),
        Meaning::Relation(on_float, _) if float => Scalar::int(dtype, i64::from(on_float(f(0), f(1)))),
        Meaning::Relation(_, on_int) => Scalar::int(dtype, i64::from(on_int(i(0), i(1)))),
        Meaning::Test(on_int) => Scalar::int(dtype, i64::from(on_int(i(0)))),
        Meaning::Ternary(on_int) => Scalar::int(dtype, on_int(i(0), i(1), i(2))),
        Meaning::Select => operands[if operands[0].as_i64() != 0 { 1 } else { 2 }],
    })
}

/// `a` converted to `dtype`.
pub fn cast(a: Scalar, dtype: DType) -> Scalar {
    match (a.dtype().is_float(), dtype.is_float()) {
        (_, true) => Scalar::float(dtype, a.as_f64()),
        (true, false) => Scalar::int(dtype, round::float_to_int(dtype, a.as_f64())),
        (false, false) => Scalar::int(dtype, a.as_i64()),
    }
}
