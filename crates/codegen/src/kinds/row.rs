//! Row kernels: reductions over rows and what is computed from them, as passes that reduce and then a loop that stores.
//!
//! - One workgroup reduces a row, register-cached if it fits.
//! - One invocation reduces a short row, or several whose elements overlap ([`RowGroup`]).
//! - One subgroup reduces a narrow row, several per workgroup, without shared memory or barriers.
//! - Where elements of adjacent rows are contiguous, a workgroup reduces several rows ("columns"), each divided among
//!   slices of the workgroup.
//! - Few long rows are split among workgroups ([`split_rows`]).

mod short;

use minijinja::context;
use tallow_ir::form::{RowForm, RowOutput, output_root};
use tallow_ir::index::{AtomId, Atoms, Index};
use tallow_ir::{Dim, cost};

use crate::assemble::{check_grid, finish, floor_pow2};
use crate::blocks::reduce_functions::Used;
use crate::blocks::row_group::{RowGroup, RowGroups};
use crate::blocks::row_loop::{ReduceScope, RowLoop};
use crate::blocks::split_rows::{self, RowSplit};
use crate::blocks::tiles::Tiles;
use crate::blocks::vector_group::{self, Root};
use crate::blocks::{reduction, register_cache};
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::kernel::{Count, Kernel};
use crate::schedule::{self, Algorithm, Schedule, Tile};

/// Most loads per invocation of a row that a subgroup reduces: all are in flight at once. The row has at most
/// [`ELEMENTS_PER_INVOCATION`] elements per invocation, so that a workgroup of its own would be a single subgroup, too.
const NARROW_ROW_LOADS: i64 = 4;

/// Elements of a row per invocation, as long as the workgroup size is within its limits.
const ELEMENTS_PER_INVOCATION: i64 = 16;

/// Maximum number of invocations per workgroup. For rows longer than this allows, it is the device's maximum.
const WORKGROUP: u32 = 256;

/// Fewest and most column groups per workgroup: 128 to 512 bytes, if a group is four f32.
const COLUMNS: (u32, u32) = (8, 32);

/// Elements of a row per invocation of a software device. It runs a workgroup on one thread, where each barrier
/// of a reduction costs a switch between subgroups. (lavapipe, softmax of 512 rows of 100, of up to 4096: 326 ms in
/// workgroups of 256, 4.4 ms in those of 8.)
const SOFTWARE_ELEMENTS: i64 = 4096;

/// Maximum number of invocations per workgroup that reduces columns.
const COLUMNS_WORKGROUP: u32 = 512;

/// The tuning candidates, the cost model's default first: more or fewer invocations per row; for columns, other tile
/// widths too. Short rows: one row per invocation, and as many as share most. Only the default where a subgroup reduces
/// a row, or workgroups split one.
pub(crate) fn schedules(e: &Emitter<'_>, form: &RowForm) -> Vec<Schedule> {
    let mapping = mapping(e, form);
    let first = mapping.schedule();
    let (w, c) = (mapping.workgroup, mapping.columns);
    let others = match mapping.scope {
        _ if mapping.split.is_some() => vec![],
        ReduceScope::Invocation => return short::schedules(e, form, &mapping),
        ReduceScope::Subgroup => vec![],
        ReduceScope::Workgroup(_) => vec![(2 * w, 0), (w / 2, 0), (4 * w, 0), (w / 4, 0)],
        ReduceScope::Slices(_) => vec![(2 * w, c), (w / 2, c), (w, 2 * c), (w, c / 2), (w / 2, c / 2)],
    };
    let fits = |(workgroup, columns): &(u32, u32)| {
        let least = e.caps.scheduled_subgroup_size().max(8).max(*columns);
        (least..=e.caps.max_workgroup_invocations).contains(workgroup)
            && (c == 0 || (1..=COLUMNS.1).contains(columns))
    };
    let schedule = |(workgroup, m)| Schedule { workgroup, tile: Tile { m, ..first.tile }, ..first };
    [first].into_iter().chain(others.into_iter().filter(fits).map(schedule)).collect()
}

