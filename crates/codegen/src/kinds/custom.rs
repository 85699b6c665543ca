//! User-written kernels: their bindings and grid. The shader is used unchanged (see [`crate::custom`]).

use tallow_ir::form::{SingleForm, param_through_reshapes};
use tallow_ir::{CustomCode, Op, PushValue, TensorType};

use crate::assemble::check_grid;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::kernel::{Binding, Count, Kernel, Source, Target};
use crate::schedule::{Algorithm, Schedule};

/// The schedule: the user's workgroup size.
pub(crate) fn schedule(e: &Emitter<'_>, form: &SingleForm) -> Schedule {
    let invocations = match e.body.op(form.node.into()) {
        Op::Custom(custom) => custom.kernel.workgroup.iter().fold(1u32, |all, n| all.saturating_mul(*n)),
        _ => 1,
    };
    Schedule::new(Algorithm::Custom, invocations)
}

pub(crate) fn kernel(e: Emitter<'_>, form: &SingleForm, schedule: Schedule) -> Result<Kernel, CodegenError> {
    let node = e.body.node(form.node);
    let Op::Custom(custom) = &node.op else {
        return Err(CodegenError::Node(e.body.node_text(form.node)));
    };
    let kernel = custom.kernel.clone();
    let fail = |why: String| CodegenError::Custom { name: kernel.name.clone(), why };
    let limit = e.caps.window_bytes();
    let range = |what: &str, i: usize, ty: &TensorType| match ty.max_bytes() {
        bytes if bytes <= limit => Ok((0, limit)),
        bytes => Err(fail(format!("{what} {i} has {bytes} bytes, the device binds {limit}"))),
    };
    let mut bindings = vec![];
    for (i, v) in node.operands.iter().enumerate() {
        let param = param_through_reshapes(e.body, *v)
            .ok_or_else(|| CodegenError::Node(e.body.node_text(form.node)))?;
        let range = range("input", i, e.body.ty(*v))?;
        bindings.push(Binding { source: Source::Operand(param), written: false, range });
    }
    for (i, ty) in node.types.iter().enumerate() {
        let range = range("output", i, ty)?;
        bindings.push(Binding { source: Source::Result(i as u32), written: true, range });
    }
    if !custom.push.is_empty() {
        let values: Vec<_> = custom.push.iter().map(PushValue::bits).collect();
        let range = e.table.block(&values, e.caps.storage_offset_alignment);
        bindings.push(Binding { source: Source::Table, written: false, range });
    }
    if bindings.len() > e.caps.max_storage_buffers as usize {
        let (needs, has) = (bindings.len(), e.caps.max_storage_buffers);
        return Err(fail(format!("it binds {needs} buffers, the device {has}")));
    }
    let workgroup = kernel.workgroup;
    let size: u64 = workgroup.iter().map(|n| u64::from(*n)).product();
    let most = u64::from(e.caps.max_workgroup_invocations);
    if size > most || workgroup.iter().zip(&e.caps.max_workgroup_size).any(|(n, most)| n > most) {
        let extents = e.caps.max_workgroup_size;
        return Err(fail(format!("a workgroup of {workgroup:?} exceeds {most} invocations or {extents:?}")));
    }
    let count = |axis| Count::along(e.caps, axis, custom.invocations[axis].clone(), workgroup[axis]);
    let grid = [0, 1, 2].map(count);
    check_grid("a custom kernel", &grid)?;
    let glsl = match &kernel.code {
        CustomCode::Glsl(text) => text.clone(),
        // Never compiled; shown in dumps only.
        CustomCode::Spirv(words) => format!("// SPIR-V, {} words\n", words.len()),
    };
    let name = format!("custom .. {}", kernel.name);
    Ok(Kernel {
        name,
        glsl,
        bindings,
        workgroup,
        grid,
        scratch: vec![],
        // After optimization, the module declares only what it uses; these declarations are checked.
        optimize: true,
        target: Target::Vulkan12,
        custom: Some(kernel),
        schedule,
    })
}
