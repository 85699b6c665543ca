//! Matvecs whose activations the matvec in front rounds: its results, normed or not, read as blocks by others.

use tallow_ir::{DType, ElementwiseOp as E, Format, Graph, GraphError, Op, ReduceKind, Value, caps, dot};

use crate::differential::{check, report};
use crate::harness::device;

/// What is done with a projection before others read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Norm {
    None,
    /// Divided by the root of its mean square.
    Rms,
    /// The same, times a weight of each column, as models have it.
    Gain,
    /// Times the largest of each row: any reduction of it will do.
    Largest,
}

/// A projection from `k` to `n` columns, with what is added to it, and the weights of what reads it.
#[derive(Clone, Debug)]
struct Case {
    rows: i64,
    k: i64,
    n: i64,
    format: Format,
    norm: Norm,
    residual: bool,
    readers: Vec<(Format, i64)>,
    /// Kernels on a large device.
    dispatches: usize,
}

fn times(
    g: &mut Graph,
    name: &str,
    x: Value,
    (format, n, k): (Format, i64, i64),
) -> Result<Value, GraphError> {
    let w = g.weight(name, DType::Block(format), [n, k])?;
    let w = g.add(Op::Dequantize(DType::F32), &[w])?;
    let w = g.permute(w, &[1, 0])?;
    g.add(Op::Matmul, &[x, w])
}

impl Case {
    fn graph(&self) -> Result<Graph, GraphError> {
        let mut g = Graph::new("blocks");
        let x = g.input("x", DType::F32, [self.rows, self.k])?;
        let mut y = times(&mut g, "projection", x, (self.format, self.n, self.k))?;
        if self.residual {
            let h = g.input("h", DType::F32, [self.rows, self.n])?;
            y = g.elementwise(E::Add, &[h, y])?;
            g.output("sum", y)?;
        }
        let normed = self.norm(&mut g, y)?;
        for (i, (format, n)) in self.readers.iter().enumerate() {
            let z = times(&mut g, &format!("w{i}"), normed, (*format, *n, self.n))?;
            g.output(&format!("y{i}"), z)?;
        }
        // As callers write it, also for devices that would not ask for it.
        dot::quantize_activations(&g, &caps::h200())
    }

    fn norm(&self, g: &mut Graph, y: Value) -> Result<Value, GraphError> {
        let all = [self.rows, self.n];
        let factor = match self.norm {
            Norm::None => return Ok(y),
            Norm::Rms | Norm::Gain => {
                let squares = g.elementwise(E::Mul, &[y, y])?;
                let sum = g.reduce_keepdim(ReduceKind::Sum, squares, &[1])?;
                let mean = g.full_like(sum, 1.0 / self.n as f64)?;
                let mean = g.elementwise(E::Mul, &[sum, mean])?;
                g.elementwise(E::Rsqrt, &[mean])?
            }
            Norm::Largest => g.reduce_keepdim(ReduceKind::Max, y, &[1])?,
        };
        let factor = g.broadcast(factor, all)?;
        let mut normed = g.elementwise(E::Mul, &[y, factor])?;
        if self.norm == Norm::Gain {
            let gain = g.weight("gain", DType::F32, [self.n])?;
            let gain = g.broadcast(gain, all)?;
            normed = g.elementwise(E::Mul, &[normed, gain])?;
        }
        Ok(normed)
    }
}

#[test]
fn blocks_of_results_match_the_interpreter() {
    let Some(_) = device() else { return };
    let (mut cases, formats) =
        (vec![], [Format::Q4_0, Format::Q8_0, Format::Q4_K, Format::Q6_K, Format::NVFP4]);
    let norms = [Norm::Gain, Norm::Rms, Norm::None, Norm::Largest];
    for (i, n) in [32, 96, 256, 1024, 1024 + 256, 4096, 5120].into_iter().enumerate() {
        for (j, format) in [Format::Q4_0, Format::F16, Format::Q6_K].into_iter().enumerate() {
            let of = |f: Format| (n % f.block_elements() as i64 == 0).then_some(f);
            let reader = |k: usize| of(formats[k % formats.len()]).unwrap_or(Format::Q8_0);
            let readers = match (i + j) % 3 {
                0 => vec![(reader(i), 40)],
                1 => vec![(reader(i + j), 72), (reader(i + j + 1), 9)],
                _ => vec![(reader(j), 300), (reader(j), 300), (reader(j + 2), 33)],
            };
            let (rows, norm) = ([1, 1, 3, 1, 8][(2 * i + j) % 5], norms[(i + 2 * j) % 4]);
            let (k, residual) = ([256, 512, 1536][(i + j) % 3], (i + j) % 2 == 0);
            cases.push(Case { rows, k, n, format, norm, residual, readers, dispatches: 2 });
        }
    }
    let failures = cases.iter().enumerate().filter_map(|(i, case)| {
        let graph = case.graph().expect("a graph of this test");
        let module = tallow_codegen::compile(&graph, &caps::h200()).expect("compiles");
        assert_eq!(module.program.dispatches.len(), case.dispatches, "{case:?}");
        check(&graph, 9000 + i as u64).map(|why| format!("{case:?}\n{graph}\n{why}"))
    });
    report(failures.collect(), cases.len());
}
