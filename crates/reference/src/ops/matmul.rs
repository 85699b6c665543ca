//! Matrix products: the naive loops that define them, and two faster ways for the sizes that need them.
//!
//! All accumulate in f64 and round once. Which way is taken depends on the extents alone, never on how the
//! operands lie in memory, so that a rewrite of the views around a product cannot change its bits.

use ndarray::{ArrayView2, ArrayViewMut2};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use tallow_ir::DType;

use crate::array::Data;
use crate::layout::Layout;
use crate::view::View;

/// Products of fewer multiplications than this take the naive loops.
const SMALL: usize = 16 * 1024;
/// With fewer rows than this, packing `b` for a blocked product costs more than it saves.
const FEW_ROWS: usize = 8;
/// Columns of `b` that are held in f64 at a time.
const PANEL: usize = 64;

/// `(a: [.., M, K], b: [.., K, N])` -> `[.., M, N]`, where leading axes of extent 1 repeat.
pub fn matmul(dtype: DType, a: &View, b: &View, shape: &[usize]) -> View {
    if !dtype.is_float() {
        return matmul_int(dtype, a, b, shape);
    }
    let k = a.shape()[a.shape().len() - 1];
    let work = shape.iter().product::<usize>().saturating_mul(k);
    if work <= SMALL { matmul_naive(dtype, a, b, shape) } else { matmul_fast(dtype, a, b, shape) }
}

/// The definition: for each element, the sum of products in the order of `k`, in f64.
pub fn matmul_naive(dtype: DType, a: &View, b: &View, shape: &[usize]) -> View {
    let (m, n) = last_two(shape);
    let k = a.shape()[shape.len() - 1];
    let mut out = Vec::with_capacity(shape.iter().product());
    for (a, b) in batches(a, b, shape) {
        let (a, b) = (a.to_f64s(), b.to_f64s());
        for row in 0..m {
            for column in 0..n {
                let mut sum = 0.0;
                for i in 0..k {
                    sum += a[row * k + i] * b[i * n + column];
                }
                out.push(sum);
            }
        }
    }
    rounded(dtype, shape, &out)
}

/// Integers: the same sum, wrapping.
fn matmul_int(dtype: DType, a: &View, b: &View, shape: &[usize]) -> View {
    let (m, n) = last_two(shape);
    let k = a.shape()[shape.len() - 1];
    let mut out: Vec<i64> = Vec::with_capacity(shape.iter().product());
    for (a, b) in batches(a, b, shape) {
        let (mut left, mut right) = (vec![0; m * k], vec![0; k * n]);
        a.read_i64(0, &mut left);
        b.read_i64(0, &mut right);
        for row in 0..m {
            for column in 0..n {
                let products = (0..k).map(|i| left[row * k + i].wrapping_mul(right[i * n + column]));
                out.push(products.fold(0, i64::wrapping_add));
            }
        }
    }
    View::fill_i64(dtype, shape, |start, part| part.copy_from_slice(&out[start..start + part.len()]))
}

/// The same product with sums in another order.
pub fn matmul_fast(dtype: DType, a: &View, b: &View, shape: &[usize]) -> View {
    let (m, n) = last_two(shape);
    let mut out = vec![0.0; shape.iter().product()];
    if m == 0 || n == 0 {
        return rounded(dtype, shape, &out);
    }
    for ((a, b), out) in batches(a, b, shape).zip(out.chunks_exact_mut(m * n)) {
        let left = a.to_f64s();
        let product = if m < FEW_ROWS { by_dot_products } else { by_panels };
        product(&left, &b, out);
    }
    rounded(dtype, shape, &out)
}

/// Few rows: one dot product an element. A column that lies without gaps, as those of a transposed weight
/// do, is read where it is.
fn by_dot_products(left: &[f64], b: &View, out: &mut [f64]) {
    let (k, n) = (b.shape()[0], b.shape()[1]);
    let m = out.len() / n;
    let columns = b.with_layout(b.layout.permute(&[1, 0]));
    let mut by_column = vec![0.0; n * m];
    let arch = Arch::new();
    by_column.par_chunks_mut(m * PANEL).enumerate().for_each(|(p, sums)| {
        let first = p * PANEL;
        let count = sums.len() / m;
        match (&columns.data, columns.layout.strides[1]) {
            (Data::F32(v), 1) => {
                for (c, sums) in sums.chunks_exact_mut(m).enumerate() {
                    let start = columns.layout.position((first + c) * k) as usize;
                    arch.dispatch(Dots { left, column: &v[start..start + k], sums });
                }
            }
            (Data::F32(_) | Data::F64(_) | Data::Int(_) | Data::Blocks(_), _) => {
                let panel = panel(&columns, first, count);
                for (column, sums) in panel.chunks_exact(k).zip(sums.chunks_exact_mut(m)) {
                    arch.dispatch(Dots { left, column, sums });
                }
            }
        }
    });
    for (i, sum) in by_column.iter().enumerate() {
        out[(i % m) * n + i / m] = *sum;
    }
}

