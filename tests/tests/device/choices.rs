//! Kernels of every schedule against the interpreter, and what a device that tunes takes and keeps.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tallow::RuntimeOptions;
use tallow_codegen::{Instruction, Kernel, Schedule, Schedules, Table, kernel, kernel_with, schedules};
use tallow_ir::matrix::{self, MatrixOperand};
use tallow_ir::{
    Attention, DType, Dim, ElementwiseOp as E, Format, Fusion, Graph, GraphError, Op, ReduceKind,
    ScatterKind, Symbol,
};
use tallow_ir::{caps, dot, passes};
use tallow_reference::Array;
use tallow_runtime::executable::{Compiled, DeviceState, DeviceWeight};
use tallow_runtime::record::RecordOptions;
use tallow_runtime::tune::{Candidate, Limits, Outcome, fastest, measure};
use tallow_runtime::vulkan::Context;
use tallow_tests::{Inputs, random_inputs};

use crate::differential::Expected;
use crate::harness::{device, is_software};
use crate::layouts;
use crate::{index_adds, scatters};

/// A context of the test's own that tunes, or not, without unrolled loops on a software device; `None` after saying that the
/// test skips.
pub fn context(tune: bool, cache: Option<&std::path::Path>) -> Option<Arc<Context>> {
    let rolled_loops = is_software(&device()?);
    let options = RuntimeOptions::from_env().unwrap();
    let cache_dir = cache.map(Into::into);
    Some(Context::new(&RuntimeOptions { tune, cache_dir, rolled_loops, ..options }).unwrap())
}

pub type Results = Vec<(String, Array)>;

/// Compiles with what `choose` takes, and runs once.
pub fn run_with(
    context: &Arc<Context>,
    graph: &Graph,
    inputs: &Inputs,
    choose: Option<&mut dyn FnMut(&Graph) -> Schedules>,
) -> Result<Results, String> {
    let compiled = match choose {
        Some(choose) => Compiled::with(context, graph, choose),
        None => Compiled::new(context, graph),
    };
    run_compiled(context, &compiled.map_err(|e| e.to_string())?, graph, inputs)
}

/// Runs what was compiled of `graph` once.
pub fn run_compiled(
    context: &Arc<Context>,
    compiled: &Compiled,
    graph: &Graph,
    inputs: &Inputs,
) -> Result<Results, String> {
    let fail = |e: tallow_runtime::executable::ExecError| e.to_string();
    let types: HashMap<&str, _> = graph
        .nodes()
        .filter_map(|(_, n)| match &n.op {
            Op::Weight { name, ty } | Op::State { name, ty } => Some((name.as_str(), ty)),
            _ => None,
        })
        .collect();
    let mut weights = HashMap::new();
    for (name, leaf) in &inputs.weights {
        let weight = DeviceWeight::upload(context, name, types[name.as_str()], &leaf.bytes, &mut |_, _| {});
        weights.insert(name.clone(), weight.map_err(fail)?);
    }
    let mut states = HashMap::new();
    for (name, leaf) in &inputs.states {
        let state = DeviceState::zeroed(context, name, types[name.as_str()]).map_err(fail)?;
        state.write(context, &leaf.bytes).map_err(fail)?;
        states.insert(name.clone(), state);
    }
    let executable = compiled.instance(&weights, &states, RecordOptions::default()).map_err(fail)?;
    let data: Vec<(&str, &[u8])> =
        inputs.inputs.iter().map(|(n, l)| (n.as_str(), l.bytes.as_slice())).collect();
    let outputs = executable.run(&inputs.symbols, &data).map_err(fail)?;
    let array = |dtype, shape: &[usize], bytes: &[u8]| {
        Array::from_bytes(dtype, shape, bytes).map_err(|e| e.to_string())
    };
    let mut results = vec![];
    for (name, shape, dtype, bytes) in &outputs {
        results.push((name.clone(), array(*dtype, shape, bytes)?));
    }
    for (name, state) in &states {
        let leaf = &inputs.states[name];
        let bytes = state.read(context).map_err(fail)?;
        results.push((format!("state {name}"), array(leaf.dtype, &leaf.shape, &bytes)?));
    }
    Ok(results)
}

