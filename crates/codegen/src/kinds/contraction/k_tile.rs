//! K tiles of a matmul's operands: loads from memory to registers, and stores to shared memory as vectors of four rows
//! or columns.

use tallow_ir::access::neighbours;
use tallow_ir::index::{AtomDef, Index};
use tallow_ir::{Dim, Value};

use crate::assemble::block;
use crate::blocks::operand;
use crate::emit::Emitter;
use crate::kernel::CodegenError;
use crate::scalar::Glsl;

/// The K tile of one operand.
pub(crate) struct KTile<'a> {
    /// The name of the array that holds an invocation's elements.
    pub name: String,
    /// The node that the load belongs to, if it is specific to one node.
    pub comment: Option<String>,
    /// The M axis of the left operand or the N axis of the right: variable, extent, and the variable of the tile's
    /// start.
    pub own: (&'a str, &'a Dim, &'a str),
    /// Rows or columns of the tile; a power of two.
    pub size: u32,
    /// Offset of the K tile in shared memory, in vectors.
    pub at: u32,
    /// Stride in shared memory from one K position to the next, in vectors.
    pub stride: u32,
    /// The reduced extent.
    pub k: &'a Dim,
    /// K positions in the K tile; a power of two.
    pub bk: u32,
    /// Invocations that load the K tile.
    pub workgroup: u32,
    /// Element type.
    pub ty: Glsl,
}

/// Elements per chunk of scalar loads along the M or N axis: one vector in shared memory.
const RUN: u32 = 4;

/// GLSL code of a K tile.
pub(crate) struct Text {
    /// Declares the register array.
    pub array: String,
    /// Loads the K tile at `k0` into the array.
    pub load: String,
    /// Stores the array to shared memory.
    pub put: String,
}

/// Operand coordinates of an element, from its row or column index and its K index.
type At<'a> = &'a mut dyn FnMut(&mut Emitter<'_>, Index, Index) -> Vec<Index>;

/// A chunk of elements that an invocation loads, with its length.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// Vector load along K; the elements are contiguous in memory.
    Inner(u32),
    /// Vector load along the M or N axis; the elements are contiguous in memory.
    Own(u32),
    /// Scalar loads along K. The flag says whether the elements are contiguous in memory.
    Single(u32, bool),
    /// Scalar loads along the M or N axis, starting at a multiple of the length.
    OwnEach(u32),
}

impl Piece {
    fn length(self) -> u32 {
        match self {
            Piece::Inner(length) | Piece::Own(length) | Piece::Single(length, _) | Piece::OwnEach(length) => {
                length
            }
        }
    }
}

/// Generates the code for one operand. What does not depend on K is hoisted into the scope that is open.
pub(crate) fn text(
    e: &mut Emitter<'_>,
    value: Value,
    slice: &KTile<'_>,
    at: At<'_>,
) -> Result<Text, CodegenError> {
    match find(e, value, slice, at) {
        // Scalar loads along the axis that needs fewer lines per element.
        piece @ Piece::Single(_, false) if divides(slice.own.1, RUN) && slice.size >= RUN => {
            let mut all = vec![];
            for piece in [piece, Piece::OwnEach(RUN)] {
                e.open();
                let (text, each) = text_of(e, value, slice, piece, at)?;
                all.push((each, e.close_alternative(), text));
            }
            let least = all.into_iter().min_by_key(|(each, ..)| *each);
            let (_, (lines, uses), text) =
                least.ok_or_else(|| CodegenError::Node(e.body.node_text(value.node)))?;
            lines.into_iter().for_each(|line| e.line(line));
            e.uses().extend(uses);
            Ok(text)
        }
        piece => text_of(e, value, slice, piece, at).map(|(text, _)| text),
    }
}

