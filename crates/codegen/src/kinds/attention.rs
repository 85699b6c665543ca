//! Attention with online softmax: one workgroup a head and query.

use minijinja::context;
use tallow_ir::form::{AttentionForm, output_root};
use tallow_ir::index::Index;
use tallow_ir::{DType, Dim, ElementwiseOp, Op, ReduceKind, Value};

use super::{Parts, finish, floor_pow2, reduction, whole};
use crate::emit::{Anchor, Emitter, Expr};
use crate::kernel::{CodegenError, Count, Kernel};
use crate::scalar::{self, Glsl};

/// Keys of one step.
const WORKGROUP: u32 = 64;

pub(crate) fn kernel(mut e: Emitter<'_>, form: &AttentionForm) -> Result<Kernel, CodegenError> {
    let node = e.body.node(form.node);
    let Op::Attention(attrs) = node.op else {
        return Err(CodegenError::Node(e.body.node_text(form.node)));
    };
    let [q, k, v] = [node.operands[0], node.operands[1], node.operands[2]];
    let dtype = node.types[0].dtype;
    let wide = accumulator(&e, form)?;
    let ty = Glsl::of(wide, e.caps)
        .ok_or(CodegenError::Dtype { what: e.body.node_text(form.node), dtype: wide })?;
    let (qs, vs) = (e.body.ty(q).shape.clone(), e.body.ty(v).shape.clone());
    let [h, s, d, t, width] = [&qs.dims()[0], &qs.dims()[1], &qs.dims()[2], &vs.dims()[1], &vs.dims()[2]];
    let number = |x: &Dim| x.as_const().unwrap_or(1) as u32;
    let workgroup = floor_pow2(e.caps.max_workgroup_invocations.min(WORKGROUP));
    let mut used = reduction::Used::default();
    let total = used.value(ReduceKind::Sum, ty, wide);
    let max = used.value(ReduceKind::Max, ty, wide);

    let elements = number(d).saturating_add(workgroup);
    let needs = ty.bytes().saturating_mul(elements).saturating_add(used.shared_bytes(workgroup));
    let has = e.caps.shared_memory_bytes;
    if needs > has {
        return Err(CodegenError::SharedMemory { what: "attention".into(), needs, has });
    }

    let (t_text, s_text) = (e.dim(t), e.dim(s));
    let (hi, si, gi) = (e.atom(h, "h"), e.atom(s, "s"), e.atom(&vs.dims()[0], "g"));
    e.open();
    let di = e.atom(d, "d");
    let query = widened(&mut e, wide, q, &[hi.clone(), si.clone(), di])?;
    let q_lines = e.close().join("\n");
    e.open();
    let ti = e.atom(t, "t");
    e.open();
    let di = e.atom(d, "d");
    let key = widened(&mut e, wide, k, &[gi.clone(), ti.clone(), di])?;
    let k_lines = e.close().join("\n");
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
    let (ti, ei) = (e.atom(t, "t"), e.atom(width, "e"));
    let value = widened(&mut e, wide, v, &[gi, ti, ei])?;
    let v_lines = e.close().join("\n");

    let buffers: Vec<usize> = (0..e.body.outputs().len()).map(|o| e.result(o as u32)).collect();
    e.open();
    let ei = e.atom(width, "e");
    let depth = e.depth();
    let result = if dtype == wide { "result".into() } else { narrow(wide, dtype) };
    e.anchors.insert(form.node, Anchor::Var(Expr { text: result, depth }));
    let shape = e.body.node(form.node).types[0].shape.clone();
    let linear = e.atoms.flatten(&[hi, si, ei], &shape);
    for (output, buffer) in buffers.iter().enumerate() {
        let to = e.body.ty(output_root(e.body, output)).shape.clone();
        let at = e.atoms.unflatten(&linear, &to);
        e.store(output as u32, *buffer, &at)?;
    }
    let store = e.close().join("\n");

    let call = |op: ElementwiseOp, x: String| scalar::elementwise(op, ty, wide, &[x]);
    let cap = attrs.softcap.map(|c| ty.literal(c.as_f64())).unwrap_or_default();
    let capped = call(ElementwiseOp::Tanh, format!("score / {cap}"));
    let exp = |x: &str| call(ElementwiseOp::Exp, format!("{x} - now"));
    // What is called in the holes and by the template itself.
    let text = format!(
        "{q_lines}{k_lines}{t_lines}{v_lines}{store}{query}{key}{bias}{value} max_of( {} {}",
        exp("score"),
        if attrs.softcap.is_some() { capped.as_str() } else { "" },
    );
    let limits = e.caps.max_workgroup_count;
    let grid = [
        Count { value: s.clone(), per: 1, limit: limits[0] },
        Count { value: h.clone(), per: 1, limit: limits[1] },
        Count::constant(1),
    ];
    whole("attention", &grid)?;
    let parts = Parts {
        kind: "attention",
        template: "attention.comp",
        workgroup,
        grid,
        functions: used.render(workgroup, e.caps)?,
        text,
        holes: context! {
            type => ty.name(), zero => ty.literal(0.0), hidden => ty.literal(f64::NEG_INFINITY),
            d => number(d), e => number(width), t => t_text, s_extent => s_text,
            causal => attrs.causal, window => attrs.window, cap => cap, capped => capped,
            group => number(h) / number(&vs.dims()[0]).max(1), scale => ty.literal(attrs.scale.as_f64()),
            slots => number(width).div_ceil(workgroup), max => max, total => total,
            exp_score => exp("score"), exp_top => exp("top"),
            q_lines => q_lines, q => query, k_lines => k_lines, t_lines => t_lines, kv => key, bias => bias,
            v_lines => v_lines, v => value, store => store,
        },
    };
    finish(e, parts)
}

/// The type of scores and sums: f64 if an operand is, else f32.
fn accumulator(e: &Emitter<'_>, form: &AttentionForm) -> Result<DType, CodegenError> {
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
fn widened(e: &mut Emitter<'_>, wide: DType, value: Value, at: &[Index]) -> Result<String, CodegenError> {
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
