//! Parts of a graph's results, computed from the parts of its leaves that they need: a cropped graph.
//!
//! The verifier of kernels compares so a sample of a large product's columns: they need the same rows of the weight. Each
//! op states which part of its operands a part of its result needs. Ops that have no such rule are computed whole.

mod attention;
mod region;
mod views;
mod within;

use std::collections::HashMap;

use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::op::Op;
use crate::shape::{Shape, TensorType};

pub use region::{Region, Span, copy_region, extents, whole};
pub use within::{crop_within, results_of};

/// The values of indices by which gathers read, as far as they are known: then only the rows that they name are needed.
pub type Known = HashMap<Value, Vec<u64>>;

/// Why a part of a result cannot be computed alone.
#[derive(Debug, thiserror::Error)]
pub enum CropError {
    /// The cropped graph is not valid.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// There is no rule for it.
    #[error("no part of {0} can be computed alone")]
    Unsupported(&'static str),
}

/// A leaf of a cropped graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CroppedLeaf {
    /// Its name in the cropped graph.
    pub name: String,
    /// The name of the leaf that it is a part of.
    pub of: String,
    /// Which part.
    pub region: Region,
}

/// A part of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CroppedResult {
    /// Its name in the cropped graph.
    pub name: String,
    /// The result's position among the outputs.
    pub output: usize,
    /// Which part.
    pub region: Region,
}

/// A graph that computes parts of another one's results.
#[derive(Clone, Debug)]
pub struct Cropped {
    /// The graph. Leaves with blocks are weights, those that indices update are states, all others inputs.
    pub graph: Graph,
    /// Its leaves.
    pub leaves: Vec<CroppedLeaf>,
    /// Its results.
    pub results: Vec<CroppedResult>,
    /// Whether they were cut to what they may cost.
    pub is_sample: bool,
}

/// A graph that computes these parts of the outputs of `graph`, whose extents are constants and which has no fusions.
///
/// # Errors
/// When a part needs a part of something that cannot be computed alone.
pub fn crop(graph: &Graph, parts: &[(usize, Region)], known: &Known) -> Result<Cropped, CropError> {
    let mut builder = Builder::new(graph, known);
    let mut results = vec![];
    for (number, (output, region)) in parts.iter().enumerate() {
        let value = builder.value(graph.outputs()[*output].value, region)?;
        let name = format!("result {output} part {number}");
        builder.graph.output(&name, value)?;
        results.push(CroppedResult { name, output: *output, region: region.clone() });
    }
    Ok(Cropped { graph: builder.graph, leaves: builder.leaves, results, is_sample: false })
}

/// A graph that computes a value of `graph`, whole, as `"value"`.
///
/// # Errors
/// As [`crop`].
pub fn crop_to_value(graph: &Graph, value: Value, known: &Known) -> Result<Cropped, CropError> {
    let mut builder = Builder::new(graph, known);
    let value = builder.value(value, &whole(&shape_of(graph, value)?))?;
    builder.graph.output("value", value)?;
    Ok(Cropped { graph: builder.graph, leaves: builder.leaves, results: vec![], is_sample: false })
}

/// The extents of a value.
fn shape_of(graph: &Graph, v: Value) -> Result<Vec<usize>, CropError> {
    graph.ty(v).shape.as_const().ok_or(CropError::Unsupported("a symbolic extent"))
}

struct Builder<'a> {
    of: &'a Graph,
    known: &'a Known,
    graph: Graph,
    done: HashMap<(Value, Region), Value>,
    leaves: Vec<CroppedLeaf>,
}

