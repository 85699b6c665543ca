//! Whether a point's results are what the interpreter computes, at sampled positions of its extents.

use std::sync::Arc;

use tallow::DType;
use tallow_ir::Graph;
use tallow_quant::Format;
use tallow_reference::{Array, Env, evaluate};

use super::graph::{graph, keys, output_shapes, stored};
use super::point::{Axes, Point};
use crate::case::{F16_LIMIT, F32_LIMIT, INTEGER_LIMIT};
use crate::check::nmse;
use crate::data::{Pick, pick};
use crate::error::{BenchError, Result};
use crate::instances::leaf_name;
use crate::networks::Network;

/// A bf16 has 3 bits less than an f16, which make 64 times the squared error.
const BF16_LIMIT: f64 = 64.0 * F16_LIMIT;

/// The picked positions of each extent: all of one that an axis is computed from instead of having it.
fn positions(point: &Point, network: &Network, input_axes: &Axes) -> Vec<Pick> {
    let shapes = network.inputs.iter().map(|spec| &spec.shape);
    let axes: Vec<(Option<usize>, usize)> = input_axes
        .iter()
        .zip(shapes)
        .flat_map(|(axes, shape)| axes.iter().copied().zip(shape.iter().copied()))
        .collect();
    let one = |(number, extent): (usize, &super::Extent)| {
        let has_it = axes.iter().all(|(axis, size)| *axis != Some(number) || *size == extent.size);
        Pick::some(extent.size, extent.sampled.filter(|_| has_it), 1 + number as u64)
    };
    point.extents.iter().enumerate().map(one).collect()
}

/// What is compared: the outputs at the picked positions, by the interpreter.
pub struct Expected {
    picks: Vec<Pick>,
    output_axes: Axes,
    output_shapes: Vec<Vec<usize>>,
    values: Vec<(DType, Vec<f64>)>,
    limit: f64,
}

/// Computes the results of a point at its picked positions, from the bytes of the inputs of one instance. `whole` is the
/// graph of one instance, which is evaluated itself where all positions are picked.
///
/// # Errors
/// When the interpreter fails.
pub fn expected(point: &Point, whole: &Graph, inputs: &[Vec<u8>]) -> Result<Expected> {
    let [input_axes, output_axes] = point.axes(output_shapes)?;
    let network = point.network(&point.sizes());
    let picks = positions(point, &network, &input_axes);
    let sizes: Vec<usize> = point.extents.iter().zip(&picks).map(|(e, pick)| pick.len(e.size)).collect();
    let sampled = point.network(&sizes);
    let is_whole = sizes == point.sizes();
    let built;
    let graph = if is_whole { whole } else { (built = graph(&sampled, 1, false)?, &built).1 };
    let mut env = Env::default();
    for (number, spec) in network.inputs.iter().enumerate() {
        let format = spec.blocks.map_or_else(|| plain(spec.dtype), Ok)?;
        let picks = of_axes(&input_axes[number], &picks);
        let bytes = pick(&inputs[number], format, &spec.shape, &picks);
        let array = Array::from_bytes(stored(spec), &sampled.inputs[number].shape, &bytes)?;
        env.weights.insert(leaf_name(&spec.name, 0), Arc::new(array));
    }
    for (name, array) in keys(graph, &network)? {
        env.weights.insert(name, Arc::new(array));
    }
    let dtypes = graph.outputs().iter().map(|output| graph.ty(output.value).dtype);
    let arrays = evaluate(graph, &mut env)?;
    let values = dtypes.zip(&arrays).map(|(dtype, (_, array))| (dtype, array.to_f64s())).collect();
    let output_shapes = output_shapes(&network)?;
    Ok(Expected { picks, output_axes, output_shapes, values, limit: limit(point) })
}

impl Expected {
    /// Compares the bytes of all outputs: the normalized mean squared error of the worst, and how many elements were
    /// compared.
    ///
    /// # Errors
    /// When a result is not right.
    pub fn compare(&self, outputs: &[Vec<u8>]) -> Result<(f64, usize)> {
        let (mut worst, mut elements) = (0.0_f64, 0);
        for (number, (bytes, (dtype, values))) in outputs.iter().zip(&self.values).enumerate() {
            let picks = of_axes(&self.output_axes[number], &self.picks);
            let got = pick(bytes, plain(*dtype)?, &self.output_shapes[number], &picks);
            let error = nmse(values, &Array::from_bytes(*dtype, &[values.len()], &got)?.to_f64s())?;
            if error > self.limit {
                return Err(BenchError::Wrong(format!(
                    "output {number} has a normalized mean squared error of {error:.1e}, not {:.0e}",
                    self.limit
                )));
            }
            (worst, elements) = (worst.max(error), elements + values.len());
        }
        Ok((worst, elements))
    }
}

fn of_axes(axes: &[Option<usize>], picks: &[Pick]) -> Vec<Pick> {
    axes.iter().map(|axis| axis.map_or(Pick::All, |extent| picks[extent].clone())).collect()
}

/// A plain format with elements as large as those of a type.
fn plain(dtype: DType) -> Result<Format> {
    match dtype.size() {
        Some(1) => Ok(Format::I8),
        Some(2) => Ok(Format::F16),
        Some(4) => Ok(Format::F32),
        Some(8) => Ok(Format::F64),
        Some(_) | None => Err(BenchError::Build(format!("{dtype} is not compared"))),
    }
}

/// The largest normalized mean squared error of a right result, by the least exact element type.
fn limit(point: &Point) -> f64 {
    let network = point.network(&point.sizes());
    if network.inputs.iter().any(|spec| spec.blocks.is_some()) {
        return INTEGER_LIMIT;
    }
    let has = |dtype| network.inputs.iter().any(|spec| spec.dtype == dtype) || point.dtype == dtype;
    match (has(DType::BF16), has(DType::F16)) {
        (true, _) => BF16_LIMIT,
        (false, true) => F16_LIMIT,
        (false, false) => F32_LIMIT,
    }
}
