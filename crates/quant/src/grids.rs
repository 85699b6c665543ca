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

impl Format {
    /// The codebook that blocks of this format refer to, if any.
    pub fn codebook(self) -> Option<Codebook> {
        let (name, points): (_, &[u16]) = match self {
            Format::IQ1_S | Format::IQ1_M => ("iq1", &IQ1),
            Format::IQ2_XXS => ("iq2_xxs", &IQ2_XXS),
            Format::IQ2_XS => ("iq2_xs", &IQ2_XS),
            Format::IQ2_S => ("iq2_s", &IQ2_S),
            Format::IQ3_XXS => ("iq3_xxs", &IQ3_XXS),
            Format::IQ3_S => ("iq3_s", &IQ3_S),
            Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::Q8_0 | Format::Q8_1 => {
                return None;
            }
            Format::Q2_K | Format::Q3_K | Format::Q4_K | Format::Q5_K | Format::Q6_K | Format::Q8_K => {
                return None;
            }
            Format::IQ4_NL | Format::IQ4_XS | Format::TQ1_0 | Format::TQ2_0 => return None,
            Format::MXFP4 | Format::NVFP4 | Format::F16 | Format::BF16 | Format::F32 => return None,
            Format::F64 | Format::I8 | Format::I16 | Format::I32 | Format::I64 => return None,
        };
        Some(Codebook { name, points })
    }
}
