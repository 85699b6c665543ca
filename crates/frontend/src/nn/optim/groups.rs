//! Groups of parameters with settings of their own, and numbers that a step reads on the device.

use tallow_ir::DType;

use crate::device::Device;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::variable::Var;

/// Parameters that share settings which differ from those of the others.
#[derive(Clone, Debug)]
pub struct ParamGroup {
    /// The parameters.
    pub vars: Vec<Var>,
    /// Factor on the learning rate.
    pub lr_factor: f64,
    /// Weight decay; `None` for that of the optimizer.
    pub weight_decay: Option<f64>,
}

impl ParamGroup {
    /// Parameters with the optimizer's settings.
    pub fn new(vars: Vec<Var>) -> ParamGroup {
        ParamGroup { vars, lr_factor: 1.0, weight_decay: None }
    }

    /// With a factor on the learning rate.
    pub fn lr_factor(self, lr_factor: f64) -> ParamGroup {
        ParamGroup { lr_factor, ..self }
    }

    /// With a weight decay of its own: 0 for norms and biases, as usual.
    pub fn weight_decay(self, weight_decay: f64) -> ParamGroup {
        ParamGroup { weight_decay: Some(weight_decay), ..self }
    }

    /// Two groups: matrices and higher, which decay, and vectors, which do not.
    pub fn by_rank(vars: Vec<Var>) -> Vec<ParamGroup> {
        let (matrices, vectors) = vars.into_iter().partition(|var| var.rank() >= 2);
        vec![ParamGroup::new(matrices), ParamGroup::new(vectors).weight_decay(0.0)]
    }

    /// Each parameter of floats with its factor on the learning rate and its weight decay.
    pub(super) fn flatten(groups: Vec<ParamGroup>, weight_decay: f64) -> Vec<(Var, Rates)> {
        let each = |group: ParamGroup| {
            let rates = Rates {
                lr_factor: group.lr_factor,
                weight_decay: group.weight_decay.unwrap_or(weight_decay),
            };
            group.vars.into_iter().map(move |var| (var, rates))
        };
        groups.into_iter().flat_map(each).filter(|(var, _)| var.dtype().is_float()).collect()
    }
}

/// How much of a step a parameter takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    pub lr_factor: f64,
    pub weight_decay: f64,
}

/// The learning rate, as a number of the host's and on each device that has parameters.
#[derive(Clone, Debug)]
pub(super) struct Rate {
    value: f64,
    on_devices: Vec<Var>,
}

impl Rate {
    pub fn new<'a>(value: f64, vars: impl Iterator<Item = &'a Var>) -> Result<Rate> {
        let mut rate = Rate { value, on_devices: vec![] };
        for var in vars {
            rate.add(var.device())?;
        }
        Ok(rate)
    }

    /// Adds a device, where it is new.
    pub fn add(&mut self, device: &Device) -> Result<()> {
        if !self.on_devices.iter().any(|known| known.device() == device) {
            self.on_devices.push(Var::new(self.value as f32, device)?);
        }
        Ok(())
    }

    pub fn value(&self) -> f64 {
        self.value
    }

    /// Sets the number. A failure shows at the next step, which reads it.
    pub fn set(&mut self, value: f64) {
        self.value = value;
        for var in &self.on_devices {
            let set = Tensor::new(value as f32, var.device()).and_then(|number| var.set(&number));
            debug_assert!(set.is_ok(), "a number of the variable's own type");
        }
    }

    /// The rate times a factor on the device of a parameter, of rank 0, in the type of its moments.
    pub fn of(&self, like: &Tensor, factor: f64) -> Result<Tensor> {
        let found = self.on_devices.iter().find(|var| var.device() == like.device());
        let number = match found {
            Some(var) => var.as_detached_tensor(),
            None => Tensor::new(self.value as f32, like.device())?,
        };
        let number = if factor == 1.0 { number } else { number.affine(factor, 0.0)? };
        number.to_dtype(moment_type(like.dtype()))
    }
}

/// A moment of a parameter: zeros, in the type of moments.
pub(super) fn moment_of(var: &Var) -> Result<Var> {
    Var::zeros(var.sym_shape().clone(), moment_type(var.dtype()), var.device())
}

/// A number of rank 0, repeated to the shape of a parameter in the type of its moments. What is computed of numbers alone is
/// computed before: repeated, it would be a tensor that all parameters of one shape share, and their steps one kernel.
pub(super) fn spread(number: &Tensor, like: &Tensor) -> Result<Tensor> {
    number.to_dtype(moment_type(like.dtype()))?.broadcast_as(like.sym_shape())
}

/// The type in which moments are held and steps computed: 16 bits are too few for either.
pub(super) fn moment_type(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}
