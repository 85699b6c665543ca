//! Vector width: how many adjacent elements an invocation processes, so that its loads and stores are 16 bytes wide.

use tallow_ir::access::param_reads;
use tallow_ir::form::{index_rows, output_root};
use tallow_ir::index::{AtomDef, AtomId, Atoms, Index};
use tallow_ir::{DType, Dim, Graph, NodeId, Shape, Value};

use crate::emit::{Anchor, Emitter, written_at};
use crate::error::CodegenError;
use crate::storage::{Buffer, bytes, plain};

/// Most elements of a group: 16 bytes of a 16-bit type, and the number that dequantization functions unpack at once.
pub(crate) const MOST: u32 = 8;

/// A value that a loop computes at coordinates, and the output that stores it, if any.
pub(crate) struct Root {
    pub value: Value,
    pub at: Vec<Index>,
    pub output: Option<usize>,
}

/// The largest group in which every param is read, and every output written, at adjacent elements or at one element for
/// the whole group. It is 1 if there is none. `roots` returns what loops over groups of a given size compute, if the
/// size divides the extent.
///
/// The narrowest type decides: a group is 16 bytes of it, and several accesses of wider types. Elements selected by an
/// index from memory need not be adjacent.
pub(crate) fn size(body: &Graph, roots: impl Fn(&mut Atoms, AtomId, u32) -> Option<Vec<Root>>) -> u32 {
    largest(body, roots, |root, atoms| param_reads(body, root.value, &root.at, atoms))
}

/// The same where only roots for which `is_loaded` holds are read at adjacent elements. Others are computed once per group or row, from
/// elements that are loaded one by one.
pub(crate) fn size_of(
    body: &Graph,
    roots: impl Fn(&mut Atoms, AtomId, u32) -> Option<Vec<Root>>,
    is_loaded: impl Fn(&Root) -> bool,
) -> u32 {
    largest(body, roots, |root, atoms| match is_loaded(root) {
        true => param_reads(body, root.value, &root.at, atoms),
        false => vec![],
    })
}

/// The same for the outputs alone: elements of params may be anywhere, and are then loaded one by one.
pub(crate) fn stored_size(body: &Graph, roots: impl Fn(&mut Atoms, AtomId, u32) -> Option<Vec<Root>>) -> u32 {
    largest(body, roots, |_, _| vec![])
}

fn largest(
    body: &Graph,
    roots: impl Fn(&mut Atoms, AtomId, u32) -> Option<Vec<Root>>,
    reads: impl Fn(&Root, &mut Atoms) -> Vec<(Value, Index)>,
) -> u32 {
    let mut size = MOST;
    while size > 1 {
        let mut atoms = Atoms::default();
        let j = atoms.fresh(&Dim::constant(size.into()), AtomDef::Free);
        if let Some(roots) = roots(&mut atoms, j, size)
            && let Some(narrowest) = narrowest(body, (&roots, &reads), &mut atoms, j, size)
            && (narrowest * size <= 16 || size == 2)
        {
            return size;
        }
        size /= 2;
    }
    1
}

/// Bytes of the narrowest element type accessed in groups of `size`; `None` if some elements are not adjacent.
fn narrowest(
    body: &Graph,
    (roots, reads): (&[Root], &impl Fn(&Root, &mut Atoms) -> Vec<(Value, Index)>),
    atoms: &mut Atoms,
    j: AtomId,
    size: u32,
) -> Option<u32> {
    let access =
        |(param, index): (Value, Index)| (body.ty(param).dtype, body.ty(param).shape.max_numel(), index);
    let mut narrowest = 16;
    for root in roots {
        let mut accesses: Vec<(DType, u64, Index)> = reads(root, atoms).into_iter().map(access).collect();
        if let Some(output) = root.output {
            if let Some((axis, indices)) = index_rows(body, output) {
                let read = param_reads(body, indices, &root.at[axis..=axis], atoms).into_iter();
                accesses.extend(read.map(access));
            }
            let output = body.outputs()[output].value;
            let (at, _) = written_at(body, output, root.value, &root.at, atoms);
            accesses.push((body.ty(output).dtype, body.ty(output).shape.max_numel(), at));
        }
        for (dtype, numel, index) in accesses {
            if !atoms.roots(&index).contains(&j) {
                continue;
            }
            atoms.base(&index, j, size.into())?;
            if !Buffer::groups(plain(dtype), size) || numel < u64::from(size) {
                return None;
            }
            narrowest = narrowest.min(match bytes(plain(dtype)) {
                // Blocks are unpacked eight at a time.
                0 => 16 / MOST,
                n => n,
            });
        }
    }
    Some(narrowest)
}

/// Row results whose adjacent elements an invocation stores together.
pub(crate) struct Results<'a> {
    /// Extents: two outer ones and the row length.
    pub shape: &'a Shape,
    /// Output numbers; each has the elements of `shape` in the same order.
    pub outputs: &'a [usize],
}

impl Results<'_> {
    /// The size of the largest group.
    pub fn size(&self, body: &Graph) -> u32 {
        size(body, |atoms, j, size| {
            let size = Dim::constant(size.into());
            let [outer, row, length] = self.extents();
            let groups = length.div_exact(&size).filter(|n| !n.is(0))?;
            let [outer, row, group] = [outer, row, &groups].map(|extent| atoms.free(extent));
            let at = atoms.add(&group.scale(&size), &atoms.index(j));
            let linear = atoms.flatten(&[outer, row, at], self.shape);
            let root = |output: &usize| {
                let value = output_root(body, *output);
                let at = atoms.unflatten(&linear, &body.ty(value).shape.clone());
                Root { value, at, output: Some(*output) }
            };
            Some(self.outputs.iter().map(root).collect())
        })
    }

    fn extents(&self) -> [&Dim; 3] {
        [0, 1, 2].map(|axis| &self.shape.dims()[axis])
    }

    /// Groups of `size` per row.
    pub fn groups(&self, size: u32) -> Dim {
        let length = self.extents()[2];
        length.div_exact(&Dim::constant(size.into())).unwrap_or_else(|| length.clone())
    }

    /// Emits the stores of one group of results. `[outer, row]` are the outer coordinates. The variable
    /// `group` counts groups. Each pair of `results` names a node and the array that holds its values.
    pub fn emit(
        &self,
        e: &mut Emitter<'_>,
        group: &str,
        [outer, row]: [Index; 2],
        results: &[(NodeId, String)],
        buffers: &[usize],
    ) -> Result<(), CodegenError> {
        let size = self.size(e.body);
        let at = e.atom(&self.groups(size), group);
        e.store_each(at, size, |e, at| {
            let depth = e.depth();
            for (node, array) in results {
                let text = format!("{array}[{}]", if size > 1 { "j" } else { "0" });
                e.anchors.insert(*node, Anchor::Result { text, depth });
            }
            let linear = e.atoms.flatten(&[outer, row, at], self.shape);
            let mut after = vec![];
            for output in self.outputs {
                let at = e.atoms.unflatten(&linear, &e.body.ty(output_root(e.body, *output)).shape.clone());
                after.extend(e.store_grouped(*output as u32, buffers[*output], &at)?);
            }
            Ok(after)
        })
    }
}
