//! Random operands, and the few elements of them that a check needs.

use rayon::prelude::*;
use tallow_quant::{Format, random_blocks};

use crate::error::Result;

/// Blocks that one thread makes at a time.
const BLOCKS_AT_ONCE: usize = 1 << 14;

/// Random values in whole blocks, as a file holds them: of root mean square `size`, never all zero, the same for one
/// `seed` however many threads make them.
///
/// # Errors
/// When `elements` are not whole blocks.
pub fn random(format: Format, elements: usize, size: f32, seed: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; format.row_bytes(elements)?];
    let step = BLOCKS_AT_ONCE * format.block_bytes();
    bytes.par_chunks_mut(step).enumerate().try_for_each(|(part, bytes)| {
        // Far apart in the generator's sequence.
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (part as u64) << 32;
        random_blocks(format, bytes, size, seed)
    })?;
    Ok(bytes)
}

/// Which positions of an axis are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pick {
    /// All.
    All,
    /// These, ascending.
    These(Vec<usize>),
}

impl Pick {
    /// At most `most` positions of `size`: the first, the last, and others spread between by chance.
    pub fn some(size: usize, most: Option<usize>, seed: u64) -> Pick {
        match most {
            Some(most) if most < size => {
                let mut state = seed;
                let mut positions: Vec<usize> = vec![0, size - 1];
                while positions.len() < most.max(1) {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    positions.push((state >> 33) as usize % size);
                }
                positions.truncate(most.max(1));
                positions.sort_unstable();
                positions.dedup();
                Pick::These(positions)
            }
            Some(_) | None => Pick::All,
        }
    }

    /// How many positions of `size`.
    pub fn len(&self, size: usize) -> usize {
        match self {
            Pick::All => size,
            Pick::These(positions) => positions.len(),
        }
    }
}

/// The picked elements of a row-major tensor in whole blocks. Rows of blocks are not cut: the last axis of a tensor of
/// blocks is taken as a whole.
pub fn pick(bytes: &[u8], format: Format, shape: &[usize], picks: &[Pick]) -> Vec<u8> {
    // The trailing axes that are taken as a whole are copied as one run.
    let tail = picks.iter().rev().take_while(|p| **p == Pick::All).count();
    let lead = shape.len() - tail;
    let run: usize = shape[lead..].iter().product::<usize>() / format.block_elements() * format.block_bytes();
    let mut starts = vec![0_usize];
    for (extent, pick) in shape[..lead].iter().zip(picks) {
        let next = |start: &usize| -> Vec<usize> {
            match pick {
                Pick::All => (0..*extent).map(|i| start * extent + i).collect(),
                Pick::These(positions) => positions.iter().map(|i| start * extent + i).collect(),
            }
        };
        starts = starts.iter().flat_map(next).collect();
    }
    starts.iter().flat_map(|start| &bytes[start * run..(start + 1) * run]).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picked_elements_are_those_of_the_positions() {
        let bytes: Vec<u8> = (0..24).collect();
        let these = |positions: &[usize]| Pick::These(positions.to_vec());
        let format = Format::I8;
        assert_eq!(pick(&bytes, format, &[2, 3, 4], &[Pick::All, Pick::All, Pick::All]), bytes);
        assert_eq!(
            pick(&bytes, format, &[2, 3, 4], &[these(&[1]), Pick::All, these(&[0, 3])]),
            [12, 15, 16, 19, 20, 23]
        );
        assert_eq!(
            pick(&bytes, format, &[2, 3, 4], &[Pick::All, these(&[2]), Pick::All]),
            [8, 9, 10, 11, 20, 21, 22, 23]
        );
        assert_eq!(pick(&bytes, Format::F16, &[3, 4], &[these(&[2]), Pick::All]), bytes[16..]);
    }

    #[test]
    fn some_positions_are_few_and_have_the_ends() {
        assert_eq!(Pick::some(5, Some(5), 1), Pick::All);
        assert_eq!(Pick::some(5, None, 1), Pick::All);
        let Pick::These(positions) = Pick::some(1000, Some(16), 1) else { panic!("all of them") };
        assert!(positions.len() > 12 && positions.len() <= 16);
        assert!(positions[0] == 0 && positions.last() == Some(&999));
        assert_eq!(Pick::some(1000, Some(1), 1), Pick::These(vec![0]));
    }

    #[test]
    fn random_values_differ_by_seed_and_not_by_thread() {
        let make = |seed| random(Format::Q4_0, 1 << 20, 0.02, seed).unwrap();
        assert!(make(1) == make(1) && make(1) != make(2));
        let bytes = make(3);
        let (first, second) = bytes.split_at(BLOCKS_AT_ONCE * 18);
        assert!(first[..100] != second[..100]);
    }
}
