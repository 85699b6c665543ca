//! Few rows times quantized weights by integer dot products: each workgroup rounds the rows to 8 bits in shared
//! memory, then its subgroups take columns in turn, an invocation 32 weights at a time.

use minijinja::{Value as Hole, context};
use tallow_ir::dot::{self, Packing};
use tallow_ir::form::{ContractionForm, Segment};
use tallow_ir::index::{AtomDef, Index};
use tallow_ir::{Dim, NodeId, Value};

use super::matvec::{QUAD, batch_at, columns_grid, left_at, prologue, segment_groups};
use super::sharing::{self, Shape, Sums, Walk, plus, times};
use super::{Parts, finish, operand, reduction, rounding, runs, whole};
use crate::choice::Sharing;
use crate::emit::Emitter;
use crate::kernel::{CodegenError, Count, Kernel};
use crate::template::render;

/// Steps that weights are asked for ahead, if registers suffice (8B shape on an H200, Q4_K: 2.32 ms a step of decoding by one,
/// 2.21 by two; seven spill).
const DEPTH: u32 = 2;

/// Registers of each of 1024 invocations that share a multiprocessor (65536 of 4 bytes, on devices of several makers), and those
/// that neither weights on their way nor sums take, by estimate.
const REGISTERS: u32 = 64;
const OTHER_REGISTERS: u32 = 28;

pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &ContractionForm,
    choice: Sharing,
) -> Result<Kernel, CodegenError> {
    let rounding = dot::rounding(e.body, form.lhs);
    let lhs = rounding.map(|id| e.body.node(id).operands[0]);
    let refused = || CodegenError::Node(e.body.node_text(form.lhs.node));
    let (Some(lhs), Some(m), Some(k)) = (lhs, form.m.as_const(), form.k.as_const()) else {
        return Err(refused());
    };
    if !dot::supported(e.body, form, e.caps) {
        return Err(refused());
    }
    let (m, blocks) = (m as u32, (k / dot::BLOCK) as u32);
    let workgroup = choice.workgroup;
    let shape = Shape::new(&e, form, blocks, choice);
    let mut used = reduction::Used::default();
    let batch = e.atom(&form.batch.numel(), "0u");
    let buffers: Vec<usize> = (0..e.body.outputs().len()).map(|o| e.result(o as u32)).collect();
    let tiles = shape.tiles(&e, form);
    let limits = e.caps.max_workgroup_count;
    let grid = [columns_grid(form, &tiles, limits[0]), Count::constant(1), Count::constant(1)];
    whole("matvec", &grid)?;
    let (mut walks, mut ahead, mut slots, mut before) = (vec![], vec![], 0, vec![]);
    for (segment, &tile) in form.segments.iter().zip(&tiles) {
        let groups = segment_groups(&mut e, segment, tile);
        let walk = shape.walk(tile, depth(&e, segment, m), &before, &groups);
        before.push(groups);
        slots = slots.max(walk.depth * segment.anchors.len() as u32);
        e.open(); // the segment
        let mut fetches = vec![];
        for (i, id) in segment.anchors.iter().enumerate() {
            fetches.push(context! { lines => fetch(&mut e, form, *id, &batch)?, slot => plus(i) });
        }
        let prelude = e.close().join("\n");
        let last = e.dim(&(&segment.n - &Dim::one()));
        ahead.push(context! {
            here => &walk.here, column0 => &walk.column0, ahead_prelude => prelude, depth => walk.depth,
            block => &walk.item, column => &walk.column, k0 => shape.first("block", 32), last => last,
            slots => times(segment.anchors.len()), fetches => fetches,
        });
        walks.push(walk);
    }
    let text = render(
        "matvec_ahead.glsl",
        context! { slots, segments => ahead, words => operand::packed_words(&e) },
    )?;
    e.line(text.trim_end());
    let run = run(m * blocks, workgroup);
    prologue(&mut e, &mut used, form, m, (workgroup, run))?;
    let (x_lines, m_lines) = activations(&mut e, form, lhs, &batch, run)?;
    let mut text = format!("byte_of( round_f16( subgroup {x_lines}{m_lines}");
    let mut segments = vec![];
    let waiting = rounding::waiting(&e, form, m, &tiles);
    let (reduced, reduced_bytes) = runs::declarations(&e, form, &tiles)?;
    let part_floats = sharing::part_floats(form, m, &tiles);
    for (segment, walk) in form.segments.iter().zip(&walks) {
        segments.push(segment_holes(
            &mut e,
            form,
            segment,
            &batch,
            (&shape, walk, m, part_floats),
            &buffers,
            (&mut used, &mut text),
        )?);
    }
    let rounded = dot::shared_bytes(m.into(), (blocks * 32).into()) as u32;
    let tile_floats = part_floats * shape.parts;
    let needs = rounded
        + 4 * (tile_floats + waiting.iter().sum::<u32>())
        + reduced_bytes
        + used.shared_bytes(workgroup);
    if needs > e.caps.shared_memory_bytes {
        return Err(CodegenError::SharedMemory {
            what: "matvec".into(),
            needs,
            has: e.caps.shared_memory_bytes,
        });
    }
    let whole = shape.whole();
    let lanes = dot::BLOCK as u32 / run;
    for extension in ["GL_EXT_integer_dot_product", "GL_KHR_shader_subgroup_shuffle"] {
        e.extensions.insert(extension);
    }
    let functions =
        used.render(workgroup, e.caps)? + &rounding::functions(&rounding::formats(&e))? + &reduced;
    let parts = Parts {
        kind: "matvec",
        template: "matvec_dot.comp",
        workgroup,
        grid,
        functions,
        text,
        holes: context! {
            segments => segments, m => m, blocks => blocks, tile_floats => tile_floats, part_floats => part_floats,
            parts => shape.parts, m_lines => m_lines, x_lines => x_lines, size => &shape.size,
            whole => whole, rounded => waiting,
            elements => run, words => run / 4, lanes => lanes, masks => masks(lanes), sum_masks => masks(lanes / 2), upper => dot::upper(m.into(), blocks.into()),
        },
    };
    finish(e, parts)
}

