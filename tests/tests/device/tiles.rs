//! Matmuls by multiply-adds against the interpreter: extents around the sides of tiles and slices, operands that can be
//! loaded in vectors along either axis or along none, and epilogues in registers and through shared memory.

use tallow_ir::{DType, Dim, ElementwiseOp as E, Format, Graph, GraphError, Op, Symbol, Value};

use crate::differential::{check, computed, report};
use crate::harness::device;

fn checked(graphs: Vec<Result<Graph, GraphError>>) {
    if device().is_none() {
        return;
    }
    let of = graphs.len();
    let found = graphs.into_iter().enumerate().filter_map(|(i, graph)| {
        let graph = graph.expect("a graph of this test");
        check(&graph, 7000 + i as u64).map(|why| format!("{graph}\n{why}"))
    });
    report(found.collect(), of);
}

/// An operand `[batch, rows, columns]`, or the transpose of one.
fn operand(
    g: &mut Graph,
    name: &str,
    dtype: DType,
    dims: [Dim; 3],
    turned: bool,
) -> Result<Value, GraphError> {
    let [batch, rows, columns] = dims;
    if !turned {
        return g.input(name, dtype, [batch, rows, columns]);
    }
    let x = g.input(name, dtype, [batch, columns, rows])?;
    g.permute(x, &[0, 2, 1])
}

fn product(
    dtype: DType,
    batches: [i64; 2],
    [m, k, n]: [Dim; 3],
    turned: [bool; 2],
) -> Result<Graph, GraphError> {
    let mut g = Graph::new("product");
    let x = operand(&mut g, "a", dtype, [batches[0].into(), m, k.clone()], turned[0])?;
    let y = operand(&mut g, "b", dtype, [batches[1].into(), k, n], turned[1])?;
    let y = g.add(Op::Matmul, &[x, y])?;
    g.output("y", y)?;
    Ok(g)
}

const ORDERS: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

#[test]
fn extents_around_tiles_match_the_interpreter() {
    let extents = [
        [9, 1, 5],
        [31, 7, 33],
        [32, 16, 32],
        [33, 15, 64],
        [64, 8, 65],
        [65, 17, 68],
        [127, 12, 128],
        [128, 9, 129],
        [129, 24, 132],
        [260, 40, 136],
    ];
    let mut graphs = vec![];
    for (i, extents) in extents.into_iter().enumerate() {
        let batches = [[1, 1], [3, 1], [1, 2], [2, 2]][i % 4];
        // Both operands in both orders, in two of the four pairs.
        for turned in [ORDERS[i % 2], ORDERS[3 - i % 2]] {
            graphs.push(product(DType::F32, batches, extents.map(Dim::from), turned));
        }
    }
    checked(graphs);
}

/// So many batches that a large device takes its larger tiles.
#[test]
fn many_tiles_match_the_interpreter() {
    let cases = [
        ([70, 1], [70, 20, 66]),
        ([40, 40], [65, 3, 129]),
        ([64, 64], [129, 12, 132]),
        ([1, 66], [130, 9, 131]),
    ];
    let graph = |(i, (batches, extents)): (usize, ([i64; 2], [i64; 3]))| {
        product(DType::F32, batches, extents.map(Dim::from), ORDERS[i])
    };
    checked(cases.into_iter().enumerate().map(graph).collect());
}

#[test]
fn symbolic_extents_match_the_interpreter() {
    let symbol = |name: &str, max: u32| Dim::from(Symbol::new(name, max));
    let (m, k, n) = (symbol("rows", 150), symbol("inner", 70), symbol("columns", 140));
    let fixed = Dim::from;
    let mut graphs = vec![];
    for turned in [ORDERS[0], ORDERS[3]] {
        let extents = [
            [m.clone(), k.clone(), n.clone()],
            [m.clone(), fixed(24), fixed(72)],
            [fixed(40), k.clone(), fixed(72)],
            [fixed(40), fixed(24), n.clone()],
        ];
        graphs.extend(extents.map(|extents| product(DType::F32, [2, 1], extents, turned)));
    }
    checked(graphs);
}

