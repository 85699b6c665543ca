//! Phase 3: kernels without anchors become prologues.

use std::collections::BTreeSet;

use super::cluster::{Class, Cluster, Clusters, sources};
use crate::access;
use crate::cost;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::form::are_few;
use crate::fusion::FusionKind;
use crate::graph::{GraphError, NodeId, Value};
use crate::matrix::{self, MatrixOperand};
use crate::op::Op;

/// The most points per element that a matmul prologue may recompute for each tile.
const MATMUL_PROLOGUE_POINTS: usize = 4;

/// Elements along K that kernels load as one vector.
const VECTOR: i64 = 8;

/// The most points that may be computed in several consumers instead of once.
const DUPLICATED_POINTS: usize = 4;

/// The most points of a query or a bias that attention may recompute for each head and query: fewer than the
/// multiplications of one score, as heads are at least this wide.
const ATTENTION_PROLOGUE_POINTS: usize = 16;

/// Phase 3: kernels without anchors move into all their consumers.
pub(super) fn maps(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    let mut order: Vec<usize> =
        c.live().into_iter().filter(|id| c.get(*id).kind == FusionKind::Map).collect();
    // Consumers first, so that chains fold up from the end.
    order.sort_by_key(|id| std::cmp::Reverse(c.get(*id).nodes.last().copied()));
    for id in order {
        if c.clusters[id].is_some() {
            absorb(c, id)?;
        }
    }
    Ok(())
}

/// Moves a kernel without anchors into all its consumers, if that costs less than its results in memory.
pub(super) fn absorb(c: &mut Clusters<'_>, id: usize) -> Result<(), GraphError> {
    let map = c.get(id).clone();
    let consumers: Vec<usize> = c.consumers(id).into_iter().collect();
    let is_update = |n: &NodeId| matches!(c.graph.node(*n).op, Op::StateUpdate { .. });
    let stays = consumers.is_empty() || map.nodes.iter().any(|n| c.is_output[n.index()] || is_update(n));
    if stays {
        return Ok(());
    }
    if let Some(why) = too_expensive(c, &map, &consumers) {
        let line = format!("{} is not repeated in {} consumers: {why}", c.name(id), consumers.len());
        c.log.push(line);
        return Ok(());
    }
    into_consumers(c, id, &consumers)
}

/// Moves cluster `id` into all of `consumers`, which are its only readers, or into none if one of them cannot take it.
pub(super) fn into_consumers(c: &mut Clusters<'_>, id: usize, consumers: &[usize]) -> Result<(), GraphError> {
    let moved = c.get(id).nodes.clone();
    let mut unions = vec![];
    for consumer in consumers {
        let Cluster { kind, nodes, .. } = c.get(*consumer).clone();
        // Escapes are computed as if the cluster were gone: what only consumers read does not escape.
        let outputs: Vec<NodeId> = c.escapes(&nodes);
        let union: BTreeSet<NodeId> = nodes.union(&moved).copied().collect();
        if let Err(why) = c.legal_with(kind, &union, &outputs)? {
            let line = format!("{} is no prologue of {}: {why}", c.name(id), c.name(*consumer));
            c.log.push(line);
            return Ok(());
        }
        unions.push((kind, union));
    }
    // A copy that reads an old state version must still precede its update. If two consumers overwrite what the cluster
    // reads, the copy in each would have to precede the other.
    let overwriters = c.overwriters(id);
    if consumers.iter().filter(|k| overwriters.contains(k)).count() > 1 {
        return Ok(());
    }
    if consumers.iter().any(|k| overwriters.iter().any(|u| u != k && c.reaches(*u, *k))) {
        return Ok(());
    }
    c.remove(id);
    for (consumer, (kind, union)) in consumers.iter().zip(unions) {
        let copies = c.copies.remove(consumer);
        let made = c.replace(*consumer, kind, union);
        if let Some(mut copies) = copies {
            copies.retain(|node| !moved.contains(node));
            c.copies.insert(made, copies);
        }
    }
    // Copies that read an old version may now be ordered after the update, so sort again.
    if !overwriters.is_empty() {
        c.put_in_order();
    }
    Ok(())
}

