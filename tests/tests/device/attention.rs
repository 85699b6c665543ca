//! Attention against the interpreter: every float type, biases repeated along every axis, windows, capped scores, sinks,
//! queries that see nothing, more keys than a workgroup takes in a step.

use std::collections::HashMap;

use tallow_ir::{Attention, DType, Dim, ElementwiseOp, Format, Graph, GraphError, Op, Symbol, Value};
use tallow_reference::Array;
use tallow_tests::random_inputs;

use crate::differential::{check, check_rolled, computed, report};
use crate::harness::{device, run, sampled};

/// Heads, key heads, queries, keys, depth, width.
const SHAPES: [[usize; 6]; 7] = [
    [1, 1, 1, 1, 1, 1],
    [4, 2, 1, 67, 8, 8],
    [3, 3, 5, 3, 7, 5],
    [6, 2, 3, 130, 16, 67],
    [2, 1, 9, 9, 4, 4],
    [2, 2, 3, 0, 4, 2],
    [8, 1, 2, 65, 33, 3],
];

/// Which of heads, queries and keys a bias has of its own; `None` is no bias.
const BIASES: [Option<[bool; 3]>; 6] = [
    None,
    Some([true, true, true]),
    Some([false, true, true]),
    Some([true, false, true]),
    Some([true, true, false]),
    Some([false, false, false]),
];

/// A bias, where `masked` with about a third of the keys hidden.
fn bias(g: &mut Graph, name: &str, dtype: DType, dims: [usize; 3], masked: bool) -> Value {
    let bias = g.input(name, dtype, dims).unwrap();
    // An 8-bit float has no infinity.
    if !masked || dtype == DType::F8E4M3 {
        return bias;
    }
    let other = g.input(&format!("{name} hides"), DType::F32, dims).unwrap();
    let limit = g.full_like(other, 0.5).unwrap();
    let hide = g.elementwise(ElementwiseOp::Gt, &[other, limit]).unwrap();
    let hidden = g.full_like(bias, f64::NEG_INFINITY).unwrap();
    g.elementwise(ElementwiseOp::Select, &[hide, hidden, bias]).unwrap()
}

/// Sinks of so many heads: cubes, so that some are among the scores and others far above and below.
pub fn sinks(g: &mut Graph, heads: i64) -> Result<Value, GraphError> {
    let x = g.input("sinks", DType::F32, [heads])?;
    let square = g.elementwise(ElementwiseOp::Mul, &[x, x])?;
    let cube = g.elementwise(ElementwiseOp::Mul, &[square, x])?;
    let factor = g.full_like(cube, 20.0)?;
    g.elementwise(ElementwiseOp::Mul, &[cube, factor])
}

#[test]
fn attention_matches_the_interpreter() {
    let Some(device) = device() else { return };
    let mut failures = vec![];
    let floats: Vec<DType> = computed(&device).into_iter().filter(|d| d.is_float()).collect();
    for (at, dtype) in floats.iter().copied().enumerate() {
        let mut g = Graph::new(dtype.name());
        for (i, [heads, key_heads, s, t, d, e]) in SHAPES.into_iter().enumerate() {
            let q = g.input(&format!("q{i}"), dtype, [heads, s, d]).unwrap();
            let k = g.input(&format!("k{i}"), dtype, [key_heads, t, d]).unwrap();
            let v = g.input(&format!("v{i}"), dtype, [key_heads, t, e]).unwrap();
            let biases =
                BIASES.into_iter().enumerate().cycle().skip((at + i) % BIASES.len()).take(BIASES.len());
            for (j, extents) in sampled(&device, 2, biases) {
                let whole = [heads, s, t];
                let dims =
                    |extents: [bool; 3]| std::array::from_fn(|x| if extents[x] { whole[x] } else { 1 });
                let other = floats[(at + i + j) % floats.len()];
                let name = format!("bias {i} {j}");
                let bias = extents.map(|extents| bias(&mut g, &name, other, dims(extents), (i + j) % 2 == 0));
                // Each attribute meets each other in some shape.
                let number = i + 2 * j;
                let attrs = Attention::new(0.4)
                    .causal(number % 2 == 0)
                    .window([None, Some(1), Some(4), Some(70)][number % 4])
                    .softcap([None, Some(2.0), Some(0.25)][number % 3])
                    .sinks(number % 5 < 2);
                let other = floats[(at + i + 2 * j) % floats.len()];
                let sinks = attrs.sinks.then(|| g.input(&format!("sinks {i} {j}"), other, [heads]).unwrap());
                let operands: Vec<Value> = [q, k, v].into_iter().chain(bias).chain(sinks).collect();
                let y = g.add(Op::Attention(attrs), &operands).unwrap();
                g.output(&format!("y {i} {j}"), y).unwrap();
            }
        }
        failures.extend(check_rolled(&g, 5));
    }
    report(failures, floats.len());
}

