//! State space models: Mamba (Gu & Dao, arXiv 2312.00752) and Mamba 2 (Dao & Gu, arXiv 2405.21060).
//!
//! A layer has a state for each channel, which a token multiplies and adds to: `h = exp(step * A) * h + step * x * B`. What
//! comes out is `C h + D x`. The step, `B` and `C` depend on the token. A short convolution over the last tokens comes first.
//! There is no attention and no position: states are all that a text leaves behind.

use tallow_ir::{Dim, ElementwiseOp, Op, ReduceKind, Value};

use super::{Builder, Built, Config, Keys, Layers, Pairing, Result};
use crate::config::StateSpace;
use crate::layers::Activation::Silu;

/// `mamba`.
#[derive(Debug)]
pub(super) struct Mamba;
/// `mamba2`.
#[derive(Debug)]
pub(super) struct Mamba2;

impl Layers for Mamba {
    fn is_recurrent(&self) -> bool {
        true
    }

    fn pairing(&self) -> Option<Pairing> {
        None
    }

    fn configure(&self, keys: &Keys<'_>, config: &mut Config) -> Result<()> {
        config.state_space = Some(StateSpace::read(keys)?);
        Ok(())
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let Some(s) = b.config.state_space else { return Ok(x) };
        let normal = b.rms_norm(x, "attn_norm")?;
        let both = b.linear(normal, "ssm_in", 2 * s.inner)?;
        let (u, gate) = (b.part(both, 1, 0, s.inner)?, b.part(both, 1, s.inner, s.inner)?);
        let u = b.short_convolution(u, "ssm_conv1d", s.kernel)?;
        let u = Silu.of(&mut b.g, u)?;

        let all = b.linear(u, "ssm_x", s.steps + 2 * s.state)?;
        let [mut steps, mut write, mut read] = parts(b, all, [s.steps, s.state, s.state])?;
        if s.norms_parts {
            (steps, write, read) = (b.unweighted(steps)?, b.unweighted(write)?, b.unweighted(read)?);
        }
        let steps = b.linear(steps, "ssm_dt", s.inner)?;
        let steps = softplus(b, steps)?;

        let shape = [b.rows().clone(), s.inner.into(), s.state.into()];
        let decay = b.weight("ssm_a", &[s.inner, s.state])?;
        let decay = b.g.broadcast(decay, shape.clone())?;
        let by_channel = |b: &mut Builder<'_>, x| spread(b, x, [s.inner, 1], &shape);
        let by_element = |b: &mut Builder<'_>, x| spread(b, x, [1, s.state], &shape);
        let coefficients = {
            let steps = by_channel(b, steps)?;
            let exponents = b.mul(steps, decay)?;
            b.g.elementwise(ElementwiseOp::Exp, &[exponents])?
        };
        let added = b.mul(steps, u)?;
        let (added, write) = (by_channel(b, added)?, by_element(b, write)?);
        let added = b.mul(added, write)?;
        let h = b.recurrence(coefficients, added)?;
        let read = by_element(b, read)?;
        let y = sum_of_states(b, h, read)?;

        let direct = b.weight("ssm_d", &[s.inner])?;
        let rows = b.g.ty(u).shape.clone();
        let direct = b.g.broadcast(direct, rows)?;
        let direct = b.mul(u, direct)?;
        let y = b.add(y, direct)?;
        let gate = Silu.of(&mut b.g, gate)?;
        let y = b.mul(y, gate)?;
        let y = b.linear(y, "ssm_out", b.config.width)?;
        b.add(x, y)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let Some(s) = b.config.state_space else { return Ok(x) };
        projections(b, x, 2 * s.inner)
    }
}

impl Layers for Mamba2 {
    fn is_recurrent(&self) -> bool {
        true
    }

    fn pairing(&self) -> Option<Pairing> {
        None
    }

    fn configure(&self, keys: &Keys<'_>, config: &mut Config) -> Result<()> {
        config.state_space = Some(StateSpace::read_with_heads(keys)?);
        Ok(())
    }

