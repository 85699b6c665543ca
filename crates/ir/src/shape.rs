//! Shapes and tensor types.

use std::fmt;

use crate::dim::{Bindings, Dim};
use crate::dtype::DType;

/// Extents, outermost first; row-major is the only memory order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Shape(Vec<Dim>);

impl Shape {
    /// A shape from extents.
    pub fn new(dims: Vec<Dim>) -> Self {
        Shape(dims)
    }

    /// The shape of a scalar.
    pub fn scalar() -> Self {
        Shape(vec![])
    }

    /// The extents.
    pub fn dims(&self) -> &[Dim] {
        &self.0
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Number of elements.
    pub fn numel(&self) -> Dim {
        self.0.iter().fold(Dim::one(), |a, b| &a * b)
    }

    /// Largest number of elements over all symbol values.
    pub fn max_numel(&self) -> u64 {
        self.0.iter().fold(1u64, |n, d| n.saturating_mul(d.max_value().max(0) as u64))
    }

    /// The extents as numbers; `None` if one is symbolic.
    pub fn as_const(&self) -> Option<Vec<usize>> {
        self.0.iter().map(|d| d.as_const().and_then(|c| usize::try_from(c).ok())).collect()
    }

    /// The extents under `bindings`.
    pub fn eval(&self, bindings: &Bindings) -> Option<Vec<usize>> {
        self.0.iter().map(|d| usize::try_from(d.eval(bindings)?).ok()).collect()
    }

    /// Row-major strides in elements.
    pub fn strides(&self) -> Vec<Dim> {
        let mut strides = vec![Dim::one(); self.rank()];
        for i in (1..self.rank()).rev() {
            strides[i - 1] = &strides[i] * &self.0[i];
        }
        strides
    }

    /// This shape without `axes`.
    pub fn without(&self, axes: &[usize]) -> Shape {
        Shape(self.0.iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, d)| d.clone()).collect())
    }

    /// This shape with `axes` of extent 1.
    pub fn with_ones(&self, axes: &[usize]) -> Shape {
        let one = |(i, d): (usize, &Dim)| if axes.contains(&i) { Dim::one() } else { d.clone() };
        Shape(self.0.iter().enumerate().map(one).collect())
    }
}

impl<D: Into<Dim>> FromIterator<D> for Shape {
    fn from_iter<I: IntoIterator<Item = D>>(iter: I) -> Self {
        Shape(iter.into_iter().map(Into::into).collect())
    }
}

impl<D: Into<Dim>, const N: usize> From<[D; N]> for Shape {
    fn from(dims: [D; N]) -> Self {
        dims.into_iter().collect()
    }
}

impl From<Vec<Dim>> for Shape {
    fn from(dims: Vec<Dim>) -> Self {
        Shape(dims)
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        dims.into_iter().collect()
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        dims.iter().copied().collect()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i > 0 { "," } else { "" })?;
        }
        f.write_str("]")
    }
}

/// Element type and shape of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extents in elements, also for blocks.
    pub shape: Shape,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Self {
        TensorType { dtype, shape: shape.into() }
    }

    /// Largest size in bytes over all symbol values; for blocks, the size of the repacked device layout.
    pub fn max_bytes(&self) -> u64 {
        let n = self.shape.max_numel();
        match (self.dtype, self.dtype.size()) {
            (_, Some(size)) => n.saturating_mul(size as u64),
            (DType::Block(format), None) => tallow_quant::repacked_bytes(format, n as usize) as u64,
            (_, None) => unreachable!("invariant: only blocks have no element size"),
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
