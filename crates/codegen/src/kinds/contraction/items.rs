//! Items: the activations that an invocation multiplies at a time, read into registers.

use tallow_ir::Dim;
use tallow_ir::dot::{self, Packing};
use tallow_ir::index::Index;

use super::columns::ColumnLoop;
use super::operands::left_at;
use super::parts::Part;
use super::plan::{Matvec, Source};
use super::prologue::QUAD;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::lines::{block, unrolled};

/// A pair of 8-bit blocks whose products with one item are computed together, or a single block.
struct Set {
    /// Suffix of its variables.
    name: &'static str,
    /// Its first block, as an expression, and the distance to the second; 0 if there is none.
    first: String,
    stride: u32,
}

/// The sets of blocks that an item needs: adjacent blocks, and blocks two apart.
fn sets(mv: &Matvec<'_>, column_loop: &ColumnLoop, parts: &[Part]) -> Vec<Set> {
    // Rows in shared memory are staged for the maximum.
    let existing = mv.existing("m").filter(|_| matches!(mv.source, Source::Blocks(_)));
    let row = match mv.m {
        1 => String::new(),
        _ => format!("{} * {}u + ", existing.as_deref().unwrap_or("m"), mv.k / dot::BLOCK as u32),
    };
    let item = column_loop.clamped();
    let quarters = |part: &Part| part.packing == Packing::Quarters;
    let mut sets = vec![];
    if !parts.iter().all(quarters) {
        sets.push(match column_loop.elements {
            32 => Set { name: "", first: format!("{row}{item}"), stride: 0 },
            _ => Set { name: "", first: format!("{row}{item} * 2u"), stride: 1 },
        });
    }
    if parts.iter().any(quarters) {
        let name = if sets.is_empty() { "" } else { "2" };
        sets.push(Set { name, first: format!("{row}{item} / 2u * 4u + {item} % 2u"), stride: 2 });
    }
    sets
}

/// Lines that read the blocks of an item from shared memory, or from memory with the function `activations`.
pub(crate) fn read_blocks(mv: &Matvec<'_>, column_loop: &ColumnLoop, parts: &[Part]) -> Vec<String> {
    let upper = dot::upper(mv.m.into(), (mv.k / dot::BLOCK as u32).into());
    let mut lines = vec![];
    for Set { name: s, first, stride } in sets(mv, column_loop, parts) {
        if mv.m > 1 && !matches!(mv.source, Source::Blocks(_)) {
            lines.extend(read_shared_row(Set { name: s, first, stride }, upper));
            continue;
        }
        lines.push(format!("const uint at{s} = {first};"));
        match (mv.source, stride) {
            (Source::Blocks(_), 0) => lines.extend([
                "ivec4 x[2];".into(),
                "vec2 sums;".into(),
                "const float scale = activations(at, x[0], x[1], sums);".into(),
            ]),
            (Source::Blocks(_), _) => lines.extend([
                format!("ivec4 x{s}[4];"),
                format!("vec2 scale{s}, sums{s}_0, sums{s}_1;"),
                format!("scale{s}.x = activations(at{s}, x{s}[0], x{s}[1], sums{s}_0);"),
                format!("scale{s}.y = activations(at{s} + {stride}u, x{s}[2], x{s}[3], sums{s}_1);"),
                format!("const vec4 sums{s} = vec4(sums{s}_0, sums{s}_1);"),
            ]),
            (_, 0) => lines.extend([
                format!("const ivec4 x[2] = ivec4[2](x_bytes[at], x_bytes[at + {upper}u]);"),
                "const float scale = x_scale[at];".into(),
                "const vec2 sums = x_sum[at];".into(),
            ]),
            (_, _) => {
                let half = |offset: i64| format!("x_bytes[at{s} + {offset}u]");
                let (second, last) = (i64::from(stride), upper + i64::from(stride));
                let halves = [format!("x_bytes[at{s}]"), half(upper), half(second), half(last)].join(", ");
                lines.extend([
                    format!("const ivec4 x{s}[4] = ivec4[4]({halves});"),
                    format!("const vec2 scale{s} = vec2(x_scale[at{s}], x_scale[at{s} + {stride}u]);"),
                    format!("const vec4 sums{s} = vec4(x_sum[at{s}], x_sum[at{s} + {stride}u]);"),
                ]);
            }
        }
    }
    lines
}

