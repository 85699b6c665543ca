//! Indexed addition: a workgroup owns a tile of the target's rows and columns, and reads all indices in order. What names
//! one of its rows goes to a list in shared memory, in order. Then each invocation adds the terms of its own elements, one
//! after another, and the tile is stored once. There are no atomics, so a sum has one order on every device.
//!
//! The terms of several entries of the list are loaded together, by all invocations, to shared memory: loads do not wait
//! for sums, whichever rows the indices name.

use minijinja::context;
use tallow_ir::form::SingleForm;
use tallow_ir::index::Index;
use tallow_ir::{DeviceCaps, Dim, Op, Value, cost};

use crate::assemble::{finish, floor_pow2};
use crate::blocks::vector_group::{self, Root};
use crate::emit::{Anchor, Emitter};
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::{Count, Kernel};
use crate::schedule::{Algorithm, Schedule, Tile};

/// Invocations per workgroup. More of them read no fewer indices; fewer leave too few loads in flight.
const WORKGROUP: u32 = 256;

/// The same on software devices, which run the invocations one after another.
const SOFTWARE_WORKGROUP: u32 = 64;

/// Indices of an invocation that are read together. A multiple of the four counts that share a word.
const INDICES: u32 = 8;

/// Terms of an invocation that are loaded together, at most: 8 KB of f32 are in flight in a workgroup, and a core has
/// several. Also the rows of the target.
const LOADS: u32 = 8;

/// Bytes of a row of a tile: two lines of the cache. Wider tiles divide the terms of an index that occurs often among fewer
/// cores.
const ROW_BYTES: u32 = 256;

/// The least bytes of a row, where there are too few tiles to fill the device: a sector of the cache.
const LEAST_ROW_BYTES: u32 = 32;

/// Waves of workgroups that should remain: those that share a core hide each other's barriers.
const WAVES: u32 = 4;

/// Waves up to which workgroups are so few that larger ones fill the device better, if there are many indices.
const FEW_WAVES: u32 = 2;

/// How much larger they are.
const LARGER: u32 = 4;

/// Most values of the extents of an indexed addition, and the bytes of an element in memory and in a register.
struct Sizes {
    outer: u64,
    rows: u64,
    inner: u64,
    count: u64,
    stored: u32,
    register: u32,
}

/// The candidates, the default first. Others have narrower rows, or workgroups of the other size.
pub(crate) fn schedules(e: &Emitter<'_>, form: &SingleForm) -> Vec<Schedule> {
    let (caps, node) = (e.caps, e.body.node(form.node));
    let most = |operand: usize, axis: usize| {
        let shape = &e.body.ty(node.operands[operand]).shape;
        shape.dims().get(axis).map_or(1, |dim| dim.max_value().max(1).unsigned_abs())
    };
    let dtype = node.types[0].dtype;
    let sizes = Sizes {
        outer: most(0, 0),
        rows: most(0, 1),
        inner: most(0, 2),
        count: most(1, 0),
        stored: dtype.size().unwrap_or(4) as u32,
        register: Glsl::register(dtype).bytes(),
    };
    let small = workgroup(caps);
    let mut columns = (ROW_BYTES / sizes.stored).min(small);
    columns = u64::from(columns).min(sizes.inner.next_power_of_two()) as u32;
    let is_sector = |columns: u32| columns * sizes.stored <= LEAST_ROW_BYTES;
    while sizes.tiles(1, columns) < cost::workgroups_to_fill(caps).into() && !is_sector(columns) {
        columns /= 2;
    }
    let first = sizes.schedule(caps, columns, small);
    let workgroups = sizes.tiles(first.tile.m, columns);
    let few = workgroups <= cost::workgroups_of_waves(caps, FEW_WAVES).into();
    let many_indices = sizes.count >= u64::from(LARGER * small * INDICES);
    let larger = larger_workgroup(caps, small).filter(|_| few && many_indices);
    let narrow = sizes.schedule(caps, (columns / 2).max(1), larger.unwrap_or(small));
    let mut all: Vec<Schedule> = larger.map(|size| sizes.schedule(caps, columns, size)).into_iter().collect();
    for candidate in [first, narrow] {
        if !all.contains(&candidate) {
            all.push(candidate);
        }
    }
    all
}

