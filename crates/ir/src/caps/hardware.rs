//! What a device is made of: its cores, what each holds, and the rates of arithmetic and memory.
//!
//! Vulkan has no limits for these. Extensions of three vendors tell some of them ([`Reported`]); the rest is estimated
//! here, from the vendor and the number of cores. An estimate scales the public figures of one device of the vendor:
//! per core it is as that device, and rates grow with the number of cores. Devices that cost decisions were measured on
//! have their own figures. To add a vendor, add a row to [`reference()`]; to add a device, a row to [`DEVICES`].

use std::fmt;

use super::{DeviceCaps, DeviceType};

/// What a driver tells of its hardware; `None` where it does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reported {
    /// Cores: `shaderSMCount` (`VK_NV_shader_sm_builtins`), `activeComputeUnitCount`
    /// (`VK_AMD_shader_core_properties2`) or engines x arrays x compute units (`VK_AMD_shader_core_properties`),
    /// `shaderCoreCount` (`VK_ARM_shader_core_builtins`).
    pub cores: Option<u32>,
    /// Resident invocations of a core: `shaderWarpsPerSM` or `shaderWarpsPerCore` times the subgroup size (NVIDIA,
    /// Arm), SIMD units x wavefronts x their size (AMD). AMD's `vgprsPerSimd` is not read: drivers count registers of
    /// 64 lanes (RADV) or of 32, and do not tell which.
    pub invocations_per_core: Option<u32>,
    /// f32 multiply-adds of a core per clock: `fmaRate` (`VK_ARM_shader_core_properties`).
    pub multiply_adds_per_clock: Option<u32>,
}

/// The figures of [`DeviceCaps`] that describe hardware rather than what Vulkan allows. [`Reported`] lists what drivers
/// report; the rest are estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hardware {
    /// Cores, each of which runs whole workgroups: streaming multiprocessors (NVIDIA), compute units (AMD), Xe cores
    /// (Intel), shader cores (Arm), shader processors (Qualcomm), threads of a software device. At least 1.
    pub cores: u32,
    /// Shared memory of one core in bytes, for all its resident workgroups.
    pub shared_memory_per_core: u32,
    /// Registers of one core: 32-bit, counted per invocation.
    pub registers_per_core: u32,
    /// Maximum resident invocations on one core.
    pub max_invocations_per_core: u32,
    /// Peak memory bandwidth in GB/s (10^9 bytes).
    pub memory_gb_per_s: u32,
    /// Peak f32 FMA rate of the whole device in GFLOP/s (an FMA counts as two).
    pub f32_gflops: u32,
    /// Peak rate of f16 cooperative matrices with f32 accumulators in GFLOP/s; 0 without them.
    pub f16_matrix_gflops: u32,
}

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hardware { cores, memory_gb_per_s, f32_gflops, f16_matrix_gflops, .. } = self;
        let Hardware { shared_memory_per_core, registers_per_core, max_invocations_per_core, .. } = self;
        write!(f, "{cores} cores of {} KiB shared memory, ", shared_memory_per_core / KIB)?;
        write!(f, "{registers_per_core} registers and {max_invocations_per_core} invocations; about ")?;
        write!(f, "{memory_gb_per_s} GB/s, {:.1} TFLOP/s f32", f64::from(*f32_gflops) / 1e3)?;
        match f16_matrix_gflops {
            0 => Ok(()),
            rate => write!(f, ", {:.1} TFLOP/s f16 matrices", f64::from(*rate) / 1e3),
        }
    }
}

const KIB: u32 = 1 << 10;

const NVIDIA: u32 = 0x10de;
const AMD: u32 = 0x1002;
const INTEL: u32 = 0x8086;
const ARM: u32 = 0x13b5;
const QUALCOMM: u32 = 0x5143;

/// Memory of a GPU that shares the host's, in GB/s: 64 bits of LPDDR5X at 8400 MT/s, as phones of 2023 have. Two
/// channels of DDR5-4800 give 77.
const SHARED_GB_PER_S: u32 = 67;

/// Clock of Arm's GPUs in MHz, with which a reported rate of multiply-adds is multiplied: 890 in a Tensor G3.
const ARM_MHZ: u32 = 890;

