//! Phase 2: splits off what a cluster cannot write, and what it should not.

use std::collections::BTreeSet;

use super::absorb;
use super::cluster::{Class, Cluster, Clusters};
use crate::fusion::FusionKind;
use crate::graph::{GraphError, NodeId};
use crate::op::Op;

pub(super) fn run(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    let mut todo = c.live();
    // Producers before consumers: ids follow the last merge, not node order.
    todo.sort_by_key(|id| c.get(*id).nodes.first().copied());
    todo.reverse();
    while let Some(id) = todo.pop() {
        let Some(out) = split(c, id)? else { continue };
        let Some(cluster) = c.remove(id) else { continue };
        let rest: BTreeSet<NodeId> = cluster.nodes.difference(&out).copied().collect();
        let mut parts = vec![];
        for mut part in [rest, out] {
            let made: Vec<NodeId> = part.iter().filter_map(|n| c.quantize_of_update(*n)).collect();
            part.extend(made);
            parts.push(c.add(c.kind_of(&part), part));
        }
        // If one part holds an update and the other reads the old version, neither can go first. Single nodes, which
        // the graph orders, then replace them. Longer cycles cannot arise: through other clusters, they would be cycles
        // of the whole cluster.
        if c.successors(parts[0]).contains(&parts[1]) && c.successors(parts[1]).contains(&parts[0]) {
            for part in parts {
                for node in c.remove(part).map(|p| p.nodes).unwrap_or_default() {
                    let alone: BTreeSet<NodeId> =
                        [node].into_iter().chain(c.quantize_of_update(node)).collect();
                    if !c.is_recomputed(node) {
                        c.add(c.kind_of(&alone), alone);
                    }
                }
            }
        } else {
            todo.extend(parts);
        }
    }
    c.put_in_order();
    Ok(())
}

/// The part of cluster `id` to split off, or `None` if the cluster is legal and profitable.
fn split(c: &mut Clusters<'_>, id: usize) -> Result<Option<BTreeSet<NodeId>>, GraphError> {
    let cluster = c.get(id).clone();
    // An update of a block state cannot be separated from the node that quantizes the blocks.
    let pair = |n: &NodeId| c.quantize_of_update(*n).is_some_and(|made| cluster.nodes.contains(&made));
    if cluster.nodes.len() == 1 || (cluster.nodes.len() == 2 && cluster.nodes.iter().any(pair)) {
        return Ok(None);
    }
    let escapes = c.escapes(&cluster.nodes);
    let Err(why) = c.legal_with(cluster.kind, &cluster.nodes, &escapes)? else {
        return Ok(unprofitable(c, &cluster.nodes, &escapes));
    };
    // The first output that the loop cannot write together with the previous ones.
    let anchors = anchors_needed(c, &cluster.nodes);
    let mut outputs: Vec<NodeId> = vec![];
    let mut culprit = None;
    let row = cluster.kind == FusionKind::Row;
    // Whether a node is, or depends on, an anchor of the cluster.
    let waits = |c: &Clusters<'_>, node: NodeId| {
        let is_anchor = |n: &NodeId| matches!(c.class[n.index()], Class::Anchor(_));
        is_anchor(&node) || upstream(c, &cluster.nodes, &[node]).iter().any(is_anchor)
    };
    // The reductions define the rows. Outputs that depend on none come last, so that they are the ones split off.
    let mut order = escapes.clone();
    if row {
        order.sort_by_key(|escape| !waits(c, *escape));
    }
    for escape in &order {
        outputs.push(*escape);
        let mut needed = upstream(c, &cluster.nodes, &outputs);
        needed.extend(&outputs);
        if c.legal_with(c.kind_of(&needed), &needed, &outputs)?.is_err() {
            culprit = Some(*escape);
            break;
        }
    }
    let culprit = culprit.or(order.last().copied());
    let Some(culprit) = culprit else { return Ok(None) };
    let line = format!("'{}' leaves the {} kernel: {why}", c.graph.node_text(culprit), cluster.kind.name());
    c.log.push(line);
    let mut above = upstream(c, &cluster.nodes, &[culprit]);
    let below = downstream(c, &cluster.nodes, culprit);
    let taken_along = row && !waits(c, culprit);
    let feeds_anchor = anchors.contains(&culprit);
    let out =
        if feeds_anchor || taken_along || (below.len() > 1 && c.kind_of(&cluster.nodes) == FusionKind::Map) {
            above.insert(culprit);
            above
        } else {
            below
        };
    // Splitting off everything would not terminate: then only the culprit and its dependents leave.
    if out.len() < cluster.nodes.len() {
        return Ok(Some(out));
    }
    let alone = downstream(c, &cluster.nodes, culprit);
    if alone.len() < cluster.nodes.len() {
        return Ok(Some(alone));
    }
    Ok(Some(BTreeSet::from([culprit])))
}

