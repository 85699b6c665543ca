//! Schedules of matvecs that stage activations in shared memory, or read them quantized. A workgroup owns a tile of
//! columns; each subgroup reduces one column at a time, or one K slice of it.

use tallow_ir::cost;
use tallow_ir::form::{ContractionForm, spare_bytes};

use super::grid::MAX_COLUMNS;
use crate::assemble::floor_pow2;
use crate::blocks::quantize_results;
use crate::emit::Emitter;
use crate::instruction::Instruction;
use crate::schedule::{Algorithm, Schedule, Split, Tile};

/// Longest row for which each of two workgroups on a core stages its own copy of the activations.
const LONG_ROW: i64 = 8192;

/// Elements per invocation and step above which half a core's invocations have enough weights in flight.
const MANY_ELEMENTS: i64 = 32;

/// Maximum number of K slices.
const MAX_PARTS: u32 = 8;

/// Costs of a subgroup, in units of about two instructions: one step along K, the reduction of a column over its lanes,
/// and one read of its activations. If its K slice takes one step, the activations are read only once.
///
/// `SUM` and `READ` are fitted to a decode step on an H200, Q4_0 with rows of 4096: 28672 columns in 4 slices take 0.7
/// us less than in 2, 6144 columns 0.5 us less; 4096 columns take 0.4 us more than in one slice.
const PRODUCTS: u32 = 20;
const SUM: u32 = 5;
const READ: u32 = 4;

/// The reduction of a column and row over the lanes, if there are several rows. Each of the sums of a lane takes part in
/// one exchange with another lane (two selections, a shuffle, an addition), where a single sum takes part in five.
const SUM_OF_SEVERAL: u32 = 2;

/// Maximum and minimum workgroup size, in invocations.
const MAX_WORKGROUP: u32 = 1024;
pub(crate) const MIN_WORKGROUP: u32 = 128;

/// Maximum workgroup size if subgroups have 64 invocations or more. A compute unit of CDNA or GCN has four SIMD units
/// with 256 vector registers per lane. A workgroup of 1024 puts four subgroups on each SIMD unit, which leaves 64
/// registers, but kernels use up to 84. (Mesa 22.3, gfx90a: in Q4_K_M, gate and up of a feed-forward layer spill 14
/// registers.) RDNA, whose subgroups may have 32 invocations, has twice the registers.
const MAX_WORKGROUP_OF_WIDE: u32 = 512;

/// The workgroup size and the target number of workgroups, if an invocation multiplies `elements` elements of a row at
/// a time.
///
/// On a GPU, two workgroups of half the maximum size share a core: one stages its activations while the other reads
/// weights. Long rows take so long to stage that only one workgroup per core does it. It has the maximum size, or half
/// of it if each invocation has enough weights in flight.
///
/// H200, us, for one workgroup of 1024 invocations per SM, two of 512, and one of 512. With a barrier: 14336 columns of
/// 4096 in Q4_K 12.4, 12.3 and 16.0; 4096 columns of 14336 in Q4_K 14.0, 14.1 and 14.1, in Q4_0 14.7, 15.8 and 16.0.
/// Back to back: the first 9.1, 8.5 and 9.4, the second 10.6, 10.3 and 8.5.
fn sizes(e: &Emitter<'_>, form: &ContractionForm, products: Products) -> [u32; 2] {
    let (elements, several) = (products.elements, products.combined.is_some());
    let size = e.caps.scheduled_subgroup_size();
    // Several rows take as long to stage as a long one. An invocation then has the weights of several columns in flight.
    let (long, many) = (several || form.k.max_value() > LONG_ROW, several || elements > MANY_ELEMENTS);
    let (wave, software) = (cost::workgroups_to_fill(e.caps), cost::runs_workgroups_on_one_thread(e.caps));
    // With one workgroup per core, target a full wave (H200, 14336 columns of Q4_0 with a barrier: 112 workgroups 13.6
    // us, 128 workgroups 12.5).
    let items = (form.k.max_value() / elements) as u32;
    // An epilogue over whole heads leaves one tile for each. If there are fewer than cores, none shares its core. (H100, Q4_K,
    // heads of 128, us for 512 and 1024 invocations: 7680 columns of 5120 take 20.0 and 17.1; 5120 columns of 2048, which a
    // subgroup multiplies in one step, 9.8 and 10.0.)
    let least = widest(form);
    let few = !several && least > 1 && items > size && columns(form).div_ceil(least.into()) <= wave.into();
    let (workgroups, most) = match (software, few, long, many) {
        (true, _, _, _) | (false, true, _, _) | (false, false, true, false) => (wave, MAX_WORKGROUP),
        (false, false, false, _) => (2 * wave, MAX_WORKGROUP / 2),
        (false, false, true, true) => (wave, MAX_WORKGROUP / 2),
    };
    let useful = if software {
        // One invocation per eight activations to stage.
        (form.m.max_value() * form.k.max_value() / 8).min(MAX_WORKGROUP.into()) as u32
    } else if !quantize_results::formats(e).is_empty() {
        // Quantized results need tiles of whole blocks, which have many columns. Then use as many subgroups as
        // possible, so that they are not computed one after another.
        MAX_WORKGROUP
    } else {
        let parts = floor_pow2(items.div_ceil(size).min(MAX_PARTS));
        let tile = if few { wanted(e, form, workgroups).max(least) } else { wanted(e, form, workgroups) };
        (tile * parts * size).min(most)
    };
    let largest = if several && !software { MAX_WORKGROUP / 2 } else { MAX_WORKGROUP };
    let workgroup = floor_pow2(useful.clamp(MIN_WORKGROUP, largest));
    let wide = e.caps.subgroup_size_min >= 64;
    let most = if wide { MAX_WORKGROUP_OF_WIDE } else { MAX_WORKGROUP }.min(e.caps.max_workgroup_invocations);
    [workgroup.min(floor_pow2(most)).max(size), workgroups]
}

