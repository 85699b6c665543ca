//! What a device can do: asks Vulkan, and turns a (possibly reduced) answer into enabled features.
//!
//! One chain of feature structures serves both directions: filled by the driver it becomes
//! [`DeviceCaps`], filled from [`DeviceCaps`] it is what the device is created with. A structure is chained
//! only where the device knows it, through its version or an extension.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_void};

use ash::{ext, khr, vk};
use tallow_ir::caps::{ApiVersion, DeviceCaps, DeviceType, MatrixElement, MatrixShape};

use super::error::vulkan;
use super::hardware;
use super::instance::Instance;
use super::queue_family::ComputeQueue;
use super::workgroup_matrices;
use crate::error::Result;

mod properties;

use properties::Properties;

/// What can be asked of any device, however old.
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) device_type: DeviceType,
    pub(super) api_version: ApiVersion,
}

/// What a Vulkan 1.2 device answered.
pub(super) struct Queried {
    /// Everything that the device offers, before kill switches.
    pub(super) caps: DeviceCaps,
    /// Where work goes; `None`: the device does not compute.
    pub(super) queue: Option<ComputeQueue>,
    /// Identifies pipeline caches that this driver can read.
    pub(super) cache_uuid: [u8; vk::UUID_SIZE],
    /// Nanoseconds per timestamp tick.
    pub(super) timestamp_period: f32,
    /// Which optional structures the device knows.
    known: Known,
    /// Subgroup operations on 8-, 16- and 64-bit types.
    subgroup_extended_types: bool,
    /// Workgroups can be required to consist of full subgroups.
    full_subgroups: bool,
    /// Pipelines can say which accesses are checked against the bounds of their buffers.
    pipeline_robustness: bool,
}

/// Optional structures and extensions that the device knows.
#[derive(Clone, Copy, Default)]
struct Known {
    vulkan_1_3: bool,
    sync2: bool,
    subgroup_size: bool,
    int_dot: bool,
    atomic_float: bool,
    coopmat: bool,
    coopmat2: bool,
    bf16: bool,
    pipeline_robustness: bool,
    portability_subset: bool,
}

/// The features and extensions that a device is created with.
pub(super) struct Enabled {
    chain: FeatureChain,
    known: Known,
    pub(super) extensions: Vec<&'static CStr>,
    /// Pipelines that ask for a subgroup size also ask for full subgroups.
    pub(super) full_subgroups: bool,
    /// Pipelines say that no access is checked against the bounds of its buffer: kernels are made so that none is beyond
    /// them. Where nothing is said NVIDIA's driver checks each, though the device was created without such checks (H200:
    /// attention of one query 6.8 us and 6.0, a batched matmul 138 and 121).
    pub(super) pipeline_robustness: bool,
    /// The driver says what it made of each pipeline, if it is asked to keep that.
    pub(super) statistics: bool,
}

/// Asks for name, type and version.
pub(super) fn identity(instance: &Instance, physical: vk::PhysicalDevice) -> Identity {
    // SAFETY: the handle comes from this live instance.
    let properties = unsafe { instance.raw.get_physical_device_properties(physical) };
    Identity {
        name: text(properties.device_name_as_c_str().ok()),
        device_type: device_type(properties.device_type),
        api_version: api_version(properties.api_version),
    }
}

