//! Several windows per invocation: groups of every size along any axis, every schedule of their kernels, all
//! reductions and element types, padding, strides and dilation, several passes, and extents that only a run knows.

use std::collections::BTreeSet;

use tallow_codegen::{Schedule, Schedules};
use tallow_ir::{
    DType, Dim, ElementwiseOp as E, Fusion, Graph, GraphError, Op, ReduceKind, Scalar, Symbol, Value, passes,
};
use tallow_tests::random_inputs::with_symbols;
use tallow_tests::{Inputs, random_inputs};

use crate::choices::{context, fusions, possible, run_with};
use crate::differential::{Expected, check, computed};
use crate::harness::device;

/// Windows of an image `[batch, channels, height, width]`.
#[derive(Clone)]
struct Windows {
    batch: Dim,
    /// Channels, height and width.
    image: [i64; 3],
    /// Height and width of a window.
    size: [usize; 2],
    stride: usize,
    dilation: usize,
    padding: i64,
    dtype: DType,
}

fn windows(batch: i64, image: [i64; 3], size: [usize; 2], padding: i64) -> Windows {
    Windows { batch: batch.into(), image, size, stride: 1, dilation: 1, padding, dtype: DType::F32 }
}

impl Windows {
    fn image(&self, g: &mut Graph) -> Result<Value, GraphError> {
        let [channels, height, width] = self.image.map(Dim::from);
        g.input("x", self.dtype, [self.batch.clone(), channels, height, width])
    }

    /// `[batch, channels, rows, height, columns, width]`.
    fn of(&self, g: &mut Graph, mut x: Value) -> Result<Value, GraphError> {
        let (stride, dilation) = (self.stride, self.dilation);
        for (axis, size) in [(3, self.size[1]), (2, self.size[0])] {
            let pad = if size > 1 { self.padding } else { 0 };
            let value = Scalar::of(g.ty(x).dtype, 0.0);
            x = g.add(Op::Pad { axis, before: pad.into(), after: pad.into(), value }, &[x])?;
            x = g.add(Op::Window { axis, size, stride, dilation }, &[x])?;
        }
        Ok(x)
    }

    /// `[batch, channels, rows, columns]`, each kind of reduction an output.
    fn pools(&self, kinds: &[ReduceKind]) -> Result<Graph, GraphError> {
        let mut g = Graph::new("pools");
        let x = self.image(&mut g)?;
        let x = self.of(&mut g, x)?;
        for kind in kinds {
            let y = g.add(Op::Reduce { kind: *kind, axes: vec![3, 5] }, &[x])?;
            g.output(kind.name(), y)?;
        }
        Ok(g)
    }

    /// One kernel per channel, with a bias and a residual.
    fn depthwise(&self) -> Result<Graph, GraphError> {
        let mut g = Graph::new("depthwise");
        let x = self.image(&mut g)?;
        let x = g.add(Op::Cast(DType::F32), &[x])?;
        let x = self.of(&mut g, x)?;
        let dims = g.ty(x).shape.dims().to_vec();
        let (count, taps) = (&dims[2] * &dims[4], &dims[3] * &dims[5]);
        let x = g.permute(x, &[0, 1, 3, 5, 2, 4])?;
        let all = [dims[0].clone(), dims[1].clone(), taps.clone(), count.clone()];
        let x = g.reshape(x, all.clone())?;
        let kernel = g.weight("kernel", DType::F32, [dims[1].clone(), taps.clone(), 1.into()])?;
        let kernel = g.broadcast(kernel, all)?;
        let x = g.elementwise(E::Mul, &[x, kernel])?;
        let y = g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![2] }, &[x])?;
        let y = g.reshape(y, [dims[0].clone(), dims[1].clone(), dims[2].clone(), dims[4].clone()])?;
        let shape = g.ty(y).shape.clone();
        let bias = g.weight("bias", DType::F32, [dims[1].clone(), 1.into(), 1.into()])?;
        let bias = g.broadcast(bias, shape.clone())?;
        let y = g.elementwise(E::Add, &[y, bias])?;
        let residual = g.input("residual", DType::F32, shape)?;
        let y = g.elementwise(E::Add, &[y, residual])?;
        let y = g.add(Op::Cast(self.dtype), &[y])?;
        g.output("y", y)?;
        Ok(g)
    }

    /// The sum of squared distances from the largest element of a window, in two passes.
    fn spread(&self) -> Result<Graph, GraphError> {
        let mut g = Graph::new("spread");
        let x = self.image(&mut g)?;
        let x = self.of(&mut g, x)?;
        let shape = g.ty(x).shape.clone();
        let most = g.add(Op::Reduce { kind: ReduceKind::Max, axes: vec![3, 5] }, &[x])?;
        let ones =
            [0, 1, 2, 3, 4, 5].map(|i| if [3, 5].contains(&i) { 1.into() } else { shape.dims()[i].clone() });
        let all = g.reshape(most, ones)?;
        let all = g.broadcast(all, shape)?;
        let x = g.elementwise(E::Sub, &[x, all])?;
        let x = g.elementwise(E::Mul, &[x, x])?;
        let sum = g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![3, 5] }, &[x])?;
        g.output("sum", sum)?;
        g.output("most", most)?;
        Ok(g)
    }
}

