//! The predicted time of a kernel: a roofline with the terms that separate kernels from it.
//!
//! A launch takes the longest of four times, each for launches that run side by side:
//!
//! - memory: bytes over the bandwidth that kernels reach;
//! - cores: instructions and matrix operations over their rates, as if spread evenly;
//! - latency: rounds of workgroups, as many as the cores hold at once, times what a workgroup waits for its chain of
//!   loads and barriers. A launch of few workgroups takes one round, however little it computes;
//! - the launch itself.
//!
//! They are combined as the fourth root of the sum of fourth powers: two equal times take 1.19 times one of them. The
//! time in which the device fills and drains is added, once for all launches.
//!
//! [`constants`] has what was fitted, `docs/experiments/0019-predicted-times.md` how well.

mod constants;
mod contraction;
mod work;

use tallow_ir::{Bindings, DeviceCaps, Fusion, Op, cost};

use self::constants as c;
use self::constants::{Attend, Compare, Elements, FewRows, Flash, Tiles};
use self::contraction::{Load, Product, Scores};
use self::work::Work;
use crate::instruction::Instruction;
use crate::kernel::Kernel;
use crate::schedule::{Algorithm, Tile};

/// Independent launches of one kernel that run side by side, on operands of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launches {
    /// How many, at least 1.
    pub count: u32,
    /// Whether they read the same operands, which then come from memory once.
    pub share_operands: bool,
}

impl Launches {
    /// A launch by itself.
    pub const ONE: Launches = Launches { count: 1, share_operands: false };
}

/// What a launch asks of a device.
struct Demand {
    /// Instructions of one lane.
    instructions: f64,
    /// Operations of matrix products, two for a multiply-add.
    matrix_operations: f64,
    /// Microseconds that a workgroup waits.
    chain_us: f64,
    /// How many times its share of a core's time a workgroup computes, if it is alone on the core.
    alone: f64,
    /// Workgroups that a core holds at once; as many as its invocations allow, if `None`.
    resident: Option<f64>,
}

impl Demand {
    fn new(instructions: f64, chain_us: f64) -> Demand {
        Demand { instructions, matrix_operations: 0.0, chain_us, alone: 0.0, resident: None }
    }
}

/// Predicts the microseconds of one of `launches` of `kernel`, which computes `fusion`, on a device with `caps`.
/// Symbols that `bindings` lacks have their maximum. The time to fill and drain the device counts, divided among all
/// launches. Always finite and above 0.
///
/// Rates are those of [`DeviceCaps::hardware`]. The constants were fitted on one GPU, an H100.
pub fn predict_us(
    fusion: &Fusion,
    kernel: &Kernel,
    caps: &DeviceCaps,
    bindings: &Bindings,
    launches: Launches,
) -> f64 {
    let work = Work::of(&fusion.body, kernel, bindings);
    let demand = demand(&work);
    time(&work, &demand, caps, launches)
}

fn time(work: &Work<'_>, demand: &Demand, caps: &DeviceCaps, launches: Launches) -> f64 {
    let hardware = &caps.hardware;
    let (cores, count) = (f64::from(hardware.cores.max(1)), f64::from(launches.count.max(1)));
    // A multiply-add is two operations. A gigabyte per second is a thousand bytes per microsecond.
    let instructions_per_us = f64::from(hardware.f32_gflops.max(1)) * 1e3 / 2.0;
    let matrix_per_us = f64::from(hardware.f16_matrix_gflops.max(hardware.f32_gflops).max(1)) * 1e3;
    let bytes_per_us = f64::from(hardware.memory_gb_per_s.max(1)) * 1e3 * cost::REACHED;

    let read = if launches.share_operands { work.bytes_read / count } else { work.bytes_read };
    let memory = (read + work.bytes_written) / bytes_per_us;
    let computed = demand.instructions / instructions_per_us + demand.matrix_operations / matrix_per_us;
    let invocations = f64::from(work.schedule.workgroup.max(caps.scheduled_subgroup_size()));
    let resident = demand
        .resident
        .unwrap_or_else(|| f64::from(hardware.max_invocations_per_core) / invocations)
        .max(1.0);
    let rounds = (count * work.workgroups / (cores * resident)).max(1.0);
    let workgroup = demand.chain_us + demand.alone * computed * cores / work.workgroups;
    let latency = rounds * workgroup / count;
    let longest = [memory, computed, latency, c::LAUNCH_US].map(|us| us.powi(4)).iter().sum::<f64>();
    c::LEVEL_US / count + longest.sqrt().sqrt()
}

