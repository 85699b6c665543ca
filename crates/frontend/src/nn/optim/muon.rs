//! Momentum whose steps are orthogonal matrices.

use tallow_ir::DType;

use super::Optimizer;
use super::groups::{ParamGroup, Rate, Rates, moment_of, moment_type, spread};
use crate::backward::GradStore;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::variable::Var;

/// Settings of [`Muon`].
#[derive(Clone, Debug, PartialEq)]
pub struct ParamsMuon {
    /// Learning rate.
    pub lr: f64,
    /// Share of the momentum that stays.
    pub momentum: f64,
    /// Take the gradient where momentum leads.
    pub nesterov: bool,
    /// This times the learning rate is the share of a parameter that is lost in each step.
    pub weight_decay: f64,
    /// Iterations of Newton and Schulz.
    pub ns_steps: usize,
    /// The type that they are computed in: f16 and bf16 use matrix instructions. Results are rounded so coarsely anyway.
    pub compute: DType,
}

impl Default for ParamsMuon {
    fn default() -> Self {
        let compute = DType::F16;
        ParamsMuon { lr: 0.02, momentum: 0.95, nesterov: true, weight_decay: 0.0, ns_steps: 5, compute }
    }
}

/// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): the step of a matrix is its momentum with all singular
/// values moved towards 1. For parameters of rank 2 and more (all but the first axis count as one); embeddings, norms
/// and biases belong to another optimizer, such as [`super::AdamW`].
#[derive(Debug)]
pub struct Muon {
    params: ParamsMuon,
    rate: Rate,
    vars: Vec<(Var, Rates, Var)>,
}

impl Muon {
    /// An optimizer of groups of parameters.
    ///
    /// # Errors
    /// When a parameter has fewer than two axes, or memory runs out.
    pub fn with_groups(groups: Vec<ParamGroup>, params: ParamsMuon) -> Result<Muon> {
        let all = ParamGroup::flatten(groups, params.weight_decay);
        let rate = Rate::new(params.lr, all.iter().map(|(var, _)| var))?;
        let each = |(var, rates): (Var, Rates)| {
            if var.rank() < 2 {
                let why = format!("{} is no matrix", var.sym_shape());
                return Err(Error::InvalidArgument { op: "muon", why });
            }
            let momentum = moment_of(&var)?;
            Ok((var, rates, momentum))
        };
        let vars = all.into_iter().map(each).collect::<Result<_>>()?;
        Ok(Muon { params, rate, vars })
    }
}

/// The coefficients of `a x + b x^3 + c x^5`, which moves every number from 0 to 1 close to 1 in few steps. They are those of
/// the paper: the slope at 0 is as large as convergence to between 0.7 and 1.2 allows.
const QUINTIC: (f64, f64, f64) = (3.4445, -4.7750, 2.0315);

/// A matrix `[rows, columns]` with its singular values moved towards 1.
fn orthogonalized(matrix: &Tensor, steps: usize, compute: DType) -> Result<Tensor> {
    let dims = matrix.const_dims_of::<2>("muon")?;
    // The product with its transpose is of the shorter axis.
    let is_tall = dims[0] > dims[1];
    let wide = if is_tall { matrix.t()? } else { matrix.clone() };
    // The norm bounds the largest singular value. In f32: the sum of squares could leave f16.
    let norm = wide.sqr()?.sum_all()?.sqrt()?.affine(1.0, 1e-7)?;
    let mut x = wide.broadcast_div(&norm)?.to_dtype(compute)?;
    let (a, b, c) = QUINTIC;
    for _ in 0..steps {
        let square = x.matmul(&x.t()?)?;
        let poly = square.affine(b, 0.0)?.add(&square.matmul(&square)?.affine(c, 0.0)?)?;
        x = x.affine(a, 0.0)?.add(&poly.matmul(&x)?)?;
    }
    let x = x.to_dtype(matrix.dtype())?;
    if is_tall { x.t() } else { Ok(x) }
}

impl Optimizer for Muon {
    type Config = ParamsMuon;

    fn new(vars: Vec<Var>, params: ParamsMuon) -> Result<Muon> {
        Muon::with_groups(vec![ParamGroup::new(vars)], params)
    }

    fn step(&mut self, grads: &GradStore) -> Result<()> {
        let ParamsMuon { momentum, nesterov, ns_steps, compute, .. } = self.params;
        for (var, rates, held) in &self.vars {
            let Some(gradient) = grads.get(var) else { continue };
            let value = var.as_detached_tensor();
            let dtype = moment_type(var.dtype());
            let (wide, g) = (value.to_dtype(dtype)?, gradient.to_dtype(dtype)?);
            let mixed =
                |a: &Tensor, b: &Tensor| a.affine(momentum, 0.0)?.add(&b.affine(1.0 - momentum, 0.0)?);
            let next = mixed(&held.as_detached_tensor(), &g)?;
            held.set(&next)?;
            let direction = if nesterov { mixed(&next, &g)? } else { next };
            let rows = value.const_dim(0)?;
            let columns = value.const_elem_count()? / rows.max(1);
            let matrix = direction.reshape((rows, columns))?;
            // Steps of tall matrices are scaled to change their outputs as much as those of square ones.
            let scale = (rows as f64 / columns.max(1) as f64).max(1.0).sqrt();
            let step = orthogonalized(&matrix, ns_steps, compute)?.affine(scale, 0.0)?;
            let rate = self.rate.of(&value, rates.lr_factor)?;
            let shrunk = wide.mul(&spread(&rate.affine(-rates.weight_decay, 1.0)?, &value)?)?;
            let next = shrunk.sub(&step.reshape(value.sym_shape())?.mul(&spread(&rate, &value)?)?)?;
            var.set(&next.to_dtype(var.dtype())?)?;
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
