//! Decode attention (one query) with split-K over the keys.
//!
//! A workgroup processes one part of the keys for query heads that share a key head, so that each key is read and
//! unpacked once for all of them. The last workgroup to finish combines the partials. With few keys, each head has one
//! workgroup and there is no split.

use minijinja::{Value as Hole, context};
use tallow_ir::cost;
use tallow_ir::form::AttentionForm;
use tallow_ir::index::Index;
use tallow_ir::{DType, DeviceCaps, Dim, ElementwiseOp, Op};

use super::operands::{accumulator, eight, has_eights, held, holds, store, team, widened};
use crate::assemble::{Parts, finish, floor_pow2, whole};
use crate::blocks::operand::WIDE;
use crate::emit::Emitter;
use crate::kernel::{CodegenError, Count, Kernel, Scratch};
use crate::library as lib;
use crate::scalar::{self, Glsl};
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
    let others = others.into_iter().filter(|schedule| planned(e, form, *schedule).is_some());
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

/// The sizes for one query of `d` elements and values of `width` elements over at most `keys` keys. `group` heads share
/// a key head. `None` if the device lacks a feature that the kernel needs.
fn sizes(caps: &DeviceCaps, group: u32, d: u32, width: u32, keys: u64, schedule: Schedule) -> Option<Sizes> {
    let size = caps.scheduled_subgroup_size();
    let fixed = caps.has_fixed_subgroup_size() && size.is_power_of_two();
    let able = fixed && caps.subgroup_arithmetic && caps.subgroup_shuffle;
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
    let sizes =
        Sizes { workgroup, subgroups: workgroup / size, team, teams: workgroup / team, heads, splits, least };
    let floats =
        u64::from(heads * d) + u64::from(heads * sizes.subgroups) * u64::from(2 + sizes.row(width)) + 1;
    (workgroup >= size && 4 * floats <= u64::from(caps.shared_memory_bytes)).then_some(sizes)
}

impl Sizes {
    /// Pieces of [`STEP`] elements that a lane holds of a value of `width` elements, or of a query.
    fn pieces(&self, width: u32) -> u32 {
        width.div_ceil(self.team * STEP)
    }

