//! Values of a network's inputs. `scripts/sweep_torch/networks.py` computes the same ones.

use rayon::prelude::*;
use tallow_reference::Array;

use super::draw::mix;
use super::{Kind, TensorSpec};
use crate::data::random;
use crate::error::Result;

/// Elements that one thread makes at a time.
const CHUNK: usize = 1 << 16;

/// The row-major little-endian elements of input `number` of a network: uniform, floats of mean 0.
///
/// # Errors
/// When the element type holds blocks.
pub fn operand(spec: &TensorSpec, number: usize, seed: u64) -> Result<Vec<u8>> {
    let count: usize = spec.shape.iter().product();
    if let Some(format) = spec.blocks {
        return random(format, count, spec.scale, mix(seed << 16 | number as u64));
    }
    let stream = mix(seed << 16 | number as u64);
    let chunk = |start: usize| {
        let values: Vec<f64> = (start..count.min(start + CHUNK))
            .map(|i| value(spec, (i, count), mix(stream.wrapping_add(i as u64))))
            .collect();
        Ok(Array::from_f64s(spec.dtype, &[values.len()], &values)?.to_bytes())
    };
    let chunks = (0..count.div_ceil(CHUNK)).into_par_iter().map(|number| chunk(number * CHUNK));
    Ok(chunks.collect::<Result<Vec<_>>>()?.concat())
}

/// Element `i` of `count`, from 64 random bits.
fn value(spec: &TensorSpec, (i, count): (usize, usize), bits: u64) -> f64 {
    // 24 bits are exact in an f32.
    let unit = (bits >> 40) as f64 / f64::from(1 << 24);
    match spec.kind {
        Kind::IntegerBelow(limit) => ((bits >> 32) as usize % limit) as f64,
        Kind::SortedBelow(limit) => (i * limit / count) as f64,
        // The variance of a uniform variable on [-a, a] is a^2 / 3.
        Kind::Activation | Kind::Weight => (2.0 * unit - 1.0) * 3f64.sqrt() * f64::from(spec.scale),
    }
}
