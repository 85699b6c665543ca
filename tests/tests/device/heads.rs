//! Reductions of a matvec's results over runs of its columns against the interpreter: norms of query and key heads of many
//! sizes, with what comes before and after them in a network, in each kernel of few rows.

use tallow_ir::{
    DType, Dim, ElementwiseOp as E, Format, Graph, GraphError, Op, ReduceKind, Shape, Symbol, Value, caps,
    dot,
};

use tallow_tests::{Options, random_run_program};

use crate::differential::{check, report};
use crate::harness::{device, sampled};

/// What is made of the heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Norm {
    /// By the root of the mean square.
    Rms,
    /// By mean and deviation, one reduction of what another gave.
    Layer,
    /// By the largest and the sum of the exponentials.
    Softmax,
    /// By the position of the smallest element, and the product of all.
    Position,
}

/// How elements of a head turn with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rope {
    None,
    Pairs,
    Halves,
}

#[derive(Clone, Debug)]
struct Case {
    rows: usize,
    k: usize,
    head: usize,
    /// Heads of the queries, then of the keys.
    heads: [usize; 2],
    format: Format,
    norm: Norm,
    /// Whether the rows are normalized before the matmuls.
    before: bool,
    rope: Rope,
    /// What the keys are written as.
    cache: Option<DType>,
    /// Whether activations are rounded to 8 bits.
    quantized: bool,
    /// Whether what is normalized is an output, too.
    is_output: bool,
    /// Whether elements of a head lie apart, those of all heads side by side.
    apart: bool,
}

const PLAIN: Case = Case {
    rows: 1,
    k: 96,
    head: 64,
    heads: [4, 2],
    format: Format::F16,
    norm: Norm::Rms,
    before: false,
    rope: Rope::None,
    cache: None,
    quantized: false,
    is_output: false,
    apart: false,
};

struct Builder {
    g: Graph,
    weights: usize,
}

impl Builder {
    fn op(&mut self, op: E, operands: &[Value]) -> Result<Value, GraphError> {
        self.g.elementwise(op, operands)
    }

    fn with(&mut self, op: E, x: Value, constant: f64) -> Result<Value, GraphError> {
        let constant = self.g.full_like(x, constant)?;
        self.op(op, &[x, constant])
    }

    /// The reduction over the last axis, in the shape of its operand.
    fn reduced(&mut self, kind: ReduceKind, x: Value) -> Result<Value, GraphError> {
        let shape = self.g.ty(x).shape.clone();
        let y = self.g.reduce_keepdim(kind, x, &[shape.rank() - 1])?;
        self.g.broadcast(y, shape)
    }

    fn norm(&mut self, norm: Norm, x: Value) -> Result<Value, GraphError> {
        let shape = self.g.ty(x).shape.clone();
        let length = shape.dims()[shape.rank() - 1].max_value() as f64;
        let y = match norm {
            Norm::Rms | Norm::Layer => {
                let mut x = x;
                if norm == Norm::Layer {
                    let sum = self.reduced(ReduceKind::Sum, x)?;
                    let mean = self.with(E::Mul, sum, 1.0 / length)?;
                    x = self.op(E::Sub, &[x, mean])?;
                }
                let square = self.op(E::Mul, &[x, x])?;
                let sum = self.reduced(ReduceKind::Sum, square)?;
                let mean = self.with(E::Mul, sum, 1.0 / length)?;
                let shifted = self.with(E::Add, mean, 1e-5)?;
                let factor = self.op(E::Rsqrt, &[shifted])?;
                self.op(E::Mul, &[x, factor])?
            }
            Norm::Softmax => {
                let most = self.reduced(ReduceKind::Max, x)?;
                let shifted = self.op(E::Sub, &[x, most])?;
                let exp = self.op(E::Exp, &[shifted])?;
                let sum = self.reduced(ReduceKind::Sum, exp)?;
                self.op(E::Div, &[exp, sum])?
            }
            Norm::Position => {
                let least = self.reduced(ReduceKind::ArgMin, x)?;
                let least = self.g.add(Op::Cast(DType::F32), &[least])?;
                let bent = self.op(E::Tanh, &[x])?;
                let near = self.with(E::Mul, bent, 0.01)?;
                let near = self.with(E::Add, near, 1.0)?;
                let product = self.reduced(ReduceKind::Prod, near)?;
                let y = self.op(E::Add, &[product, least])?;
                self.op(E::Mul, &[x, y])?
            }
        };
        self.weights += 1;
        let gain = self.g.weight(
            &format!("w{}", self.weights),
            DType::F32,
            [shape.dims()[shape.rank() - 1].clone()],
        )?;
        let gain = self.g.broadcast(gain, shape)?;
        self.op(E::Mul, &[y, gain])
    }

