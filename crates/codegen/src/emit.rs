//! Emitter: translates a body graph to lines of GLSL.
//!
//! [`Emitter::value`] returns an expression for one element of a value at given coordinates. Views change the
//! coordinates; every other op becomes one SSA line that names its node. A line goes to the outermost loop in which all
//! its operands are known, so loop-invariant code is hoisted by construction.

mod element;
mod group;

use std::collections::{HashMap, HashSet};

use tallow_ir::index::{AtomDef, AtomId, Atoms, Digit, Index};
use tallow_ir::{DType, DeviceCaps, Dim, Graph, NodeId, Shape, TensorType, Value};

use self::group::Written;
pub(crate) use self::group::{Group, written_at};
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::{Binding, Scratch, Source, Table};
use crate::library::{self as lib, Uses};
use crate::lines::block;
use crate::storage::{Buffer, Extensions, plain};

/// A GLSL expression (a name or literal) and the loop depth from which it is available.
#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub text: String,
    pub depth: usize,
}

/// What a read of a node's result means in this kernel, for a node that the kernel computes by other means.
#[derive(Clone, Debug)]
pub(crate) enum Anchor {
    /// A variable that holds the current element.
    Var(Expr),
    /// A shared-memory array over the tile of columns: element `[row + column - base]`. If `call`, a function that
    /// takes that position.
    Tile { array: String, row: String, base: String, depth: usize, call: bool },
    /// A variable with the current element, not yet rounded to its type.
    Result { text: String, depth: usize },
    /// An array with one element per row.
    Rows { array: String },
    /// A shared-memory array with one element per row and column group of the tile.
    Run(Box<Place>),
    /// An array with the results of several rows, and the variable of the loop over them.
    Group { array: String, row: AtomId },
}

/// Location of the results of a reduction over column groups.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub array: String,
    /// Extents: batches, rows and column groups.
    pub all: Shape,
    /// Column groups per tile.
    pub side_by_side: u32,
    /// Columns per column group.
    pub columns: u32,
    /// The loop depth from which the results are available.
    pub depth: usize,
}

#[derive(Default)]
struct Scope {
    lines: Vec<String>,
    /// What the lines use, and expressions of this depth that are not yet in a line.
    uses: Uses,
}

type Key = (Value, Vec<Index>);

pub(crate) struct Emitter<'a> {
    pub body: &'a Graph,
    pub caps: &'a DeviceCaps,
    pub table: &'a mut Table,
    pub atoms: Atoms,
    pub extensions: Extensions,
    pub buffers: Vec<Buffer>,
    pub bindings: Vec<Binding>,
    pub scratch: Vec<Scratch>,
    pub anchors: HashMap<NodeId, Anchor>,
    /// The current loop over adjacent elements that are loaded and stored together, if any.
    pub group: Option<Group>,
    scopes: Vec<Scope>,
    /// What the kernel uses outside the open scopes.
    uses: Uses,
    memo: HashMap<Key, Expr>,
    /// Loaded elements of states that the kernel updates, by operand and position. Each is loaded once: a second load could
    /// come after the store.
    loads: HashMap<(u32, Index), Expr>,
    names: HashMap<AtomId, Expr>,
    /// Atoms whose names have been read since they were bound.
    read: HashSet<AtomId>,
    /// Positions relative to the start of a pad or concat part, by index and start.
    positions: HashMap<(Index, Dim), Expr>,
    /// Register-cached row elements, shared by all loops of the kernel: arrays of groups or variables of elements, by
    /// buffer and position.
    pub cached: HashMap<(usize, Index), String>,
    /// Arrays of loaded groups, by buffer and position of the first element.
    arrays: HashMap<(usize, Index), Expr>,
    param_binding: HashMap<u32, usize>,
    table_binding: Option<usize>,
    /// The codebook buffer, if a weight refers to one.
    pub codebooks: Option<usize>,
    /// Extents already read from the table.
    dims: HashMap<Dim, String>,
    /// Divisors already read from the table.
    divisors: HashMap<Dim, String>,
    counter: u32,
}