/// Why computing `map` in each consumer would cost more than writing it once.
fn too_expensive(c: &Clusters<'_>, map: &Cluster, consumers: &[usize]) -> Option<String> {
    let points = map.nodes.len();
    if let Some(why) = consumers.iter().find_map(|k| too_expensive_for_attention(c, map, *k)) {
        return Some(why);
    }
    let is_target = |k: &usize| {
        let target = |n: &NodeId| match &c.graph.node(*n).op {
            Op::Scatter(_) => map.nodes.contains(&c.graph.node(*n).operands[0].node),
            _ => false,
        };
        c.get(*k).nodes.iter().any(target)
    };
    if consumers.iter().any(is_target) {
        return Some("a scatter fills it in place".into());
    }
    if consumers.iter().any(|k| c.get(*k).kind == FusionKind::Custom) {
        return Some("a custom kernel reads whole buffers".into());
    }
    let merges =
        |k: &usize| c.get(*k).nodes.iter().any(|n| matches!(c.graph.node(*n).op, Op::MergeRuns { .. }));
    if consumers.iter().any(merges) {
        return Some("each merge reads every element again".into());
    }
    if let Some(why) = consumers.iter().find_map(|k| too_expensive_for_indices(c, map, *k)) {
        return Some(why);
    }
    let of_matmul = consumers.iter().any(|k| c.get(*k).kind == FusionKind::Matmul);
    if of_matmul && map.nodes.iter().any(|n| access::is_copy(c.graph, c.graph.node(*n))) {
        return Some("it is a copy in another order".into());
    }
    if of_matmul && points > MATMUL_PROLOGUE_POINTS {
        return Some(format!("{points} points for each tile"));
    }
    if let Some(why) = too_expensive_for_matmuls(c, map, consumers) {
        return Some(why);
    }
    if consumers.len() == 1 {
        return None;
    }
    if points > DUPLICATED_POINTS {
        return Some(format!("{points} points"));
    }
    if let Some(node) = map.nodes.iter().find(|n| is_slow(&c.graph.node(**n).op)) {
        return Some(format!("'{}' is slow", c.graph.node_text(*node)));
    }
    let reads: BTreeSet<Value> = map.nodes.iter().flat_map(|n| c.sources[n.index()].clone()).collect();
    let read: u64 =
        reads.iter().filter(|v| !map.nodes.contains(&v.node)).map(|v| c.graph.ty(*v).max_bytes()).sum();
    let written: u64 = c.escapes(&map.nodes).iter().map(|n| c.bytes(*n)).sum();
    let n = consumers.len() as u64;
    (n * read > (n + 1) * written + read).then(|| format!("it reads {read} bytes to make {written}"))
}

/// Whether nodes of a kernel compute `operands` from results of `map`.
pub(super) fn reads(c: &Clusters<'_>, map: &Cluster, nodes: &BTreeSet<NodeId>, operands: &[Value]) -> bool {
    let mut todo = sources(c.graph, &c.class, operands.iter().copied());
    let mut seen = BTreeSet::new();
    while let Some(v) = todo.pop() {
        if map.nodes.contains(&v.node) {
            return true;
        }
        if nodes.contains(&v.node) && seen.insert(v.node) {
            todo.extend(c.sources[v.node.index()].iter().copied());
        }
    }
    false
}

/// Whether views with windows lie between a matmul's operand and what computes it. Such an operand has no wide loads
/// that a prologue could prevent.
fn has_window(c: &Clusters<'_>, operand: Value) -> bool {
    let mut todo = vec![operand];
    while let Some(v) = todo.pop() {
        if c.class[v.node.index()] == Class::Inline {
            if matches!(c.graph.op(v), Op::Window { .. }) {
                return true;
            }
            todo.extend(&c.graph.node(v.node).operands);
        }
    }
    false
}

/// Whether `map` does nothing but round an operand of a matmul, perhaps of matrices that indices choose: loads of vectors
/// along K pass through such gathers.
fn only_rounds(c: &Clusters<'_>, map: &Cluster, operand: Value) -> bool {
    let mut others = map.nodes.iter().map(|n| &c.graph.node(*n).op).filter(|op| !matches!(op, Op::Cast(_)));
    let gathers = map.nodes.len() > 1;
    !gathers
        || others.all(|op| matches!(op, Op::Gather { .. }))
            && MatrixOperand::ALL.into_iter().any(|of| {
                let source = matrix::rounded(c.graph, operand, of);
                source.is_some_and(|source| access::vectors_along_k(c.graph, source, VECTOR).is_some())
            })
}