impl<'a> Builder<'a> {
    fn new(of: &'a Graph, known: &'a Known) -> Builder<'a> {
        Builder { of, known, graph: Graph::new(of.name()), done: HashMap::new(), leaves: vec![] }
    }

    /// A part of a value.
    fn value(&mut self, v: Value, region: &Region) -> Result<Value, CropError> {
        let key = (v, region.clone());
        if let Some(done) = self.done.get(&key) {
            return Ok(*done);
        }
        let made = self.node(v, region)?;
        self.done.insert(key, made);
        Ok(made)
    }

    fn operand(&self, v: Value, index: usize) -> Value {
        self.of.node(v.node).operands[index]
    }

    fn shape(&self, v: Value) -> Result<Vec<usize>, CropError> {
        shape_of(self.of, v)
    }

    fn node(&mut self, v: Value, region: &Region) -> Result<Value, CropError> {
        let of = self.of;
        let node = of.node(v.node);
        match &node.op {
            Op::Input { name, .. } | Op::Weight { name, .. } | Op::State { name, .. } => {
                self.leaf(name, of.ty(v).dtype, region)
            }
            Op::Const(_) | Op::DimValue { .. } | Op::Scalar { .. } => {
                Ok(self.graph.add(node.op.clone(), &[])?)
            }
            Op::Elementwise(_) | Op::Cast(_) => self.same(v, region),
            Op::Dequantize(_) => self.dequantize(v, region),
            Op::Quantize(format) => match whole_blocks(region, format.block_elements()) == *region {
                true => self.same(v, region),
                false => Err(CropError::Unsupported("a block")),
            },
            Op::Reshape(_) => self.reshape(v, region),
            Op::Broadcast(_) => self.broadcast(v, region),
            Op::Permute(axes) => {
                let mut from = region.clone();
                axes.iter().zip(region).for_each(|(axis, span)| from[*axis] = span.clone());
                let a = self.value(self.operand(v, 0), &from)?;
                Ok(self.graph.permute(a, axes)?)
            }
            Op::Slice { axis, start, .. } => self.slice(v, region, (*axis, start)),
            Op::Flip { axis } => self.flip(v, region, *axis),
            Op::Window { axis, size, stride, dilation } => {
                self.window(v, region, (*axis, [*size, *stride, *dilation]))
            }
            Op::Pad { axis, before, value, .. } => self.pad(v, region, (*axis, before, *value)),
            Op::Concat { axis } => self.concat(v, region, *axis),
            Op::Reduce { axes, .. } => {
                let (mut from, mut others) = (vec![], region.iter());
                for (axis, n) in self.shape(self.operand(v, 0))?.into_iter().enumerate() {
                    let span = if axes.contains(&axis) { Some(Span::all(n)) } else { others.next().cloned() };
                    from.extend(span);
                }
                let a = self.value(self.operand(v, 0), &from)?;
                Ok(self.graph.add(node.op.clone(), &[a])?)
            }
            Op::Matmul => self.matmul(v, region),
            Op::Gather { axis } => self.gather(v, region, *axis),
            Op::Scan { axis, part: None, .. } | Op::ArgSort { axis, .. } | Op::MergeRuns { axis, .. } => {
                self.along(v, region, *axis)
            }
            Op::StateUpdate { offsets, rows: None } => self.update(v, region, offsets),
            Op::StateUpdate { rows: Some(_), .. } => self.update_rows(v, region),
            Op::Attention(attention) => self.attention(v, region, attention),
            Op::Iota { .. }
            | Op::Scan { part: Some(_), .. }
            | Op::Scatter(_)
            | Op::IndexAdd
            | Op::AttentionGrad(..)
            | Op::Custom(_)
            | Op::Param { .. }
            | Op::Fusion(_) => self.all(v, region),
        }
    }

    fn leaf(&mut self, name: &str, dtype: DType, region: &Region) -> Result<Value, CropError> {
        let ty = TensorType::new(dtype, extents(region));
        let leaf = format!("{name} part {}", self.leaves.len());
        // An input cannot hold blocks.
        let op = match dtype {
            DType::Block(_) => Op::Weight { name: leaf.clone(), ty },
            _ => Op::Input { name: leaf.clone(), ty },
        };
        let value = self.graph.add(op, &[])?;
        self.leaves.push(CroppedLeaf { name: leaf, of: name.into(), region: region.clone() });
        Ok(value)
    }

    /// An op whose element needs the elements at the same place.
    fn same(&mut self, v: Value, region: &Region) -> Result<Value, CropError> {
        let node = self.of.node(v.node);
        let operands: Result<Vec<Value>, CropError> =
            node.operands.iter().map(|o| self.value(*o, region)).collect();
        Ok(self.graph.add(node.op.clone(), &operands?)?)
    }

    /// An op whose element needs all elements along an axis, of which the result may have another number.
    fn along(&mut self, v: Value, region: &Region, axis: usize) -> Result<Value, CropError> {
        let node = self.of.node(v.node);
        let part = |shape: Vec<usize>| {
            let mut part = region.clone();
            part[axis] = Span::all(shape[axis]);
            part
        };
        let operands = node.operands.iter().map(|o| self.value(*o, &part(shape_of(self.of, *o)?)));
        let operands: Vec<Value> = operands.collect::<Result<_, CropError>>()?;
        let made = self.graph.add(node.op.clone(), &operands)?;
        self.narrow(made, &part(self.shape(v)?), region)
    }

    /// An op of which all is computed.
    fn all(&mut self, v: Value, region: &Region) -> Result<Value, CropError> {
        let node = self.of.node(v.node);
        let shape = self.shape(v)?;
        let operands = node.operands.iter().map(|o| self.value(*o, &whole(&shape_of(self.of, *o)?)));
        let operands: Vec<Value> = operands.collect::<Result<_, CropError>>()?;
        let node: NodeId = self.graph.add_node(node.op.clone(), &operands)?;
        self.narrow(Value { node, result: v.result }, &whole(&shape), region)
    }

    /// The part `to` of what was computed for the part `from`.
    fn narrow(&mut self, value: Value, from: &Region, to: &Region) -> Result<Value, CropError> {
        if from == to {
            return Ok(value);
        }
        if matches!(self.graph.ty(value).dtype, DType::Block(_)) {
            return Err(CropError::Unsupported("blocks"));
        }
        let mut narrowed = value;
        for (axis, (from, to)) in from.iter().zip(to).enumerate().filter(|(_, (from, to))| from != to) {
            let (Some(from), Some(to)) = (from.range(), to.range()) else {
                return Err(CropError::Unsupported("chosen rows"));
            };
            let (start, len) = (Dim::from(to.start - from.start), Dim::from(to.len()));
            narrowed = self.graph.add(Op::Slice { axis, start, len }, &[narrowed])?;
        }
        Ok(narrowed)
    }

    fn dequantize(&mut self, v: Value, region: &Region) -> Result<Value, CropError> {
        let DType::Block(format) = self.of.ty(self.operand(v, 0)).dtype else {
            return Err(CropError::Unsupported("what has no blocks"));
        };
        let blocks = whole_blocks(region, format.block_elements());
        let values = self.same(v, &blocks)?;
        self.narrow(values, &blocks, region)
    }

    fn matmul(&mut self, v: Value, region: &Region) -> Result<Value, CropError> {
        let rank = region.len();
        let mut operands = vec![];
        for (index, inner) in [(0, rank - 1), (1, rank - 2)] {
            let shape = self.shape(self.operand(v, index))?;
            if shape.len() != rank {
                return self.all(v, region);
            }
            // Leading axes of extent 1 repeat.
            let span = |(axis, n): (usize, &usize)| match axis == inner || (axis + 2 < rank && *n == 1) {
                true => Span::all(*n),
                false => region[axis].clone(),
            };
            let from = shape.iter().enumerate().map(span).collect();
            operands.push(self.value(self.operand(v, index), &from)?);
        }
        Ok(self.graph.add(Op::Matmul, &operands)?)
    }

    /// Where the indices are known, only the rows that they name.
    fn gather(&mut self, v: Value, region: &Region, axis: usize) -> Result<Value, CropError> {
        let [source, indices] = [0, 1].map(|i| self.operand(v, i));
        let (from, index_shape) = (self.shape(source)?, self.shape(indices)?);
        let (before, rest) = region.split_at(axis);
        let (chosen, behind) = rest.split_at(index_shape.len());
        let of_source = |span| [before, &[span], behind].concat();
        if let Some(list) = self.rows(indices, &index_shape, chosen, from[axis]) {
            match self.value(source, &of_source(Span::List(list))) {
                Ok(rows) if matches!(self.graph.ty(rows).dtype, DType::Block(_)) && chosen.len() != 1 => {}
                Ok(rows) => return Ok(self.graph.reshape(rows, Shape::from(extents(region)))?),
                Err(CropError::Unsupported(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let rows = self.value(source, &of_source(Span::all(from[axis])))?;
        let at = self.value(indices, &chosen.to_vec())?;
        Ok(self.graph.add(Op::Gather { axis }, &[rows, at])?)
    }

    /// The rows of `extent` that a part of the indices name, in order.
    fn rows(&self, indices: Value, shape: &[usize], part: &[Span], extent: usize) -> Option<Vec<usize>> {
        let bytes: Vec<u8> = self.known.get(&indices)?.iter().flat_map(|i| i.to_le_bytes()).collect();
        let found = copy_region(&bytes, shape, part, (1, 8))?;
        let row = |bytes: &[u8; 8]| usize::try_from(u64::from_le_bytes(*bytes)).ok();
        // Indices are clamped.
        found.as_chunks().0.iter().map(|bytes| Some(row(bytes)?.min(extent.checked_sub(1)?))).collect()
    }

    /// A part of a state's new version: of what is written, of what was there before, or of both.
    fn update(&mut self, v: Value, region: &Region, offsets: &[Dim]) -> Result<Value, CropError> {
        let written = written_part(self.of, v, offsets)?;
        let ranges: Option<Vec<_>> = region.iter().map(Span::range).collect();
        let ranges = ranges.ok_or(CropError::Unsupported("chosen rows"))?;
        let mut pairs = ranges.iter().zip(&written);
        let Some(axis) = pairs.position(|(asked, new)| asked.start < new.start || asked.end > new.end) else {
            let shifted = ranges.iter().zip(&written);
            let from = shifted.map(|(asked, new)| Span::from(asked.start - new.start..asked.end - new.start));
            return self.value(self.operand(v, 1), &from.collect());
        };
        let (asked, new) = (&ranges[axis], &written[axis]);
        let [low, high] = [new.start, new.end].map(|at| at.clamp(asked.start, asked.end));
        let mut parts = vec![];
        for (range, is_new) in [(asked.start..low, false), (low..high, true), (high..asked.end, false)] {
            if range.is_empty() {
                continue;
            }
            let mut part = region.clone();
            part[axis] = range.into();
            parts.push(if is_new { self.value(v, &part)? } else { self.value(self.operand(v, 0), &part)? });
        }
        self.joined(axis, &parts)
    }

    /// A part of a state's new version where indices choose the rows that are written.
    fn update_rows(&mut self, v: Value, region: &Region) -> Result<Value, CropError> {
        let node = self.of.node(v.node);
        let Op::State { name, ty } = self.of.op(node.operands[0]) else {
            return Err(CropError::Unsupported("a later version of a state"));
        };
        let region_of_state = whole(&self.shape(v)?);
        let leaf = format!("{name} part {}", self.leaves.len());
        let mut operands = vec![self.graph.state(&leaf, ty.dtype, ty.shape.clone())?];
        self.leaves.push(CroppedLeaf { name: leaf, of: name.clone(), region: region_of_state.clone() });
        for operand in &node.operands[1..] {
            operands.push(self.value(*operand, &whole(&shape_of(self.of, *operand)?))?);
        }
        let new = self.graph.add(node.op.clone(), &operands)?;
        self.done.insert((v, region_of_state.clone()), new);
        self.narrow(new, &region_of_state, region)
    }

    /// Parts one behind the other.
    fn joined(&mut self, axis: usize, parts: &[Value]) -> Result<Value, CropError> {
        match parts {
            [one] => Ok(*one),
            [first, ..] if matches!(self.graph.ty(*first).dtype, DType::Block(_)) => {
                Err(CropError::Unsupported("blocks"))
            }
            _ => Ok(self.graph.add(Op::Concat { axis }, parts)?),
        }
    }
}

/// What an update writes of a state, per axis.
fn written_part(
    graph: &Graph,
    update: Value,
    offsets: &[Dim],
) -> Result<Vec<std::ops::Range<usize>>, CropError> {
    let new = shape_of(graph, graph.node(update.node).operands[1])?;
    let constant = |dim: &Dim| dim.as_const().and_then(|at| usize::try_from(at).ok());
    let range = |(offset, n): (&Dim, &usize)| constant(offset).map(|at| at..at + n);
    let ranges: Option<Vec<_>> = offsets.iter().zip(&new).map(range).collect();
    ranges.ok_or(CropError::Unsupported("a symbolic position"))
}

/// A region whose innermost range is extended to whole blocks of so many elements.
fn whole_blocks(region: &Region, elements: usize) -> Region {
    let mut all = region.clone();
    if let Some(Span::Range { start, len }) = all.last_mut() {
        let end = (*start + *len).next_multiple_of(elements);
        *start = *start / elements * elements;
        *len = end - *start;
    }
    all
}
