//! Rows added at the places that indices name: the device gives what the interpreter gives, to the bit, since sums have one
//! order.

use std::collections::BTreeSet;

use tallow::{Device, Tensor, Var};
use tallow_ir::{
    Bindings, DType, Dim, ElementwiseOp as E, Graph, GraphError, Op, Symbol, Value, gradient, verify,
};
use tallow_reference::Array;
use tallow_tests::random_inputs::{Inputs, with_symbols};
use tallow_tests::rng::Rng;

use crate::harness::{device, device_with_range, interpret, run};

/// What the rows are added to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Zeros,
    Memory,
    Computed,
}

/// Which rows the indices name.
#[derive(Clone, Copy, Debug)]
enum Named {
    /// Any, and some beyond the last.
    Any,
    /// This one always.
    One(u64),
    /// Each in turn.
    InTurn,
}

/// Rows `[count, inner]` added to rows of `[rows, inner]`, `outer` times.
#[derive(Clone, Debug)]
pub struct Case {
    dtype: DType,
    outer: Dim,
    rows: Dim,
    inner: Dim,
    count: Dim,
    target: Target,
    named: Named,
}

/// Rows of a target in memory, any of which is named, of known extents.
pub fn case(dtype: DType, [outer, rows, inner, count]: [i64; 4]) -> Case {
    let [outer, rows, inner, count] = [outer, rows, inner, count].map(Dim::from);
    Case { dtype, outer, rows, inner, count, target: Target::Memory, named: Named::Any }
}

impl Case {
    /// The graph; the source is the sum of two tensors if the target is computed.
    pub fn graph(&self) -> Result<Graph, GraphError> {
        let mut g = Graph::new("index_add");
        let [outer, rows, inner, count] = [&self.outer, &self.rows, &self.inner, &self.count].map(Dim::clone);
        let to = [outer.clone(), rows, inner.clone()];
        let from = [outer, count.clone(), inner];
        let indices = g.input("indices", DType::U32, [count])?;
        let input = |g: &mut Graph, name: &str, shape: &[Dim; 3]| g.input(name, self.dtype, shape.clone());
        let target = match self.target {
            Target::Zeros => {
                let like = input(&mut g, "other", &to)?;
                g.full_like(like, 0.0)?
            }
            Target::Memory => input(&mut g, "target", &to)?,
            Target::Computed => {
                let x = input(&mut g, "target", &to)?;
                g.elementwise(E::Neg, &[x])?
            }
        };
        let mut source: Value = input(&mut g, "source", &from)?;
        if self.target == Target::Computed {
            let other = input(&mut g, "more", &from)?;
            source = g.elementwise(E::Maximum, &[source, other])?;
        }
        let y = g.add(Op::IndexAdd, &[target, indices, source])?;
        g.output("y", y)?;
        Ok(g)
    }

    /// Floats of which most sums are rounded, integers that wrap, and indices.
    fn inputs(&self, graph: &Graph, seed: u64, symbols: Bindings) -> Inputs {
        let mut inputs = with_symbols(graph, seed, symbols);
        let rows = self.rows.eval(&inputs.symbols).expect("a bound extent") as u64;
        let mut rng = Rng::new(seed);
        for (name, leaf) in &mut inputs.inputs {
            let count = leaf.shape.iter().product::<usize>();
            let value = |rng: &mut Rng, i: usize| match (name.as_str(), self.named) {
                ("indices", Named::Any) => rng.below(rows as usize + 3) as f64,
                ("indices", Named::One(row)) => row as f64,
                ("indices", Named::InTurn) => (i as u64 % rows.max(1)) as f64,
                _ if self.dtype.is_float() => {
                    let size = 2f64.powi(rng.between(-6, 6) as i32);
                    size * (1.0 + rng.below(1 << 23) as f64 / f64::from(1 << 23)) * [1.0, -1.0][rng.below(2)]
                }
                _ => rng.below(1 << 30) as f64,
            };
            let values: Vec<f64> = (0..count).map(|i| value(&mut rng, i)).collect();
            let array = Array::from_f64s(leaf.dtype, &leaf.shape, &values).expect("a leaf of a plain type");
            leaf.bytes = array.to_bytes();
        }
        inputs
    }
}

