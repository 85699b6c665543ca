//! From Vulkan's result codes to this crate's errors.

use ash::vk;

use crate::error::Error;

/// The error for a Vulkan command that returned `code`.
pub(super) fn vulkan(call: &'static str, code: vk::Result) -> Error {
    match code {
        vk::Result::ERROR_DEVICE_LOST => Error::DeviceLost { during: call, submitted: String::new() },
        vk::Result::ERROR_OUT_OF_HOST_MEMORY => out_of_memory(call, "host memory"),
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => out_of_memory(call, "device memory"),
        vk::Result::ERROR_OUT_OF_POOL_MEMORY => out_of_memory(call, "descriptor pool"),
        other => Error::Vulkan { call, code: format!("{other:?}") },
    }
}

fn out_of_memory(call: &str, reason: &str) -> Error {
    Error::OutOfMemory { what: call.to_string(), bytes: 0, reason: reason.to_string() }
}

/// The error for a memory allocation of `bytes` bytes for `what`.
pub(super) fn allocation(what: &str, bytes: u64, cause: &gpu_allocator::AllocationError) -> Error {
    Error::OutOfMemory { what: what.to_string(), bytes, reason: cause.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_typed_errors() {
        assert_eq!(
            vulkan("vkQueueSubmit", vk::Result::ERROR_DEVICE_LOST),
            Error::DeviceLost { during: "vkQueueSubmit", submitted: String::new() }
        );
        let memory = vulkan("vkCreateBuffer", vk::Result::ERROR_OUT_OF_DEVICE_MEMORY).to_string();
        assert!(memory.contains("vkCreateBuffer") && memory.contains("device memory"), "{memory}");
        let other = vulkan("vkMapMemory", vk::Result::ERROR_MEMORY_MAP_FAILED).to_string();
        assert_eq!(other, "vkMapMemory failed: ERROR_MEMORY_MAP_FAILED");
    }
}
