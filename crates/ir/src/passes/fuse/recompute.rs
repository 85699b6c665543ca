//! Phases 9 and 11: results that are cheaper to compute again than to write and read.
//!
//! A training step reads values of the forward pass again, long after: each slope of an activation is a function of the
//! activation's operand, but would be written by the forward kernel, one result for each factor. Readers compute such
//! results from what they read anyway or from fewer bytes.

use std::collections::{BTreeMap, BTreeSet};

use super::absorb::{external, reads};
use super::cluster::{Class, Cluster, Clusters};
use super::prune::upstream;
use crate::fusion::FusionKind;
use crate::graph::{GraphError, NodeId, Value};
use crate::op::Op;

/// The most points that a reader computes again for one result: at 20 operations a point and 20 operations for each byte
/// that a large GPU reads, they take as long as the 16 bytes that four results in f32 would have.
const MOST_POINTS: usize = 16;

/// The most evaluations of points that a matvec repeats rather than wait for a kernel: with 20 instructions each, a GPU of
/// 1 T instructions a second takes 5 us, about as long as a kernel takes to start.
const MOST_EVALUATIONS: u64 = 1 << 18;

/// A source with at most this part of a result's bytes (a factor of each row) costs nothing to write and read.
const SMALL_PART: u64 = 8;

pub(super) fn run(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    for id in c.live() {
        if c.clusters[id].is_some() {
            of_cluster(c, id)?;
        }
    }
    Ok(())
}

/// Phase 9: matvecs compute the few values that they read of a row kernel, if these need none of its reductions: they no
/// longer wait for it. (The numerators of a softmax of a few scores, whose denominator is a factor of later results.)
pub(super) fn shortcuts(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    for id in c.live() {
        if c.clusters[id].is_some() {
            shortcut(c, id)?;
        }
    }
    Ok(())
}

fn shortcut(c: &mut Clusters<'_>, id: usize) -> Result<(), GraphError> {
    if c.get(id).kind != FusionKind::Row {
        return Ok(());
    }
    let nodes = c.get(id).nodes.clone();
    let escapes: BTreeSet<NodeId> = c.outputs(id).into_iter().collect();
    let found: Vec<Candidate> = escapes.iter().filter_map(|node| few_points(c, id, &nodes, *node)).collect();
    // A reader of another result, or of what is computed from one, waits all the same.
    let others: BTreeSet<usize> = escapes
        .iter()
        .filter(|node| found.iter().all(|candidate| candidate.node != **node))
        .flat_map(|node| readers(c, id, *node))
        .collect();
    let waits = |reader: &usize| {
        others.contains(reader) || c.consumers(id).iter().any(|k| k != reader && c.reaches(*k, *reader))
    };
    let found: Vec<Candidate> = found.into_iter().filter(|f| !f.readers.iter().any(waits)).collect();
    if found.is_empty() {
        return Ok(());
    }
    hand_over(c, id, (&nodes, &escapes), (&found, "which drops their dependency on this kernel"))
}

/// A result that matvecs compute again, in their epilogues, in less time than a kernel takes to start.
fn few_points(c: &Clusters<'_>, id: usize, nodes: &BTreeSet<NodeId>, node: NodeId) -> Option<Candidate> {
    if c.is_output[node.index()] {
        return None;
    }
    let (mut points, mut sources, mut todo) = (BTreeSet::from([node]), BTreeSet::new(), vec![node]);
    while let Some(point) = todo.pop() {
        let is_gather = matches!(c.graph.node(point).op, Op::Gather { .. }) && !c.is_overwritten_later(point);
        if !(is_gather || is_light(c, point)) || points.len() > MOST_POINTS {
            return None;
        }
        for source in &c.sources[point.index()] {
            if !nodes.contains(&source.node) {
                sources.insert(*source);
            } else if points.insert(source.node) {
                todo.push(source.node);
            }
        }
    }
    let readers: Vec<usize> = readers(c, id, node).into_iter().collect();
    let evaluated: u64 = c.users[node.index()].iter().map(|user| evaluations(c, *user)).sum();
    let able = !readers.is_empty()
        && evaluated * points.len() as u64 <= MOST_EVALUATIONS
        && readers
            .iter()
            .all(|reader| c.get(*reader).kind == FusionKind::Matvec && !feeds_anchors(c, *reader, node));
    able.then_some(Candidate { node, points, sources, readers })
}

/// The other clusters that read a result of cluster `id`.
fn readers(c: &Clusters<'_>, id: usize, node: NodeId) -> BTreeSet<usize> {
    let users = c.users[node.index()].iter().flat_map(|user| &c.member[user.index()]).copied();
    users.filter(|reader| *reader != id && !c.get(*reader).nodes.contains(&node)).collect()
}

