//! Decode attention (one query) with split-K over the keys.
//!
//! A workgroup processes one part of the keys for query heads that share a key head, so that each key is read and
//! unpacked once for all of them. The last workgroup to finish combines the partials. With few keys, each head has one
//! workgroup and there is no split.

use minijinja::{Value as Hole, context};
use tallow_ir::cost;
use tallow_ir::form::AttentionForm;
use tallow_ir::{DType, DeviceCaps, Dim};

use super::operands::{Attention, has_eights, is_one_load, number, row, team};
use crate::assemble::{check_grid, finish, floor_pow2};
use crate::blocks::last_workgroup;
use crate::blocks::operand::WIDE;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::kernel::{Count, Kernel};
use crate::library as lib;
use crate::schedule::{Algorithm, Schedule, Split};

/// Adjacent elements that a lane reads at once.
const STEP: u32 = WIDE as u32;

/// Most heads per workgroup, and most query elements that a lane holds in registers.
const HEADS: u32 = 2;
const HELD: u32 = 32;

/// Keys that a team (the lanes that read one key together) processes per iteration; their loads are in flight together.
const KEYS: u32 = 4;

/// The cost model's default.
pub(crate) fn first(caps: &DeviceCaps) -> Schedule {
    let (workgroup, slices, above) = match cost::runs_workgroups_on_one_thread(caps) {
        // Small workgroups and few parts, so that tests without a GPU cover every case.
        true => (2 * caps.scheduled_subgroup_size(), 3, 16),
        false => (256, 16, 512),
    };
    let schedule = Schedule::new(Algorithm::DecodeAttention, workgroup);
    Schedule { split: Split { slices, above }, ..schedule }
}

/// The tuning candidates: more and shorter parts of the keys or fewer, and smaller workgroups.
pub(crate) fn schedules(e: &Emitter<'_>, form: &AttentionForm) -> Vec<Schedule> {
    let first = first(e.caps);
    let (workgroup, Split { slices, above }) = (first.workgroup, first.split);
    let others = [
        (workgroup, 2 * slices, above / 2),
        (workgroup, slices.div_ceil(2), above),
        (workgroup / 2, slices, above),
        (workgroup / 2, 2 * slices, above / 2),
    ];
    let others = others.map(|(workgroup, slices, above)| Schedule {
        workgroup,
        split: Split { slices, above },
        ..first
    });
    let a = Attention::of(e, form);
    let fits = |schedule: &Schedule| a.as_ref().is_ok_and(|a| Sizes::of(e.caps, a, *schedule).is_some());
    let others = others.into_iter().filter(fits);
    [first].into_iter().chain(others).collect()
}

/// Sizes of a kernel, derived from the device and the shape.
struct Sizes {
    /// Invocations of a workgroup; each `team` of lanes reads one key together.
    workgroup: u32,
    subgroups: u32,
    team: u32,
    teams: u32,
    heads: u32,
    /// Parts of the keys, and the number of keys up to which one workgroup processes all of them.
    splits: u32,
    least: u32,
}

impl Sizes {
    /// The sizes for an attention of one query. `None` if the device lacks a feature that the kernel needs.
    fn of(caps: &DeviceCaps, a: &Attention<'_>, schedule: Schedule) -> Option<Sizes> {
        let number = |dim: &Dim| dim.as_const().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
        let (d, width, group) = (number(a.d)?, number(a.width)?, number(a.h)? / number(a.g)?);
        let keys = u64::try_from(a.t.max_value()).unwrap_or(0);
        let size = caps.scheduled_subgroup_size();
        let fixed = caps.has_fixed_subgroup_size() && size.is_power_of_two();
        let able = a.s.is(1) && fixed && caps.subgroup_arithmetic && caps.subgroup_shuffle;
        let team = team(caps, d.max(width)).filter(|_| able)?;
        let (workgroup, Split { slices: splits, above: least }) = (schedule.workgroup, schedule.split);
        let workgroup = workgroup.min(floor_pow2(caps.max_workgroup_invocations));
        let pieces = d.max(width).div_ceil(team * STEP);
        let splits = if keys > u64::from(least) { splits } else { 1 };
        // With few keys, computing scores takes longer than reading keys, so more workgroups matter more than sharing
        // loads.
        let most = if splits > 1 { HEADS } else { 1 };
        let held = |heads: &u32| heads * pieces * STEP <= HELD && heads.next_power_of_two() <= team;
        let heads = (1..=most.min(group)).rev().filter(|n| group.is_multiple_of(*n)).find(held)?;
        let sizes = Sizes {
            workgroup,
            subgroups: workgroup / size,
            team,
            teams: workgroup / team,
            heads,
            splits,
            least,
        };
        let floats =
            u64::from(heads * d) + u64::from(heads * sizes.subgroups) * u64::from(2 + sizes.row(width)) + 1;
        (workgroup >= size && 4 * floats <= u64::from(caps.shared_memory_bytes)).then_some(sizes)
    }

