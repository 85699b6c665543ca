//! Rotary position embedding: the frequencies, and the rotation as a graph.
//!
//! RoPE (Su et al., arXiv 2104.09864) rotates pair `i` of a head by the angle `position * f(i)` with
//! `f(i) = base^(-2i/d)`. Scaling stretches the frequencies so that a model reaches beyond the context that
//! it was trained for: linear position interpolation (Chen et al., arXiv 2306.15595), YaRN (Peng et al.,
//! arXiv 2309.00071), or a table of divisors in the file (tensor `rope_freqs.weight`, Llama 3.1).

use std::f64::consts::PI;

use tallow_ir::{DType, Dim, ElementwiseOp, Graph, GraphError, Op, Value};

/// How frequencies are stretched.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency is divided by the factor.
    Linear {
        /// The stretch.
        factor: f32,
    },
    /// High frequencies stay, low ones are divided by the factor, those between are blended.
    Yarn {
        /// The stretch.
        factor: f32,
        /// The context before stretching.
        original_context: usize,
        /// Multiplies the magnitude that YaRN gives queries and keys.
        attention_factor: f32,
        /// Share of the blend: 0 is linear scaling, 1 is YaRN.
        extrapolation: f32,
        /// Pairs that turn at least so often within the original context keep their frequency.
        beta_fast: f32,
        /// Pairs that turn at most so often are divided by the whole factor.
        beta_slow: f32,
        /// Whether the pairs between which frequencies are blended are whole.
        rounds: bool,
        /// Where not 0, the magnitude is divided by `1 + 0.1 * this * ln(factor)` (DeepSeek's models).
        log_multiplier: f32,
    },
}

/// Radians per position of each pair, and the magnitude that queries and keys are multiplied by.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFrequencies {
    /// One per pair: half as many as rotated elements.
    pub per_pair: Vec<f32>,
    /// 1 except under YaRN.
    pub magnitude: f32,
}

/// The frequencies of `dimensions` rotated elements (even). `divisors`, one per pair, come from the file.
pub fn frequencies(
    dimensions: usize,
    base: f32,
    scaling: &RopeScaling,
    divisors: Option<&[f32]>,
) -> RopeFrequencies {
    let (d, base) = (dimensions as f64, f64::from(base));
    let plain = |pair: usize| {
        let divisor = divisors.and_then(|all| all.get(pair)).map_or(1.0, |x| f64::from(*x));
        base.powf(-2.0 * pair as f64 / d) / divisor
    };
    let all = |f: &dyn Fn(usize) -> f64| (0..dimensions / 2).map(|pair| f(pair) as f32).collect();
    match *scaling {
        RopeScaling::None => RopeFrequencies { per_pair: all(&plain), magnitude: 1.0 },
        RopeScaling::Linear { factor } => {
            RopeFrequencies { per_pair: all(&|pair| plain(pair) / f64::from(factor)), magnitude: 1.0 }
        }
        RopeScaling::Yarn {
            factor,
            original_context,
            attention_factor,
            extrapolation,
            beta_fast,
            beta_slow,
            rounds,
            log_multiplier,
        } => {
            let (factor, context) = (f64::from(factor), original_context as f64);
            // The (fractional) pair that turns `beta` times within the original context: equation 23 of
            // the YaRN paper (section A.2) solved for the pair.
            let pair_of = |beta: f32| d * (context / (f64::from(beta) * 2.0 * PI)).ln() / (2.0 * base.ln());
            let (low, high) = (pair_of(beta_fast), pair_of(beta_slow));
            let (low, high) = if rounds { (low.floor(), high.ceil()) } else { (low, high) };
            let (low, high) = (low.max(0.0), high.min(d - 1.0));
            let blended = |pair: usize| {
                let ramp = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                let extrapolated = (1.0 - ramp) * f64::from(extrapolation);
                plain(pair) * (extrapolated + (1.0 - extrapolated) / factor)
            };
            // Section 3.4: sqrt(1/t) = 0.1 ln(s) + 1.
            let gain =
                |multiplier: f64| if factor <= 1.0 { 1.0 } else { 0.1 * multiplier * factor.ln() + 1.0 };
            let yarn = match (extrapolation == 0.0, log_multiplier == 0.0) {
                (true, _) => 1.0,
                (false, true) => gain(1.0),
                (false, false) => gain(1.0) / gain(f64::from(log_multiplier)),
            };
            RopeFrequencies {
                per_pair: all(&blended),
                magnitude: (yarn * f64::from(attention_factor)) as f32,
            }
        }
    }
}

