//! Attention as one operation: the scores are never in memory, whatever is added to them.

use tallow_ir::{Attention, DType, Dim, Op, Shape};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// What [`attention`] does with the scores; the default is plain attention.
///
/// ```
/// use tallow::{Device, Tensor, nn};
/// let x = Tensor::new([[[1f32, 0.0], [0.0, 1.0], [1.0, 1.0]]], &Device::Cpu)?; // one head, three tokens
/// let options = nn::AttentionOptions::default().causal(true).window(2).softcap(50.0);
/// let y = nn::attention(&x, &x, &x, &options)?;
/// assert_eq!(y.to_vec3::<f32>()?[0][0], [1.0, 0.0]); // the first token sees itself alone
/// # Ok::<(), tallow::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct AttentionOptions {
    scale: Option<f64>,
    causal: bool,
    window: Option<usize>,
    softcap: Option<f64>,
    mask: Option<Tensor>,
    alibi: Option<Tensor>,
}

impl AttentionOptions {
    /// The factor on the products of queries and keys; `1 / sqrt(dim)` if it is not set.
    pub fn scale(self, scale: f64) -> Self {
        AttentionOptions { scale: Some(scale), ..self }
    }

    /// Hides the keys after the query's own position. The last query stands at the last key, so with a cache of
    /// keys the new queries see all that came before.
    pub fn causal(self, causal: bool) -> Self {
        AttentionOptions { causal, ..self }
    }

    /// Of the keys up to its own position a query sees only the last so many, itself included (Beltagy et al., arXiv
    /// 2004.05150). What comes after its position only [`AttentionOptions::causal`] hides.
    pub fn window(self, keys: usize) -> Self {
        AttentionOptions { window: Some(keys), ..self }
    }

    /// Keeps scores within `cap`, before a mask is added: `cap * tanh(score / cap)`.
    pub fn softcap(self, cap: f64) -> Self {
        AttentionOptions { softcap: Some(cap), ..self }
    }

    /// Is added to the scores; negative infinity hides a key. Floats of a shape that broadcasts to
    /// `(batch, heads, seq, keys)`.
    pub fn mask(self, mask: &Tensor) -> Self {
        AttentionOptions { mask: Some(mask.clone()), ..self }
    }

    /// Lowers scores by a slope per head (one axis, see [`alibi_slopes`]) times the distance of the key from the
    /// query's own position (Press et al., arXiv 2108.12409).
    pub fn alibi(self, slopes: &Tensor) -> Self {
        AttentionOptions { alibi: Some(slopes.clone()), ..self }
    }
}

/// The slopes that Press et al. (arXiv 2108.12409, section 3) give `heads` heads, f32: for a power of two the
/// geometric sequence that starts at `2^(-8 / heads)` with that ratio. Other numbers of heads take, as the authors'
/// program does, those of the power of two below, then every second one of those of the power above.
///
/// # Errors
/// When the device fails to take the data.
pub fn alibi_slopes(heads: usize, device: &Device) -> Result<Tensor> {
    let below = if heads == 0 { 1 } else { 1usize << heads.ilog2() };
    let sequence = |of: usize| move |i: usize| (-8.0 / of as f64 * (i + 1) as f64).exp2() as f32;
    let rest = (0..heads.saturating_sub(below)).map(|i| sequence(2 * below)(2 * i));
    let slopes: Vec<f32> = (0..below.min(heads)).map(sequence(below)).chain(rest).collect();
    Tensor::from_vec(slopes, heads, device)
}

/// `softmax(scale * q k^T + mask) v` for each head: `q` `(batch, heads, seq, dim)`, `k` `(batch, kv_heads, keys, dim)`
/// and `v` `(batch, kv_heads, keys, width)` to `(batch, heads, seq, width)`, or all without the batch. `heads` is a
/// multiple of `kv_heads`, and neighbouring heads share keys and values. A query that sees no key gives zeros.
///
/// Scores and sums are f32 (f64 if an operand is), and what the options compute is computed where it is read. Where queries,
/// keys and values are f16, weights may be rounded to f16 before they meet the values, as other libraries do.
///
/// # Errors
/// When shapes, element types or devices do not fit, the elements are no floats, or an option makes no sense.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, options: &AttentionOptions) -> Result<Tensor> {
    attend("attention", q, k, v, options)
}