/// Steps that weights of a segment are asked for ahead.
fn depth(e: &Emitter<'_>, segment: &Segment, m: u32) -> u32 {
    let words = |id: &NodeId| dot::weights(e.body, *id).map_or(0, |(_, format)| operand::words_of(format));
    let (words, sums) = (segment.anchors.iter().map(words).sum::<u32>(), segment.anchors.len() as u32 * m);
    let fits = |depth: &u32| OTHER_REGISTERS + depth * words + sums <= REGISTERS;
    (1..=DEPTH).rev().find(fits).unwrap_or(1)
}

/// Neighbouring activations that an invocation rounds: four if all go over the rows once then.
fn run(blocks: u32, workgroup: u32) -> u32 {
    if blocks * 8 <= workgroup { QUAD } else { 2 * QUAD }
}

/// The lines that set `x` to the elements of run `g` of a row, which are loaded together where they lie side by side; and
/// those that hold for the row.
fn activations(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    lhs: Value,
    batch: &Index,
    run: u32,
) -> Result<(String, String), CodegenError> {
    e.open(); // a row
    let row = e.atom(&form.m, "m");
    e.open(); // a run of it
    let g = e.atom(&Dim::constant(form.k.max_value() / i64::from(run)), "g");
    let j = e.set_group(run);
    e.open(); // an element
    let j = e.bind_atom(j, "j");
    let inner = e.atoms.add(&g.scale(&Dim::constant(run.into())), &j);
    let at = left_at(e, form, batch, &row, &inner);
    let x = e.value(lhs, &at)?;
    e.line(format!("x[j] = {};", x.text));
    e.close_block(&format!("[[unroll]] for (uint j = 0u; j < {run}u; ++j)"));
    e.group = None;
    Ok((e.close().join("\n"), e.close().join("\n")))
}

/// What invocations exchange with, so that each of so many neighbours has what all of them gave.
fn masks(neighbours: u32) -> Vec<u32> {
    (0..neighbours.ilog2()).map(|bit| 1 << bit).collect()
}

