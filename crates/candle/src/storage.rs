//! Candle's host storage, read and written through any layout.
//!
//! A layout is cut into runs: elements that lie a fixed distance apart. The last axes that are contiguous are one run,
//! so a contiguous tensor is copied at once, and a transposed one row by row.

use std::borrow::Cow;

use bytemuck::{AnyBitPattern, NoUninit, Zeroable};
use candle_core::{CpuStorage, Layout};
use float8::F8E4M3;
use half::{bf16, f16};
use tallow::DType;

use crate::error::fail;

/// Elements that lie `stride` apart.
struct StridedRun {
    start: usize,
    count: usize,
    stride: usize,
}

/// Calls `each` with the runs of a layout, in row-major order.
fn runs(
    layout: &Layout,
    mut each: impl FnMut(StridedRun) -> candle_core::Result<()>,
) -> candle_core::Result<()> {
    let (dims, strides) = (layout.dims(), layout.stride());
    if dims.contains(&0) {
        return Ok(());
    }
    // The last axes that follow each other without a gap; an axis of one element lies anywhere.
    let (mut outer, mut count) = (dims.len(), 1);
    while outer > 0 && (dims[outer - 1] == 1 || strides[outer - 1] == count) {
        outer -= 1;
        count *= dims[outer];
    }
    let mut stride = 1;
    if count == 1 && outer > 0 {
        outer -= 1;
        (count, stride) = (dims[outer], strides[outer]);
    }
    let mut index = vec![0; outer];
    let mut start = layout.start_offset();
    loop {
        each(StridedRun { start, count, stride })?;
        // The next row: the last axis that has one left, those behind it start over.
        let Some(axis) = (0..outer).rev().find(|axis| index[*axis] + 1 < dims[*axis]) else { return Ok(()) };
        index[axis] += 1;
        start += strides[axis];
        for later in axis + 1..outer {
            start -= index[later] * strides[later];
            index[later] = 0;
        }
    }
}

/// A type of elements in Candle's storage.
trait Element: Copy {
    const SIZE: usize;

    /// Writes the little-endian bytes, of which there is room for [`Element::SIZE`].
    fn put(self, bytes: &mut [u8]);

    /// The element of [`Element::SIZE`] little-endian bytes.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! elements {
    ($($rust:ty),*) => {$(
        impl Element for $rust {
            const SIZE: usize = size_of::<$rust>();

            fn put(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }

            fn get(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<$rust>()];
                array.copy_from_slice(bytes);
                <$rust>::from_le_bytes(array)
            }
        }
    )*};
}
elements!(u8, u32, i16, i32, i64, bf16, f16, f32, f64);

impl Element for F8E4M3 {
    const SIZE: usize = 1;

    fn put(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&[self.to_bits()]);
    }

    fn get(bytes: &[u8]) -> Self {
        F8E4M3::from_bits(bytes[0])
    }
}

const OUTSIDE: &str = "a tensor's layout reaches beyond its storage";

fn last_of(run: &StridedRun) -> usize {
    run.start + (run.count - 1) * run.stride
}

/// Copies elements in row-major order to `bytes`, which are as many as the layout has.
fn gather<T: Element>(values: &[T], layout: &Layout, bytes: &mut [u8]) -> candle_core::Result<()> {
    let mut at = 0;
    runs(layout, |run| {
        let end = at + run.count * T::SIZE;
        let Some(to) = bytes.get_mut(at..end).filter(|_| last_of(&run) < values.len()) else {
            return fail(OUTSIDE);
        };
        at = end;
        let from = values[run.start..].iter().step_by(run.stride.max(1));
        match run.stride {
            // One element, repeated.
            0 => to.chunks_exact_mut(T::SIZE).for_each(|out| values[run.start].put(out)),
            1 => {
                let from = &values[run.start..run.start + run.count];
                from.iter().zip(to.chunks_exact_mut(T::SIZE)).for_each(|(value, out)| value.put(out));
            }
            _ => from.zip(to.chunks_exact_mut(T::SIZE)).for_each(|(value, out)| value.put(out)),
        }
        Ok(())
    })
}

