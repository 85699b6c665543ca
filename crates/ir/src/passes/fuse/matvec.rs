//! Phases 6 to 8, and 10: what the kernel of a matvec takes in: reductions of its results, their quantization, that of its
//! activations, and the row kernel before it.

use std::collections::BTreeSet;

use super::absorb::{external, into_consumers, maps, unite};
use super::cluster::{Class, Clusters};
use crate::cost::workgroups_to_fill;
use crate::form::{self, Form, Segment};
use crate::fusion::FusionKind;
use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::op::Op;

/// Elements that every workgroup of a matvec may read again to reduce rows: 64 KiB of f32, which stay in cache. More cost more
/// than the level that they save (about 4 us). All rows count: where each layer adds a norm of what it computes, the sum of
/// all layers before would be computed in each product otherwise.
const MATVEC_PROLOGUE_ROW: u64 = 16384;

/// Bytes of weights that a workgroup may read beyond its even share in order to reduce its results: about what one
/// workgroup reads in the time of the saved level, at an estimate of 100 GB/s for 4 us.
const MORE_BYTES: u64 = 384 << 10;

/// As [`MORE_BYTES`], in order to quantize its results. This saves a consumer about 1.5 us and costs the matvec 0.3 us, in
/// which a workgroup of an H100 reads 30 KB at its share of the bandwidth. (H100, Q4_K, a step of qwen3-30b-a3b, us, with
/// limits of 64, 44 and 29 KiB: 2501, 2357, 2224, as the projections of the experts quantize their results or do not. 8B
/// shape: 1990, 1991, 1987.)
const MORE_BYTES_TO_QUANTIZE: u64 = 29 << 10;

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
    let is_output = c.get(id).nodes.iter().any(|n| c.is_output[n.index()]);
    !is_output && readers.len() == 1 && readers.iter().all(|k| c.get(*k).kind == FusionKind::Matvec)
}

/// Why wider tiles of matvec `id`, needed to reduce its results in `row`, cost more than a separate kernel: one
/// workgroup would read too many weights beyond its even share.
fn too_wide(c: &Clusters<'_>, id: usize, row: usize) -> Result<Option<String>, GraphError> {
    beyond_share(c, [id, row], MORE_BYTES, |_, s| s.column_groups.as_ref().map(|_| s.tile.into()))
}