/// The fusions of a fused graph.
pub fn fusions(graph: &Graph) -> impl Iterator<Item = &Fusion> {
    graph.nodes().filter_map(|(_, n)| if let Op::Fusion(f) = &n.op { Some(&**f) } else { None })
}

/// The schedules of a fusion for which the device has room, one for each kernel that they give.
pub fn possible(fusion: &Fusion, context: &Context) -> Vec<Schedule> {
    let mut kernels: BTreeMap<String, Schedule> = BTreeMap::new();
    for schedule in schedules(fusion, context.caps()).unwrap() {
        if let Ok(kernel) = kernel_with(fusion, schedule, context.caps(), &mut Table::default()) {
            kernels.entry(kernel.code()).or_insert(schedule);
        }
    }
    kernels.into_values().collect()
}

/// What multiplies `x`: a weight `[n,k]` in some type, transposed.
fn times(
    g: &mut Graph,
    x: tallow_ir::Value,
    name: &str,
    format: Format,
    n: i64,
) -> Result<tallow_ir::Value, GraphError> {
    let k = g.ty(x).shape.dims()[1].clone();
    let w = g.weight(name, DType::Block(format), [n.into(), k])?;
    let w = g.add(Op::Dequantize(DType::F32), &[w])?;
    let w = g.permute(w, &[1, 0])?;
    g.add(Op::Matmul, &[x, w])
}

/// `rows` of activations, over the root of their squares if `norm`, times a weight in each format, and the sum of those of
/// one width beside.
struct Case {
    rows: Dim,
    k: i64,
    weights: Vec<(Format, i64)>,
    norm: bool,
    quantized: bool,
}

impl Case {
    fn graph(&self) -> Result<Graph, GraphError> {
        let mut g = Graph::new("case");
        let mut x = g.input("x", DType::F32, [self.rows.clone(), self.k.into()])?;
        if self.norm {
            let shape = g.ty(x).shape.clone();
            let square = g.elementwise(E::Mul, &[x, x])?;
            let sum = g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1] }, &[square])?;
            let scale = g.elementwise(E::Rsqrt, &[sum])?;
            let scale = g.reshape(scale, [self.rows.clone(), 1.into()])?;
            let scale = g.broadcast(scale, shape)?;
            x = g.elementwise(E::Mul, &[x, scale])?;
        }
        let mut products = vec![];
        for (i, (format, n)) in self.weights.iter().enumerate() {
            products.push(times(&mut g, x, &format!("w{i}"), *format, *n)?);
        }
        if let [a, b] = products[..]
            && g.ty(a) == g.ty(b)
        {
            products = vec![g.elementwise(E::Mul, &[a, b])?];
        }
        for (i, y) in products.into_iter().enumerate() {
            g.output(&format!("y{i}"), y)?;
        }
        if !self.quantized {
            return Ok(g);
        }
        // As callers write it, also for devices that would not ask for it.
        matrix::round_operands(&dot::quantize_activations(&g, &caps::h200())?, &caps::h200())
    }
}

