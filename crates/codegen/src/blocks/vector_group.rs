//! How many neighbouring elements an invocation takes, so that what it reads and writes is 16 bytes wide.

use tallow_ir::access::param_reads;
use tallow_ir::form::{index_rows, output_root};
use tallow_ir::index::{AtomDef, AtomId, Atoms, Index};
use tallow_ir::{DType, Dim, Graph, NodeId, Shape, Value};

use crate::emit::{Anchor, Emitter, written_at};
use crate::kernel::CodegenError;
use crate::storage::{Buffer, bytes, plain};

/// Most elements of a group: 16 bytes of the 16-bit types, and as many as the functions of blocks unpack.
const MOST: u32 = 8;

/// What a loop computes at the element it stands at: a value at coordinates, and the output that stores it, if any.
pub(crate) struct Root {
    pub value: Value,
    pub at: Vec<Index>,
    pub output: Option<usize>,
}

/// The largest group in which each param is read, and each output written, side by side or at one element for the
/// whole group; 1 if there is none. `roots` gives what loops over groups of a size compute, if the size fits.
///
/// The narrowest type decides: 16 bytes of it make a group, of wider types several accesses. What is picked by an
/// index from memory may lie anywhere.
pub(crate) fn size(body: &Graph, roots: impl Fn(&mut Atoms, AtomId, u32) -> Option<Vec<Root>>) -> u32 {
    let mut size = MOST;
    while size > 1 {
        let mut atoms = Atoms::default();
        let j = atoms.fresh(&Dim::constant(size.into()), AtomDef::Free);
        if let Some(roots) = roots(&mut atoms, j, size)
            && let Some(narrowest) = narrowest(body, &roots, &mut atoms, j, size)
            && (narrowest * size <= 16 || size == 2)
        {
            return size;
        }
        size /= 2;
    }
    1
}

/// Bytes of the narrowest elements that are accessed in groups of `size`; `None` if something lies apart.
fn narrowest(body: &Graph, roots: &[Root], atoms: &mut Atoms, j: AtomId, size: u32) -> Option<u32> {
    let access =
        |(param, index): (Value, Index)| (body.ty(param).dtype, body.ty(param).shape.max_numel(), index);
    let mut narrowest = 16;
    for root in roots {
        let mut accesses: Vec<(DType, u64, Index)> =
            param_reads(body, root.value, &root.at, atoms).into_iter().map(access).collect();
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

/// What is computed in rows, whose neighbouring elements an invocation stores together.
pub(crate) struct Results<'a> {
    /// Extents: two outer ones, and that of a row.
    pub shape: &'a Shape,
    /// Outputs, of the elements of `shape` in the same order.
    pub outputs: &'a [usize],
}

impl Results<'_> {
    /// Elements of the largest group.
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

    /// Groups of `size` in a row.
    pub fn groups(&self, size: u32) -> Dim {
        let length = self.extents()[2];
        length.div_exact(&Dim::constant(size.into())).unwrap_or_else(|| length.clone())
    }

    /// Emits the stores of the results at the outer place `at` and in the group of `size` that the variable `group` counts,
    /// which are in an array for each of `results`; ends the scope that is open.
    pub fn store(
        &self,
        e: &mut Emitter<'_>,
        (group, size): (&str, u32),
        [outer, row]: [Index; 2],
        results: &[(NodeId, String)],
        buffers: &[usize],
    ) -> Result<String, CodegenError> {
        let mut at = e.atom(&self.groups(size), group);
        if size > 1 {
            e.open(); // an element
            let j = e.set_group(size);
            let j = e.bind_atom(j, "j");
            at = e.atoms.add(&at.scale(&Dim::constant(size.into())), &j);
        }
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
        if size > 1 {
            e.close_block(&format!("[[unroll]] for (uint j = 0u; j < {size}u; ++j)"));
            e.group = None;
        }
        after.into_iter().for_each(|line| e.line(line));
        Ok(e.close().join("\n"))
    }
}
