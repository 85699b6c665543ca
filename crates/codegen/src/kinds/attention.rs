//! Attention with online softmax: one workgroup a head and query.

use minijinja::context;
use tallow_ir::form::{AttentionForm, output_root};
use tallow_ir::{DType, Op, ReduceKind};

use super::{Parts, finish, floor_pow2, reduction, whole};
use crate::emit::{Anchor, Emitter, Expr};
use crate::kernel::{CodegenError, Count, Kernel};
use crate::scalar::{self, Glsl};

/// Keys of one step.
const WORKGROUP: u32 = 64;

pub(crate) fn kernel(mut e: Emitter<'_>, form: &AttentionForm) -> Result<Kernel, CodegenError> {
    let node = e.body.node(form.node);
    let Op::Attention { scale, causal } = node.op else {
        return Err(CodegenError::Node(e.body.node_text(form.node)));
    };
    let [q, k, v] = [node.operands[0], node.operands[1], node.operands[2]];
    // Scores and sums are f32; what is wider has no kernel.
    let dtype = node.types[0].dtype;
    let wide = |dtype: &DType| Glsl::of(*dtype, e.caps) != Some(Glsl::Float);
    if let Some(dtype) = [dtype, e.body.ty(k).dtype].into_iter().find(wide) {
        return Err(CodegenError::Dtype { what: e.body.node_text(form.node), dtype });
    }
    let (qs, vs) = (e.body.ty(q).shape.clone(), e.body.ty(v).shape.clone());
    let [h, s, d, t, width] = [&qs.dims()[0], &qs.dims()[1], &qs.dims()[2], &vs.dims()[1], &vs.dims()[2]];
    let number = |x: &tallow_ir::Dim| x.as_const().unwrap_or(1) as u32;
    let workgroup = floor_pow2(e.caps.max_workgroup_invocations.min(WORKGROUP));
    let mut used = reduction::Used::default();
    used.value(ReduceKind::Sum, Glsl::Float, DType::F32);
    used.value(ReduceKind::Max, Glsl::Float, DType::F32);

    let needs = 4 * (number(d).saturating_add(workgroup)).saturating_add(used.shared_bytes(workgroup));
    let has = e.caps.shared_memory_bytes;
    if needs > has {
        return Err(CodegenError::SharedMemory { what: "attention".into(), needs, has });
    }

    let (t_text, s_text) = (e.dim(t), e.dim(s));
    let (hi, si, gi) = (e.atom(h, "h"), e.atom(s, "s"), e.atom(&vs.dims()[0], "g"));
    e.open();
    let di = e.atom(d, "d");
    let query = e.value(q, &[hi.clone(), si.clone(), di])?;
    let q_lines = e.close().join("\n");
    e.open();
    let ti = e.atom(t, "t");
    e.open();
    let di = e.atom(d, "d");
    let key = e.value(k, &[gi.clone(), ti, di])?;
    let k_lines = e.close().join("\n");
    let k_prelude = e.close().join("\n");
    e.open();
    let (ti, ei) = (e.atom(t, "t"), e.atom(width, "e"));
    let value = e.value(v, &[gi, ti, ei])?;
    let v_lines = e.close().join("\n");

    let buffers: Vec<usize> = (0..e.body.outputs().len()).map(|o| e.result(o as u32)).collect();
    e.open();
    let ei = e.atom(width, "e");
    let depth = e.depth();
    e.anchors.insert(form.node, Anchor::Var(Expr { text: scalar::held(dtype, "result".into()), depth }));
    let shape = e.body.node(form.node).types[0].shape.clone();
    let linear = e.atoms.flatten(&[hi, si, ei], &shape);
    for (output, buffer) in buffers.iter().enumerate() {
        let to = e.body.ty(output_root(e.body, output)).shape.clone();
        let at = e.atoms.unflatten(&linear, &to);
        e.store(output as u32, *buffer, &at)?;
    }
    let store = e.close().join("\n");

    let text =
        format!("{q_lines}{k_lines}{k_prelude}{v_lines}{store}{}{}{}", query.text, key.text, value.text);
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
            d => number(d), e => number(width), t => t_text, s_extent => s_text, causal => causal,
            group => number(h) / number(&vs.dims()[0]).max(1), scale => Glsl::Float.literal(scale.as_f64()),
            slots => number(width).div_ceil(workgroup), q_lines => q_lines, q => query.text, k_lines => k_lines,
            k_prelude => k_prelude, kv => key.text, v_lines => v_lines, v => value.text, store => store,
        },
    };
    finish(e, parts)
}
