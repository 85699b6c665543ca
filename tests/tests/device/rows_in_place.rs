//! Rows that a kernel reduces and writes over what it read: softmax and norms of intermediates of 1 MiB and more.

use tallow_ir::{DType, ElementwiseOp as E, Graph, GraphError, Op, ReduceKind, Value};

use crate::differential::check;
use crate::harness::device;

/// Softmax of the rows of `x`.
fn softmax(g: &mut Graph, x: Value, shape: [usize; 2]) -> Result<Value, GraphError> {
    let reduce = |g: &mut Graph, kind, x| {
        let r = g.add(Op::Reduce { kind, axes: vec![1] }, &[x])?;
        let r = g.reshape(r, [shape[0], 1])?;
        g.broadcast(r, shape)
    };
    let max = reduce(g, ReduceKind::Max, x)?;
    let x = g.elementwise(E::Sub, &[x, max])?;
    let x = g.elementwise(E::Exp, &[x])?;
    let sum = reduce(g, ReduceKind::Sum, x)?;
    g.elementwise(E::Div, &[x, sum])
}

/// Softmax of a product, whose rows are reduced by subgroups, by workgroups that hold them in registers, and by workgroups
/// that read them three times; whole vectors of 16 bytes and not; a second result that reads them too, and another reader.
#[test]
fn rows_overwrite_what_they_reduce() {
    let Some(device) = device() else { return };
    let shapes = [[4096, 64], [1031, 256], [700, 1024], [513, 1028], [37, 12288], [512, 1027]];
    for (seed, shape) in shapes.into_iter().enumerate() {
        for (dtype, results) in [(DType::F32, 1), (DType::F16, 1), (DType::F32, 2), (DType::F32, 3)] {
            let build = || -> Result<Graph, GraphError> {
                let mut g = Graph::new("rows");
                let a = g.input("a", dtype, [shape[0], 8])?;
                let b = g.input("b", dtype, [8, shape[1]])?;
                let c = g.input("c", dtype, [shape[1], 4])?;
                let x = g.add(Op::Matmul, &[a, b])?;
                let wide = g.add(Op::Cast(DType::F32), &[x])?;
                let y = softmax(&mut g, wide, shape)?;
                let y = g.add(Op::Cast(dtype), &[y])?;
                // Products read it, so that it is no result of the graph.
                let y = g.add(Op::Matmul, &[y, c])?;
                g.output("y", y)?;
                if results > 1 {
                    let sums = g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1] }, &[x])?;
                    g.output("sums", sums)?;
                }
                if results > 2 {
                    let z = g.elementwise(E::Neg, &[x])?;
                    let z = g.add(Op::Matmul, &[z, c])?;
                    g.output("z", z)?;
                }
                Ok(g)
            };
            let graph = build().unwrap();
            if let Some(why) = check(&graph, seed as u64) {
                panic!("{shape:?} {dtype:?}: {}", why.lines().take(40).collect::<Vec<_>>().join("\n"));
            }
            let module = tallow_codegen::compile(&graph, device.caps().unwrap()).unwrap();
            let in_place = |dispatch: &tallow_ir::schedule::Dispatch| {
                dispatch.writes.iter().any(|w| dispatch.reads.iter().any(|r| r.buffer == w.buffer))
            };
            let found = module.program.dispatches.iter().any(in_place);
            let bytes = shape[0] * shape[1] * dtype.size().unwrap();
            let has_vectors = shape[1] * dtype.size().unwrap() % 16 == 0;
            println!("{shape:?} {dtype:?} {results}: {found}");
            assert_eq!(
                found,
                bytes >= 1 << 20 && has_vectors && results < 3,
                "{shape:?} {dtype:?} {results}"
            );
        }
    }
}
