//! K tiles of a matmul's operands: loads from memory to registers, and stores from registers to shared memory.

mod load;

use tallow_ir::access::neighbours;
use tallow_ir::index::{AtomDef, Index};
use tallow_ir::matrix::{self, MatrixOperand};
use tallow_ir::{Dim, Value};

use self::load::{Loaded, Raw, Site, element, groups, inside, load};
use super::operands::is_multiple;
use crate::blocks::operand;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::lines::{block, unrolled};

/// The element type of K tiles in shared memory, and the layout there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Vectors of four rows (or columns) of one K position: `[k][row / 4]`.
    Vectors(Glsl),
    /// Words of eight f16 or bf16 elements: `[row][k / 8]`, or `[k][row / 8]` if the operand is contiguous along its other
    /// axis. Rows are padded by one word, so that eight adjacent rows are in different banks.
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
    /// Rows or columns of the tile.
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
    /// Whether the K tile is `[k][row or column]` in shared memory instead of `[row or column][k]`.
    pub across: bool,
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
    /// Whether only the elements of one chunk are adjacent, as channels are in a convolution's windows: the position of a
    /// chunk depends on its number in ways other than a stride of one element.
    apart: bool,
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
        let all = format!("(t * {}u + lane)", self.workgroup);
        let (line, number) = match (along_k, self.layout) {
            (false, Layout::Halves(_)) if !self.workgroup.is_multiple_of(per_column) => {
                (format!("{all} / {per_column}u"), remainder(&all, per_column))
            }
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

    /// Whether each chunk along K is a vector in memory, wherever the next one is.
    fn has_vectors_apart(&self, e: &mut Emitter<'_>, value: Value, at: At<'_>) -> bool {
        let (Layout::Halves(operand), Some(groups)) = (self.layout, groups(self.k)) else { return false };
        let (axis, group) = (e.atoms.free(self.axis.1), e.atoms.free(&groups));
        let (k, j) = element(e, &group);
        let coordinates = at(e, axis, k);
        operand::wide_or_padding(e, value, (&coordinates, j), operand.dtype()).is_some()
    }

    /// Whether the K tile may be `[k][row or column]`. Words of eight have room for `[row or column][k]`, where each line is
    /// padded by one word, so there may be no more lines: `bk (size / 8 + 1) <= size (bk / 8 + 1)` if `bk <= size`.
    fn may_be_across(&self) -> bool {
        !self.layout.is_halves() || self.bk <= self.size
    }

    /// Candidate chunks, the preferred first. All that follow a chunk of scalar loads are alternatives to it.
    fn chunks(&self, e: &mut Emitter<'_>, value: Value, at: At<'_>) -> Vec<Chunk> {
        let (axis, k) = (e.atoms.fresh(self.axis.1, AtomDef::Free), e.atoms.fresh(self.k, AtomDef::Free));
        let coordinates = {
            let (axis, k) = (e.atoms.index(axis), e.atoms.index(k));
            at(e, axis, k)
        };
        let may_be_across = self.may_be_across();
        for (id, along_k, extent) in [(k, true, self.k), (axis, false, self.axis.1)] {
            let length = match self.layout {
                Layout::Vectors(_) => operand::vector(e, value, &coordinates, id),
                Layout::Halves(_) => operand::wide(e, value, &coordinates, id).map(|_| HALVES),
            };
            let found =
                length.filter(|n| is_multiple(extent, *n) && (along_k || (may_be_across && *n <= self.size)));
            if let Some(length) = found {
                return vec![Chunk { length, along_k, vector: true, apart: false, adjacent: true }];
            }
        }
        if self.has_vectors_apart(e, value, at) {
            return vec![Chunk { length: HALVES, along_k: true, vector: true, apart: true, adjacent: true }];
        }
        let run = match self.layout {
            Layout::Vectors(_) => (self.bk * self.size / self.workgroup).clamp(1, self.bk),
            Layout::Halves(_) => HALVES,
        };
        let adjacent =
            self.layout.is_halves() || neighbours(e.body, value, &coordinates, k, 1, &mut e.atoms).is_some();
        let along_k = Chunk { length: run, along_k: true, vector: false, apart: false, adjacent };
        let length = if self.layout.is_halves() { HALVES } else { RUN };
        let across = Chunk { length, along_k: false, vector: false, apart: false, adjacent };
        // Single elements of the left operand of a matrix instruction are read by rows.
        let able = (!self.layout.is_halves() || self.axis.0 == "n")
            && may_be_across
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
        (Layout::Halves(_), Some(Raw::Padded) | None) => ("uvec4".into(), String::new()),
    };
    let count = if indexed { format!("[{passes}]") } else { String::new() };
    let mut registers = format!("{ty} {name}{slots}{count}{length};");
    if matches!(raw, Some(Raw::Padded)) {
        registers += &format!(" bool {}{slots}{count};", inside(name));
    }
    let start = if *axis == "n" { "column0" } else { "row0" };
    let store = stored(tile, (chunk, &place), &item, (raw, position(start)));
    let text = Text {
        registers,
        load: tile.comment.iter().cloned().chain(each_chunk(lines)).collect(),
        store: each_chunk(store),
        across: !chunk.along_k,
    };
    Ok((each, text))
}

/// Lines that convert an item, if that is left to do, and store it. `position` defines the item's row or column.
fn stored(
    tile: &KTile<'_>,
    (chunk, place): (Chunk, &Place),
    item: &str,
    (raw, position): (Option<Raw>, String),
) -> Vec<String> {
    let store = |word: &str| store(tile, chunk, place, item, word);
    match raw {
        None => store(item),
        Some(Raw::Blocks { binding, position: at, lines }) => {
            let position = vec![format!("{position}, k = k0 + {};", place.k)];
            [position, lines, store(&format!("halves{binding}({item}, {at})"))].concat()
        }
        Some(Raw::Padded) => store(&format!("{} ? {item} : uvec4(0u)", inside(item))),
        Some(Raw::Floats) => {
            let first = format!("{} w[i] = uintBitsToFloat({item}[0][i]);", unrolled("i", 4));
            let last = format!("{} w[i + 4u] = uintBitsToFloat({item}[1][i]);", unrolled("i", 4));
            [vec![format!("float w[{HALVES}];"), first, last], store("packed(w)")].concat()
        }
    }
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
