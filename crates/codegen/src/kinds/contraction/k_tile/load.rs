//! Loads of a K tile from memory to registers.

use tallow_ir::access::Inside;
use tallow_ir::index::{AtomDef, AtomId, Index};
use tallow_ir::matrix::{self, MatrixOperand};
use tallow_ir::{DType, Dim, Graph, Value};

use super::{At, Chunk, HALVES, KTile, Layout};
use crate::blocks::operand;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::lines::{block, unrolled};
use crate::storage::plain;

/// Groups of eight along K, if they come out even.
pub(super) fn groups(k: &Dim) -> Option<Dim> {
    k.div_exact(&Dim::constant(HALVES.into()))
}

/// The K index of an element of a group of eight, and the atom of its number in the group.
pub(super) fn element(e: &mut Emitter<'_>, group: &Index) -> (Index, AtomId) {
    let by = Dim::constant(HALVES.into());
    let j = e.atoms.fresh(&by, AtomDef::Free);
    let element = e.atoms.index(j);
    (e.atoms.add(&group.scale(&by), &element), j)
}

/// What an invocation loads of one chunk.
pub(super) struct Loaded {
    pub lines: Vec<String>,
    /// Lines per scalar load; 0 for vector loads.
    pub each: usize,
    pub raw: Option<Raw>,
}

/// What is converted to the type of the operands before the store, when the loads have completed: a conversion at the
/// load would wait for it in front of the products.
pub(super) enum Raw {
    /// Packed words of a block format: the binding of their buffer, their position there as an expression, and lines that
    /// compute it.
    Blocks { binding: u32, position: String, lines: Vec<String> },
    /// Eight f32, as two vectors.
    Floats,
    /// Eight elements, or zeros if the variable of [`inside`] is false.
    Padded,
}

/// The variable that says whether an item is not padding.
pub(super) fn inside(item: &str) -> String {
    format!("in_{item}")
}

/// Where an invocation loads a chunk of an operand: into `item`, from K position `k` and the row or column in
/// `variable`, which is defined at `depth`.
pub(super) struct Site<'a> {
    pub tile: &'a KTile<'a>,
    pub value: Value,
    pub chunk: Chunk,
    pub item: &'a str,
    pub variable: &'a str,
    pub depth: usize,
}

impl Site<'_> {
    /// The loop over the elements.
    fn each(&self) -> String {
        unrolled("j", self.chunk.length)
    }

    /// Emits the line that sets element `j` to the one at a row or column and a K position.
    fn element(&self, e: &mut Emitter<'_>, axis: Index, k: Index, at: At<'_>) -> Result<(), CodegenError> {
        let coordinates = at(e, axis, k);
        let x = e.value(self.value, &coordinates)?.text;
        e.line(match self.tile.layout {
            Layout::Vectors(_) => format!("{}[j] = {x};", self.item),
            Layout::Halves(_) => format!("w[j] = float({x});"),
        });
        Ok(())
    }

    /// Lines that load the elements of `item`: for words of eight, through an array of floats that is packed after them.
    fn packed(&self, body: &Graph, lines: Vec<String>) -> Vec<String> {
        match self.tile.layout {
            Layout::Vectors(_) => lines,
            Layout::Halves(operand) => {
                let declaration = vec![format!("float w[{HALVES}];")];
                let exact = operand == MatrixOperand::Bf16 && matrix::is_read(body, self.value, operand);
                let call = if exact { "joined" } else { "packed" };
                [declaration, lines, vec![format!("{} = {call}(w);", self.item)]].concat()
            }
        }
    }

    fn refused(&self, e: &Emitter<'_>) -> CodegenError {
        CodegenError::Node(e.body.node_text(self.value.node))
    }
}