fn cases() -> Vec<Case> {
    let case = |rows: i64, k, weights: &[(Format, i64)], norm, quantized| Case {
        rows: rows.into(),
        k,
        weights: weights.to_vec(),
        norm,
        quantized,
    };
    let seq = |weights: &[(Format, i64)], k, quantized| Case {
        rows: Symbol::new("seq", 150).into(),
        ..case(1, k, weights, false, quantized)
    };
    vec![
        // Integer products: columns and steps that fill nothing, several segments, more rows.
        case(1, 4096 + 96, &[(Format::Q4_0, 530)], true, true),
        case(1, 2048, &[(Format::Q4_K, 700), (Format::Q4_K, 300), (Format::Q6_K, 130)], true, true),
        case(3, 1024, &[(Format::Q8_0, 1030)], true, true),
        case(1, 8192, &[(Format::Q5_1, 33)], false, true),
        case(1, 512, &[(Format::Q4_0, 260), (Format::Q4_0, 260)], true, true),
        // Activations as they are, prepared.
        case(1, 2048 + 8, &[(Format::F16, 1030)], true, false),
        case(2, 512, &[(Format::IQ4_XS, 300), (Format::Q6_K, 70)], true, false),
        case(8, 256, &[(Format::Q4_0, 3000)], true, false),
        // And not prepared.
        case(1, 1000, &[(Format::F16, 77)], false, false),
        case(3, 77, &[(Format::F32, 130)], false, false),
        case(1, 2048, &[(Format::Q4_K, 1), (Format::Q3_K, 260)], false, false),
        // Many rows.
        case(70, 100, &[(Format::F32, 70)], false, false),
        case(129, 256, &[(Format::Q4_K, 132), (Format::Q4_K, 132)], false, true),
        case(260, 40, &[(Format::F16, 136), (Format::F16, 65)], false, true),
        seq(&[(Format::Q8_0, 72)], 96, true),
        seq(&[(Format::F32, 300)], 33, false),
    ]
}

/// Softmax along an axis of a matrix.
fn softmax(shape: [i64; 2], axis: usize) -> Result<Graph, GraphError> {
    let mut g = Graph::new("softmax");
    let x = g.input("x", DType::F32, shape)?;
    let over = |g: &mut Graph, kind, x| {
        let y = g.add(Op::Reduce { kind, axes: vec![axis] }, &[x])?;
        let ones = if axis == 0 { [1, shape[1]] } else { [shape[0], 1] };
        let y = g.reshape(y, ones)?;
        g.broadcast(y, shape)
    };
    let most = over(&mut g, ReduceKind::Max, x)?;
    let x = g.elementwise(E::Sub, &[x, most])?;
    let x = g.elementwise(E::Exp, &[x])?;
    let sum = over(&mut g, ReduceKind::Sum, x)?;
    let y = g.elementwise(E::Div, &[x, sum])?;
    g.output("y", y)?;
    Ok(g)
}

/// One query of so many heads over the keys of others, with sinks where these are several.
fn attention([heads, key_heads, depth]: [i64; 3], most: u32, cache: DType) -> Result<Graph, GraphError> {
    let kind = Attention::new(0.2).sinks(key_heads > 1);
    let mut g = Graph::new("attention");
    let keys = Dim::from(Symbol::new("pos", most));
    let q = g.input("q", DType::F32, [heads, 1, depth])?;
    let k = g.input("k", cache, [key_heads.into(), keys.clone(), depth.into()])?;
    let v = g.input("v", cache, [key_heads.into(), keys, depth.into()])?;
    let mut operands = vec![q, k, v];
    if kind.sinks {
        operands.push(g.input("sinks", DType::F32, [heads])?);
    }
    let y = g.add(Op::Attention(kind), &operands)?;
    g.output("y", y)?;
    Ok(g)
}

/// Many queries in f16 with sinks, by weights of one f16 each or exact ones.
fn attention_of_many(queries: i64, round_weights: bool) -> Result<Graph, GraphError> {
    let mut g = Graph::new("attention of many");
    let q = g.input("q", DType::F16, [4, queries, 64])?;
    let k = g.input("k", DType::F16, [2, 130, 64])?;
    let v = g.input("v", DType::F16, [2, 130, 32])?;
    let sinks = g.input("sinks", DType::F32, [4])?;
    let attention = Attention::new(0.2).causal(round_weights).round_weights(round_weights).sinks(true);
    let y = g.add(Op::Attention(attention), &[q, k, v, sinks])?;
    g.output("y", y)?;
    Ok(g)
}

