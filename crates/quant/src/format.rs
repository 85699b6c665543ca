//! The table of block formats: one row per format, from which everything else follows.
//!
//! The geometry and the ids are those of ggml (`ggml.h`, `enum ggml_type`; `ggml-common.h`, the
//! `block_*` structs). A format is a row in [`FORMATS`], a variant of [`Format`] and one module
//! with its block arithmetic; the fixture test walks [`Format::ALL`].

use crate::QuantError;

/// How a tensor's elements are stored: plain floats, or blocks of quantized values with scales.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Format {
    /// 32 values of 4 bits and one f16 scale; 4.5 bits an element.
    Q4_0,
    /// 32 values of 4 bits, an f16 scale and an f16 minimum; 5 bits an element.
    Q4_1,
    /// 32 values of 5 bits and one f16 scale; 5.5 bits an element.
    Q5_0,
    /// 32 values of 5 bits, an f16 scale and an f16 minimum; 6 bits an element.
    Q5_1,
    /// 32 values of 8 bits and one f16 scale; 8.5 bits an element.
    Q8_0,
    /// 32 values of 8 bits, one f16 scale, and their sum; 9 bits an element. Of activations, not of weights.
    Q8_1,
    /// 256 values of 2 bits in 16 groups with 4-bit scales and minima; 2.625 bits an element.
    Q2_K,
    /// 256 values of 3 bits in 16 groups with 6-bit scales; 3.4375 bits an element.
    Q3_K,
    /// 256 values of 4 bits in 8 groups with 6-bit scales and minima; 4.5 bits an element.
    Q4_K,
    /// 256 values of 5 bits in 8 groups with 6-bit scales and minima; 5.5 bits an element.
    Q5_K,
    /// 256 values of 6 bits in 16 groups with 8-bit scales; 6.5625 bits an element.
    Q6_K,
    /// 256 values of 8 bits, one f32 scale, and their sums; 9.125 bits an element. Of activations, not of weights.
    Q8_K,
    /// 256 values as points of a codebook, 8 groups with 4-bit scales; 2.0625 bits an element.
    IQ2_XXS,
    /// 256 values as points of a codebook, 16 groups with 4-bit scales; 2.3125 bits an element.
    IQ2_XS,
    /// 256 values as points of a codebook, 16 groups with 4-bit scales; 2.5625 bits an element.
    IQ2_S,
    /// 256 values as points of a codebook, 8 groups with 4-bit scales; 3.0625 bits an element.
    IQ3_XXS,
    /// 256 values as points of a codebook, 8 groups with 4-bit scales; 3.4375 bits an element.
    IQ3_S,
    /// 256 values as points of a codebook, 8 groups with 3-bit scales; 1.5625 bits an element.
    IQ1_S,
    /// 256 values as points of a codebook, 16 groups with 3-bit scales; 1.75 bits an element.
    IQ1_M,
    /// 32 values of 16 uneven levels and one f16 scale; 4.5 bits an element.
    IQ4_NL,
    /// 256 values of 16 uneven levels in 8 groups with 6-bit scales; 4.25 bits an element.
    IQ4_XS,
    /// 256 values of -1, 0 or 1, five in a byte, and one f16 scale; 1.6875 bits an element.
    TQ1_0,
    /// 256 values of -1, 0 or 1, four in a byte, and one f16 scale; 2.0625 bits an element.
    TQ2_0,
    /// 32 floats of 4 bits (e2m1) and a power of two; 4.25 bits an element.
    MXFP4,
    /// 64 floats of 4 bits (e2m1) in 4 groups with 8-bit float scales (e4m3); 4.5 bits an element.
    NVFP4,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an IEEE 754 single.
    BF16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// Signed integers of 8 bits.
    I8,
    /// Signed integers of 16 bits.
    I16,
    /// Signed integers of 32 bits.
    I32,
    /// Signed integers of 64 bits.
    I64,
}

/// One group of fields that lies apart from the others in device memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Plane {
    /// Name of the field group, as kernels call it.
    pub name: &'static str,
    /// Where the group starts inside a block of the file, in bytes.
    pub offset_in_block: usize,
    /// Size of the group in one block, in bytes.
    pub bytes_per_block: usize,
    /// The bits of each byte that are its lowest share, bit 0 among them, where a byte has bits of elements that are far apart and each
    /// share is gathered to words of its own ([`Plane::exchange`]); 0xff where bytes stay as they are. The other shares are the same
    /// pattern, shifted to the bits that are still free.
    pub share: u8,
}

