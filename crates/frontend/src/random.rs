//! Random tensors from a counter: element `i` of draw number `n` is a function of the seed, `n` and `i` alone
//! (Philox4x32-10, Salmon et al., SC'11), so every device and the interpreter give the same integers and
//! uniform numbers, and nothing depends on how a kernel is divided.

use tallow_ir::{DType, Dim};

use crate::device::Device;
use crate::draws::next_draws;
use crate::element::WithDType;
use crate::error::{Error, Result};
use crate::masks::positions;
use crate::shape::IntoShape;
use crate::tensor::Tensor;
use crate::trace::drawn_in_function;

impl Tensor {
    /// Numbers drawn evenly from `low .. up`, of the type of the bounds.
    ///
    /// In a function that [`crate::compile`] calls, on the device that it compiles for, the draw is that of each run: the
    /// numbers are new each time, and those that the same draws outside of a function would give in that order. They have
    /// no value before. For the same numbers in each run, draw outside of the function.
    ///
    /// # Errors
    /// When the bounds are no floats, the shape may have 2^30 elements, or it is symbolic and no function is being compiled.
    pub fn rand<T: WithDType>(low: T, up: T, shape: impl IntoShape, device: &Device) -> Result<Tensor> {
        let shape = shape.into_shape();
        let (low, up) = (low.to_f64(), up.to_f64());
        let unit = unit("rand", shape.numel(), 1, device)?.remove(0);
        let drawn = unit.affine(up - low, low)?.to_dtype(T::DTYPE)?.reshape(&shape)?;
        drawn.floats("rand")?;
        Ok(drawn)
    }

    /// Numbers drawn from the normal distribution of this mean and standard deviation, of their type, by the
    /// method of Box and Muller (1958): within 1e-5 of a deviation the same on every device.
    ///
    /// # Errors
    /// As [`Tensor::rand`].
    pub fn randn<T: WithDType>(mean: T, std: T, shape: impl IntoShape, device: &Device) -> Result<Tensor> {
        let shape = shape.into_shape();
        let (mean, std) = (mean.to_f64(), std.to_f64());
        let mut both = unit("randn", shape.numel(), 2, device)?;
        let (angle, radius) = (both.remove(1), both.remove(0));
        // 1 - u lies in (0, 1], where the logarithm is finite.
        let radius = radius.affine(-1.0, 1.0)?.log()?.affine(-2.0, 0.0)?.sqrt()?;
        let normal = radius.mul(&angle.affine(std::f64::consts::TAU, 0.0)?.cos()?)?;
        let drawn = normal.affine(std, mean)?.to_dtype(T::DTYPE)?.reshape(&shape)?;
        drawn.floats("randn")?;
        Ok(drawn)
    }

    /// As [`Tensor::rand`], with this tensor's shape, type and device.
    ///
    /// # Errors
    /// As [`Tensor::rand`].
    pub fn rand_like(&self, low: f64, up: f64) -> Result<Tensor> {
        self.floats("rand_like")?;
        Tensor::rand(low as f32, up as f32, self.sym_shape(), self.device())?.to_dtype(self.dtype())
    }

    /// As [`Tensor::randn`], with this tensor's shape, type and device.
    ///
    /// # Errors
    /// As [`Tensor::rand`].
    pub fn randn_like(&self, mean: f64, stdev: f64) -> Result<Tensor> {
        self.floats("randn_like")?;
        Tensor::randn(mean as f32, stdev as f32, self.sym_shape(), self.device())?.to_dtype(self.dtype())
    }

    /// 1 (u8) with the probability that each element of this tensor says, else 0.
    ///
    /// # Errors
    /// When the elements are no floats, or as [`Tensor::rand`].
    pub fn bernoulli(&self) -> Result<Tensor> {
        self.floats("bernoulli")?;
        // Drawn in f32: rounded to 16 bits, a draw below 1 could become 1.
        self.to_dtype(DType::F32)?.gt(&Tensor::rand(0f32, 1.0, self.sym_shape(), self.device())?)
    }
}

/// Key and number of the next draw on `device`, as tensors of one element (u32).
fn next_draw(device: &Device) -> Result<[Tensor; 2]> {
    if let Some(draw) = drawn_in_function(device)? {
        return Ok(draw);
    }
    // Data, not constants: the next draw runs the same kernel.
    let [key, number] = next_draws(1);
    Ok([Tensor::new([key], device)?, Tensor::new([number], device)?])
}

/// `count` tensors of `n` numbers (f32) in `0 .. 1`, multiples of 2^-24.
fn unit(op: &'static str, n: Dim, count: u32, device: &Device) -> Result<Vec<Tensor>> {
    if n.max_value() >= 1 << 30 {
        let why = format!("{n} random elements; the number must be below 2^30");
        return Err(Error::InvalidArgument { op, why });
    }
    // Fails for a symbolic number outside of functions, which then is no draw.
    let at = positions(&n, device)?;
    let [key, number] = next_draw(device)?;
    let (key, stream) = (key.broadcast_as([n.clone()])?, number.broadcast_as([n.clone()])?);
    let one = |i: u32| -> Result<Tensor> {
        let counter = at.affine(f64::from(count), f64::from(i))?;
        let bits = counter.philox(&key, &stream)?;
        // The upper 24 bits: as many as an f32 holds.
        let high = bits.div(&bits.constant_like(256.0)?)?;
        high.to_dtype(DType::F32)?.affine(f64::from(1u32 << 24).recip(), 0.0)
    };
    (0..count).map(one).collect()
}
