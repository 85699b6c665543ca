//! From a kind's parts to a kernel: header, declarations, library functions and the rendered template.

use minijinja::context;
use tallow_ir::DeviceCaps;

use crate::blocks::operand;
use crate::emit::Emitter;
use crate::kernel::{CodegenError, Count, Kernel, Target};
use crate::library::library;
use crate::schedule::{Algorithm, Schedule};
use crate::template::render;

/// The extension of matrices of a workgroup, which wants SPIR-V 1.6.
pub(crate) const TENSORS: &str = "GL_NV_cooperative_matrix2";

/// What every template needs besides its own holes.
pub(crate) struct Parts {
    pub schedule: Schedule,
    pub template: &'static str,
    pub grid: [Count; 3],
    /// Functions of the kind (reductions, wide loads), in front of which the buffers are declared.
    pub functions: String,
    /// Everything that goes into the holes, to find which library functions are called.
    pub text: String,
    /// The kind's own holes.
    pub holes: minijinja::Value,
}

/// Renders the template and collects the kernel.
pub(crate) fn finish(mut e: Emitter<'_>, parts: Parts) -> Result<Kernel, CodegenError> {
    let prelude = e.close().join("\n");
    let (declarations, mut functions) = e.declarations();
    functions += &operand::functions(&e, &parts.text)?;
    let all = format!("{functions}{}{prelude}{}", parts.functions, parts.text);
    if all.contains("subgroup") {
        for ext in [
            "GL_KHR_shader_subgroup_basic",
            "GL_KHR_shader_subgroup_arithmetic",
            "GL_KHR_shader_subgroup_vote",
        ] {
            e.extensions.insert(ext);
        }
    }
    if all.contains("int64_t") || all.contains("Uint64") {
        e.extensions.insert("GL_EXT_shader_explicit_arithmetic_types_int64");
    }
    e.extensions.insert("GL_EXT_control_flow_attributes");
    functions = library(&all)? + &functions;
    functions += &parts.functions;
    let modes = modes(&all, e.caps);
    if !modes.is_empty() {
        e.extensions.insert("GL_EXT_spirv_intrinsics");
    }
    let target = match e.extensions.contains(TENSORS) {
        true => Target::Vulkan13,
        false => Target::Vulkan12,
    };
    let extensions: Vec<String> = e.extensions.iter().map(|x| format!("#extension {x} : require")).collect();
    let header: Vec<String> = e.body.body_text().lines().map(|l| format!("// {l}")).collect();
    let common = context! {
        extensions => extensions.join("\n") + &modes,
        header => format!("// {}\n{}", parts.schedule, header.join("\n")),
        workgroup => parts.schedule.workgroup,
        declarations => declarations,
        functions => functions,
        prelude => prelude,
    };
    let glsl = render(parts.template, context! { ..parts.holes, ..common })?;
    let glsl = tidy(&glsl);
    let last = e.body.outputs().last().map(|o| e.body.node_text(o.value.node)).unwrap_or_default();
    let name = format!("{} .. {}", parts.schedule, last.split(' ').next().unwrap_or_default());
    let workgroup = [parts.schedule.workgroup, 1, 1];
    // H200, with spirv-opt and without: steps of decoding of the 8B shape in F16 4.05 and 4.21 ms, attention of 2048 queries
    // 555 and 650 us. Other kinds gain nothing, and matmuls in registers lose (f32, 4096^3: 3.30 and 2.87 ms). A driver for a
    // CPU takes as long for either module.
    let gains = match parts.schedule.algorithm {
        Algorithm::Matvec
        | Algorithm::StagedMatvec
        | Algorithm::Attention
        | Algorithm::DecodeAttention
        | Algorithm::FlashAttention => true,
        Algorithm::Map
        | Algorithm::Row
        | Algorithm::ShortRows
        | Algorithm::Columns
        | Algorithm::Matmul
        | Algorithm::Quantize
        | Algorithm::Scan
        | Algorithm::Sort
        | Algorithm::Scatter
        | Algorithm::Custom => false,
    };
    let optimize = gains && !e.caps.is_software();
    Ok(Kernel {
        name,
        glsl,
        bindings: e.bindings,
        workgroup,
        grid: parts.grid,
        scratch: e.scratch,
        optimize,
        target,
        custom: None,
        schedule: parts.schedule,
    })
}

/// Execution modes by which NaN, infinities and signed zeros are kept: without, compilers may take `x * 0` for 0
/// (spirv-opt does). By number, as GLSL has no word for them: capability and mode `SignedZeroInfNanPreserve`.
fn modes(text: &str, caps: &DeviceCaps) -> String {
    let widths: &[i32] = match (caps.float_controls, text.contains("double")) {
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

/// Lines in braces behind `head`, or by themselves.
pub(crate) fn block(head: &str, lines: Vec<String>) -> Vec<String> {
    let mut all = vec![format!("{head} {{").trim_start().to_string()];
    all.extend(lines.into_iter().map(|l| format!("    {l}")));
    all.push("}".into());
    all
}

/// Refuses a grid that is cut off by a limit, for kernels that do not loop over the rest.
pub(crate) fn whole(what: &'static str, grid: &[Count; 3]) -> Result<(), CodegenError> {
    match grid.iter().find(|c| c.most() > u64::from(c.limit)) {
        Some(c) => Err(CodegenError::Grid { what, needs: c.most(), has: c.limit }),
        None => Ok(()),
    }
}

/// Drops trailing blanks and lines that an empty hole left.
fn tidy(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines().map(str::trim_end).filter(|l| !l.is_empty()) {
        out += line;
        out.push('\n');
    }
    out
}

/// The largest power of two that is at most `n` (1 for 0).
pub(crate) fn floor_pow2(n: u32) -> u32 {
    if n == 0 { 1 } else { 1 << n.ilog2() }
}