/// The dot products of each row of `left` with `column`, compiled for the widest vectors of this processor. Operations
/// and their order are the same on all, so the results are.
struct Dots<'a, T> {
    left: &'a [f64],
    column: &'a [T],
    sums: &'a mut [f64],
}

impl<T: Copy + Into<f64>> WithSimd for Dots<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (row, sum) in self.left.chunks_exact(self.column.len()).zip(self.sums) {
            *sum = dot(row, self.column);
        }
    }
}

/// Sums of a dot product that are formed side by side. So many that compilers keep the loop over them, which they then
/// compile to vectors; over eight they unroll it first, and find none.
const LANES: usize = 64;

/// A dot product as [`LANES`] sums.
///
/// Inlined, so that it is compiled for the vectors of its caller.
#[inline(always)]
pub fn dot<T: Copy + Into<f64>>(a: &[f64], b: &[T]) -> f64 {
    let (whole_a, rest_a) = a.as_chunks::<LANES>();
    let (whole_b, rest_b) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (a, b) in whole_a.iter().zip(whole_b) {
        for ((sum, x), y) in sums.iter_mut().zip(a).zip(b) {
            *sum += x * (*y).into();
        }
    }
    for ((sum, x), y) in sums.iter_mut().zip(rest_a).zip(rest_b) {
        *sum += x * (*y).into();
    }
    sums.iter().sum()
}

/// Many rows: a blocked product for each panel of columns.
fn by_panels(left: &[f64], b: &View, out: &mut [f64]) {
    let (k, n) = (b.shape()[0], b.shape()[1]);
    let m = out.len() / n;
    let columns = b.with_layout(b.layout.permute(&[1, 0]));
    let left = view(left, m, k);
    let starts: Vec<usize> = (0..n).step_by(PANEL).collect();
    let products: Vec<Vec<f64>> = starts
        .par_iter()
        .map(|&first| {
            let count = PANEL.min(n - first);
            let panel = panel(&columns, first, count);
            let mut product = vec![0.0; m * count];
            let mut target = ArrayViewMut2::from_shape((m, count), &mut product)
                .expect("invariant: the buffer has m * count elements");
            ndarray::linalg::general_mat_mul(1.0, &left, &view(&panel, count, k).t(), 0.0, &mut target);
            product
        })
        .collect();
    for (first, product) in starts.iter().zip(&products) {
        let count = product.len() / m;
        for (row, part) in product.chunks_exact(count).enumerate() {
            out[row * n + first..][..count].copy_from_slice(part);
        }
    }
}

/// `count` rows of `columns` from `first`, in f64 without gaps.
fn panel(columns: &View, first: usize, count: usize) -> Vec<f64> {
    let k = columns.shape()[1];
    let rows = columns.layout.slice(0, first, count);
    let mut out = vec![0.0; count * k];
    if rows.strides[1] == 1 || rows.strides[0] != 1 {
        columns.with_layout(rows).read_f64(0, &mut out);
        return out;
    }
    // Neighbours in memory are neighbours across columns: read along those.
    let mut across = vec![0.0; count];
    let transposed = columns.with_layout(rows.permute(&[1, 0]));
    for i in 0..k {
        transposed.read_f64(i * count, &mut across);
        for (c, x) in across.iter().enumerate() {
            out[c * k + i] = *x;
        }
    }
    out
}

fn view(data: &[f64], rows: usize, columns: usize) -> ArrayView2<'_, f64> {
    ArrayView2::from_shape((rows, columns), data).expect("invariant: the buffer has rows * columns elements")
}

fn last_two(shape: &[usize]) -> (usize, usize) {
    (shape[shape.len() - 2], shape[shape.len() - 1])
}

/// The pairs of matrices that the leading axes of the result `shape` run through.
fn batches(a: &View, b: &View, shape: &[usize]) -> impl Iterator<Item = (View, View)> {
    let rank = shape.len();
    let lead = &shape[..rank - 2];
    let matrices = move |v: &View| {
        let matrix = v.shape()[rank - 2..].to_vec();
        let all = v.with_layout(v.layout.broadcast(&[lead, matrix.as_slice()].concat()));
        let axes: Vec<usize> = (0..rank).collect();
        let outer = all.layout.permute(&axes[..rank - 2]);
        let inner = all.layout.permute(&axes[rank - 2..]);
        move |i: usize| all.with_layout(Layout { offset: outer.position(i), ..inner.clone() })
    };
    let (a, b) = (matrices(a), matrices(b));
    (0..lead.iter().product()).map(move |i| (a(i), b(i)))
}

fn rounded(dtype: DType, shape: &[usize], exact: &[f64]) -> View {
    View::fill_f64(dtype, shape, |start, out| out.copy_from_slice(&exact[start..start + out.len()]))
}
