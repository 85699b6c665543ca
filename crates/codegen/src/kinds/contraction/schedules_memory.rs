//! Schedules of matvecs whose invocations read activations from memory. A workgroup computes a tile of columns; its
//! invocations split K.

use tallow_ir::form::{ContractionForm, Segment};
use tallow_ir::{DeviceCaps, cost};

use super::operands::is_multiple;
use crate::assemble::floor_pow2;
use crate::blocks::operand;
use crate::emit::Emitter;
use crate::schedule::{Algorithm, Schedule, Tile};

/// Columns per tile, unless an epilogue needs more together.
const TILE: u32 = 4;

/// Columns per tile if all workgroups are resident at once and still fill the device.
const WIDE_TILE: u32 = 8;

/// Waves of workgroups that are resident at once: a core holds four small ones. If there is a prologue, tiles should leave
/// this many workgroups.
const WAVES: u32 = 4;

/// Workgroups that are resident at once, half of which wide tiles should leave. A thread of a software device has one.
fn at_once(caps: &DeviceCaps) -> i64 {
    match cost::runs_workgroups_on_one_thread(caps) {
        true => caps.hardware.cores.into(),
        false => cost::workgroups_of_waves(caps, WAVES).into(),
    }
}

/// Widest tile if there is a prologue.
const MAX_PROLOGUE_TILE: u32 = 32;

/// Columns that an invocation accumulates at once, reusing each activation that it loads. The first constant is for a
/// single row and matrix whose weights need no unpacking, the second for all other matvecs.
const COLUMNS: u32 = 8;
const COLUMNS_OF_MANY: u32 = 4;

/// Maximum number of invocations that share one column. 128 lanes of eight elements cover 1024 elements of K per step;
/// more lanes only lengthen the final reduction.
///
/// If all workgroups are resident at once, the limit is twice as high, because then the bytes in flight decide. (H200,
/// F16: kernels of a decode step of the 8B shape, whose output and down projections have 4096 columns, on two GPUs.
/// Workgroups of 128 with four columns: 3978 to 4005 us on the first; with eight: 4046. Workgroups of 256 with four
/// columns: 3929 and 3868; with eight: 3824 on the second. But 14336 columns back to back take 27.4 us in workgroups of
/// 128 with four columns, and 28.0 in 256 with eight.)
const MAX_WORKGROUP: u32 = 128;

/// Elements of K per invocation and step: eight if K is a multiple of eight, so that weights load in vectors of eight.
pub(crate) fn step(form: &ContractionForm) -> u32 {
    let wide = operand::WIDE as u32;
    if is_multiple(&form.k, wide) { wide } else { 1 }
}

/// Whether the kernel is bound by the bandwidth of its weights. Formats that are slow to unpack do not gain from wide
/// tiles, or lose up to 3 %.
fn streams(e: &Emitter<'_>, form: &ContractionForm) -> bool {
    let mut anchors = form.segments.iter().flat_map(|s| &s.anchors);
    form.prologue.is_empty() && anchors.all(|id| operand::streams(e.body, e.body.node(*id).operands[1]))
}

/// The cost model's default schedule.
fn first(e: &Emitter<'_>, form: &ContractionForm) -> Schedule {
    let step = step(form);
    let chunks = u32::try_from(form.k.max_value()).unwrap_or(u32::MAX) / step;
    let of_batch: i64 = form.segments.iter().map(|s| s.n.max_value()).sum();
    let all = of_batch.saturating_mul(form.batch.numel().max_value().max(1));
    let wanted = at_once(e.caps);
    let at_once = streams(e, form) && all <= i64::from(WIDE_TILE) * wanted;
    let share = match (cost::runs_workgroups_on_one_thread(e.caps), at_once) {
        (false, true) => 2 * MAX_WORKGROUP,
        (false, false) => MAX_WORKGROUP,
        // A CPU runs a workgroup on one thread. With several subgroups, each barrier of the final reduction costs a
        // switch between them; with one subgroup there is no barrier.
        (true, _) => e.caps.scheduled_subgroup_size(),
    };
    let most = floor_pow2(e.caps.max_workgroup_invocations.min(share));
    let workgroup =
        floor_pow2(chunks).clamp(floor_pow2(e.caps.scheduled_subgroup_size().max(8)).min(most), most);
    let columns = match form.prologue.is_empty() {
        true if at_once && 2 * all >= i64::from(WIDE_TILE) * wanted => WIDE_TILE,
        true => TILE,
        // Each workgroup repeats the prologue, so many columns are better covered by fewer workgroups with wider tiles.
        false => {
            let wide =
                (of_batch / i64::from(cost::workgroups_of_waves(e.caps, WAVES))).clamp(1, 1 << 16) as u32;
            floor_pow2(wide).clamp(TILE, MAX_PROLOGUE_TILE)
        }
    };
    let m = form.m.max_value() as u32;
    let schedule = Schedule::new(Algorithm::Matvec, workgroup);
    Schedule { tile: Tile { m, n: columns, k: 0 }, ..schedule }
}

/// The candidate schedules: more or fewer invocations per column, and wider or narrower tiles.
pub(crate) fn schedules(e: &Emitter<'_>, form: &ContractionForm) -> Vec<Schedule> {
    let first = first(e, form);
    let least = e.caps.scheduled_subgroup_size().max(8);
    let most = e.caps.max_workgroup_invocations.min(2 * MAX_WORKGROUP);
    let mut all = vec![first];
    let (w, c) = (first.workgroup, first.tile.n);
    for (workgroup, columns) in
        [(w, 2 * c), (w, c / 2), (2 * w, c), (w / 2, c), (2 * w, c / 2), (w / 2, 2 * c), (w, c / 4)]
    {
        if (least..=most).contains(&workgroup) && (1..=MAX_PROLOGUE_TILE).contains(&columns) {
            all.push(Schedule { workgroup, tile: Tile { n: columns, ..first.tile }, ..first });
        }
    }
    all
}

/// Columns that an invocation accumulates at once in a segment, for `m` rows and tiles of `tile` columns.
pub(crate) fn columns_at_once(
    e: &Emitter<'_>,
    form: &ContractionForm,
    segment: &Segment,
    (m, tile): (u32, u32),
) -> u32 {
    let alone = m as usize * segment.anchors.len() == 1;
    let most = if alone && streams(e, form) { COLUMNS } else { COLUMNS_OF_MANY };
    (1..=most).rev().find(|columns| tile.is_multiple_of(*columns)).unwrap_or(1)
}
