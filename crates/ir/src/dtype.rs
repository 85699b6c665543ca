//! Element types. Quantized blocks are an element type of weights and states: nothing computes in them, `dequantize` is
//! the one op that reads them, and `quantize` makes them.

use std::fmt;
use std::str::FromStr;

pub use tallow_quant::Format;

/// The type of one element of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 8-bit unsigned integer; also the result of comparisons (0 or 1).
    U8,
    /// 32-bit unsigned integer; the type of indices.
    U32,
    /// 16-bit signed integer.
    I16,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// 8-bit float of 4 exponent and 3 mantissa bits without infinities, see [`crate::float8`].
    F8E4M3,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of an f32.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// Blocks of a GGUF format; shapes still count elements, and rows are whole blocks.
    Block(Format),
}

impl DType {
    /// Every type that computation may use, in text order.
    pub const SCALARS: [DType; 10] = [
        DType::U8,
        DType::U32,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F8E4M3,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// Bytes of one element; `None` for blocks, whose elements share bytes.
    pub fn size(self) -> Option<usize> {
        match self {
            DType::U8 | DType::F8E4M3 => Some(1),
            DType::I16 | DType::F16 | DType::BF16 => Some(2),
            DType::U32 | DType::I32 | DType::F32 => Some(4),
            DType::I64 | DType::F64 => Some(8),
            DType::Block(_) => None,
        }
    }

    /// Bytes of one element; 0 for blocks, whose elements share bytes.
    pub fn size_in_bytes(self) -> usize {
        self.size().unwrap_or(0)
    }

    /// The name used in the text form and in messages.
    pub fn as_str(self) -> &'static str {
        self.name()
    }

    /// True for the types of floating-point numbers.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// True for the integer types.
    pub fn is_int(self) -> bool {
        matches!(self, DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64)
    }

    /// The name used in the text form.
    pub fn name(self) -> &'static str {
        match self {
            DType::U8 => "u8",
            DType::U32 => "u32",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F8E4M3 => "f8e4m3",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::Block(format) => match format {
                // The plain formats share their names with scalar types: a weight of them is a
                // `Block` only inside `Format::ALL` loops, so the text form keeps them apart.
                Format::F16 => "block_f16",
                Format::BF16 => "block_bf16",
                Format::F32 => "block_f32",
                Format::F64 => "block_f64",
                Format::I8 => "block_i8",
                Format::I16 => "block_i16",
                Format::I32 => "block_i32",
                Format::I64 => "block_i64",
                other => other.spec().name,
            },
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        DType::SCALARS
            .into_iter()
            .chain(Format::ALL.iter().map(|f| DType::Block(*f)))
            .find(|d| d.name() == s)
            .ok_or_else(|| format!("unknown dtype '{s}'"))
    }
}
