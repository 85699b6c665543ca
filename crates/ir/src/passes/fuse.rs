//! Kernel fusion: groups the nodes of a graph into kernels.
//!
//! There are three classes of nodes. *Anchors* (reduce, matmul, attention) need many elements of an operand for one
//! element of their result. *Points* (elementwise, casts, gathers ...) need one. *Inline* nodes (views, constants,
//! dequantization) cost nothing to recompute and are copied into every kernel that reads through them.
//!
//! A *level* is a set of dispatches between two barriers; fewer levels mean fewer barriers.
//!
//! [`PHASES`] lists the phases in their order, each with its reason.
//!
//! [`crate::form`] decides legality from the body alone; profitability depends on bytes moved and work repeated. Each
//! decision against a fusion is logged with its reason.

mod absorb;
mod build;
mod cluster;
mod forms;
mod grow;
mod matvec;
mod prune;
mod recompute;
mod shared;
mod siblings;

use std::collections::BTreeSet;

use crate::caps::DeviceCaps;
use crate::fusion::FusionKind;
use crate::graph::{Graph, GraphError};
use crate::op::Op;
use crate::passes::Observer;

/// One phase of the pass.
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    run: fn(&mut cluster::Clusters<'_>) -> Result<(), GraphError>,
    /// What it does, and why at its place.
    pub reason: &'static str,
}

/// The phases, in their order.
pub const PHASES: [Phase; 12] = [
    Phase {
        name: "grow",
        run: grow::run,
        reason: "In node order, each point joins the kernels that produce its operands, reductions join kernels over \
                 the same rows, and matmuls with a common consumer become one kernel. This checks only anchors and \
                 cycles, so that a rotary embedding can grow from its slices up to their concat.",
    },
    Phase {
        name: "prune",
        run: prune::run,
        reason: "Splits off what a kernel cannot write (an output that does not cover its loop) or should not \
                 (computing it in the consumer saves bytes).",
    },
    Phase {
        name: "absorb_maps",
        run: absorb::maps,
        reason: "Kernels without anchors move into their consumers as prologues.",
    },
    Phase {
        name: "shared_reads",
        run: shared::shared_reads,
        reason: "Maps and row kernels over the same elements of one buffer become one kernel, which reads it once.",
    },
    Phase {
        name: "siblings",
        run: siblings::run,
        reason: "Matmuls of one left operand become one kernel, whatever their formats. Where the epilogue of one \
                 depends on another, the dependent part becomes the epilogue of a kernel that it depends on.",
    },
    Phase {
        name: "reductions_of_results",
        run: matvec::reductions_of_results,
        reason: "A matvec reduces its results over groups of adjacent columns, for example for the norm of a head. \
                 After siblings, since q, k and v are one kernel then.",
    },
    Phase {
        name: "results_to_blocks",
        run: matvec::results_to_blocks,
        reason: "A matvec quantizes its results itself, for example for a quantized KV cache.",
    },
    Phase {
        name: "quantize_into_matvecs",
        run: matvec::quantize_into_matvecs,
        reason: "Each matvec quantizes its activations itself instead of reading them quantized, which saves a level.",
    },
    Phase {
        name: "shortcuts",
        run: recompute::shortcuts,
        reason: "A matvec that reads a few values of a row kernel which need none of its reductions computes them itself, \
                 and no longer waits for it.",
    },
    Phase {
        name: "rows_into_matvec",
        run: matvec::rows_into_matvec,
        reason: "A row kernel that only feeds matvecs moves into the prologue of each. Each workgroup reads that row \
                 anyway, so this saves a level.",
    },
    Phase {
        name: "same_neighbours",
        run: shared::same_neighbours,
        reason: "Of the maps and row kernels that are left, those over the same elements with the same producers and \
                 consumers become one dispatch.",
    },
    Phase {
        name: "recompute",
        run: recompute::run,
        reason: "Results that readers can compute from fewer bytes are not written. Last, since a kernel that has taken \
                 in all it can reads what it reads.",
    },
];

/// The pass.
pub fn run(graph: &Graph, caps: &DeviceCaps) -> Result<Graph, GraphError> {
    explain(graph, caps, &mut |_, _| {}).map(|(graph, _)| graph)
}

/// As [`run`], but every node becomes a separate kernel. It shows whether a fusion causes a wrong result.
pub fn separate(graph: &Graph, caps: &DeviceCaps) -> Result<Graph, GraphError> {
    let graph = copy_unwritable(graph)?;
    let mut clusters = cluster::Clusters::new(&graph, caps);
    for (id, _) in graph.nodes() {
        match clusters.class[id.index()] {
            cluster::Class::Leaf | cluster::Class::Inline => {}
            cluster::Class::Point => {
                // No kernel copies blocks: the kernel that makes them writes them into the state.
                let Some(made) = clusters.quantize_of_update(id) else {
                    clusters.add(FusionKind::Map, BTreeSet::from([id]));
                    continue;
                };
                let others =
                    clusters.member[made.index()].first().copied().filter(|_| !clusters.is_recomputed(made));
                let mut nodes = others.and_then(|c| clusters.remove(c)).map(|c| c.nodes).unwrap_or_default();
                nodes.extend([made, id]);
                clusters.add(FusionKind::Quantize, nodes);
            }
            cluster::Class::Anchor(kind) => {
                if !clusters.is_recomputed(id) {
                    clusters.add(kind, BTreeSet::from([id]));
                }
            }
        }
    }
    build::build(&clusters)
}

/// Copies what kernels cannot write in place or return as it is.
fn copy_unwritable(graph: &Graph) -> Result<Graph, GraphError> {
    build::copy_leaf_outputs(&build::copy_awaited_blocks(&build::copy_scatter_targets(graph)?)?)
}

/// The fused graph, and why each fusion that was considered did not happen. `observer` sees the graph whose nodes are
/// grouped after each phase.
pub fn explain(
    graph: &Graph,
    caps: &DeviceCaps,
    observer: &mut Observer<'_>,
) -> Result<(Graph, Vec<String>), GraphError> {
    // A graph with fusions was fused before and stays unchanged.
    if graph.nodes().any(|(_, n)| matches!(n.op, Op::Fusion(_))) {
        return Ok((graph.clone(), vec![]));
    }
    let graph = copy_unwritable(graph)?;
    let mut clusters = cluster::Clusters::new(&graph, caps);
    for phase in &PHASES {
        (phase.run)(&mut clusters)?;
        observer(&format!("fuse.{}", phase.name), &graph);
    }
    let log = std::mem::take(&mut clusters.log);
    Ok((build::build(&clusters)?, log))
}
