//! Data that stays on a device between runs: weights, which never change, and states, which graphs update.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tallow_ir::{Bindings, DType, TensorType};
use tallow_reference::Array;

use crate::device::Device;
use crate::error::{Error, Result};

impl Device {
    /// Makes `bytes` resident as a constant tensor: row-major and little-endian, or the blocks of a
    /// quantized format as they lie in a GGUF file.
    ///
    /// # Errors
    /// When the byte count is not that of the type, or memory runs out.
    pub fn weight(&self, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Weight> {
        Weight::new(self, dtype, shape, bytes)
    }

    /// As [`Device::weight`], in the host's memory: a GPU with memory of its own reads the weight over the bus in each run,
    /// and has room for others. Elsewhere it is the same.
    ///
    /// # Errors
    /// As there.
    pub fn host_weight(&self, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Weight> {
        match self {
            Device::Cpu => self.weight(dtype, shape, bytes),
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => {
                let ty = TensorType::new(dtype, shape);
                check_bytes("weight", "", &ty, shape, bytes.len())?;
                let data = WeightData::Vulkan(device.host_weight(&ty, bytes)?);
                Ok(Weight { ty, bytes: bytes.len(), data })
            }
        }
    }

    /// A tensor of zeros that outlives runs and that graphs update in place.
    ///
    /// # Errors
    /// When `dtype` is a block format, or memory runs out.
    pub fn state(&self, dtype: DType, shape: &[usize]) -> Result<GraphState> {
        GraphState::new(self, dtype, shape)
    }
}

/// A constant tensor on a device. Cheap to clone; clones share the data.
#[derive(Clone, Debug)]
pub struct Weight {
    ty: TensorType,
    bytes: usize,
    data: WeightData,
}

#[derive(Clone, Debug)]
enum WeightData {
    Cpu(Arc<Array>),
    #[cfg(feature = "vulkan")]
    Vulkan(tallow_runtime::executable::DeviceWeight),
}

impl Weight {
    pub(crate) fn new(device: &Device, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Weight> {
        let ty = TensorType::new(dtype, shape);
        check_bytes("weight", "", &ty, shape, bytes.len())?;
        let data = match device {
            Device::Cpu => WeightData::Cpu(Arc::new(array(dtype, shape, bytes)?)),
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => WeightData::Vulkan(device.weight(&ty, bytes)?),
        };
        Ok(Weight { ty, bytes: bytes.len(), data })
    }

    /// Element type and shape.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Size of the data as it was given, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A constant that was computed on its device: row-major elements or planes of blocks.
    #[cfg(feature = "vulkan")]
    pub(crate) fn of_value(ty: &TensorType, value: tallow_runtime::lazy::DeviceValue) -> Weight {
        let bytes = ty.shape.as_const().and_then(|shape| byte_count(ty.dtype, &shape)).unwrap_or(0);
        let weight = tallow_runtime::executable::DeviceWeight::of_value(ty, value);
        Weight { ty: ty.clone(), bytes, data: WeightData::Vulkan(weight) }
    }

    /// The elements, row-major and little-endian, or blocks as they lie in a GGUF file. `device` is the weight's own.
    pub(crate) fn read_bytes(&self, device: &Device) -> Result<Vec<u8>> {
        match (&self.data, device) {
            (WeightData::Cpu(array), _) => Ok(array.to_bytes()),
            #[cfg(feature = "vulkan")]
            (WeightData::Vulkan(weight), Device::Vulkan(device)) => device.read_weight(weight),
            #[cfg(feature = "vulkan")]
            (WeightData::Vulkan(_), Device::Cpu) => {
                Err(Error::WrongDevice { what: "weight", name: String::new(), device: device.name() })
            }
        }
    }

    pub(crate) fn on_cpu(&self) -> Option<&Arc<Array>> {
        match &self.data {
            WeightData::Cpu(array) => Some(array),
            #[cfg(feature = "vulkan")]
            WeightData::Vulkan(_) => None,
        }
    }

    #[cfg(feature = "vulkan")]
    pub(crate) fn on_vulkan(&self) -> Option<&tallow_runtime::executable::DeviceWeight> {
        match &self.data {
            WeightData::Cpu(_) => None,
            WeightData::Vulkan(weight) => Some(weight),
        }
    }
}

/// A tensor on a device that outlives runs. Cheap to clone; clones share the data.
#[derive(Clone, Debug)]
pub struct GraphState {
    ty: TensorType,
    shape: Vec<usize>,
    data: StateData,
}

#[derive(Clone, Debug)]
enum StateData {
    Cpu(Arc<Mutex<Array>>),
    #[cfg(feature = "vulkan")]
    Vulkan(crate::vulkan::StateOnDevice),
}

impl GraphState {
    pub(crate) fn new(device: &Device, dtype: DType, shape: &[usize]) -> Result<GraphState> {
        let ty = TensorType::new(dtype, shape);
        let bytes = byte_count(dtype, shape);
        if bytes.is_none() && matches!(dtype, DType::Block(_)) {
            let why = format!("rows of {ty} are no whole blocks");
            return Err(Error::InvalidArgument { op: "state", why });
        }
        let data = match device {
            Device::Cpu => {
                StateData::Cpu(Arc::new(Mutex::new(array(dtype, shape, &zeros(dtype, shape, bytes)?)?)))
            }
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => StateData::Vulkan(device.state(&ty)?),
        };
        Ok(GraphState { ty, shape: shape.to_vec(), data })
    }

    /// Element type and shape.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The current content, row-major and little-endian; blocks as they lie in a GGUF file.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read_bytes(&self) -> Result<Vec<u8>> {
        match &self.data {
            StateData::Cpu(array) => Ok(lock(array).to_bytes()),
            #[cfg(feature = "vulkan")]
            StateData::Vulkan(state) => state.read(),
        }
    }

    /// Replaces the whole content.
    ///
    /// # Errors
    /// When the byte count is not the state's, or the device fails.
    pub fn write_bytes(&self, bytes: &[u8]) -> Result<()> {
        check_bytes("state", "", &self.ty, &self.shape, bytes.len())?;
        match &self.data {
            StateData::Cpu(cell) => *lock(cell) = array(self.ty.dtype, &self.shape, bytes)?,
            #[cfg(feature = "vulkan")]
            StateData::Vulkan(state) => state.write(bytes)?,
        }
        Ok(())
    }

    pub(crate) fn on_cpu(&self) -> Option<&Arc<Mutex<Array>>> {
        match &self.data {
            StateData::Cpu(array) => Some(array),
            #[cfg(feature = "vulkan")]
            StateData::Vulkan(_) => None,
        }
    }

    #[cfg(feature = "vulkan")]
    pub(crate) fn on_vulkan(&self) -> Option<&crate::vulkan::StateOnDevice> {
        match &self.data {
            StateData::Cpu(_) => None,
            StateData::Vulkan(state) => Some(state),
        }
    }
}

/// The bytes of a state before the first run. Its extents may come from a file that lies, so they are an error and not
/// an abort where the memory is not to be had.
/// A block of zeros means zeros.
fn zeros(dtype: DType, shape: &[usize], bytes: Option<usize>) -> Result<Vec<u8>> {
    // Asked for once without being touched, since what fails to be allocated below ends the process.
    match bytes.filter(|bytes| Vec::<u8>::new().try_reserve_exact(*bytes).is_ok()) {
        Some(bytes) => Ok(vec![0; bytes]),
        None => {
            let why = format!("there is no memory for {dtype}{shape:?}");
            Err(Error::InvalidArgument { op: "state", why })
        }
    }
}

/// A state's array; what a panicking run left behind is still an array.
pub(crate) fn lock(array: &Mutex<Array>) -> MutexGuard<'_, Array> {
    array.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An interpreter array from bytes.
pub(crate) fn array(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Array> {
    Array::from_bytes(dtype, shape, bytes).map_err(|e| Error::Interpreter(e.to_string()))
}

/// Bytes of `shape` elements of `dtype`; `None` where they overflow or are no whole blocks.
pub(crate) fn byte_count(dtype: DType, shape: &[usize]) -> Option<usize> {
    let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
    match dtype {
        DType::Block(format) => {
            let row = shape.last().copied().unwrap_or(1);
            if !row.is_multiple_of(format.block_elements()) {
                return None;
            }
            format.row_bytes(elements).ok()
        }
        scalar => elements.checked_mul(scalar.size()?),
    }
}

/// Checks that `got` bytes are those of a tensor of type `ty`, whose extents are `shape`.
pub(crate) fn check_bytes(
    what: &'static str,
    name: &str,
    ty: &TensorType,
    shape: &[usize],
    got: usize,
) -> Result<()> {
    match byte_count(ty.dtype, shape) {
        Some(expected) if expected == got => Ok(()),
        Some(expected) => {
            Err(Error::ByteCount { what, name: name.into(), ty: Box::new(ty.clone()), expected, got })
        }
        None => Err(Error::InvalidArgument { op: what, why: format!("{ty} has no byte size") }),
    }
}

/// The extents of a type under symbol values.
pub(crate) fn run_shape(ty: &TensorType, bindings: &Bindings) -> Result<Vec<usize>> {
    ty.shape.eval(bindings).ok_or_else(|| Error::SymbolicShape { shape: ty.shape.clone() })
}
