//! Rematerialization: kernels that run again, so that their results need not stay in memory between two readers.
//!
//! A training step reads values of its forward pass again in its backward pass, and the last layers' come first: all wait
//! in memory at the peak. If a plan takes more than its budget, kernels whose results wait run again instead, shortly
//! before those results are read.
//!
//! 1. [`timeline`]: the kernels at the levels of the plan, and the bytes that are live at each level.
//! 2. [`slice`](mod@slice): the part of a kernel that computes one result, from its operands and from results that are in
//!    memory anyway. The slope of an activation then takes no product again.
//! 3. [`again`]: a run of that kernel just before a reader. What it reads stays in memory until then, or is computed again,
//!    too.
//! 4. [`choose`]: greedily, the run that lowers most bytes above the budget, summed over levels, for its predicted time.
//! 5. [`prune`](mod@prune): what nothing reads any more is not computed.
//! 6. [`rebuild`](mod@rebuild): the fused graph with these runs, which is planned like any other.
//!
//! Whatever was chosen, the graph must compute what it did: [`same_results`] compares the two, since a kernel that reads a
//! wrong value has no other symptom.
//!
//! The planner arranges kernels anew and may need more than the timeline said, so the target is lowered until the plan
//! fits. A kernel gives the same results in each run: a budget changes no result by more than a kernel of other ops
//! would, and none at all where whole kernels run again.

mod again;
mod choose;
mod prune;
mod rebuild;
mod slice;
mod timeline;

use tallow_ir::flatten::same_results;
use tallow_ir::passes::PassError;
use tallow_ir::{Bindings, DeviceCaps, Op, Verified, verify};

use self::again::Slices;
use self::timeline::Timeline;
use crate::builder::{Launch, Planned};
use crate::error::CodegenError;
use crate::predict::{Launches, predict_us};

/// What a budget for intermediate values did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remat {
    /// The budget in bytes.
    pub budget: u64,
    /// Bytes of intermediate values if each kernel runs once.
    pub bytes: u64,
    /// Kernels that run again.
    pub runs: usize,
    /// Predicted microseconds of all launches beyond those of each kernel once, see [`predict_us`](crate::predict_us).
    pub us: f64,
}

/// Plans that are made, each for a lower target.
const ROUNDS: usize = 8;

/// Where targets begin if the budget itself leads nowhere, in eighths of the way to what each kernel running once takes.
/// Greedy choice finds other kernels for each.
const STARTS: [u64; 4] = [0, 1, 2, 4];

/// The name of the stage in errors.
const STAGE: &str = "remat";

/// A graph that computes what `start` does within `budget` bytes of intermediate values, with its plan. `first` is the
/// plan of `start`, which takes more; `plan` is called for each graph that is tried.
///
/// # Errors
/// [`CodegenError::Memory`] if no choice of kernels fits that is found.
pub(crate) fn fit(
    start: &Verified,
    first: &Planned,
    budget: u64,
    caps: &DeviceCaps,
    plan: &mut dyn FnMut(&Verified) -> Result<Planned, CodegenError>,
) -> Result<(Verified, Planned, Remat), CodegenError> {
    let (bytes, launches) = (first.plan.arena.bytes, first.builder.launches.len());
    let (mut least, mut slices) = (bytes, Slices::new(caps));
    for eighths in STARTS {
        let mut target = budget + bytes.saturating_sub(budget) / 8 * eighths;
        let mut now = None;
        for _ in 0..ROUNDS {
            let (graph, planned) = now.as_ref().map_or((start, first), |(graph, planned)| (graph, planned));
            let Some(next) = lowered(graph, planned, target, &mut slices)? else { break };
            let planned = plan(&next)?;
            least = least.min(planned.plan.arena.bytes);
            let reached = planned.plan.arena.bytes;
            if reached <= budget {
                if !same_results(start.graph(), next.graph())? {
                    return Err(CodegenError::Rebuilt(STAGE));
                }
                let runs = planned.builder.launches.len().saturating_sub(launches);
                let us = all_us(&next, &planned, caps) - all_us(start, first, caps);
                return Ok((next, planned, Remat { budget, bytes, runs, us }));
            }
            target = target.saturating_sub(reached - budget);
            now = Some((next, planned));
        }
    }
    Err(CodegenError::Memory { bytes, budget, least })
}

/// The predicted microseconds of all launches.
fn all_us(graph: &Verified, planned: &Planned, caps: &DeviceCaps) -> f64 {
    let us = |launch: &Launch| match &graph.graph().node(launch.node).op {
        Op::Fusion(fusion) => {
            let kernel = &planned.builder.kernels[launch.kernel];
            predict_us(fusion, kernel, caps, &Bindings::new(), Launches::ONE)
        }
        _ => 0.0,
    };
    planned.builder.launches.iter().map(us).sum()
}

/// The graph with kernels that run again, so that it might take `target` bytes. `None` if no kernel helps.
fn lowered(
    graph: &Verified,
    planned: &Planned,
    target: u64,
    slices: &mut Slices<'_>,
) -> Result<Option<Verified>, CodegenError> {
    let mut timeline = Timeline::new(graph.graph(), planned);
    let kernels = timeline.steps.len();
    choose::lower(&mut timeline, target, slices)?;
    if timeline.steps.len() == kernels {
        return Ok(None);
    }
    let built = prune::prune(&mut timeline, slices.caps).and_then(|()| rebuild::rebuild(&timeline));
    let built = built.map_err(|source| PassError::Build { pass: STAGE, source })?;
    let next = verify(built).map_err(|diagnostics| PassError::Verify { pass: STAGE, diagnostics })?;
    Ok(Some(next))
}
