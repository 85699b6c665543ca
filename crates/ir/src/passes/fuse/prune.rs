//! Phase 2: split off what a cluster cannot write, and what it should not.

use std::collections::BTreeSet;

use super::cluster::{Class, Clusters};
use crate::fusion::FusionKind;
use crate::graph::{GraphError, NodeId};
use crate::op::Op;

pub(super) fn run(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    let mut todo = c.live();
    // Sorted so that producers are settled before consumers: ids follow the last merge, not node order.
    todo.sort_by_key(|id| c.get(*id).nodes.first().copied());
    todo.reverse();
    while let Some(id) = todo.pop() {
        let Some(out) = split(c, id)? else { continue };
        let Some(whole) = c.remove(id) else { continue };
        let rest: BTreeSet<NodeId> = whole.nodes.difference(&out).copied().collect();
        let mut parts = vec![];
        for mut part in [rest, out] {
            let made: Vec<NodeId> = part.iter().filter_map(|n| c.rounding_of(*n)).collect();
            part.extend(made);
            parts.push(c.add(c.kind_of(&part), part));
        }
        // A part may hold an update and the other a read of the old version: then neither can go first, and
        // single nodes, which the graph orders, take their place. No longer cycle arises: through other clusters, it
        // would have been one of the whole.
        if c.successors(parts[0]).contains(&parts[1]) && c.successors(parts[1]).contains(&parts[0]) {
            for part in parts {
                for node in c.remove(part).map(|p| p.nodes).unwrap_or_default() {
                    let alone: BTreeSet<NodeId> = [node].into_iter().chain(c.rounding_of(node)).collect();
                    if !c.is_made_again(node) {
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

/// The part of cluster `id` to split off, or `None` if it is fine.
fn split(c: &mut Clusters<'_>, id: usize) -> Result<Option<BTreeSet<NodeId>>, GraphError> {
    let cluster = c.get(id).clone();
    // Not even by two: an update of a state of blocks stays with what makes them.
    let pair = |n: &NodeId| c.rounding_of(*n).is_some_and(|made| cluster.nodes.contains(&made));
    if cluster.nodes.len() == 1 || (cluster.nodes.len() == 2 && cluster.nodes.iter().any(pair)) {
        return Ok(None);
    }
    let escapes = c.escapes(&cluster.nodes);
    let Err(why) = c.legal_with(cluster.kind, &cluster.nodes, &escapes)? else {
        return Ok(unprofitable(c, &cluster.nodes, &escapes));
    };
    // The first output that the loop cannot write together with those before it.
    let anchors = anchors_needed(c, &cluster.nodes);
    let mut kept: Vec<NodeId> = vec![];
    let mut culprit = None;
    let row = cluster.kind == FusionKind::Row;
    // Whether a node waits for an anchor of the cluster, or is one.
    let waits = |c: &Clusters<'_>, node: NodeId| {
        let is_anchor = |n: &NodeId| matches!(c.class[n.index()], Class::Anchor(_));
        is_anchor(&node) || upstream(c, &cluster.nodes, &[node]).iter().any(is_anchor)
    };
    // Rows are those of the reductions: what was only taken along comes last, to be what does not fit.
    let mut order = escapes.clone();
    if row {
        order.sort_by_key(|escape| !waits(c, *escape));
    }
    for escape in &order {
        kept.push(*escape);
        let mut needed = upstream(c, &cluster.nodes, &kept);
        needed.extend(&kept);
        if c.legal_with(c.kind_of(&needed), &needed, &kept)?.is_err() {
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
    // Splitting everything off would not end; then the culprit goes alone with what depends on it.
    if out.len() < cluster.nodes.len() {
        return Ok(Some(out));
    }
    let alone = downstream(c, &cluster.nodes, culprit);
    if alone.len() < cluster.nodes.len() {
        return Ok(Some(alone));
    }
    Ok(Some(BTreeSet::from([culprit])))
}

/// Nodes of the cluster that an anchor of it depends on, and the anchors themselves.
fn anchors_needed(c: &Clusters<'_>, nodes: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
    let anchors: Vec<NodeId> =
        nodes.iter().copied().filter(|n| matches!(c.class[n.index()], Class::Anchor(_))).collect();
    let mut needed = upstream(c, nodes, &anchors);
    needed.extend(anchors);
    needed
}

/// Nodes within `nodes` that `from` depend on, without `from`.
fn upstream(c: &Clusters<'_>, nodes: &BTreeSet<NodeId>, from: &[NodeId]) -> BTreeSet<NodeId> {
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

/// A point at the end that is cheaper to compute where it is used: leaving it out writes fewer bytes,
/// because what it reads is written anyway.
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
        (cost < c.bytes(node)).then(|| BTreeSet::from([node]))
    })
}
