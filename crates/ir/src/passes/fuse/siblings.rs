//! Phase 5: matmuls of one left operand become one kernel.
//!
//! Two of them may depend on each other. In `x + sigmoid(n W) * f(n V)`, everything after the first matmul is its
//! epilogue, which therefore depends on `f` and so on the second matmul. The epilogue is then cut where the dependence
//! begins, and the dependent part becomes the epilogue of a kernel that it depends on.

use std::collections::{BTreeSet, HashMap};

use super::absorb::unite;
use super::cluster::{Class, Cluster, Clusters};
use crate::fusion::FusionKind;
use crate::graph::{GraphError, NodeId, Value};
use crate::op::Op;

pub(super) fn run(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    let mut cuts = vec![];
    for (first, later) in merge_siblings(c)? {
        // Their matmuls are in the order of the graph, but either may wait for the other.
        let found = match cut(c, first, later) {
            None => cut(c, later, first),
            found => found,
        };
        cuts.extend(found);
    }
    if cuts.is_empty() {
        return Ok(());
    }
    c.put_in_order();
    for Cut { first, rest, dependent } in cuts {
        attach(c, [first, rest], dependent)?;
    }
    merge_siblings(c).map(|_| ())
}

/// An epilogue that was cut.
struct Cut {
    /// The cluster that it depended on.
    first: usize,
    /// The matmuls, and the independent part of the epilogue.
    rest: usize,
    /// The dependent part.
    dependent: usize,
}

/// The left operand of a cluster's matmuls.
fn left_operand(c: &Clusters<'_>, cluster: &Cluster) -> Option<Value> {
    let matmul = cluster.nodes.iter().find(|n| matches!(c.graph.node(**n).op, Op::Matmul))?;
    Some(c.graph.node(*matmul).operands[0])
}

/// Merges siblings where possible. Returns pairs that stay apart, because one depends on the other.
fn merge_siblings(c: &mut Clusters<'_>) -> Result<Vec<(usize, usize)>, GraphError> {
    let mut by_left: HashMap<(FusionKind, Value), usize> = HashMap::new();
    let mut order = c.live();
    order.sort_by_key(|id| c.get(*id).nodes.first().copied());
    let mut apart = vec![];
    for id in order {
        let cluster = c.get(id);
        if !matches!(cluster.kind, FusionKind::Matvec | FusionKind::Matmul) {
            continue;
        }
        let Some(left) = left_operand(c, cluster) else { continue };
        let key = (cluster.kind, left);
        let Some(first) = by_left.get(&key).copied() else {
            by_left.insert(key, id);
            continue;
        };
        match unite(c, first, id)? {
            Some(united) => by_left.insert(key, united),
            None => {
                apart.push((first, id));
                by_left.insert(key, id)
            }
        };
    }
    // A later merge may have replaced the first one; it is found again by its left operand.
    Ok(apart.into_iter().filter(|(a, b)| c.clusters[*a].is_some() && c.clusters[*b].is_some()).collect())
}

/// Cuts off the part of `later`'s epilogue that depends on `first`, unless one of its matmuls does too.
fn cut(c: &mut Clusters<'_>, first: usize, later: usize) -> Option<Cut> {
    let (Some(_), Some(cluster)) = (&c.clusters[first], &c.clusters[later]) else { return None };
    let mut waits: BTreeSet<NodeId> = BTreeSet::new();
    // Operands point backwards, so producers are visited first.
    for node in &cluster.nodes {
        let depends_on_first = |v: &Value| {
            let others = c.member[v.node.index()].iter().filter(|m| **m != first && **m != later);
            waits.contains(&v.node)
                || !cluster.nodes.contains(&v.node) && others.into_iter().any(|m| c.reaches(first, *m))
        };
        if c.sources[node.index()].iter().any(depends_on_first) {
            waits.insert(*node);
        }
    }
    let anchored = waits.iter().any(|n| matches!(c.class[n.index()], Class::Anchor(_)));
    if waits.is_empty() || anchored {
        return None;
    }
    let rest: BTreeSet<NodeId> = cluster.nodes.difference(&waits).copied().collect();
    let absorber = absorber(c, &waits, &[first, later])?;
    let kind = cluster.kind;
    let line = format!("{} gives what waits for {} to {}", c.name(later), c.name(first), c.name(absorber));
    c.log.push(line);
    let (rest, dependent) = c.split(later, (kind, rest), (FusionKind::Map, waits));
    Some(Cut { first, rest, dependent })
}

/// A kernel that `nodes` can become the epilogue of: one that they read, and not one of `without`.
fn absorber(c: &Clusters<'_>, nodes: &BTreeSet<NodeId>, without: &[usize]) -> Option<usize> {
    let sources = nodes.iter().flat_map(|n| &c.sources[n.index()]);
    let computed = sources.flat_map(|v| &c.member[v.node.index()]).copied();
    let can_absorb = |id: &usize| {
        let kind = c.get(*id).kind;
        !without.contains(id) && matches!(kind, FusionKind::Matvec | FusionKind::Matmul | FusionKind::Row)
    };
    // The latest one: the others are done by then.
    computed.filter(can_absorb).max_by_key(|id| c.get(*id).nodes.last().copied())
}

/// Makes a cut-off part the epilogue of the latest kernel that it reads and that can take it, or else of its old one.
fn attach(c: &mut Clusters<'_>, [first, rest]: [usize; 2], dependent: usize) -> Result<(), GraphError> {
    let mut without = vec![first, rest, dependent];
    while let Some(absorber) = absorber(c, &c.get(dependent).nodes, &without) {
        if unite(c, absorber, dependent)?.is_some() {
            return Ok(());
        }
        without.push(absorber);
    }
    if c.clusters[rest].is_some() {
        unite(c, rest, dependent)?;
    }
    Ok(())
}
