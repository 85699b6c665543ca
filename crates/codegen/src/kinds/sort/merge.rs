//! Merges of adjacent sorted runs: each workgroup computes a tile of the result. Two searches find the parts of both
//! runs that belong to it; then the tile is merged in shared memory.

use minijinja::context;
use tallow_ir::form::SingleForm;
use tallow_ir::sort::ELEMENTS;

use super::Sort;
use crate::assemble::finish;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::kernel::{Count, Kernel};
use crate::schedule::{Algorithm, Schedule, Tile};

/// The schedule. A tile lies in one pair of runs.
pub(super) fn schedule(run: u32, tile: u32) -> Schedule {
    let tile = tile.min(run.saturating_mul(2)).max(2 * ELEMENTS);
    Schedule { tile: Tile { m: 0, n: tile, k: 0 }, ..Schedule::new(Algorithm::Merge, tile / ELEMENTS) }
}

pub(super) fn kernel(
    mut e: Emitter<'_>,
    form: &SingleForm,
    sort: &Sort,
    run: u32,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let (tile, probes) = (schedule.tile.n, schedule.workgroup / 2);
    let (rows, len) = (e.dim(&sort.rows.rows()), e.dim(&sort.rows.inner()));
    // The position that the order lists at `at`, and its key.
    let listed = |e: &mut Emitter<'_>, at: &str| {
        let coordinates = sort.coordinates(e, "row", at);
        let listed = e.value(e.body.node(form.node).operands[1], &coordinates)?.text;
        let place = e.fresh_name("p");
        e.line(format!("const uint {place} = min({listed}, {len} - 1u);"));
        Ok((sort.key_at(e, form, "row", &place)?, place))
    };
    let (((a, a_place), (b, b_place)), probe_lines) = e.scope(|e| Ok((listed(e, "i")?, listed(e, "j")?)))?;
    let ((x, x_place), load) = e.scope(|e| listed(e, "k"))?;
    let store = sort.store(&mut e, form)?;
    let functions = sort.functions(tile, false)?;
    // Each round leaves less than a part in `probes` of the range.
    let (mut rounds, mut range) = (0, run);
    while range > 0 {
        (rounds, range) = (rounds + 1, range / probes);
    }
    let grid = [
        Count::along(e.caps, 0, sort.rows.inner(), tile),
        Count::along(e.caps, 1, sort.rows.rows(), 1),
        Count::constant(1),
    ];
    let holes = context! {
        rows, len, tile, probes, rounds, a, a_place, b, b_place, probe_lines => probe_lines.join("\n"), x, x_place,
        load => load.join("\n"), store, run => format!("{run}u"), key => sort.key, last => sort.last,
        pair_mask => format!("{}u", !(run.wrapping_mul(2).wrapping_sub(1))), elements => ELEMENTS,
        comment => &sort.comment,
    };
    finish(e, schedule, "merge_runs.comp", grid, functions, holes)
}
