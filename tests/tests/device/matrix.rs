//! Matmuls of f16 and bf16 operands against the interpreter: with cooperative matrices where the device has them, by
//! multiply-adds elsewhere. [`matrix_bf16`](super::matrix_bf16) has the cases of bf16. Extents lie around those of tiles, slices and pieces.

use std::collections::HashMap;

use tallow_ir::matrix::{self, MatrixOperand};
use tallow_ir::{
    Attention, DType, Dim, ElementwiseOp as E, Format, Graph, GraphError, Op, Symbol, Value, caps,
};
use tallow_reference::Array;
use tallow_tests::random_inputs;

use crate::attention::sinks;
use crate::differential::{check, check_on, report};
use crate::harness::{device, device_with_range, is_software, run, sampled};

/// Rows: few more than a matvec takes, and around the sides of tiles.
const ROWS: [i64; 8] = [9, 31, 64, 65, 127, 128, 129, 200];

/// Operand `[rows, k]` of f32 that was rounded to bf16 for such weights, to f16 for others.
fn activations(g: &mut Graph, rows: Dim, k: i64, weights: Format) -> Result<Value, GraphError> {
    let x = g.input("x", DType::F32, [rows, k.into()])?;
    let narrow = if weights == Format::BF16 { DType::BF16 } else { DType::F16 };
    let x = g.add(Op::Cast(narrow), &[x])?;
    g.add(Op::Cast(DType::F32), &[x])
}

/// The transpose of a weight `[n, k]` in `format` as f32.
fn transposed(g: &mut Graph, name: &str, format: Format, n: i64, k: i64) -> Result<Value, GraphError> {
    let w = g.weight(name, DType::Block(format), [n, k])?;
    let w = g.add(Op::Dequantize(DType::F32), &[w])?;
    g.permute(w, &[1, 0])
}

pub fn linear(rows: Dim, k: i64, n: i64, format: Format) -> Result<Graph, GraphError> {
    let mut g = Graph::new("linear");
    let x = activations(&mut g, rows.clone(), k, format)?;
    let w = transposed(&mut g, "w", format, n, k)?;
    let y = g.add(Op::Matmul, &[x, w])?;
    let bias = g.weight("bias", DType::F32, [n])?;
    let bias = g.add(Op::Broadcast([rows, n.into()].into_iter().collect()), &[bias])?;
    let y = g.elementwise(E::Add, &[y, bias])?;
    g.output("y", y)?;
    // As callers write the rounding of weights, also for devices that would not ask for it.
    matrix::round_operands(&g, &caps::h200())
}

fn checked(graphs: impl IntoIterator<Item = Result<Graph, GraphError>>) {
    let Some(device) = device() else { return };
    // A device without cooperative matrices takes kernels that other tests know, and software that stands for it takes seconds to
    // compile one: a quarter of the cases keeps this file running.
    let hardware = device.caps().is_some_and(|caps| matrix::has_instructions(caps, MatrixOperand::F16))
        && !is_software(&device);
    let step = if hardware { 1 } else { 4 };
    let mut of = 0;
    let found = sampled(&device, step, graphs.into_iter().enumerate()).filter_map(|(i, graph)| {
        of += 1;
        let graph = graph.expect("a graph of this test");
        check(&graph, 4000 + i as u64).map(|why| format!("{graph}\n{why}"))
    });
    let failures = found.collect();
    report(failures, of);
}

#[test]
fn rows_columns_and_inner_extents_match_the_interpreter() {
    let extents = [(8, 1), (40, 33), (24, 64), (96, 130), (36, 66), (257, 40), (32, 257), (512, 96)];
    checked(
        ROWS.into_iter()
            .flat_map(|m| extents.into_iter().map(move |(k, n)| linear(m.into(), k, n, Format::F16))),
    );
}

#[test]
fn quantized_weights_match_the_interpreter() {
    let blocks = Format::ALL.iter().copied();
    let blocks = blocks.filter(|f| !f.is_plain() && !matches!(f, Format::Q8_1 | Format::Q8_K));
    checked(blocks.map(|format| {
        let seq = Dim::from(Symbol::new("seq", 150));
        linear(seq, 256 + 512 * i64::from(format == Format::Q4_0), 72, format)
    }));
}

