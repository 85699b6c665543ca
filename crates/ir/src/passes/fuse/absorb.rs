//! Phases 3, 4 and 6 to 9: prologues, epilogues and shared reads.

use std::collections::{BTreeSet, HashMap};

use super::cluster::{Class, Cluster, Clusters, sources};
use crate::cost::workgroups_to_fill;
use crate::elementwise::ElementwiseOp as E;
use crate::form::{self, Form, Segment};
use crate::fusion::FusionKind;
use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::op::Op;

/// The most points per element that a matmul prologue may recompute for each tile.
const MATMUL_PROLOGUE_POINTS: usize = 4;

/// The most points that may be computed in several consumers instead of once.
const DUPLICATED_POINTS: usize = 4;

/// The most points of a query or a bias that attention may recompute for each head and query: fewer than the
/// multiplications of one score, as heads are at least this wide.
const ATTENTION_PROLOGUE_POINTS: usize = 16;

/// Longest row (elements) that every workgroup of a matvec may reduce again: 64 KiB of f32, which stay in cache. For
/// longer rows this costs more than the level that it saves (about 4 us).
const MATVEC_PROLOGUE_ROW: u64 = 16384;

/// Bytes of weights that a workgroup may read beyond its even share in order to reduce its results: about what one
/// workgroup reads in the time of the saved level, at an estimate of 100 GB/s for 4 us.
const MORE_BYTES: u64 = 384 << 10;

/// As [`MORE_BYTES`], in order to quantize its results. This saves each consumer about 1.5 us and costs the matvec 0.3
/// us.
const MORE_BYTES_TO_ROUND: u64 = 64 << 10;

/// Phase 3: kernels without anchors move into all their consumers.
pub(super) fn maps(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    let mut order: Vec<usize> =
        c.live().into_iter().filter(|id| c.get(*id).kind == FusionKind::Map).collect();
    // Consumers first, so that chains fold up from the end.
    order.sort_by_key(|id| std::cmp::Reverse(c.get(*id).nodes.last().copied()));
    for id in order {
        if c.clusters[id].is_none() {
            continue;
        }
        let map = c.get(id).clone();
        let consumers: Vec<usize> = c.consumers(id).into_iter().collect();
        let stays = consumers.is_empty()
            || map
                .nodes
                .iter()
                .any(|n| c.is_output[n.index()] || matches!(c.graph.node(*n).op, Op::StateUpdate { .. }));
        if stays {
            continue;
        }
        if let Some(why) = dear(c, &map, &consumers) {
            let line = format!("{} is not repeated in {} consumers: {why}", c.name(id), consumers.len());
            c.log.push(line);
            continue;
        }
        into_consumers(c, id, &consumers)?;
    }
    Ok(())
}

/// Moves cluster `id` into all of `consumers`, which are its only readers, or into none if one of them cannot take it.
fn into_consumers(c: &mut Clusters<'_>, id: usize, consumers: &[usize]) -> Result<(), GraphError> {
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
    // A copy that reads an old state version must still precede its update.
    let overwriters = c.overwriters(id);
    if consumers.iter().any(|k| overwriters.iter().any(|u| u != k && c.reaches(*u, *k))) {
        return Ok(());
    }
    c.remove(id);
    for (consumer, (kind, union)) in consumers.iter().zip(unions) {
        c.replace(*consumer, kind, union);
    }
    // Copies that read an old version may now be ordered after the update, so sort again.
    if !overwriters.is_empty() {
        c.put_in_order();
    }
    Ok(())
}