fn bytes(results: Vec<(String, Array)>) -> Vec<Vec<u8>> {
    results.into_iter().map(|(_, array)| array.to_bytes()).collect()
}

/// Fails unless two runs give what the interpreter gives, to the bit.
fn check(device: &Device, case: &Case, seed: u64, symbols: Bindings) {
    let graph = case.graph().unwrap();
    let inputs = case.inputs(&graph, seed, symbols);
    let want = bytes(interpret(&graph, &inputs).unwrap());
    for time in ["first", "second"] {
        let got = bytes(run(device, &graph, &inputs).unwrap_or_else(|e| panic!("{case:?}: {e}")));
        let differ = want[0].iter().zip(&got[0]).filter(|(a, b)| a != b).count();
        assert!(got == want, "{case:?}, {:?}, {time} run: {differ} bytes differ", inputs.symbols);
    }
}

/// Extents from one to several tiles, of columns and rows that no vector and no tile divides.
#[test]
fn any_extents_match_the_interpreter_to_the_bit() {
    let Some(device) = device() else { return };
    let extents = [
        [1, 1, 1, 1],
        [1, 1, 1, 3000],
        [1, 1, 64, 700],
        [1, 2, 3, 100],
        [3, 17, 5, 41],
        [2, 40, 130, 600],
        [1, 300, 1, 3001],
        [1, 5000, 2, 513],
        [1, 1000, 96, 511],
        [7, 5, 33, 512],
        [40, 6, 1, 65],
    ];
    for (seed, extents) in extents.into_iter().enumerate() {
        check(&device, &case(DType::F32, extents), seed as u64, Bindings::new());
    }
}

/// One row that all indices name: more terms than a list has entries, in every place of a tile.
#[test]
fn an_index_that_occurs_often_keeps_its_order() {
    let Some(device) = device() else { return };
    for (seed, row) in [0, 1, 41, 89].into_iter().enumerate() {
        let often = Case { named: Named::One(row), ..case(DType::F32, [1, 90, 70, 2500]) };
        check(&device, &often, seed as u64, Bindings::new());
        let in_turn = Case { named: Named::InTurn, ..case(DType::F32, [2, row as i64 + 1, 9, 1700]) };
        check(&device, &in_turn, seed as u64, Bindings::new());
    }
    // Beyond every row, and the largest of all.
    for row in [90, u64::from(u32::MAX)] {
        let nowhere = Case { named: Named::One(row), ..case(DType::F32, [1, 90, 70, 300]) };
        check(&device, &nowhere, row, Bindings::new());
    }
}

#[test]
fn targets_that_are_computed_match_the_interpreter_to_the_bit() {
    let Some(device) = device() else { return };
    for target in [Target::Zeros, Target::Computed] {
        for (seed, extents) in [[1, 50, 48, 200], [2, 33, 7, 130]].into_iter().enumerate() {
            let case = Case { target, ..case(DType::F32, extents) };
            check(&device, &case, seed as u64, Bindings::new());
        }
    }
}

#[test]
fn every_type_matches_the_interpreter_to_the_bit() {
    let Some(device) = device() else { return };
    let tallow::Device::Vulkan(vulkan) = &device else { panic!("{device} is no Vulkan device") };
    let caps = vulkan.caps();
    let has = |dtype: &DType| match dtype {
        DType::F64 => caps.float64,
        DType::I64 => caps.int64,
        _ => true,
    };
    for dtype in DType::SCALARS.into_iter().filter(has) {
        for (seed, extents) in [[1, 20, 6, 90], [2, 9, 31, 70], [1, 3, 1, 600]].into_iter().enumerate() {
            check(&device, &case(dtype, extents), seed as u64, Bindings::new());
        }
    }
}