/// The anchors of the cluster, and the nodes of it that they depend on.
fn anchors_needed(c: &Clusters<'_>, nodes: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
    let anchors: Vec<NodeId> =
        nodes.iter().copied().filter(|n| matches!(c.class[n.index()], Class::Anchor(_))).collect();
    let mut needed = upstream(c, nodes, &anchors);
    needed.extend(anchors);
    needed
}

/// The nodes within `nodes` that `from` depend on, without `from`.
pub(super) fn upstream(c: &Clusters<'_>, nodes: &BTreeSet<NodeId>, from: &[NodeId]) -> BTreeSet<NodeId> {
    let mut found = BTreeSet::new();
    let mut todo = from.to_vec();
    while let Some(node) = todo.pop() {
        for v in &c.sources[node.index()] {
            if nodes.contains(&v.node) && !from.contains(&v.node) && found.insert(v.node) {
                todo.push(v.node);
            }
        }
    }
    found
}

/// `from` and the nodes within `nodes` that depend on it.
fn downstream(c: &Clusters<'_>, nodes: &BTreeSet<NodeId>, from: NodeId) -> BTreeSet<NodeId> {
    let mut found = BTreeSet::from([from]);
    let mut todo = vec![from];
    while let Some(node) = todo.pop() {
        for user in &c.users[node.index()] {
            if nodes.contains(user) && found.insert(*user) {
                todo.push(*user);
            }
        }
    }
    found
}

/// An output point that is cheaper to compute in its consumers: leaving it out writes fewer bytes, because its operands
/// are written anyway. Not so if the tiles of a matmul would compute it for too long.
fn unprofitable(c: &Clusters<'_>, nodes: &BTreeSet<NodeId>, escapes: &[NodeId]) -> Option<BTreeSet<NodeId>> {
    escapes.iter().rev().copied().find_map(|node| {
        let fixed = c.is_output[node.index()]
            || c.class[node.index()] != Class::Point
            || matches!(c.graph.node(node).op, Op::StateUpdate { .. })
            || downstream(c, nodes, node).len() > 1;
        if fixed {
            return None;
        }
        let newly = c.sources[node.index()].iter().map(|v| v.node).collect::<BTreeSet<_>>();
        let newly = newly.iter().filter(|n| nodes.contains(n) && !escapes.contains(n));
        let cost: u64 = newly.map(|n| c.bytes(*n)).sum();
        let alone = Cluster { kind: FusionKind::Map, nodes: BTreeSet::from([node]) };
        let users = c.users[node.index()].iter().filter(|user| !nodes.contains(user));
        let consumers: BTreeSet<usize> = users.flat_map(|user| c.member[user.index()].clone()).collect();
        let consumers: Vec<usize> = consumers.into_iter().collect();
        let cheaper =
            cost < c.bytes(node) && absorb::too_expensive_for_matmuls(c, &alone, &consumers).is_none();
        cheaper.then_some(alone.nodes)
    })
}