    /// `x` times a weight of `n` rows.
    fn linear(&mut self, x: Value, format: Format, n: usize) -> Result<Value, GraphError> {
        let k = self.g.ty(x).shape.dims()[1].clone();
        self.weights += 1;
        let w = self.g.weight(&format!("w{}", self.weights), DType::Block(format), [Dim::from(n), k])?;
        let w = self.g.add(Op::Dequantize(DType::F32), &[w])?;
        let w = self.g.permute(w, &[1, 0])?;
        self.g.add(Op::Matmul, &[x, w])
    }

    /// `x`, `[.., head]`, whose pairs are turned by angles that are an input.
    fn rope(&mut self, rope: Rope, x: Value) -> Result<Value, GraphError> {
        let shape = self.g.ty(x).shape.clone();
        let (rank, dims) = (shape.rank(), shape.dims().to_vec());
        let half = dims[rank - 1].div_exact(&2.into()).unwrap_or_else(Dim::zero);
        let split = |pairs: bool| if pairs { [half.clone(), 2.into()] } else { [2.into(), half.clone()] };
        let (axis, split) = match rope {
            Rope::None => return Ok(x),
            Rope::Pairs => (rank, split(true)),
            Rope::Halves => (rank - 1, split(false)),
        };
        let parts: Vec<Dim> = dims[..rank - 1].iter().cloned().chain(split).collect();
        let x = self.g.reshape(x, Shape::new(parts.clone()))?;
        let mut part =
            |start: usize| self.g.add(Op::Slice { axis, start: start.into(), len: 1.into() }, &[x]);
        let (a, b) = (part(0)?, part(1)?);
        let mut side = parts;
        side[axis] = 1.into();
        let mut table = |name: &str| {
            let table = self.g.input(name, DType::F32, [half.clone()])?;
            let mut ones = vec![Dim::one(); rank + 1];
            ones[if axis == rank { rank - 1 } else { rank }] = half.clone();
            let table = self.g.reshape(table, Shape::new(ones))?;
            self.g.broadcast(table, Shape::new(side.clone()))
        };
        let (cos, sin) = (table("cos")?, table("sin")?);
        let (ac, bs) = (self.op(E::Mul, &[a, cos])?, self.op(E::Mul, &[b, sin])?);
        let (as_, bc) = (self.op(E::Mul, &[a, sin])?, self.op(E::Mul, &[b, cos])?);
        let (first, second) = (self.op(E::Sub, &[ac, bs])?, self.op(E::Add, &[as_, bc])?);
        let turned = self.g.add(Op::Concat { axis }, &[first, second])?;
        self.g.reshape(turned, Shape::new(dims))
    }
}

impl Case {
    fn graph(&self) -> Result<Graph, GraphError> {
        let Case { rows, head, .. } = *self;
        let mut b = Builder { g: Graph::new("heads"), weights: 0 };
        let mut x = b.g.input("x", DType::F32, [rows, self.k])?;
        if self.before {
            x = b.norm(Norm::Rms, x)?;
        }
        for (name, heads) in ["q", "k"].into_iter().zip(self.heads) {
            let y = b.linear(x, self.format, heads * head)?;
            let mut y = match self.apart {
                true => b.g.reshape(y, [rows, head, heads])?,
                false => b.g.reshape(y, [rows, heads, head])?,
            };
            if self.apart {
                y = b.g.permute(y, &[0, 2, 1])?;
            }
            if self.is_output {
                b.g.output(&format!("{name} before"), y)?;
            }
            y = b.norm(self.norm, y)?;
            y = b.rope(self.rope, y)?;
            let Some(dtype) = self.cache.filter(|_| name == "k") else {
                b.g.output(name, y)?;
                continue;
            };
            let y = b.g.reshape(y, [rows, heads * head])?;
            let y = match dtype {
                DType::Block(format) => b.g.add(Op::Quantize(format), &[y])?,
                _ => b.g.add(Op::Cast(dtype), &[y])?,
            };
            let state = b.g.state("cache", dtype, [16, heads * head])?;
            let offsets = vec![Dim::from(Symbol::new("pos", 16 - rows as u32)), Dim::zero()];
            let state = b.g.add(Op::StateUpdate { offsets, rows: None }, &[state, y])?;
            b.g.output("cache", state)?;
        }
        match self.quantized {
            // As callers write it, also for devices that would not ask for it.
            true => dot::quantize_activations(&b.g, &caps::h200()),
            false => Ok(b.g),
        }
    }
}

