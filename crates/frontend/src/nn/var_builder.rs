//! Where layers take their weights from: variables, files or tensors, by path.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tallow_ir::DType;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::extents::Shape;
use crate::nn::init::Init;
use crate::nn::var_map::VarMap;
use crate::npy::NpzTensors;
use crate::safetensors::{BufferedSafetensors, SafetensorsFiles};
use crate::shape::IntoShape;
use crate::tensor::Tensor;

/// A place that has tensors by name.
pub trait SimpleBackend: Send + Sync {
    /// The tensor of a name, of this shape and type, on this device. `hints` is what a new variable holds.
    ///
    /// # Errors
    /// When there is none, or one of another shape.
    fn get(&self, shape: Shape, name: &str, hints: Init, dtype: DType, device: &Device) -> Result<Tensor>;

    /// The tensor of a name, of any shape.
    ///
    /// # Errors
    /// When there is none, or the place needs a shape.
    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor>;

    /// Whether there is a tensor of this name.
    fn contains_tensor(&self, name: &str) -> bool;
}

/// Gives layers their weights by name, below a path of prefixes that are joined by dots. Cheap to clone.
///
/// ```
/// use std::collections::HashMap;
/// use tallow::nn::VarBuilder;
/// use tallow::{DType, Device, Tensor};
///
/// let weight = Tensor::new([1f32, 2.0], &Device::Cpu)?;
/// let tensors = HashMap::from([("encoder.0.weight".to_string(), weight)]);
/// let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
/// let layer = vb.pp("encoder").pp(0);
/// assert_eq!(layer.get(2, "weight")?.to_vec1::<f32>()?, [1.0, 2.0]);
/// assert!(layer.get(3, "weight").unwrap_err().to_string().contains("encoder.0.weight"));
/// # Ok::<(), tallow::Error>(())
/// ```
#[derive(Clone)]
pub struct VarBuilder<'a> {
    backend: Arc<dyn SimpleBackend + 'a>,
    path: Vec<String>,
    dtype: DType,
    device: Device,
}

impl<'a> VarBuilder<'a> {
    /// Tensors of any place.
    pub fn from_backend(backend: Box<dyn SimpleBackend + 'a>, dtype: DType, device: Device) -> Self {
        VarBuilder { backend: Arc::from(backend), path: vec![], dtype, device }
    }

    /// Zeros of every name.
    pub fn zeros(dtype: DType, device: &Device) -> Self {
        Self::from_backend(Box::new(Zeros), dtype, device.clone())
    }

    /// Tensors of a map, converted to `dtype` and `device`.
    pub fn from_tensors(tensors: HashMap<String, Tensor>, dtype: DType, device: &Device) -> Self {
        Self::from_backend(Box::new(tensors), dtype, device.clone())
    }

    /// Variables of a map, which gets those that it lacks.
    pub fn from_varmap(variables: &VarMap, dtype: DType, device: &Device) -> Self {
        Self::from_backend(Box::new(variables.clone()), dtype, device.clone())
    }

    /// Tensors of safetensors files, converted to `dtype`. Each is read when it is asked for; files are not mapped into
    /// memory, so this function is safe, unlike Candle's. Of a name in several files, the last file's counts.
    ///
    /// # Errors
    /// When a file cannot be read or is not of this format.
    pub fn from_mmaped_safetensors<P: AsRef<Path>>(
        paths: &[P],
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        Ok(Self::from_backend(Box::new(SafetensorsFiles::multi(paths)?), dtype, device.clone()))
    }

    /// Tensors of a safetensors file's bytes, converted to `dtype`.
    ///
    /// # Errors
    /// When the bytes are not of this format.
    pub fn from_buffered_safetensors(data: Vec<u8>, dtype: DType, device: &Device) -> Result<Self> {
        Ok(Self::from_backend(Box::new(BufferedSafetensors::new(data)?), dtype, device.clone()))
    }

