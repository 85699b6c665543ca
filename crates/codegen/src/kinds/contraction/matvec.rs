//! Matvec: `[batch, m, k] x [batch, k, n]` with few rows `m`. A workgroup computes a tile of columns `n`. One generator
//! covers all [sources](Source) of activations and all formats of weights; the parts that vary have their own modules.

use minijinja::{Value as Hole, context};
use tallow_ir::form::{ContractionForm, passes, spare_bytes};
use tallow_ir::{Dim, ReduceKind, dot};

use super::activations;
use super::columns::{ColumnLoop, Team, Unroll};
use super::epilogue::{self, Deferred, Inputs};
use super::epilogue_prefetch;
use super::grid::{columns_grid, ranges, widened};
use super::items::{self, read_blocks};
use super::operands::accumulator;
use super::parts::{Part, parts};
use super::plan::{Matvec, Source};
use super::prologue::{cache_row, prologue};
use super::schedules_staged::{self, Products};
use super::{column_groups, prefetch, rows, schedules_memory, weights};
use crate::assemble::{check_grid, finish};
use crate::blocks::reduce_functions::Used;
use crate::blocks::row_loop::RowLoop;
use crate::blocks::{operand, quantize_results, reduction};
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::instruction::Instruction;
use crate::kernel::{Count, Kernel};
use crate::schedule::Schedule;

/// Where the products read the activations.
fn source(e: &Emitter<'_>, form: &ContractionForm) -> Source {
    if let Some(id) = dot::quantize_node(e.body, form.lhs) {
        return Source::Bytes(e.body.node(id).operands[0]);
    }
    match dot::blocks(e.body, form.lhs).filter(|_| dot::supported(e.body, form, e.caps)) {
        Some(param) => Source::Blocks(param),
        None if can_stage(e, form) => Source::Floats,
        None => Source::Memory,
    }
}

/// Whether activations can be staged as floats: a prologue reduces them, they fit in shared memory, and weights load in
/// vectors of eight.
fn can_stage(e: &Emitter<'_>, form: &ContractionForm) -> bool {
    let (m, Some(k)) = (form.m.max_value(), form.k.as_const()) else { return false };
    let mut anchors = form.segments.iter().flat_map(|s| &s.anchors);
    let possible = !form.prologue.is_empty()
        && m > 0
        && k > 0
        && k % operand::WIDE == 0
        && m.saturating_mul(k) <= i64::from(e.caps.shared_memory_bytes)
        && form.batch.numel().is(1)
        && e.caps.subgroup_arithmetic
        && e.caps.has_fixed_subgroup_size()
        && e.caps.max_workgroup_invocations >= schedules_staged::MIN_WORKGROUP
        && accumulator(e, form).is_ok_and(|(ty, _)| ty == Glsl::Float)
        && anchors.all(|id| operand::reads_groups(e.body, e.body.node(*id).operands[1]));
    if !possible {
        return false;
    }
    let m = m as u32;
    let Some(schedule) = schedules_staged::first(e, form, FLOATS) else { return false };
    let tiles = widened(e, form, schedule.tile.n);
    // Shared memory of the reductions, in bytes per invocation: 4 for f32, and 12 for each reduction of another type
    // (up to 8 for the value, 4 for an index).
    let other = |id| Glsl::of(e.body.node(id).types[0].dtype, e.caps) != Some(Glsl::Float);
    let scratch = 4 + 12 * form.prologue.iter().filter(|(id, _)| other(*id)).count() as u32;
    let waiting: u32 = quantize_results::waiting(e, form, m, &tiles).iter().sum();
    let Ok((_, reduced)) = column_groups::declarations(e, form, &tiles) else { return false };
    let floats = m * k as u32 + epilogue::slice_floats(form, m, &tiles) * schedule.split.slices + waiting;
    4 * floats + reduced + schedule.workgroup * scratch <= e.caps.shared_memory_bytes
}

/// Maximum loads of activations that an invocation has in flight if there are several rows: eight elements each, of the 128
/// registers with which a workgroup of 512 fits on a core. Eight rows of 4096 elements arrive in one latency of memory.
const ROUNDS_IN_FLIGHT: u32 = 8;

/// How activations staged as floats are multiplied: in vectors of eight.
const FLOATS: Products =
    Products { instruction: Instruction::Fma, elements: operand::WIDE, prefetch: 0, combined: None };

