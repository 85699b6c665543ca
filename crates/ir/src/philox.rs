//! Philox4x32-10: random bits as a function of a counter and a key (Salmon, Moraes, Dror and Shaw, "Parallel
//! random numbers: as easy as 1, 2, 3", SC'11). No state, so every device and every order gives the same.

/// Multipliers of the two halves.
pub const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];

/// What the key grows by each round: the fractional parts of the golden ratio and of the root of 3.
pub const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Rounds of a block.
pub const ROUNDS: usize = 10;

/// The four words of the block at `counter` under `key`.
pub fn block(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut x, mut key) = (counter, key);
    for _ in 0..ROUNDS {
        let products = [0, 1].map(|i| u64::from(MULTIPLIERS[i]) * u64::from(x[2 * i]));
        let (high, low) = (products.map(|p| (p >> 32) as u32), products.map(|p| p as u32));
        x = [high[1] ^ x[1] ^ key[0], low[1], high[0] ^ x[3] ^ key[1], low[0]];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    x
}

/// The meaning of the op `philox`: word `counter % 4` of the block at `(counter / 4, stream, 0, 0)` under the
/// key `(key, 0)`. Operands are u32.
pub fn word(counter: i64, key: i64, stream: i64) -> i64 {
    let counter = counter as u32;
    let words = block([counter / 4, stream as u32, 0, 0], [key as u32, 0]);
    i64::from(words[(counter % 4) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with Random123 (kat_vectors, philox4x32 10).
    #[test]
    fn blocks_are_those_of_the_authors() {
        assert_eq!(block([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = u32::MAX;
        assert_eq!(block([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let words = [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1];
        assert_eq!(block(pi, [0xa409_3822, 0x299f_31d0]), words);
    }

    #[test]
    fn words_are_those_of_their_block() {
        let block = block([7, 3, 0, 0], [5, 0]);
        for (i, expected) in (0..).zip(block) {
            assert_eq!(word(28 + i, 5, 3), i64::from(expected));
        }
    }
}