    /// Arrays of an `.npz` file, converted to `dtype`.
    ///
    /// # Errors
    /// When the file cannot be read or is not of this format.
    pub fn from_npz(path: impl AsRef<Path>, dtype: DType, device: &Device) -> Result<Self> {
        Ok(Self::from_backend(Box::new(NpzTensors::new(path)?), dtype, device.clone()))
    }

    /// Looks tensors up under the name that `rename` makes of each path.
    pub fn rename_f(self, rename: impl Fn(&str) -> String + Send + Sync + 'a) -> Self {
        let VarBuilder { backend, path, dtype, device } = self;
        VarBuilder { backend: Arc::new(Renamed { backend, rename }), path, dtype, device }
    }

    /// The path, joined by dots.
    pub fn prefix(&self) -> String {
        self.path.join(".")
    }

    /// The same without a path.
    pub fn root(&self) -> Self {
        VarBuilder { path: vec![], ..self.clone() }
    }

    /// The same with another path.
    pub fn set_prefix(&self, prefix: impl ToString) -> Self {
        VarBuilder { path: vec![prefix.to_string()], ..self.clone() }
    }

    /// The same one level below.
    pub fn push_prefix(&self, name: impl ToString) -> Self {
        let mut below = self.clone();
        below.path.push(name.to_string());
        below
    }

    /// Short for [`VarBuilder::push_prefix`].
    pub fn pp(&self, name: impl ToString) -> Self {
        self.push_prefix(name)
    }

    /// The device of the tensors.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The element type of the tensors.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The same with another element type.
    pub fn to_dtype(&self, dtype: DType) -> Self {
        VarBuilder { dtype, ..self.clone() }
    }

    /// The same with another element type.
    pub fn set_dtype(self, dtype: DType) -> Self {
        VarBuilder { dtype, ..self }
    }

    /// The same with another device.
    pub fn set_device(self, device: Device) -> Self {
        VarBuilder { device, ..self }
    }

    /// Whether there is a tensor of this name here, not below.
    pub fn contains_tensor(&self, name: &str) -> bool {
        self.backend.contains_tensor(&self.name_of(name))
    }

    /// The tensor of a name. A map of variables gets a new one of zeros where it has none.
    ///
    /// # Errors
    /// When there is none, or it has another shape; the message has the whole path.
    pub fn get(&self, shape: impl IntoShape, name: &str) -> Result<Tensor> {
        self.get_with_hints(shape, name, Init::default())
    }

    /// The tensor of a name; `hints` is what a new variable holds.
    ///
    /// # Errors
    /// As [`VarBuilder::get`].
    pub fn get_with_hints(&self, shape: impl IntoShape, name: &str, hints: Init) -> Result<Tensor> {
        self.get_with_hints_dtype(shape, name, hints, self.dtype)
    }

    /// [`VarBuilder::get_with_hints`] with another element type.
    ///
    /// # Errors
    /// As [`VarBuilder::get`].
    pub fn get_with_hints_dtype(
        &self,
        shape: impl IntoShape,
        name: &str,
        hints: Init,
        dtype: DType,
    ) -> Result<Tensor> {
        let (shape, name) = (shape.into_shape(), self.name_of(name));
        match shape.as_const() {
            Some(dims) => self.backend.get(Shape::from_dims(&dims), &name, hints, dtype, &self.device),
            None => Err(Error::SymbolicShape { shape }.context(format!("tensor {name}"))),
        }
    }

    /// The tensor of a name, of any shape.
    ///
    /// # Errors
    /// When there is none, or the place needs a shape, as a map of variables does.
    pub fn get_unchecked(&self, name: &str) -> Result<Tensor> {
        self.get_unchecked_dtype(name, self.dtype)
    }

    /// [`VarBuilder::get_unchecked`] with another element type.
    ///
    /// # Errors
    /// As there.
    pub fn get_unchecked_dtype(&self, name: &str, dtype: DType) -> Result<Tensor> {
        self.backend.get_unchecked(&self.name_of(name), dtype, &self.device)
    }

