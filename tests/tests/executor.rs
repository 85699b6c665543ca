//! Plans of real kernels, executed on arena bytes with the interpreter in the place of the device.
//!
//! The executor (`tallow_ir::schedule::simulate`) shares no code with the planner: it runs the dispatches of
//! a level in random order and lets writes become visible at random times before the next barrier. Each
//! dispatch evaluates its fusion's body. Results must equal the graph's own, and a plan with a barrier
//! deleted or an offset shifted must be found out.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;

use tallow_codegen::{
    CodegenError, Module, Options as CompileOptions, Source, compile, compile_with, limits,
};
use tallow_ir::caps::{h200, lavapipe};
use tallow_ir::schedule::simulate::{Device, replay, run_sequential, sequential_memory};
use tallow_ir::schedule::{Command, Dispatch, Plan, check};
use tallow_ir::verify::updated_param;
use tallow_ir::{DType, DeviceCaps, Fusion, Graph, Op, TensorType};
use tallow_reference::{Array, Env, evaluate};
use tallow_tests::training::{training_step, training_step_of};
use tallow_tests::{Inputs, Options, random_graph, random_inputs};

/// A graph that is one fusion with leaves for its operands, and which operands are states that it updates.
fn alone(fusion: &Fusion, types: &[TensorType]) -> Graph {
    let updated: Vec<u32> =
        (0..fusion.body.outputs().len() as u32).filter_map(|r| updated_param(fusion, r)).collect();
    let mut graph = Graph::new("alone");
    let mut operands = vec![];
    for (i, ty) in types.iter().enumerate() {
        let (name, ty) = (format!("p{i}"), ty.clone());
        let leaf = match ty.dtype {
            _ if updated.contains(&(i as u32)) => Op::State { name, ty },
            DType::Block(_) => Op::Weight { name, ty },
            _ => Op::Input { name, ty },
        };
        operands.push(graph.add(leaf, &[]).unwrap());
    }
    let node = graph.add_node(Op::Fusion(Box::new(fusion.clone())), &operands).unwrap();
    for result in 0..fusion.body.outputs().len() as u32 {
        graph.output(&format!("r{result}"), tallow_ir::Value { node, result }).unwrap();
    }
    graph
}

/// Bytes of `ty` at the start of a buffer, as an array.
fn array(ty: &TensorType, symbols: &tallow_ir::Bindings, bytes: &[u8]) -> Array {
    let shape = ty.shape.eval(symbols).unwrap();
    let len = tallow_reference::byte_len(ty.dtype, &shape).unwrap();
    Array::from_bytes(ty.dtype, &shape, &bytes[..len]).unwrap()
}

/// Evaluates dispatch `d` of `module` on bytes; gives the results, one after the other.
fn kernel(module: &Module, inputs: &Inputs, d: usize, reads: &[Vec<u8>], writes: &mut [Vec<u8>]) -> Vec<u8> {
    let (launch, graph) = (&module.launches[d], module.graph.graph());
    let node = graph.node(launch.node);
    let Op::Fusion(fusion) = &node.op else { panic!("a launch is a fusion") };
    let types: Vec<TensorType> = node.operands.iter().map(|v| graph.ty(*v).clone()).collect();
    let bindings = &module.kernels[launch.kernel].bindings;
    let position = |source: Source| {
        let at = bindings.iter().position(|b| b.source == source)?;
        Some(bindings[..at].iter().filter(|b| b.written == bindings[at].written).count())
    };
    let mut env = Env { symbols: inputs.symbols.clone(), ..Env::default() };
    let updates: HashMap<u32, u32> =
        (0..node.types.len() as u32).filter_map(|r| Some((updated_param(fusion, r)?, r))).collect();
    for (i, ty) in types.iter().enumerate() {
        let name = format!("p{i}");
        if let Some(result) = updates.get(&(i as u32)) {
            let at = position(Source::Result(*result)).unwrap();
            env.states.insert(name, array(ty, &inputs.symbols, &writes[at]));
        } else {
            // A kernel does not bind what no result depends on: zeros in its place are wrong where one does.
            let value = match position(Source::Operand(i as u32)) {
                Some(at) => array(ty, &inputs.symbols, &reads[at]),
                None => {
                    let shape = ty.shape.eval(&inputs.symbols).unwrap();
                    let len = tallow_reference::byte_len(ty.dtype, &shape).unwrap();
                    Array::from_bytes(ty.dtype, &shape, &vec![0; len]).unwrap()
                }
            };
            let leaves = if matches!(ty.dtype, DType::Block(_)) { &mut env.weights } else { &mut env.inputs };
            leaves.insert(name, Arc::new(value));
        }
    }
    let mut all = vec![];
    for (result, (_, value)) in evaluate(&alone(fusion, &types), &mut env).unwrap().into_iter().enumerate() {
        let at = position(Source::Result(result as u32)).unwrap();
        let bytes = value.to_bytes();
        writes[at][..bytes.len()].copy_from_slice(&bytes);
        all.extend(bytes);
    }
    all
}

