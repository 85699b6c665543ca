//! Sorts along an axis, as positions.
//!
//! - A workgroup sorts a tile of rows, or of runs of a row, in shared memory (this module).
//! - It counts, for each element of short rows, those that come before it ([`by_rank`]).
//! - It selects the first positions of a long row ([`top_k`]).
//! - It merges a tile of two adjacent sorted runs ([`merge`]).
//!
//! All of them compare pairs of a key and a position. Keys are unsigned integers in the order of the elements, so that
//! equal elements are ordered by position and any algorithm is stable.

mod by_rank;
mod merge;
mod top_k;

use minijinja::context;
use tallow_ir::form::{Rows, SingleForm};
use tallow_ir::sort::{ELEMENTS, tile};
use tallow_ir::{DType, Dim, Op, SortSpan, cost};

use crate::assemble::finish;
use crate::emit::{Anchor, Emitter, Expr};
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::{Count, Kernel};
use crate::library as lib;
use crate::schedule::{Algorithm, Schedule, Tile};
use crate::template::render;

/// Fewest elements of a tile: a subgroup's worth of invocations on most devices.
const LEAST_TILE: u32 = 32 * ELEMENTS;

/// The schedule; the only candidate.
pub(crate) fn schedule(e: &Emitter<'_>, form: &SingleForm) -> Schedule {
    let node = e.body.node(form.node);
    let (dtype, shape) = (e.body.ty(node.operands[0]).dtype, &e.body.ty(node.operands[0]).shape);
    let tile = tile(dtype, e.caps);
    match node.op {
        Op::ArgSort { axis, span, .. } => {
            let len = shape.dims()[axis].max_value();
            match span {
                SortSpan::First(count) if len > i64::from(tile) => top_k::schedule(e, form, count),
                SortSpan::All | SortSpan::First(_) if by_rank::fits(e, len) => {
                    by_rank::schedule(e, form, len)
                }
                SortSpan::All | SortSpan::First(_) => tiles(e, form, run_of(len), tile),
                SortSpan::Runs(run) => tiles(e, form, run_of(len).min(run), tile),
            }
        }
        Op::MergeRuns { run, .. } => merge::schedule(run, tile),
        _ => Schedule::new(Algorithm::Sort, tile / ELEMENTS),
    }
}

/// The kernel for [`schedule`].
pub(crate) fn kernel(e: Emitter<'_>, form: &SingleForm, schedule: Schedule) -> Result<Kernel, CodegenError> {
    let node = e.body.node(form.node);
    match (&node.op, schedule.algorithm) {
        (Op::ArgSort { axis, descending, span: SortSpan::First(count) }, Algorithm::TopK) => {
            let sort = Sort::of(&e, form, *axis, *descending)?;
            top_k::kernel(e, form, &sort, *count, schedule)
        }
        (Op::ArgSort { axis, descending, .. }, Algorithm::RankSort) => {
            let sort = Sort::of(&e, form, *axis, *descending)?;
            by_rank::kernel(e, form, &sort, schedule)
        }
        (Op::ArgSort { axis, descending, span }, _) => {
            let sort = Sort::of(&e, form, *axis, *descending)?;
            sorted_tiles(e, form, &sort, *span, schedule)
        }
        (Op::MergeRuns { axis, descending, run }, _) => {
            let sort = Sort::of(&e, form, *axis, *descending)?;
            merge::kernel(e, form, &sort, *run, schedule)
        }
        _ => Err(CodegenError::Node(e.body.node_text(form.node))),
    }
}

/// What the kernels of one sort have in common.
pub(crate) struct Sort {
    /// Rows of the sorted operand.
    rows: Rows,
    /// Rows of the result.
    sorted: Rows,
    /// The GLSL type of keys, and the key that no element exceeds.
    key: &'static str,
    last: &'static str,
    /// The key of an element is `before`, the element, `after`.
    before: &'static str,
    after: &'static str,
    ty: Glsl,
    descending: bool,
    comment: String,
}

impl Sort {
    fn of(e: &Emitter<'_>, form: &SingleForm, axis: usize, descending: bool) -> Result<Sort, CodegenError> {
        let node = e.body.node(form.node);
        let from = e.body.ty(node.operands[0]);
        let unknown = || CodegenError::Dtype { what: e.body.node_text(form.node), dtype: from.dtype };
        let ty = Glsl::of(from.dtype, e.caps).filter(|ty| *ty != Glsl::Double || e.caps.int64);
        let ty = ty.ok_or_else(unknown)?;
        let (before, after) = match ty {
            Glsl::Float | Glsl::Double => ("sort_key(", ")"),
            Glsl::Int => ("uint(", ") ^ 0x80000000u"),
            Glsl::Uint => ("", ""),
            Glsl::Long => ("uint64_t(", ") ^ 0x8000000000000000ul"),
        };
        let (key, last) =
            if ty.bytes() == 8 { ("uint64_t", "0xfffffffffffffffful") } else { ("uint", "0xffffffffu") };
        debug_assert_eq!(node.types[0].dtype, DType::U32);
        Ok(Sort {
            rows: Rows { shape: from.shape.clone(), axes: vec![axis] },
            sorted: Rows { shape: node.types[0].shape.clone(), axes: vec![axis] },
            key,
            last,
            before,
            after,
            ty,
            descending,
            comment: format!("%{} = {}", form.node.0, e.body.node_text(form.node)),
        })
    }

