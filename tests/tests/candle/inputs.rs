//! Inputs on both sides, of every class of layout.

use candle_core as candle;
use half::{bf16, f16};
use tallow::{DType, Device, IndexOp};
use tallow_tests::rng::Rng;

/// The element types of both sides.
pub const DTYPES: [DType; 9] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

/// Scalar, size 1, odd, empty, and of several ranks.
pub const SHAPES: [&[usize]; 10] =
    [&[], &[1], &[7], &[0], &[1, 1], &[3, 4], &[4, 3], &[2, 0, 3], &[2, 3, 5], &[2, 1, 3, 4]];

/// What Tallow needs to be called as Candle is.
pub mod ours {
    pub use crate::nn::ours as nn;
    pub fn device(tensor: &tallow::Tensor) -> &tallow::Device {
        tensor.device()
    }

    /// Extents or strides as a tensor.
    pub fn numbers(numbers: &[usize], device: &tallow::Device) -> tallow::Result<tallow::Tensor> {
        let numbers: Vec<u32> = numbers.iter().map(|n| *n as u32).collect();
        tallow::Tensor::from_slice(&numbers, numbers.len(), device)
    }

    /// Strides, and whether they are those of row-major and of column-major order, as a tensor.
    pub fn layout(tensor: &tallow::Tensor) -> tallow::Result<tallow::Tensor> {
        let orders = [tensor.is_contiguous(), tensor.is_fortran_contiguous()].map(usize::from);
        numbers(&[tensor.stride(), &orders].concat(), tensor.device())
    }
}

/// What Candle needs to be called as Tallow is.
pub mod theirs {
    pub use crate::nn::theirs as nn;
    pub fn device(tensor: &candle_core::Tensor) -> &candle_core::Device {
        tensor.device()
    }

    /// Extents or strides as a tensor.
    pub fn numbers(
        numbers: &[usize],
        device: &candle_core::Device,
    ) -> candle_core::Result<candle_core::Tensor> {
        let numbers: Vec<u32> = numbers.iter().map(|n| *n as u32).collect();
        candle_core::Tensor::from_slice(&numbers, numbers.len(), device)
    }

    /// Strides, and whether they are those of row-major and of column-major order, as a tensor.
    pub fn layout(tensor: &candle_core::Tensor) -> candle_core::Result<candle_core::Tensor> {
        let orders = [tensor.is_contiguous(), tensor.is_fortran_contiguous()].map(usize::from);
        numbers(&[tensor.stride(), &orders].concat(), tensor.device())
    }
}

/// The tensors that a case may use.
pub struct In<T> {
    /// The tensor at hand.
    pub x: T,
    /// Another one of the same shape and type.
    pub y: T,
    /// One of the last axis' extent (1 for a scalar).
    pub row: T,
    /// Truths of the same shape.
    pub mask: T,
    /// Three indices (u32) that every axis has which is not empty.
    pub ids: T,
    /// Indices (i64, u32 for a device that may lack it) of the same shape into the first axis.
    pub first: T,
    /// Indices (u8) of the same shape into the last axis.
    pub last: T,
}

/// The same input on both sides.
pub struct Input {
    pub name: String,
    pub ours: In<tallow::Tensor>,
    pub theirs: In<candle::Tensor>,
}

/// How a tensor of a shape is made of another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layout {
    Contiguous,
    Permuted,
    Repeated,
    Sliced,
}

impl Layout {
    pub const ALL: [Layout; 4] = [Layout::Contiguous, Layout::Permuted, Layout::Repeated, Layout::Sliced];
}

pub type Pair = (tallow::Tensor, candle::Tensor);

/// A tensor of both sides from numbers that every type can hold.
pub fn pair(values: &[f64], dims: &[usize], dtype: DType, device: &Device) -> Pair {
    fn typed<T>(values: &[f64], of: impl Fn(f64) -> T, dims: &[usize], device: &Device) -> Pair
    where
        T: tallow::WithDType + candle::WithDType,
    {
        let values: Vec<T> = values.iter().map(|x| of(*x)).collect();
        let theirs = candle::Tensor::from_slice(&values, dims, &candle::Device::Cpu).unwrap();
        (tallow::Tensor::from_vec(values, dims, device).unwrap(), theirs)
    }
    match dtype {
        DType::U8 => typed(values, |x| x as u8, dims, device),
        DType::U32 => typed(values, |x| x as u32, dims, device),
        DType::I16 => typed(values, |x| x as i16, dims, device),
        DType::I32 => typed(values, |x| x as i32, dims, device),
        DType::I64 => typed(values, |x| x as i64, dims, device),
        DType::F16 => typed(values, f16::from_f64, dims, device),
        DType::BF16 => typed(values, bf16::from_f64, dims, device),
        DType::F32 => typed(values, |x| x as f32, dims, device),
        DType::F64 => typed(values, |x| x, dims, device),
        DType::F8E4M3 | DType::Block(_) => unreachable!("the suite draws none"),
    }
}

