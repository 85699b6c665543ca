//! Random contents for operands of kernels that are measured.

use tallow_ir::{DType, Format, TensorType};
use tallow_quant::{QuantError, random_blocks};

/// Bytes that are made; operands repeat them. Rows of neighbours then differ in where they begin, as it is no power of two.
const PATTERN: usize = 3 << 18;

/// Root mean square of what is multiplied, and of the weights in blocks that it is multiplied by: results of long rows then stay
/// within f16.
const VALUES: f32 = 1.0;
const WEIGHTS: f32 = 0.05;

/// Signs of floats that are in no blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signs {
    Both,
    /// As of squares, whose root a kernel may take.
    Positive,
}

/// Bytes of a tensor of random values as a file has them, the same for one `seed`. Integers are small, as indices and counts are.
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
    // Of -8 ..= 7 the bits below the sign: no index is negative, and no float of 8 bits is NaN or next to nothing.
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
