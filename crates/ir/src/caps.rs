//! Device capabilities: what a device can do, as plain data.
//!
//! Everything that depends on the device (kernel variant, tile size, plan layout) depends on a [`DeviceCaps`] value and
//! on nothing else. It can therefore be decided, printed and tested without a device. The runtime queries Vulkan for
//! one; [`profile`] gives named ones. Snapshots name a profile instead of the machine that they were taken on.
//!
//! A kernel may use an [`OptionalFeature`] only where it exists. [`DeviceCaps::without`] removes one; the runtime does
//! so for the names in `TALLOW_DISABLE`, and then does not enable it on the device either. Without any, plain Vulkan
//! 1.2 with a timeline semaphore remains.

mod hardware;
mod profiles;
mod subgroup;

pub use hardware::{Hardware, Reported};
pub use profiles::{NamedProfile, PROFILES, adreno, h200, intel, lavapipe, mali, minimum, profile, rdna3};

use std::fmt;

/// Invocations of a workgroup in kernels with workgroup-scope cooperative matrices.
pub const COOPMAT2_WORKGROUP: u32 = 256;

/// Extents of workgroup-scope cooperative matrices are multiples of this.
pub const COOPMAT2_GRANULARITY: u32 = 32;

/// The largest extent of a workgroup-scope cooperative matrix.
pub const COOPMAT2_MAX_EXTENT: u32 = 128;

/// The features, limits and identity of one device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceCaps {
    /// Name that the driver reports.
    pub name: String,
    /// PCI vendor id, or a Khronos vendor id above 0xffff.
    pub vendor_id: u32,
    /// Device id, unique within the vendor.
    pub device_id: u32,
    /// Driver name and version text; part of the key of tuning results.
    pub driver: String,
    /// What kind of device it is.
    pub device_type: DeviceType,
    /// Vulkan version that the device supports.
    pub api_version: ApiVersion,

    /// Subgroup size of a pipeline that requires none.
    pub subgroup_size: u32,
    /// Smallest subgroup size that the device executes, whether or not a pipeline may require it.
    pub subgroup_size_min: u32,
    /// Largest subgroup size that the device executes, whether or not a pipeline may require it.
    pub subgroup_size_max: u32,
    /// A compute pipeline may require a subgroup size between the two above.
    pub subgroup_size_control: bool,
    /// Maximum subgroups in a workgroup whose pipeline requires a subgroup size (`maxComputeWorkgroupSubgroups`).
    pub max_workgroup_subgroups: u32,
    /// Subgroup add, min, max, scans and votes in compute shaders.
    pub subgroup_arithmetic: bool,
    /// Subgroup shuffle, shuffle-xor and broadcast from any invocation in compute shaders.
    pub subgroup_shuffle: bool,

    /// Arithmetic on 16-bit floats.
    pub f16: bool,
    /// Arithmetic on 8-bit integers.
    pub int8: bool,
    /// Arithmetic on 16-bit integers.
    pub int16: bool,
    /// Arithmetic on 64-bit integers.
    pub int64: bool,
    /// Arithmetic on 64-bit floats.
    pub float64: bool,
    /// 16-bit types in storage buffers.
    pub storage_16bit: bool,
    /// 8-bit types in storage buffers.
    pub storage_8bit: bool,
    /// Integer dot product instructions of four packed 8-bit values.
    pub int_dot: bool,
    /// The dot product of four packed signed 8-bit values is faster than its emulation.
    pub int_dot_accelerated: bool,
    /// The bfloat16 type in shaders (`VK_KHR_shader_bfloat16`). `cooperative_matrix` lists the shapes of its matrices.
    pub bf16: bool,
    /// Atomic add on 32-bit floats in storage buffers (`VK_EXT_shader_atomic_float`).
    pub atomic_float_add: bool,
    /// Atomic add on 32-bit floats in shared memory (the same extension).
    pub atomic_float_add_shared: bool,
    /// Atomics on 64-bit integers in storage buffers.
    pub atomic_int64: bool,
    /// Shaders may require that NaN, infinities and the sign of zero are preserved (`SignedZeroInfNanPreserve`, for
    /// 32-bit floats, and for 64-bit floats where the device has them).
    pub float_controls: bool,
    /// Subgroup-scope cooperative matrix shapes; empty where the extension is missing.
    pub cooperative_matrix: Vec<MatrixShape>,
    /// `VK_NV_cooperative_matrix2` with all its features: workgroup-scope f16 cooperative matrices with f32
    /// accumulators, for workgroups of [`COOPMAT2_WORKGROUP`] invocations. M, N and K may be any multiples of
    /// [`COOPMAT2_GRANULARITY`] up to [`COOPMAT2_MAX_EXTENT`]. Requires `f16`, `storage_16bit` and
    /// `buffer_device_address`.
    pub cooperative_matrix2: bool,
    /// 16x16 accumulator and A fragments, of each type that the device multiplies, have the lane layout that
    /// `attention_flash_registers.comp` assumes (32-wide subgroups). No extension reports it; the runtime runs a kernel
    /// that checks it.
    pub coopmat_fragment_layout: bool,
    /// The Vulkan memory model, with device scope.
    pub memory_model: bool,

    /// Shared memory that one workgroup may use, in bytes.
    pub shared_memory_bytes: u32,
    /// Maximum invocations in one workgroup.
    pub max_workgroup_invocations: u32,
    /// Maximum extent of a workgroup along x, y and z.
    pub max_workgroup_size: [u32; 3],
    /// Maximum workgroups of one dispatch along x, y and z.
    pub max_workgroup_count: [u32; 3],
    /// Push constants of one pipeline, in bytes.
    pub push_constant_bytes: u32,
    /// Maximum bytes that one storage buffer binding may span.
    pub max_storage_buffer_range: u64,
    /// Storage buffers that one compute shader may bind.
    pub max_storage_buffers: u32,
    /// Alignment of the offset of a storage buffer binding, in bytes.
    pub storage_offset_alignment: u64,
    /// Maximum bytes in one memory allocation.
    pub max_allocation_bytes: u64,

    /// Shaders may access memory through 64-bit buffer addresses.
    pub buffer_device_address: bool,
    /// Timeline semaphores; required, so true for every device that the runtime accepts.
    pub timeline_semaphore: bool,
    /// `vkCmdPipelineBarrier2` and `vkQueueSubmit2`.
    pub synchronization2: bool,
    /// Host and device share their memory: buffers are mapped, and uploads need no staging copy.
    pub unified_memory: bool,
    /// Timestamp period in picoseconds; 0 where the compute queue writes no timestamps.
    pub timestamp_period_ps: u64,

    /// Sizes and rates of the hardware, which Vulkan has no limits for.
    pub hardware: Hardware,
}

