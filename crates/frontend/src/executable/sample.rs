//! What of a kernel's results is compared, and what the interpreter computes of that.

use tallow_bounds::{Bounds, Comparison, Interval, Outside};
use tallow_ir::crop::{
    CropError, Cropped, Known, Region, Span, copy_region, crop_to_value, crop_within, extents,
};
use tallow_ir::isolate::{isolated, operand_name};
use tallow_ir::{Bindings, DType, Fusion, Graph, Node, NodeId, Op};
use tallow_reference::{Array, Data, Env, evaluate};
use tallow_runtime::executable::Steps;

use crate::error::Result;
use crate::vulkan::device_error;

/// Bytes that the interpreter and the bounds take for a kernel: f64 for the value and both ends of each node that is no
/// view. Bounds of products and attention hold as much again for magnitudes and sums, and attention its scores. Values that
/// nothing reads any more are freed.
fn host_bytes(graph: &Graph) -> u64 {
    let bytes = |(_, node): (NodeId, &Node)| {
        let results = results(node);
        match node.op {
            ref op if moves_nothing(op) => 0,
            Op::Attention(_) => scores(graph, node).saturating_add(results).saturating_mul(48),
            Op::Matmul | Op::Dequantize(_) => results.saturating_mul(48),
            _ => results.saturating_mul(24),
        }
    };
    graph.nodes().map(bytes).fold(0, u64::saturating_add)
}

/// Multiply-adds, and elements that are otherwise computed or read.
fn work(graph: &Graph) -> u64 {
    let work = |(_, node): (NodeId, &Node)| {
        let results = results(node);
        match node.op {
            ref op if moves_nothing(op) => 0,
            Op::Attention(_) => {
                let depths = extent(graph, node, 0, 2).saturating_add(extent(graph, node, 2, 2));
                scores(graph, node).saturating_mul(depths)
            }
            Op::Matmul => {
                let rank = graph.ty(node.operands[0]).shape.rank();
                results.saturating_mul(extent(graph, node, 0, rank - 1))
            }
            Op::Reduce { .. } => graph.ty(node.operands[0]).shape.max_numel(),
            _ => results,
        }
    };
    graph.nodes().map(work).fold(0, u64::saturating_add)
}

/// The interpreter copies what it pads and concatenates.
fn moves_nothing(op: &Op) -> bool {
    op.is_view() && !matches!(op, Op::Pad { .. } | Op::Concat { .. })
}

fn results(node: &Node) -> u64 {
    node.types.iter().map(|ty| ty.shape.max_numel()).fold(0, u64::saturating_add)
}

fn extent(graph: &Graph, node: &Node, operand: usize, axis: usize) -> u64 {
    graph.ty(node.operands[operand]).shape.dims()[axis].max_value().unsigned_abs()
}

/// How many scores attention has.
fn scores(graph: &Graph, node: &Node) -> u64 {
    let extents = [(0, 0), (0, 1), (1, 1)].map(|(operand, axis)| extent(graph, node, operand, axis));
    extents.into_iter().fold(1, u64::saturating_mul)
}

/// What a comparison may cost.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of host memory.
    pub memory: Option<u64>,
    /// Multiply-adds, and elements that are otherwise computed or read.
    pub work: Option<u64>,
}

/// What a comparison costs, as a share of what it may.
fn cost(graph: &Graph, limits: Limits) -> f64 {
    let share = |of: u64, limit: Option<u64>| limit.map_or(0.0, |limit| of as f64 / limit.max(1) as f64);
    share(host_bytes(graph), limits.memory).max(share(work(graph), limits.work))
}

/// What part of a kernel's results is compared, and what is needed of its operands.
pub(super) struct Sample {
    cropped: Cropped,
    env: Env,
}

