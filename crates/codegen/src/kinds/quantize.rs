//! Values rounded to blocks: one invocation a block, which finds the scale of its 32 elements and packs them.

use minijinja::context;
use tallow_ir::form::SingleForm;
use tallow_ir::{DType, Dim, Format, Op};

use super::{Parts, finish};
use crate::emit::Emitter;
use crate::kernel::{CodegenError, Count, Kernel};

/// Elements of a block.
const BLOCK: i64 = 32;

const WORKGROUP: u32 = 64;

pub(crate) fn kernel(mut e: Emitter<'_>, form: &SingleForm) -> Result<Kernel, CodegenError> {
    let node = e.body.node(form.node);
    let ty = node.types[0].clone();
    let Op::Quantize(Format::Q8_1) = node.op else {
        return Err(CodegenError::Dtype { what: e.body.node_text(form.node), dtype: ty.dtype });
    };
    let workgroup = WORKGROUP.min(e.caps.max_workgroup_invocations);
    let inexact = || CodegenError::Node(e.body.node_text(form.node));
    let blocks: Dim = ty.shape.numel().div_exact(&BLOCK.into()).ok_or_else(inexact)?;
    let blocks_text = e.dim(&blocks);
    let result = e.result(0);
    e.open(); // a block
    e.open(); // an element
    let i = e.atom(&ty.shape.numel(), "i");
    let at = e.atoms.unflatten(&i, &ty.shape);
    let x = e.value(node.operands[0], &at)?;
    let lines = e.close().join("\n");
    let block_lines = e.close().join("\n");
    debug_assert_eq!((ty.dtype, block_lines.as_str()), (DType::Block(Format::Q8_1), ""));
    let buffer = &e.buffers[result];
    let plane = |name: &str| buffer.planes().iter().find(|(n, _)| *n == name).map_or(0, |(_, at)| at / 4);
    let store_bytes = buffer.store(&format!("{}u + block * 8u + word", plane("qs")), "bytes", e.caps);
    let store_scales = buffer.store(&format!("{}u + block", plane("ds")), "scales", e.caps);
    let comment = format!("%{} = {}", form.node.0, e.body.node_text(form.node));
    let limit = e.caps.max_workgroup_count[0];
    let parts = Parts {
        kind: "quantize",
        template: "quantize.comp",
        workgroup,
        grid: [Count { value: blocks, per: workgroup, limit }, Count::constant(1), Count::constant(1)],
        functions: String::new(),
        text: format!("to_int( round_of( round_f16( {lines}{}", x.text),
        holes: context! {
            blocks => blocks_text, lines => lines, x => x.text, store_bytes => store_bytes,
            store_scales => store_scales, comment => comment,
        },
    };
    finish(e, parts)
}
