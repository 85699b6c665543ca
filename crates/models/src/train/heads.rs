//! The heads of attention: their extents, and the rotation of queries and keys.

use tallow::nn::rotary_emb::{rope_i, rope_thd};
use tallow::{D, DType, Device, Tensor};

use super::config::NetConfig;
use crate::arch::layers;
use crate::config::Config;
use crate::rope::{Pairing, RopeFrequencies};

/// Extents and rotation of heads.
#[derive(Clone, Debug)]
pub(super) struct Heads {
    /// Elements of a query or key head.
    pub key_length: usize,
    /// Elements of a value head.
    pub value_length: usize,
    /// Which elements rope rotates together, if it rotates any.
    pairing: Option<Pairing>,
    /// Positions to a radian of each pair.
    divisors: Vec<f64>,
    /// Multiplies what is rotated; 1 except under YaRN.
    magnitude: f64,
}

impl Heads {
    /// Those of a model that is trained as a whole.
    pub fn of(config: &NetConfig) -> Heads {
        let length = config.n_embd / config.n_head;
        let divisor = |pair: usize| config.rope_theta.powf((2 * pair) as f64 / length as f64);
        Heads {
            key_length: length,
            value_length: length,
            pairing: Some(Pairing::Halves),
            divisors: (0..length / 2).map(divisor).collect(),
            magnitude: 1.0,
        }
    }

    /// Those of a model file.
    pub fn of_file(config: &Config, rope: &RopeFrequencies) -> Heads {
        Heads {
            key_length: config.key_length,
            value_length: config.value_length,
            pairing: layers(config.architecture).pairing(),
            divisors: rope.per_pair.iter().map(|frequency| 1.0 / f64::from(*frequency)).collect(),
            magnitude: f64::from(rope.magnitude),
        }
    }

    /// Cosines and sines of the angles of `time` positions, each `[time, pairs]`.
    pub fn angles(&self, time: usize, device: &Device) -> tallow::Result<[Tensor; 2]> {
        let pairs = self.divisors.len();
        let of = |function: fn(f64) -> f64| {
            let at = |i: usize| self.magnitude * function((i / pairs) as f64 / self.divisors[i % pairs]);
            Tensor::from_vec((0..time * pairs).map(|i| at(i) as f32).collect(), (time, pairs), device)
        };
        Ok([of(f64::cos)?, of(f64::sin)?])
    }

    /// Rotates `x` of `[batch, time, heads, length]` in f32; gives `[batch, heads, time, length]` in the type of `x`.
    pub fn rotate(&self, x: &Tensor, cos: &Tensor, sin: &Tensor) -> tallow::Result<Tensor> {
        let turned = 2 * self.divisors.len();
        if turned < self.key_length {
            // Rope rotates the leading elements alone.
            let first = self.rotate_all(&x.narrow(D::Minus1, 0, turned)?, cos, sin)?;
            let rest = x.narrow(D::Minus1, turned, self.key_length - turned)?.transpose(1, 2)?;
            return Tensor::cat(&[&first, &rest], D::Minus1);
        }
        self.rotate_all(x, cos, sin)
    }

    fn rotate_all(&self, x: &Tensor, cos: &Tensor, sin: &Tensor) -> tallow::Result<Tensor> {
        let (dtype, x) = (x.dtype(), x.to_dtype(DType::F32)?);
        let turned = match self.pairing {
            Some(Pairing::Halves) => rope_thd(&x, cos, sin)?.transpose(1, 2)?,
            Some(Pairing::Neighbours) => rope_i(&x.transpose(1, 2)?, cos, sin)?,
            None => x.transpose(1, 2)?,
        };
        turned.to_dtype(dtype)
    }
}