/// Single devices: vendor and device id (pci.ids), and their figures.
const DEVICES: [(u32, u32, Hardware); 4] = [
    (NVIDIA, 0x2335, H200),
    // H100 SXM: the same chip as an H200 with slower memory (data sheet: 3350 GB/s). Measured through Vulkan: f32 57
    // TFLOP/s, cooperative matrices 555 to 630.
    (NVIDIA, 0x2330, Hardware { memory_gb_per_s: 3350, f32_gflops: 57_000, ..H200 }),
    // The largest chips of RDNA 3 have half as many registers again as the vendor's others.
    (AMD, 0x744c, RDNA3),
    // A100 SXM 80 GB: NVIDIA's A100 white paper (108 SMs, 164 KiB of shared memory, 2039 GB/s, 19.5 and 312 TFLOP/s).
    (
        NVIDIA,
        0x20b2,
        Hardware {
            cores: 108,
            shared_memory_per_core: 164 * KIB,
            memory_gb_per_s: 2039,
            f32_gflops: 19_500,
            f16_matrix_gflops: 312_000,
            ..H200
        },
    ),
];

/// NVIDIA H200. Per SM from the CUDA programming guide's table for compute capability 9.0; memory from the data sheet.
/// Both rates of arithmetic were measured through Vulkan: 61 TFLOP/s of f32, and 615 to 637 TFLOP/s of cooperative
/// matrices, whose instruction reaches 62 to 65 % of the chip's peak.
pub(super) const H200: Hardware = Hardware {
    cores: 132,
    shared_memory_per_core: 228 * KIB,
    registers_per_core: 65536,
    max_invocations_per_core: 2048,
    memory_gb_per_s: 4800,
    f32_gflops: 61_000,
    f16_matrix_gflops: 620_000,
};

/// GeForce RTX 4090, for NVIDIA's other devices: compute capability 8.9 in the CUDA programming guide, rates from the
/// Ada white paper (f16 matrices with sums in f32, dense).
const ADA: Hardware = Hardware {
    cores: 128,
    shared_memory_per_core: 100 * KIB,
    registers_per_core: 65536,
    max_invocations_per_core: 1536,
    memory_gb_per_s: 1008,
    f32_gflops: 82_600,
    f16_matrix_gflops: 165_200,
};

/// Radeon RX 7900 XTX. A work group processor of two compute units has 128 KiB of shared memory, and each unit two SIMD
/// units of 192 KiB of registers and 16 wavefronts (AMD's RDNA 3 ISA document; Mesa's `ac_gpu_info.c`: 768 registers of
/// 64 lanes, 512 in the vendor's other chips since RDNA). Rates from
/// AMD's product page, f32 without dual issue: 96 units x 64 lanes x 2 x 2.5 GHz.
pub(super) const RDNA3: Hardware = Hardware {
    cores: 96,
    shared_memory_per_core: 64 * KIB,
    registers_per_core: 98304,
    max_invocations_per_core: 2048,
    memory_gb_per_s: 960,
    f32_gflops: 30_720,
    f16_matrix_gflops: 122_880,
};

/// Intel Arc A770: 32 Xe cores, each with 128 KiB of shared memory and 16 vector engines of 8 threads, with 128
/// registers of 32 bytes and up to 32 lanes each (Intel's GPU occupancy calculator, oneAPI samples). Rates at 2.1 GHz: a vector engine
/// makes 8 multiply-adds of f32 a clock, its matrix engine 64 of f16. Memory from the product page.
pub(super) const XE_HPG: Hardware = Hardware {
    cores: 32,
    shared_memory_per_core: 128 * KIB,
    registers_per_core: 131_072,
    max_invocations_per_core: 4096,
    memory_gb_per_s: 560,
    f32_gflops: 17_200,
    f16_matrix_gflops: 137_600,
};

/// Mali-G715 with 7 cores (Tensor G3) at 890 MHz: 128 multiply-adds a clock and core (Arm's GPU data sheet). Threads
/// and registers are an estimate: Valhall's shader cores give each thread 32 registers, or half of the threads 64.
pub(super) const VALHALL: Hardware = Hardware {
    cores: 7,
    shared_memory_per_core: 32 * KIB,
    registers_per_core: 65536,
    max_invocations_per_core: 2048,
    memory_gb_per_s: SHARED_GB_PER_S,
    f32_gflops: 1594,
    f16_matrix_gflops: 0,
};

