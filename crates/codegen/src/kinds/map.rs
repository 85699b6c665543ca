//! Elementwise kernels: one invocation per element of the outputs, or per group of adjacent elements. Invocations loop
//! if the grid is smaller.

mod transposed;

use minijinja::context;
use tallow_ir::Dim;
use tallow_ir::form::{MapForm, output_root};

use self::transposed::Transposed;
use crate::assemble::finish;
use crate::blocks::vector_group::{self, Root};
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::kernel::{Count, Kernel};
use crate::schedule::{Algorithm, Schedule, Tile};

const WORKGROUP: u32 = 256;

/// The schedules, the cost model's default first: tiles, if an operand is transposed, and one invocation per element.
pub(crate) fn schedules(e: &Emitter<'_>) -> Vec<Schedule> {
    let tiles = Transposed::of(e.body, e.caps).map(|transposed| transposed.schedule(e.caps));
    let plain = Schedule::new(Algorithm::Map, WORKGROUP.min(e.caps.max_workgroup_invocations));
    tiles.into_iter().chain([plain]).collect()
}

/// The kernel for one of [`schedules`].
pub(crate) fn kernel(mut e: Emitter<'_>, form: &MapForm, schedule: Schedule) -> Result<Kernel, CodegenError> {
    if schedule.tile != Tile::default()
        && let Some(transposed) = Transposed::of(e.body, e.caps)
    {
        return transposed::kernel(e, &transposed, schedule);
    }
    let size = group_size(&e, form);
    let groups = form.numel.div_exact(&Dim::constant(size.into())).unwrap_or_else(|| form.numel.clone());
    let count = e.dim(&groups);
    let name = if size > 1 { "g" } else { "i" };
    let lines = e.scoped_lines(|e| {
        let g = e.atom(&groups, name);
        e.store_each(g, size, |e, i| {
            let mut after = vec![];
            for output in 0..e.body.outputs().len() {
                let at = e.atoms.unflatten(&i, &e.body.ty(output_root(e.body, output)).shape);
                let buffer = e.result(output as u32);
                after.extend(e.store_grouped(output as u32, buffer, &at)?);
            }
            Ok(after)
        })
    })?;
    let body = lines.join("\n");
    let grid = Count::along_x(e.caps, groups, schedule.workgroup);
    let holes = context! { body, count, name, comment => "" };
    finish(e, schedule, "grid_stride.comp", grid, String::new(), holes)
}

/// The vector width of the map.
fn group_size(e: &Emitter<'_>, form: &MapForm) -> u32 {
    vector_group::size(e.body, |atoms, j, size| {
        let size = Dim::constant(size.into());
        let groups = form.numel.div_exact(&size).filter(|n| !n.is(0))?;
        let g = atoms.free(&groups);
        let i = atoms.add(&g.scale(&size), &atoms.index(j));
        let root = |output| {
            let value = output_root(e.body, output);
            let at = atoms.unflatten(&i, &e.body.ty(value).shape.clone());
            Root { value, at, output: Some(output) }
        };
        Some((0..e.body.outputs().len()).map(root).collect())
    })
}
