//! The gradient of attention. Scores are computed again, not stored by the forward pass.
//!
//! With `p = softmax(x)`, `o = p v` and the gradient `g` of `o`: `dv = p^T g`, `dp = g v^T`, `dx = p (dp - sum(p dp))`, and
//! through `x = cap(scale q k^T) + bias` to `q`, `k` and the bias. `sum(p dp)` is `sum(o g)` (Dao et al., arXiv 2205.14135),
//! which is known before `dp`: then `dx` is elementwise in it.

use super::term::{Passed, Term};
use crate::attention::{Attention, AttentionSide};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::formula::Formula;
use crate::op::{Op, ReduceKind};
use crate::shape::Shape;

/// What attention passes back to queries, keys, values and the bias: nodes of [`Op::AttentionGrad`], and for the bias, whose
/// gradient may be as large as the scores, formulas.
pub fn attention<'b>(g: Term<'b>, attrs: &Attention, operands: &[Term<'b>], result: Term<'b>) -> Passed<'b> {
    let is_double = operands.iter().chain([&g]).any(|t| t.dtype() == DType::F64);
    let wide = if is_double { DType::F64 } else { DType::F32 };
    let rows: Shape = g.shape().dims()[..2].to_vec().into();
    let means = (g.cast(wide) * result.cast(wide)).sum_keepdim(&[2]).reshape(rows);
    let (q, bias) = (operands[0], operands.get(3));
    let node = |side, rows: &[Term<'b>]| {
        let main = [operands[1], operands[2], g].into_iter().chain(rows.iter().copied());
        let others: Vec<Term<'b>> = main.chain(bias.copied()).collect();
        q.apply_with(Op::AttentionGrad(*attrs, side), &others)
    };
    let dq = node(AttentionSide::Queries, &[means]);
    let dk = node(AttentionSide::Keys, &[means, dq.result(1)]);
    let dbias = bias.map(|bias| {
        let parts =
            Parts::of(&Sides { q, k: operands[1], v: operands[2], g, means, bias: Some(*bias) }, attrs, None);
        parts.dx.sum_to(&bias.shape()).cast(bias.dtype())
    });
    let passed = [Some(dq), Some(dk), Some(dk.result(1)), dbias];
    operands.iter().zip(passed).map(|(_, d)| d).collect()
}

/// The results of an [`Op::AttentionGrad`] as formulas of other ops. `sums` is `None` where they are those of the softmax.
pub fn expand<'b>(
    attrs: &Attention,
    side: AttentionSide,
    sides: &Sides<'b>,
    sums: Option<Term<'b>>,
) -> Vec<Term<'b>> {
    let Sides { q, k, v, g, .. } = *sides;
    let parts = Parts::of(sides, attrs, sums);
    let (rows, scaled) = (&parts.rows, |t: Term<'b>| t * attrs.scale.as_f64());
    let wide = parts.dx.dtype();
    let d_rows = rows.join(parts.rounded_dx(g.dtype()));
    match side {
        AttentionSide::Queries => {
            let dq = scaled(d_rows.matmul(k.cast(wide))).reshape(q.shape()).cast(q.dtype());
            vec![dq, parts.sums]
        }
        AttentionSide::Keys => {
            let p_rows = rows.join(round(parts.p, g.dtype()));
            let dk = scaled(d_rows.transposed().matmul(rows.join(q.cast(wide))));
            let dv = p_rows.transposed().matmul(rows.join(g.cast(wide)));
            vec![dk.cast(k.dtype()), dv.cast(v.dtype())]
        }
    }
}

/// Operands of [`Op::AttentionGrad`].
pub struct Sides<'b> {
    pub q: Term<'b>,
    pub k: Term<'b>,
    pub v: Term<'b>,
    pub g: Term<'b>,
    pub means: Term<'b>,
    pub bias: Option<Term<'b>>,
}

/// Weights and the gradient of scores, `[H, S, T]`, in f32 or f64.
struct Parts<'b> {
    rows: Rows,
    p: Term<'b>,
    /// `[H, S]`: logarithms of the sums of exponentials.
    sums: Term<'b>,
    /// Gradient of the scores with their bias.
    dx: Term<'b>,
    /// Slope of the cap.
    slope: Option<Term<'b>>,
}

