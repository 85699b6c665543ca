//! Products of so few tiles that a workgroup for each would leave much of the device idle: several workgroups share a tile, each takes a
//! part of the inner extent. The last that is done sums up what all of them found, in the order of the parts; no workgroup waits for another.

use minijinja::{Value as Hole, context};
use tallow_ir::cost;
use tallow_ir::form::{ContractionForm, bindings};

use crate::assemble::floor_pow2;
use crate::emit::Emitter;
use crate::kernel::Scratch;

/// Waves of workgroups that share tiles, at most: two workgroups per core. (H200, 512 rows of the 8B shape in F16, output and down projections of
/// 128 tiles, us of all layers: 17650 with one workgroup a tile, 13160 with two, 14330 with four; the projections of 192 and of 896 tiles 21300, 21500 where the
/// former had two, 21900 with four.)
const WAVES: u32 = 2;

/// Slices of the inner extent in a part, at least: those of a workgroup that has a multiprocessor for itself take some 0.9 us each on an H200, so that a part takes
/// several times what it takes to bring parts together.
const SLICES: u64 = 32;

/// Parts of a tile, at most.
const MAX_PARTS: u64 = 8;

/// How tiles are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitK {
    /// Workgroups of a tile.
    pub parts: u32,
    /// Elements of the inner extent that each takes, the last at most.
    each: u32,
    /// Tiles, and floats in each.
    tiles: u64,
    floats: u64,
}

impl SplitK {
    /// The cost model's number of K slices for `tiles` output tiles of so many floats, with K tiles of `slice` elements. 1 where
    /// there are enough tiles or none, the inner extent is short or symbolic, there are batches, or there is no binding for
    /// the partials or none so large.
    pub fn slices(e: &Emitter<'_>, form: &ContractionForm, (tiles, floats, slice): (u64, u64, u32)) -> u32 {
        let Some(k) = form.k.as_const().and_then(|k| u64::try_from(k).ok()) else { return 1 };
        let slices = k.div_ceil(slice.into());
        let most = (u64::from(cost::workgroups_of_waves(e.caps, WAVES)) / tiles.max(1))
            .min(slices / SLICES)
            .min(MAX_PARTS);
        let parts = floor_pow2(u32::try_from(most).unwrap_or(1).max(1));
        let bytes = 4 * tiles * u64::from(parts) * floats;
        let possible = tiles > 0
            && form.batch.numel().is(1)
            && bindings(e.body, e.caps) + 2 <= u64::from(e.caps.max_storage_buffers)
            && bytes <= e.caps.max_storage_buffer_range
            && parts <= e.caps.max_workgroup_count[2];
        if possible { parts } else { 1 }
    }

    /// The same tiles with this many K slices; `None` for one.
    pub fn of(form: &ContractionForm, parts: u32, (tiles, floats, slice): (u64, u64, u32)) -> Option<SplitK> {
        let k = u64::try_from(form.k.as_const()?).ok()?;
        let each = k.div_ceil(slice.into()).div_ceil(parts.into()) as u32 * slice;
        (parts > 1).then_some(SplitK { parts, each, tiles, floats })
    }

    /// What the template declares and reads of it.
    pub fn holes(&self, e: &mut Emitter<'_>) -> Hole {
        let bytes = 4 * self.tiles * u64::from(self.parts) * self.floats;
        let partial = e.scratch(Scratch { bytes, fill: None });
        let done = e.scratch(Scratch { bytes: 4 * self.tiles, fill: Some(0) });
        context! { partial, done, parts => self.parts, each => self.each, floats => self.floats }
    }
}
