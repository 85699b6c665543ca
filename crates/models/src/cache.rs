//! How keys and values are kept: as floats, or as blocks of 32 that share a scale.

use std::fmt;
use std::str::FromStr;

use tallow_ir::{DType, Format, Graph, GraphError, Op, Value};

use crate::config::Config;
use crate::error::{Error, Result};

/// The element type of keys or values in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheType {
    /// 32 bits: as they are computed.
    F32,
    /// 16 bits.
    #[default]
    F16,
    /// 8.5 bits: bytes with an f16 scale for each 32.
    Q8_0,
    /// 4.5 bits: levels of 4 bits with an f16 scale for each 32.
    Q4_0,
}

/// The types of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CacheTypes {
    /// Of keys.
    pub keys: CacheType,
    /// Of values.
    pub values: CacheType,
}

impl CacheType {
    /// Every type.
    pub const ALL: [CacheType; 4] = [CacheType::F32, CacheType::F16, CacheType::Q8_0, CacheType::Q4_0];

    /// The name, which is llama.cpp's.
    pub fn name(self) -> &'static str {
        self.dtype().name()
    }

    /// The element type of the states.
    pub fn dtype(self) -> DType {
        match self {
            CacheType::F32 => DType::F32,
            CacheType::F16 => DType::F16,
            CacheType::Q8_0 => DType::Block(Format::Q8_0),
            CacheType::Q4_0 => DType::Block(Format::Q4_0),
        }
    }

    /// Whether so many elements are whole blocks.
    pub(crate) fn is_multiple_of_block(self, elements: usize) -> bool {
        match self.dtype() {
            DType::Block(format) => elements.is_multiple_of(format.block_elements()),
            _ => true,
        }
    }

    /// Rows of f32 as they are written.
    pub(crate) fn store(self, g: &mut Graph, rows: Value) -> std::result::Result<Value, GraphError> {
        match self {
            CacheType::F32 => Ok(rows),
            CacheType::F16 => g.add(Op::Cast(DType::F16), &[rows]),
            CacheType::Q8_0 => g.add(Op::Quantize(Format::Q8_0), &[rows]),
            CacheType::Q4_0 => g.add(Op::Quantize(Format::Q4_0), &[rows]),
        }
    }

    /// A state as attention reads it: what blocks mean is never in memory.
    pub(crate) fn load(self, g: &mut Graph, state: Value) -> std::result::Result<Value, GraphError> {
        match self {
            CacheType::F32 | CacheType::F16 => Ok(state),
            CacheType::Q8_0 | CacheType::Q4_0 => g.add(Op::Dequantize(DType::F32), &[state]),
        }
    }
}

impl CacheTypes {
    /// Checks that heads are whole blocks: a block across two heads would make each depend on the other.
    ///
    /// # Errors
    /// When they are not.
    pub fn check(self, config: &Config) -> Result<()> {
        let parts = [("key", self.keys, config.key_length), ("value", self.values, config.value_length)];
        for (what, kind, length) in parts {
            let per = match kind.dtype() {
                DType::Block(format) => format.block_elements(),
                _ => 1,
            };
            if length % per != 0 {
                return Err(Error::CacheBlocks { what, kind: kind.name(), length, per });
            }
        }
        Ok(())
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CacheType {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<Self, String> {
        let found = CacheType::ALL.into_iter().find(|kind| kind.name() == s);
        let names = CacheType::ALL.map(CacheType::name).join(", ");
        found.ok_or_else(|| format!("no cache is of type '{s}' (there are {names})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in CacheType::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert_eq!(CacheType::ALL.map(CacheType::name), ["f32", "f16", "q8_0", "q4_0"]);
        let why = "q5_0".parse::<CacheType>().expect_err("not one of them");
        assert_eq!(why, "no cache is of type 'q5_0' (there are f32, f16, q8_0, q4_0)");
    }
}
