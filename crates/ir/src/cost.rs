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

/// Its rate of products of f16 matrices.
const LARGE_GPU_MATRIX_GFLOPS: u32 = 500_000;

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

/// Registers that an instruction can address, less one that NVIDIA reserves: its operands have 8 bits, as AMD's.
const MOST_REGISTERS: u32 = 255;

/// Registers of an invocation if a core runs one workgroup of so many invocations.
pub fn registers_per_invocation(caps: &DeviceCaps, workgroup: u32) -> u32 {
    (caps.hardware.registers_per_core / workgroup.max(1)).min(MOST_REGISTERS)
}

/// Workgroups of so many invocations with so many registers that a core holds at once, at least one.
pub fn resident_workgroups(caps: &DeviceCaps, workgroup: u32, registers: u32) -> u32 {
    (caps.hardware.registers_per_core / workgroup.saturating_mul(registers).max(1)).max(1)
}

/// How much faster the last workgroup reads partials than a slice reads and multiplies its operands, an estimate: partials
/// are in L2, which gives one core of an H200 64 bytes a clock (110 GB/s), and 132 cores share 4.1 TB/s of memory (31 GB/s
/// each) or wait for products.
const PARTIALS_ARE_FASTER: u64 = 2;

/// Slices of an extent whose partials the last workgroup combines. A slice reads `bytes / n`, then the last workgroup reads
/// `n * partial` bytes at twice the rate: `bytes / n + n * partial / 2` is least for `n = sqrt(2 * bytes / partial)`.
pub fn balanced_slices(bytes: u64, partial: u64) -> u32 {
    let ratio = bytes.saturating_mul(PARTIALS_ARE_FASTER) / partial.max(1);
    ratio.isqrt().clamp(1, u64::from(u32::MAX)) as u32
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
pub const KERNEL_US: f64 = 1.5;

/// Microseconds that a matmul spends on `evaluations` elements of a prologue, which reads `bytes` for each from operands
/// that are as large as its result: one element
/// per load, instead of 16 bytes, and every tile computes the elements again.
pub fn prologue_us(caps: &DeviceCaps, evaluations: u64, bytes: u64) -> f64 {
    evaluations as f64 * bytes as f64 / (PROLOGUE_BYTES_PER_US * f64::from(workgroups_to_fill(caps)))
}

/// How much longer an element of a convolution's windows takes, whose position is computed and compared with the padding.
/// H100, f16, 8 images of 128 x 28 x 28, 3 x 3: 7 us for 3.6 million with stride 2, 12 us for 7.2 million with stride 1.
const WINDOWED: f64 = 1.5;

/// Microseconds that a convolution spends on `evaluations` single elements of its windows, of so many bytes each.
pub fn windows_us(caps: &DeviceCaps, evaluations: u64, bytes: u64) -> f64 {
    WINDOWED * prologue_us(caps, evaluations, bytes)
}

/// Extents of a matmul.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Matmuls of these extents.
    pub batch: u64,
    /// Rows of the left operand.
    pub rows: i64,
    /// Columns of the right operand.
    pub columns: i64,
    /// The reduced extent.
    pub k: u64,
}

/// Rows or columns of the tiles of a matmul that does not fill the device with larger ones.
const SMALL_TILE: u64 = 64;

/// Elements of K of a slice for each row, the most that a slice has, and the most slices: the limits of split-K.
const SLICE_PER_ROW: u64 = 16;
const SLICE: u64 = 1024;
const MOST_SLICES: u64 = 8;

/// Rows of a tile of cooperative matrices, at least.
const LEAST_ROWS: u64 = 16;

/// The share of the device's cores that the workgroups of a matmul by cooperative matrices occupy: 1 if there are enough,
/// which is what all other formulas expect.
pub fn matmul_share(caps: &DeviceCaps, product: Product) -> f64 {
    let tiles = |extent: i64| extent.max(1).unsigned_abs().div_ceil(SMALL_TILE);
    let rows = product.rows.max(0).unsigned_abs().max(LEAST_ROWS);
    let slices = (product.k / rows.saturating_mul(SLICE_PER_ROW).min(SLICE)).clamp(1, MOST_SLICES);
    let all = [tiles(product.rows), tiles(product.columns), slices];
    let workgroups = all.iter().fold(product.batch.max(1), |n, by| n.saturating_mul(*by));
    (workgroups as f64 / f64::from(workgroups_to_fill(caps))).min(1.0)
}

