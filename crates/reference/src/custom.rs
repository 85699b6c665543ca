//! What kernels that users wrote mean where there is no Vulkan device: a function for each, known by the kernel.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use tallow_ir::{Bindings, Custom, CustomKernel, NodeId};

use crate::array::Array;
use crate::check::{no_value, shape_of};
use crate::error::Error;
use crate::view::View;

/// What a kernel is applied to.
#[derive(Debug)]
pub struct CustomArguments<'a> {
    /// The inputs.
    pub inputs: &'a [Array],
    /// The push constants, 32 bits each.
    pub push: &'a [u32],
    /// The extents of the outputs.
    pub shapes: &'a [Vec<usize>],
}

/// A function that stands in for a kernel: it gives the outputs, of the types and extents stated.
pub type CustomFunction = dyn Fn(&CustomArguments<'_>) -> Result<Vec<Array>, String> + Send + Sync;

type Registry = RwLock<HashMap<CustomKernel, Arc<CustomFunction>>>;

/// By the kernel itself, so that no two can be confused. There are as many as a program has kernels.
fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(Registry::default)
}

/// Makes `function` the meaning of `kernel`; one that was registered before is replaced.
pub fn register_custom(kernel: &CustomKernel, function: Arc<CustomFunction>) {
    registry().write().unwrap_or_else(PoisonError::into_inner).insert(kernel.clone(), function);
}

/// The outputs of a kernel.
pub(crate) fn custom(
    id: NodeId,
    custom: &Custom,
    types: &[tallow_ir::TensorType],
    operands: Vec<View>,
    symbols: &Bindings,
) -> Result<Vec<View>, Error> {
    let kernel = &*custom.kernel;
    let fail = |why: String| Error::Custom { name: kernel.name.clone(), why };
    let found = registry().read().unwrap_or_else(PoisonError::into_inner).get(kernel).cloned();
    let function = found.ok_or_else(|| fail("it has no function for the CPU".into()))?;
    let inputs: Vec<Array> = operands.into_iter().map(View::into_array).collect();
    let value = |p: &tallow_ir::PushValue| p.eval(symbols).ok_or_else(|| no_value(id, &p.bits()));
    let push = custom.push.iter().map(value).collect::<Result<Vec<_>, _>>()?;
    let shapes = types.iter().map(|ty| shape_of(ty, symbols, id)).collect::<Result<Vec<_>, _>>()?;
    let outputs =
        function(&CustomArguments { inputs: &inputs, push: &push, shapes: &shapes }).map_err(fail)?;
    let right =
        outputs.len() == types.len()
            && outputs.iter().zip(types).zip(&shapes).all(|((array, ty), shape)| {
                array.ty == ty.dtype && array.shape == *shape && array.is_sound()
            });
    if !right {
        let text = |ty, shape: &[usize]| format!("{ty}{shape:?}");
        let want: Vec<String> = types.iter().zip(&shapes).map(|(ty, s)| text(ty.dtype, s)).collect();
        let got: Vec<String> = outputs.iter().map(|a| text(a.ty, &a.shape)).collect();
        return Err(fail(format!("its function gave {got:?} instead of {want:?}")));
    }
    Ok(outputs.iter().map(View::from_array).collect())
}
