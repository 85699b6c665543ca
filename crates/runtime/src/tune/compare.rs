//! Comparison of the results of two kernels of one fusion, with tolerance for the order of summation.
//!
//! *Elements.* A sum of `n` products in f32, in any order, has an error of about `2^-24 sqrt(n)` times the sum of the
//! magnitudes. For random operands the latter is about `sqrt(n)` times the result. So the error is below `2^-24 n`
//! times the root mean square of the results. A row in shared memory or in an invocation's loop has `n <= 2^17`, which
//! gives `2^-7`. An element may differ by [`ELEMENT`], `2^-6`, times the sum of its magnitude and the root mean square.
//! A missing or misplaced element differs by about the root mean square.
//!
//! *Mean.* Errors average out in the mean square error, which may be [`MEAN`], `2^-20`, times the mean square. A sum
//! that lacks one of its `2^17` terms already has `2^-17`.
//!
//! *Rounding.* Where results are rounded to narrow types, slightly different sums may round differently. One rounding
//! step is therefore allowed.

use tallow_ir::{DType, TensorType, float8};
use tallow_quant::{Format, dequantize};

use crate::resident::as_in_file;

/// Tolerance of an element, relative to its magnitude plus the root mean square.
const ELEMENT: f64 = 1.0 / 64.0;

/// Tolerance of the mean square error, relative to the mean square.
const MEAN: f64 = 1.0 / (1 << 20) as f64;

/// Half the spacing of a type's floats, relative to their magnitude. Few sums round differently: those that are closer
/// to a rounding boundary than they differ by. These are one in 2^7 for f16, where sums differ by `2^-18`.
fn step(dtype: DType) -> f64 {
    match dtype {
        DType::F8E4M3 => 1.0 / 16.0,
        DType::BF16 => 1.0 / 256.0,
        DType::F16 => 1.0 / 2048.0,
        DType::F32 | DType::F64 => 0.0,
        DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 | DType::Block(_) => 0.0,
    }
}

/// Why `found` is wrong, the result bytes of a kernel on the device; `None` if it is not. `expected` are those of
/// another kernel of the same fusion with the same operands.
pub fn difference(ty: &TensorType, expected: &[u8], found: &[u8]) -> Option<String> {
    if expected.len() != found.len() {
        return Some(format!("{} bytes where {} are expected", found.len(), expected.len()));
    }
    let Some((a, b)) = decode(ty, expected).zip(decode(ty, found)) else {
        return (expected != found).then(|| format!("elements of {} differ", ty.dtype));
    };
    // Results without finite elements cannot be compared.
    let finite = || a.iter().filter(|x| x.is_finite());
    let count = finite().count();
    if count == 0 {
        return (!a.is_empty()).then(|| "no element is finite".to_string());
    }
    let square = finite().map(|x| x * x).sum::<f64>() / count as f64;
    let (root, step) = (square.sqrt(), step(ty.dtype));
    let mut error = 0.0;
    for (i, (x, y)) in a.iter().zip(&b).enumerate() {
        if !x.is_finite() || !y.is_finite() {
            if x != y && !(x.is_nan() && y.is_nan()) {
                return Some(format!("element {i} is {y}, not {x}"));
            }
            continue;
        }
        let allowed = match ty.dtype {
            DType::Block(format) => ELEMENT * (x.abs() + root) + 2.0 * block_step(format, &a, i),
            _ => (ELEMENT + 2.0 * step) * (x.abs() + root),
        };
        if (x - y).abs() > allowed {
            return Some(format!("element {i} is {y}, not {x}"));
        }
        error += (x - y) * (x - y);
    }
    let mean = error / count as f64 / square;
    let allowed = match ty.dtype {
        // A quarter of the elements is one step off; a step is about twice `1 / levels` of the root mean square.
        DType::Block(format) => MEAN + block_levels(format).powi(-2),
        // One in 32 elements is a whole step off.
        _ => MEAN + step * step / 8.0,
    };
    (square > 0.0 && mean > allowed).then(|| format!("the mean square error is {mean:.1e}"))
}

/// Elements as f64; `None` for integers, which are compared exactly.
fn decode(ty: &TensorType, bytes: &[u8]) -> Option<Vec<f64>> {
    Some(match ty.dtype {
        DType::F8E4M3 => bytes.iter().map(|code| float8::decode(*code)).collect(),
        DType::F16 => plain(Format::F16, bytes)?,
        DType::BF16 => plain(Format::BF16, bytes)?,
        DType::F32 => plain(Format::F32, bytes)?,
        DType::F64 => bytes.as_chunks::<8>().0.iter().map(|x| f64::from_le_bytes(*x)).collect(),
        DType::Block(format) => plain(format, &as_in_file(ty, bytes).ok()?)?,
        DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 => return None,
    })
}

