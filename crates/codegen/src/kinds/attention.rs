//! Attention with online softmax: one workgroup a head and query.
//!
//! Where subgroups can add, each takes its own share of the keys, and a team of its lanes reads one key together: eight
//! elements a lane where they lie beside each other, so that several teams have keys under way, else one. Elsewhere each
//! invocation has a key of its own. Keys and values in blocks are read as they are; what they mean is never in memory.

use minijinja::context;
use tallow_ir::cost;
use tallow_ir::form::{AttentionForm, output_root};
use tallow_ir::index::{AtomDef, Index};
use tallow_ir::{DType, DeviceCaps, Dim, ElementwiseOp, Op, ReduceKind, Value};

use super::operand::WIDE;
use super::{Parts, finish, floor_pow2, operand, reduction, whole};
use crate::emit::{Anchor, Emitter, Expr};
use crate::kernel::{CodegenError, Count, Kernel};
use crate::scalar::{self, Glsl};
use crate::schedule::{Algorithm, Schedule};

/// Keys of one step, where each invocation has its own.
const WORKGROUP: u32 = 64;

/// Values that are written out in that case. Mesa's software device leaves all loops of an invocation after 65535 iterations in all,
/// without a word: with one value each, some 40,000 keys were too many.
const TOGETHER: u32 = 8;

/// Keys that a subgroup takes at a time: their loads and sums are under way together.
const KEYS: u32 = 4;

/// Invocations that share the keys of a single query; and of one of many, which fill a device by their number.
const ONE_QUERY: u32 = 512;
const MANY_QUERIES: u32 = 128;

/// Elements of a query or a value that a lane holds, at most.
const HELD: u32 = 16;

/// How the keys of a query are shared among subgroups.
struct Split {
    workgroup: u32,
    subgroups: u32,
}

/// The sharing for heads of `d` elements and values of `e`, if the device can do it.
fn split(caps: &DeviceCaps, wide: DType, queries: &Dim, d: u32, e: u32) -> Option<Split> {
    let size = caps.scheduled_subgroup_size();
    let fixed = caps.has_fixed_subgroup_size();
    let workgroup = match cost::runs_workgroups_on_one_thread(caps) {
        // One thread runs all subgroups, and more of them only add switches; with two their sums still meet, which
        // tests without a GPU want to see.
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

/// The schedule.
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
    // Teams read eight elements of keys and of values, or one of both; without them only keys are read by one invocation.
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

    let call = |op: ElementwiseOp, x: String| scalar::elementwise(op, ty, wide, &[x]);
    let cap = attrs.softcap.map(|c| ty.literal(c.as_f64())).unwrap_or_default();
    let score = if split.is_some() { "score[j]" } else { "score" };
    let capped = call(ElementwiseOp::Tanh, format!("{score} / {cap}"));
    let exp = |x: &str| call(ElementwiseOp::Exp, format!("{x} - now"));
    // What is called in the holes and by the template itself.
    let text = format!(
        "{q_lines}{k_lines}{t_lines}{v_lines}{store}{query}{key}{bias}{value} max_of( {} {} {}",
        if split.is_some() { "subgroup" } else { "" },
        exp(score),
        if attrs.softcap.is_some() { capped.as_str() } else { "" },
    );
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
        template: if split.is_some() { "attention_split.comp" } else { "attention.comp" },
        grid,
        functions: if split.is_some() { String::new() } else { used.render(workgroup, e.caps)? },
        text,
        holes: context! {
            type => ty.name(), zero => ty.literal(0.0), hidden => ty.literal(f64::NEG_INFINITY),
            d => number(d), e => number(width), t => t_text, s_extent => s_text,
            causal => attrs.causal, window => attrs.window, cap => cap, capped => capped,
            group => number(h) / number(&vs.dims()[0]).max(1), scale => ty.literal(attrs.scale.as_f64()),
            slots => number(width).div_ceil(workgroup), max => max, total => total,
            exp_score => exp(score), exp_top => exp("top"), exp_part => exp("tops[i]"), keys => KEYS,
            subgroups => split.as_ref().map_or(1, |split| split.subgroups), size => size,
            step => step, team => team, together => TOGETHER,
            queries => number(d).div_ceil(team * step), values => number(width).div_ceil(team * step),
            q_lines => q_lines, q => query, k_lines => k_lines, t_lines => t_lines, kv => key, bias => bias,
            v_lines => v_lines, v => value, store => store,
        },
    };
    finish(e, parts)
}

/// Lanes that read a key or value of up to `elements` together, eight each, if the device can bring several teams of a
/// subgroup together.
pub(super) fn team(caps: &DeviceCaps, elements: u32) -> Option<u32> {
    let lanes = elements.div_ceil(WIDE as u32).next_power_of_two().min(caps.scheduled_subgroup_size());
    (lanes == caps.scheduled_subgroup_size() || caps.subgroup_shuffle).then_some(lanes)
}

/// Whether eight neighbours of a row of `value` lie beside each other in a buffer, from each multiple of eight on.
pub(super) fn has_eights(e: &mut Emitter<'_>, value: Value) -> bool {
    let dims = e.body.ty(value).shape.dims().to_vec();
    let Some((last, rows)) = dims.split_last() else { return false };
    let rows: Vec<Index> = rows.iter().map(|n| e.atoms.free(n)).collect();
    last.div_exact(&WIDE.into()).is_some() && neighbours_of(e, value, &rows, last).is_some()
}