/// Runs a graph with every schedule of its kernels. Returns those of short rows.
fn every_schedule(graph: &Graph, all_inputs: &[Inputs], what: &str) -> Vec<Schedule> {
    let Some(context) = context(false, None) else { return vec![] };
    let fused = passes::run(graph, context.caps(), &mut |_, _| {}).unwrap();
    let all: Vec<(&Fusion, Vec<Schedule>)> =
        fusions(fused.graph()).map(|f| (f, possible(f, &context))).collect();
    let most = all.iter().map(|(_, all)| all.len()).max().unwrap_or(0);
    for inputs in all_inputs {
        let expected = Expected::of(graph, inputs);
        for nth in 0..most {
            let chosen = |(f, all): &(&Fusion, Vec<Schedule>)| Some(((*f).clone(), *all.get(nth)?));
            let mut choose = |_: &Graph| -> Schedules { all.iter().filter_map(chosen).collect() };
            let got = run_with(&context, graph, inputs, Some(&mut choose));
            let got = got.unwrap_or_else(|e| panic!("{what}: {e}\n{graph}"));
            let wrong = expected.differences(&got);
            let wrong: Vec<&str> = wrong.iter().flat_map(|text| text.lines()).take(20).collect();
            assert!(wrong.is_empty(), "{what}, schedule {nth}: {}\n{graph}", wrong.join("\n"));
        }
    }
    let schedules = all.into_iter().flat_map(|(_, all)| all);
    schedules.filter(|s| s.to_string().starts_with("short_rows")).collect()
}

/// As [`every_schedule`], with drawn inputs. Returns the sizes of the groups.
fn sizes(graph: Result<Graph, GraphError>, what: &str) -> BTreeSet<u32> {
    let graph = graph.expect("a graph of this test");
    let inputs = [random_inputs(&graph, 31)];
    every_schedule(&graph, &inputs, what).iter().map(|schedule| schedule.tile.m).collect()
}

/// Extents of results that each size of a group divides; prime ones; windows of one axis; single elements.
fn shapes() -> Vec<Windows> {
    let mut all = vec![
        windows(2, [3, 7, 13], [3, 3], 0),
        windows(3, [4, 8, 11], [3, 3], 1),
        windows(1, [2, 6, 67], [5, 5], 2),
        windows(4, [5, 1, 14], [1, 4], 2),
        windows(2, [5, 1, 22], [1, 31], 15),
        windows(2, [3, 1, 9], [1, 4], 2),
        windows(2, [3, 1, 8], [1, 5], 2),
        windows(1, [7, 3, 1], [3, 1], 1),
        windows(1, [1, 13, 17], [3, 3], 1),
        windows(1, [1, 3, 3], [3, 3], 0),
        windows(1, [1, 1, 1], [1, 1], 0),
    ];
    all.push(Windows { stride: 2, ..windows(2, [3, 14, 15], [3, 3], 1) });
    all.push(Windows { dilation: 2, ..windows(1, [3, 10, 9], [3, 3], 2) });
    all.push(Windows { stride: 3, ..windows(1, [5, 16, 20], [2, 2], 0) });
    all
}

#[test]
fn convolutions_of_every_schedule() {
    let Some(device) = device() else { return };
    let mut found = BTreeSet::new();
    for (i, shape) in shapes().into_iter().enumerate() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let graph = Windows { dtype, ..shape.clone() }.depthwise();
            found.extend(sizes(graph, &format!("shape {i} of {dtype}")));
        }
    }
    let all: BTreeSet<u32> = [0, 2, 3, 4, 5, 6, 7, 8].into();
    assert!(found.is_superset(&[0, 3, 4, 7].into()) && found.is_subset(&all), "{found:?} on {device}");
}

#[test]
fn all_reductions_of_all_types() {
    let Some(device) = device() else { return };
    for dtype in computed(&device) {
        for shape in [windows(2, [3, 7, 13], [3, 3], 1), windows(2, [3, 1, 8], [1, 5], 2)] {
            let shape = Windows { dtype, ..shape };
            for kinds in [&ReduceKind::ALL[..], &[ReduceKind::Max], &[ReduceKind::Sum, ReduceKind::ArgMin]] {
                sizes(shape.pools(kinds), &format!("{dtype} {kinds:?}"));
            }
        }
    }
}

#[test]
fn several_passes() {
    let found: Vec<BTreeSet<u32>> =
        shapes().iter().enumerate().map(|(i, shape)| sizes(shape.spread(), &format!("shape {i}"))).collect();
    assert!(device().is_none() || found.iter().any(|sizes| sizes.iter().any(|size| *size > 1)), "{found:?}");
}

#[test]
fn batches_of_a_run() {
    let batch = Symbol::new("n", 9);
    let shape = Windows { batch: Dim::from(&batch), ..windows(1, [3, 7, 13], [3, 3], 1) };
    let graph = shape.depthwise().unwrap();
    let inputs = [0, 1, 2, 9].map(|n| with_symbols(&graph, n, [("n".into(), n)].into_iter().collect()));
    let found = every_schedule(&graph, &inputs, "batches");
    assert!(device().is_none() || found.iter().any(|schedule| schedule.tile.m > 1), "{found:?}");
}

/// So many rows that the default groups them.
#[test]
fn many_rows() {
    let Some(device) = device() else { return };
    for (shape, size) in
        [(windows(1, [1, 560, 571], [3, 3], 1), 2), (windows(3, [1, 900, 301], [2, 3], 0), 0)]
    {
        let graph = shape.pools(&[ReduceKind::Max]).unwrap();
        let kernels = tallow_codegen::compile(&graph, device.caps().unwrap()).unwrap().kernels;
        let found: Vec<u32> = kernels.iter().map(|kernel| kernel.schedule.tile.m).collect();
        assert_eq!(found, [size]);
        if let Some(why) = check(&graph, 5) {
            panic!("{}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
        }
    }
}
