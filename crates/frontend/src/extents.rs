//! The shape of a tensor as Candle has it: extents are numbers, and reading them cannot fail.
//!
//! Where an extent is symbolic, which it can be only inside a function that is being compiled, the number is the largest
//! that it can be, and reading it makes the compilation fail ([`crate::compile`]). This crate itself never reads
//! numbers that way: it uses the extents as expressions, or `const_dims` and its kin, which are errors there.

use std::fmt;

use tallow_ir::Dim;

use crate::error::{Error, Result};
use crate::shape::{Axis, IntoShape, ReshapeTo, broadcast_shape};
use crate::tensor::Tensor;
use crate::trace::Trace;

/// The extents of a tensor, outermost first.
#[derive(Clone)]
pub struct Shape {
    /// The largest value of each extent.
    dims: Vec<usize>,
    /// Where one of them is no number.
    symbolic: Option<Box<Symbolic>>,
}

#[derive(Clone)]
struct Symbolic {
    shape: tallow_ir::Shape,
    trace: Trace,
}

impl Shape {
    /// The shape of a tensor that belongs to the functions of `trace`, if it is symbolic.
    ///
    /// # Errors
    /// When it is symbolic, has no trace, and no function is being compiled on this thread.
    pub(crate) fn of(shape: &tallow_ir::Shape, trace: Option<Trace>) -> Result<Shape> {
        if let Some(dims) = shape.as_const() {
            return Ok(Shape { dims, symbolic: None });
        }
        let largest = |dim: &Dim| usize::try_from(dim.max_value().max(0)).unwrap_or(usize::MAX);
        let dims = shape.dims().iter().map(largest).collect();
        let trace = trace.map_or_else(|| Trace::of_symbols(shape), Ok)?;
        Ok(Shape { dims, symbolic: Some(Box::new(Symbolic { shape: shape.clone(), trace })) })
    }

    /// A shape of these extents.
    pub fn from_dims(dims: &[usize]) -> Shape {
        Shape { dims: dims.to_vec(), symbolic: None }
    }

    /// The functions that a symbolic shape belongs to.
    pub(crate) fn trace(&self) -> Option<&Trace> {
        self.symbolic.as_ref().map(|symbolic| &symbolic.trace)
    }

    /// The extents, where all are numbers.
    pub(crate) fn numbers(&self) -> Option<&[usize]> {
        self.symbolic.is_none().then_some(&self.dims)
    }

    /// All extents as numbers for `method`.
    pub(crate) fn read(&self, method: &'static str) -> &[usize] {
        if let Some(symbolic) = &self.symbolic {
            let axis = symbolic.shape.dims().iter().position(|dim| dim.as_const().is_none()).unwrap_or(0);
            symbolic.trace.extent_was_read(method, axis, &symbolic.shape);
        }
        &self.dims
    }

    /// The extents as expressions, also where only a run knows them.
    pub fn sym_dims(&self) -> Vec<Dim> {
        match &self.symbolic {
            Some(symbolic) => symbolic.shape.dims().to_vec(),
            None => self.dims.iter().map(|n| (*n).into()).collect(),
        }
    }

