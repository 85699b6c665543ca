//! The tile of a scan: how rows and their elements are divided among invocations.

use crate::caps::DeviceCaps;
use crate::cost;
use crate::dim::Dim;

/// Invocations per workgroup, unless rows are short or strided.
const WORKGROUP: u32 = 256;

/// Longest row that one invocation scans alone.
const SHORT_ROW: u64 = 16;

/// Fewest invocations of a workgroup, where it has enough rows: two subgroups of the usual size.
const MIN_WORKGROUP: u32 = 64;

/// Adjacent rows of a workgroup where memory is contiguous across rows: 128 bytes of f32.
const ADJACENT_ROWS: u32 = 32;

/// Waves of workgroups that read memory at its full rate. Each of 256 invocations has 16 bytes or more in flight: four
/// waves on 132 cores have 2 MB, which is what 3 TB/s times a latency of 0.7 us needs.
const WAVES: u32 = 4;

/// Fewest chunks of a part of a row, and fewest parts. A workgroup takes about 1 us for a chunk. Two more kernels take about
/// 6 us, so rows of fewer than 16 chunks gain little.
const MIN_CHUNKS: u64 = 4;
const MIN_PARTS: u64 = 4;

/// Consecutive elements of an invocation where a row is contiguous and is not read by vectors.
pub const SCAN_ELEMENTS: u32 = 4;

/// Consecutive elements of an invocation where memory is contiguous across rows: as many loads are in flight.
pub const STRIDED_SCAN_ELEMENTS: u32 = 8;

/// Extents of a scan, at most: rows before the scanned axis, its elements, and rows after it, which are adjacent in
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanExtents {
    /// Product of the extents before the axis.
    pub outer: u64,
    /// Elements of a row.
    pub len: u64,
    /// Product of the extents after the axis; rows are contiguous if it is 1.
    pub inner: u64,
}

/// The tile of a workgroup: some rows, and for each row the slices that are scanned side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanTile {
    /// Rows per workgroup.
    pub rows: u32,
    /// Invocations per row.
    pub slices: u32,
    /// Consecutive elements of an invocation.
    pub elements: u32,
}

