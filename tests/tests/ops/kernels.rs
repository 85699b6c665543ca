//! A Vulkan device against the interpreter: many cases in one graph, so that few plans are made.

use std::collections::HashMap;

use tallow::{Device, GraphState, RunOutput, RuntimeOptions, Weight};
use tallow_codegen::CodegenError;
use tallow_ir::{DeviceCaps, Graph};
use tallow_reference::Array;
use tallow_tests::Inputs;

use crate::candle_side::within;
use crate::case::{Case, value};
use crate::class::Class;
use crate::many;
use crate::row::Bound;

pub use tallow_tests::device::{device, is_software};

/// Cases in one graph.
const BATCH: usize = 150;

/// As [`device`], but one binding spans no more than `bytes`.
fn device_with_range(bytes: u64) -> Device {
    let mut options = RuntimeOptions::from_env().unwrap();
    options.max_storage_buffer_range = Some(bytes);
    Device::vulkan_with(&options).unwrap()
}

pub fn caps(device: &Device) -> &DeviceCaps {
    let Device::Vulkan(vulkan) = device else { panic!("{device} is no Vulkan device") };
    vulkan.caps()
}

/// How many cases ran, and what was wrong.
#[derive(Default)]
pub struct Outcome {
    pub compared: usize,
    pub refused: usize,
    pub wrong: Vec<String>,
}

impl Outcome {
    pub fn add(&mut self, other: Outcome) {
        self.compared += other.compared;
        self.refused += other.refused;
        self.wrong.extend(other.wrong);
    }
}

