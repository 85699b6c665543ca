//! How many neighbouring elements an invocation takes, so that what it reads and writes is 16 bytes wide.

use tallow_ir::access::param_reads;
use tallow_ir::index::{AtomDef, AtomId, Atoms, Index};
use tallow_ir::{DType, Dim, Graph, Value};

use crate::emit::written_at;
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
    let mut narrowest = 16;
    for root in roots {
        let mut accesses: Vec<(DType, u64, Index)> = param_reads(body, root.value, &root.at, atoms)
            .into_iter()
            .map(|(param, index)| (body.ty(param).dtype, body.ty(param).shape.max_numel(), index))
            .collect();
        if let Some(output) = root.output {
            let output = body.outputs()[output].value;
            let at = written_at(body, output, root.value, &root.at, atoms);
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