/// Heads, key heads, keys, depth, width of a single query: heads that share keys by every number up to 8, one key to more than
/// several workgroups take, parts of a query that no team divides.
const ONE_QUERY: [[i64; 5]; 12] = [
    [1, 1, 1, 8, 8],
    [3, 1, 2, 64, 64],
    [4, 1, 17, 128, 128],
    [8, 1, 40, 80, 16],
    [5, 1, 49, 16, 8],
    [6, 2, 33, 256, 256],
    [14, 2, 90, 24, 72],
    [8, 2, 100, 64, 128],
    [4, 4, 300, 40, 40],
    [12, 4, 700, 32, 64],
    [4, 2, 1100, 128, 128],
    [2, 1, 0, 16, 16],
];

/// A query over a cache `[positions, key heads, width]` of `stored`, whose first `keys` positions are read.
fn one_query(
    [heads, groups, most, d, e]: [i64; 5],
    keys: &Dim,
    stored: DType,
    attention: Attention,
    biased: bool,
) -> Result<Graph, GraphError> {
    let mut g = Graph::new("one query");
    let q = g.input("q", DType::F32, [heads, 1, d])?;
    let mut cache = |name: &str, width: i64| -> Result<Value, GraphError> {
        let all = match stored {
            DType::Block(_) => {
                let blocks = g.weight(name, stored, [most.max(1), groups * width])?;
                g.add(Op::Dequantize(DType::F32), &[blocks])?
            }
            _ => {
                let narrow = g.input(name, stored, [most.max(1), groups * width])?;
                if stored == DType::F32 { narrow } else { g.add(Op::Cast(DType::F32), &[narrow])? }
            }
        };
        let seen = g.add(Op::Slice { axis: 0, start: 0.into(), len: keys.clone() }, &[all])?;
        let split = g.reshape(seen, [keys.clone(), groups.into(), width.into()])?;
        g.permute(split, &[1, 0, 2])
    };
    let mut operands = vec![q, cache("k", d)?, cache("v", e)?];
    if biased {
        let whole = g.input("bias", DType::F32, [heads, 1, most.max(1)])?;
        operands.push(g.add(Op::Slice { axis: 2, start: 0.into(), len: keys.clone() }, &[whole])?);
    }
    if attention.sinks {
        operands.push(sinks(&mut g, heads)?);
    }
    let y = g.add(Op::Attention(attention), &operands)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn attention_of_one_query_matches_the_interpreter() {
    let Some(device) = device() else { return };
    let kinds = [
        Attention::new(0.3),
        Attention::new(0.3).causal(true),
        Attention::new(0.3).causal(true).window(Some(30)),
        Attention::new(0.3).softcap(Some(2.0)),
        Attention::new(0.3).causal(true).sinks(true),
        Attention::new(0.3).causal(true).window(Some(30)).softcap(Some(2.0)).sinks(true),
    ];
    let types = [DType::F16, DType::F32, DType::Block(Format::Q8_0), DType::Block(Format::Q4_0), DType::BF16];
    let (mut failures, mut of) = (vec![], 0);
    for (i, shape) in ONE_QUERY.into_iter().enumerate() {
        let kinds = kinds.into_iter().enumerate().cycle().skip(i % kinds.len()).take(kinds.len());
        for (j, kind) in sampled(&device, 2, kinds) {
            // Rows of whole blocks, where there are blocks.
            let whole = shape[1] * shape[3] % 32 == 0 && shape[1] * shape[4] % 32 == 0;
            let mut stored = types.into_iter().cycle().skip(i + j);
            let stored = stored.find(|ty| whole || !matches!(ty, DType::Block(_)));
            let pos = Dim::from(Symbol::new("pos", shape[2].max(1) as u32 - 1));
            // As many keys as a run says, or as the graph does.
            let keys = if (i + j) % 2 == 0 && shape[2] > 1 { &pos + &Dim::one() } else { shape[2].into() };
            let graph = one_query(shape, &keys, stored.unwrap_or(DType::F32), kind, (i + j) % 3 == 0);
            let graph = graph.expect("a graph of this test");
            for seed in 0..3 {
                of += 1;
                failures
                    .extend(check_rolled(&graph, 700 + seed).map(|why| format!("{shape:?} {kind:?}: {why}")));
            }
        }
    }
    report(failures, of);
}

/// Runs of one recording: what workgroups count is as it was when the next begins, for few keys and for many.
#[test]
fn attention_of_one_query_is_replayed() {
    let Some(device) = device() else { return };
    let pos = Dim::from(Symbol::new("pos", 1199));
    let graph =
        one_query([6, 2, 1200, 64, 64], &(&pos + &Dim::one()), DType::F16, Attention::new(0.2), false);
    let graph = graph.expect("a graph of this test");
    let mut inputs = random_inputs(&graph, 3);
    let executable = device.compile(&graph, &HashMap::new(), &HashMap::new()).unwrap();
    for pos in [1199, 1199, 3, 700, 1000, 40, 1199] {
        inputs.symbols.insert("pos".into(), pos);
        let data: Vec<(&str, &[u8])> =
            inputs.inputs.iter().map(|(n, l)| (n.as_str(), l.bytes.as_slice())).collect();
        let again = executable.run(&[("pos", pos)], &data).unwrap();
        let first = run(&device, &graph, &inputs).unwrap();
        let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let again = Array::from_bytes(again[0].dtype, &again[0].shape, &again[0].bytes).unwrap();
        assert_eq!(bits(&again.to_f64s()), bits(&first[0].1.to_f64s()), "{pos}");
    }
}

/// Heads, key heads, queries, keys, depth, width of several queries: fewer and more rows than a tile has, keys for one tile, for
/// slices of several tiles and for none, widths that no vector load divides and the largest ones.
const SEVERAL_QUERIES: [[i64; 6]; 12] = [
    [1, 1, 4, 1, 1, 1],
    [4, 2, 2, 67, 8, 8],
    [3, 3, 5, 3, 7, 5],
    [8, 2, 4, 300, 64, 128],
    [2, 1, 33, 41, 80, 24],
    [5, 1, 9, 131, 33, 67],
    [2, 2, 37, 37, 96, 48],
    [2, 1, 3, 50, 256, 256],
    [2, 2, 6, 0, 16, 8],
    [6, 2, 16, 9, 40, 200],
    [1, 1, 70, 23, 16, 31],
    [12, 12, 11, 64, 24, 16],
];

/// Queries of `asked` over keys and values of `stored`.
fn several_queries(
    [heads, groups, _, _, d, e]: [i64; 6],
    [queries, keys]: [&Dim; 2],
    [asked, stored]: [DType; 2],
    attention: Attention,
    biased: bool,
) -> Result<Graph, GraphError> {
    let mut g = Graph::new("several queries");
    let q = g.input("q", asked, [heads.into(), queries.clone(), d.into()])?;
    let mut cache = |name: &str, width: i64| -> Result<Value, GraphError> {
        let all = g.input(name, stored, [keys.clone(), (groups * width).into()])?;
        let split = g.reshape(all, [keys.clone(), groups.into(), width.into()])?;
        g.permute(split, &[1, 0, 2])
    };
    let mut operands = vec![q, cache("k", d)?, cache("v", e)?];
    if biased {
        operands.push(g.input("bias", DType::F32, [1.into(), queries.clone(), keys.clone()])?);
    }
    if attention.sinks {
        operands.push(sinks(&mut g, heads)?);
    }
    let y = g.add(Op::Attention(attention), &operands)?;
    g.output("y", y)?;
    let z = g.elementwise(ElementwiseOp::Abs, &[y])?;
    g.output("z", z)?;
    Ok(g)
}

#[test]
fn attention_of_several_queries_matches_the_interpreter() {
    let Some(device) = device() else { return };
    let kinds = [
        Attention::new(0.3),
        Attention::new(0.3).causal(true),
        Attention::new(0.3).causal(true).window(Some(7)),
        Attention::new(0.3).window(Some(20)).softcap(Some(2.0)),
        Attention::new(0.3).sinks(true),
        Attention::new(0.3).causal(true).window(Some(7)).softcap(Some(2.0)).sinks(true),
    ];
    let types = [DType::F32, DType::F16, DType::BF16];
    let (mut failures, mut of) = (vec![], 0);
    for (i, shape) in SEVERAL_QUERIES.into_iter().enumerate() {
        for j in sampled(&device, 2, (0..3).cycle().skip(i % 3).take(3)) {
            let kind = kinds[(i + 2 * j) % 6];
            let [queries, keys] = if (i + j) % 2 == 0 && shape[3] > 0 {
                ["queries", "keys"]
                    .map(|name| Dim::from(Symbol::new(name, shape[2 + usize::from(name == "keys")] as u32)))
            } else {
                [shape[2].into(), shape[3].into()]
            };
            let types = [types[(i + j / 2) % 3], types[(i + j) % 3]];
            let graph = several_queries(shape, [&queries, &keys], types, kind, (i + j) % 3 == 0);
            let graph = graph.expect("a graph of this test");
            for seed in 0..2 {
                of += 1;
                failures
                    .extend(check_rolled(&graph, 800 + seed).map(|why| format!("{shape:?} {kind:?}: {why}")));
            }
        }
    }
    report(failures, of);
}

/// What a query does not see may be no number, also where other queries of its tile see it.
#[test]
fn hidden_values_do_not_matter() {
    let Some(device) = device() else { return };
    let (queries, keys, width) = (21, 40, 8);
    for kind in [Attention::new(0.3).causal(true), Attention::new(0.3).causal(true).window(Some(5))] {
        let mut g = Graph::new("hidden");
        let q = g.input("q", DType::F32, [2, queries, width]).unwrap();
        let k = g.input("k", DType::F32, [1, keys, width]).unwrap();
        let v = g.input("v", DType::F32, [1, keys, width]).unwrap();
        let y = g.add(Op::Attention(kind), &[q, k, v]).unwrap();
        g.output("y", y).unwrap();
        let executable = device.compile(&g, &HashMap::new(), &HashMap::new()).unwrap();
        let ones = |n: usize| vec![1.0f32; n];
        let mut values = ones(keys * width);
        // The key of query 10.
        let hidden = keys - queries + 10;
        values[hidden * width..][..width].fill(f32::NAN);
        let bytes = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let (q, k, v) = (bytes(&ones(2 * queries * width)), bytes(&ones(keys * width)), bytes(&values));
        let found = executable.run(&[], &[("q", &q), ("k", &k), ("v", &v)]).unwrap();
        let found = Array::from_bytes(found[0].dtype, &found[0].shape, &found[0].bytes).unwrap().to_f64s();
        let window = kind.window.map_or(usize::MAX, |w| w as usize);
        for (at, x) in found.into_iter().enumerate() {
            let query = at / width % queries;
            let sees = query >= 10 && query - 10 < window;
            assert!(if sees { x.is_nan() } else { (x - 1.0).abs() < 1e-5 }, "{kind:?} {query}: {x}");
        }
    }
}

/// What pads the last tile of keys must not meet an infinite value: 0 times infinity is no number.
#[test]
fn an_infinite_last_value_stays_infinite() {
    let Some(device) = device() else { return };
    let (queries, keys, width) = (8, 5, 8);
    let mut g = Graph::new("infinite");
    let q = g.input("q", DType::F32, [1, queries, width]).unwrap();
    let k = g.input("k", DType::F32, [1, keys, width]).unwrap();
    let v = g.input("v", DType::F32, [1, keys, width]).unwrap();
    let y = g.add(Op::Attention(Attention::new(0.3)), &[q, k, v]).unwrap();
    g.output("y", y).unwrap();
    let executable = device.compile(&g, &HashMap::new(), &HashMap::new()).unwrap();
    let mut values = vec![1.0f32; keys * width];
    values[(keys - 1) * width] = f32::INFINITY;
    let bytes = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let [q, k] = [queries, keys].map(|n| bytes(&vec![0.0; n * width]));
    let found = executable.run(&[], &[("q", &q), ("k", &k), ("v", &bytes(&values))]).unwrap();
    let found = Array::from_bytes(found[0].dtype, &found[0].shape, &found[0].bytes).unwrap().to_f64s();
    for (at, x) in found.into_iter().enumerate() {
        let wanted = if at % width == 0 { f64::INFINITY } else { 1.0 };
        assert!(x == wanted || (x - wanted).abs() < 1e-5, "{at}: {x}");
    }
}

/// Mesa's software device leaves all loops of an invocation after 65535 iterations in all, without a word.
#[test]
fn attention_over_many_keys_matches_the_interpreter() {
    let mut g = Graph::new("many keys");
    let keys = 70_000;
    let q = g.input("q", DType::F32, [1, 1, 64]).unwrap();
    let k = g.input("k", DType::F16, [1, keys, 64]).unwrap();
    let v = g.input("v", DType::F16, [1, keys, 64]).unwrap();
    let y = g.add(Op::Attention(Attention::new(0.125)), &[q, k, v]).unwrap();
    g.output("y", y).unwrap();
    report(check(&g, 6).into_iter().collect(), 1);
}