/// [`attention`] with the arguments of `candle_nn`: a mask of shape `(batch, heads, seq, keys)` or one that
/// broadcasts to it, and `softcapping` 1 for none.
///
/// # Errors
/// As [`attention`], or without a batch.
pub fn sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    do_causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Tensor> {
    if q.rank() != 4 {
        let (got, shape) = (q.rank(), q.sym_shape().clone());
        return Err(Error::UnexpectedNumberOfDims { op: "sdpa", expected: 4, got, shape });
    }
    let options = AttentionOptions {
        scale: Some(f64::from(scale)),
        causal: do_causal,
        window: None,
        softcap: (softcapping != 1.0).then(|| f64::from(softcapping)),
        mask: mask.cloned(),
        alibi: None,
    };
    attend("sdpa", q, k, v, &options)
}

fn attend(
    op: &'static str,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    options: &AttentionOptions,
) -> Result<Tensor> {
    let mismatch = |lhs: &Tensor, rhs: &Tensor| {
        let (lhs, rhs) = (lhs.sym_shape().clone(), rhs.sym_shape().clone());
        Error::ShapeMismatchBinaryOp { op, lhs, rhs }
    };
    for tensor in [q, k, v] {
        tensor.floats(op)?;
        if !(3..=4).contains(&tensor.rank()) {
            let (got, shape) = (tensor.rank(), tensor.sym_shape().clone());
            return Err(Error::UnexpectedNumberOfDims { op, expected: 4, got, shape });
        }
        if tensor.rank() != q.rank() {
            return Err(mismatch(q, tensor));
        }
    }
    q.same_dtype(op, k)?;
    k.same_dtype(op, v)?;
    let [batch, heads, seq, dim] = extents(q);
    let [k_batch, kv_heads, keys, k_dim] = extents(k);
    let [v_batch, v_heads, v_keys, width] = extents(v);
    let shared = |h: &Dim, g: &Dim| match (h.as_const(), g.as_const()) {
        (Some(h), Some(g)) => g > 0 && h % g == 0,
        _ => false,
    };
    if k_batch != batch || k_dim != dim || !shared(&heads, &kv_heads) {
        return Err(mismatch(q, k));
    }
    if (&v_batch, &v_heads, &v_keys) != (&k_batch, &kv_heads, &keys) {
        return Err(mismatch(k, v));
    }
    let mut out = q.sym_dims().to_vec();
    out[q.rank() - 1] = width.clone();
    let out = Shape::new(out);
    if out.numel().is(0) {
        return Tensor::zeros(&out, q.dtype(), q.device());
    }
    let fold = |t: &Tensor, heads: &Dim, rest: [&Dim; 2]| {
        t.reshape([&batch * heads, rest[0].clone(), rest[1].clone()])
    };
    let mut operands = vec![
        fold(q, &heads, [&seq, &dim])?,
        fold(k, &kv_heads, [&keys, &dim])?,
        fold(v, &kv_heads, [&keys, &width])?,
    ];
    let scores = [batch, heads, seq, keys];
    operands.extend(bias(op, options, &scores, q.device())?);
    let fail = |why: String| Error::InvalidArgument { op, why };
    let attrs = Attention::new(match (options.scale, dim.as_const()) {
        (Some(scale), _) => scale,
        (None, Some(dim)) => 1.0 / (dim.max(1) as f64).sqrt(),
        (None, None) => return Err(fail(format!("the default scale needs a known extent, not {dim}"))),
    });
    let window = match options.window {
        Some(0) => return Err(fail("a window of no keys".into())),
        // More than there can be is all.
        window => window.map(|w| u32::try_from(w).unwrap_or(u32::MAX)),
    };
    if let Some(cap) = options.softcap.filter(|cap| !(*cap > 0.0 && cap.is_finite())) {
        return Err(fail(format!("scores cannot be capped at {cap}")));
    }
    let attrs = attrs.causal(options.causal).window(window).softcap(options.softcap);
    let attrs = attrs.round_weights(matches!(q.dtype(), DType::F16 | DType::BF16));
    let operands: Vec<&Tensor> = operands.iter().collect();
    Tensor::of_op(Op::Attention(attrs), &operands, q.device())?.reshape(&out)
}

