//! Matmul: a workgroup computes tiles of the output, K tile by K tile. One generator covers all [`TileCode`]s: the code
//! that multiplies a K tile with one kind of instruction. K tiles of both operands are transformed on the way through
//! registers to shared memory; the K tile after the one that is multiplied is in flight.

use minijinja::context;
use tallow_ir::form::ContractionForm;
use tallow_ir::index::Index;

use super::coopmat::Fragments;
use super::fma::Fma;
use super::grid::{Range, columns_grid, ranges};
use super::k_tile::{self, KTile, Layout};
use super::operands::{left_at, right_at};
use super::split_k::SplitK;
use super::tile_code::{Accumulators, Matmul, TileCode, columns};
use super::unread;
use crate::assemble::{check_grid, finish};
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::instruction::Instruction;
use crate::kernel::{Count, Kernel};
use crate::schedule::Schedule;
use crate::template::render;

/// Generates the kernel for a schedule of [`super::fma`] or [`super::coopmat`].
pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &ContractionForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let code: Box<dyn TileCode> = match schedule.instruction {
        Some(Instruction::Coopmat) => Box::new(Fragments::of(&mut e, form, schedule)?),
        _ => Box::new(Fma::of(&mut e, form, schedule)?),
    };
    let batch = e.atom(&form.batch.numel(), "batch");
    let buffers = (0..e.body.outputs().len()).map(|o| e.result(o as u32)).collect();
    let columns: Vec<u32> = form.segments.iter().map(|s| columns(schedule.tile.n, s)).collect();
    let widths: Vec<u32> = columns.iter().map(|bn| bn * schedule.tiles_per_workgroup).collect();
    let limits = e.caps.max_workgroup_count;
    // Rows along x: workgroups that run at the same time then read the same columns. Swapped if the columns exceed the
    // limit along y, as some devices allow more workgroups along x.
    let rows = |limit| Count { value: form.m.clone(), per: schedule.tile.m, limit };
    let tiles = |limit| columns_grid(form, &widths, limit);
    let swapped = tiles(limits[0]).most() > u64::from(limits[1]);
    let [x, y] = match swapped {
        false => [rows(limits[0]), tiles(limits[1])],
        true => [tiles(limits[0]), rows(limits[1])],
    };
    let split = SplitK::of(form, schedule, x.most() * y.most());
    let z = match split {
        Some(split) => Count::constant(split.count()),
        None => Count { value: form.batch.numel(), per: 1, limit: limits[2] },
    };
    let grid = [x, y, z];
    check_grid("matmul", &grid)?;
    let ranges = ranges(&mut e, form, &widths);
    let (m, k) = (e.dim(&form.m), e.dim(&form.k));
    let mm = Matmul { form, batch, buffers, schedule, columns, m, k };
    let (mut segments, mut staged, mut across) = (vec![], false, false);
    for (number, range) in ranges.iter().enumerate() {
        let text = segment(&mut e, &mm, code.as_ref(), (number, range), split.as_ref())?;
        segments.push(context! { test => &range.test, body => text.body });
        staged |= text.staged;
        // The same for all: they share the left operand.
        across = text.across;
    }
    let (word, ty, halves) = match code.layout() {
        Layout::Vectors(ty) => (ty.vector(), ty.name(), None),
        Layout::Halves(operand) => ("uvec4", "float", Some(operand.dtype().name())),
    };
    let holes = context! {
        segments, staged, word, type => ty, halves, words => code.words(form), swapped,
        bm => schedule.tile.m, start => code.start(across).join("\n"), k => &mm.k,
        split => split.map(|split| split.holes(&mut e)),
    };
    finish(e, schedule, "matmul.comp", grid, String::new(), holes)
}