/// The candidate schedules, the cost model's default first.
pub(crate) fn schedules(e: &Emitter<'_>, form: &ContractionForm) -> Vec<Schedule> {
    match source(e, form) {
        Source::Memory => schedules_memory::schedules(e, form),
        Source::Floats => schedules_staged::schedules(e, form, FLOATS),
        Source::Bytes(_) | Source::Blocks(_) => {
            // The segment with the most columns decides.
            let widest = form.segments.iter().max_by_key(|s| s.n.max_value());
            let elements = widest.map_or(dot::BLOCK as u32, |s| weights::elements(e, s));
            let rows = form.m.max_value() as u32;
            let combined = widest.filter(|_| rows > 1).map(|s| weights::columns_combined(e, s, rows));
            let prefetch = combined.unwrap_or(prefetch::columns(elements));
            let instruction = Instruction::Dot4;
            let products = Products { instruction, elements: elements.into(), prefetch, combined };
            schedules_staged::schedules(e, form, products)
        }
    }
}

impl<'f> Matvec<'f> {
    fn new(e: &mut Emitter<'_>, form: &'f ContractionForm, schedule: Schedule) -> Result<Self, CodegenError> {
        let unsupported = || CodegenError::Node(e.body.node_text(form.lhs.node));
        let source = source(e, form);
        if source.is_packed() && !dot::supported(e.body, form, e.caps) {
            return Err(unsupported());
        }
        let m = u32::try_from(form.m.max_value()).map_err(|_| unsupported())?;
        let (ty, _) = accumulator(e, form)?;
        let tiles = widened(e, form, schedule.tile.n);
        let batch = e.atom(&form.batch.numel(), if source == Source::Memory { "batch" } else { "0u" });
        Ok(Matvec {
            form,
            source,
            batch,
            buffers: (0..e.body.outputs().len()).map(|o| e.result(o as u32)).collect(),
            rows: form.m.as_const().is_none().then(|| e.dim(&form.m)),
            m,
            k: u32::try_from(form.k.max_value()).unwrap_or(u32::MAX),
            workgroup: schedule.workgroup,
            prefetch: schedule.prefetch,
            slices: schedule.split.slices,
            slice_floats: epilogue::slice_floats(form, m, &tiles),
            tiles,
            ty,
            item_first: false,
        })
    }

    /// The grid: tiles along x, batches along y, and along z if their number exceeds the limit of y.
    fn grid(&self, e: &Emitter<'_>) -> Result<[Count; 3], CodegenError> {
        let limits = e.caps.max_workgroup_count;
        let batches = |axis, per| Count::along(e.caps, axis, self.form.batch.numel(), per);
        let grid = [columns_grid(self.form, &self.tiles, limits[0]), batches(1, 1), batches(2, limits[1])];
        check_grid("matvec", &[grid[0].clone(), grid[2].clone(), Count::constant(1)])?;
        Ok(grid)
    }

    /// The column loop of each segment.
    fn loops(&self, e: &mut Emitter<'_>) -> Result<Vec<(ColumnLoop, Vec<Part>)>, CodegenError> {
        let size = e.caps.scheduled_subgroup_size();
        let mut loops = vec![];
        for (segment, &tile) in self.form.segments.iter().zip(&self.tiles) {
            let elements = match self.source {
                Source::Memory => schedules_memory::step(self.form),
                Source::Floats => FLOATS.elements as u32,
                Source::Bytes(_) | Source::Blocks(_) => weights::elements(e, segment),
            };
            let column_loop = if self.source == Source::Memory {
                let at_once = schedules_memory::columns_at_once(e, self.form, segment, (self.m, tile));
                let team = Team::Workgroup { size: self.workgroup, end: e.dim(&self.form.k) };
                ColumnLoop::new(team, (tile, 0), elements, Unroll { at_once, depth: 0, passes: 0 })
            } else {
                let team = Team::Subgroup { size, slices: self.slices, subgroups: self.workgroup / size };
                ColumnLoop::new(team, (tile, self.k), elements, weights::unroll(e, self, segment))
            };
            let parts = parts(e, self.source, segment, &column_loop)?;
            loops.push((column_loop, parts));
        }
        Ok(loops)
    }

    /// Gives each subgroup a K slice, for activations in memory. The partials stay in shared memory, if it has room,
    /// until the epilogue combines them. The workgroup then synchronizes once per tile, not once per column. `others` is
    /// the shared memory of everything else, in bytes.
    fn split_k(&mut self, e: &Emitter<'_>, others: u32, used: &Used) {
        let size = e.caps.scheduled_subgroup_size();
        let fixed = e.caps.has_fixed_subgroup_size() && size.is_power_of_two();
        let subgroups = self.workgroup / size;
        let bytes = 4 * self.slice_floats * subgroups;
        let beside = bytes + others + used.shared_bytes(self.workgroup);
        let room = bytes <= spare_bytes(e.caps) && beside <= e.caps.shared_memory_bytes;
        if self.ty == Glsl::Float && fixed && e.caps.subgroup_shuffle && room {
            self.slices = subgroups.max(1);
        }
    }