/// The kernel for one of [`schedules`].
pub(crate) fn kernel(mut e: Emitter<'_>, form: &RowForm, schedule: Schedule) -> Result<Kernel, CodegenError> {
    let mut mapping = mapping(&e, form);
    mapping.workgroup = schedule.workgroup;
    if mapping.columns > 0 {
        mapping.columns = schedule.tile.m;
    }
    if mapping.scope == ReduceScope::Invocation {
        mapping.row_group = mapping.row_groups.of_size(schedule.tile.m);
    }
    mapping.scope = match mapping.scope {
        ReduceScope::Invocation => ReduceScope::Invocation,
        ReduceScope::Subgroup => ReduceScope::Subgroup,
        ReduceScope::Workgroup(_) => ReduceScope::Workgroup(mapping.workgroup),
        ReduceScope::Slices(_) => ReduceScope::Slices(mapping.workgroup / mapping.columns.max(1)),
    };
    let mut used = Used::of_columns(mapping.columns);
    let rows = match mapping.columns {
        0 => mapping.row_group.groups(&form.rows).unwrap_or_else(|| form.rows.clone()),
        _ => mapping.groups(&form.rows),
    };
    let (tiles, lines) = e.scope(|e| body(e, form, &mapping, &rows, &mut used))?;
    let body = [tiles.r, lines].concat().join("\n");
    let per = match mapping.scope {
        ReduceScope::Invocation => mapping.workgroup * schedule.tiles_per_workgroup,
        ReduceScope::Subgroup => mapping.rows,
        ReduceScope::Workgroup(_) | ReduceScope::Slices(_) => mapping.columns.max(1),
    };
    let (grid, partials) = match mapping.split {
        None => (Count::along_x(e.caps, rows, per), String::new()),
        Some(split) => {
            let rows = Count::along(e.caps, 1, rows, per);
            let grid = [Count::constant(split.parts), rows, Count::constant(1)];
            check_grid("row", &grid)?;
            (grid, split_rows::declare(&mut e, form, split, &used.partials))
        }
    };
    let template = match mapping.scope {
        _ if mapping.split.is_some() => "row_split.comp",
        ReduceScope::Invocation => "grid_stride.comp",
        ReduceScope::Workgroup(_) | ReduceScope::Subgroup | ReduceScope::Slices(_) => "row.comp",
    };
    let functions = used.render(mapping.workgroup, &mut e)?;
    let holes = context! {
        body, count => tiles.count, columns => mapping.columns, rows => mapping.rows, partials, comment => "", tail => (),
        parts => mapping.split.map(|split| split.parts),
        name => if mapping.columns > 0 { "tile" } else { mapping.row_name() },
    };
    finish(e, schedule, template, grid, functions, holes)
}

/// Emits the reductions of a row or of a group of columns, and the stores.
fn body(
    e: &mut Emitter<'_>,
    form: &RowForm,
    mapping: &Mapping,
    rows: &Dim,
    used: &mut Used,
) -> Result<Tiles, CodegenError> {
    let row = e.atom(rows, if mapping.columns > 0 { "r" } else { mapping.row_name() });
    let mut row_loop = match (mapping.columns, mapping.group) {
        (0, 1) if mapping.scope == ReduceScope::Invocation => {
            short::row_loop(e, &row, &form.inner, mapping.row_group)
        }
        (0, 1) => RowLoop::each(e, &row, &form.inner, mapping.scope),
        (0, size) => RowLoop::groups(e, &row, &mapping.groups(&form.inner), size, mapping.scope),
        (columns, size) => RowLoop::columns(e, &row, &form.inner, size, mapping.workgroup / columns),
    };
    row_loop.parts = mapping.split.map(|split| split.parts);
    if let (Some(_), Some(n)) = (mapping.split, rows.as_const()) {
        row_loop.inside = Tiles::of(rows, &format!("{n}u"), mapping.columns).inside;
    }
    if mapping.split.is_none() {
        cache_row(e, form, &mut row_loop)?;
    }
    reduction::emit_loop(e, used, &form.reduces, &row_loop)?;
    let count = e.dim(rows);
    let tiles = Tiles::of(rows, &count, mapping.columns);
    store_outputs(e, form, &row_loop, tiles.inside.as_deref())?;
    Ok(tiles)
}