/// Device types, in the order in which the runtime prefers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceType {
    /// A GPU with dedicated memory.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// A GPU passed through to a virtual machine.
    Virtual,
    /// A software implementation.
    Cpu,
    /// Anything else.
    Other,
}

impl DeviceType {
    /// Every device type, best first.
    pub const ALL: [DeviceType; 5] = [
        DeviceType::Discrete,
        DeviceType::Integrated,
        DeviceType::Virtual,
        DeviceType::Cpu,
        DeviceType::Other,
    ];

    /// The name that is printed.
    pub fn name(self) -> &'static str {
        match self {
            DeviceType::Discrete => "discrete",
            DeviceType::Integrated => "integrated",
            DeviceType::Virtual => "virtual",
            DeviceType::Cpu => "cpu",
            DeviceType::Other => "other",
        }
    }
}

impl fmt::Display for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Vulkan version; printed as `1.2.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiVersion {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Patch level of the headers.
    pub patch: u32,
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Shape and element types of a subgroup-scope cooperative matrix product: `m x k` times `k x n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MatrixShape {
    /// Rows of A and of the result.
    pub m: u32,
    /// Columns of B and of the result.
    pub n: u32,
    /// Columns of A and rows of B.
    pub k: u32,
    /// Element type of A.
    pub a: MatrixElement,
    /// Element type of B.
    pub b: MatrixElement,
    /// Element type of the accumulator and of the result.
    pub c: MatrixElement,
}

impl fmt::Display for MatrixShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MatrixShape { m, n, k, a, b, c } = self;
        write!(f, "{m}x{n}x{k} {}*{}->{}", a.name(), b.name(), c.name())
    }
}

/// Element type of a cooperative matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MatrixElement {
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single.
    F32,
    /// IEEE double.
    F64,
    /// Signed 8-bit.
    I8,
    /// Unsigned 8-bit.
    U8,
    /// Signed 32-bit.
    I32,
    /// Unsigned 32-bit.
    U32,
}

impl MatrixElement {
    /// The name that is printed.
    pub fn name(self) -> &'static str {
        match self {
            MatrixElement::F16 => "f16",
            MatrixElement::Bf16 => "bf16",
            MatrixElement::F32 => "f32",
            MatrixElement::F64 => "f64",
            MatrixElement::I8 => "i8",
            MatrixElement::U8 => "u8",
            MatrixElement::I32 => "i32",
            MatrixElement::U32 => "u32",
        }
    }
}

