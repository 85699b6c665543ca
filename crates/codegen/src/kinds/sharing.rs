//! How matvecs that prepare their activations in shared memory share out columns: each workgroup a tile of them, each
//! subgroup one at a time, or a part of it.

use minijinja::context;
use tallow_ir::caps::DeviceType;
use tallow_ir::dot;
use tallow_ir::form::{ContractionForm, Segment, spare_bytes};
use tallow_ir::index::Index;

use super::matvec::{columns_grid, stores};
use super::{floor_pow2, reduction, rounding, runs};
use crate::choice::Sharing;
use crate::emit::{Anchor, Emitter};
use crate::kernel::CodegenError;
use crate::template::render;

/// Workgroups that tiles leave, unless others were measured: about as many as large devices have multiprocessors, as each prepares the
/// activations again and holds a multiprocessor by itself. (H200, 14336 columns of Q4_0 behind a barrier: 13.6 us by 112
/// workgroups, 12.5 by 128.)
const WANTED_WORKGROUPS: u32 = 128;

/// Widest tile.
const MAX_COLUMNS: u32 = 256;

/// Most parts of the inner extent.
const MAX_PARTS: u32 = 8;

/// Invocations of a workgroup, at most and at least.
const MAX_WORKGROUP: u32 = 1024;
pub(super) const MIN_WORKGROUP: u32 = 128;

