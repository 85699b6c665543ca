//! One file a kernel kind: from a form to a rendered template.

pub(crate) mod attention;
pub(crate) mod attention_group;
pub(crate) mod attention_matrix;
pub(crate) mod custom;
pub(crate) mod early;
pub(crate) mod group;
pub(crate) mod halves;
pub(crate) mod kept;
pub(crate) mod map;
pub(crate) mod matmul;
pub(crate) mod matmul_matrix;
pub(crate) mod matmul_workgroup;
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
mod shared_tiles;
pub(crate) mod sharing;
pub(crate) mod slice;
pub(crate) mod sort;
mod split;
pub(crate) mod walk;

pub use attention_matrix::MATRIX_ROWS_KERNEL;

use minijinja::context;
use tallow_ir::form::{self, Form};
use tallow_ir::{DeviceCaps, Fusion, FusionKind, dot};

use crate::emit::Emitter;
use crate::kernel::{CodegenError, Count, Kernel, Table, Target};
use crate::library::library;
use crate::schedule::{Algorithm, Instruction, Schedule};
use crate::template::render;

/// Which file generates the kernel of a form.
enum Kind<'f> {
    Map(&'f form::MapForm),
    Row(&'f form::RowForm),
    MatvecDot(&'f form::ContractionForm),
    MatvecStaged(&'f form::ContractionForm),
    Matvec(&'f form::ContractionForm),
    MatmulMatrix(&'f form::ContractionForm),
    Matmul(&'f form::ContractionForm),
    AttentionMatrix(&'f form::AttentionForm),
    AttentionGroup(&'f form::AttentionForm),
    Attention(&'f form::AttentionForm),
    Quantize(&'f form::SingleForm),
    Scan(&'f form::SingleForm),
    Sort(&'f form::SingleForm),
    Custom(&'f form::SingleForm),
    Scatter(&'f form::SingleForm),
}

impl<'f> Kind<'f> {
    fn of(e: &mut Emitter<'_>, fusion: &Fusion, form: &'f Form) -> Kind<'f> {
        match form {
            Form::Map(f) => Kind::Map(f),
            Form::Row(f) => Kind::Row(f),
            Form::Contraction(f) if fusion.kind == FusionKind::Matvec => {
                let body = &fusion.body;
                let blocks = || dot::blocks(body, f.lhs).is_some() && dot::supported(body, f, e.caps);
                if dot::rounding(body, f.lhs).is_some() || blocks() {
                    Kind::MatvecDot(f)
                } else if matvec_staged::fits(e, f) {
                    Kind::MatvecStaged(f)
                } else {
                    Kind::Matvec(f)
                }
            }
            Form::Contraction(f) if matmul_matrix::fits(e, f) => Kind::MatmulMatrix(f),
            Form::Contraction(f) => Kind::Matmul(f),
            Form::Attention(f) if attention_matrix::fits(e, f) => Kind::AttentionMatrix(f),
            Form::Attention(f) if attention_group::fits(e, f) => Kind::AttentionGroup(f),
            Form::Attention(f) => Kind::Attention(f),
            Form::Single(f) if fusion.kind == FusionKind::Quantize => Kind::Quantize(f),
            Form::Single(f) if fusion.kind == FusionKind::Scan => Kind::Scan(f),
            Form::Single(f) if fusion.kind == FusionKind::Sort => Kind::Sort(f),
            Form::Single(f) if fusion.kind == FusionKind::Custom => Kind::Custom(f),
            Form::Single(f) => Kind::Scatter(f),
        }
    }

    /// The candidates, the cost model's default first.
    fn schedules(&self, e: &Emitter<'_>) -> Result<Vec<Schedule>, CodegenError> {
        let all = match self {
            Kind::MatvecDot(f) => sharing::schedules(e, f, matvec_dot::products(e, f)),
            Kind::MatvecStaged(f) => sharing::schedules(e, f, matvec_staged::PRODUCTS),
            Kind::Matvec(f) => matvec::schedules(e, f),
            Kind::MatmulMatrix(f) => {
                [matmul_matrix::schedules(e, f), matmul_workgroup::schedules(e, f)].concat()
            }
            Kind::Matmul(f) => matmul::schedules(e, f)?,
            Kind::Row(f) => row::schedules(e, f),
            Kind::AttentionGroup(f) => attention_group::schedules(e, f),
            Kind::AttentionMatrix(f) => attention_matrix::schedules(e, f),
            Kind::Attention(f) => vec![attention::schedule(e, f)],
            Kind::Map(_) => vec![map::schedule(e.caps)],
            Kind::Quantize(_) => vec![quantize::schedule(e.caps)],
            Kind::Scatter(_) => vec![scatter::schedule(e.caps)],
            Kind::Scan(f) => vec![scan::schedule(e, f)],
            Kind::Sort(f) => vec![sort::schedule(e, f)],
            Kind::Custom(f) => vec![custom::schedule(e, f)],
        };
        Ok(all.into_iter().map(|schedule| schedule.with_subgroups(e.caps)).collect())
    }

    /// The kernel of one of these schedules.
    fn kernel(&self, e: Emitter<'_>, schedule: Schedule) -> Result<Kernel, CodegenError> {
        match self {
            Kind::Map(f) => map::kernel(e, f, schedule),
            Kind::Row(f) => row::kernel(e, f, schedule),
            Kind::MatvecDot(f) => matvec_dot::kernel(e, f, schedule),
            Kind::MatvecStaged(f) => matvec_staged::kernel(e, f, schedule),
            Kind::Matvec(f) => matvec::kernel(e, f, schedule),
            Kind::MatmulMatrix(f) if schedule.instruction == Some(Instruction::Coopmat2) => {
                matmul_workgroup::kernel(e, f, schedule)
            }
            Kind::MatmulMatrix(f) => matmul_matrix::kernel(e, f, schedule),
            Kind::Matmul(f) => matmul::kernel(e, f, schedule),
            Kind::AttentionMatrix(f) => attention_matrix::kernel(e, f, schedule),
            Kind::AttentionGroup(f) => attention_group::kernel(e, f, schedule),
            Kind::Attention(f) => attention::kernel(e, f, schedule),
            Kind::Quantize(f) => quantize::kernel(e, f, schedule),
            Kind::Scan(f) => scan::kernel(e, f, schedule),
            Kind::Sort(f) => sort::kernel(e, f, schedule),
            Kind::Custom(f) => custom::kernel(e, f, schedule),
            Kind::Scatter(f) => scatter::kernel(e, f, schedule),
        }
    }
}

/// The kernel for one fusion, with the cost model's default schedule; symbol expressions that it reads go into `table`.
///
/// # Errors
/// When the device lacks what the fusion needs.
pub fn kernel(fusion: &Fusion, caps: &DeviceCaps, table: &mut Table) -> Result<Kernel, CodegenError> {
    generate(fusion, None, caps, table)
}

/// The candidate schedules of one fusion, the default of [`kernel`] first.
///
/// # Errors
/// As [`kernel`].
pub fn schedules(fusion: &Fusion, caps: &DeviceCaps) -> Result<Vec<Schedule>, CodegenError> {
    let form = form::form(fusion.kind, &fusion.body)?;
    let mut table = Table::default();
    let mut e = Emitter::new(&fusion.body, caps, &mut table);
    Kind::of(&mut e, fusion, &form).schedules(&e)
}

/// As [`kernel`] with one of the fusion's [`schedules`].
///
/// # Errors
/// As [`kernel`], and [`CodegenError::NoSuchSchedule`] for another schedule.
pub fn kernel_with(
    fusion: &Fusion,
    schedule: Schedule,
    caps: &DeviceCaps,
    table: &mut Table,
) -> Result<Kernel, CodegenError> {
    generate(fusion, Some(schedule), caps, table)
}

fn generate(
    fusion: &Fusion,
    wanted: Option<Schedule>,
    caps: &DeviceCaps,
    table: &mut Table,
) -> Result<Kernel, CodegenError> {
    let form = form::form(fusion.kind, &fusion.body)?;
    let mut e = Emitter::new(&fusion.body, caps, table);
    let kind = Kind::of(&mut e, fusion, &form);
    let all = kind.schedules(&e)?;
    let schedule = match wanted {
        None => all.first().copied(),
        Some(wanted) => all.into_iter().find(|schedule| *schedule == wanted),
    };
    let wanted = || wanted.map(|schedule| schedule.to_string()).unwrap_or_default();
    let refused = || CodegenError::NoSuchSchedule { kind: fusion.kind.name(), schedule: wanted() };
    kind.kernel(e, schedule.ok_or_else(refused)?)
}
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
fn block(head: &str, lines: Vec<String>) -> Vec<String> {
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