/// The demand of a kernel by its algorithm.
fn demand(work: &Work<'_>) -> Demand {
    let schedule = work.schedule;
    match (schedule.algorithm, schedule.instruction) {
        (Algorithm::Map | Algorithm::Quantize | Algorithm::Custom, _) => elements(work, &c::MAP),
        (Algorithm::Row, _) => elements(work, &c::ROW),
        (Algorithm::ShortRows, _) => elements(work, &c::SHORT_ROWS),
        (Algorithm::Columns, _) => elements(work, &c::COLUMNS),
        (Algorithm::Scan, _) => elements(work, &c::SCAN),
        (Algorithm::Matmul, Some(Instruction::Coopmat | Instruction::Coopmat2)) => {
            tiles(work, &c::COOPMAT, true)
        }
        (Algorithm::Matmul, None | Some(Instruction::Fma | Instruction::Dot4)) => tiles(work, &c::FMA, false),
        (Algorithm::Matvec, _) => few_rows(work, &c::MATVEC),
        (Algorithm::StagedMatvec, _) => few_rows(work, &c::STAGED_MATVEC),
        (Algorithm::FlashAttention | Algorithm::FlashAttentionGrad, _) => flash(work, &c::FLASH),
        (Algorithm::DecodeAttention, _) => attend(work, &c::DECODE),
        (Algorithm::TiledAttention, _) => attend(work, &c::TILED),
        (Algorithm::Attention | Algorithm::AttentionGrad, _) => attend(work, &c::PER_QUERY),
        (Algorithm::Sort, _) => compare(work, &c::SORT, rounds(work)[1]),
        (Algorithm::RankSort, _) => compare(work, &c::RANK_SORT, f64::from(work.schedule.tile.n)),
        (Algorithm::Merge, _) => compare(work, &c::MERGE, rounds(work)[0]),
        (Algorithm::TopK, _) => top_k(work),
        (Algorithm::Scatter, _) => scatter(work),
        (Algorithm::IndexAdd, _) => index_add(work),
    }
}

fn elements(work: &Work<'_>, k: &Elements) -> Demand {
    let transposed = work.schedule.algorithm == Algorithm::Map && work.schedule.tile != Tile::default();
    let instructions = work.invocations * (k.invocation + k.pass * (work.passes - 1.0))
        + work.loads * k.load
        + work.narrow_loads * k.narrow
        + work.scattered_loads * k.scattered
        + work.operations * k.operation
        + work.results * (k.store + if transposed { k.transposed } else { 0.0 });
    let split = if work.schedule.split.slices > 1 { k.split_us } else { 0.0 };
    Demand::new(instructions, k.start_us + k.load_us * work.loads / work.invocations + split)
}

/// A tiled matmul: products of whole tiles, also beyond the edges of the result.
fn tiles(work: &Work<'_>, k: &Tiles, by_matrices: bool) -> Demand {
    let Some(product) = Product::of(work) else { return elements(work, &c::MAP) };
    let Tile { m, n, k: depth } = work.schedule.tile;
    let [m, n, depth] = [m, n, depth.max(1)].map(f64::from);
    let slices = product.slices(work.schedule.split.slices);
    let steps = ((product.k / depth).ceil() / slices).ceil() * f64::from(work.schedule.tiles_per_workgroup);
    let of_load = |load| match load {
        Load::Vector => k.vector,
        Load::Scalar => k.scalar,
        Load::Window => k.window,
        Load::OddWindow => k.odd_window,
    };
    let unpacked = if product.blocks { k.unpack } else { 0.0 } * if product.codebook { 2.0 } else { 1.0 };
    let [lhs, rhs] = product.loads.map(of_load);
    // Workgroups of slices that K does not have leave at once.
    let computing = work.workgroups * slices / f64::from(work.schedule.split.slices.max(1));
    let along_k = computing * steps * depth;
    let multiply_adds = along_k * m * n;
    let instructions = work.invocations * computing / work.workgroups * steps * k.step
        + along_k * (m * lhs + n * (rhs + unpacked))
        + work.results * k.result * slices.sqrt();
    let split = if slices > 1.0 { k.split_us } else { 0.0 };
    Demand {
        instructions: if by_matrices { instructions } else { instructions + multiply_adds },
        matrix_operations: if by_matrices { 2.0 * multiply_adds } else { 0.0 },
        chain_us: k.start_us + k.step_us * steps / f64::from(work.schedule.prefetch.max(1)) + split,
        alone: k.alone,
        resident: Some(c::RESIDENT_TILES),
    }
}

