//! Computing: the graph of what is not known yet is compiled, run, and replaced by its values.

use std::sync::Arc;

#[cfg(feature = "vulkan")]
use crate::blocks::Blocks;
use crate::device::Device;
use crate::error::{Result, no_value};
use crate::evaluation::Evaluation;
use crate::programs::{Lookup, Missing, find};
#[cfg(feature = "vulkan")]
use crate::tensor::Expr;
use crate::tensor::Tensor;

/// Computes several tensors at once: what they share is computed once, and independent parts of one plan
/// run side by side. Tensors whose value is known cost nothing.
///
/// # Errors
/// When they are on different devices, depend on an input of [`crate::compile`], or the device fails.
pub fn eval(tensors: &[&Tensor]) -> Result<()> {
    eval_for("eval", tensors)
}

pub(crate) fn eval_for(op: &'static str, tensors: &[&Tensor]) -> Result<()> {
    if tensors.iter().all(|tensor| tensor.is_known()) {
        return Ok(());
    }
    Evaluation::with(|evaluation| {
        evaluation.want(tensors)?;
        eval_wanted(op, evaluation)
    })
}

/// [`eval_for`] of tensors that are no variables.
fn eval_wanted(op: &'static str, evaluation: &mut Evaluation) -> Result<()> {
    loop {
        let Some(device) = common_device(op, evaluation.wanted())? else { return Ok(()) };
        let locked = device.evaluation();
        evaluation.begin(op)?;
        let missing = evaluate(&device, evaluation)?;
        // While the lock is held, as handles in the lists hold values.
        evaluation.clear();
        // Compiling takes long. Others may evaluate meanwhile, so that all is looked at again afterwards.
        drop(locked);
        match missing {
            Outcome::Done => return Ok(()),
            Outcome::Missing(missing) => _ = missing.compile(&device)?,
            Outcome::Changed => {}
        }
    }
}

/// What became of an evaluation.
enum Outcome {
    Done,
    /// A program is to be compiled first.
    Missing(Box<Missing>),
    /// Another thread computed a part of it meanwhile.
    Changed,
}

/// Computes the steps, as far as they are compiled.
fn evaluate(device: &Device, evaluation: &mut Evaluation) -> Result<Outcome> {
    let pieces = evaluation.pieces();
    for at in 0..pieces.as_ref().map_or(1, Vec::len) {
        evaluation.choose(pieces.as_ref().map(|pieces| pieces[at].as_slice()));
        if evaluation.targets().len() == 0 {
            continue;
        }
        match find(device, &mut evaluation.instance)? {
            Some(Lookup::Program(program)) => program.run(evaluation)?,
            Some(Lookup::Missing(missing)) => return Ok(Outcome::Missing(missing)),
            None => return Ok(Outcome::Changed),
        }
    }
    evaluation.order.all().iter().for_each(Tensor::note_step);
    Ok(Outcome::Done)
}

/// The device of the tensors whose value is not known; `None` if there are none.
fn common_device(op: &'static str, roots: &[Tensor]) -> Result<Option<Device>> {
    let mut lazy = roots.iter().filter(|t| !t.is_known()).map(|t| t.device());
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
        Evaluation::with(|evaluation| {
            evaluation.want(&[self])?;
            evaluation.begin(op)
        })
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
        Evaluation::with(|evaluation| {
            evaluation.want(&[self])?;
            explain(&self.current()?, evaluation)
        })
    }
}

/// What computing `root`, which is wanted, would run, as text.
fn explain(root: &Tensor, evaluation: &mut Evaluation) -> Result<String> {
    let device = root.device();
    loop {
        let locked = device.evaluation();
        evaluation.begin("explain")?;
        let (steps, pieces) = (evaluation.order.all().len(), evaluation.pieces());
        evaluation.choose(pieces.as_ref().and_then(|pieces| pieces.first()).map(Vec::as_slice));
        let found = find(device, &mut evaluation.instance)?;
        evaluation.clear();
        drop(locked);
        let program = match found {
            Some(Lookup::Program(program)) => program,
            Some(Lookup::Missing(missing)) => missing.compile(device)?,
            None if root.is_known() => return Ok(format!("{root:?} is known, nothing runs\n")),
            None => continue,
        };
        let plan = program.explain();
        return Ok(match pieces.map_or(1, |pieces| pieces.len()) {
            1 => plan,
            n => format!("{steps} steps, computed in {n} pieces, of which the first is:\n{plan}"),
        });
    }
}
