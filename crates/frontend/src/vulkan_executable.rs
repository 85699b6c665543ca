//! The Vulkan side of [`crate::Executable`].

use std::collections::HashMap;
use std::fmt;

use tallow_ir::{Bindings, Graph};
use tallow_runtime::Error as RuntimeError;
use tallow_runtime::executable::{Compiled, Executable as Recorded, Steps};
use tallow_runtime::record::{RecordOptions, Timing};

use crate::error::{Error, Result};
use crate::outputs::{OutputView, RunOutput};
use crate::resident::{GraphState, Weight};
use crate::stats::ExecStats;
use crate::vulkan::{VulkanDevice, device_error, no_vulkan};

/// A recorded graph.
pub(crate) struct VulkanExecutable {
    device: VulkanDevice,
    recorded: Recorded,
}

impl fmt::Debug for VulkanExecutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VulkanExecutable({:?}, {:?})", self.device, self.recorded.counts())
    }
}

/// Timestamps and splitting, from `TALLOW_TIMINGS=1` and `TALLOW_SPLIT=N` (dispatches a submission).
fn record_options() -> Result<RecordOptions> {
    let variable = |name| std::env::var(name).ok().filter(|v| !v.trim().is_empty());
    let split_after = match variable("TALLOW_SPLIT").map(|v| (v.trim().parse::<usize>(), v)) {
        None => None,
        Some((Ok(n), _)) if n > 0 => Some(n),
        Some((_, value)) => {
            let reason = "expected a number of dispatches, at least 1".to_string();
            return Err(no_vulkan(RuntimeError::BadOption { variable: "TALLOW_SPLIT", value, reason }));
        }
    };
    let timing = match variable("TALLOW_TIMINGS").is_some_and(|v| v != "0") {
        true => Timing::Dispatches,
        false => Timing::Off,
    };
    Ok(RecordOptions { timing, split_after, ..RecordOptions::default() })
}

impl VulkanExecutable {
    pub fn new(
        device: &VulkanDevice,
        graph: &Graph,
        kernels: &Compiled,
        weights: &HashMap<String, Weight>,
        states: &HashMap<String, GraphState>,
    ) -> Result<VulkanExecutable> {
        let elsewhere =
            |what, name: &str| Error::WrongDevice { what, name: name.into(), device: device.name() };
        let (mut bound_weights, mut bound_states) = (HashMap::new(), HashMap::new());
        for (_, node) in graph.nodes() {
            match &node.op {
                tallow_ir::Op::Weight { name, .. } => {
                    let weight = weights.get(name).and_then(Weight::on_vulkan);
                    bound_weights
                        .insert(name.clone(), weight.ok_or_else(|| elsewhere("weight", name))?.clone());
                }
                tallow_ir::Op::State { name, .. } => {
                    let state = states.get(name).and_then(GraphState::on_vulkan);
                    bound_states
                        .insert(name.clone(), state.ok_or_else(|| elsewhere("state", name))?.state.clone());
                }
                _ => {}
            }
        }
        let recorded =
            kernels.instance(&bound_weights, &bound_states, record_options()?).map_err(device_error)?;
        Ok(VulkanExecutable { device: device.clone(), recorded })
    }

    pub fn start(&self, bindings: &Bindings, inputs: &[(&str, &[u8])]) -> Result<u64> {
        self.recorded.start(bindings, inputs).map_err(device_error)
    }

    pub fn start_with(
        &self,
        bindings: &Bindings,
        write: &mut dyn FnMut(&str, &mut [u8]) -> Result<()>,
    ) -> Result<u64> {
        // The runtime knows no errors but its own; the caller's comes back as it was.
        let mut failed = None;
        let run = self.recorded.start_with(bindings, &mut |name, bytes| {
            write(name, bytes).map_err(|error| {
                let why = error.to_string();
                failed = Some(error);
                why
            })
        });
        run.map_err(|error| failed.unwrap_or_else(|| device_error(error)))
    }

    /// A run one kernel at a time.
    pub fn steps<'a>(&'a self, bindings: &'a Bindings, inputs: &[(&str, &[u8])]) -> Result<Steps<'a>> {
        let mut write = |name: &str, bytes: &mut [u8]| {
            let data = inputs.iter().find(|(n, _)| *n == name).map(|(_, data)| *data).ok_or("has no data")?;
            match data.len() == bytes.len() {
                true => bytes.copy_from_slice(data),
                false => return Err(format!("{} bytes where {} are needed", data.len(), bytes.len())),
            }
            Ok(())
        };
        self.recorded.steps(bindings, &mut write).map_err(device_error)
    }

    pub fn finish_with(&self, run: u64, bindings: &Bindings, read: &mut dyn FnMut(OutputView)) -> Result<()> {
        self.recorded
            .finish_with(run, bindings, &mut |name, shape, dtype, bytes| {
                read(OutputView { name, shape, dtype, bytes });
            })
            .map_err(device_error)
    }

    /// Waits for the run and reads its results into `outputs`, which is empty or holds those of an earlier run.
    pub fn finish(&self, run: u64, bindings: &Bindings, outputs: &mut Vec<RunOutput>) -> Result<()> {
        let results = self.recorded.results(run).map_err(device_error)?;
        let first = outputs.len().min(results.tensors().len());
        outputs.truncate(first);
        for output in &results.tensors()[first..] {
            let (name, dtype) = (output.name.clone(), output.ty.dtype);
            outputs.push(RunOutput { name, shape: vec![], dtype, bytes: vec![] });
        }
        for (at, output) in outputs.iter_mut().enumerate() {
            results.read(at, bindings, &mut output.shape, &mut output.bytes).map_err(device_error)?;
        }
        Ok(())
    }

    pub fn stats(&self) -> ExecStats {
        let compiled = self.recorded.compiled();
        let (plan, counts) = (&compiled.module().plan, self.recorded.counts());
        let (_, pipelines) = self.device.work_done();
        ExecStats {
            dispatches: counts.dispatches,
            levels: plan.levels.len(),
            barriers: counts.barriers_between,
            barriers_lower_bound: plan.barriers_lower_bound,
            arena_bytes: plan.arena.bytes,
            arena_lower_bound_bytes: plan.arena.lower_bound_bytes,
            weight_bytes: self.recorded.weight_bytes(),
            recordings: self.recorded.recordings(),
            pipelines: pipelines as usize,
            compile_ms: compiled.millis,
            spirv_cache_hits: compiled.spirv.cache_hits,
        }
    }

    pub fn kernel_digests(&self) -> Vec<String> {
        self.recorded.compiled().module().kernels.iter().map(tallow_codegen::Kernel::digest).collect()
    }

    pub fn explain(&self) -> String {
        format!("device {}\n{}", self.device.name(), self.recorded.compiled().module().explain())
    }

    pub fn timings(&self) -> Vec<(String, u64)> {
        self.recorded.timings().unwrap_or_default()
    }
}
