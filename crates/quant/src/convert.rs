//! Whole buffers: quantize, dequantize, and one element of a buffer.

use crate::planes::elements_of;
use crate::{Format, QuantError, blocks};

/// `$body` with `$module` as the module of `$format`'s block arithmetic.
macro_rules! with_blocks {
    ($format:expr, $module:ident => $body:expr) => {
        with_blocks!(@arms $format, $module, $body;
            Q4_0 q4_0, Q4_1 q4_1, Q5_0 q5_0, Q5_1 q5_1, Q8_0 q8_0, Q8_1 q8_1, Q8_K q8_k,
            Q2_K q2_k, Q3_K q3_k, Q4_K q4_k, Q5_K q5_k, Q6_K q6_k,
            IQ2_XXS iq2_xxs, IQ2_XS iq2_xs, IQ2_S iq2_s, IQ3_XXS iq3_xxs, IQ3_S iq3_s, IQ1_S iq1_s, IQ1_M iq1_m,
            IQ4_NL iq4_nl, IQ4_XS iq4_xs, TQ1_0 tq1_0, TQ2_0 tq2_0, MXFP4 mxfp4, NVFP4 nvfp4,
            F16 f16, BF16 bf16, F32 f32, F64 f64, I8 i8, I16 i16, I32 i32, I64 i64)
    };
    (@arms $format:expr, $module:ident, $body:expr; $($variant:ident $name:ident),*) => {
        match $format {
            $(Format::$variant => {
                use blocks::$name as $module;
                $body
            })*
        }
    };
}

/// Writes the values of all blocks in `bytes` to `out`.
///
/// ```
/// use tallow_quant::{Format, dequantize};
/// let mut out = [0.0];
/// dequantize(Format::F16, &[0x00, 0x3e], &mut out)?;
/// assert_eq!(out, [1.5]);
/// # Ok::<(), tallow_quant::QuantError>(())
/// ```
///
/// # Errors
/// When `out.len()` is no multiple of the block's elements, or `bytes` are not as many blocks.
pub fn dequantize(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    let expected = format.row_bytes(out.len())?;
    if bytes.len() != expected {
        return Err(QuantError::ByteCount { format: format.name(), expected, got: bytes.len() });
    }
    with_blocks!(format, module => each_block(format, bytes, out, module::element));
    Ok(())
}

/// The value of element `index`, equal to what [`dequantize`] writes there.
///
/// # Errors
/// When `bytes` are not whole blocks or have no element `index`.
pub fn dequantize_at(format: Format, bytes: &[u8], index: usize) -> Result<f32, QuantError> {
    let elements = elements_of(format, bytes)?;
    if index >= elements {
        return Err(QuantError::OutOfRange { format: format.name(), index, elements });
    }
    let spec = format.spec();
    let block = &bytes[index / spec.block_elements * spec.block_bytes..][..spec.block_bytes];
    let i = index % spec.block_elements;
    Ok(with_blocks!(format, module => module::element(block, i)))
}

/// Rounds values to a format: with the choices of ggml's reference quantizer where the page on quantization says so,
/// else with the least squared error that the crate's search finds.
///
/// Values should be finite: a block with others has no good scale, and what it becomes is not
/// specified.
///
/// # Errors
/// When `values.len()` is no multiple of the block's elements, or there is no quantizer to the format
/// ([`Format::can_quantize`]).
pub fn quantize(format: Format, values: &[f32]) -> Result<Vec<u8>, QuantError> {
    let mut bytes = vec![0; format.row_bytes(values.len())?];
    let spec = format.spec();
    let blocks = values.chunks_exact(spec.block_elements).zip(bytes.chunks_exact_mut(spec.block_bytes));
    match (reference(format), fit(format)) {
        (Some(quantize), _) => blocks.for_each(|(x, block)| quantize(x, block)),
        (None, Some(fit)) => blocks.for_each(|(x, block)| fit(x, &ONES[..x.len()], block)),
        (None, None) => return Err(QuantError::NoQuantizer { format: format.name() }),
    }
    Ok(bytes)
}

/// Rounds rows of values to a format so that the squared error, weighted by the importance of each column, is small.
///
/// `importance` has one weight for each column, usually the mean square of what the column is multiplied with
/// (an importance matrix); only ratios matter. Formats whose scale leaves no choice
/// ([`Format::uses_importance`]) are rounded as by [`quantize`].
///
/// ```
/// use tallow_quant::{Format, dequantize, quantize_weighted};
/// let row: Vec<f32> = (0..32).map(|i| (i as f32).sin()).collect();
/// let mut importance = [1.0; 32];
/// importance[5] = 1e6;
/// let bytes = quantize_weighted(Format::Q4_0, &row, &importance)?;
/// let mut back = [0.0; 32];
/// dequantize(Format::Q4_0, &bytes, &mut back)?;
/// assert!((back[5] - row[5]).abs() < 1e-3);
/// # Ok::<(), tallow_quant::QuantError>(())
/// ```
///
/// # Errors
/// As [`quantize`]; also when the importance is negative or not finite somewhere, its columns are not whole blocks,
/// or the values are not whole rows.
pub fn quantize_weighted(format: Format, values: &[f32], importance: &[f32]) -> Result<Vec<u8>, QuantError> {
    format.row_bytes(importance.len())?;
    let columns = importance.len();
    if columns == 0 || !values.len().is_multiple_of(columns) {
        return Err(QuantError::ImportanceLength { columns, values: values.len() });
    }
    if let Some(column) = importance.iter().position(|w| !(w.is_finite() && *w >= 0.0)) {
        return Err(QuantError::ImportanceValue { column, value: importance[column].to_string() });
    }
    let Some(fit) = fit(format) else { return quantize(format, values) };
    let spec = format.spec();
    let weights = normalized(importance, spec.block_elements);
    let mut bytes = vec![0; format.row_bytes(values.len())?];
    let weights = weights.chunks_exact(spec.block_elements).cycle();
    let blocks = values.chunks_exact(spec.block_elements).zip(bytes.chunks_exact_mut(spec.block_bytes));
    for ((x, block), w) in blocks.zip(weights) {
        fit(x, w, block);
    }
    Ok(bytes)
}