impl Sample {
    /// Reads the operands of the next launch. The inner error says why it cannot be compared.
    pub(super) fn read(
        steps: &Steps<'_>,
        launch: usize,
        fusion: &Fusion,
        bindings: &Bindings,
        limits: Limits,
    ) -> Result<Result<Sample, String>> {
        let graph = match isolated(fusion, bindings) {
            Ok(graph) => graph,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let tensors = fusion.body.params().into_iter().map(|ty| ty.max_bytes());
        let results = fusion.body.outputs().iter().map(|output| fusion.body.ty(output.value).max_bytes());
        // Tensors are read whole, one after the other; blocks are copied once.
        let largest = tensors.chain(results).max().unwrap_or(0).saturating_mul(2);
        if let Some(limit) = limits.memory.filter(|limit| largest > *limit) {
            return Ok(Err(format!(
                "reading a tensor takes {:.1} GiB of memory, {:.1} are free",
                gib(largest),
                gib(limit)
            )));
        }
        let source = Operands { steps, launch, fusion, bindings };
        let known = source.known(&graph, limits)?;
        let cropped = match crop_within(&graph, &known, &|graph| cost(graph, limits)) {
            Ok(cropped) => cropped,
            Err(error) => return Ok(Err(too_much(&graph, limits, &error))),
        };
        Ok(source.env(&cropped)?.map(|env| Sample { cropped, env }))
    }

    /// Whether that is less than all.
    pub(super) fn is_sample(&self) -> bool {
        self.cropped.is_sample
    }

    /// Compares the results of the launch that was run: by result, how it compares. The inner error says why it cannot be
    /// compared.
    pub(super) fn judge(
        self,
        steps: &Steps<'_>,
        launch: usize,
        fusion: &Fusion,
    ) -> Result<Result<Vec<Comparison>, String>> {
        let Sample { cropped, env } = self;
        let computed = match Computed::of(&cropped.graph, env) {
            Ok(computed) => computed,
            Err(why) => return Ok(Err(why)),
        };
        let mut all = vec![];
        for (result, output) in fusion.body.outputs().iter().enumerate() {
            let Some((shape, bytes)) = steps.result(launch, result).map_err(device_error)? else {
                return Ok(Err(format!("result {result} has no buffer")));
            };
            let dtype = fusion.body.ty(output.value).dtype;
            let mut compared: Option<Comparison> = None;
            for part in cropped.results.iter().filter(|part| part.output == result) {
                let found = match array(dtype, &shape, &bytes, &part.region) {
                    Ok(found) => computed.compare(&part.name, &found),
                    Err(why) => Err(why),
                };
                match found {
                    Ok(found) => {
                        let found = in_whole(found, &part.region, dtype, &shape);
                        compared = Some(match compared {
                            Some(before) => combined(before, found),
                            None => found,
                        });
                    }
                    Err(why) => return Ok(Err(why)),
                }
            }
            all.extend(compared);
        }
        Ok(Ok(all))
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// Why no part of what a kernel computes is compared.
fn too_much(graph: &Graph, limits: Limits, error: &CropError) -> String {
    match (error, limits.memory.filter(|limit| host_bytes(graph) > *limit)) {
        (CropError::Graph(error), _) => error.to_string(),
        (CropError::Unsupported(_), Some(limit)) => {
            format!("takes {:.1} GiB of memory, {:.1} are free; {error}", gib(host_bytes(graph)), gib(limit))
        }
        (CropError::Unsupported(_), None) => error.to_string(),
    }
}

/// The operands of a launch, on the device.
struct Operands<'a> {
    steps: &'a Steps<'a>,
    launch: usize,
    fusion: &'a Fusion,
    bindings: &'a Bindings,
}

impl Operands<'_> {
    /// The values of indices that gathers read, so that only the rows are needed that they name: those that are exact, and not
    /// expensive.
    fn known(&self, graph: &Graph, limits: Limits) -> Result<Known> {
        let mut known = Known::new();
        for (_, node) in graph.nodes().filter(|(_, node)| matches!(node.op, Op::Gather { .. })) {
            let indices = node.operands[1];
            let Ok(cropped) = crop_to_value(graph, indices, &known) else { continue };
            if cost(&cropped.graph, limits) > 1.0 {
                continue;
            }
            let values = self.env(&cropped)?.and_then(|env| Computed::of(&cropped.graph, env)?.exact());
            if let Ok(values) = values {
                known.insert(indices, values);
            }
        }
        Ok(known)
    }

    /// What a cropped graph runs in. The inner error says why there is no such thing.
    fn env(&self, cropped: &Cropped) -> Result<Result<Env, String>> {
        let mut env = Env { symbols: self.bindings.clone(), ..Env::default() };
        for (index, ty) in self.fusion.body.params().into_iter().enumerate() {
            let name = operand_name(index);
            let mut leaves = cropped.leaves.iter().filter(|leaf| leaf.of == name).peekable();
            if leaves.peek().is_none() {
                continue;
            }
            let operand = self.steps.operand(self.launch, index).map_err(device_error)?;
            let Some((shape, bytes)) = operand else { continue };
            for leaf in leaves {
                match array(ty.dtype, &shape, &bytes, &leaf.region) {
                    Ok(array) => insert(&mut env, &cropped.graph, &leaf.name, array),
                    Err(why) => return Ok(Err(why)),
                }
            }
        }
        env.symbols.retain(|name, _| cropped.graph.symbols().any(|symbol| symbol.name() == name));
        Ok(Ok(env))
    }
}

fn insert(env: &mut Env, graph: &Graph, name: &str, array: Array) {
    for (_, node) in graph.nodes() {
        match &node.op {
            Op::Input { name: leaf, .. } if leaf == name => {
                env.inputs.insert(name.into(), array.clone().into());
            }
            Op::Weight { name: leaf, .. } if leaf == name => {
                env.weights.insert(name.into(), array.clone().into());
            }
            Op::State { name: leaf, .. } if leaf == name => {
                env.states.insert(name.into(), array.clone());
            }
            _ => {}
        }
    }
}

/// A part of what was read from the device.
fn array(dtype: DType, shape: &[usize], bytes: &[u8], region: &Region) -> Result<Array, String> {
    let unit = match dtype {
        DType::Block(format) => (format.block_elements(), format.block_bytes()),
        scalar => (1, scalar.size().unwrap_or(1)),
    };
    let part = copy_region(bytes, shape, region, unit);
    let part = part.ok_or_else(|| format!("{dtype}{shape:?} has no part {region:?}"))?;
    Array::from_bytes(dtype, &extents(region), &part).map_err(|error| error.to_string())
}

/// What the interpreter found, and what a right kernel may find.
struct Computed {
    expected: Vec<(String, Array)>,
    bounds: Vec<(String, Interval)>,
}

impl Computed {
    fn of(graph: &Graph, env: Env) -> Result<Computed, String> {
        let bounds = Bounds::of(graph).and_then(|mut bounds| bounds.run(env.clone()));
        let bounds = bounds.map_err(|error| error.to_string())?;
        let mut after = env;
        let expected = evaluate(graph, &mut after).map_err(|error| error.to_string())?;
        Ok(Computed { expected, bounds })
    }

