//! How matvecs that prepare their activations in shared memory share out columns: each workgroup a tile of them, each
//! subgroup one at a time, or a part of it.

use minijinja::{Value as Hole, context};
use tallow_ir::cost;
use tallow_ir::form::{ContractionForm, spare_bytes};

use super::grid::columns_grid;
use crate::assemble::floor_pow2;
use crate::blocks::quantize_results;
use crate::emit::Emitter;
use crate::schedule::{Algorithm, Instruction, Schedule, Split, Tile};

/// Waves of workgroups on a software device. Tests run there: its tiles are to be as narrow as those of a large GPU.
const SOFTWARE_WAVES: u32 = 8;

/// Longest row that two workgroups of a multiprocessor prepare each for itself.
const LONG_ROW: i64 = 8192;

/// Elements of which more at a time are many.
const MANY_ELEMENTS: i64 = 32;

/// Widest tile.
const MAX_COLUMNS: u32 = 256;

/// Most parts of the inner extent.
const MAX_PARTS: u32 = 8;

/// What a step along a row costs a subgroup, the sum of a column over its lanes, and reading its part of the activations, which it
/// does once if there is one step. In about 2 instructions; the latter two fit what was measured in a decode step (H200, Q4_0 of 4096:
/// 28672 columns in 4 parts 0.7 us less than in 2, 6144 columns 0.5 us less, 4096 columns 0.4 us more than in one part).
const PRODUCTS: u32 = 20;
const SUM: u32 = 5;
const READ: u32 = 4;

/// Invocations of a workgroup, at most and at least.
const MAX_WORKGROUP: u32 = 1024;
pub(crate) const MIN_WORKGROUP: u32 = 128;

/// Invocations of a workgroup, at most, where subgroups have 64 invocations or more. A compute unit of CDNA or GCN has four SIMD
/// units with 256 vector registers for each lane: a workgroup of 1024 is four subgroups on each of them, which leaves 64 registers,
/// and kernels take up to 84. (Mesa 22.3, gfx90a: in Q4_K_M, gate and up of a feed-forward layer spill 14 registers.) RDNA, whose
/// subgroups may have 32 invocations, has twice the registers.
const MAX_WORKGROUP_OF_WIDE: u32 = 512;