impl Format {
    /// Whether [`quantize`] can make blocks of this format; every format can be read.
    pub fn can_quantize(self) -> bool {
        reference(self).is_some() || fit(self).is_some()
    }

    /// Whether [`quantize_weighted`] heeds the importance of columns in this format.
    pub fn uses_importance(self) -> bool {
        fit(self).is_some()
    }
}

/// The weights of a block where none are given.
const ONES: [f32; 256] = [1.0; 256];

/// Importance as weights whose mean is 1 in each block, so that sums neither overflow nor vanish. Columns that were
/// never used keep a small weight: a block of them has to be something, and why not what it was.
fn normalized(importance: &[f32], block: usize) -> Vec<f32> {
    let mut weights = importance.to_vec();
    for weights in weights.chunks_exact_mut(block) {
        let largest = weights.iter().fold(0.0f32, |max, &w| max.max(w));
        if largest == 0.0 {
            weights.fill(1.0);
            continue;
        }
        let mean = weights.iter().map(|w| w / largest).sum::<f32>() / block as f32;
        for w in weights {
            *w = *w / largest / mean + 1e-6;
        }
    }
    weights
}

/// A function that fills one block from its values.
type Quantizer = fn(&[f32], &mut [u8]);

/// A function that fills one block from its values and their weights.
type Fit = fn(&[f32], &[f32], &mut [u8]);

/// The quantizer that is equal to ggml's byte for byte, where there is one.
fn reference(format: Format) -> Option<Quantizer> {
    Some(match format {
        Format::Q4_0 => blocks::q4_0::quantize,
        Format::Q4_1 => blocks::q4_1::quantize,
        Format::Q5_0 => blocks::q5_0::quantize,
        Format::Q5_1 => blocks::q5_1::quantize,
        Format::Q8_0 => blocks::q8_0::quantize,
        Format::Q4_K => blocks::q4_k::quantize,
        Format::Q6_K => blocks::q6_k::quantize,
        Format::TQ1_0 => blocks::tq1_0::quantize,
        Format::TQ2_0 => blocks::tq2_0::quantize,
        Format::MXFP4 => blocks::mxfp4::quantize,
        Format::F16 => blocks::f16::quantize,
        Format::BF16 => blocks::bf16::quantize,
        Format::F32 => blocks::f32::quantize,
        Format::F64 => blocks::f64::quantize,
        Format::Q8_1 => blocks::q8_1::quantize,
        Format::Q8_K => blocks::q8_k::quantize,
        Format::I8 | Format::I16 | Format::I32 | Format::I64 => return None,
        Format::Q2_K | Format::Q3_K | Format::Q5_K => return None,
        Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S | Format::IQ3_XXS | Format::IQ3_S => return None,
        Format::IQ1_S | Format::IQ1_M | Format::IQ4_NL | Format::IQ4_XS | Format::NVFP4 => return None,
    })
}

/// The quantizer that minimizes a weighted error, where there is one.
fn fit(format: Format) -> Option<Fit> {
    Some(match format {
        Format::Q4_0 => blocks::q4_0::fit,
        Format::Q4_1 => blocks::q4_1::fit,
        Format::Q5_0 => blocks::q5_0::fit,
        Format::Q5_1 => blocks::q5_1::fit,
        Format::Q2_K => blocks::q2_k::fit,
        Format::Q3_K => blocks::q3_k::fit,
        Format::Q4_K => blocks::q4_k::fit,
        Format::Q5_K => blocks::q5_k::fit,
        Format::Q6_K => blocks::q6_k::fit,
        Format::IQ4_NL => blocks::iq4_nl::fit,
        Format::IQ4_XS => blocks::iq4_xs::fit,
        Format::NVFP4 => blocks::nvfp4::fit,
        Format::IQ2_XXS => blocks::iq2_xxs::fit,
        Format::IQ2_XS => blocks::iq2_xs::fit,
        Format::IQ2_S => blocks::iq2_s::fit,
        Format::IQ3_XXS => blocks::iq3_xxs::fit,
        Format::IQ3_S => blocks::iq3_s::fit,
        Format::IQ1_S => blocks::iq1_s::fit,
        Format::IQ1_M => blocks::iq1_m::fit,
        Format::Q8_0 | Format::Q8_1 | Format::Q8_K | Format::TQ1_0 | Format::TQ2_0 | Format::MXFP4 => {
            return None;
        }
        Format::F16 | Format::BF16 | Format::F32 | Format::F64 => return None,
        Format::I8 | Format::I16 | Format::I32 | Format::I64 => return None,
    })
}

/// Generic over the function, so that each format's `element` is inlined into its own loop.
fn each_block(format: Format, bytes: &[u8], out: &mut [f32], element: impl Fn(&[u8], usize) -> f32) {
    let spec = format.spec();
    for (block, values) in bytes.chunks_exact(spec.block_bytes).zip(out.chunks_exact_mut(spec.block_elements))
    {
        for (i, value) in values.iter_mut().enumerate() {
            *value = element(block, i);
        }
    }
}
