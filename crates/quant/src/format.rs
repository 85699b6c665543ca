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
    /// 32 values of 8 bits and one f16 scale; 8.5 bits an element.
    Q8_0,
    /// 256 values of 4 bits in 8 groups with 6-bit scales and minima; 4.5 bits an element.
    Q4_K,
    /// 256 values of 6 bits in 16 groups with 8-bit scales; 6.5625 bits an element.
    Q6_K,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an IEEE 754 single.
    BF16,
    /// IEEE 754 single precision.
    F32,
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
    Plane { name, offset_in_block, bytes_per_block }
}

/// The rows, in the order of [`Format`]'s variants.
const FORMATS: [FormatSpec; 7] = [
    FormatSpec {
        format: Format::Q4_0,
        name: "q4_0",
        ggml_id: 2,
        block_elements: 32,
        block_bytes: 18,
        planes: &[plane("qs", 2, 16), plane("d", 0, 2)],
    },
    FormatSpec {
        format: Format::Q8_0,
        name: "q8_0",
        ggml_id: 8,
        block_elements: 32,
        block_bytes: 34,
        planes: &[plane("qs", 2, 32), plane("d", 0, 2)],
    },
    // The head is d, dmin and the twelve bytes of packed scales: one 16-byte load.
    FormatSpec {
        format: Format::Q4_K,
        name: "q4_k",
        ggml_id: 12,
        block_elements: 256,
        block_bytes: 144,
        planes: &[plane("qs", 16, 128), plane("head", 0, 16)],
    },
    FormatSpec {
        format: Format::Q6_K,
        name: "q6_k",
        ggml_id: 14,
        block_elements: 256,
        block_bytes: 210,
        planes: &[plane("ql", 0, 128), plane("qh", 128, 64), plane("sc", 192, 16), plane("d", 208, 2)],
    },
    FormatSpec {
        format: Format::F16,
        name: "f16",
        ggml_id: 1,
        block_elements: 1,
        block_bytes: 2,
        planes: &[plane("data", 0, 2)],
    },
    FormatSpec {
        format: Format::BF16,
        name: "bf16",
        ggml_id: 30,
        block_elements: 1,
        block_bytes: 2,
        planes: &[plane("data", 0, 2)],
    },
    FormatSpec {
        format: Format::F32,
        name: "f32",
        ggml_id: 0,
        block_elements: 1,
        block_bytes: 4,
        planes: &[plane("data", 0, 4)],
    },
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

    /// Whether the format holds plain floats rather than quantized blocks.
    pub fn is_float(self) -> bool {
        match self {
            Format::F16 | Format::BF16 | Format::F32 => true,
            Format::Q4_0 | Format::Q8_0 | Format::Q4_K | Format::Q6_K => false,
        }
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
