//! Dropout (Srivastava et al., JMLR 15, 2014).

use tallow_ir::DType;

use crate::error::{Error, Result};
use crate::module::ModuleT;
use crate::tensor::Tensor;

/// Each element is 0 with probability `drop_p`, else divided by `1 - drop_p`, so that the mean stays. What is
/// dropped is drawn from the sequence that [`crate::Device::set_seed`] starts, in the kernel that applies it. Each run of a
/// compiled function draws anew.
///
/// # Errors
/// When the probability is not in `0 .. 1`, the elements are no floats, or as [`Tensor::rand`].
pub fn dropout(xs: &Tensor, drop_p: f32) -> Result<Tensor> {
    if !(0.0..1.0).contains(&drop_p) {
        let why = format!("dropout probability has to be in [0, 1), got {drop_p}");
        return Err(Error::InvalidArgument { op: "dropout", why });
    }
    xs.floats("dropout")?;
    // Drawn in f32: rounded to 16 bits, a draw below the bound could reach it.
    let drawn = Tensor::rand(0f32, 1.0, xs.sym_shape(), xs.device())?;
    let mask = drawn.ge(&Tensor::constant(DType::F32, f64::from(drop_p), xs.sym_shape(), xs.device())?)?;
    let scaled = xs.affine(1.0 / (1.0 - f64::from(drop_p)), 0.0)?;
    mask.where_cond(&scaled, &xs.zeros_like()?)
}

/// A layer that drops elements while a network is trained.
#[derive(Clone, Debug)]
pub struct Dropout {
    drop_p: f32,
}

impl Dropout {
    /// A layer that drops elements with this probability.
    pub fn new(drop_p: f32) -> Dropout {
        Dropout { drop_p }
    }

    /// [`dropout`] if `train`, else the tensor itself.
    ///
    /// # Errors
    /// As [`dropout`].
    pub fn forward(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        if train { dropout(xs, self.drop_p) } else { Ok(xs.clone()) }
    }
}

impl ModuleT for Dropout {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        self.forward(xs, train)
    }
}
