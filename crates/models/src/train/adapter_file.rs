//! The adapter that a fine-tuning writes.

use std::path::PathBuf;

use super::atomic::write_atomically;
use super::error::TrainError;
use super::frozen::LoraConfig;
use super::net::Net;
use crate::error::Result;
use crate::lora::write_adapter;

/// Where an adapter goes, and what its file says besides its values.
pub(super) struct AdapterFile {
    pub path: PathBuf,
    /// The model's `general.architecture`.
    pub architecture: &'static str,
    pub lora: LoraConfig,
}

impl AdapterFile {
    /// Writes the adapters of a model. The file is named after itself.
    ///
    /// # Errors
    /// When they cannot be read from the device, or the file cannot be written.
    pub fn write(&self, net: &Net) -> Result<()> {
        let pairs = net.adapters().map(|adapter| adapter.pair()).collect::<tallow::Result<Vec<_>>>()?;
        let LoraConfig { alpha, adapter_type, .. } = self.lora;
        let name = self.path.file_stem().map_or("adapter".into(), |name| name.to_string_lossy());
        let mut bytes = vec![];
        write_adapter(&mut bytes, self.architecture, &name, alpha as f32, adapter_type.format(), &pairs)?;
        let write = |source| TrainError::Write { path: self.path.clone(), source };
        Ok(write_atomically(&self.path, |file| file.write_all(&bytes)).map_err(write)?)
    }
}