/// Why computing `map` in each consumer would cost more than writing it once.
fn dear(c: &Clusters<'_>, map: &Cluster, consumers: &[usize]) -> Option<String> {
    let points = map.nodes.len();
    if let Some(why) = consumers.iter().find_map(|k| dear_to_attention(c, map, *k)) {
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
    if consumers.iter().any(|k| c.get(*k).kind == FusionKind::Sort) {
        return Some("a sort reads each element many times".into());
    }
    if consumers.iter().any(|k| c.get(*k).kind == FusionKind::Matmul) && points > MATMUL_PROLOGUE_POINTS {
        return Some(format!("{points} points for each tile"));
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

/// Why attention would recompute elements of `map` too often. Each workgroup reads a query and a bias once, but a key
/// and a value once per query. Elements that broadcast over heads or queries are recomputed for each.
fn dear_to_attention(c: &Clusters<'_>, map: &Cluster, consumer: usize) -> Option<String> {
    let nodes = &c.get(consumer).nodes;
    let node = nodes.iter().map(|n| c.graph.node(*n)).find(|n| matches!(n.op, Op::Attention(_)))?;
    let reads = |operands: &[Value]| {
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
    };
    if reads(&node.operands[1..3]) {
        return Some("attention reads each key and value many times".into());
    }
    let elements = |v: Value| c.graph.ty(v).shape.max_numel();
    let wanted = if reads(&node.operands[3..]) {
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

fn is_slow(op: &Op) -> bool {
    match op {
        Op::Elementwise(e) => {
            matches!(
                e,
                E::Exp
                    | E::Exp2
                    | E::Expm1
                    | E::Log
                    | E::Log2
                    | E::Log10
                    | E::Log1p
                    | E::Sin
                    | E::Cos
                    | E::Tan
                    | E::Asin
                    | E::Acos
                    | E::Atan
                    | E::Sinh
                    | E::Cosh
                    | E::Tanh
                    | E::Erf
                    | E::Pow
                    | E::Sqrt
                    | E::Rsqrt
                    | E::Div
                    | E::Recip
                    | E::Philox
            )
        }
        Op::Gather { .. } => true,
        _ => false,
    }
}

/// Merges kernels over the same elements that read one buffer, so that it is read once.
///
/// Both must read the results of the same kernels (besides leaves). Then neither waits for more than before, and no
/// level is added.
pub(super) fn shared_reads(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    let mut order = c.live();
    order.sort_by_key(|id| c.get(*id).nodes.first().copied());
    let mut by_source: HashMap<Value, Vec<usize>> = HashMap::new();
    for mut id in order {
        if c.clusters[id].is_none() || !matches!(c.get(id).kind, FusionKind::Map | FusionKind::Row) {
            continue;
        }
        let sources = external(c, id);
        let others: BTreeSet<usize> =
            sources.iter().filter_map(|v| by_source.get(v)).flatten().copied().collect();
        for other in others {
            if c.clusters[other].is_none() || other == id {
                continue;
            }
            let results = |c: &Clusters<'_>, id: usize| -> BTreeSet<Value> {
                let computed = |v: &Value| c.class[v.node.index()] != Class::Leaf;
                external(c, id).into_iter().filter(computed).collect()
            };
            let (own, theirs) = (results(c, id), results(c, other));
            if own == theirs
                && let Some(united) = unite(c, other, id)?
            {
                id = united;
            }
        }
        for source in external(c, id) {
            by_source.entry(source).or_default().push(id);
        }
    }
    Ok(())
}

/// Values that a cluster reads from buffers.
fn external(c: &Clusters<'_>, id: usize) -> BTreeSet<Value> {
    let nodes = &c.get(id).nodes;
    let all = nodes.iter().flat_map(|n| c.sources[n.index()].iter().copied());
    all.filter(|v| !nodes.contains(&v.node)).collect()
}

/// Phase 6: a matvec computes reductions over groups of its columns, and what depends on them, in its epilogue.
pub(super) fn reductions_of_results(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    let mut united = false;
    for id in c.live() {
        if c.clusters[id].is_none() || c.get(id).kind != FusionKind::Row || feeds_one_matvec(c, id) {
            continue;
        }
        let sources = external(c, id);
        let producers = sources.iter().flat_map(|v| &c.member[v.node.index()]).copied();
        let producers: BTreeSet<usize> = producers.filter(|p| c.get(*p).kind == FusionKind::Matvec).collect();
        for producer in producers {
            if let Some(why) = too_wide(c, producer, id)? {
                let line = format!("{} and {} stay apart: {why}", c.name(producer), c.name(id));
                c.log.push(line);
            } else if unite(c, producer, id)?.is_some() {
                united = true;
                break;
            }
        }
    }
    // Kernels that several of them read, such as angle tables read by query and key norms, may have a single reader
    // now.
    if united { maps(c) } else { Ok(()) }
}

/// Whether a single matvec, perhaps after a quantization, is the only reader of a kernel. [`rows_into_matvec`] then
/// makes the kernel its prologue, and the preceding matvec need not reduce whole rows.
fn feeds_one_matvec(c: &Clusters<'_>, id: usize) -> bool {
    let mut readers = BTreeSet::new();
    for reader in c.consumers(id) {
        match c.get(reader).kind {
            FusionKind::Quantize => readers.extend(c.consumers(reader)),
            _ => _ = readers.insert(reader),
        }
    }
    let kept = c.get(id).nodes.iter().any(|n| c.is_output[n.index()]);
    !kept && readers.len() == 1 && readers.iter().all(|k| c.get(*k).kind == FusionKind::Matvec)
}

/// Why wider tiles of matvec `id`, needed to reduce its results in `row`, cost more than a separate kernel: one
/// workgroup would read too many weights beyond its even share.
fn too_wide(c: &Clusters<'_>, id: usize, row: usize) -> Result<Option<String>, GraphError> {
    beyond_share(c, [id, row], MORE_BYTES, |_, s| s.runs.as_ref().map(|_| s.tile.into()))
}

/// As [`too_wide`], for tiles of whole blocks that kernel `rounding` quantizes: a workgroup's share of the columns,
/// rounded up to tiles.
fn dear_to_round(c: &Clusters<'_>, id: usize, rounding: usize) -> Result<Option<String>, GraphError> {
    beyond_share(c, [id, rounding], MORE_BYTES_TO_ROUND, |body, s| {
        let rounds = s.outputs.iter().any(|output| form::rounded_root(body, *output).is_some());
        let share = (s.n.max_value().max(0) as u64).div_ceil(workgroups_to_fill(c.caps).into());
        rounds.then(|| share.next_multiple_of(s.tile.into()))
    })
}

/// Why merging two kernels into one matvec would make a workgroup read over `limit` bytes of weights beyond its even
/// share. `columns` gives the tile width of a segment.
fn beyond_share(
    c: &Clusters<'_>,
    [id, other]: [usize; 2],
    limit: u64,
    columns: impl Fn(&Graph, &Segment) -> Option<u64>,
) -> Result<Option<String>, GraphError> {
    let nodes: BTreeSet<NodeId> = c.get(id).nodes.union(&c.get(other).nodes).copied().collect();
    let (body, _) = c.body(&nodes, &c.escapes(&nodes))?;
    let Ok(Form::Contraction(form)) = form::form(FusionKind::Matvec, &body) else { return Ok(None) };
    let weights = |segment: &Segment| -> u64 {
        let right = segment.anchors.iter().flat_map(|id| param_bytes(&body, body.node(*id).operands[1]));
        right.sum()
    };
    let share = form.segments.iter().map(weights).sum::<u64>() / u64::from(workgroups_to_fill(c.caps));
    let tile = |s: &Segment| Some(weights(s) / (s.n.max_value().max(1) as u64) * columns(&body, s)?);
    let more = form.segments.iter().filter_map(tile).max().unwrap_or(0).saturating_sub(share);
    Ok((more > limit).then(|| format!("tiles of {} bytes of weights for a share of {share}", more + share)))
}

/// Bytes of the params that a value is read from.
fn param_bytes(body: &Graph, value: Value) -> Vec<u64> {
    let (mut todo, mut seen, mut found) = (vec![value], BTreeSet::new(), vec![]);
    while let Some(v) = todo.pop() {
        if !seen.insert(v) {
            continue;
        }
        if matches!(body.op(v), Op::Param { .. }) {
            found.push(body.ty(v).max_bytes());
        }
        todo.extend(&body.node(v.node).operands);
    }
    found
}

/// Phase 7: a matvec quantizes its results in its epilogue.
pub(super) fn results_to_blocks(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    for id in c.live() {
        if c.clusters[id].is_none() || c.get(id).kind != FusionKind::Quantize {
            continue;
        }
        let mut producers = BTreeSet::new();
        for source in rounded_from(c, id) {
            producers.extend(c.member[source.node.index()].iter().copied());
        }
        let Some(only) = producers.first().copied().filter(|_| producers.len() == 1) else { continue };
        if c.get(only).kind != FusionKind::Matvec {
            continue;
        }
        // If only matvecs read these activations, the next phase can quantize them there instead.
        if feeds_matvecs_only(c, id)
            && let Some(why) = dear_to_round(c, only, id)?
        {
            let line = format!("{} and {} stay apart: {why}", c.name(only), c.name(id));
            c.log.push(line);
            continue;
        }
        unite(c, only, id)?;
    }
    Ok(())
}

/// Values that a cluster reads from buffers and quantizes, without the indices of the rows to write.
fn rounded_from(c: &Clusters<'_>, id: usize) -> BTreeSet<Value> {
    let nodes = &c.get(id).nodes;
    let rounds = |n: &NodeId| matches!(c.graph.node(*n).op, Op::Quantize(_));
    let (mut todo, mut found): (Vec<NodeId>, _) =
        (nodes.iter().copied().filter(rounds).collect(), BTreeSet::new());
    while let Some(node) = todo.pop() {
        for v in &c.sources[node.index()] {
            if found.insert(*v) && nodes.contains(&v.node) {
                todo.push(v.node);
            }
        }
    }
    found.retain(|v| !nodes.contains(&v.node));
    found
}

fn feeds_matvecs_only(c: &Clusters<'_>, id: usize) -> bool {
    let consumers = c.consumers(id);
    !consumers.is_empty() && consumers.iter().all(|k| c.get(*k).kind == FusionKind::Matvec)
}

/// Phase 8: quantization of activations that only matvecs read is repeated in each of them.
pub(super) fn rounding_into_matvecs(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    for id in c.live() {
        if c.clusters[id].is_none() || c.get(id).kind != FusionKind::Quantize {
            continue;
        }
        let consumers: Vec<usize> = c.consumers(id).into_iter().collect();
        if !consumers.is_empty() && consumers.iter().all(|k| c.get(*k).kind == FusionKind::Matvec) {
            into_consumers(c, id, &consumers)?;
        }
    }
    Ok(())
}

/// Phase 9: a row kernel that feeds only a matvec becomes its prologue.
pub(super) fn rows_into_matvec(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    for id in c.live() {
        if c.clusters[id].is_none() || c.get(id).kind != FusionKind::Row {
            continue;
        }
        let row = c.get(id);
        if row.nodes.iter().any(|n| c.is_output[n.index()]) {
            continue;
        }
        let consumers = c.consumers(id);
        let Some(only) = consumers.first().copied().filter(|_| consumers.len() == 1) else { continue };
        if c.get(only).kind != FusionKind::Matvec {
            continue;
        }
        let longest = row.nodes.iter().filter(|n| matches!(c.class[n.index()], Class::Anchor(_)));
        let longest =
            longest.flat_map(|n| &c.graph.node(*n).operands).map(|v| c.graph.ty(*v).shape.max_numel()).max();
        if longest.is_some_and(|n| n > MATVEC_PROLOGUE_ROW) {
            let line = format!(
                "{} is not repeated in each workgroup of {}: rows too long",
                c.name(id),
                c.name(only)
            );
            c.log.push(line);
            continue;
        }
        unite(c, only, id)?;
    }
    Ok(())
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
