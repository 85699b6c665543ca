//! What the host does before anything runs on a device, at graphs of four sizes: the stages that the benchmark
//! `host` times and that the example `scaling` fits a line to.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tallow_bench::shapes::{Shape, TINY};
use tallow_codegen::{CodegenError, KERNELS, PLAN, compile_observed};
use tallow_ir::caps::profile;
use tallow_ir::{DType, ElementwiseOp, Graph, GraphError, Op, ReduceKind, Value};
use tallow_quant::Format;

/// Nodes of the graphs, about.
pub const SIZES: [usize; 4] = [100, 1_000, 10_000, 100_000];

/// The device that graphs are compiled for.
pub const DEVICE: &str = "h200";

/// A family of graphs that grow by one part after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The decode step of a language model: the more nodes, the more layers. Every layer has weights and a cache of
    /// its own, and the kernels of all are the same.
    Decoder,
    /// Elementwise work and reductions over one row after another, each with a constant of its own, so that no two
    /// kernels are the same.
    Rows,
    /// Elementwise work without an end, which the fuser cuts where a kernel gets too long.
    Chain,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 3] = [Family::Decoder, Family::Rows, Family::Chain];

    /// A name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Family::Decoder => "decoder",
            Family::Rows => "rows",
            Family::Chain => "chain",
        }
    }

    /// A graph of about `nodes` nodes.
    ///
    /// # Errors
    /// When the builder is wrong.
    pub fn graph(self, nodes: usize) -> Result<Graph, GraphError> {
        match self {
            // A layer has 100 nodes, and 45 are outside the layers.
            Family::Decoder => decoder(nodes.saturating_sub(45).div_ceil(100)),
            Family::Rows => rows(nodes.div_ceil(9)),
            Family::Chain => chain(nodes.div_ceil(3)),
        }
    }
}

fn decoder(layers: usize) -> Result<Graph, GraphError> {
    let tiny = Shape { layers, ..TINY };
    let built = tiny.model(Format::Q4_0, Default::default());
    let model = built.map_err(|error| {
        let (why, operands) = (error.to_string(), String::new());
        GraphError::Type { op: "model", why, operands }
    })?;
    model.greedy(tiny.context())
}

/// `x <- tanh(x) * c_i + sum(x)` over rows.
fn rows(parts: usize) -> Result<Graph, GraphError> {
    let mut g = Graph::new("rows");
    let mut x = g.input("x", DType::F32, [64, 256])?;
    for i in 0..parts {
        let sum = g.reduce_keepdim(ReduceKind::Sum, x, &[1])?;
        let shape = g.ty(x).shape.clone();
        let sum = g.broadcast(sum, shape)?;
        let bent = g.elementwise(ElementwiseOp::Tanh, &[x])?;
        let scaled = scaled(&mut g, bent, i)?;
        x = g.elementwise(ElementwiseOp::Add, &[scaled, sum])?;
        // A transpose after every second part: what comes after reduces other rows, and is another kernel.
        if i % 2 == 1 {
            let turned = g.add(Op::Permute(vec![1, 0]), &[x])?;
            let extents = [64usize, 256];
            x = g.reshape(turned, extents)?;
        }
    }
    g.output("y", x)?;
    Ok(g)
}

fn chain(parts: usize) -> Result<Graph, GraphError> {
    let mut g = Graph::new("chain");
    let mut x = g.input("x", DType::F32, [4096])?;
    for i in 0..parts {
        x = scaled(&mut g, x, i)?;
    }
    g.output("y", x)?;
    Ok(g)
}

/// `x` times a constant that only this part has.
fn scaled(g: &mut Graph, x: Value, part: usize) -> Result<Value, GraphError> {
    let by = g.full_like(x, 0.5 + part as f64 / (1 << 20) as f64)?;
    g.elementwise(ElementwiseOp::Mul, &[x, by])
}

/// A stage of the host's work, in order.
pub const STAGES: [&str; 5] = ["build", "passes", "glsl", "plan", "lookup"];

/// Times of each of the [`STAGES`] for a graph of about `nodes` nodes, and how many it has.
///
/// # Errors
/// When the graph does not compile.
pub fn stages(family: Family, nodes: usize) -> Result<(usize, [Duration; 5]), CodegenError> {
    let start = Instant::now();
    let graph = family.graph(nodes)?;
    let build = start.elapsed();

    let caps = profile(DEVICE).unwrap_or_else(tallow_ir::caps::minimum);
    let (mut fused, mut kernels, mut plan) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let start = Instant::now();
    compile_observed(&graph, &caps, &mut |stage, _| match stage {
        KERNELS => kernels = start.elapsed(),
        PLAN => plan = start.elapsed(),
        _ => fused = start.elapsed(),
    })?;

    // What finds a compiled graph again: its structure's hash, and a comparison with the one that is kept.
    let cache = HashMap::from([(graph.clone(), ())]);
    let start = Instant::now();
    let found = std::hint::black_box(cache.contains_key(&graph));
    debug_assert!(found);
    Ok((graph.len(), [build, fused, kernels - fused, plan - kernels, start.elapsed()]))
}

/// The exponent `e` of `time = c * nodes^e` that fits best (least squares of the logarithms).
pub fn exponent(points: &[(usize, Duration)]) -> f64 {
    let logs: Vec<(f64, f64)> =
        points.iter().map(|(n, t)| ((*n as f64).ln(), t.as_secs_f64().max(1e-9).ln())).collect();
    let count = logs.len().max(1) as f64;
    let (x, y) =
        (logs.iter().map(|p| p.0).sum::<f64>() / count, logs.iter().map(|p| p.1).sum::<f64>() / count);
    let covariance: f64 = logs.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    let variance: f64 = logs.iter().map(|p| (p.0 - x).powi(2)).sum();
    covariance / variance.max(1e-12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_have_about_the_size_asked_for() {
        for family in Family::ALL {
            for size in [1_000, 10_000] {
                let nodes = family.graph(size).unwrap().len();
                assert!((size * 3 / 4..size * 5 / 4).contains(&nodes), "{}: {nodes}", family.name());
            }
        }
    }

    #[test]
    fn exponents_are_slopes_of_logarithms() {
        let of = |e: f64| {
            let point = |n: usize| (n, Duration::from_secs_f64(1e-6 * (n as f64).powf(e)));
            exponent(&SIZES.map(point))
        };
        assert!((of(1.0) - 1.0).abs() < 1e-3 && (of(2.0) - 2.0).abs() < 1e-3);
    }
}