impl Sizes {
    fn schedule(&self, caps: &DeviceCaps, columns: u32, workgroup: u32) -> Schedule {
        let loads = floor_pow2((caps.shared_memory_bytes / 4 / (workgroup * self.register)).clamp(1, LOADS));
        let taken = shared_bytes(caps, workgroup) + workgroup * loads * self.register;
        let most = (caps.shared_memory_bytes.saturating_sub(taken) / (self.register * columns)).max(1);
        let wanted = self.tiles(1, columns).div_ceil(cost::workgroups_of_waves(caps, WAVES).into());
        // Tiles of nearly equal size.
        let tiles = self.rows.div_ceil(wanted.clamp(1, most.into()));
        let tile = Tile { m: self.rows.div_ceil(tiles) as u32, n: columns, k: 0 };
        Schedule { tile, prefetch: loads, ..Schedule::new(Algorithm::IndexAdd, workgroup) }
    }

    /// How many tiles of so many rows and columns there are.
    fn tiles(&self, rows: u32, columns: u32) -> u64 {
        let each = [self.rows.div_ceil(rows.into()), self.inner.div_ceil(columns.into())];
        each.into_iter().fold(self.outer, u64::saturating_mul)
    }
}

fn workgroup(caps: &DeviceCaps) -> u32 {
    let wanted = if cost::runs_workgroups_on_one_thread(caps) { SOFTWARE_WORKGROUP } else { WORKGROUP };
    // The list takes a quarter of the shared memory at most.
    let most = caps.shared_memory_bytes / 4 / (4 * INDICES);
    floor_pow2(wanted.min(most).min(most_invocations(caps)))
}

/// The size of larger workgroups, if the device has room for them and counts by subgroups.
fn larger_workgroup(caps: &DeviceCaps, small: u32) -> Option<u32> {
    let size = small * LARGER;
    let has_room = shared_bytes(caps, size) <= caps.shared_memory_bytes / 4 * 3;
    let able = size <= most_invocations(caps) && lanes(caps, size).is_some();
    (has_room && able).then_some(size)
}

fn most_invocations(caps: &DeviceCaps) -> u32 {
    caps.max_workgroup_invocations.min(caps.max_workgroup_size[0])
}

/// The size of the subgroups that count entries together, if they do. Counts of up to 128 share a word.
fn lanes(caps: &DeviceCaps, workgroup: u32) -> Option<u32> {
    let lanes = caps.scheduled_subgroup_size();
    let able = caps.subgroup_arithmetic && caps.has_fixed_subgroup_size();
    (able && lanes <= 128 && workgroup.is_multiple_of(lanes)).then_some(lanes)
}

/// Bytes of shared memory for the list and the counts.
fn shared_bytes(caps: &DeviceCaps, workgroup: u32) -> u32 {
    4 * workgroup * INDICES + 8 * (workgroup / lanes(caps, workgroup).unwrap_or(1))
}

/// The operands and the extents of an indexed addition.
struct IndexAdd<'a> {
    dst: Value,
    indices: Value,
    source: Value,
    outer: &'a Dim,
    rows: &'a Dim,
    inner: &'a Dim,
    count: &'a Dim,
    ty: Glsl,
}