/// Share of the rate of products that convolutions reach which read vectors of channels, with their loads. H100, f16, 4
/// images of 320 x 64 x 64 to 320 channels, 3 x 3: 30.2 GFLOP in 131 us, less 10 us for the copies, of 620 TFLOP/s.
const CONVOLVED: f64 = 0.4;

/// Microseconds of the products of a convolution that reads vectors of channels and fills the device. Fewer rows than a
/// large tile has take as long: each element of the windows is loaded for fewer products. (H100, f16, 3 channels padded to
/// 8: 64 rows reach 22 % of 620 TFLOP/s, 16 rows 7 %.)
pub fn convolution_us(caps: &DeviceCaps, product: Product) -> f64 {
    let rate = match runs_workgroups_on_one_thread(caps) {
        true => LARGE_GPU_MATRIX_GFLOPS,
        false => caps.hardware.f16_matrix_gflops.max(1),
    };
    let Product { batch, rows, columns, k } = product;
    let rows = rows.max(0).unsigned_abs().next_multiple_of(LEAST_ROWS).max(MATMUL_TILE);
    let all = [rows, columns.max(0).unsigned_abs(), k].iter().fold(batch as f64, |n, by| n * *by as f64);
    2.0 * all / (f64::from(rate) * 1e3 * CONVOLVED)
}

/// Bytes per microsecond and core by which a matmul may read more of its operands. H100, f16, 512 x 4096^2 and 4096^3 with an
/// f32 operand that is rounded in tiles: 5 and 68 us more than with one that is f16, for 134 and 1074 MB more.
const MORE_BYTES_PER_US: f64 = 120_000.0;

/// Microseconds for what a matmul reads of operands that are only rounded to f16 or bf16, more than it would read of rounded
/// ones: two bytes for each of `evaluations` elements, in vector loads. The conversion is computed behind the products.
pub fn rounding_us(caps: &DeviceCaps, evaluations: u64) -> f64 {
    evaluations as f64 * 2.0 / (MORE_BYTES_PER_US * f64::from(workgroups_to_fill(caps)))
}

/// Weights per microsecond and core that a matmul's tiles unpack to f16, behind its products. H100, 512 and 2048 x 4096 x
/// 4096, us more than with f16 weights: Q4_0 and Q8_0 16 and 56, Q4_K 20 and 77, Q6_K 31 and 114, for 67 and 268 million
/// weights: 18 to 37 thousand.
const UNPACKED_PER_US: f64 = 27_000.0;

/// Microseconds that a matmul spends on unpacking `evaluations` weights to f16.
pub fn unpacking_us(caps: &DeviceCaps, evaluations: u64) -> f64 {
    evaluations as f64 / (UNPACKED_PER_US * f64::from(workgroups_to_fill(caps)))
}

/// Microseconds for each element of K that a workgroup of a matmul waits for an operand that it loads in branches: such
/// loads are not in flight together. H200: 517 us with 16 concatenated operands before a matmul of 64 x 1536 x 768, in
/// tiles of 64 rows and 128 invocations, 0.7 us for each element of an invocation; 8 us without.
const BRANCHING_US: f64 = 0.7 * 64.0 / 128.0;

/// Microseconds that a matmul waits for the loads of a prologue with branches, along `k` elements.
pub fn branching_prologue_us(k: i64) -> f64 {
    BRANCHING_US * k as f64
}

/// Microseconds for each element of K and node of a prologue that a workgroup of a matmul computes it, if nothing hides
/// that. H200, tiles of 64 rows and 128 invocations, so that each computes half as many elements: 145 us for a gate of 9
/// nodes before 64 x 1536 x 768, in 12 workgroups; 4 us for one addition before 16 x 4096 x 4096 in slices of 1024, also in
/// tiles of 64 rows then. That is 21 and 8 ns for an element and node.
const NODE_US: f64 = 0.01 * 64.0 / 128.0;

/// Elements of K that a workgroup of a matmul of few rows has, at most: the rest is in other slices.
const MOST_OF_K: i64 = 1024;

/// Microseconds that a matmul of few workgroups spends on a prologue of so many `nodes`, along `k` elements.
pub fn waiting_prologue_us(k: i64, nodes: usize) -> f64 {
    NODE_US * k.min(MOST_OF_K) as f64 * nodes as f64
}