/// Rows that a matvec could compute, but slower than a tile where it has to unpack the weights: activations too long to
/// be quantized, or exact ones.
#[test]
fn some_rows_of_quantized_weights_match_the_interpreter() {
    checked([
        linear(5.into(), 256, 33, Format::Q4_K),
        linear(8.into(), 4096, 130, Format::IQ4_NL),
        linear(7.into(), 768, 72, Format::Q3_K),
        linear(6.into(), 96, 1, Format::Q8_0),
        linear(8.into(), 14336, 40, Format::Q6_K),
        linear(4.into(), 256, 40, Format::Q4_0),
    ]);
}

/// Several products of one left operand, and an epilogue that reads other columns than its own.
pub fn several(count: i64, k: i64, n: i64, format: Format) -> Result<Graph, GraphError> {
    let mut g = Graph::new("several");
    let x = activations(&mut g, 70.into(), k, format)?;
    let mut y = None;
    for i in 0..count {
        let w = transposed(&mut g, &format!("w{i}"), format, n, k)?;
        let product = g.add(Op::Matmul, &[x, w])?;
        y = Some(match y {
            None => product,
            Some(y) => g.elementwise(E::Mul, &[y, product])?,
        });
    }
    let y = g.reshape(y.expect("one at least"), [70.into(), Dim::from(n / 4), 4.into()])?;
    // The halves of each four columns change places.
    let half = |g: &mut Graph, at: i64| g.add(Op::Slice { axis: 2, start: at.into(), len: 2.into() }, &[y]);
    let (low, high) = (half(&mut g, 0)?, half(&mut g, 2)?);
    let turned = g.add(Op::Concat { axis: 2 }, &[high, low])?;
    let sum = g.elementwise(E::Add, &[turned, y])?;
    g.output("y", sum)?;
    Ok(g)
}

/// Products side by side: segments of different widths.
pub fn siblings(k: i64, format: Format) -> Result<Graph, GraphError> {
    let mut g = Graph::new("siblings");
    let x = activations(&mut g, 200.into(), k, format)?;
    for (i, n) in [128, 32, 40].into_iter().enumerate() {
        let w = transposed(&mut g, &format!("w{i}"), format, n, k)?;
        let y = g.add(Op::Matmul, &[x, w])?;
        g.output(&format!("y{i}"), y)?;
    }
    Ok(g)
}

#[test]
fn products_that_share_a_kernel_match_the_interpreter() {
    let several =
        (1..=5).flat_map(|count| [several(count, 64, 64, Format::F16), several(count, 64, 132, Format::F16)]);
    checked(several.chain([siblings(96, Format::F16)]));
}

/// Few tiles and long inner extents, of which several workgroups take a part each: two, four and eight, the last part shorter than the others, or ending
/// within a slice.
#[test]
fn tiles_that_workgroups_share_match_the_interpreter() {
    let seq = || Dim::from(Symbol::new("seq", 150));
    checked([
        linear(70.into(), 2048, 130, Format::F16),
        linear(seq(), 4096, 72, Format::Q4_K),
        several(2, 2048, 132, Format::F16),
        siblings(4192, Format::F16),
        linear(9.into(), 9000, 40, Format::F16),
        linear(257.into(), 4128, 64, Format::Q4_0),
        linear(65.into(), 2047, 65, Format::F16),
        several(1, 2080, 64, Format::F16),
        linear(seq(), 12_288, 33, Format::Q6_K),
    ]);
}

/// The same of several batches, also with an operand that all share.
#[test]
fn batches_of_tiles_that_workgroups_share_match_the_interpreter() {
    let extents = [[33, 2100, 70], [130, 4096, 40]];
    checked([DType::F16, DType::F32].into_iter().flat_map(|dtype| products(dtype, &extents)));
}

