//! Rotary position embeddings (Su et al., arXiv 2104.09864) with the names and arguments of `candle_nn::rotary_emb`.
//!
//! A head of `dim` elements is `dim / 2` pairs. Pair `i` of the row at position `t` is rotated by the angle whose cosine and
//! sine are element `(t, i)` of `cos` and `sin`. All are compositions, which fuse to one kernel.

use tallow_ir::{DType, Dim};

use crate::error::{Error, Result};
use crate::shape::D;
use crate::tensor::Tensor;

/// Which elements of a head are a pair.
#[derive(Clone, Copy)]
enum Pairing {
    /// `i` and `i + dim / 2`.
    Halves,
    /// `2 i` and `2 i + 1`.
    Interleaved,
}

/// Rotates element `i` of each head against element `i + dim / 2` (GPT-NeoX): `x` of shape `(batch, heads, seq, dim)` to
/// the same shape. `cos` and `sin` are `(rows, dim / 2)`, or `(batch, rows, dim / 2)` with angles of each sequence's own,
/// where `rows` is at least `seq`; later rows are not read. Extents may be symbols.
///
/// # Errors
/// When shapes, element types or devices do not fit, or the elements are no floats.
///
/// ```
/// use tallow::{Device, Tensor, nn::rotary_emb};
/// let x = Tensor::new([[[[1f32, 2.0, 3.0, 4.0]]]], &Device::Cpu)?;
/// let (cos, sin) = (Tensor::new([[0f32, 1.0]], &Device::Cpu)?, Tensor::new([[1f32, 0.0]], &Device::Cpu)?);
/// let y = rotary_emb::rope(&x, &cos, &sin)?; // a quarter turn of the first pair, none of the second
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [-3.0, 2.0, 1.0, 4.0]);
/// # Ok::<(), tallow::Error>(())
/// ```
pub fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotate("rope", x, cos, sin, 2, Pairing::Halves)
}

/// [`rope`] with pairs of neighbours: element `2 i` of each head against element `2 i + 1`.
///
/// # Errors
/// As [`rope`].
pub fn rope_i(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotate("rope_i", x, cos, sin, 2, Pairing::Interleaved)
}

/// [`rope`] of `x` of shape `(batch, seq, heads, dim)`.
///
/// # Errors
/// As [`rope`].
pub fn rope_thd(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotate("rope_thd", x, cos, sin, 1, Pairing::Halves)
}

/// [`rope`] for `cos` and `sin` of two axes alone, by the formula that `candle_nn` calls slow. Here it is as fast.
///
/// # Errors
/// As [`rope`], or when `dim` is symbolic.
pub fn rope_slow(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let [_, _, seq, _] = four_dims("rope_slow", x)?;
    let spread = |angles: &Tensor| {
        Tensor::cat(&[angles, angles], D::Minus1)?.narrow(0, 0, seq)?.unsqueeze(0)?.unsqueeze(0)
    };
    x.broadcast_mul(&spread(cos)?)?.add(&rotate_half(x)?.broadcast_mul(&spread(sin)?)?)
}

/// [`rope_i`] for `cos` and `sin` of two axes alone, by the formula that `candle_nn` calls slow. Here it is as fast.
///
/// # Errors
/// As [`rope_i`], or when `dim` is symbolic.
pub fn rope_i_slow(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let [batch, heads, seq, _] = four_dims("rope_i_slow", x)?;
    let pairs = x.const_dim(D::Minus1)? / 2;
    let spread = |angles: &Tensor| angles.narrow(0, 0, seq)?.reshape((1, 1, seq, pairs, 1));
    let split = x.reshape((batch, heads, seq, pairs, 2))?;
    rotate_pairs(&split, &spread(cos)?, &spread(sin)?, 4)?.flatten_from(D::Minus2)
}