    fn layer(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let Some(s) = b.config.state_space else { return Ok(x) };
        let normal = b.rms_norm(x, "attn_norm")?;
        let all = b.linear(normal, "ssm_in", s.inner + s.convolved() + s.steps)?;
        let [gate, convolved, steps] = parts(b, all, [s.inner, s.convolved(), s.steps])?;
        let convolved = b.short_convolution(convolved, "ssm_conv1d", s.kernel)?;
        let convolved = Silu.of(&mut b.g, convolved)?;
        let shared = s.groups * s.state;
        let [u, write, read] = parts(b, convolved, [s.inner, shared, shared])?;

        let rows = b.g.ty(steps).shape.clone();
        let bias = b.weight("ssm_dt.bias", &[s.steps])?;
        let bias = b.g.broadcast(bias, rows.clone())?;
        let steps = b.add(steps, bias)?;
        let steps = softplus(b, steps)?;
        let decay = b.weight("ssm_a", &[s.steps, 1])?;
        let decay = b.g.reshape(decay, [s.steps])?;
        let decay = b.g.broadcast(decay, rows)?;
        let exponents = b.mul(steps, decay)?;
        let coefficients = b.g.elementwise(ElementwiseOp::Exp, &[exponents])?;

        // Groups, heads of a group, channels of a head, elements of a state.
        let of = [s.groups, s.steps / s.groups, s.inner / s.steps, s.state];
        let by_head = |b: &mut Builder<'_>, x| spread_of_heads(b, x, [of[0], of[1], 1, 1], of);
        let by_channel = |b: &mut Builder<'_>, x| spread_of_heads(b, x, [of[0], of[1], of[2], 1], of);
        let by_group = |b: &mut Builder<'_>, x| spread_of_heads(b, x, [of[0], 1, 1, of[3]], of);
        let coefficients = by_head(b, coefficients)?;
        let (steps, channels, write) = (by_head(b, steps)?, by_channel(b, u)?, by_group(b, write)?);
        let added = b.mul(steps, channels)?;
        let added = b.mul(added, write)?;
        let h = b.recurrence(coefficients, added)?;
        let read = by_group(b, read)?;
        let y = sum_of_states(b, h, read)?;

        let direct = b.weight("ssm_d", &[s.steps, 1])?;
        let direct = b.g.broadcast(direct, [s.steps, s.inner / s.steps])?;
        let direct = b.g.reshape(direct, [s.inner])?;
        let rows = b.g.ty(u).shape.clone();
        let direct = b.g.broadcast(direct, rows)?;
        let direct = b.mul(u, direct)?;
        let y = b.add(y, direct)?;
        let gate = Silu.of(&mut b.g, gate)?;
        let y = b.mul(y, gate)?;
        let y = b.group_rms_norm(y, "ssm_norm", s.groups)?;
        let y = b.linear(y, "ssm_out", b.config.width)?;
        b.add(x, y)
    }

    fn probe(&self, b: &mut Builder<'_>, x: Value) -> Built {
        let Some(s) = b.config.state_space else { return Ok(x) };
        projections(b, x, s.inner + s.convolved() + s.steps)
    }
}

/// A layer without convolution and states: its two projections, the first of so many outputs.
fn projections(b: &mut Builder<'_>, x: Value, outputs: usize) -> Built {
    let Some(s) = b.config.state_space else { return Ok(x) };
    let normal = b.rms_norm(x, "attn_norm")?;
    let all = b.linear(normal, "ssm_in", outputs)?;
    let gate = b.part(all, 1, 0, s.inner)?;
    let gate = Silu.of(&mut b.g, gate)?;
    let y = b.linear(gate, "ssm_out", b.config.width)?;
    b.add(x, y)
}

/// Columns of `x: [rows, n]` side by side, so many each.
fn parts<const N: usize>(
    b: &mut Builder<'_>,
    x: Value,
    counts: [usize; N],
) -> std::result::Result<[Value; N], tallow_ir::GraphError> {
    let (mut found, mut start) = ([x; N], 0);
    for (part, count) in found.iter_mut().zip(counts) {
        *part = b.part(x, 1, start, count)?;
        start += count;
    }
    Ok(found)
}

/// `log(1 + e^x)`, without an overflow.
fn softplus(b: &mut Builder<'_>, x: Value) -> Built {
    let size = b.g.elementwise(ElementwiseOp::Abs, &[x])?;
    let negative = b.g.elementwise(ElementwiseOp::Neg, &[size])?;
    let exp = b.g.elementwise(ElementwiseOp::Exp, &[negative])?;
    let log = b.g.elementwise(ElementwiseOp::Log1p, &[exp])?;
    let above = b.at_least(x, 0.0)?;
    b.add(above, log)
}

/// `x: [rows, columns]` as `[rows, channels, elements]`, of which `extents` are those that it has, repeated to `shape`.
fn spread(b: &mut Builder<'_>, x: Value, extents: [usize; 2], shape: &[Dim; 3]) -> Built {
    let [channels, elements] = extents;
    let x = b.g.reshape(x, [shape[0].clone(), channels.into(), elements.into()])?;
    b.g.broadcast(x, shape.clone())
}

/// `x: [rows, columns]` as `[rows, groups, heads, channels, elements]`, of which `extents` are those that it has and `all`
/// those that it is repeated to; then as `[rows, all channels, elements]`.
fn spread_of_heads(b: &mut Builder<'_>, x: Value, extents: [usize; 4], all: [usize; 4]) -> Built {
    let rows = b.rows().clone();
    let shape = |extents: [usize; 4]| -> Vec<Dim> {
        std::iter::once(rows.clone()).chain(extents.map(Dim::from)).collect()
    };
    let x = b.g.reshape(x, shape(extents))?;
    let x = b.g.broadcast(x, shape(all))?;
    let [groups, heads, channels, elements] = all;
    b.g.reshape(x, [rows.clone(), (groups * heads * channels).into(), elements.into()])
}

/// The sums of the states `h: [rows, channels, elements]` by the weights `read`, of the same shape: `[rows, channels]`.
fn sum_of_states(b: &mut Builder<'_>, h: Value, read: Value) -> Built {
    let product = b.mul(h, read)?;
    b.g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![2] }, &[product])
}
