//! Matvec with a prologue, in floats: each workgroup stages the prepared activations in shared memory. Its subgroups
//! then loop over columns; an invocation multiplies eight weights at a time.

use minijinja::{Value as Hole, context};
use tallow_ir::form::{ContractionForm, Segment};
use tallow_ir::index::Index;

use super::column_groups;
use super::epilogue;
use super::grid::{columns_grid, segment_groups};
use super::matvec_dot;
use super::operands::{accumulator, right};
use super::partition::{self, ColumnLoop, Partition, Products, Unroll};
use super::prologue::{QUAD, keep, prologue};
use super::sums::{self, EpilogueInputs, Sums};
use crate::assemble::{Parts, finish, whole};
use crate::blocks::{operand, quantize_results, reduction};
use crate::emit::Emitter;
use crate::kernel::{CodegenError, Count, Kernel};
use crate::scalar::Glsl;
use crate::schedule::{Instruction, Schedule};

/// Weight loads of 16 bytes that are unrolled, so that this many are in flight. They are from the columns that an
/// invocation computes together, while its part of the activations stays in registers.
const WRITTEN: u32 = 8;

/// The multiply instruction, and the elements per invocation and step.
pub(crate) const PRODUCTS: Products = Products { instruction: Instruction::Fma, elements: operand::WIDE };

/// Whether this kind supports the contraction: its prologue has reductions, the activations fit in shared memory, and
/// weights load in vectors of eight.
pub(crate) fn fits(e: &Emitter<'_>, form: &ContractionForm) -> bool {
    let (Some(m), Some(k)) = (form.m.as_const(), form.k.as_const()) else { return false };
    let anchors = || form.segments.iter().flat_map(|s| &s.anchors);
    let possible = !form.prologue.is_empty()
        && m > 0
        && k > 0
        && k % operand::WIDE == 0
        && m.saturating_mul(k) <= i64::from(e.caps.shared_memory_bytes)
        && form.batch.numel().is(1)
        && e.caps.subgroup_arithmetic
        && e.caps.has_fixed_subgroup_size()
        && e.caps.max_workgroup_invocations >= partition::MIN_WORKGROUP
        && accumulator(e, form).is_ok_and(|(ty, _)| ty == Glsl::Float)
        && anchors().all(|id| operand::reads_wide(e.body, e.body.node(*id).operands[1]));
    if !possible {
        return false;
    }
    let (m, items) = (m as u32, (k / operand::WIDE) as u32);
    let Some(schedule) = partition::first(e, form, PRODUCTS) else { return false };
    let (workgroup, partition) = (schedule.workgroup, Partition::new(e, k as u32, schedule));
    let tiles = partition.tiles(e, form);
    // Bytes of shared memory per invocation that the reductions use: 4 for f32, and 12 for each reduction of another
    // type (up to 8 for the value and 4 for an index).
    let scratch = 4 + 12
        * form
            .prologue
            .iter()
            .filter(|(id, _)| Glsl::of(e.body.node(*id).types[0].dtype, e.caps) != Some(Glsl::Float))
            .count() as u32;
    let waiting: u32 = quantize_results::waiting(e, form, m, &tiles).iter().sum();
    let Ok((_, reduced)) = column_groups::declarations(e, form, &tiles) else { return false };
    let floats = m * items * 8 + sums::part_floats(form, m, &tiles) * partition.parts + waiting;
    4 * floats + reduced + workgroup * scratch <= e.caps.shared_memory_bytes
}

pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &ContractionForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let (Some(m), Some(k)) = (form.m.as_const(), form.k.as_const()) else {
        return Err(CodegenError::Node(e.body.node_text(form.lhs.node)));
    };
    let (m, items) = (m as u32, (k / operand::WIDE) as u32);
    let workgroup = schedule.workgroup;
    let partition = Partition::new(&e, k as u32, schedule);
    let mut used = reduction::Used::default();
    let batch = e.atom(&form.batch.numel(), "0u");
    let kept = keep(&mut e, form, Some(form.lhs), &batch, (workgroup, QUAD))?;
    prologue(&mut e, &mut used, form, m, (workgroup, QUAD), kept.as_ref())?;
    let buffers: Vec<usize> = (0..e.body.outputs().len()).map(|o| e.result(o as u32)).collect();
    let tiles = partition.tiles(&e, form);
    let limits = e.caps.max_workgroup_count;
    let grid = [columns_grid(form, &tiles, limits[0]), Count::constant(1), Count::constant(1)];
    whole("matvec", &grid)?;
    let (x_lines, m_lines) = match &kept {
        Some(kept) => (matvec_dot::kept_activations(&mut e, form, form.lhs, &batch, kept)?, String::new()),
        None => matvec_dot::activations(&mut e, form, form.lhs, &batch, QUAD)?,
    };
    let mut text = format!("subgroup {x_lines}{m_lines}");
    let (mut segments, mut before) = (vec![], vec![]);
    let waiting = quantize_results::waiting(&e, form, m, &tiles);
    let (reduced, reduced_bytes) = column_groups::declarations(&e, form, &tiles)?;
    let part_floats = sums::part_floats(form, m, &tiles);
    for (segment, &tile) in form.segments.iter().zip(&tiles) {
        let groups = segment_groups(&mut e, segment, tile);
        let together = (WRITTEN / (segment.anchors.len() as u32 * m).max(1)).max(1);
        let elements = operand::WIDE as u32;
        let walk = partition.column_loop(
            tile,
            elements,
            Unroll { together, depth: 1, written: 0 },
            &before,
            &groups,
        );
        before.push(groups);
        let sums = Sums {
            m,
            tile,
            workgroup,
            parts: partition.parts,
            part_floats,
            around: EpilogueInputs::default(),
        };
        segments.push(segment_holes(
            &mut e,
            form,
            segment,
            &batch,
            (&partition, &walk, &sums),
            &buffers,
            (&mut used, &mut text),
        )?);
    }
    let tile_floats = part_floats * partition.parts;
    let needs = 4 * (m * items * 8 + tile_floats + waiting.iter().sum::<u32>())
        + reduced_bytes
        + used.shared_bytes(workgroup);
    if needs > e.caps.shared_memory_bytes {
        let has = e.caps.shared_memory_bytes;
        return Err(CodegenError::SharedMemory { what: "matvec".into(), needs, has });
    }
    let functions =
        used.render(workgroup, e.caps)? + &quantize_results::functions_of_results(&mut e)? + &reduced;
    let parts = Parts {
        schedule,
        template: "matvec_staged.comp",
        grid,
        functions,
        text,
        holes: context! {
            segments, m, items, tile_floats, parts => partition.parts, m_lines, x_lines, rounded => waiting,
            steps => kept.and_then(|walk| walk.steps).unwrap_or(0),
        },
    };
    finish(e, parts)
}

fn segment_holes(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    segment: &Segment,
    batch: &Index,
    (partition, walk, sums): (&Partition, &ColumnLoop, &Sums),
    buffers: &[usize],
    (used, text): (&mut reduction::Used, &mut String),
) -> Result<Hole, CodegenError> {
    e.open(); // the segment
    let accs = segment.anchors.len() as u32 * sums.m;
    let mut anchors = vec![];
    for (i, id) in segment.anchors.iter().enumerate() {
        let load = right(e, form, *id, batch, operand::WIDE as u32)?;
        text.push_str(&load);
        let comment = format!("%{} = {}", id.0, e.body.node_text(*id));
        anchors.push(context! { load, comment, acc => walk.acc(accs, sums.m, i as u32) });
    }
    let (prelude, end) = epilogue::end(e, used, form, segment, batch, buffers, sums)?;
    let last = e.dim(&(&segment.n - &tallow_ir::Dim::one()));
    text.push_str(&prelude);
    text.push_str(&end);
    Ok(context! {
        accs, anchors, prelude, last, end, k0 => format!("{} * {}u", walk.clamped(), walk.elements),
        at => walk.clamped(), part_at => partition.part_at(sums.part_floats), ..walk.holes()
    })
}
