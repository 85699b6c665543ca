//! Averages of parameters over the steps of a training.

use super::groups::moment_type;
use crate::error::{Error, Result};
use crate::variable::Var;

/// The exponential moving average of parameters: `e = decay e + (1 - decay) p`. It generalizes better than the last
/// parameters. Averages of 16-bit parameters are f32.
#[derive(Clone, Debug)]
pub struct Ema {
    decay: f64,
    vars: Vec<Var>,
    averages: Vec<Var>,
}

impl Ema {
    /// Averages that begin with what the parameters are now.
    ///
    /// # Errors
    /// When `decay` is not from 0 to 1, a parameter holds no floats, or memory runs out.
    pub fn new(vars: &[Var], decay: f64) -> Result<Ema> {
        if !(0.0..=1.0).contains(&decay) {
            let why = format!("decay {decay} is not from 0 to 1");
            return Err(Error::InvalidArgument { op: "ema", why });
        }
        let average = |var: &Var| {
            var.floats("ema")?;
            Var::from_tensor(&var.as_detached_tensor().to_dtype(moment_type(var.dtype()))?)
        };
        let averages = vars.iter().map(average).collect::<Result<_>>()?;
        Ok(Ema { decay, vars: vars.to_vec(), averages })
    }

    /// Moves the averages towards the parameters: after each step of an optimizer.
    ///
    /// # Errors
    /// When computing fails.
    pub fn update(&self) -> Result<()> {
        for (var, average) in self.vars.iter().zip(&self.averages) {
            let value = var.as_detached_tensor().to_dtype(average.dtype())?.affine(1.0 - self.decay, 0.0)?;
            average.set(&average.as_detached_tensor().affine(self.decay, 0.0)?.add(&value)?)?;
        }
        Ok(())
    }

    /// The averages, in the order of the parameters.
    pub fn parameters(&self) -> &[Var] {
        &self.averages
    }
}