fn few_rows(work: &Work<'_>, k: &FewRows) -> Demand {
    let Some(product) = Product::of(work) else { return elements(work, &c::MAP) };
    let weights = product.batch * product.k * product.n;
    let of_weight = match product.loads[1] {
        Load::Vector => k.weight,
        Load::Scalar | Load::Window | Load::OddWindow => k.scalar_weight,
    };
    let codebook = if product.codebook { k.codebook } else { 0.0 };
    let activations = product.most_m * product.k;
    let instructions = work.invocations * k.invocation
        + weights * (of_weight + codebook + k.product * product.most_m)
        + k.staged * work.workgroups * activations;
    let split = if work.slices(product.k) > 1.0 { k.split_us } else { 0.0 };
    let staged = k.staged_us * activations / f64::from(work.schedule.workgroup.max(1));
    Demand::new(instructions, k.start_us + k.weight_us * weights / work.invocations + staged + split)
}

fn flash(work: &Work<'_>, k: &Flash) -> Demand {
    let Some(scores) = Scores::of(work) else { return elements(work, &c::MAP) };
    let [queries, keys] = [work.schedule.tile.m, work.schedule.tile.n].map(|n| f64::from(n.max(1)));
    let steps = (scores.keys / keys).ceil();
    let tiles = work.workgroups * steps;
    let instructions =
        work.invocations * steps * k.step + tiles * keys * (queries * k.score + scores.width * k.load);
    let split = if scores.slices > 1.0 { k.split_us } else { 0.0 };
    Demand {
        instructions,
        matrix_operations: 2.0 * k.product * tiles * queries * keys * scores.width,
        chain_us: k.start_us + k.step_us * steps + split,
        alone: k.alone,
        resident: Some(c::RESIDENT_FLASH),
    }
}

fn attend(work: &Work<'_>, k: &Attend) -> Demand {
    let Some(scores) = Scores::of(work) else { return elements(work, &c::MAP) };
    let products = scores.heads * scores.queries * scores.keys * scores.slices * scores.width;
    let split = if scores.slices > 1.0 { k.split_us } else { 0.0 };
    let chain = k.start_us + k.key_us * scores.keys + split;
    Demand::new(work.invocations * k.invocation + products * k.product, chain)
}

/// Rounds of comparisons in which a tile of `2^l` elements is merged, `l`, and sorted, `l (l + 1) / 2`.
fn rounds(work: &Work<'_>) -> [f64; 2] {
    let levels = f64::from(work.schedule.tile.n.max(2)).log2();
    [levels, levels * (levels + 1.0) / 2.0]
}

fn compare(work: &Work<'_>, k: &Compare, rounds: f64) -> Demand {
    let Tile { m: rows, n: tile, .. } = work.schedule.tile;
    let compared = work.workgroups * f64::from(rows.max(1)) * f64::from(tile) * rounds;
    let instructions = work.invocations * k.invocation + work.loads * k.load + compared * k.round;
    Demand::new(instructions, k.start_us + k.round_us * rounds)
}

/// Selection sorts one tile of candidates, more often the more are wanted.
fn top_k(work: &Work<'_>) -> Demand {
    let positions = work.body.outputs().first().map(|output| work.extents(output.value));
    let wanted = positions.and_then(|extents| extents.last().copied()).unwrap_or(1.0).max(1.0);
    let once = compare(work, &c::TOP_K, rounds(work)[1]);
    Demand { instructions: once.instructions * (1.0 + c::TOP_K_DOUBLING * wanted.log2()), ..once }
}

fn scatter(work: &Work<'_>) -> Demand {
    let scatters = work.nodes(|op| matches!(op, Op::Scatter(_)));
    let source =
        scatters.filter_map(|(_, node)| node.operands.get(2)).map(|v| work.elements(*v)).sum::<f64>();
    let each = if work.schedule.tile.n > 0 { c::SCATTER_COPIED } else { c::SCATTER_DIRECT };
    let chain = c::SCATTER_US + c::SCATTER_ELEMENT_US * source / work.invocations;
    Demand::new(work.invocations * c::SCATTER_INVOCATION + source * each, chain)
}

/// Every workgroup reads all indices, and adds the terms that name its rows.
fn index_add(work: &Work<'_>) -> Demand {
    let operand = |number: usize| {
        let nodes = work.nodes(|op| matches!(op, Op::IndexAdd));
        nodes.filter_map(|(_, node)| node.operands.get(number)).map(|v| work.elements(*v)).sum::<f64>()
    };
    let (indices, terms) = (operand(1), operand(2));
    let read = work.workgroups * indices;
    let instructions =
        read * c::INDEX_ADD_INDEX + terms * c::INDEX_ADD_TERM + work.results * c::INDEX_ADD_RESULT;
    let steps = indices / f64::from(work.schedule.workgroup.max(1));
    let chain = c::INDEX_ADD_US + c::INDEX_ADD_STEP_US * steps;
    Demand { resident: Some(c::RESIDENT_INDEX_ADD), ..Demand::new(instructions, chain) }
}

#[cfg(test)]
mod tests;