/// Whether a kernel reads weights that are stored in blocks of several elements.
fn unpacks_blocks(c: &Clusters<'_>, map: &Cluster) -> bool {
    let sources = map.nodes.iter().flat_map(|n| &c.sources[n.index()]);
    sources.into_iter().any(|v| matches!(c.graph.ty(*v).dtype, DType::Block(format) if !format.is_plain()))
}

/// Why matmuls would lose more time by computing `map` for each of their tiles than it takes to write and read its
/// results, see [`cost::prologue_us`].
pub(super) fn too_expensive_for_matmuls(
    c: &Clusters<'_>,
    map: &Cluster,
    consumers: &[usize],
) -> Option<String> {
    let (mut evaluations, mut roundings, mut waits) = (0u64, 0u64, 0.0_f64);
    let branches = map.nodes.iter().any(|n| matches!(c.graph.node(*n).op, Op::Concat { .. }));
    for consumer in consumers.iter().map(|k| c.get(*k)).filter(|k| k.kind == FusionKind::Matmul) {
        let matmuls = consumer.nodes.iter().map(|n| c.graph.node(*n)).filter(|n| n.op == Op::Matmul);
        for matmul in matmuls {
            let dims = matmul.types[0].shape.dims();
            let [.., rows, columns] = dims else { continue };
            let k = c.graph.ty(matmul.operands[0]).shape.dims().last().map_or(1, Dim::max_value);
            let results = matmul.types[0].shape.max_numel();
            for (operand, across) in [(matmul.operands[0], columns), (matmul.operands[1], rows)] {
                // A K tile of f16 or bf16 reads what is only rounded to its type as it is, in wide loads. (What unpacks
                // blocks there has been decided before, see `matrix::round_operands`.)
                let is_rounded = |of: MatrixOperand| {
                    matrix::has_instructions(c.caps, of)
                        && matmul.operands.iter().all(|v| matrix::is_exact(c.graph, *v, of))
                        && matrix::rounded(c.graph, operand, of).is_some()
                };
                let rounded = only_rounds(c, map, operand) && MatrixOperand::ALL.into_iter().any(is_rounded);
                if !reads(c, map, &consumer.nodes, &[operand]) || has_window(c, operand) {
                    continue;
                }
                let tiles = cost::matmul_tiles(across.max_value());
                // Of all batches, also where the operand is repeated for them.
                let elements = results / across.max_value().max(1).unsigned_abs() * k.unsigned_abs();
                let here = elements.saturating_mul(tiles);
                if rounded {
                    let blocks = unpacks_blocks(c, map);
                    roundings = roundings.saturating_add(if blocks { 0 } else { here });
                    continue;
                }
                evaluations = evaluations.saturating_add(here);
                if !are_few(rows) {
                    let branching = if branches { cost::branching_prologue_us(k) } else { 0.0 };
                    waits += branching + cost::waiting_prologue_us(k, map.nodes.len());
                }
            }
        }
    }
    if evaluations == 0 && roundings == 0 {
        return None;
    }
    let inputs: BTreeSet<Value> = map.nodes.iter().flat_map(|n| c.sources[n.index()].clone()).collect();
    let inputs = inputs.iter().filter(|v| !map.nodes.contains(&v.node)).map(|v| c.graph.ty(*v));
    let results = c.escapes(&map.nodes);
    let elements = results.iter().map(|n| c.graph.ty((*n).into()).shape.max_numel()).min().unwrap_or(0);
    // Smaller operands, such as a bias or indices of rows, are read again and again from caches.
    let whole = inputs.clone().filter(|ty| ty.shape.max_numel() >= elements);
    let width = whole.filter_map(|ty| ty.dtype.size()).sum::<usize>().max(1) as u64;
    let written: u64 = results.iter().map(|n| c.bytes(*n)).sum();
    let read: u64 = inputs.map(|ty| ty.max_bytes().min(written.saturating_mul(4))).sum();
    let computing = cost::prologue_us(c.caps, evaluations, width).max(waits);
    let inside = computing + cost::rounding_us(c.caps, roundings);
    let apart = cost::map_us(c.caps, read + written);
    (inside > apart).then(|| format!("{inside:.1} us in tiles, {apart:.1} us in a kernel of its own"))
}

