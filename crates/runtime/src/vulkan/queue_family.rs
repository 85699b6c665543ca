//! The queue family that all work goes to.

use ash::vk;

use super::instance::Instance;

/// A family of queues that compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ComputeQueue {
    /// Index of the family.
    pub(super) family: u32,
    /// Bits of its timestamps that count; 0: it has none.
    pub(super) timestamp_bits: u32,
    /// Its queues draw, too.
    draws: bool,
}

impl ComputeQueue {
    /// Where work goes on a device with this driver.
    pub(super) fn of(
        instance: &Instance,
        physical: vk::PhysicalDevice,
        driver: vk::DriverId,
    ) -> Option<ComputeQueue> {
        // SAFETY: the handle comes from this live instance.
        let families = unsafe { instance.raw.get_physical_device_queue_family_properties(physical) };
        ComputeQueue::among(&families, driver)
    }

    /// Of the families that have timestamps, if any do, one for compute without graphics, if there is one (decision 0030); with
    /// NVIDIA's own driver one that draws, too, as its others run pipelines that are made meanwhile wrongly (decision 0034).
    fn among(families: &[vk::QueueFamilyProperties], driver: vk::DriverId) -> Option<ComputeQueue> {
        let computes = |(_, family): &(u32, &vk::QueueFamilyProperties)| {
            family.queue_count > 0 && family.queue_flags.contains(vk::QueueFlags::COMPUTE)
        };
        let queue = |(family, properties): (u32, &vk::QueueFamilyProperties)| ComputeQueue {
            family,
            timestamp_bits: properties.timestamp_valid_bits,
            draws: properties.queue_flags.contains(vk::QueueFlags::GRAPHICS),
        };
        let wanted = driver == vk::DriverId::NVIDIA_PROPRIETARY;
        // Tuning and benchmarks need timestamps; the first of equals.
        let rank = |queue: &ComputeQueue| (queue.timestamp_bits == 0, queue.draws != wanted);
        (0..).zip(families).filter(computes).map(queue).min_by_key(rank)
    }
}

#[cfg(test)]
mod tests {
    use ash::vk::{DriverId, QueueFamilyProperties, QueueFlags};

    use super::*;

    fn family(queue_flags: QueueFlags, queue_count: u32) -> QueueFamilyProperties {
        QueueFamilyProperties { queue_flags, queue_count, ..QueueFamilyProperties::default() }
    }

    fn timed(family: QueueFamilyProperties) -> QueueFamilyProperties {
        QueueFamilyProperties { timestamp_valid_bits: 64, ..family }
    }

    #[test]
    fn compute_without_graphics_goes_first_where_it_is_sound() {
        let index = |driver, families: &[QueueFamilyProperties]| {
            ComputeQueue::among(families, driver).map(|queue| queue.family)
        };
        let all = family(QueueFlags::GRAPHICS | QueueFlags::COMPUTE | QueueFlags::TRANSFER, 16);
        let copies = family(QueueFlags::TRANSFER, 2);
        let compute = family(QueueFlags::COMPUTE | QueueFlags::TRANSFER, 8);
        let none = family(QueueFlags::COMPUTE, 0);
        let (radv, nvidia) = (DriverId::MESA_RADV, DriverId::NVIDIA_PROPRIETARY);
        assert_eq!(index(radv, &[all, copies, compute]), Some(2));
        assert_eq!(index(DriverId::MESA_NVK, &[all, copies, compute]), Some(2));
        assert_eq!(index(nvidia, &[all, copies, compute]), Some(0));
        assert_eq!(index(nvidia, &[compute, copies, all]), Some(2));
        assert_eq!(index(nvidia, &[copies, compute]), Some(1), "there is no other");
        // Unless it alone has no timestamps.
        assert_eq!(index(radv, &[timed(all), compute]), Some(0));
        assert_eq!(index(radv, &[timed(all), timed(compute)]), Some(1));
        assert_eq!(index(nvidia, &[timed(compute), all]), Some(0));
        assert_eq!(index(radv, &[copies, all, none]), Some(1));
        assert_eq!(index(radv, &[copies, none]), None);
    }
}
