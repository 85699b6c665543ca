//! Rounding of exact values to element types: the single place that says what a dtype can hold.

use half::{bf16, f16};

use crate::dtype::DType;
use crate::float8;

/// `value` rounded to nearest even in `dtype`, as f64; f8e4m3 saturates, the others overflow to infinity. Integers and blocks are returned unchanged.
pub fn float(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F64 | DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 | DType::Block(_) => value,
        DType::F8E4M3 => float8::decode(float8::encode(value)),
        DType::F32 => f64::from(value as f32),
        DType::F16 => f16::from_f32(to_odd(value)).to_f64(),
        DType::BF16 => bf16::from_f32(to_odd(value)).to_f64(),
    }
}

/// `value` as f32, rounded to odd: an inexact result gets an odd last bit. Rounding that again to fewer than
/// 23 bits equals rounding `value` once, because no tie can arise that was not there (Boldo and Melquiond,
/// "When double rounding is odd", 2005).
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    if !nearest.is_finite() && value.is_finite() {
        return f32::MAX.copysign(nearest);
    }
    if f64::from(nearest) == value || value.is_nan() {
        return nearest;
    }
    let toward_zero =
        if f64::from(nearest).abs() > value.abs() { nearest.to_bits() - 1 } else { nearest.to_bits() };
    f32::from_bits(toward_zero | 1)
}

/// `value` wrapped to the range of `dtype`; floats and blocks are returned unchanged.
pub fn int(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::U8 => i64::from(value as u8),
        DType::U32 => i64::from(value as u32),
        DType::I16 => i64::from(value as i16),
        DType::I32 => i64::from(value as i32),
        DType::I64 | DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::Block(_) => {
            value
        }
    }
}

/// Float to integer: truncated, saturated to the range of `dtype`, NaN becomes 0.
pub fn float_to_int(dtype: DType, value: f64) -> i64 {
    match dtype {
        DType::U8 => i64::from(value as u8),
        DType::U32 => i64::from(value as u32),
        DType::I16 => i64::from(value as i16),
        DType::I32 => i64::from(value as i32),
        DType::I64 | DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::Block(_) => {
            value as i64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_floats_round_once() {
        let p = |e: i32| 2f64.powi(e);
        // Just above a tie: rounding to f32 first would make it the tie, which goes to even.
        assert_eq!(float(DType::BF16, p(60) + p(52) + p(11)), p(60) + p(53));
        assert_eq!(float(DType::F16, 1.0 + p(-11) + p(-40)), 1.0 + p(-10));
        assert_eq!(float(DType::F16, 1.0 + p(-11)), 1.0);
        assert_eq!(float(DType::F16, 1e300), f64::INFINITY);
        assert_eq!(float(DType::BF16, -1e300), f64::NEG_INFINITY);
        assert_eq!(float(DType::F16, p(-25) + p(-60)), p(-24));
        assert!(float(DType::F16, f64::NAN).is_nan());
    }
}