/// Why attention would recompute elements of `map` too often, or lose cooperative matrices. Each workgroup reads a query and
/// a bias once, but a key and a value once per query. Elements that broadcast over heads or queries are recomputed for each.
fn too_expensive_for_attention(c: &Clusters<'_>, map: &Cluster, consumer: usize) -> Option<String> {
    let nodes = &c.get(consumer).nodes;
    let is_anchor = |op: &Op| matches!(op, Op::Attention(_) | Op::AttentionGrad(..));
    let node = nodes.iter().map(|n| c.graph.node(*n)).find(|n| is_anchor(&n.op))?;
    let reads = |operands: &[Value]| reads(c, map, nodes, operands);
    let Op::Attention(attrs) = node.op else {
        // Rows of queries walk over all keys and values, rows of keys over all queries and gradients of results.
        return reads(&node.operands[..4])
            .then(|| "a gradient of attention reads each row many times".into());
    };
    if reads(&node.operands[1..3]) {
        return Some("attention reads each key and value many times".into());
    }
    let several = c.graph.ty(node.operands[0]).shape.dims()[1].max_value() > 1;
    if several && reads(&node.operands[..1]) && matrix::multiplies_attention(c.graph, c.caps, node) {
        return Some("cooperative matrices load queries from memory".into());
    }
    let elements = |v: Value| c.graph.ty(v).shape.max_numel();
    let [bias, _] = attrs.bias_and_sinks(&node.operands);
    let wanted = if bias.is_some_and(|bias| reads(&[*bias])) {
        let (q, k) = (c.graph.ty(node.operands[0]), c.graph.ty(node.operands[1]));
        crate::Shape::new([&q.shape.dims()[..2], &k.shape.dims()[1..2]].concat()).max_numel()
    } else if reads(&node.operands[..1]) {
        elements(node.operands[0])
    } else {
        node.types[0].shape.max_numel()
    };
    let repeated = c.escapes(&map.nodes).iter().any(|n| elements((*n).into()) < wanted);
    if !repeated {
        return None;
    }
    if map.nodes.len() > ATTENTION_PROLOGUE_POINTS {
        return Some(format!("{} points for each head or query", map.nodes.len()));
    }
    let slow = map.nodes.iter().find(|n| is_slow(&c.graph.node(**n).op))?;
    Some(format!("'{}' is slow", c.graph.node_text(*slow)))
}

/// Why the workgroups of an indexed addition would recompute `map` too often: each of them reads every index. An element of
/// the target or the source is read once.
fn too_expensive_for_indices(c: &Clusters<'_>, map: &Cluster, consumer: usize) -> Option<String> {
    let nodes = &c.get(consumer).nodes;
    let node = nodes.iter().map(|n| c.graph.node(*n)).find(|n| n.op == Op::IndexAdd)?;
    if !reads(c, map, nodes, &node.operands[1..2]) {
        return None;
    }
    if map.nodes.len() > DUPLICATED_POINTS {
        return Some(format!("{} points for each index and tile", map.nodes.len()));
    }
    let slow = map.nodes.iter().find(|n| is_slow(&c.graph.node(**n).op))?;
    Some(format!("'{}' is slow", c.graph.node_text(*slow)))
}

fn is_slow(op: &Op) -> bool {
    match op {
        Op::Elementwise(e) => e.is_slow(),
        Op::Gather { .. } => true,
        _ => false,
    }
}

/// Values that a cluster reads from buffers.
pub(super) fn external(c: &Clusters<'_>, id: usize) -> BTreeSet<Value> {
    let nodes = &c.get(id).nodes;
    let all = nodes.iter().flat_map(|n| c.sources[n.index()].iter().copied());
    all.filter(|v| !nodes.contains(&v.node)).collect()
}

/// Merges two clusters if that is legal, and logs why not.
pub(super) fn unite(c: &mut Clusters<'_>, a: usize, b: usize) -> Result<Option<usize>, GraphError> {
    let kind = c.get(a).kind.max(c.get(b).kind);
    let nodes: BTreeSet<NodeId> = c.get(a).nodes.union(&c.get(b).nodes).copied().collect();
    let why = match c.legal(kind, &nodes)? {
        Err(why) => why.to_string(),
        Ok(()) => match c.unite(a, b, kind, nodes) {
            Some(united) => return Ok(Some(united)),
            None => "one waits for the other".into(),
        },
    };
    let line = format!("{} and {} stay apart: {why}", c.name(a), c.name(b));
    c.log.push(line);
    Ok(None)
}
