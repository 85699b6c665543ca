//! What drivers tell of the cores of a device, which Vulkan itself does not: extensions of three vendors.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};

use ash::{amd, arm, nv, vk};
use tallow_ir::caps::Reported;

use super::instance::Instance;

/// What a device with these extensions tells. Properties can be asked for without enabling the extension.
pub(super) fn reported(
    instance: &Instance,
    physical: vk::PhysicalDevice,
    extensions: &BTreeSet<CString>,
    subgroup_size: u32,
) -> Reported {
    let has = |name: &CStr| extensions.contains(name);
    let [nvidia, amd, amd2, arm_cores, arm_rates] = [
        has(nv::shader_sm_builtins::NAME),
        has(amd::shader_core_properties::NAME),
        has(amd::shader_core_properties2::NAME),
        has(arm::shader_core_builtins::NAME),
        has(arm::shader_core_properties::NAME),
    ];
    let mut answers = Answers::default();
    let mut head = vk::PhysicalDeviceProperties2::default();
    if nvidia {
        head = head.push_next(&mut answers.nvidia);
    }
    if amd {
        head = head.push_next(&mut answers.amd);
    }
    if amd2 {
        head = head.push_next(&mut answers.amd2);
    }
    if arm_cores {
        head = head.push_next(&mut answers.arm_cores);
    }
    if arm_rates {
        head = head.push_next(&mut answers.arm_rates);
    }
    // SAFETY: the handle comes from this live instance; the device has the extension of each structure that is chained,
    // and each is chained once and lives until the call returns.
    unsafe { instance.raw.get_physical_device_properties2(physical, &mut head) };
    answers.reported(subgroup_size)
}

/// The structures of the extensions; zero where a device has none of them.
#[derive(Default)]
struct Answers {
    nvidia: vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV<'static>,
    amd: vk::PhysicalDeviceShaderCorePropertiesAMD<'static>,
    amd2: vk::PhysicalDeviceShaderCoreProperties2AMD<'static>,
    arm_cores: vk::PhysicalDeviceShaderCoreBuiltinsPropertiesARM<'static>,
    arm_rates: vk::PhysicalDeviceShaderCorePropertiesARM<'static>,
}

impl Answers {
    /// Zeros are no answers. Drivers are not trusted with products that overflow.
    fn reported(&self, subgroup_size: u32) -> Reported {
        let told = |count: u32| (count > 0).then_some(count);
        let product = |factors: &[u32]| factors.iter().try_fold(1u32, |all, factor| all.checked_mul(*factor));
        let amd = &self.amd;
        let units = product(&[
            amd.shader_engine_count,
            amd.shader_arrays_per_engine_count,
            amd.compute_units_per_shader_array,
        ]);
        let warps = told(self.nvidia.shader_warps_per_sm).or(told(self.arm_cores.shader_warps_per_core));
        let waves = product(&[amd.simd_per_compute_unit, amd.wavefronts_per_simd, amd.wavefront_size]);
        Reported {
            // Compute units that are there, before those that the chip could have.
            cores: told(self.nvidia.shader_sm_count)
                .or(told(self.amd2.active_compute_unit_count))
                .or(units.and_then(told))
                .or(told(self.arm_cores.shader_core_count)),
            invocations_per_core: warps
                .and_then(|warps| warps.checked_mul(subgroup_size))
                .or(waves)
                .and_then(told),
            multiply_adds_per_clock: told(self.arm_rates.fma_rate),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_vendor_tells_its_cores() {
        assert_eq!(Answers::default().reported(8), Reported::default());
        let mut nvidia = Answers::default();
        (nvidia.nvidia.shader_sm_count, nvidia.nvidia.shader_warps_per_sm) = (132, 64);
        let expected = Reported { cores: Some(132), invocations_per_core: Some(2048), ..Reported::default() };
        assert_eq!(nvidia.reported(32), expected);

        let mut arm = Answers::default();
        (arm.arm_cores.shader_core_count, arm.arm_cores.shader_warps_per_core) = (7, 128);
        arm.arm_rates.fma_rate = 128;
        let expected =
            Reported { cores: Some(7), invocations_per_core: Some(2048), multiply_adds_per_clock: Some(128) };
        assert_eq!(arm.reported(16), expected);
    }

    #[test]
    fn active_compute_units_come_before_those_of_the_chip() {
        // RADV on a Radeon RX 7900 XT, whose chip has 96 compute units of which 84 are active.
        let chip = vk::PhysicalDeviceShaderCorePropertiesAMD {
            shader_engine_count: 6,
            shader_arrays_per_engine_count: 2,
            compute_units_per_shader_array: 8,
            simd_per_compute_unit: 2,
            wavefronts_per_simd: 16,
            wavefront_size: 64,
            ..Default::default()
        };
        let mut amd = Answers { amd: chip, ..Answers::default() };
        let mut expected =
            Reported { cores: Some(96), invocations_per_core: Some(2048), ..Reported::default() };
        assert_eq!(amd.reported(64), expected);
        amd.amd2.active_compute_unit_count = 84;
        expected.cores = Some(84);
        assert_eq!(amd.reported(64), expected);
        amd.amd.wavefront_size = u32::MAX;
        assert_eq!(amd.reported(64).invocations_per_core, None);
    }
}
