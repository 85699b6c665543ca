//! Where tensors live and graphs run.

use std::sync::Once;

use tallow_ir::DType;

use crate::device_info::{DeviceMemory, VulkanDeviceInfo};
use crate::dynamic::{Dynamic, Dynamics};
use crate::error::{Error, Result};

/// A device. Cheap to clone; clones are the same device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// The interpreter: always there, exact, slow.
    Cpu,
    /// A GPU, or a software implementation of one.
    #[cfg(feature = "vulkan")]
    Vulkan(crate::vulkan::VulkanDevice),
}

impl Device {
    /// The Vulkan device with this ordinal (`tallow devices` lists them).
    ///
    /// # Errors
    /// When the build has no Vulkan, there is no loader, or no such device.
    pub fn new_vulkan(ordinal: usize) -> Result<Device> {
        open(Some(ordinal))
    }

    /// The best Vulkan device, or the one that the variable `TALLOW_DEVICE` names.
    ///
    /// # Errors
    /// When the build has no Vulkan, there is no loader, or no device.
    pub fn best_vulkan() -> Result<Device> {
        open(None)
    }

    /// The Vulkan device that `options` describe, in place of the environment's variables;
    /// [`RuntimeOptions::from_env`](tallow_runtime::RuntimeOptions::from_env) starts from those.
    ///
    /// # Errors
    /// When there is no loader, or no such device.
    #[cfg(feature = "vulkan")]
    pub fn vulkan_with(options: &tallow_runtime::RuntimeOptions) -> Result<Device> {
        crate::vulkan::VulkanDevice::open_with(options).map(Device::Vulkan)
    }

    /// The best Vulkan device, or the CPU where there is none. A warning says so where that is slow: on the CPU, and on a
    /// software device.
    pub fn vulkan_if_available() -> Device {
        match Device::best_vulkan() {
            Ok(device) => {
                if device.is_software() {
                    static ONCE: Once = Once::new();
                    ONCE.call_once(|| tracing::warn!("{device} is a software device: correct, but slow"));
                }
                device
            }
            Err(error) => {
                tracing::warn!("running on the CPU interpreter, which is slow: {error}");
                Device::Cpu
            }
        }
    }

    /// True for a Vulkan device that the processor computes for, such as Mesa's lavapipe.
    pub fn is_software(&self) -> bool {
        self.caps().is_some_and(|caps| caps.is_software())
    }

    /// Whether kernels of what is compiled for a Vulkan device from now on are tuned: those that can be cut up in several ways are
    /// measured, and the fastest taken. What was measured is kept on disk for the device and its driver. Sums may then be added in
    /// another order than on a device that does not tune, as it is at first unless `TALLOW_TUNE` is set.
    pub fn set_tuning(&self, on: bool) {
        match self {
            Device::Cpu => {
                let _ = on;
            }
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => device.set_tuning(on),
        }
    }

    /// True for the interpreter.
    pub fn is_cpu(&self) -> bool {
        match self {
            Device::Cpu => true,
            #[cfg(feature = "vulkan")]
            Device::Vulkan(_) => false,
        }
    }

    /// False: NVIDIA's devices are Vulkan devices here. Code written for Candle asks.
    pub fn is_cuda(&self) -> bool {
        false
    }

    /// False: Apple's devices are not served. Code written for Candle asks.
    pub fn is_metal(&self) -> bool {
        false
    }

    /// True for a Vulkan device.
    pub fn is_vulkan(&self) -> bool {
        !self.is_cpu()
    }

    /// True where both are one device.
    pub fn same_device(&self, other: &Device) -> bool {
        self == other
    }

    /// True: every device computes on bf16, by itself or through f32.
    pub fn supports_bf16(&self) -> bool {
        true
    }

    /// The type in which models whose weights are bf16 compute here.
    pub fn bf16_default_to_f32(&self) -> DType {
        if self.supports_bf16() { DType::BF16 } else { DType::F32 }
    }

    /// See [`VulkanDevice::for_cache`](crate::vulkan::VulkanDevice).
    pub(crate) fn for_cache(&self) -> Device {
        match self {
            Device::Cpu => Device::Cpu,
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => Device::Vulkan(device.for_cache()),
        }
    }

    /// The error of an op with operands on this device and another one. The same GPU opened twice is two devices of one name.
    pub(crate) fn mismatch(&self, op: &'static str, other: &Device) -> Error {
        let (lhs, mut rhs) = (self.name(), other.name());
        if lhs == rhs {
            rhs.push_str(" (opened another time)");
        }
        Error::DeviceMismatchBinaryOp { op, lhs, rhs }
    }