impl<'a> Emitter<'a> {
    pub fn new(body: &'a Graph, caps: &'a DeviceCaps, table: &'a mut Table) -> Self {
        Emitter {
            body,
            caps,
            table,
            atoms: Atoms::default(),
            extensions: Extensions::new(),
            buffers: vec![],
            bindings: vec![],
            scratch: vec![],
            anchors: HashMap::new(),
            group: None,
            scopes: vec![Scope::default()],
            uses: Uses::default(),
            memo: HashMap::new(),
            loads: HashMap::new(),
            names: HashMap::new(),
            read: HashSet::new(),
            positions: HashMap::new(),
            cached: HashMap::new(),
            arrays: HashMap::new(),
            param_binding: HashMap::new(),
            table_binding: None,
            codebooks: None,
            dims: HashMap::new(),
            divisors: HashMap::new(),
            counter: 0,
        }
    }

    pub fn depth(&self) -> usize {
        self.scopes.len() - 1
    }

    /// Appends a line to the innermost scope.
    pub fn line(&mut self, text: impl Into<String>) {
        let depth = self.depth();
        self.line_at(depth, text);
    }

    /// Appends lines to the innermost scope.
    pub fn lines(&mut self, lines: impl IntoIterator<Item = String>) {
        lines.into_iter().for_each(|line| self.line(line));
    }

    fn line_at(&mut self, depth: usize, text: impl Into<String>) {
        self.scopes[depth].lines.push(text.into());
    }

    /// What the text of the innermost scope uses.
    pub fn uses(&mut self) -> &mut Uses {
        self.uses_at(self.depth())
    }

    /// What text of this depth uses.
    fn uses_at(&mut self, depth: usize) -> &mut Uses {
        match self.scopes.get_mut(depth) {
            Some(scope) => &mut scope.uses,
            None => &mut self.uses,
        }
    }

    /// Closes the innermost scope.
    fn close(&mut self) -> Scope {
        let depth = self.depth();
        self.memo.retain(|_, e| e.depth < depth);
        self.loads.retain(|_, e| e.depth < depth);
        self.names.retain(|_, e| e.depth < depth);
        self.positions.retain(|_, e| e.depth < depth);
        self.arrays.retain(|_, e| e.depth < depth);
        self.scopes.pop().unwrap_or_default()
    }

    /// Closes the outermost scope and returns its lines.
    pub fn prelude(&mut self) -> String {
        let Scope { lines, uses } = self.close();
        self.uses.extend(uses);
        lines.join("\n")
    }

    /// Runs `emit` in a scope of its own; lines emitted at its depth stay in it. Returns its result and the lines of the
    /// scope.
    pub fn scope<T>(
        &mut self,
        emit: impl FnOnce(&mut Self) -> Result<T, CodegenError>,
    ) -> Result<(T, Vec<String>), CodegenError> {
        self.scopes.push(Scope::default());
        let result = emit(self);
        let Scope { lines, uses } = self.close();
        self.uses().extend(uses);
        Ok((result?, lines))
    }

    /// Like [`Emitter::scope`], for `emit` without a result.
    pub fn scoped_lines(
        &mut self,
        emit: impl FnOnce(&mut Self) -> Result<(), CodegenError>,
    ) -> Result<Vec<String>, CodegenError> {
        self.scope(emit).map(|((), lines)| lines)
    }

    /// Runs `emit` for each alternative in a scope of its own, and appends the lines of the one with the least cost.
    /// `emit` returns the cost and a result. Returns that result; `None` if there is no alternative.
    pub fn cheapest<A, T>(
        &mut self,
        alternatives: impl IntoIterator<Item = A>,
        mut emit: impl FnMut(&mut Self, A) -> Result<(usize, T), CodegenError>,
    ) -> Result<Option<T>, CodegenError> {
        let mut all = vec![];
        for alternative in alternatives {
            self.scopes.push(Scope::default());
            let result = emit(self, alternative);
            let scope = self.close();
            all.push((result?, scope));
        }
        let Some(((_, result), Scope { lines, uses })) = all.into_iter().min_by_key(|((cost, _), _)| *cost)
        else {
            return Ok(None);
        };
        self.uses().extend(uses);
        self.lines(lines);
        Ok(Some(result))
    }

