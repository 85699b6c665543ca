//! The driver's pipeline cache, kept on disk between runs.
//!
//! One file per device and driver. Before its content is given to the driver two things are checked: our
//! envelope (a checksum, because drivers trust the bytes that they are given) and the header that Vulkan
//! defines (`VkPipelineCacheHeaderVersionOne`: vendor, device and cache UUID of this very driver).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once};

use ash::vk;
use tallow_ir::caps::DeviceCaps;

use super::device::Device;
use super::error::vulkan;
use super::lock;
use crate::cache_dir::write_atomically;
use crate::error::Result;

/// What became of the cache file when the context was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PipelineCacheState {
    /// No cache directory: pipelines are compiled in every process.
    Off,
    /// There was no file yet.
    New,
    /// The file was read: this many bytes of the driver's data.
    Loaded(usize),
    /// The file was not used, for this reason, and will be replaced.
    Rejected(String),
}

/// The cache object and its file.
pub(super) struct PipelineCache {
    pub(super) handle: vk::PipelineCache,
    pub(super) state: PipelineCacheState,
    path: Option<PathBuf>,
    /// Bytes of the driver's data that the file has. Held while it is written.
    saved: Mutex<usize>,
    device: Arc<Device>,
}

impl PipelineCache {
    /// Opens the cache in `dir`; without a directory the cache lives in memory alone.
    pub(super) fn open(device: &Arc<Device>, dir: Option<&Path>, uuid: [u8; 16]) -> Result<PipelineCache> {
        let path = dir.map(|dir| dir.join("pipelines").join(file_name(&device.caps, uuid)));
        let (data, state) = match &path {
            None => (Vec::new(), PipelineCacheState::Off),
            Some(path) => match fs::read(path) {
                Ok(file) => match unwrap(&file, &device.caps, uuid) {
                    Ok(data) => (data.to_vec(), PipelineCacheState::Loaded(data.len())),
                    Err(reason) => {
                        tracing::warn!("pipeline cache {} is not used: {reason}", path.display());
                        (Vec::new(), PipelineCacheState::Rejected(reason))
                    }
                },
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    (Vec::new(), PipelineCacheState::New)
                }
                Err(error) => (Vec::new(), PipelineCacheState::Rejected(error.to_string())),
            },
        };
        let info = vk::PipelineCacheCreateInfo::default().initial_data(&data);
        // SAFETY: the data is empty or was written by this driver, as its header and checksum say.
        let handle = unsafe { device.raw.create_pipeline_cache(&info, None) }
            .map_err(|code| vulkan("vkCreatePipelineCache", code))?;
        let saved = Mutex::new(data.len());
        Ok(PipelineCache { handle, state, path, saved, device: device.clone() })
    }

    /// Writes the file, whole or not at all, if the driver has more bytes to keep than it was read or written with, or fewer: caches
    /// grow by what is compiled. (A file that is taken away meanwhile is written again with the next pipeline.) A directory that cannot
    /// be written is said once and forgotten.
    pub(super) fn save(&self) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut saved = lock(&self.saved);
        if self.bytes()? == *saved {
            return Ok(());
        }
        // SAFETY: the cache belongs to the device; pipelines may be added to it at the same time, because
        // Vulkan synchronizes access to it.
        let data = unsafe { self.device.raw.get_pipeline_cache_data(self.handle) }
            .map_err(|code| vulkan("vkGetPipelineCacheData", code))?;
        match write_atomically(path, &wrap(&data)) {
            Ok(()) => *saved = data.len(),
            Err(error) => {
                static ONCE: Once = Once::new();
                ONCE.call_once(|| {
                    tracing::warn!("pipelines are not kept: {} cannot be written ({error})", path.display());
                });
            }
        }
        Ok(())
    }

    /// Bytes of the driver's data.
    fn bytes(&self) -> Result<usize> {
        let mut bytes = 0;
        let query = self.device.raw.fp_v1_0().get_pipeline_cache_data;
        // SAFETY: the cache belongs to the device; without a place for the data the driver writes its size alone.
        unsafe { query(self.device.raw.handle(), self.handle, &mut bytes, std::ptr::null_mut()) }
            .result()
            .map_err(|code| vulkan("vkGetPipelineCacheData", code))?;
        Ok(bytes)
    }
}

