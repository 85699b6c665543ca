//! Phases 4 and 11: kernels over the same elements become one, where neither then waits longer.

use std::collections::{BTreeSet, HashMap};

use super::absorb::{absorb, external, unite};
use super::cluster::{Class, Clusters};
use crate::fusion::FusionKind;
use crate::graph::{GraphError, NodeId, Value};

/// The most points of kernels that merge because they read one buffer. Drivers take more than twice as long for a kernel of
/// twice the length. (H100: 19 s for the steps of 50 parameters of 768 elements in one kernel, which share the norm of the
/// gradients.)
const MOST_SHARING_POINTS: usize = 256;

/// Merges kernels over the same elements that read one buffer, so that it is read once.
///
/// Both must read the results of the same kernels (besides leaves). Then neither waits for more than before, and no
/// level is added. An update of a state that one of them reads may wait for less: it follows that kernel anyway. Nothing may
/// wait for it.
pub(super) fn shared_reads(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    let mut order = c.live();
    order.sort_by_key(|id| c.get(*id).nodes.first().copied());
    let mut by_source: HashMap<Value, Vec<usize>> = HashMap::new();
    let mut merged: BTreeSet<NodeId> = BTreeSet::new();
    for mut id in order {
        if c.clusters[id].is_none() || !merges(c, id) {
            continue;
        }
        let sources = external(c, id);
        let others: BTreeSet<usize> =
            sources.iter().filter_map(|v| by_source.get(v)).flatten().copied().collect();
        for other in others {
            if c.clusters[other].is_none() || other == id {
                continue;
            }
            if waits_no_longer(c, id, other)
                && is_short(c, id, other)
                && let Some(united) = unite(c, other, id)?
            {
                id = united;
                merged.extend(&c.get(id).nodes);
            }
        }
        for source in external(c, id) {
            by_source.entry(source).or_default().push(id);
        }
    }
    producers_of(c, &merged)
}

/// Whether a cluster is of a kind that merges here.
fn merges(c: &Clusters<'_>, id: usize) -> bool {
    matches!(c.get(id).kind, FusionKind::Map | FusionKind::Row)
}

/// Whether the union of two clusters is not too long.
fn is_short(c: &Clusters<'_>, a: usize, b: usize) -> bool {
    c.get(a).nodes.len() + c.get(b).nodes.len() <= MOST_SHARING_POINTS
}

/// Whether the union of two clusters keeps nothing waiting that did not wait before.
fn waits_no_longer(c: &Clusters<'_>, a: usize, b: usize) -> bool {
    let results = |id: usize| -> BTreeSet<Value> {
        let computed = |v: &Value| c.class[v.node.index()] != Class::Leaf;
        external(c, id).into_iter().filter(computed).collect()
    };
    let (read_by_a, read_by_b) = (results(a), results(b));
    let follows = |update: usize, reader: usize| {
        c.successors(update).is_empty() && c.overwriters(reader).contains(&update)
    };
    read_by_a == read_by_b
        || follows(a, b) && read_by_a.is_subset(&read_by_b)
        || follows(b, a) && read_by_b.is_subset(&read_by_a)
}

/// Moves kernels without anchors into the one kernel that reads them, if it is of `merged` nodes: before it was merged, two
/// kernels would have had to compute them.
fn producers_of(c: &mut Clusters<'_>, merged: &BTreeSet<NodeId>) -> Result<(), GraphError> {
    let is_map = |id: &usize| c.get(*id).kind == FusionKind::Map;
    let mut order: Vec<usize> = c.live().into_iter().filter(is_map).collect();
    order.sort_by_key(|id| std::cmp::Reverse(c.get(*id).nodes.last().copied()));
    for id in order {
        if c.clusters[id].is_none() {
            continue;
        }
        let consumers: Vec<usize> = c.consumers(id).into_iter().collect();
        if let [consumer] = consumers[..]
            && !c.get(consumer).nodes.is_disjoint(merged)
        {
            absorb(c, id)?;
        }
    }
    Ok(())
}

/// Merges kernels over the same elements that wait for the same kernels and are awaited by the same: it saves a dispatch.
pub(super) fn same_neighbours(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    let mut order: Vec<usize> = c.live().into_iter().filter(|id| merges(c, *id)).collect();
    order.sort_by_key(|id| c.get(*id).nodes.first().copied());
    let mut by_neighbours: HashMap<[BTreeSet<usize>; 2], usize> = HashMap::new();
    for id in order {
        let neighbours = [c.predecessors(id), c.successors(id)];
        if neighbours.iter().any(BTreeSet::is_empty) {
            continue;
        }
        let united = match by_neighbours.get(&neighbours) {
            Some(other) if is_short(c, *other, id) => unite(c, *other, id)?,
            Some(_) | None => None,
        };
        by_neighbours.insert(neighbours, united.unwrap_or(id));
    }
    Ok(())
}
