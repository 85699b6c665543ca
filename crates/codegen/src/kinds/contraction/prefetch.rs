//! Prefetch distances of contractions: how many loads are in flight beside those whose values are multiplied.

/// K tiles of a matmul that wait in registers while another is multiplied. Each takes the registers of one K tile of
/// both operands.
pub(crate) const K_TILES: u32 = 1;

/// The same for tiles of one row of fragments, which have registers to spare and wait for memory. (H200, 4096 x 4096 of
/// f16 `[n, k]`, us. 16 rows: 12.5 with two, 13.4 with one. 64 rows, four rows of fragments: 22.0 and 17.1.)
pub(crate) const FLAT_K_TILES: u32 = 2;

/// Weights of each anchor of a matvec: two columns for formats that are unpacked 32 at a time, one for 64 at a time. In a
/// loop over columns, the distance is one column. (H200 with a barrier, 4096 x 4096: Q8_0 with a distance of two 7.5 us,
/// of one 8.0; Q4_K 7.2 and 6.2.)
const WEIGHTS: u32 = 64;

/// Columns of a matvec whose weights are in flight, if `elements` of each are unpacked at a time.
pub(crate) fn columns(elements: u32) -> u32 {
    (WEIGHTS / elements).max(1)
}
