//! Kernel kinds: selects the generator for a fusion and passes it a schedule.

pub(crate) mod attention;
pub(crate) mod contraction;
pub(crate) mod custom;
pub(crate) mod index_add;
pub(crate) mod map;
pub(crate) mod quantize;
pub(crate) mod row;
pub(crate) mod scan;
pub(crate) mod scatter;
pub(crate) mod sort;

use tallow_ir::form::{self, Form};
use tallow_ir::{DeviceCaps, Fusion, FusionKind};

use self::attention::{decode, flash, grad, grad_tiles, per_query, tiled};
use self::contraction::{coopmat, fma, matmul, matmul_coopmat2, matvec};
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::instruction::Instruction;
use crate::kernel::{Kernel, Table};
use crate::schedule::{Algorithm, Schedule};

/// The kernel generator for a form. Each variant has its own module.
enum Kind<'f> {
    Map(&'f form::MapForm),
    Row(&'f form::RowForm),
    Matvec(&'f form::ContractionForm),
    MatmulCoopmat(&'f form::ContractionForm),
    MatmulFma(&'f form::ContractionForm),
    FlashAttention(&'f form::AttentionForm),
    DecodeAttention(&'f form::AttentionForm),
    TiledAttention(&'f form::AttentionForm),
    Attention(&'f form::AttentionForm),
    AttentionGradTiles(&'f form::SingleForm),
    AttentionGrad(&'f form::SingleForm),
    Quantize(&'f form::SingleForm),
    Scan(&'f form::SingleForm),
    Sort(&'f form::SingleForm),
    Custom(&'f form::SingleForm),
    Scatter(&'f form::SingleForm),
    IndexAdd(&'f form::SingleForm),
}

impl<'f> Kind<'f> {
    fn of(e: &mut Emitter<'_>, fusion: &Fusion, form: &'f Form) -> Kind<'f> {
        match form {
            Form::Map(f) => Kind::Map(f),
            Form::Row(f) => Kind::Row(f),
            Form::Contraction(f) if fusion.kind == FusionKind::Matvec => Kind::Matvec(f),
            Form::Contraction(f) if coopmat::supports(e, f) => Kind::MatmulCoopmat(f),
            Form::Contraction(f) => Kind::MatmulFma(f),
            Form::Attention(f) if flash::supports(e, f) => Kind::FlashAttention(f),
            Form::Attention(f) if decode::supports(e, f) => Kind::DecodeAttention(f),
            Form::Attention(f) if tiled::supports(e, f) => Kind::TiledAttention(f),
            Form::Attention(f) => Kind::Attention(f),
            Form::Single(f) if fusion.kind == FusionKind::AttentionGrad => {
                if grad_tiles::supports(e, f) {
                    Kind::AttentionGradTiles(f)
                } else {
                    Kind::AttentionGrad(f)
                }
            }
            Form::Single(f) if fusion.kind == FusionKind::Quantize => Kind::Quantize(f),
            Form::Single(f) if fusion.kind == FusionKind::Scan => Kind::Scan(f),
            Form::Single(f) if fusion.kind == FusionKind::Sort => Kind::Sort(f),
            Form::Single(f) if fusion.kind == FusionKind::Custom => Kind::Custom(f),
            Form::Single(f) if fusion.kind == FusionKind::IndexAdd => Kind::IndexAdd(f),
            Form::Single(f) => Kind::Scatter(f),
        }
    }

    /// The candidate schedules, the cost model's default first.
    fn schedules(&self, e: &Emitter<'_>) -> Result<Vec<Schedule>, CodegenError> {
        let all = match self {
            Kind::Matvec(f) => matvec::schedules(e, f),
            Kind::MatmulCoopmat(f) => {
                let mut all = coopmat::schedules(e, f);
                let longer = all.first().and_then(|first| coopmat::longer_prefetch(f, first));
                all.extend(matmul_coopmat2::schedules(e, f).into_iter().chain(longer));
                if form::are_few(&f.m) {
                    all.extend(fma::schedules(e, f)?.first());
                }
                all
            }
            Kind::MatmulFma(f) => fma::schedules(e, f)?,
            Kind::Row(f) => row::schedules(e, f),
            Kind::DecodeAttention(f) => decode::schedules(e, f),
            Kind::TiledAttention(f) => {
                let (tiled, per_query) = (tiled::schedules(e, f), vec![per_query::schedule(e, f)]);
                if tiled::is_default(e, f) { tiled } else { [per_query, tiled].concat() }
            }
            Kind::FlashAttention(f) => flash::schedules(e, f),
            Kind::Attention(f) => vec![per_query::schedule(e, f)],
            Kind::AttentionGradTiles(f) => {
                grad_tiles::schedules(e, f).into_iter().chain([grad::schedule(e)]).collect()
            }
            Kind::AttentionGrad(_) => vec![grad::schedule(e)],
            Kind::Map(f) => map::schedules(e, f),
            Kind::Quantize(_) => vec![quantize::schedule(e.caps)],
            Kind::Scatter(f) => scatter::schedules(e, f),
            Kind::IndexAdd(f) => index_add::schedules(e, f),
            Kind::Scan(f) => vec![scan::schedule(e, f)?],
            Kind::Sort(f) => vec![sort::schedule(e, f)],
            Kind::Custom(f) => vec![custom::schedule(e, f)],
        };
        Ok(all.into_iter().map(|schedule| schedule.with_subgroups(e.caps)).collect())
    }

    /// Generates the kernel for one of [`Kind::schedules`].
    fn kernel(&self, e: Emitter<'_>, schedule: Schedule) -> Result<Kernel, CodegenError> {
        match self {
            Kind::Map(f) => map::kernel(e, f, schedule),
            Kind::Row(f) => row::kernel(e, f, schedule),
            Kind::Matvec(f) => matvec::kernel(e, f, schedule),
            Kind::MatmulCoopmat(f) if schedule.instruction == Some(Instruction::Coopmat2) => {
                matmul_coopmat2::kernel(e, f, schedule)
            }
            Kind::MatmulCoopmat(f) | Kind::MatmulFma(f) => matmul::kernel(e, f, schedule),
            Kind::FlashAttention(f) => flash::kernel(e, f, schedule),
            Kind::DecodeAttention(f) => decode::kernel(e, f, schedule),
            Kind::TiledAttention(f) if schedule.algorithm == Algorithm::TiledAttention => {
                tiled::kernel(e, f, schedule)
            }
            Kind::TiledAttention(f) => per_query::kernel(e, f, schedule),
            Kind::Attention(f) => per_query::kernel(e, f, schedule),
            Kind::AttentionGradTiles(f) if schedule.algorithm == Algorithm::FlashAttentionGrad => {
                grad_tiles::kernel(e, f, schedule)
            }
            Kind::AttentionGradTiles(f) | Kind::AttentionGrad(f) => grad::kernel(e, f, schedule),
            Kind::Quantize(f) => quantize::kernel(e, f, schedule),
            Kind::Scan(f) => scan::kernel(e, f, schedule),
            Kind::Sort(f) => sort::kernel(e, f, schedule),
            Kind::Custom(f) => custom::kernel(e, f, schedule),
            Kind::Scatter(f) => scatter::kernel(e, f, schedule),
            Kind::IndexAdd(f) => index_add::kernel(e, f, schedule),
        }
    }
}

/// Generates the kernel for one fusion with the cost model's default schedule. Symbolic expressions that the kernel
/// reads are added to `table`.
///
/// # Errors
/// If the device lacks a feature, a type or the resources that the fusion needs.
pub fn kernel(fusion: &Fusion, caps: &DeviceCaps, table: &mut Table) -> Result<Kernel, CodegenError> {
    generate(fusion, None, caps, table)
}

/// Tuning candidates for one fusion. The first is the default that [`kernel`] uses.
///
/// # Errors
/// As [`kernel`].
pub fn schedules(fusion: &Fusion, caps: &DeviceCaps) -> Result<Vec<Schedule>, CodegenError> {
    let form = form::form(fusion.kind, &fusion.body)?;
    let mut table = Table::default();
    let mut e = Emitter::new(&fusion.body, caps, &mut table);
    Kind::of(&mut e, fusion, &form).schedules(&e)
}

/// Generates the kernel for one fusion with one of its [`schedules`].
///
/// # Errors
/// As [`kernel`], and [`CodegenError::NoSuchSchedule`] if `schedule` is not one of the candidates.
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