    /// Runs `emit` in a scope of its own and appends the scope's lines as a block with `head`.
    pub fn block<T>(
        &mut self,
        head: &str,
        emit: impl FnOnce(&mut Self) -> Result<T, CodegenError>,
    ) -> Result<T, CodegenError> {
        let (result, lines) = self.scope(emit)?;
        self.lines(block(head, lines));
        Ok(result)
    }

    /// Creates an iteration variable of the innermost scope.
    pub fn atom(&mut self, extent: &Dim, name: &str) -> Index {
        let id = self.atoms.fresh(extent, AtomDef::Free);
        self.bind_atom(id, name)
    }

    /// Creates the variable of the loop over groups of `size` elements.
    pub fn set_group(&mut self, size: u32) -> AtomId {
        let atom = self.atoms.fresh(&Dim::constant(size.into()), AtomDef::Free);
        self.group = Some(Group { atom, size });
        atom
    }

    /// Names an atom for the innermost scope.
    pub fn bind_atom(&mut self, id: AtomId, name: &str) -> Index {
        self.bind_atom_at(id, name, self.depth())
    }

    /// Names an atom for the scope at `depth`.
    pub fn bind_atom_at(&mut self, id: AtomId, name: &str, depth: usize) -> Index {
        self.names.insert(id, Expr { text: name.into(), depth });
        self.read.remove(&id);
        self.atoms.index(id)
    }

    /// Whether an index has read the name of an atom since it was bound.
    pub fn has_read(&self, id: AtomId) -> bool {
        self.read.contains(&id)
    }

    pub fn fresh_name(&mut self, prefix: &str) -> String {
        self.counter += 1;
        format!("{prefix}{}", self.counter)
    }

    /// An extent as a uint expression.
    pub fn dim(&mut self, dim: &Dim) -> String {
        if let Some(c) = dim.as_const() {
            return if c < 0 { format!("uint({c})") } else { format!("{c}u") };
        }
        if let Some(name) = self.dims.get(dim) {
            return name.clone();
        }
        let slot = self.table.slot(dim);
        let table = self.table_buffer();
        let binding = self.buffers[table].binding;
        let name = self.fresh_name("n");
        self.line_at(0, format!("const uint {name} = b{binding}[{slot}];  // {dim}"));
        self.dims.insert(dim.clone(), name.clone());
        name
    }

    fn table_buffer(&mut self) -> usize {
        if let Some(b) = self.table_binding {
            return b;
        }
        let b = self.bind(Source::Table, false, &TensorType::new(DType::U32, [0usize]));
        self.table_binding = Some(b);
        b
    }

    fn bind(&mut self, source: Source, written: bool, ty: &TensorType) -> usize {
        let dtype = plain(ty.dtype);
        let window_bytes = self.caps.window_bytes();
        let windows = self.caps.windows(ty.max_bytes());
        self.buffers.push(Buffer {
            binding: self.bindings.len() as u32,
            windows: windows as u32,
            window_bytes,
            dtype,
            written,
            elements: ty.shape.max_numel(),
            wide: false,
            pairs: false,
            packed: false,
            as_words: false,
            atomic: None,
            group: 0,
            single: false,
            eights: false,
            widens: false,
            aliased: false,
        });
        for window in 0..windows {
            let range = (window * window_bytes, (window + 1) * window_bytes);
            self.bindings.push(Binding { source, written, range });
        }
        self.buffers.len() - 1
    }

    /// The buffer of param `index`.
    pub fn param(&mut self, index: u32) -> usize {
        if let Some(b) = self.param_binding.get(&index) {
            return *b;
        }
        let ty = self.body.params()[index as usize].clone();
        let b = self.bind(Source::Operand(index), false, &ty);
        self.param_binding.insert(index, b);
        let refers = matches!(ty.dtype, DType::Block(format) if format.codebook().is_some());
        if refers && self.codebooks.is_none() {
            let words = tallow_quant::codebooks_bytes() / 4;
            let all = TensorType::new(DType::U32, [words]);
            self.codebooks = Some(self.bind(Source::Codebooks, false, &all));
        }
        b
    }