fn segment_holes(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    segment: &Segment,
    batch: &Index,
    (shape, walk, m, part_floats): (&Shape, &Walk, u32, u32),
    buffers: &[usize],
    (used, text): (&mut reduction::Used, &mut String),
) -> Result<Hole, CodegenError> {
    let tile = walk.tile;
    e.open(); // the segment
    let mut anchors = vec![];
    for (i, id) in segment.anchors.iter().enumerate() {
        let (unpack, packing) = unpack(e, form, *id, batch)?;
        let fetch = fetch(e, form, *id, batch)?;
        text.push_str(&unpack);
        text.push_str(&fetch);
        let comment = format!("%{} = {}", id.0, e.body.node_text(*id));
        let acc = format!("acc[{}u + m]", i as u32 * m);
        anchors.push(context! {
            unpack => unpack, fetch => fetch, comment => comment, slot => plus(i), acc => acc, pairs => packing == Packing::Pairs,
            halves => packing == Packing::Halves, offset => packing == Packing::Offset,
        });
    }
    let sums = Sums { m, tile, workgroup: shape.workgroup, parts: shape.parts, part_floats };
    let (prelude, end) = sharing::end(e, used, form, segment, batch, buffers, &sums)?;
    let last = e.dim(&(&segment.n - &Dim::one()));
    text.push_str(&prelude);
    text.push_str(&end);
    let accs = segment.anchors.len() as u32 * m;
    Ok(context! {
        here => &walk.here, column0 => &walk.column0, tile => tile, accs => accs, depth => walk.depth,
        block => &walk.item, column => &walk.column, ends => &walk.ends, total => &walk.total, k0 => shape.first("block", 32), comment => shape.comment(),
        slots => times(segment.anchors.len()), part_at => shape.part_at(part_floats), anchors => anchors,
        prelude => prelude, last => last, end => end,
    })
}

/// The lines that ask for 32 weights from element `k0` of column `n` on, up to the place that they go to.
fn fetch(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    id: NodeId,
    batch: &Index,
) -> Result<String, CodegenError> {
    e.open(); // a column
    let (b, base, _) = weights(e, form, id, batch)?;
    e.line(format!("fetch{b}({base} + k0, "));
    Ok(e.close().join("\n"))
}

/// The line that unpacks 32 weights from element `k0` of column `n` on, and what it gives.
fn unpack(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    id: NodeId,
    batch: &Index,
) -> Result<(String, Packing), CodegenError> {
    e.open(); // a column
    let (b, base, packing) = weights(e, form, id, batch)?;
    let ty = match packing {
        Packing::Pairs | Packing::Halves => "vec4",
        Packing::Offset => "vec2",
        Packing::Scale => "float",
    };
    e.line(format!("const {ty} w = packed{b}({base} + k0, next[slot], q);"));
    Ok((e.close().join("\n"), packing))
}

/// The buffer of a matmul's weights, the first element of column `n` and the kind of its blocks.
fn weights(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    id: NodeId,
    batch: &Index,
) -> Result<(u32, String, Packing), CodegenError> {
    let refused = |e: &Emitter<'_>| CodegenError::Node(e.body.node_text(id));
    let rhs = e.body.node(id).operands[1];
    let shape = e.body.ty(rhs).shape.clone();
    let column = e.atom(&shape.dims()[shape.rank() - 1].clone(), "n");
    let probe = e.atoms.fresh(&form.k, AtomDef::Free);
    let mut at = batch_at(e, &form.batch, &shape, batch);
    at.extend([e.atoms.index(probe), column]);
    let Some((_, format)) = dot::weights(e.body, id) else { return Err(refused(e)) };
    let Some((buffer, base)) = operand::packed(e, rhs, format, &at, probe) else { return Err(refused(e)) };
    let base = e.index(&base)?;
    let Some(packing) = dot::packing(format) else { return Err(refused(e)) };
    Ok((e.buffers[buffer].binding, base.text, packing))
}