impl Plane {
    /// How far each share is shifted from [`share`](Plane::share).
    pub fn shifts(&self) -> Vec<u32> {
        let mut taken = 0u8;
        let mut shifts = vec![];
        while taken != 0xff {
            let shift = taken.trailing_ones();
            taken |= self.share << shift;
            shifts.push(shift);
        }
        shifts
    }

    /// Eight words of a field of which each byte has bits of `n` shares, as they lie on the device, or back.
    ///
    /// The words are counted as `j * 8 / n + k`. Share `p` of word `(j, k)` becomes share `j` of word `(p, k)`, so that each
    /// share has `8 / n` words of its own.
    pub fn exchange(&self, words: [u32; 8]) -> [u32; 8] {
        let (shifts, mask) = (self.shifts(), u32::from_ne_bytes([self.share; 4]));
        let stride = 8 / shifts.len();
        std::array::from_fn(|word| {
            let (p, k) = (word / stride, word % stride);
            let shares = shifts.iter().enumerate();
            shares.fold(0, |all, (j, shift)| all | ((words[j * stride + k] >> shifts[p]) & mask) << shift)
        })
    }
}

/// One row of the format table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FormatSpec {
    /// The format that this row describes.
    pub format: Format,
    /// Lower-case name in text forms and on the command line, such as `q4_k`.
    pub name: &'static str,
    /// The type's number in GGUF files (`enum ggml_type`).
    pub ggml_id: u32,
    /// Elements in one block; 1 for plain floats.
    pub block_elements: usize,
    /// Bytes of one block in a file.
    pub block_bytes: usize,
    /// The block's field groups in device order, widest first; together they cover the block once.
    pub planes: &'static [Plane],
}

const fn plane(name: &'static str, offset_in_block: usize, bytes_per_block: usize) -> Plane {
    shared(name, offset_in_block, bytes_per_block, 0xff)
}

/// A plane of which each byte has bits of several shares.
const fn shared(name: &'static str, offset_in_block: usize, bytes_per_block: usize, share: u8) -> Plane {
    Plane { name, offset_in_block, bytes_per_block, share }
}

const fn row(
    format: Format,
    name: &'static str,
    ggml_id: u32,
    block_elements: usize,
    block_bytes: usize,
    planes: &'static [Plane],
) -> FormatSpec {
    FormatSpec { format, name, ggml_id, block_elements, block_bytes, planes }
}

