//! What properties a device reports, and the capabilities that follow from them and its features.

use ash::vk;
use tallow_ir::caps::{DeviceCaps, Hardware};

use super::super::instance::Instance;
use super::{FeatureChain, Identity, Known, text};

/// The chain of property structures.
#[derive(Default)]
pub(super) struct Properties {
    pub(super) core: vk::PhysicalDeviceProperties,
    v11: vk::PhysicalDeviceVulkan11Properties<'static>,
    pub(super) v12: vk::PhysicalDeviceVulkan12Properties<'static>,
    subgroup_size: vk::PhysicalDeviceSubgroupSizeControlProperties<'static>,
    int_dot: vk::PhysicalDeviceShaderIntegerDotProductProperties<'static>,
    coopmat: vk::PhysicalDeviceCooperativeMatrixPropertiesKHR<'static>,
    /// The device reports a range of subgroup sizes.
    has_subgroup_sizes: bool,
}

impl Properties {
    /// Fills the structures that are known; to be called once on a chain, or the links would form a ring.
    pub(super) fn query(&mut self, instance: &Instance, physical: vk::PhysicalDevice, known: Known) {
        self.has_subgroup_sizes = known.subgroup_size;
        let mut head = vk::PhysicalDeviceProperties2::default();
        head = head.push_next(&mut self.v11).push_next(&mut self.v12);
        if known.subgroup_size {
            head = head.push_next(&mut self.subgroup_size);
        }
        if known.int_dot {
            head = head.push_next(&mut self.int_dot);
        }
        if known.coopmat {
            head = head.push_next(&mut self.coopmat);
        }
        // SAFETY: the chain holds structures that the device knows, each once, live during the call.
        unsafe { instance.raw.get_physical_device_properties2(physical, &mut head) };
        self.core = head.properties;
    }

    /// What follows from the two chains alone. Left out (0, false or none): shapes of cooperative matrices, whether
    /// memory is unified, and the hardware's size.
    pub(super) fn caps(&self, identity: Identity, features: &FeatureChain) -> DeviceCaps {
        let on = |flag: vk::Bool32| flag == vk::TRUE;
        let (limits, core) = (&self.core.limits, &features.core);
        let (subgroup_size_min, subgroup_size_max) = self.subgroup_sizes();
        let subgroup_size_control = self.subgroup_size_control(features);
        DeviceCaps {
            name: identity.name,
            device_type: identity.device_type,
            api_version: identity.api_version,
            vendor_id: self.core.vendor_id,
            device_id: self.core.device_id,
            driver: self.driver(),
            subgroup_size: self.v11.subgroup_size,
            subgroup_size_min,
            subgroup_size_max,
            subgroup_size_control,
            max_workgroup_subgroups: match subgroup_size_control {
                true => self.subgroup_size.max_compute_workgroup_subgroups,
                false => u32::MAX,
            },
            subgroup_arithmetic: self
                .subgroup(vk::SubgroupFeatureFlags::ARITHMETIC | vk::SubgroupFeatureFlags::VOTE),
            subgroup_shuffle: self
                .subgroup(vk::SubgroupFeatureFlags::SHUFFLE | vk::SubgroupFeatureFlags::BALLOT),
            f16: on(features.v12.shader_float16),
            int8: on(features.v12.shader_int8),
            int16: on(core.shader_int16),
            int64: on(core.shader_int64),
            float64: on(core.shader_float64),
            storage_16bit: on(features.v11.storage_buffer16_bit_access),
            storage_8bit: on(features.v12.storage_buffer8_bit_access),
            int_dot: on(features.int_dot.shader_integer_dot_product),
            int_dot_accelerated: on(self.int_dot.integer_dot_product4x8_bit_packed_signed_accelerated),
            bf16: on(features.bf16.type_supported),
            float_controls: on(self.v12.shader_signed_zero_inf_nan_preserve_float32)
                && (on(self.v12.shader_signed_zero_inf_nan_preserve_float64) || !on(core.shader_float64)),
            atomic_float_add: on(features.atomic_float.shader_buffer_float32_atomic_add),
            atomic_float_add_shared: on(features.atomic_float.shader_shared_float32_atomic_add),
            atomic_int64: on(core.shader_int64) && on(features.v12.shader_buffer_int64_atomics),
            cooperative_matrix2: false,
            cooperative_matrix: Vec::new(),
            // An open device is asked (`coopmat_fragment_layout.rs`).
            coopmat_fragment_layout: false,
            memory_model: on(features.v12.vulkan_memory_model)
                && on(features.v12.vulkan_memory_model_device_scope),
            shared_memory_bytes: limits.max_compute_shared_memory_size,
            max_workgroup_invocations: limits.max_compute_work_group_invocations,
            max_workgroup_size: limits.max_compute_work_group_size,
            max_workgroup_count: limits.max_compute_work_group_count,
            push_constant_bytes: limits.max_push_constants_size,
            max_storage_buffer_range: u64::from(limits.max_storage_buffer_range),
            max_storage_buffers: self.max_storage_buffers(),
            storage_offset_alignment: limits.min_storage_buffer_offset_alignment.max(1),
            max_allocation_bytes: self.v11.max_memory_allocation_size,
            buffer_device_address: on(features.v12.buffer_device_address),
            timeline_semaphore: on(features.v12.timeline_semaphore),
            synchronization2: on(features.sync2.synchronization2),
            unified_memory: false,
            timestamp_period_ps: (f64::from(limits.timestamp_period) * 1000.0).round() as u64,
            hardware: Hardware::default(),
        }
    }