/// The K tiles of both operands of a segment: the left operand's, then one for each anchor.
fn operands(
    e: &mut Emitter<'_>,
    mm: &Matmul<'_>,
    code: &dyn TileCode,
    number: usize,
) -> Result<Vec<k_tile::Text>, CodegenError> {
    let (form, segment, bn) = (mm.form, &mm.form.segments[number], mm.columns[number]);
    let tile = mm.schedule.tile;
    let layout = code.layout();
    let k_tile = |name, comment, axis, (size, at, stride)| KTile {
        name,
        comment,
        axis,
        size,
        layout,
        at,
        stride,
        k: &form.k,
        bk: tile.k,
        workgroup: mm.schedule.workgroup,
        depth: mm.depth(),
    };
    let stride = code.right_at() / tile.k;
    let left = k_tile("left".into(), None, ("m", &form.m, "row0"), (tile.m, 0, stride));
    let mut at = |e: &mut Emitter<'_>, row: Index, k: Index| left_at(e, form, &mm.batch, &row, &k);
    let mut all = vec![k_tile::text(e, form.lhs, &left, &mut at)?];
    let base = if mm.schedule.tiles_per_workgroup == 1 { "column0" } else { "next_column" };
    for (i, id) in segment.anchors.iter().enumerate() {
        let rhs = e.body.node(*id).operands[1];
        let comment = format!("// %{} = {}", id.0, e.body.node_text(*id));
        let at = match layout {
            Layout::Vectors(_) => i as u32 * bn / 4,
            Layout::Halves(_) => i as u32 * bn * k_tile::halves_stride(tile.k),
        };
        let place = (bn, code.right_at() + at, tile.n / 4);
        let right = k_tile(format!("right{i}"), Some(comment), ("n", &segment.n, base), place);
        let mut at =
            |e: &mut Emitter<'_>, column: Index, k: Index| right_at(e, form, rhs, [&mm.batch, &column, &k]);
        all.push(k_tile::text(e, rhs, &right, &mut at)?);
    }
    Ok(all)
}

/// The code of one segment.
struct SegmentText {
    body: String,
    /// Whether its epilogue reads staged results.
    staged: bool,
    /// Whether the left operand's K tile is `[k][row]`.
    across: bool,
}

/// Generates the code of one segment.
fn segment(
    e: &mut Emitter<'_>,
    mm: &Matmul<'_>,
    code: &dyn TileCode,
    (number, range): (usize, &Range),
    split: Option<&SplitK>,
) -> Result<SegmentText, CodegenError> {
    let ((tiles, epilogue), mut hoisted) =
        e.scope(|e| Ok((operands(e, mm, code, number)?, code.epilogue(e, mm, number)?)))?;
    let mut is_skipped = false;
    if split.is_none() {
        let (condition, lines) = e.scope(|e| unread::condition(e, mm, &mm.form.segments[number]))?;
        if let Some(condition) = condition {
            hoisted.extend(lines);
            hoisted.push("// Batches whose results are masked out skip the K loop.".into());
            hoisted.push(format!("const uint end = {condition} ? {} : 0u;", mm.k));
            is_skipped = true;
        }
    }
    let across: Vec<bool> = tiles.iter().map(|tile| tile.across).collect();
    let (first, end) = match split {
        Some(_) => ("first", "end"),
        None => ("0u", if is_skipped { "end" } else { mm.k.as_str() }),
    };
    let bk = mm.schedule.tile.k;
    // The start of the last K tile.
    let last = match mm.form.k.as_const() {
        Some(k) => format!("{}u", (k - 1).max(0) / i64::from(bk) * i64::from(bk)),
        None => format!("({} - 1u) / {bk}u * {bk}u", mm.k),
    };
    let join = |of: &dyn Fn(&k_tile::Text) -> String| tiles.iter().map(of).collect::<Vec<_>>().join("\n");
    let Accumulators { ty, count, zero } = code.accumulators(mm, number);
    let holes = context! {
        first, end, bk, last, type => ty, accumulators => count, zero, k => &mm.k, depth => mm.depth(),
        tiles => mm.schedule.tiles_per_workgroup, width => mm.columns[number], column0 => &range.column0,
        may_be_empty => is_skipped || mm.form.k.as_const().is_none_or(|k| k < 1), hoisted => hoisted.join("\n"),
        registers => join(&|tile| tile.registers.clone()), load => join(&|tile| tile.load.join("\n")),
        store => join(&|tile| tile.store.join("\n")), products => code.products(mm, number, &across)?,
        split => split.map(SplitK::combination), partials => code.partials(mm, number),
        epilogue => epilogue.lines.join("\n"),
    };
    let (staged, across) = (epilogue.staged, across.first().is_some_and(|across| *across));
    Ok(SegmentText { body: render("matmul_segment.glsl", holes)?, staged, across })
}
