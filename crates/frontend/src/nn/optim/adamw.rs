//! Adam with decoupled weight decay.

use tallow_ir::DType;

use super::Optimizer;
use super::groups::{ParamGroup, Rate, Rates, moment_of, moment_type, spread};
use super::round::round_stochastically;
use crate::backward::GradStore;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::variable::Var;

/// Settings of [`AdamW`].
#[derive(Clone, Debug, PartialEq)]
pub struct ParamsAdamW {
    /// Learning rate.
    pub lr: f64,
    /// Share of the first moment that stays.
    pub beta1: f64,
    /// Share of the second moment that stays.
    pub beta2: f64,
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// This times the learning rate is the share of a parameter that is lost in each step.
    pub weight_decay: f64,
}

impl Default for ParamsAdamW {
    fn default() -> Self {
        ParamsAdamW { lr: 0.001, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }
}

/// Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101).
///
/// Moments of 16-bit parameters are f32.
#[derive(Debug)]
pub struct AdamW {
    params: ParamsAdamW,
    rate: Rate,
    vars: Vec<Parameter>,
    /// The number of steps on each device.
    steps: Vec<Var>,
    rounds_stochastically: bool,
}

#[derive(Debug)]
struct Parameter {
    var: Var,
    rates: Rates,
    first: Var,
    second: Var,
}

impl AdamW {
    /// An optimizer of groups of parameters.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn with_groups(groups: Vec<ParamGroup>, params: ParamsAdamW) -> Result<AdamW> {
        let all = ParamGroup::flatten(groups, params.weight_decay);
        let rate = Rate::new(params.lr, all.iter().map(|(var, _)| var))?;
        let mut steps: Vec<Var> = vec![];
        for (var, _) in &all {
            if !steps.iter().any(|step| step.device() == var.device()) {
                steps.push(Var::new(0f32, var.device())?);
            }
        }
        let each = |(var, rates): (Var, Rates)| {
            Ok(Parameter { first: moment_of(&var)?, second: moment_of(&var)?, var, rates })
        };
        let vars = all.into_iter().map(each).collect::<Result<_>>()?;
        Ok(AdamW { params, rate, vars, steps, rounds_stochastically: false })
    }

    /// With bf16 parameters that are rounded by chance ([`super::round_stochastically`]), so that steps below half of their
    /// last bit count. Other parameters are rounded as before.
    pub fn stochastic_rounding(self, enabled: bool) -> AdamW {
        AdamW { rounds_stochastically: enabled, ..self }
    }

    /// An optimizer with a learning rate, and other settings as they are by default.
    ///
    /// # Errors
    /// As [`Optimizer::new`].
    pub fn new_lr(vars: Vec<Var>, learning_rate: f64) -> Result<AdamW> {
        AdamW::new(vars, ParamsAdamW { lr: learning_rate, ..ParamsAdamW::default() })
    }

    /// The settings.
    pub fn params(&self) -> &ParamsAdamW {
        &self.params
    }

    /// Sets the settings. Functions that were compiled with this optimizer follow the learning rate alone, and parameters
    /// keep the weight decay that they have.
    pub fn set_params(&mut self, params: ParamsAdamW) {
        self.rate.set(params.lr);
        self.params = params;
    }

    /// The state, to save and restore it: the number of steps, then first and second moment of each parameter.
    pub fn state(&self) -> Vec<(String, Var)> {
        let steps = self.steps.iter().enumerate().map(|(i, var)| (format!("step.{i}"), var.clone()));
        let moments = self.vars.iter().enumerate().flat_map(|(i, parameter)| {
            [("first", &parameter.first), ("second", &parameter.second)]
                .map(|(name, var)| (format!("{name}.{i}"), var.clone()))
        });
        steps.chain(moments).collect()
    }
}

/// `1 - beta^t`. As `-expm1(t ln beta)`: the difference to 1 of a power near it would have few digits.
fn correction(beta: f64, step: &Tensor) -> Result<Tensor> {
    step.affine(beta.ln(), 0.0)?.expm1()?.neg()
}

impl Optimizer for AdamW {
    type Config = ParamsAdamW;

    fn new(vars: Vec<Var>, params: ParamsAdamW) -> Result<AdamW> {
        AdamW::with_groups(vec![ParamGroup::new(vars)], params)
    }

    fn step(&mut self, grads: &GradStore) -> Result<()> {
        let ParamsAdamW { beta1, beta2, eps, .. } = self.params;
        let mut corrections = vec![];
        for steps in &self.steps {
            let step = steps.as_detached_tensor().affine(1.0, 1.0)?;
            steps.set(&step)?;
            corrections.push((correction(beta1, &step)?, correction(beta2, &step)?.sqrt()?));
        }
        for Parameter { var, rates, first, second } in &self.vars {
            let Some(gradient) = grads.get(var) else { continue };
            let at = self.steps.iter().position(|step| step.device() == var.device());
            let Some((scale1, root2)) = at.and_then(|at| corrections.get(at)) else { continue };
            let value = var.as_detached_tensor();
            let dtype = moment_type(var.dtype());
            let wide = value.to_dtype(dtype)?;
            let spread = |number: &Tensor| spread(number, &value);
            let g = gradient.to_dtype(dtype)?;
            let m = first.as_detached_tensor().affine(beta1, 0.0)?.add(&g.affine(1.0 - beta1, 0.0)?)?;
            let v = second.as_detached_tensor().affine(beta2, 0.0)?;
            let v = v.add(&g.sqr()?.affine(1.0 - beta2, 0.0)?)?;
            // lr (m / c1) / (sqrt(v / c2) + eps)
            let size = v.sqrt()?.div(&spread(root2)?)?.affine(1.0, eps)?;
            let rate = self.rate.of(&value, rates.lr_factor)?;
            let step = m.div(&spread(scale1)?)?.div(&size)?.mul(&spread(&rate)?)?;
            let shrunk = wide.mul(&spread(&rate.affine(-rates.weight_decay, 1.0)?)?)?;
            first.set(&m)?;
            second.set(&v)?;
            let next = shrunk.sub(&step)?;
            let next = match self.rounds_stochastically && var.dtype() == DType::BF16 {
                true => round_stochastically(&next)?,
                false => next.to_dtype(var.dtype())?,
            };
            var.set(&next)?;
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