/// Runs all cases on the device and compares them with the interpreter.
pub fn check(device: &Device, cases: &[Case<'_>]) -> Outcome {
    let mut outcome = Outcome::default();
    let of = |wanted: &dyn Fn(&Case<'_>) -> bool| cases.iter().filter(|c| wanted(c)).collect::<Vec<_>>();
    let small = |c: &Case<'_>| !matches!(c.class, Class::Many | Class::Windows);
    run_batch(device, &of(&small), &mut outcome);
    for case in of(&|c| c.class == Class::Many) {
        if let Some(graph) = supported(device, case, &mut outcome) {
            many::check(device, case, &graph, &mut outcome);
        }
    }
    // Four windows for each operand of the type: the base shape has 864 elements.
    for size in [1, 2, 4, 8] {
        let cases = of(&|c| c.class == Class::Windows && c.dtype.size_in_bytes() == size);
        if !cases.is_empty() {
            run_batch(&device_with_range(256 * size as u64), &cases, &mut outcome);
        }
    }
    outcome
}

/// The graph of a case that kernels compute; else the device must refuse its type, by name.
fn supported(device: &Device, case: &Case<'_>, outcome: &mut Outcome) -> Option<Graph> {
    // What cannot be built is the other test's.
    let graph = case.graph().ok()?;
    match tallow_codegen::compile(&graph, caps(device)) {
        Ok(_) => Some(graph),
        Err(CodegenError::Dtype { dtype, .. }) => {
            // Code generation was asked; so must the device be.
            let found = match &case.row.expression {
                Some(expression) => case.on(device, expression).and_then(|t| tallow::eval(&[&t])),
                None => run(device, &graph, &inputs(&[case], false)).map(|_| ()),
            };
            let says = format!("dtype {dtype} is not supported by kernels on this device");
            match found {
                Err(error) if error.to_string().contains(&says) => outcome.refused += 1,
                other => outcome.wrong.push(format!("{case}: {other:?}, expected: {says}")),
            }
            None
        }
        Err(error) => {
            outcome.wrong.push(format!("{case}: {error}"));
            None
        }
    }
}

fn run_batch(device: &Device, cases: &[&Case<'_>], outcome: &mut Outcome) {
    let ready: Vec<&Case<'_>> =
        cases.iter().copied().filter(|case| supported(device, case, outcome).is_some()).collect();
    let (expressions, graphs): (Vec<_>, Vec<_>) = ready.iter().partition(|c| c.row.expression.is_some());
    for batch in graphs.chunks(BATCH) {
        in_one_graph(device, batch, outcome);
    }
    let built: Vec<_> = expressions
        .iter()
        .filter_map(|c| Some((*c, c.on(device, c.row.expression.as_ref()?).unwrap())))
        .collect();
    for batch in built.chunks(BATCH) {
        let all: Vec<_> = batch.iter().map(|(_, tensor)| tensor).collect();
        if let Err(error) = tallow::eval(&all) {
            outcome.wrong.push(format!("{} and others: {error}", batch[0].0));
            continue;
        }
        for (case, tensor) in batch {
            let want = case.interpret(&case.graph().unwrap()).unwrap();
            judge(case, &want, &value(tensor).unwrap(), outcome);
        }
    }
}

/// The data of all cases, named by position.
fn inputs(cases: &[&Case<'_>], wide: bool) -> Inputs {
    let mut inputs = Inputs::default();
    if let [case] = cases {
        case.fill("c", &mut inputs, wide);
        return inputs;
    }
    for (i, case) in cases.iter().enumerate() {
        case.fill(&format!("c{i}"), &mut inputs, wide);
    }
    inputs
}

fn in_one_graph(device: &Device, cases: &[&Case<'_>], outcome: &mut Outcome) {
    let graph = match cases {
        [case] => case.graph().unwrap(),
        _ => {
            let mut graph = Graph::new("cases");
            for (i, case) in cases.iter().enumerate() {
                let value = case.add_to(&mut graph, &format!("c{i}")).unwrap();
                graph.output(&format!("c{i}"), value).unwrap();
            }
            graph
        }
    };
    // Plain numbers, then integers of all bits.
    for wide in [false, true] {
        let inputs = inputs(cases, wide);
        let got = match run(device, &graph, &inputs) {
            Ok(got) => got,
            Err(error) if cases.len() == 1 => {
                outcome.wrong.push(format!("{}: {error}", cases[0]));
                return;
            }
            // One of them fails: which?
            Err(_) => {
                let (first, second) = cases.split_at(cases.len() / 2);
                in_one_graph(device, first, outcome);
                return in_one_graph(device, second, outcome);
            }
        };
        let want = tallow_reference::evaluate(&graph, &mut inputs.env()).unwrap();
        for ((case, (_, want)), got) in cases.iter().zip(&want).zip(&got) {
            judge(case, want, got, outcome);
        }
    }
}

fn judge(case: &Case<'_>, want: &Array, got: &Array, outcome: &mut Outcome) {
    outcome.compared += 1;
    if let Err(why) = same(want, got, case.row.bound) {
        outcome.wrong.push(format!("{case}: {why}"));
    }
}

/// Interpreter against kernel.
pub fn same(want: &Array, got: &Array, bound: Bound) -> Result<(), String> {
    if want.ty != got.ty || want.shape != got.shape {
        return Err(format!("{}{:?}, not {}{:?}", got.ty, got.shape, want.ty, want.shape));
    }
    // Integers as integers: f64 would merge neighbours above 2^53.
    if bound == Bound::Moved || want.ty.is_int() {
        return tallow_tests::compare(want, got, tallow_tests::Tolerance::Bits);
    }
    within(&want.to_f64s(), &got.to_f64s(), want.ty, bound)
}

/// Compiles a graph and runs it once; its outputs in order.
pub fn outputs(device: &Device, graph: &Graph, inputs: &Inputs) -> tallow::Result<Vec<RunOutput>> {
    let mut weights: HashMap<String, Weight> = HashMap::new();
    for (name, leaf) in &inputs.weights {
        weights.insert(name.clone(), device.weight(leaf.dtype, &leaf.shape, &leaf.bytes)?);
    }
    let mut states: HashMap<String, GraphState> = HashMap::new();
    for (name, leaf) in &inputs.states {
        let state = device.state(leaf.dtype, &leaf.shape)?;
        state.write_bytes(&leaf.bytes)?;
        states.insert(name.clone(), state);
    }
    let executable = device.compile(graph, &weights, &states)?;
    let data: Vec<(&str, &[u8])> =
        inputs.inputs.iter().map(|(n, l)| (n.as_str(), l.bytes.as_slice())).collect();
    Ok(executable.run(&[], &data)?.into_iter().collect())
}

fn run(device: &Device, graph: &Graph, inputs: &Inputs) -> tallow::Result<Vec<Array>> {
    let array = |o: RunOutput| Array::from_bytes(o.dtype, &o.shape, &o.bytes).expect("its own bytes");
    Ok(outputs(device, graph, inputs)?.into_iter().map(array).collect())
}
