//! Sorts along an axis: which elements are compared, and how many of them one workgroup sorts.

use crate::caps::DeviceCaps;
use crate::dtype::DType;

/// Elements of a tile that one invocation holds in registers and merges at a time.
pub const ELEMENTS: u32 = 8;

/// Shortest runs that a kernel merges: a tile of two of them has more than one invocation for each of its two searches.
pub const LEAST_RUN: u32 = 2 * ELEMENTS;

/// Most invocations of a workgroup that sorts a tile. More would wait at each barrier for longer, and a tile of 2048
/// elements lets several workgroups share a core.
const INVOCATIONS: u32 = 256;

/// Which elements along the axis a sort compares, and which positions it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SortSpan {
    /// All elements; all positions.
    All,
    /// All elements; only the first positions, so many. The axis is at least as long.
    First(u32),
    /// Each run of so many elements, a power of two, on its own, the last one perhaps shorter; all positions.
    Runs(u32),
}

/// Elements that one workgroup sorts in shared memory, a power of two.
///
/// Shared memory holds a key and a position per element, and one more slot after each [`ELEMENTS`] against bank
/// conflicts.
pub fn tile(dtype: DType, caps: &DeviceCaps) -> u32 {
    let key_bytes = if matches!(dtype, DType::I64 | DType::F64) { 8 } else { 4 };
    let slots = caps.shared_memory_bytes / (key_bytes + 4);
    let fits = slots / (ELEMENTS + 1) * ELEMENTS;
    let most = fits.min(ELEMENTS * caps.max_workgroup_invocations.min(INVOCATIONS));
    1 << most.max(ELEMENTS).ilog2()
}

/// Most positions that a workgroup selects from a row that exceeds its tile: the other half of the tile collects
/// candidates.
pub fn most_selected(dtype: DType, caps: &DeviceCaps) -> u32 {
    tile(dtype, caps) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps::PROFILES;

    #[test]
    fn a_tile_fits_every_device() {
        for (name, make) in PROFILES {
            let caps = make();
            for (dtype, key_bytes) in [(DType::F32, 4), (DType::I64, 8)] {
                let tile = tile(dtype, &caps);
                assert!(tile / ELEMENTS <= caps.max_workgroup_invocations, "{name}");
                assert!((tile + tile / ELEMENTS) * (key_bytes + 4) <= caps.shared_memory_bytes, "{name}");
                assert!(tile >= 512, "{name}: {tile}");
            }
        }
    }

    /// How long the axis is, only a run knows.
    #[test]
    fn first_positions_of_a_symbolic_axis_are_a_constraint() {
        let text = "graph \"g\" {\nsymbol n <= 9\n%0 = input \"x\" : f32[3,n]\n\
            %1 = argsort %0 axis=1 descending=false first=5 : u32[3,5]\nreturn %1 as \"y\"\n}";
        let constraints = crate::text::parse(text).unwrap().constraints();
        assert_eq!(constraints.len(), 1);
        assert!(constraints[0].0.is(5), "{constraints:?}");
    }
}
