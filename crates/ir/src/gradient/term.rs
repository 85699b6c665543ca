//! Values of a graph under construction, written as arithmetic: `g * x.cos()` appends two nodes.
//!
//! Rules of gradients are formulas, so they read as such. The first error stays in the [`Build`] and is reported at its end;
//! a node that could not be added is its first operand from then on.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::dim::Dim;
use crate::dtype::DType;
use crate::elementwise::ElementwiseOp;
use crate::graph::{Graph, GraphError, Value};
use crate::op::{Op, ReduceKind};
use crate::scalar::Scalar;
use crate::shape::{Shape, TensorType};

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

    /// The type of a value.
    pub fn ty(&self, value: Value) -> TensorType {
        self.graph.borrow().ty(value).clone()
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

    /// A node of this operand alone.
    pub fn apply(self, op: Op) -> Term<'b> {
        self.build.add(op, &[self.value])
    }

    /// A node of this operand and others.
    pub fn apply_with(self, op: Op, others: &[Term<'b>]) -> Term<'b> {
        let operands: Vec<Value> = std::iter::once(self.value).chain(others.iter().map(|t| t.value)).collect();
        self.build.add(op, &operands)
    }

    fn unary(self, op: ElementwiseOp) -> Term<'b> {
        self.apply(Op::Elementwise(op))
    }

    fn binary(self, op: ElementwiseOp, other: Term<'b>) -> Term<'b> {
        self.apply_with(Op::Elementwise(op), &[other])
    }

    /// The number, of this term's type and shape.
    pub fn filled(self, value: f64) -> Term<'b> {
        self.build.number(self.dtype(), value).broadcast(self.shape())
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

    /// This term, of truth values, chooses: `self ? a : b`.
    pub fn select(self, a: Term<'b>, b: Term<'b>) -> Term<'b> {
        self.apply_with(Op::Elementwise(ElementwiseOp::Select), &[a, b])
    }

    /// `self == other`.
    pub fn equals(self, other: Term<'b>) -> Term<'b> {
        self.binary(ElementwiseOp::Eq, other)
    }

    /// `self == value`.
    pub fn is(self, value: f64) -> Term<'b> {
        self.equals(self.filled(value))
    }

    /// `self < other`.
    pub fn lt(self, other: Term<'b>) -> Term<'b> {
        self.binary(ElementwiseOp::Lt, other)
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

    /// Remainder of a division.
    pub fn rem(self, other: Term<'b>) -> Term<'b> {
        self.binary(ElementwiseOp::Rem, other)
    }

    /// The smaller one.
    pub fn minimum(self, other: Term<'b>) -> Term<'b> {
        self.binary(ElementwiseOp::Minimum, other)
    }

    /// `self ^ exponent`.
    pub fn pow(self, exponent: Term<'b>) -> Term<'b> {
        self.binary(ElementwiseOp::Pow, exponent)
    }
}

macro_rules! unary {
    ($($name:ident $op:ident $doc:literal)*) => {
        impl<'b> Term<'b> {
            $(#[doc = $doc]
            pub fn $name(self) -> Term<'b> {
                self.unary(ElementwiseOp::$op)
            })*
        }
    };
}

unary! {
    sign Sign "-1, 0 or 1."
    exp Exp "`e^x`."
    log Log "Natural logarithm."
    sqrt Sqrt "Square root."
    sin Sin "Sine."
    cos Cos "Cosine."
    sinh Sinh "Hyperbolic sine."
    cosh Cosh "Hyperbolic cosine."
    tanh Tanh "Hyperbolic tangent."
    trunc Trunc "Nearest integer towards 0."
}

/// Products and quotients of a gradient.
///
/// A gradient of 0 stays 0 whatever it meets: an element that does not contribute to the result has none, though the slope
/// there be infinite or NaN. PyTorch gives NaN in these cases, where the mathematical gradient is 0.
impl<'b> Term<'b> {
    /// `self * slope`, and 0 where this gradient is 0.
    pub fn times(self, slope: Term<'b>) -> Term<'b> {
        self.is(0.0).select(self.filled(0.0), self * slope)
    }

    /// `self / divisor`, and 0 where this gradient is 0.
    pub fn over(self, divisor: Term<'b>) -> Term<'b> {
        self.is(0.0).select(self.filled(0.0), self / divisor)
    }

    /// The gradient of `a` in `a^b`: `g b a^(b-1)`, and 0 where `b` is 0.
    pub fn power_base(self, a: Term<'b>, b: Term<'b>) -> Term<'b> {
        b.is(0.0).select(self.filled(0.0), self.times(b * a.pow(b - 1.0)))
    }

    /// The gradient of `b` in `y = a^b`: `g y ln a`, and 0 where `a` is 0 and `b` is not negative.
    pub fn power_exponent(self, a: Term<'b>, b: Term<'b>, y: Term<'b>) -> Term<'b> {
        let is_flat = a.is(0.0).and(b.filled(0.0).le(b));
        is_flat.select(self.filled(0.0), self.times(y * a.log()))
    }

    /// The gradients of both operands of a minimum or maximum: to the one that won, half to each if neither did.
    pub fn shared(self, is_first: Term<'b>, is_second: Term<'b>) -> [Term<'b>; 2] {
        let half = self * 0.5;
        let share = |won: Term<'b>, lost: Term<'b>| won.select(self, lost.select(self.filled(0.0), half));
        [share(is_first, is_second), share(is_second, is_first)]
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

operators! { Add add Add Sub sub Sub Mul mul Mul Div div Div }

impl<'b> Neg for Term<'b> {
    type Output = Term<'b>;

    fn neg(self) -> Term<'b> {
        self.unary(ElementwiseOp::Neg)
    }
}