    /// Number of elements as an expression.
    pub fn numel(&self) -> Dim {
        tallow_ir::Shape::new(self.sym_dims()).numel()
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The extents as numbers.
    ///
    /// Reading a symbolic one gives its largest value and makes [`crate::compile`] fail; [`Shape::sym_dims`] does not.
    pub fn dims(&self) -> &[usize] {
        self.read("dims")
    }

    /// The extents as numbers, as [`Shape::dims`].
    pub fn into_dims(self) -> Vec<usize> {
        self.read("into_dims");
        self.dims
    }

    /// The extent of one axis as a number; [`Shape::dims`] says what a symbolic one gives.
    ///
    /// # Errors
    /// When there is no such axis.
    pub fn dim(&self, axis: impl Axis) -> Result<usize> {
        let out = || Error::DimOutOfRange { op: "dim", dim: axis.shown(), shape: self.expressions() };
        let axis = axis.position(self.rank()).filter(|axis| *axis < self.rank()).ok_or_else(out)?;
        if let Some(symbolic) = &self.symbolic
            && symbolic.shape.dims()[axis].as_const().is_none()
        {
            symbolic.trace.extent_was_read("dim", axis, &symbolic.shape);
        }
        Ok(self.dims[axis])
    }

    /// Number of elements; [`Shape::dims`] says what a symbolic extent gives.
    pub fn elem_count(&self) -> usize {
        count(self.read("elem_count"))
    }

    /// Whether these strides, counted in elements, are those of row-major order; [`Shape::dims`] says what a symbolic
    /// extent gives.
    pub fn is_contiguous(&self, stride: &[usize]) -> bool {
        self.in_order(self.read("is_contiguous").iter().rev().zip(stride.iter().rev()), stride.len())
    }

    /// Whether these strides, counted in elements, are those of column-major order; [`Shape::dims`] says what a symbolic
    /// extent gives.
    pub fn is_fortran_contiguous(&self, stride: &[usize]) -> bool {
        self.in_order(self.read("is_fortran_contiguous").iter().zip(stride), stride.len())
    }

    fn in_order<'a>(&self, mut axes: impl Iterator<Item = (&'a usize, &'a usize)>, strides: usize) -> bool {
        let mut expected = 1usize;
        strides == self.rank()
            && axes.all(|(extent, stride)| {
                let is_contiguous = *extent <= 1 || *stride == expected;
                expected = expected.saturating_mul(*extent);
                is_contiguous
            })
    }

    /// The shape with more axes at the end.
    #[must_use]
    pub fn extend(mut self, additional_dims: &[usize]) -> Shape {
        self.dims.extend(additional_dims);
        if let Some(symbolic) = &mut self.symbolic {
            let more = additional_dims.iter().map(|n| Dim::from(*n));
            symbolic.shape = symbolic.shape.dims().iter().cloned().chain(more).collect();
        }
        self
    }

    /// The smallest shape that both can be repeated to, axes aligned at the end, for the op called `op`.
    ///
    /// # Errors
    /// When an extent differs from the other side's and neither is 1.
    pub fn broadcast_shape_binary_op(&self, rhs: &Shape, op: &'static str) -> Result<Shape> {
        let (lhs, right) = (self.expressions(), rhs.expressions());
        match broadcast_shape(&lhs, &right) {
            Some(shape) => Shape::of(&shape, Trace::join([self.trace(), rhs.trace()].into_iter().flatten())),
            None => Err(Error::ShapeMismatchBinaryOp { op, lhs, rhs: right }),
        }
    }

    pub(crate) fn array<const N: usize>(&self, op: &'static str) -> Result<[usize; N]> {
        if self.rank() != N {
            let (got, shape) = (self.rank(), self.expressions());
            return Err(Error::UnexpectedNumberOfDims { op, expected: N, got, shape });
        }
        let dims = self.read(op);
        Ok(std::array::from_fn(|axis| dims[axis]))
    }

    fn expressions(&self) -> tallow_ir::Shape {
        tallow_ir::Shape::new(self.sym_dims())
    }
}

/// Number of elements of these extents.
pub(crate) fn count(dims: &[usize]) -> usize {
    if dims.contains(&0) { 0 } else { dims.iter().fold(1, |n, extent| n.saturating_mul(*extent)) }
}

macro_rules! extents_of {
    ($($name:ident $expected:literal -> $out:ty: |$dims:pat_param| $parts:expr;)*) => {$(
        impl Shape {
            #[doc = concat!("The extents of a shape of rank ", stringify!($expected), "; [`Shape::dims`] says what a ")]
            /// symbolic one gives.
            ///
            /// # Errors
            /// When it has another rank.
            pub fn $name(&self) -> Result<$out> {
                self.array::<$expected>(stringify!($name)).map(|$dims| $parts)
            }
        }
    )*};
}
extents_of! {
    dims0 0 -> (): |[]| ();
    dims1 1 -> usize: |[a]| a;
    dims2 2 -> (usize, usize): |[a, b]| (a, b);
    dims3 3 -> (usize, usize, usize): |[a, b, c]| (a, b, c);
    dims4 4 -> (usize, usize, usize, usize): |[a, b, c, d]| (a, b, c, d);
    dims5 5 -> (usize, usize, usize, usize, usize): |[a, b, c, d, e]| (a, b, c, d, e);
}