/// The rows, in the order of [`Format`]'s variants: name, number, elements and bytes of a block, planes.
///
/// Planes have 1, 2 or a multiple of 4 bytes a block, so that no field straddles words in an odd way. Shares are what one invocation of a matvec
/// takes of a block: two groups of 32 elements, neighbours or, where scales are of 16, 64 elements apart.
const FORMATS: [FormatSpec; 33] = [
    row(Format::Q4_0, "q4_0", 2, 32, 18, &[plane("qs", 2, 16), plane("d", 0, 2)]),
    row(Format::Q4_1, "q4_1", 3, 32, 20, &[plane("qs", 4, 16), plane("dm", 0, 4)]),
    row(Format::Q5_0, "q5_0", 6, 32, 22, &[plane("qs", 6, 16), plane("qh", 2, 4), plane("d", 0, 2)]),
    row(Format::Q5_1, "q5_1", 7, 32, 24, &[plane("qs", 8, 16), plane("qh", 4, 4), plane("dm", 0, 4)]),
    row(Format::Q8_0, "q8_0", 8, 32, 34, &[plane("qs", 2, 32), plane("d", 0, 2)]),
    row(Format::Q8_1, "q8_1", 9, 32, 36, &[plane("qs", 4, 32), plane("ds", 0, 4)]),
    row(
        Format::Q2_K,
        "q2_k",
        10,
        256,
        84,
        &[shared("qs", 16, 64, 0x33), plane("sc", 0, 16), plane("dm", 80, 4)],
    ),
    row(
        Format::Q3_K,
        "q3_k",
        11,
        256,
        110,
        &[shared("qs", 32, 64, 0x33), shared("qh", 0, 32, 0x05), plane("sc", 96, 12), plane("d", 108, 2)],
    ),
    // The head is d, dmin and the twelve bytes of packed scales: one 16-byte load.
    row(Format::Q4_K, "q4_k", 12, 256, 144, &[plane("qs", 16, 128), plane("head", 0, 16)]),
    row(
        Format::Q5_K,
        "q5_k",
        13,
        256,
        176,
        &[plane("qs", 48, 128), shared("qh", 16, 32, 0x03), plane("head", 0, 16)],
    ),
    row(
        Format::Q6_K,
        "q6_k",
        14,
        256,
        210,
        &[plane("ql", 0, 128), shared("qh", 128, 64, 0x33), plane("sc", 192, 16), plane("d", 208, 2)],
    ),
    row(Format::Q8_K, "q8_k", 15, 256, 292, &[plane("qs", 4, 256), plane("sums", 260, 32), plane("d", 0, 4)]),
    row(Format::IQ2_XXS, "iq2_xxs", 16, 256, 66, &[plane("qs", 2, 64), plane("d", 0, 2)]),
    row(Format::IQ2_XS, "iq2_xs", 17, 256, 74, &[plane("qs", 2, 64), plane("sc", 66, 8), plane("d", 0, 2)]),
    row(
        Format::IQ2_S,
        "iq2_s",
        22,
        256,
        82,
        &[
            plane("qs", 2, 32),
            plane("signs", 34, 32),
            plane("qh", 66, 8),
            plane("sc", 74, 8),
            plane("d", 0, 2),
        ],
    ),
    row(
        Format::IQ3_XXS,
        "iq3_xxs",
        18,
        256,
        98,
        &[plane("qs", 2, 64), plane("sc", 66, 32), plane("d", 0, 2)],
    ),
    row(
        Format::IQ3_S,
        "iq3_s",
        21,
        256,
        110,
        &[
            plane("qs", 2, 64),
            plane("signs", 74, 32),
            plane("qh", 66, 8),
            plane("sc", 106, 4),
            plane("d", 0, 2),
        ],
    ),
    row(Format::IQ1_S, "iq1_s", 19, 256, 50, &[plane("qs", 2, 32), plane("qh", 34, 16), plane("d", 0, 2)]),
    row(Format::IQ1_M, "iq1_m", 29, 256, 56, &[plane("qs", 0, 32), plane("qh", 32, 16), plane("sc", 48, 8)]),
    row(Format::IQ4_NL, "iq4_nl", 20, 32, 18, &[plane("qs", 2, 16), plane("d", 0, 2)]),
    // The head is d and all scales: one 8-byte load.
    row(Format::IQ4_XS, "iq4_xs", 23, 256, 136, &[plane("qs", 8, 128), plane("head", 0, 8)]),
    row(Format::TQ1_0, "tq1_0", 34, 256, 54, &[plane("qs", 0, 48), plane("qh", 48, 4), plane("d", 52, 2)]),
    row(Format::TQ2_0, "tq2_0", 35, 256, 66, &[shared("qs", 0, 64, 0x0f), plane("d", 64, 2)]),
    row(Format::MXFP4, "mxfp4", 39, 32, 17, &[plane("qs", 1, 16), plane("e", 0, 1)]),
    row(Format::NVFP4, "nvfp4", 40, 64, 36, &[plane("qs", 4, 32), plane("sc", 0, 4)]),
    row(Format::F16, "f16", 1, 1, 2, &[plane("data", 0, 2)]),
    row(Format::BF16, "bf16", 30, 1, 2, &[plane("data", 0, 2)]),
    row(Format::F32, "f32", 0, 1, 4, &[plane("data", 0, 4)]),
    row(Format::F64, "f64", 28, 1, 8, &[plane("data", 0, 8)]),
    row(Format::I8, "i8", 24, 1, 1, &[plane("data", 0, 1)]),
    row(Format::I16, "i16", 25, 1, 2, &[plane("data", 0, 2)]),
    row(Format::I32, "i32", 26, 1, 4, &[plane("data", 0, 4)]),
    row(Format::I64, "i64", 27, 1, 8, &[plane("data", 0, 8)]),
];

