//! One file a kernel kind: from a form to a rendered template.

pub(crate) mod attention;
pub(crate) mod attention_group;
pub(crate) mod attention_matrix;
pub(crate) mod custom;
pub(crate) mod group;
pub(crate) mod halves;
pub(crate) mod map;
pub(crate) mod matmul;
pub(crate) mod matmul_matrix;
pub(crate) mod matvec;
pub(crate) mod matvec_dot;
pub(crate) mod matvec_staged;
pub(crate) mod operand;
pub(crate) mod quantize;
pub(crate) mod reduction;
pub(crate) mod rounding;
pub(crate) mod row;
pub(crate) mod runs;
pub(crate) mod scan;
pub(crate) mod scatter;
pub(crate) mod sharing;
pub(crate) mod slice;
pub(crate) mod sort;
pub(crate) mod walk;

use minijinja::context;
use tallow_ir::caps::DeviceType;
use tallow_ir::{DeviceCaps, Fusion, dot, form};

use crate::emit::Emitter;
use crate::kernel::{CodegenError, Count, Kernel, Table};
use crate::library::library;
use crate::template::render;

/// The kernel for one fusion; symbol expressions that it reads go into `table`.
pub fn kernel(fusion: &Fusion, caps: &DeviceCaps, table: &mut Table) -> Result<Kernel, CodegenError> {
    let form = form::form(fusion.kind, &fusion.body)?;
    let mut emitter = Emitter::new(&fusion.body, caps, table);
    match form {
        form::Form::Map(f) => map::kernel(emitter, &f),
        form::Form::Row(f) => row::kernel(emitter, &f),
        form::Form::Contraction(f) if fusion.kind == tallow_ir::FusionKind::Matvec => {
            match dot::rounding(&fusion.body, f.lhs) {
                Some(_) => matvec_dot::kernel(emitter, &f),
                None if matvec_staged::fits(&emitter, &f) => matvec_staged::kernel(emitter, &f),
                None => matvec::kernel(emitter, &f),
            }
        }
        form::Form::Contraction(f) if matmul_matrix::fits(&emitter, &f) => matmul_matrix::kernel(emitter, &f),
        form::Form::Contraction(f) => matmul::kernel(emitter, &f),
        form::Form::Attention(f) if attention_matrix::fits(&emitter, &f) => {
            attention_matrix::kernel(emitter, &f)
        }
        form::Form::Attention(f) if attention_group::fits(&mut emitter, &f) => {
            attention_group::kernel(emitter, &f)
        }
        form::Form::Attention(f) => attention::kernel(emitter, &f),
        form::Form::Single(f) if fusion.kind == tallow_ir::FusionKind::Quantize => {
            quantize::kernel(emitter, &f)
        }
        form::Form::Single(f) if fusion.kind == tallow_ir::FusionKind::Scan => scan::kernel(emitter, &f),
        form::Form::Single(f) if fusion.kind == tallow_ir::FusionKind::Sort => sort::kernel(emitter, &f),
        form::Form::Single(f) if fusion.kind == tallow_ir::FusionKind::Custom => custom::kernel(emitter, &f),
        form::Form::Single(f) => scatter::kernel(emitter, &f),
    }
}

/// What every template needs besides its own holes.
pub(crate) struct Parts {
    pub kind: &'static str,
    pub template: &'static str,
    pub workgroup: u32,
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
    let extensions: Vec<String> = e.extensions.iter().map(|x| format!("#extension {x} : require")).collect();
    let header: Vec<String> = e.body.body_text().lines().map(|l| format!("// {l}")).collect();
    let common = context! {
        extensions => extensions.join("\n") + &modes,
        header => format!("// {} kernel\n{}", parts.kind, header.join("\n")),
        workgroup => parts.workgroup,
        declarations => declarations,
        functions => functions,
        prelude => prelude,
    };
    let glsl = render(parts.template, context! { ..parts.holes, ..common })?;
    let glsl = tidy(&glsl);
    let last = e.body.outputs().last().map(|o| e.body.node_text(o.value.node)).unwrap_or_default();
    let name = format!("{} .. {}", parts.kind, last.split(' ').next().unwrap_or_default());
    let workgroup = [parts.workgroup, 1, 1];
    // H200, steps of decoding of the 8B shape in F16: 4.05 ms with spirv-opt, 4.21 without. Others gain nothing, and matmuls in
    // registers lose (f32, 4096^3: 3.30 ms with, 2.87 without). A driver for a CPU takes as long for either module.
    let optimize = parts.kind == "matvec" && e.caps.device_type != DeviceType::Cpu;
    Ok(Kernel {
        name,
        glsl,
        bindings: e.bindings,
        workgroup,
        grid: parts.grid,
        scratch: e.scratch,
        optimize,
        custom: None,
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