/// Bytes of each leaf at the start of its buffer, by buffer.
fn leaves(module: &Module, inputs: &Inputs) -> Vec<(usize, Vec<u8>)> {
    let sets = [
        (&module.inputs, &inputs.inputs),
        (&module.weights, &inputs.weights),
        (&module.states, &inputs.states),
    ];
    let mut all = vec![];
    for (tensors, data) in sets {
        for tensor in tensors {
            let mut bytes = data[&tensor.name].bytes.clone();
            bytes.resize(module.program.buffers[tensor.buffer].bytes as usize, 0);
            all.push((tensor.buffer, bytes));
        }
    }
    all
}

/// What a run gives.
#[derive(PartialEq)]
struct Run {
    /// What a caller sees: outputs, then states.
    visible: Vec<Vec<u8>>,
    /// What each dispatch computed.
    computed: Vec<Vec<u8>>,
}

/// One simulated run under `plan`.
fn simulate(module: &Module, plan: &Plan, inputs: &Inputs, seed: u64) -> Run {
    let mut device = Device::new(&module.program, plan, seed).unwrap();
    for (buffer, bytes) in leaves(module, inputs) {
        device.write(buffer, &bytes).unwrap();
    }
    let mut computed = vec![vec![]; module.launches.len()];
    let mut run = |d: usize, reads: &[Vec<u8>], writes: &mut [Vec<u8>]| {
        computed[d] = kernel(module, inputs, d, reads, writes);
    };
    replay(&module.program, plan, &mut device, 1, seed, &mut run).unwrap();
    Run { visible: results(module, inputs, |buffer| device.read(buffer).to_vec()), computed }
}

/// The bytes that a caller sees: of each output its elements, of each state all.
fn results(module: &Module, inputs: &Inputs, read: impl Fn(usize) -> Vec<u8>) -> Vec<Vec<u8>> {
    let visible = module.outputs.iter().chain(&module.states);
    visible.map(|t| array(&t.ty, &inputs.symbols, &read(t.buffer)).to_bytes()).collect()
}

fn sequential(module: &Module, inputs: &Inputs) -> Run {
    let mut memory = sequential_memory(&module.program);
    for (buffer, bytes) in leaves(module, inputs) {
        memory[buffer] = bytes;
    }
    let mut computed = vec![vec![]; module.launches.len()];
    let mut run = |d: usize, reads: &[Vec<u8>], writes: &mut [Vec<u8>]| {
        computed[d] = kernel(module, inputs, d, reads, writes);
    };
    run_sequential(&module.program, &mut memory, &mut run).unwrap();
    Run { visible: results(module, inputs, |buffer| memory[buffer].clone()), computed }
}

fn cases(n: u64) -> impl Iterator<Item = (u64, Graph, Inputs, Module)> {
    (0..n).map(|seed| {
        let graph = random_graph(7000 + seed, 6 + seed as usize % 8, &Options::for_kernels());
        let inputs = random_inputs(&graph, seed);
        let module = compile(&graph, &lavapipe()).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
        (seed, graph, inputs, module)
    })
}

