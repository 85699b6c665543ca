//! The weights of a matvec: their loads, the prefetch of packed words, and the products with an item of activations.

use tallow_ir::dot::{self, Packing};
use tallow_ir::form::Segment;
use tallow_ir::index::Index;
use tallow_ir::{Dim, NodeId};

use super::columns::{ColumnLoop, Unroll};
use super::grid::Range;
use super::items::read_floats;
use super::operands::{column, from_k0, right, right_at};
use super::parts::Part;
use super::plan::{Matvec, Source};
use super::prefetch;
use crate::blocks::operand;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::lines::{block, unrolled};

/// Columns that an invocation computes together, while its part of the activations stays in registers. Unrolling more
/// costs more in instruction fetch than it saves (H200, 14336 x 4096 of Q4_0 back to back: seven columns 9.9 us, one
/// 8.4).
const AT_ONCE: u32 = 2;

/// Maximum registers for weight words per invocation, of the 64 at which two workgroups of 512 fit on an SM.
const MOST_WORDS: u32 = 40;

/// Maximum number of passes that are unrolled if two columns at a time do not divide them. Only weights of few words
/// gain (H200, 14336 x 4096, seven passes, unrolled and not: Q2_K, 7 words, 6.6 and 7.8 us; Q3_K, 10 words, 8.6 and
/// 9.1; Q4_K, 12 words, 9.4 and 8.3; Q6_K, 15 words, 12.6 and 11.8). Formats that are unpacked 32 at a time take the
/// same either way: Q4_0 7.9, Q8_0 14.6.
const UNROLLED_PASSES: u32 = 8;
const SHORT_WORDS: u32 = 10;

/// Weight loads of 16 bytes that are unrolled if weights are not prefetched, so that this many are in flight. They are
/// from the columns that an invocation computes together, while its part of the activations stays in registers.
const LOADS: u32 = 8;

/// Maximum registers for weights, activations and sums, of the 128 with which a workgroup of 512 fits on an SM.
const MOST_REGISTERS: u32 = 96;

/// Elements that an invocation multiplies at a time: the most that any of the segment's formats unpacks at once.
pub(crate) fn elements(e: &Emitter<'_>, segment: &Segment) -> u32 {
    let packing = |id: &NodeId| dot::packing(dot::weights(e.body, *id)?.1);
    segment.anchors.iter().filter_map(packing).map(|p| p.elements()).max().unwrap_or(dot::BLOCK) as u32
}

/// Registers (32-bit words) for the weights of one column that an invocation multiplies at a time, over all anchors.
fn words(e: &Emitter<'_>, segment: &Segment) -> u32 {
    let elements = elements(e, segment);
    let words = |id: &NodeId| {
        let (_, format) = dot::weights(e.body, *id)?;
        Some(operand::words_of(format) * elements / dot::packing(format)?.elements() as u32)
    };
    segment.anchors.iter().filter_map(words).sum()
}

/// Columns that an invocation multiplies with each of `rows` rows together. For each column it has the packed words of
/// the next weights, the unpacked bytes of one anchor, and the sums of all rows; besides, the bytes of one row.
pub(crate) fn columns_combined(e: &Emitter<'_>, segment: &Segment, rows: u32) -> u32 {
    let bytes = elements(e, segment) / 4;
    let column = bytes + words(e, segment) + rows * segment.anchors.len() as u32;
    [4, 2].into_iter().find(|columns| columns * column + bytes <= MOST_REGISTERS).unwrap_or(1)
}

/// How many columns are computed together, prefetched and unrolled.
pub(crate) fn unroll(e: &Emitter<'_>, mv: &Matvec<'_>, segment: &Segment) -> Unroll {
    let sums = (segment.anchors.len() as u32 * mv.m).max(1);
    if !mv.source.is_packed() {
        return Unroll { at_once: (LOADS / sums).max(1), depth: 0, passes: 0 };
    }
    if mv.m > 1 {
        let at_once = columns_combined(e, segment, mv.m);
        return Unroll { at_once, depth: mv.prefetch.min(at_once), passes: 0 };
    }
    let (elements, words) = (elements(e, segment), words(e, segment));
    // Two columns at a time need registers for the weights of both.
    let fits = 2 * words <= MOST_WORDS;
    let at_once = if fits { AT_ONCE } else { (AT_ONCE / sums).max(1) };
    let short = sums == 1 && i64::from(elements) > dot::BLOCK && words <= SHORT_WORDS;
    let passes = if short { UNROLLED_PASSES } else { 0 };
    Unroll { at_once, depth: mv.prefetch.min(prefetch::columns(elements)), passes }
}