/// Copies elements in row-major order from `bytes` to where the layout puts them.
fn scatter<T: Element>(values: &mut [T], layout: &Layout, bytes: &[u8]) -> candle_core::Result<()> {
    if layout.shape().elem_count() * T::SIZE != bytes.len() {
        return fail(OUTSIDE);
    }
    if layout.dims().iter().zip(layout.stride()).any(|(extent, stride)| *extent > 1 && *stride == 0) {
        return fail("a tensor that repeats its elements is not written in place");
    }
    // Looked at once before, so that a wrong layout leaves the tensor as it is.
    runs(layout, |run| if last_of(&run) < values.len() { Ok(()) } else { fail(OUTSIDE) })?;
    let mut from = bytes.chunks_exact(T::SIZE);
    runs(layout, |run| {
        let to = values[run.start..].iter_mut().step_by(run.stride.max(1)).take(run.count);
        to.zip(&mut from).for_each(|(value, bytes)| *value = T::get(bytes));
        Ok(())
    })
}

/// Does the same for each type of elements that both sides have.
macro_rules! for_storage {
    ($storage:expr, $values:ident => $body:expr) => {
        match $storage {
            CpuStorage::U8($values) => $body,
            CpuStorage::U32($values) => $body,
            CpuStorage::I16($values) => $body,
            CpuStorage::I32($values) => $body,
            CpuStorage::I64($values) => $body,
            CpuStorage::BF16($values) => $body,
            CpuStorage::F16($values) => $body,
            CpuStorage::F32($values) => $body,
            CpuStorage::F64($values) => $body,
            CpuStorage::F8E4M3($values) => $body,
            CpuStorage::F6E2M3(_) | CpuStorage::F6E3M2(_) | CpuStorage::F4(_) | CpuStorage::F8E8M0(_) => {
                fail("Tallow has no such element type")
            }
        }
    };
}

/// The element type of a storage.
pub(crate) fn dtype_of(storage: &CpuStorage) -> candle_core::Result<DType> {
    use candle_core::backend::BackendStorage;
    crate::dtype::dtype(storage.dtype())
}

fn borrowed<'a, T: NoUninit>(values: &'a [T], layout: &Layout) -> Option<&'a [u8]> {
    let (start, end) = layout.contiguous_offsets().filter(|_| cfg!(target_endian = "little"))?;
    values.get(start..end).map(bytemuck::cast_slice)
}

/// The bytes where they are, if they lie as they are wanted.
fn in_place<'a>(storage: &'a CpuStorage, layout: &Layout) -> Option<&'a [u8]> {
    match storage {
        CpuStorage::U8(values) => borrowed(values, layout),
        CpuStorage::U32(values) => borrowed(values, layout),
        CpuStorage::I16(values) => borrowed(values, layout),
        CpuStorage::I32(values) => borrowed(values, layout),
        CpuStorage::I64(values) => borrowed(values, layout),
        CpuStorage::BF16(values) => borrowed(values, layout),
        CpuStorage::F16(values) => borrowed(values, layout),
        CpuStorage::F32(values) => borrowed(values, layout),
        CpuStorage::F64(values) => borrowed(values, layout),
        CpuStorage::F8E4M3(_)
        | CpuStorage::F6E2M3(_)
        | CpuStorage::F6E3M2(_)
        | CpuStorage::F4(_)
        | CpuStorage::F8E8M0(_) => None,
    }
}

/// Copies the elements that a layout picks, in row-major order and little-endian.
pub(crate) fn write_to(storage: &CpuStorage, layout: &Layout, bytes: &mut [u8]) -> candle_core::Result<()> {
    if let Some(there) = in_place(storage, layout).filter(|there| there.len() == bytes.len()) {
        copy(bytes, there);
        return Ok(());
    }
    for_storage!(storage, values => gather(values, layout, bytes))
}

/// [`write_to`] of a slice.
pub(crate) fn write_floats(values: &[f32], layout: &Layout, bytes: &mut [u8]) -> candle_core::Result<()> {
    gather(values, layout, bytes)
}

/// Replaces the elements that a layout picks.
pub(crate) fn replace(storage: &mut CpuStorage, layout: &Layout, bytes: &[u8]) -> candle_core::Result<()> {
    for_storage!(storage, values => scatter(values, layout, bytes))
}

