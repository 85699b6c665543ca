//! Quantization to blocks: one invocation per block, which computes the scale of its 32 elements and packs them.

use minijinja::context;
use tallow_ir::form::SingleForm;
use tallow_ir::{DType, DeviceCaps, dot};

use crate::assemble::finish;
use crate::blocks::quantize_results;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::kernel::{Count, Kernel};
use crate::schedule::{Algorithm, Schedule};

const WORKGROUP: u32 = 64;

/// The schedule; the only candidate.
pub(crate) fn schedule(caps: &DeviceCaps) -> Schedule {
    Schedule::new(Algorithm::Quantize, WORKGROUP.min(caps.max_workgroup_invocations))
}

pub(crate) fn kernel(
    mut e: Emitter<'_>,
    form: &SingleForm,
    schedule: Schedule,
) -> Result<Kernel, CodegenError> {
    let node = e.body.node(form.node);
    let ty = node.types[0].clone();
    let refused = || CodegenError::Node(e.body.node_text(form.node));
    let DType::Block(format) = ty.dtype else { return Err(refused()) };
    let blocks = quantize_results::blocks(&ty.shape.numel()).ok_or_else(refused)?;
    let blocks_text = e.dim(&blocks);
    let buffers: Vec<usize> = (0..e.body.outputs().len()).map(|o| e.result(o as u32)).collect();
    let ((x, lines), store) = e.scope(|e| {
        let first = e.atom(&ty.shape.numel(), "first");
        let element = e.scope(|e| {
            let i = e.atom(&ty.shape.numel(), "i");
            let at = e.atoms.unflatten(&i, &ty.shape);
            Ok(e.value(node.operands[0], &at)?.text)
        })?;
        for (output, buffer) in buffers.into_iter().enumerate() {
            quantize_results::store(e, output, buffer, &first, quantize_results::By::One, "words")?;
        }
        Ok(element)
    })?;
    let [lines, store] = [lines, store].map(|lines| lines.join("\n"));
    let comment = format!("%{} = {}", form.node.0, e.body.node_text(form.node));
    let functions = quantize_results::functions(&[format], e.uses())?;
    let holes = context! {
        blocks => blocks_text, lines, x, store, comment, block => dot::BLOCK,
        words => quantize_results::words(format), function => quantize_results::function(format),
    };
    let grid = Count::along_x(e.caps, blocks, schedule.workgroup);
    finish(e, schedule, "quantize.comp", grid, functions, holes)
}
