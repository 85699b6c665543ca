//! Computing: the graph of what is not known yet is compiled, run, and replaced by its values.

use std::sync::Arc;

#[cfg(feature = "vulkan")]
use crate::blocks::Blocks;
use crate::device::Device;
use crate::error::{Result, no_value};
use crate::lower::{lower, pending};
use crate::programs::{Lookup, Missing, find};
use crate::segments::segments;
use crate::tensor::{Expr, Tensor};

/// Computes several tensors at once: what they share is computed once, and independent parts of one plan
/// run side by side. Tensors whose value is known cost nothing.
///
/// # Errors
/// When they are on different devices, depend on an input of [`crate::compile`], or the device fails.
pub fn eval(tensors: &[&Tensor]) -> Result<()> {
    eval_for("eval", tensors)
}

pub(crate) fn eval_for(op: &'static str, tensors: &[&Tensor]) -> Result<()> {
    let current = tensors.iter().map(|tensor| tensor.current()).collect::<Result<Vec<_>>>()?;
    eval_values(op, &current.iter().collect::<Vec<_>>())
}

/// [`eval_for`] of tensors that are no variables.
fn eval_values(op: &'static str, tensors: &[&Tensor]) -> Result<()> {
    loop {
        let Some(device) = common_device(op, tensors)? else { return Ok(()) };
        let evaluation = device.evaluation();
        let order = pending(op, tensors)?;
        let Some(missing) = evaluate(op, &device, &order, tensors)? else { return Ok(()) };
        // Compiling takes long. Others may evaluate meanwhile, so that all is looked at again afterwards.
        drop(order);
        drop(evaluation);
        missing.compile(&device)?;
    }
}

/// Computes the steps in `order`, as far as they are compiled; returns the first program that is not.
fn evaluate(
    op: &'static str,
    device: &Device,
    order: &[Tensor],
    tensors: &[&Tensor],
) -> Result<Option<Box<Missing>>> {
    for targets in segments(order, tensors) {
        let mut lowered = lower(op, "eval", &targets)?;
        match find(device, &mut lowered) {
            Lookup::Program(program) => program.run(order, &targets, &lowered)?,
            Lookup::Missing(missing) => return Ok(Some(missing)),
        }
    }
    order.iter().for_each(Tensor::note_step);
    Ok(None)
}

/// The device of the tensors whose value is not known; `None` if there are none.
fn common_device(op: &'static str, tensors: &[&Tensor]) -> Result<Option<Device>> {
    let mut lazy = tensors.iter().filter(|t| !t.is_known()).map(|t| t.device());
    let Some(device) = lazy.next() else { return Ok(None) };
    match lazy.find(|other| *other != device) {
        Some(other) => Err(device.mismatch(op, other)),
        None => Ok(Some(device.clone())),
    }
}

impl Tensor {
    /// Computes the value, if it is not known.
    pub(crate) fn compute(&self, op: &'static str) -> Result<()> {
        eval_for(op, &[self])
    }

    /// # Errors
    /// When the value depends on an input of a function being compiled.
    pub(crate) fn check_outside_function(&self, op: &'static str) -> Result<()> {
        pending(op, &[&self.current()?]).map(drop)
    }

    /// The value's bytes, computed if need be.
    pub(crate) fn bytes(&self, op: &'static str) -> Result<Arc<Vec<u8>>> {
        self.compute(op)?;
        self.host_bytes()?.ok_or_else(|| no_value(op))
    }

    /// The bytes of a value that is known.
    pub(crate) fn known_bytes(&self) -> Result<Arc<Vec<u8>>> {
        self.host_bytes()?.ok_or_else(|| no_value("eval"))
    }

    /// A known value, on the tensor's Vulkan device. What the host has is uploaded, and from then on the device has it.
    #[cfg(feature = "vulkan")]
    pub(crate) fn on_device(&self) -> Result<crate::values::OnDevice> {
        let Device::Vulkan(device) = self.device() else { return Err(no_value("eval")) };
        let expr = self.expr().clone();
        match expr {
            Expr::Device(value) => Ok(value),
            Expr::Data(bytes) => {
                let value = device.upload(&bytes)?;
                self.set(Expr::Device(value.clone()));
                Ok(value)
            }
            Expr::Blocks(blocks) if self.dtype().size().is_some() => {
                let weight = blocks.weight(self.device(), self.dtype(), self.const_dims()?)?;
                let weight = weight.on_vulkan().ok_or_else(|| no_value("eval"))?;
                Ok(device.value_of(weight))
            }
            Expr::Variable(state) => {
                let value = state.lock().clone();
                value.on_device()
            }
            Expr::Blocks(_) | Expr::Op(..) | Expr::Input(_) | Expr::State(_) => Err(no_value("eval")),
        }
    }

    /// Replaces the expression by its value on the device.
    #[cfg(feature = "vulkan")]
    pub(crate) fn set_on_device(&self, value: crate::values::OnDevice) {
        self.set(match self.dtype() {
            tallow_ir::DType::Block(_) => {
                let weight = crate::resident::Weight::of_value(self.ty(), value.value().clone());
                Expr::Blocks(Arc::new(Blocks::of_weight(weight)))
            }
            _ => Expr::Device(value),
        });
    }

    /// A known value as a constant on its device, without a copy where it is there.
    pub(crate) fn as_weight(&self) -> Result<crate::resident::Weight> {
        match self.device() {
            Device::Cpu => self.device().weight(self.dtype(), self.const_dims()?, &self.known_bytes()?),
            #[cfg(feature = "vulkan")]
            Device::Vulkan(_) => {
                let value = self.on_device()?;
                Ok(crate::resident::Weight::of_value(self.ty(), value.value().clone()))
            }
        }
    }

    /// What computing this tensor would run, as text; computes nothing.
    ///
    /// # Errors
    /// When the tensor depends on an input of [`crate::compile`], or the device fails.
    pub fn explain(&self) -> Result<String> {
        if self.is_known() {
            return Ok(format!("{self:?} is known, nothing runs\n"));
        }
        let tensor = &self.current()?;
        let evaluation = self.device().evaluation();
        let order = pending("explain", &[tensor])?;
        let segments = segments(&order, &[tensor]);
        let first = segments.first().map_or(&[][..], Vec::as_slice);
        let mut lowered = lower("explain", "eval", first)?;
        drop(evaluation);
        let program = match find(self.device(), &mut lowered) {
            Lookup::Program(program) => program,
            Lookup::Missing(missing) => missing.compile(self.device())?,
        };
        let plan = program.explain();
        match segments.len() {
            1 => Ok(plan),
            n => Ok(format!("{} steps, computed in {n} pieces, of which the first is:\n{plan}", order.len())),
        }
    }
}