/// Fused, scheduled and placed, a graph gives bit for bit what the interpreter gives for it as written.
#[test]
fn plans_of_random_graphs_give_the_graphs_results() {
    for (seed, graph, inputs, module) in cases(60) {
        let mut env = inputs.env();
        let mut want: Vec<Vec<u8>> =
            evaluate(&graph, &mut env).unwrap().into_iter().map(|(_, a)| a.to_bytes()).collect();
        want.extend(module.states.iter().map(|s| env.states[&s.name].to_bytes()));
        assert_eq!(sequential(&module, &inputs).visible, want, "seed {seed}, in order\n{graph}");
        for order in 0..4 {
            assert_eq!(
                simulate(&module, &module.plan, &inputs, order).visible,
                want,
                "seed {seed}, order {order}\n{graph}"
            );
        }
    }
}

/// The graph compiled with a budget; `None` if nothing was found that fits.
fn within(graph: &Graph, caps: &DeviceCaps, budget: u64) -> Option<Module> {
    let options = CompileOptions { budget: Some(budget), ..CompileOptions::default() };
    match compile_with(graph, caps, &options, &mut |_| Default::default(), &mut |_, _| {}) {
        Ok(module) => Some(module),
        Err(CodegenError::Memory { bytes, least, .. }) => {
            assert!(budget < least && least <= bytes, "{budget} < {least} <= {bytes}");
            None
        }
        Err(e) => panic!("{e}\n{graph}"),
    }
}

/// Where kernels run again to fit a budget, all results are bit for bit those of kernels that run once.
#[test]
fn a_budget_changes_no_result() {
    let (mut fitted, mut runs) = (0, 0);
    for seed in 0..100 {
        let graph = training_step(seed).unwrap();
        let inputs = random_inputs(&graph, seed);
        let once = compile(&graph, &lavapipe()).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
        assert_eq!(once.remat, None);
        let bytes = once.plan.arena.bytes;
        let mut budgets =
            [bytes * 9 / 10, bytes * 3 / 4, bytes / 2].map(|budget| within(&graph, &lavapipe(), budget));
        let Some(module) = budgets.iter_mut().rev().find_map(Option::take).filter(|_| bytes > 0) else {
            continue;
        };
        let remat = module.remat.expect("a budget below what it took");
        assert!(module.plan.arena.bytes <= remat.budget && remat.bytes == bytes, "seed {seed}: {remat:?}");
        assert_eq!(check(&module.program, &module.plan, &limits(&lavapipe())), Ok(()), "seed {seed}");
        (fitted, runs) = (fitted + 1, runs + remat.runs);
        let want = sequential(&once, &inputs).visible;
        assert_eq!(
            sequential(&module, &inputs).visible,
            want,
            "seed {seed}, in order\n{}",
            module.graph.graph()
        );
        for order in 0..2 {
            let found = simulate(&module, &module.plan, &inputs, order).visible;
            assert_eq!(found, want, "seed {seed}, order {order}\n{}", module.graph.graph());
        }
    }
    println!("{fitted} graphs, {runs} kernels that run again");
    assert!(
        fitted >= 20 && runs > fitted,
        "{fitted} graphs fitted a budget, with {runs} kernels that run again"
    );
}

/// The same for steps of so many rows that kernels write results over operands. They are too large to run, but the compiler
/// compares what kernels compute with what they did.
#[test]
fn a_budget_changes_no_large_step() {
    let (mut fitted, mut in_place) = (0, 0);
    for seed in 0..60 {
        let caps = if seed % 2 == 0 { h200() } else { lavapipe() };
        let graph = training_step_of(seed, 20_000).unwrap();
        let once = compile(&graph, &caps).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
        let mut budget = once.plan.arena.bytes * 9 / 10;
        while let Some(module) = within(&graph, &caps, budget) {
            assert_eq!(check(&module.program, &module.plan, &limits(&caps)), Ok(()), "seed {seed}");
            let overwrites =
                |d: &Dispatch| d.writes.iter().any(|w| d.reads.iter().any(|r| r.buffer == w.buffer));
            fitted += usize::from(module.remat.is_some());
            in_place += usize::from(module.program.dispatches.iter().any(overwrites));
            budget = budget * 9 / 10;
        }
    }
    println!("{fitted} fitted, {in_place} with results over operands");
    assert!(fitted >= 20 && in_place >= 10, "{fitted} fitted, {in_place} with results over operands");
}

