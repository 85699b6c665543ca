//! Work partitioning for matvecs that stage activations in shared memory, or read them quantized. A workgroup owns a
//! tile of columns; each subgroup reduces one column at a time, or one K slice of it.

use minijinja::{Value as Hole, context};
use tallow_ir::cost;
use tallow_ir::form::{ContractionForm, spare_bytes};

use super::grid::columns_grid;
use crate::assemble::floor_pow2;
use crate::blocks::quantize_results;
use crate::emit::Emitter;
use crate::schedule::{Algorithm, Instruction, Schedule, Split, Tile};

/// Longest row for which each of two workgroups on a core stages its own copy of the activations.
const LONG_ROW: i64 = 8192;

/// Elements per invocation and step above which half a core's invocations have enough weights in flight.
const MANY_ELEMENTS: i64 = 32;

/// Widest tile, in columns.
const MAX_COLUMNS: u32 = 256;

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
fn sizes(e: &Emitter<'_>, form: &ContractionForm, elements: i64) -> [u32; 2] {
    let size = e.caps.scheduled_subgroup_size();
    let (long, many) = (form.k.max_value() > LONG_ROW, elements > MANY_ELEMENTS);
    let (wave, software) = (cost::workgroups_to_fill(e.caps), cost::runs_workgroups_on_one_thread(e.caps));
    // With one workgroup per core, target a full wave (H200, 14336 columns of Q4_0 with a barrier: 112 workgroups 13.6
    // us, 128 workgroups 12.5).
    let (workgroups, most) = match (software, long, many) {
        (true, _, _) | (false, true, false) => (wave, MAX_WORKGROUP),
        (false, false, _) => (2 * wave, MAX_WORKGROUP / 2),
        (false, true, true) => (wave, MAX_WORKGROUP / 2),
    };
    let items = (form.k.max_value() / elements) as u32;
    let useful = if software {
        // One invocation per eight activations to stage.
        (form.m.max_value() * form.k.max_value() / 8).min(MAX_WORKGROUP.into()) as u32
    } else if !quantize_results::formats(e).is_empty() {
        // Quantized results need tiles of whole blocks, which have many columns. Then use as many subgroups as
        // possible, so that they are not computed one after another.
        MAX_WORKGROUP
    } else {
        let parts = floor_pow2(items.div_ceil(size).min(MAX_PARTS));
        (wanted(e, form, workgroups) * parts * size).min(most)
    };
    let workgroup = floor_pow2(useful.clamp(MIN_WORKGROUP, MAX_WORKGROUP));
    let wide = e.caps.subgroup_size_min >= 64;
    let most = if wide { MAX_WORKGROUP_OF_WIDE } else { MAX_WORKGROUP }.min(e.caps.max_workgroup_invocations);
    [workgroup.min(floor_pow2(most)).max(size), workgroups]
}