/// Runs of one recording: what workgroups count is as it was when the next begins, for many rows and for few.
#[test]
fn tiles_that_workgroups_share_are_replayed() {
    let Some(device) = device() else { return };
    let graph =
        linear(Dim::from(Symbol::new("seq", 150)), 4096, 72, Format::F16).expect("a graph of this test");
    let mut inputs = random_inputs(&graph, 4500);
    let weights = inputs
        .weights
        .iter()
        .map(|(name, leaf)| (name.clone(), device.weight(leaf.dtype, &leaf.shape, &leaf.bytes).unwrap()));
    let executable = device.compile(&graph, &weights.collect(), &HashMap::new()).unwrap();
    for seq in [150, 150, 9, 70, 150, 1, 150] {
        inputs.symbols.insert("seq".into(), seq);
        let x = inputs.inputs.get_mut("x").unwrap();
        x.shape[0] = seq as usize;
        x.bytes.resize(seq as usize * 4096 * 4, 0x3c);
        let data = [("x", inputs.inputs["x"].bytes.as_slice())];
        let again = executable.run(&[("seq", seq)], &data).unwrap();
        let first = run(&device, &graph, &inputs).unwrap();
        let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let again = Array::from_bytes(again[0].dtype, &again[0].shape, &again[0].bytes).unwrap();
        assert_eq!(bits(&again.to_f64s()), bits(&first[0].1.to_f64s()), "{seq}");
    }
}

/// `a b` for batches, rows, inner extent and columns, stored in every order: `[m, k]` or `[k, m]`, `[k, n]` or `[n, k]`.
pub fn products(dtype: DType, extents: &[[i64; 3]]) -> Vec<Result<Graph, GraphError>> {
    let product = |b: [i64; 2], m: i64, k: i64, n: i64, orders: [bool; 2]| -> Result<Graph, GraphError> {
        let mut g = Graph::new("product");
        let mut operand = |name: &str, b: i64, rows: i64, columns: i64, turned: bool| {
            if turned {
                let x = g.input(name, dtype, [b, columns, rows])?;
                g.permute(x, &[0, 2, 1])
            } else {
                g.input(name, dtype, [b, rows, columns])
            }
        };
        let x = operand("a", b[0], m, k, orders[0])?;
        let y = operand("b", b[1], k, n, orders[1])?;
        let y = g.add(Op::Matmul, &[x, y])?;
        g.output("y", y)?;
        Ok(g)
    };
    let mut graphs = vec![];
    for [m, k, n] in extents.iter().copied() {
        for orders in [[false, false], [false, true], [true, false], [true, true]] {
            graphs.push(product([1, 1], m, k, n, orders));
            graphs.push(product([3, 1], m, k, n, orders));
            graphs.push(product([2, 2], m, k, n, orders));
        }
    }
    graphs
}

/// Rows, inner extents and columns around those of tiles, slices and pieces.
pub const EXTENTS: [[i64; 3]; 8] = [
    [9, 16, 8],
    [64, 40, 136],
    [130, 33, 72],
    [70, 64, 33],
    [129, 7, 5],
    [257, 96, 264],
    [136, 33, 72],
    [264, 96, 40],
];

#[test]
fn f16_tensors_in_either_order_match_the_interpreter() {
    checked(products(DType::F16, &EXTENTS));
}

/// `a b` of 132 batches of 70 rows, so many tiles that workgroups take several in turn: stored as it is, or
/// computed with.
pub fn batches(dtype: DType, narrow: bool, [k, n]: [i64; 2], turned: bool) -> Result<Graph, GraphError> {
    let mut g = Graph::new("turns");
    let a = g.input("a", dtype, [132, 70, k])?;
    let b = match turned {
        true => {
            let b = g.input("b", dtype, [132, n, k])?;
            g.permute(b, &[0, 2, 1])?
        }
        false => g.input("b", dtype, [132, k, n])?,
    };
    let y = if narrow {
        g.add(Op::Matmul, &[a, b])?
    } else {
        let [a, b] = [g.add(Op::Cast(DType::F32), &[a])?, g.add(Op::Cast(DType::F32), &[b])?];
        let y = g.add(Op::Matmul, &[a, b])?;
        g.elementwise(E::Tanh, &[y])?
    };
    g.output("y", y)?;
    Ok(g)
}

/// Columns that fill the last tile or not, or a matrix that is not even begun; slices from one up.
#[test]
fn tiles_in_turn_match_the_interpreter() {
    checked([
        batches(DType::F16, true, [64, 512], false),
        batches(DType::F16, false, [32, 512], false),
        batches(DType::F16, true, [32, 504], true),
        linear(16896.into(), 64, 504, Format::Q4_0),
        batches(DType::F16, false, [64, 504], false),
        batches(DType::F16, true, [96, 488], false),
        batches(DType::F16, false, [96, 512], true),
        linear(16900.into(), 32, 512, Format::F16),
        batches(DType::F16, true, [64, 510], false),
    ]);
}