/// Compares cases, all of which are one kernel on a large device.
fn checked(cases: &[Case]) {
    let Some(device) = device() else { return };
    let graph = |case: &Case| {
        let graph = case.graph().expect("a graph of this test");
        let module = tallow_codegen::compile(&graph, &caps::h200()).expect("compiles");
        assert_eq!(module.program.dispatches.len(), 1, "{case:?}");
        graph
    };
    let graphs: Vec<Graph> = cases.iter().map(graph).collect();
    let mut of = 0;
    let failures =
        sampled(&device, 2, graphs.iter().zip(cases).enumerate()).filter_map(|(i, (graph, case))| {
            of += 1;
            check(graph, 8000 + i as u64).map(|why| format!("{case:?}\n{graph}\n{why}"))
        });
    let failures = failures.collect();
    report(failures, of);
}

const SIZES: [usize; 6] = [24, 32, 64, 80, 96, 128];
const NORMS: [Norm; 4] = [Norm::Rms, Norm::Layer, Norm::Softmax, Norm::Position];
const ROPES: [Rope; 3] = [Rope::None, Rope::Pairs, Rope::Halves];

#[test]
fn heads_of_all_sizes_match_the_interpreter() {
    let mut cases = vec![];
    for (i, head) in SIZES.into_iter().enumerate() {
        for (j, norm) in NORMS.into_iter().enumerate() {
            let rows = 1 + (3 * i + 5 * j) % 8;
            let heads = [[4, 2], [3, 1], [5, 5], [1, 7]][(i + j) % 4];
            let rope = ROPES[(i + 2 * j) % 3];
            let before = (i + j) % 2 == 0;
            cases.push(Case { rows, head, heads, norm, rope, before, ..PLAIN });
        }
    }
    checked(&cases);
}

#[test]
fn integer_products_of_heads_match_the_interpreter() {
    let mut cases = vec![];
    for (i, head) in SIZES.into_iter().enumerate() {
        for (j, (format, k)) in
            [(Format::Q4_0, 96), (Format::Q4_K, 512), (Format::Q8_0, 2080)].into_iter().enumerate()
        {
            let rows = [1, 3, 1, 2][(i + j) % 4];
            let (norm, rope) = (NORMS[(i + j) % 4], ROPES[(i + j / 2) % 3]);
            let case = Case { rows, k, head, format, norm, rope, before: j != 1, quantized: true, ..PLAIN };
            cases.push(case);
        }
    }
    checked(&cases);
}

#[test]
fn heads_into_caches_match_the_interpreter() {
    let mut cases = vec![];
    for (i, head) in SIZES.into_iter().enumerate() {
        for (j, dtype) in [DType::F32, DType::F16, DType::Block(Format::Q8_0)].into_iter().enumerate() {
            let rows = [1, 2, 5][(i + j) % 3];
            // Rows of whole blocks, in heads that need not be.
            let heads = [4, if head % 32 == 0 { 1 + i % 3 } else { 4 }];
            let (quantized, before) = ((i + j) % 2 == 0, j == 1);
            let (format, rope) = (if quantized { Format::Q4_0 } else { Format::F16 }, ROPES[(i + j) % 3]);
            let case =
                Case { rows, head, heads, format, rope, cache: Some(dtype), quantized, before, ..PLAIN };
            cases.push(case);
        }
    }
    checked(&cases);
}

