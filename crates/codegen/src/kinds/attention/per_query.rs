//! Attention with online softmax: one workgroup per head and query.
//!
//! With subgroup arithmetic, each subgroup processes its share of the keys, and a team of its lanes reads one key
//! together. If elements are contiguous, a lane reads eight at once, so that several teams have keys in flight;
//! otherwise it reads one. Without subgroup arithmetic, each invocation processes its own key. Keys and values in
//! blocks are dequantized at the load and never materialized.

use minijinja::{Value as Hole, context};
use tallow_ir::cost;
use tallow_ir::form::AttentionForm;
use tallow_ir::index::Index;
use tallow_ir::{DType, DeviceCaps, ReduceKind};

use super::operands::{Attention, Eight, has_eights, number, team};
use crate::assemble::{finish, floor_pow2};
use crate::blocks::operand::WIDE;
use crate::blocks::reduce_functions::Used;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::kernel::Kernel;
use crate::library as lib;
use crate::schedule::{Algorithm, Schedule};
use crate::template::render;

/// Keys per iteration where each invocation processes its own key.
const WORKGROUP: u32 = 64;

/// Unroll factor of the loop over values in that case. Mesa's software device silently leaves all loops of an
/// invocation after 65535 iterations in total. With one value per iteration, some 40,000 keys were too many.
const AT_ONCE: u32 = 8;

/// Keys that a team processes per iteration; their loads and sums are in flight together.
const KEYS: u32 = 4;

/// Invocations per workgroup: for a single query, and for each of many queries, whose workgroups together fill a
/// device.
const ONE_QUERY: u32 = 512;
const MANY_QUERIES: u32 = 128;

/// Most elements of a query or value that a lane holds.
const HELD: u32 = 16;

/// Partition of a query's keys among subgroups.
#[derive(Clone, Copy)]
struct Split {
    workgroup: u32,
    subgroups: u32,
}

/// The partition of an attention's keys; `None` if the device does not support it.
fn split(caps: &DeviceCaps, a: &Attention<'_>) -> Option<Split> {
    let (d, e) = (number(a.d), number(a.width));
    let size = caps.scheduled_subgroup_size();
    let fixed = caps.has_fixed_subgroup_size();
    let workgroup = match cost::runs_workgroups_on_one_thread(caps) {
        // One thread runs all subgroups, so more of them only add context switches. With two, tests without a GPU still
        // cover the combination of their partials.
        true => 2 * size,
        false if a.s.is(1) => ONE_QUERY,
        false => MANY_QUERIES,
    };
    let workgroup = workgroup.min(floor_pow2(caps.max_workgroup_invocations)).max(size);
    let subgroups = workgroup / size;
    let bytes = 4 * u64::from(d) + 4 * u64::from(subgroups) * (u64::from(e) + 2);
    let fits = bytes <= u64::from(caps.shared_memory_bytes) && d.max(e).div_ceil(size) <= HELD;
    let can = caps.subgroup_arithmetic && fixed && size.is_power_of_two() && a.wide == DType::F32;
    (can && fits).then_some(Split { workgroup, subgroups })
}

/// The schedule; the only candidate.
pub(crate) fn schedule(e: &Emitter<'_>, form: &AttentionForm) -> Schedule {
    let split = Attention::of(e, form).ok().and_then(|a| split(e.caps, &a));
    let alone = floor_pow2(e.caps.max_workgroup_invocations.min(WORKGROUP));
    Schedule::new(Algorithm::Attention, split.map_or(alone, |split| split.workgroup))
}

pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &AttentionForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let a = Attention::of(&e, form)?;
    let (d, width) = (number(a.d), number(a.width));
    let split = split(e.caps, &a);
    let workgroup = schedule.workgroup;
    let mut used = Used::default();
    let [total, max] = [ReduceKind::Sum, ReduceKind::Max].map(|kind| used.value(kind, a.ty, a.wide));
    let elements = a.ty.bytes().saturating_mul(d.saturating_add(workgroup));
    let (needs, has) = (elements.saturating_add(used.shared_bytes(workgroup)), e.caps.shared_memory_bytes);
    if split.is_none() && needs > has {
        return Err(CodegenError::SharedMemory { what: "attention".into(), needs, has });
    }
    let score = if split.is_some() { "score[j]" } else { "score" };
    let common = a.holes(&mut e, score)?;
    let statements = statements(&mut e, &a, split.is_some())?;
    // What the template itself calls.
    e.uses().add(lib::MAX_OF);
    e.uses().subgroups |= split.is_some();
    let grid = a.grid(&e, 1)?;
    let holes = context! {
        slots => width.div_ceil(workgroup), max, total, exp_part => a.exp(&mut e, "tops[i]"), keys => KEYS, workgroup,
        split => split.is_some(), subgroups => split.map_or(1, |split| split.subgroups), at_once => AT_ONCE,
        ..context! { ..statements, ..common }
    };
    let prologue = render("attention_prologue.glsl", holes.clone())?;
    let (template, functions) = match split {
        Some(_) => ("attention_subgroups.comp", String::new()),
        None => ("attention.comp", used.render(workgroup, &mut e)?),
    };
    finish(e, schedule, template, grid, functions, context! { prologue, ..holes })
}

/// The holes of loads and stores.
fn statements(e: &mut Emitter<'_>, a: &Attention<'_>, split: bool) -> Result<Hole, CodegenError> {
    let (h, s, g) = (e.atom(a.h, "h"), e.atom(a.s, "s"), e.atom(a.g, "g"));
    let (q, q_lines) = e.scope(|e| {
        let d = e.atom(a.d, "d");
        a.element(e, a.q, &[h.clone(), s.clone(), d])
    })?;
    let team = team(e.caps, number(a.d).max(number(a.width)));
    let eights = a.wide == DType::F32 && (!split || team.is_some());
    // Teams read eight elements of both keys and values, or one of both. Without teams, one invocation reads eight
    // elements of a key only.
    let eights = eights && has_eights(e, a.k) && (!split || has_eights(e, a.v));
    let (step, team) = if eights { (WIDE as u32, team) } else { (1, None) };
    // An element of a row, or the line that loads eight.
    let element = |e: &mut Emitter<'_>, value, row: &[Index], name, eights: bool| {
        if eights {
            return Ok((String::new(), vec![Eight::of(e, value, row)?.load(e, name)]));
        }
        let width = &e.body.ty(value).shape.dims()[2];
        let at = [row, &[e.atom(width, name)]].concat();
        Ok((a.element(e, value, &at)?, vec![]))
    };
    let (((k, load), lines, bias), t_lines) = e.scope(|e| {
        let t = e.atom(a.t, "t");
        let (k, lines) = e.scope(|e| element(e, a.k, &[g.clone(), t.clone()], "d", eights))?;
        Ok((k, lines, a.bias(e, [&h, &s, &t])?))
    })?;
    let k_lines = [lines, load].concat().join("\n");
    let ((v, load), lines) = e.scope(|e| {
        let t = e.atom(a.t, "t");
        element(e, a.v, &[g, t], "e", eights && split)
    })?;
    let v_lines = [lines, load].concat().join("\n");
    let store = e.scoped_lines(|e| {
        let column = e.atom(a.width, "e");
        a.store(e, [h, s, column])
    })?;
    let [q_lines, t_lines, store] = [q_lines, t_lines, store].map(|lines| lines.join("\n"));
    let size = e.caps.scheduled_subgroup_size();
    let team = team.unwrap_or(size);
    if split && team < size {
        e.extensions.insert("GL_KHR_shader_subgroup_shuffle");
    }
    let [queries, values] = [a.d, a.width].map(|n| number(n).div_ceil(team * step));
    Ok(context! {
        q_lines, q, k_lines, k, t_lines, bias, v_lines, v, store, size => size.max(1), step, team, queries, values,
    })
}
