//! Rounding of exact values to element types: the single place that says what a dtype can hold.

use half::{bf16, f16};

use crate::dtype::DType;

/// `value` rounded to nearest even in `dtype`, as f64. Integers and blocks are returned unchanged.
pub fn float(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F64 | DType::U8 | DType::U32 | DType::I32 | DType::I64 | DType::Block(_) => value,
        DType::F32 => f64::from(value as f32),
        DType::F16 => f16::from_f64(value).to_f64(),
        DType::BF16 => bf16::from_f64(value).to_f64(),
    }
}

/// `value` wrapped to the range of `dtype`; floats and blocks are returned unchanged.
pub fn int(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::U8 => i64::from(value as u8),
        DType::U32 => i64::from(value as u32),
        DType::I32 => i64::from(value as i32),
        DType::I64 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::Block(_) => value,
    }
}

/// Float to integer: truncated, saturated to the range of `dtype`, NaN becomes 0.
pub fn float_to_int(dtype: DType, value: f64) -> i64 {
    match dtype {
        DType::U8 => i64::from(value as u8),
        DType::U32 => i64::from(value as u32),
        DType::I32 => i64::from(value as i32),
        DType::I64 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::Block(_) => value as i64,
    }
}