/// The line that loads eight neighbours of a row of `value` from element `name` on; [`has_eights`] was asked.
pub(super) fn eight(
    e: &mut Emitter<'_>,
    value: Value,
    row: &[Index],
    name: &str,
) -> Result<Vec<String>, CodegenError> {
    let last = e.body.ty(value).shape.dims()[row.len()].clone();
    let found = neighbours_of(e, value, row, &last);
    let (buffer, base) = found.ok_or_else(|| CodegenError::Node(e.body.node_text(value.node)))?;
    let base = e.index(&base)?.text;
    Ok(vec![format!("load8_{}({base} + {name}, w);", e.buffers[buffer].binding)])
}

/// Whether eight neighbours of `value` are one load, which can be asked for from row `t` on for each `t` below `rows`, before the
/// kernel knows how many rows there are: none lies beyond the buffer.
pub(super) fn holds(e: &mut Emitter<'_>, value: Value, rows: i64) -> bool {
    let dims = e.body.ty(value).shape.dims().to_vec();
    let [g, _, last] = dims.as_slice() else { return false };
    let row = [e.atoms.free(g), e.atoms.free(&Dim::constant(rows))];
    let probe = e.atoms.fresh(last, AtomDef::Free);
    let at = [&row[..], &[e.atoms.index(probe)]].concat();
    let Some((buffer, base)) = operand::one_load(e, value, &at, probe) else { return false };
    let end = e.atoms.max(&base).map(|at| at.max_value() + last.max_value());
    end.is_some_and(|end| u64::try_from(end).is_ok_and(|end| end <= e.buffers[buffer].elements))
}

/// The load of eight neighbours of a row of `value` from element `name` on, and the function that widens what it gave;
/// [`holds`] was asked.
pub(super) fn held(
    e: &mut Emitter<'_>,
    value: Value,
    row: &[Index],
    name: &str,
) -> Result<(String, String), CodegenError> {
    let last = e.body.ty(value).shape.dims()[row.len()].clone();
    let found = neighbours_of(e, value, row, &last);
    let (buffer, base) = found.ok_or_else(|| CodegenError::Node(e.body.node_text(value.node)))?;
    let (base, b) = (e.index(&base)?.text, e.buffers[buffer].binding);
    Ok((format!("wide{b}(({base} + {name}) >> 3)"), format!("widen8_{b}")))
}

fn neighbours_of(e: &mut Emitter<'_>, value: Value, row: &[Index], last: &Dim) -> Option<(usize, Index)> {
    let probe = e.atoms.fresh(last, AtomDef::Free);
    let mut at = row.to_vec();
    at.push(e.atoms.index(probe));
    operand::wide(e, value, &at, probe)
}

/// Lines that write `result`, of type `wide`, as the attention's element at head, query and column `at` to all outputs,
/// in a scope that is open and ends here.
pub(super) fn store(
    e: &mut Emitter<'_>,
    form: &AttentionForm,
    wide: DType,
    at: [Index; 3],
) -> Result<String, CodegenError> {
    let ty = e.body.node(form.node).types[0].clone();
    let text = if ty.dtype == wide { "result".into() } else { narrow(wide, ty.dtype) };
    let depth = e.depth();
    e.anchors.insert(form.node, Anchor::Var(Expr { text, depth }));
    let linear = e.atoms.flatten(&at, &ty.shape);
    for output in 0..e.body.outputs().len() {
        let buffer = e.result(output as u32);
        let to = e.body.ty(output_root(e.body, output)).shape.clone();
        let at = e.atoms.unflatten(&linear, &to);
        e.store(output as u32, buffer, &at)?;
    }
    Ok(e.close().join("\n"))
}

/// The type of scores and sums: f64 if an operand is, else f32.
pub(super) fn accumulator(e: &Emitter<'_>, form: &AttentionForm) -> Result<DType, CodegenError> {
    let mut wide = DType::F32;
    for v in &e.body.node(form.node).operands {
        let dtype = e.body.ty(*v).dtype;
        match Glsl::of(dtype, e.caps) {
            Some(Glsl::Double) => wide = DType::F64,
            Some(Glsl::Float) => {}
            Some(Glsl::Uint | Glsl::Int | Glsl::Long) | None => {
                return Err(CodegenError::Dtype { what: e.body.node_text(form.node), dtype });
            }
        }
    }
    Ok(wide)
}

/// An element in the type of the sums.
pub(super) fn widened(
    e: &mut Emitter<'_>,
    wide: DType,
    value: Value,
    at: &[Index],
) -> Result<String, CodegenError> {
    let text = e.value(value, at)?.text;
    Ok(if wide == DType::F64 { scalar::cast(e.body.ty(value).dtype, wide, &text) } else { text })
}

/// The result in its own type; floats narrower than f32 stay in its precision where they can.
fn narrow(wide: DType, dtype: DType) -> String {
    if wide == DType::F64 {
        scalar::cast(wide, dtype, "result")
    } else {
        scalar::held(dtype, "result".into())
    }
}
