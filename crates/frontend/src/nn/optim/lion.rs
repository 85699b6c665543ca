//! Steps of one size, in the direction of the sign of momentum.

use super::Optimizer;
use super::groups::{ParamGroup, Rate, Rates, moment_of, moment_type, spread};
use crate::backward::GradStore;
use crate::error::Result;
use crate::variable::Var;

/// Settings of [`Lion`].
#[derive(Clone, Debug, PartialEq)]
pub struct ParamsLion {
    /// Learning rate; about a third to a tenth of AdamW's.
    pub lr: f64,
    /// Share of the momentum in a step.
    pub beta1: f64,
    /// Share of the momentum that stays.
    pub beta2: f64,
    /// This times the learning rate is the share of a parameter that is lost in each step.
    pub weight_decay: f64,
}

impl Default for ParamsLion {
    fn default() -> Self {
        ParamsLion { lr: 1e-4, beta1: 0.9, beta2: 0.99, weight_decay: 0.0 }
    }
}

/// Lion (Chen et al., arXiv 2302.06675): `p -= lr (sign(beta1 m + (1 - beta1) g) + decay p)`, then
/// `m = beta2 m + (1 - beta2) g`.
#[derive(Debug)]
pub struct Lion {
    params: ParamsLion,
    rate: Rate,
    vars: Vec<(Var, Rates, Var)>,
}

impl Lion {
    /// An optimizer of groups of parameters.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn with_groups(groups: Vec<ParamGroup>, params: ParamsLion) -> Result<Lion> {
        let all = ParamGroup::flatten(groups, params.weight_decay);
        let rate = Rate::new(params.lr, all.iter().map(|(var, _)| var))?;
        let each = |(var, rates): (Var, Rates)| {
            let momentum = moment_of(&var)?;
            Ok((var, rates, momentum))
        };
        let vars = all.into_iter().map(each).collect::<Result<_>>()?;
        Ok(Lion { params, rate, vars })
    }
}

impl Optimizer for Lion {
    type Config = ParamsLion;

    fn new(vars: Vec<Var>, params: ParamsLion) -> Result<Lion> {
        Lion::with_groups(vec![ParamGroup::new(vars)], params)
    }

    fn step(&mut self, grads: &GradStore) -> Result<()> {
        let ParamsLion { beta1, beta2, .. } = self.params;
        for (var, rates, momentum) in &self.vars {
            let Some(gradient) = grads.get(var) else { continue };
            let value = var.as_detached_tensor();
            let dtype = moment_type(var.dtype());
            let (wide, g, m) =
                (value.to_dtype(dtype)?, gradient.to_dtype(dtype)?, momentum.as_detached_tensor());
            let sign = m.affine(beta1, 0.0)?.add(&g.affine(1.0 - beta1, 0.0)?)?.sign()?;
            let rate = self.rate.of(&value, rates.lr_factor)?;
            let step = sign.add(&wide.affine(rates.weight_decay, 0.0)?)?.mul(&spread(&rate, &value)?)?;
            momentum.set(&m.affine(beta2, 0.0)?.add(&g.affine(1.0 - beta2, 0.0)?)?)?;
            var.set(&wide.sub(&step)?.to_dtype(var.dtype())?)?;
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.rate.value()
    }

    fn set_learning_rate(&mut self, lr: f64) {
        self.params.lr = lr;
        self.rate.set(lr);
    }
}
