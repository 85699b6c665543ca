//! Softmax attention.

use rayon::prelude::*;
use tallow_ir::DType;

use super::matmul::dot;
use crate::layout::Layout;
use crate::view::View;

/// `softmax(scale * q k^T) v` per head, for `q: [H, S, D]`, `k: [G, T, D]`, `v: [G, T, E]`.
///
/// Head `h` uses key head `h / (H/G)`. Causal: query `i` sees keys `j <= i + (T - S)`. A query that sees no
/// key gives zeros.
pub fn attention(dtype: DType, scale: f64, causal: bool, q: &View, k: &View, v: &View) -> View {
    let (heads, queries, depth) = (q.shape()[0], q.shape()[1], q.shape()[2]);
    let (key_heads, keys, width) = (v.shape()[0], v.shape()[1], v.shape()[2]);
    let group = heads / key_heads.max(1);
    let mut out = vec![0.0; heads * queries * width];
    let per_head = |(head, out): (usize, &mut [f64])| {
        let (q, k, v) = (matrix(q, head), matrix(k, head / group), matrix(v, head / group));
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            let visible = if causal { (i + 1 + keys).saturating_sub(queries).min(keys) } else { keys };
            let query = &q[i * depth..][..depth];
            let scores: Vec<f64> =
                (0..visible).map(|j| scale * dot(query, &k[j * depth..][..depth])).collect();
            // Subtracting the largest score changes nothing but keeps the exponentials finite.
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (j, weight) in weights.iter().enumerate() {
                for (slot, x) in out.iter_mut().zip(&v[j * width..][..width]) {
                    *slot += weight / total * x;
                }
            }
        }
    };
    if queries * width > 0 {
        out.par_chunks_mut(queries * width).enumerate().for_each(per_head);
    }
    View::fill_f64(dtype, &[heads, queries, width], |start, part| {
        part.copy_from_slice(&out[start..start + part.len()]);
    })
}

/// The matrix at index `i` of the first axis.
fn matrix(a: &View, i: usize) -> Vec<f64> {
    let slice = a.layout.slice(0, i, 1);
    let layout = Layout { offset: slice.offset, ..slice.permute(&[1, 2]) };
    a.with_layout(layout).to_f64s()
}
