//! Whether a device's result is what the interpreter computes, on the positions that are picked.

use std::collections::HashMap;
use std::sync::Arc;

use tallow_quant::Format;
use tallow_reference::{Array, Env, evaluate};

use crate::case::Case;
use crate::data::{Pick, pick};
use crate::error::{BenchError, Result};
use crate::instances::{graph, leaf_name};

/// The positions of each axis of a case that are checked.
#[derive(Clone, Debug)]
pub struct Sample {
    picks: HashMap<&'static str, Pick>,
    sizes: HashMap<&'static str, usize>,
}

/// The elements of the operands of one instance that its checked results are made of.
pub struct SampledOperands(Vec<Vec<u8>>);

impl Sample {
    /// Positions for one instance, others for another `seed`.
    pub fn new(case: &Case, seed: u64) -> Sample {
        let (mut picks, mut sizes) = (HashMap::new(), HashMap::new());
        for (number, axis) in case.axes.iter().enumerate() {
            let pick = Pick::some(axis.size, axis.sampled, seed ^ (number as u64) << 8);
            sizes.insert(axis.name, pick.len(axis.size));
            picks.insert(axis.name, pick);
        }
        Sample { picks, sizes }
    }

    /// The share of a case's multiply-adds that the sample takes.
    pub fn share(&self, case: &Case) -> f64 {
        case.axes.iter().map(|axis| self.sizes[axis.name] as f64 / axis.size.max(1) as f64).product()
    }

    fn picks(&self, axes: &[&'static str]) -> Vec<Pick> {
        axes.iter().map(|axis| self.picks[axis].clone()).collect()
    }

    /// Takes what is needed of the operands, which are given whole and in order.
    pub fn operands(&self, case: &Case, full: &[Vec<u8>]) -> SampledOperands {
        let take = |(operand, bytes): (&crate::case::Operand, &Vec<u8>)| {
            let format = operand.format().unwrap_or(Format::F32);
            pick(bytes, format, &case.extents(&operand.axes), &self.picks(&operand.axes))
        };
        SampledOperands(case.operands.iter().zip(full).map(take).collect())
    }

    /// Compares a whole result with the interpreter's on the picked positions: normalized mean squared error, and how
    /// many elements were compared.
    ///
    /// # Errors
    /// When it is not right, or the interpreter fails.
    pub fn compare(&self, case: &Case, operands: SampledOperands, result: &[u8]) -> Result<(f64, usize)> {
        let graph = graph(case, &self.sizes.iter().map(|(k, v)| (*k, *v)).collect(), 1)?;
        let mut env = Env::default();
        for (operand, bytes) in case.operands.iter().zip(operands.0) {
            let shape: Vec<usize> = operand.axes.iter().map(|a| self.sizes[a]).collect();
            let array = Array::from_bytes(operand.stored, &shape, &bytes)?;
            env.weights.insert(leaf_name(operand.name, 0), Arc::new(array));
        }
        let expected = evaluate(&graph, &mut env)?.swap_remove(0).1.to_f64s();
        let dtype = case.result_dtype();
        let format = Format::from_name(dtype.name()).unwrap_or(Format::F32);
        let got = pick(result, format, &case.extents(&case.result), &self.picks(&case.result));
        let got = Array::from_bytes(dtype, &[expected.len()], &got)?.to_f64s();
        let error = nmse(&expected, &got)?;
        if error > case.limit {
            let limit = case.limit;
            return Err(BenchError::Wrong(format!(
                "its normalized mean squared error is {error:.1e}, not {limit:.0e}"
            )));
        }
        Ok((error, expected.len()))
    }
}

/// `sum (expected - got)^2 / sum expected^2`.
///
/// # Errors
/// When an element is not finite, where the other is; or nothing is expected but zeros, which would compare nothing.
pub fn nmse(expected: &[f64], got: &[f64]) -> Result<f64> {
    let (mut error, mut energy) = (0.0, 0.0);
    for (i, (e, g)) in expected.iter().zip(got).enumerate() {
        if !e.is_finite() || !g.is_finite() {
            return Err(BenchError::Wrong(format!(
                "element {i} of those checked is {g} where {e} is expected"
            )));
        }
        error += (e - g) * (e - g);
        energy += e * e;
    }
    match energy > 0.0 && expected.len() == got.len() {
        true => Ok(error / energy),
        false => Err(BenchError::Wrong("there is nothing to compare with".into())),
    }
}
