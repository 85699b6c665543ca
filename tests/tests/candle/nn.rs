//! `tallow::nn` against the formulas of `candle_nn`, written with `candle_core`'s operations.

use crate::both;
use crate::inputs::Input;
use crate::suite::{Bound, Suite};

/// Exact in every type.
const EPSILON: f64 = 0.0009765625;

/// Tallow's side.
pub mod ours {
    use super::EPSILON;
    pub use tallow::Module;
    pub use tallow::nn::encoding::one_hot;
    pub use tallow::nn::loss::*;
    pub use tallow::nn::ops::*;
    pub use tallow::nn::{BatchNorm, Embedding, GroupNorm, LayerNorm, Linear, ModuleT};
    use tallow::{Result, Tensor};

    pub fn group_norm(x: &Tensor, w: &Tensor, b: &Tensor, groups: usize) -> Result<Tensor> {
        let channels = w.dim(0)?;
        GroupNorm::new(w.clone(), b.clone(), channels, groups, EPSILON)?.forward(x)
    }

    pub fn batch_norm(x: &Tensor, w: &Tensor, b: &Tensor, train: bool) -> Result<Vec<Tensor>> {
        let layer = BatchNorm::new(w.dim(0)?, b.clone(), w.sqr()?, w.clone(), b.clone(), EPSILON)?;
        if !train {
            return Ok(vec![layer.forward_t(x, false)?]);
        }
        let y = layer.forward_train(x)?;
        Ok(vec![y, layer.running_mean().clone(), layer.running_var().clone()])
    }

    pub fn linear(x: &Tensor, w: &Tensor, b: &Tensor) -> Result<Tensor> {
        Linear::new(w.clone(), Some(b.clone())).forward(x)
    }

    pub fn layer_norm_no_bias(x: &Tensor, w: &Tensor) -> Result<Tensor> {
        LayerNorm::new_no_bias(w.clone(), EPSILON).forward(x)
    }
}

/// Candle's side.
pub mod theirs {
    use super::EPSILON;
    use candle_core::{D, DType, Module, Result, Tensor, bail};

    fn wide(x: &Tensor) -> Result<Tensor> {
        match x.dtype() {
            DType::F16 | DType::BF16 => x.to_dtype(DType::F32),
            _ => Ok(x.clone()),
        }
    }

    pub fn softmax(x: &Tensor, axis: usize) -> Result<Tensor> {
        let e = x.broadcast_sub(&x.max_keepdim(axis)?)?.exp()?;
        e.broadcast_div(&e.sum_keepdim(axis)?)
    }

    pub fn softmax_last_dim(x: &Tensor) -> Result<Tensor> {
        x.dim(D::Minus1)?;
        softmax(x, x.rank() - 1)
    }

    pub fn log_softmax(x: &Tensor, axis: usize) -> Result<Tensor> {
        let shifted = x.broadcast_sub(&x.max_keepdim(axis)?)?;
        shifted.broadcast_sub(&shifted.exp()?.sum_keepdim(axis)?.log()?)
    }

    fn normal(x: &Tensor, axis: impl candle_core::shape::Dims + Clone, mean: bool) -> Result<Tensor> {
        let x = if mean { x.broadcast_sub(&x.mean_keepdim(axis.clone())?)? } else { x.clone() };
        x.broadcast_div(&(x.sqr()?.mean_keepdim(axis)? + EPSILON)?.sqrt()?)
    }

    pub fn layer_norm(x: &Tensor, w: &Tensor, b: &Tensor, _eps: f32) -> Result<Tensor> {
        normal(&wide(x)?, D::Minus1, true)?.to_dtype(x.dtype())?.broadcast_mul(w)?.broadcast_add(b)
    }

    pub fn layer_norm_no_bias(x: &Tensor, w: &Tensor) -> Result<Tensor> {
        normal(&wide(x)?, D::Minus1, true)?.to_dtype(x.dtype())?.broadcast_mul(w)
    }

    pub fn rms_norm(x: &Tensor, w: &Tensor, _eps: f32) -> Result<Tensor> {
        normal(&wide(x)?, D::Minus1, false)?.to_dtype(x.dtype())?.broadcast_mul(w)
    }

    fn channel(t: &Tensor, rank: usize) -> Result<Tensor> {
        let mut dims = vec![1; rank];
        dims[1] = t.dims1()?;
        t.reshape(dims)
    }

