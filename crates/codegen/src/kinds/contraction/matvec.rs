//! Matvec: few rows of activations times weights. A workgroup computes a tile of columns; its invocations split K.

use minijinja::{Value as Hole, context};
use tallow_ir::cost;
use tallow_ir::form::{ContractionForm, Segment, spare_bytes};
use tallow_ir::index::Index;
use tallow_ir::{DeviceCaps, Dim, ReduceKind};

use super::column_groups;
use super::epilogue;
use super::grid::{columns_grid, segment_groups};
use super::operands::{accumulator, left_at, right};
use super::prologue::{QUAD, prologue};
use super::sums::{self, EpilogueInputs, Sums};
use crate::assemble::{Parts, finish, floor_pow2, whole};
use crate::blocks::{operand, quantize_results, reduction};
use crate::emit::Emitter;
use crate::kernel::{CodegenError, Count, Kernel};
use crate::scalar::Glsl;
use crate::schedule::{Algorithm, Schedule, Tile};

/// Columns per tile, unless an epilogue needs more together.
const TILE: u32 = 4;

/// Columns per tile if all workgroups are resident at once and still fill the device.
const WIDE_TILE: u32 = 8;

/// Waves of workgroups that are resident at once: a core holds four small ones. If there is a prologue, tiles should leave
/// this many workgroups.
const WAVES: u32 = 4;

/// Workgroups that are resident at once, half of which wide tiles should leave. A thread of a software device has one.
fn at_once(caps: &DeviceCaps) -> i64 {
    match cost::runs_workgroups_on_one_thread(caps) {
        true => caps.cores.into(),
        false => cost::workgroups_of_waves(caps, WAVES).into(),
    }
}

/// Widest tile if there is a prologue.
const MAX_PROLOGUE_TILE: u32 = 32;

/// Widest tile, for results with more columns than the grid has workgroups: 65535 workgroups then cover 16 million
/// columns.
const MAX_COLUMNS: u32 = 256;

/// Columns that an invocation accumulates at once, reusing each activation that it loads. The first constant is for a
/// single row and matrix whose weights need no unpacking, the second for all other matvecs.
const COLUMNS: u32 = 8;
const COLUMNS_OF_MANY: u32 = 4;

/// Maximum number of invocations that share one column. 128 lanes of eight elements cover 1024 elements of K per step;
/// more lanes only lengthen the final reduction.
///
/// If all workgroups are resident at once, the limit is twice as high, because then the bytes in flight decide. (H200,
/// F16: kernels of a decode step of the 8B shape, whose output and down projections have 4096 columns, on two GPUs.
/// Workgroups of 128 with four columns: 3978 to 4005 us on the first; with eight: 4046. Workgroups of 256 with four
/// columns: 3929 and 3868; with eight: 3824 on the second. But 14336 columns back to back take 27.4 us in workgroups of
/// 128 with four columns, and 28.0 in 256 with eight.)
const MAX_WORKGROUP: u32 = 128;

/// Elements of K per invocation and step: eight if K is a multiple of eight, so that weights load in vectors of eight.
fn step(form: &ContractionForm) -> u32 {
    if form.k.as_const().is_some_and(|k| k % operand::WIDE == 0) { operand::WIDE as u32 } else { 1 }
}

/// Whether the kernel is bound by the bandwidth of its weights. Formats that are slow to unpack do not gain from wide
/// tiles, or lose up to 3 %.
fn streams(e: &Emitter<'_>, form: &ContractionForm) -> bool {
    let mut anchors = form.segments.iter().flat_map(|s| &s.anchors);
    form.prologue.is_empty() && anchors.all(|id| operand::streams(e.body, e.body.node(*id).operands[1]))
}

/// The cost model's default schedule.
fn first(e: &Emitter<'_>, form: &ContractionForm) -> Schedule {
    let step = step(form);
    let chunks = u32::try_from(form.k.max_value()).unwrap_or(u32::MAX) / step;
    let of_batch: i64 = form.segments.iter().map(|s| s.n.max_value()).sum();
    let all = of_batch.saturating_mul(form.batch.numel().max_value().max(1));
    let wanted = at_once(e.caps);
    let at_once = streams(e, form) && all <= i64::from(WIDE_TILE) * wanted;
    let share = match (cost::runs_workgroups_on_one_thread(e.caps), at_once) {
        (false, true) => 2 * MAX_WORKGROUP,
        (false, false) => MAX_WORKGROUP,
        // A CPU runs a workgroup on one thread. With several subgroups, each barrier of the final reduction costs a
        // switch between them; with one subgroup there is no barrier.
        (true, _) => e.caps.scheduled_subgroup_size(),
    };
    let most = floor_pow2(e.caps.max_workgroup_invocations.min(share));
    let workgroup =
        floor_pow2(chunks).clamp(floor_pow2(e.caps.scheduled_subgroup_size().max(8)).min(most), most);
    let columns = match form.prologue.is_empty() {
        true if at_once && 2 * all >= i64::from(WIDE_TILE) * wanted => WIDE_TILE,
        true => TILE,
        // Each workgroup repeats the prologue, so many columns are better covered by fewer workgroups with wider tiles.
        false => {
            let wide =
                (of_batch / i64::from(cost::workgroups_of_waves(e.caps, WAVES))).clamp(1, 1 << 16) as u32;
            floor_pow2(wide).clamp(TILE, MAX_PROLOGUE_TILE)
        }
    };
    let m = form.m.max_value() as u32;
    let schedule = Schedule::new(Algorithm::Matvec, workgroup);
    Schedule { tile: Tile { m, n: columns, k: 0 }, ..schedule }
}

