//! Values of a graph under construction, written as arithmetic: `g * x.cos()` appends two nodes.
//!
//! Rules of gradients are formulas, so they read as such. The first error stays in the [`Build`] and is reported at its end;
//! a node that could not be added is its first operand from then on.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

use crate::dim::Dim;
use crate::dtype::DType;
use crate::elementwise::ElementwiseOp;
use crate::formula::Formula;
use crate::graph::{Graph, GraphError, Value};
use crate::op::{Op, ReduceKind};
use crate::scalar::Scalar;
use crate::shape::Shape;

/// A gradient for each operand, or none where the result does not depend on it smoothly.
pub type Passed<'b> = Vec<Option<Term<'b>>>;

/// The type to compute in what 16 bits are too few for.
pub fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// A graph that terms append to.
pub struct Build {
    graph: RefCell<Graph>,
    failed: RefCell<Option<GraphError>>,
}

impl Build {
    /// Takes the graph over.
    pub fn new(graph: Graph) -> Build {
        Build { graph: RefCell::new(graph), failed: RefCell::new(None) }
    }

    /// The graph with all that was appended.
    ///
    /// # Errors
    /// What the first node that does not fit its operands says.
    pub fn finish(self) -> Result<Graph, GraphError> {
        match self.failed.into_inner() {
            Some(error) => Err(error),
            None => Ok(self.graph.into_inner()),
        }
    }

    /// The term of a value of the graph.
    pub fn term(&self, value: Value) -> Term<'_> {
        Term { build: self, value }
    }

    /// What `edit` makes of the graph, to which it may append.
    pub fn edit<T>(&self, edit: impl FnOnce(&mut Graph) -> T) -> T {
        edit(&mut self.graph.borrow_mut())
    }

    fn add(&self, op: Op, operands: &[Value]) -> Term<'_> {
        let added = self.graph.borrow_mut().add(op, operands);
        let value = added.unwrap_or_else(|error| {
            self.failed.borrow_mut().get_or_insert(error);
            operands.first().copied().unwrap_or(Value { node: crate::NodeId(0), result: 0 })
        });
        Term { build: self, value }
    }

    /// A number of a type, of rank 0.
    pub fn number(&self, dtype: DType, value: f64) -> Term<'_> {
        self.add(Op::Const(Scalar::of(dtype, value)), &[])
    }

    /// The value of an extent, of rank 0.
    pub fn dim(&self, dim: &Dim, dtype: DType) -> Term<'_> {
        match dim.as_const() {
            Some(value) => self.number(dtype, value as f64),
            None => self.add(Op::DimValue { dim: dim.clone(), dtype }, &[]),
        }
    }

    /// Positions along `axis` of `shape`, an integer type.
    pub fn positions(&self, shape: &Shape, axis: usize, dtype: DType) -> Term<'_> {
        let len = shape.dims()[axis].clone();
        let others: Vec<usize> = (0..shape.rank()).filter(|other| *other != axis).collect();
        self.add(Op::Iota { len, dtype }, &[]).reshape(shape.with_ones(&others)).broadcast(shape.clone())
    }
}

/// A value of a [`Build`].
#[derive(Clone, Copy)]
pub struct Term<'b> {
    build: &'b Build,
    value: Value,
}

impl<'b> Term<'b> {
    /// The value in the graph.
    pub fn value(self) -> Value {
        self.value
    }

