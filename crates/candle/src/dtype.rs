//! Element types and block formats of either side.

use candle_core::quantized::GgmlDType;
use tallow::{DType, Format};

use crate::error::fail;

/// Tallow's name of an element type.
///
/// # Errors
/// For the types of less than 8 bits and of bare exponents, which Candle only stores.
pub fn dtype(from: candle_core::DType) -> candle_core::Result<DType> {
    use candle_core::DType as Candle;
    // Candle's enum may grow, so there is an arm for what is not known.
    Ok(match from {
        Candle::U8 => DType::U8,
        Candle::U32 => DType::U32,
        Candle::I16 => DType::I16,
        Candle::I32 => DType::I32,
        Candle::I64 => DType::I64,
        Candle::BF16 => DType::BF16,
        Candle::F16 => DType::F16,
        Candle::F32 => DType::F32,
        Candle::F64 => DType::F64,
        Candle::F8E4M3 => DType::F8E4M3,
        other => return Err(candle_core::Error::UnsupportedDTypeForOp(other, "tallow")),
    })
}

/// Candle's name of an element type.
///
/// # Errors
/// For blocks, which Candle's tensors do not hold.
pub fn candle_dtype(from: DType) -> candle_core::Result<candle_core::DType> {
    use candle_core::DType as Candle;
    Ok(match from {
        DType::U8 => Candle::U8,
        DType::U32 => Candle::U32,
        DType::I16 => Candle::I16,
        DType::I32 => Candle::I32,
        DType::I64 => Candle::I64,
        DType::BF16 => Candle::BF16,
        DType::F16 => Candle::F16,
        DType::F32 => Candle::F32,
        DType::F64 => Candle::F64,
        DType::F8E4M3 => Candle::F8E4M3,
        DType::Block(format) => return fail(format!("a Candle tensor holds no {format} blocks")),
    })
}

/// The element type of a weight in one of Candle's formats: a scalar or blocks.
pub fn weight_dtype(from: GgmlDType) -> DType {
    match from {
        GgmlDType::F32 => DType::F32,
        GgmlDType::F16 => DType::F16,
        GgmlDType::BF16 => DType::BF16,
        GgmlDType::Q4_0 => DType::Block(Format::Q4_0),
        GgmlDType::Q4_1 => DType::Block(Format::Q4_1),
        GgmlDType::Q5_0 => DType::Block(Format::Q5_0),
        GgmlDType::Q5_1 => DType::Block(Format::Q5_1),
        GgmlDType::Q8_0 => DType::Block(Format::Q8_0),
        GgmlDType::Q8_1 => DType::Block(Format::Q8_1),
        GgmlDType::Q2K => DType::Block(Format::Q2_K),
        GgmlDType::Q3K => DType::Block(Format::Q3_K),
        GgmlDType::Q4K => DType::Block(Format::Q4_K),
        GgmlDType::Q5K => DType::Block(Format::Q5_K),
        GgmlDType::Q6K => DType::Block(Format::Q6_K),
        GgmlDType::Q8K => DType::Block(Format::Q8_K),
    }
}
