//! Elementwise kernels: one invocation per element of the outputs, or per group of adjacent elements. Invocations loop
//! if the grid is smaller.

mod transposed;

use minijinja::context;
use tallow_ir::form::{MapForm, output_root};
use tallow_ir::index::{AtomId, Atoms};
use tallow_ir::{Dim, cost};

use self::transposed::Transposed;
use crate::assemble::finish;
use crate::blocks::vector_group::{self, Root};
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::kernel::{Count, Kernel};
use crate::schedule::{Algorithm, Schedule, Tile};

const WORKGROUP: u32 = 256;

/// The schedules, the cost model's default first: tiles, if an operand is transposed, and one invocation per element.
pub(crate) fn schedules(e: &Emitter<'_>, form: &MapForm) -> Vec<Schedule> {
    let tiles = transposed(e, form).map(|transposed| transposed.schedule(e.caps));
    let plain = Schedule::new(Algorithm::Map, WORKGROUP.min(e.caps.max_workgroup_invocations));
    tiles.into_iter().chain([plain]).collect()
}

/// The tiles of transposed operands. An invocation that writes several elements of a state has all that it reads of it.
fn transposed(e: &Emitter<'_>, form: &MapForm) -> Option<Transposed> {
    if form.repeats_any(e.body) { None } else { Transposed::of(e.body, e.caps) }
}

/// The kernel for one of [`schedules`].
pub(crate) fn kernel(mut e: Emitter<'_>, form: &MapForm, schedule: Schedule) -> Result<Kernel, CodegenError> {
    if schedule.tile != Tile::default()
        && let Some(transposed) = transposed(&e, form)
    {
        return transposed::kernel(e, &transposed, schedule);
    }
    let groups = Groups::of(&e, form, schedule.workgroup);
    let count = e.dim(&groups.count);
    let name = if groups.size > 1 { "g" } else { "i" };
    let mut buffers = vec![None; e.body.outputs().len()];
    let body = store(&mut e, (form, &mut buffers), (&groups.count, name), groups.size)?.join("\n");
    let tail = match groups.rest {
        0 => None,
        rest => {
            let first = e.dim(&(&groups.count * &Dim::constant(groups.size.into())));
            let body = store(&mut e, (form, &mut buffers), (&form.numel, "i"), 1)?.join("\n");
            Some(context! { first, rest, body })
        }
    };
    let grid = Count::along_x(e.caps, groups.count, schedule.workgroup);
    let holes = context! { body, count, name, tail, comment => "" };
    finish(e, schedule, "grid_stride.comp", grid, String::new(), holes)
}

/// Emits the stores of all outputs for `size` adjacent elements. The variable `name` counts `count` such groups. The buffer
/// of an output is bound at its first store. Where an invocation writes several elements of a state, all values are computed
/// before the first is stored: one may be read from the place of another.
fn store(
    e: &mut Emitter<'_>,
    (form, buffers): (&MapForm, &mut [Option<usize>]),
    (count, name): (&Dim, &str),
    size: u32,
) -> Result<Vec<String>, CodegenError> {
    e.scoped_lines(|e| {
        let g = e.atom(count, name);
        e.store_each(g, size, |e, i| {
            let mut all = vec![];
            for output in 0..buffers.len() {
                for position in form.positions(e.body, output, &i) {
                    let shape = e.body.ty(output_root(e.body, output)).shape.clone();
                    all.push((output, e.atoms.unflatten(&position, &shape)));
                }
            }
            if form.repeats_any(e.body) {
                for (output, at) in &all {
                    e.value(output_root(e.body, *output), at)?;
                }
            }
            let mut after = vec![];
            for (output, at) in all {
                let buffer = *buffers[output].get_or_insert_with(|| e.result(output as u32));
                after.extend(e.store_grouped(output as u32, buffer, &at)?);
            }
            Ok(after)
        })
    })
}

/// The adjacent elements that an invocation computes at a time.
struct Groups {
    size: u32,
    count: Dim,
    /// Elements after the last group.
    rest: u32,
}

impl Groups {
    fn of(e: &Emitter<'_>, form: &MapForm, workgroup: u32) -> Groups {
        let many = has_waves(e, form, workgroup, 1);
        // Smaller groups on software devices, so that tests of many workgroups need few elements.
        let most = if cost::runs_workgroups_on_one_thread(e.caps) { 2 } else { vector_group::MOST };
        let roots = |atoms: &mut Atoms, j, size| roots(e, form, atoms, (j, size, many && size <= most));
        let wide = vector_group::size(e.body, roots);
        // Elements that are not read together are loaded one by one, several in flight: those of slices that begin
        // anywhere, of padding, of strides. They are still stored together.
        let apart = wide == 1 && has_waves(e, form, workgroup, WAVES);
        let size = if apart { vector_group::stored_size(e.body, roots).min(most) } else { wide };
        match groups(&form.numel, size) {
            Some((count, rest)) => Groups { size, count, rest },
            None => Groups { size: 1, count: form.numel.clone(), rest: 0 },
        }
    }
}

/// Groups of `size` among `n` elements, and the elements after the last one. `None` if there is no group, or if the number
/// of elements is symbolic and not a multiple.
fn groups(n: &Dim, size: u32) -> Option<(Dim, u32)> {
    if let Some(groups) = n.div_exact(&Dim::constant(size.into())) {
        return (!n.is(0)).then_some((groups, 0));
    }
    let n = n.as_const()?;
    let (groups, rest) = (n / i64::from(size), n % i64::from(size));
    Some((Dim::constant(groups), u32::try_from(rest).ok()?)).filter(|_| groups > 0)
}

/// Waves of workgroups that fill a device, if they compute single elements: 2048 invocations per core.
const WAVES: u32 = 8;

/// Whether at least so many waves of workgroups remain with groups of the most elements.
fn has_waves(e: &Emitter<'_>, form: &MapForm, workgroup: u32, waves: u32) -> bool {
    let wanted = u64::from(workgroup) * u64::from(cost::workgroups_of_waves(e.caps, waves));
    form.numel.as_const().is_some_and(|n| n as u64 / u64::from(vector_group::MOST) >= wanted)
}

/// What the kernel computes at element `j` of a group of `size`. Only with `rest` elements may remain after the last group.
fn roots(
    e: &Emitter<'_>,
    form: &MapForm,
    atoms: &mut Atoms,
    (j, size, rest): (AtomId, u32, bool),
) -> Option<Vec<Root>> {
    let (count, _) = groups(&form.numel, size).filter(|(_, after)| rest || *after == 0)?;
    let g = atoms.free(&count);
    let i = atoms.add(&g.scale(&Dim::constant(size.into())), &atoms.index(j));
    let mut all = vec![];
    for output in 0..e.body.outputs().len() {
        let value = output_root(e.body, output);
        for position in form.positions(e.body, output, &i) {
            let at = atoms.unflatten(&position, &e.body.ty(value).shape);
            all.push(Root { value, at, output: Some(output) });
        }
    }
    Some(all)
}