/// Whether under `plan` some legal device behaviour makes a dispatch compute, or a caller see, something else than the
/// program in order does, on any of several inputs: with one alone, what is overwritten may happen to be what it is
/// overwritten with. A dispatch may go wrong unseen: a state's columns that one update read too early may all be
/// overwritten by the next.
fn found_out(module: &Module, plan: &Plan, graph: &Graph) -> bool {
    (0..20).any(|data| {
        let inputs = random_inputs(graph, 100 + data);
        let want = sequential(module, &inputs);
        (0..10).any(|seed| simulate(module, plan, &inputs, seed) != want)
    })
}

/// Deleting any barrier is a violation for the checker, and gives wrong results in the executor but where a kernel
/// does not depend on what it reads, as the order of a single element does not.
#[test]
fn a_deleted_barrier_is_detected() {
    let (mut deleted, mut wrong) = (0, 0);
    for (seed, graph, _, module) in cases(150) {
        for at in 0..module.plan.commands.len() {
            if !matches!(module.plan.commands[at], Command::Barrier { .. }) {
                continue;
            }
            let mut plan = module.plan.clone();
            plan.commands.remove(at);
            assert!(
                check(&module.program, &plan, &limits(&lavapipe())).is_err(),
                "seed {seed}, command {at}\n{graph}"
            );
            deleted += 1;
            wrong += usize::from(found_out(&module, &plan, &graph));
        }
    }
    assert!(
        deleted >= 60 && wrong * 100 >= deleted * 96,
        "{wrong} of {deleted} deleted barriers gave wrong results"
    );
}

/// Moving a buffer onto another that lives at the same time is a violation for the checker, and gives wrong
/// results but where a kernel does not depend on what it reads.
#[test]
fn a_shifted_offset_is_detected() {
    let (mut shifted, mut wrong) = (0, 0);
    for (seed, graph, _, module) in cases(300) {
        for buffer in 0..module.program.buffers.len() {
            for other in 0..module.program.buffers.len() {
                let mut plan = module.plan.clone();
                let (Some(to), Some(_)) = (plan.arena.slots[other], plan.arena.slots[buffer]) else {
                    continue;
                };
                plan.arena.slots[buffer] = Some(to);
                let room = plan.arena.windows[to.window] - to.offset;
                if buffer == other || room < module.program.buffers[buffer].bytes {
                    continue;
                }
                let legal = check(&module.program, &plan, &limits(&lavapipe())).is_ok();
                let detected = found_out(&module, &plan, &graph);
                assert!(!(legal && detected), "seed {seed}: the checker allows {buffer} at {other}\n{graph}");
                shifted += usize::from(!legal);
                wrong += usize::from(detected);
            }
        }
    }
    assert!(
        shifted >= 60 && wrong * 100 >= shifted * 96,
        "{wrong} of {shifted} shifted offsets gave wrong results"
    );
}

/// The decode step of a real model: two orders, and every barrier needed.
#[test]
fn the_decode_step_survives_any_order() {
    let path = tallow_testmodels::model("storyteller-nano-Q4_K_M");
    let llama =
        tallow_models::model_graph::ModelGraph::from_file(&tallow_gguf::GgufFile::open(path).unwrap())
            .unwrap();
    let graph = llama.step(tallow_models::model_graph::Rows::One, 64).unwrap();
    let inputs = random_inputs(&graph, 3);
    let module = compile(&graph, &lavapipe()).unwrap();
    let want = sequential(&module, &inputs);
    for seed in 0..2 {
        assert!(simulate(&module, &module.plan, &inputs, seed) == want, "order {seed}");
    }
    for at in 0..module.plan.commands.len() {
        if matches!(module.plan.commands[at], Command::Barrier { .. }) {
            let mut plan = module.plan.clone();
            plan.commands.remove(at);
            assert!(check(&module.program, &plan, &limits(&lavapipe())).is_err(), "barrier {at}");
        }
    }
}
