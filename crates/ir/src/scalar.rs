//! Typed constants.

use crate::dtype::DType;

/// A typed constant. Floats keep their f64 bits, so that equality and hashing are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scalar {
    dtype: DType,
    bits: u64,
}

impl Scalar {
    /// A float constant, rounded once to `dtype`.
    pub fn float(dtype: DType, value: f64) -> Self {
        let rounded = crate::round::float(dtype, value);
        // One NaN and one zero of each sign, so that equal constants merge.
        let bits = if rounded.is_nan() { f64::NAN.to_bits() } else { rounded.to_bits() };
        Scalar { dtype, bits }
    }

    /// An integer constant, wrapped to `dtype`.
    pub fn int(dtype: DType, value: i64) -> Self {
        Scalar { dtype, bits: crate::round::int(dtype, value) as u64 }
    }

    /// A constant of any computable type from an f64 (integers truncate).
    pub fn of(dtype: DType, value: f64) -> Self {
        if dtype.is_float() { Scalar::float(dtype, value) } else { Scalar::int(dtype, value as i64) }
    }

    /// The element type.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// The value as f64 (exact for floats and for integers below 2^53).
    pub fn as_f64(self) -> f64 {
        if self.dtype.is_float() { f64::from_bits(self.bits) } else { self.bits as i64 as f64 }
    }

    /// The value as i64 (floats truncate).
    pub fn as_i64(self) -> i64 {
        if self.dtype.is_float() { f64::from_bits(self.bits) as i64 } else { self.bits as i64 }
    }

    /// True if the value equals `x`.
    pub fn is(self, x: f64) -> bool {
        self.as_f64() == x
    }
}