/// The mapping of rows to invocations.
struct Mapping {
    scope: ReduceScope,
    workgroup: u32,
    /// Adjacent elements of a row, or adjacent columns, that an invocation loads as one vector.
    group: u32,
    /// Column groups per workgroup; 0 if a workgroup reduces rows.
    columns: u32,
    /// Rows per workgroup, one subgroup each; 0 if a workgroup reduces one row at a time, or columns.
    rows: u32,
    /// How a row is split among workgroups, if it is.
    split: Option<RowSplit>,
    /// The rows that an invocation reduces by itself.
    row_group: RowGroup,
    /// The choices of `row_group`.
    row_groups: RowGroups,
}

impl Mapping {
    /// One row at a time, without a split.
    fn new(scope: ReduceScope, workgroup: u32, group: u32) -> Mapping {
        Mapping {
            scope,
            workgroup,
            group,
            columns: 0,
            rows: 0,
            split: None,
            row_group: RowGroup::ONE,
            row_groups: RowGroups::default(),
        }
    }

    /// The name of the variable that counts rows, or groups of them.
    fn row_name(&self) -> &'static str {
        if self.row_group.size > 1 { "g" } else { "row" }
    }

    /// Groups along an extent of `n` elements; `n` if they do not divide it.
    fn groups(&self, n: &Dim) -> Dim {
        n.div_exact(&Dim::constant(self.group.into())).unwrap_or_else(|| n.clone())
    }

    fn schedule(&self) -> Schedule {
        let algorithm = match self.scope {
            ReduceScope::Invocation => Algorithm::ShortRows,
            ReduceScope::Workgroup(_) | ReduceScope::Subgroup => Algorithm::Row,
            ReduceScope::Slices(_) => Algorithm::Columns,
        };
        let slices = self.split.map_or(1, |split| split.parts);
        let rows_each = if self.row_group.size > 1 { self.row_group.size } else { 0 };
        Schedule {
            tile: Tile { m: self.columns.max(self.rows).max(rows_each), n: 0, k: 0 },
            split: schedule::Split { slices, above: 0 },
            ..Schedule::new(algorithm, self.workgroup)
        }
    }
}

fn mapping(e: &Emitter<'_>, form: &RowForm) -> Mapping {
    let along_row = vector_group::size(e.body, |atoms, j, size| {
        let i = grouped(atoms, &form.inner, size, j)?;
        let row = atoms.free(&form.rows);
        Some(roots(e, form, &row, &i, atoms, false))
    });
    if short::is_short(form) {
        return short::mapping(e, form, along_row);
    }
    if form.is_contiguous_across_rows(e.body) {
        let columns = |atoms: &mut Atoms, j, size| {
            let row = grouped(atoms, &form.rows, size, j)?;
            let i = atoms.free(&form.inner);
            Some(roots(e, form, &row, &i, atoms, true))
        };
        // The outputs per row are computed once, and may gather.
        let in_loop = |root: &Root| root.output.is_none_or(|output| form.outputs[output] == RowOutput::Inner);
        let group = vector_group::size_of(e.body, columns, in_loop);
        let groups = u32::try_from(form.rows.max_value()).unwrap_or(u32::MAX).div_ceil(group);
        // Enough workgroups to fill the device; beyond that, more adjacent column groups per workgroup.
        let columns = floor_pow2(groups / cost::workgroups_to_fill(e.caps)).clamp(COLUMNS.0, COLUMNS.1);
        let columns = columns.min(groups.checked_next_power_of_two().unwrap_or(columns));
        let most = floor_pow2(e.caps.max_workgroup_invocations.min(COLUMNS_WORKGROUP));
        let inner = u32::try_from(form.inner.max_value() / 4).unwrap_or(u32::MAX).max(1);
        let slices = floor_pow2(inner).min(most / columns).max(1);
        let (scope, workgroup) = (ReduceScope::Slices(slices), columns * slices);
        let split = RowSplit::of_columns(e, form, groups.div_ceil(columns), workgroup, slices, group);
        return Mapping { columns, split, ..Mapping::new(scope, workgroup, group) };
    }
    if let Some(rows) = rows_per_workgroup(e, form, along_row) {
        let workgroup = rows * e.caps.scheduled_subgroup_size();
        return Mapping { rows, ..Mapping::new(ReduceScope::Subgroup, workgroup, along_row) };
    }
    let split = RowSplit::of(e, form);
    let workgroup = split.map_or_else(|| workgroup_size(e, form.inner.max_value()), |split| split.workgroup);
    Mapping { split, ..Mapping::new(ReduceScope::Workgroup(workgroup), workgroup, along_row) }
}

