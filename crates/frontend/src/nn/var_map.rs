//! Named variables.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tallow_ir::DType;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::nn::init::Init;
use crate::safetensors::SafetensorsFiles;
use crate::shape::IntoShape;
use crate::tensor::Tensor;
use crate::variable::Var;

/// Variables by name. Clones are the same map.
///
/// ```
/// use tallow::nn::{Module, VarBuilder, VarMap, linear};
/// use tallow::{DType, Device, Tensor};
///
/// let device = Device::Cpu;
/// let vars = VarMap::new();
/// let vb = VarBuilder::from_varmap(&vars, DType::F32, &device);
/// let layer = linear(3, 2, vb.pp("head"))?;
/// assert_eq!(vars.all_vars().len(), 2); // head.bias and head.weight
/// let y = layer.forward(&Tensor::ones((1, 3), DType::F32, &device)?)?;
/// assert_eq!(y.backward()?.get_ids().count(), 2);
/// # Ok::<(), tallow::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct VarMap {
    data: Arc<Mutex<HashMap<String, Var>>>,
}

impl VarMap {
    /// An empty map.
    pub fn new() -> VarMap {
        VarMap::default()
    }

    /// All variables, in the order of their names.
    pub fn all_vars(&self) -> Vec<Var> {
        let data = self.lock();
        let mut named: Vec<(&String, &Var)> = data.iter().collect();
        named.sort_by_key(|(name, _)| *name);
        named.into_iter().map(|(_, var)| var.clone()).collect()
    }

    /// The variables by name.
    pub fn data(&self) -> &Mutex<HashMap<String, Var>> {
        &self.data
    }

    /// Writes all variables to a safetensors file, computed if need be.
    ///
    /// # Errors
    /// As [`crate::safetensors::save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let data = self.lock();
        let tensors: HashMap<&String, Tensor> =
            data.iter().map(|(name, var)| (name, var.as_detached_tensor())).collect();
        crate::safetensors::save(&tensors, path)
    }

    /// Sets all variables of the map to what a safetensors file has under their names. Other tensors of the file are
    /// ignored.
    ///
    /// # Errors
    /// When the file cannot be read, has no tensor of some name, or one of another shape or type. No variable is changed
    /// then.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let file = SafetensorsFiles::new(path)?;
        let data = self.lock();
        let load = |(name, var): (&String, &Var)| {
            let value = file.load(name, var.device()).map_err(|e| e.context(setting(name)))?;
            fits(name, var, &value).map_err(|e| e.context(format!("reading {}", path.display())))?;
            Ok((var.clone(), value))
        };
        let values = data.iter().map(load).collect::<Result<Vec<_>>>()?;
        values.into_iter().try_for_each(|(var, value)| var.set(&value))
    }

    /// Sets the variable of a name.
    ///
    /// # Errors
    /// When there is none, or it has another shape, type or device.
    pub fn set_one(&mut self, name: impl AsRef<str>, value: impl AsRef<Tensor>) -> Result<()> {
        self.set(std::iter::once((name, value)))
    }

    /// Sets the variables of some names.
    ///
    /// # Errors
    /// When there is no variable of a name, or it has another shape, type or device. No variable is changed then.
    pub fn set<K: AsRef<str>, V: AsRef<Tensor>>(
        &mut self,
        values: impl Iterator<Item = (K, V)>,
    ) -> Result<()> {
        let data = self.lock();
        let find = |(name, value): (K, V)| {
            let (name, value) = (name.as_ref(), value.as_ref().clone());
            let var = data.get(name).ok_or_else(|| Error::CannotFindTensor { path: name.into() })?;
            fits(name, var, &value)?;
            Ok((var.clone(), value))
        };
        let found = values.map(find).collect::<Result<Vec<_>>>()?;
        found.into_iter().try_for_each(|(var, value)| var.set(&value))
    }

    /// The variable of a name, as a tensor; a new one where there is none.
    ///
    /// # Errors
    /// When there is one of another shape, type or device, or as [`Init::var`].
    pub fn get(
        &self,
        shape: impl IntoShape,
        path: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let shape = shape.into_shape();
        let mut data = self.lock();
        if let Some(var) = data.get(path) {
            if *var.sym_shape() != shape {
                let (msg, got) = (format!("shape mismatch for {path}"), var.sym_shape().clone());
                return Err(Error::UnexpectedShape { msg, expected: shape, got });
            }
            if var.dtype() != dtype {
                let expected = dtype.to_string();
                let error = Error::UnexpectedDType { op: "get", expected, got: var.dtype() };
                return Err(error.context(format!("variable {path}")));
            }
            if var.device() != device {
                return Err(device.mismatch("get", var.device()).context(format!("variable {path}")));
            }
            return Ok(var.as_tensor().clone());
        }
        let var = init.var(shape, dtype, device).map_err(|e| e.context(format!("variable {path}")))?;
        let tensor = var.as_tensor().clone();
        data.insert(path.to_string(), var);
        Ok(tensor)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Var>> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn setting(name: &str) -> String {
    format!("setting {name}")
}

/// Whether a variable can be set to a value.
fn fits(name: &str, var: &Var, value: &Tensor) -> Result<()> {
    let error = if var.sym_shape() != value.sym_shape() {
        let (expected, got) = (var.sym_shape().clone(), value.sym_shape().clone());
        Error::UnexpectedShape { msg: format!("shape mismatch for {name}"), expected, got }
    } else if var.dtype() != value.dtype() {
        Error::UnexpectedDType { op: "set", expected: var.dtype().to_string(), got: value.dtype() }
    } else if var.device() != value.device() {
        var.device().mismatch("set", value.device())
    } else {
        return Ok(());
    };
    Err(error.context(setting(name)))
}
