//! What there is to know of a device.

/// Memory of a Vulkan device that this process takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Taken by tensors, weights, states, plans and transfers, but for what is in the host's memory instead.
    pub in_use: u64,
    /// Taken by weights in the host's memory ([`Device::host_weight`](crate::Device::host_weight)). Where host and device
    /// share their memory, it is a part of `in_use`.
    pub host: u64,
    /// The most that was in use at once.
    pub peak: u64,
    /// Kept from tensors that were dropped, for those to come. It is given back to the driver where memory runs out.
    pub cached: u64,
    /// Buffers that there are, those that are kept among them.
    pub buffers: u64,
    /// What the driver lets this process have of the device's own memory, where it says so.
    pub budget: Option<u64>,
}

/// A Vulkan device that there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VulkanDeviceInfo {
    /// The number that [`Device::new_vulkan`](crate::Device::new_vulkan) takes.
    pub ordinal: usize,
    /// The driver's name for it.
    pub name: String,
    /// Kind, driver and Vulkan version, and why it cannot be used where it cannot.
    pub description: String,
}