/// What is narrowed as matrices goes to the window that holds it.
#[test]
fn tiles_in_windows_match_the_interpreter() {
    let Some(device) = device_with_range(1 << 20) else { return };
    for (n, seed) in [(512, 1), (504, 2)] {
        let graph = batches(DType::F16, true, [32, n], false).expect("a graph of this test");
        check_on(&device, &graph, &random_inputs(&graph, seed)).unwrap();
    }
}

/// Convolutions as products: the inner extent is read through windows, so that no neighbours can be loaded at once.
pub fn mixed(dtype: DType) -> Vec<Result<Graph, GraphError>> {
    let mixed = |m: i64, parts: [i64; 3], n: i64| -> Result<Graph, GraphError> {
        let mut g = Graph::new("mixed");
        let k: i64 = parts.iter().product();
        let x = g.input("x", dtype, [parts[2], m, parts[0], parts[1]])?;
        let x = g.permute(x, &[1, 3, 0, 2])?;
        let x = g.reshape(x, [m, k])?;
        let w = g.weight("w", dtype, [parts[1], n, parts[0], parts[2]])?;
        let w = g.permute(w, &[0, 3, 2, 1])?;
        let w = g.reshape(w, [k, n])?;
        let y = g.add(Op::Matmul, &[x, w])?;
        g.output("y", y)?;
        Ok(g)
    };
    vec![mixed(40, [3, 3, 16], 24), mixed(130, [5, 2, 7], 66), mixed(64, [4, 8, 8], 128)]
}

#[test]
fn operands_read_through_index_maps_match_the_interpreter() {
    checked(mixed(DType::F16));
}

/// Attention over f16 or bf16 keys and values, causal and windowed, capped, with a bias, with sinks, and with scores that rise,
/// for each of `shapes`: heads, key heads, queries, keys, depth, width.
pub fn attentions(dtype: DType, shapes: &[[i64; 6]]) -> Vec<Result<Graph, GraphError>> {
    let kinds = [
        Attention::new(0.25),
        Attention::new(0.25).causal(true),
        Attention::new(0.5).causal(true).window(Some(40)),
        Attention::new(0.25).softcap(Some(3.0)),
        Attention::new(0.125).window(Some(7)),
        Attention::new(0.25).causal(true),
        Attention::new(-0.25),
        Attention::new(0.25).causal(true).sinks(true),
        Attention::new(0.25).window(Some(40)).softcap(Some(3.0)).sinks(true),
    ];
    let graph = |[heads, key_heads, s, t, d, e]: [i64; 6], i: usize, round_weights: bool| {
        let mut g = Graph::new("attention");
        let narrow = |g: &mut Graph, name: &str, dims: [i64; 3]| g.input(name, dtype, dims);
        let k = narrow(&mut g, "k", [key_heads, t, d])?;
        // As a cache holds them: positions before heads.
        let v = narrow(&mut g, "v", [t, key_heads, e])?;
        let v = g.permute(v, &[1, 0, 2])?;
        let mut operands = if i.is_multiple_of(2) {
            vec![narrow(&mut g, "q", [heads, s, d])?, k, v]
        } else {
            let q = g.input("q", DType::F32, [heads, s, d])?;
            let q = g.add(Op::Cast(dtype), &[q])?;
            vec![g.add(Op::Cast(DType::F32), &[q])?, k, v]
        };
        if i == 3 || i == 4 || i == 8 {
            operands.push(g.input("bias", DType::F32, [heads, s, t])?);
        }
        if i == 5 {
            // Later keys have larger scores, so that sums are scaled anew all along.
            let key = g.add(Op::Iota { len: t.into(), dtype: DType::F32 }, &[])?;
            let half = g.full_like(key, 0.5)?;
            let bias = g.elementwise(E::Mul, &[key, half])?;
            operands.push(g.reshape(bias, [1.into(), 1.into(), Dim::from(t)])?);
        }
        if kinds[i].sinks {
            operands.push(sinks(&mut g, heads)?);
        }
        let y = g.add(Op::Attention(kinds[i].round_weights(round_weights)), &operands)?;
        let y = g.permute(y, &[1, 0, 2])?;
        g.output("y", y)?;
        Ok(g)
    };
    let mut graphs = vec![];
    for shape in shapes {
        for i in 0..kinds.len() {
            graphs.extend([false, true].map(|round_weights| graph(*shape, i, round_weights)));
        }
    }
    graphs
}

