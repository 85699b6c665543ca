//! What the frontend composes: activations, norms, pools, resizing.

use candle_core as candle;
use tallow::{D, Tensor, nn};
use tallow_ir::DType;

use super::tensors;
use crate::class::Class;
use crate::row::{Bound, Operand, Row};

type T = candle::Tensor;
type Ours = fn(&[Tensor]) -> tallow::Result<Tensor>;
type Theirs = fn(&[T]) -> candle::Result<T>;

fn one(d: &[usize], dtype: DType) -> Vec<Operand> {
    vec![Operand::new(d, dtype)]
}

/// A tensor and a weight and bias of its last axis.
fn normed(d: &[usize], dtype: DType) -> Vec<Operand> {
    let width = [d.last().copied().unwrap_or(1)];
    vec![Operand::new(d, dtype), Operand::new(&width, dtype).shared(), Operand::new(&width, dtype).shared()]
}

pub fn rows() -> Vec<Row> {
    let mut rows = activations();
    rows.extend(norms());
    rows.extend(pools());
    rows.extend(resizing());
    rows
}

/// Up to six operations of at most 8, each rounded by half a step of 8 on either side, and exponentials of half of
/// those: 8 * 6.
const ACTIVATIONS: Bound = Bound::Steps(48.0);

fn activations() -> Vec<Row> {
    let row = |name: &str, ours: Ours| {
        Row::new("Activations", name, one, tensors(ours)).bound(ACTIVATIONS).word("")
    };
    let has = |name: &str, ours: Ours, theirs: Theirs| row(name, ours).candle(ACTIVATIONS, theirs);
    const NN: &str = "only in candle_nn, whose formulas tests/candle/nn.rs has";
    vec![
        has("relu", |t| t[0].relu(), |t| t[0].relu()),
        has("silu", |t| t[0].silu(), |t| t[0].silu()),
        has("gelu", |t| t[0].gelu(), |t| t[0].gelu()),
        has("gelu_erf", |t| t[0].gelu_erf(), |t| t[0].gelu_erf()),
        has("elu", |t| t[0].elu(0.5), |t| t[0].elu(0.5)),
        has("sqr", |t| t[0].sqr(), |t| t[0].sqr()),
        has("powf", |t| t[0].powf(3.0), |t| t[0].powf(3.0)),
        has("clamp", |t| t[0].clamp(1u8, 3u8), |t| t[0].clamp(1u8, 3u8)),
        has("affine", |t| t[0].affine(2.0, 1.0), |t| t[0].affine(2.0, 1.0)),
        row("relu6", |t| t[0].relu6()).lacks(NN),
        row("leaky_relu", |t| t[0].leaky_relu(0.25)).lacks(NN),
        row("selu", |t| t[0].selu()).lacks(NN),
        row("sigmoid", |t| t[0].sigmoid()).lacks(NN),
        row("logsigmoid", |t| t[0].logsigmoid()).lacks(NN),
        row("softplus", |t| t[0].softplus()).lacks(NN),
        row("mish", |t| t[0].mish()).lacks(NN),
        row("hard_sigmoid", |t| t[0].hard_sigmoid()).lacks(NN),
        row("hard_swish", |t| t[0].hard_swish()).lacks(NN),
    ]
}

fn norms() -> Vec<Row> {
    // As in tests/candle/nn.rs, over 67 elements: each sum and each mean adds up to 67 half steps, squares double
    // them, and the weight of at most 4 scales them: 4 * 67.
    let bound = Bound::Steps(268.0);
    let row = |name: &str, operands: fn(&[usize], DType) -> Vec<Operand>, ours: Ours| {
        Row::new("Norms", name, operands, tensors(ours)).bound(bound).word("")
    };
    let last = |t: &T| t.rank().saturating_sub(1);
    fn center(x: &T, axis: usize) -> candle::Result<T> {
        x.broadcast_sub(&x.mean_keepdim(axis)?)
    }
    vec![
        row("softmax", one, |t| nn::softmax(&t[0], D::Minus1)).candle(bound, move |t| {
            let axis = last(&t[0]);
            let e = t[0].broadcast_sub(&t[0].max_keepdim(axis)?)?.exp()?;
            e.broadcast_div(&e.sum_keepdim(axis)?)
        }),
        row("log_softmax", one, |t| nn::log_softmax(&t[0], D::Minus1)).candle(bound, move |t| {
            let axis = last(&t[0]);
            let shifted = t[0].broadcast_sub(&t[0].max_keepdim(axis)?)?;
            shifted.broadcast_sub(&shifted.exp()?.sum_keepdim(axis)?.log()?)
        }),
        row("rms_norm", normed, |t| nn::ops::rms_norm(&t[0], &t[1], 0.125)).candle(bound, move |t| {
            let x = crate::candle_side::wide(&t[0])?;
            let scale = (x.sqr()?.mean_keepdim(last(&x))? + 0.125)?.sqrt()?.recip()?;
            x.broadcast_mul(&scale)?.to_dtype(t[0].dtype())?.broadcast_mul(&t[1])
        }),
        row("layer_norm", normed, |t| nn::ops::layer_norm(&t[0], &t[1], &t[2], 0.125)).candle(
            bound,
            move |t| {
                let x = center(&crate::candle_side::wide(&t[0])?, last(&t[0]))?;
                let scale = (x.sqr()?.mean_keepdim(last(&x))? + 0.125)?.sqrt()?.recip()?;
                x.broadcast_mul(&scale)?.to_dtype(t[0].dtype())?.broadcast_mul(&t[1])?.broadcast_add(&t[2])
            },
        ),
        row("mean", one, |t| t[0].mean(D::Minus1)).candle(bound, move |t| t[0].mean(last(&t[0]))),
        row("var", one, |t| t[0].var(D::Minus1)).candle(bound, move |t| t[0].var(last(&t[0]))),
        row("log_sum_exp", one, |t| t[0].log_sum_exp(D::Minus1))
            .candle(bound, move |t| t[0].log_sum_exp(last(&t[0]))),
    ]
}

