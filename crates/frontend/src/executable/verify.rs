//! The kernels of a run compared with the interpreter, each on what the device gave it to read.

use std::ops::ControlFlow;

use tallow_bounds::Comparison;
#[cfg(feature = "vulkan")]
use {
    super::sample::{Limits, Sample},
    crate::vulkan::device_error,
    std::collections::HashSet,
    tallow_ir::{Bindings, Graph},
    tallow_runtime::executable::Steps,
};

use super::{DeviceExecutable, Executable};
use crate::error::{Error, Result};

/// What [`Executable::verify`] compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Every dispatch, instead of the first of each kernel: layers of equal shapes share kernels.
    pub all: bool,
    /// The most bytes of host memory that one comparison may take. Of kernels that need more, a sample of the results is
    /// compared; those of which no part can be computed alone are not. `None`: no limit.
    pub memory: Option<u64>,
    /// The most multiply-adds, and other elements that are computed or read, of one comparison; as for `memory`.
    pub work: Option<u64>,
}

/// One dispatch of a kernel, compared with the interpreter.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelCheck {
    /// The name of the dispatch in the plan: the node that it computes, the kernel's template, schedule and last op.
    pub name: String,
    /// The number of its kernel. Dispatches of one kernel have the same.
    pub kernel: usize,
    /// The ops that it computes, each once.
    pub ops: Vec<&'static str>,
    /// Types of its operands, under the symbol values of the run.
    pub operands: Vec<String>,
    /// Types of its results.
    pub results: Vec<String>,
    /// Whether only a sample of the results was compared, because of the limits in [`VerifyOptions`].
    pub sampled: bool,
    /// What was found.
    pub outcome: CheckOutcome,
}

/// What became of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckOutcome {
    /// By result, how it compares.
    Compared(Vec<Comparison>),
    /// It could not be compared, and why.
    NotCompared(String),
}

impl KernelCheck {
    /// The first result with an element that differs by more than a right kernel may: its number and comparison.
    pub fn difference(&self) -> Option<(usize, &Comparison)> {
        match &self.outcome {
            CheckOutcome::Compared(results) => results.iter().enumerate().find(|(_, c)| c.outside > 0),
            CheckOutcome::NotCompared(_) => None,
        }
    }

    /// The largest error of an element as a share of what is allowed; none if it was not compared.
    pub fn worst(&self) -> Option<f64> {
        match &self.outcome {
            CheckOutcome::Compared(results) => Some(results.iter().map(|c| c.worst).fold(0.0, f64::max)),
            CheckOutcome::NotCompared(_) => None,
        }
    }
}

impl Executable {
    /// Runs once, one kernel at a time, and compares each with the interpreter. The interpreter computes what the kernel
    /// computes from what the device had: operands are read back before the kernel runs. So an error does not spread to
    /// the kernels after it.
    ///
    /// How far a right kernel may be from the interpreter is computed for each element ([`tallow_bounds`]).
    ///
    /// Symbols and inputs are those of [`Executable::run`]. `visit` gets the checks in the order of the plan, and ends the
    /// run if it breaks. States are updated as far as it came. `visit` must not run this executable, which is busy.
    ///
    /// # Errors
    /// On the CPU, which has no kernels; as [`Executable::run`] elsewhere.
    pub fn verify(
        &self,
        symbols: &[(&str, u64)],
        inputs: &[(&str, &[u8])],
        options: &VerifyOptions,
        visit: &mut dyn FnMut(KernelCheck) -> ControlFlow<()>,
    ) -> Result<()> {
        self.verify_some(symbols, inputs, options, &|_| true, visit)
    }

