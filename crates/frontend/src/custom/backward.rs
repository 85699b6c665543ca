//! Gradients of custom kernels, as functions of tensors.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use tallow_ir::{Custom, CustomKernel as Definition};

use super::Push;
use crate::error::Result;
use crate::tensor::Tensor;

/// What the function for gradients computes from: tensors that have no values yet.
pub struct CustomBackward<'a> {
    /// The inputs of the kernel.
    pub inputs: &'a [Tensor],
    /// Its outputs.
    pub outputs: &'a [Tensor],
    /// The gradient of each output; zeros where nothing depends on it.
    pub gradients: &'a [Tensor],
    /// Its push constants, to hand on to other kernels.
    pub push: &'a [Push],
}

impl fmt::Debug for CustomBackward<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CustomBackward[{} inputs, {} outputs]", self.inputs.len(), self.outputs.len())
    }
}

/// Gives the gradient of each input, or `None` where there is none.
pub(super) type BackwardFunction = dyn Fn(&CustomBackward<'_>) -> Result<Vec<Option<Tensor>>> + Send + Sync;

type Registry = RwLock<HashMap<Definition, Arc<BackwardFunction>>>;

/// By the kernel itself, as the functions for the CPU are. There are as many as a program has kernels.
fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(Registry::default)
}

/// Makes `function` the gradient of `kernel`; one that was registered before is replaced.
pub(super) fn register(kernel: &Definition, function: Arc<BackwardFunction>) {
    registry().write().unwrap_or_else(PoisonError::into_inner).insert(kernel.clone(), function);
}

/// The gradient of each input of a kernel, if it has some.
pub(crate) fn custom_backward(
    custom: &Custom,
    inputs: &[Tensor],
    outputs: &[Tensor],
    gradients: &[Tensor],
) -> Result<Option<Vec<Option<Tensor>>>> {
    let found = registry().read().unwrap_or_else(PoisonError::into_inner).get(&*custom.kernel).cloned();
    let Some(function) = found else { return Ok(None) };
    let push: Vec<Push> = custom.push.iter().cloned().map(Push).collect();
    function(&CustomBackward { inputs, outputs, gradients, push: &push }).map(Some)
}