/// Windows of 2, or of what there is.
fn size(t: usize) -> usize {
    t.clamp(1, 2)
}

fn pools() -> Vec<Row> {
    let row = |name: &str, dims: fn(Class) -> Vec<usize>, ours: Ours| {
        let row =
            Row::new("Convolutions, pools, resizing", name, one, tensors(ours)).bound(Bound::Exact).word("");
        Row { dims, ..row }
    };
    let ones = |name: &str, ours: Ours| row(name, Class::dims, ours).lacks("pools of images alone in Candle");
    // Sums of four elements and a quarter of them are exact before they are rounded, once; Candle rounds each of
    // four sums of 16 bits.
    let means = Bound::Steps(2.0);
    vec![
        ones("avg_pool1d", |t| t[0].avg_pool1d(size(t[0].dim(D::Minus1)?))).bound(means),
        ones("max_pool1d", |t| t[0].max_pool1d(size(t[0].dim(D::Minus1)?))),
        row("avg_pool2d", Class::images, |t| t[0].avg_pool2d(size(t[0].dim(D::Minus1)?)))
            .bound(means)
            .candle(means, |t| t[0].avg_pool2d(size(t[0].dim(candle::D::Minus1)?))),
        row("max_pool2d", Class::images, |t| t[0].max_pool2d(size(t[0].dim(D::Minus1)?)))
            .candle(Bound::Exact, |t| t[0].max_pool2d(size(t[0].dim(candle::D::Minus1)?))),
        row("max_pool2d overlapping", Class::images, |t| {
            let n = size(t[0].dim(D::Minus1)?);
            t[0].max_pool2d_with_stride((n, n), (1, 1))
        })
        .candle(Bound::Exact, |t| {
            let n = size(t[0].dim(candle::D::Minus1)?);
            t[0].max_pool2d_with_stride((n, n), (1, 1))
        }),
    ]
}

/// Candle weighs in f64, to which its cast of f8e4m3 calls itself without end.
fn bilinear_in_f32(x: &T, align_corners: bool) -> candle::Result<T> {
    let wide = if x.dtype() == candle::DType::F8E4M3 { x.to_dtype(candle::DType::F32)? } else { x.clone() };
    wide.contiguous()?.upsample_bilinear2d(7, 9, align_corners)?.to_dtype(x.dtype())
}

fn resizing() -> Vec<Row> {
    let row = |name: &str, dims: fn(Class) -> Vec<usize>, ours: Ours| {
        let row =
            Row::new("Convolutions, pools, resizing", name, one, tensors(ours)).bound(Bound::Moved).word("");
        Row { dims, ..row }.tables(ours)
    };
    // Positions and weights are computed in f32 or f64 on either side: two products and a sum of at most 4, each
    // rounded.
    let bilinear = Bound::Steps(24.0);
    vec![
        row("upsample_nearest1d", Class::dims, |t| t[0].upsample_nearest1d(11))
            .candle(Bound::Exact, |t| t[0].upsample_nearest1d(11)),
        row("upsample_nearest2d", Class::images, |t| t[0].upsample_nearest2d(7, 9))
            .candle(Bound::Exact, |t| t[0].contiguous()?.upsample_nearest2d(7, 9)),
        row("upsample_bilinear2d", Class::images, |t| t[0].upsample_bilinear2d(7, 9, false))
            .bound(bilinear)
            .candle(bilinear, |t| bilinear_in_f32(&t[0], false)),
        row("upsample_bilinear2d aligned", Class::images, |t| t[0].upsample_bilinear2d(7, 9, true))
            .bound(bilinear)
            .candle(bilinear, |t| bilinear_in_f32(&t[0], true)),
        row("upsample_bicubic2d", Class::images, |t| t[0].upsample_bicubic2d(7, 9, false))
            .bound(bilinear)
            .lacks("no bicubic resizing in Candle"),
    ]
}