/// Random numbers such that sums of 30 of them are exact: multiples of 1/16 up to 4, whole numbers for bf16,
/// which has 8 bits; integers up to 8, so that no such sum leaves u8.
pub fn numbers(rng: &mut Rng, count: usize, dtype: DType) -> Vec<f64> {
    let number = |rng: &mut Rng| match dtype {
        DType::U8 | DType::U32 => rng.between(0, 8) as f64,
        DType::I16 | DType::I32 | DType::I64 => rng.between(-8, 8) as f64,
        DType::BF16 => rng.between(-4, 4) as f64,
        DType::F8E4M3 | DType::F16 | DType::F32 | DType::F64 | DType::Block(_) => {
            rng.between(-64, 64) as f64 / 16.0
        }
    };
    (0..count).map(|_| number(rng)).collect()
}

/// Random elements of a shape in a layout.
fn laid_out(rng: &mut Rng, dims: &[usize], layout: Layout, dtype: DType, device: &Device) -> Pair {
    let rank = dims.len();
    let mut stored = dims.to_vec();
    match layout {
        Layout::Contiguous => {}
        Layout::Permuted => stored.reverse(),
        // Every second axis repeats.
        Layout::Repeated => stored.iter_mut().step_by(2).for_each(|d| *d = 1),
        Layout::Sliced => stored.iter_mut().for_each(|d| *d += 2),
    }
    let values = numbers(rng, stored.iter().product(), dtype);
    let (mut ours, mut theirs) = pair(&values, &stored, dtype, device);
    match layout {
        Layout::Contiguous => {}
        Layout::Permuted => {
            let axes: Vec<usize> = (0..rank).rev().collect();
            (ours, theirs) = (ours.permute(axes.clone()).unwrap(), theirs.permute(axes).unwrap());
        }
        Layout::Repeated => {
            (ours, theirs) = (ours.broadcast_as(dims).unwrap(), theirs.broadcast_as(dims).unwrap());
        }
        Layout::Sliced => {
            for (axis, len) in dims.iter().enumerate() {
                ours = ours.narrow(axis, 1, *len).unwrap();
                theirs = theirs.narrow(axis, 1, *len).unwrap();
            }
        }
    }
    (ours, theirs)
}

impl Input {
    pub fn new(seed: u64, dims: &[usize], layout: Layout, dtype: DType, device: &Device) -> Input {
        let rng = &mut Rng::new(seed);
        let (x, x_theirs) = laid_out(rng, dims, layout, dtype, device);
        let (y, y_theirs) = laid_out(rng, dims, Layout::Contiguous, dtype, device);
        let width = dims.last().copied().unwrap_or(1);
        let (row, row_theirs) = laid_out(rng, &[width], Layout::Contiguous, dtype, device);
        let mut integers = |dims: &[usize], below: usize, dtype: DType| {
            let count = dims.iter().product();
            let values: Vec<f64> = (0..count).map(|_| rng.below(below) as f64).collect();
            pair(&values, dims, dtype, device)
        };
        let (mask, mask_theirs) = integers(dims, 2, DType::U8);
        let wide = if device.is_cpu() { DType::I64 } else { DType::U32 };
        let smallest = dims.iter().copied().filter(|d| *d > 0).min().unwrap_or(1);
        let (ids, ids_theirs) = integers(&[3], smallest, DType::U32);
        let (first, first_theirs) = integers(dims, dims.first().copied().unwrap_or(1), wide);
        let (last, last_theirs) = integers(dims, width, DType::U8);
        Input {
            name: format!("{} {dims:?} {layout:?}", dtype.as_str()),
            ours: In { x, y, row, mask, ids, first, last },
            theirs: In {
                x: x_theirs,
                y: y_theirs,
                row: row_theirs,
                mask: mask_theirs,
                ids: ids_theirs,
                first: first_theirs,
                last: last_theirs,
            },
        }
    }
}

/// The indices of `tensor.i(..)` must be usable on both sides; this is the compile-time proof.
#[allow(dead_code)]
fn indexing_takes_what_candle_takes(tensor: &tallow::Tensor) -> tallow::Result<()> {
    tensor.i((.., 1.., ..=2, 0..1, 3, &[0u32, 1][..], vec![0u32]))?;
    tensor.i(tensor)?;
    Ok(())
}
