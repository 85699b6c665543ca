//! K tiles of a matmul's operands: loads from memory to registers, and stores from registers to shared memory.

use tallow_ir::access::neighbours;
use tallow_ir::index::{AtomDef, Index};
use tallow_ir::matrix::{self, MatrixOperand};
use tallow_ir::{DType, Dim, Graph, Value};

use super::operands::is_multiple;
use crate::blocks::operand;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::lines::{block, unrolled};
use crate::storage::plain;

/// The element type of K tiles in shared memory, and the layout there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Vectors of four rows (or columns) of one K position: `[k][row / 4]`.
    Vectors(Glsl),
    /// Words of eight f16 or bf16 elements: `[row][k / 8]`, or `[k][column / 8]` if the operand is contiguous along its
    /// columns. Rows are padded by one word, so that eight adjacent rows are in different banks.
    Halves(MatrixOperand),
}

impl Layout {
    fn is_halves(self) -> bool {
        match self {
            Layout::Vectors(_) => false,
            Layout::Halves(_) => true,
        }
    }
}

/// Elements of a word of [`Layout::Halves`].
pub(crate) const HALVES: u32 = operand::WIDE as u32;

/// Elements per chunk of scalar loads along the M or N axis: one vector in shared memory.
const RUN: u32 = 4;

/// The K tile of one operand.
pub(crate) struct KTile<'a> {
    /// The name of the array that holds an invocation's elements.
    pub name: String,
    /// The node that the load belongs to, if it is specific to one node.
    pub comment: Option<String>,
    /// The M axis of the left operand or the N axis of the right: variable, extent, and the variable of the tile's
    /// start.
    pub axis: (&'a str, &'a Dim, &'a str),
    /// Rows or columns of the tile; a power of two.
    pub size: u32,
    pub layout: Layout,
    /// Offset of the K tile in shared memory, and for [`Layout::Vectors`] the stride from one K position to the next, in
    /// vectors.
    pub at: u32,
    pub stride: u32,
    /// The reduced extent.
    pub k: &'a Dim,
    /// K positions in the K tile; a power of two.
    pub bk: u32,
    /// Invocations that load the K tile.
    pub workgroup: u32,
    /// K tiles that wait in registers, by the variable `s` if there are several.
    pub depth: u32,
}

/// GLSL code of a K tile.
pub(crate) struct Text {
    /// Declares the registers.
    pub registers: String,
    /// Loads the K tile that starts at `next` into the registers.
    pub load: Vec<String>,
    /// Stores the registers to shared memory, for the K tile that starts at `k0`.
    pub store: Vec<String>,
    /// Whether the K tile is `[k][column]` in shared memory instead of `[row][k]`.
    pub by_columns: bool,
}

/// Operand coordinates of an element, from its row or column index and its K index.
pub(crate) type At<'a> = &'a mut dyn FnMut(&mut Emitter<'_>, Index, Index) -> Vec<Index>;

/// The elements that an invocation loads at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Chunk {
    length: u32,
    /// Whether it lies along K, not along the M or N axis.
    along_k: bool,
    /// Whether it is loaded as a vector, not element by element.
    vector: bool,
    /// Whether adjacent invocations load adjacent chunks of a row, since they are contiguous in memory.
    adjacent: bool,
}

/// The position of an invocation's chunks in the K tile.
struct Place {
    /// First row or column, and first K position, as expressions.
    row: String,
    k: String,
    /// The number of the chunk along its axis.
    number: String,
    /// Chunks per invocation, and the guard if not every invocation has that many.
    passes: u32,
    guard: Option<String>,
}

