//! Column segments of a contraction's grid: matmuls that one output combines, and the tile granularity that each
//! segment needs.
//!
//! Each output is walked back to the matmuls that it reads, at a row and column that are variables. A reduction on the way
//! is walked through: it reads a group of adjacent columns, and a tile of complete groups has all that it needs.

use std::collections::BTreeSet;

use super::{
    ColumnGroups, ContractionForm, MAX_TILE, Reason, Rows, Segment, no, output_root, quantized_root,
};
use crate::access::anchor_reads;
use crate::activations::{ACTIVATIONS, BLOCK};
use crate::caps::DeviceCaps;
use crate::dim::{Bindings, Dim};
use crate::dtype::DType;
use crate::graph::{Graph, NodeId, Value};
use crate::index::{AtomDef, AtomId, Atoms, Index};
use crate::op::Op;
use crate::shape::Shape;

/// Groups matmuls that one output combines, and finds the tile that each group needs. `before` are the reductions that
/// depend on no matmul, `after` those that do. Of `few` rows, tiles are any divisor of the columns, and in shared memory.
pub(super) fn segments(
    body: &Graph,
    matmuls: &[NodeId],
    [before, after]: [&[(NodeId, Rows)]; 2],
    (batch, m, few): (&Shape, &Dim, bool),
) -> Result<Vec<Segment>, Reason> {
    let mut atoms = Atoms::default();
    let (b, row) = (atoms.free(&batch.numel()), atoms.free(m));
    let mut walk = Walk { body, matmuls, before, after, batch, m, few, b, row, atoms };
    let mut groups: Vec<(BTreeSet<NodeId>, Segment)> = vec![];
    for output in 0..body.outputs().len() {
        let part = walk.output(output)?;
        let (same, mut rest): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|(g, _)| !g.is_disjoint(&part.0));
        rest.push(same.into_iter().try_fold(part, merge)?);
        groups = rest;
    }
    if groups.iter().map(|(set, _)| set.len()).sum::<usize>() != matmuls.len() {
        return no("a matmul that no output reads");
    }
    let finish = |(set, mut segment): (BTreeSet<NodeId>, Segment)| {
        segment.anchors = set.into_iter().collect();
        segment.outputs.sort_unstable();
        segment
    };
    let mut segments: Vec<Segment> = groups.into_iter().map(finish).collect();
    segments.sort_by_key(|s| s.anchors[0]);
    Ok(segments)
}

/// Two groups of matmuls that an output makes one.
fn merge(
    (mut set, mut all): (BTreeSet<NodeId>, Segment),
    (other, segment): (BTreeSet<NodeId>, Segment),
) -> Result<(BTreeSet<NodeId>, Segment), Reason> {
    if all.n != segment.n {
        return no("matmuls of different widths meet in an output");
    }
    set.extend(other);
    all.tile = common_tile(all.tile.into(), segment.tile.into())? as u32;
    all.staged |= segment.staged;
    all.outputs.extend(segment.outputs);
    all.transposed.extend(segment.transposed);
    all.column_groups = match (all.column_groups, segment.column_groups) {
        (Some(mut column_groups), Some(more)) => {
            if column_groups.columns != more.columns {
                return no(format!(
                    "reductions over groups of {} and of {} columns",
                    column_groups.columns, more.columns
                ));
            }
            column_groups.reduces.extend(more.reduces);
            column_groups.reduces.sort_by_key(|(id, _)| *id);
            column_groups.reduces.dedup();
            Some(column_groups)
        }
        (one, other) => one.or(other),
    };
    Ok((set, all))
}

/// The number of an element of an output at a batch, row and column, of so many of each, that is enumerated by batch, row
/// and column, or with rows innermost.
pub(super) fn linear(
    atoms: &mut Atoms,
    [batch, row, column]: [Index; 3],
    [batches, m, n]: [&Dim; 3],
    transposed: bool,
) -> Index {
    let (at, extents) = match transposed {
        false => ([batch, row, column], [batches, m, n]),
        true => ([batch, column, row], [batches, n, m]),
    };
    atoms.flatten(&at, &Shape::new(extents.map(Dim::clone).to_vec()))
}