/// Loads a chunk. Elements past the end of K are zero.
pub(super) fn load(e: &mut Emitter<'_>, site: &Site<'_>, at: At<'_>) -> Result<Loaded, CodegenError> {
    let mut loaded = match (site.chunk.vector, site.chunk.along_k) {
        (true, _) if site.chunk.apart => load_apart(e, site, at)?,
        (true, _) => load_vector(e, site, at)?,
        (false, true) => return load_along_k(e, site, at),
        (false, false) => load_across(e, site, at)?,
    };
    if !site.tile.is_multiple_of_k_tile() {
        let zeros = match (site.tile.layout, &loaded.raw) {
            (Layout::Vectors(ty), _) => format!("{} {}[j] = {};", site.each(), site.item, ty.int_literal(0)),
            (Layout::Halves(_), Some(Raw::Floats)) => format!("{0}[0] = {0}[1] = uvec4(0u);", site.item),
            (Layout::Halves(_), Some(Raw::Padded)) => format!("{} = false;", inside(site.item)),
            (Layout::Halves(_), Some(Raw::Blocks { .. }) | None) => format!("{} = uvec4(0u);", site.item),
        };
        let guarded = block(&format!("if (k < {})", e.dim(site.tile.k)), loaded.lines);
        loaded.lines = [vec![zeros], guarded].concat();
    }
    Ok(loaded)
}

/// Loads elements along K one at a time.
fn load_along_k(e: &mut Emitter<'_>, site: &Site<'_>, at: At<'_>) -> Result<Loaded, CodegenError> {
    let tile = site.tile;
    let axis = e.atoms.fresh(tile.axis.1, AtomDef::Free);
    let axis = e.bind_atom_at(axis, site.variable, site.depth);
    let mut lines = e.scoped_lines(|e| {
        let k = e.atom(tile.k, "at");
        site.element(e, axis, k, at)
    })?;
    if !tile.is_multiple_of_k_tile() {
        lines = block(&format!("if (at < {})", e.dim(tile.k)), lines);
        lines.insert(
            0,
            match tile.layout {
                Layout::Vectors(ty) => format!("{}[j] = {};", site.item, ty.int_literal(0)),
                Layout::Halves(_) => "w[j] = 0.0;".into(),
            },
        );
    }
    lines.insert(0, "const uint at = k + j;".into());
    Ok(Loaded { each: lines.len(), lines: site.packed(e.body, block(&site.each(), lines)), raw: None })
}

/// Loads elements along the M or N axis one at a time. They start at a multiple of the length.
fn load_across(e: &mut Emitter<'_>, site: &Site<'_>, at: At<'_>) -> Result<Loaded, CodegenError> {
    let (length, extent) = (site.chunk.length, site.tile.axis.1);
    let by = Dim::constant(length.into());
    let groups = extent.div_exact(&by).ok_or_else(|| site.refused(e))?;
    let (elements, lines) = e.scope(|e| {
        e.line(format!("const uint g = {} / {length}u;", site.variable));
        let k = e.atom(site.tile.k, "k");
        let g = e.atom(&groups, "g");
        e.scoped_lines(|e| {
            let j = e.atom(&by, "j");
            let axis = e.atoms.add(&g.scale(&by), &j);
            site.element(e, axis, k, at)
        })
    })?;
    let each = elements.len();
    Ok(Loaded {
        lines: site.packed(e.body, [lines, block(&site.each(), elements)].concat()),
        each,
        raw: None,
    })
}

