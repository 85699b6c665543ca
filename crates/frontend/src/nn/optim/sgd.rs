//! Gradient descent, with momentum.

use super::Optimizer;
use super::groups::{ParamGroup, Rate, Rates, moment_of, moment_type, spread};
use crate::backward::GradStore;
use crate::error::Result;
use crate::variable::Var;

/// Settings of [`Sgd`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParamsSgd {
    /// Learning rate.
    pub lr: f64,
    /// How much of the last step is taken again; 0 for none.
    pub momentum: f64,
    /// How much of a gradient momentum leaves out, as PyTorch's.
    pub dampening: f64,
    /// Take the gradient where momentum leads (Sutskever et al. 2013).
    pub nesterov: bool,
    /// This times the parameter is added to its gradient.
    pub weight_decay: f64,
}

impl Default for ParamsSgd {
    fn default() -> Self {
        ParamsSgd { lr: 0.001, momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0 }
    }
}

/// Gradient descent with momentum, as PyTorch's `SGD`: `b = momentum b + (1 - dampening) g`, `p -= lr b`.
///
/// The first step takes `b = g`, as PyTorch does.
#[derive(Debug)]
pub struct Sgd {
    params: ParamsSgd,
    rate: Rate,
    vars: Vec<Parameter>,
}

#[derive(Debug)]
struct Parameter {
    var: Var,
    rates: Rates,
    /// The momentum, and 1 until there is one.
    momentum: Option<(Var, Var)>,
}

impl Sgd {
    /// An optimizer of groups of parameters.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn with_groups(groups: Vec<ParamGroup>, params: ParamsSgd) -> Result<Sgd> {
        let all = ParamGroup::flatten(groups, params.weight_decay);
        let rate = Rate::new(params.lr, all.iter().map(|(var, _)| var))?;
        let each = |(var, rates): (Var, Rates)| {
            let momentum = match params.momentum {
                0.0 => None,
                _ => {
                    let dtype = moment_type(var.dtype());
                    Some((moment_of(&var)?, Var::ones((), dtype, var.device())?))
                }
            };
            Ok(Parameter { var, rates, momentum })
        };
        let vars = all.into_iter().map(each).collect::<Result<_>>()?;
        Ok(Sgd { params, rate, vars })
    }
}

impl Optimizer for Sgd {
    type Config = ParamsSgd;

    fn new(vars: Vec<Var>, params: ParamsSgd) -> Result<Sgd> {
        Sgd::with_groups(vec![ParamGroup::new(vars)], params)
    }

    fn step(&mut self, grads: &GradStore) -> Result<()> {
        let ParamsSgd { momentum, dampening, nesterov, .. } = self.params;
        for Parameter { var, rates, momentum: held } in &self.vars {
            let Some(gradient) = grads.get(var) else { continue };
            let value = var.as_detached_tensor();
            let dtype = moment_type(var.dtype());
            let wide = value.to_dtype(dtype)?;
            let mut g = gradient.to_dtype(dtype)?;
            if rates.weight_decay != 0.0 {
                g = g.add(&wide.affine(rates.weight_decay, 0.0)?)?;
            }
            if let Some((buffer, is_first)) = held {
                // Where there is no momentum yet the gradient counts in full: 1 - dampening + dampening.
                let share = is_first.as_detached_tensor().affine(dampening, 1.0 - dampening)?;
                let share = spread(&share, &value)?;
                let next = buffer.as_detached_tensor().affine(momentum, 0.0)?.add(&g.mul(&share)?)?;
                buffer.set(&next)?;
                is_first.set(&is_first.zeros_like()?)?;
                g = if nesterov { g.add(&next.affine(momentum, 0.0)?)? } else { next };
            }
            let rate = self.rate.of(&value, rates.lr_factor)?;
            var.set(&wide.sub(&g.mul(&spread(&rate, &value)?)?)?.to_dtype(var.dtype())?)?;
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.rate.value()
    }

    fn set_learning_rate(&mut self, lr: f64) {
        self.rate.set(lr);
    }
}

/// Plain gradient descent under Candle's name: its settings are the learning rate.
#[derive(Debug)]
pub struct SGD(Sgd);

impl SGD {
    /// The variables.
    pub fn into_inner(self) -> Vec<Var> {
        self.0.vars.into_iter().map(|parameter| parameter.var).collect()
    }

    /// Adds a variable.
    pub fn push(&mut self, var: &Var) {
        let rates = Rates { lr_factor: 1.0, weight_decay: 0.0 };
        self.0.vars.push(Parameter { var: var.clone(), rates, momentum: None });
    }
}

impl Optimizer for SGD {
    type Config = f64;

    fn new(vars: Vec<Var>, lr: f64) -> Result<SGD> {
        Sgd::new(vars, ParamsSgd { lr, ..ParamsSgd::default() }).map(SGD)
    }

    fn step(&mut self, grads: &GradStore) -> Result<()> {
        self.0.step(grads)
    }

    fn learning_rate(&self) -> f64 {
        self.0.learning_rate()
    }

    fn set_learning_rate(&mut self, lr: f64) {
        self.0.set_learning_rate(lr);
    }
}