/// Emits the loads of the first packed weights of each segment, and declares their register buffers.
pub(crate) fn issue_first(
    e: &mut Emitter<'_>,
    mv: &Matvec<'_>,
    loops: &[(ColumnLoop, Vec<Part>)],
    ranges: &[Range],
) -> Result<(), CodegenError> {
    if !mv.source.is_packed() {
        return Ok(());
    }
    let (mut lines, mut slots) = (vec![], 0);
    for (((column_loop, parts), range), segment) in loops.iter().zip(ranges).zip(&mv.form.segments) {
        slots = slots.max(column_loop.slots * parts.len() as u32);
        let all = e.scoped_lines(|e| {
            e.line(format!("const uint column0 = {};", range.column0));
            let last = e.dim(&(&segment.n - &Dim::one()));
            let (counter, item) =
                if column_loop.prefetches_steps() { ("along", "along") } else { ("pass", "0u") };
            let (item, n) = (column_loop.item(item), column_loop.column("pass"));
            let mut each = vec![format!("const uint item = {item}, n = min(column0 + {n}, {last});")];
            for part in parts {
                let fetch = fetch(e, mv, part, &part.buffer(counter, column_loop.slots))?;
                each.extend(block("", [vec![format!("const uint k0 = {};", part.k0)], fetch].concat()));
            }
            e.lines(block(&unrolled(counter, column_loop.depth), each));
            Ok(())
        })?;
        lines.extend(block(&format!("if ({})", range.test), all));
    }
    e.line("// Weights in flight: the first loads are issued before the activations are staged.");
    e.line(format!("uint next[{slots}][{}];", operand::packed_words(e)));
    e.lines(lines);
    Ok(())
}

/// Lines that access a part's packed weights from element `k0` of column `n`. `access` is the last line, from the binding
/// of the weights and the index of that element.
fn packed(
    e: &mut Emitter<'_>,
    mv: &Matvec<'_>,
    part: &Part,
    access: impl FnOnce(u32, &str) -> String,
) -> Result<Vec<String>, CodegenError> {
    let refused = |e: &Emitter<'_>| CodegenError::Node(e.body.node_text(part.anchor));
    e.scoped_lines(|e| {
        let rhs = e.body.node(part.anchor).operands[1];
        let (_, format) = dot::weights(e.body, part.anchor).ok_or_else(|| refused(e))?;
        let column = column(e, rhs);
        let group = dot::packing(format).map_or(dot::BLOCK, Packing::granularity);
        let at = &mut |e: &mut Emitter<'_>, k| right_at(e, mv.form, rhs, [&mv.batch, &column, &k]);
        let find = &|e: &mut Emitter<'_>, at: &[Index], k| operand::packed(e, rhs, format, (at, k));
        let (buffer, first) = from_k0(e, (&mv.form.k, group), at, find)?.ok_or_else(|| refused(e))?;
        e.line(access(e.buffers[buffer].binding, &first));
        Ok(())
    })
}

/// Lines that issue the loads of a part's weights.
fn fetch(
    e: &mut Emitter<'_>,
    mv: &Matvec<'_>,
    part: &Part,
    buffer: &str,
) -> Result<Vec<String>, CodegenError> {
    packed(e, mv, part, |b, base| format!("fetch{b}({base}, {buffer});"))
}

/// Lines that unpack the prefetched words of a part to the bytes `q` and the scales `w`.
pub(crate) fn unpack(
    e: &mut Emitter<'_>,
    mv: &Matvec<'_>,
    part: &Part,
    buffer: &str,
) -> Result<Vec<String>, CodegenError> {
    let ty = part.scales();
    let declaration = vec![format!("ivec4 q[{}];", part.packing.elements() / 16)];
    let unpack = packed(e, mv, part, |b, base| format!("const {ty} w = packed{b}({base}, {buffer}, q);"))?;
    Ok([declaration, unpack].concat())
}