/// Least common multiple of two tile widths, if it is at most [`MAX_TILE`].
fn common_tile(a: i64, b: i64) -> Result<i64, Reason> {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    let tile = a / x.max(1) * b;
    if tile > MAX_TILE {
        return no(format!("tiles of {a} and of {b} columns together are wider than {MAX_TILE}"));
    }
    Ok(tile)
}

/// The columns that a walk starts from: one variable, or those of a column group and of a column in it.
struct Columns {
    /// The column.
    column: Index,
    /// Its column group, inside a reduction.
    group: Option<Index>,
    /// The variables that it is made of, each with a divisor and a modulus of its value.
    atoms: Vec<(AtomId, i64, i64)>,
}

/// What an output, or a reduction on the way to it, needs.
struct Need {
    n: Dim,
    members: BTreeSet<NodeId>,
    tile: i64,
    staged: bool,
    column_groups: Option<ColumnGroups>,
}

struct Walk<'a> {
    body: &'a Graph,
    matmuls: &'a [NodeId],
    before: &'a [(NodeId, Rows)],
    after: &'a [(NodeId, Rows)],
    batch: &'a Shape,
    m: &'a Dim,
    few: bool,
    /// The variables of batch and row.
    b: Index,
    row: Index,
    atoms: Atoms,
}

