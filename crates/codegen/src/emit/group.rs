//! Vector access to groups of adjacent elements. The body is emitted once, in a loop over the elements of a group.
//! Elements contiguous in memory pass through arrays that are loaded before the loop or stored after it.

use tallow_ir::form::{index_rows, output_root};
use tallow_ir::index::{AtomDef, AtomId, Atoms, Index};
use tallow_ir::{Dim, Graph, NodeId, Op, Value};

use super::{Emitter, Expr};
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::lines::unrolled;
use crate::storage::Buffer;

/// The variable of the loop over a group's elements, and the group's size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub atom: AtomId,
    pub size: u32,
}

/// The value that an output stores for an element, and its position.
pub(crate) struct Written {
    pub root: Value,
    pub to: Index,
    /// If an index selects the row: the test that the state has that row.
    within: Option<Expr>,
}

impl Written {
    /// The store statement, guarded if the row may not exist.
    pub fn guarded(&self, store: &str) -> String {
        match &self.within {
            Some(within) => format!("if ({}) {{ {store} }}", within.text),
            None => store.into(),
        }
    }
}

impl Emitter<'_> {
    /// Element `linear` of param `index` from the array of its group, if the group is contiguous.
    pub(super) fn grouped(
        &mut self,
        node: NodeId,
        index: u32,
        linear: &Index,
    ) -> Result<Option<Expr>, CodegenError> {
        let Some(group) = self.group else {
            if self.cached.is_empty() {
                return Ok(None);
            }
            let key = (self.param(index), linear.clone());
            let depth = self.depth();
            return Ok(self.cached.get(&key).map(|cached| Expr { text: cached.clone(), depth }));
        };
        let Some(j) = self.names.get(&group.atom).cloned() else { return Ok(None) };
        let buffer = self.param(index);
        let dtype = self.buffers[buffer].dtype;
        let base = self.atoms.base(linear, group.atom, group.size.into());
        let Some(base) = base.filter(|_| Buffer::groups(dtype, group.size)) else { return Ok(None) };
        let key = (buffer, base);
        if let Some(array) = self.cached.get(&key) {
            return Ok(Some(Expr { text: format!("{array}[{}]", j.text), depth: j.depth }));
        }
        let array = match self.arrays.get(&key) {
            Some(e) => e.clone(),
            None => {
                let name = self.fresh_name("x");
                let ty = self.group_type(node, buffer)?;
                let depth = self.index(&key.1)?.depth;
                let ty = self.uses_at(depth).ty(ty);
                self.line_at(depth, format!("{ty} {name}[{}];", group.size));
                self.load_group(node, buffer, &key.1, &name)?;
                let array = Expr { text: name, depth };
                self.arrays.insert(key, array.clone());
                array
            }
        };
        Ok(Some(Expr { text: format!("{}[{}]", array.text, j.text), depth: j.depth }))
    }

    /// Emits the loop over the elements of a group.
    pub fn each_of_group<T>(
        &mut self,
        group: Group,
        emit: impl FnOnce(&mut Self) -> Result<T, CodegenError>,
    ) -> Result<T, CodegenError> {
        self.block(&unrolled("j", group.size), |e| {
            e.bind_atom(group.atom, "j");
            emit(e)
        })
    }

    /// Emits the stores of group `at` of `size` adjacent elements. `store` emits those of the element at an index, and
    /// returns the lines that follow the loop over the group.
    pub fn store_each(
        &mut self,
        at: Index,
        size: u32,
        store: impl FnOnce(&mut Self, Index) -> Result<Vec<String>, CodegenError>,
    ) -> Result<(), CodegenError> {
        if size == 1 {
            let after = store(self, at)?;
            self.lines(after);
            return Ok(());
        }
        let atom = self.set_group(size);
        let at = self.atoms.add(&at.scale(&Dim::constant(size.into())), &self.atoms.index(atom));
        let after = self.each_of_group(Group { atom, size }, |e| store(e, at))?;
        self.group = None;
        self.lines(after);
        Ok(())
    }

    /// The GLSL type of a buffer's group elements; `node` reads the buffer.
    pub fn group_type(&self, node: NodeId, buffer: usize) -> Result<Glsl, CodegenError> {
        let dtype = self.buffers[buffer].dtype;
        let what = self.body.node_text(node);
        Glsl::of(dtype, self.caps).ok_or(CodegenError::Dtype { what, dtype })
    }

    /// Emits the line that loads the group at `base` into the array `to`. Without groups it loads the single element.
    pub fn load_group(
        &mut self,
        node: NodeId,
        buffer: usize,
        base: &Index,
        to: &str,
    ) -> Result<(), CodegenError> {
        let at = self.index(base)?;
        let what = self.body.node_text(node);
        let Some(Group { size, .. }) = self.group else {
            let text = self.load(buffer, &at.text);
            self.line_at(at.depth, format!("{to} = {text};  // %{} = {what}", node.0));
            return Ok(());
        };
        self.buffers[buffer].group = size;
        let b = self.buffers[buffer].binding;
        self.line_at(at.depth, format!("load{size}_{b}({}, {to});  // %{} = {what}", at.text, node.0));
        Ok(())
    }

    /// Sets an element of output `index`'s group inside the loop over the group, and returns the line that stores the
    /// group after the loop. A group that is not contiguous is stored element by element; then there is no such line.
    pub fn store_grouped(
        &mut self,
        index: u32,
        buffer: usize,
        at: &[Index],
    ) -> Result<Option<String>, CodegenError> {
        let written = self.written(index, at)?;
        let dtype = self.buffers[buffer].dtype;
        let base = self.group.and_then(|g| Some((g, self.atoms.base(&written.to, g.atom, g.size.into())?)));
        // Elements of a group that each have their own row index are not adjacent.
        let apart = written.within.as_ref().is_some_and(|within| within.depth == self.depth());
        let Some((group, base)) = base.filter(|(g, _)| Buffer::groups(dtype, g.size) && !apart) else {
            self.store_written(&written, buffer, at)?;
            return Ok(None);
        };
        let e = self.value(written.root, at)?;
        let j = self.names.get(&group.atom).map(|e| e.text.clone()).unwrap_or_default();
        let what = self.body.node_text(written.root.node);
        let ty = Glsl::of(dtype, self.caps).ok_or(CodegenError::Dtype { what, dtype })?;
        let array = self.fresh_name("y");
        let outer = self.depth() - 1;
        let ty = self.uses_at(outer).ty(ty);
        self.line_at(outer, format!("{ty} {array}[{}];", group.size));
        self.line(format!("{array}[{j}] = {};", e.text));
        self.buffers[buffer].group = group.size;
        let at = self.index(&base)?;
        let b = self.buffers[buffer].binding;
        Ok(Some(written.guarded(&format!("store{}_{b}({}, {array});", group.size, at.text))))
    }

    /// The value that output `index` stores at coordinates `at` of its root (for a state update, of the update), and
    /// its position. If an index selects the row, emits the load of the index.
    pub fn written(&mut self, index: u32, at: &[Index]) -> Result<Written, CodegenError> {
        let body = self.body;
        let output = body.outputs()[index as usize].value;
        let root = output_root(body, index as usize);
        let (to, row) = written_at(body, output, root, at, &mut self.atoms);
        let (Some(row), Some((axis, indices))) = (row, index_rows(body, index as usize)) else {
            return Ok(Written { root, to, within: None });
        };
        let chosen = self.value(indices, &at[axis..=axis])?;
        let extent = self.dim(&body.ty(output).shape.dims()[axis]);
        let text = self.named(chosen.text, chosen.depth);
        let within = Expr { text: format!("{text} < {extent}"), depth: chosen.depth };
        self.names.insert(row, Expr { text, depth: chosen.depth });
        Ok(Written { root, to, within: Some(within) })
    }
}

/// The position at which element `at` of `root` is stored as `output`. If an index selects the row, also the atom that
/// stands for the row.
pub(crate) fn written_at(
    body: &Graph,
    output: Value,
    root: Value,
    at: &[Index],
    atoms: &mut Atoms,
) -> (Index, Option<AtomId>) {
    let Op::StateUpdate { offsets, rows } = &body.node(output.node).op else {
        return (atoms.flatten(at, &body.ty(root).shape), None);
    };
    let state = &body.ty(output).shape;
    let mut to: Vec<Index> = at.iter().zip(offsets).map(|(i, o)| i.offset(o)).collect();
    let row = rows.map(|axis| {
        let row = atoms.fresh(&state.dims()[axis], AtomDef::Data);
        to[axis] = atoms.index(row);
        row
    });
    (atoms.flatten(&to, state), row)
}