    /// The buffer of output `index`.
    pub fn result(&mut self, index: u32) -> usize {
        let value = self.body.outputs()[index as usize].value;
        let ty = self.body.ty(value).clone();
        self.bind(Source::Result(index), true, &ty)
    }

    /// Adds the binding of global memory through which workgroups combine partials. The template declares it. It
    /// follows all other bindings.
    pub fn scratch(&mut self, scratch: Scratch) -> usize {
        let source = Source::Scratch(self.scratch.len() as u32);
        self.scratch.push(scratch);
        self.bindings.push(Binding { source, written: true, range: (0, scratch.bytes) });
        self.bindings.len() - 1
    }

    /// An index as a uint expression.
    pub fn index(&mut self, index: &Index) -> Result<Expr, CodegenError> {
        let (mut parts, mut depth) = (vec![], 0);
        for (digit, coef) in &index.terms {
            let e = self.digit(digit)?;
            depth = depth.max(e.depth);
            parts.push(match coef.as_const() {
                Some(1) => e.text,
                Some(c) if c < 0 => format!("uint({c}) * {}", e.text),
                Some(c) => format!("{} * {c}u", e.text),
                None => format!("{} * {}", e.text, self.dim(coef)),
            });
        }
        if !index.constant.is(0) || parts.is_empty() {
            parts.push(self.dim(&index.constant));
        }
        Ok(Expr { text: parts.join(" + "), depth })
    }

    fn digit(&mut self, digit: &Digit) -> Result<Expr, CodegenError> {
        let atom = self.atom_name(digit.atom)?;
        let mut text = atom.text;
        if let Some(d) = symbolic(&digit.div) {
            let args = format!("{text}, {}", self.divisor(d));
            text = self.uses_at(atom.depth).call(lib::DIV_BY, args);
        } else if !digit.div.is(1) {
            text = format!("{text} / {}", self.dim(&digit.div));
        }
        match &digit.modulo {
            Some(m) if symbolic(m).is_some() => {
                let x = self.named(text, atom.depth);
                let args = format!("{x}, {}", self.divisor(m));
                let quotient = self.uses_at(atom.depth).call(lib::DIV_BY, args);
                text = format!("{x} - {quotient} * {}", self.dim(m));
            }
            Some(m) => text = format!("{text} % {}", self.dim(m)),
            None => {}
        }
        Ok(Expr { text: if text.contains(' ') { format!("({text})") } else { text }, depth: atom.depth })
    }

    /// The name of a variable that holds a uint expression; `text` itself if it is already a name.
    fn named(&mut self, text: String, depth: usize) -> String {
        if !text.contains(' ') && !text.contains('(') {
            return text;
        }
        let name = self.fresh_name("i");
        self.line_at(depth, format!("uint {name} = {text};"));
        name
    }

    /// The divisor argument of `div_by`, for an extent known only at run time. (Compilers themselves turn division by a
    /// literal into such a multiplication.)
    fn divisor(&mut self, dim: &Dim) -> String {
        if let Some(name) = self.divisors.get(dim) {
            return name.clone();
        }
        let at = self.table.divisor(dim);
        let table = self.table_buffer();
        let binding = self.buffers[table].binding;
        let name = self.fresh_name("d");
        let line =
            format!("const uvec2 {name} = uvec2(b{binding}[{at}], b{binding}[{}]);  // 1 / ({dim})", at + 1);
        self.line_at(0, line);
        self.divisors.insert(dim.clone(), name.clone());
        name
    }

