//! Limiting gradients.

use crate::backward::GradStore;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::variable::Var;

/// Scales the gradients of `vars` so that the norm of all of them together is at most `max_norm`, as PyTorch's
/// `clip_grad_norm_` does, and returns the norm that they had (f32, rank 0). One that is not finite makes all of them NaN
/// or 0, which the norm tells.
///
/// # Errors
/// When no variable has a gradient, or they are on several devices.
pub fn clip_grad_norm(grads: &mut GradStore, vars: &[Var], max_norm: f64) -> Result<Tensor> {
    let norm = grad_norm(grads, vars)?;
    // PyTorch adds 1e-6 to the norm; the scale is never above 1.
    let scale = norm.affine(1.0, 1e-6)?.recip()?.affine(max_norm, 0.0)?.minimum(1.0)?;
    for var in vars {
        if let Some(gradient) = grads.remove(var) {
            let factor = scale.broadcast_as(gradient.sym_shape())?;
            let scaled = gradient.to_dtype(factor.dtype())?.mul(&factor)?.to_dtype(gradient.dtype())?;
            grads.insert(var, scaled);
        }
    }
    Ok(norm)
}

/// The norm of the gradients of `vars`, all of them together (rank 0).
///
/// # Errors
/// As [`clip_grad_norm`].
pub(super) fn grad_norm(grads: &GradStore, vars: &[Var]) -> Result<Tensor> {
    let mut total: Option<Tensor> = None;
    for gradient in vars.iter().filter_map(|var| grads.get(var)) {
        let squares = gradient.widened()?.sqr()?.sum_all()?;
        total = Some(match total {
            Some(sum) => sum.add(&squares)?,
            None => squares,
        });
    }
    let none = || Error::InvalidArgument { op: "clip_grad_norm", why: "no variable has a gradient".into() };
    total.ok_or_else(none)?.sqrt()
}