/// As [`too_wide`], for tiles of whole blocks that kernel `quantize` quantizes: a workgroup's share of the columns,
/// rounded up to tiles.
fn too_expensive_to_quantize(
    c: &Clusters<'_>,
    id: usize,
    quantize: usize,
) -> Result<Option<String>, GraphError> {
    beyond_share(c, [id, quantize], MORE_BYTES_TO_QUANTIZE, |body, s| {
        let quantizes = s.outputs.iter().any(|output| form::quantized_root(body, *output).is_some());
        let share = (s.n.max_value().max(0) as u64).div_ceil(workgroups_to_fill(c.caps).into());
        quantizes.then(|| share.next_multiple_of(s.tile.into()))
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

/// Bytes that a value is read from, by param: at most the part of each that has as many elements, as of matrices that indices
/// choose.
fn param_bytes(body: &Graph, value: Value) -> Vec<u64> {
    let (mut todo, mut seen, mut found) = (vec![value], BTreeSet::new(), vec![]);
    let wanted = body.ty(value).shape.max_numel();
    while let Some(v) = todo.pop() {
        if !seen.insert(v) {
            continue;
        }
        let ty = body.ty(v);
        if matches!(body.op(v), Op::Param { .. }) {
            let (bytes, all) = (u128::from(ty.max_bytes()), u128::from(ty.shape.max_numel().max(1)));
            let read = bytes * u128::from(wanted).min(all) / all;
            found.push(u64::try_from(read).unwrap_or(u64::MAX));
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
        for source in quantized_sources(c, id) {
            producers.extend(c.member[source.node.index()].iter().copied());
        }
        let Some(only) = producers.first().copied().filter(|_| producers.len() == 1) else { continue };
        if c.get(only).kind != FusionKind::Matvec {
            continue;
        }
        // If only matvecs read these activations, the next phase can quantize them there instead.
        if feeds_matvecs_only(c, id)
            && let Some(why) = too_expensive_to_quantize(c, only, id)?
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
fn quantized_sources(c: &Clusters<'_>, id: usize) -> BTreeSet<Value> {
    let nodes = &c.get(id).nodes;
    let is_quantize = |n: &NodeId| matches!(c.graph.node(*n).op, Op::Quantize(_));
    let (mut todo, mut found): (Vec<NodeId>, _) =
        (nodes.iter().copied().filter(is_quantize).collect(), BTreeSet::new());
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
pub(super) fn quantize_into_matvecs(c: &mut Clusters<'_>) -> Result<(), GraphError> {
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

/// Elements of what the reductions in front of a product read from buffers, if a kernel with `row` and that product's `nodes`
/// computes them all.
fn reduced_elements(c: &Clusters<'_>, row: &BTreeSet<NodeId>, nodes: &BTreeSet<NodeId>) -> u64 {
    let is_inside = |n: NodeId| row.contains(&n) || nodes.contains(&n);
    let is_reduction = |n: &NodeId| matches!(c.class[n.index()], Class::Anchor(FusionKind::Row));
    let mut todo: Vec<NodeId> = row.union(nodes).copied().filter(is_reduction).collect();
    let elements = |v: &Value| c.graph.ty(*v).shape.max_numel();
    let longest = todo.iter().flat_map(|n| &c.graph.node(*n).operands).map(elements).max().unwrap_or(0);
    let mut found: BTreeSet<Value> = BTreeSet::new();
    while let Some(node) = todo.pop() {
        for v in &c.sources[node.index()] {
            // What is behind a product is reduced in its epilogue, where nothing is read again.
            let is_product = is_inside(v.node) && matches!(c.graph.node(v.node).op, Op::Matmul);
            if !is_product && found.insert(*v) && is_inside(v.node) {
                todo.push(v.node);
            }
        }
    }
    // Of a table whose rows indices choose, no more is read than is reduced.
    let outside = found.iter().filter(|v| !is_inside(v.node));
    outside.map(|v| elements(v).min(longest)).fold(0, u64::saturating_add)
}

/// Phase 10: a row kernel that feeds only matvecs becomes the prologue of each.
pub(super) fn rows_into_matvec(c: &mut Clusters<'_>) -> Result<(), GraphError> {
    for id in c.live() {
        if c.clusters[id].is_none() || c.get(id).kind != FusionKind::Row || !feeds_matvecs_only(c, id) {
            continue;
        }
        let row = c.get(id);
        if row.nodes.iter().any(|n| c.is_output[n.index()]) {
            continue;
        }
        let consumers: Vec<usize> = c.consumers(id).into_iter().collect();
        let longest = row.nodes.iter().filter(|n| matches!(c.class[n.index()], Class::Anchor(_)));
        let longest =
            longest.flat_map(|n| &c.graph.node(*n).operands).map(|v| c.graph.ty(*v).shape.max_numel()).max();
        let most = consumers.iter().map(|k| reduced_elements(c, &row.nodes, &c.get(*k).nodes)).max();
        if longest.max(most).is_some_and(|n| n > MATVEC_PROLOGUE_ROW) {
            let names: Vec<String> = consumers.iter().map(|k| c.name(*k)).collect();
            let names = names.join(" and ");
            let line = format!("{} is not repeated in each workgroup of {names}: rows too long", c.name(id));
            c.log.push(line);
            continue;
        }
        match consumers[..] {
            [only] => {
                unite(c, only, id)?;
            }
            _ => into_consumers(c, id, &consumers)?,
        }
    }
    Ok(())
}