/// Columns per tile that leave this many workgroups.
fn wanted(e: &Emitter<'_>, form: &ContractionForm, workgroups: u32) -> u32 {
    let columns: i64 = form.segments.iter().map(|s| s.n.max_value()).sum();
    let wanted = (columns as u64).div_ceil(workgroups.max(1).into());
    wanted.clamp(1, MAX_COLUMNS.min(room(e, form)).max(1).into()) as u32
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

/// How the columns and K slices of a kernel are divided among workgroups and subgroups.
pub(crate) struct Partition {
    pub workgroup: u32,
    /// Columns per workgroup.
    tile: u32,
    /// K slices; each is reduced by a different subgroup.
    pub parts: u32,
    /// Subgroup size.
    size: u32,
    /// Elements per row.
    row: u32,
}

/// The loop of a subgroup over its columns in one segment, as template parameters. It computes `together` columns at a
/// time while it steps along K, so that each read of activations serves all of them.
pub(crate) struct ColumnLoop {
    pub tile: u32,
    /// Contiguous elements that an invocation multiplies at a time: an item.
    pub elements: u32,
    /// Columns that a subgroup computes together, and the number of passes over the tile, of one column each.
    pub together: u32,
    pub passes: String,
    /// Whether it computes all its columns together.
    pub once: bool,
    /// Steps along K, if there are several.
    pub steps: Option<String>,
    /// Prefetch distance of the weights, in columns.
    pub depth: u32,
    /// Number of register buffers for weights of columns. One more than `depth` if the next loads are issued before the
    /// current column is unpacked. Then no loop iteration ends with a wait for one of these registers.
    pub slots: u32,
    /// Whether a subgroup has one column in several steps. It then prefetches and unrolls `depth` steps instead of
    /// columns.
    pub along: bool,
    /// GLSL condition that the workgroup belongs to the segment, and its first column.
    pub here: String,
    pub column0: String,
    /// The item at step `along`, and the column of pass `pass`, as GLSL expressions.
    pub item: String,
    pub column: String,
    /// Whether the passes cover the tile exactly.
    pub even: bool,
    /// Whether the passes are unrolled.
    pub written: bool,
    /// Items per row, and whether the steps cover them exactly.
    pub items: u32,
    pub whole: bool,
    /// A description of the loop, for a comment in the kernel.
    pub comment: String,
}

impl ColumnLoop {
    /// The item, clamped to the last of the row.
    pub fn clamped(&self) -> String {
        if self.whole { "item".into() } else { format!("min(item, {}u)", self.items - 1) }
    }

    /// The accumulator of anchor `number`, one of `accs` per column, with `m` rows.
    pub fn acc(&self, accs: u32, m: u32, number: u32) -> String {
        let column = match (self.together, self.once) {
            (1, _) => None,
            (_, true) => Some("pass"),
            (_, false) => Some("u"),
        };
        let row = match (accs, m) {
            (1, _) => None,
            (_, 1) => Some(number.to_string()),
            (_, _) if number == 0 => Some("m".into()),
            _ => Some(format!("{}u + m", number * m)),
        };
        match (column, row) {
            (None, row) => format!("acc[{}]", row.unwrap_or("0".into())),
            (Some(column), None) => format!("acc[{column}]"),
            (Some(column), Some(row)) => format!("acc[{column} * {accs}u + {row}]"),
        }
    }

    /// The template's holes.
    pub fn holes(&self) -> Hole {
        context! {
            tile => self.tile, together => self.together, passes => &self.passes, once => self.once, steps => &self.steps,
            depth => self.depth, slots => self.slots, along => self.along, here => &self.here, column0 => &self.column0, item => &self.item, column => &self.column,
            even => self.even, written => self.written, whole => self.whole, items => self.items, comment => &self.comment,
        }
    }
}

/// Limits for unrolling a column loop.
#[derive(Clone, Copy)]
pub(crate) struct Unroll {
    /// Maximum number of columns that a subgroup computes together.
    pub together: u32,
    /// Maximum prefetch distance of the weights, in columns.
    pub depth: u32,
    /// Maximum number of passes to unroll if they cannot be computed together; unrolled passes have separate registers
    /// for the next column's weights.
    pub written: u32,
}

/// How a staged matvec multiplies: the instruction, and the elements of a row per invocation and step.
#[derive(Clone, Copy)]
pub(crate) struct Products {
    pub instruction: Instruction,
    pub elements: i64,
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
        ..Schedule::new(Algorithm::StagedMatvec, workgroup)
    };
    let widest = form.segments.iter().map(|s| s.tile).max().unwrap_or(1).max(1);
    // With more slices, a pass covers fewer columns, so that passes fit the wanted tile more closely.
    let steps = |parts: u32| items.div_ceil(size * parts);
    let cost = |parts: u32| {
        let passes = wanted.next_multiple_of(widest).div_ceil(subgroups / parts);
        let reads = if steps(parts) == 1 { 1 } else { passes * steps(parts) };
        PRODUCTS * passes * steps(parts) + SUM * passes + READ * reads
    };
    let spare = spare_bytes(e.caps) / (4 * sums(form) * widest);
    let most = subgroups.min(steps(1)).min(room(e, form) / wanted).min(spare).clamp(1, MAX_PARTS);
    let mut all: Vec<u32> = (0..=most.ilog2()).map(|log| 1 << log).collect();
    all.sort_by_key(|parts| cost(*parts));
    all.into_iter().map(schedule).collect()
}

/// The cost model's default. Never `None`, as one slice is always possible.
pub(crate) fn first(e: &Emitter<'_>, form: &ContractionForm, products: Products) -> Option<Schedule> {
    by_cost(e, form, products, sizes(e, form, products.elements)).first().copied()
}

