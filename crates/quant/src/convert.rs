//! Whole buffers: quantize, dequantize, and one element of a buffer.

use crate::blocks::{bf16, f16, f32, q4_0, q4_k, q6_k, q8_0};
use crate::planes::elements_of;
use crate::{Format, QuantError};

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
    match format {
        Format::Q4_0 => each_block(format, bytes, out, q4_0::element),
        Format::Q8_0 => each_block(format, bytes, out, q8_0::element),
        Format::Q4_K => each_block(format, bytes, out, q4_k::element),
        Format::Q6_K => each_block(format, bytes, out, q6_k::element),
        Format::F16 => each_block(format, bytes, out, f16::element),
        Format::BF16 => each_block(format, bytes, out, bf16::element),
        Format::F32 => each_block(format, bytes, out, f32::element),
    }
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
    let element = match format {
        Format::Q4_0 => q4_0::element,
        Format::Q8_0 => q8_0::element,
        Format::Q4_K => q4_k::element,
        Format::Q6_K => q6_k::element,
        Format::F16 => f16::element,
        Format::BF16 => bf16::element,
        Format::F32 => f32::element,
    };
    let block = &bytes[index / spec.block_elements * spec.block_bytes..][..spec.block_bytes];
    Ok(element(block, index % spec.block_elements))
}

/// Rounds values to a format, with the choices of ggml's reference quantizer.
///
/// Values should be finite: a block with others has no good scale, and what it becomes is not
/// specified.
///
/// # Errors
/// When `values.len()` is no multiple of the block's elements.
pub fn quantize(format: Format, values: &[f32]) -> Result<Vec<u8>, QuantError> {
    let mut bytes = vec![0; format.row_bytes(values.len())?];
    let quantize_block = match format {
        Format::Q4_0 => q4_0::quantize,
        Format::Q8_0 => q8_0::quantize,
        Format::Q4_K => q4_k::quantize,
        Format::Q6_K => q6_k::quantize,
        Format::F16 => f16::quantize,
        Format::BF16 => bf16::quantize,
        Format::F32 => f32::quantize,
    };
    let spec = format.spec();
    for (x, block) in values.chunks_exact(spec.block_elements).zip(bytes.chunks_exact_mut(spec.block_bytes)) {
        quantize_block(x, block);
    }
    Ok(bytes)
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