fn text(name: Option<&CStr>) -> String {
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn api_version(packed: u32) -> ApiVersion {
    ApiVersion {
        major: vk::api_version_major(packed),
        minor: vk::api_version_minor(packed),
        patch: vk::api_version_patch(packed),
    }
}

fn device_type(kind: vk::PhysicalDeviceType) -> DeviceType {
    match kind {
        vk::PhysicalDeviceType::DISCRETE_GPU => DeviceType::Discrete,
        vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceType::Integrated,
        vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceType::Virtual,
        vk::PhysicalDeviceType::CPU => DeviceType::Cpu,
        // Vulkan's enumerations are open: a new kind is "other".
        _ => DeviceType::Other,
    }
}

/// Asks a device of Vulkan 1.2 or later for everything in [`DeviceCaps`].
pub(super) fn query(
    instance: &Instance,
    physical: vk::PhysicalDevice,
    identity: Identity,
) -> Result<Queried> {
    let extensions = device_extensions(instance, physical)?;
    let known = Known::new(instance, identity.api_version, &extensions);
    let mut features = FeatureChain::default();
    let mut head = features.link(known);
    // SAFETY: the chain holds structures that the device knows, each once, live during the call.
    unsafe { instance.raw.get_physical_device_features2(physical, &mut head) };
    features.core = head.features;
    let mut properties = Properties::default();
    properties.query(instance, physical, known);

    let queue = ComputeQueue::of(instance, physical, properties.v12.driver_id);
    let device_type = identity.device_type;
    let mut caps = properties.caps(identity, &features);
    caps.unified_memory = shares_memory(instance, physical, device_type);
    if queue.is_none_or(|queue| queue.timestamp_bits == 0) {
        caps.timestamp_period_ps = 0;
    }
    if properties.matrices(&features) {
        let with_bf16 = caps.bf16 && features.bf16.cooperative_matrix == vk::TRUE;
        caps.cooperative_matrix = matrix_shapes(instance, physical, with_bf16)?;
    }
    caps.cooperative_matrix2 = !caps.cooperative_matrix.is_empty()
        && features.coopmat2.all()
        && caps.f16
        && caps.storage_16bit
        && caps.buffer_device_address
        && workgroup_matrices::supported(instance, physical);
    caps.set_hardware(&hardware::reported(instance, physical, &extensions, caps.subgroup_size));
    Ok(Queried {
        caps,
        queue,
        cache_uuid: properties.core.pipeline_cache_uuid,
        timestamp_period: properties.core.limits.timestamp_period,
        known,
        subgroup_extended_types: features.v12.shader_subgroup_extended_types == vk::TRUE,
        full_subgroups: features.subgroup_size.compute_full_subgroups == vk::TRUE,
        pipeline_robustness: features.robustness.pipeline_robustness == vk::TRUE,
    })
}

/// The features and extensions for a device of these capabilities, which kill switches may have reduced.
pub(super) fn enable(queried: &Queried, caps: &DeviceCaps) -> Enabled {
    let flag = vk::Bool32::from;
    let subgroups = caps.subgroup_arithmetic || caps.subgroup_shuffle;
    let full_subgroups = caps.subgroup_size_control && queried.full_subgroups;
    let matrices = !caps.cooperative_matrix.is_empty();
    let has_bf16_matrix = caps.cooperative_matrix.iter().any(|shape| shape.a == MatrixElement::Bf16);
    let chain = FeatureChain {
        core: vk::PhysicalDeviceFeatures::default()
            .shader_int16(caps.int16)
            .shader_int64(caps.int64)
            .shader_float64(caps.float64),
        v11: vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(caps.storage_16bit),
        v12: vk::PhysicalDeviceVulkan12Features::default()
            .timeline_semaphore(true)
            .shader_float16(caps.f16)
            .shader_int8(caps.int8)
            .shader_buffer_int64_atomics(caps.atomic_int64)
            .storage_buffer8_bit_access(caps.storage_8bit)
            .buffer_device_address(caps.buffer_device_address)
            .vulkan_memory_model(caps.memory_model)
            .vulkan_memory_model_device_scope(caps.memory_model)
            .shader_subgroup_extended_types(subgroups && queried.subgroup_extended_types),
        sync2: vk::PhysicalDeviceSynchronization2Features::default().synchronization2(caps.synchronization2),
        subgroup_size: vk::PhysicalDeviceSubgroupSizeControlFeatures::default()
            .subgroup_size_control(caps.subgroup_size_control)
            .compute_full_subgroups(full_subgroups),
        int_dot: vk::PhysicalDeviceShaderIntegerDotProductFeatures::default()
            .shader_integer_dot_product(caps.int_dot),
        atomic_float: vk::PhysicalDeviceShaderAtomicFloatFeaturesEXT::default()
            .shader_buffer_float32_atomics(caps.atomic_float_add)
            .shader_buffer_float32_atomic_add(caps.atomic_float_add)
            .shader_shared_float32_atomics(caps.atomic_float_add_shared)
            .shader_shared_float32_atomic_add(caps.atomic_float_add_shared),
        coopmat: vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(matrices),
        coopmat2: CooperativeMatrix2Features {
            features: [flag(caps.cooperative_matrix2); 7],
            ..CooperativeMatrix2Features::default()
        },
        bf16: Bfloat16Features {
            type_supported: flag(caps.bf16),
            cooperative_matrix: flag(caps.bf16 && has_bf16_matrix),
            ..Bfloat16Features::default()
        },
        robustness: vk::PhysicalDevicePipelineRobustnessFeaturesEXT::default()
            .pipeline_robustness(queried.pipeline_robustness),
    };
    // A structure that asks for nothing is left out, and so is its extension.
    let known = Known {
        sync2: caps.synchronization2,
        subgroup_size: caps.subgroup_size_control,
        int_dot: caps.int_dot,
        atomic_float: caps.atomic_float_add || caps.atomic_float_add_shared,
        coopmat: matrices,
        coopmat2: caps.cooperative_matrix2,
        bf16: caps.bf16,
        pipeline_robustness: queried.pipeline_robustness,
        ..queried.known
    };
    Enabled {
        chain,
        known,
        extensions: known.extensions(),
        full_subgroups,
        pipeline_robustness: queried.pipeline_robustness,
        statistics: false,
    }
}

impl Enabled {
    /// Enables the statistics of pipelines where the device has them. They cost time, so that only devices that compile and
    /// run nothing ask for them.
    pub(super) fn with_statistics(
        mut self,
        instance: &Instance,
        physical: vk::PhysicalDevice,
    ) -> Result<Enabled> {
        let name = khr::pipeline_executable_properties::NAME;
        if device_extensions(instance, physical)?.contains(name) {
            let mut features = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default();
            let mut head = vk::PhysicalDeviceFeatures2::default().push_next(&mut features);
            // SAFETY: the device knows the structure, as it offers the extension; both live until the call returns.
            unsafe { instance.raw.get_physical_device_features2(physical, &mut head) };
            self.statistics = features.pipeline_executable_info == vk::TRUE;
        }
        if self.statistics {
            self.extensions.push(name);
        }
        Ok(self)
    }

    /// The head of the feature chain for `VkDeviceCreateInfo`.
    pub(super) fn link(&mut self) -> vk::PhysicalDeviceFeatures2<'_> {
        self.chain.link(self.known)
    }

    /// Whether the second generation of barriers comes from the core version or from the extension.
    pub(super) fn sync2_is_core(&self) -> bool {
        self.known.vulkan_1_3
    }
}

