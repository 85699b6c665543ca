//! The device layout: a block's field groups apart, each in its own aligned plane.
//!
//! A GGUF block of 18 or 210 bytes cannot be read in 16-byte loads. At load time a weight is
//! rearranged once: all blocks' first group of fields lie together, then all second groups, and so
//! on ([`FormatSpec::planes`](crate::FormatSpec)), each plane starting on a multiple of
//! [`PLANE_ALIGNMENT`]. Blocks keep their order, so block `b` of plane `p` starts at
//! `plane_offsets[p] + b * bytes_per_block`. The bytes themselves are unchanged, and the way back
//! ([`unpack`]) is exact.
//!
//! Behind the planes of a format with a codebook lies the codebook, at most 4 KiB, so that kernels read it like the
//! weight itself. (As a constant array in the shader it would be copied by each invocation on some devices.)

use crate::{Format, QuantError};

/// Every plane starts on a multiple of so many bytes: the widest load of a GPU.
pub const PLANE_ALIGNMENT: usize = 16;

/// Where each plane starts in a repacked weight of `elements` elements, in bytes; last the codebook, if the format
/// has one.
///
/// `elements` counts the whole tensor and is one that [`Format::row_bytes`] accepts; a partial
/// block would be given a whole block's room.
pub fn plane_offsets(format: Format, elements: usize) -> Vec<usize> {
    layout(format, elements).0
}

/// Bytes of a repacked weight: the file's, less than [`PLANE_ALIGNMENT`] of padding a plane, and the codebook.
///
/// The size is a multiple of [`PLANE_ALIGNMENT`], so that the last element can be read in a wide load.
pub fn repacked_bytes(format: Format, elements: usize) -> usize {
    layout(format, elements).1
}

/// Rearranges blocks as a file holds them into planes; padding is zero.
///
/// # Errors
/// When `bytes` are not whole blocks.
pub fn repack(format: Format, bytes: &[u8]) -> Result<Vec<u8>, QuantError> {
    let elements = elements_of(format, bytes)?;
    let spec = format.spec();
    let (offsets, total) = layout(format, elements);
    let mut out = vec![0; total];
    for (plane, &offset) in spec.planes.iter().zip(&offsets) {
        let blocks = bytes.chunks_exact(spec.block_bytes);
        for (to, block) in out[offset..].chunks_exact_mut(plane.bytes_per_block).zip(blocks) {
            to.copy_from_slice(&block[plane.offset_in_block..][..plane.bytes_per_block]);
        }
    }
    if let (Some(codebook), Some(&offset)) = (format.codebook(), offsets.last()) {
        for (to, point) in out[offset..].chunks_exact_mut(2).zip(codebook.points) {
            to.copy_from_slice(&point.to_le_bytes());
        }
    }
    Ok(out)
}

/// The inverse of [`repack`]: `elements` elements as a file holds them.
///
/// # Errors
/// When `elements` are not whole blocks, or `planes` has another size than [`repacked_bytes`].
pub fn unpack(format: Format, planes: &[u8], elements: usize) -> Result<Vec<u8>, QuantError> {
    let spec = format.spec();
    let mut out = vec![0; format.row_bytes(elements)?];
    let (offsets, total) = layout(format, elements);
    if planes.len() != total {
        return Err(QuantError::ByteCount { format: spec.name, expected: total, got: planes.len() });
    }
    for (plane, offset) in spec.planes.iter().zip(offsets) {
        let fields = planes[offset..].chunks_exact(plane.bytes_per_block);
        for (block, from) in out.chunks_exact_mut(spec.block_bytes).zip(fields) {
            block[plane.offset_in_block..][..plane.bytes_per_block].copy_from_slice(from);
        }
    }
    Ok(out)
}

/// Elements in `bytes`, which must be whole blocks.
pub(crate) fn elements_of(format: Format, bytes: &[u8]) -> Result<usize, QuantError> {
    let spec = format.spec();
    let blocks = bytes.len() / spec.block_bytes;
    if blocks * spec.block_bytes != bytes.len() {
        return Err(QuantError::ByteCount {
            format: spec.name,
            expected: (blocks + 1) * spec.block_bytes,
            got: bytes.len(),
        });
    }
    blocks
        .checked_mul(spec.block_elements)
        .ok_or(QuantError::TooLarge { format: spec.name, elements: usize::MAX })
}

/// Start of each plane, and the size of all.
fn layout(format: Format, elements: usize) -> (Vec<usize>, usize) {
    let spec = format.spec();
    let blocks = elements.div_ceil(spec.block_elements);
    let mut end = 0usize;
    // Saturating: a size beyond the address space stays one, and cannot be allocated.
    let planes = spec.planes.iter().map(|plane| blocks.saturating_mul(plane.bytes_per_block));
    let offsets = planes
        .chain(format.codebook().map(|codebook| codebook.points.len() * 2))
        .map(|bytes| {
            let start = end;
            end = start.saturating_add(bytes).checked_next_multiple_of(PLANE_ALIGNMENT).unwrap_or(usize::MAX);
            start
        })
        .collect();
    (offsets, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that differ from their neighbours in blocks and planes.
    fn pattern(len: usize) -> Vec<u8> {
        (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    #[test]
    fn repacking_is_reversible_and_nearly_free() {
        for &format in Format::ALL {
            let spec = format.spec();
            for blocks in [0, 1, 2, 3, 7, 8, 64, 129] {
                let elements = blocks * spec.block_elements;
                let file = pattern(blocks * spec.block_bytes);
                let planes = repack(format, &file).expect("whole blocks");
                assert_eq!(planes.len(), repacked_bytes(format, elements));
                let codebook = format.codebook().map_or(0, |codebook| codebook.points.len() * 2);
                assert!(codebook <= 4096 && planes.len() <= file.len() + 16 * spec.planes.len() + codebook);
                assert!(plane_offsets(format, elements).iter().all(|o| o % PLANE_ALIGNMENT == 0));
                assert_eq!(unpack(format, &planes, elements).as_deref(), Ok(&file[..]), "{format} {blocks}");
            }
        }
    }

    #[test]
    fn fields_lie_where_the_offsets_say() {
        let file = pattern(3 * 210);
        let planes = repack(Format::Q6_K, &file).expect("whole blocks");
        let offsets = plane_offsets(Format::Q6_K, 768);
        assert_eq!(offsets, [0, 384, 576, 624]);
        assert_eq!(planes.len(), 640);
        assert_eq!(planes[384 + 64..][..64], file[210 + 128..][..64]);
        assert_eq!(planes[624 + 4..][..2], file[2 * 210 + 208..][..2]);
        assert_eq!(planes[630..], [0; 10]);
    }

    #[test]
    fn wrong_sizes_are_errors() {
        assert!(matches!(
            repack(Format::Q4_0, &[0; 19]),
            Err(QuantError::ByteCount { expected: 36, got: 19, .. })
        ));
        assert!(matches!(unpack(Format::Q4_0, &[0; 18], 32), Err(QuantError::ByteCount { .. })));
        assert!(matches!(unpack(Format::Q4_0, &[0; 32], 31), Err(QuantError::PartialBlock { .. })));
        assert_eq!(repacked_bytes(Format::F32, usize::MAX), usize::MAX);
    }
}
