//! The formulas that cost decisions read: how much work fills a device, and how long work takes at best.
//!
//! They read the hardware figures of [`DeviceCaps`] and nothing else, so a decision follows the device, not the one
//! that it was tuned on. Most of those figures are estimates (`caps/hardware.rs`): they choose between kernels that
//! compute the same, and nothing is correct or not because of them.

use crate::caps::DeviceCaps;

/// Cores of the GPU that software devices are partitioned like.
const LARGE_GPU: u32 = 128;

/// Workgroups that fill the device once, a *wave*: one for each core, rounded down to a multiple of an eighth of the
/// largest power of two among them. 132 cores want 128 workgroups, 96 want 96, 7 want 7.
///
/// Rounded, because counts of workgroups are mostly powers of two times a small factor: tiles that leave 128 workgroups
/// keep 97 % of 132 cores busy, and must not count as too few. At most a ninth of the cores is left out.
///
/// A software device is partitioned like a GPU of 128 cores: tests without a GPU then cover the same kernels.
pub fn workgroups_to_fill(caps: &DeviceCaps) -> u32 {
    let cores = if runs_workgroups_on_one_thread(caps) { LARGE_GPU } else { caps.cores.max(1) };
    let grain = (1 << (cores.ilog2())) / 8;
    cores / u32::max(grain, 1) * u32::max(grain, 1)
}

/// Workgroups that fill the device `waves` times: 2 where each core should have two workgroups, one of which computes
/// while the other waits, 4 where workgroups are small.
pub fn workgroups_of_waves(caps: &DeviceCaps, waves: u32) -> u32 {
    workgroups_to_fill(caps).saturating_mul(waves)
}

/// Workgroups that leave few cores idle: three quarters of a wave, and at least one. What gains more than a quarter by
/// larger tiles may leave as few.
pub fn workgroups_to_mostly_fill(caps: &DeviceCaps) -> u32 {
    (u64::from(workgroups_to_fill(caps)) * 3 / 4).max(1) as u32
}

/// Whether a thread of the host runs all invocations of a workgroup in turn, as software devices do. Then more
/// invocations are no more parallel, a barrier costs a switch between subgroups, a thread's registers hold few
/// results, and cooperative matrices are emulated.
pub fn runs_workgroups_on_one_thread(caps: &DeviceCaps) -> bool {
    caps.is_software()
}

/// Whether products of f16 matrices are faster than multiply-adds of f32.
pub fn matrices_are_faster(caps: &DeviceCaps) -> bool {
    caps.f16_matrix_gflops > caps.f32_gflops
}

/// What one workgroup occupies of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Invocations, at least 1.
    pub invocations: u32,
    /// 32-bit registers of each invocation; 0 where that is not known.
    pub registers: u32,
    /// Bytes of shared memory; 0 for none.
    pub shared_bytes: u32,
}