    /// How the accumulators of the invocations that share a column are summed: the line that reduces the variable `sum`
    /// over the team, the condition of the invocation that stores it, and the offset of the K slice in the shared tile.
    fn reduce(&self, e: &mut Emitter<'_>, used: &mut Used) -> Result<Hole, CodegenError> {
        let size = e.caps.scheduled_subgroup_size();
        let floats = self.slice_floats;
        let slice = match (self.source, self.slices) {
            (_, 1) => String::new(),
            (Source::Memory, _) => format!("gl_SubgroupID * {floats}u + "),
            (_, slices) => format!("gl_SubgroupID % {slices}u * {floats}u + "),
        };
        if self.source == Source::Memory && self.slices == 1 {
            let (ty, dtype) = accumulator(e, self.form)?;
            let sum = used.value(ReduceKind::Sum, ty, dtype);
            return Ok(context! { reduce => format!("sum = {sum}(sum);"), first => "lane == 0u", slice });
        }
        e.uses().subgroups = true;
        let reduce = if e.caps.subgroup_shuffle {
            e.extensions.insert("GL_KHR_shader_subgroup_shuffle");
            format!(
                "[[unroll]] for (uint mask = 1u; mask < {size}u; mask *= 2u) sum += subgroupShuffleXor(sum, mask);"
            )
        } else {
            "sum = subgroupAdd(sum);".into()
        };
        Ok(context! { reduce, first => "gl_SubgroupInvocationID == 0u", slice })
    }
}

/// Generates the kernel for one of [`schedules`].
pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &ContractionForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let mut used = Used::default();
    let mut mv = Matvec::new(&mut e, form, schedule)?;
    let grid = mv.grid(&e)?;
    if let Some(rows) = mv.rows.as_ref().filter(|_| form.m.min_value() < 1) {
        e.line(format!("if ({rows} == 0u) return;"));
    }
    let group = activations::group_size(mv.source, form, mv.workgroup);
    let cached = cache_row(&mut e, &mv, group)?;
    let prefetched = if mv.source.is_packed() { epilogue_prefetch::issue(&mut e, &mv)? } else { None };
    let ranges = ranges(&mut e, form, &mv.tiles);
    let loops = mv.loops(&mut e)?;
    weights::issue_first(&mut e, &mv, &loops, &ranges)?;
    let deferred = prologue_or_defer(&mut e, &mut used, &mv, (group, cached.as_ref()))?;
    // With an epilogue prefetch, an invocation uses more than 32 registers, so only one workgroup of 1024 fits on an SM
    // and more registers do not reduce occupancy. Without the prefetch, two workgroups fit, and overlap if no barrier is
    // between kernels. H200, Q4_0: 4096 x 14336 back to back takes 8.1 us with few registers and 9.4 with more; a greedy
    // step of the 8B shape is 17 us faster with more. The quantized bytes are the same.
    let rounds = (mv.m * mv.k / group).div_ceil(mv.workgroup);
    let several = mv.m > 1 && cached.is_none() && rounds <= ROUNDS_IN_FLIGHT;
    let more_registers = (prefetched.is_some() && rounds <= 2) || several;
    let staging = activations::stage(&mut e, &mv, cached.as_ref(), more_registers)?;
    let rounded = quantize_results::waiting(&e, form, mv.m, &mv.tiles);
    let (reduced, reduced_bytes) = column_groups::declarations(&e, form, &mv.tiles)?;
    let others = 4 * rounded.iter().sum::<u32>() + reduced_bytes + staging.bytes;
    if mv.source == Source::Memory {
        mv.split_k(&e, others, &used);
    }
    let mut item = vec![];
    mv.item_first = matches!(mv.source, Source::Blocks(_)) && mv.m == 1 && items::are_shared(&mv, &loops);
    if mv.item_first
        && let [(column_loop, parts), ..] = loops.as_slice()
    {
        item.push(format!("const uint item = {};", column_loop.item("")));
        item.extend(read_blocks(&mv, column_loop, parts));
    }
    let mut segments = vec![];
    for (i, (columns, range)) in loops.iter().zip(&ranges).enumerate() {
        let inputs = Inputs { deferred: deferred.as_ref(), prefetched: prefetched.as_ref() };
        let hole = segment(&mut e, &mut used, &mv, (i, columns), inputs)?;
        segments
            .push(context! { range => context! { test => &range.test, column0 => &range.column0 }, ..hole });
    }
    let needs = others + mv.ty.bytes() * mv.slice_floats * mv.slices + used.shared_bytes(mv.workgroup);
    let has = e.caps.shared_memory_bytes;
    if needs > has {
        return Err(CodegenError::SharedMemory { what: "matvec".into(), needs, has });
    }
    if mv.source.is_packed() {
        e.uses().subgroups = true;
        e.extensions.extend(["GL_EXT_integer_dot_product", "GL_KHR_shader_subgroup_shuffle"]);
        e.extensions.insert("GL_KHR_shader_subgroup_vote");
    }
    let functions = [
        used.render(mv.workgroup, &mut e)?,
        quantize_results::functions_of_results(&mut e)?,
        reduced,
        staging.declarations,
    ];
    let folded = grid[1].most() > u64::from(grid[1].limit);
    let size = e.caps.scheduled_subgroup_size();
    let holes = context! {
        item => item.join("\n"), staging => staging.lines, segments, rounded, folded,
        batches => if folded { e.dim(&form.batch.numel()) } else { String::new() },
        batched => mv.source == Source::Memory, type => mv.ty.name(), slices => mv.slices, slice_floats => mv.slice_floats,
        // With integer dot products, subgroups number their invocations, so that those of a block are adjacent.
        lane => match mv.source.is_packed() {
            true => format!("gl_SubgroupID * {size}u + gl_SubgroupInvocationID"),
            false => "gl_LocalInvocationIndex".into(),
        },
    };
    finish(e, schedule, "matvec.comp", grid, functions.concat(), holes)
}

