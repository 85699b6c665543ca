//! Activation functions, composed of elementwise ops; a kernel computes each in registers.
//!
//! Each is written so that no intermediate overflows where the result does not.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use crate::error::Result;
use crate::tensor::Tensor;

/// Scale and steepness for which activations keep mean 0 and variance 1 (Klambauer et al., arXiv 1706.02515).
const SELU: (f64, f64) = (1.050_700_987_355_480_5, 1.673_263_242_354_377_2);

impl Tensor {
    /// `max(x, 0)`.
    ///
    /// # Errors
    /// Never for a tensor that exists.
    pub fn relu(&self) -> Result<Tensor> {
        match self.origin() {
            None => self.maximum(0.0),
            // Its gradient at 0 is 0; that of the maximum would be a half.
            Some(_) => self.le(0.0)?.where_cond(&self.zeros_like()?, self),
        }
    }

    /// `min(max(x, 0), 6)`.
    ///
    /// # Errors
    /// Never for a tensor that exists.
    pub fn relu6(&self) -> Result<Tensor> {
        self.clamp_open(0.0, 6.0)
    }

    /// The nearest value from `low` to `high`; no gradient passes at these.
    fn clamp_open(&self, low: f64, high: f64) -> Result<Tensor> {
        if self.origin().is_none() {
            return self.clamp(low, high);
        }
        let raised = self.le(low)?.where_cond(&self.constant_like(low)?, self)?;
        raised.ge(high)?.where_cond(&self.constant_like(high)?, &raised)
    }

    /// `x` where it is positive, else `slope * x`.
    ///
    /// # Errors
    /// When the elements are no floats.
    pub fn leaky_relu(&self, slope: f64) -> Result<Tensor> {
        self.gt(0.0)?.where_cond(self, &self.affine(slope, 0.0)?)
    }

    /// `x` where it is positive, else `alpha * (e^x - 1)` (Clevert et al., arXiv 1511.07289).
    ///
    /// # Errors
    /// When the elements are no floats.
    pub fn elu(&self, alpha: f64) -> Result<Tensor> {
        // The exponential of the negative part alone: that of a large x would be infinite.
        let is_positive = self.gt(0.0)?;
        let negative = match self.origin() {
            None => self.minimum(0.0)?,
            // At 0 the gradient is that of the exponential.
            Some(_) => is_positive.where_cond(&self.zeros_like()?, self)?,
        };
        is_positive.where_cond(self, &negative.expm1()?.affine(alpha, 0.0)?)
    }

    /// `gamma * elu(x)` with the constants that keep activations normalized (Klambauer et al., arXiv 1706.02515).
    ///
    /// # Errors
    /// When the elements are no floats.
    pub fn selu(&self) -> Result<Tensor> {
        let (gamma, alpha) = SELU;
        self.elu(alpha)?.affine(gamma, 0.0)
    }

    /// `1 / (1 + e^-x)`.
    ///
    /// # Errors
    /// When the elements are no floats.
    pub fn sigmoid(&self) -> Result<Tensor> {
        self.neg()?.exp()?.affine(1.0, 1.0)?.recip()
    }

    /// `ln(sigmoid(x))`, exact also where the sigmoid rounds to 0 or 1.
    ///
    /// # Errors
    /// When the elements are no floats.
    pub fn logsigmoid(&self) -> Result<Tensor> {
        // ln(1 / (1 + e^-x)) = min(x, 0) - ln(1 + e^-|x|)
        self.minimum(0.0)?.sub(&self.abs()?.neg()?.exp()?.log1p()?)
    }

    /// `ln(1 + e^x)`, a smooth `max(x, 0)`.
    ///
    /// # Errors
    /// When the elements are no floats.
    pub fn softplus(&self) -> Result<Tensor> {
        // ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|)
        self.maximum(0.0)?.add(&self.abs()?.neg()?.exp()?.log1p()?)
    }

    /// `x * tanh(softplus(x))` (Misra, arXiv 1908.08681).
    ///
    /// # Errors
    /// When the elements are no floats.
    pub fn mish(&self) -> Result<Tensor> {
        self.mul(&self.softplus()?.tanh()?)
    }

    /// `x * sigmoid(x)`, also called swish.
    ///
    /// # Errors
    /// When the elements are no floats.
    pub fn silu(&self) -> Result<Tensor> {
        self.div(&self.neg()?.exp()?.affine(1.0, 1.0)?)
    }

    /// `min(max((x + 3) / 6, 0), 1)`, straight pieces near the sigmoid (Howard et al., arXiv 1905.02244).
    ///
    /// # Errors
    /// When the elements are no floats.
    pub fn hard_sigmoid(&self) -> Result<Tensor> {
        self.affine(1.0, 3.0)?.affine(1.0 / 6.0, 0.0)?.clamp_open(0.0, 1.0)
    }

    /// `x * hard_sigmoid(x)`.
    ///
    /// # Errors
    /// When the elements are no floats.
    pub fn hard_swish(&self) -> Result<Tensor> {
        self.mul(&self.hard_sigmoid()?)
    }

    /// GELU by its tanh form: `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))` (Hendrycks & Gimpel,
    /// arXiv 1606.08415).
    ///
    /// # Errors
    /// When the elements are no floats.
    pub fn gelu(&self) -> Result<Tensor> {
        // x + 0.044715 x^3 = x * (1 + 0.044715 x^2)
        let inner = self.mul(&self.sqr()?.affine(0.044715, 1.0)?)?;
        let gate = inner.affine((2.0 / PI).sqrt(), 0.0)?.tanh()?.affine(0.5, 0.5)?;
        self.mul(&gate)
    }

    /// GELU: `x/2 * (1 + erf(x / sqrt(2)))`.
    ///
    /// # Errors
    /// When the elements are no floats.
    pub fn gelu_erf(&self) -> Result<Tensor> {
        self.mul(&self.affine(FRAC_1_SQRT_2, 0.0)?.erf()?.affine(0.5, 0.5)?)
    }
}

/// [`Tensor::sigmoid`].
///
/// # Errors
/// When the elements are no floats.
pub fn sigmoid(x: &Tensor) -> Result<Tensor> {
    x.sigmoid()
}

/// [`Tensor::silu`].
///
/// # Errors
/// When the elements are no floats.
pub fn silu(x: &Tensor) -> Result<Tensor> {
    x.silu()
}

/// [`Tensor::mish`].
///
/// # Errors
/// When the elements are no floats.
pub fn mish(x: &Tensor) -> Result<Tensor> {
    x.mish()
}

/// [`Tensor::hard_sigmoid`].
///
/// # Errors
/// When the elements are no floats.
pub fn hard_sigmoid(x: &Tensor) -> Result<Tensor> {
    x.hard_sigmoid()
}

/// [`Tensor::leaky_relu`].
///
/// # Errors
/// When the elements are no floats.
pub fn leaky_relu(x: &Tensor, negative_slope: f64) -> Result<Tensor> {
    x.leaky_relu(negative_slope)
}

/// `gamma * elu(x, alpha)`; [`Tensor::selu`] has the usual constants.
///
/// # Errors
/// When the elements are no floats.
pub fn selu(x: &Tensor, alpha: f32, gamma: f32) -> Result<Tensor> {
    x.elu(f64::from(alpha))?.affine(f64::from(gamma), 0.0)
}
