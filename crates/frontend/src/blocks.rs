//! Constant data of tensors.

use std::sync::{Arc, OnceLock};

use tallow_ir::DType;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::resident::Weight;

/// Constant data of a tensor: blocks as they lie in a GGUF file, or plain elements; on its device once a graph has
/// read it, or there from the start.
pub(crate) struct Blocks {
    /// Absent where the host keeps none.
    bytes: Option<Arc<Vec<u8>>>,
    weight: OnceLock<Weight>,
}

impl Blocks {
    pub fn new(bytes: Arc<Vec<u8>>) -> Blocks {
        Blocks { bytes: Some(bytes), weight: OnceLock::new() }
    }

    /// Data that is on its device already.
    pub fn of_weight(weight: Weight) -> Blocks {
        Blocks { bytes: None, weight: OnceLock::from(weight) }
    }

    /// The host's bytes, or those that the device gives back.
    pub fn bytes(&self, device: &Device) -> Result<Arc<Vec<u8>>> {
        match (&self.bytes, self.weight.get()) {
            (Some(bytes), _) => Ok(bytes.clone()),
            (None, Some(weight)) => weight.read_bytes(device).map(Arc::new),
            (None, None) => Err(Error::Invalid { graph: "weight".into(), why: "it has no data".into() }),
        }
    }

    /// The data on `device`, that of the tensor, whose element type and extents these are.
    pub fn weight(&self, device: &Device, dtype: DType, dims: &[usize]) -> Result<Weight> {
        if let Some(weight) = self.weight.get() {
            return Ok(weight.clone());
        }
        let none = || Error::Invalid { graph: "weight".into(), why: "it has no data".into() };
        let bytes = self.bytes.as_ref().ok_or_else(none)?;
        let made = device.weight(dtype, dims, bytes)?;
        // If another thread was faster, its weight serves.
        Ok(self.weight.get_or_init(|| made).clone())
    }
}