    /// The key of element `i` of row `row`. Its lines go to the innermost scope.
    fn key_at(
        &self,
        e: &mut Emitter<'_>,
        form: &SingleForm,
        row: &str,
        i: &str,
    ) -> Result<String, CodegenError> {
        if self.ty.is_float() {
            e.uses().add(lib::SORT_KEY);
        }
        e.uses().long |= self.ty.bytes() == 8;
        let at = self.coordinates(e, row, i);
        let x = e.value(e.body.node(form.node).operands[0], &at)?.text;
        let key = format!("{}{x}{}", self.before, self.after);
        Ok(if self.descending { format!("~({key})") } else { key })
    }

    /// The coordinates of element `i` of row `row`, names of variables of the innermost scope.
    fn coordinates(&self, e: &mut Emitter<'_>, row: &str, i: &str) -> Vec<tallow_ir::index::Index> {
        let (row, i) = (e.atom(&self.rows.rows(), row), e.atom(&self.rows.inner(), i));
        self.rows.at(&row, &i, &mut e.atoms)
    }

    /// The lines that store position `i` of a row as the element `place` of the result.
    fn store(&self, e: &mut Emitter<'_>, form: &SingleForm) -> Result<String, CodegenError> {
        let result = e.result(0);
        let lines = e.scoped_lines(|e| {
            let (row, place) = (e.atom(&self.sorted.rows(), "row"), e.atom(&self.sorted.inner(), "place"));
            let at = self.sorted.at(&row, &place, &mut e.atoms);
            let depth = e.depth();
            e.anchors.insert(form.node, Anchor::Var(Expr { text: "i".into(), depth }));
            e.store(0, result, &at)
        })?;
        Ok(lines.join("\n"))
    }

    /// The functions that sort and merge a tile of `tile` elements in shared memory.
    fn functions(&self, tile: u32, sorts: bool) -> Result<String, CodegenError> {
        let slots = tile + tile / ELEMENTS;
        let holes = context! { key => self.key, last => self.last, slots, elements => ELEMENTS, sorts };
        render("sort_tile.glsl", holes)
    }
}

/// Elements of a row as a run, at least 1.
fn run_of(len: i64) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX).max(1)
}

/// Slots of a run in a tile: a power of two, and whole invocations.
fn slots_of(run: u32) -> u32 {
    run.checked_next_power_of_two().unwrap_or(run).max(ELEMENTS)
}

/// A workgroup sorts as many runs at once as leave enough workgroups to fill the device.
fn tiles(e: &Emitter<'_>, form: &SingleForm, run: u32, most: u32) -> Schedule {
    let (slots, all) = (slots_of(run), e.body.ty(e.body.node(form.node).operands[0]).shape.max_numel());
    let runs = u32::try_from(all / u64::from(run)).unwrap_or(u32::MAX).max(1);
    let least = (LEAST_TILE / slots).max(1);
    // A larger workgroup adds no parallelism where one thread runs it.
    let wanted = match cost::runs_workgroups_on_one_thread(e.caps) {
        true => 0,
        false => (runs / cost::workgroups_to_fill(e.caps)).max(1).ilog2(),
    };
    let side_by_side = (1u32 << wanted).clamp(least, (most / slots).max(least));
    let workgroup = slots.saturating_mul(side_by_side) / ELEMENTS;
    Schedule {
        tile: Tile { m: side_by_side, n: slots, k: 0 },
        ..Schedule::new(Algorithm::Sort, workgroup.min(e.caps.max_workgroup_invocations))
    }
}

/// The kernel that sorts rows, or runs of rows, of at most a tile.
fn sorted_tiles(
    mut e: Emitter<'_>,
    form: &SingleForm,
    sort: &Sort,
    span: SortSpan,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let (side_by_side, slots) = (schedule.tile.m, schedule.tile.n);
    let len = sort.rows.inner();
    if side_by_side * slots != schedule.workgroup * ELEMENTS {
        return Err(CodegenError::Node(format!("{}: a row exceeds a tile", sort.comment)));
    }
    let run = match span {
        SortSpan::All | SortSpan::First(_) => run_of(len.max_value()),
        SortSpan::Runs(run) => run.min(run_of(len.max_value())),
    };
    // For symbolic extents, those of the longest row: runs beyond the end of a row are empty.
    let runs = run_of(len.max_value()).div_ceil(run);
    let stored = e.dim(&sort.sorted.inner());
    let (rows, len) = (e.dim(&sort.rows.rows()), e.dim(&len));
    let (x, load) = e.scope(|e| sort.key_at(e, form, "row", "i"))?;
    let store = sort.store(&mut e, form)?;
    let functions = sort.functions(side_by_side * slots, true)?;
    let grid = Count::along_x(e.caps, &sort.rows.rows() * &Dim::constant(runs.into()), side_by_side);
    let holes = context! {
        rows, len, stored, x, load => load.join("\n"), store, side_by_side, span => slots, key => sort.key,
        last => sort.last, elements => ELEMENTS, run => format!("{run}u"), runs => format!("{runs}u"),
        comment => &sort.comment,
    };
    finish(e, schedule, "sort.comp", grid, functions, holes)
}