fn graphs() -> Vec<Graph> {
    let products = cases().into_iter().map(|case| case.graph());
    let others = [
        softmax([5, 7000], 1),
        softmax([70, 1000], 1),
        softmax([9, 333], 1),
        softmax([777, 130], 0),
        softmax([300, 1028], 0),
        attention([8, 2, 64], 700, DType::F16),
        attention([3, 3, 24], 100, DType::F32),
        attention([4, 1, 128], 300, DType::F16),
        attention_of_many(50, false),
        attention_of_many(130, true),
        batched(70, false),
        batched(200, true),
        index_adds::case(DType::F32, [2, 70, 100, 90]).graph(),
        index_adds::case(DType::F32, [1, 8, 64, 3000]).graph(),
        index_adds::case(DType::F16, [1, 300, 130, 500]).graph(),
        scatter(0),
        scatter(300),
    ];
    products.chain(others).map(|graph| graph.expect("a graph of this test")).collect()
}

/// Sums into few targets.
fn scatter(run: u32) -> Result<Graph, GraphError> {
    scatters::graph(&scatters::case(ScatterKind::Add, DType::F32, [3000, 5, 11], run))
}

/// Products in f16, of what lies in memory as matrices are loaded: batches, the right operand along its columns and rows.
fn batched(rows: i64, transposed: bool) -> Result<Graph, GraphError> {
    let mut g = Graph::new("batched");
    let right = if transposed { [3, 136, 72] } else { [3, 72, 136] };
    let mut operands = vec![];
    for (name, shape) in [("a", [3, rows, 72]), ("b", right)] {
        let x = g.input(name, DType::F16, shape)?;
        operands.push(g.add(Op::Cast(DType::F32), &[x])?);
    }
    if transposed {
        operands[1] = g.permute(operands[1], &[0, 2, 1])?;
    }
    let y = g.add(Op::Matmul, &operands)?;
    g.output("y", y)?;
    matrix::round_operands(&g, &caps::h200())
}

/// Workgroup-scope cooperative matrices are candidates beside those of subgroups, and counted by themselves.
const OF_THE_WORKGROUP: &str = "matmul coopmat2";

#[test]
fn kernels_of_every_schedule_match_the_interpreter() {
    let Some(context) = context(false, None) else { return };
    let (mut tried, mut without) = (BTreeMap::<String, usize>::new(), 0);
    let has_them =
        context.caps().cooperative_matrix2 && matrix::has_instructions(context.caps(), MatrixOperand::F16);
    // Layouts are there for those matrices.
    let of_layouts = layouts::products().into_iter().map(|graph| (graph, has_them));
    let drawn = graphs().into_iter().map(|graph| (graph, false)).chain(of_layouts);
    for (i, (graph, demanded)) in drawn.enumerate() {
        let inputs = random_inputs(&graph, 9000 + i as u64);
        let expected = Expected::of(&graph, &inputs);
        let fused = passes::run(&graph, context.caps(), &mut |_, _| {}).unwrap();
        let all = fusions(fused.graph()).map(|f| (f, possible(f, &context)));
        let all: Vec<(&Fusion, Vec<Schedule>)> = all.filter(|(_, all)| all.len() > 1).collect();
        let most = all.iter().map(|(_, all)| all.len()).max().unwrap_or(0);
        let of_the_workgroup =
            all.iter().flat_map(|(_, all)| all).any(|c| c.instruction == Some(Instruction::Coopmat2));
        assert!(of_the_workgroup || !demanded, "no matrices of the workgroup for\n{graph}");
        // A device of few features has one kernel for some graphs, which the other tests run.
        if most <= 1 {
            without += 1;
            continue;
        }
        for nth in 0..most {
            let mut taken = String::new();
            let mut choose = |_: &Graph| {
                let nth = |(f, all): &(&Fusion, Vec<Schedule>)| Some(((*f).clone(), *all.get(nth)?));
                let chosen: Schedules = all.iter().filter_map(nth).collect();
                taken = chosen.values().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                for schedule in chosen.values() {
                    let kind = match schedule.instruction {
                        Some(Instruction::Coopmat2) => OF_THE_WORKGROUP.to_string(),
                        Some(Instruction::Fma | Instruction::Dot4 | Instruction::Coopmat) | None => {
                            schedule.family()
                        }
                    };
                    *tried.entry(kind).or_default() += 1;
                }
                chosen
            };
            let got = run_with(&context, &graph, &inputs, Some(&mut choose));
            let got = got.unwrap_or_else(|e| panic!("{taken}: {e}\n{graph}"));
            let wrong = expected.differences(&got);
            assert!(wrong.is_empty(), "{taken}: {}\n{graph}", wrong.join("\n"));
        }
    }
    println!("{tried:?}, {without} graphs with one candidate");
    assert_eq!(tried.contains_key(OF_THE_WORKGROUP), has_them);
    // Attention of one query has candidates with subgroups alone, that of many with cooperative matrices.
    assert!(tried.len() >= 4 && tried.values().all(|n| *n > 3) && without <= 6, "{tried:?}, {without}");
}