    /// Pieces of [`STEP`] elements that a lane holds of a value of `width` elements, or of a query.
    fn pieces(&self, width: u32) -> u32 {
        width.div_ceil(self.team * STEP)
    }

    /// Shared-memory stride between the partials of subgroups, in floats.
    fn row(&self, width: u32) -> u32 {
        self.pieces(width) * STEP * (self.team + 1)
    }

    /// The holes of the reductions over the lanes of a team, and over the teams of a subgroup of `size`.
    fn reductions(&self, width: u32, size: u32) -> Hole {
        // Products per team, padded to a power of two so that they can be halved.
        let products = self.heads.next_power_of_two() * KEYS;
        let (halves, rest, per) = halving(products, &masks(1, self.team));
        let held = self.heads * self.pieces(width) * STEP;
        let (team_halves, team_rest, team_per) = halving(held, &masks(self.team, size));
        let same_head = masks(1, self.team).into_iter().enumerate();
        let same_head = same_head.filter(|(i, mask)| products >> (i + 1) < KEYS && !rest.contains(mask));
        let same_head: Vec<u32> = same_head.map(|(_, mask)| mask).collect();
        // A lane holds several sums, or several lanes hold the same sum: sum `at` is in lane `lane_of_at`, at index
        // `place`.
        let apart = 1u32 << rest.len();
        let scaled = |x: &str, times: u32, by: u32| match (times, by) {
            (1, 1) => x.to_string(),
            (_, 1) => format!("{x} * {times}u"),
            _ => format!("{x} / {by}u"),
        };
        context! {
            size, products, halves, per, apart, rest, same_head, team_halves, team_per,
            lane_of_at => scaled("at", apart, per), product => scaled("own", per, apart),
            place => if per == 1 { "0u".into() } else { format!("at % {per}u") },
            other_teams => masks(self.team, size), team_apart => 1u32 << team_rest.len(), team_rest,
        }
    }
}

/// A butterfly reduction of `count` sums over lanes. A step exchanges halves and leaves each lane half of the sums.
/// Returns the steps that halve with the sums they leave, the masks of the other steps, and the sums left per lane.
fn halving(mut count: u32, masks: &[u32]) -> (Vec<Hole>, Vec<u32>, u32) {
    let (mut halves, mut rest) = (vec![], vec![]);
    for mask in masks {
        if count.is_multiple_of(2) {
            count /= 2;
            halves.push(context! { mask => mask, count => count });
        } else {
            rest.push(*mask);
        }
    }
    (halves, rest, count)
}

/// The powers of two from `to / 2` down to `from`.
fn masks(from: u32, to: u32) -> Vec<u32> {
    std::iter::successors(Some(to / 2), |m| Some(m / 2)).take_while(|m| *m >= from.max(1)).collect()
}

/// Whether this kernel supports an attention.
pub(crate) fn supports(e: &mut Emitter<'_>, form: &AttentionForm) -> bool {
    Attention::of(e, form).is_ok_and(|a| {
        let first = Sizes::of(e.caps, &a, first(e.caps));
        first.is_some() && a.wide == DType::F32 && has_eights(e, a.k) && has_eights(e, a.v)
    })
}

pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &AttentionForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let a = Attention::of(&e, form)?;
    let sizes = Sizes::of(e.caps, &a, schedule);
    let mut sizes = sizes.ok_or_else(|| CodegenError::Node(e.body.node_text(form.node)))?;
    let common = a.holes(&mut e, "score[i]")?;
    let statements = statements(&mut e, &a, &sizes)?;
    let (heads, d, width) = (number(a.h), number(a.d), number(a.width));
    // The partials of a split need two more bindings, which a device may not have.
    if e.bindings.len() as u64 + 2 > u64::from(e.caps.max_storage_buffers) {
        sizes.splits = 1;
    }
    let groups = heads / sizes.heads;
    let mut partials = String::new();
    if sizes.splits > 1 {
        let floats = u64::from(heads) * u64::from(sizes.splits) * u64::from(width + 2);
        partials = last_workgroup::partials(&mut e, "found", Glsl::Float, floats) + "\n";
        partials += &last_workgroup::counters(&mut e, groups.into());
    }
    // What the template itself calls.
    e.uses().add(lib::MAX_OF);
    e.uses().subgroups = true;
    e.extensions.insert("GL_KHR_shader_subgroup_shuffle");
    let grid = [
        Count::along(e.caps, 0, i64::from(groups).into(), 1),
        Count::constant(sizes.splits),
        Count::constant(1),
    ];
    check_grid("attention", &grid)?;
    let above = if sizes.splits > 1 { sizes.least } else { 0 };
    let split = Split { slices: sizes.splits, above };
    let schedule = Schedule { workgroup: sizes.workgroup, split, ..schedule };
    let holes = context! {
            all_heads => heads, heads => sizes.heads, splits => sizes.splits, least => sizes.least, partials,
            elect => last_workgroup::elect("tid == 0u", "gl_WorkGroupID.x", "parts_of_keys").join("\n"),
            subgroups => sizes.subgroups, team => sizes.team, teams => sizes.teams, keys => KEYS, step => STEP,
            stride => KEYS * sizes.teams, queries => sizes.pieces(d), values => sizes.pieces(width),
            row => sizes.row(width), last => a.t.max_value() - 1, ..context! {
                ..statements, ..sizes.reductions(width, e.caps.scheduled_subgroup_size()), ..common
            }
    };
    finish(e, schedule, "attention_decode.comp", grid, String::new(), holes)
}

/// The holes of loads and stores.
fn statements(e: &mut Emitter<'_>, a: &Attention<'_>, sizes: &Sizes) -> Result<Hole, CodegenError> {
    let g = e.atom(a.g, "g");
    let (q, q_lines) = e.scope(|e| {
        let at = [e.atom(a.h, "h"), e.atom(a.s, "s"), e.atom(a.d, "d")];
        a.element(e, a.q, &at)
    })?;
    // Keys and values that are one load each are prefetched one iteration ahead. The first prefetch is issued before
    // the number of keys is known. With many keys, other workgroups of the core hide the latency, and the registers of
    // a prefetch would lower occupancy.
    let keys = a.t.max_value();
    let some = sizes.splits == 1 && keys > 0;
    let prefetch = some && is_one_load(e, a.k, keys) && is_one_load(e, a.v, keys);
    let (k_row, mut k_lines) = row(e, a.k, &g, "t")?;
    let (v_row, mut v_lines) = row(e, a.v, &g, "t")?;
    let [mut k, mut v, mut k_widen, mut v_widen] = [const { String::new() }; 4];
    if prefetch {
        (k, v) = (k_row.word(e, "d"), v_row.word(e, "e"));
        (k_widen, v_widen) = (k_row.widen(e), v_row.widen(e));
    } else {
        k_lines.push(k_row.load(e, "d"));
        v_lines.push(v_row.load(e, "e"));
    }
    let (bias, t_lines) = a.bias_at(e)?;
    let store = a.store_at(e)?;
    let [q_lines, k_lines, t_lines, v_lines, store] =
        [q_lines, k_lines, t_lines, v_lines, store].map(|lines| lines.join("\n"));
    Ok(context! { q_lines, q, k_lines, k, k_widen, t_lines, bias, v_lines, v, v_widen, store, prefetch })
}