/// Adreno 740: 6 shader processors of 32 KiB of shared memory and 4096 fibers (Mesa's `freedreno_devices.py`), and of
/// 96 x 2 x 64 registers of 16 bytes (`reg_size_vec4` x `wave_granularity` x lanes, as `ir3` counts waves); 256
/// multiply-adds a clock at 680 MHz.
pub(super) const ADRENO7: Hardware = Hardware {
    cores: 6,
    shared_memory_per_core: 32 * KIB,
    registers_per_core: 49152,
    max_invocations_per_core: 4096,
    memory_gb_per_s: SHARED_GB_PER_S,
    f32_gflops: 2089,
    f16_matrix_gflops: 0,
};

/// A software device. Vulkan does not tell its threads; llvmpipe starts one for each of the host's, up to 32
/// (`LP_MAX_THREADS`). 16 here does not follow the machine, so that plans and tests are the same on each. A thread has
/// 16 vectors of 8 lanes (AVX2), makes two multiply-adds of them a clock at 3 GHz, and runs a workgroup's invocations
/// in turn. Two channels of DDR4-2666 give 43 GB/s.
pub(super) const SOFTWARE: Hardware = Hardware {
    cores: 16,
    shared_memory_per_core: 32 * KIB,
    registers_per_core: 128,
    max_invocations_per_core: 1024,
    memory_gb_per_s: 43,
    f32_gflops: 1536,
    f16_matrix_gflops: 0,
};

/// A device of which nothing is known: a small one. The shared memory of a core is what one workgroup may use.
pub(super) const UNKNOWN: Hardware = Hardware {
    cores: 8,
    shared_memory_per_core: 16 * KIB,
    registers_per_core: 32768,
    max_invocations_per_core: 1024,
    memory_gb_per_s: SHARED_GB_PER_S,
    f32_gflops: 1000,
    f16_matrix_gflops: 0,
};

/// The device whose figures stand for the vendor's others.
fn reference(vendor_id: u32) -> Hardware {
    match vendor_id {
        NVIDIA => ADA,
        AMD => Hardware { registers_per_core: 65536, ..RDNA3 },
        INTEL => XE_HPG,
        ARM => VALHALL,
        QUALCOMM => ADRENO7,
        _ => UNKNOWN,
    }
}

/// Xe cores of Intel's devices, which no extension tells: the discrete ones by device id (Mesa's `intel_device_info`,
/// product pages); else 16 for a card, and 6 beside a processor: the 96 execution units of an Iris Xe, 16 a core.
fn intel_cores(device_id: u32, kind: DeviceType) -> u32 {
    match (device_id, kind) {
        (0x56a0, _) => 32,
        (0x56a1, _) => 28,
        (0x56a2, _) => 24,
        (0x56a5, _) => 8,
        (0x56a6, _) => 6,
        (0xe20b, _) => 20,
        (0xe20c, _) => 18,
        (_, DeviceType::Discrete | DeviceType::Virtual) => 16,
        (_, DeviceType::Integrated | DeviceType::Cpu | DeviceType::Other) => 6,
    }
}

/// Cores where the driver tells none: a middle one of the vendor's cards, or a small GPU.
fn cores(caps: &DeviceCaps, reference: &Hardware) -> u32 {
    match (caps.vendor_id, caps.device_type) {
        (INTEL, kind) => intel_cores(caps.device_id, kind),
        (NVIDIA | AMD, DeviceType::Discrete | DeviceType::Virtual) => 32,
        (_, DeviceType::Discrete | DeviceType::Virtual) => 2 * UNKNOWN.cores,
        (_, DeviceType::Integrated | DeviceType::Cpu | DeviceType::Other) => {
            reference.cores.min(UNKNOWN.cores)
        }
    }
}

impl DeviceCaps {
    /// Sets what describes the hardware, from what the driver tells of it and by estimates for the rest. Everything
    /// else must be set before.
    pub fn set_hardware(&mut self, reported: &Reported) {
        let found = self.estimate(reported);
        self.hardware = Hardware {
            shared_memory_per_core: found.shared_memory_per_core.max(self.shared_memory_bytes),
            max_invocations_per_core: found.max_invocations_per_core.max(self.max_workgroup_invocations),
            f16_matrix_gflops: if self.multiplies_f16_matrices() { found.f16_matrix_gflops } else { 0 },
            ..found
        };
    }