/// A matvec with a norm before it, for a device that need not be fast.
fn small() -> Graph {
    let weights = vec![(Format::Q4_0, 1000)];
    Case { rows: 1.into(), k: 1024, weights, norm: true, quantized: true }.graph().unwrap()
}

#[test]
fn what_was_measured_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let Some(first) = context(true, Some(dir.path())) else { return };
    if first.caps().timestamp_period_ps == 0 {
        return;
    }
    let (graph, measured) = (small(), |c: &Arc<Context>| c.tuner().unwrap().measured());
    let inputs = random_inputs(&graph, 77);
    let expected = Expected::of(&graph, &inputs);
    let check = |context: &Arc<Context>| {
        let got = run_with(context, &graph, &inputs, None).unwrap();
        assert_eq!(expected.differences(&got), Vec::<String>::new());
    };
    assert_eq!(measured(&first), 0);
    check(&first);
    let count = measured(&first);
    assert!(count > 0);
    check(&first);
    assert_eq!(measured(&first), count, "known in the same process");
    let again = context(true, Some(dir.path())).unwrap();
    check(&again);
    assert_eq!(measured(&again), 0, "known in the next");
    // The store names a schedule of the kernel in readable text.
    let file = std::fs::read_dir(dir.path().join("tuning")).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count() as u64, 1 + count, "{text}");
    assert!(text.contains("q4_0[1000,1024]") && text.contains(" wg"), "{text}");
    // What is not a candidate is not taken, and what is no file of this kind is measured again.
    let bogus = text.replace("\"schedule\":\"", "\"schedule\":\"all at once, ");
    std::fs::write(&file, &bogus).unwrap();
    let bogus = context(true, Some(dir.path())).unwrap();
    check(&bogus);
    std::fs::write(&file, "}{").unwrap();
    let damaged = context(true, Some(dir.path())).unwrap();
    check(&damaged);
    assert_eq!(measured(&damaged), count);
    assert!(context(false, Some(dir.path())).unwrap().tuner().is_none(), "it has to be asked for");
}