    pub fn group_norm(x: &Tensor, w: &Tensor, b: &Tensor, groups: usize) -> Result<Tensor> {
        if x.rank() < 3 || x.dim(1)? != w.dim(0)? || !w.dim(0)?.is_multiple_of(groups) {
            bail!("channels")
        }
        let grouped = wide(x)?.reshape((x.dim(0)?, groups, x.elem_count() / x.dim(0)? / groups))?;
        let y = normal(&grouped, 2, true)?.to_dtype(x.dtype())?.reshape(x.shape())?;
        y.broadcast_mul(&channel(w, x.rank())?)?.broadcast_add(&channel(b, x.rank())?)
    }

    pub fn batch_norm(x: &Tensor, w: &Tensor, b: &Tensor, train: bool) -> Result<Vec<Tensor>> {
        if x.rank() < 2 || x.dim(1)? != w.dim(0)? {
            bail!("channels")
        }
        let lift = |t: &Tensor| channel(t, x.rank());
        let (mean, var) = (b.clone(), w.sqr()?);
        if !train {
            let y = x.broadcast_sub(&lift(&mean)?)?.broadcast_div(&lift(&(var + EPSILON)?.sqrt()?)?)?;
            return Ok(vec![y.broadcast_mul(&lift(w)?)?.broadcast_add(&lift(b)?)?]);
        }
        let rows = wide(x)?.transpose(0, 1)?.flatten_from(1)?;
        let n = rows.dim(1)? as f64;
        let batch_mean = rows.mean_keepdim(1)?;
        let batch_var = rows.broadcast_sub(&batch_mean)?.sqr()?.mean_keepdim(1)?;
        let (m, v) =
            (batch_mean.flatten_all()?.to_dtype(x.dtype())?, batch_var.flatten_all()?.to_dtype(x.dtype())?);
        let next_mean = ((mean * 0.9)? + (m * 0.1)?)?;
        let next_var = ((var * 0.9)? + (v * (0.1 * n / (n - 1.0)))?)?;
        let y = normal(&rows, 1, true)?.to_dtype(x.dtype())?;
        let y = y.broadcast_mul(&w.unsqueeze(1)?)?.broadcast_add(&b.unsqueeze(1)?)?;
        Ok(vec![y.reshape(x.transpose(0, 1)?.shape())?.transpose(0, 1)?, next_mean, next_var])
    }

    pub fn sdpa(
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        causal: bool,
        scale: f32,
        cap: f32,
    ) -> Result<Tensor> {
        let (batch, heads, queries, _) = q.dims4()?;
        let (_, key_heads, keys, _) = k.dims4()?;
        if !q.dtype().is_float() {
            bail!("floats")
        }
        let repeated = |x: &Tensor| -> Result<Tensor> {
            let (_, _, rows, columns) = x.dims4()?;
            let all = (batch, key_heads, heads / key_heads, rows, columns);
            wide(x)?.unsqueeze(2)?.broadcast_as(all)?.reshape((batch, heads, rows, columns))
        };
        let mut scores =
            (wide(q)?.contiguous()?.matmul(&repeated(k)?.t()?.contiguous()?)? * f64::from(scale))?;
        if cap != 1.0 {
            scores = ((scores / f64::from(cap))?.tanh()? * f64::from(cap))?;
        }
        if let Some(mask) = mask {
            scores = scores.broadcast_add(&wide(mask)?)?;
        }
        if causal {
            let hide = |i: usize| if i % keys > i / keys + keys - queries { f32::NEG_INFINITY } else { 0.0 };
            let hidden = (0..queries * keys).map(hide).collect();
            let hidden = Tensor::from_vec(hidden, (queries, keys), q.device())?;
            scores = scores.broadcast_add(&hidden.to_dtype(scores.dtype())?)?;
        }
        softmax_last_dim(&scores)?.matmul(&repeated(v)?.contiguous()?)?.to_dtype(q.dtype())
    }

    pub fn linear(x: &Tensor, w: &Tensor, b: &Tensor) -> Result<Tensor> {
        x.broadcast_matmul(&w.t()?)?.broadcast_add(b)
    }

    pub fn nll(x: &Tensor, target: &Tensor) -> Result<Tensor> {
        let (rows, _) = x.dims2()?;
        if target.dims() != [rows] {
            bail!("rows")
        }
        x.gather(&target.unsqueeze(1)?, 1)?.sum_all()?.affine(-1.0 / rows as f64, 0.0)
    }

    pub fn cross_entropy(x: &Tensor, target: &Tensor) -> Result<Tensor> {
        nll(&log_softmax(x, 1)?, target)
    }

    pub fn mse(x: &Tensor, target: &Tensor) -> Result<Tensor> {
        (x - target)?.sqr()?.mean_all()
    }