    fn compare(&self, name: &str, found: &Array) -> Result<Comparison, String> {
        let interval = self.bounds.iter().find(|(n, _)| n == name).map(|(_, interval)| interval);
        let expected = self.expected.iter().find(|(n, _)| n == name).map(|(_, array)| array);
        let (Some(interval), Some(expected)) = (interval, expected) else {
            return Err(format!("{name} is not computed by the interpreter"));
        };
        interval.compare(expected, found).map_err(|error| error.to_string())
    }

    /// The integers of the only result, of which a right kernel finds no others.
    fn exact(&self) -> Result<Vec<u64>, String> {
        let [(_, interval)] = &self.bounds[..] else { return Err("several values".into()) };
        match (&interval.low().data, &interval.high().data) {
            (Data::Int(low), Data::Int(high)) if low == high => {
                low.iter().map(|x| u64::try_from(*x).map_err(|error| error.to_string())).collect()
            }
            _ => Err("not exact".into()),
        }
    }
}

/// A comparison of a part, whose first difference is named by its place in the whole.
fn in_whole(mut found: Comparison, region: &[Span], dtype: DType, shape: &[usize]) -> Comparison {
    found.first = found.first.map(|first| {
        let index = first.index.iter().zip(region).map(|(i, span)| span.get(*i).unwrap_or(*i)).collect();
        Outside { index, ty: format!("{dtype}{shape:?}"), ..first }
    });
    found
}

/// Two parts of one result.
fn combined(a: Comparison, b: Comparison) -> Comparison {
    Comparison {
        elements: a.elements + b.elements,
        unbounded: a.unbounded + b.unbounded,
        worst: a.worst.max(b.worst),
        outside: a.outside + b.outside,
        first: a.first.or(b.first),
    }
}