impl Known {
    fn new(instance: &Instance, version: ApiVersion, extensions: &BTreeSet<CString>) -> Known {
        let has = |name: &CStr| extensions.contains(name);
        let core = (version.major, version.minor) >= (1, 3);
        // Under an older validation layer these go unused: it would report them, and cannot check them.
        let coopmat = has(khr::cooperative_matrix::NAME) && instance.layer_knows(WITH_COOPERATIVE_MATRIX);
        let coopmat2 =
            coopmat && has(COOPERATIVE_MATRIX_2) && instance.layer_knows(WITH_COOPERATIVE_MATRIX_2);
        let bf16 = has(SHADER_BFLOAT16) && instance.layer_knows(WITH_BFLOAT16);
        Known {
            vulkan_1_3: core,
            sync2: core || has(khr::synchronization2::NAME),
            subgroup_size: core || has(ext::subgroup_size_control::NAME),
            int_dot: core || has(khr::shader_integer_dot_product::NAME),
            atomic_float: has(ext::shader_atomic_float::NAME),
            coopmat,
            coopmat2,
            bf16,
            pipeline_robustness: has(ext::pipeline_robustness::NAME),
            portability_subset: has(khr::portability_subset::NAME),
        }
    }

    /// The extensions to enable; what became core in Vulkan 1.3 needs none there.
    fn extensions(self) -> Vec<&'static CStr> {
        let promoted = !self.vulkan_1_3;
        [
            (promoted && self.sync2, khr::synchronization2::NAME),
            (promoted && self.subgroup_size, ext::subgroup_size_control::NAME),
            (promoted && self.int_dot, khr::shader_integer_dot_product::NAME),
            (self.atomic_float, ext::shader_atomic_float::NAME),
            (self.coopmat, khr::cooperative_matrix::NAME),
            (self.coopmat2, COOPERATIVE_MATRIX_2),
            (self.bf16, SHADER_BFLOAT16),
            (self.pipeline_robustness, ext::pipeline_robustness::NAME),
            // The specification wants it enabled wherever it is offered.
            (self.portability_subset, khr::portability_subset::NAME),
        ]
        .into_iter()
        .filter_map(|(wanted, name)| wanted.then_some(name))
        .collect()
    }
}

fn device_extensions(instance: &Instance, physical: vk::PhysicalDevice) -> Result<BTreeSet<CString>> {
    // SAFETY: the handle comes from this live instance.
    let properties = unsafe { instance.raw.enumerate_device_extension_properties(physical) }
        .map_err(|code| vulkan("vkEnumerateDeviceExtensionProperties", code))?;
    Ok(properties
        .iter()
        .filter_map(|property| property.extension_name_as_c_str().ok().map(CStr::to_owned))
        .collect())
}

