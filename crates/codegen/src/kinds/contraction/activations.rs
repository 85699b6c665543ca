//! Staging of a matvec's activations in shared memory, as floats or quantized to 8 bits.

use minijinja::context;
use tallow_ir::form::ContractionForm;
use tallow_ir::{Dim, Value, dot};

use super::operands::left_at;
use super::plan::{Matvec, Source};
use super::prologue::QUAD;
use crate::blocks::operand;
use crate::blocks::row_loop::RowLoop;
use crate::emit::{Emitter, Group};
use crate::error::CodegenError;
use crate::library::{self as lib, Function};
use crate::template::render;

/// How activations get from memory to where the products read them.
#[derive(Default)]
pub(crate) struct Staging {
    /// Shared arrays and functions.
    pub declarations: String,
    /// Lines that stage the activations of a tile.
    pub lines: String,
    /// Bytes of shared memory.
    pub bytes: u32,
}

/// Lines that load one group of `size` adjacent activations to `x`: those of row `m`, and those of group `g`. They come
/// from registers if `cached` caches the row.
fn load(
    e: &mut Emitter<'_>,
    mv: &Matvec<'_>,
    lhs: Value,
    size: u32,
    cached: Option<&RowLoop>,
) -> Result<(String, String), CodegenError> {
    if let Some(row_loop) = cached {
        return row_loop.in_groups(e, |e| {
            let ((_, lines), row) = e.scope(|e| {
                row_loop.step(e, |e| {
                    row_loop.each_of_group(e, |e| {
                        let at = left_at(e, mv.form, &mv.batch, &row_loop.row, &row_loop.i);
                        let x = e.value(lhs, &at)?;
                        e.line(format!("x[j] = {};", x.text));
                        Ok(())
                    })
                })
            })?;
            Ok((String::new(), [row, lines].concat().join("\n")))
        });
    }
    let (((), group), row) = e.scope(|e| {
        let row = mv.row(e);
        e.scope(|e| {
            let g = e.atom(&Dim::constant(mv.form.k.max_value() / i64::from(size)), "g");
            let atom = e.set_group(size);
            let inner = e.atoms.add(&g.scale(&Dim::constant(size.into())), &e.atoms.index(atom));
            e.each_of_group(Group { atom, size }, |e| {
                let at = left_at(e, mv.form, &mv.batch, &row, &inner);
                let x = e.value(lhs, &at)?;
                e.line(format!("x[j] = {};", x.text));
                Ok(())
            })
        })
    })?;
    e.group = None;
    Ok((row.join("\n"), group.join("\n")))
}

/// Adjacent activations that an invocation quantizes at a time: four if that covers all rows in one pass, else eight.
pub(crate) fn group_size(source: Source, form: &ContractionForm, workgroup: u32) -> u32 {
    let blocks = form.m.max_value().saturating_mul(form.k.max_value()) / dot::BLOCK;
    let few = blocks * i64::from(dot::LANES) <= i64::from(workgroup);
    if source.is_packed() && !few { 2 * QUAD } else { QUAD }
}

/// Generates the staging of a matvec's activations. `more_registers` says that the kernel may use more registers.
pub(crate) fn stage(
    e: &mut Emitter<'_>,
    mv: &Matvec<'_>,
    cached: Option<&RowLoop>,
    more_registers: bool,
) -> Result<Staging, CodegenError> {
    match mv.source {
        Source::Memory => Ok(Staging::default()),
        Source::Floats => stage_floats(e, mv, cached),
        Source::Bytes(lhs) => stage_bytes(e, mv, lhs, (cached, more_registers)),
        Source::Blocks(param) => {
            let b = operand::activations(e, param);
            let declarations = render("matvec_dot4.glsl", context! { b, several => false })?;
            Ok(Staging { declarations, ..Staging::default() })
        }
    }
}

fn stage_floats(
    e: &mut Emitter<'_>,
    mv: &Matvec<'_>,
    cached: Option<&RowLoop>,
) -> Result<Staging, CodegenError> {
    let (row, group) = load(e, mv, mv.form.lhs, QUAD, cached)?;
    let items = mv.k / operand::WIDE as u32;
    let vectors = 2 * mv.m * items;
    let declarations = format!(
        "// The activations: [row][eight elements]. The lower halves of all eights come first, then the upper.\n\
         shared vec4 xs[{vectors}];\n"
    );
    let steps = cached.and_then(|row_loop| row_loop.steps).unwrap_or(0);
    let holes = context! { steps, items, m => mv.m, workgroup => mv.workgroup, row, group };
    Ok(Staging { declarations, lines: render("matvec_stage_f32.glsl", holes)?, bytes: 16 * vectors })
}

fn stage_bytes(
    e: &mut Emitter<'_>,
    mv: &Matvec<'_>,
    lhs: Value,
    (cached, more_registers): (Option<&RowLoop>, bool),
) -> Result<Staging, CodegenError> {
    let calls: &[Function] = if more_registers {
        &[lib::LOW_BYTE, lib::ROUND_F16]
    } else {
        &[lib::IS_NAN, lib::BYTE_OF, lib::ROUND_F16]
    };
    calls.iter().for_each(|function| e.uses().add(*function));
    let size = group_size(mv.source, mv.form, mv.workgroup);
    let (row, group) = load(e, mv, lhs, size, cached)?;
    let (blocks, lanes) = (mv.k / dot::BLOCK as u32, dot::BLOCK as u32 / size);
    let upper = dot::upper(mv.m.into(), blocks.into());
    let group_count = mv.m * blocks * lanes;
    let declarations = render(
        "matvec_dot4.glsl",
        context! { upper, blocks => dot::places(mv.m.into(), blocks.into()), several => mv.m > 1, b => () },
    )?;
    let lines = render(
        "matvec_stage_i8.glsl",
        context! {
            row, group, group_count, upper, more_registers, several => mv.m > 1,
            place => if mv.m > 1 { "place(block)" } else { "block" }, elements => size, words => size / 4, lanes,
            of_row => blocks * lanes, cached => cached.is_some(), rounds => group_count.div_ceil(mv.workgroup),
            workgroup => mv.workgroup, masks => masks(lanes), sum_masks => masks(lanes / 2),
        },
    )?;
    Ok(Staging { declarations, lines, bytes: dot::shared_bytes(mv.m.into(), mv.k.into()) as u32 })
}

/// Shuffle-xor masks of a butterfly reduction over this many adjacent invocations.
fn masks(neighbours: u32) -> Vec<u32> {
    (0..neighbours.ilog2()).map(|bit| 1 << bit).collect()
}
