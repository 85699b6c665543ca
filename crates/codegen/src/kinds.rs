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
use tallow_ir::caps::DeviceType;
use tallow_ir::form::{self, Form};
use tallow_ir::{DeviceCaps, Fusion, FusionKind, dot};

use crate::choice::{Choice, Scores, Sharing};
use crate::emit::Emitter;
use crate::kernel::{CodegenError, Count, Kernel, Table, Target};
use crate::library::library;
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

    /// What is worth trying, what the cost model takes first; nothing where there is nothing to choose.
    fn choices(&self, e: &Emitter<'_>) -> Result<Vec<Choice>, CodegenError> {
        Ok(match self {
            Kind::MatvecDot(f) => {
                Sharing::all(e, f, matvec_dot::item(e, f)).into_iter().map(Choice::Sharing).collect()
            }
            Kind::MatvecStaged(f) => {
                Sharing::all(e, f, operand::WIDE).into_iter().map(Choice::Sharing).collect()
            }
            Kind::Matvec(f) => matvec::choices(e, f).into_iter().map(Choice::Matvec).collect(),
            Kind::MatmulMatrix(f) => {
                let sides = matmul_matrix::choices(e, f).into_iter().map(Choice::Side);
                sides.chain(matmul_workgroup::choices(e, f).into_iter().map(Choice::Whole)).collect()
            }
            Kind::Matmul(f) => matmul::choices(e, f)?.into_iter().map(Choice::Tile).collect(),
            Kind::Row(f) => row::choices(e, f).into_iter().map(Choice::Rows).collect(),
            Kind::AttentionGroup(f) => attention_group::choices(e, f).into_iter().map(Choice::Keys).collect(),
            Kind::AttentionMatrix(f) => {
                attention_matrix::choices(e, f).into_iter().map(Choice::Scores).collect()
            }
            Kind::Map(_)
            | Kind::Attention(_)
            | Kind::Quantize(_)
            | Kind::Scan(_)
            | Kind::Sort(_)
            | Kind::Custom(_)
            | Kind::Scatter(_) => vec![],
        })
    }
}

/// The kernel for one fusion, as the cost model cuts it up; symbol expressions that it reads go into `table`.
///
/// # Errors
/// When the device lacks what the fusion needs.
pub fn kernel(fusion: &Fusion, caps: &DeviceCaps, table: &mut Table) -> Result<Kernel, CodegenError> {
    generate(fusion, None, caps, table)
}

/// What is worth trying for one fusion, what [`kernel`] takes first; nothing where there is nothing to choose.
///
/// # Errors
/// As [`kernel`].
pub fn choices(fusion: &Fusion, caps: &DeviceCaps) -> Result<Vec<Choice>, CodegenError> {
    let form = form::form(fusion.kind, &fusion.body)?;
    let mut table = Table::default();
    let mut e = Emitter::new(&fusion.body, caps, &mut table);
    Kind::of(&mut e, fusion, &form).choices(&e)
}

/// As [`kernel`] with one of the fusion's [`choices`].
///
/// # Errors
/// As [`kernel`], and [`CodegenError::Choice`] for another choice.
pub fn kernel_with(
    fusion: &Fusion,
    choice: Choice,
    caps: &DeviceCaps,
    table: &mut Table,
) -> Result<Kernel, CodegenError> {
    match choices(fusion, caps)?.contains(&choice) {
        true => generate(fusion, Some(choice), caps, table),
        false => Err(CodegenError::Choice { kind: fusion.kind.name(), choice: choice.to_string() }),
    }
}

fn generate(
    fusion: &Fusion,
    choice: Option<Choice>,
    caps: &DeviceCaps,
    table: &mut Table,
) -> Result<Kernel, CodegenError> {
    let form = form::form(fusion.kind, &fusion.body)?;
    let mut e = Emitter::new(&fusion.body, caps, table);
    let kind = Kind::of(&mut e, fusion, &form);
    // Checked against the kind's own choices, a choice is of its variant.
    let sharing = |first: Sharing| if let Some(Choice::Sharing(given)) = choice { given } else { first };
    match kind {
        Kind::Map(f) => map::kernel(e, f),
        Kind::Row(f) => {
            row::kernel(e, f, if let Some(Choice::Rows(rows)) = choice { Some(rows) } else { None })
        }
        Kind::MatvecDot(f) => {
            let choice = sharing(Sharing::first(&e, f, matvec_dot::item(&e, f)));
            matvec_dot::kernel(e, f, choice)
        }
        Kind::MatvecStaged(f) => {
            let choice = sharing(Sharing::first(&e, f, operand::WIDE));
            matvec_staged::kernel(e, f, choice)
        }
        Kind::Matvec(f) => {
            let first = matvec::first(&e, f);
            matvec::kernel(e, f, if let Some(Choice::Matvec(given)) = choice { given } else { first })
        }
        Kind::MatmulMatrix(f) => match choice {
            Some(Choice::Whole(side)) => matmul_workgroup::kernel(e, f, side),
            Some(Choice::Side(side)) => matmul_matrix::kernel(e, f, Some(side)),
            _ => matmul_matrix::kernel(e, f, None),
        },
        Kind::Matmul(f) => {
            matmul::kernel(e, f, if let Some(Choice::Tile(tile)) = choice { Some(tile) } else { None })
        }
        Kind::AttentionMatrix(f) => {
            let first = attention_matrix::choices(&e, f).first().copied().unwrap_or(Scores::Shared);
            attention_matrix::kernel(
                e,
                f,
                if let Some(Choice::Scores(scores)) = choice { scores } else { first },
            )
        }
        Kind::AttentionGroup(f) => {
            let first = attention_group::first(caps);
            attention_group::kernel(e, f, if let Some(Choice::Keys(keys)) = choice { keys } else { first })
        }
        Kind::Attention(f) => attention::kernel(e, f),
        Kind::Quantize(f) => quantize::kernel(e, f),
        Kind::Scan(f) => scan::kernel(e, f),
        Kind::Sort(f) => sort::kernel(e, f),
        Kind::Custom(f) => custom::kernel(e, f),
        Kind::Scatter(f) => scatter::kernel(e, f),
    }
}

/// The extension of matrices of a workgroup, which wants SPIR-V 1.6.
pub(crate) const TENSORS: &str = "GL_NV_cooperative_matrix2";

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
    let target = match e.extensions.contains(TENSORS) {
        true => Target::Vulkan13,
        false => Target::Vulkan12,
    };
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
    // H200, with spirv-opt and without: steps of decoding of the 8B shape in F16 4.05 and 4.21 ms, attention of 2048 queries
    // 555 and 650 us. Other kinds gain nothing, and matmuls in registers lose (f32, 4096^3: 3.30 and 2.87 ms). A driver for a
    // CPU takes as long for either module.
    let optimize = matches!(parts.kind, "matvec" | "attention") && e.caps.device_type != DeviceType::Cpu;
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