impl Format {
    /// Every format, in table order.
    pub const ALL: &[Format] = &{
        let mut all = [Format::F32; FORMATS.len()];
        let mut i = 0;
        while i < FORMATS.len() {
            // The row of a variant is found by its number, so the two orders must agree.
            assert!(FORMATS[i].format as usize == i);
            all[i] = FORMATS[i].format;
            i += 1;
        }
        all
    };

    /// The format's row in the table.
    pub fn spec(self) -> &'static FormatSpec {
        const { &FORMATS }.get(self as usize).expect("invariant: the table has a row for each variant")
    }

    /// Lower-case text name, such as `q4_0`.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Elements in one block; 1 for plain floats.
    pub fn block_elements(self) -> usize {
        self.spec().block_elements
    }

    /// Bytes of one block in a file.
    pub fn block_bytes(self) -> usize {
        self.spec().block_bytes
    }

    /// Whether the format holds plain numbers rather than quantized blocks.
    pub fn is_plain(self) -> bool {
        self.block_elements() == 1
    }

    /// The format with this number in GGUF files, if it is one of ours.
    pub fn from_ggml_id(id: u32) -> Option<Format> {
        FORMATS.iter().find(|row| row.ggml_id == id).map(|row| row.format)
    }

    /// The format with this name, in upper or lower case, if it is one of ours.
    pub fn from_name(name: &str) -> Option<Format> {
        FORMATS.iter().find(|row| row.name.eq_ignore_ascii_case(name)).map(|row| row.format)
    }

    /// Bytes that `elements` elements take in a file.
    ///
    /// # Errors
    /// When `elements` is no multiple of the block's, or the size does not fit `usize`.
    pub fn row_bytes(self, elements: usize) -> Result<usize, QuantError> {
        let spec = self.spec();
        if !elements.is_multiple_of(spec.block_elements) {
            return Err(QuantError::PartialBlock {
                format: spec.name,
                elements,
                block_elements: spec.block_elements,
            });
        }
        (elements / spec.block_elements)
            .checked_mul(spec.block_bytes)
            .ok_or(QuantError::TooLarge { format: spec.name, elements })
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_cover_each_block_once() {
        for &format in Format::ALL {
            let spec = format.spec();
            let mut owner = vec![0; spec.block_bytes];
            for plane in spec.planes {
                for count in &mut owner[plane.offset_in_block..][..plane.bytes_per_block] {
                    *count += 1;
                }
            }
            assert!(owner.iter().all(|&count| count == 1), "{format}: {owner:?}");
        }
    }

    /// What the kernel that rearranges blocks relies on: a word of a plane is made of whole fields, or is part of one.
    #[test]
    fn fields_fill_words_evenly() {
        for plane in Format::ALL.iter().flat_map(|format| format.spec().planes) {
            let bytes = plane.bytes_per_block;
            assert!(bytes == 1 || bytes == 2 || (bytes > 0 && bytes.is_multiple_of(4)), "{plane:?}");
        }
    }

    #[test]
    fn names_and_ids_are_found_again() {
        for &format in Format::ALL {
            let spec = format.spec();
            assert_eq!(spec.format, format);
            assert_eq!(Format::from_name(spec.name), Some(format));
            assert_eq!(Format::from_name(&spec.name.to_uppercase()), Some(format));
            assert_eq!(Format::from_ggml_id(spec.ggml_id), Some(format));
        }
        assert_eq!(Format::from_name("q9_9"), None);
        assert_eq!(Format::from_ggml_id(4), None);
    }

    #[test]
    fn row_bytes_counts_whole_blocks() {
        assert_eq!(Format::Q4_0.row_bytes(4096).ok(), Some(2304));
        assert_eq!(Format::Q6_K.row_bytes(512).ok(), Some(420));
        assert_eq!(Format::F32.row_bytes(3).ok(), Some(12));
        assert_eq!(
            Format::Q4_K.row_bytes(100).map_err(|e| e.to_string()),
            Err("q4_k: 100 elements are not whole blocks of 256".to_owned())
        );
        assert!(matches!(Format::F32.row_bytes(usize::MAX / 2), Err(QuantError::TooLarge { .. })));
    }
}