    /// Shared-memory stride between the partials of subgroups, in floats.
    fn row(&self, width: u32) -> u32 {
        self.pieces(width) * STEP * (self.team + 1)
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

/// The sizes for an attention; `None` if this kernel cannot compute it.
fn planned(e: &Emitter<'_>, form: &AttentionForm, schedule: Schedule) -> Option<Sizes> {
    let node = e.body.node(form.node);
    let (q, v) = (e.body.ty(node.operands[0]).shape.dims(), e.body.ty(node.operands[2]).shape.dims());
    let number = |dim: &Dim| dim.as_const().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
    let (heads, d, groups, width) = (number(&q[0])?, number(&q[2])?, number(&v[0])?, number(&v[2])?);
    let keys = u64::try_from(v[1].max_value()).unwrap_or(0);
    sizes(e.caps, heads / groups, d, width, keys, schedule).filter(|_| q[1].is(1))
}

/// Whether this kernel supports an attention.
pub(crate) fn fits(e: &mut Emitter<'_>, form: &AttentionForm) -> bool {
    let (k, v) = (e.body.node(form.node).operands[1], e.body.node(form.node).operands[2]);
    planned(e, form, first(e.caps)).is_some()
        && accumulator(e, form).is_ok_and(|wide| wide == DType::F32)
        && has_eights(e, k)
        && has_eights(e, v)
}

pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &AttentionForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let node = e.body.node(form.node);
    let (Op::Attention(attrs), Some(mut sizes)) = (&node.op, planned(&e, form, schedule)) else {
        return Err(CodegenError::Node(e.body.node_text(form.node)));
    };
    let attrs = *attrs;
    let [q, k, v] = [node.operands[0], node.operands[1], node.operands[2]];
    let (qs, vs) = (e.body.ty(q).shape.clone(), e.body.ty(v).shape.clone());
    let [h, s, d, t, width] = [&qs.dims()[0], &qs.dims()[1], &qs.dims()[2], &vs.dims()[1], &vs.dims()[2]];
    let number = |x: &Dim| x.as_const().unwrap_or(1) as u32;

    let t_text = e.dim(t);
    let gi = e.atom(&vs.dims()[0], "g");
    e.open();
    let (hi, si, di) = (e.atom(h, "h"), e.atom(s, "s"), e.atom(d, "d"));
    let query = widened(&mut e, DType::F32, q, &[hi, si, di])?;
    let q_lines = e.close().join("\n");
    // Keys and values that are one load each are prefetched one iteration ahead. The first prefetch is issued before
    // the number of keys is known. With many keys, other workgroups of the core hide the latency, and the registers of
    // a prefetch would lower occupancy.
    let some = sizes.splits == 1 && t.max_value() > 0;
    let ahead = some && holds(&mut e, k, t.max_value()) && holds(&mut e, v, t.max_value());
    let mut lines = |value, name: &str| -> Result<[String; 3], CodegenError> {
        e.open();
        let ti = e.atom(t, "t");
        let row = [gi.clone(), ti];
        let none = String::new;
        let [load, ask, widen] = match ahead {
            true => {
                let (ask, widen) = held(&mut e, value, &row, name)?;
                [none(), ask, widen]
            }
            false => [eight(&mut e, value, &row, name)?.join("\n"), none(), none()],
        };
        let lines = e.close().into_iter().chain([load]).filter(|line| !line.is_empty());
        Ok([lines.collect::<Vec<_>>().join("\n"), ask, widen])
    };
    let ([k_lines, k_ask, k_widen], [v_lines, v_ask, v_widen]) = (lines(k, "d")?, lines(v, "e")?);
    e.open();
    let (hi, si, ti) = (e.atom(h, "h"), e.atom(s, "s"), e.atom(t, "t"));
    let bias = match node.operands.get(3) {
        Some(bias) => {
            let extents = e.body.ty(*bias).shape.dims();
            let repeated =
                |(extent, at): (&Dim, &Index)| if extent.is(1) { Index::default() } else { at.clone() };
            let at: Vec<Index> = extents.iter().zip([&hi, &si, &ti]).map(repeated).collect();
            widened(&mut e, DType::F32, *bias, &at)?
        }
        None => String::new(),
    };
    let t_lines = e.close().join("\n");
    e.open();
    let (hi, si, ei) = (e.atom(h, "h"), e.atom(s, "s"), e.atom(width, "e"));
    let store = store(&mut e, form, DType::F32, [hi, si, ei])?;

    let (heads, d, width) = (number(h), number(d), number(width));
    // The partials of a split need two more bindings, which a device may not have.
    if e.bindings.len() as u64 + 2 > u64::from(e.caps.max_storage_buffers) {
        sizes.splits = 1;
    }
    let groups = heads / sizes.heads;
    let (mut found, mut done) = (0, 0);
    if sizes.splits > 1 {
        let bytes = 4 * u64::from(heads) * u64::from(sizes.splits) * u64::from(width + 2);
        found = e.scratch(Scratch { bytes, fill: None });
        done = e.scratch(Scratch { bytes: 4 * u64::from(groups), fill: Some(0) });
    }
    let mut call =
        |op: ElementwiseOp, x: String| scalar::elementwise(op, Glsl::Float, DType::F32, &[x], e.uses());
    let cap = attrs.softcap.map(|c| Glsl::Float.literal(c.as_f64())).unwrap_or_default();
    let capped = attrs.softcap.map(|_| call(ElementwiseOp::Tanh, format!("score[i] / {cap}")));
    let [exp_score, exp_top] = ["score[i]", "top"].map(|x| call(ElementwiseOp::Exp, format!("{x} - now")));
    // What the template itself calls.
    e.uses().add(lib::MAX_OF);
    e.uses().subgroups = true;
    e.extensions.insert("GL_KHR_shader_subgroup_shuffle");
    let (limits, size) = (e.caps.max_workgroup_count, e.caps.scheduled_subgroup_size());
    let grid = [
        Count { value: i64::from(groups).into(), per: 1, limit: limits[0] },
        Count::constant(sizes.splits),
        Count::constant(1),
    ];
    whole("attention", &grid)?;
    // Products per team, padded to a power of two so that they can be halved.
    let products = sizes.heads.next_power_of_two() * KEYS;
    let (halves, rest, per) = halving(products, &masks(1, sizes.team));
    let held = sizes.heads * sizes.pieces(width) * STEP;
    let (team_halves, team_rest, team_per) = halving(held, &masks(sizes.team, size));
    let same_head = masks(1, sizes.team).into_iter().enumerate();
    let same_head: Vec<u32> = same_head.filter(|(i, _)| products >> (i + 1) < KEYS).map(|(_, m)| m).collect();
    let same_head: Vec<u32> = same_head.into_iter().filter(|m| !rest.contains(m)).collect();
    // A lane holds several sums, or several lanes hold the same sum: sum `at` is in lane `lane_of_at`, at index
    // `place`.
    let apart = 1u32 << rest.len();
    let scaled = |x: &str, times: u32, by: u32| match (times, by) {
        (1, 1) => x.to_string(),
        (_, 1) => format!("{x} * {times}u"),
        _ => format!("{x} / {by}u"),
    };
    let parts = Parts {
        schedule: Schedule {
            workgroup: sizes.workgroup,
            split: Split { slices: sizes.splits, above: if sizes.splits > 1 { sizes.least } else { 0 } },
            ..schedule
        },
        template: "attention_decode.comp",
        grid,
        functions: String::new(),
        holes: context! {
            hidden => Glsl::Float.literal(f64::NEG_INFINITY), scale => Glsl::Float.literal(attrs.scale.as_f64()),
            d => d, e => width, t => t_text, window => attrs.window, cap => cap, capped => capped,
            all_heads => heads, heads => sizes.heads, group => heads / number(&vs.dims()[0]).max(1),
            splits => sizes.splits, least => sizes.least, found => found, done => done,
            size => size, subgroups => sizes.subgroups, team => sizes.team, teams => sizes.teams,
            keys => KEYS, step => STEP, stride => KEYS * sizes.teams,
            queries => sizes.pieces(d), values => sizes.pieces(width), row => sizes.row(width),
            products => products, halves => halves, per => per,
            apart => apart, lane_of_at => scaled("at", apart, per), product => scaled("own", per, apart),
            place => if per == 1 { "0u".into() } else { format!("at % {per}u") }, rest => rest, same_head => same_head,
            other_teams => masks(sizes.team, size), team_halves => team_halves, team_per => team_per,
            team_apart => 1u32 << team_rest.len(), team_rest => team_rest,
            exp_score, exp_top, ahead, last => t.max_value() - 1,
            k_ask, k_widen, v_ask, v_widen,
            q_lines => q_lines, q => query, k_lines => k_lines, t_lines => t_lines, bias => bias,
            v_lines => v_lines, store => store,
        },
    };
    finish(e, parts)
}
