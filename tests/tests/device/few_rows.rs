//! Matmuls of a symbolic number of few rows against the interpreter. The kernels compute the largest number of rows, and
//! store the rows of the run.

use tallow_ir::{
    Bindings, DType, Dim, ElementwiseOp as E, Format, FusionKind, Graph, GraphError, Op, ReduceKind, Symbol,
    Value, caps, dot, passes,
};
use tallow_tests::with_symbols;

use crate::differential::{check_on, report};
use crate::harness::{device, sampled};

/// Rows of `k` elements times a weight of `n` columns, with what comes before and after it.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Bounds of the number of rows, and the numbers to run.
    least: u32,
    most: u32,
    rows: [u64; 2],
    k: i64,
    n: i64,
    format: Format,
    /// Whether rows are normalized before.
    normed: bool,
    /// Whether activations are rounded to 8 bits.
    quantized: bool,
    after: After,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Nothing,
    /// A residual and a bias are added.
    Sum,
    /// Groups of columns are normalized.
    Groups(i64),
    /// Another matmul reads the result.
    Product,
    /// The result is read transposed.
    Transposed,
}

const PLAIN: Case = Case {
    least: 2,
    most: 8,
    rows: [3, 8],
    k: 264,
    n: 70,
    format: Format::F32,
    normed: false,
    quantized: false,
    after: After::Nothing,
};

/// Rows over the root of the mean of their squares.
fn normed(g: &mut Graph, x: Value) -> Result<Value, GraphError> {
    let shape = g.ty(x).shape.clone();
    let squares = g.elementwise(E::Mul, &[x, x])?;
    let sum = g.reduce_keepdim(ReduceKind::Sum, squares, &[shape.rank() - 1])?;
    let scale = g.elementwise(E::Rsqrt, &[sum])?;
    let scale = g.broadcast(scale, shape)?;
    g.elementwise(E::Mul, &[x, scale])
}

fn times(g: &mut Graph, name: &str, x: Value, (format, n): (Format, i64)) -> Result<Value, GraphError> {
    let k = g.ty(x).shape.dims()[1].clone();
    let w = g.weight(name, DType::Block(format), [n.into(), k])?;
    let w = g.add(Op::Dequantize(DType::F32), &[w])?;
    let w = g.permute(w, &[1, 0])?;
    g.add(Op::Matmul, &[x, w])
}

impl Case {
    fn graph(&self) -> Result<Graph, GraphError> {
        let rows = Dim::from(Symbol::new("rows", self.most).at_least(self.least));
        let mut g = Graph::new("rows");
        let mut x = g.input("x", DType::F32, [rows.clone(), self.k.into()])?;
        if self.normed {
            x = normed(&mut g, x)?;
        }
        let mut y = times(&mut g, "w", x, (self.format, self.n))?;
        match self.after {
            After::Nothing => {}
            After::Sum => {
                let z = g.input("z", DType::F32, [rows.clone(), self.n.into()])?;
                y = g.elementwise(E::Add, &[y, z])?;
                let bias = g.weight("bias", DType::F32, [self.n])?;
                let bias = g.broadcast(bias, [rows, self.n.into()])?;
                y = g.elementwise(E::Add, &[y, bias])?;
            }
            After::Groups(columns) => {
                y = g.reshape(y, [rows, (self.n / columns).into(), columns.into()])?;
                y = normed(&mut g, y)?;
            }
            After::Product => {
                y = g.elementwise(E::Tanh, &[y])?;
                y = times(&mut g, "w1", y, (self.format, 48))?;
            }
            After::Transposed => y = g.permute(y, &[1, 0])?,
        }
        g.output("y", y)?;
        match self.quantized {
            // As callers write it, also for devices that would not ask for it.
            true => dot::quantize_activations(&g, &caps::h200()),
            false => Ok(g),
        }
    }
}