impl<'b> Parts<'b> {
    /// `sums` are `None` where they are those of the softmax.
    fn of(sides: &Sides<'b>, attrs: &Attention, sums: Option<Term<'b>>) -> Parts<'b> {
        let wide = sides.means.dtype();
        let [q, k, v, g] = [sides.q, sides.k, sides.v, sides.g].map(|t| t.cast(wide));
        let rows = Rows::of(&q.shape(), &k.shape());
        let raw = rows.split(rows.join(q).matmul(k.transposed())) * attrs.scale.as_f64();
        let tanh = attrs.softcap.map(|cap| (raw * (1.0 / cap.as_f64())).tanh());
        let capped = match (tanh, attrs.softcap) {
            (Some(tanh), Some(cap)) => tanh * cap.as_f64(),
            _ => raw,
        };
        let bias = sides.bias.map(|bias| bias.cast(wide).broadcast(rows.scores.clone()));
        let scores = bias.map_or(capped, |bias| capped + bias);
        let hidden = hidden(scores, attrs, bias.is_some());
        let (p, sums) = match sums {
            Some(sums) => (exponentials(scores, hidden, sums), sums),
            None => softmax(scores, hidden),
        };
        let dp = rows.split(rows.join(g).matmul(v.transposed()));
        let row = |t: Term<'b>| t.reshape(rows.scores.with_ones(&[2])).broadcast(rows.scores.clone());
        let dx = p.times(dp - row(sides.means));
        Parts { p, sums, dx, slope: tanh.map(|tanh| -(tanh * tanh) + 1.0), rows }
    }

    /// Gradient of the products, rounded.
    fn rounded_dx(&self, dtype: DType) -> Term<'b> {
        round(self.slope.map_or(self.dx, |slope| self.dx * slope), dtype)
    }
}

/// Rounded to a type of 16 bits: matrix instructions take these. PyTorch rounds the same.
fn round(x: Term<'_>, dtype: DType) -> Term<'_> {
    x.cast(dtype).cast(x.dtype())
}

/// Softmax over the keys that each query sees, 0 for a query that sees none, and the logarithms of the sums.
fn softmax<'b>(scores: Term<'b>, is_hidden: Option<Term<'b>>) -> (Term<'b>, Term<'b>) {
    let shape = scores.shape();
    let rows: Shape = shape.dims()[..2].to_vec().into();
    let seen = is_hidden.map_or(scores, |hidden| hidden.select(scores.filled(f64::NEG_INFINITY), scores));
    let largest = seen.reduce_keepdim(ReduceKind::Max, &[2]);
    let exp = (scores - largest.broadcast(shape.clone())).exp();
    let exp = is_hidden.map_or(exp, |hidden| hidden.select(scores.filled(0.0), exp));
    let total = exp.sum_keepdim(&[2]);
    let p = exp / total.broadcast(shape);
    let p = is_hidden.map_or(p, |hidden| hidden.select(scores.filled(0.0), p));
    let sums = total.is(0.0).select(total.filled(f64::INFINITY), largest + total.log());
    (p, sums.reshape(rows))
}

/// `exp(scores - sums)`, 0 where keys are hidden.
fn exponentials<'b>(scores: Term<'b>, is_hidden: Option<Term<'b>>, sums: Term<'b>) -> Term<'b> {
    let shape = scores.shape();
    let p = (scores - sums.reshape(shape.with_ones(&[2])).broadcast(shape)).exp();
    is_hidden.map_or(p, |hidden| hidden.select(scores.filled(0.0), p))
}

/// Where queries do not see keys; `None` if each sees all.
fn hidden<'b>(scores: Term<'b>, attrs: &Attention, is_biased: bool) -> Option<Term<'b>> {
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
        hidden.push(key().le(own() - f64::from(window)).broadcast(shape));
    }
    hidden.into_iter().reduce(Term::or)
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
