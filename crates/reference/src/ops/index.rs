//! Gather, scatter and indexed addition: elements at the positions that another tensor holds.

use std::sync::Arc;

use tallow_ir::{DType, ScatterKind};

use crate::array::Data;
use crate::layout::Layout;
use crate::view::View;

/// `src[..axis] ++ indices ++ src[axis+1..]`; indices are clamped to the axis.
pub fn gather(src: &View, indices: &View, axis: usize, shape: &[usize]) -> View {
    let mut at = vec![0; indices.layout.len()];
    indices.read_i64(0, &mut at);
    // An axis whose symbol is 0 has nothing to clamp to: then the result holds zeros.
    let last = src.shape()[axis] as i64 - 1;
    let at: Vec<usize> = at.iter().map(|i| (*i).clamp(0, last.max(0)) as usize).collect();
    let layout = &src.layout;
    let data = match &src.data {
        Data::F32(v) => Data::F32(Arc::new(pick(v, layout, axis, &at))),
        Data::F64(v) => Data::F64(Arc::new(pick(v, layout, axis, &at))),
        Data::Int(v) => Data::Int(Arc::new(pick(v, layout, axis, &at))),
        Data::Blocks(b) => Data::F32(Arc::new(pick(&b.values(), layout, axis, &at))),
    };
    View::packed(src.dtype, shape, data)
}

fn pick<T: Copy + Default>(data: &[T], layout: &Layout, axis: usize, at: &[usize]) -> Vec<T> {
    let axes: Vec<usize> = (0..layout.shape.len()).collect();
    let outer = layout.permute(&axes[..axis]);
    let inner = Layout { offset: 0, ..layout.permute(&axes[axis + 1..]) };
    let (outer_len, inner_len) = (outer.len(), inner.len());
    if layout.shape[axis] == 0 {
        return vec![T::default(); outer_len * at.len() * inner_len];
    }
    let mut out = Vec::with_capacity(outer_len * at.len() * inner_len);
    for o in 0..outer_len {
        let outer_at = outer.position(o);
        for i in at {
            let offset = outer_at + *i as isize * layout.strides[axis];
            let row = Layout { offset, ..inner.clone() };
            row.runs(0, inner_len, |run| out.extend((0..run.count).map(|j| data[run.at(j)])));
        }
    }
    out
}

/// `dst` with each `src[i]` combined into element `indices[i]`; sums of floats are kept in f64,
/// rounded to f32 once (but for f64), and then to a narrower type.
pub fn scatter(kind: ScatterKind, dst: &View, indices: &View, src: &View) -> View {
    let n = indices.layout.len();
    let mut at = vec![0; n];
    indices.read_i64(0, &mut at);
    let targets = at.iter().enumerate().filter_map(|(i, t)| Some((i, usize::try_from(*t).ok()?)));
    if dst.dtype.is_float() {
        let (mut all, from) = (dst.to_f64s(), src.to_f64s());
        for (i, target) in targets {
            if let Some(slot) = all.get_mut(target) {
                *slot = match kind {
                    ScatterKind::Add => *slot + from[i],
                    ScatterKind::Max => slot.max(from[i]),
                };
            }
        }
        // Kernels sum narrow types in f32, for which there are atomics.
        if dst.dtype != DType::F64 {
            all.iter_mut().for_each(|x| *x = f64::from(*x as f32));
        }
        return View::fill_f64(dst.dtype, dst.shape(), |start, out| {
            out.copy_from_slice(&all[start..start + out.len()])
        });
    }
    let (mut all, mut from) = (vec![0; dst.layout.len()], vec![0; n]);
    dst.read_i64(0, &mut all);
    src.read_i64(0, &mut from);
    for (i, target) in targets {
        if let Some(slot) = all.get_mut(target) {
            *slot = match kind {
                ScatterKind::Add => slot.wrapping_add(from[i]),
                ScatterKind::Max => (*slot).max(from[i]),
            };
        }
    }
    View::fill_i64(dst.dtype, dst.shape(), |start, out| out.copy_from_slice(&all[start..start + out.len()]))
}

/// `dst` with row `i` of `src` added at row `indices[i]`, in the order of `i`. Each sum is rounded to f32 (but for f64),
/// and the last one to a narrower type; integers wrap.
pub fn index_add(dst: &View, indices: &View, src: &View) -> View {
    let mut at = vec![0; indices.layout.len()];
    indices.read_i64(0, &mut at);
    let [rows, inner] = [dst.shape()[1], dst.shape()[2]];
    let extents = Extents { rows, inner };
    let dtype = dst.dtype;
    if dtype == DType::F64 {
        let all = added(dst.to_f64s(), &at, &src.to_f64s(), &extents, |a, b| a + b);
        return View::fill_f64(dtype, dst.shape(), |start, out| {
            out.copy_from_slice(&all[start..][..out.len()])
        });
    }
    if dtype.is_float() {
        let narrow = |view: &View| view.to_f64s().into_iter().map(|x| x as f32).collect::<Vec<_>>();
        let all = added(narrow(dst), &at, &narrow(src), &extents, |a, b| a + b);
        return View::fill_f64(dtype, dst.shape(), |start, out| {
            out.iter_mut().zip(&all[start..]).for_each(|(slot, x)| *slot = f64::from(*x));
        });
    }
    let read = |view: &View| {
        let mut all = vec![0; view.layout.len()];
        view.read_i64(0, &mut all);
        all
    };
    let all = added(read(dst), &at, &read(src), &extents, i64::wrapping_add);
    View::fill_i64(dtype, dst.shape(), |start, out| out.copy_from_slice(&all[start..][..out.len()]))
}

/// Rows of a target, and elements of a row.
struct Extents {
    rows: usize,
    inner: usize,
}

fn added<T: Copy>(mut all: Vec<T>, at: &[i64], from: &[T], extents: &Extents, add: fn(T, T) -> T) -> Vec<T> {
    let Extents { rows, inner } = *extents;
    if rows * inner == 0 || at.is_empty() {
        return all;
    }
    let outer = all.chunks_exact_mut(rows * inner).zip(from.chunks_exact(at.len() * inner));
    for (target, source) in outer {
        for (index, terms) in at.iter().zip(source.chunks_exact(inner)) {
            let Some(row) = usize::try_from(*index).ok().filter(|row| *row < rows) else { continue };
            let sums = target[row * inner..][..inner].iter_mut();
            sums.zip(terms).for_each(|(sum, term)| *sum = add(*sum, *term));
        }
    }
    all
}