/// Workgroups that are resident on one core, by its invocations, registers and shared memory; 0 where one is too large.
pub fn workgroups_per_core(caps: &DeviceCaps, workgroup: Footprint) -> u32 {
    let registers = u64::from(workgroup.invocations) * u64::from(workgroup.registers);
    let fits = |all: u32, each: u64| u64::from(all).checked_div(each).unwrap_or(u64::MAX);
    let count = fits(caps.max_invocations_per_core, workgroup.invocations.max(1).into())
        .min(fits(caps.registers_per_core, registers))
        .min(fits(caps.shared_memory_per_core, workgroup.shared_bytes.into()));
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Microseconds in which the device's memory moves so many bytes, read and written together.
pub fn microseconds_for_bytes(caps: &DeviceCaps, bytes: u64) -> f64 {
    bytes as f64 / (f64::from(caps.memory_gb_per_s.max(1)) * 1e3)
}

/// Microseconds in which so many f32 operations are computed; a multiply-add is two.
pub fn microseconds_for_f32_flops(caps: &DeviceCaps, flops: u64) -> f64 {
    flops as f64 / (f64::from(caps.f32_gflops.max(1)) * 1e3)
}

/// Microseconds in which so many operations of f16 matrices with sums in f32 are computed, a multiply-add being two;
/// `None` without such matrices.
pub fn microseconds_for_matrix_flops(caps: &DeviceCaps, flops: u64) -> Option<f64> {
    let rate = f64::from(caps.f16_matrix_gflops) * 1e3;
    (rate > 0.0).then(|| flops as f64 / rate)
}

/// The roofline: a kernel takes at least as long as its bytes, and at least as long as its f32 operations.
pub fn roofline_microseconds(caps: &DeviceCaps, bytes: u64, f32_flops: u64) -> f64 {
    microseconds_for_bytes(caps, bytes).max(microseconds_for_f32_flops(caps, f32_flops))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps::{self, PROFILES};

    fn with_cores(cores: u32) -> DeviceCaps {
        DeviceCaps { cores, ..caps::h200() }
    }

    #[test]
    fn an_h200_wants_what_kernels_were_tuned_for() {
        let h200 = caps::h200();
        assert_eq!(workgroups_to_fill(&h200), 128);
        assert_eq!(workgroups_of_waves(&h200, 2), 256);
        assert_eq!(workgroups_of_waves(&h200, 4), 512);
        assert_eq!(workgroups_to_mostly_fill(&h200), 96);
    }

    #[test]
    fn waves_follow_the_cores() {
        let wave = |cores| workgroups_to_fill(&with_cores(cores));
        let all = [0, 1, 2, 6, 7, 15, 16, 17, 28, 46, 84, 96, 108, 114, 128, 132, 142, 170, 304];
        let expected = [1, 1, 2, 6, 7, 15, 16, 16, 28, 44, 80, 96, 104, 112, 128, 128, 128, 160, 288];
        assert_eq!(all.map(wave), expected);
        for cores in 1..2000 {
            assert!(wave(cores) <= cores && 9 * (cores - wave(cores)) <= cores, "{cores}");
            assert!(wave(cores) <= wave(cores + 1), "{cores}");
        }
        assert_eq!(workgroups_to_mostly_fill(&with_cores(1)), 1);
        assert_eq!(workgroups_of_waves(&with_cores(u32::MAX), 4), u32::MAX);
    }

    #[test]
    fn profiles_have_waves_of_their_own() {
        let found: Vec<(&str, u32)> =
            PROFILES.iter().map(|(name, make)| (*name, workgroups_to_fill(&make()))).collect();
        let expected = [
            ("minimum", 8),
            ("lavapipe", 128),
            ("h200", 128),
            ("rdna3", 96),
            ("intel", 32),
            ("mali", 7),
            ("adreno", 6),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn only_software_runs_a_workgroup_on_one_thread() {
        for (name, make) in PROFILES {
            assert_eq!(runs_workgroups_on_one_thread(&make()), name == "lavapipe", "{name}");
        }
        let faster = PROFILES.iter().filter(|(_, make)| matrices_are_faster(&make()));
        assert_eq!(faster.map(|(name, _)| *name).collect::<Vec<_>>(), ["h200", "rdna3", "intel"]);
    }

    #[test]
    fn residence_is_bound_by_what_runs_out_first() {
        let h200 = caps::h200();
        let per_core = |invocations, registers, shared_bytes| {
            workgroups_per_core(&h200, Footprint { invocations, registers, shared_bytes })
        };
        assert_eq!(per_core(256, 0, 0), 8);
        assert_eq!(per_core(256, 128, 0), 2);
        assert_eq!(per_core(256, 32, 48 << 10), 4);
        assert_eq!(per_core(1024, 128, 0), 0);
        assert_eq!(per_core(0, 255, 1), 2048);
    }

    #[test]
    fn rooflines_are_bytes_and_operations_over_rates() {
        let h200 = caps::h200();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9 * b;
        // 4800 GB/s are 4800 bytes a nanosecond; 61 TFLOP/s are 61 million operations a microsecond.
        assert!(near(microseconds_for_bytes(&h200, 4_800_000), 1.0));
        assert!(near(microseconds_for_f32_flops(&h200, 122_000_000), 2.0));
        assert!(microseconds_for_matrix_flops(&h200, 620_000_000).is_some_and(|t| near(t, 1.0)));
        assert_eq!(microseconds_for_matrix_flops(&caps::mali(), 1), None);
        assert!(near(roofline_microseconds(&h200, 4_800_000, 610), 1.0));
        assert!(near(roofline_microseconds(&h200, 48, 61_000_000), 1.0));
    }
}