/// Invocations of a workgroup, and how many workgroups tiles should leave, where an invocation takes so many elements of a row at a
/// time. On a GPU a multiprocessor has two workgroups of half its invocations, one of which prepares its rows while the other
/// reads weights. Long rows take so long to prepare that it is done once: by all invocations of the multiprocessor, or by half of
/// them where each takes enough weights at a time. (H200, one of 1024 invocations, two of 512 and
/// one of 512, behind a barrier: 14336 columns of 4096 in Q4_K 12.4, 12.3 and 16.0 us, 4096 columns of 14336 in Q4_K 14.0, 14.1 and 14.1, in Q4_0
/// 14.7, 15.8 and 16.0; back to back the first 9.1, 8.5 and 9.4, the second 10.6, 10.3 and 8.5.)
fn sizes(e: &Emitter<'_>, form: &ContractionForm, elements: i64) -> [u32; 2] {
    let size = e.caps.scheduled_subgroup_size();
    let (long, many) = (form.k.max_value() > LONG_ROW, elements > MANY_ELEMENTS);
    let (wave, software) = (cost::workgroups_to_fill(e.caps), cost::runs_workgroups_on_one_thread(e.caps));
    // Of one workgroup a core (H200, 14336 columns of Q4_0 behind a barrier: 13.6 us by 112 workgroups, 12.5 by 128).
    let (workgroups, most) = match (software, long, many) {
        (true, _, _) => (SOFTWARE_WAVES * wave, MAX_WORKGROUP),
        (false, true, false) => (wave, MAX_WORKGROUP),
        (false, false, _) => (2 * wave, MAX_WORKGROUP / 2),
        (false, true, true) => (wave, MAX_WORKGROUP / 2),
    };
    let items = (form.k.max_value() / elements) as u32;
    let useful = if software {
        // One for each eight activations that it prepares.
        (form.m.max_value() * form.k.max_value() / 8).min(MAX_WORKGROUP.into()) as u32
    } else if !quantize_results::formats(e).is_empty() {
        // A tile of whole blocks has many columns: then a subgroup each, or they would wait for each other.
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

/// Columns of a tile that leave so many workgroups.
fn wanted(e: &Emitter<'_>, form: &ContractionForm, workgroups: u32) -> u32 {
    let columns: i64 = form.segments.iter().map(|s| s.n.max_value()).sum();
    let wanted = (columns as u64).div_ceil(workgroups.max(1).into());
    wanted.clamp(1, MAX_COLUMNS.min(room(e, form)).max(1).into()) as u32
}

/// Columns for whose sums a sixteenth of the shared memory has room.
fn room(e: &Emitter<'_>, form: &ContractionForm) -> u32 {
    e.caps.shared_memory_bytes / 64 / sums(form)
}

/// Sums of a column, of the segment that has most, and at least 1.
fn sums(form: &ContractionForm) -> u32 {
    let anchors = form.segments.iter().map(|s| s.anchors.len() as u32).max().unwrap_or(1);
    (form.m.max_value() as u32 * anchors).max(1)
}

/// Smallest workgroup that is worth trying.
const LEAST_TRIED: u32 = 64;

/// How a kernel shares out its work.
pub(crate) struct Partition {
    pub workgroup: u32,
    /// Columns of a workgroup.
    tile: u32,
    /// Parts of the inner extent, for each of which a subgroup of its own sums up a column.
    pub parts: u32,
    /// Invocations of a subgroup.
    size: u32,
    /// Elements of a row.
    row: u32,
}

/// What the text for one segment needs wherever it goes through its columns: a subgroup takes so many columns at a time,
/// `together`, and goes along the row with them, so that each part of a row that it reads serves all of these.
pub(crate) struct ColumnLoop {
    pub tile: u32,
    /// Neighbouring elements that an invocation takes at a time.
    pub elements: u32,
    /// Columns that a subgroup takes side by side, and those of its passes over the tile, of one column each.
    pub together: u32,
    pub passes: String,
    /// Whether it takes all of its columns at a time.
    pub once: bool,
    /// Steps along the row, if there are several.
    pub steps: Option<String>,
    /// Columns that weights are asked for ahead.
    pub depth: u32,
    /// Columns whose weights are in registers or on their way: one more where the next are asked for before those of a column
    /// are unpacked, so that none of these registers is waited for at the end of a loop.
    pub slots: u32,
    /// Whether a subgroup has one column, in several steps: then it takes `depth` steps at a time.
    pub along: bool,
    /// Whether a workgroup belongs to the segment, and its first column.
    pub here: String,
    pub column0: String,
    /// Of step `along`: the item. Of pass `pass`: the column.
    pub item: String,
    pub column: String,
    /// Whether the tile ends with a pass.
    pub even: bool,
    /// Whether the passes are written out.
    pub written: bool,
    /// Items of a row, and whether the steps end with them.
    pub items: u32,
    pub whole: bool,
    /// What the subgroups do, in words.
    pub comment: String,
}

impl ColumnLoop {
    /// The item, or the last for those beyond the row.
    pub fn clamped(&self) -> String {
        if self.whole { "item".into() } else { format!("min(item, {}u)", self.items - 1) }
    }

    /// The sum of an anchor by its number, one of `accs` of a column with `m` rows.
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

    /// What templates ask for.
    pub fn holes(&self) -> Hole {
        context! {
            tile => self.tile, together => self.together, passes => &self.passes, once => self.once, steps => &self.steps,
            depth => self.depth, slots => self.slots, along => self.along, here => &self.here, column0 => &self.column0, item => &self.item, column => &self.column,
            even => self.even, written => self.written, whole => self.whole, items => self.items, comment => &self.comment,
        }
    }
}

/// How much of a walk may be written out.
#[derive(Clone, Copy)]
pub(crate) struct Unroll {
    /// Columns that a subgroup takes side by side.
    pub together: u32,
    /// Columns that weights are asked for ahead.
    pub depth: u32,
    /// Passes that are written out one behind the other where they cannot be taken together, so that the weights of the next
    /// column have registers of their own.
    pub written: u32,
}

/// How a staged matvec multiplies: the instruction, and how many elements of a row an invocation takes at a time.
#[derive(Clone, Copy)]
pub(crate) struct Products {
    pub instruction: Instruction,
    pub elements: i64,
}

/// Schedules with workgroups of this size and about as many of them: one for each possible number of K slices, the one that
/// costs least first.
fn by_cost(
    e: &Emitter<'_>,
    form: &ContractionForm,
    products: Products,
    [workgroup, workgroups]: [u32; 2],
) -> Vec<Schedule> {
    let items = (form.k.max_value() / products.elements) as u32;
    let wanted = wanted(e, form, workgroups);
    let (size, subgroups) = (e.caps.scheduled_subgroup_size(), workgroup / e.caps.scheduled_subgroup_size());
    // Tiles are whole passes of the subgroups.
    let schedule = |slices| Schedule {
        instruction: Some(products.instruction),
        tile: Tile { m: form.m.max_value() as u32, n: wanted.next_multiple_of(subgroups / slices), k: 0 },
        split: Split { slices, above: 0 },
        ..Schedule::new(Algorithm::StagedMatvec, workgroup)
    };
    let widest = form.segments.iter().map(|s| s.tile).max().unwrap_or(1).max(1);
    // Of several slices, passes are shorter, and fit the tile that is wanted better.
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

/// The cost model's default; `None` never, as there is always a schedule of one slice.
pub(crate) fn first(e: &Emitter<'_>, form: &ContractionForm, products: Products) -> Option<Schedule> {
    by_cost(e, form, products, sizes(e, form, products.elements)).first().copied()
}

/// The candidates, the cost model's default first: smaller workgroups, of which a core holds several, narrower tiles, and
/// other numbers of slices. Of small kernels several are alike.
pub(crate) fn schedules(e: &Emitter<'_>, form: &ContractionForm, products: Products) -> Vec<Schedule> {
    let [workgroup, workgroups] = sizes(e, form, products.elements);
    let sizes =
        [[1, 1], [2, 2], [4, 4], [1, 2], [2, 1], [2, 4], [1, 4]].into_iter().filter_map(|[smaller, more]| {
            let least = if smaller == 1 { 0 } else { LEAST_TRIED.max(e.caps.scheduled_subgroup_size()) };
            let sizes = [workgroup / smaller, workgroups * more];
            (sizes[0] >= least).then(|| by_cost(e, form, products, sizes))
        });
    let sizes: Vec<Vec<Schedule>> = sizes.collect();
    // The best split of each size, then the second best.
    let most = sizes.iter().map(Vec::len).max().unwrap_or(0);
    (0..most).flat_map(|rank| sizes.iter().filter_map(move |all| all.get(rank).copied())).collect()
}

impl Partition {
    /// For rows of so many elements.
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

    /// The tile of each segment: what its epilogue needs together, and wider where the grid has too few workgroups.
    pub fn tiles(&self, e: &Emitter<'_>, form: &ContractionForm) -> Vec<u32> {
        let limit = e.caps.max_workgroup_count[0];
        let mut tiles: Vec<u32> =
            form.segments.iter().map(|s| self.tile.next_multiple_of(s.tile.max(1))).collect();
        while columns_grid(form, &tiles, limit).most() > u64::from(limit) && tiles[0] < MAX_COLUMNS {
            tiles.iter_mut().for_each(|t| *t *= 2);
        }
        tiles
    }

    /// Where a part's sums are in shared memory, in front of the sum of a column.
    pub fn part_at(&self, part_floats: u32) -> String {
        match self.parts {
            1 => String::new(),
            parts => format!("gl_SubgroupID % {parts}u * {part_floats}u + "),
        }
    }

    /// The way of the subgroups through a segment with tiles of `tile` columns, behind segments of so many workgroups,
    /// `elements` of a row at a time.
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
        // As many as leave the fewest passes over.
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
