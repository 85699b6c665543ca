//! The device layout: a block's field groups apart, each in its own aligned plane.
//!
//! A GGUF block of 18 or 210 bytes cannot be read in 16-byte loads. At load time a weight is
//! rearranged once: all blocks' first group of fields lie together, then all second groups, and so
//! on ([`FormatSpec::planes`](crate::FormatSpec)), each plane starting on a multiple of
//! [`PLANE_ALIGNMENT`]. Blocks keep their order, so block `b` of plane `p` starts at
//! `plane_offsets[p] + b * bytes_per_block`. Where bytes have bits of elements that are far apart, those of elements
//! that are read together are gathered ([`Plane::exchange`](crate::Plane::exchange)); all else stays as it is, and the way back ([`unpack`]) is exact.
//!
//! Codebooks lie elsewhere, once for all weights ([`codebooks`](crate::codebooks)). A device that rearranges blocks
//! itself does so in runs of [`RUN_BLOCKS`], each of which starts every plane anew on an aligned byte.

use crate::{Format, Plane, QuantError};

/// Every plane starts on a multiple of so many bytes: the widest load of a GPU.
pub const PLANE_ALIGNMENT: usize = 16;

/// The fewest blocks that fill whole multiples of [`PLANE_ALIGNMENT`] in every plane, the narrowest having one byte a
/// block. So a multiple of these can be rearranged apart from the blocks before and behind.
pub const RUN_BLOCKS: usize = PLANE_ALIGNMENT;

/// Where each plane starts in a repacked weight of `elements` elements, in bytes.
///
/// `elements` counts the whole tensor and is one that [`Format::row_bytes`] accepts; a partial
/// block would be given a whole block's room.
pub fn plane_offsets(format: Format, elements: usize) -> Vec<usize> {
    layout(format, elements).0
}

/// Bytes of a repacked weight: the file's, and less than [`PLANE_ALIGNMENT`] of padding a plane.
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
            exchange(plane, to);
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
            let to = &mut block[plane.offset_in_block..][..plane.bytes_per_block];
            to.copy_from_slice(from);
            exchange(plane, to);
        }
    }
    Ok(out)
}

/// Gathers the shares of a block's field, or scatters them again.
fn exchange(plane: &Plane, field: &mut [u8]) {
    if plane.share == 0xff {
        return;
    }
    for bytes in field.as_chunks_mut::<32>().0 {
        let words = std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|j| bytes[4 * i + j])));
        for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(plane.exchange(words)) {
            *to = word.to_le_bytes();
        }
    }
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
    let offsets = spec
        .planes
        .iter()
        .map(|plane| {
            let start = end;
            let bytes = blocks.saturating_mul(plane.bytes_per_block);
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
                assert!(plane_offsets(format, elements).iter().all(|o| o % PLANE_ALIGNMENT == 0));
                assert_eq!(unpack(format, &planes, elements).as_deref(), Ok(&file[..]), "{format} {blocks}");
            }
        }
    }

    /// What a weight takes on a device, exactly: each plane's bytes, padded to sixteen; that is at most 1.02 times the
    /// file's from 4 KiB on. No plane has fewer than 0 bytes of padding or more than 15 and there are five at most, so it
    /// is 75 bytes at worst; 2 % of 3750 bytes.
    #[test]
    fn a_weight_takes_little_more_than_in_its_file() {
        for &format in Format::ALL {
            let spec = format.spec();
            let smallest = 4096usize.div_ceil(spec.block_bytes);
            let sizes =
                (smallest..smallest + 300).chain([65_536, 1_000_003].map(|n| n / spec.block_bytes + 1));
            for blocks in sizes {
                let file = blocks * spec.block_bytes;
                let padded = |plane: &Plane| (blocks * plane.bytes_per_block).div_ceil(16) * 16;
                let device: usize = spec.planes.iter().map(padded).sum();
                assert_eq!(repacked_bytes(format, blocks * spec.block_elements), device, "{format} {blocks}");
                assert!(device * 100 <= file * 102, "{format}: {device} bytes for {file}");
            }
        }
    }

    /// A run that starts at a multiple of [`RUN_BLOCKS`] can be rearranged alone.
    #[test]
    fn runs_of_blocks_lie_apart() {
        for &format in Format::ALL {
            let spec = format.spec();
            let file = pattern((2 * RUN_BLOCKS + 5) * spec.block_bytes);
            let whole = repack(format, &file).expect("whole blocks");
            let offsets = plane_offsets(format, (2 * RUN_BLOCKS + 5) * spec.block_elements);
            let tail = repack(format, &file[2 * RUN_BLOCKS * spec.block_bytes..]).expect("whole blocks");
            let in_tail = plane_offsets(format, 5 * spec.block_elements);
            for ((plane, start), from) in spec.planes.iter().zip(offsets).zip(in_tail) {
                let at = start + 2 * RUN_BLOCKS * plane.bytes_per_block;
                assert_eq!(at % PLANE_ALIGNMENT, 0);
                let bytes = (5 * plane.bytes_per_block).next_multiple_of(PLANE_ALIGNMENT);
                assert_eq!(whole[at..][..bytes], tail[from..][..bytes], "{format} {}", plane.name);
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
        assert_eq!(planes[128..][..128], file[210..][..128]);
        // The first 16 bytes hold bits 0, 1, 4 and 5 of 32 bytes: those of the first 16 in their places, the others' two bits higher.
        let high = |i: usize| file[210 + 128 + i];
        for i in 0..16 {
            let shares = [0, 2].map(|s| (high(i) >> s & 0x33) | (high(i + 16) >> s & 0x33) << 2);
            assert_eq!([planes[384 + 64 + i], planes[384 + 64 + 16 + i]], shares);
        }
        assert_eq!(planes[624 + 4..][..2], file[2 * 210 + 208..][..2]);
        assert_eq!(planes[630..], [0; 10]);
    }

    /// Every bit of a byte is of one share, and the shares of a plane fill whole words.
    #[test]
    fn shares_divide_bytes() {
        for plane in Format::ALL.iter().flat_map(|format| format.spec().planes) {
            let shifts = plane.shifts();
            assert!(
                shifts
                    .iter()
                    .map(|s| plane.share << s)
                    .fold((0u8, true), |(all, apart), bits| (all | bits, apart && all & bits == 0))
                    .1
            );
            assert_eq!(shifts.len() as u32 * plane.share.count_ones(), 8, "{plane:?}");
            assert!(plane.share & 1 == 1, "{plane:?}");
            assert!(plane.share == 0xff || plane.bytes_per_block.is_multiple_of(32), "{plane:?}");
            let words = std::array::from_fn(|i| 0x9e37_79b9u32.wrapping_mul(i as u32 + 1));
            assert_eq!(plane.exchange(plane.exchange(words)), words);
        }
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