/// Turns the last axis by a quarter: `(a, b)` to `(-b, a)`, where `a` and `b` are its halves.
fn rotate_half(x: &Tensor) -> Result<Tensor> {
    let (dim, axis) = (x.const_dim(D::Minus1)?, D::Minus1);
    let (a, b) = (x.narrow(axis, 0, dim / 2)?, x.narrow(axis, dim / 2, dim - dim / 2)?);
    Tensor::cat(&[&b.neg()?, &a], axis)
}

fn four_dims<'a>(op: &'static str, x: &'a Tensor) -> Result<&'a [Dim; 4]> {
    let unexpected = || {
        let shape = x.sym_shape().clone();
        Error::UnexpectedNumberOfDims { op, expected: 4, got: x.rank(), shape }
    };
    x.sym_dims().try_into().map_err(|_| unexpected())
}

/// `x` of four axes, `seq_axis` being that of positions.
fn rotate(
    op: &'static str,
    x: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    seq_axis: usize,
    pairing: Pairing,
) -> Result<Tensor> {
    four_dims(op, x)?;
    if !matches!(x.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
        let expected = "f16, bf16, f32 or f64".to_string();
        return Err(Error::UnexpectedDType { op, expected, got: x.dtype() });
    }
    for angles in [cos, sin] {
        x.same_dtype(op, angles)?;
        x.same_device(op, angles)?;
    }
    let (cos, sin) = (spread(op, x, cos, seq_axis)?, spread(op, x, sin, seq_axis)?);
    let pairs = &cos.sym_dims()[3];
    let (axis, last) = match pairing {
        Pairing::Halves => (3, [Dim::constant(2), pairs.clone()]),
        Pairing::Interleaved => (4, [pairs.clone(), Dim::constant(2)]),
    };
    let split: Vec<Dim> = x.sym_dims()[..3].iter().cloned().chain(last).collect();
    let rotated = rotate_pairs(&x.reshape(split)?, &cos.unsqueeze(axis)?, &sin.unsqueeze(axis)?, axis)?;
    rotated.reshape(x.sym_shape())
}

/// The angles' rows up to the length of `x`, as a tensor of four axes that broadcasts against the pairs of `x`.
fn spread(op: &'static str, x: &Tensor, angles: &Tensor, seq_axis: usize) -> Result<Tensor> {
    let mismatch = |why: &str| {
        let (angles, x) = (angles.sym_shape(), x.sym_shape());
        Error::InvalidArgument { op, why: format!("cos or sin of {angles} for {x}: {why}") }
    };
    let (all, seq) = (x.sym_dims(), &x.sym_dims()[seq_axis]);
    let (rows, pairs) = match angles.sym_dims() {
        [rows, pairs] => (rows, pairs),
        [batch, rows, pairs] if *batch == all[0] => (rows, pairs),
        [_, _, _] => return Err(mismatch("inconsistent batch size")),
        _ => return Err(mismatch("two or three axes are needed")),
    };
    if pairs * &Dim::constant(2) != all[3] {
        return Err(mismatch("inconsistent last dim size, which is that of pairs"));
    }
    // What depends on symbols is compared in each run.
    if let (Some(rows), Some(seq)) = (rows.as_const(), seq.as_const())
        && rows < seq
    {
        return Err(mismatch("fewer rows than positions"));
    }
    let rank = angles.rank();
    let used = angles.narrow(rank - 2, 0, seq)?;
    let batched = if rank == 2 { used.unsqueeze(0)? } else { used };
    // Where `x` has its heads.
    batched.unsqueeze(3 - seq_axis)
}

/// Rotates `(a, b)`, which are the two parts of `axis`, to `(a cos - b sin, a sin + b cos)`.
fn rotate_pairs(x: &Tensor, cos: &Tensor, sin: &Tensor, axis: usize) -> Result<Tensor> {
    let (a, b) = (x.narrow(axis, 0, 1)?, x.narrow(axis, 1, 1)?);
    let first = a.broadcast_mul(cos)?.sub(&b.broadcast_mul(sin)?)?;
    let second = a.broadcast_mul(sin)?.add(&b.broadcast_mul(cos)?)?;
    Tensor::cat(&[first, second], axis)
}
