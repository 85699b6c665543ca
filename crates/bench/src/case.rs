//! What a case is: an op over named axes, as data.
//!
//! Operands and result list the axes that they have. Where the interpreter could not compute a whole result in
//! reasonable time, an axis is *sampled*: a few of its positions are taken out of every operand that has it, the same
//! graph is built for the smaller extents, and its result is what the device must have at those positions.

use tallow::{DType, Tensor};
use tallow_quant::Format;

/// An extent, by name.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Name, unique in the case.
    pub name: &'static str,
    /// Elements.
    pub size: usize,
    /// At most so many positions are checked; all of them if `None`.
    pub sampled: Option<usize>,
}

/// A tensor that a case reads.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Name, unique in the case.
    pub name: &'static str,
    /// How it is stored.
    pub stored: DType,
    /// The type in which the case's graph sees it: blocks are dequantized to it, other types cast.
    pub computed: DType,
    /// Its axes, outermost first. Rows of blocks lie along the last, which is never sampled.
    pub axes: Vec<&'static str>,
    /// Root mean square of its values.
    pub size: f32,
}

/// What bounds a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Reading memory.
    Read,
    /// Reading and writing memory.
    Copy,
    /// Multiply-adds in f32.
    Fma,
    /// Products of 16-bit matrices; multiply-adds in f32 on a device without hardware for them.
    Matrix,
}

impl Bound {
    /// Names of the ceilings that it is measured against: the first one that there is.
    pub fn ceilings(self) -> &'static [&'static str] {
        match self {
            Bound::Read => &["ceilings/read"],
            Bound::Copy => &["ceilings/copy"],
            Bound::Fma => &["ceilings/fma"],
            Bound::Matrix => &["ceilings/matrix", "ceilings/fma"],
        }
    }
}

/// How a case computes its result from its operands, in their order.
pub type Body = fn(&[Tensor]) -> tallow::Result<Tensor>;

/// Something that is measured.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name: family, variant, shape.
    pub name: String,
    /// Its axes.
    pub axes: Vec<Axis>,
    /// What it reads.
    pub operands: Vec<Operand>,
    /// The axes of the result, in row-major order of its elements.
    pub result: Vec<&'static str>,
    /// What it computes.
    pub body: Body,
    /// Each instance waits for the one before it: its first operand takes a number too small to matter from it.
    pub chained: bool,
    /// Floating-point operations, a multiply-add as two; 0 where nobody counts them.
    pub flops: u64,
    /// What bounds it.
    pub bound: Bound,
    /// The largest normalized mean squared error of a result that is right.
    pub limit: f64,
}

/// How far results of f32 arithmetic may be off. Every rounding errs by at most 2^-24 of a partial sum, mostly with
/// random sign, so that K of them make a normalized mean squared error of about K 2^-48: 5e-11 for K = 14336. One
/// wrong element among the thousands that are compared makes more than 1e-5.
pub const F32_LIMIT: f64 = 1e-7;
/// What rounding activations to 8 bits costs, for the integer dot product: each is off by at most 1/254 of the largest of
/// its 32, which is about 2.4 times their root mean square, uniformly: (2.4/254)^2/3 of the energy.
pub const INTEGER_ERROR: f64 = 3e-5;
/// How far results may be off on integer paths: the project's bound for them, far above [`INTEGER_ERROR`] and far below
/// what a wrong element makes.
pub const INTEGER_LIMIT: f64 = 5e-4;
/// How far results may be off that are rounded to f16 (2^-11 of the value at most, so 8e-8 of the energy), and computed
/// from a few steps that are rounded so, on either side: up to 24 of them.
pub const F16_LIMIT: f64 = 24.0 * 8e-8;

impl Case {
    /// Elements of an axis.
    pub fn size(&self, axis: &str) -> usize {
        self.axes.iter().find(|a| a.name == axis).map_or(1, |a| a.size)
    }

    /// The extents of axes.
    pub fn extents(&self, axes: &[&'static str]) -> Vec<usize> {
        axes.iter().map(|axis| self.size(axis)).collect()
    }

    /// Bytes of the operands of one instance.
    pub fn operand_bytes(&self) -> u64 {
        self.operands.iter().map(|o| o.bytes(&self.extents(&o.axes)) as u64).sum()
    }

    /// Bytes of the result of one instance.
    pub fn result_bytes(&self) -> u64 {
        let elements: usize = self.extents(&self.result).iter().product();
        (elements * self.result_dtype().size().unwrap_or(4)) as u64
    }

    /// Bytes that one instance must move at least: every operand once, the result once.
    pub fn bytes(&self) -> u64 {
        self.operand_bytes() + self.result_bytes()
    }

    /// The element type of the result, which is that of the first operand as the case sees it.
    pub fn result_dtype(&self) -> DType {
        self.operands.first().map_or(DType::F32, |o| o.computed)
    }
}

impl Operand {
    /// An operand that is computed with as it is stored, of values about 1.
    pub fn new(name: &'static str, dtype: DType, axes: &[&'static str]) -> Operand {
        Operand { name, stored: dtype, computed: dtype, axes: axes.to_vec(), size: 1.0 }
    }

    /// A weight of this format that is computed with in `computed`.
    pub fn weight(name: &'static str, format: Format, computed: DType, axes: &[&'static str]) -> Operand {
        let stored = tallow_models::weights::dtype(format);
        Operand { name, stored, computed, axes: axes.to_vec(), size: 0.02 }
    }

    /// The format of its values in memory.
    pub fn format(&self) -> Option<Format> {
        match self.stored {
            DType::Block(format) => Some(format),
            other => Format::from_name(other.name()),
        }
    }

    /// Bytes of `extents` elements.
    pub fn bytes(&self, extents: &[usize]) -> usize {
        let elements: usize = extents.iter().product();
        self.format().map_or(0, |f| elements / f.block_elements() * f.block_bytes())
    }
}