    fn atom_name(&mut self, id: AtomId) -> Result<Expr, CodegenError> {
        if let Some(e) = self.names.get(&id) {
            self.read.insert(id);
            return Ok(e.clone());
        }
        let atom = self.atoms.get(id).clone();
        let extent = atom.extent;
        let (text, depth) = match atom.def {
            AtomDef::Equal(index) => {
                let e = self.index(&index)?;
                (e.text, e.depth)
            }
            // Unsigned subtraction wraps below the window, so one comparison checks both ends.
            AtomDef::Window { index, start } => {
                let at = self.position(&index, &start)?;
                let limit = self.dim(&extent);
                (format!("{0} < {limit} ? {0} : 0u", at.text), at.depth)
            }
            AtomDef::Free | AtomDef::Data => {
                return Err(CodegenError::Node("an index variable outside its loop".into()));
            }
        };
        let name = self.fresh_name("i");
        self.line_at(depth, format!("uint {name} = {text};"));
        let e = Expr { text: name, depth };
        self.names.insert(id, e.clone());
        Ok(e)
    }

    /// Element `at` of `value` as an expression.
    pub fn value(&mut self, value: Value, at: &[Index]) -> Result<Expr, CodegenError> {
        let key = (value, at.to_vec());
        if let Some(e) = self.memo.get(&key) {
            return Ok(e.clone());
        }
        let e = self.compute(value, at)?;
        self.memo.insert(key, e.clone());
        Ok(e)
    }

    /// Defines an SSA variable for a node, at the depth where its operands are available.
    fn define(&mut self, ty: Glsl, text: String, depth: usize, node: NodeId) -> Expr {
        let ty = self.uses_at(depth).ty(ty);
        let name = self.fresh_name("v");
        let comment = format!("%{} = {}", node.0, self.body.node_text(node));
        self.line_at(depth, format!("{ty} {name} = {text};  // {comment}"));
        Expr { text: name, depth }
    }

    /// Stores output `index` at element coordinates `at` of its root (for a state update, of the update). Stores
    /// nothing if an index selects a row past the end of the state.
    pub fn store(&mut self, index: u32, buffer: usize, at: &[Index]) -> Result<(), CodegenError> {
        let written = self.written(index, at)?;
        self.store_written(&written, buffer, at)
    }

    /// Like [`Emitter::store`], with the result of [`Emitter::written`].
    fn store_written(&mut self, written: &Written, buffer: usize, at: &[Index]) -> Result<(), CodegenError> {
        let e = self.value(written.root, at)?;
        let i = self.index(&written.to)?;
        let text = self.store_element(buffer, &i.text, &e.text);
        self.line(written.guarded(&text));
        Ok(())
    }

    /// The expression that loads element `i` of a buffer.
    pub fn load(&mut self, buffer: usize, i: &str) -> String {
        self.buffers[buffer].single = true;
        self.buffers[buffer].load(i, self.caps)
    }

    /// The statement that stores `value` to element `i` of a buffer, for the innermost scope.
    pub fn store_element(&mut self, buffer: usize, i: &str, value: &str) -> String {
        let (depth, caps) = (self.depth(), self.caps);
        let buffer = &mut self.buffers[buffer];
        buffer.single = true;
        buffer.store(i, value, caps, &mut self.scopes[depth].uses)
    }

    /// The declarations of all buffers, and the functions that access them.
    pub fn declarations(&mut self) -> (String, String) {
        self.mark_aliased();
        let mut declarations = String::new();
        let mut functions = String::new();
        for buffer in &self.buffers {
            declarations += &buffer.declare(self.caps, &mut self.extensions);
            functions += &buffer.functions(self.caps, &mut self.uses);
        }
        (declarations, functions)
    }

    /// Marks the buffers of states that the kernel both reads and updates.
    fn mark_aliased(&mut self) {
        for (output, result) in (0..).zip(self.body.outputs()) {
            let Some(param) = tallow_ir::verify::updated_operand(self.body, result.value) else { continue };
            let Some(read) = self.param_binding.get(&param).copied() else { continue };
            self.buffers[read].aliased = true;
            let bindings = &self.bindings;
            let is_result = |b: &&mut Buffer| bindings[b.binding as usize].source == Source::Result(output);
            self.buffers.iter_mut().filter(is_result).for_each(|buffer| buffer.aliased = true);
        }
    }

    /// What the kernel uses, after all scopes are closed.
    pub fn all_uses(&self) -> &Uses {
        &self.uses
    }
}

fn symbolic(dim: &Dim) -> Option<&Dim> {
    if dim.as_const().is_none() { Some(dim) } else { None }
}