impl Walk<'_> {
    /// What output `output` needs, in the order of its matmul, or else transposed.
    fn output(&mut self, output: usize) -> Result<(BTreeSet<NodeId>, Segment), Reason> {
        let quantized = quantized_root(self.body, output);
        let root = quantized.unwrap_or_else(|| output_root(self.body, output));
        let in_order = self.elements(output, root, false);
        // Blocks are of adjacent columns, and only few rows are stored one element at a time.
        if in_order.is_ok() || !self.few || quantized.is_some() {
            return in_order;
        }
        match self.elements(output, root, true) {
            Ok((members, segment)) if segment.column_groups.is_none() => Ok((members, segment)),
            Ok(_) | Err(_) => in_order,
        }
    }

    /// What the elements of an output need, enumerated by batch, row and column, or by batch, column and row.
    fn elements(
        &mut self,
        output: usize,
        root: Value,
        transposed: bool,
    ) -> Result<(BTreeSet<NodeId>, Segment), Reason> {
        let shape = self.body.ty(root).shape.clone();
        let n = match shape.numel().div_exact(&(&self.batch.numel() * self.m)) {
            Some(n) => n,
            None => return no(format!("an output of shape {shape} does not cover the result of the matmul")),
        };
        let id = self.atoms.fresh(&n, AtomDef::Free);
        let column = self.atoms.index(id);
        let position = [self.b.clone(), self.row.clone(), column.clone()];
        let linear = linear(&mut self.atoms, position, [&self.batch.numel(), self.m, &n], transposed);
        let at = self.atoms.unflatten(&linear, &shape);
        let mut need =
            Need { n: n.clone(), members: BTreeSet::new(), tile: 1, staged: false, column_groups: None };
        if quantized_root(self.body, output).is_some() {
            // Neighbours in memory are neighbours in a row only where rows are whole blocks.
            if n.div_exact(&BLOCK.into()).is_none() {
                return no(format!("rows of {n} columns are no whole blocks"));
            }
            (need.tile, need.staged) = (BLOCK, true);
        }
        let from = Columns { column, group: None, atoms: vec![(id, 1, i64::MAX)] };
        self.reads(root, &at, &from, &mut need)?;
        if need.members.is_empty() {
            return no("an output that does not depend on the matmul");
        }
        let Need { members, tile, staged, column_groups, .. } = need;
        let (anchors, outputs, tile) = (vec![], vec![output], tile as u32);
        let transposed = if transposed { vec![output] } else { vec![] };
        Ok((members, Segment { anchors, n, tile, staged, outputs, transposed, column_groups }))
    }

    /// Checks what `root` at `at` reads, for the columns `from`.
    fn reads(&mut self, root: Value, at: &[Index], from: &Columns, need: &mut Need) -> Result<(), Reason> {
        let body = self.body;
        for (id, at) in anchor_reads(body, root, at, &mut self.atoms) {
            let shape = &body.node(id).types[0].shape;
            if self.before.iter().any(|(p, _)| *p == id) {
                if self.atoms.flatten(&at, shape) != self.row {
                    return no(format!("{} is read for another row", body.node_text(id)));
                }
                continue;
            }
            if let Some((_, rows)) = self.after.iter().find(|(r, _)| *r == id) {
                self.reduction(id, rows, &at, from, need)?;
                continue;
            }
            if !self.matmuls.contains(&id) {
                return no(format!("an output reads {}", body.node_text(id)));
            }
            let rank = shape.rank();
            if shape.dims()[rank - 1] != need.n {
                return no("an output whose size is not that of its matmul");
            }
            if self.atoms.flatten(&at[..rank - 2], self.batch) != self.b || at[rank - 2] != self.row {
                return no(format!("{} is read for another row or batch", body.node_text(id)));
            }
            if at[rank - 1] != from.column {
                need.staged = true;
                need.tile = self.closed_tile(&at[rank - 1], from, need)?;
            }
            need.members.insert(id);
        }
        Ok(())
    }

    /// Checks that reduction `id` is over a column group, and that it is read at `at` for one of the same tile.
    fn reduction(
        &mut self,
        id: NodeId,
        rows: &Rows,
        at: &[Index],
        from: &Columns,
        need: &mut Need,
    ) -> Result<(), Reason> {
        let text = || self.body.node_text(id);
        let (Some(columns), Some(n), true) = (rows.inner().as_const(), need.n.as_const(), self.few) else {
            return no(format!(
                "{} is over results of many rows, or of a symbolic number of columns",
                text()
            ));
        };
        if columns < 1 || n % columns != 0 || columns > MAX_TILE {
            return no(format!("{} is over {columns} of {n} columns, not a column group of a tile", text()));
        }
        let column_groups = Dim::constant(n / columns);
        let batches = self.batch.numel();
        if rows.rows() != &(&batches * self.m) * &column_groups {
            return no(format!("{} has {} rows, which are no column groups", text(), rows.rows()));
        }
        let columns = columns as u32;
        if let Some(other) = need.column_groups.as_ref().filter(|other| other.columns != columns) {
            return no(format!("reductions over groups of {} and of {columns} columns", other.columns));
        }
        if need
            .column_groups
            .as_ref()
            .is_none_or(|column_groups| column_groups.reduces.iter().all(|(other, _)| *other != id))
        {
            self.operand(id, rows, columns, need)?;
        }
        let linear = self.atoms.flatten(at, &self.body.node(id).types[0].shape);
        let all = Shape::new(vec![batches, self.m.clone(), column_groups]);
        let coordinates = self.atoms.unflatten(&linear, &all);
        if coordinates[0] != self.b || coordinates[1] != self.row {
            return no(format!("{} is read for another row or batch", self.body.node_text(id)));
        }
        let group = coordinates[2].clone();
        need.staged = true;
        need.tile = common_tile(need.tile, columns.into())?;
        let column_group = match &from.group {
            Some(group) => group.clone(),
            None => self.atoms.div_mod(&from.column, &Dim::constant(columns.into())).0,
        };
        if group != column_group {
            if from.group.is_some() {
                return no(format!("{} is read for another column group", self.body.node_text(id)));
            }
            need.tile = self.closed_tile(&group.scale(&Dim::constant(columns.into())), from, need)?;
        }
        Ok(())
    }

    /// Checks what the operand of reduction `id` reads for a column group, and counts it among those of `need`.
    fn operand(&mut self, id: NodeId, rows: &Rows, columns: u32, need: &mut Need) -> Result<(), Reason> {
        let count = Dim::constant(need.n.as_const().unwrap_or(0) / i64::from(columns));
        let length = Dim::constant(columns.into());
        let (group, i) = (self.atoms.fresh(&count, AtomDef::Free), self.atoms.fresh(&length, AtomDef::Free));
        let (at_group, at_i) = (self.atoms.index(group), self.atoms.index(i));
        let column = self.atoms.add(&at_group.scale(&length), &at_i);
        let all = Shape::new(vec![self.batch.numel(), self.m.clone(), count]);
        let row = self.atoms.flatten(&[self.b.clone(), self.row.clone(), at_group.clone()], &all);
        let at = rows.at(&row, &at_i, &mut self.atoms);
        let atoms = vec![(group, columns.into(), i64::MAX), (i, 1, columns.into())];
        let from = Columns { column, group: Some(at_group), atoms };
        self.reads(self.body.node(id).operands[0], &at, &from, need)?;
        let column_groups = need.column_groups.get_or_insert(ColumnGroups { columns, reduces: vec![] });
        column_groups.reduces.push((id, rows.clone()));
        Ok(())
    }

    /// The smallest tile such that each column reads only columns of its own tile, tried for every column.
    fn closed_tile(&self, at: &Index, from: &Columns, need: &Need) -> Result<i64, Reason> {
        let Some(n) = need.n.as_const() else {
            return no("columns are read through an index map, and their number is symbolic");
        };
        if !self.atoms.roots(at).iter().all(|root| from.atoms.iter().any(|(id, _, _)| id == root)) {
            return no("columns are read through an index map that depends on more than the column");
        }
        let read = |c: i64| {
            let value = |a| from.atoms.iter().find(|(id, _, _)| *id == a).map(|(_, d, m)| c / d % m);
            self.atoms.eval(at, &value, &Bindings::new())
        };
        // Matmuls of many rows have tiles of powers of two.
        let mut tiles = (2..=MAX_TILE).filter(|tile| n % tile == 0 && (self.few || tile & (tile - 1) == 0));
        let closed = |tile: &i64| (0..n).all(|c| read(c).is_some_and(|r| r / tile == c / tile));
        match tiles.find(closed) {
            Some(tile) => common_tile(need.tile, tile),
            None => no(format!("columns are read across tiles of up to {MAX_TILE}")),
        }
    }
}

