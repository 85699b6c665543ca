//! Split-K, for matmuls with so few output tiles that one workgroup per tile would leave much of the device idle.
//! Several workgroups share a tile, and each computes one K slice. The last to finish combines the partials in the
//! order of the slices; no workgroup waits for another.

use minijinja::{Value as Hole, context};
use tallow_ir::cost;
use tallow_ir::form::{ContractionForm, bindings};

use crate::assemble::floor_pow2;
use crate::blocks::last_workgroup;
use crate::emit::Emitter;
use crate::glsl::Glsl;
use crate::schedule::{Schedule, Tile};

/// Maximum waves of workgroups after the split: two workgroups per core. (H200, 512 rows of the 8B shape in F16, us
/// over all layers. Output and down projections, 128 tiles: 17650 with one workgroup per tile, 13160 with two, 14330
/// with four. The projections of 192 and of 896 tiles: 21300 without split; 21500 with the 192 tiles split in two,
/// 21900 in four.)
const WAVES: u32 = 2;

/// Minimum elements of K per slice: 32 K tiles of cooperative matrices. A K tile takes about 0.9 us on an H200 if its
/// workgroup has an SM to itself. A slice then takes several times as long as combining the partials. Other instructions
/// take longer per element, so that the partials weigh less.
const MIN_SLICE: u64 = 1024;

/// Maximum K slices per tile.
const MAX_SLICES: u64 = 8;

/// The same limits for tiles of few rows, which wait for memory: their partials are small, and it takes many workgroups
/// to have enough loads in flight. A partial of a slice is written and read once, 8 bytes; 256 elements of an f16 column
/// are 512 bytes, a 64th of which is the partial of one row.
const FEW_ROWS: u32 = 8;
const FEW_ROWS_WAVES: u32 = 8;
const FEW_ROWS_MIN_SLICE: u64 = 256;
const FEW_ROWS_MAX_SLICES: u64 = 32;

/// How output tiles are split along K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitK {
    /// K slices, each computed by one workgroup.
    pub slices: u32,
    /// Elements of K per slice; the last slice may have fewer.
    each: u32,
    /// Output tiles, and floats in each.
    tiles: u64,
    floats: u64,
}

impl SplitK {
    /// The cost model's number of K slices for `tiles` output tiles.
    ///
    /// Returns 1 if there are enough tiles or none, if K is short or symbolic, or if there are batches. Also returns 1
    /// if the partials need more bindings or larger buffers than the device has.
    pub fn slices(e: &Emitter<'_>, form: &ContractionForm, tile: Tile, tiles: u64) -> u32 {
        let Some(k) = form.k.as_const().and_then(|k| u64::try_from(k).ok()) else { return 1 };
        let (waves, each, slices) = match tile.m <= FEW_ROWS {
            true => (FEW_ROWS_WAVES, FEW_ROWS_MIN_SLICE, FEW_ROWS_MAX_SLICES),
            false => (WAVES, MIN_SLICE, MAX_SLICES),
        };
        let workgroups = u64::from(cost::workgroups_of_waves(e.caps, waves));
        let most = (workgroups / tiles.max(1)).min(k / each).min(slices);
        let slices = floor_pow2(u32::try_from(most).unwrap_or(1).max(1));
        let bytes = 4 * tiles * u64::from(slices) * u64::from(tile.m) * u64::from(tile.n);
        let possible = tiles > 0
            && form.batch.numel().is(1)
            && bindings(e.body, e.caps) + 2 <= u64::from(e.caps.max_storage_buffers)
            && bytes <= e.caps.max_storage_buffer_range
            && slices <= e.caps.max_workgroup_count[2];
        if possible { slices } else { 1 }
    }

    /// The split of a schedule's `tiles` output tiles; `None` for one slice.
    pub fn of(form: &ContractionForm, schedule: Schedule, tiles: u64) -> Option<SplitK> {
        let (slices, tile) = (schedule.split.slices, schedule.tile);
        let k = u32::try_from(form.k.as_const()?).ok()?;
        let each = k.div_ceil(tile.k).div_ceil(slices) * tile.k;
        let floats = u64::from(tile.m) * u64::from(tile.n);
        (slices > 1).then_some(SplitK { slices, each, tiles, floats })
    }

    /// Allocates the partials and completion counters, and returns the template's holes.
    pub fn holes(&self, e: &mut Emitter<'_>) -> Hole {
        let floats = self.tiles * u64::from(self.slices) * self.floats;
        let partials = last_workgroup::partials(e, "partial", Glsl::Float, floats);
        let counters = last_workgroup::counters(e, self.tiles);
        context! { declarations => format!("{partials}\n{counters}"), each => self.each }
    }

    /// The holes of the combination of partials.
    pub fn combination(&self) -> Hole {
        let elect = last_workgroup::elect("lane == 0u", "tile", &format!("{}u", self.slices)).join("\n");
        context! { slices => self.slices, floats => self.floats, elect }
    }
}
