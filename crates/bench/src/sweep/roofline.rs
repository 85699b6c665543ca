//! What a point could take at best.

use super::point::{Point, Rate};
use crate::report;

/// What bounds a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Reading memory.
    Read,
    /// Reading and writing memory.
    Copy,
    /// Multiply-adds in f32.
    Fma,
    /// Products of 16-bit matrices.
    Matrix,
    /// An empty dispatch.
    Dispatch,
}

impl Bound {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Read => "read",
            Bound::Copy => "copy",
            Bound::Fma => "fma",
            Bound::Matrix => "matrix",
            Bound::Dispatch => "dispatch",
        }
    }
}

/// Rates of a device, as measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ceilings {
    /// Bytes per microsecond that are read.
    pub read: f64,
    /// Bytes per microsecond that are read and written.
    pub copy: f64,
    /// Operations per microsecond: multiply-adds in f32.
    pub fma: f64,
    /// The same in products of 16-bit matrices; 0 without hardware for them.
    pub matrix: f64,
    /// Microseconds of an empty dispatch.
    pub dispatch: f64,
}

/// The names of the ceilings that [`Ceilings::of`] reads.
#[cfg(feature = "vulkan")]
pub const CEILINGS: &[&str] =
    &["ceilings/read", "ceilings/copy", "ceilings/fma", "ceilings/matrix", "ceilings/dispatch"];

/// Products of 16-bit matrices through Vulkan reach half of the rate of plain cooperative-matrix kernels at best: twice
/// the rate that is asked of a program, by its operations. From 2048^3 on 250 TFLOP/s are asked for, below it 150.
const MATRIX_RATES: [(u64, f64); 2] = [(2 * 2048 * 2048 * 2048, 500e6), (0, 300e6)];

impl Ceilings {
    /// From the rows of ceilings.
    pub fn of(rows: &[report::Row]) -> Ceilings {
        let find = |name: &str| rows.iter().find(|row| row.name == name && row.failed.is_none());
        let bandwidth = |name| find(name).and_then(|row| row.gbps).unwrap_or(0.0) * 1e3;
        let rate = |name| find(name).and_then(|row| row.tflops).unwrap_or(0.0) * 1e6;
        Ceilings {
            read: bandwidth("ceilings/read"),
            copy: bandwidth("ceilings/copy"),
            fma: rate("ceilings/fma"),
            matrix: rate("ceilings/matrix"),
            dispatch: find("ceilings/dispatch").map_or(0.0, |row| row.median_us),
        }
    }
}

/// Microseconds of a point that reads and writes so many bytes, and what bounds it: the largest of bytes over bandwidth,
/// operations over the rate of the best instruction, and an empty dispatch.
pub fn roofline(point: &Point, ceilings: &Ceilings, [read, written]: [u64; 2]) -> (f64, Bound) {
    // A program that writes little is bound by reads.
    let copies = written * 4 > read;
    let (bandwidth, memory) =
        if copies { (ceilings.copy, Bound::Copy) } else { (ceilings.read, Bound::Read) };
    let (rate, unit) = match point.rate {
        Rate::Matrix if ceilings.matrix > 0.0 => {
            let asked = MATRIX_RATES.iter().find(|(flops, _)| point.flops >= *flops);
            (ceilings.matrix.min(asked.map_or(f64::INFINITY, |(_, rate)| *rate)), Bound::Matrix)
        }
        Rate::Matrix | Rate::Fma => (ceilings.fma, Bound::Fma),
    };
    let over = |amount: u64, rate: f64| if rate > 0.0 { amount as f64 / rate } else { 0.0 };
    let bounds = [
        (over(read + written, bandwidth), memory),
        (over(point.flops, rate), unit),
        (ceilings.dispatch, Bound::Dispatch),
    ];
    bounds.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, memory))
}

#[cfg(test)]
mod tests {
    use super::super::points;
    use super::*;

    #[test]
    fn the_larger_of_bytes_and_operations_bounds_a_point() {
        let ceilings = Ceilings { read: 4e6, copy: 3e6, fma: 50e6, matrix: 800e6, dispatch: 1.0 };
        let of = |name: &str, bytes| {
            let point = points().into_iter().find(|point| point.name == name).unwrap();
            roofline(&point, &ceilings, bytes)
        };
        let (us, bound) = of("matmul/f16-nt/1x4096x4096", [32 << 20, 8192]);
        assert!(bound == Bound::Read && (us - 8.39).abs() < 0.01, "{us} {bound:?}");
        let (us, bound) = of("matmul/f16-nt/4096x4096x4096", [64 << 20, 32 << 20]);
        assert!(bound == Bound::Matrix && (us - 274.9).abs() < 0.1, "{us} {bound:?}");
        let (us, bound) = of("matmul/f32-nt/512x4096x4096", [72 << 20, 8 << 20]);
        assert!(bound == Bound::Fma && (us - 343.6).abs() < 0.1, "{us} {bound:?}");
        let (us, bound) = of("map/f32-gelu/64x64", [16 << 10, 16 << 10]);
        assert_eq!((us, bound), (1.0, Bound::Dispatch));
        let (_, bound) = of("map/f32-gelu/8192x4096", [128 << 20, 128 << 20]);
        assert_eq!(bound, Bound::Copy);
    }
}
