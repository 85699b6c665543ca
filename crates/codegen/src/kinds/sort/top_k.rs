//! The first positions of long rows: each workgroup reads a part of a row once, and sorts only what may belong to its
//! first elements.
//!
//! The tile's first elements are the best so far; what precedes the last of them is appended. The tile is sorted and cut
//! after the first block, when it is full, and at the end. On random data few elements pass after the first tile (about `k / i` of element `i`), so that the
//! kernel runs at the speed of memory. Data in the opposite order make it sort every block.

use minijinja::context;
use tallow_ir::form::{SingleForm, bindings};
use tallow_ir::sort::{ELEMENTS, tile};
use tallow_ir::{Op, cost};

use super::Sort;
use crate::assemble::{check_grid, finish};
use crate::blocks::last_workgroup;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::{Count, Kernel};
use crate::schedule::{Algorithm, Schedule, Split, Tile};

/// Fewest tiles per part of a row: the sorts of a part cost as much as reading some tiles.
const LEAST_TILES: i64 = 2;

/// Most tiles of candidates that the last workgroup of a row reads.
const MOST_CANDIDATES: u32 = 8;

/// The schedule: rows are split among enough workgroups to fill the device four times, since tiles are small.
pub(super) fn schedule(e: &Emitter<'_>, form: &SingleForm, count: u32) -> Schedule {
    let node = e.body.node(form.node);
    let ty = e.body.ty(node.operands[0]);
    let tile = tile(ty.dtype, e.caps);
    let len = match node.op {
        Op::ArgSort { axis, .. } => ty.shape.dims()[axis].max_value(),
        _ => 1,
    };
    let rows = i64::try_from(ty.shape.max_numel()).unwrap_or(i64::MAX) / len.max(1);
    let parts = i64::from(cost::workgroups_of_waves(e.caps, 4)) / rows.max(1);
    let most = i64::from(MOST_CANDIDATES * tile / count.max(1));
    let parts = parts.min(most).min(len / (LEAST_TILES * i64::from(tile)));
    // Mesa's software device leaves loops after 65535 iterations of an invocation in all. A block takes up to 80.
    let least = if e.caps.is_software() { len / (512 * i64::from(tile / 2)) + 1 } else { 1 };
    let room = bindings(e.body, e.caps) + 2 <= u64::from(e.caps.max_storage_buffers);
    let parts = if room { parts.max(least) } else { 1 };
    Schedule {
        tile: Tile { m: 0, n: tile, k: 0 },
        split: Split { slices: u32::try_from(parts).unwrap_or(1), above: 0 },
        ..Schedule::new(Algorithm::TopK, tile / ELEMENTS)
    }
}

pub(super) fn kernel(
    mut e: Emitter<'_>,
    form: &SingleForm,
    sort: &Sort,
    count: u32,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let (tile, parts, workgroup) = (schedule.tile.n, schedule.split.slices, schedule.workgroup);
    // Half of the tile is selected at most, so that the other half takes a whole block.
    let block = tile / 2;
    if count == 0 || count > block {
        return Err(CodegenError::Node(format!("{}: more positions than half a tile", sort.comment)));
    }
    let all_rows = u64::try_from(sort.rows.rows().max_value()).unwrap_or(0).max(1);
    let (partials, elect) = if parts > 1 {
        let candidates = all_rows * u64::from(parts) * u64::from(count);
        let partials = [
            last_workgroup::partials(&mut e, "parts", Glsl::Uint, candidates),
            last_workgroup::counters(&mut e, all_rows),
        ];
        (partials.join("\n"), last_workgroup::elect("lane == 0u", "row", &format!("{parts}u")).join("\n"))
    } else {
        (String::new(), String::new())
    };
    let (rows, len) = (e.dim(&sort.rows.rows()), e.dim(&sort.rows.inner()));
    let (x, load) = e.scope(|e| sort.key_at(e, form, "row", "i"))?;
    let store = sort.store(&mut e, form)?;
    let functions = sort.functions(tile, true)?;
    let grid = [Count::constant(parts), Count::along(e.caps, 1, sort.rows.rows(), 1), Count::constant(1)];
    if parts > 1 {
        check_grid("top-k", &grid)?;
    }
    let holes = context! {
        rows, len, x, load => load.join("\n"), store, partials, elect, parts, count,
        tile, block, loads => block / workgroup, key => sort.key, last => sort.last, elements => ELEMENTS,
        comment => &sort.comment,
    };
    finish(e, schedule, "top_k.comp", grid, functions, holes)
}
