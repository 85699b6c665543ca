//! Attention with online softmax: one workgroup per head and query.
//!
//! With subgroup arithmetic, each subgroup processes its share of the keys, and a team of its lanes reads one key
//! together. If elements are contiguous, a lane reads eight at once, so that several teams have keys in flight;
//! otherwise it reads one. Without subgroup arithmetic, each invocation processes its own key. Keys and values in
//! blocks are dequantized at the load and never materialized.

use minijinja::context;
use tallow_ir::cost;
use tallow_ir::form::AttentionForm;
use tallow_ir::index::Index;
use tallow_ir::{DType, DeviceCaps, Dim, ElementwiseOp, Op, ReduceKind};

use super::operands::{accumulator, eight, has_eights, store, team, widened};
use crate::assemble::{Parts, finish, floor_pow2, whole};
use crate::blocks::operand::WIDE;
use crate::blocks::reduction;
use crate::emit::Emitter;
use crate::kernel::{CodegenError, Count, Kernel};
use crate::library as lib;
use crate::scalar::{self, Glsl};
use crate::schedule::{Algorithm, Schedule};

/// Keys per iteration where each invocation processes its own key.
const WORKGROUP: u32 = 64;

/// Unroll factor of the loop over values in that case. Mesa's software device silently leaves all loops of an
/// invocation after 65535 iterations in total. With one value per iteration, some 40,000 keys were too many.
const TOGETHER: u32 = 8;

/// Keys that a team processes per iteration; their loads and sums are in flight together.
const KEYS: u32 = 4;

/// Invocations per workgroup: for a single query, and for each of many queries, whose workgroups together fill a
/// device.
const ONE_QUERY: u32 = 512;
const MANY_QUERIES: u32 = 128;

/// Most elements of a query or value that a lane holds.
const HELD: u32 = 16;

/// Partition of a query's keys among subgroups.
struct Split {
    workgroup: u32,
    subgroups: u32,
}

/// The partition for heads of `d` elements and values of `e`; `None` if the device does not support it.
fn split(caps: &DeviceCaps, wide: DType, queries: &Dim, d: u32, e: u32) -> Option<Split> {
    let size = caps.scheduled_subgroup_size();
    let fixed = caps.has_fixed_subgroup_size();
    let workgroup = match cost::runs_workgroups_on_one_thread(caps) {
        // One thread runs all subgroups, so more of them only add context switches. With two, tests without a GPU still
        // cover the combination of their partials.
        true => 2 * size,
        false if queries.is(1) => ONE_QUERY,
        false => MANY_QUERIES,
    };
    let workgroup = workgroup.min(floor_pow2(caps.max_workgroup_invocations)).max(size);
    let subgroups = workgroup / size;
    let bytes = 4 * u64::from(d) + 4 * u64::from(subgroups) * (u64::from(e) + 2);
    let fits = bytes <= u64::from(caps.shared_memory_bytes) && d.max(e).div_ceil(size) <= HELD;
    let can = caps.subgroup_arithmetic && fixed && size.is_power_of_two() && wide == DType::F32;
    (can && fits).then_some(Split { workgroup, subgroups })
}

/// The schedule; the only candidate.
pub(crate) fn schedule(e: &Emitter<'_>, form: &AttentionForm) -> Schedule {
    let split = accumulator(e, form).ok().and_then(|wide| {
        let node = e.body.node(form.node);
        let [q, v] = [node.operands[0], node.operands[2]].map(|v| e.body.ty(v).shape.dims());
        let number = |x: &Dim| x.as_const().unwrap_or(1) as u32;
        split(e.caps, wide, &q[1], number(&q[2]), number(&v[2]))
    });
    let alone = floor_pow2(e.caps.max_workgroup_invocations.min(WORKGROUP));
    Schedule::new(Algorithm::Attention, split.map_or(alone, |split| split.workgroup))
}

pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &AttentionForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let node = e.body.node(form.node);
    let Op::Attention(attrs) = node.op else {
        return Err(CodegenError::Node(e.body.node_text(form.node)));
    };
    let [q, k, v] = [node.operands[0], node.operands[1], node.operands[2]];
    let wide = accumulator(&e, form)?;
    let ty = Glsl::of(wide, e.caps)
        .ok_or(CodegenError::Dtype { what: e.body.node_text(form.node), dtype: wide })?;
    let (qs, vs) = (e.body.ty(q).shape.clone(), e.body.ty(v).shape.clone());
    let [h, s, d, t, width] = [&qs.dims()[0], &qs.dims()[1], &qs.dims()[2], &vs.dims()[1], &vs.dims()[2]];
    let number = |x: &Dim| x.as_const().unwrap_or(1) as u32;
    let split = split(e.caps, wide, s, number(d), number(width));
    let alone = floor_pow2(e.caps.max_workgroup_invocations.min(WORKGROUP));
    let workgroup = schedule.workgroup;
    let mut used = reduction::Used::default();
    let total = used.value(ReduceKind::Sum, ty, wide);
    let max = used.value(ReduceKind::Max, ty, wide);

    let elements = number(d).saturating_add(alone);
    let needs = ty.bytes().saturating_mul(elements).saturating_add(used.shared_bytes(alone));
    let has = e.caps.shared_memory_bytes;
    if split.is_none() && needs > has {
        return Err(CodegenError::SharedMemory { what: "attention".into(), needs, has });
    }

    let (t_text, s_text) = (e.dim(t), e.dim(s));
    let (hi, si, gi) = (e.atom(h, "h"), e.atom(s, "s"), e.atom(&vs.dims()[0], "g"));
    e.open();
    let di = e.atom(d, "d");
    let query = widened(&mut e, wide, q, &[hi.clone(), si.clone(), di])?;
    let q_lines = e.close().join("\n");
    let team = team(e.caps, number(d).max(number(width)));
    let eights = wide == DType::F32 && (split.is_none() || team.is_some());
    // Teams read eight elements of both keys and values, or one of both. Without teams, one invocation reads eight
    // elements of a key only.
    let eights = eights && has_eights(&mut e, k) && (split.is_none() || has_eights(&mut e, v));
    let (step, team) = if eights { (WIDE as u32, team) } else { (1, None) };
    let team = team.unwrap_or(e.caps.scheduled_subgroup_size());
    e.open();
    let ti = e.atom(t, "t");
    e.open();
    let (key, load) = if eights {
        (String::new(), eight(&mut e, k, &[gi.clone(), ti.clone()], "d")?)
    } else {
        let di = e.atom(d, "d");
        (widened(&mut e, wide, k, &[gi.clone(), ti.clone(), di])?, vec![])
    };
    let k_lines = e.close().into_iter().chain(load).collect::<Vec<_>>().join("\n");
    let bias = match node.operands.get(3) {
        Some(bias) => {
            let extents = e.body.ty(*bias).shape.dims();
            let repeated =
                |(extent, at): (&Dim, &Index)| if extent.is(1) { Index::default() } else { at.clone() };
            let at: Vec<Index> = extents.iter().zip([&hi, &si, &ti]).map(repeated).collect();
            widened(&mut e, wide, *bias, &at)?
        }
        None => String::new(),
    };
    let t_lines = e.close().join("\n");
    e.open();
    let ti = e.atom(t, "t");
    let (value, load) = if eights && split.is_some() {
        (String::new(), eight(&mut e, v, &[gi, ti], "e")?)
    } else {
        let ei = e.atom(width, "e");
        (widened(&mut e, wide, v, &[gi, ti, ei])?, vec![])
    };
    let v_lines = e.close().into_iter().chain(load).collect::<Vec<_>>().join("\n");

    e.open();
    let ei = e.atom(width, "e");
    let store = store(&mut e, form, wide, [hi, si, ei])?;

    let mut call = |op: ElementwiseOp, x: String| scalar::elementwise(op, ty, wide, &[x], e.uses());
    let cap = attrs.softcap.map(|c| ty.literal(c.as_f64())).unwrap_or_default();
    let score = if split.is_some() { "score[j]" } else { "score" };
    let capped = attrs.softcap.map(|_| call(ElementwiseOp::Tanh, format!("{score} / {cap}")));
    let [exp_score, exp_top, exp_part] =
        [score, "top", "tops[i]"].map(|x| call(ElementwiseOp::Exp, format!("{x} - now")));
    // What the template itself calls.
    e.uses().add(lib::MAX_OF);
    e.uses().subgroups |= split.is_some();
    let (limits, size) = (e.caps.max_workgroup_count, e.caps.scheduled_subgroup_size().max(1));
    if split.is_some() && team < size {
        e.extensions.insert("GL_KHR_shader_subgroup_shuffle");
    }
    let grid = [
        Count { value: s.clone(), per: 1, limit: limits[0] },
        Count { value: h.clone(), per: 1, limit: limits[1] },
        Count::constant(1),
    ];
    whole("attention", &grid)?;
    let parts = Parts {
        schedule,
        template: if split.is_some() { "attention_subgroups.comp" } else { "attention.comp" },
        grid,
        functions: if split.is_some() { String::new() } else { used.render(workgroup, &mut e)? },
        holes: context! {
            type => ty.name(), zero => ty.literal(0.0), hidden => ty.literal(f64::NEG_INFINITY),
            d => number(d), e => number(width), t => t_text, s_extent => s_text,
            causal => attrs.causal, window => attrs.window, cap => cap, capped => capped,
            group => number(h) / number(&vs.dims()[0]).max(1), scale => ty.literal(attrs.scale.as_f64()),
            slots => number(width).div_ceil(workgroup), max => max, total => total,
            exp_score, exp_top, exp_part, keys => KEYS,
            subgroups => split.as_ref().map_or(1, |split| split.subgroups), size => size,
            step => step, team => team, together => TOGETHER,
            queries => number(d).div_ceil(team * step), values => number(width).div_ceil(team * step),
            q_lines => q_lines, q => query, k_lines => k_lines, t_lines => t_lines, kv => key, bias => bias,
            v_lines => v_lines, v => value, store => store,
        },
    };
    finish(e, parts)
}