/// Invocations of a workgroup for rows of so many items. On a GPU, as many as have a column, or a part of one, of the tile
/// that is wanted: preparing rows is repeated in each workgroup, and a workgroup has a multiprocessor to itself, which needs
/// all its invocations to have enough weights on their way (H200, Q4_0 behind a barrier, 512 and 1024: 14336 columns 15.4 and
/// 12.3 us, 4096 columns 7.4 and 6.6 us).
fn workgroup(e: &Emitter<'_>, form: &ContractionForm, items: u32) -> u32 {
    let size = e.caps.subgroup_size;
    let useful = match e.caps.device_type {
        // One for each eight activations that it prepares.
        DeviceType::Cpu => (form.m.max_value() * form.k.max_value() / 8).min(MAX_WORKGROUP.into()) as u32,
        // A tile of whole blocks has many columns: then a subgroup each, or they would wait for each other.
        DeviceType::Discrete | DeviceType::Integrated | DeviceType::Virtual | DeviceType::Other
            if !rounding::formats(e).is_empty() =>
        {
            MAX_WORKGROUP
        }
        DeviceType::Discrete | DeviceType::Integrated | DeviceType::Virtual | DeviceType::Other => {
            wanted(e, form, WANTED_WORKGROUPS) * floor_pow2(items.div_ceil(size).min(MAX_PARTS)) * size
        }
    };
    let workgroup = floor_pow2(useful.clamp(MIN_WORKGROUP, MAX_WORKGROUP));
    workgroup.min(floor_pow2(e.caps.max_workgroup_invocations)).max(size)
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
pub(super) struct Shape {
    /// Neighbouring elements that an invocation takes at a time are an item: so many a row.
    items: u32,
    pub workgroup: u32,
    /// Columns of a workgroup.
    tile: u32,
    /// Parts of the inner extent, for each of which a subgroup of its own sums up a column.
    pub parts: u32,
    /// Invocations of a subgroup, columns that subgroups take side by side, and steps of a part along the inner extent.
    pub size: String,
    lanes: String,
    pub steps: String,
    /// Size and steps, where all subgroups have one size: then loops have known lengths.
    fixed: Option<[u32; 2]>,
}

/// What the text for one segment needs wherever it goes through its columns.
pub(super) struct Walk {
    pub tile: u32,
    /// Steps that are written out, and that weights are asked for ahead; divides the number of all.
    pub depth: u32,
    /// Whether a workgroup belongs to the segment, and its first column.
    pub here: String,
    pub column0: String,
    /// Of step `i`: the item and the column.
    pub item: String,
    pub column: String,
    /// What stands in front of that which follows a column's last step: whether step `i` is one.
    pub ends: String,
    /// All steps of a subgroup.
    pub total: String,
}

impl Sharing {
    /// For workgroups of this size and about as many of them: all parts that there can be, what costs least first.
    fn by_cost(
        e: &Emitter<'_>,
        form: &ContractionForm,
        items: u32,
        [workgroup, workgroups]: [u32; 2],
    ) -> Vec<Sharing> {
        let choice = |parts| Sharing { workgroup, workgroups, parts };
        if e.caps.subgroup_size_min != e.caps.subgroup_size_max {
            return vec![choice(1)];
        }
        let wanted = wanted(e, form, workgroups);
        let (size, subgroups) = (e.caps.subgroup_size, workgroup / e.caps.subgroup_size);
        // Tiles are whole passes of the subgroups. Of several parts, passes are shorter, and fit the tile that is
        // wanted better.
        let steps = |parts: u32| items.div_ceil(size * parts);
        let cost = |parts: u32| wanted.next_multiple_of(subgroups / parts) * steps(parts) * parts;
        let widest = form.segments.iter().map(|s| s.tile).max().unwrap_or(1);
        let spare = spare_bytes(e.caps) / (4 * sums(form) * widest.max(1));
        let most = subgroups.min(steps(1)).min(room(e, form) / wanted).min(spare).clamp(1, MAX_PARTS);
        let mut all: Vec<u32> = (0..=most.ilog2()).map(|log| 1 << log).collect();
        all.sort_by_key(|parts| cost(*parts));
        all.into_iter().map(choice).collect()
    }

    /// What the cost model takes where an invocation takes so many elements of a row at a time.
    pub(super) fn first(e: &Emitter<'_>, form: &ContractionForm, elements: i64) -> Sharing {
        let items = (form.k.max_value() / elements) as u32;
        let workgroup = workgroup(e, form, items);
        let sizes = [workgroup, WANTED_WORKGROUPS];
        let only = Sharing { workgroup, workgroups: WANTED_WORKGROUPS, parts: 1 };
        Sharing::by_cost(e, form, items, sizes).first().copied().unwrap_or(only)
    }

    /// What is worth trying, what the cost model takes first: smaller workgroups, of which a multiprocessor holds several,
    /// narrower tiles, and other parts. Of small kernels several are alike.
    pub(super) fn all(e: &Emitter<'_>, form: &ContractionForm, elements: i64) -> Vec<Sharing> {
        let items = (form.k.max_value() / elements) as u32;
        let workgroup = workgroup(e, form, items);
        let sizes = [[1, 1], [2, 2], [4, 4], [1, 2], [2, 1], [2, 4], [1, 4]].into_iter().filter_map(
            |[smaller, more]| {
                let least = if smaller == 1 { 0 } else { LEAST_TRIED.max(e.caps.subgroup_size) };
                let sizes = [workgroup / smaller, WANTED_WORKGROUPS * more];
                (sizes[0] >= least).then(|| Sharing::by_cost(e, form, items, sizes))
            },
        );
        let sizes: Vec<Vec<Sharing>> = sizes.collect();
        // The best parts of each size, then the second best.
        let most = sizes.iter().map(Vec::len).max().unwrap_or(0);
        (0..most).flat_map(|rank| sizes.iter().filter_map(move |all| all.get(rank).copied())).collect()
    }
}

impl Shape {
    pub fn new(e: &Emitter<'_>, form: &ContractionForm, items: u32, choice: Sharing) -> Shape {
        let Sharing { workgroup, workgroups, parts } = choice;
        let wanted = wanted(e, form, workgroups);
        let size = e.caps.subgroup_size;
        let subgroups = workgroup / size;
        if e.caps.subgroup_size_min != e.caps.subgroup_size_max {
            let size = String::from("gl_SubgroupSize");
            let steps = format!("(({items}u + {size} - 1u) / {size})");
            let (tile, lanes) = (wanted.next_multiple_of(subgroups), "gl_NumSubgroups".into());
            return Shape { items, workgroup, tile, parts: 1, size, lanes, steps, fixed: None };
        }
        let tile = wanted.next_multiple_of(subgroups / parts);
        let (lanes, steps) = (subgroups / parts, items.div_ceil(size * parts));
        Shape {
            items,
            workgroup,
            tile,
            parts,
            size: format!("{size}u"),
            lanes: format!("{lanes}u"),
            steps: format!("{steps}u"),
            fixed: Some([size, steps]),
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

    /// Whether the steps end with the row.
    pub fn whole(&self) -> bool {
        self.fixed.is_some_and(|[size, steps]| size * steps * self.parts == self.items)
    }

    /// The first element of the item that is called `item`; of one beyond the row, the last item's.
    pub fn first(&self, item: &str, elements: u32) -> String {
        match self.whole() {
            true => format!("{item} * {elements}u"),
            false => format!("min({item}, {}u) * {elements}u", self.items - 1),
        }
    }

    /// Where a part's sums are in shared memory, in front of the sum of a column.
    pub fn part_at(&self, part_floats: u32) -> String {
        match self.parts {
            1 => String::new(),
            parts => format!("gl_SubgroupID % {parts}u * {part_floats}u + "),
        }
    }

    /// What the subgroups do, in words.
    pub fn comment(&self) -> String {
        match (&self.fixed, self.parts) {
            (None, _) => "Each subgroup takes a column at a time.".to_string(),
            (Some([_, steps]), 1) => format!("Each subgroup takes a column at a time, in {steps} steps."),
            (Some([_, steps]), parts) => {
                format!(
                    "Each {parts} subgroups take a column at a time, a part of it each, in {steps} steps."
                )
            }
        }
    }

    /// The way of the subgroups through a segment with tiles of `tile` columns, behind segments of so many workgroups, with
    /// at most `depth` steps written out.
    pub fn walk(&self, tile: u32, depth: u32, before: &[String], groups: &str) -> Walk {
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
        let Shape { size, lanes, steps, parts, .. } = self;
        let slot =
            if *parts == 1 { "gl_SubgroupID".to_string() } else { format!("gl_SubgroupID / {parts}u") };
        let mut walk = Walk {
            tile,
            depth: 1,
            here,
            column0,
            item: format!("i % {steps} * {size} + gl_SubgroupInvocationID"),
            column: format!("{slot} + i / {steps} * {lanes}"),
            ends: format!("if (i % {steps} == {steps} - 1u) "),
            total: format!("({tile}u + {lanes} - 1u - gl_SubgroupID) / {lanes} * {steps}"),
        };
        let (Some([size, steps]), parts) = (self.fixed, *parts) else { return walk };
        // How often the subgroups go over the tile; those behind its last column once less.
        let lanes = self.workgroup / size / parts;
        let (passes, rest) = (tile.div_ceil(lanes), tile % lanes);
        let all = passes * steps;
        // Of several passes each takes all steps.
        let (step, column) = match (passes, steps) {
            (1, _) => ("i".to_string(), slot.clone()),
            (_, 1) => (String::new(), format!("{slot} + i * {lanes}u")),
            _ => (format!("i % {steps}u"), format!("{slot} + i / {steps}u * {lanes}u")),
        };
        let offset = if parts == 1 { String::new() } else { format!("gl_SubgroupID % {parts}u * {steps}u") };
        let sum = [offset, step].into_iter().filter(|term| !term.is_empty()).collect::<Vec<_>>().join(" + ");
        walk.item = match sum.as_str() {
            "" => "gl_SubgroupInvocationID".into(),
            "i" => format!("i * {size}u + gl_SubgroupInvocationID"),
            _ => format!("({sum}) * {size}u + gl_SubgroupInvocationID"),
        };
        walk.column = column;
        walk.ends = match (passes, steps) {
            (_, 1) => String::new(),
            (1, _) => format!("if (i == {}u) ", steps - 1),
            _ => format!("if (i % {steps}u == {}u) ", steps - 1),
        };
        walk.total = match rest {
            0 => format!("{all}u"),
            _ => format!("{slot} < {rest}u ? {all}u : {}u", all - steps),
        };
        let divides = |depth: &u32| all % depth == 0 && (rest == 0 || steps % depth == 0);
        walk.depth = (1..=depth).rev().find(divides).unwrap_or(1);
        walk
    }
}

/// The factor in front of an anchor's number, and the anchor's number, where there are several.
pub(super) fn times(anchors: usize) -> String {
    if anchors == 1 { String::new() } else { format!(" * {anchors}u") }
}

pub(super) fn plus(anchor: usize) -> String {
    if anchor == 0 { String::new() } else { format!(" + {anchor}u") }
}

/// Sums of a tile, of the segment that has most.
pub(super) fn part_floats(form: &ContractionForm, m: u32, tiles: &[u32]) -> u32 {
    let floats = form.segments.iter().zip(tiles).map(|(s, tile)| s.anchors.len() as u32 * m * tile);
    floats.max().unwrap_or(0)
}

/// Where the sums of a tile are, for its epilogue.
pub(super) struct Sums {
    pub m: u32,
    pub tile: u32,
    pub workgroup: u32,
    /// Parts that each sum is still in, so many floats apart.
    pub parts: u32,
    pub part_floats: u32,
}

/// The text behind a segment's products: its epilogue for each column of the tile, and blocks rounded. Closes the segment's
/// scope, and gives its lines too.
pub(super) fn end(
    e: &mut Emitter<'_>,
    used: &mut reduction::Used,
    form: &ContractionForm,
    segment: &Segment,
    batch: &Index,
    buffers: &[usize],
    sums: &Sums,
) -> Result<(String, String), CodegenError> {
    let Sums { m, tile, workgroup, parts, part_floats } = *sums;
    let depth = e.depth() + 1;
    for (i, id) in segment.anchors.iter().enumerate() {
        let row = format!("{}u + m * {tile}u", i as u32 * m * tile);
        let anchor = Anchor::Tile { array: "tile".into(), row, base: "column0".into(), depth, call: false };
        e.anchors.insert(*id, anchor);
    }
    let reduce = runs::lines(e, used, form, segment, batch, sums)?;
    e.open(); // the epilogue
    let row = e.atom(&form.m, "m");
    let column = e.atom(&segment.n, "n");
    stores(e, form, segment, [batch, &row, &column], buffers)?;
    let store = e.close().join("\n");
    let blocks = rounding::of_segment(e, form, segment, batch, buffers)?;
    let prelude = e.close().join("\n");
    let floats = segment.anchors.len() as u32 * m * tile;
    let n = e.dim(&segment.n);
    let holes = context! { m, tile, workgroup, parts, part_floats, floats, n, reduce, store, blocks, block => dot::BLOCK };
    Ok((prelude, render("matvec_end.glsl", holes)?))
}
