//! Groups nodes into kernels.
//!
//! Nodes fall into classes. *Anchors* (reduce, matmul, attention) need many elements of an operand for one
//! of their result. *Points* (elementwise, casts, gathers ...) need one. *Inline* nodes (views, constants,
//! dequantization) cost nothing to repeat and are copied into every kernel that reads through them.
//!
//! 1. `grow`: in node order, each point joins the kernels that produce its operands, reductions join
//!    kernels over the same rows, matmuls that meet in a consumer become one kernel. This looks only at
//!    anchors and cycles, so that a rotation can grow through its slices to the concat that makes it whole.
//! 2. `prune`: what a kernel would write but cannot (an output that does not cover its loop) or should not
//!    (it saves bytes to compute it in the consumer) is split off.
//! 3. `absorb`: kernels without anchors move into their consumers as prologues.
//! 4. `shared_reads`: maps and row kernels over the same elements of one buffer become one kernel.
//! 5. `siblings`: matmuls of one left operand become one kernel, whatever their formats. Where the epilogue of one
//!    waits for another, the part that waits becomes the epilogue of what it waits for.
//! 6. `reductions_of_results`: reductions of neighbouring columns of a matvec, such as the norm of a head, are made where the
//!    columns are.
//! 7. `results_to_blocks`: what a matvec computes it rounds to blocks itself, as a quantized cache wants them.
//! 8. `rounding_into_matvecs`: each matvec rounds its activations itself instead of reading them rounded, which saves
//!    a level.
//! 9. `rows_into_matvec`: a row kernel that only feeds a matvec is repeated in each of its workgroups,
//!    which read that row anyway, and so saves a level.
//!
//! Legality is decided by [`crate::form`] on the body alone; profit by bytes moved and work repeated. Each
//! decision that stops a fusion is logged with its reason.

mod absorb;
mod build;
mod cluster;
mod forms;
mod grow;
mod prune;
mod siblings;

use std::collections::BTreeSet;

use crate::caps::DeviceCaps;
use crate::fusion::FusionKind;
use crate::graph::{Graph, GraphError};
use crate::op::Op;

/// The pass.
pub fn run(graph: &Graph, caps: &DeviceCaps) -> Result<Graph, GraphError> {
    explain(graph, caps).map(|(graph, _)| graph)
}

/// As [`run`], but every node is a kernel of its own. It shows whether a wrong result comes from a fusion.
pub fn separate(graph: &Graph, caps: &DeviceCaps) -> Result<Graph, GraphError> {
    let graph = own_buffers(graph)?;
    let mut clusters = cluster::Clusters::new(&graph, caps);
    for (id, _) in graph.nodes() {
        match clusters.class[id.index()] {
            cluster::Class::Leaf | cluster::Class::Inline => {}
            cluster::Class::Point => {
                // No kernel copies blocks: they go into a state as they are made.
                let Some(made) = clusters.rounding_of(id) else {
                    clusters.add(FusionKind::Map, BTreeSet::from([id]));
                    continue;
                };
                let others =
                    clusters.member[made.index()].first().copied().filter(|_| !clusters.is_made_again(made));
                let mut nodes = others.and_then(|c| clusters.remove(c)).map(|c| c.nodes).unwrap_or_default();
                nodes.extend([made, id]);
                clusters.add(FusionKind::Quantize, nodes);
            }
            cluster::Class::Anchor(kind) => {
                if !clusters.is_made_again(id) {
                    clusters.add(kind, BTreeSet::from([id]));
                }
            }
        }
    }
    build::build(&clusters)
}

/// Copies what kernels could not write or return where it is.
fn own_buffers(graph: &Graph) -> Result<Graph, GraphError> {
    build::copy_leaf_outputs(&build::copy_awaited_blocks(&build::copy_scatter_targets(graph)?)?)
}

/// The pass, and why each fusion that was considered did not happen.
pub fn explain(graph: &Graph, caps: &DeviceCaps) -> Result<(Graph, Vec<String>), GraphError> {
    // Kernels stay what they are: a graph that holds some was fused before.
    if graph.nodes().any(|(_, n)| matches!(n.op, Op::Fusion(_))) {
        return Ok((graph.clone(), vec![]));
    }
    let graph = own_buffers(graph)?;
    let mut clusters = cluster::Clusters::new(&graph, caps);
    grow::run(&mut clusters)?;
    prune::run(&mut clusters)?;
    absorb::maps(&mut clusters)?;
    absorb::shared_reads(&mut clusters)?;
    siblings::run(&mut clusters)?;
    absorb::reductions_of_results(&mut clusters)?;
    absorb::results_to_blocks(&mut clusters)?;
    absorb::rounding_into_matvecs(&mut clusters)?;
    absorb::rows_into_matvec(&mut clusters)?;
    let log = std::mem::take(&mut clusters.log);
    Ok((build::build(&clusters)?, log))
}