/// Lines that read the blocks of a set from one of several rows in shared memory. The second block of a set differs from
/// the first in one bit of its number, also in its place.
fn read_shared_row(Set { name: s, first, stride }: Set, upper: i64) -> Vec<String> {
    let at = format!("const uint at{s} = place({first});");
    if stride == 0 {
        let x = format!("const ivec4 x[2] = ivec4[2](x_bytes[at], x_bytes[at + {upper}u]);");
        let scale = "const float scale = x_scale[at];".into();
        return vec![at, x, scale, "const vec2 sums = scale * sums_of_halves(x[0], x[1]);".into()];
    }
    let halves =
        [format!("at{s}"), format!("next{s}")].map(|at| format!("x_bytes[{at}], x_bytes[{at} + {upper}u]"));
    let sums = [(0, "x"), (2, "y")]
        .map(|(i, c)| format!("scale{s}.{c} * sums_of_halves(x{s}[{i}], x{s}[{}])", i + 1));
    vec![
        at,
        format!("const uint next{s} = at{s} ^ {stride}u;"),
        format!("const ivec4 x{s}[4] = ivec4[4]({});", halves.join(", ")),
        format!("const vec2 scale{s} = vec2(x_scale[at{s}], x_scale[next{s}]);"),
        format!("const vec4 sums{s} = vec4({});", sums.join(", ")),
    ]
}

/// Whether an invocation multiplies the same blocks for all columns of all segments.
pub(crate) fn are_shared(mv: &Matvec<'_>, loops: &[(ColumnLoop, Vec<Part>)]) -> bool {
    let blocks = |(column_loop, parts): &(ColumnLoop, Vec<Part>)| {
        (column_loop.item(""), read_blocks(mv, column_loop, parts))
    };
    loops.iter().all(|(column_loop, _)| column_loop.steps == 1)
        && loops.windows(2).all(|pair| blocks(&pair[0]) == blocks(&pair[1]))
}

/// Lines that read an item of a row in shared memory as two vectors of four floats.
pub(crate) fn read_floats(mv: &Matvec<'_>, column_loop: &ColumnLoop) -> String {
    let (at, items, m) = (column_loop.clamped(), column_loop.items, mv.m);
    match m {
        1 => format!("const vec4 lo = xs[{at}], hi = xs[{items}u + {at}];"),
        _ => format!("const vec4 lo = xs[m * {items}u + {at}], hi = xs[(m + {m}u) * {items}u + {at}];"),
    }
}

/// Lines that load an item of every row from memory into `x`.
pub(crate) fn read_memory(
    e: &mut Emitter<'_>,
    mv: &Matvec<'_>,
    (ty, step): (&str, u32),
) -> Result<Vec<String>, CodegenError> {
    let m = mv.m;
    e.scoped_lines(|e| {
        let rows = e.scoped_lines(|e| {
            let row = mv.row(e);
            // In vectors, if they load anything.
            if step.is_multiple_of(QUAD) {
                let (element, group) =
                    element(e, mv, &row, QUAD, &format!("x[m * {step}u + q * {QUAD}u + j]"))?;
                if !group.is_empty() {
                    let head = unrolled("j", QUAD);
                    let g = vec![format!("const uint g = k0 / {QUAD}u + q;")];
                    let lines = [g, group, block(&head, element)].concat();
                    e.lines(block(&unrolled("q", step / QUAD), lines));
                    return Ok(());
                }
            }
            let (element, _) = element(e, mv, &row, 1, &format!("x[m * {step}u + j]"))?;
            let lines = [vec!["const uint k = k0 + j;".to_string()], element].concat();
            e.lines(block(&unrolled("j", step), lines));
            Ok(())
        })?;
        e.line(format!("{ty} x[{}];", m * step));
        e.lines(block(&unrolled("m", m), rows));
        Ok(())
    })
}

/// Lines that assign one element of a row to `to`, and the lines before them per group of `size`. Elements are loaded in
/// groups with the index `g` and the position `j`, or one by one at `k`.
fn element(
    e: &mut Emitter<'_>,
    mv: &Matvec<'_>,
    row: &Index,
    size: u32,
    to: &str,
) -> Result<(Vec<String>, Vec<String>), CodegenError> {
    e.scope(|e| {
        let groups = mv.form.k.div_exact(&Dim::constant(size.into())).filter(|_| size > 1);
        let grouped = groups.map(|groups| (e.atom(&groups, "g"), e.set_group(size)));
        e.scoped_lines(|e| {
            let k = match grouped {
                Some((g, j)) => {
                    let j = e.bind_atom(j, "j");
                    e.atoms.add(&g.scale(&Dim::constant(size.into())), &j)
                }
                None => e.atom(&mv.form.k, "k"),
            };
            let at = left_at(e, mv.form, &mv.batch, row, &k);
            let value = e.value(mv.form.lhs, &at)?.text;
            e.group = None;
            e.line(format!("{to} = {value};"));
            Ok(())
        })
    })
}
