//! Random operands for kernels that are measured.

use tallow_ir::{DType, Format, TensorType};
use tallow_quant::{QuantError, random_blocks};

/// Bytes that are generated; operands repeat them. Not a power of two, so that adjacent rows start at different
/// positions.
const PATTERN: usize = 3 << 18;

/// Root mean square of the activations, and of the block weights that multiply them: results of long rows then stay
/// within f16.
const VALUES: f32 = 1.0;
const WEIGHTS: f32 = 0.05;

/// Signs of floats outside blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signs {
    Both,
    /// Like squares, whose root a kernel may take.
    Positive,
}

/// Random bytes of a tensor in a file's layout, reproducible by `seed`. Integers are small, as indices and counts are.
pub(super) fn random(ty: &TensorType, seed: u64, signs: Signs) -> Result<Vec<u8>, QuantError> {
    let elements = ty.shape.max_numel() as usize;
    let (format, size) = match ty.dtype {
        DType::Block(format) => (format, WEIGHTS),
        DType::F16 => (Format::F16, VALUES),
        DType::BF16 => (Format::BF16, VALUES),
        DType::F32 => (Format::F32, VALUES),
        DType::F64 => (Format::F64, VALUES),
        DType::U8 | DType::F8E4M3 => (Format::I8, VALUES),
        DType::I16 => (Format::I16, VALUES),
        DType::U32 | DType::I32 => (Format::I32, VALUES),
        DType::I64 => (Format::I64, VALUES),
    };
    let bytes = format.row_bytes(elements)?;
    let mut pattern = vec![0; bytes.min(PATTERN / format.block_bytes() * format.block_bytes())];
    random_blocks(format, &mut pattern, size, seed)?;
    if pattern.is_empty() {
        return Ok(pattern);
    }
    // The input is -8 ..= 7. Clearing the sign makes indices nonnegative; the mask excludes NaN and tiny 8-bit floats.
    match ty.dtype {
        DType::U8 => pattern.iter_mut().for_each(|byte| *byte &= 7),
        DType::F8E4M3 => pattern.iter_mut().for_each(|byte| *byte = (*byte & 0x87) | 0x30),
        DType::U32 => pattern.as_chunks_mut::<4>().0.iter_mut().for_each(|x| *x = [x[0] & 7, 0, 0, 0]),
        DType::Block(_)
        | DType::F16
        | DType::BF16
        | DType::F32
        | DType::F64
        | DType::I16
        | DType::I32
        | DType::I64 => {}
    }
    let float = match ty.dtype {
        DType::F64 | DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 => format.block_bytes(),
        DType::Block(_) | DType::U8 | DType::I16 | DType::U32 | DType::I32 | DType::I64 => 0,
    };
    if signs == Signs::Positive && float > 0 {
        pattern.iter_mut().skip(float - 1).step_by(float).for_each(|high| *high &= 0x7f);
    }
    Ok(pattern.iter().copied().cycle().take(bytes).collect())
}
