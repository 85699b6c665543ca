//! Dequantization of block weights to f16 for cooperative matrices. Weights are loaded in packed form and unpacked when
//! the loads have completed, so that many loads are in flight.

use tallow_ir::Format;

/// How eight elements of a format are dequantized to f16.
pub(crate) struct DequantF16 {
    /// The template that defines the type `Raw`, the function `raw` that loads it and the function `halves` that
    /// unpacks it.
    pub template: &'static str,
    /// Templates of functions shared by several formats.
    pub shared: &'static [&'static str],
    /// Whether some loads are 16 bytes wide; the others are 8 bytes.
    pub wide: bool,
}

/// The functions of a format; `None` if it has none. Such formats are dequantized at the load, by the functions of
/// [`super::operand`].
///
/// Every result equals rounding to f32 and then to f16. Where a weight is `d * q` and the product is exact in f32,
/// pairs are multiplied in f16, which rounds once. Sums of two terms are computed in f32.
pub(crate) fn of(format: Format) -> Option<DequantF16> {
    let (template, shared, wide): (_, &[&str], _) = match format {
        Format::Q4_0 => ("dequant_f16/q4_0.glsl", &["dequant_f16/scaled.glsl"], false),
        Format::Q4_1 => ("dequant_f16/q4_1.glsl", &["dequant_f16/shifted.glsl"], false),
        Format::Q5_0 => {
            ("dequant_f16/q5_0.glsl", &["dequant_f16/scaled.glsl", "dequant_f16/fifth_bits.glsl"], false)
        }
        Format::Q5_1 => {
            ("dequant_f16/q5_1.glsl", &["dequant_f16/shifted.glsl", "dequant_f16/fifth_bits.glsl"], false)
        }
        Format::Q8_0 => ("dequant_f16/q8_0.glsl", &["dequant_f16/scaled.glsl"], false),
        Format::Q4_K => {
            ("dequant_f16/q4_k.glsl", &["dequant_f16/shifted.glsl", "dequant_f16/scales_k.glsl"], true)
        }
        Format::Q5_K => {
            ("dequant_f16/q5_k.glsl", &["dequant_f16/shifted.glsl", "dequant_f16/scales_k.glsl"], true)
        }
        Format::Q6_K => ("dequant_f16/q6_k.glsl", &[], false),
        Format::Q2_K | Format::Q3_K | Format::Q8_1 | Format::Q8_K | Format::TQ1_0 | Format::TQ2_0 => {
            return None;
        }
        Format::IQ1_S | Format::IQ1_M | Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S => return None,
        Format::IQ3_XXS | Format::IQ3_S | Format::IQ4_NL | Format::IQ4_XS => return None,
        Format::MXFP4 | Format::NVFP4 => return None,
        Format::F16 | Format::BF16 | Format::F32 | Format::F64 => return None,
        Format::I8 | Format::I16 | Format::I32 | Format::I64 => return None,
    };
    Some(DequantF16 { template, shared, wide })
}