impl<'a> IndexAdd<'a> {
    fn of(e: &Emitter<'a>, form: &SingleForm) -> Result<IndexAdd<'a>, CodegenError> {
        let body = e.body;
        let node = body.node(form.node);
        let other = || CodegenError::Node(body.node_text(form.node));
        let (Op::IndexAdd, [dst, indices, source]) = (&node.op, &node.operands[..]) else {
            return Err(other());
        };
        let [outer, rows, inner] = node.types[0].shape.dims() else { return Err(other()) };
        let [count] = body.ty(*indices).shape.dims() else { return Err(other()) };
        let dtype = node.types[0].dtype;
        let unknown = || CodegenError::Dtype { what: body.node_text(form.node), dtype };
        let ty = Glsl::of(dtype, e.caps).ok_or_else(unknown)?;
        Ok(IndexAdd { dst: *dst, indices: *indices, source: *source, outer, rows, inner, count, ty })
    }
}

/// Lines and the expression that they lead to.
struct Element {
    lines: String,
    text: String,
}

/// Element `at` of `value`; `at` is made in the scope of its lines.
fn element(
    e: &mut Emitter<'_>,
    value: Value,
    at: impl FnOnce(&mut Emitter<'_>) -> Vec<Index>,
) -> Result<Element, CodegenError> {
    let (text, lines) = e.scope(|e| {
        let at = at(e);
        Ok(e.value(value, &at)?.text)
    })?;
    Ok(Element { lines: lines.join("\n"), text })
}

/// The kernel for one of [`schedules`].
pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &SingleForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let add = IndexAdd::of(&e, form)?;
    let Schedule { tile: Tile { m: rows, n: columns, .. }, workgroup, .. } = schedule;
    let size = vector_width(&e, form, &add, columns);
    let lanes = lanes(e.caps, workgroup);
    e.uses().subgroups |= lanes.is_some();
    let ty = e.uses().ty(add.ty);
    let (elements, tile_lines) = e.scope(|e| {
        let [outer, column] = [(add.outer, "o"), (add.inner, "column")].map(|(dim, name)| e.atom(dim, name));
        let dst = element(e, add.dst, |e| vec![outer.clone(), e.atom(add.rows, "row"), column.clone()])?;
        let index = element(e, add.indices, |e| vec![e.atom(add.count, "i")])?;
        let term = element(e, add.source, |e| vec![outer.clone(), e.atom(add.count, "i"), column.clone()])?;
        let store = store(e, form, &add, &outer, (columns, size))?;
        Ok((dst, index, term, store))
    })?;
    let (dst, index, term, store) = elements;
    let (step, teams) = (workgroup * INDICES, workgroup / columns);
    let [outer, all_rows, inner, count] = [add.outer, add.rows, add.inner, add.count].map(|dim| e.dim(dim));
    let groups =
        e.dim(&add.inner.div_exact(&Dim::constant(size.into())).unwrap_or_else(|| add.inner.clone()));
    let by_subgroup = lanes.is_some();
    let at_once = LOADS.min(rows.div_ceil(teams)).next_power_of_two();
    let holes = context! {
        type => ty, rows, columns, teams, step, indices => INDICES, words => INDICES / 4,
        loads => schedule.prefetch, entries => teams * schedule.prefetch, slots => workgroup / lanes.unwrap_or(1),
        lanes => lanes.unwrap_or(1), by_subgroup, at_once, tile_lines => tile_lines.join("\n"),
        outer, all_rows, inner, count, dst_lines => dst.lines, dst => dst.text, index_lines => index.lines,
        index => index.text, term_lines => term.lines, term => term.text, size, side => columns / size, groups,
        store => store.join("\n"), comment => format!("%{} = {}", form.node.0, e.body.node_text(form.node)),
    };
    let grid = [
        Count::along(e.caps, 0, add.inner.clone(), columns),
        Count::along(e.caps, 1, add.rows.clone(), rows),
        Count::along(e.caps, 2, add.outer.clone(), 1),
    ];
    finish(e, schedule, "index_add.comp", grid, String::new(), holes)
}

/// Adjacent columns that an invocation stores together.
fn vector_width(e: &Emitter<'_>, form: &SingleForm, add: &IndexAdd<'_>, columns: u32) -> u32 {
    vector_group::stored_size(e.body, |atoms, j, size| {
        let by = Dim::constant(size.into());
        let groups = add.inner.div_exact(&by).filter(|groups| size <= columns && !groups.is(0))?;
        let [outer, row, group] = [add.outer, add.rows, &groups].map(|dim| atoms.free(dim));
        let column = atoms.add(&group.scale(&by), &atoms.index(j));
        Some(vec![Root { value: form.node.into(), at: vec![outer, row, column], output: Some(0) }])
    })
}

/// The lines that store group `g` of `size` columns of row `row`; its sums are those from `from` on.
fn store(
    e: &mut Emitter<'_>,
    form: &SingleForm,
    add: &IndexAdd<'_>,
    outer: &Index,
    (columns, size): (u32, u32),
) -> Result<Vec<String>, CodegenError> {
    debug_assert!(columns.is_multiple_of(size));
    let result = e.result(0);
    e.scoped_lines(|e| {
        let row = e.atom(add.rows, "row");
        let groups = add.inner.div_exact(&Dim::constant(size.into())).unwrap_or_else(|| add.inner.clone());
        let group = e.atom(&groups, "g");
        e.store_each(group, size, |e, column| {
            let text = if size > 1 { "sums[from + j]" } else { "sums[from]" };
            let depth = e.depth();
            e.anchors.insert(form.node, Anchor::Result { text: text.into(), depth });
            let at = [outer.clone(), row, column];
            Ok(Vec::from_iter(e.store_grouped(0, result, &at)?))
        })
    })
}