#[test]
fn elements_of_all_types_match_the_interpreter() {
    let Some(device) = device() else { return };
    let pair =
        |dtype| ORDERS[..2].iter().map(move |t| product(dtype, [2, 1], [70, 24, 68].map(Dim::from), *t));
    checked(computed(&device).into_iter().flat_map(pair).collect());
}

/// `rows` of f32 activations, and what `count` weights `[width, 48]` in `format` make of them.
fn products(
    g: &mut Graph,
    rows: Dim,
    inner: i64,
    (count, width, format): (usize, i64, Format),
) -> Result<Vec<Value>, GraphError> {
    let x = g.input("x", DType::F32, [rows, inner.into()])?;
    let mut all = vec![];
    for i in 0..count {
        let w = g.weight(&format!("w{i}"), DType::Block(format), [width, inner])?;
        let w = g.add(Op::Dequantize(DType::F32), &[w])?;
        let w = g.permute(w, &[1, 0])?;
        all.push(g.add(Op::Matmul, &[x, w])?);
    }
    Ok(all)
}

/// The product of the results of several matmuls, with columns of their own or in another order, and a bias.
fn several(count: usize, width: i64, turned: bool) -> Result<Graph, GraphError> {
    let mut g = Graph::new("several");
    let all = products(&mut g, 70.into(), 48, (count, width, Format::F32))?;
    let mut y = all[0];
    for other in &all[1..] {
        y = g.elementwise(E::Mul, &[y, *other])?;
    }
    if turned {
        let parts = g.reshape(y, [70, width / 4, 4])?;
        let mut half = |at: i64| g.add(Op::Slice { axis: 2, start: at.into(), len: 2.into() }, &[parts]);
        let (low, high) = (half(0)?, half(2)?);
        let swapped = g.add(Op::Concat { axis: 2 }, &[high, low])?;
        let sum = g.elementwise(E::Add, &[swapped, parts])?;
        y = g.reshape(sum, [70, width])?;
    }
    let bias = g.weight("bias", DType::F32, [width])?;
    let bias = g.add(Op::Broadcast([70, width].into_iter().collect()), &[bias])?;
    let y = g.elementwise(E::Add, &[y, bias])?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn epilogues_of_several_products_match_the_interpreter() {
    let mut graphs = vec![];
    for count in [1, 2, 3, 5] {
        for (width, turned) in [(64, false), (132, false), (132, true)] {
            graphs.push(several(count, width, turned));
        }
    }
    checked(graphs);
}

/// Epilogues that are too long to be repeated for each result in registers, and outputs in several types.
#[test]
fn long_epilogues_match_the_interpreter() {
    let long = |lines: usize, n: i64| -> Result<Graph, GraphError> {
        let mut g = Graph::new("long");
        let mut y = products(&mut g, 70.into(), 20, (1, n, Format::F32))?[0];
        let first = y;
        for i in 0..lines {
            y = g.elementwise([E::Add, E::Maximum, E::Minimum, E::Sub][i % 4], &[y, first])?;
            y = g.elementwise([E::Neg, E::Abs][i % 2], &[y])?;
        }
        g.output("y", y)?;
        let narrow = g.add(Op::Cast(DType::F16), &[first])?;
        g.output("narrow", narrow)?;
        Ok(g)
    };
    checked([2, 9, 30].into_iter().flat_map(|lines| [long(lines, 65), long(lines, 132)]).collect());
}

/// Weights of blocks, by activations that are not rounded.
#[test]
fn weights_of_blocks_match_the_interpreter() {
    let formats = [Format::Q4_0, Format::Q8_0, Format::Q4_K, Format::Q6_K, Format::F16, Format::BF16];
    let graph = |format: Format| -> Result<Graph, GraphError> {
        let mut g = Graph::new("blocks");
        let rows = Dim::from(Symbol::new("seq", 150));
        let y = products(&mut g, rows, 256, (1, 72, format))?[0];
        g.output("y", y)?;
        Ok(g)
    };
    checked(formats.into_iter().map(graph).collect());
}