    /// As [`Executable::verify`], of the kernels with numbers that `is_wanted`. The others run and are not compared.
    ///
    /// # Errors
    /// As there.
    pub fn verify_some(
        &self,
        symbols: &[(&str, u64)],
        inputs: &[(&str, &[u8])],
        options: &VerifyOptions,
        is_wanted: &dyn Fn(usize) -> bool,
        visit: &mut dyn FnMut(KernelCheck) -> ControlFlow<()>,
    ) -> Result<()> {
        match &self.program {
            DeviceExecutable::Cpu(_) => {
                let _ = (symbols, inputs, options, is_wanted, visit);
                Err(Error::Device("the CPU is the interpreter itself: there are no kernels to verify".into()))
            }
            #[cfg(feature = "vulkan")]
            DeviceExecutable::Vulkan(program) => {
                let mut bindings = Bindings::new();
                self.wants.bind_symbols(&self.graph, symbols, &mut bindings)?;
                self.wants.check_inputs(&self.graph, &bindings, inputs)?;
                self.wants.bind_draws(&self.device, &mut bindings);
                let mut steps = program.steps(&bindings, inputs)?;
                run(&mut steps, &bindings, (options, is_wanted), visit)
            }
        }
    }

    /// By number, what tells a kernel from all others: a hash of its code. None on the CPU, which has no kernels.
    pub fn kernel_digests(&self) -> Vec<String> {
        match &self.program {
            DeviceExecutable::Cpu(_) => vec![],
            #[cfg(feature = "vulkan")]
            DeviceExecutable::Vulkan(program) => program.kernel_digests(),
        }
    }
}

#[cfg(feature = "vulkan")]
fn run(
    steps: &mut Steps<'_>,
    bindings: &Bindings,
    (options, is_wanted): (&VerifyOptions, &dyn Fn(usize) -> bool),
    visit: &mut dyn FnMut(KernelCheck) -> ControlFlow<()>,
) -> Result<()> {
    let mut seen = HashSet::new();
    while let Some(launch) = steps.next_launch() {
        let (kernel, _) = steps.names(launch).unwrap_or_default();
        if !is_wanted(kernel) || (seen.contains(&kernel) && !options.all) {
            steps.run().map_err(device_error)?;
            continue;
        }
        seen.insert(kernel);
        let check = check(steps, launch, bindings, options)?;
        if check.is_some_and(|check| visit(check).is_break()) {
            break;
        }
    }
    Ok(())
}

/// Runs the next launch and compares it. None if it computes nothing that is known.
#[cfg(feature = "vulkan")]
fn check(
    steps: &mut Steps<'_>,
    launch: usize,
    bindings: &Bindings,
    options: &VerifyOptions,
) -> Result<Option<KernelCheck>> {
    let Some(fusion) = steps.fusion(launch).cloned() else {
        steps.run().map_err(device_error)?;
        return Ok(None);
    };
    let (kernel, name) = steps.names(launch).unwrap_or_default();
    let limits = Limits { memory: options.memory, work: options.work };
    let sample = Sample::read(steps, launch, &fusion, bindings, limits)?;
    steps.clear_results().map_err(device_error)?;
    steps.run().map_err(device_error)?;
    let (sampled, outcome) = match sample {
        Ok(sample) => (sample.is_sample(), sample.judge(steps, launch, &fusion)?),
        Err(why) => (false, Err(why)),
    };
    let outcome = outcome.map_or_else(CheckOutcome::NotCompared, CheckOutcome::Compared);
    let ty = |ty: &tallow_ir::TensorType| match ty.shape.eval(bindings) {
        Some(shape) => format!("{}{shape:?}", ty.dtype),
        None => ty.to_string(),
    };
    Ok(Some(KernelCheck {
        name,
        kernel,
        ops: ops(&fusion.body),
        operands: fusion.body.params().into_iter().map(ty).collect(),
        results: fusion.body.outputs().iter().map(|o| ty(fusion.body.ty(o.value))).collect(),
        sampled,
        outcome,
    }))
}

/// The ops of a body, each once, without leaves.
#[cfg(feature = "vulkan")]
fn ops(body: &Graph) -> Vec<&'static str> {
    let mut names = vec![];
    for (_, node) in body.nodes().filter(|(_, node)| !node.op.is_leaf()) {
        if !names.contains(&node.op.name()) {
            names.push(node.op.name());
        }
    }
    names
}