/// A feature that a device may lack, and that can be disabled by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OptionalFeature {
    /// `f16`: arithmetic on 16-bit floats (and features that need it).
    F16,
    /// `int8`: arithmetic on 8-bit integers.
    Int8,
    /// `int16`: arithmetic on 16-bit integers.
    Int16,
    /// `int64`: arithmetic on 64-bit integers.
    Int64,
    /// `float64`: arithmetic on 64-bit floats.
    Float64,
    /// `storage16`: 16-bit types in storage buffers.
    Storage16,
    /// `storage8`: 8-bit types in storage buffers.
    Storage8,
    /// `int_dot`: integer dot products.
    IntDot,
    /// `bf16`: the bfloat16 type and its cooperative matrices.
    Bf16,
    /// `atomic_float`: atomic add on 32-bit floats, in buffers and in shared memory.
    AtomicFloat,
    /// `atomic_int64`: atomics on 64-bit integers.
    AtomicInt64,
    /// `float_controls`: execution modes that preserve NaN, infinities and signed zeros.
    FloatControls,
    /// `subgroup`: subgroup arithmetic and shuffles.
    Subgroup,
    /// `subgroup_size`: requiring a subgroup size.
    SubgroupSize,
    /// `coopmat`: cooperative matrices of both scopes.
    Coopmat,
    /// `coopmat2`: `VK_NV_cooperative_matrix2` alone.
    Coopmat2,
    /// `memory_model`: the Vulkan memory model.
    MemoryModel,
    /// `bda`: buffer device addresses.
    Bda,
    /// `sync2`: `VK_KHR_synchronization2` barriers and submits.
    Sync2,
    /// `unified`: mapped device memory instead of staging copies.
    Unified,
    /// `timestamps`: timing of each dispatch.
    Timestamps,
}

impl OptionalFeature {
    /// Every feature, in the order in which they are printed.
    pub const ALL: [OptionalFeature; 21] = [
        OptionalFeature::F16,
        OptionalFeature::Int8,
        OptionalFeature::Int16,
        OptionalFeature::Int64,
        OptionalFeature::Float64,
        OptionalFeature::Storage16,
        OptionalFeature::Storage8,
        OptionalFeature::IntDot,
        OptionalFeature::Bf16,
        OptionalFeature::AtomicFloat,
        OptionalFeature::AtomicInt64,
        OptionalFeature::FloatControls,
        OptionalFeature::Subgroup,
        OptionalFeature::SubgroupSize,
        OptionalFeature::Coopmat,
        OptionalFeature::Coopmat2,
        OptionalFeature::MemoryModel,
        OptionalFeature::Bda,
        OptionalFeature::Sync2,
        OptionalFeature::Unified,
        OptionalFeature::Timestamps,
    ];

    /// The name in `TALLOW_DISABLE`.
    pub fn name(self) -> &'static str {
        match self {
            OptionalFeature::F16 => "f16",
            OptionalFeature::Int8 => "int8",
            OptionalFeature::Int16 => "int16",
            OptionalFeature::Int64 => "int64",
            OptionalFeature::Float64 => "float64",
            OptionalFeature::Storage16 => "storage16",
            OptionalFeature::Storage8 => "storage8",
            OptionalFeature::IntDot => "int_dot",
            OptionalFeature::Bf16 => "bf16",
            OptionalFeature::AtomicFloat => "atomic_float",
            OptionalFeature::AtomicInt64 => "atomic_int64",
            OptionalFeature::FloatControls => "float_controls",
            OptionalFeature::Subgroup => "subgroup",
            OptionalFeature::SubgroupSize => "subgroup_size",
            OptionalFeature::Coopmat => "coopmat",
            OptionalFeature::Coopmat2 => "coopmat2",
            OptionalFeature::MemoryModel => "memory_model",
            OptionalFeature::Bda => "bda",
            OptionalFeature::Sync2 => "sync2",
            OptionalFeature::Unified => "unified",
            OptionalFeature::Timestamps => "timestamps",
        }
    }

    /// The feature of this name, if there is one.
    pub fn from_name(name: &str) -> Option<OptionalFeature> {
        OptionalFeature::ALL.into_iter().find(|feature| feature.name() == name)
    }

    /// Parses a comma-separated list of names; `all` means every feature, empty items are skipped.
    ///
    /// The error is the first unknown name.
    pub fn parse_list(text: &str) -> Result<Vec<OptionalFeature>, String> {
        let mut features = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            if name == "all" {
                return Ok(OptionalFeature::ALL.to_vec());
            }
            features.push(OptionalFeature::from_name(name).ok_or_else(|| name.to_string())?);
        }
        Ok(features)
    }
}

