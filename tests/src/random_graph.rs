//! Seeded random graphs: valid by construction, over all ops, with awkward shapes and tame values.
//!
//! A seed names a graph for good, so a failing test needs to print no more than that. Values stay within
//! a known range (`Item`), so that exponentials, quotients and sums stay finite and a comparison with
//! another device means something. What jumps (rounding, comparing, the position of a maximum) is only
//! applied to values that every device computes exactly, since elsewhere the last bit could decide.

mod builder;
mod by_turn;
mod contractions;
mod custom;
mod item;
mod maps;
mod order;
mod rows;
mod states;
mod views;

use tallow_ir::{DType, Graph};

use crate::rng::Rng;
use builder::Builder;

/// What a random graph may contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Float types to compute in; one is picked for each new tensor.
    pub floats: Vec<DType>,
    /// Integer types to compute in; may be empty.
    pub ints: Vec<DType>,
    /// Extents and offsets that only a run knows.
    pub symbols: bool,
    /// States and their updates.
    pub states: bool,
    /// Weights of every format, dequantized.
    pub weights: bool,
    /// Weights whose blocks are plain floats, next to the quantized ones.
    pub plain_blocks: bool,
    /// Matrix products of integers.
    pub int_matmul: bool,
    /// Kernels that users write.
    pub custom: bool,
    /// Attention sinks.
    pub sinks: bool,
    /// Most elements of any tensor but a weight.
    pub max_elements: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            floats: vec![DType::F32, DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F64],
            ints: vec![DType::U8, DType::U32, DType::I16, DType::I32, DType::I64],
            symbols: true,
            states: true,
            weights: true,
            plain_blocks: true,
            int_matmul: true,
            custom: true,
            sinks: true,
            max_elements: 2048,
        }
    }
}

impl Options {
    /// What kernels compute on every device: no 64-bit types.
    pub fn for_kernels() -> Options {
        Options {
            floats: vec![DType::F32, DType::F32, DType::F16, DType::BF16],
            ints: vec![DType::U8, DType::U32, DType::I16, DType::I32],
            plain_blocks: false,
            ..Options::default()
        }
    }
}

/// A random graph of about `steps` compositions, each of one to some ten nodes.
pub fn random_graph(seed: u64, steps: usize, options: &Options) -> Graph {
    let mut b = Builder::new(&format!("random_{seed}"), Rng::new(seed), options.clone());
    for _ in 0..1 + b.rng.below(3) {
        let shape = b.random_shape();
        let dtype = b.random_float();
        b.input(dtype, shape);
    }
    for _ in 0..steps {
        step(&mut b);
    }
    b.finish()
}

/// As [`random_graph`], with what it is the turn of: a few elementwise ops, a view of a view, and what combines
/// elements, so that graphs of consecutive turns hold everything equally often.
pub fn covering_graph(seed: u64, turn: u64, steps: usize, options: &Options) -> Graph {
    let mut b = Builder::new(&format!("covering_{seed}"), Rng::new(seed), options.clone());
    let shape = b.random_shape();
    let dtype = b.random_float();
    b.input(dtype, shape);
    for _ in 0..steps {
        step(&mut b);
    }
    by_turn::add(&mut b, turn);
    b.finish()
}

/// A random program over rows: one to three reductions over the same axes, with elementwise work before,
/// between and after them, in the manner of norms and softmax but in no known pattern.
pub fn random_row_program(seed: u64) -> Graph {
    let mut b = Builder::new(&format!("rows_{seed}"), Rng::new(seed), Options::default());
    rows::row_program(&mut b);
    b.finish()
}

/// As [`random_row_program`], over runs of neighbouring columns of matmuls of few rows.
pub fn random_run_program(seed: u64, options: &Options) -> Graph {
    let mut b = Builder::new(&format!("runs_{seed}"), Rng::new(seed), options.clone());
    if rows::over_columns(&mut b).is_none() {
        rows::row_program(&mut b);
    }
    b.finish()
}