/// Share of the memory's bandwidth that kernels reach which read and write: 2.8 of 3.35 TB/s on an H100, 4.05 of 4.8 on an
/// H200.
pub const REACHED: f64 = 0.84;

/// Microseconds of a kernel that reads and writes so many bytes once.
pub fn map_us(caps: &DeviceCaps, bytes: u64) -> f64 {
    // A gigabyte per second is a thousand bytes per microsecond.
    let bandwidth = match runs_workgroups_on_one_thread(caps) {
        true => LARGE_GPU_GB_PER_S,
        false => caps.hardware.memory_gb_per_s.max(1),
    };
    KERNEL_US + bytes as f64 / (f64::from(bandwidth) * 1e3 * REACHED)
}

/// Elements of a scatter's source for each element of its target from which atomics wait for one another. On one
/// address they are executed one after another, about 4 ns each (L2 of an H100). 32 of them take less than what avoids
/// them, which is a microsecond at least.
const CONTENDED: u64 = 32;

/// Positions that are read and compared at the cost of one atomic in global memory: that occupies a sector of 32 bytes
/// in L2, and a position has 4 bytes.
const POSITIONS_PER_ATOMIC: u64 = 8;

/// Copies of a workgroup at which every lane of a subgroup has its own: the first odd number above 32 lanes.
const COPY_FOR_EACH_LANE: u64 = 33;

/// Elements that a workgroup combines for each element of its copies, so that filling and adding the copies is cheap.
const ELEMENTS_PER_COPIED: u64 = 8;

/// Invocations of one core that hide the latency of atomics in shared memory.
const SCATTERING_INVOCATIONS: u32 = 1024;

/// Whether so many elements of a scatter's source go to each element of its target that atomics wait for one another.
pub fn is_contended(source: u64, target: u64) -> bool {
    source >= CONTENDED.saturating_mul(target)
}

/// How a scatter combines its source in copies of the target. See [`scatter_copies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatterCopies {
    /// Copies of each workgroup, an odd number. Invocation `i` combines in copy `i % copies`.
    pub copies: u32,
    /// Elements of the target that a copy holds. All ranges but the last have as many.
    pub range: u32,
    /// Workgroups for each range, at most.
    pub workgroups: u32,
}