/// Size of the largest heap of the device's own memory, in bytes. Others may be windows of the same memory.
pub(super) fn memory_bytes(instance: &Instance, physical: vk::PhysicalDevice) -> u64 {
    // SAFETY: the handle comes from this live instance.
    let memory = unsafe { instance.raw.get_physical_device_memory_properties(physical) };
    let heaps = memory.memory_heaps_as_slice().iter();
    let own = heaps.filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    own.map(|heap| heap.size).max().unwrap_or(0)
}

/// What the driver lets this process have of the largest heap of the device's own memory, in bytes; `None` where it does
/// not say.
pub(super) fn budget(instance: &Instance, physical: vk::PhysicalDevice) -> Option<u64> {
    // SAFETY: the handle comes from this live instance.
    let extensions = unsafe { instance.raw.enumerate_device_extension_properties(physical) }.ok()?;
    let is_there = |name: &vk::ExtensionProperties| {
        name.extension_name_as_c_str().is_ok_and(|name| name == vk::EXT_MEMORY_BUDGET_NAME)
    };
    if !extensions.iter().any(is_there) {
        return None;
    }
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
    // SAFETY: as above; the device has the extension whose structure is chained, and both live until the call returns.
    unsafe { instance.raw.get_physical_device_memory_properties2(physical, &mut properties) };
    let heaps = properties.memory_properties;
    let own = |(heap, _): &(&vk::MemoryHeap, &u64)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
    let heaps = heaps.memory_heaps_as_slice().iter().zip(&budget.heap_budget).filter(own);
    heaps.max_by_key(|(heap, _)| heap.size).map(|(_, budget)| *budget)
}

/// Host and device share their memory: the device is no card, and its memory can be mapped.
fn shares_memory(instance: &Instance, physical: vk::PhysicalDevice, kind: DeviceType) -> bool {
    // SAFETY: the handle comes from this live instance.
    let memory = unsafe { instance.raw.get_physical_device_memory_properties(physical) };
    let mapped = vk::MemoryPropertyFlags::DEVICE_LOCAL
        | vk::MemoryPropertyFlags::HOST_VISIBLE
        | vk::MemoryPropertyFlags::HOST_COHERENT;
    let on_board = match kind {
        DeviceType::Integrated | DeviceType::Cpu => false,
        DeviceType::Discrete | DeviceType::Virtual | DeviceType::Other => true,
    };
    !on_board && memory.memory_types_as_slice().iter().any(|ty| ty.property_flags.contains(mapped))
}

fn matrix_shapes(
    instance: &Instance,
    physical: vk::PhysicalDevice,
    with_bf16: bool,
) -> Result<Vec<MatrixShape>> {
    let functions = khr::cooperative_matrix::Instance::new(instance.entry(), &instance.raw);
    // SAFETY: the device offers the extension, so the function exists.
    let found = unsafe { functions.get_physical_device_cooperative_matrix_properties(physical) }
        .map_err(|code| vulkan("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", code))?;
    let mut shapes: Vec<MatrixShape> = found
        .iter()
        .filter(|shape| {
            shape.scope == vk::ScopeKHR::SUBGROUP
                && shape.saturating_accumulation == vk::FALSE
                && shape.c_type == shape.result_type
        })
        .filter_map(|shape| {
            Some(MatrixShape {
                m: shape.m_size,
                n: shape.n_size,
                k: shape.k_size,
                a: matrix_element(shape.a_type)?,
                b: matrix_element(shape.b_type)?,
                c: matrix_element(shape.c_type)?,
            })
        })
        .filter(|shape| with_bf16 || ![shape.a, shape.b, shape.c].contains(&MatrixElement::Bf16))
        .collect();
    shapes.sort();
    shapes.dedup();
    Ok(shapes)
}

fn matrix_element(kind: vk::ComponentTypeKHR) -> Option<MatrixElement> {
    match kind {
        vk::ComponentTypeKHR::FLOAT16 => Some(MatrixElement::F16),
        vk::ComponentTypeKHR::FLOAT32 => Some(MatrixElement::F32),
        vk::ComponentTypeKHR::FLOAT64 => Some(MatrixElement::F64),
        vk::ComponentTypeKHR::SINT8 => Some(MatrixElement::I8),
        vk::ComponentTypeKHR::UINT8 => Some(MatrixElement::U8),
        vk::ComponentTypeKHR::SINT32 => Some(MatrixElement::I32),
        vk::ComponentTypeKHR::UINT32 => Some(MatrixElement::U32),
        COMPONENT_BFLOAT16 => Some(MatrixElement::Bf16),
        // Types that no kernel uses (8-bit floats, 16- and 64-bit integers).
        _ => None,
    }
}