/// The root of what may be no sum of squares as far as its kernel shows: random numbers of both signs leave nothing to compare.
#[test]
fn kernels_that_need_squares_are_measured() {
    let Some(context) = context(false, None) else { return };
    if context.caps().timestamp_period_ps == 0 {
        return;
    }
    let root = || -> Result<Graph, GraphError> {
        let mut g = Graph::new("root");
        let x = g.input("x", DType::F32, [9, 3330])?;
        let sum = g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1] }, &[x])?;
        // 3330 normal numbers sum up to 0 +- 58, without their signs to some 2650.
        let most = g.full_like(sum, 1000.0)?;
        let difference = g.elementwise(E::Sub, &[sum, most])?;
        let root = g.elementwise(E::Sqrt, &[difference])?;
        g.output("y", root)?;
        Ok(g)
    };
    let fused = passes::run(&root().unwrap(), context.caps(), &mut |_, _| {}).unwrap();
    let fusion = fusions(fused.graph()).next().unwrap();
    let candidates: Vec<Option<Candidate>> = possible(fusion, &context)
        .into_iter()
        .map(|schedule| {
            let mut table = Table::default();
            let kernel = kernel_with(fusion, schedule, context.caps(), &mut table).unwrap();
            Some(Candidate::new(&context, kernel, table).unwrap())
        })
        .collect();
    if let [_, _, ..] = candidates[..] {
        let outcomes = measure(&context, fusion, &candidates, &Limits::default()).unwrap();
        assert!(outcomes.iter().all(|o| !matches!(o, Outcome::Wrong(_))), "{outcomes:?}");
        assert!(matches!(outcomes[0], Outcome::Time(_)), "{outcomes:?}");
    }
}

/// A wrong kernel never wins, however fast.
#[test]
fn wrong_kernels_are_dropped() {
    let Some(context) = context(false, None) else { return };
    if context.caps().timestamp_period_ps == 0 {
        return;
    }
    let rows = |quantized| Case {
        rows: 1.into(),
        k: 1024,
        weights: vec![(Format::F16, 1000)],
        norm: false,
        quantized,
    };
    let graph = rows(false).graph().unwrap();
    let fused = passes::run(&graph, context.caps(), &mut |_, _| {}).unwrap();
    let fusion = fusions(fused.graph()).next().unwrap();
    let good = kernel(fusion, context.caps(), &mut Table::default()).unwrap();
    let edited = |from: &str, to: &str| {
        assert!(good.glsl.contains(from), "{}", good.glsl);
        Kernel { glsl: good.glsl.replace(from, to), ..good.clone() }
    };
    let kernels = [
        good.clone(),
        // Does nothing; leaves out the last columns; leaves out the end of the rows; computes other columns.
        edited("void main() {", "void main() {\n    if (gl_WorkGroupID.x < 100000u) return;"),
        edited(
            "void main() {",
            "void main() {\n    if (gl_WorkGroupID.x == gl_NumWorkGroups.x - 1u) return;",
        ),
        edited("k0 < 1024u", "k0 < 1016u"),
        edited("const uint n = min(column0 + pass", "const uint n = min(column0 + (pass ^ 1u)"),
        good.clone(),
    ];
    let candidate = |kernel: &Kernel| Candidate::new(&context, kernel.clone(), Table::default()).unwrap();
    let candidates: Vec<Option<Candidate>> = kernels.iter().map(|k| Some(candidate(k))).collect();
    let outcomes = measure(&context, fusion, &candidates, &Limits::default()).unwrap();
    assert!(
        matches!(outcomes[0], Outcome::Time(_)) && matches!(outcomes[5], Outcome::Time(_)),
        "{outcomes:?}"
    );
    for wrong in &outcomes[1..5] {
        assert!(matches!(wrong, Outcome::Wrong(_)), "{outcomes:?}");
    }
    assert!(matches!(fastest(&outcomes), Some(0 | 5)));
}

/// A kernel that does not compile leaves the others.
#[test]
fn kernels_that_do_not_compile_are_dropped() {
    let Some(context) = context(false, None) else { return };
    let graph = softmax([9, 333], 1).unwrap();
    let fused = passes::run(&graph, context.caps(), &mut |_, _| {}).unwrap();
    let fusion = fusions(fused.graph()).next().unwrap();
    let good = kernel(fusion, context.caps(), &mut Table::default()).unwrap();
    let bad = Kernel { glsl: good.glsl.replace("void main() {", "void main() }"), ..good.clone() };
    let made = [Some(good.clone()), Some(bad), None, Some(good)];
    let all = Candidate::all(&context, made.map(|k| Some((k?, Table::default()))).into());
    assert_eq!(all.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false, true]);
}