    /// Compute shaders can use cooperative matrices.
    pub(super) fn matrices(&self, features: &FeatureChain) -> bool {
        features.coopmat.cooperative_matrix == vk::TRUE
            && features.v12.vulkan_memory_model == vk::TRUE
            && self.coopmat.cooperative_matrix_supported_stages.contains(vk::ShaderStageFlags::COMPUTE)
    }

    fn subgroup(&self, needed: vk::SubgroupFeatureFlags) -> bool {
        self.v11.subgroup_supported_stages.contains(vk::ShaderStageFlags::COMPUTE)
            && self.v11.subgroup_supported_operations.contains(needed)
    }

    /// Compute pipelines can require a subgroup size.
    fn subgroup_size_control(&self, features: &FeatureChain) -> bool {
        features.subgroup_size.subgroup_size_control == vk::TRUE
            && self.subgroup_size.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE)
    }

    /// The smallest and the largest subgroup size that the device executes, whether or not pipelines may require one.
    /// Where neither the extension nor Vulkan 1.3 tells, all subgroups have the one size that Vulkan 1.1 promises to
    /// modules before SPIR-V 1.6.
    fn subgroup_sizes(&self) -> (u32, u32) {
        let size = self.v11.subgroup_size;
        let (min, max) = (self.subgroup_size.min_subgroup_size, self.subgroup_size.max_subgroup_size);
        // A range without the device's own size is no answer.
        if self.has_subgroup_sizes && (min..=max).contains(&size) { (min, max) } else { (size, size) }
    }

    fn max_storage_buffers(&self) -> u32 {
        let limits = &self.core.limits;
        limits
            .max_per_stage_descriptor_storage_buffers
            .min(limits.max_descriptor_set_storage_buffers)
            .min(limits.max_per_stage_resources)
    }

    fn driver(&self) -> String {
        let words = [text(self.v12.driver_name_as_c_str().ok()), text(self.v12.driver_info_as_c_str().ok())];
        let mut named: Vec<String> = words.into_iter().filter(|word| !word.is_empty()).collect();
        // The text is the driver's own, and need not have its version.
        if !named.iter().any(|word| word.contains(|c: char| c.is_ascii_digit())) {
            named.push(format!("{:#x}", self.core.driver_version));
        }
        named.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_subgroup_sizes_is_the_hardwares() {
        let sizes = |size: u32, has_subgroup_sizes: bool, [min, max]: [u32; 2]| {
            let mut properties = Properties { has_subgroup_sizes, ..Properties::default() };
            properties.v11.subgroup_size = size;
            properties.subgroup_size.min_subgroup_size = min;
            properties.subgroup_size.max_subgroup_size = max;
            properties.subgroup_sizes()
        };
        assert_eq!(sizes(64, true, [32, 64]), (32, 64));
        assert_eq!(sizes(64, false, [32, 64]), (64, 64));
        assert_eq!(sizes(8, true, [0, 0]), (8, 8));
    }
}
