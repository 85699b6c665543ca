//! The gradient of attention. Scores are computed again, not stored by the forward pass.

use super::term::{Passed, Term};
use crate::attention::Attention;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::formula::Formula;
use crate::op::ReduceKind;
use crate::shape::Shape;

/// With `p = softmax(s)`, `o = p v` and the gradient `g` of `o`: `dv = p^T g`, `dp = g v^T`,
/// `ds = p (dp - sum(p dp))`, and through `s = cap(scale q k^T) + bias` to `q`, `k` and the bias. `sum(p dp)` is `sum(o g)`
/// (Dao et al., arXiv 2205.14135), which is known before `dp`: then `ds` is elementwise in it.
///
/// Query heads that share a key head are rows of one product, which sums over them. Weights and their gradients are rounded
/// to the type of the operands before they meet these, as PyTorch does: matrix instructions take 16 bits.
pub fn attention<'b>(g: Term<'b>, attrs: &Attention, operands: &[Term<'b>], result: Term<'b>) -> Passed<'b> {
    let dtype = g.dtype();
    let is_double = operands.iter().any(|t| t.dtype() == DType::F64);
    let to_wide = |t: Term<'b>| t.cast(if is_double { DType::F64 } else { DType::F32 });
    let rounded = |t: Term<'b>| to_wide(t.cast(dtype));
    let (q, k, v) = (to_wide(operands[0]), to_wide(operands[1]), to_wide(operands[2]));
    let bias = operands.get(3).map(|bias| to_wide(*bias));
    let rows = Rows::of(&q.shape(), &k.shape());
    let raw = rows.split(rows.join(q).matmul(k.transposed())) * attrs.scale.as_f64();
    let capped = attrs.softcap.map(|cap| (raw * (1.0 / cap.as_f64())).tanh());
    let mut scores = match (capped, attrs.softcap) {
        (Some(tanh), Some(cap)) => tanh * cap.as_f64(),
        _ => raw,
    };
    if let Some(bias) = bias {
        scores = scores + bias.broadcast(rows.scores.clone());
    }
    let p = rounded(weights(scores, attrs, bias.is_some()));
    let g_rows = rows.join(to_wide(g));
    let dv = rows.join(p).transposed().matmul(g_rows);
    let dp = rows.split(g_rows.matmul(v.transposed()));
    let mean = (to_wide(g) * to_wide(result)).sum_keepdim(&[2]).broadcast(rows.scores.clone());
    let ds = p.times(dp - mean);
    let d_raw = match capped {
        Some(tanh) => ds * (-(tanh * tanh) + 1.0),
        None => ds,
    };
    let d_rows = rows.join(rounded(d_raw));
    let scaled = |t: Term<'b>| t * attrs.scale.as_f64();
    let dq = scaled(d_rows.matmul(k)).reshape(q.shape());
    let dk = scaled(d_rows.transposed().matmul(rows.join(q)));
    let dbias = bias.map(|bias| ds.sum_to(&bias.shape()));
    let passed = [Some(dq), Some(dk), Some(dv), dbias];
    operands.iter().zip(passed).map(|(operand, d)| d.map(|d| d.cast(operand.dtype()))).collect()
}

/// Softmax over the keys that each query sees; 0 for a query that sees none.
fn weights<'b>(scores: Term<'b>, attrs: &Attention, is_biased: bool) -> Term<'b> {
    let shape = scores.shape();
    let mut hidden: Vec<Term<'b>> = vec![];
    if is_biased {
        hidden.push(scores.is(f64::NEG_INFINITY));
    }
    let build = scores.build();
    // The same for all heads.
    let pairs = shape.with_ones(&[0]);
    let key = || build.positions(&pairs, 2, DType::I32);
    let own = || {
        let behind = &pairs.dims()[2] - &pairs.dims()[1];
        build.positions(&pairs, 1, DType::I32) + build.dim(&behind, DType::I32).broadcast(pairs.clone())
    };
    if attrs.causal {
        hidden.push(own().lt(key()).broadcast(shape.clone()));
    }
    if let Some(window) = attrs.window {
        hidden.push(key().le(own() - f64::from(window)).broadcast(shape.clone()));
    }
    let Some(is_hidden) = hidden.into_iter().reduce(Term::or) else {
        let largest = scores.reduce_keepdim(ReduceKind::Max, &[2]).broadcast(shape.clone());
        let exp = (scores - largest).exp();
        return exp / exp.sum_keepdim(&[2]).broadcast(shape);
    };
    let seen = is_hidden.select(scores.filled(f64::NEG_INFINITY), scores);
    let largest = seen.reduce_keepdim(ReduceKind::Max, &[2]).broadcast(shape.clone());
    let exp = is_hidden.select(scores.filled(0.0), (scores - largest).exp());
    let total = exp.sum_keepdim(&[2]).broadcast(shape);
    is_hidden.select(scores.filled(0.0), exp / total)
}

/// Queries of all heads that share a key head, as rows of one matrix.
struct Rows {
    /// `[G, H / G * S]`.
    joined: [Dim; 2],
    /// `[H, S, T]`.
    scores: Shape,
}

impl Rows {
    fn of(q: &Shape, k: &Shape) -> Rows {
        let (heads, queries) = (&q.dims()[0], &q.dims()[1]);
        let (key_heads, keys) = (&k.dims()[0], &k.dims()[1]);
        let group = heads.div_exact(key_heads).unwrap_or_else(Dim::one);
        Rows {
            joined: [key_heads.clone(), &group * queries],
            scores: Shape::from(vec![heads.clone(), queries.clone(), keys.clone()]),
        }
    }

    /// `[H, S, X]` as `[G, H / G * S, X]`.
    fn join<'b>(&self, x: Term<'b>) -> Term<'b> {
        let last = x.shape().dims()[2].clone();
        x.reshape(self.joined.iter().cloned().chain([last]).collect::<Vec<_>>())
    }

    /// `[G, H / G * S, T]` as `[H, S, T]`.
    fn split<'b>(&self, x: Term<'b>) -> Term<'b> {
        x.reshape(self.scores.clone())
    }
}