/// Loads the chunk as a vector: as it is, as packed words that are unpacked before the store, or converted at once.
fn load_vector(e: &mut Emitter<'_>, site: &Site<'_>, at: At<'_>) -> Result<Loaded, CodegenError> {
    let (tile, item, length) = (site.tile, site.item, site.chunk.length);
    let (axis, k) = (e.atoms.fresh(tile.axis.1, AtomDef::Free), e.atoms.fresh(tile.k, AtomDef::Free));
    // Along the vector, the variable is only its start, so it must not be bound as a coordinate.
    let (axis_at, k_at) = match site.chunk.along_k {
        true => (e.bind_atom_at(axis, site.variable, site.depth), e.atoms.index(k)),
        false => (e.atoms.index(axis), e.bind_atom(k, "k")),
    };
    let coordinates = at(e, axis_at, k_at);
    let (along, first) = if site.chunk.along_k { (k, "k") } else { (axis, site.variable) };
    let found = operand::load_vector(e, site.value, &coordinates, along, length);
    let (buffer, base) = found.ok_or_else(|| site.refused(e))?;
    let (base, mut lines) = e.scope(|e| Ok(e.index(&base)?.text))?;
    let position = if base == "0u" { first.to_string() } else { format!("{base} + {first}") };
    let (b, mut raw) = (e.buffers[buffer].binding, None);
    lines.extend(match tile.layout {
        Layout::Vectors(_) if length == 4 => vec![
            format!("const vec4 p = uintBitsToFloat(wide{b}(({position}) >> 2));"),
            format!("{item} = float[4](p.x, p.y, p.z, p.w);"),
        ],
        Layout::Vectors(_) => vec![e.buffers[buffer].load_eight(&position, item)],
        Layout::Halves(MatrixOperand::F16)
            if tile.is_multiple_of_k_tile() && operand::dequantizes_to_f16(e, buffer) =>
        {
            let load = format!("{item} = raw{b}({position});");
            raw = Some(Raw::Blocks { binding: b, position, lines: lines.clone() });
            vec![load]
        }
        Layout::Halves(_) if plain(e.buffers[buffer].dtype) == DType::F32 => {
            raw = Some(Raw::Floats);
            let first = format!("({position}) >> 2");
            vec![format!("{item}[0] = wide{b}({first});"), format!("{item}[1] = wide{b}(({first}) + 1u);")]
        }
        Layout::Halves(operand) if e.buffers[buffer].dtype == operand.dtype() => {
            vec![format!("{item} = wide{b}(({position}) >> 3);")]
        }
        Layout::Halves(_) => site.packed(e.body, vec![e.buffers[buffer].load_eight(&position, "w")]),
    });
    Ok(Loaded { lines, each: 0, raw })
}

/// Loads a chunk that is a vector in memory, or padding. What is padding is loaded, too, from an element inside: branches
/// would keep loads from being in flight together.
fn load_apart(e: &mut Emitter<'_>, site: &Site<'_>, at: At<'_>) -> Result<Loaded, CodegenError> {
    let (tile, item) = (site.tile, site.item);
    let (Layout::Halves(operand), Some(groups)) = (tile.layout, groups(tile.k)) else {
        return Err(site.refused(e));
    };
    let axis = e.atoms.fresh(tile.axis.1, AtomDef::Free);
    let axis = e.bind_atom_at(axis, site.variable, site.depth);
    let (found, mut lines) = e.scope(|e| {
        e.line(format!("const uint g = k / {HALVES}u;"));
        let group = e.atom(&groups, "g");
        let (k, j) = element(e, &group);
        let coordinates = at(e, axis, k);
        let found = operand::wide_or_padding(e, site.value, (&coordinates, j), operand.dtype());
        let Some((buffer, run)) = found else { return Err(site.refused(e)) };
        let base = e.index(&run.base)?.text;
        let test = |i: &Inside| e.within(&i.index, &i.start, &i.len).map(|test| test.text);
        let tests: Vec<String> = run.inside.iter().map(test).collect::<Result<_, _>>()?;
        Ok((e.buffers[buffer].binding, base, tests.join(" && ")))
    })?;
    let (b, base, tests) = found;
    lines.push(format!("{item} = wide{b}(({base}) >> 3);"));
    let raw = (!tests.is_empty()).then(|| {
        lines.push(format!("{} = {tests};", inside(item)));
        Raw::Padded
    });
    Ok(Loaded { lines, each: 0, raw })
}