fn checked(cases: &[Case]) {
    let Some(device) = device() else { return };
    let cases: Vec<(usize, Case)> = sampled(&device, 2, cases.iter().copied().enumerate()).collect();
    let mut failures = vec![];
    for (i, case) in &cases {
        let graph = case.graph().expect("a graph of this test");
        for rows in case.rows {
            let inputs = with_symbols(&graph, 7000 + *i as u64, Bindings::from([("rows".into(), rows)]));
            failures.extend(check_on(&device, &graph, &inputs).err());
        }
    }
    report(failures, cases.len());
}

#[test]
fn plain_weights_match_the_interpreter() {
    let mut cases = vec![];
    for (i, format) in [Format::F32, Format::F16, Format::BF16].into_iter().enumerate() {
        let case = Case { format, ..PLAIN };
        cases.extend([
            Case { k: [33, 8, 1032][i], n: 2050, ..case },
            Case { least: 0, rows: [0, 5], n: 7, ..case },
            Case { least: 0, most: 3, rows: [1, 3], normed: true, ..case },
            Case { most: 4, rows: [2, 3], after: After::Sum, n: 4, ..case },
            Case { rows: [5, 7], after: After::Groups(32), n: 96, ..case },
            Case { rows: [4, 6], after: After::Transposed, ..case },
            Case { least: 5, rows: [5, 8], normed: true, after: After::Product, ..case },
        ]);
    }
    checked(&cases);
}

#[test]
fn weights_in_blocks_match_the_interpreter() {
    let mut cases = vec![];
    for (i, format) in [Format::Q8_0, Format::Q4_K, Format::Q4_0, Format::Q6_K].into_iter().enumerate() {
        for quantized in [true, false] {
            let case = Case { format, quantized, k: 512, n: 130, ..PLAIN };
            cases.extend([
                Case { k: [256, 1536, 4096, 768][i], n: [1030, 9, 257, 64][i], ..case },
                Case { least: 0, most: 3, rows: [0, 2], normed: true, ..case },
                Case { most: 4, rows: [2, 3], after: After::Sum, n: 5, ..case },
                Case { rows: [5, 7], after: After::Groups(64), n: 128, normed: true, ..case },
                Case { most: 2, rows: [2, 2], after: After::Transposed, ..case },
                Case { rows: [3, 6], after: After::Product, n: 256, normed: i % 2 == 0, ..case },
            ]);
        }
    }
    checked(&cases);
}

/// The right operand has few columns, and the sides are exchanged.
#[test]
fn few_columns_match_the_interpreter() {
    let Some(device) = device() else { return };
    let mut failures = vec![];
    for (i, columns) in [3, 8].into_iter().enumerate() {
        let rows = Dim::from(Symbol::new("rows", 8).at_least(2));
        let mut g = Graph::new("columns");
        let x = g.input("x", DType::F32, [Dim::from(3), 100.into(), 72.into()]).unwrap();
        let z = g.input("z", DType::F32, [Dim::from(3), 72.into(), rows]).unwrap();
        let y = g.add(Op::Matmul, &[x, z]).unwrap();
        g.output("y", y).unwrap();
        let inputs = with_symbols(&g, 7100 + i as u64, Bindings::from([("rows".into(), columns)]));
        failures.extend(check_on(&device, &g, &inputs).err());
    }
    report(failures, 2);
}

/// A number of rows that is known to be small has the kernel of one that is known.
#[test]
fn kernels_are_those_of_matvecs() {
    let kinds = |most: u32| {
        let graph = Case { most, ..PLAIN }.graph().unwrap();
        let fused = passes::run(&graph, &caps::h200(), &mut |_, _| {}).unwrap();
        let kinds = fused.graph().nodes().filter_map(|(_, node)| match &node.op {
            Op::Fusion(fusion) => Some(fusion.kind),
            _ => None,
        });
        kinds.collect::<Vec<FusionKind>>()
    };
    assert_eq!(kinds(8), [FusionKind::Matvec]);
    assert_eq!(kinds(9), [FusionKind::Matmul]);
}