    fn name_of(&self, name: &str) -> String {
        match self.path.is_empty() {
            true => name.to_string(),
            false => format!("{}.{name}", self.prefix()),
        }
    }
}

impl fmt::Debug for VarBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VarBuilder[{:?}, {} on {}]", self.prefix(), self.dtype, self.device.name())
    }
}

/// A tensor in the type, on the device and of the shape that were asked for.
fn checked(
    found: Option<Tensor>,
    shape: Option<Shape>,
    name: &str,
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    let tensor = found.ok_or_else(|| Error::CannotFindTensor { path: name.into() })?;
    if let Some(shape) = shape.map(IntoShape::into_shape)
        && *tensor.sym_shape() != shape
    {
        let (msg, got) = (format!("shape mismatch for {name}"), tensor.sym_shape().clone());
        return Err(Error::UnexpectedShape { msg, expected: shape, got });
    }
    tensor.to_device(device)?.to_dtype(dtype)
}

fn needs_shape(what: &str, name: &str) -> Error {
    let why = format!("tensor {name} of {what} has no shape of its own; use `get`");
    Error::InvalidArgument { op: "get_unchecked", why }
}

/// Zeros of every name.
struct Zeros;

impl SimpleBackend for Zeros {
    fn get(&self, shape: Shape, _name: &str, _hints: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::zeros(shape, dtype, device)
    }

    fn get_unchecked(&self, name: &str, _dtype: DType, _device: &Device) -> Result<Tensor> {
        Err(needs_shape("zeros", name))
    }

    fn contains_tensor(&self, _name: &str) -> bool {
        true
    }
}

impl SimpleBackend for VarMap {
    fn get(&self, shape: Shape, name: &str, hints: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        VarMap::get(self, shape, name, hints, dtype, device)
    }

    fn get_unchecked(&self, name: &str, _dtype: DType, _device: &Device) -> Result<Tensor> {
        Err(needs_shape("a map of variables", name))
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.data().lock().is_ok_and(|data| data.contains_key(name))
    }
}

/// Backends that only look a tensor up.
macro_rules! lookups {
    ($($backend:ty: |$place:ident, $name:ident, $device:ident| $found:expr, contains: $contains:expr;)*) => {$(
        impl SimpleBackend for $backend {
            fn get(
                &self,
                shape: Shape,
                name: &str,
                _hints: Init,
                dtype: DType,
                device: &Device,
            ) -> Result<Tensor> {
                let ($place, $name, $device) = (self, name, device);
                checked($found, Some(shape), name, dtype, $device)
            }

            fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
                let ($place, $name, $device) = (self, name, device);
                checked($found, None, name, dtype, $device)
            }

            fn contains_tensor(&self, name: &str) -> bool {
                let ($place, $name) = (self, name);
                $contains
            }
        }
    )*};
}
lookups! {
    HashMap<String, Tensor>: |map, name, device| map.get(name).cloned(), contains: map.contains_key(name);
    SafetensorsFiles: |files, name, device| Some(files.load(name, device)?), contains: files.contains(name);
    BufferedSafetensors: |file, name, device| Some(file.load(name, device)?), contains: file.contains(name);
    NpzTensors: |file, name, device| NpzTensors::get(file, name)?, contains: file.names().iter().any(|n| *n == name);
}

/// Tensors of a place under other names.
struct Renamed<'a, F> {
    backend: Arc<dyn SimpleBackend + 'a>,
    rename: F,
}

impl<F: Fn(&str) -> String + Send + Sync> SimpleBackend for Renamed<'_, F> {
    fn get(&self, shape: Shape, name: &str, hints: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        self.backend.get(shape, &(self.rename)(name), hints, dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.backend.get_unchecked(&(self.rename)(name), dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.backend.contains_tensor(&(self.rename)(name))
    }
}