impl Tensor {
    /// Checks that this is a scalar.
    ///
    /// # Errors
    /// When it has axes.
    pub fn dims0(&self) -> Result<()> {
        self.shape().dims0()
    }

    /// The extent of a tensor of one axis; [`Tensor::dims`] says what a symbolic one gives.
    ///
    /// # Errors
    /// When it has another rank.
    pub fn dims1(&self) -> Result<usize> {
        self.shape().dims1()
    }

    /// The extents of a tensor of two axes; [`Tensor::dims`] says what a symbolic one gives.
    ///
    /// # Errors
    /// When it has another rank.
    pub fn dims2(&self) -> Result<(usize, usize)> {
        self.shape().dims2()
    }

    /// The extents of a tensor of three axes; [`Tensor::dims`] says what a symbolic one gives.
    ///
    /// # Errors
    /// When it has another rank.
    pub fn dims3(&self) -> Result<(usize, usize, usize)> {
        self.shape().dims3()
    }

    /// The extents of a tensor of four axes; [`Tensor::dims`] says what a symbolic one gives.
    ///
    /// # Errors
    /// When it has another rank.
    pub fn dims4(&self) -> Result<(usize, usize, usize, usize)> {
        self.shape().dims4()
    }

    /// The extents of a tensor of five axes; [`Tensor::dims`] says what a symbolic one gives.
    ///
    /// # Errors
    /// When it has another rank.
    pub fn dims5(&self) -> Result<(usize, usize, usize, usize, usize)> {
        self.shape().dims5()
    }
}

macro_rules! shape_from {
    ($([$($generics:tt)*] $ty:ty: |$dims:ident| $list:expr;)*) => {$(
        impl<$($generics)*> From<$ty> for Shape {
            fn from($dims: $ty) -> Shape {
                Shape { dims: $list, symbolic: None }
            }
        }
    )*};
}
shape_from! {
    [] (): |_unit| vec![];
    [] usize: |n| vec![n];
    [] Vec<usize>: |dims| dims;
    [] &[usize]: |dims| dims.to_vec();
    [const N: usize] [usize; N]: |dims| dims.to_vec();
    [const N: usize] &[usize; N]: |dims| dims.to_vec();
    [] (usize,): |d| vec![d.0];
    [] (usize, usize): |d| vec![d.0, d.1];
    [] (usize, usize, usize): |d| vec![d.0, d.1, d.2];
    [] (usize, usize, usize, usize): |d| vec![d.0, d.1, d.2, d.3];
    [] (usize, usize, usize, usize, usize): |d| vec![d.0, d.1, d.2, d.3, d.4];
    [] (usize, usize, usize, usize, usize, usize): |d| vec![d.0, d.1, d.2, d.3, d.4, d.5];
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Shape {
        shape.clone()
    }
}

impl IntoShape for Shape {
    fn into_shape(self) -> tallow_ir::Shape {
        self.expressions()
    }
}

impl IntoShape for &Shape {
    fn into_shape(self) -> tallow_ir::Shape {
        self.expressions()
    }
}

impl ReshapeTo for Shape {
    fn extents(self) -> Vec<Option<Dim>> {
        self.sym_dims().into_iter().map(Some).collect()
    }
}

impl ReshapeTo for &Shape {
    fn extents(self) -> Vec<Option<Dim>> {
        self.sym_dims().into_iter().map(Some).collect()
    }
}

/// Shapes are equal when they are so for all values of their symbols.
impl PartialEq for Shape {
    fn eq(&self, other: &Shape) -> bool {
        match (&self.symbolic, &other.symbolic) {
            (None, None) => self.dims == other.dims,
            (Some(a), Some(b)) => a.shape == b.shape,
            (None, Some(_)) | (Some(_), None) => false,
        }
    }
}

impl Eq for Shape {}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.symbolic {
            None => write!(f, "{:?}", self.dims),
            Some(symbolic) => fmt::Display::fmt(&symbolic.shape, f),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.expressions(), f)
    }
}