impl KTile<'_> {
    fn is_multiple_of_k_tile(&self) -> bool {
        is_multiple(self.k, self.bk)
    }

    /// Where the chunks of an invocation are. Adjacent invocations read contiguous memory.
    fn place(&self, chunk: Chunk) -> Place {
        let Chunk { length, along_k, adjacent, .. } = chunk;
        let count = self.size * self.bk / length;
        let passes = count.div_ceil(self.workgroup);
        let u = if passes == 1 { "lane" } else { "u" };
        let per_row = self.bk / length;
        let per_column = self.size / length;
        // The chunk's row, column or K position, and its number along the other axis. Words of eight are spelled without `u`:
        // compilers do not see that a multiple of the workgroup drops out of its remainder.
        let per_pass = |chunks: u32| self.workgroup / chunks;
        let (line, number) = match (along_k, self.layout) {
            (false, Layout::Halves(_)) => (
                format!("t * {}u + lane / {per_column}u", per_pass(per_column)),
                remainder("lane", per_column),
            ),
            (false, Layout::Vectors(_)) => (format!("{u} / {per_column}u"), remainder(u, per_column)),
            // The invocations of `quad` load one row. Rows that are stored at a time are four apart, in different banks.
            (true, Layout::Halves(_)) => (format!("t * {}u + quad", per_pass(per_row)), "part".into()),
            (true, Layout::Vectors(_)) if adjacent => (format!("{u} / {per_row}u"), remainder(u, per_row)),
            (true, Layout::Vectors(_)) => (format!("{u} % {}u", self.size), format!("{u} / {}u", self.size)),
        };
        let first =
            if length == 1 || number == "0u" { number.clone() } else { format!("{number} * {length}u") };
        let (row, k) = if along_k { (line, first) } else { (first, line) };
        let guard = (!count.is_multiple_of(self.workgroup)).then(|| format!("if ({u} < {count}u)"));
        Place { row, k, number, passes, guard }
    }

    /// Candidate chunks, the preferred first. All that follow a chunk of scalar loads are alternatives to it.
    fn chunks(&self, e: &mut Emitter<'_>, value: Value, at: At<'_>) -> Vec<Chunk> {
        let (axis, k) = (e.atoms.fresh(self.axis.1, AtomDef::Free), e.atoms.fresh(self.k, AtomDef::Free));
        let coordinates = {
            let (axis, k) = (e.atoms.index(axis), e.atoms.index(k));
            at(e, axis, k)
        };
        // The left operand of a matrix instruction is read by rows.
        let by_columns = !self.layout.is_halves() || self.axis.0 == "n";
        for (id, along_k, extent) in [(k, true, self.k), (axis, false, self.axis.1)] {
            let length = match self.layout {
                Layout::Vectors(_) => operand::vector(e, value, &coordinates, id),
                Layout::Halves(_) => operand::wide(e, value, &coordinates, id).map(|_| HALVES),
            };
            let found =
                length.filter(|n| is_multiple(extent, *n) && (along_k || (by_columns && *n <= self.size)));
            if let Some(length) = found {
                return vec![Chunk { length, along_k, vector: true, adjacent: true }];
            }
        }
        let run = match self.layout {
            Layout::Vectors(_) => (self.bk * self.size / self.workgroup).clamp(1, self.bk),
            Layout::Halves(_) => HALVES,
        };
        let adjacent =
            self.layout.is_halves() || neighbours(e.body, value, &coordinates, k, 1, &mut e.atoms).is_some();
        let along_k = Chunk { length: run, along_k: true, vector: false, adjacent };
        let length = if self.layout.is_halves() { HALVES } else { RUN };
        let across = Chunk { length, along_k: false, vector: false, adjacent };
        let able = by_columns
            && is_multiple(self.axis.1, length)
            && !self.axis.1.is(0)
            && self.size >= length
            && (self.layout.is_halves() || !adjacent);
        if able { vec![along_k, across] } else { vec![along_k] }
    }
}

