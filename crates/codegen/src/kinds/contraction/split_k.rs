//! Split-K, for matmuls with so few output tiles that one workgroup per tile would leave much of the device idle.
//! Several workgroups share a tile, and each computes one K slice. The last to finish combines the partials in the
//! order of the slices; no workgroup waits for another.

use minijinja::{Value as Hole, context};
use tallow_ir::form::{ContractionForm, bindings};
use tallow_ir::{DeviceCaps, cost};

use crate::assemble::floor_pow2;
use crate::blocks::last_workgroup;
use crate::emit::Emitter;
use crate::glsl::Glsl;
use crate::schedule::{Schedule, Tile};

/// A limit on the K slices of output tiles.
struct Limit {
    /// Maximum waves of workgroups after the split.
    waves: u32,
    /// Minimum elements of K per slice.
    slice: u64,
    /// Maximum K slices per tile.
    slices: u64,
}

/// Two workgroups per core. (H200, 512 rows of the 8B shape in F16, us over all layers. Output and down projections, 128
/// tiles: 17650 with one workgroup per tile, 13160 with two, 14330 with four. The projections of 192 and of 896 tiles:
/// 21300 without split; 21500 with the 192 tiles split in two, 21900 in four.)
///
/// A slice has 32 K tiles of cooperative matrices. A K tile takes about 0.9 us on an H200 if its workgroup has an SM to
/// itself. A slice then takes several times as long as combining the partials. Other instructions take longer per
/// element, so that the partials weigh less.
const SQUARE: Limit = Limit { waves: 2, slice: 1024, slices: 8 };

/// Most rows of a tile with 64 invocations; it takes twice as many workgroups for as many loads in flight.
const FEW_ROWS: u32 = 8;

impl Limit {
    /// The limits of a tile; the largest of them counts.
    ///
    /// Flat tiles, of few rows, wait for memory: it takes more workgroups to have enough loads in flight. Their partials
    /// are small, too: written and read once, they are 8 bytes for each row of a column, where a slice of an f16 column
    /// has 2 bytes for each element of K. That is an eighth for slices of 32 elements per row, and a quarter for those of
    /// 16, as long as cores are idle or where the maximum of square tiles is less. (H200, 4096 x 4096 of f16 `[n, k]`, us.
    /// 16 rows: 11.9 with slices of 512, 12.5 with 256, 15.6 with 128. 64 rows: 17.1 with slices of 1024, 23.6 with 512.)
    fn of(tile: Tile) -> Vec<Limit> {
        let slice = |per_row: u64| (per_row * u64::from(tile.m)).min(SQUARE.slice);
        match tile {
            Tile { m: ..=FEW_ROWS, .. } => vec![Limit { waves: 8, slice: slice(32), slices: 32 }],
            Tile { m, n, .. } if 2 * m <= n => vec![
                Limit { waves: 1, slice: slice(16), slices: 32 },
                Limit { waves: 4, slice: slice(32), slices: 8 },
            ],
            Tile { .. } => vec![SQUARE],
        }
    }

    fn slices(&self, caps: &DeviceCaps, k: u64, tiles: u64) -> u64 {
        let workgroups = u64::from(cost::workgroups_of_waves(caps, self.waves));
        (workgroups / tiles.max(1)).min(k / self.slice).min(self.slices)
    }
}

/// How output tiles are split along K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitK {
    /// K slices, each computed by one workgroup.
    pub slices: u32,
    /// Elements of K per slice; the last slice may have fewer.
    each: u32,
    /// Output tiles of all batches, and floats in each.
    tiles: u64,
    floats: u64,
    batches: u32,
    /// Whether K is known at run time. Workgroups of slices beyond it compute nothing.
    varies: bool,
}

impl SplitK {
    /// The cost model's number of K slices for `tiles` output tiles of all batches.
    ///
    /// That of the largest K, if it is symbolic: a shorter one has fewer slices, each as long.
    ///
    /// Returns 1 if there are enough tiles or none, or if K is short, or the number of batches is symbolic.
    /// Also returns 1 if the partials need more bindings or larger buffers than the device has.
    pub fn slices(e: &Emitter<'_>, form: &ContractionForm, tile: Tile, tiles: u64) -> u32 {
        let Ok(k) = u64::try_from(form.k.max_value()) else { return 1 };
        let most = Limit::of(tile).iter().map(|limit| limit.slices(e.caps, k, tiles)).max().unwrap_or(1);
        let slices = floor_pow2(u32::try_from(most).unwrap_or(1).max(1));
        // Of whole K tiles. No slice is empty: its first loads would be beyond K.
        let all = u32::try_from(k.div_ceil(tile.k.into())).unwrap_or(u32::MAX).max(1);
        let slices = all.div_ceil(all.div_ceil(slices));
        let bytes = 4 * tiles * u64::from(slices) * u64::from(tile.m) * u64::from(tile.n);
        let batches = form.batch.numel().as_const().map_or(u64::MAX, |n| n.max(0).unsigned_abs());
        let possible = tiles > 0
            && batches.saturating_mul(slices.into()) <= e.caps.max_workgroup_count[2].into()
            && bindings(e.body, e.caps) + 2 <= u64::from(e.caps.max_storage_buffers)
            && bytes <= e.caps.max_storage_buffer_range;
        if possible { slices } else { 1 }
    }

    /// The split of a schedule's `tiles` output tiles of each batch; `None` for one slice.
    pub fn of(form: &ContractionForm, schedule: Schedule, tiles: u64) -> Option<SplitK> {
        let (slices, tile) = (schedule.split.slices, schedule.tile);
        let k = u32::try_from(form.k.max_value()).ok()?;
        let each = k.div_ceil(tile.k).div_ceil(slices) * tile.k;
        let floats = u64::from(tile.m) * u64::from(tile.n);
        let batches = u32::try_from(form.batch.numel().as_const()?).ok()?;
        let tiles = tiles * u64::from(batches);
        let varies = form.k.as_const().is_none();
        (slices > 1).then_some(SplitK { slices, each, tiles, floats, batches, varies })
    }

    /// Workgroups along z: the slices of each batch.
    pub fn count(&self) -> u32 {
        self.slices * self.batches
    }

    /// Allocates the partials and completion counters, and returns the template's holes.
    pub fn holes(&self, e: &mut Emitter<'_>) -> Hole {
        let floats = self.tiles * u64::from(self.slices) * self.floats;
        let partials = last_workgroup::partials(e, "partial", Glsl::Float, floats);
        let counters = last_workgroup::counters(e, self.tiles);
        let (slices, batches, varies) = (self.slices, self.batches, self.varies);
        let declarations = format!("{partials}\n{counters}");
        context! { declarations, each => self.each, slices, batches, varies }
    }

    /// The holes of the combination of partials.
    pub fn combination(&self) -> Hole {
        let varies = self.varies;
        let slices = if varies { "used".into() } else { format!("{}u", self.slices) };
        let elect = last_workgroup::elect("lane == 0u", "tile", &slices).join("\n");
        context! { slices => self.slices, floats => self.floats, batches => self.batches, varies, elect }
    }
}