/// The candidate schedules: more or fewer invocations per column, and wider or narrower tiles.
pub(crate) fn schedules(e: &Emitter<'_>, form: &ContractionForm) -> Vec<Schedule> {
    let first = first(e, form);
    let least = e.caps.scheduled_subgroup_size().max(8);
    let most = e.caps.max_workgroup_invocations.min(2 * MAX_WORKGROUP);
    let mut all = vec![first];
    let (w, c) = (first.workgroup, first.tile.n);
    for (workgroup, columns) in
        [(w, 2 * c), (w, c / 2), (2 * w, c), (w / 2, c), (2 * w, c / 2), (w / 2, 2 * c), (w, c / 4)]
    {
        if (least..=most).contains(&workgroup) && (1..=MAX_PROLOGUE_TILE).contains(&columns) {
            all.push(Schedule { workgroup, tile: Tile { n: columns, ..first.tile }, ..first });
        }
    }
    all
}

pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &ContractionForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let (ty, dtype) = accumulator(&e, form)?;
    let m = form.m.as_const().unwrap_or(1) as u32;
    let (step, workgroup) = (step(form), schedule.workgroup);
    let mut used = reduction::Used::default();
    let batch = e.atom(&form.batch.numel(), "batch");
    prologue(&mut e, &mut used, form, m, (workgroup, QUAD), None)?;
    let buffers: Vec<usize> = (0..e.body.outputs().len()).map(|o| e.result(o as u32)).collect();
    let limits = e.caps.max_workgroup_count;
    let mut tiles: Vec<u32> =
        form.segments.iter().map(|s| schedule.tile.n.next_multiple_of(s.tile.max(1))).collect();
    let mut grid = [
        columns_grid(form, &tiles, limits[0]),
        Count { value: form.batch.numel(), per: 1, limit: limits[1] },
        Count { value: form.batch.numel(), per: limits[1], limit: limits[2] },
    ];
    // Widen the tiles if the columns exceed the grid limit.
    while grid[0].most() > u64::from(limits[0]) && tiles.iter().all(|t| *t < MAX_COLUMNS) {
        tiles.iter_mut().for_each(|t| *t *= 2);
        grid[0] = columns_grid(form, &tiles, limits[0]);
    }
    // y and z together index the batch; z is used only if the batch exceeds the limit along y.
    let folded = grid[1].most() > u64::from(limits[1]);
    let batches = if folded { e.dim(&form.batch.numel()) } else { String::new() };
    whole("matvec", &[grid[0].clone(), grid[2].clone(), Count::constant(1)])?;
    let (mut segments, mut text) = (vec![], String::new());
    let tile_floats = sums::part_floats(form, m, &tiles);
    let rounded = quantize_results::waiting(&e, form, m, &tiles);
    let (reduced, reduced_bytes) = column_groups::declarations(&e, form, &tiles)?;
    // If shared memory has room, subgroups store partials for the epilogue to combine. The workgroup then synchronizes
    // once per tile, not once per column.
    let size = e.caps.scheduled_subgroup_size();
    let fixed = e.caps.has_fixed_subgroup_size() && size.is_power_of_two();
    let subgroups = workgroup / size;
    let (own, others) = (4 * tile_floats * subgroups, 4 * rounded.iter().sum::<u32>() + reduced_bytes);
    let beside = own + others + used.shared_bytes(workgroup);
    let room = own <= spare_bytes(e.caps) && beside <= e.caps.shared_memory_bytes;
    let able = ty == Glsl::Float && fixed && e.caps.subgroup_shuffle;
    let parts = if able && room && subgroups > 1 { subgroups } else { 1 };
    let sum = if parts == 1 { used.value(ReduceKind::Sum, ty, dtype) } else { String::new() };
    if parts > 1 {
        e.extensions.insert("GL_KHR_shader_subgroup_shuffle");
    }
    for (segment, &tile) in form.segments.iter().zip(&tiles) {
        let n_groups = segment_groups(&mut e, segment, tile);
        segments.push(segment_holes(
            &mut e,
            form,
            segment,
            &batch,
            (
                &Sums {
                    m,
                    tile,
                    workgroup,
                    parts,
                    part_floats: tile_floats,
                    around: EpilogueInputs::default(),
                },
                ty,
                step,
                n_groups,
            ),
            &buffers,
            (&mut used, &mut text),
        )?);
    }
    let (needs, has) = (
        ty.bytes() * tile_floats * parts
            + 4 * rounded.iter().sum::<u32>()
            + reduced_bytes
            + used.shared_bytes(workgroup),
        e.caps.shared_memory_bytes,
    );
    if needs > has {
        return Err(CodegenError::SharedMemory { what: "matvec".into(), needs, has });
    }
    let k = e.dim(&form.k);
    let functions =
        used.render(workgroup, e.caps)? + &quantize_results::functions_of_results(&mut e)? + &reduced;
    let parts = Parts {
        schedule,
        template: "matvec.comp",
        grid,
        functions,
        text,
        holes: context! {
            segments => segments, m => m, step => step, k => k, tile_floats => tile_floats, folded => folded,
            rounded => rounded,
            batches => batches, type => ty.name(), zero => ty.int_literal(0), sum => sum, parts, size,
        },
    };
    finish(e, parts)
}

