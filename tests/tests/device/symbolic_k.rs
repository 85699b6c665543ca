//! Matmuls with a long symbolic inner extent, along which tiles are split, against the interpreter. Values need all slices,
//! some, one and none.

use std::collections::HashMap;

use tallow_ir::{Bindings, DType, Dim, ElementwiseOp as E, Graph, GraphError, Op, Symbol};
use tallow_tests::with_symbols;

use crate::differential::{check_on, report};
use crate::harness::{device, sampled};

/// `[batch, m, k] x [batch, k, n]` and what is added, for `k` up to `most`.
#[derive(Clone, Copy)]
struct Case {
    dtype: DType,
    batch: i64,
    m: i64,
    n: i64,
    most: u32,
    /// Whether the right operand is contiguous along K.
    transposed: bool,
    sum: bool,
}

impl Case {
    fn graph(&self) -> Result<Graph, GraphError> {
        let k = Dim::from(Symbol::new("k", self.most));
        let (batch, m, n) = (Dim::from(self.batch), Dim::from(self.m), Dim::from(self.n));
        let mut g = Graph::new("products");
        let x = g.input("x", self.dtype, [batch.clone(), m.clone(), k.clone()])?;
        let right = if self.transposed { [&batch, &n, &k] } else { [&batch, &k, &n] };
        let mut y = g.input("y", self.dtype, right.map(Dim::clone))?;
        if self.transposed {
            y = g.permute(y, &[0, 2, 1])?;
        }
        let mut z = g.add(Op::Matmul, &[x, y])?;
        if self.sum {
            let w = g.input("w", self.dtype, [batch, m, n])?;
            z = g.elementwise(E::Add, &[z, w])?;
        }
        g.output("z", z)?;
        Ok(g)
    }
}

#[test]
fn slices_that_there_are_match_the_interpreter() {
    let Some(device) = device() else { return };
    let case = |dtype, [batch, m, n]: [i64; 3], most| Case {
        dtype,
        batch,
        m,
        n,
        most,
        transposed: false,
        sum: false,
    };
    let all = [
        case(DType::F32, [1, 33, 40], 4100),
        Case { transposed: true, ..case(DType::F32, [3, 12, 20], 4096) },
        Case { sum: true, ..case(DType::F32, [2, 64, 64], 8192) },
        Case { sum: true, ..case(DType::F16, [3, 16, 128], 4096) },
        Case { transposed: true, ..case(DType::F16, [1, 64, 72], 4800) },
        case(DType::BF16, [2, 17, 24], 4096),
    ];
    let mut failures = vec![];
    let mut split = 0;
    let cases: Vec<(usize, Case)> = sampled(&device, 2, all.into_iter().enumerate()).collect();
    for (i, case) in &cases {
        let graph = case.graph().expect("a graph of this test");
        let executable = device.compile(&graph, &HashMap::new(), &HashMap::new()).unwrap();
        split += usize::from(executable.explain().contains(" split"));
        let most = u64::from(case.most);
        for k in [0, 1, 100, most / 4 + 3, most / 2, most] {
            let inputs = with_symbols(&graph, 7200 + *i as u64, Bindings::from([("k".into(), k)]));
            failures.extend(check_on(&device, &graph, &inputs).err());
        }
    }
    assert!(split > cases.len() / 2, "{split} of {} kernels are split", cases.len());
    report(failures, cases.len());
}
