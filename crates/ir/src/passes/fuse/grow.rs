//! Phase 1: maximal clusters, limited only by anchors and cycles.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use super::cluster::{Class, Clusters, LONGEST_KERNEL};
use crate::dim::Dim;
use crate::form;
use crate::fusion::FusionKind;
use crate::graph::{GraphError, NodeId, Value};
use crate::op::Op;

/// Maximum nodes of a row kernel, whose loops are unrolled: a driver took 19 s for the norms and steps of 50 parameters of one
/// size, 1172 nodes.
const LONGEST_ROW_KERNEL: usize = 256;

pub(super) fn run(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    // Row kernels by the buffers that they read, so that independent reductions of one tensor can merge.
    let mut rows_by_source: HashMap<Value, Vec<NodeId>> = HashMap::new();
    // Ordered by rank, so that readers of an old version precede its in-place update.
    let mut order: Vec<NodeId> = c.graph.nodes().map(|(id, _)| id).collect();
    order.sort_by_key(|id| c.rank[id.index()]);
    for id in order {
        let (kind, joins) = match c.class[id.index()] {
            Class::Leaf | Class::Inline => continue,
            Class::Point => (FusionKind::Map, true),
            Class::Anchor(FusionKind::Row) => (FusionKind::Row, true),
            // Producers of a matmul or attention stay separate for now: `absorb` decides on prologues.
            Class::Anchor(kind) => (kind, false),
        };
        let mut cluster = c.add(kind, BTreeSet::from([id]));
        if !joins {
            continue;
        }
        if let Some(quantize) = c.quantize_of_update(id) {
            with_blocks(c, cluster, quantize)?;
            continue;
        }
        let mut with: BTreeSet<NodeId> = c.sources[id.index()].iter().map(|v| v.node).collect();
        if kind == FusionKind::Row {
            for source in c.sources[id.index()].clone() {
                let same = rows_by_source.entry(source).or_default();
                with.extend(same.iter().copied());
                same.push(id);
            }
        }
        // Latest first: the last one computed cannot depend on anything after it. Where that order was changed, `merge`
        // refuses what would close a cycle.
        for node in deepest_products_first(c, with.into_iter().rev().collect()) {
            let Some(other) = c.member[node.index()].first().copied() else { continue };
            if other != cluster
                && let Some(kind) = mergeable(c, cluster, other)?
                && let Some(merged) = c.merge(cluster, other, kind)
            {
                cluster = merged;
            }
        }
    }
    Ok(())
}

/// `nodes`, of which those that a matmul's kernel computes are by descending depth. A sum of two products joins the kernel
/// that more kernels precede, so that the other product is computed beside these.
fn deepest_products_first(c: &Clusters<'_>, mut nodes: Vec<NodeId>) -> Vec<NodeId> {
    let is_product = |node: &NodeId| {
        let kind = c.member[node.index()].first().map(|id| c.get(*id).kind);
        matches!(kind, Some(FusionKind::Matvec | FusionKind::Matmul))
    };
    let places: Vec<usize> = (0..nodes.len()).filter(|i| is_product(&nodes[*i])).collect();
    let mut products: Vec<NodeId> = places.iter().map(|i| nodes[*i]).collect();
    products.sort_by_key(|node| Reverse(c.depth[node.index()]));
    places.iter().zip(products).for_each(|(place, node)| nodes[*place] = node);
    nodes
}

/// The kind of the union, if the anchors of both can share a kernel.
fn mergeable(c: &mut Clusters<'_>, id: usize, other: usize) -> Result<Option<FusionKind>, GraphError> {
    let (a, b) = (c.get(id), c.get(other));
    if a.nodes.len() + b.nodes.len() > LONGEST_KERNEL {
        return Ok(None);
    }
    let kind = match (a.kind, b.kind) {
        // The kernel that quantizes blocks also writes them into the state.
        (FusionKind::Map, FusionKind::Quantize) if writes_blocks(c, id, other) => FusionKind::Quantize,
        // These kernels have no epilogue.
        (
            FusionKind::Map,
            FusionKind::Quantize
            | FusionKind::Scan
            | FusionKind::Sort
            | FusionKind::Scatter
            | FusionKind::IndexAdd
            | FusionKind::AttentionGrad
            | FusionKind::Custom,
        ) => {
            return Ok(None);
        }
        (FusionKind::Map, FusionKind::Row) if is_beyond_single_row(c, id, other) => return Ok(None),
        (FusionKind::Map, FusionKind::Map) if is_of_shared_numbers(c, id, other) => return Ok(None),
        (FusionKind::Map, k) => k,
        // A map that feeds a row kernel becomes its prologue. It may join an anchored kernel that already has an
        // epilogue only if nothing else reads it.
        (FusionKind::Row, FusionKind::Map) => FusionKind::Row,
        (k, FusionKind::Map) => {
            let feeds_only = b.nodes.iter().all(|n| {
                !c.is_output[n.index()]
                    && c.users[n.index()].iter().all(|u| a.nodes.contains(u) || b.nodes.contains(u))
            });
            if !feeds_only || feeds_anchor(c, id, other) {
                return Ok(None);
            }
            k
        }
        (FusionKind::Row, FusionKind::Row) => FusionKind::Row,
        (FusionKind::Matvec, FusionKind::Matvec) => FusionKind::Matvec,
        (FusionKind::Matmul, FusionKind::Matmul) => FusionKind::Matmul,
        _ => return Ok(None),
    };
    if kind == FusionKind::Row && a.nodes.len() + b.nodes.len() > LONGEST_ROW_KERNEL {
        return Ok(None);
    }
    if a.kind == b.kind && kind != FusionKind::Map {
        let nodes: BTreeSet<NodeId> = a.nodes.union(&b.nodes).copied().collect();
        let (body, _) = c.body(&nodes, &[])?;
        if let Err(why) = form::anchors_fit(kind, &body) {
            let line = format!("{} and {} stay apart: {why}", c.name(id), c.name(other));
            c.log.push(line);
            return Ok(None);
        }
    }
    Ok(Some(kind))
}