/// Columns per tile that leave this many workgroups.
fn wanted(e: &Emitter<'_>, form: &ContractionForm, workgroups: u32) -> u32 {
    let wanted = columns(form).div_ceil(workgroups.max(1).into());
    wanted.clamp(1, MAX_COLUMNS.min(room(e, form)).max(1).into()) as u32
}

/// Columns of all segments.
fn columns(form: &ContractionForm) -> u64 {
    form.segments.iter().map(|s| s.n.max_value().unsigned_abs()).sum()
}

/// Columns that an epilogue needs together, at least: those of a head, for example.
fn widest(form: &ContractionForm) -> u32 {
    form.segments.iter().map(|s| s.tile).max().unwrap_or(1).max(1)
}

/// Columns whose sums fit in a sixteenth of the shared memory.
fn room(e: &Emitter<'_>, form: &ContractionForm) -> u32 {
    e.caps.shared_memory_bytes / 64 / sums(form)
}

/// Sums per column, for the segment that has the most; at least 1.
fn sums(form: &ContractionForm) -> u32 {
    let anchors = form.segments.iter().map(|s| s.anchors.len() as u32).max().unwrap_or(1);
    (form.m.max_value() as u32 * anchors).max(1)
}

/// Smallest workgroup among the candidates.
const LEAST_TRIED: u32 = 64;

/// How a staged matvec multiplies: the instruction, the elements of a row per invocation and step, the prefetch distance
/// in columns, and the columns that share each read of a row if there are several rows.
#[derive(Clone, Copy)]
pub(crate) struct Products {
    pub instruction: Instruction,
    pub elements: i64,
    pub prefetch: u32,
    pub combined: Option<u32>,
}

/// Schedules with this workgroup size and about this number of workgroups: one per possible number of K slices, the
/// cheapest first.
fn by_cost(
    e: &Emitter<'_>,
    form: &ContractionForm,
    products: Products,
    [workgroup, workgroups]: [u32; 2],
) -> Vec<Schedule> {
    let items = (form.k.max_value() / products.elements) as u32;
    let wanted = wanted(e, form, workgroups);
    let (size, subgroups) = (e.caps.scheduled_subgroup_size(), workgroup / e.caps.scheduled_subgroup_size());
    // Tiles are a multiple of the columns per pass.
    let schedule = |slices| Schedule {
        instruction: Some(products.instruction),
        tile: Tile { m: form.m.max_value() as u32, n: wanted.next_multiple_of(subgroups / slices), k: 0 },
        split: Split { slices, above: 0 },
        prefetch: products.prefetch,
        ..Schedule::new(Algorithm::StagedMatvec, workgroup)
    };
    let widest = widest(form);
    // With more slices, a pass covers fewer columns, so that passes fit the wanted tile more closely.
    let steps = |parts: u32| items.div_ceil(size * parts);
    let rows = form.m.max_value() as u32;
    let cost = |parts: u32| {
        let passes = wanted.next_multiple_of(widest).div_ceil(subgroups / parts);
        let (sum, reads) = match products.combined {
            Some(columns) => (SUM_OF_SEVERAL, passes.div_ceil(columns) * steps(parts)),
            None if steps(parts) == 1 => (SUM, 1),
            None => (SUM, passes * steps(parts)),
        };
        rows * (PRODUCTS * passes * steps(parts) + sum * passes + READ * reads)
    };
    let spare = spare_bytes(e.caps) / (4 * sums(form) * widest);
    let most = subgroups.min(steps(1)).min(room(e, form) / wanted).min(spare).clamp(1, MAX_PARTS);
    let mut all: Vec<u32> = (0..=most.ilog2()).map(|log| 1 << log).collect();
    all.sort_by_key(|parts| cost(*parts));
    all.into_iter().map(schedule).collect()
}

/// The cost model's default. Never `None`, as one slice is always possible.
pub(crate) fn first(e: &Emitter<'_>, form: &ContractionForm, products: Products) -> Option<Schedule> {
    by_cost(e, form, products, sizes(e, form, products)).first().copied()
}

/// The candidate schedules, the cost model's default first: smaller workgroups, of which several fit on a core,
/// narrower tiles, and other numbers of slices. Small kernels may yield duplicates.
pub(crate) fn schedules(e: &Emitter<'_>, form: &ContractionForm, products: Products) -> Vec<Schedule> {
    let [workgroup, workgroups] = sizes(e, form, products);
    let sizes =
        [[1, 1], [2, 2], [4, 4], [1, 2], [2, 1], [2, 4], [1, 4]].into_iter().filter_map(|[smaller, more]| {
            let least = if smaller == 1 { 0 } else { LEAST_TRIED.max(e.caps.scheduled_subgroup_size()) };
            let sizes = [workgroup / smaller, workgroups * more];
            (sizes[0] >= least).then(|| by_cost(e, form, products, sizes))
        });
    let sizes: Vec<Vec<Schedule>> = sizes.collect();
    // The best split of each size first, then the second best.
    let most = sizes.iter().map(Vec::len).max().unwrap_or(0);
    (0..most).flat_map(|rank| sizes.iter().filter_map(move |all| all.get(rank).copied())).collect()
}
