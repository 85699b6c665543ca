//! Splitting long rows: several workgroups reduce slices of a row and combine their partials.

use super::{Reason, RowForm, RowOutput, Rows, output_root, rows_of};
use crate::access::param_reads;
use crate::dim::Dim;
use crate::graph::{Graph, NodeId, Value};
use crate::index::{AtomDef, AtomId, Atoms, Index};
use crate::shape::Shape;

/// Minimum elements of a slice: 16 for each of 256 invocations. Combining partials takes about as long as reading so
/// many (2 us on an H200).
const MIN_SLICE: i64 = 4096;

/// Minimum slices of a row that is split.
const MIN_SLICES: u32 = 4;

/// Maximum slices of all rows: with 512 invocations each, they fill the largest devices twice.
const MAX_SLICES: i64 = 512;

/// Minimum slices of a row for which the epilogue should be a separate kernel, and maximum rows. An H200 takes 10 us
/// for a row of 8 slices in one workgroup, and 2 to 3 us for another kernel and its barrier. With 8 rows, which take no
/// longer than one, one multiprocessor in 16 is busy.
const UNFUSED_SLICES: u32 = 8;

/// Whether several workgroups share a single row of so many elements, and its epilogue is another kernel.
pub(crate) fn is_shared_row(elements: &Dim) -> bool {
    elements.as_const().is_some_and(|n| n >= MIN_SLICE * i64::from(UNFUSED_SLICES))
}

/// For each reduction the number of the pass over the row in which it can be computed: 1 + that of the
/// reductions on which it depends.
pub fn passes(body: &Graph, reduces: &[(NodeId, Rows)]) -> Vec<usize> {
    let mut level = vec![0; body.len()];
    for (id, node) in body.nodes() {
        let below = node.operands.iter().map(|v| level[v.node.index()]).max().unwrap_or(0);
        let depth = usize::from(reduces.iter().any(|(r, _)| *r == id));
        level[id.index()] = below + depth;
    }
    reduces.iter().map(|(id, _)| level[id.index()]).collect()
}

impl RowForm {
    /// Maximum slices of a row, one workgroup each; `None` where one workgroup per row is as fast.
    pub fn slices(&self) -> Option<u32> {
        let slices = (self.inner.max_value() / MIN_SLICE).min(MAX_SLICES / self.rows.max_value().max(1));
        u32::try_from(slices).ok().filter(|slices| *slices >= MIN_SLICES)
    }

    /// Whether the kernel only reduces each row in one pass, so that partials are combined once, at the end.
    pub fn is_single_pass_reduction(&self, body: &Graph) -> bool {
        self.outputs.iter().all(|output| *output == RowOutput::Row)
            && passes(body, &self.reduces).into_iter().all(|pass| pass == 1)
    }

    /// Bindings for partials: two for each reduction, and a counter.
    pub fn partial_bindings(&self) -> u64 {
        2 * self.reduces.len() as u64 + 1
    }

    /// Whether this should be several kernels: the rows or columns would be split if the kernel only reduced them. The
    /// maximum of a symbolic row length may be far above the usual length, so it does not count; columns are split only
    /// if their number is known.
    pub fn is_better_unfused(&self, body: &Graph) -> bool {
        self.inner.as_const().is_some()
            && self.slices().is_some_and(|slices| slices >= UNFUSED_SLICES)
            && self.rows.max_value() <= i64::from(UNFUSED_SLICES)
            && !self.is_single_pass_reduction(body)
            && (self.rows.as_const().is_some() || !self.is_contiguous_across_rows(body))
    }

    /// Whether adjacent rows, not adjacent elements of a row, are adjacent in memory: a reduction over columns.
    pub fn is_contiguous_across_rows(&self, body: &Graph) -> bool {
        let mut atoms = Atoms::default();
        let row = atoms.fresh(&self.rows, AtomDef::Free);
        let element = atoms.fresh(&self.inner, AtomDef::Free);
        let (r, i) = (atoms.index(row), atoms.index(element));
        let mut read = vec![];
        for (id, rows) in &self.reduces {
            read.push((body.node(*id).operands[0], rows.at(&r, &i, &mut atoms)));
        }
        for (output, _) in self.outputs.iter().enumerate().filter(|(_, kind)| **kind == RowOutput::Inner) {
            let value = output_root(body, output);
            let at = self.inner_at(&r, &i, &body.ty(value).shape, &mut atoms);
            read.push((value, at));
        }
        let (mut along_row, mut across) = (0, 0);
        for (value, at) in read {
            let steps = steps(body, (value, &at), [element, row], &mut atoms);
            along_row += steps[0];
            across += steps[1];
        }
        across > along_row
    }

