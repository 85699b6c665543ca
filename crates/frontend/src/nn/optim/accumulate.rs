//! Gradients of several batches as one.

use tallow_ir::DType;

use super::groups::{moment_of, moment_type};
use crate::backward::GradStore;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::variable::Var;

/// The mean of gradients over several backward passes: a large batch in parts that fit the memory. The sums are
/// [variables](Var), to which each pass adds in place; those of 16-bit parameters are f32.
///
/// ```
/// use tallow::nn::optim::{GradAccumulator, Optimizer, SGD};
/// use tallow::{Device, Tensor, Var};
///
/// let w = Var::new(&[1f32, 1.0], &Device::Cpu)?;
/// let mut sgd = SGD::new(vec![w.clone()], 0.5)?;
/// let mut sum = GradAccumulator::new(&[w.clone()], 2)?;
/// for x in [[1f32, 2.0], [3.0, 4.0]] {
///     let loss = w.mul(&Tensor::new(&x, &Device::Cpu)?)?.sum_all()?;
///     sum.add(&loss, &loss.backward()?)?;
/// }
/// sgd.step(&sum.gradients()?)?;
/// assert_eq!(w.to_vec1::<f32>()?, [0.0, -0.5]); // 1 - 0.5 * the mean
/// # Ok::<(), tallow::Error>(())
/// ```
#[derive(Debug)]
pub struct GradAccumulator {
    passes: usize,
    /// The number of passes since the gradients were taken.
    seen: Var,
    /// The sum of the losses of these passes.
    losses: Var,
    sums: Vec<Sum>,
}

#[derive(Debug)]
struct Sum {
    var: Var,
    sum: Var,
    /// Whether there was ever a gradient.
    is_used: bool,
}

impl GradAccumulator {
    /// For the gradients of `vars` over so many passes.
    ///
    /// # Errors
    /// When there are no variables or no passes, the variables are on several devices, or memory runs out.
    pub fn new(vars: &[Var], passes: usize) -> Result<GradAccumulator> {
        let fail = |why: &str| Error::InvalidArgument { op: "accumulate", why: why.into() };
        let first = vars.first().ok_or_else(|| fail("there are no variables"))?;
        if passes == 0 {
            return Err(fail("0 passes have no mean"));
        }
        if let Some(other) = vars.iter().find(|var| var.device() != first.device()) {
            return Err(first.device().mismatch("accumulate", other.device()));
        }
        let zero = || Var::zeros((), DType::F32, first.device());
        let each = |var: &Var| Ok(Sum { var: var.clone(), sum: moment_of(var)?, is_used: false });
        let floats = vars.iter().filter(|var| var.dtype().is_float());
        Ok(GradAccumulator {
            passes,
            seen: zero()?,
            losses: zero()?,
            sums: floats.map(each).collect::<Result<_>>()?,
        })
    }

    /// Adds the gradients of a pass, and gives the mean of the losses since the last [`GradAccumulator::gradients`] (f32,
    /// rank 0).
    ///
    /// # Errors
    /// When the loss is not of rank 0, or a gradient is not of its variable's shape and device.
    pub fn add(&mut self, loss: &Tensor, grads: &GradStore) -> Result<Tensor> {
        let seen = self.seen.as_detached_tensor();
        let is_first = seen.eq(0.0)?;
        // The first pass overwrites the sums of the last step, so that they need no clearing.
        let next = |sum: &Var, added: &Tensor| {
            let old = sum.as_detached_tensor();
            let is_first = is_first.broadcast_as(old.sym_shape())?;
            is_first.where_cond(added, &old.add(added)?)
        };
        for Sum { var, sum, is_used } in &mut self.sums {
            let share = match grads.get(var) {
                Some(gradient) => gradient.to_dtype(sum.dtype())?.affine(1.0 / self.passes as f64, 0.0)?,
                None if *is_used => sum.zeros_like()?,
                None => continue,
            };
            *is_used = true;
            sum.set(&next(sum, &share)?)?;
        }
        let losses = next(&self.losses, &loss.detach().to_dtype(DType::F32)?)?;
        self.losses.set(&losses)?;
        let seen = seen.affine(1.0, 1.0)?;
        self.seen.set(&seen)?;
        losses.div(&seen)
    }

    /// The mean gradients: the sums divided by the number of passes that [`GradAccumulator::new`] was given. The next pass
    /// begins anew.
    ///
    /// # Errors
    /// When computing fails.
    pub fn gradients(&mut self) -> Result<GradStore> {
        let mut grads = GradStore::default();
        for Sum { var, sum, .. } in self.sums.iter().filter(|sum| sum.is_used) {
            debug_assert_eq!(sum.dtype(), moment_type(var.dtype()));
            grads.insert(var, sum.as_detached_tensor());
        }
        self.seen.set(&self.seen.zeros_like()?)?;
        Ok(grads)
    }
}