/// Code that loads the activations of a step: lines per row, per vector and per element, and the element's value.
struct Activations {
    row: String,
    group: String,
    element: String,
    value: String,
}

/// Loads them in vectors of `size` elements, with the vector index `g` and the element index `j`, or one by one at
/// index `k`. `group` is empty if nothing can be loaded per vector.
fn activations(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    batch: &Index,
    size: u32,
) -> Result<Activations, CodegenError> {
    e.open(); // one row
    let row = e.atom(&form.m, "m");
    e.open(); // one vector
    let g = (size > 1).then(|| e.atom(&Dim::constant(form.k.max_value() / i64::from(size)), "g"));
    let j = g.is_some().then(|| e.set_group(size));
    e.open(); // one element
    let k = match (g, j) {
        (Some(g), Some(j)) => {
            let j = e.bind_atom(j, "j");
            e.atoms.add(&g.scale(&Dim::constant(size.into())), &j)
        }
        _ => e.atom(&form.k, "k"),
    };
    let at = left_at(e, form, batch, &row, &k);
    let value = e.value(form.lhs, &at)?.text;
    e.group = None;
    let mut lines = || e.close().join("\n");
    Ok(Activations { element: lines(), group: lines(), row: lines(), value })
}

fn segment_holes(
    e: &mut Emitter<'_>,
    form: &ContractionForm,
    segment: &Segment,
    batch: &Index,
    (sums, ty, step, groups): (&Sums, Glsl, u32, String),
    buffers: &[usize],
    (used, text): (&mut reduction::Used, &mut String),
) -> Result<Hole, CodegenError> {
    let (m, tile) = (sums.m, sums.tile);
    let alone = m as usize * segment.anchors.len() == 1;
    let most = if alone && streams(e, form) { COLUMNS } else { COLUMNS_OF_MANY };
    let columns = (1..=most).rev().find(|columns| tile % columns == 0).unwrap_or(1);
    e.open(); // the segment
    e.open(); // one step along K
    let quads = step % QUAD == 0;
    let side_by_side = if quads { Some(activations(e, form, batch, QUAD)?) } else { None };
    let x = match side_by_side.filter(|x| !x.group.is_empty()) {
        Some(x) => x,
        None => activations(e, form, batch, 1)?,
    };
    let k_lines = e.close().join("\n");
    let mut anchors = vec![];
    for (i, id) in segment.anchors.iter().enumerate() {
        let load = right(e, form, *id, batch, step)?;
        text.push_str(&load);
        let comment = format!("%{} = {}", id.0, e.body.node_text(*id));
        let acc = format!("acc[({}u + m) * {columns}u + r]", i as u32 * m);
        let step = ty.multiply_add("w[j]", &format!("x[m * {step}u + j]"), &acc);
        anchors.push(context! { load => load, comment => comment, acc => acc, step => step });
    }
    let (prelude, end) = epilogue::end(e, used, form, segment, batch, buffers, sums)?;
    let last = e.dim(&(&segment.n - &Dim::one()));
    for part in [&x.element, &x.group, &x.row, &k_lines, &x.value, &end, &prelude] {
        text.push_str(part);
    }
    Ok(context! {
        groups => groups, tile => tile, columns => columns, accs => segment.anchors.len() as u32 * m * columns,
        x_lines => x.element, group_lines => x.group, m_lines => x.row, k_lines, x => x.value, anchors,
        prelude => prelude, last => last, end => end,
    })
}
