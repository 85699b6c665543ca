//! Few rows that are so long that several workgroups share each.

use super::{RowForm, RowOutput, Rows, output_root};
use crate::access::param_reads;
use crate::graph::{Graph, NodeId};
use crate::index::{AtomDef, Atoms, Index};
use crate::shape::Shape;

/// Fewest elements of a workgroup's part of a row: 16 for each of 256 invocations. Bringing parts together takes about as
/// long as reading so many (2 us on an H200).
const LEAST: i64 = 4096;

/// Fewest parts of a row for which it is worthwhile to have several.
const FEWEST: u32 = 4;

/// Parts of all rows together, at most: with 512 invocations each they fill the largest devices twice.
const MOST: i64 = 512;

/// Parts of a row for which it is worthwhile that what follows from its results is a kernel of its own, and most rows. An
/// H200 takes 10 us for a row of 8 parts in one workgroup, and 2 to 3 for a further kernel and its barrier; with 8 rows,
/// which take no longer than one, one multiprocessor in 16 is busy.
const APART: u32 = 8;

/// For each reduction the number of the pass over the row in which it can be computed: 1 + that of the
/// reductions on which it depends.
pub fn passes(body: &Graph, reduces: &[(NodeId, Rows)]) -> Vec<usize> {
    let mut level = vec![0; body.len()];
    for (id, node) in body.nodes() {
        let below = node.operands.iter().map(|v| level[v.node.index()]).max().unwrap_or(0);
        let own = usize::from(reduces.iter().any(|(r, _)| *r == id));
        level[id.index()] = below + own;
    }
    reduces.iter().map(|(id, _)| level[id.index()]).collect()
}

impl RowForm {
    /// Parts of a row, each for a workgroup of its own, at most; `None` where a workgroup takes a row as fast.
    pub fn parts(&self) -> Option<u32> {
        let parts = (self.inner.max_value() / LEAST).min(MOST / self.rows.max_value().max(1));
        u32::try_from(parts).ok().filter(|parts| *parts >= FEWEST)
    }

    /// Whether nothing is done with a row once it is reduced, so that parts of it meet once, at the end.
    pub fn ends_with_results(&self, body: &Graph) -> bool {
        self.outputs.iter().all(|output| *output == RowOutput::Row)
            && passes(body, &self.reduces).into_iter().all(|pass| pass == 1)
    }

    /// Bindings through which parts meet: two for each reduction, and a count.
    pub fn meeting_places(&self) -> u64 {
        2 * self.reduces.len() as u64 + 1
    }

    /// Whether this should be several kernels: rows, or columns, that would be shared if nothing were done with them afterwards.
    /// Of rows whose length only a run knows the most may be far from the usual, and columns are shared if their number is known.
    pub fn better_apart(&self, body: &Graph) -> bool {
        self.inner.as_const().is_some()
            && self.parts().is_some_and(|parts| parts >= APART)
            && self.rows.max_value() <= i64::from(APART)
            && !self.ends_with_results(body)
            && (self.rows.as_const().is_some() || !self.lies_side_by_side(body))
    }

    /// Whether what is read lies side by side from row to row rather than along a row, as columns do.
    pub fn lies_side_by_side(&self, body: &Graph) -> bool {
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
            for (_, at) in param_reads(body, value, &at, &mut atoms) {
                let steps = |atom| at.terms.iter().any(|(d, c)| d.atom == atom && d.div.is(1) && c.is(1));
                along_row += usize::from(steps(element));
                across += usize::from(steps(row));
            }
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
