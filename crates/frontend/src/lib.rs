//! Lazy tensor graphs, fused and compiled to Vulkan.

mod cpu;
pub mod device;
pub mod error;
pub mod executable;
pub mod resident;

pub use device::{Device, VulkanDeviceInfo, vulkan_devices};
pub use error::{Error, Result};
pub use executable::{ExecStats, Executable, Pending, RunOutput};
pub use resident::{State, Weight};
pub use tallow_ir::{DType, Dim, Shape, Symbol};