/// Lines that issue the loads of the next weights of a part, in place of those in `buffer`.
pub(crate) fn prefetch_next(
    e: &mut Emitter<'_>,
    mv: &Matvec<'_>,
    (column_loop, part): (&ColumnLoop, &Part),
    last: &str,
) -> Result<Vec<String>, CodegenError> {
    let Some((position, guard)) = column_loop.next_weights() else { return Ok(vec![]) };
    let counter = match column_loop.depth < column_loop.slots {
        true => format!("({} + {}u)", column_loop.counter(), column_loop.depth),
        false => column_loop.counter().into(),
    };
    let mut lines = vec![];
    if column_loop.steps > 1 {
        lines.push(format!("const uint item = {}, k0 = {};", column_loop.item("then"), part.k0));
    }
    if !column_loop.prefetches_steps() {
        lines.push(format!("const uint n = min(column0 + {}, {last});", column_loop.column("ahead")));
    }
    lines.extend(fetch(e, mv, part, &part.buffer(&counter, column_loop.slots))?);
    Ok([position, block(&format!("if ({guard})"), lines)].concat())
}

/// Lines that multiply one column's packed weights with a single row.
pub(crate) fn packed_column(
    e: &mut Emitter<'_>,
    mv: &Matvec<'_>,
    segment: &Segment,
    (column_loop, parts): &(ColumnLoop, Vec<Part>),
    last: &str,
) -> Result<Vec<String>, CodegenError> {
    let mixed = parts.iter().any(|part| part.packing != Packing::Quarters);
    let accs = segment.anchors.len() as u32 * mv.m;
    let mut lines = vec![];
    for part in parts {
        let next = prefetch_next(e, mv, (column_loop, part), last)?;
        let unpack = unpack(e, mv, part, &part.buffer(column_loop.counter(), column_loop.slots))?;
        let product = part.product(&column_loop.acc(accs, mv.m, part.number), mixed);
        let loads =
            if column_loop.depth < column_loop.slots { [next, unpack] } else { [unpack, next] }.concat();
        let k0 = vec![format!("const uint k0 = {};", part.k0)];
        lines.push(format!("// %{} = {}", part.anchor.0, e.body.node_text(part.anchor)));
        lines.extend(block("", [k0, loads, column_loop.within_row(product)].concat()));
    }
    Ok(lines)
}

/// Lines that multiply one column's weights as floats, or as other plain numbers.
pub(crate) fn float_column(
    e: &mut Emitter<'_>,
    mv: &Matvec<'_>,
    segment: &Segment,
    column_loop: &ColumnLoop,
) -> Result<Vec<String>, CodegenError> {
    let (ty, m, step) = (mv.ty, mv.m, column_loop.elements);
    let accs = segment.anchors.len() as u32 * m;
    let mut lines = vec![];
    for (number, id) in segment.anchors.iter().enumerate() {
        let acc = column_loop.acc(accs, m, number as u32);
        let (row, product) = match mv.source {
            Source::Floats => {
                let dots = "dot(vec4(w[0], w[1], w[2], w[3]), lo) + dot(vec4(w[4], w[5], w[6], w[7]), hi)";
                (vec![read_floats(mv, column_loop)], vec![format!("{acc} += {dots};")])
            }
            Source::Memory | Source::Bytes(_) | Source::Blocks(_) => {
                let x = if m == 1 { "x[j]".into() } else { format!("x[m * {step}u + j]") };
                let sum = format!("{acc} = {};", ty.multiply_add("w[j]", &x, &acc));
                (vec![], block(&unrolled("j", step), vec![sum]))
            }
        };
        let products = if m == 1 { product } else { block(&unrolled("m", m), [row, product].concat()) };
        let load = right(e, mv.form, *id, &mv.batch, step)?;
        let w = [vec![format!("{} w[{step}];", ty.name())], load].concat();
        lines.push(format!("// %{} = {}", id.0, e.body.node_text(*id)));
        lines.extend(block("", [w, column_loop.within_row(products)].concat()));
    }
    Ok(lines)
}
