//! How much memory the intermediate values of a function may take.

use crate::device::Device;

/// Whether a function computes values again that would wait in memory for a later reader, as those of a forward pass do
/// for the backward pass. This takes time for memory and changes no result by more than fusion does.
///
/// Intermediate values are what lies between inputs, weights and states on one side and results on the other. The CPU
/// device has no plan for them, so there this has no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Remat {
    /// Each kernel runs once.
    #[default]
    Off,
    /// Intermediate values take at most so many bytes. Compiling fails where no choice of kernels was found that fits.
    Budget(u64),
    /// They take at most what the device has left when the function is compiled.
    Auto,
}

impl Remat {
    /// The budget in bytes on a device, now.
    pub(crate) fn budget(self, device: &Device) -> Option<u64> {
        match (self, device) {
            (Remat::Off, _) | (Remat::Auto, Device::Cpu) => None,
            (Remat::Budget(bytes), _) => Some(bytes),
            #[cfg(feature = "vulkan")]
            (Remat::Auto, Device::Vulkan(device)) => Some(device.bytes_left()),
        }
    }
}

/// How a function is compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompileOptions {
    /// What is computed again to take less memory.
    pub remat: Remat,
}

impl CompileOptions {
    /// With values computed again to take less memory.
    pub fn remat(self, remat: Remat) -> CompileOptions {
        CompileOptions { remat }
    }
}