/// The norm of what two matmuls make together, and of batches of rows.
#[test]
fn norms_of_several_results_match_the_interpreter() {
    let Some(_) = device() else { return };
    let mut graphs = vec![];
    for (rows, norm) in [(1, Norm::Rms), (3, Norm::Layer), (8, Norm::Softmax)] {
        let gated = |b: &mut Builder| {
            let x = b.g.input("x", DType::F32, [rows, 64])?;
            let [gate, up] = [b.linear(x, Format::Q4_0, 160)?, b.linear(x, Format::Q8_0, 160)?];
            let gate = b.op(E::Tanh, &[gate])?;
            let y = b.op(E::Mul, &[gate, up])?;
            let y = b.g.reshape(y, [rows, 4, 40])?;
            let y = b.norm(norm, y)?;
            b.g.output("y", y)
        };
        let batched = |b: &mut Builder| {
            let x = b.g.input("x", DType::F32, [3, rows, 40])?;
            let w = b.g.input("w", DType::F32, [3, 40, 96])?;
            let y = b.g.add(Op::Matmul, &[x, w])?;
            let y = b.g.reshape(y, [3, rows, 4, 24])?;
            let y = b.norm(norm, y)?;
            let y = b.rope(Rope::Halves, y)?;
            b.g.output("y", y)
        };
        for make in [&gated as &dyn Fn(&mut Builder) -> Result<(), GraphError>, &batched] {
            let mut b = Builder { g: Graph::new("several"), weights: 0 };
            make(&mut b).expect("a graph of this test");
            graphs.push(b.g);
        }
    }
    let failures = graphs.iter().enumerate().filter_map(|(i, graph)| {
        let module = tallow_codegen::compile(graph, &caps::h200()).expect("compiles");
        assert_eq!(module.program.dispatches.len(), 1, "{graph}");
        check(graph, 9000 + i as u64).map(|why| format!("{graph}\n{why}"))
    });
    report(failures.collect(), graphs.len());
}

/// Programs of reductions that nobody named.
#[test]
fn random_programs_over_columns_match_the_interpreter() {
    let Some(_) = device() else { return };
    let options = Options { floats: vec![DType::F32], ..Options::for_kernels() };
    let failures = (0..30).filter_map(|seed| {
        let graph = random_run_program(seed, &options);
        check(&graph, seed).map(|why| format!("{graph}\n{why}"))
    });
    report(failures.collect(), 30);
}

/// Tiles that end beyond the last head, long rows in parts, results before the norm that are outputs too.
#[test]
fn heads_in_tiles_of_all_kinds_match_the_interpreter() {
    let long = Case { before: true, quantized: true, format: Format::Q4_0, k: 4096, ..PLAIN };
    checked(&[
        Case { head: 24, heads: [250, 3], before: true, ..PLAIN },
        Case { head: 24, heads: [250, 3], before: true, quantized: true, format: Format::Q8_0, ..PLAIN },
        Case { head: 6, heads: [700, 11], before: true, rope: Rope::Halves, ..PLAIN },
        Case { head: 7, heads: [13, 5], ..PLAIN },
        Case { head: 1, heads: [40, 9], ..PLAIN },
        Case { head: 256, heads: [2, 1], rows: 2, ..PLAIN },
        Case { is_output: true, ..PLAIN },
        Case { is_output: true, rows: 3, head: 80, rope: Rope::Halves, ..PLAIN },
        Case { head: 32, heads: [2, 1], ..long.clone() },
        Case { head: 80, rows: 2, k: 2048 + 32, ..long.clone() },
        Case { head: 128, norm: Norm::Softmax, ..long },
        Case { apart: true, head: 16, heads: [5, 16], ..PLAIN },
        Case { apart: true, head: 24, heads: [10, 3], rows: 3, norm: Norm::Layer, before: true, ..PLAIN },
        Case { k: 40, head: 40, rows: 8, norm: Norm::Layer, ..PLAIN },
        Case { k: 7, rows: 4, norm: Norm::Softmax, rope: Rope::Pairs, ..PLAIN },
    ]);
}