/// The candidate schedules, the cost model's default first: smaller workgroups, of which several fit on a core,
/// narrower tiles, and other numbers of slices. Small kernels may yield duplicates.
pub(crate) fn schedules(e: &Emitter<'_>, form: &ContractionForm, products: Products) -> Vec<Schedule> {
    let [workgroup, workgroups] = sizes(e, form, products.elements);
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

impl Partition {
    /// The partition of a schedule, for rows of `row` elements.
    pub fn new(e: &Emitter<'_>, row: u32, schedule: Schedule) -> Partition {
        let size = e.caps.scheduled_subgroup_size();
        Partition {
            workgroup: schedule.workgroup,
            tile: schedule.tile.n,
            parts: schedule.split.slices,
            size,
            row,
        }
    }

    /// The tile of each segment: a multiple of what its epilogue needs together, widened if the grid limit requires it.
    pub fn tiles(&self, e: &Emitter<'_>, form: &ContractionForm) -> Vec<u32> {
        let limit = e.caps.max_workgroup_count[0];
        let mut tiles: Vec<u32> =
            form.segments.iter().map(|s| self.tile.next_multiple_of(s.tile.max(1))).collect();
        while columns_grid(form, &tiles, limit).most() > u64::from(limit) && tiles[0] < MAX_COLUMNS {
            tiles.iter_mut().for_each(|t| *t *= 2);
        }
        tiles
    }

    /// Offset of a K slice's partials in shared memory, as a GLSL prefix to the index of a sum.
    pub fn part_at(&self, part_floats: u32) -> String {
        match self.parts {
            1 => String::new(),
            parts => format!("gl_SubgroupID % {parts}u * {part_floats}u + "),
        }
    }

    /// The column loop for a segment with tiles of `tile` columns, multiplying `elements` elements at a time. `before`
    /// has the workgroup counts of the preceding segments, `groups` that of this one.
    pub fn column_loop(
        &self,
        tile: u32,
        elements: u32,
        unroll: Unroll,
        before: &[String],
        groups: &str,
    ) -> ColumnLoop {
        let sum = |terms: &[String]| {
            let number = |t: &String| t.strip_suffix('u').and_then(|t| t.parse::<u64>().ok());
            let numbers: Option<Vec<u64>> = terms.iter().map(number).collect();
            numbers.map_or(terms.join(" + "), |n| format!("{}u", n.iter().sum::<u64>()))
        };
        let (first, end) = (sum(before), sum(&[before, &[groups.to_string()]].concat()));
        let (here, column0) = match before {
            [] => (format!("group < {end}"), format!("group * {tile}u")),
            _ => (format!("group >= {first} && group < {end}"), format!("(group - ({first})) * {tile}u")),
        };
        let items = self.row.div_ceil(elements);
        let (size, parts) = (self.size, self.parts);
        let (lanes, steps) = (self.workgroup / size / parts, items.div_ceil(size * parts));
        let passes = tile.div_ceil(lanes);
        // The number that leaves the fewest unused passes; the largest of equals.
        let fewest = |t: &u32| (passes.next_multiple_of(*t), u32::MAX - t);
        let together = (1..=unroll.together.clamp(1, passes)).min_by_key(fewest).unwrap_or(1);
        let written = together == 1 && steps == 1 && (2..=unroll.written).contains(&passes);
        let once = together == passes;
        let along = passes == 1 && steps > 1;
        let divides = |depth: &u32| (once && steps == 1) || together.is_multiple_of(*depth);
        let depth = match along {
            true => (1..=unroll.depth).rev().find(|depth| steps.is_multiple_of(*depth)).unwrap_or(1),
            false => (1..=unroll.depth.min(together)).rev().find(divides).unwrap_or(1),
        };
        let in_loop = (2..=(unroll.depth + 1).min(together)).rev().find(|n| together.is_multiple_of(*n));
        let (depth, slots) = match in_loop.filter(|_| !along && !once) {
            Some(slots) => (slots - 1, slots),
            None if written => (1, 2),
            None => (depth, depth),
        };
        let whole = items == steps * size * parts;
        let slot = if parts == 1 { "gl_SubgroupID".into() } else { format!("gl_SubgroupID / {parts}u") };
        let offset = match (parts, steps) {
            (1, _) => String::new(),
            (_, 1) => format!("gl_SubgroupID % {parts}u"),
            _ => format!("gl_SubgroupID % {parts}u * {steps}u"),
        };
        let step = if steps == 1 { "" } else { "along" };
        let item = match (offset.as_str(), step) {
            ("", "") => "gl_SubgroupInvocationID".into(),
            ("", one) | (one, "") => format!("{one} * {size}u + gl_SubgroupInvocationID"),
            _ => format!("({offset} + along) * {size}u + gl_SubgroupInvocationID"),
        };
        let who =
            if parts == 1 { "Each subgroup takes".into() } else { format!("Each {parts} subgroups take") };
        let columns = match (together, once) {
            (1, _) => "a column at a time".to_string(),
            (_, true) => format!("{together} columns"),
            (_, false) => format!("{together} columns at a time"),
        };
        let part = if parts == 1 { "" } else { ", a part of each," };
        let comment = match steps {
            1 => format!("{who} {columns}{}.", part.trim_end_matches(',')),
            _ => format!("{who} {columns}{part} in {steps} steps."),
        };
        ColumnLoop {
            tile,
            elements,
            together,
            passes: format!("{passes}u"),
            once,
            steps: (steps > 1).then(|| format!("{steps}u")),
            depth,
            slots,
            along,
            here,
            column0,
            item,
            column: if passes == 1 { slot } else { format!("{slot} + pass * {lanes}u") },
            even: tile.is_multiple_of(lanes) && passes.is_multiple_of(together),
            written,
            items,
            whole,
            comment,
        }
    }
}
