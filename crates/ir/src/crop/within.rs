//! Parts of a graph's results that cost little enough.

use super::{CropError, Cropped, Known, Region, Span, crop, shape_of, whole, written_part};
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::op::Op;

/// What there is to compare of the outputs, whole: of states, where a run writes at a known place, that place and its
/// neighbours.
///
/// # Errors
/// When an extent is not constant.
pub fn results_of(graph: &Graph) -> Result<Vec<Region>, CropError> {
    graph.outputs().iter().map(|output| result_of(graph, output.value)).collect()
}

fn result_of(graph: &Graph, v: Value) -> Result<Region, CropError> {
    let shape = shape_of(graph, v)?;
    let Op::StateUpdate { offsets, rows: None } = graph.op(v) else { return Ok(whole(&shape)) };
    // Blocks cannot be joined.
    let beside = if matches!(graph.ty(v).dtype, DType::Block(_)) { 0 } else { 1 };
    let written = written_part(graph, v, offsets)?;
    let with_neighbours = shape.iter().zip(written);
    Ok(with_neighbours
        .map(|(n, range)| Span::from(range.start.saturating_sub(beside)..(range.end + beside).min(*n)))
        .collect())
}

/// A graph that computes as much of the outputs of `graph` as `cost` lets it: at most 1. Of what it cuts off it leaves the
/// middle: results are compared at both ends, where kernels have their special cases.
///
/// # Errors
/// When nothing that can be computed alone costs so little; the message then says so.
pub fn crop_within(graph: &Graph, known: &Known, cost: &dyn Fn(&Graph) -> f64) -> Result<Cropped, CropError> {
    let bases = results_of(graph)?;
    let granules: Vec<usize> = graph.outputs().iter().map(|o| granule(graph, o.value)).collect();
    let mut lens: Vec<Vec<usize>> = bases.iter().map(|base| super::extents(base)).collect();
    let priced = |lens: &[Vec<usize>]| -> Result<(f64, Cropped), CropError> {
        let cropped = crop(graph, &parts(&bases, lens), known)?;
        Ok((cost(&cropped.graph), cropped))
    };
    let (mut price, mut cropped) = priced(&lens)?;
    while price > 1.0 {
        let cuts = cuts(&bases, &lens, &granules).into_iter().filter_map(|lens| {
            let (price, cropped) = priced(&lens).ok()?;
            Some((price, lens, cropped))
        });
        let best = cuts.min_by(|(a, ..), (b, ..)| a.total_cmp(b)).filter(|(found, ..)| *found < price);
        let Some((found, shorter, smaller)) = best else {
            return Err(CropError::Unsupported("what it computes"));
        };
        (price, lens, cropped) = (found, shorter, Cropped { is_sample: true, ..smaller });
    }
    Ok(cropped)
}

/// Elements that stay together along the innermost axis.
fn granule(graph: &Graph, v: Value) -> usize {
    match graph.ty(v).dtype {
        DType::Block(format) => format.block_elements(),
        DType::F16
        | DType::BF16
        | DType::F8E4M3
        | DType::F32
        | DType::F64
        | DType::U8
        | DType::U32
        | DType::I16
        | DType::I32
        | DType::I64 => 1,
    }
}

/// All ways to take less of one axis: of all outputs, which may share what they are computed from, and of each.
fn cuts(bases: &[Region], lens: &[Vec<usize>], granules: &[usize]) -> Vec<Vec<Vec<usize>>> {
    let rank = lens.iter().map(Vec::len).max().unwrap_or(0);
    // Axes count from the innermost.
    let shorter = |output: usize, axis: usize| -> Option<usize> {
        let at = lens[output].len().checked_sub(axis + 1)?;
        let (len, granule) = (lens[output][at], if axis == 0 { granules[output] } else { 1 });
        // There are two parts from the first cut on.
        let part = if len == bases[output][at].count() { len / 4 } else { len / 2 };
        let part = (part / granule * granule).max(granule);
        (part < len).then_some(part)
    };
    let mut all = vec![];
    for axis in 0..rank {
        let sets = (0..lens.len()).map(|output| output..output + 1).chain(std::iter::once(0..lens.len()));
        for outputs in sets {
            let mut new = lens.to_vec();
            for output in outputs {
                if let Some(part) = shorter(output, axis) {
                    let at = new[output].len() - axis - 1;
                    new[output][at] = part;
                }
            }
            if new != lens && !all.contains(&new) {
                all.push(new);
            }
        }
    }
    all
}

/// The first and the last elements along all axes, so many of each.
fn parts(bases: &[Region], lens: &[Vec<usize>]) -> Vec<(usize, Region)> {
    let mut found: Vec<(usize, Region)> = vec![];
    for (output, (base, lens)) in bases.iter().zip(lens).enumerate() {
        let span = |is_first: bool| {
            let one = |(span, len): (&Span, &usize)| match span.range() {
                Some(range) if is_first => Span::from(range.start..range.start + len),
                Some(range) => Span::from(range.end - len..range.end),
                None => span.clone(),
            };
            base.iter().zip(lens).map(one).collect::<Region>()
        };
        for part in [span(true), span(false)] {
            if !found.contains(&(output, part.clone())) {
                found.push((output, part));
            }
        }
    }
    found
}