    fn estimate(&self, reported: &Reported) -> Hardware {
        if self.is_software() {
            return SOFTWARE;
        }
        let is_this = |row: &&(u32, u32, Hardware)| (row.0, row.1) == (self.vendor_id, self.device_id);
        let (known, like) = match DEVICES.iter().find(is_this) {
            Some((_, _, hardware)) => (true, *hardware),
            None => (false, reference(self.vendor_id)),
        };
        let told = |told: Option<u32>| told.filter(|count| *count > 0);
        let cores = told(reported.cores).unwrap_or(if known { like.cores } else { cores(self, &like) });
        let scaled = |figure: u32| match u64::from(figure) * u64::from(cores) / u64::from(like.cores) {
            0 if figure > 0 => 1,
            rate => u32::try_from(rate).unwrap_or(u32::MAX),
        };
        let by_clock = |per_clock: u32| {
            let gflops = 2 * u64::from(per_clock) * u64::from(cores) * u64::from(ARM_MHZ) / 1000;
            u32::try_from(gflops).unwrap_or(u32::MAX).max(1)
        };
        Hardware {
            cores,
            shared_memory_per_core: like.shared_memory_per_core,
            registers_per_core: like.registers_per_core,
            max_invocations_per_core: told(reported.invocations_per_core)
                .unwrap_or(like.max_invocations_per_core),
            memory_gb_per_s: match self.device_type {
                DeviceType::Integrated => SHARED_GB_PER_S,
                DeviceType::Discrete | DeviceType::Virtual | DeviceType::Cpu | DeviceType::Other => {
                    scaled(like.memory_gb_per_s)
                }
            },
            f32_gflops: told(reported.multiply_adds_per_clock).map_or(scaled(like.f32_gflops), by_clock),
            f16_matrix_gflops: scaled(like.f16_matrix_gflops),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps::{self, PROFILES};

    /// What the driver of a profile tells.
    fn reported(name: &str) -> Reported {
        let cores = |cores| Reported { cores: Some(cores), ..Reported::default() };
        match name {
            "h200" => Reported { invocations_per_core: Some(64 * 32), ..cores(132) },
            // RADV: two SIMD units of 16 wavefronts of 64.
            "rdna3" => Reported { invocations_per_core: Some(2 * 16 * 64), ..cores(96) },
            "mali" => Reported { multiply_adds_per_clock: Some(128), ..cores(7) },
            _ => Reported::default(),
        }
    }

    #[test]
    fn a_query_of_a_profile_finds_its_hardware() {
        for (name, make) in PROFILES {
            let mut caps = make();
            caps.set_hardware(&reported(name));
            assert_eq!(caps, make(), "{name}");
        }
    }

    #[test]
    fn hardware_prints_with_units() {
        let text = caps::h200().hardware.to_string();
        let cores = "132 cores of 228 KiB shared memory, 65536 registers and 2048 invocations";
        let rates = "about 4800 GB/s, 61.0 TFLOP/s f32, 620.0 TFLOP/s f16 matrices";
        assert_eq!(text, format!("{cores}; {rates}"));
        assert!(caps::mali().hardware.to_string().ends_with("; about 67 GB/s, 1.6 TFLOP/s f32"));
    }

    #[test]
    fn rates_grow_with_cores_and_drivers_are_believed() {
        let mut small = caps::rdna3();
        small.device_id = 0;
        small.set_hardware(&Reported { cores: Some(32), ..Reported::default() });
        let Hardware { cores, memory_gb_per_s, f32_gflops, .. } = small.hardware;
        assert_eq!((cores, memory_gb_per_s, f32_gflops), (32, 320, 10_240));
        assert_eq!((small.hardware.registers_per_core, small.hardware.f16_matrix_gflops), (65536, 40_960));
        let told = Reported { invocations_per_core: Some(1024), cores: Some(0), ..Reported::default() };
        small.set_hardware(&told);
        assert_eq!((small.hardware.cores, small.hardware.max_invocations_per_core), (32, 1024));
        small.cooperative_matrix.clear();
        small.set_hardware(&told);
        assert_eq!(small.hardware.f16_matrix_gflops, 0);
    }

    #[test]
    fn unknown_devices_have_at_least_one_core_and_rates_above_zero() {
        for vendor_id in [0, NVIDIA, AMD, INTEL, ARM, QUALCOMM] {
            for device_type in DeviceType::ALL {
                for cores in [None, Some(1), Some(u32::MAX)] {
                    let mut caps = DeviceCaps { vendor_id, device_type, ..caps::minimum() };
                    caps.set_hardware(&Reported { cores, ..Reported::default() });
                    let found = caps.hardware;
                    assert!(found.cores > 0 && found.memory_gb_per_s > 0 && found.f32_gflops > 0);
                    assert!(found.registers_per_core > 0 && found.shared_memory_per_core >= 16 * KIB);
                }
            }
        }
    }
}
