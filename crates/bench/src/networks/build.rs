//! Networks as graphs of Tallow, by the methods that a user would call.

use tallow::nn::{self, Module};
use tallow::{Error, Result, Tensor};

use super::{Binary, Call, Conv, Network, Reduction, Relation, Unary};

/// The results of a network, given its inputs.
///
/// # Errors
/// When shapes or element types do not fit.
pub fn build(network: &Network, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut values = inputs.to_vec();
    for (number, step) in network.steps.iter().enumerate() {
        let args = step.args.iter().map(|arg| value(&values, *arg)).collect::<Result<Vec<_>>>()?;
        let result = call(&step.call, &args)
            .map_err(|error| error.context(format!("step {number}, {:?}", step.call)))?;
        values.push(result);
    }
    network.outputs.iter().map(|output| value(&values, *output).cloned()).collect()
}

fn value(values: &[Tensor], number: usize) -> Result<&Tensor> {
    values.get(number).ok_or_else(|| Error::msg(format!("there is no value {number}")))
}

/// The result of one op.
fn call(call: &Call, args: &[&Tensor]) -> Result<Tensor> {
    let arg = |number: usize| {
        args.get(number).copied().ok_or_else(|| Error::msg(format!("argument {number} is missing")))
    };
    let x = arg(0)?;
    match call {
        Call::Matmul { transpose_a, transpose_b } => {
            let a = if *transpose_a { x.t()? } else { x.clone() };
            let b = if *transpose_b { arg(1)?.t()? } else { arg(1)?.clone() };
            a.broadcast_matmul(&b)
        }
        Call::Linear => nn::Linear::new(arg(1)?.clone(), args.get(2).map(|bias| (*bias).clone())).forward(x),
        Call::Conv1d(Conv { stride, padding, groups, dilation }) => {
            let y = x.conv1d(arg(1)?, *padding, *stride, *dilation, *groups)?;
            per_channel(&y, args.get(2).copied())
        }
        Call::Conv2d(Conv { stride, padding, groups, dilation }) => {
            let y = x.conv2d(arg(1)?, *padding, *stride, *dilation, *groups)?;
            per_channel(&y, args.get(2).copied())
        }
        Call::Binary { function } => binary(*function, x, arg(1)?),
        Call::Unary { function } => unary(*function, x),
        Call::Where => x.where_cond(arg(1)?, arg(2)?),
        Call::Compare { relation, value: Some(value) } => compare_with(*relation, x, *value),
        Call::Compare { relation, value: None } => compare(*relation, x, arg(1)?),
        Call::Affine { mul, add } => x.affine(*mul, *add),
        Call::FullLike { value } => Tensor::full(*value, x.shape(), x.device())?.to_dtype(x.dtype()),
        Call::Softmax { axis } => nn::softmax(x, *axis),
        Call::LogSoftmax { axis } => nn::log_softmax(x, *axis),
        Call::Reduce { kind, axes, keepdim } => reduce(*kind, x, axes, *keepdim),
        Call::Argmax { axis } => x.argmax(*axis),
        Call::Argmin { axis } => x.argmin(*axis),
        Call::RmsNorm { epsilon } => nn::ops::rms_norm(x, arg(1)?, *epsilon),
        Call::LayerNorm { epsilon } => nn::ops::layer_norm(x, arg(1)?, arg(2)?, *epsilon),
        Call::GroupNorm { groups, epsilon } => {
            let channels = x.dim(1)?;
            let (weight, bias) = (arg(1)?.clone(), arg(2)?.clone());
            nn::GroupNorm::new(weight, bias, channels, *groups, *epsilon)?.forward(x)
        }
        Call::Reshape { shape } => x.reshape(shape),
        Call::Permute { order } => x.permute(order),
        Call::Broadcast { shape } => x.broadcast_as(shape),
        Call::Slice { axis, start, len } => x.narrow(*axis, *start, *len),
        Call::Concat { axis } => Tensor::cat(args, *axis),
        Call::Gather { axis } => x.gather(arg(1)?, *axis),
        Call::IndexSelect { axis } => x.index_select(arg(1)?, *axis),
        Call::Embedding => x.embedding(arg(1)?),
        Call::IndexAdd { axis } => x.index_add(arg(1)?, arg(2)?, *axis),
        Call::Cumsum { axis } => x.cumsum(*axis),
        Call::Rope => nn::rotary_emb::rope(x, arg(1)?, arg(2)?),
        Call::Attention { causal } => {
            nn::attention(x, arg(1)?, arg(2)?, &nn::AttentionOptions::default().causal(*causal))
        }
        Call::Argsort => x.arg_sort_last_dim(true),
        Call::RandomLike { normal: false } => x.rand_like(0.0, 1.0),
        Call::RandomLike { normal: true } => x.randn_like(0.0, 1.0),
        Call::Topk { k } => Ok(x.topk(*k)?.0),
        Call::Cast { dtype } => x.to_dtype(*dtype),
        Call::Pad { axis, before, after } => x.pad_with_zeros(*axis, *before, *after),
        Call::AvgPool2d { size, stride } => x.avg_pool2d_with_stride(*size, *stride),
        Call::MaxPool2d { size, stride } => x.max_pool2d_with_stride(*size, *stride),
        Call::Upsample { factor } => x.upsample_nearest2d(x.dim(2)? * factor, x.dim(3)? * factor),
    }
}

