//! A value during a run: shared data seen through a layout.

use std::sync::Arc;

use rayon::prelude::*;
use tallow_ir::DType;

use crate::array::{Array, Blocks, Data};
use crate::layout::Layout;

/// Elements that are computed at a time: a few buffers of this length stay in the first-level cache.
pub const CHUNK: usize = 1024;

/// A tensor whose elements may be permuted, repeated, cut or reversed.
#[derive(Clone, Debug)]
pub struct View {
    /// Element type.
    pub dtype: DType,
    /// Where element i lies in `data`.
    pub layout: Layout,
    /// The buffer, which may hold more than this tensor.
    pub data: Data,
}

impl View {
    /// All of a buffer.
    pub fn packed(dtype: DType, shape: &[usize], data: Data) -> Self {
        View { dtype, layout: Layout::packed(shape), data }
    }

    /// A tensor of a float type. `fill` writes elements `start ..` of it to a slice of at most [`CHUNK`];
    /// they are rounded to `dtype` here, the only place that rounds a node's result.
    pub fn fill_f64(dtype: DType, shape: &[usize], fill: impl Fn(usize, &mut [f64]) + Sync) -> Self {
        let n = shape.iter().product();
        let data = if dtype == DType::F64 {
            let mut data = vec![0f64; n];
            each_chunk(&mut data, fill);
            Data::F64(Arc::new(data))
        } else {
            let mut data = vec![0f32; n];
            each_chunk(&mut data, |start, out| {
                let mut exact = [0f64; CHUNK];
                let exact = &mut exact[..out.len()];
                fill(start, exact);
                for (slot, x) in out.iter_mut().zip(exact) {
                    *slot = tallow_ir::round::float(dtype, *x) as f32;
                }
            });
            Data::F32(Arc::new(data))
        };
        View::packed(dtype, shape, data)
    }

    /// A tensor of an integer type. `fill` writes as in [`View::fill_f64`]; elements are wrapped here.
    pub fn fill_i64(dtype: DType, shape: &[usize], fill: impl Fn(usize, &mut [i64]) + Sync) -> Self {
        let mut data = vec![0i64; shape.iter().product()];
        each_chunk(&mut data, |start, out| {
            fill(start, out);
            for slot in out {
                *slot = tallow_ir::round::int(dtype, *slot);
            }
        });
        View::packed(dtype, shape, Data::Int(Arc::new(data)))
    }

    /// The extents.
    pub fn shape(&self) -> &[usize] {
        &self.layout.shape
    }

    /// The same data through another layout.
    pub fn with_layout(&self, layout: Layout) -> View {
        View { dtype: self.dtype, layout, data: self.data.clone() }
    }

    /// Writes elements `start ..` to `out` as f64.
    pub fn read_f64(&self, start: usize, out: &mut [f64]) {
        match &self.data {
            Data::F32(v) => copy_out(&self.layout, v, start, out, f64::from),
            Data::F64(v) => copy_out(&self.layout, v, start, out, |x| x),
            Data::Int(v) => copy_out(&self.layout, v, start, out, |x| x as f64),
            Data::Blocks(b) => copy_out(&self.layout, &b.values(), start, out, f64::from),
        }
    }

    /// Writes elements `start ..` of an integer tensor to `out`; of a float tensor, truncated.
    pub fn read_i64(&self, start: usize, out: &mut [i64]) {
        match &self.data {
            Data::Int(v) => copy_out(&self.layout, v, start, out, |x| x),
            Data::F32(v) => copy_out(&self.layout, v, start, out, |x| x as i64),
            Data::F64(v) => copy_out(&self.layout, v, start, out, |x| x as i64),
            Data::Blocks(b) => copy_out(&self.layout, &b.values(), start, out, |x| x as i64),
        }
    }

    /// All elements as f64.
    pub fn to_f64s(&self) -> Vec<f64> {
        let mut out = vec![0.0; self.layout.len()];
        self.read_f64(0, &mut out);
        out
    }

