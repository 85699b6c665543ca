//! Named devices: the profiles that plans, fusions and GLSL snapshots are taken for.
//!
//! `minimum` holds the least values that the Vulkan 1.2 specification allows ("Required Limits").
//! `lavapipe` and `h200` were read from the devices (lavapipe as in Mesa 22.3; driver 580 on the H200).
//! The others follow the public limits of one typical device each (drivers RADV, ANV, Arm, Qualcomm) and
//! round down where driver versions differ; they exist to exercise decisions, not to describe a product.
//! Cores and rates come from `hardware.rs`, which names the source of each. The specification has no such limits, so
//! `minimum` has what the runtime estimates for a device of which nothing is known.

use super::hardware::{ADRENO7, H200, Hardware, RDNA3, SOFTWARE, UNKNOWN, VALHALL, XE_HPG};
use super::{ApiVersion, DeviceCaps, DeviceType, MatrixElement, MatrixShape};
use MatrixElement::{Bf16, F16, F32, I8, I32, U8, U32};

/// Name and constructor of a profile.
pub type NamedProfile = (&'static str, fn() -> DeviceCaps);

/// Every profile.
pub const PROFILES: [NamedProfile; 7] = [
    ("minimum", minimum),
    ("lavapipe", lavapipe),
    ("h200", h200),
    ("rdna3", rdna3),
    ("intel", intel),
    ("mali", mali),
    ("adreno", adreno),
];

/// The profile of this name, if there is one.
pub fn profile(name: &str) -> Option<DeviceCaps> {
    PROFILES.iter().find(|(known, _)| *known == name).map(|(_, make)| make())
}

const KIB: u32 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const VULKAN_1_2: ApiVersion = ApiVersion { major: 1, minor: 2, patch: 0 };
const VULKAN_1_3: ApiVersion = ApiVersion { major: 1, minor: 3, patch: 0 };

/// Vulkan 1.2 with a timeline semaphore and nothing else.
pub fn minimum() -> DeviceCaps {
    DeviceCaps {
        name: "minimum".to_string(),
        vendor_id: 0,
        device_id: 0,
        driver: "minimum".to_string(),
        device_type: DeviceType::Other,
        api_version: VULKAN_1_2,
        subgroup_size: 1,
        subgroup_size_min: 1,
        subgroup_size_max: 1,
        subgroup_size_control: false,
        max_workgroup_subgroups: u32::MAX,
        subgroup_arithmetic: false,
        subgroup_shuffle: false,
        f16: false,
        int8: false,
        int16: false,
        int64: false,
        float64: false,
        storage_16bit: false,
        storage_8bit: false,
        int_dot: false,
        int_dot_accelerated: false,
        bf16: false,
        atomic_float_add: false,
        atomic_float_add_shared: false,
        atomic_int64: false,
        float_controls: false,
        cooperative_matrix: Vec::new(),
        cooperative_matrix2: false,
        coopmat_fragment_layout: false,
        memory_model: false,
        shared_memory_bytes: 16 * KIB,
        max_workgroup_invocations: 128,
        max_workgroup_size: [128, 128, 64],
        max_workgroup_count: [65535; 3],
        push_constant_bytes: 128,
        max_storage_buffer_range: 128 * MIB,
        max_storage_buffers: 4,
        storage_offset_alignment: 256,
        max_allocation_bytes: GIB,
        buffer_device_address: false,
        timeline_semaphore: true,
        synchronization2: false,
        unified_memory: false,
        timestamp_period_ps: 0,
        hardware: UNKNOWN,
    }
}

/// What every profile but `minimum` has: the optional features of an ordinary desktop driver.
fn common(name: &str, driver: &str, device_type: DeviceType, hardware: Hardware) -> DeviceCaps {
    DeviceCaps {
        hardware,
        name: name.to_string(),
        driver: driver.to_string(),
        device_type,
        api_version: VULKAN_1_3,
        subgroup_size_control: true,
        // Mesa: unlimited on RADV; NVIDIA reports 2097152.
        max_workgroup_subgroups: u32::MAX,
        subgroup_arithmetic: true,
        subgroup_shuffle: true,
        f16: true,
        int8: true,
        int16: true,
        int64: true,
        storage_16bit: true,
        storage_8bit: true,
        int_dot: true,
        int_dot_accelerated: true,
        memory_model: true,
        max_workgroup_invocations: 1024,
        max_workgroup_size: [1024, 1024, 64],
        buffer_device_address: true,
        synchronization2: true,
        ..minimum()
    }
}

/// Mesa's software device, as Debian 12 ships it: 8 lanes, one kind of memory.
pub fn lavapipe() -> DeviceCaps {
    DeviceCaps {
        vendor_id: 0x10005,
        subgroup_size: 8,
        subgroup_size_min: 8,
        subgroup_size_max: 8,
        max_workgroup_subgroups: 32,
        float64: true,
        int_dot_accelerated: false,
        // `VkPhysicalDeviceShaderAtomicFloatFeaturesEXT` as reported (`lvp_device.c`).
        atomic_float_add: true,
        atomic_float_add_shared: true,
        atomic_int64: true,
        float_controls: true,
        shared_memory_bytes: 32 * KIB,
        max_workgroup_size: [1024; 3],
        max_storage_buffers: 32,
        storage_offset_alignment: 16,
        max_allocation_bytes: 2 * GIB,
        unified_memory: true,
        timestamp_period_ps: 1000,
        ..common("llvmpipe", "llvmpipe Mesa 22.3.6", DeviceType::Cpu, SOFTWARE)
    }
}

/// NVIDIA H200: cooperative matrices of both kinds, 48 KiB of shared memory.
pub fn h200() -> DeviceCaps {
    let mut shapes = Vec::new();
    for c in [F16, F32] {
        for (m, n, k) in [(16, 16, 16), (16, 8, 16), (16, 8, 8)] {
            shapes.push(MatrixShape { m, n, k, a: F16, b: F16, c });
        }
    }
    for (a, c) in [(U8, U32), (I8, I32)] {
        for (m, n, k) in [(16, 16, 32), (16, 8, 32)] {
            shapes.push(MatrixShape { m, n, k, a, b: a, c });
        }
    }
    shapes.push(MatrixShape { m: 16, n: 16, k: 16, a: Bf16, b: Bf16, c: F32 });
    DeviceCaps {
        vendor_id: 0x10de,
        device_id: 0x2335,
        api_version: ApiVersion { major: 1, minor: 4, patch: 312 },
        subgroup_size: 32,
        subgroup_size_min: 32,
        subgroup_size_max: 32,
        float64: true,
        bf16: true,
        // NVIDIA's driver reports both since Maxwell.
        atomic_float_add: true,
        atomic_float_add_shared: true,
        atomic_int64: true,
        float_controls: true,
        cooperative_matrix: shapes,
        cooperative_matrix2: true,
        coopmat_fragment_layout: true,
        shared_memory_bytes: 48 * KIB,
        max_workgroup_count: [i32::MAX as u32, 65535, 65535],
        push_constant_bytes: 256,
        max_storage_buffer_range: 4 * GIB - 1,
        max_storage_buffers: 1 << 20,
        storage_offset_alignment: 16,
        max_allocation_bytes: 4 * GIB - 2 * MIB,
        timestamp_period_ps: 1000,
        ..common("NVIDIA H200", "NVIDIA 580.159", DeviceType::Discrete, H200)
    }
}

/// AMD RDNA 3 under RADV (Radeon RX 7900 XTX): subgroups of 32 or 64, 64 KiB of shared memory.
///
/// Its matrix instructions (WMMA) exist for both sizes, and RADV reports 16x16x16 whatever size a pipeline requires
/// (AMD's RDNA 3 ISA document; Mesa's `radv_nir_lower_cooperative_matrix.c`). RADV has bf16 from GFX12 (RDNA 4) on, as
/// GFX11 has "precision issues" (`radv_bfloat16_enabled` in `radv_physical_device.c`).
pub fn rdna3() -> DeviceCaps {
    let cube = |a, c| MatrixShape { m: 16, n: 16, k: 16, a, b: a, c };
    DeviceCaps {
        vendor_id: 0x1002,
        device_id: 0x744c,
        subgroup_size: 64,
        subgroup_size_min: 32,
        subgroup_size_max: 64,
        float64: true,
        // `radv_physical_device.c`: in buffers from GFX11 on, in shared memory from GFX8 on.
        atomic_float_add: true,
        atomic_float_add_shared: true,
        atomic_int64: true,
        float_controls: true,
        cooperative_matrix: vec![cube(F16, F16), cube(F16, F32), cube(U8, U32), cube(I8, I32)],
        shared_memory_bytes: 64 * KIB,
        max_workgroup_size: [1024; 3],
        max_workgroup_count: [u32::MAX, 65535, 65535],
        push_constant_bytes: 256,
        max_storage_buffer_range: 4 * GIB - 1,
        max_storage_buffers: 1 << 20,
        storage_offset_alignment: 16,
        max_allocation_bytes: 4 * GIB - 4,
        timestamp_period_ps: 10_000,
        ..common("AMD Radeon RX 7900 XTX (RADV NAVI31)", "radv", DeviceType::Discrete, RDNA3)
    }
}

/// Intel Arc under ANV (A770): subgroups of 8 to 32, narrow matrices, no 64-bit floats.
///
/// Matrices are 8x8x16 for f16 and 8x8x32 for 8-bit integers (Mesa's `intel_device_info.c`; 8x16 on Xe2, whose
/// subgroups have 16 or 32 lanes). ANV compiles them for the subgroup size that the pipeline requires, 8, 16 or 32, and
/// for 32 where it requires none (`anv_fixup_subgroup_size` in `anv_pipeline.c`). Newer versions report
/// f16 sums, too.
pub fn intel() -> DeviceCaps {
    let shape = |k, a, c| MatrixShape { m: 8, n: 8, k, a, b: a, c };
    DeviceCaps {
        vendor_id: 0x8086,
        device_id: 0x56a0,
        subgroup_size: 32,
        subgroup_size_min: 8,
        subgroup_size_max: 32,
        // Mesa's ANV reports the threads of a workgroup, 64 on DG2 (`max_cs_workgroup_threads`).
        max_workgroup_subgroups: 64,
        // `anv_physical_device.c`: in buffers where `has_lsc` (DG2 and later), in shared memory on no device.
        atomic_float_add: true,
        atomic_int64: true,
        float_controls: true,
        cooperative_matrix: vec![shape(16, F16, F32), shape(32, U8, U32), shape(32, I8, I32)],
        shared_memory_bytes: 64 * KIB,
        max_workgroup_size: [1024; 3],
        push_constant_bytes: 128,
        max_storage_buffer_range: GIB,
        max_storage_buffers: 65535,
        storage_offset_alignment: 64,
        max_allocation_bytes: 4 * GIB - 1,
        timestamp_period_ps: 52_083,
        ..common("Intel(R) Arc(tm) A770 Graphics (DG2)", "anv", DeviceType::Discrete, XE_HPG)
    }
}

/// Arm Mali of the Valhall generation: 16 lanes, unified memory, few storage buffers.
pub fn mali() -> DeviceCaps {
    DeviceCaps {
        vendor_id: 0x13b5,
        subgroup_size: 16,
        subgroup_size_min: 16,
        subgroup_size_max: 16,
        shared_memory_bytes: 32 * KIB,
        max_workgroup_invocations: 512,
        max_workgroup_size: [512; 3],
        max_storage_buffers: 35,
        storage_offset_alignment: 256,
        unified_memory: true,
        timestamp_period_ps: 1000,
        ..common("Mali-G715", "Mali", DeviceType::Integrated, VALHALL)
    }
}

/// Qualcomm Adreno 740: subgroups of 64 or 128, no 8-bit storage, 128 MiB bindings.
pub fn adreno() -> DeviceCaps {
    DeviceCaps {
        vendor_id: 0x5143,
        subgroup_size: 128,
        subgroup_size_min: 64,
        subgroup_size_max: 128,
        // Mesa's Turnip reports 16 subgroups.
        max_workgroup_subgroups: 16,
        storage_8bit: false,
        shared_memory_bytes: 32 * KIB,
        max_storage_buffers: 24,
        storage_offset_alignment: 64,
        push_constant_bytes: 256,
        unified_memory: true,
        timestamp_period_ps: 52_083,
        ..common("Adreno (TM) 740", "Qualcomm", DeviceType::Integrated, ADRENO7)
    }
}