impl ScanExtents {
    /// Those of a scan along `axis` of these extents.
    pub fn of(dims: &[Dim], axis: usize) -> ScanExtents {
        let product = |dims: &[Dim]| {
            dims.iter().fold(1, |n: u64, dim| n.saturating_mul(dim.max_value().unsigned_abs()))
        };
        ScanExtents {
            outer: product(&dims[..axis]),
            len: product(&dims[axis..=axis]),
            inner: product(&dims[axis + 1..]),
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.outer.saturating_mul(self.inner)
    }

    /// The tile. `elements` is the vector width along a contiguous row, or 1; `lanes` is the size of the subgroups that
    /// scan a row, if any do.
    pub fn tile(&self, caps: &DeviceCaps, elements: u32, lanes: Option<u32>) -> ScanTile {
        if self.inner > 1 { self.strided(caps) } else { self.contiguous(caps, elements, lanes) }
    }

    fn contiguous(&self, caps: &DeviceCaps, elements: u32, lanes: Option<u32>) -> ScanTile {
        let elements = if elements > 1 { elements } else { SCAN_ELEMENTS };
        let most = floor_pow2(u64::from(caps.max_workgroup_invocations.min(WORKGROUP)));
        let needed = ceil_pow2(self.len.div_ceil(elements.into()), most);
        let slices = match lanes {
            _ if self.len <= SHORT_ROW => 1,
            Some(lanes) => needed.max(lanes).min(most),
            None => needed,
        };
        // Fewer rows in a workgroup where that leaves cores idle.
        let filling = floor_pow2(self.rows() / u64::from(cost::workgroups_of_waves(caps, WAVES)));
        let fewest = (MIN_WORKGROUP.min(most) / slices).max(1);
        // A row whose slices are several subgroups has the workgroup to itself: shared memory combines them.
        let alone = lanes.is_some_and(|lanes| slices > lanes);
        let rows = if alone { 1 } else { filling.clamp(fewest, (most / slices).max(1)) };
        ScanTile { rows, slices, elements }
    }

    /// One invocation per row if that fills the device, else several, with adjacent rows in adjacent invocations.
    fn strided(&self, caps: &DeviceCaps) -> ScanTile {
        let elements = STRIDED_SCAN_ELEMENTS;
        let device = floor_pow2(u64::from(caps.max_workgroup_invocations));
        let adjacent = ceil_pow2(self.rows(), ADJACENT_ROWS.min(device));
        let invocations = u64::from(cost::workgroups_of_waves(caps, WAVES)) * u64::from(WORKGROUP);
        let filling = floor_pow2(invocations / self.rows().max(1));
        let useful = floor_pow2(self.len / u64::from(elements));
        let most = (WORKGROUP / adjacent).max(ADJACENT_ROWS).min(device / adjacent);
        let slices = filling.min(useful).clamp(1, most);
        let rows = (WORKGROUP.min(device) / slices).max(adjacent);
        ScanTile { rows: rows.min(ceil_pow2(self.rows(), device).max(adjacent)), slices, elements }
    }

    /// Elements of the parts into which each row is divided so that they fill the device; `None` where the rows fill it,
    /// or where a scan in one kernel is as fast.
    pub fn part(&self, caps: &DeviceCaps) -> Option<u64> {
        let tile = self.tile(caps, SCAN_ELEMENTS, None);
        let chunk = u64::from(tile.slices) * u64::from(tile.elements);
        let workgroups = self.rows().max(1).div_ceil(tile.rows.into());
        let parts = (u64::from(cost::workgroups_of_waves(caps, WAVES)) / workgroups)
            .min(self.len / (MIN_CHUNKS * chunk));
        // Whole chunks, so that parts start at multiples of the vector width.
        (parts >= MIN_PARTS).then(|| self.len.div_ceil(parts).div_ceil(chunk) * chunk)
    }
}

/// The largest power of two that is at most `n`; 1 for less.
fn floor_pow2(n: u64) -> u32 {
    1 << n.clamp(1, 1 << 30).ilog2()
}

/// The smallest power of two that is at least `n`, but at most `most`, which is one.
fn ceil_pow2(n: u64, most: u32) -> u32 {
    n.clamp(1, most.into()).next_power_of_two() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps;

    fn tile(outer: u64, len: u64, inner: u64) -> (u32, u32, u32) {
        let ScanTile { rows, slices, elements } =
            ScanExtents { outer, len, inner }.tile(&caps::h200(), 4, Some(32));
        (rows, slices, elements)
    }

    #[test]
    fn tiles_fill_the_device() {
        assert_eq!(tile(8192, 4096, 1), (1, 256, 4));
        assert_eq!(tile(100_000, 100, 1), (8, 32, 4));
        assert_eq!(tile(100, 100, 1), (2, 32, 4));
        assert_eq!(tile(100_000, 10, 1), (128, 1, 4));
        assert_eq!(tile(1, 0, 1), (64, 1, 4));
        assert_eq!(tile(1, 26, 60_768), (128, 2, 8));
        assert_eq!(tile(1, 26, 1 << 20), (256, 1, 8));
        assert_eq!(tile(1, 4096, 8192), (32, 16, 8));
        assert_eq!(tile(1, 1000, 1000), (32, 32, 8));
        assert_eq!(tile(1, 1 << 20, 8), (8, 32, 8));
        assert_eq!(tile(1, 3, 2), (2, 1, 8));
    }

    #[test]
    fn few_long_rows_are_divided() {
        let part = |outer, len, inner| ScanExtents { outer, len, inner }.part(&caps::h200());
        assert_eq!(part(8192, 4096, 1), None);
        assert_eq!(part(22, 6969, 1), None);
        assert_eq!(part(64, 100_003, 1), Some(13_312));
        assert_eq!(part(1, 10_000_000, 1), Some(20_480));
        assert_eq!(part(1, 4096, 8192), None);
        assert_eq!(part(1, 1 << 20, 8), Some(2048));
        assert_eq!(part(1, 100_003, 64), Some(1280));
    }

    #[test]
    fn tiles_respect_every_device() {
        for (name, make) in caps::PROFILES {
            let caps = make();
            for outer in [0, 1, 3, 1000, 1 << 20] {
                for len in [0, 1, 15, 17, 1000, 1 << 20] {
                    for inner in [1, 2, 31, 5000] {
                        for lanes in [None, Some(caps.scheduled_subgroup_size())] {
                            let tile = ScanExtents { outer, len, inner }.tile(&caps, 1, lanes);
                            let all = tile.rows * tile.slices;
                            assert!((1..=caps.max_workgroup_invocations).contains(&all), "{name} {tile:?}");
                        }
                    }
                }
            }
        }
    }
}