/// Emits the prologue. If it needs one pass over register-cached inputs and the products do not depend on it, emits only
/// the accumulation; the epilogue reduces the accumulators.
fn prologue_or_defer<'k>(
    e: &mut Emitter<'_>,
    used: &mut Used,
    mv: &Matvec<'_>,
    (group, cached): (u32, Option<&'k RowLoop>),
) -> Result<Option<Deferred<'k>>, CodegenError> {
    let once = passes(e.body, &mv.form.prologue).into_iter().all(|pass| pass == 1);
    match (mv.source, cached) {
        (Source::Blocks(_), Some(row_loop)) if once => {
            let reduces: Vec<_> = mv.form.prologue.iter().collect();
            let accumulators = row_loop.in_groups(e, |e| reduction::accumulate(e, &reduces, row_loop))?;
            Ok(Some(Deferred { accumulators, row_loop }))
        }
        _ => prologue(e, used, mv, (group, cached)).map(|()| None),
    }
}

/// The template's holes for one segment.
fn segment(
    e: &mut Emitter<'_>,
    used: &mut Used,
    mv: &Matvec<'_>,
    (number, columns): (usize, &(ColumnLoop, Vec<Part>)),
    inputs: Inputs<'_>,
) -> Result<Hole, CodegenError> {
    let segment = &mv.form.segments[number];
    let (column_loop, parts) = columns;
    let ((columns, epilogue), prelude) = e.scope(|e| {
        let last = e.dim(&(&segment.n - &Dim::one()));
        let mut by_rows = vec![];
        let (item, column) = match mv.source {
            Source::Memory => (
                items::read_memory(e, mv, (mv.ty.name(), column_loop.elements))?,
                weights::float_column(e, mv, segment, column_loop)?,
            ),
            Source::Floats => {
                let k0 = format!("const uint k0 = {} * {}u;", column_loop.clamped(), column_loop.elements);
                let row = (mv.m == 1).then(|| items::read_floats(mv, column_loop));
                ([k0].into_iter().chain(row).collect(), weights::float_column(e, mv, segment, column_loop)?)
            }
            Source::Bytes(_) | Source::Blocks(_) if mv.m > 1 => {
                by_rows = rows::packed_columns(e, mv, segment, columns, &last)?;
                (vec![], vec![])
            }
            Source::Bytes(_) | Source::Blocks(_) => {
                (read_blocks(mv, column_loop, parts), weights::packed_column(e, mv, segment, columns, &last)?)
            }
        };
        let several = !by_rows.is_empty();
        let holes = context! {
            type => mv.ty.name(), zero => mv.ty.int_literal(0), read_item => item.join("\n"), item_known => mv.item_first,
            product => column.join("\n"), by_rows, last, ..mv.reduce(e, used)?
        };
        let nest = column_loop.nest(segment.anchors.len() as u32 * mv.m, several, holes)?;
        Ok((nest, epilogue::emit(e, used, mv, number, inputs)?))
    })?;
    Ok(context! { prelude => prelude.join("\n"), columns, epilogue })
}