/// Batch (1 if there is none), heads, rows and columns.
fn extents(t: &Tensor) -> [Dim; 4] {
    let dims = t.sym_dims();
    let at = |from_end: usize| dims.len().checked_sub(from_end).map_or_else(Dim::one, |i| dims[i].clone());
    [at(4), at(3), at(2), at(1)]
}

/// What is added to the scores, `[batch * heads | 1, seq | 1, keys | 1]`.
fn bias(
    op: &'static str,
    options: &AttentionOptions,
    scores: &[Dim; 4],
    device: &Device,
) -> Result<Option<Tensor>> {
    let mut sum: Option<Tensor> = None;
    if let Some(mask) = &options.mask {
        mask.floats(op)?;
        let shape = mask.sym_dims();
        let broadcasts =
            shape.iter().rev().zip(scores.iter().rev()).all(|(have, want)| have == want || have.is(1));
        if shape.len() > 4 || !broadcasts {
            let (src_shape, dst_shape) = (mask.sym_shape().clone(), Shape::new(scores.to_vec()));
            return Err(Error::BroadcastIncompatibleShapes { op, src_shape, dst_shape });
        }
        sum = Some(mask.reshape(extents(mask).to_vec())?);
    }
    if let Some(slopes) = &options.alibi {
        let distance = distances(&scores[2], &scores[3], device)?;
        slopes.floats(op)?;
        if slopes.sym_dims() != &scores[1..2] {
            let (src_shape, dst_shape) = (slopes.sym_shape().clone(), Shape::new(scores[1..2].to_vec()));
            return Err(Error::BroadcastIncompatibleShapes { op, src_shape, dst_shape });
        }
        let slopes =
            slopes.to_dtype(DType::F32)?.reshape([Dim::one(), scores[1].clone(), Dim::one(), Dim::one()])?;
        let alibi = slopes.broadcast_mul(&distance)?.neg()?;
        sum = Some(match sum {
            Some(mask) => mask.to_dtype(DType::F32)?.broadcast_add(&alibi)?,
            None => alibi,
        });
    }
    let Some(sum) = sum else { return Ok(None) };
    // One batch and head after the other; both repeat, or neither.
    let [batch, heads, seq, keys] = extents(&sum);
    if batch.is(1) && heads.is(1) {
        return sum.reshape([Dim::one(), seq, keys]).map(Some);
    }
    let dims = [scores[0].clone(), scores[1].clone(), seq.clone(), keys.clone()];
    sum.broadcast_as(&dims)?.reshape([&scores[0] * &scores[1], seq, keys]).map(Some)
}

/// How far each key is from each query's own position (f32, exact below 2^24): `|key - (query + keys - queries)|`.
fn distances(queries: &Dim, keys: &Dim, device: &Device) -> Result<Tensor> {
    let iota = |len: &Dim| Tensor::of_op(Op::Iota { len: len.clone(), dtype: DType::F32 }, &[], device);
    let count = |dim: &Dim| Tensor::of_op(Op::DimValue { dim: dim.clone(), dtype: DType::F32 }, &[], device);
    // Both moved by what keeps them from being negative.
    let key = iota(keys)?.broadcast_add(&count(queries)?)?;
    let position = iota(queries)?.broadcast_add(&count(keys)?)?;
    key.unsqueeze(0)?.broadcast_sub(&position.unsqueeze(1)?)?.abs()
}