/// Adds one composition. One that finds nothing to work on adds a new input, so that later ones do.
fn step(b: &mut Builder) {
    let done = match b.rng.below(35) {
        0..=5 => maps::unary(b),
        6..=10 => maps::binary(b),
        11 => maps::select(b),
        12 => maps::cast(b),
        13..=14 => maps::integers(b),
        15 => maps::index_values(b),
        16..=20 => views::view(b),
        21..=22 => contractions::reduce(b),
        23 => contractions::matmul(b),
        24 => contractions::weights(b),
        25 => contractions::gather(b),
        26 => contractions::attention(b),
        27 => states::update(b),
        28 => states::cache(b),
        29 => order::scan(b),
        30 => order::argsort(b),
        31 if b.rng.chance(50) => order::scatter(b),
        31 => order::index_add(b),
        32 => contractions::convolution(b),
        33 if b.options.custom => custom::custom(b),
        _ => rows::over_existing(b),
    };
    if done.is_none() {
        let shape = b.random_shape();
        let dtype = b.random_float();
        b.input(dtype, shape);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tallow_ir::{ElementwiseOp, Op, ReduceKind, text::parse, verify};
    use tallow_reference::evaluate;

    use super::*;
    use crate::random_inputs;

    fn graphs() -> impl Iterator<Item = (u64, Graph)> {
        let general = (0..400).map(|seed| (seed, random_graph(seed, 12, &Options::default())));
        let covering = (0..150).map(|seed| (seed, covering_graph(seed, seed, 4, &Options::default())));
        general.chain((0..60).map(|seed| (seed, random_row_program(seed)))).chain(covering)
    }

    #[test]
    fn graphs_verify_print_and_repeat() {
        for (seed, graph) in graphs() {
            let text = graph.to_string();
            assert_eq!(parse(&text).as_ref(), Ok(&graph), "seed {seed}");
            if let Err(found) = verify(graph) {
                panic!("seed {seed}: {found:?}\n{text}");
            }
        }
        let again = random_graph(7, 12, &Options::default());
        assert_eq!(again, random_graph(7, 12, &Options::default()));
        assert_ne!(again, random_graph(8, 12, &Options::default()));
    }

    #[test]
    fn values_are_finite_and_moderate() {
        for (seed, graph) in graphs() {
            let mut env = random_inputs(&graph, seed).env();
            let outputs = evaluate(&graph, &mut env).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
            // What a graph only leaves in states has no name as an output.
            assert!(!outputs.is_empty() || !env.states.is_empty());
            for (name, array) in outputs.into_iter().chain(env.states) {
                let float = array.ty.is_float();
                let tame = |x: &f64| x.is_finite() && (!float || x.abs() < 1e3);
                assert!(array.to_f64s().iter().all(tame), "seed {seed}: output {name} of\n{graph}");
            }
        }
    }

    #[test]
    fn every_op_occurs() {
        let mut seen: BTreeSet<&'static str> = BTreeSet::new();
        for (_, graph) in graphs() {
            seen.extend(graph.nodes().map(|(_, node)| node.op.name()));
        }
        let expected = ElementwiseOp::ALL
            .iter()
            .map(|op| op.name())
            .chain(ReduceKind::ALL.iter().map(|k| k.name()))
            .chain("input weight state const iota dim_value cast reshape broadcast permute slice".split(' '))
            .chain("flip window pad concat matmul gather dequantize attention state_update".split(' '))
            .chain(
                "custom scan_sum scan_prod scan_linear argsort scatter_add scatter_max index_add".split(' '),
            );
        let missing: Vec<&str> = expected.filter(|name| !seen.contains(name)).collect();
        assert!(missing.is_empty(), "never generated: {missing:?}");
    }

    #[test]
    fn options_stay_set() {
        let plain = Options {
            floats: vec![DType::F32],
            ints: vec![],
            symbols: false,
            states: false,
            weights: false,
            plain_blocks: false,
            int_matmul: false,
            custom: false,
            sinks: false,
            max_elements: 64,
        };
        for seed in 0..60 {
            let graph = random_graph(seed, 15, &plain);
            assert_eq!(graph.symbols().count(), 0);
            for (id, node) in graph.nodes() {
                assert!(!matches!(node.op, Op::State { .. } | Op::Weight { .. }), "seed {seed}");
                assert!(!matches!(node.op, Op::Attention(attention) if attention.sinks), "seed {seed}");
                let ty = &node.types[0];
                // Truth values and indices are not computed in, but compare and gather need them.
                assert!(matches!(ty.dtype, DType::F32 | DType::U8 | DType::U32), "seed {seed}: {ty}");
                assert!(ty.shape.max_numel() <= 64, "seed {seed}: %{} of\n{graph}", id.0);
            }
        }
    }
}