/// Cosines and sines of a step, each `[rows, pairs]`, times the magnitude.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    cos: Value,
    sin: Value,
}

/// The rotation of rows at positions `first, first + 1, ..`; `per_pair` is a `[pairs]` tensor of frequencies.
pub fn rotation(
    g: &mut Graph,
    per_pair: Value,
    rows: &Dim,
    first: &Dim,
    magnitude: f32,
) -> Result<Rotation, GraphError> {
    let row = g.add(Op::Iota { len: rows.clone(), dtype: DType::F32 }, &[])?;
    let first = g.add(Op::DimValue { dim: first.clone(), dtype: DType::F32 }, &[])?;
    let first = g.broadcast(first, [rows.clone()])?;
    let position = g.elementwise(ElementwiseOp::Add, &[row, first])?;
    rotation_at(g, per_pair, position, magnitude)
}

/// The rotation of rows at the positions `position: [rows]` of f32; `per_pair` is a `[pairs]` tensor of frequencies.
///
/// # Errors
/// When the types are others.
pub fn rotation_at(
    g: &mut Graph,
    per_pair: Value,
    position: Value,
    magnitude: f32,
) -> Result<Rotation, GraphError> {
    let pairs = g.ty(per_pair).shape.dims()[0].clone();
    let rows = g.ty(position).shape.dims()[0].clone();
    let position = g.reshape(position, [rows.clone(), Dim::one()])?;
    let position = g.broadcast(position, [rows.clone(), pairs.clone()])?;
    let frequency = g.broadcast(per_pair, [rows.clone(), pairs])?;
    let angle = g.elementwise(ElementwiseOp::Mul, &[position, frequency])?;
    let mut cos = g.elementwise(ElementwiseOp::Cos, &[angle])?;
    let mut sin = g.elementwise(ElementwiseOp::Sin, &[angle])?;
    if magnitude != 1.0 {
        let factor = g.full_like(cos, f64::from(magnitude))?;
        cos = g.elementwise(ElementwiseOp::Mul, &[cos, factor])?;
        sin = g.elementwise(ElementwiseOp::Mul, &[sin, factor])?;
    }
    Ok(Rotation { cos, sin })
}

/// Which elements of a head are a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `2i` and `2i + 1`.
    Neighbours,
    /// `i` and `i + d/2`, of the `d` that are rotated (GPT-NeoX).
    Halves,
}