    /// Coordinates in `shape` of element `i` of row `row`.
    pub fn inner_at(&self, row: &Index, i: &Index, shape: &Shape, atoms: &mut Atoms) -> Vec<Index> {
        let at = self.domain.at(row, i, atoms);
        let linear = atoms.flatten(&at, &self.domain.shape);
        atoms.unflatten(&linear, shape)
    }
}

/// Caches serve a param each of whose elements is read so many times on average, if a larger one is read, too.
const CACHED: u64 = 16;

/// Counts the params that are read for `value` at `at` in steps of one element along each of two atoms. Params that caches
/// serve do not count: small ones, and those that depend on one atom alone, such as a factor of each row. What an index
/// selects depends on both atoms.
fn steps(body: &Graph, (value, at): (Value, &[Index]), along: [AtomId; 2], atoms: &mut Atoms) -> [usize; 2] {
    let computed =
        along.iter().fold(1, |n, atom| atoms.get(*atom).extent.max_value().unsigned_abs().saturating_mul(n));
    let reads = param_reads(body, value, at, atoms);
    let elements = |param: &Value| body.ty(*param).shape.max_numel();
    let largest = reads.iter().map(|(param, _)| elements(param)).max().unwrap_or(0);
    along.map(|atom| {
        let steps = |at: &Index| at.terms.iter().any(|(d, c)| d.atom == atom && d.div.is(1) && c.is(1));
        let depends = |at: &Index| {
            let roots = atoms.roots(at);
            let is_selected = roots.iter().any(|root| atoms.get(*root).def == AtomDef::Data);
            is_selected || along.iter().all(|atom| roots.contains(atom))
        };
        let is_cached =
            |param: &Value| elements(param) < largest && elements(param).saturating_mul(CACHED) <= computed;
        reads.iter().filter(|(param, at)| steps(at) && depends(at) && !is_cached(param)).count()
    })
}

/// Longest rows that may be read in both directions: one invocation reduces each contiguous row of so many elements.
const SHORT_ROW: i64 = 16;

/// Why the reductions of a kernel should be apart: one is contiguous along its rows and another across them, such as
/// `max(x)` and `max(transpose(x))` along one axis. One of them would read single elements. Not so if the kernel also
/// writes whole rows: apart, one of them would write single elements.
pub(crate) fn opposite_reductions(body: &Graph) -> Option<Reason> {
    let mut atoms = Atoms::default();
    let (mut by_rows, mut by_columns) = (None, None);
    let elements = body.nodes().find_map(|(id, _)| rows_of(body, id)).map(|rows| rows.shape.numel())?;
    if (0..body.outputs().len()).any(|o| body.ty(output_root(body, o)).shape.numel() == elements) {
        return None;
    }
    for (id, node) in body.nodes() {
        let Some(rows) = rows_of(body, id).filter(|rows| rows.inner().max_value() > SHORT_ROW) else {
            continue;
        };
        let row = atoms.fresh(&rows.rows(), AtomDef::Free);
        let element = atoms.fresh(&rows.inner(), AtomDef::Free);
        let (r, i) = (atoms.index(row), atoms.index(element));
        let at = rows.at(&r, &i, &mut atoms);
        match steps(body, (node.operands[0], &at), [element, row], &mut atoms) {
            [along, across] if along > across => by_rows = by_rows.or(Some(id)),
            [along, across] if along < across => by_columns = by_columns.or(Some(id)),
            _ => {}
        }
    }
    let [by_rows, by_columns] = [by_rows?, by_columns?].map(|id| body.node_text(id));
    Some(Reason(format!("{by_rows} reads rows, {by_columns} reads columns")))
}