/// Whether `other` computes single numbers that more than `id` reads, which computes many elements. The numbers would be
/// written, and a kernel writes results of one size; and all that reads them would become one cluster, however little it has
/// in common. What is cheap is computed again in each reader later.
fn is_of_shared_numbers(c: &Clusters<'_>, id: usize, other: usize) -> bool {
    let (a, b) = (&c.get(id).nodes, &c.get(other).nodes);
    let is_number = |node: &NodeId| c.graph.node(*node).types.iter().all(|ty| ty.shape.numel().is(1));
    let is_inside = |node: &NodeId| {
        !c.is_output[node.index()]
            && c.users[node.index()].iter().all(|user| a.contains(user) || b.contains(user))
    };
    b.iter().all(is_number) && !a.iter().all(is_number) && !b.iter().all(is_inside)
}

/// Whether `id`, which reads what a row kernel made of a single row, computes other elements than that row's, or those of a
/// row that several workgroups share. It could not be written there; and where thousands of elements wait for one number,
/// as parameters do for the norm of all gradients, they need not wait in the workgroup that computes it.
fn is_beyond_single_row(c: &Clusters<'_>, id: usize, other: usize) -> bool {
    let numel = |node: &NodeId| c.graph.node(*node).types[0].shape.numel();
    let nodes = &c.get(other).nodes;
    let reduce = nodes.iter().find(|n| matches!(c.graph.node(**n).op, Op::Reduce { .. }));
    let Some(reduce) = reduce.filter(|reduce| numel(reduce).is(1)) else { return false };
    let row = c.graph.ty(c.graph.node(*reduce).operands[0]).shape.numel();
    let computed: Vec<Dim> = c.get(id).nodes.iter().map(numel).filter(|n| !n.is(1)).collect();
    if computed.iter().any(|n| *n != row) {
        return true;
    }
    !computed.is_empty() && form::is_shared_row(&row)
}

/// Moves the update of a block state (cluster `id`) into the kernel of node `quantize`, which quantizes the blocks, or
/// else repeats the quantization in `id`. (Row indices are absorbed later, see `absorb`.)
fn with_blocks(c: &mut Clusters<'_>, id: usize, quantize: NodeId) -> Result<(), GraphError> {
    if let Some(other) = c.member[quantize.index()].first().copied()
        && let Some(kind) = mergeable(c, id, other)?
        && c.merge(id, other, kind).is_some()
    {
        return Ok(());
    }
    if c.is_recomputed(quantize) {
        let mut nodes = c.get(id).nodes.clone();
        nodes.insert(quantize);
        c.replace(id, FusionKind::Quantize, nodes);
    }
    Ok(())
}

/// True if `id` only writes blocks that `other` quantizes, into states that `other` does not write.
fn writes_blocks(c: &Clusters<'_>, id: usize, other: usize) -> bool {
    let blocks = &c.get(other).nodes;
    c.get(id).nodes.iter().all(|n| {
        let node = c.graph.node(*n);
        matches!(node.op, Op::StateUpdate { .. })
            && blocks.contains(&node.operands[1].node)
            && !blocks.contains(&node.operands[0].node)
    })
}

/// True if an anchor of `id` reads from `other`.
fn feeds_anchor(c: &Clusters<'_>, id: usize, other: usize) -> bool {
    let anchors = c.get(id).nodes.iter().filter(|n| matches!(c.class[n.index()], Class::Anchor(_)));
    let mut todo: Vec<NodeId> = anchors.copied().collect();
    while let Some(node) = todo.pop() {
        for v in &c.sources[node.index()] {
            if c.get(other).nodes.contains(&v.node) {
                return true;
            }
            if c.get(id).nodes.contains(&v.node) {
                todo.push(v.node);
            }
        }
    }
    false
}