/// Name of an extension that ash does not know yet, as are the next three values (Vulkan registry).
const COOPERATIVE_MATRIX_2: &CStr = c"VK_NV_cooperative_matrix2";
const SHADER_BFLOAT16: &CStr = c"VK_KHR_shader_bfloat16";
const COMPONENT_BFLOAT16: vk::ComponentTypeKHR = vk::ComponentTypeKHR::from_raw(1_000_141_000);
const COOPERATIVE_MATRIX_2_FEATURES: vk::StructureType = vk::StructureType::from_raw(1_000_593_000);
const SHADER_BFLOAT16_FEATURES: vk::StructureType = vk::StructureType::from_raw(1_000_141_000);

/// Versions of Vulkan's headers (and layers) that know these extensions.
const WITH_COOPERATIVE_MATRIX: u32 = vk::make_api_version(0, 1, 3, 255);
const WITH_COOPERATIVE_MATRIX_2: u32 = vk::make_api_version(0, 1, 3, 300);
const WITH_BFLOAT16: u32 = vk::make_api_version(0, 1, 4, 311);

/// `VkPhysicalDeviceCooperativeMatrix2FeaturesNV`: workgroup scope, flexible dimensions, reductions,
/// conversions, per-element operations, tensor addressing, block loads.
#[repr(C)]
struct CooperativeMatrix2Features {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    features: [vk::Bool32; 7],
}

/// `VkPhysicalDeviceShaderBfloat16FeaturesKHR`.
#[repr(C)]
struct Bfloat16Features {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    type_supported: vk::Bool32,
    dot_product: vk::Bool32,
    cooperative_matrix: vk::Bool32,
}

impl CooperativeMatrix2Features {
    /// Kernels use all of it or none.
    fn all(&self) -> bool {
        self.features.iter().all(|&feature| feature == vk::TRUE)
    }
}

impl Default for CooperativeMatrix2Features {
    fn default() -> Self {
        Self { s_type: COOPERATIVE_MATRIX_2_FEATURES, p_next: std::ptr::null_mut(), features: [0; 7] }
    }
}

impl Default for Bfloat16Features {
    fn default() -> Self {
        Self {
            s_type: SHADER_BFLOAT16_FEATURES,
            p_next: std::ptr::null_mut(),
            type_supported: 0,
            dot_product: 0,
            cooperative_matrix: 0,
        }
    }
}

// SAFETY: both begin with a structure type and a next pointer, have the registry's layout, and extend
// VkPhysicalDeviceFeatures2 according to it.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for CooperativeMatrix2Features {}
// SAFETY: as above.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Bfloat16Features {}

#[derive(Default)]
struct FeatureChain {
    core: vk::PhysicalDeviceFeatures,
    v11: vk::PhysicalDeviceVulkan11Features<'static>,
    v12: vk::PhysicalDeviceVulkan12Features<'static>,
    sync2: vk::PhysicalDeviceSynchronization2Features<'static>,
    subgroup_size: vk::PhysicalDeviceSubgroupSizeControlFeatures<'static>,
    int_dot: vk::PhysicalDeviceShaderIntegerDotProductFeatures<'static>,
    atomic_float: vk::PhysicalDeviceShaderAtomicFloatFeaturesEXT<'static>,
    coopmat: vk::PhysicalDeviceCooperativeMatrixFeaturesKHR<'static>,
    coopmat2: CooperativeMatrix2Features,
    bf16: Bfloat16Features,
    robustness: vk::PhysicalDevicePipelineRobustnessFeaturesEXT<'static>,
}

impl FeatureChain {
    /// Chains the structures that are known; to be called once on a chain, or the links would form a ring.
    fn link(&mut self, known: Known) -> vk::PhysicalDeviceFeatures2<'_> {
        let mut head = vk::PhysicalDeviceFeatures2::default()
            .features(self.core)
            .push_next(&mut self.v11)
            .push_next(&mut self.v12);
        if known.sync2 {
            head = head.push_next(&mut self.sync2);
        }
        if known.subgroup_size {
            head = head.push_next(&mut self.subgroup_size);
        }
        if known.int_dot {
            head = head.push_next(&mut self.int_dot);
        }
        if known.atomic_float {
            head = head.push_next(&mut self.atomic_float);
        }
        if known.coopmat {
            head = head.push_next(&mut self.coopmat);
        }
        if known.coopmat2 {
            head = head.push_next(&mut self.coopmat2);
        }
        if known.bf16 {
            head = head.push_next(&mut self.bf16);
        }
        if known.pipeline_robustness {
            head = head.push_next(&mut self.robustness);
        }
        head
    }
}