/// As a model computes it: causal, of `seq` queries over 60 keys more.
pub fn prefill(dtype: DType, heads: i64) -> Result<Graph, GraphError> {
    let seq = Dim::from(Symbol::new("seq", 150));
    let mut g = Graph::new("prefill");
    let q = g.input("q", dtype, [heads.into(), seq.clone(), 64.into()])?;
    let k = g.input("k", dtype, [2.into(), &seq + &Dim::from(60), 64.into()])?;
    let v = g.input("v", dtype, [2.into(), &seq + &Dim::from(60), 64.into()])?;
    let y = g.add(Op::Attention(Attention::new(0.125).causal(true).round_weights(true)), &[q, k, v])?;
    g.output("y", y)?;
    Ok(g)
}

/// Around the sides of tiles; and queries that see nothing.
pub const MANY_QUERIES: [[i64; 6]; 6] = [
    [4, 2, 16, 32, 16, 16],
    [2, 1, 130, 130, 64, 32],
    [6, 2, 33, 97, 128, 128],
    [1, 1, 200, 40, 32, 48],
    [3, 3, 17, 150, 16, 112],
    [2, 2, 128, 0, 16, 16],
];

#[test]
fn attention_of_many_queries_matches_the_interpreter() {
    checked(attentions(DType::F16, &MANY_QUERIES).into_iter().chain([prefill(DType::F16, 8)]));
}

/// Products for whose tiles of 128 columns a last wave of workgroups would be nearly empty (of 132 cores), in either order of
/// each operand, with ends of K and of columns, an epilogue and batches.
pub fn nearly_empty_waves(dtype: DType) -> Vec<Result<Graph, GraphError>> {
    let graph = |[batches, m, k, n]: [i64; 4], [left_turned, right_turned]: [bool; 2]| {
        let mut g = Graph::new("nearly empty wave");
        let operand = |g: &mut Graph, name: &str, [rows, columns]: [i64; 2], turned: bool| {
            if !turned {
                return g.input(name, dtype, [batches, rows, columns]);
            }
            let v = g.input(name, dtype, [batches, columns, rows])?;
            g.permute(v, &[0, 2, 1])
        };
        let (x, w) =
            (operand(&mut g, "x", [m, k], left_turned)?, operand(&mut g, "w", [k, n], right_turned)?);
        let y = g.add(Op::Matmul, &[x, w])?;
        if right_turned {
            let scale = g.input("scale", dtype, [1, 1, n])?;
            let scale = g.broadcast(scale, [batches, m, n])?;
            let y = g.elementwise(E::Mul, &[y, scale])?;
            g.output("y", y)?;
            return Ok(g);
        }
        g.output("y", y)?;
        Ok(g)
    };
    // Pairs of columns 32 apart are turned: tiles must hold whole heads of 64.
    let turned_heads = || {
        let mut g = Graph::new("heads of 64");
        let (x, w) = (g.input("x", dtype, [2056, 40])?, g.input("w", dtype, [40, 2880])?);
        let y = g.add(Op::Matmul, &[x, w])?;
        let y = g.reshape(y, [2056, 45, 2, 32])?;
        let half = |g: &mut Graph, start: i64| {
            g.add(Op::Slice { axis: 2, start: start.into(), len: 1.into() }, &[y])
        };
        let (first, second) = (half(&mut g, 0)?, half(&mut g, 1)?);
        let (sum, difference) =
            (g.elementwise(E::Add, &[first, second])?, g.elementwise(E::Sub, &[second, first])?);
        let y = g.add(Op::Concat { axis: 2 }, &[difference, sum])?;
        let y = g.reshape(y, [2056, 2880])?;
        g.output("y", y)?;
        Ok(g)
    };
    let either = [false, true].map(|left| [false, true].map(|right| [left, right]));
    let turned: Vec<[bool; 2]> = either.into_iter().flatten().collect();
    let of = |extents: [i64; 4]| turned.iter().map(move |turned| (extents, *turned)).collect::<Vec<_>>();
    let all = [of([1, 2056, 40, 2904]), of([3, 770, 64, 2308]), of([1, 2050, 33, 2900])].concat();
    let plain = all.into_iter().map(|(extents, turned)| graph(extents, turned));
    plain.chain([turned_heads()]).collect()
}

