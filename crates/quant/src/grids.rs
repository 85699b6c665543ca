//! The codebooks of the IQ formats: points of a lattice that weights were found to lie near, chosen by ggml's
//! authors. They are part of the formats, and cannot be computed.
//!
//! A point is a 16-bit word of 8 digits of 2 bits (4 of 3 bits in [`iq3`]), the first lowest; what levels the digits
//! stand for, the formats say. The fixture test compares the codebooks with those of the package gguf.

mod iq1;
mod iq2;
mod iq3;

pub use iq1::IQ1;
pub use iq2::{IQ2_S, IQ2_XS, IQ2_XXS};
pub use iq3::{IQ3_S, IQ3_XXS};

use crate::Format;

/// A codebook that blocks of a format refer to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Codebook {
    /// Name, as kernels call it; formats may share a codebook.
    pub name: &'static str,
    /// The points, each with its digits packed into a word.
    pub points: &'static [u16],
}

/// Every codebook, in the order in which [`codebooks`] has them.
const ALL: [Codebook; 6] = [
    Codebook { name: "iq1", points: &IQ1 },
    Codebook { name: "iq2_xxs", points: &IQ2_XXS },
    Codebook { name: "iq2_xs", points: &IQ2_XS },
    Codebook { name: "iq2_s", points: &IQ2_S },
    Codebook { name: "iq3_xxs", points: &IQ3_XXS },
    Codebook { name: "iq3_s", points: &IQ3_S },
];

/// All codebooks, one behind the other, each point in two little-endian bytes: what a device keeps once for all weights.
///
/// ```
/// use tallow_quant::{Format, codebooks};
/// let codebook = Format::IQ3_S.codebook().expect("the format has one");
/// let first = &codebooks()[codebook.offset()..][..2];
/// assert_eq!(first, codebook.points[0].to_le_bytes());
/// ```
pub fn codebooks() -> Vec<u8> {
    ALL.iter().flat_map(|codebook| codebook.points).flat_map(|point| point.to_le_bytes()).collect()
}

/// Bytes of [`codebooks`].
pub fn codebooks_bytes() -> usize {
    ALL.iter().map(Codebook::bytes).sum()
}

impl Codebook {
    /// Where it starts in [`codebooks`], in bytes; a multiple of 16.
    pub fn offset(&self) -> usize {
        ALL.iter().take_while(|other| other.name != self.name).map(Codebook::bytes).sum()
    }

    fn bytes(&self) -> usize {
        2 * self.points.len()
    }
}

impl Format {
    /// The codebook that blocks of this format refer to, if any.
    pub fn codebook(self) -> Option<Codebook> {
        let [iq1, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s] = ALL;
        Some(match self {
            Format::IQ1_S | Format::IQ1_M => iq1,
            Format::IQ2_XXS => iq2_xxs,
            Format::IQ2_XS => iq2_xs,
            Format::IQ2_S => iq2_s,
            Format::IQ3_XXS => iq3_xxs,
            Format::IQ3_S => iq3_s,
            Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::Q8_0 | Format::Q8_1 => {
                return None;
            }
            Format::Q2_K | Format::Q3_K | Format::Q4_K | Format::Q5_K | Format::Q6_K | Format::Q8_K => {
                return None;
            }
            Format::IQ4_NL | Format::IQ4_XS | Format::TQ1_0 | Format::TQ2_0 => return None,
            Format::MXFP4 | Format::NVFP4 | Format::F16 | Format::BF16 | Format::F32 => return None,
            Format::F64 | Format::I8 | Format::I16 | Format::I32 | Format::I64 => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codebooks_lie_where_their_offsets_say() {
        let all = codebooks();
        assert_eq!(all.len(), codebooks_bytes());
        let mut end = 0;
        for codebook in ALL {
            assert_eq!((codebook.offset(), end % 16), (end, 0));
            let words = all[end..][..2 * codebook.points.len()].as_chunks::<2>().0;
            assert!(words.iter().map(|word| u16::from_le_bytes(*word)).eq(codebook.points.iter().copied()));
            end += 2 * codebook.points.len();
        }
        assert_eq!(end, all.len());
        let used: Vec<_> = Format::ALL.iter().filter_map(|format| format.codebook()).collect();
        assert!(ALL.iter().all(|codebook| used.contains(codebook)), "each belongs to a format");
    }
}