/// Rotates the pairs of the leading elements of each head of `x: [rows, heads, length]`.
pub fn rotate(g: &mut Graph, x: Value, rotation: Rotation, pairing: Pairing) -> Result<Value, GraphError> {
    let [rows, heads, length] = g.ty(x).shape.dims() else {
        let operands = g.ty(x).to_string();
        return Err(GraphError::Type { op: "rope", why: "needs rows, heads and elements".into(), operands });
    };
    let (rows, heads, length) = (rows.clone(), heads.clone(), length.clone());
    let pairs = g.ty(rotation.cos).shape.dims()[1].clone();
    let rotated = &pairs * &2.into();
    let head = if rotated == length {
        x
    } else {
        g.add(Op::Slice { axis: 2, start: Dim::zero(), len: rotated.clone() }, &[x])?
    };
    // The axis that tells the elements of a pair apart, and the extents with that axis split off.
    let (axis, [a, b]) = match pairing {
        Pairing::Neighbours => (3, [pairs.clone(), Dim::constant(2)]),
        Pairing::Halves => (2, [Dim::constant(2), pairs.clone()]),
    };
    let one = match pairing {
        Pairing::Neighbours => [pairs.clone(), Dim::one()],
        Pairing::Halves => [Dim::one(), pairs.clone()],
    };
    let split = g.reshape(head, [rows.clone(), heads.clone(), a, b])?;
    let half =
        |g: &mut Graph, start: i64| g.add(Op::Slice { axis, start: start.into(), len: Dim::one() }, &[split]);
    let (even, odd) = (half(g, 0)?, half(g, 1)?);
    let spread = |g: &mut Graph, v: Value| {
        let [a, b] = one.clone();
        let v = g.reshape(v, [rows.clone(), Dim::one(), a.clone(), b.clone()])?;
        g.broadcast(v, [rows.clone(), heads.clone(), a, b])
    };
    let (cos, sin) = (spread(g, rotation.cos)?, spread(g, rotation.sin)?);
    let mul = |g: &mut Graph, a, b| g.elementwise(ElementwiseOp::Mul, &[a, b]);
    let (ec, os) = (mul(g, even, cos)?, mul(g, odd, sin)?);
    let (es, oc) = (mul(g, even, sin)?, mul(g, odd, cos)?);
    let new_even = g.elementwise(ElementwiseOp::Sub, &[ec, os])?;
    let new_odd = g.elementwise(ElementwiseOp::Add, &[es, oc])?;
    let joined = g.add(Op::Concat { axis }, &[new_even, new_odd])?;
    let turned = g.reshape(joined, [rows, heads, rotated.clone()])?;
    if rotated == length {
        return Ok(turned);
    }
    let rest = g.add(Op::Slice { axis: 2, start: rotated.clone(), len: &length - &rotated }, &[x])?;
    g.add(Op::Concat { axis: 2 }, &[turned, rest])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f32, b: f64) {
        assert!((f64::from(a) - b).abs() <= 1e-6 * b.abs(), "{a} is not {b}");
    }

    #[test]
    fn plain_linear_and_table() {
        let plain = frequencies(8, 10000.0, &RopeScaling::None, None);
        assert_eq!(plain.per_pair.len(), 4);
        for (pair, expected) in [1.0, 0.1, 0.01, 0.001].into_iter().enumerate() {
            close(plain.per_pair[pair], expected);
        }
        let linear = frequencies(8, 10000.0, &RopeScaling::Linear { factor: 4.0 }, None);
        close(linear.per_pair[1], 0.025);
        let table = frequencies(8, 10000.0, &RopeScaling::None, Some(&[1.0, 2.0, 8.0, 8.0]));
        close(table.per_pair[1], 0.05);
        close(table.per_pair[3], 0.000125);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_stretches_slow_ones() {
        let yarn = RopeScaling::Yarn {
            factor: 8.0,
            original_context: 2048,
            attention_factor: 1.0,
            extrapolation: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            rounds: true,
            log_multiplier: 0.0,
        };
        let plain = frequencies(128, 10000.0, &RopeScaling::None, None).per_pair;
        let scaled = frequencies(128, 10000.0, &yarn, None);
        // 128 ln(2048 / (32 * 2 pi)) / (2 ln 10000) = 16.13 and with 1 turn 40.21, so the ramp is 16..41.
        close(scaled.per_pair[0], f64::from(plain[0]));
        close(scaled.per_pair[16], f64::from(plain[16]));
        close(scaled.per_pair[41], f64::from(plain[41]) / 8.0);
        close(scaled.per_pair[63], f64::from(plain[63]) / 8.0);
        // A fifth of the way: 21 is 5 of 25 pairs into the ramp.
        close(scaled.per_pair[21], f64::from(plain[21]) * (0.8 + 0.2 / 8.0));
        close(scaled.magnitude, 1.0 + 0.1 * 8f64.ln());
    }

    #[test]
    fn yarn_without_extrapolation_is_linear() {
        let yarn = RopeScaling::Yarn {
            factor: 4.0,
            original_context: 64,
            attention_factor: 1.0,
            extrapolation: 0.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            rounds: true,
            log_multiplier: 0.0,
        };
        let linear = frequencies(16, 500.0, &RopeScaling::Linear { factor: 4.0 }, None);
        assert_eq!(frequencies(16, 500.0, &yarn, None), linear);
    }
}