    pub fn binary_cross_entropy_with_logit(x: &Tensor, target: &Tensor) -> Result<Tensor> {
        // Through f64, as the plain formula loses digits.
        let (x64, t64) = (x.to_dtype(DType::F64)?, target.to_dtype(DType::F64)?);
        let s = (((x64.neg()?.exp()? + 1.0)?).recip())?;
        let left = (&t64 * s.log()?)?;
        let right = (t64.affine(-1.0, 1.0)? * s.affine(-1.0, 1.0)?.log()?)?;
        if x.dtype() != target.dtype() {
            bail!("dtypes")
        }
        (left + right)?.neg()?.mean_all()?.to_dtype(x.dtype())
    }

    pub fn huber(x: &Tensor, target: &Tensor, delta: f64) -> Result<Tensor> {
        let d = (x - target)?.abs()?;
        let (near, far) = ((d.sqr()? * 0.5)?, ((&d * delta)? - 0.5 * delta * delta)?);
        d.le(delta)?.where_cond(&near, &far)?.mean_all()
    }

    pub fn one_hot(ids: Tensor, depth: usize, on: f32, off: f32) -> Result<Tensor> {
        let mut dims = ids.dims().to_vec();
        dims.push(depth);
        let hot = |id: i64| (0..depth).map(move |at| if at as i64 == id { on } else { off });
        let ids = ids.to_dtype(DType::I64)?.flatten_all()?.to_vec1::<i64>()?;
        Tensor::from_vec(ids.into_iter().flat_map(hot).collect(), dims, &candle_core::Device::Cpu)
    }

    pub fn swiglu(x: &Tensor) -> Result<Tensor> {
        let parts = x.chunk(2, D::Minus1)?;
        match parts.as_slice() {
            [gate, up] => gate.silu()? * up,
            _ => bail!("halves"),
        }
    }

    pub fn replication_pad2d(x: &Tensor, pad: usize) -> Result<Tensor> {
        x.dims4()?;
        x.pad_with_same(2, pad, pad)?.pad_with_same(3, pad, pad)
    }

    pub fn pixel_shuffle(x: &Tensor, f: usize) -> Result<Tensor> {
        let (b, c, h, w) = x.dims4()?;
        if c % (f * f) != 0 {
            bail!("channels")
        }
        let y = x.reshape((b, c / f / f, f, f, h, w))?.permute((0, 1, 4, 2, 5, 3))?;
        y.reshape((b, c / f / f, h * f, w * f))
    }

    pub fn pixel_unshuffle(x: &Tensor, f: usize) -> Result<Tensor> {
        let (b, c, h, w) = x.dims4()?;
        if h % f != 0 || w % f != 0 {
            bail!("size")
        }
        let y = x.reshape((b, c, h / f, f, w / f, f))?.permute((0, 1, 3, 5, 2, 4))?;
        y.reshape((b, c * f * f, h / f, w / f))
    }

    pub struct Embedding(Tensor);

    impl Embedding {
        pub fn new(table: Tensor, _width: usize) -> Embedding {
            Embedding(table)
        }
    }

    impl Module for Embedding {
        fn forward(&self, ids: &Tensor) -> Result<Tensor> {
            let mut dims = ids.dims().to_vec();
            dims.push(self.0.dims2()?.1);
            self.0.index_select(&ids.flatten_all()?, 0)?.reshape(dims)
        }
    }
}

