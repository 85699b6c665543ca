//! Softmax attention.

use rayon::prelude::*;
use tallow_ir::{Attention, DType};

use super::matmul::dot;
use crate::layout::Layout;
use crate::view::View;

/// `softmax(scale * q k^T + bias) v` per head, for the operands `q: [H, S, D]`, `k: [G, T, D]`, `v: [G, T, E]`, a bias of
/// extents `H`, `S`, `T` or 1, and `sinks: [H]`; [`Attention`] says what its attributes do, and which operands there are.
pub fn attention(dtype: DType, attrs: &Attention, operands: &[View]) -> View {
    let [q, k, v] = [&operands[0], &operands[1], &operands[2]];
    let [bias, sinks] = attrs.bias_and_sinks(operands);
    let (heads, queries, depth) = (q.shape()[0], q.shape()[1], q.shape()[2]);
    let (key_heads, keys, width) = (v.shape()[0], v.shape()[1], v.shape()[2]);
    let group = heads / key_heads.max(1);
    let (bias, sinks) = (bias.map(Bias::of), sinks.map(View::to_f64s));
    let mut out = vec![0.0; heads * queries * width];
    let per_head = |(head, out): (usize, &mut [f64])| {
        let (q, k, v) = (matrix(q, head), matrix(k, head / group), matrix(v, head / group));
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            // Keys up to the query's own position; none where queries outnumber keys.
            let visible = (i + 1 + keys).saturating_sub(queries);
            let end = if attrs.causal { visible } else { keys };
            let start = attrs.window.map_or(0, |w| visible.saturating_sub(w as usize));
            let query = &q[i * depth..][..depth];
            let score = |j: usize| {
                let mut score = attrs.scale.as_f64() * dot(query, &k[j * depth..][..depth]);
                if let Some(cap) = attrs.softcap {
                    score = cap.as_f64() * (score / cap.as_f64()).tanh();
                }
                score + bias.as_ref().map_or(0.0, |b| b.at(head, i, j))
            };
            let scores: Vec<f64> = (start..end).map(score).collect();
            // Subtracting the largest score changes nothing but keeps the exponentials finite.
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weight = |s: &f64| if *s == f64::NEG_INFINITY { 0.0 } else { (s - largest).exp() };
            let weights: Vec<f64> = scores.iter().map(weight).collect();
            let total: f64 = weights.iter().sum();
            // The largest weight is 1, so only a query that sees no key has no weights.
            if total == 0.0 {
                continue;
            }
            // Infinite where the sink is far above all scores: then the weights are 0.
            let total = total + sinks.as_ref().map_or(0.0, |sinks| (sinks[head] - largest).exp());
            for (j, weight) in (start..end).zip(&weights) {
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

/// What is added to scores; extents of 1 repeat.
pub(super) struct Bias {
    values: Vec<f64>,
    shape: [usize; 3],
}

impl Bias {
    pub fn of(b: &View) -> Bias {
        Bias { values: b.to_f64s(), shape: [b.shape()[0], b.shape()[1], b.shape()[2]] }
    }

    pub fn at(&self, head: usize, query: usize, key: usize) -> f64 {
        let one = |axis: usize, i: usize| if self.shape[axis] == 1 { 0 } else { i };
        self.values[(one(0, head) * self.shape[1] + one(1, query)) * self.shape[2] + one(2, key)]
    }
}

/// The matrix at index `i` of the first axis.
pub(super) fn matrix(a: &View, i: usize) -> Vec<f64> {
    let slice = a.layout.slice(0, i, 1);
    let layout = Layout { offset: slice.offset, ..slice.permute(&[1, 2]) };
    a.with_layout(layout).to_f64s()
}