impl Drop for PipelineCache {
    fn drop(&mut self) {
        // SAFETY: creating a pipeline borrows the cache, so no call uses it any more.
        unsafe { self.device.raw.destroy_pipeline_cache(self.handle, None) };
    }
}

/// One file per device and driver build.
fn file_name(caps: &DeviceCaps, uuid: [u8; 16]) -> String {
    let uuid: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{:04x}-{:04x}-{uuid}.bin", caps.vendor_id, caps.device_id)
}

/// Identifies our file format.
const MAGIC: &[u8; 8] = b"TALLOWP1";
/// Bytes of `VkPipelineCacheHeaderVersionOne`.
const VULKAN_HEADER: usize = 32;

/// Puts magic, length and checksum before the driver's data.
fn wrap(data: &[u8]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    file.extend((data.len() as u64).to_le_bytes());
    file.extend(checksum(data).to_le_bytes());
    file.extend(data);
    file
}

/// The driver's data in a file, if file and data are whole and made by this driver for this device.
fn unwrap<'a>(file: &'a [u8], caps: &DeviceCaps, uuid: [u8; 16]) -> Result<&'a [u8], String> {
    let number =
        |at: usize| -> Option<u64> { Some(u64::from_le_bytes(file.get(at..at + 8)?.try_into().ok()?)) };
    if file.get(..8) != Some(MAGIC) {
        return Err("it is no pipeline cache of this version".to_string());
    }
    let (Some(length), Some(sum), Some(data)) = (number(8), number(16), file.get(24..)) else {
        return Err("it is cut short".to_string());
    };
    if data.len() as u64 != length || checksum(data) != sum {
        return Err("its checksum does not match".to_string());
    }
    let word =
        |at: usize| -> Option<u32> { Some(u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?)) };
    let header = [word(0), word(4), word(8), word(12)];
    let expected = [VULKAN_HEADER as u32, 1, caps.vendor_id, caps.device_id].map(Some);
    if header != expected || data.get(16..VULKAN_HEADER) != Some(&uuid) {
        return Err("it was made for another device or driver".to_string());
    }
    Ok(data)
}

/// FNV-1a, 64 bits: enough to notice a torn or damaged file, and no defence against a forged one.
fn checksum(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallow_ir::caps::h200;

    fn data(caps: &DeviceCaps, uuid: [u8; 16]) -> Vec<u8> {
        let mut data: Vec<u8> = [32, 1, caps.vendor_id, caps.device_id]
            .iter()
            .flat_map(|word: &u32| word.to_le_bytes())
            .collect();
        data.extend(uuid);
        data.extend(b"the driver's own bytes");
        data
    }

    #[test]
    fn a_whole_file_of_this_driver_is_read() {
        let caps = h200();
        let data = data(&caps, [7; 16]);
        assert_eq!(unwrap(&wrap(&data), &caps, [7; 16]), Ok(&data[..]));
    }

    #[test]
    fn anything_else_is_rejected() {
        let caps = h200();
        let file = wrap(&data(&caps, [7; 16]));
        for cut in 0..file.len() {
            assert!(unwrap(&file[..cut], &caps, [7; 16]).is_err(), "cut at {cut}");
        }
        for flipped in 0..file.len() {
            let mut file = file.clone();
            file[flipped] ^= 0x10;
            assert!(unwrap(&file, &caps, [7; 16]).is_err(), "flipped at {flipped}");
        }
        assert!(unwrap(&file, &caps, [8; 16]).unwrap_err().contains("another"));
        let other = DeviceCaps { device_id: 1, ..caps };
        assert!(unwrap(&file, &other, [7; 16]).unwrap_err().contains("another"));
    }
}
