//! Block weights on their way to matrix hardware: loaded as they are stored, and unpacked to f16 only when they have
//! arrived, so that nothing waits for memory in between.

use tallow_ir::Format;

/// What unpacks eight elements of a format to f16.
pub(crate) struct DequantF16 {
    /// Defines the type `Raw`, the function `raw` that loads it and `halves` that unpacks it.
    pub template: &'static str,
    /// Functions that formats share.
    pub shared: &'static [&'static str],
    /// Whether some of it is loaded in 16 bytes, besides what is in 8.
    pub wide: bool,
}

/// For the formats that have such functions. Others are unpacked where they are loaded, by what every kernel calls.
///
/// Every result is that of rounding to f32 first and to f16 then. Where a weight is `d * q` with few enough bits for the
/// product to be exact in f32, pairs are multiplied in f16, which rounds once; sums of two are computed in f32.
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