/// The bytes of the elements that a layout picks, row-major and little-endian; not copied if they lie so.
pub(crate) fn bytes<'a>(storage: &'a CpuStorage, layout: &Layout) -> candle_core::Result<Cow<'a, [u8]>> {
    if let Some(there) = in_place(storage, layout) {
        return Ok(Cow::Borrowed(there));
    }
    let size = dtype_of(storage)?.size().unwrap_or(1);
    let mut bytes = vec![0; layout.shape().elem_count() * size];
    write_to(storage, layout, &mut bytes)?;
    Ok(Cow::Owned(bytes))
}

/// Bytes that are worth a thread.
const PARALLEL_STEP: usize = 1 << 20;

/// Threads that fill the bandwidth of a host's memory.
const MAX_THREADS: usize = 8;

/// Copies by several threads where there is much: one alone fills neither the memory's bandwidth nor, with pages that
/// are touched for the first time, its own.
fn copy(to: &mut [u8], from: &[u8]) {
    if from.len() <= PARALLEL_STEP {
        to.copy_from_slice(from);
        return;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let step = from.len().div_ceil(cores).max(PARALLEL_STEP);
    std::thread::scope(|scope| {
        for (to, from) in to.chunks_mut(step).zip(from.chunks(step)) {
            scope.spawn(|| to.copy_from_slice(from));
        }
    });
}

/// Elements of row-major little-endian bytes.
fn read<T: Element + NoUninit + AnyBitPattern + Zeroable>(bytes: &[u8]) -> Vec<T> {
    if cfg!(target_endian = "big") {
        return bytes.chunks_exact(T::SIZE).map(T::get).collect();
    }
    let mut values = vec![T::zeroed(); bytes.len() / T::SIZE];
    copy(bytemuck::cast_slice_mut(&mut values), bytes);
    values
}

/// Storage of row-major little-endian bytes.
pub(crate) fn from_bytes(dtype: DType, bytes: &[u8]) -> candle_core::Result<CpuStorage> {
    Ok(match dtype {
        DType::U8 => CpuStorage::U8(read(bytes)),
        DType::U32 => CpuStorage::U32(read(bytes)),
        DType::I16 => CpuStorage::I16(read(bytes)),
        DType::I32 => CpuStorage::I32(read(bytes)),
        DType::I64 => CpuStorage::I64(read(bytes)),
        DType::BF16 => CpuStorage::BF16(read(bytes)),
        DType::F16 => CpuStorage::F16(read(bytes)),
        DType::F32 => CpuStorage::F32(read(bytes)),
        DType::F64 => CpuStorage::F64(read(bytes)),
        DType::F8E4M3 => CpuStorage::F8E4M3(bytes.iter().map(|b| F8E4M3::from_bits(*b)).collect()),
        DType::Block(format) => return fail(format!("a Candle tensor holds no {format} blocks")),
    })
}

/// A tensor on Candle's CPU.
pub(crate) fn tensor(storage: CpuStorage, dims: &[usize]) -> candle_core::Result<candle_core::Tensor> {
    let cpu = &candle_core::Device::Cpu;
    match storage {
        CpuStorage::U8(values) => candle_core::Tensor::from_vec(values, dims, cpu),
        CpuStorage::U32(values) => candle_core::Tensor::from_vec(values, dims, cpu),
        CpuStorage::I16(values) => candle_core::Tensor::from_vec(values, dims, cpu),
        CpuStorage::I32(values) => candle_core::Tensor::from_vec(values, dims, cpu),
        CpuStorage::I64(values) => candle_core::Tensor::from_vec(values, dims, cpu),
        CpuStorage::BF16(values) => candle_core::Tensor::from_vec(values, dims, cpu),
        CpuStorage::F16(values) => candle_core::Tensor::from_vec(values, dims, cpu),
        CpuStorage::F32(values) => candle_core::Tensor::from_vec(values, dims, cpu),
        CpuStorage::F64(values) => candle_core::Tensor::from_vec(values, dims, cpu),
        CpuStorage::F8E4M3(values) => candle_core::Tensor::from_vec(values, dims, cpu),
        CpuStorage::F6E2M3(_) | CpuStorage::F6E3M2(_) | CpuStorage::F4(_) | CpuStorage::F8E8M0(_) => {
            fail("Tallow has no such element type")
        }
    }
}
