//! A network on a device: uploaded, run, and compared with the interpreter.

use std::collections::HashMap;
use std::sync::Arc;

use tallow_ir::{Bindings, TensorType};
use tallow_reference::Array;
use tallow_runtime::executable::{Compiled, DeviceWeight, Executable};
use tallow_runtime::record::{Outputs, RecordOptions, Timing};
use tallow_runtime::vulkan::Context;

use super::check::{interpret, operands};
use super::{Network, graph, limit};
use crate::check::nmse;
use crate::error::{BenchError, Result};

/// How far results of a device are from those of the interpreter.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// The normalized mean squared error, of the worst result.
    pub nmse: f64,
    /// Elements that were compared.
    pub elements: usize,
}

/// Binds a compiled network to memory of its own for operands, intermediate values and results.
pub fn bind(
    context: &Arc<Context>,
    compiled: &Compiled,
    network: &Network,
    operands: &[Vec<u8>],
    timing: Timing,
) -> Result<Executable> {
    let mut weights = HashMap::new();
    for (spec, bytes) in network.inputs.iter().zip(operands) {
        let ty = TensorType::new(spec.dtype, spec.shape.clone());
        let weight = DeviceWeight::upload(context, &spec.name, &ty, bytes, &mut |_, _| {})?;
        weights.insert(spec.name.clone(), weight);
    }
    let record = RecordOptions { timing, outputs: Outputs::Device, ..RecordOptions::default() };
    Ok(compiled.instance(&weights, &HashMap::new(), record)?)
}

/// Compares the results of one run with `expected`.
///
/// # Errors
/// When the device fails, or a result is not right.
pub fn compare_run(executable: &Executable, network: &Network, expected: &[Vec<f64>]) -> Result<Comparison> {
    let run = executable.start(&Bindings::new(), &[])?;
    let results = executable.finish(run, &Bindings::new())?;
    let mut found = Comparison { nmse: 0.0, elements: 0 };
    for ((name, shape, dtype, bytes), expected) in results.iter().zip(expected) {
        let got = Array::from_bytes(*dtype, shape, bytes)?.to_f64s();
        let error = nmse(expected, &got)?;
        if error > limit(network) {
            let limit = limit(network);
            return Err(BenchError::Wrong(format!(
                "the normalized mean squared error of {name} is {error:.1e}, not {limit:.0e}"
            )));
        }
        found.nmse = found.nmse.max(error);
        found.elements += expected.len();
    }
    Ok(found)
}

/// Runs a network on the device and compares the results with the interpreter's.
///
/// # Errors
/// When either fails, or a result is not right.
pub fn compare(context: &Arc<Context>, network: &Network) -> Result<Comparison> {
    let graph = graph(network)?;
    let operands = operands(network)?;
    let compiled = Compiled::for_any_weights(context, &graph)?;
    let executable = bind(context, &compiled, network, &operands, Timing::Run)?;
    compare_run(&executable, network, &interpret(network, &graph, &operands)?)
}