/// The code for chunks of this kind, and the number of lines per scalar load.
fn text_of(
    e: &mut Emitter<'_>,
    value: Value,
    slice: &KTile<'_>,
    piece: Piece,
    at: At<'_>,
) -> Result<(Text, usize), CodegenError> {
    let KTile { name, size, bk, workgroup, own: (own, extent, base), .. } = slice;
    let length = piece.length();
    let count = size * bk / length;
    let passes = count.div_ceil(*workgroup);
    let (u, array) = match passes {
        1 => ("lane", name.clone()),
        _ => ("u", format!("{name}[t]")),
    };
    // Coalesce: neighbouring invocations read contiguous memory.
    let (mine, inner) = match piece {
        Piece::Own(_) | Piece::OwnEach(_) => {
            (scaled(u, "%", size / length, length), format!("{u} / {}u", size / length))
        }
        Piece::Inner(_) | Piece::Single(_, true) => {
            (format!("{u} / {}u", bk / length), scaled(u, "%", bk / length, length))
        }
        Piece::Single(_, false) => (format!("{u} % {size}u"), scaled(u, "/", *size, length)),
    };
    // Past the end, reload the last rows or columns; their results are not stored.
    let last = if matches!(piece, Piece::Own(_) | Piece::OwnEach(_)) { length } else { 1 };
    let variable = format!("{own}_{name}");
    let position = format!("const uint {variable} = min({base} + {mine}, {} - {last}u);", e.dim(extent));
    if passes == 1 {
        e.line(position.clone());
    }
    let outer = e.depth();
    e.open(); // one chunk
    if passes > 1 {
        e.line(position);
    }
    e.line(format!("const uint k = k0 + {inner};"));
    let depth = if passes == 1 { outer } else { e.depth() };
    let each = load(e, value, slice, (piece, &array), (&variable, depth), at)?;
    let lines = e.close();
    let head = match passes {
        1 => String::new(),
        _ => format!("[[unroll]] for (uint t = 0u; t < {passes}u; ++t)"),
    };
    let guard = (!count.is_multiple_of(*workgroup)).then(|| format!("if ({u} < {count}u)"));
    let of_piece = |lines: Vec<String>| {
        let mut lines = match &guard {
            Some(guard) => block(guard, lines),
            None => lines,
        };
        if passes > 1 {
            lines.insert(0, format!("const uint u = t * {workgroup}u + lane;"));
        }
        if passes == 1 && guard.is_some() { lines } else { block(&head, lines) }
    };
    let mut load = of_piece(lines);
    if let Some(comment) = &slice.comment {
        load.insert(0, comment.clone());
    }
    let put = of_piece(store(slice, piece, &array, (&mine, &inner)));
    let dims = if passes == 1 { format!("[{length}]") } else { format!("[{passes}][{length}]") };
    let array = format!("{} {name}{dims};", e.uses().ty(slice.ty));
    Ok((Text { array, load: load.join("\n"), put: put.join("\n") }, each))
}

fn divides(dim: &Dim, by: u32) -> bool {
    dim.as_const().is_some_and(|d| d % i64::from(by) == 0)
}

/// Selects how an operand is loaded: by vector loads if its elements are contiguous in memory.
fn find(e: &mut Emitter<'_>, value: Value, slice: &KTile<'_>, at: At<'_>) -> Piece {
    let (own, inner) = (e.atoms.fresh(slice.own.1, AtomDef::Free), e.atoms.fresh(slice.k, AtomDef::Free));
    let coordinates = {
        let (own, inner) = (e.atoms.index(own), e.atoms.index(inner));
        at(e, own, inner)
    };
    if let Some(length) = operand::vector(e, value, &coordinates, inner)
        && divides(slice.k, length)
    {
        return Piece::Inner(length);
    }
    if let Some(length) = operand::vector(e, value, &coordinates, own)
        && divides(slice.own.1, length)
        && length <= slice.size
    {
        return Piece::Own(length);
    }
    let run = (slice.bk * slice.size / slice.workgroup).clamp(1, slice.bk);
    Piece::Single(run, neighbours(e.body, value, &coordinates, inner, 1, &mut e.atoms).is_some())
}