/// A result that leaves a kernel, and how its readers would compute it.
struct Candidate {
    node: NodeId,
    /// What is computed again, the result included.
    points: BTreeSet<NodeId>,
    /// What that reads.
    sources: BTreeSet<Value>,
    readers: Vec<usize>,
}

fn of_cluster(c: &mut Clusters<'_>, id: usize) -> Result<(), GraphError> {
    let nodes = c.get(id).nodes.clone();
    let escapes: BTreeSet<NodeId> = c.outputs(id).into_iter().collect();
    let candidates: Vec<Candidate> = escapes
        .iter()
        .filter_map(|node| candidate(c, id, &nodes, *node).transpose())
        .collect::<Result<_, _>>()?;
    if candidates.is_empty() || !saves_bytes(c, &nodes, &escapes, &candidates) {
        return Ok(());
    }
    hand_over(c, id, (&nodes, &escapes), (&candidates, "which moves fewer bytes"))
}

/// Lets the readers of results of cluster `id`, which has `nodes` and writes `escapes`, compute them again, if all of them
/// can.
fn hand_over(
    c: &mut Clusters<'_>,
    id: usize,
    (nodes, escapes): (&BTreeSet<NodeId>, &BTreeSet<NodeId>),
    (candidates, why): (&[Candidate], &str),
) -> Result<(), GraphError> {
    let gone: BTreeSet<NodeId> = candidates.iter().map(|candidate| candidate.node).collect();
    let newly = candidates.iter().flat_map(|candidate| &candidate.sources).map(|v| v.node);
    let newly: Vec<NodeId> = newly.filter(|node| nodes.contains(node) && !escapes.contains(node)).collect();
    // Every kernel that computes a node returns it once it is read elsewhere, and another one may not be able to.
    if newly.iter().any(|node| c.member[node.index()].len() > 1) {
        return Ok(());
    }
    let left: BTreeSet<NodeId> = escapes.iter().copied().chain(newly).filter(|n| !gone.contains(n)).collect();
    let left: Vec<NodeId> = left.into_iter().collect();
    let mut needed = upstream(c, nodes, &left);
    needed.extend(&left);
    let kind = c.kind_of(&needed);
    if left.is_empty() || c.legal_with(kind, &needed, &left)?.is_err() {
        return Ok(());
    }
    // By reader: all that it computes again.
    let mut additions: BTreeMap<usize, BTreeSet<NodeId>> = BTreeMap::new();
    for candidate in candidates {
        for reader in &candidate.readers {
            additions.entry(*reader).or_default().extend(&candidate.points);
        }
    }
    let mut unions = vec![];
    for (reader, mut points) in additions {
        // A copied point reads further results, which would be copied too, and so on through the whole graph.
        points.extend(c.copies.get(&reader).into_iter().flatten());
        if points.len() > 2 * MOST_POINTS {
            return Ok(());
        }
        let of_reader = c.get(reader);
        let union: BTreeSet<NodeId> = of_reader.nodes.union(&points).copied().collect();
        let outputs = c.outputs(reader);
        let kind = of_reader.kind;
        if c.legal_with(kind, &union, &outputs)?.is_err() {
            return Ok(());
        }
        unions.push((reader, kind, union, points));
    }
    let names: Vec<String> = gone.iter().map(|node| format!("'{}'", c.graph.node_text(*node))).collect();
    let line = format!("readers of {} compute them again, {why}", names.join(", "));
    c.log.push(line);
    if needed.len() < nodes.len() {
        let copies = c.copies.remove(&id);
        let made = c.replace(id, kind, needed);
        c.copies.extend(copies.map(|copies| (made, copies)));
    }
    for (reader, kind, union, points) in unions {
        c.copies.remove(&reader);
        let made = c.replace(reader, kind, union);
        c.copies.insert(made, points);
    }
    Ok(())
}