    /// Waits until the device has done all that was asked of it: evaluations, runs, uploads.
    ///
    /// # Errors
    /// When the device failed, now or earlier.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => device.synchronize(),
        }
    }

    /// Memory that tensors, weights, states and plans take on a Vulkan device; `None` for the CPU.
    pub fn memory(&self) -> Option<DeviceMemory> {
        match self {
            Device::Cpu => None,
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => Some(device.memory()),
        }
    }

    /// Gives back the host memory (32 MiB) through which weights and states come to the device and back, when all that was
    /// loaded is there. The next transfer takes it again.
    pub fn release_staging(&self) {
        match self {
            Device::Cpu => {}
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => device.release_staging(),
        }
    }

    /// Waits for what runs, and takes no more: from now on runs and uploads are errors, on every clone and for
    /// everything compiled for this device. The CPU is never closed.
    ///
    /// # Errors
    /// When what ran failed.
    pub fn close(&self) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => device.close(),
        }
    }

    /// The name that figures and messages show.
    pub fn name(&self) -> String {
        match self {
            Device::Cpu => "cpu".into(),
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => device.name(),
        }
    }

    /// What a Vulkan device can do, less what `TALLOW_DISABLE` took away; `None` for the CPU.
    pub fn caps(&self) -> Option<&tallow_ir::DeviceCaps> {
        match self {
            Device::Cpu => None,
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => Some(device.caps()),
        }
    }

    /// Size of a Vulkan device's own memory in bytes, of which other programs may use a part; `None` for the CPU.
    pub fn memory_bytes(&self) -> Option<u64> {
        match self {
            Device::Cpu => None,
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => Some(device.memory_bytes()),
        }
    }

    /// Bytes of a Vulkan device's own memory that this process can still have: what the driver lets it have
    /// (`VK_EXT_memory_budget`), or else the size of the memory, less what is in use. `None` for the CPU.
    pub fn free_memory(&self) -> Option<u64> {
        let DeviceMemory { in_use, budget, .. } = self.memory()?;
        Some(budget.or(self.memory_bytes())?.saturating_sub(in_use))
    }

    /// Bytes per second that a GPU copies from the host's memory ([`Device::host_weight`]) to its own, measured now. `None`
    /// where both are one memory or the device cannot tell.
    ///
    /// # Errors
    /// When memory (64 MiB) runs out, or the device fails.
    pub fn bus_bandwidth(&self) -> Result<Option<f64>> {
        match self {
            Device::Cpu => Ok(None),
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => device.bus_bandwidth(),
        }
    }

    /// Whether waiting for the device keeps a processor busy (`TALLOW_WAIT=poll`).
    pub fn polls(&self) -> bool {
        match self {
            Device::Cpu => false,
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => device.polls(),
        }
    }

    /// Whether extents that change between lazy evaluations on this device become symbols of one plan, as they do unless this
    /// says otherwise. Plans that there are stay.
    ///
    /// A plan with symbols serves every step of a loop whose tensors grow. One with numbers may be faster for the extents that
    /// it has. What is compiled with [`crate::compile`] has the symbols that its inputs state.
    pub fn set_dynamic(&self, dynamic: Dynamic) {
        self.dynamics().set(dynamic);
    }

    /// How many programs were compiled so far for lazy evaluations on this device.
    pub fn lazy_compilations(&self) -> u64 {
        self.dynamics().compiled()
    }

    pub(crate) fn dynamics(&self) -> &Dynamics {
        static CPU: Dynamics = Dynamics::new();
        match self {
            Device::Cpu => &CPU,
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => device.dynamics(),
        }
    }

    /// See [`crate::vulkan::VulkanDevice`]; the interpreter overwrites nothing.
    pub(crate) fn evaluation(&self) -> Option<std::sync::MutexGuard<'_, ()>> {
        match self {
            Device::Cpu => None,
            #[cfg(feature = "vulkan")]
            Device::Vulkan(device) => Some(device.evaluation()),
        }
    }
}

/// All Vulkan devices, in the order of their ordinals.
///
/// # Errors
/// When the build has no Vulkan or there is no loader.
pub fn vulkan_devices() -> Result<Vec<VulkanDeviceInfo>> {
    #[cfg(feature = "vulkan")]
    return crate::vulkan::devices();
    #[cfg(not(feature = "vulkan"))]
    Err(Error::NotCompiledWithVulkan)
}

#[cfg(feature = "vulkan")]
fn open(ordinal: Option<usize>) -> Result<Device> {
    crate::vulkan::VulkanDevice::open(ordinal).map(Device::Vulkan)
}

#[cfg(not(feature = "vulkan"))]
fn open(_ordinal: Option<usize>) -> Result<Device> {
    Err(Error::NotCompiledWithVulkan)
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}
