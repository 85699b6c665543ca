//! What there is to know of a device.

#[cfg(feature = "vulkan")]
use tallow_runtime::vulkan::MemoryFigures;

/// Memory of a Vulkan device that this process takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Taken by tensors, weights, states, plans and transfers, but for what is in the host's memory instead.
    pub in_use: u64,
    /// Taken by weights in the host's memory ([`Device::host_weight`](crate::Device::host_weight)). Where host and device
    /// share their memory, it is a part of `in_use`.
    pub host: u64,
    /// The most that was in use at once, counted as `in_use` is.
    pub peak: u64,
    /// Kept from tensors that were dropped, for those to come. It is given back to the driver where memory runs out.
    pub cached: u64,
    /// Buffers that there are, those that are kept among them.
    pub buffers: u64,
    /// What the driver lets this process have of the device's own memory, where it says so.
    pub budget: Option<u64>,
}

#[cfg(feature = "vulkan")]
impl DeviceMemory {
    /// The figures of a device. Where host and device have one memory, all of it counts.
    pub(crate) fn of(figures: MemoryFigures, has_one_memory: bool) -> DeviceMemory {
        let MemoryFigures { in_use, host, peak, device_peak, cached, buffers, budget } = figures;
        let (in_use, peak) = match has_one_memory {
            true => (in_use, peak),
            false => (in_use.saturating_sub(host), device_peak),
        };
        DeviceMemory { in_use, host, peak, cached, buffers, budget }
    }
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

#[cfg(all(test, feature = "vulkan"))]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_was_in_use_is_counted_as_what_is_in_use() {
        let figures =
            MemoryFigures { in_use: 70, host: 30, peak: 90, device_peak: 50, ..MemoryFigures::default() };
        let of = |has_one_memory| {
            let DeviceMemory { in_use, host, peak, .. } = DeviceMemory::of(figures, has_one_memory);
            (in_use, host, peak)
        };
        assert_eq!(of(false), (40, 30, 50));
        assert_eq!(of(true), (70, 30, 90));
    }
}
