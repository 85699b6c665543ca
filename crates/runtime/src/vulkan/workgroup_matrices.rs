//! Workgroup-scope cooperative matrices: which shapes a device supports. Queries
//! `vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV` and
//! `VkPhysicalDeviceCooperativeMatrix2PropertiesNV` of `VK_NV_cooperative_matrix2`, which ash does not know yet.

use std::ffi::c_void;

use ash::vk;
use tallow_ir::caps::{COOPMAT2_GRANULARITY, COOPMAT2_MAX_EXTENT, COOPMAT2_WORKGROUP};

use super::error::vulkan;
use super::instance::Instance;
use crate::error::Result;

/// `VkCooperativeMatrixFlexibleDimensionsPropertiesNV`: extents are multiples of the granularities.
#[repr(C)]
#[derive(Clone, Copy)]
struct FlexibleDimensions {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    m_granularity: u32,
    n_granularity: u32,
    k_granularity: u32,
    a_type: vk::ComponentTypeKHR,
    b_type: vk::ComponentTypeKHR,
    c_type: vk::ComponentTypeKHR,
    result_type: vk::ComponentTypeKHR,
    saturating_accumulation: vk::Bool32,
    scope: vk::ScopeKHR,
    workgroup_invocations: u32,
}

/// `VkPhysicalDeviceCooperativeMatrix2PropertiesNV`.
#[repr(C)]
struct Limits {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    max_workgroup_size: u32,
    max_dimension: u32,
    reserved_shared_memory: u32,
}

/// Values from the Vulkan registry.
const FLEXIBLE_DIMENSIONS: vk::StructureType = vk::StructureType::from_raw(1_000_593_001);
const LIMITS: vk::StructureType = vk::StructureType::from_raw(1_000_593_002);

// SAFETY: it begins with a structure type and a next pointer, has the registry's layout, and extends
// VkPhysicalDeviceProperties2 according to it.
unsafe impl vk::ExtendsPhysicalDeviceProperties2 for Limits {}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            s_type: LIMITS,
            p_next: std::ptr::null_mut(),
            max_workgroup_size: 0,
            max_dimension: 0,
            reserved_shared_memory: 0,
        }
    }
}

impl Limits {
    /// Whether the matrices in our kernels are within the limits. These kernels use no shared memory, so what the
    /// driver reserves of it does not matter.
    fn serve(&self) -> bool {
        self.max_workgroup_size >= COOPMAT2_WORKGROUP && self.max_dimension >= COOPMAT2_MAX_EXTENT
    }
}

impl Default for FlexibleDimensions {
    fn default() -> Self {
        FlexibleDimensions {
            s_type: FLEXIBLE_DIMENSIONS,
            p_next: std::ptr::null_mut(),
            m_granularity: 0,
            n_granularity: 0,
            k_granularity: 0,
            a_type: vk::ComponentTypeKHR::default(),
            b_type: vk::ComponentTypeKHR::default(),
            c_type: vk::ComponentTypeKHR::default(),
            result_type: vk::ComponentTypeKHR::default(),
            saturating_accumulation: vk::FALSE,
            scope: vk::ScopeKHR::default(),
            workgroup_invocations: 0,
        }
    }
}

impl FlexibleDimensions {
    /// Whether this entry allows our matrices: f16 times f16 with f32 accumulators, see [`COOPMAT2_GRANULARITY`].
    fn serves(&self) -> bool {
        let (f16, f32) = (vk::ComponentTypeKHR::FLOAT16, vk::ComponentTypeKHR::FLOAT32);
        let divides = |granularity: u32| granularity > 0 && COOPMAT2_GRANULARITY.is_multiple_of(granularity);
        [self.a_type, self.b_type, self.c_type, self.result_type] == [f16, f16, f32, f32]
            && self.saturating_accumulation == vk::FALSE
            && self.scope == vk::ScopeKHR::WORKGROUP
            && self.workgroup_invocations == COOPMAT2_WORKGROUP
            && [self.m_granularity, self.n_granularity, self.k_granularity].into_iter().all(divides)
    }
}

type Query = unsafe extern "system" fn(vk::PhysicalDevice, *mut u32, *mut FlexibleDimensions) -> vk::Result;

/// Whether a device with the extension supports the workgroup-scope matrices of our kernels; false if the query fails.
pub(super) fn supported(instance: &Instance, physical: vk::PhysicalDevice) -> bool {
    let mut limits = Limits::default();
    let mut head = vk::PhysicalDeviceProperties2::default().push_next(&mut limits);
    // SAFETY: the device offers the extension, so it knows the structure, which is live during the call.
    unsafe { instance.raw.get_physical_device_properties2(physical, &mut head) };
    if !limits.serve() {
        return false;
    }
    let all = dimensions(instance, physical);
    if let Err(error) = &all {
        tracing::warn!("a device does not tell of its workgroups' matrices: {error}");
    }
    all.is_ok_and(|all| all.iter().any(FlexibleDimensions::serves))
}

/// All workgroup-scope matrix types of the device.
fn dimensions(instance: &Instance, physical: vk::PhysicalDevice) -> Result<Vec<FlexibleDimensions>> {
    let name = c"vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV";
    // SAFETY: the instance is alive, and the name ends in NUL.
    let found = unsafe { instance.entry().get_instance_proc_addr(instance.raw.handle(), name.as_ptr()) };
    let Some(found) = found else { return Ok(vec![]) };
    // SAFETY: a function of this name has this type (Vulkan registry).
    let query = unsafe { std::mem::transmute::<unsafe extern "system" fn(), Query>(found) };
    let fails =
        |code: vk::Result| vulkan("vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV", code);
    let mut count = 0;
    // SAFETY: the device offers the extension; without memory to write to, the number of entries is asked for.
    unsafe { query(physical, &mut count, std::ptr::null_mut()) }.result().map_err(fails)?;
    let mut all = vec![FlexibleDimensions::default(); count as usize];
    // SAFETY: there is room for as many entries, each with its type set.
    unsafe { query(physical, &mut count, all.as_mut_ptr()) }.result().map_err(fails)?;
    all.truncate(count as usize);
    Ok(all)
}