fn plain(format: Format, bytes: &[u8]) -> Option<Vec<f64>> {
    let mut values = vec![0.0; bytes.len() / format.block_bytes() * format.block_elements()];
    let whole = values.len() / format.block_elements() * format.block_bytes();
    dequantize(format, &bytes[..whole], &mut values).ok()?;
    Some(values.into_iter().map(f64::from).collect())
}

/// About how many quantization levels each side of zero has, from the bits per element.
fn block_levels(format: Format) -> f64 {
    f64::from(1u32 << (8 * format.block_bytes() / format.block_elements()).clamp(2, 8)) / 2.0
}

/// The quantization step in the block of element `i`; with a minimum, it is at most half as large.
fn block_step(format: Format, values: &[f64], i: usize) -> f64 {
    let first = i / format.block_elements() * format.block_elements();
    let block = &values[first..values.len().min(first + format.block_elements())];
    let most = block.iter().filter(|x| x.is_finite()).fold(0.0_f64, |most, x| most.max(x.abs()));
    most / block_levels(format)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ty(dtype: DType, n: i64) -> TensorType {
        TensorType::new(dtype, [n])
    }

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    /// Random numbers from -1 to 1.
    fn value(i: u32) -> f32 {
        let mut x = u64::from(i).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    #[test]
    fn sums_in_another_order_are_the_same() {
        let (n, terms) = (500, 4096);
        let term = |i: u32, k: u32| value(i * terms + k) * value(k);
        let forth: Vec<f32> = (0..n).map(|i| (0..terms).map(|k| term(i, k)).sum()).collect();
        let back: Vec<f32> = (0..n).map(|i| (0..terms).rev().map(|k| term(i, k)).sum()).collect();
        assert!(forth != back);
        assert_eq!(difference(&ty(DType::F32, n.into()), &f32s(&forth), &f32s(&back)), None);
        // A sum without its last term differs.
        let short: Vec<f32> = (0..n).map(|i| (0..terms - 1).map(|k| term(i, k)).sum()).collect();
        assert!(difference(&ty(DType::F32, n.into()), &f32s(&forth), &f32s(&short)).is_some());
    }

    #[test]
    fn one_wrong_element_is_found() {
        let good: Vec<f32> = (0..10_000).map(value).collect();
        let ty = ty(DType::F32, 10_000);
        let bytes = f32s(&good);
        assert_eq!(difference(&ty, &bytes, &bytes), None);
        for (at, wrong) in [(0, f32::NAN), (9_999, f32::INFINITY), (17, good[17] + 0.1), (4_000, good[4_001])]
        {
            let mut bad = good.clone();
            bad[at] = wrong;
            let why = difference(&ty, &bytes, &f32s(&bad)).unwrap();
            assert!(why.starts_with(&format!("element {at} is")), "{why}");
        }
        let swapped: Vec<f32> = good.iter().rev().copied().collect();
        assert!(difference(&ty, &bytes, &f32s(&swapped)).is_some());
        assert!(difference(&ty, &bytes, &bytes[4..]).is_some());
    }

    #[test]
    fn what_is_not_finite_is_the_same_or_wrong() {
        let ty = ty(DType::F32, 3);
        let some = f32s(&[f32::NAN, 1.0, f32::NEG_INFINITY]);
        assert_eq!(difference(&ty, &some, &some), None);
        assert!(difference(&ty, &some, &f32s(&[f32::NAN, 1.0, f32::INFINITY])).is_some());
        assert!(difference(&ty, &some, &f32s(&[0.0, 1.0, f32::NEG_INFINITY])).is_some());
        let none = f32s(&[f32::NAN; 3]);
        assert!(difference(&ty, &none, &none).is_some(), "nothing to compare");
    }

    #[test]
    fn integers_are_the_same_or_wrong() {
        let ty = ty(DType::U32, 2);
        assert_eq!(difference(&ty, &[1, 0, 0, 0, 2, 0, 0, 0], &[1, 0, 0, 0, 2, 0, 0, 0]), None);
        assert!(difference(&ty, &[1, 0, 0, 0, 2, 0, 0, 0], &[1, 0, 0, 0, 3, 0, 0, 0]).is_some());
    }

    #[test]
    fn blocks_may_be_a_level_apart_and_not_another_block() {
        for format in [Format::Q8_0, Format::Q4_0, Format::Q5_1] {
            let values: Vec<f32> = (0..3200).map(value).collect();
            let near: Vec<f32> = values.iter().map(|x| x * 1.000_01).collect();
            let ty = ty(DType::Block(format), 3200);
            let pack = |values: &[f32]| {
                let blocks = tallow_quant::quantize(format, values).unwrap();
                tallow_quant::repack(format, &blocks).unwrap()
            };
            assert_eq!(difference(&ty, &pack(&values), &pack(&near)), None, "{format}");
            let mut moved = values.clone();
            moved.rotate_left(32);
            moved[..3168].copy_from_slice(&values[..3168]);
            assert!(difference(&ty, &pack(&values), &pack(&moved)).is_some(), "{format}");
        }
    }
}