/// The copies of the target, in shared memory, in which a scatter combines its source; `None` if it should combine with
/// the target directly.
///
/// `capacity` elements fit into the shared memory of a workgroup, so the target is divided into `R = ceil(target / capacity)` ranges. For
/// each range, `W` workgroups of `workgroup` invocations read all positions of the source, and the elements whose
/// position is in the range. A workgroup reads `step` elements at once, and 1024 invocations fill a core:
///
/// `W = min(workgroups that fill the device / R, ceil(source / step))`.
///
/// Costs in atomics of global memory:
///
/// - directly: `source`
/// - with copies: `W * target` for the copies, `(R - 1) * source / 8` for positions that are read again
///
/// Copies are chosen where atomics wait for one another ([`is_contended`]) and copies cost at most half. Hence
/// there are at most 4 ranges. Atomics in shared memory do not count: each core executes its own.
///
/// Copies of small ranges are repeated, up to 33 for a workgroup: invocations with one position then use
/// different copies. Their number is odd, so that invocations a power of two apart do, too. A workgroup combines at
/// least 8 elements for each element of its copies.
pub fn scatter_copies(
    caps: &DeviceCaps,
    source: u64,
    target: u64,
    capacity: u32,
    workgroup: u32,
    step: u32,
) -> Option<ScatterCopies> {
    if target == 0 || !is_contended(source, target) {
        return None;
    }
    let ranges = target.div_ceil(u64::from(capacity.max(1)));
    let waves = (SCATTERING_INVOCATIONS / workgroup.max(1)).max(1);
    let fill = (u64::from(workgroups_of_waves(caps, waves)) / ranges).max(1);
    let workgroups = fill.min(source.div_ceil(u64::from(step.max(1))));
    let again = (ranges - 1).saturating_mul(source) / POSITIONS_PER_ATOMIC;
    let cost = workgroups.saturating_mul(target).saturating_add(again);
    let range = target.div_ceil(ranges);
    let elements = source / ranges / workgroups;
    let room = u64::from(capacity) / range;
    let copies = COPY_FOR_EACH_LANE.min(room).min(elements / range / ELEMENTS_PER_COPIED);
    let odd = copies.saturating_sub(1) | 1;
    // All fit: a range is at most `capacity`, and there are at most as many workgroups as fill the device.
    (cost <= source / 2).then_some(ScatterCopies {
        copies: odd as u32,
        range: range as u32,
        workgroups: workgroups as u32,
    })
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

    #[test]
    fn slices_balance_reads_and_partials() {
        // 4096 keys and values of 128 f16, and partials of 16 and 64 rows of 130 f32.
        let of = |rows: u64| balanced_slices(4096 * 512, rows * 130 * 4);
        assert_eq!([of(16), of(64), balanced_slices(0, 8), balanced_slices(8, 0)], [22, 11, 1, 4]);
        let h200 = caps::h200();
        assert_eq!([256, 257].map(|workgroup| registers_per_invocation(&h200, workgroup)), [255, 255]);
        assert_eq!([128, 256, 2048].map(|workgroup| resident_workgroups(&h200, workgroup, 160)), [3, 1, 1]);
        assert_eq!(registers_per_invocation(&h200, 512), 128);
    }

    /// Measured on an H100: `x + z` as a prologue adds 468 us for 4096 rows, 65 for 512 and 4 for 16. (A tile of 16 rows has
    /// 64.)
    #[test]
    fn a_prologue_of_many_tiles_is_a_kernel_of_its_own() {
        let h200 = caps::h200();
        let evaluations = |rows: u64| rows * 4096 * matmul_tiles(4096);
        for (rows, inside, apart) in [(4096, 524.0, 18.1), (512, 65.5, 3.6), (16, 2.0, 1.6)] {
            let bytes = rows * 4096 * 4;
            assert!((prologue_us(&h200, evaluations(rows), 2) / inside - 1.0).abs() < 0.1, "{rows}");
            assert!((map_us(&h200, bytes) / apart - 1.0).abs() < 0.1, "{rows}");
        }
        assert!(prologue_us(&h200, evaluations(4), 2) < map_us(&h200, 4 * 4096 * 4));
    }

    /// Convolutions of 3 x 3: 205 channels to 58 on 21 x 21 in 7 tiles, 128 to 128 on 8 x 28 x 28.
    #[test]
    fn small_convolutions_leave_cores_idle() {
        let h200 = caps::h200();
        let small = Product { batch: 1, rows: 58, columns: 441, k: 1845 };
        let large = Product { batch: 8, rows: 128, columns: 784, k: 1152 };
        let few_rows = Product { batch: 1, rows: 4, columns: 4096, k: 2880 };
        let share = |product| matmul_share(&h200, product);
        assert_eq!([small, large, few_rows].map(share), [7.0 * 1.0 / 128.0, 1.0, 1.0]);
        let us = convolution_us(&h200, Product { batch: 4, rows: 320, columns: 4096, k: 2880 });
        assert!((us - 122.0).abs() < 1.0, "{us}");
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
    fn copies_are_for_few_targets_of_many_elements() {
        let h200 = caps::h200();
        let capacity = h200.shared_memory_bytes / 4;
        let of = |source: u64, target: u64| {
            scatter_copies(&h200, source, target, capacity, 1024, 4096)
                .map(|c| (c.copies, c.range, c.workgroups))
        };
        let (row, million) = (64 << 18, 1 << 20);
        assert_eq!(of(row, 16 * 64), Some((11, 1024, 128)));
        // 64 KiB in two ranges, each of half the workgroups.
        assert_eq!(of(row, 256 * 64), Some((1, 8192, 64)));
        // Four ranges: 1.6 M atomics for the copies and 6.3 M for positions, less than half of 16.8 M.
        assert_eq!(of(row, 49_152), Some((1, 12_288, 32)));
        assert_eq!(of(row, 49_153), None);
        assert_eq!(of(million, 256), Some((3, 256, 128)));
        assert_eq!(of(million, 1), Some((33, 1, 128)));
        // Few steps for workgroups to take.
        assert_eq!(of(5000, 100), Some((3, 100, 2)));
        // Many targets, and too few elements for each.
        assert_eq!(of(128 << 16, 4096 * 128), None);
        assert_eq!(of(million, million), None);
        assert_eq!(of(32 * 100 - 1, 100), None);
        assert_eq!((of(0, 0), of(0, 5), of(1, 0)), (None, None, None));
        assert_eq!(of(u64::MAX, u64::MAX), None);
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
