//! The attributes of softmax attention.

use crate::dtype::DType;
use crate::scalar::Scalar;

/// How [`crate::Op::Attention`] makes weights of `q k^T`. Per head, with queries `i` below `S`, keys `j` below
/// `T`, and `own = i + (T - S)` the position of query `i` among the keys:
///
/// 1. `score = scale * (q[i] . k[j])`;
/// 2. with a softcap, `score = cap * tanh(score / cap)`;
/// 3. with a bias, `score += bias[i, j]`;
/// 4. keys after `own` (if causal), keys up to `own - window` (with a window), and keys whose score is negative
///    infinity are hidden: their weight is 0;
/// 5. weights are the softmax of the scores of what is left. A query that sees no key gives zeros, not NaN;
/// 6. with sinks (Xiao et al., arXiv 2309.17453), the softmax has one more score, `sinks[h]` of head `h`, which has no
///    value: with the largest score `m`, weights are `exp(score - m) / (sum exp(score - m) + exp(sinks[h] - m))`. Scale,
///    softcap and bias do not change it. Where it is negative infinity, it does nothing.
///
/// With `round_weights` kernels may round the numerators of the softmax, scaled as suits them, before they meet the
/// values: to bf16 if the values are bf16, else to f16. Each has a relative error of at most
/// [`Attention::weight_rounding`], or of [`Attention::LEAST_WEIGHT`] of the largest where that is more. The sum that they
/// are divided by is of numerators that are not rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    /// Factor on the products.
    pub scale: Scalar,
    /// Hide keys after the query's own position.
    pub causal: bool,
    /// Of the keys up to its own position a query sees only the last so many, itself included; at least 1.
    pub window: Option<u32>,
    /// Bound on the magnitude of scores before the bias; finite and above 0.
    pub softcap: Option<Scalar>,
    /// Weights may be rounded to f16, or to bf16 for such values, before they meet the values.
    pub round_weights: bool,
    /// The last operand is a score of each head that has no value.
    pub sinks: bool,
}

impl Attention {
    /// What rounding may lose of a weight that is too small for 11 bits of f16, as a part of the largest.
    pub const LEAST_WEIGHT: f64 = 1.0 / (1u64 << 32) as f64;

    /// The largest relative error of a rounded weight that meets values of this type: half a unit in the last of 8
    /// significant bits of bf16, or of 11 of f16. A unit in the last of `p` bits is `2^(1-p)` of the lowest number with the
    /// same exponent.
    pub fn weight_rounding(values: DType) -> f64 {
        if values == DType::BF16 { 1.0 / 256.0 } else { 1.0 / 2048.0 }
    }

    /// Plain attention: every query sees every key.
    pub fn new(scale: f64) -> Self {
        Attention {
            scale: Scalar::float(DType::F64, scale),
            causal: false,
            window: None,
            softcap: None,
            round_weights: false,
            sinks: false,
        }
    }

    /// With keys after the query's own position hidden, or not.
    pub fn causal(self, causal: bool) -> Self {
        Attention { causal, ..self }
    }

    /// With a sliding window.
    pub fn window(self, window: Option<u32>) -> Self {
        Attention { window, ..self }
    }

    /// With capped scores.
    pub fn softcap(self, cap: Option<f64>) -> Self {
        Attention { softcap: cap.map(|c| Scalar::float(DType::F64, c)), ..self }
    }

    /// With weights that may be rounded, or not.
    pub fn round_weights(self, round_weights: bool) -> Self {
        Attention { round_weights, ..self }
    }

    /// With a score of each head that has no value, or without.
    pub fn sinks(self, sinks: bool) -> Self {
        Attention { sinks, ..self }
    }

    /// The bias and the sinks among all operands of [`crate::Op::Attention`]. With [`Attention::sinks`] the last operand is
    /// the sinks. The bias is what else comes after queries, keys and values.
    pub fn bias_and_sinks<T>(self, operands: &[T]) -> [Option<&T>; 2] {
        let (others, sinks) = match operands.split_last() {
            Some((last, others)) if self.sinks => (others, Some(last)),
            Some(_) | None => (operands, None),
        };
        [others.get(3), sinks]
    }
}

/// Which operands [`crate::Op::AttentionGrad`] differentiates by. Each side is a kernel that sums over the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionSide {
    /// Queries: sums over the keys.
    Queries,
    /// Keys and values: sums over the queries.
    Keys,
}

impl AttentionSide {
    /// Both sides.
    pub const ALL: [AttentionSide; 2] = [AttentionSide::Queries, AttentionSide::Keys];

    /// How many operands of [`crate::Op::AttentionGrad`] come before the bias.
    pub fn operands(self) -> usize {
        match self {
            AttentionSide::Queries => 5,
            AttentionSide::Keys => 6,
        }
    }
}