/// Whether a result of cluster `id` is one that all its readers can compute again.
fn candidate(
    c: &Clusters<'_>,
    id: usize,
    nodes: &BTreeSet<NodeId>,
    node: NodeId,
) -> Result<Option<Candidate>, GraphError> {
    if c.is_output[node.index()] || !is_light(c, node) {
        return Ok(None);
    }
    let bytes = c.bytes(node);
    let (mut points, mut sources) = (BTreeSet::from([node]), BTreeSet::new());
    let mut todo = vec![node];
    while let Some(point) = todo.pop() {
        if points.len() > MOST_POINTS {
            return Ok(None);
        }
        for source in &c.sources[point.index()] {
            let is_small = c.bytes(source.node) * SMALL_PART <= bytes;
            if !nodes.contains(&source.node)
                || is_small
                || matches!(c.class[source.node.index()], Class::Anchor(_))
            {
                sources.insert(*source);
            } else if !is_light(c, source.node) {
                return Ok(None);
            } else if points.insert(source.node) {
                todo.push(source.node);
            }
        }
    }
    let readers = readers(c, id, node);
    // What a user repeats for many elements, as rotary angles for all heads, would be computed for each of them.
    let elements = c.graph.node(node).types[0].shape.max_numel();
    let repeats = c.users[node.index()].iter().any(|user| evaluations(c, *user) > elements);
    let able = !readers.is_empty()
        && !repeats
        && points.len() <= MOST_POINTS
        && readers.iter().all(|reader| reads_each_once(c, *reader, node));
    Ok(able.then(|| Candidate { node, points, sources, readers: readers.into_iter().collect() }))
}

/// How many elements a node asks of an operand.
fn evaluations(c: &Clusters<'_>, node: NodeId) -> u64 {
    let node = c.graph.node(node);
    match (&node.op, node.operands.first()) {
        (Op::Reduce { .. }, Some(operand)) => c.graph.ty(*operand).shape.max_numel(),
        _ => node.types.iter().map(|ty| ty.shape.max_numel()).max().unwrap_or(0),
    }
}

/// A point that reads one element of each operand, and no version of a state that is overwritten.
fn is_light(c: &Clusters<'_>, node: NodeId) -> bool {
    let op = &c.graph.node(node).op;
    matches!(op, Op::Elementwise(_) | Op::Cast(_))
        && c.class[node.index()] == Class::Point
        && !c.is_overwritten_later(node)
}

/// Whether a reader evaluates the result once for each of its own elements: operands of products and of attention are read
/// again for each tile.
fn reads_each_once(c: &Clusters<'_>, reader: usize, node: NodeId) -> bool {
    let cluster = c.get(reader);
    match cluster.kind {
        FusionKind::Map | FusionKind::Row => true,
        FusionKind::Matmul => !feeds_anchors(c, reader, node),
        FusionKind::Matvec
        | FusionKind::Quantize
        | FusionKind::Attention
        | FusionKind::Scan
        | FusionKind::Sort
        | FusionKind::Scatter
        | FusionKind::IndexAdd
        | FusionKind::AttentionGrad
        | FusionKind::Custom => false,
    }
}

/// Whether an operand of a reduction or product of `reader` is computed from a result of another cluster.
fn feeds_anchors(c: &Clusters<'_>, reader: usize, node: NodeId) -> bool {
    let cluster = c.get(reader);
    let alone = Cluster { kind: FusionKind::Map, nodes: BTreeSet::from([node]) };
    // A quantization reads each element once.
    let is_anchor = |n: &&NodeId| {
        matches!(c.class[n.index()], Class::Anchor(_)) && !matches!(c.graph.node(**n).op, Op::Quantize(_))
    };
    let mut anchors = cluster.nodes.iter().filter(is_anchor);
    anchors.any(|anchor| reads(c, &alone, &cluster.nodes, &c.graph.node(*anchor).operands))
}

/// Whether fewer bytes are written and read if the candidates are computed again.
fn saves_bytes(
    c: &Clusters<'_>,
    nodes: &BTreeSet<NodeId>,
    escapes: &BTreeSet<NodeId>,
    candidates: &[Candidate],
) -> bool {
    let size = |v: &Value| c.graph.ty(*v).max_bytes();
    let newly: BTreeSet<NodeId> = candidates
        .iter()
        .flat_map(|candidate| &candidate.sources)
        .map(|v| v.node)
        .filter(|node| nodes.contains(node) && !escapes.contains(node))
        .collect();
    let (mut saved, mut spent) = (0u64, newly.iter().map(|node| c.bytes(*node)).sum::<u64>());
    let readers: BTreeSet<usize> =
        candidates.iter().flat_map(|candidate| candidate.readers.clone()).collect();
    saved += candidates.iter().map(|candidate| c.bytes(candidate.node)).sum::<u64>();
    for reader in readers {
        let read = external(c, reader);
        let of_reader = || candidates.iter().filter(|candidate| candidate.readers.contains(&reader));
        saved += of_reader().map(|candidate| c.bytes(candidate.node)).sum::<u64>();
        let more: BTreeSet<Value> = of_reader().flat_map(|candidate| candidate.sources.clone()).collect();
        spent += more.iter().filter(|v| !read.contains(v)).map(size).sum::<u64>();
    }
    spent < saved
}