/// Rows per workgroup if a subgroup reduces each: as many as leave four waves of workgroups. `None` if rows are longer, or
/// so few that a workgroup reduces one at a time.
fn rows_per_workgroup(e: &Emitter<'_>, form: &RowForm, group: u32) -> Option<u32> {
    let lanes = e.caps.scheduled_subgroup_size();
    let inner = form.inner.max_value();
    let most_elements = ELEMENTS_PER_INVOCATION.min(NARROW_ROW_LOADS * i64::from(group));
    let narrow = inner <= most_elements * i64::from(lanes);
    let able = e.caps.has_fixed_subgroup_size()
        && form.reduces.iter().all(|(id, _)| reduction::is_by_subgroup(e, *id));
    let most = WORKGROUP.min(e.caps.max_workgroup_invocations) / lanes;
    let rows = u32::try_from(form.rows.max_value()).unwrap_or(u32::MAX);
    let rows = floor_pow2(rows / cost::workgroups_of_waves(e.caps, 4)).min(floor_pow2(most));
    (narrow && able && rows > 1).then_some(rows)
}

/// Invocations for rows of `inner` elements, at least one subgroup.
fn workgroup_size(e: &Emitter<'_>, inner: i64) -> u32 {
    let device = e.caps.max_workgroup_invocations;
    if cost::runs_workgroups_on_one_thread(e.caps) {
        let long =
            u32::try_from(inner / SOFTWARE_ELEMENTS).unwrap_or(u32::MAX).clamp(1, device).next_power_of_two();
        return floor_pow2(e.caps.scheduled_subgroup_size().max(8).max(long).min(device));
    }
    let most = if inner > ELEMENTS_PER_INVOCATION * i64::from(WORKGROUP) { device } else { WORKGROUP };
    let most = floor_pow2(device.min(most));
    let wanted =
        u32::try_from(inner / ELEMENTS_PER_INVOCATION).unwrap_or(u32::MAX).clamp(1, most).next_power_of_two();
    wanted.clamp(floor_pow2(e.caps.scheduled_subgroup_size().max(8)).min(most), most)
}

/// An axis index of extent `n`, written as a group of `size` and element `j` of the group.
fn grouped(atoms: &mut Atoms, n: &Dim, size: u32, j: AtomId) -> Option<Index> {
    let size = Dim::constant(size.into());
    let groups = n.div_exact(&size).filter(|n| !n.is(0))?;
    let g = atoms.free(&groups);
    Some(atoms.add(&g.scale(&size), &atoms.index(j)))
}

