//! A device or a skip, and one way to run a graph on it.

use std::collections::HashMap;

use tallow::{Device, GraphState, RuntimeOptions, Weight};
use tallow_ir::Graph;
use tallow_reference::Array;
use tallow_tests::Inputs;

use tallow_tests::device::PerThread;
pub use tallow_tests::device::{device, is_full, is_software, sampled};

/// As [`device`], but one binding spans no more than `bytes`; larger tensors are bound window by window.
pub fn device_with_range(bytes: u64) -> Option<Device> {
    device()?;
    let mut options = RuntimeOptions::from_env().unwrap();
    options.max_storage_buffer_range = Some(bytes);
    Some(Device::vulkan_with(&options).unwrap())
}

/// As [`device`], but without unrolled loops if it is a software device, which compiles large kernels in a fraction of the
/// time so. For few iterations: Mesa's leaves all loops of an invocation after 65535.
pub fn device_with_rolled_loops() -> Option<Device> {
    static PER_THREAD: PerThread = PerThread::new();
    let shared = device()?;
    if !is_software(&shared) {
        return Some(shared);
    }
    let options = RuntimeOptions { rolled_loops: true, ..RuntimeOptions::from_env().unwrap() };
    Some(PER_THREAD.get(|| Device::vulkan_with(&options).unwrap()))
}

/// Compiles `graph` for `device` and runs it once; the results, and the states afterwards by name.
pub fn run(device: &Device, graph: &Graph, inputs: &Inputs) -> Result<Vec<(String, Array)>, String> {
    run_counted(device, graph, inputs).map(|(results, _)| results)
}

/// As [`run`], with the number of dispatches that were recorded.
pub fn run_counted(
    device: &Device,
    graph: &Graph,
    inputs: &Inputs,
) -> Result<(Vec<(String, Array)>, usize), String> {
    let fail = |e: tallow::Error| e.to_string();
    let mut weights: HashMap<String, Weight> = HashMap::new();
    for (name, leaf) in &inputs.weights {
        weights.insert(name.clone(), device.weight(leaf.dtype, &leaf.shape, &leaf.bytes).map_err(fail)?);
    }
    let mut states: HashMap<String, GraphState> = HashMap::new();
    for (name, leaf) in &inputs.states {
        let state = device.state(leaf.dtype, &leaf.shape).map_err(fail)?;
        state.write_bytes(&leaf.bytes).map_err(fail)?;
        states.insert(name.clone(), state);
    }
    let executable = device.compile(graph, &weights, &states).map_err(fail)?;
    // Passes may leave symbols out that nothing needs.
    let known = |name: &str| graph.symbols().any(|s| s.name() == name);
    let symbols = inputs.symbols.iter().filter(|(n, _)| known(n)).map(|(n, v)| (n.as_str(), *v));
    let symbols: Vec<(&str, u64)> = symbols.collect();
    let data: Vec<(&str, &[u8])> =
        inputs.inputs.iter().map(|(n, l)| (n.as_str(), l.bytes.as_slice())).collect();
    let outputs = executable.run(&symbols, &data).map_err(fail)?;
    let array =
        |o: &tallow::RunOutput| Array::from_bytes(o.dtype, &o.shape, &o.bytes).map_err(|e| e.to_string());
    let mut results = vec![];
    for output in &outputs {
        results.push((output.name.clone(), array(output)?));
    }
    for (name, state) in &states {
        let leaf = &inputs.states[name];
        let bytes = state.read_bytes().map_err(fail)?;
        let after = Array::from_bytes(leaf.dtype, &leaf.shape, &bytes).map_err(|e| e.to_string())?;
        results.push((format!("state {name}"), after));
    }
    results.sort_by(|a, b| a.0.cmp(&b.0));
    Ok((results, executable.stats().dispatches))
}

/// What the interpreter gives for the same, in the same order.
pub fn interpret(graph: &Graph, inputs: &Inputs) -> Result<Vec<(String, Array)>, String> {
    // The one that filetests use.
    tallow_tests::custom::mix_kernel();
    let mut env = inputs.env();
    let mut results = tallow_reference::evaluate(graph, &mut env).map_err(|e| e.to_string())?;
    results.extend(env.states.into_iter().map(|(name, array)| (format!("state {name}"), array)));
    results.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(results)
}