pub fn all(s: &mut Suite, a: &Input) {
    // A step for each of exponential, division and up to 30 roundings of a sum by half a step.
    let rows = Bound::Steps(20.0);
    both!(s, a, rows, more: "no rows", |a| nn::softmax(&a.x, 0)?);
    both!(s, a, rows, more: "no rows", |a| nn::softmax(&a.x, 1)?);
    both!(s, a, rows, more: "no rows", |a| nn::softmax_last_dim(&a.x)?);
    both!(s, a, rows, more: "no rows", |a| nn::log_softmax(&a.x, 1)?);
    // Normal elements are at most 6, as the root of the number of elements is, and off by as many steps as the
    // variance relative to itself, which is up to (150 as above) where it is not small, and epsilon keeps it
    // from that; 16-bit types are computed in f32 and rounded twice.
    let norms = Bound::Steps(160.0);
    both!(s, a, norms, |a| nn::layer_norm(&a.x, &a.row, &a.row, 0.0009765625f32)?);
    both!(s, a, norms, |a| nn::layer_norm_no_bias(&a.x, &a.row)?);
    both!(s, a, norms, |a| nn::rms_norm(&a.x, &a.row, 0.0009765625)?);
    both!(s, a, norms, |a| nn::group_norm(
        &a.x,
        &a.y.flatten_all()?.narrow(0, 0, 3)?,
        &a.row.narrow(0, 0, 3)?,
        1
    )?);
    both!(s, a, norms, |a| nn::group_norm(
        &a.x,
        &a.y.flatten_all()?.narrow(0, 0, 3)?,
        &a.row.narrow(0, 0, 3)?,
        3
    )?);
    both!(s, a, norms, |a| nn::group_norm(&a.x, &a.row, &a.row, 2)?);
    both!(s, a, norms, |a| nn::batch_norm(&a.x, &a.row, &a.row, false)?);
    both!(s, a, norms, |a| nn::batch_norm(&a.x, &a.row, &a.row, true)?);
    both!(s, a, norms, |a| nn::batch_norm(&a.x, &a.row.narrow(0, 0, 3)?, &a.row.narrow(0, 1, 3)?, true)?);
    both!(s, a, norms, |a| nn::batch_norm(&a.x, &a.row.narrow(0, 0, 3)?, &a.row.narrow(0, 1, 3)?, false)?);
    // Sums of up to 120 terms of at most 64, each rounded by half a step of the sum: 60 steps, and 4 more.
    let losses = Bound::Steps(64.0);
    both!(s, a, losses, |a| nn::mse(&a.x, &a.y)?);
    both!(s, a, losses, |a| nn::mse(&a.x, &a.row)?);
    both!(s, a, losses, |a| nn::huber(&a.x, &a.y, 1.0)?);
    both!(s, a, losses, |a| nn::binary_cross_entropy_with_logit(&a.x, &a.mask.to_dtype(a.x.dtype())?)?);
    both!(s, a, losses, |a| nn::binary_cross_entropy_with_logit(&a.x, &a.row)?);
    both!(s, a, losses, more: "Candle wants indices contiguous", |a| nn::nll(&a.x.contiguous()?, &a.last.get_on_dim(D::Minus1, 0)?)?);
    both!(s, a, losses, more: "Candle wants indices contiguous", |a| nn::cross_entropy(&a.x, &a.last.get_on_dim(D::Minus1, 0)?)?);
    both!(s, a, losses, |a| nn::cross_entropy(&a.x, &a.ids)?);
    both!(s, a, Bound::Exact, |a| nn::one_hot(a.ids.clone(), 4, 2f32, -1f32)?);
    if s.device.is_cpu() {
        both!(s, a, Bound::Exact, |a| nn::one_hot(a.first.affine(1.0, -1.0)?, 2, 1f32, 0f32)?);
    }
    // Scores are exact but for a tanh; an exponential is off by two steps, a sum of four by two, a quotient and the
    // mixture of values up to 4 (8 steps of 1, which the size of the result may be) by one each.
    let mixed = Bound::Steps(40.0);
    both!(s, a, mixed, |a| nn::sdpa(
        &a.x.reshape((1, 4, 2, 3))?,
        &a.y.reshape((1, 2, 4, 3))?,
        &a.y.reshape((1, 2, 4, 3))?,
        None,
        true,
        0.5,
        1.0
    )?);
    both!(s, a, mixed, |a| nn::sdpa(&a.x, &a.y, &a.y, None, false, 0.25, 2.0)?);
    both!(s, a, mixed, |a| nn::sdpa(
        &a.x.reshape((2, 3, 2, 2))?,
        &a.y.reshape((2, 1, 6, 2))?,
        &a.y.reshape((2, 1, 6, 2))?,
        Some(&a.y.flatten_all()?.narrow(0, 0, 12)?.reshape((1, 1, 2, 6))?),
        false,
        0.25,
        1.0
    )?);
    // Exact sums but for the bias, then one rounding each.
    both!(s, a, Bound::Steps(2.0), |a| nn::linear(
        &a.x,
        &a.y.flatten_to(D::Minus2)?,
        &a.y.flatten_to(D::Minus2)?.sum(1)?
    )?);
    both!(s, a, Bound::Exact, |a| nn::Embedding::new(a.y.clone(), 4).forward(&a.ids)?);
    both!(s, a, Bound::Steps(8.0), |a| nn::swiglu(&a.x)?);
    both!(s, a, Bound::Exact, |a| nn::replication_pad2d(&a.x, 2)?);
    both!(s, a, Bound::Exact, |a| nn::pixel_shuffle(&a.x, 1)?);
    both!(s, a, Bound::Exact, |a| nn::pixel_shuffle(&a.x.reshape((1, 12, 1, 2))?, 2)?);
    both!(s, a, Bound::Exact, |a| nn::pixel_unshuffle(&a.x.reshape((1, 1, 6, 4))?, 2)?);
}