/// Generates the code for one operand. What does not depend on K is hoisted into the scope that is open.
pub(crate) fn text(
    e: &mut Emitter<'_>,
    value: Value,
    tile: &KTile<'_>,
    at: At<'_>,
) -> Result<Text, CodegenError> {
    // The conversion to the type of the operands already does this rounding.
    let value = match tile.layout {
        Layout::Halves(operand) => matrix::rounded(e.body, value, operand).unwrap_or(value),
        Layout::Vectors(_) => value,
    };
    let chunks = tile.chunks(e, value, at);
    // Scalar loads along the axis that needs fewer lines per element.
    let text = e.cheapest(chunks, |e, chunk| text_of(e, value, tile, chunk, at))?;
    text.ok_or_else(|| CodegenError::Node(e.body.node_text(value.node)))
}

/// The number of lines per scalar load for chunks of this kind, and the code.
fn text_of(
    e: &mut Emitter<'_>,
    value: Value,
    tile: &KTile<'_>,
    chunk: Chunk,
    at: At<'_>,
) -> Result<(usize, Text), CodegenError> {
    let KTile { name, axis: (axis, extent, base), .. } = tile;
    let place = tile.place(chunk);
    let Place { row, k, passes, guard, .. } = &place;
    let indexed = *passes > 1 || tile.layout.is_halves();
    let (slot, slots) =
        if tile.depth > 1 { ("[s]", format!("[{}]", tile.depth)) } else { ("", String::new()) };
    let item = format!("{name}{slot}{}", if indexed { "[t]" } else { "" });
    // Past the end, reload the last rows or columns; their results are not stored.
    let last = if chunk.along_k { 1 } else { chunk.length };
    let (variable, end) = (format!("{axis}_{name}"), e.dim(extent));
    let position = |start: &str| format!("const uint {variable} = min({start} + {row}, {end} - {last}u)");
    if !indexed {
        e.line(format!("{};", position(base)));
    }
    let outer = e.depth();
    let ((each, raw), lines) = e.scope(|e| {
        let position = if indexed { position(base) + ", " } else { "const uint ".into() };
        e.line(format!("{position}k = next + {k};"));
        let depth = if indexed { e.depth() } else { outer };
        let site = Site { tile, value, chunk, item: &item, variable: &variable, depth };
        let Loaded { lines, each, raw } = load(e, &site, at)?;
        e.lines(lines);
        Ok((each, raw))
    })?;
    let each_chunk = |lines: Vec<String>| {
        let mut lines = match guard {
            Some(guard) => block(guard, lines),
            None => lines,
        };
        if *passes > 1 && !tile.layout.is_halves() {
            lines.insert(0, format!("const uint u = t * {}u + lane;", tile.workgroup));
        }
        match indexed {
            true => block(&unrolled("t", *passes), lines),
            false if guard.is_some() => lines,
            false => block("", lines),
        }
    };
    let (ty, length) = match (tile.layout, &raw) {
        (Layout::Vectors(ty), _) => (e.uses().ty(ty).to_string(), format!("[{}]", chunk.length)),
        (Layout::Halves(_), Some(Raw::Blocks { binding, .. })) => (format!("Raw{binding}"), String::new()),
        (Layout::Halves(_), Some(Raw::Floats)) => ("uvec4".into(), "[2]".into()),
        (Layout::Halves(_), None) => ("uvec4".into(), String::new()),
    };
    let count = if indexed { format!("[{passes}]") } else { String::new() };
    let start = if *axis == "n" { "column0" } else { "row0" };
    let store = match raw {
        None => store(tile, chunk, &place, &item, &item),
        Some(Raw::Blocks { binding, position: at, lines }) => {
            let word = format!("halves{binding}({item}, {at})");
            let position = vec![format!("{}, k = k0 + {k};", position(start))];
            [position, lines, store(tile, chunk, &place, &item, &word)].concat()
        }
        Some(Raw::Floats) => {
            let first = format!("{} w[i] = uintBitsToFloat({item}[0][i]);", unrolled("i", 4));
            let last = format!("{} w[i + 4u] = uintBitsToFloat({item}[1][i]);", unrolled("i", 4));
            let widened = vec![format!("float w[{HALVES}];"), first, last];
            [widened, store(tile, chunk, &place, &item, "packed(w)")].concat()
        }
    };
    let text = Text {
        registers: format!("{ty} {name}{slots}{count}{length};"),
        load: tile.comment.iter().cloned().chain(each_chunk(lines)).collect(),
        store: each_chunk(store),
        by_columns: !chunk.along_k,
    };
    Ok((each, text))
}

