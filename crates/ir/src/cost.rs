//! The formulas that cost decisions read: how much work fills a device, and which instructions are fast on it.
//!
//! They read the hardware figures of [`DeviceCaps`] and nothing else, so a decision follows the device, not the one
//! that it was tuned on. Most of those figures are estimates (`caps/hardware.rs`): they choose between kernels that
//! compute the same, and nothing is correct or not because of them.

use crate::caps::DeviceCaps;

/// Cores of the GPU that software devices are partitioned like.
const LARGE_GPU: u32 = 128;

/// Its memory bandwidth.
const LARGE_GPU_GB_PER_S: u32 = 3000;

/// Workgroups that fill the device once, a *wave*: one for each core, rounded down to a multiple of an eighth of the
/// largest power of two among them. 132 cores want 128 workgroups, 96 want 96, 7 want 7.
///
/// Rounded, because counts of workgroups are mostly powers of two times a small factor: tiles that leave 128 workgroups
/// keep 97 % of 132 cores busy, and must not count as too few. At most a ninth of the cores is left out.
///
/// A software device is partitioned like a GPU of 128 cores: tests without a GPU then cover the same kernels.
pub fn workgroups_to_fill(caps: &DeviceCaps) -> u32 {
    let cores = if runs_workgroups_on_one_thread(caps) { LARGE_GPU } else { caps.hardware.cores.max(1) };
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

/// Whether one host thread runs all invocations of a workgroup, as software devices do. Then more invocations add no
/// parallelism, a barrier costs a switch between subgroups, few results fit in registers, and cooperative matrices are
/// emulated.
pub fn runs_workgroups_on_one_thread(caps: &DeviceCaps) -> bool {
    caps.is_software()
}

/// Whether products of f16 matrices are faster than multiply-adds of f32.
pub fn matrices_are_faster(caps: &DeviceCaps) -> bool {
    caps.hardware.f16_matrix_gflops > caps.hardware.f32_gflops
}

/// Rows or columns of the tiles of a large matmul.
const MATMUL_TILE: u64 = 128;

/// Tiles of a large matmul along an extent.
pub fn matmul_tiles(extent: i64) -> u64 {
    u64::try_from(extent).unwrap_or(0).div_ceil(MATMUL_TILE)
}

/// Bytes per microsecond and core that the prologue of a matmul reads, one element at a time. H100, f16, a matmul of
/// 4096^3 and 512 x 4096^2, with `x + z`, `silu(x)` and a gather as left operands: 470 to 530 us and 63 to 70 us more
/// than with a plain one, for 537 and 67 million evaluations of 2 bytes.
const PROLOGUE_BYTES_PER_US: f64 = 16_000.0;

/// Microseconds that a kernel adds besides its bytes: its launch, the barrier before its reader, and the last
/// workgroups, which leave cores idle.
const KERNEL_US: f64 = 1.5;

/// Microseconds that a matmul spends on `evaluations` elements of a prologue, which reads `bytes` for each: one element
/// per load, instead of 16 bytes, and every tile computes the elements again.
pub fn prologue_us(caps: &DeviceCaps, evaluations: u64, bytes: u64) -> f64 {
    evaluations as f64 * bytes as f64 / (PROLOGUE_BYTES_PER_US * f64::from(workgroups_to_fill(caps)))
}

/// Microseconds of a kernel that reads and writes so many bytes once.
pub fn map_us(caps: &DeviceCaps, bytes: u64) -> f64 {
    // A gigabyte per second is a thousand bytes per microsecond.
    let bandwidth = match runs_workgroups_on_one_thread(caps) {
        true => LARGE_GPU_GB_PER_S,
        false => caps.hardware.memory_gb_per_s.max(1),
    };
    KERNEL_US + bytes as f64 / (f64::from(bandwidth) * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps::{self, Hardware, PROFILES};

    fn with_cores(cores: u32) -> DeviceCaps {
        let h200 = caps::h200();
        DeviceCaps { hardware: Hardware { cores, ..h200.hardware }, ..h200 }
    }

    #[test]
    fn an_h200_wants_what_kernels_were_tuned_for() {
        let h200 = caps::h200();
        assert_eq!(workgroups_to_fill(&h200), 128);
        assert_eq!(workgroups_of_waves(&h200, 2), 256);
        assert_eq!(workgroups_of_waves(&h200, 4), 512);
        assert_eq!(workgroups_to_mostly_fill(&h200), 96);
    }

    /// Measured on an H100: 468 us with 22 of them for the sum, 65 with 4; 4 us with 1 for few rows.
    #[test]
    fn a_prologue_of_many_tiles_is_a_kernel_of_its_own() {
        let h200 = caps::h200();
        let evaluations = |rows: u64| rows * 4096 * matmul_tiles(4096);
        for (rows, inside, apart) in [(4096, 524.0, 15.5), (512, 65.5, 3.2), (16, 2.0, 1.6)] {
            let bytes = rows * 4096 * 4;
            assert!((prologue_us(&h200, evaluations(rows), 2) / inside - 1.0).abs() < 0.1, "{rows}");
            assert!((map_us(&h200, bytes) / apart - 1.0).abs() < 0.1, "{rows}");
        }
        assert!(prologue_us(&h200, evaluations(4), 2) < map_us(&h200, 4 * 4096 * 4));
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
    fn profiles_differ_in_waves() {
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
}
