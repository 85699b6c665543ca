//! One invocation per element of the outputs, looping where the grid is smaller.

use minijinja::context;
use tallow_ir::form::{MapForm, output_root};

use super::{Parts, finish};
use crate::emit::Emitter;
use crate::kernel::{CodegenError, Count, Kernel};

const WORKGROUP: u32 = 256;

pub(crate) fn kernel(mut e: Emitter<'_>, form: &MapForm) -> Result<Kernel, CodegenError> {
    let workgroup = WORKGROUP.min(e.caps.max_workgroup_invocations);
    let numel = e.dim(&form.numel);
    e.open();
    let i = e.atom(&form.numel, "i");
    for output in 0..e.body.outputs().len() {
        let shape = e.body.ty(output_root(e.body, output)).shape.clone();
        let at = e.atoms.unflatten(&i, &shape);
        let buffer = e.result(output as u32);
        e.store(output as u32, buffer, &at)?;
    }
    let body = e.close().join("\n");
    let limit = e.caps.max_workgroup_count[0];
    let grid =
        [Count { value: form.numel.clone(), per: workgroup, limit }, Count::constant(1), Count::constant(1)];
    let parts = Parts {
        kind: "map",
        template: "map.comp",
        workgroup,
        grid,
        functions: String::new(),
        text: body.clone(),
        holes: context! { body => body, numel => numel },
    };
    finish(e, parts)
}