/// What an invocation loads of one chunk.
struct Loaded {
    lines: Vec<String>,
    /// Lines per scalar load; 0 for vector loads.
    each: usize,
    raw: Option<Raw>,
}

/// What is converted to the type of the operands before the store, when the loads have completed: a conversion at the
/// load would wait for it in front of the products.
enum Raw {
    /// Packed words of a block format: the binding of their buffer, their position there as an expression, and lines that
    /// compute it.
    Blocks { binding: u32, position: String, lines: Vec<String> },
    /// Eight f32, as two vectors.
    Floats,
}

/// Where an invocation loads a chunk of an operand: into `item`, from K position `k` and the row or column in
/// `variable`, which is defined at `depth`.
struct Site<'a> {
    tile: &'a KTile<'a>,
    value: Value,
    chunk: Chunk,
    item: &'a str,
    variable: &'a str,
    depth: usize,
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
fn load(e: &mut Emitter<'_>, site: &Site<'_>, at: At<'_>) -> Result<Loaded, CodegenError> {
    let mut loaded = match (site.chunk.vector, site.chunk.along_k) {
        (true, _) => load_vector(e, site, at)?,
        (false, true) => return load_along_k(e, site, at),
        (false, false) => load_across(e, site, at)?,
    };
    if !site.tile.is_multiple_of_k_tile() {
        let zeros = match (site.tile.layout, &loaded.raw) {
            (Layout::Vectors(ty), _) => format!("{} {}[j] = {};", site.each(), site.item, ty.int_literal(0)),
            (Layout::Halves(_), Some(Raw::Floats)) => format!("{0}[0] = {0}[1] = uvec4(0u);", site.item),
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

/// Lines that store a chunk to shared memory: the elements of `item` as vectors of four, or a `word` of eight.
fn store(tile: &KTile<'_>, chunk: Chunk, place: &Place, item: &str, word: &str) -> Vec<String> {
    let (axis, stride, length) = (tile.axis.0, tile.stride, chunk.length);
    let Place { row, k, number, .. } = place;
    let first = if tile.at == 0 { String::new() } else { format!("{}u + ", tile.at) };
    let Layout::Vectors(ty) = tile.layout else {
        let (line, elements) = if chunk.along_k { (row, tile.bk) } else { (k, tile.size) };
        return vec![format!("slices[{first}({line}) * {}u + {number}] = {word};", halves_stride(elements))];
    };
    let mut lines = vec![format!("const uint {axis} = {row}, k = {k};")];
    if chunk.along_k {
        let place = format!("slices[{first}(k + j) * {stride}u + {axis} / 4u][{axis} % 4u]");
        lines.push(format!("{} {place} = {item}[j];", unrolled("j", length)));
        return lines;
    }
    lines.extend((0..length).step_by(4).map(|i| {
        let of: Vec<String> = (i..i + 4).map(|i| format!("{item}[{i}]")).collect();
        let next = if i == 0 { String::new() } else { format!(" + {}u", i / 4) };
        let vector = ty.vector();
        format!("slices[{first}k * {stride}u + {axis} / 4u{next}] = {vector}({});", of.join(", "))
    }));
    lines
}

/// Words from one row of a [`Layout::Halves`] K tile to the next, for rows of this many elements.
pub(crate) fn halves_stride(elements: u32) -> u32 {
    elements / HALVES + 1
}

/// The expression `u % by`, simplified.
fn remainder(u: &str, by: u32) -> String {
    if by == 1 { "0u".into() } else { format!("{u} % {by}u") }
}