/// The values that the loops compute at element `i` of row `row`. Includes the outputs per row if `each_row`.
fn roots(
    e: &Emitter<'_>,
    form: &RowForm,
    row: &Index,
    i: &Index,
    atoms: &mut Atoms,
    each_row: bool,
) -> Vec<Root> {
    let mut all = vec![];
    for (id, rows) in &form.reduces {
        all.push(Root { value: e.body.node(*id).operands[0], at: rows.at(row, i, atoms), output: None });
    }
    for (output, kind) in form.outputs.iter().enumerate() {
        let value = output_root(e.body, output);
        let shape = e.body.ty(value).shape.clone();
        match kind {
            RowOutput::Inner => {
                let at = form.inner_at(row, i, &shape, atoms);
                all.push(Root { value, at, output: Some(output) });
            }
            RowOutput::Row if each_row => {
                let at = atoms.unflatten(row, &shape);
                all.push(Root { value, at, output: Some(output) });
            }
            RowOutput::Row => {}
        }
    }
    all
}

/// Register-caches the elements that the loops read, if the row fits.
fn cache_row(e: &mut Emitter<'_>, form: &RowForm, row_loop: &mut RowLoop) -> Result<(), CodegenError> {
    let fits = match row_loop.scope {
        ReduceScope::Workgroup(_) | ReduceScope::Subgroup => true,
        // Without vector loads, the index arithmetic (of a window, for example) is the cost, not the loads.
        ReduceScope::Invocation => row_loop.group().is_some() && row_loop.columns_at_once().is_none(),
        ReduceScope::Slices(_) => false,
    };
    if !fits {
        return Ok(());
    }
    let mut atoms = std::mem::take(&mut e.atoms);
    let roots = roots(e, form, &row_loop.row, &row_loop.i, &mut atoms, false);
    e.atoms = atoms;
    register_cache::load(e, row_loop, roots.into_iter().map(|root| (root.value, root.at)).collect())
}

/// Emits the loop that stores the outputs per element, then the stores of the outputs per row. `inside` is the condition
/// that an invocation's columns exist.
fn store_outputs(
    e: &mut Emitter<'_>,
    form: &RowForm,
    row_loop: &RowLoop,
    inside: Option<&str>,
) -> Result<(), CodegenError> {
    let buffers: Vec<usize> = (0..form.outputs.len()).map(|o| e.result(o as u32)).collect();
    let of_kind =
        |kind: RowOutput| form.outputs.iter().enumerate().filter(move |(_, k)| **k == kind).map(|(o, _)| o);
    let stores = |e: &mut Emitter<'_>, kind| {
        let mut after = vec![];
        for output in of_kind(kind) {
            let shape = e.body.ty(output_root(e.body, output)).shape.clone();
            let at = match kind {
                RowOutput::Inner => form.inner_at(&row_loop.row, &row_loop.i, &shape, &mut e.atoms),
                RowOutput::Row => e.atoms.unflatten(&row_loop.row, &shape),
            };
            after.extend(e.store_grouped(output as u32, buffers[output], &at)?);
        }
        Ok(after)
    };
    if of_kind(RowOutput::Inner).next().is_some() {
        row_loop.each_step(e, inside, |e| {
            let after = row_loop.each_of_group(e, |e| stores(e, RowOutput::Inner))?;
            e.lines(after);
            Ok(())
        })?;
    }
    if of_kind(RowOutput::Row).next().is_some() {
        let store = |e: &mut Emitter<'_>| {
            let after = row_loop.each_column(e, |e| stores(e, RowOutput::Row))?;
            e.lines(after);
            Ok(())
        };
        let first = match (row_loop.scope, inside) {
            (ReduceScope::Invocation, _) => return store(e),
            (ReduceScope::Workgroup(_), _) => "lane == 0u".to_string(),
            (ReduceScope::Subgroup, _) => "gl_SubgroupInvocationID == 0u".to_string(),
            (ReduceScope::Slices(_), None) => "slice == 0u".to_string(),
            (ReduceScope::Slices(_), Some(inside)) => format!("slice == 0u && {inside}"),
        };
        e.block(&format!("if ({first})"), store)?;
    }
    Ok(())
}
