//! Assembles a kernel: header, declarations, library functions and the rendered template.

use minijinja::context;
use tallow_ir::DeviceCaps;

use crate::blocks::operand;
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::kernel::{Count, Kernel, Target};
use crate::schedule::{Algorithm, Schedule};
use crate::template::render;

/// The GLSL extension for workgroup-scope cooperative matrices. It requires SPIR-V 1.6, hence Vulkan 1.3.
pub(crate) const TENSORS: &str = "GL_NV_cooperative_matrix2";

/// Renders the template and builds the kernel. `own_functions` are helper functions of the kind, such as reductions; they
/// follow the buffer declarations. `holes` are those that are specific to the template.
pub(crate) fn finish(
    mut e: Emitter<'_>,
    schedule: Schedule,
    template: &'static str,
    grid: [Count; 3],
    own_functions: String,
    holes: minijinja::Value,
) -> Result<Kernel, CodegenError> {
    let prelude = e.prelude();
    let (declarations, mut functions) = e.declarations();
    functions += &operand::functions(&e)?;
    let uses = e.all_uses().clone();
    if uses.subgroups {
        for ext in [
            "GL_KHR_shader_subgroup_basic",
            "GL_KHR_shader_subgroup_arithmetic",
            "GL_KHR_shader_subgroup_vote",
        ] {
            e.extensions.insert(ext);
        }
    }
    if uses.long {
        e.extensions.insert("GL_EXT_shader_explicit_arithmetic_types_int64");
    }
    e.extensions.insert("GL_EXT_control_flow_attributes");
    functions = uses.definitions()? + &functions;
    functions += &own_functions;
    let modes = modes(uses.double, e.caps);
    if !modes.is_empty() {
        e.extensions.insert("GL_EXT_spirv_intrinsics");
    }
    let target = match e.extensions.contains(TENSORS) {
        true => Target::Vulkan13,
        false => Target::Vulkan12,
    };
    let extensions: Vec<String> = e.extensions.iter().map(|x| format!("#extension {x} : require")).collect();
    let header: Vec<String> = e.body.body_text().lines().map(|l| format!("// {l}")).collect();
    let (extensions, workgroup) = (extensions.join("\n") + &modes, schedule.workgroup);
    let header = format!("// {}\n{}", schedule, header.join("\n"));
    let layout = format!("layout(local_size_x = {workgroup}) in;");
    let common = context! {
        // What precedes a template's own declarations.
        head => ["#version 450", &extensions, &header, &layout, &declarations, &functions].join("\n"),
        extensions, header, workgroup, declarations, functions, prelude,
    };
    let glsl = render(template, context! { ..holes, ..common })?;
    let glsl = tidy(&glsl);
    let last = e.body.outputs().last().map(|o| e.body.node_text(o.value.node)).unwrap_or_default();
    let name = format!("{} .. {}", schedule, last.split(' ').next().unwrap_or_default());
    let workgroup = [schedule.workgroup, 1, 1];
    let optimize = gains_from_spirv_opt(schedule.algorithm) && !e.caps.is_software();
    Ok(Kernel {
        name,
        glsl,
        bindings: e.bindings,
        workgroup,
        grid,
        scratch: e.scratch,
        optimize,
        target,
        custom: None,
        schedule,
    })
}

/// Whether spirv-opt pays off. H200, with and without it: decode steps of the 8B shape in F16 take 4.05 and 4.21 ms,
/// attention of 2048 queries 555 and 650 us. Other kinds do not gain. FMA matmuls get slower (f32, 4096^3: 3.30 and
/// 2.87 ms). A CPU driver takes equally long for either module.
fn gains_from_spirv_opt(algorithm: Algorithm) -> bool {
    match algorithm {
        Algorithm::Matvec
        | Algorithm::StagedMatvec
        | Algorithm::Attention
        | Algorithm::DecodeAttention
        | Algorithm::FlashAttention
        | Algorithm::TiledAttention
        | Algorithm::AttentionGrad
        | Algorithm::FlashAttentionGrad => true,
        Algorithm::Map
        | Algorithm::Row
        | Algorithm::ShortRows
        | Algorithm::Columns
        | Algorithm::Matmul
        | Algorithm::Quantize
        | Algorithm::Scan
        | Algorithm::Sort
        | Algorithm::RankSort
        | Algorithm::TopK
        | Algorithm::Merge
        | Algorithm::Scatter
        | Algorithm::IndexAdd
        | Algorithm::Custom => false,
    }
}

/// The `SignedZeroInfNanPreserve` execution modes, which preserve NaN, infinities and signed zeros. Without them a
/// compiler may fold `x * 0` to 0, as spirv-opt does. GLSL has no keyword for them, so capability (4466) and mode
/// (4461) are given by number.
fn modes(double: bool, caps: &DeviceCaps) -> String {
    let widths: &[i32] = match (caps.float_controls, double) {
        (false, _) => &[],
        (true, false) => &[32],
        (true, true) => &[32, 64],
    };
    let mode = |width| {
        format!(
            "\nspirv_execution_mode(extensions = [\"SPV_KHR_float_controls\"], capabilities = [4466], 4461, {width});"
        )
    };
    widths.iter().map(mode).collect()
}

/// Returns an error if the grid exceeds a device limit, for kernels without a grid-stride loop.
pub(crate) fn check_grid(what: &'static str, grid: &[Count; 3]) -> Result<(), CodegenError> {
    match grid.iter().find(|c| c.most() > u64::from(c.limit)) {
        Some(c) => Err(CodegenError::Grid { what, needs: c.most(), has: c.limit }),
        None => Ok(()),
    }
}

/// Removes trailing whitespace, and the empty lines that empty holes leave.
fn tidy(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines().map(str::trim_end).filter(|l| !l.is_empty()) {
        out += line;
        out.push('\n');
    }
    out
}

/// The largest power of two that is at most `n`, or 1 for 0.
pub(crate) fn floor_pow2(n: u32) -> u32 {
    if n == 0 { 1 } else { 1 << n.ilog2() }
}