    /// Where it is built.
    pub fn build(self) -> &'b Build {
        self.build
    }

    /// Its element type.
    pub fn dtype(self) -> DType {
        self.build.graph.borrow().ty(self.value).dtype
    }

    /// Its extents.
    pub fn shape(self) -> Shape {
        self.build.graph.borrow().ty(self.value).shape.clone()
    }

    /// Another result of its node.
    pub fn result(self, result: u32) -> Term<'b> {
        Term { value: Value { result, ..self.value }, ..self }
    }

    /// A node of this operand alone.
    pub fn apply(self, op: Op) -> Term<'b> {
        self.build.add(op, &[self.value])
    }

    /// A node of this operand and others.
    pub fn apply_with(self, op: Op, others: &[Term<'b>]) -> Term<'b> {
        let operands: Vec<Value> =
            std::iter::once(self.value).chain(others.iter().map(|t| t.value)).collect();
        self.build.add(op, &operands)
    }

    fn unary(self, op: ElementwiseOp) -> Term<'b> {
        self.apply(Op::Elementwise(op))
    }

    fn binary(self, op: ElementwiseOp, other: Term<'b>) -> Term<'b> {
        self.apply_with(Op::Elementwise(op), &[other])
    }

    /// The same elements in another shape.
    pub fn reshape(self, shape: impl Into<Shape>) -> Term<'b> {
        let shape = shape.into();
        if self.shape() == shape { self } else { self.apply(Op::Reshape(shape)) }
    }

    /// Repeated to a shape.
    pub fn broadcast(self, shape: impl Into<Shape>) -> Term<'b> {
        let shape = shape.into();
        if self.shape() == shape { self } else { self.apply(Op::Broadcast(shape)) }
    }

    /// Converted to another type.
    pub fn cast(self, dtype: DType) -> Term<'b> {
        if self.dtype() == dtype { self } else { self.apply(Op::Cast(dtype)) }
    }

    /// Sums over `axes`, which stay with extent 1.
    pub fn sum_keepdim(self, axes: &[usize]) -> Term<'b> {
        self.reduce_keepdim(ReduceKind::Sum, axes)
    }

    /// A reduction over `axes`, which stay with extent 1.
    pub fn reduce_keepdim(self, kind: ReduceKind, axes: &[usize]) -> Term<'b> {
        if axes.is_empty() {
            return self;
        }
        let shape = self.shape().with_ones(axes);
        self.apply(Op::Reduce { kind, axes: axes.to_vec() }).reshape(shape)
    }

    /// What was repeated from `shape` to this term's shape, summed: the adjoint of [`Term::broadcast`].
    pub fn sum_to(self, shape: &Shape) -> Term<'b> {
        let have = self.shape();
        let lead = have.rank() - shape.rank();
        let is_repeated = |axis: &usize| match axis.checked_sub(lead) {
            None => true,
            Some(own) => shape.dims()[own] != have.dims()[*axis],
        };
        let axes: Vec<usize> = (0..have.rank()).filter(is_repeated).collect();
        self.sum_keepdim(&axes).reshape(shape.clone())
    }

    /// Its last two axes exchanged.
    pub fn transposed(self) -> Term<'b> {
        let mut axes: Vec<usize> = (0..self.shape().rank()).collect();
        let rank = axes.len();
        axes.swap(rank - 2, rank - 1);
        self.apply(Op::Permute(axes))
    }

    /// Its matrix product with another.
    pub fn matmul(self, other: Term<'b>) -> Term<'b> {
        self.apply_with(Op::Matmul, &[other])
    }

    /// `len` elements of `axis` from `start`.
    pub fn slice(self, axis: usize, start: &Dim, len: &Dim) -> Term<'b> {
        if start.is(0) && self.shape().dims()[axis] == *len {
            return self;
        }
        self.apply(Op::Slice { axis, start: start.clone(), len: len.clone() })
    }

    /// `value` around `axis`.
    pub fn pad(self, axis: usize, before: &Dim, after: &Dim, value: f64) -> Term<'b> {
        if before.is(0) && after.is(0) {
            return self;
        }
        let value = Scalar::of(self.dtype(), value);
        self.apply(Op::Pad { axis, before: before.clone(), after: after.clone(), value })
    }

    /// `self == other`.
    pub fn equals(self, other: Term<'b>) -> Term<'b> {
        self.binary(ElementwiseOp::Eq, other)
    }

    /// `self <= other`.
    pub fn le(self, other: Term<'b>) -> Term<'b> {
        self.binary(ElementwiseOp::Le, other)
    }

    /// Both are true.
    pub fn and(self, other: Term<'b>) -> Term<'b> {
        self.binary(ElementwiseOp::And, other)
    }

    /// Either is true.
    pub fn or(self, other: Term<'b>) -> Term<'b> {
        self.binary(ElementwiseOp::Or, other)
    }

    /// Hyperbolic tangent.
    pub fn tanh(self) -> Term<'b> {
        self.unary(ElementwiseOp::Tanh)
    }

    /// The smaller one.
    pub fn minimum(self, other: Term<'b>) -> Term<'b> {
        self.binary(ElementwiseOp::Minimum, other)
    }
}

impl Formula for Term<'_> {
    fn filled(self, value: f64) -> Self {
        self.build.number(self.dtype(), value).broadcast(self.shape())
    }

    fn sign(self) -> Self {
        self.unary(ElementwiseOp::Sign)
    }

    fn exp(self) -> Self {
        self.unary(ElementwiseOp::Exp)
    }

    fn log(self) -> Self {
        self.unary(ElementwiseOp::Log)
    }

    fn sqrt(self) -> Self {
        self.unary(ElementwiseOp::Sqrt)
    }

    fn sin(self) -> Self {
        self.unary(ElementwiseOp::Sin)
    }

    fn cos(self) -> Self {
        self.unary(ElementwiseOp::Cos)
    }

    fn sinh(self) -> Self {
        self.unary(ElementwiseOp::Sinh)
    }

    fn cosh(self) -> Self {
        self.unary(ElementwiseOp::Cosh)
    }

    fn trunc(self) -> Self {
        self.unary(ElementwiseOp::Trunc)
    }

    fn pow(self, exponent: Self) -> Self {
        self.binary(ElementwiseOp::Pow, exponent)
    }

    fn lt(self, other: Self) -> Self {
        self.binary(ElementwiseOp::Lt, other)
    }

    fn is(self, value: f64) -> Self {
        self.equals(self.filled(value))
    }

    fn select(self, a: Self, b: Self) -> Self {
        self.apply_with(Op::Elementwise(ElementwiseOp::Select), &[a, b])
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident)*) => {$(
        impl<'b> $trait for Term<'b> {
            type Output = Term<'b>;

            fn $method(self, other: Term<'b>) -> Term<'b> {
                self.binary(ElementwiseOp::$op, other)
            }
        }

        impl<'b> $trait<f64> for Term<'b> {
            type Output = Term<'b>;

            fn $method(self, other: f64) -> Term<'b> {
                self.binary(ElementwiseOp::$op, self.filled(other))
            }
        }
    )*};
}

operators! { Add add Add Sub sub Sub Mul mul Mul Div div Div Rem rem Rem }

impl<'b> Neg for Term<'b> {
    type Output = Term<'b>;

    fn neg(self) -> Term<'b> {
        self.unary(ElementwiseOp::Neg)
    }
}