impl fmt::Display for OptionalFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl DeviceCaps {
    /// Window size in bytes for a buffer larger than one binding may span; the last window may be shorter. It is the
    /// largest multiple of the offset alignment and of 16 bytes (a vector) within the range.
    pub fn window_bytes(&self) -> u64 {
        let unit = self.storage_offset_alignment.max(16);
        (self.max_storage_buffer_range / unit * unit).max(unit)
    }

    /// Bindings that a buffer of `bytes` bytes takes.
    pub fn windows(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.window_bytes()).max(1)
    }

    /// Whether a CPU runs the kernels.
    pub fn is_software(&self) -> bool {
        self.device_type == DeviceType::Cpu
    }

    /// Disables a feature, and with it all that needs it.
    pub fn without(&mut self, feature: OptionalFeature) {
        match feature {
            OptionalFeature::F16 => {
                self.f16 = false;
                self.cooperative_matrix2 = false;
                self.drop_matrices_of(&[MatrixElement::F16]);
            }
            OptionalFeature::Int8 => {
                self.int8 = false;
                self.drop_matrices_of(&[MatrixElement::I8, MatrixElement::U8]);
            }
            OptionalFeature::Int16 => self.int16 = false,
            OptionalFeature::Int64 => self.int64 = false,
            OptionalFeature::Float64 => {
                self.float64 = false;
                self.drop_matrices_of(&[MatrixElement::F64]);
            }
            OptionalFeature::Storage16 => {
                self.storage_16bit = false;
                self.cooperative_matrix2 = false;
            }
            OptionalFeature::Storage8 => self.storage_8bit = false,
            OptionalFeature::IntDot => {
                self.int_dot = false;
                self.int_dot_accelerated = false;
            }
            OptionalFeature::Bf16 => {
                self.bf16 = false;
                self.drop_matrices_of(&[MatrixElement::Bf16]);
            }
            OptionalFeature::AtomicFloat => {
                self.atomic_float_add = false;
                self.atomic_float_add_shared = false;
            }
            OptionalFeature::AtomicInt64 => self.atomic_int64 = false,
            OptionalFeature::FloatControls => self.float_controls = false,
            OptionalFeature::Subgroup => {
                self.subgroup_arithmetic = false;
                self.subgroup_shuffle = false;
            }
            // The reported sizes stay: where they vary, no kernel may rely on one.
            OptionalFeature::SubgroupSize => self.subgroup_size_control = false,
            OptionalFeature::Coopmat => {
                self.cooperative_matrix.clear();
                self.cooperative_matrix2 = false;
                self.coopmat_fragment_layout = false;
            }
            OptionalFeature::Coopmat2 => self.cooperative_matrix2 = false,
            // GLSL's cooperative matrices require the Vulkan memory model.
            OptionalFeature::MemoryModel => {
                self.memory_model = false;
                self.cooperative_matrix.clear();
                self.cooperative_matrix2 = false;
                self.coopmat_fragment_layout = false;
            }
            // The decode callbacks of workgroup-scope matrices take a buffer address.
            OptionalFeature::Bda => {
                self.buffer_device_address = false;
                self.cooperative_matrix2 = false;
            }
            OptionalFeature::Sync2 => self.synchronization2 = false,
            OptionalFeature::Unified => self.unified_memory = false,
            OptionalFeature::Timestamps => self.timestamp_period_ps = 0,
        }
        if !self.multiplies_f16_matrices() {
            self.hardware.f16_matrix_gflops = 0;
        }
    }

    /// Whether there are f16 cooperative matrices with f32 accumulators, of any shape.
    fn multiplies_f16_matrices(&self) -> bool {
        use MatrixElement::{F16, F32};
        self.cooperative_matrix.iter().any(|shape| (shape.a, shape.b, shape.c) == (F16, F16, F32))
    }

    /// Whether the device has the feature.
    pub fn has(&self, feature: OptionalFeature) -> bool {
        match feature {
            OptionalFeature::F16 => self.f16,
            OptionalFeature::Int8 => self.int8,
            OptionalFeature::Int16 => self.int16,
            OptionalFeature::Int64 => self.int64,
            OptionalFeature::Float64 => self.float64,
            OptionalFeature::Storage16 => self.storage_16bit,
            OptionalFeature::Storage8 => self.storage_8bit,
            OptionalFeature::IntDot => self.int_dot,
            OptionalFeature::Bf16 => self.bf16,
            OptionalFeature::AtomicFloat => self.atomic_float_add || self.atomic_float_add_shared,
            OptionalFeature::AtomicInt64 => self.atomic_int64,
            OptionalFeature::FloatControls => self.float_controls,
            OptionalFeature::Subgroup => self.subgroup_arithmetic || self.subgroup_shuffle,
            OptionalFeature::SubgroupSize => self.subgroup_size_control,
            OptionalFeature::Coopmat => !self.cooperative_matrix.is_empty(),
            OptionalFeature::Coopmat2 => self.cooperative_matrix2,
            OptionalFeature::MemoryModel => self.memory_model,
            OptionalFeature::Bda => self.buffer_device_address,
            OptionalFeature::Sync2 => self.synchronization2,
            OptionalFeature::Unified => self.unified_memory,
            OptionalFeature::Timestamps => self.timestamp_period_ps != 0,
        }
    }

    /// The features of the device, in the order of [`OptionalFeature::ALL`].
    pub fn features(&self) -> Vec<OptionalFeature> {
        OptionalFeature::ALL.into_iter().filter(|&feature| self.has(feature)).collect()
    }

    fn drop_matrices_of(&mut self, elements: &[MatrixElement]) {
        self.cooperative_matrix
            .retain(|shape| ![shape.a, shape.b, shape.c].iter().any(|e| elements.contains(e)));
        // Cooperative matrix 2 builds on the first extension, so it goes when no shape of that is left.
        self.cooperative_matrix2 &= !self.cooperative_matrix.is_empty();
        self.coopmat_fragment_layout &= !self.cooperative_matrix.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_leaves_nothing_of_the_feature() {
        for (name, make) in PROFILES {
            let full = make();
            for feature in OptionalFeature::ALL {
                let mut caps = full.clone();
                caps.without(feature);
                assert!(!caps.has(feature), "{name} still has {feature}");
                let mut again = caps.clone();
                again.without(feature);
                assert_eq!(caps, again, "{name} without {feature} twice");
            }
        }
    }

    #[test]
    fn disabling_everything_leaves_no_feature() {
        let mut caps = h200();
        assert!(caps.features().len() > 15);
        for feature in OptionalFeature::ALL {
            caps.without(feature);
        }
        assert_eq!(caps.features(), []);
        assert!(caps.timeline_semaphore);
    }

    #[test]
    fn names_round_trip_and_lists_parse() {
        for feature in OptionalFeature::ALL {
            assert_eq!(OptionalFeature::from_name(feature.name()), Some(feature));
        }
        assert_eq!(
            OptionalFeature::parse_list(" f16, sync2,,"),
            Ok(vec![OptionalFeature::F16, OptionalFeature::Sync2])
        );
        assert_eq!(
            OptionalFeature::parse_list("f16,all").map(|list| list.len()),
            Ok(OptionalFeature::ALL.len())
        );
        assert_eq!(OptionalFeature::parse_list("f16,f17"), Err("f17".to_string()));
        assert_eq!(OptionalFeature::parse_list(""), Ok(vec![]));
    }

    #[test]
    fn profiles_are_consistent() {
        for (name, make) in PROFILES {
            let caps = make();
            assert_eq!(profile(name), Some(caps.clone()));
            assert!(caps.timeline_semaphore, "{name}");
            assert!(caps.subgroup_size_min <= caps.subgroup_size, "{name}");
            assert!(caps.subgroup_size <= caps.subgroup_size_max, "{name}");
            assert!(caps.storage_offset_alignment.is_power_of_two(), "{name}");
            assert!(caps.shared_memory_bytes >= 16 << 10, "{name}");
            assert!(caps.max_workgroup_invocations >= 128, "{name}");
            assert!(caps.push_constant_bytes >= 128, "{name}");
            assert!(caps.max_storage_buffer_range >= 128 << 20, "{name}");
            assert!(caps.max_storage_buffers >= 4, "{name}");
            assert!(caps.max_allocation_bytes >= 1 << 30, "{name}");
            assert!(!caps.cooperative_matrix2 || !caps.cooperative_matrix.is_empty(), "{name}");
            assert!(caps.cooperative_matrix.is_empty() || caps.memory_model, "{name}");
            let hardware = caps.hardware;
            assert!(hardware.cores > 0 && hardware.memory_gb_per_s > 0 && hardware.f32_gflops > 0, "{name}");
            assert!(hardware.shared_memory_per_core >= caps.shared_memory_bytes, "{name}");
            assert!(hardware.max_invocations_per_core >= caps.max_workgroup_invocations, "{name}");
            assert!(hardware.registers_per_core > 0, "{name}");
            assert_eq!(hardware.f16_matrix_gflops > 0, caps.multiplies_f16_matrices(), "{name}");
        }
        assert_eq!(profile("voodoo"), None);
    }
}