#[test]
fn symbolic_extents_match_the_interpreter_to_the_bit() {
    let Some(device) = device() else { return };
    let known = case(DType::F32, [2, 21, 12, 90]);
    let symbol = |name: &str, most: u32| Dim::from(Symbol::new(name, most));
    let cases = [
        Case { outer: symbol("outer", 4), ..known.clone() },
        Case { rows: symbol("rows", 300), ..known.clone() },
        Case { inner: symbol("inner", 70), ..known.clone() },
        Case { count: symbol("count", 2000), ..known.clone() },
        Case { rows: symbol("rows", 300), count: symbol("count", 2000), target: Target::Computed, ..known },
    ];
    for (seed, case) in cases.iter().enumerate() {
        let limits: Vec<(String, u64)> =
            case.graph().unwrap().symbols().map(|s| (s.name().into(), s.limit().into())).collect();
        let values: BTreeSet<u64> = [0, 1, 3, 65, u64::MAX].into();
        for value in values {
            let symbols = limits.iter().map(|(name, limit)| (name.clone(), value.min(*limit))).collect();
            check(&device, case, seed as u64, symbols);
        }
    }
}

/// Operands and results of several windows.
#[test]
fn windows_match_the_interpreter_to_the_bit() {
    let Some(device) = device_with_range(1 << 16) else { return };
    check(&device, &case(DType::F32, [1, 400, 100, 300]), 1, Bindings::new());
    check(&device, &case(DType::F16, [2, 300, 61, 500]), 2, Bindings::new());
}

/// The gradient of an embedding whose rows are read again and again, and one of which most tokens name.
#[test]
fn the_gradient_of_an_embedding_is_that_of_the_interpreter() {
    let Some(device) = device() else { return };
    let mut g = Graph::new("embedding");
    let table = g.input("target", DType::F32, [97, 40]).unwrap();
    let tokens = g.input("indices", DType::U32, [6, 150]).unwrap();
    let rows = g.add(Op::Gather { axis: 0 }, &[table, tokens]).unwrap();
    let weights = g.input("source", DType::F32, [6, 150, 40]).unwrap();
    let y = g.elementwise(E::Mul, &[rows, weights]).unwrap();
    g.output("y", y).unwrap();
    let graph = verify(gradient(&g, &["y"], &["target"]).unwrap()).unwrap().into_graph();
    assert!(graph.nodes().any(|(_, node)| node.op == Op::IndexAdd));
    for named in [Named::Any, Named::One(3)] {
        let like = Case { named, ..case(DType::F32, [1, 97, 40, 900]) };
        let inputs = like.inputs(&graph, 5, Bindings::new());
        let want = bytes(interpret(&graph, &inputs).unwrap());
        assert_eq!(bytes(run(&device, &graph, &inputs).unwrap()), want, "{named:?}");
        assert_eq!(bytes(run(&device, &graph, &inputs).unwrap()), want, "{named:?}, again");
    }
}

/// A step of training by the API, on the device and on the CPU.
#[test]
fn a_step_of_training_an_embedding_is_deterministic() -> tallow::Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let mut rng = Rng::new(7);
    let mut numbers = |n: usize| (0..n).map(|_| rng.below(1 << 23) as f32 / 3e6 - 1.1).collect::<Vec<f32>>();
    let (table, weights) = (numbers(50 * 24), numbers(800 * 24));
    let tokens: Vec<u32> = (0..800).map(|i| i * i % 53).collect();
    let step = |device: &Device| -> tallow::Result<Vec<u32>> {
        let table = Var::from_tensor(&Tensor::from_vec(table.clone(), (50, 24), device)?)?;
        let tokens = Tensor::from_vec(tokens.clone(), 800, device)?;
        let weights = Tensor::from_vec(weights.clone(), (800, 24), device)?;
        let loss = (table.as_tensor().embedding(&tokens)? * weights)?.sum_all()?;
        let gradients = loss.backward()?;
        let gradient = gradients.get(table.as_tensor()).expect("a gradient of the table");
        Ok(gradient.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
    };
    let want = step(&Device::Cpu)?;
    assert_eq!(step(&device)?, want);
    assert_eq!(step(&device)?, want);
    Ok(())
}
