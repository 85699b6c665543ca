//! Scaling the loss, so that gradients of 16-bit floats neither vanish nor overflow.

use tallow_ir::DType;

use super::clip::grad_norm;
use crate::backward::GradStore;
use crate::device::Device;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::variable::{Var, set_where};

/// How the scale of a loss changes. The defaults are those of PyTorch's `GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// The scale at the beginning.
    pub init: f64,
    /// The factor on it after `interval` steps without an infinite gradient.
    pub growth: f64,
    /// The factor on it after a step with one.
    pub backoff: f64,
    /// Steps without an infinite gradient after which the scale grows.
    pub interval: u32,
}

impl Default for LossScale {
    fn default() -> Self {
        LossScale { init: 65536.0, growth: 2.0, backoff: 0.5, interval: 2000 }
    }
}

/// The scale stays in between, so that it and its inverse are f32.
const LIMITS: (f64, f64) = (7.888609052210118e-31, 1.2676506002282294e30); // 2^-100, 2^100

/// The scale of a loss, and the numbers of good and skipped steps. All are [variables](Var): nothing waits for the device
/// to know whether a step was good.
///
/// A step takes [`LossScaler::scaled`], its gradients, [`LossScaler::unscale`], then [`LossScaler::update`].
#[derive(Debug)]
pub struct LossScaler {
    options: LossScale,
    scale: Var,
    /// Steps since the scale changed.
    good: Var,
    skipped: Var,
}

impl LossScaler {
    /// A scale for losses on `device`.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(options: LossScale, device: &Device) -> Result<LossScaler> {
        Ok(LossScaler {
            options,
            scale: Var::new(options.init as f32, device)?,
            good: Var::new(0u32, device)?,
            skipped: Var::new(0u32, device)?,
        })
    }

    /// The loss times the scale, in f32: what is to be differentiated.
    ///
    /// # Errors
    /// When the loss is not of rank 0, or on another device.
    pub fn scaled(&self, loss: &Tensor) -> Result<Tensor> {
        loss.to_dtype(DType::F32)?.mul(&self.scale.as_detached_tensor())
    }

    /// Divides gradients of a scaled loss by the scale. Those of 16-bit parameters become f32.
    ///
    /// # Errors
    /// When a gradient is on another device.
    pub fn unscale(&self, grads: &mut GradStore, vars: &[Var]) -> Result<()> {
        let inverse = self.scale.as_detached_tensor().recip()?;
        for var in vars {
            if let Some(gradient) = grads.remove(var) {
                let wide = gradient.widened()?;
                let inverse = inverse.to_dtype(wide.dtype())?.broadcast_as(wide.sym_shape())?;
                grads.insert(var, wide.mul(&inverse)?);
            }
        }
        Ok(())
    }

    /// Runs `step`, which sets variables by the gradients that it is given, and changes the scale. Where the norm of
    /// `grads` is infinite or NaN, no variable changes, to the bit, and the step counts as skipped. `norm` is that of
    /// [`super::clip_grad_norm`]; without it, the norm of the gradients of `vars` is computed.
    ///
    /// # Errors
    /// Those of `step`, and as [`super::clip_grad_norm`].
    pub fn update<T>(
        &self,
        grads: &mut GradStore,
        vars: &[Var],
        norm: Option<&Tensor>,
        step: impl FnOnce(&GradStore) -> Result<T>,
    ) -> Result<T> {
        let norm = norm.map_or_else(|| grad_norm(grads, vars), |norm| Ok(norm.clone()))?;
        // False for NaN, too.
        let is_good = norm.le(f64::from(f32::MAX))?;
        for var in vars {
            if let Some(gradient) = grads.remove(var) {
                // Zeros change nothing that the condition would not undo. But the whole step depends on the condition now, so
                // that it is one kernel with the choice; otherwise it would be computed first, written, and read again.
                let is_good = is_good.broadcast_as(gradient.sym_shape())?;
                grads.insert(var, is_good.where_cond(&gradient, &gradient.zeros_like()?)?);
            }
        }
        let result = set_where(&is_good, || step(grads))?;
        let LossScale { growth, backoff, interval, .. } = self.options;
        let old = self.scale.as_detached_tensor();
        let good = self.good.as_detached_tensor();
        let good = good.add(&good.ones_like()?)?;
        let is_time = good.ge(f64::from(interval))?;
        let grown = is_time.where_cond(&old.affine(growth, 0.0)?, &old)?;
        let scale = is_good.where_cond(&grown, &old.affine(backoff, 0.0)?)?;
        self.scale.set(&scale.maximum(LIMITS.0)?.minimum(LIMITS.1)?)?;
        let zero = good.zeros_like()?;
        self.good.set(&is_good.where_cond(&is_time.where_cond(&zero, &good)?, &zero)?)?;
        let skipped = self.skipped.as_detached_tensor();
        self.skipped.set(&skipped.add(&is_good.where_cond(&zero, &zero.ones_like()?)?)?)?;
        Ok(result)
    }

    /// The scale. Waits for the device.
    ///
    /// # Errors
    /// When computing fails.
    pub fn scale(&self) -> Result<f64> {
        Ok(self.scale.to_scalar::<f32>()?.into())
    }

    /// How many steps were skipped. Waits for the device.
    ///
    /// # Errors
    /// When computing fails.
    pub fn skipped_steps(&self) -> Result<u64> {
        Ok(self.skipped.to_scalar::<u32>()?.into())
    }

    /// The state, to save and restore it.
    pub fn state(&self) -> Vec<(String, Var)> {
        [("scale", &self.scale), ("good", &self.good), ("skipped", &self.skipped)]
            .map(|(name, var)| (format!("loss_scale.{name}"), var.clone()))
            .to_vec()
    }
}