/// Adds the bias of a convolution, if it has one.
fn per_channel(y: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    match bias {
        None => Ok(y.clone()),
        Some(bias) => {
            let mut shape = vec![1; y.rank()];
            shape[1] = y.dim(1)?;
            y.broadcast_add(&bias.reshape(shape)?)
        }
    }
}

fn binary(function: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match function {
        Binary::Add => a.broadcast_add(b),
        Binary::Sub => a.broadcast_sub(b),
        Binary::Mul => a.broadcast_mul(b),
        Binary::Div => a.broadcast_div(b),
        Binary::Maximum => a.broadcast_maximum(b),
    }
}

fn unary(function: Unary, x: &Tensor) -> Result<Tensor> {
    match function {
        Unary::Relu => x.relu(),
        Unary::Gelu => x.gelu(),
        Unary::GeluErf => x.gelu_erf(),
        Unary::Silu => x.silu(),
        Unary::Sigmoid => x.sigmoid(),
        Unary::Tanh => x.tanh(),
        Unary::Exp => x.exp(),
        Unary::Log => x.log(),
        Unary::Sqrt => x.sqrt(),
        Unary::Abs => x.abs(),
        Unary::Neg => x.neg(),
        Unary::Square => x.sqr(),
    }
}

fn compare(relation: Relation, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match relation {
        Relation::Lt => a.broadcast_lt(b),
        Relation::Le => a.broadcast_le(b),
        Relation::Gt => a.broadcast_gt(b),
        Relation::Ge => a.broadcast_ge(b),
        Relation::Eq => a.broadcast_eq(b),
    }
}

fn compare_with(relation: Relation, a: &Tensor, b: f64) -> Result<Tensor> {
    match relation {
        Relation::Lt => a.lt(b),
        Relation::Le => a.le(b),
        Relation::Gt => a.gt(b),
        Relation::Ge => a.ge(b),
        Relation::Eq => a.eq(b),
    }
}

fn reduce(kind: Reduction, x: &Tensor, axes: &[usize], keepdim: bool) -> Result<Tensor> {
    match (kind, keepdim) {
        (Reduction::Sum, false) => x.sum(axes),
        (Reduction::Sum, true) => x.sum_keepdim(axes),
        (Reduction::Mean, false) => x.mean(axes),
        (Reduction::Mean, true) => x.mean_keepdim(axes),
        (Reduction::Max, false) => x.max(axes),
        (Reduction::Max, true) => x.max_keepdim(axes),
    }
}