    /// The tensor in row-major order without gaps, filling its buffer; copies only if it is not.
    ///
    /// The view is consumed, so that a buffer that nobody else holds stays without another holder.
    pub fn into_packed(self) -> View {
        let len = match &self.data {
            Data::F32(v) => v.len(),
            Data::F64(v) => v.len(),
            Data::Int(v) => v.len(),
            // Blocks have no layout but the packed one.
            Data::Blocks(_) => return self,
        };
        if self.layout.is_packed() && self.layout.offset == 0 && len == self.layout.len() {
            return self;
        }
        let data = match &self.data {
            Data::F32(v) => Data::F32(Arc::new(copied(&self.layout, v))),
            Data::F64(v) => Data::F64(Arc::new(copied(&self.layout, v))),
            Data::Int(v) => Data::Int(Arc::new(copied(&self.layout, v))),
            Data::Blocks(b) => Data::Blocks(b.clone()),
        };
        View::packed(self.dtype, self.shape(), data)
    }

    /// The tensor as a result of the run.
    pub fn into_array(self) -> Array {
        let packed = self.into_packed();
        Array { ty: packed.dtype, shape: packed.layout.shape, data: packed.data }
    }

    /// An array as a value.
    pub fn from_array(array: &Array) -> View {
        View::packed(array.ty, &array.shape, array.data.clone())
    }
}

/// Calls `fill` with each chunk and the number of its first element; on all cores if there are many.
fn each_chunk<T: Send>(data: &mut [T], fill: impl Fn(usize, &mut [T]) + Sync) {
    if data.len() <= 16 * CHUNK {
        data.chunks_mut(CHUNK).enumerate().for_each(|(c, out)| fill(c * CHUNK, out));
    } else {
        data.par_chunks_mut(CHUNK).enumerate().for_each(|(c, out)| fill(c * CHUNK, out));
    }
}

fn copy_out<T: Copy, U>(layout: &Layout, data: &[T], start: usize, out: &mut [U], convert: impl Fn(T) -> U) {
    let mut done = 0;
    layout.runs(start, out.len(), |run| {
        let part = &mut out[done..done + run.count];
        done += run.count;
        match run.stride {
            1 => {
                let from = run.at(0);
                for (slot, x) in part.iter_mut().zip(&data[from..from + run.count]) {
                    *slot = convert(*x);
                }
            }
            _ => {
                for (i, slot) in part.iter_mut().enumerate() {
                    *slot = convert(data[run.at(i)]);
                }
            }
        }
    });
}

fn copied<T: Copy>(layout: &Layout, data: &[T]) -> Vec<T> {
    let mut out = Vec::with_capacity(layout.len());
    layout.runs(0, layout.len(), |run| match run.stride {
        1 => out.extend_from_slice(&data[run.at(0)..run.at(0) + run.count]),
        _ => out.extend((0..run.count).map(|i| data[run.at(i)])),
    });
    out
}

/// Writes the elements of `from` to the box `to` of `data`. Both are of one type and shape.
pub fn write_box(data: &mut Data, to: &Layout, from: &View) {
    match (data, &from.data) {
        (Data::F32(out), Data::F32(src)) => write(out, to, src, &from.layout),
        (Data::F64(out), Data::F64(src)) => write(out, to, src, &from.layout),
        (Data::Int(out), Data::Int(src)) => write(out, to, src, &from.layout),
        (Data::Blocks(out), Data::Blocks(src)) => write_blocks(out, to, src, &from.layout),
        (Data::F32(_) | Data::F64(_) | Data::Int(_) | Data::Blocks(_), _) => {
            unreachable!("invariant: both are of one type")
        }
    }
}

/// Blocks have no layout but the packed one, of which this may be some rows, and the box is of whole blocks along the
/// last axis.
fn write_blocks(out: &mut Arc<Blocks>, to: &Layout, src: &Blocks, from: &Layout) {
    let row = to.shape.last().copied().unwrap_or(1);
    if row == 0 {
        return;
    }
    let out = Arc::make_mut(out);
    for start in (0..to.len()).step_by(row) {
        let mut done = from.position(start) as usize;
        to.runs(start, row, |run| {
            out.overwrite(run.at(0), src, done, run.count);
            done += run.count;
        });
    }
}

fn write<T: Copy>(out: &mut Arc<Vec<T>>, to: &Layout, src: &[T], from: &Layout) {
    // Row by row along the last axis, so that runs of both sides have one length.
    let row = to.shape.last().copied().unwrap_or(1);
    if row == 0 {
        return;
    }
    let source = copied(from, src);
    let out = Arc::make_mut(out);
    for (r, part) in source.chunks_exact(row).enumerate() {
        let mut done = 0;
        to.runs(r * row, row, |run| {
            for i in 0..run.count {
                out[run.at(i)] = part[done + i];
            }
            done += run.count;
        });
    }
}
