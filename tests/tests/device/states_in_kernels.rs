//! States that a kernel reads and updates: a recurrence with a sum over its new state, and tokens that move on by a row.

use tallow_ir::{DType, Dim, ElementwiseOp as E, Graph, GraphError, Op, ReduceKind, Value};

use crate::differential::check;
use crate::harness::device;

fn update(g: &mut Graph, state: Value, source: Value) -> Result<Value, GraphError> {
    let offsets = vec![Dim::zero(); g.ty(state).shape.rank()];
    g.add(Op::StateUpdate { offsets, rows: None }, &[state, source])
}

fn row(g: &mut Graph, x: Value, row: usize) -> Result<Value, GraphError> {
    g.add(Op::Slice { axis: 0, start: row.into(), len: Dim::one() }, &[x])
}

/// `h' = a h + x`, and for each row `sum(h' c)`, and with it the norm of `h'` where `twice`.
fn recurrence([rows, n]: [usize; 2], dtype: DType, twice: bool) -> Result<Graph, GraphError> {
    let mut g = Graph::new("recurrence");
    let a = g.input("a", dtype, [rows, 1])?;
    let x = g.input("x", dtype, [rows, n])?;
    let c = g.input("c", dtype, [n])?;
    let h = g.state("h", dtype, [rows, n])?;
    let a = g.broadcast(a, [rows, n])?;
    let c = g.broadcast(c, [rows, n])?;
    let h_before = g.elementwise(E::Mul, &[a, h])?;
    let after = g.elementwise(E::Add, &[h_before, x])?;
    let updated = update(&mut g, h, after)?;
    g.output("h", updated)?;
    let product = g.elementwise(E::Mul, &[after, c])?;
    let sum = g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1] }, &[product])?;
    g.output("sum", sum)?;
    if twice {
        let sum = g.reshape(sum, [rows, 1])?;
        let sum = g.broadcast(sum, [rows, n])?;
        let apart = g.elementwise(E::Sub, &[after, sum])?;
        let largest = g.add(Op::Reduce { kind: ReduceKind::Max, axes: vec![1] }, &[apart])?;
        g.output("largest", largest)?;
        g.output("apart", apart)?;
    }
    Ok(g)
}

/// A convolution of each channel over the last `kernel` tokens, the last of which is `x`, and the state of the others.
fn convolution([kernel, channels]: [usize; 2], dtype: DType) -> Result<Graph, GraphError> {
    let mut g = Graph::new("convolution");
    let x = g.input("x", dtype, [1, channels])?;
    let w = g.input("w", dtype, [kernel, channels])?;
    let state = g.state("tokens", dtype, [kernel - 1, channels])?;
    let all = g.add(Op::Concat { axis: 0 }, &[state, x])?;
    let last = Op::Slice { axis: 0, start: Dim::one(), len: (kernel - 1).into() };
    let last = g.add(last, &[all])?;
    let updated = update(&mut g, state, last)?;
    g.output("tokens", updated)?;
    let mut sum = None;
    for at in 0..kernel {
        let (token, factor) = (row(&mut g, all, at)?, row(&mut g, w, at)?);
        let term = g.elementwise(E::Mul, &[token, factor])?;
        sum = Some(match sum {
            Some(sum) => g.elementwise(E::Add, &[sum, term])?,
            None => term,
        });
    }
    let sum = sum.unwrap_or(x);
    let sum = g.elementwise(E::Tanh, &[sum])?;
    g.output("y", sum)?;
    Ok(g)
}

/// Compares with the interpreter; returns how many kernels there are.
fn kernels(graph: &Graph, seed: u64, what: &str) -> usize {
    if let Some(why) = check(graph, seed) {
        panic!("{what}: {}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
    }
    let device = device().unwrap();
    let module = tallow_codegen::compile(graph, device.caps().unwrap()).unwrap();
    module.program.dispatches.len()
}

/// Rows that an invocation, a subgroup and a workgroup reduce, in registers or read twice, a few or many. Rows that share a
/// vector of 16 bytes are another kernel's.
#[test]
fn a_state_is_updated_where_it_is_summed() {
    if device().is_none() {
        return;
    }
    let shapes =
        [[1, 4], [7, 8], [129, 16], [3, 20], [1030, 64], [5, 100], [700, 128], [2, 1028], [3, 12292]];
    for (seed, shape) in shapes.into_iter().enumerate() {
        for (dtype, twice) in [(DType::F32, false), (DType::F32, true), (DType::F16, false)] {
            let what = format!("{shape:?} {dtype:?} {twice}");
            let count = kernels(&recurrence(shape, dtype, twice).unwrap(), seed as u64, &what);
            let has_vectors = shape[1] * dtype.size().unwrap() % 16 == 0;
            assert_eq!(count == 1, has_vectors, "{what}: {count} kernels");
        }
    }
    for shape in [[6, 3], [130, 17], [9, 1027]] {
        let count = kernels(&recurrence(shape, DType::F32, false).unwrap(), 1, &format!("{shape:?}"));
        assert!(count > 1, "{shape:?}: {count} kernels");
    }
}

/// Channels that are and are not whole groups of vectors, a few and many; kernels of up to nine tokens. With two, the new
/// state has nothing of the old one, which the convolution reads: that is another kernel.
#[test]
fn a_state_moves_on_where_it_is_convolved() {
    if device().is_none() {
        return;
    }
    for (seed, channels) in [1, 3, 160, 257, 1028, 70_000].into_iter().enumerate() {
        for kernel in [2, 3, 4, 9, 10] {
            for dtype in [DType::F32, DType::F16] {
                let what = format!("{kernel} x {channels} {dtype:?}");
                let count = kernels(&convolution([kernel, channels], dtype).unwrap(), seed as u64, &what);
                assert_eq!(count == 1, (3..10).contains(&kernel), "{what}: {count} kernels");
            }
        }
    }
}
