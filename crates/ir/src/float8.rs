//! 8-bit floats E4M3 of the Open Compute Project: one sign, four exponent bits with bias 7, three of the
//! mantissa; no infinities, NaN where all bits below the sign are 1, 448 the largest number.
//!
//! What is too large becomes ±448, infinities too, as in NVIDIA's saturating conversion and in the crate
//! `float8`, whose type Candle uses.

/// The largest number.
pub const MAX: f64 = 448.0;

/// The code of `value`, rounded to nearest even, saturated; NaN stays NaN.
pub fn encode(value: f64) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = value.abs().min(MAX);
    // The least exponent of a normal number also scales the denormal ones.
    let exponent = (((magnitude.to_bits() >> 52) as i32) - 1023).max(-6);
    // 8 to 16 units of the last place, or 0 to 8 of a denormal number; 16 carries into the exponent.
    let units = (magnitude * 2f64.powi(3 - exponent)).round_ties_even() as i32;
    sign | (((exponent + 6) << 3) + units) as u8
}

/// The number that `code` means.
pub fn decode(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let magnitude = match (exponent, code & 0x7f) {
        (_, 0x7f) => f64::NAN,
        (0, _) => mantissa * 2f64.powi(-9),
        (_, _) => (8.0 + mantissa) * 2f64.powi(exponent - 10),
    };
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        for code in 0..=255u8 {
            assert_eq!(encode(decode(code)), code, "{code:#x}");
        }
        assert_eq!([decode(0x7e), decode(0x08), decode(0x01)], [448.0, 1.0 / 64.0, 1.0 / 512.0]);
    }

    /// Between two neighbours the nearer, at the middle the one with an even code.
    #[test]
    fn numbers_round_to_nearest_even() {
        for code in 0..0x7eu8 {
            let (low, high) = (decode(code), decode(code + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(encode(middle), code + (code & 1));
            assert_eq!(encode(middle.next_down()), code);
            assert_eq!(encode(-middle.next_up()), 0x80 | (code + 1));
        }
    }

    #[test]
    fn what_is_too_large_saturates() {
        for large in [448.0, 464.0, 480.0, 1e300, f64::INFINITY] {
            assert_eq!([encode(large), encode(-large)], [0x7e, 0xfe]);
        }
        assert!(decode(encode(f64::NAN)).is_nan());
    }
}
