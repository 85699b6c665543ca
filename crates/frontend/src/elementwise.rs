//! Elementwise methods: those of the IR's table, generated, and what is composed of them.

use tallow_ir::{DType, ElementwiseOp, Op, Shape};

use crate::element::WithDType;
use crate::error::{Error, Result};
use crate::shape::broadcast_shape;
use crate::tensor::Tensor;

/// The right operand of a comparison, `maximum` or `minimum`: a tensor of the same shape, or a number.
pub trait TensorOrScalar {
    /// The operand as a tensor of the type and shape of `like`.
    ///
    /// # Errors
    /// When a number does not become a tensor of that type.
    fn operand(self, like: &Tensor) -> Result<Tensor>;
}

impl TensorOrScalar for &Tensor {
    fn operand(self, _like: &Tensor) -> Result<Tensor> {
        Ok(self.clone())
    }
}

impl<T: WithDType> TensorOrScalar for T {
    fn operand(self, like: &Tensor) -> Result<Tensor> {
        like.constant_like(self.to_f64())
    }
}

/// The method of a row, by type rule and shape of its meaning.
macro_rules! method {
    ($rule:ident float_unary $($row:tt)*) => { method!(@unary $($row)*); };
    ($rule:ident int_unary $($row:tt)*) => { method!(@unary $($row)*); };
    ($rule:ident unary $($row:tt)*) => { method!(@unary $($row)*); };
    ($rule:ident test $($row:tt)*) => { method!(@unary $($row)*); };
    ($rule:ident float_binary $($row:tt)*) => { method!(@binary $($row)*); };
    ($rule:ident int_binary $($row:tt)*) => { method!(@binary $($row)*); };
    ($rule:ident binary $($row:tt)*) => { method!(@binary $($row)*); };
    (Logic relation $($row:tt)*) => { method!(@binary $($row)*); };
    (Compare relation $($row:tt)*) => { method!(@compare $($row)*); };
    ($rule:ident extremum $($row:tt)*) => { method!(@compare $($row)*); };
    // Their operands have no one type; their methods are written below.
    ($rule:ident ternary $($row:tt)*) => {};
    ($rule:ident select $($row:tt)*) => {};
    (@unary $variant:ident $name:literal $($doc:literal)+) => { pastey::paste! {
        $(#[doc = $doc])+
        ///
        /// # Errors
        /// When the op does not take this element type.
        pub fn [<$name>](&self) -> Result<Tensor> {
            self.unary(Op::Elementwise(ElementwiseOp::$variant))
        }
    } };
    (@binary $variant:ident $name:literal $($doc:literal)+) => { pastey::paste! {
        $(#[doc = $doc])+
        ///
        /// # Errors
        /// When shapes, element types or devices differ, or the op does not take this element type.
        pub fn [<$name>](&self, rhs: &Tensor) -> Result<Tensor> {
            self.binary(ElementwiseOp::$variant, rhs)
        }
        method!(@broadcast $variant $name $($doc)+);
    } };
    (@compare $variant:ident $name:literal $($doc:literal)+) => { pastey::paste! {
        $(#[doc = $doc])+
        /// The right side is a tensor of the same shape or a number.
        ///
        /// # Errors
        /// When shapes, element types or devices differ.
        pub fn [<$name>](&self, rhs: impl TensorOrScalar) -> Result<Tensor> {
            self.binary(ElementwiseOp::$variant, &rhs.operand(self)?)
        }
        method!(@broadcast $variant $name $($doc)+);
    } };
    (@broadcast $variant:ident $name:literal $($doc:literal)+) => { pastey::paste! {
        $(#[doc = $doc])+
        /// The shapes are repeated to a common one, axes aligned at the end.
        ///
        /// # Errors
        /// When there is no common shape, or element types or devices differ.
        pub fn [<broadcast_ $name>](&self, rhs: &Tensor) -> Result<Tensor> {
            self.broadcast_binary(concat!("broadcast_", $name), ElementwiseOp::$variant, rhs)
        }
    } };
}

macro_rules! methods {
    ($( $(#[doc = $doc:literal])+ $variant:ident $name:literal $rule:ident $cost:ident $shape:ident($($meaning:tt)*) $slope:ident($($derivative:tt)*); )*) => {
        /// One method a row of the table of elementwise ops.
        impl Tensor {
            $( method!($rule $shape $variant $name $($doc)+); )*
        }
    };
}

tallow_ir::elementwise_table!(methods);

impl Tensor {
    pub(crate) fn binary(&self, op: ElementwiseOp, rhs: &Tensor) -> Result<Tensor> {
        let name = op.name();
        if self.sym_shape() != rhs.sym_shape() {
            let (lhs, rhs) = (self.sym_shape().clone(), rhs.sym_shape().clone());
            return Err(Error::ShapeMismatchBinaryOp { op: name, lhs, rhs });
        }
        self.same_dtype(name, rhs)?;
        Tensor::of_op(Op::Elementwise(op), &[self, rhs], self.device())
    }

    fn broadcast_binary(&self, name: &'static str, op: ElementwiseOp, rhs: &Tensor) -> Result<Tensor> {
        self.same_dtype(name, rhs)?;
        let (lhs, rhs) = self.broadcast_pair(name, rhs)?;
        lhs.binary(op, &rhs)
    }

    pub(crate) fn same_dtype(&self, op: &'static str, rhs: &Tensor) -> Result<()> {
        let (lhs, rhs) = (self.dtype(), rhs.dtype());
        if lhs == rhs { Ok(()) } else { Err(Error::DTypeMismatchBinaryOp { op, lhs, rhs }) }
    }

    pub(crate) fn same_device(&self, op: &'static str, rhs: &Tensor) -> Result<()> {
        if self.device() == rhs.device() {
            return Ok(());
        }
        Err(self.device().mismatch(op, rhs.device()))
    }

    /// Both tensors repeated to their common shape.
    pub(crate) fn broadcast_pair(&self, op: &'static str, rhs: &Tensor) -> Result<(Tensor, Tensor)> {
        let Some(shape) = broadcast_shape(self.sym_shape(), rhs.sym_shape()) else {
            let (lhs, rhs) = (self.sym_shape().clone(), rhs.sym_shape().clone());
            return Err(Error::ShapeMismatchBinaryOp { op, lhs, rhs });
        };
        let widen = |t: &Tensor, shape: &Shape| t.broadcast_as(shape);
        Ok((widen(self, &shape)?, widen(rhs, &shape)?))
    }

    /// `x * mul + add`; where `add` is 0 it is left out, so that only `mul` of 0 makes +0 of -0.
    ///
    /// # Errors
    /// When the element type is a block format.
    pub fn affine(&self, mul: f64, add: f64) -> Result<Tensor> {
        let scaled = if mul == 1.0 { self.clone() } else { self.mul(&self.constant_like(mul)?)? };
        match (mul, add) {
            // What is left is +0 or -0, or NaN; adding +0 gives +0, as this does.
            (0.0, 0.0) if self.dtype().is_float() => scaled.abs(),
            (_, 0.0) => Ok(scaled),
            (_, add) => scaled.add(&self.constant_like(add)?),
        }
    }

    /// `x^2`.
    ///
    /// # Errors
    /// Never for a tensor that exists.
    pub fn sqr(&self) -> Result<Tensor> {
        self.mul(self)
    }

    /// `x^e`.
    ///
    /// # Errors
    /// When the elements are no floats.
    pub fn powf(&self, e: f64) -> Result<Tensor> {
        self.pow(&self.constant_like(e)?)
    }

    /// The nearest value from `min` to `max`, each a tensor of the same shape or a number.
    ///
    /// # Errors
    /// When shapes, element types or devices differ.
    pub fn clamp(&self, min: impl TensorOrScalar, max: impl TensorOrScalar) -> Result<Tensor> {
        if self.origin().is_none() {
            return self.maximum_of(min)?.minimum_of(max);
        }
        // The bounds belong to the range: a gradient passes there in full, where extrema would share it.
        let (min, max) = (min.operand(self)?, max.operand(self)?);
        let raised = self.lt(&min)?.where_cond(&min, self)?;
        raised.gt(&max)?.where_cond(&max, &raised)
    }

    fn maximum_of(&self, rhs: impl TensorOrScalar) -> Result<Tensor> {
        self.maximum(&rhs.operand(self)?)
    }

    fn minimum_of(&self, rhs: impl TensorOrScalar) -> Result<Tensor> {
        self.minimum(&rhs.operand(self)?)
    }

    /// `on_true` where this tensor is not 0, else `on_false`; all of one shape.
    ///
    /// # Errors
    /// When shapes, element types or devices differ, or this tensor holds floats.
    pub fn where_cond(&self, on_true: &Tensor, on_false: &Tensor) -> Result<Tensor> {
        let op = "where_cond";
        if !self.dtype().is_int() {
            let expected = "an integer type".to_string();
            return Err(Error::UnexpectedDType { op, expected, got: self.dtype() });
        }
        on_true.same_dtype(op, on_false)?;
        for other in [on_true, on_false] {
            if self.sym_shape() != other.sym_shape() {
                let (lhs, rhs) = (self.sym_shape().clone(), other.sym_shape().clone());
                return Err(Error::ShapeMismatchBinaryOp { op, lhs, rhs });
            }
        }
        let truth = if self.dtype() == DType::U8 { self.clone() } else { self.ne(0.0)? };
        let select = Op::Elementwise(ElementwiseOp::Select);
        Tensor::of_op(select, &[&truth, on_true, on_false], self.device())
    }

    /// Random bits that depend on nothing but the three values, all `u32`: word `counter % 4` of the
    /// Philox4x32-10 block at `(counter / 4, stream, 0, 0)` under the key `(key, 0)` (Salmon et al., SC'11).
    /// This tensor is the counter.
    ///
    /// # Errors
    /// When shapes or devices differ, or the elements are not `u32`.
    pub fn philox(&self, key: &Tensor, stream: &Tensor) -> Result<Tensor> {
        for other in [key, stream] {
            self.same_dtype("philox", other)?;
            if self.sym_shape() != other.sym_shape() {
                let (lhs, rhs) = (self.sym_shape().clone(), other.sym_shape().clone());
                return Err(Error::ShapeMismatchBinaryOp { op: "philox", lhs, rhs });
            }
        }
        let op = Op::Elementwise(ElementwiseOp::Philox);
        Tensor::of_op(op, &[self, key, stream], self.device())
    }

    /// The same values in another element type: floats round to nearest even, float to integer truncates
    /// and saturates, integer to integer wraps.
    ///
    /// # Errors
    /// When the type is a block format.
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype() { Ok(self.clone()) } else { self.unary(Op::Cast(dtype)) }
    }
}

#[cfg(test)]
mod tests {
    use tallow_ir::elementwise::{Meaning, TypeRule};

    use super::*;
    use crate::device::Device;

    const A: [f64; 6] = [-2.5, -1.0, 0.0, 0.5, 1.0, 7.25];
    const B: [f64; 6] = [1.5, -1.0, 2.0, 0.5, -3.0, 0.25];

    /// The method of a row, called.
    macro_rules! call {
        ($operands:ident select $name:literal) => {
            $operands[0].where_cond(&$operands[1], &$operands[2])
        };
        ($operands:ident ternary $name:literal) => {
            pastey::paste! { $operands[0].[<$name>](&$operands[1], &$operands[2]) }
        };
        ($operands:ident float_unary $name:literal) => {
            pastey::paste! { $operands[0].[<$name>]() }
        };
        ($operands:ident int_unary $name:literal) => {
            pastey::paste! { $operands[0].[<$name>]() }
        };
        ($operands:ident unary $name:literal) => {
            pastey::paste! { $operands[0].[<$name>]() }
        };
        ($operands:ident test $name:literal) => {
            pastey::paste! { $operands[0].[<$name>]() }
        };
        ($operands:ident $binary:ident $name:literal) => {
            pastey::paste! { $operands[0].[<$name>](&$operands[1]) }
        };
    }

    macro_rules! calls {
        ($( $(#[doc = $doc:literal])+ $variant:ident $name:literal $rule:ident $cost:ident $shape:ident($($meaning:tt)*) $slope:ident($($derivative:tt)*); )*) => {
            fn call(op: ElementwiseOp, operands: &[Tensor]) -> Result<Tensor> {
                match op { $(ElementwiseOp::$variant => call!(operands $shape $name)),* }
            }
        };
    }

    tallow_ir::elementwise_table!(calls);

    /// Each op of the table through its method gives what the table says it means.
    #[test]
    fn every_op_has_its_method() {
        let tensor = |values: &[f64]| Tensor::new(values, &Device::Cpu).unwrap();
        let truth = |values: &[f64]| tensor(values).gt(0.0).unwrap();
        let ints = |values: &[f64], dtype| tensor(values).to_dtype(dtype).unwrap();
        for op in ElementwiseOp::ALL {
            // What an operand of the method holds, as the meaning takes it.
            let side = |x: f64| match op.rule() {
                TypeRule::Logic => f64::from(u8::from(x > 0.0)),
                TypeRule::Int => x.trunc(),
                TypeRule::Word => x.trunc().max(0.0),
                TypeRule::Float | TypeRule::Numeric | TypeRule::Compare | TypeRule::Select => x,
            };
            let operands = match op.rule() {
                TypeRule::Logic => vec![truth(&A), truth(&B)],
                TypeRule::Int => vec![ints(&A, DType::I64), ints(&B, DType::I64)],
                TypeRule::Word => [&A, &B, &A].map(|x| ints(x, DType::U32)).to_vec(),
                TypeRule::Select => vec![truth(&A), tensor(&A), tensor(&B)],
                TypeRule::Float | TypeRule::Numeric | TypeRule::Compare => vec![tensor(&A), tensor(&B)],
            };
            let got = call(*op, &operands).unwrap().to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap();
            for (i, got) in got.into_iter().enumerate() {
                let (a, b) = (side(A[i]), side(B[i]));
                let (int_a, int_b) = (a as i64, b as i64);
                let expected = match op.meaning() {
                    Meaning::Unary(_, f) if op.rule() == TypeRule::Int => f(int_a) as f64,
                    Meaning::Unary(f, _) => f(a),
                    Meaning::Binary(_, f) if op.rule() == TypeRule::Int => f(int_a, int_b) as f64,
                    Meaning::Binary(f, _) => f(a, b),
                    Meaning::Relation(f, _) => f64::from(u8::from(f(a, b))),
                    Meaning::Test(f) => f64::from(u8::from(f(int_a))),
                    Meaning::Ternary(f) => f(int_a, int_b, int_a) as f64,
                    Meaning::Select => {
                        if a > 0.0 {
                            a
                        } else {
                            b
                        }
                    }
                };
                let same = got == expected || got.is_nan() && expected.is_nan();
                assert!(same, "{} of {a}, {b}: {got} is not {expected}", op.name());
            }
        }
    }
}
