//! What the tests share: a context or a skip, a GLSL compiler, a builder of command lists.

use std::sync::Arc;

use tallow_codegen::compile_spirv;
use tallow_runtime::record::{BarrierKind, BindRange, Grid, RecordCommand, RecordOptions, RecordSpec};
use tallow_runtime::vulkan::{Buffer, Context, MemoryUse, Pipeline, PipelineDesc, Recording};
use tallow_runtime::{Error, RuntimeOptions};

/// The options of the environment, without a cache.
pub fn options() -> RuntimeOptions {
    RuntimeOptions { cache_dir: None, ..RuntimeOptions::from_env().expect("the environment makes sense") }
}

/// The environment's device, or `None` after saying that the test skips.
pub fn context() -> Option<Arc<Context>> {
    context_with(&options())
}

/// As [`context`], with options of the test's own.
pub fn context_with(options: &RuntimeOptions) -> Option<Arc<Context>> {
    match Context::new(options) {
        Ok(context) => Some(context),
        Err(
            missing @ (Error::NoLoader { .. } | Error::NoDevice { .. } | Error::NoValidationLayer { .. }),
        ) => {
            skip(&missing.to_string());
            None
        }
        Err(other) => panic!("{other}"),
    }
}

/// Says why a test skips, or fails it where a device is required.
pub fn skip(reason: &str) {
    if std::env::var("REQUIRE_VULKAN").is_ok_and(|value| value == "1") {
        panic!("REQUIRE_VULKAN=1, but {reason}");
    }
    eprintln!("skipped: {reason}");
}

/// Compiles a compute shader of plain Vulkan 1.2.
pub fn spirv(glsl: &str) -> Vec<u32> {
    let (modules, _) = compile_spirv(&[("test", glsl)], None).unwrap();
    modules[0].to_vec()
}

/// `c[i] = a[i] + b[i]`.
pub const ADD: &str = "#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A { float a[]; };
layout(std430, binding = 1) readonly buffer B { float b[]; };
layout(std430, binding = 2) writeonly buffer C { float c[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < c.length()) c[i] = a[i] + b[i];
}";

/// `b[i] = a[i] * scale + 1`, with `scale` a push constant.
pub const SCALE: &str = "#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A { float a[]; };
layout(std430, binding = 1) writeonly buffer B { float b[]; };
layout(push_constant) uniform Push { float scale; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < b.length()) b[i] = a[i] * scale + 1.0;
}";

/// Counts invocations in `count[0]`.
pub const COUNT: &str = "#version 450
layout(local_size_x = 1) in;
layout(std430, binding = 0) buffer Count { uint count[]; };
void main() { atomicAdd(count[0], 1); }";

/// A pipeline of the given source.
pub fn pipeline(context: &Context, name: &str, glsl: &str, bindings: u32, push_bytes: u32) -> Arc<Pipeline> {
    let spirv = spirv(glsl);
    let desc = PipelineDesc { name, spirv: &spirv, bindings, push_bytes, required_subgroup_size: None };
    context.create_pipelines(&[desc]).unwrap().remove(0)
}

/// A buffer that host and device both reach, holding `values`.
pub fn shared(context: &Context, name: &str, values: &[f32]) -> Arc<Buffer> {
    let buffer = context.buffer(name, 4 * values.len() as u64, MemoryUse::Shared).unwrap();
    buffer.write(0, bytemuck::cast_slice(values)).unwrap();
    buffer
}

/// The first `count` floats of a mapped buffer.
pub fn floats(buffer: &Buffer, count: usize) -> Vec<f32> {
    let mut values = vec![0.0; count];
    buffer.read(0, bytemuck::cast_slice_mut(&mut values)).unwrap();
    values
}

pub const HEAD: RecordCommand = RecordCommand::Barrier(BarrierKind::Head);
pub const BETWEEN: RecordCommand = RecordCommand::Barrier(BarrierKind::Between);
pub const TAIL: RecordCommand = RecordCommand::Barrier(BarrierKind::Tail);

/// A dispatch over whole buffers.
pub fn dispatch(
    label: &str,
    pipeline: usize,
    bound: &[usize],
    buffers: &[Arc<Buffer>],
    groups: u32,
    push: &[u8],
) -> RecordCommand {
    let bindings =
        bound.iter().map(|&buffer| BindRange { buffer, offset: 0, bytes: buffers[buffer].size() }).collect();
    let grid = Grid::Direct([groups, 1, 1]);
    RecordCommand::Dispatch { pipeline, bindings, grid, push: push.to_vec(), label: label.to_string() }
}

/// Records without options.
pub fn record(
    context: &Context,
    commands: Vec<RecordCommand>,
    pipelines: &[Arc<Pipeline>],
    buffers: &[Arc<Buffer>],
) -> Recording {
    let options = RecordOptions::default();
    Recording::new(context, &RecordSpec { commands }, pipelines, buffers, options).unwrap()
}