/// Emits the lines that fill `array` with a chunk that starts at K position `k`, for the row or column in `variable`,
/// which is defined at `depth`. Returns the number of lines per scalar load; 0 for vector loads.
fn load(
    e: &mut Emitter<'_>,
    value: Value,
    slice: &KTile<'_>,
    (piece, array): (Piece, &str),
    (variable, depth): (&str, usize),
    at: At<'_>,
) -> Result<usize, CodegenError> {
    let whole = slice.k.as_const().is_some_and(|k| k % i64::from(slice.bk) == 0);
    let (k_end, zero) = (e.dim(slice.k), slice.ty.int_literal(0));
    let along_own = matches!(piece, Piece::Own(_) | Piece::OwnEach(_));
    let mut count = 0;
    let own = e.atoms.fresh(slice.own.1, AtomDef::Free);
    // Along M or N, `variable` is only the start of the vector, so it must not be bound as a coordinate.
    let own_at = if along_own { e.atoms.index(own) } else { e.bind_atom_at(own, variable, depth) };
    match piece {
        Piece::Inner(length) | Piece::Own(length) => {
            let inner = e.atoms.fresh(slice.k, AtomDef::Free);
            let inner_at = if along_own { e.bind_atom(inner, "k") } else { e.atoms.index(inner) };
            let coordinates = at(e, own_at, inner_at);
            let (along, first) = if along_own { (own, variable) } else { (inner, "k") };
            let found = operand::load_vector(e, value, &coordinates, along, length);
            let (buffer, base) = found.ok_or_else(|| CodegenError::Node(e.body.node_text(value.node)))?;
            let base = e.index(&base)?.text;
            let position = if base == "0u" { first.to_string() } else { format!("{base} + {first}") };
            let b = e.buffers[buffer].binding;
            e.open();
            if length == 4 {
                e.line(format!("const vec4 p = uintBitsToFloat(wide{b}(({position}) >> 2));"));
                e.line(format!("{array} = float[4](p.x, p.y, p.z, p.w);"));
            } else {
                let load = e.buffers[buffer].load_eight(&position, array);
                e.line(load);
            }
            let mut lines = e.close();
            if !whole {
                e.line(format!("[[unroll]] for (uint j = 0u; j < {length}u; ++j) {array}[j] = {zero};"));
                lines = block(&format!("if (k < {k_end})"), lines);
            }
            lines.into_iter().for_each(|line| e.line(line));
        }
        Piece::Single(length, _) => {
            e.open(); // one element
            let inner = e.atom(slice.k, "at");
            let coordinates = at(e, own_at, inner);
            let x = e.value(value, &coordinates)?;
            e.line(format!("{array}[j] = {};", x.text));
            let mut lines = e.close();
            if !whole {
                lines = block(&format!("if (at < {k_end})"), lines);
                lines.insert(0, format!("{array}[j] = {zero};"));
            }
            lines.insert(0, "const uint at = k + j;".into());
            count = lines.len();
            let lines = block(&format!("[[unroll]] for (uint j = 0u; j < {length}u; ++j)"), lines);
            lines.into_iter().for_each(|line| e.line(line));
        }
        Piece::OwnEach(length) => {
            let by = Dim::constant(length.into());
            let groups =
                slice.own.1.div_exact(&by).ok_or_else(|| CodegenError::Node(e.body.node_text(value.node)))?;
            e.open(); // one chunk
            e.line(format!("const uint g = {variable} / {length}u;"));
            let inner = e.atom(slice.k, "k");
            let g = e.atom(&groups, "g");
            e.open(); // one element
            let j = e.atom(&by, "j");
            let own = e.atoms.add(&g.scale(&by), &j);
            let coordinates = at(e, own, inner);
            let x = e.value(value, &coordinates)?;
            e.line(format!("{array}[j] = {};", x.text));
            let each = e.close();
            count = each.len();
            let mut lines = e.close();
            lines.extend(block(&format!("[[unroll]] for (uint j = 0u; j < {length}u; ++j)"), each));
            if !whole {
                e.line(format!("[[unroll]] for (uint j = 0u; j < {length}u; ++j) {array}[j] = {zero};"));
                lines = block(&format!("if (k < {k_end})"), lines);
            }
            lines.into_iter().for_each(|line| e.line(line));
        }
    }
    Ok(count)
}

/// Lines that store `array` to shared memory, at rows or columns from `mine` and K positions from `inner`.
fn store(slice: &KTile<'_>, piece: Piece, array: &str, (mine, inner): (&str, &str)) -> Vec<String> {
    let (own, stride) = (slice.own.0, slice.stride);
    let first = if slice.at == 0 { String::new() } else { format!("{}u + ", slice.at) };
    let mut lines = vec![format!("const uint {own} = {mine}, k = {inner};")];
    match piece {
        Piece::Own(length) | Piece::OwnEach(length) => lines.extend((0..length).step_by(4).map(|i| {
            let of: Vec<String> = (i..i + 4).map(|i| format!("{array}[{i}]")).collect();
            let next = if i == 0 { String::new() } else { format!(" + {}u", i / 4) };
            let vector = slice.ty.vector();
            format!("slices[{first}k * {stride}u + {own} / 4u{next}] = {vector}({});", of.join(", "))
        })),
        Piece::Inner(length) | Piece::Single(length, _) => {
            let place = format!("slices[{first}(k + j) * {stride}u + {own} / 4u][{own} % 4u]");
            lines.push(format!("[[unroll]] for (uint j = 0u; j < {length}u; ++j) {place} = {array}[j];"));
        }
    }
    lines
}

/// The expression `(u op by) * factor`, simplified.
fn scaled(u: &str, op: &str, by: u32, factor: u32) -> String {
    match (op, by, factor) {
        ("%", 1, _) => "0u".into(),
        (_, _, 1) => format!("{u} {op} {by}u"),
        _ => format!("{u} {op} {by}u * {factor}u"),
    }
}