/// Devices without the instructions take other tiles.
#[test]
fn products_of_nearly_empty_waves_match_the_interpreter() {
    let Some(device) = device() else { return };
    if device.caps().is_some_and(|caps| matrix::has_instructions(caps, MatrixOperand::F16))
        && !is_software(&device)
    {
        checked(nearly_empty_waves(DType::F16));
    }
}

/// So many heads and queries that subgroups take 32 queries each.
pub const VERY_MANY_QUERIES: [[i64; 6]; 3] =
    [[128, 2, 200, 70, 64, 32], [64, 64, 400, 48, 16, 96], [32, 8, 801, 50, 128, 128]];

/// Devices without the instructions would take minutes.
#[test]
fn attention_of_very_many_queries_matches_the_interpreter() {
    let Some(device) = device() else { return };
    let has_them = |caps| matrix::coopmat_size(caps, MatrixOperand::F16) == Some(16);
    if device.caps().is_some_and(has_them) && !is_software(&device) {
        checked(attentions(DType::F16, &VERY_MANY_QUERIES).into_iter().chain([prefill(DType::F16, 256)]));
    }
}

/// Few queries of heads that share keys, over keys for one workgroup and for slices, for a part of a tile and for none; and
/// wide rows.
pub const FEW_QUERIES: [[i64; 6]; 9] = [
    [8, 2, 2, 333, 64, 128],
    [4, 1, 4, 150, 32, 32],
    [3, 3, 5, 97, 16, 48],
    [6, 2, 17, 600, 128, 128],
    [4, 4, 9, 0, 16, 16],
    [16, 1, 3, 1, 16, 16],
    [3, 1, 30, 20, 48, 80],
    [2, 1, 40, 70, 256, 256],
    [1, 1, 66, 130, 192, 144],
];

/// Attention whose queries are tiles of matrices, of each kind for each of [`FEW_QUERIES`]. Every other one has symbolic
/// queries and keys.
pub fn attentions_of_few(dtype: DType) -> Vec<Result<Graph, GraphError>> {
    let kinds = [
        Attention::new(0.25),
        Attention::new(0.25).causal(true),
        Attention::new(0.5).causal(true).window(Some(7)),
        Attention::new(0.25).window(Some(70)).softcap(Some(3.0)),
        Attention::new(0.25).causal(true).sinks(true),
        Attention::new(0.25).softcap(Some(3.0)).sinks(true),
    ];
    let graph = |[heads, key_heads, s, t, d, e]: [i64; 6], i: usize, symbolic: bool| {
        let mut g = Graph::new("few queries");
        let dim = |name: &str, n: i64| match symbolic && n > 0 {
            true => Dim::from(Symbol::new(name, n as u32)),
            false => n.into(),
        };
        let (s, t) = (dim("queries", s), dim("keys", t));
        let q = g.input("q", dtype, [s.clone(), heads.into(), d.into()])?;
        let q = g.permute(q, &[1, 0, 2])?;
        let k = g.input("k", dtype, [key_heads.into(), t.clone(), d.into()])?;
        let v = g.input("v", dtype, [t.clone(), key_heads.into(), e.into()])?;
        let mut operands = vec![q, k, g.permute(v, &[1, 0, 2])?];
        if i % 2 == 1 {
            operands.push(g.input("bias", DType::F32, [heads.into(), s, t])?);
        }
        if kinds[i].sinks {
            operands.push(sinks(&mut g, heads)?);
        }
        // Weights that must not be rounded do not meet values of bf16.
        let rounds = dtype == DType::BF16 || i < 2 || i == 4;
        let y = g.add(Op::Attention(kinds[i].round_weights(rounds)), &operands)?;
        g.output("y", y)?;
        Ok(g)
    };
    let all = FEW_QUERIES.into_iter().enumerate();
    all.flat_map(|(n, shape)| (0..kinds.len()).map(move |i| (n, shape, i)))
        .map(|(n, shape, i)| graph(shape, i, (n + i) % 2 == 1))
        .collect()
}

#[test]
fn attention_of_few_queries_matches_the_interpreter() {
    checked(attentions_of_few(DType::F16));
}