/// Bytes of shared memory that are left for results where activations are quantized into
/// [three quarters and half a block](crate::dot::supported) of it: reductions before the matmul take four for each
/// invocation.
pub fn spare_bytes(caps: &DeviceCaps) -> u32 {
    (caps.shared_memory_bytes / 4)
        .saturating_sub(4 * caps.max_workgroup_invocations.min(1024) + BLOCK as u32 / 2)
}

/// Whether the shared memory has room for the tiles of results that reductions are over.
pub fn reductions_fit_shared_memory(body: &Graph, form: &ContractionForm, caps: &DeviceCaps) -> bool {
    let m = form.m.max_value().max(0) as u64;
    // A quantization in another kernel may be merged into this one later.
    let quantizes = match body.node(form.lhs.node).operands.first() {
        Some(blocks) if matches!(body.op(form.lhs), Op::Dequantize(_)) => {
            body.ty(*blocks).dtype == DType::Block(ACTIVATIONS)
        }
        _ => false,
    };
    let room = if quantizes { spare_bytes(caps) } else { caps.shared_memory_bytes / 2 };
    form.segments.iter().all(|segment| {
        let Some(column_groups) = &segment.column_groups else { return true };
        let bytes = |id: &NodeId| body.node(*id).types[0].dtype.size().unwrap_or(4).max(4) as u64;
        let sums: u64 = segment.anchors.iter().map(bytes).sum();
        let quantized = segment.outputs.iter().filter(|o| quantized_root(body, **o).is_some()).count() as u64;
        // Of each column group and reduction a result, of at most eight bytes.
        let reduced =
            u64::from(segment.tile / column_groups.columns.max(1)) * 8 * column_groups.reduces.len() as u64;
        m * (u64::from(segment.tile) * (sums + 4 * quantized) + reduced) <= room.into()
    })
}
