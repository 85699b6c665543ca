//! Which of a device's memory types is the host's memory.

use ash::vk::{MemoryPropertyFlags, MemoryType};

/// The bit of the memory type, among those that `allowed` has bits of, in which kernels read the host's memory over the
/// bus; 0 where none can be mapped.
///
/// It can be mapped, needs no flushes and is not the device's own: with a resizable BAR all of the device's memory can be
/// mapped, and a type of it would take what this is to save. Where there is only one memory, the type is in that.
///
/// Of several it is the first. Vulkan lists a type before those that have more properties, so this one is not cached by the
/// processor where there is a choice, and reads of it need not look in the processor's caches.
pub(super) fn host_memory(types: &[MemoryType], allowed: u32) -> u32 {
    let mapped = MemoryPropertyFlags::HOST_VISIBLE | MemoryPropertyFlags::HOST_COHERENT;
    let own = MemoryPropertyFlags::DEVICE_LOCAL;
    let find = |wanted: &dyn Fn(MemoryPropertyFlags) -> bool| {
        let is =
            |(number, ty): &(usize, &MemoryType)| allowed >> number & 1 == 1 && wanted(ty.property_flags);
        types.iter().enumerate().find(is).map(|(number, _)| 1 << number)
    };
    find(&|flags| flags.contains(mapped) && !flags.contains(own))
        .or_else(|| find(&|flags| flags.contains(mapped)))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: MemoryPropertyFlags = MemoryPropertyFlags::DEVICE_LOCAL;
    const MAPPED: MemoryPropertyFlags = MemoryPropertyFlags::from_raw(
        MemoryPropertyFlags::HOST_VISIBLE.as_raw() | MemoryPropertyFlags::HOST_COHERENT.as_raw(),
    );
    const CACHED: MemoryPropertyFlags = MemoryPropertyFlags::HOST_CACHED;
    const NONE: MemoryPropertyFlags = MemoryPropertyFlags::empty();

    /// Which type is taken, if any.
    fn taken(flags: &[MemoryPropertyFlags], allowed: u32) -> Option<u32> {
        let types: Vec<MemoryType> =
            flags.iter().map(|&property_flags| MemoryType { property_flags, heap_index: 0 }).collect();
        let bit = host_memory(&types, allowed);
        assert!(bit.count_ones() <= 1 && bit & allowed == bit);
        (bit != 0).then(|| bit.trailing_zeros())
    }

    #[test]
    fn it_is_not_the_memory_of_the_device_where_there_is_another() {
        // NVIDIA's driver with a resizable BAR: the window into the device's memory comes last.
        let nvidia = [NONE, OWN, MAPPED, MAPPED | CACHED, OWN | MAPPED];
        assert_eq!(taken(&nvidia, !0), Some(2));
        assert_eq!(taken(&nvidia[..4], !0), Some(2), "without the window");
        // Its buffers may not lie in the first type.
        assert_eq!(taken(&nvidia, 0b11110), Some(2));
        // RADV: the device's memory, the host's, the window, the host's with caches.
        let amd = [OWN, MAPPED, OWN | MAPPED, MAPPED | CACHED];
        assert_eq!(taken(&amd, !0), Some(1));
        assert_eq!(taken(&amd, 0b1101), Some(3), "a buffer that may not lie in uncached memory");
        // A window that comes before the host's memory.
        assert_eq!(taken(&[OWN, OWN | MAPPED, MAPPED | CACHED], !0), Some(2));
    }

    #[test]
    fn one_memory_of_host_and_device_is_taken() {
        // Lavapipe, and an integrated GPU of Intel or Arm.
        assert_eq!(taken(&[OWN | MAPPED | CACHED], !0), Some(0));
        assert_eq!(taken(&[OWN, OWN | MAPPED, OWN | MAPPED | CACHED], !0), Some(1));
    }

    #[test]
    fn memory_that_cannot_be_mapped_is_none() {
        assert_eq!(taken(&[NONE, OWN], !0), None);
        assert_eq!(taken(&[OWN, MAPPED], 0b1), None);
        // Without coherence the host's writes would need flushes.
        assert_eq!(taken(&[OWN, MemoryPropertyFlags::HOST_VISIBLE | CACHED], !0), None);
    }
}
