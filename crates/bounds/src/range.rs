//! Intervals of values, and the steps that all ops share.

use tallow_ir::{DType, ElementwiseOp as E, GraphError, Op, Scalar, TensorType, Value};

use super::Intervals;

/// The ends of an interval: f64 for floats, else integers of the value's own type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub low: Value,
    pub high: Value,
}

impl Range {
    /// One value. Equal nodes of a graph are one, so what is computed of exact operands is exact again.
    pub fn exact(v: Value) -> Range {
        Range { low: v, high: v }
    }

    /// True if every kernel computes the same.
    pub fn is_exact(self) -> bool {
        self.low == self.high
    }
}

/// A range as its middle, and the largest magnitude of an element less that of the middle.
pub struct Ball {
    pub middle: Value,
    /// Of the middle.
    pub size: Value,
    /// Of any element.
    pub most: Value,
}

/// What a kernel's arithmetic on values of `dtype` may lose, relative to the result of one operation.
pub fn unit(dtype: DType) -> f64 {
    // Kernels compute f64 in f64, and so does the interpreter, which is therefore no better: four units each.
    // Everything else is computed in f32, with half a unit in the last place where Vulkan demands correct rounding.
    if dtype == DType::F64 { 2f64.powi(-50) } else { 2f64.powi(-24) }
}

/// Results below this may be flushed to zero.
pub fn smallest(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::MIN_POSITIVE } else { f64::from(f32::MIN_POSITIVE) }
}

impl Intervals {
    /// An elementwise node.
    pub fn e(&mut self, op: E, operands: &[Value]) -> Result<Value, GraphError> {
        self.graph.elementwise(op, operands)
    }

    /// The smaller of two.
    pub fn min(&mut self, a: Value, b: Value) -> Result<Value, GraphError> {
        if a == b { Ok(a) } else { self.e(E::Minimum, &[a, b]) }
    }

    /// The larger of two.
    pub fn max(&mut self, a: Value, b: Value) -> Result<Value, GraphError> {
        if a == b { Ok(a) } else { self.e(E::Maximum, &[a, b]) }
    }

    /// `a * x`.
    pub fn times(&mut self, a: Value, x: f64) -> Result<Value, GraphError> {
        let x = self.graph.full_like(a, x)?;
        self.e(E::Mul, &[a, x])
    }

    /// `a + x`.
    pub fn plus(&mut self, a: Value, x: f64) -> Result<Value, GraphError> {
        let x = self.graph.full_like(a, x)?;
        self.e(E::Add, &[a, x])
    }

    /// A float as f64; other types as they are.
    pub fn wide(&mut self, v: Value) -> Result<Value, GraphError> {
        let dtype = self.graph.ty(v).dtype;
        if dtype.is_float() && dtype != DType::F64 {
            self.graph.add(Op::Cast(DType::F64), &[v])
        } else {
            Ok(v)
        }
    }

    /// An f64 rounded to `dtype`, again as f64.
    fn rounded(&mut self, dtype: DType, v: Value) -> Result<Value, GraphError> {
        let narrow = self.graph.add(Op::Cast(dtype), &[v])?;
        self.wide(narrow)
    }

    /// What kernels may make of a float of `dtype` that is computed in a wider register.
    pub fn narrowed(&mut self, dtype: DType, r: Range) -> Result<Range, GraphError> {
        match dtype {
            DType::F16 | DType::BF16 => {
                let (low, high) = (self.rounded(dtype, r.low)?, self.rounded(dtype, r.high)?);
                Ok(Range { low: self.min(r.low, low)?, high: self.max(r.high, high)? })
            }
            // What a register holds is an f32, perhaps an infinite one.
            DType::F8E4M3 | DType::F32 => {
                Ok(Range { low: self.rounded(dtype, r.low)?, high: self.rounded(dtype, r.high)? })
            }
            DType::F64 | DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 | DType::Block(_) => {
                Ok(r)
            }
        }
    }

    /// An explicit cast, which rounds in every kernel. Casts are monotone, but those of integers that wrap.
    pub fn cast(&mut self, from: DType, to: DType, r: Range) -> Result<Range, GraphError> {
        let widens = matches!(to, DType::F32 | DType::F64) && from.is_float() && from != DType::F64;
        if from == to || widens || (from.is_float() && to == DType::F64) {
            return Ok(r);
        }
        if !from.is_float() && !to.is_float() && !r.is_exact() {
            let ty = TensorType::new(to, self.graph.ty(r.low).shape.clone());
            return self.any(&ty);
        }
        let mut end = |v: Value| {
            let cast = self.graph.add(Op::Cast(to), &[v])?;
            self.wide(cast)
        };
        Ok(Range { low: end(r.low)?, high: end(r.high)? })
    }

    /// Everything that the type holds.
    pub fn any(&mut self, ty: &TensorType) -> Result<Range, GraphError> {
        let (low, high) = match ty.dtype {
            DType::U8 => (0, i64::from(u8::MAX)),
            DType::U32 => (0, i64::from(u32::MAX)),
            DType::I16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
            DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
            DType::I64 => (i64::MIN, i64::MAX),
            // What blocks mean is real.
            DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::Block(_) => {
                let end = |x: f64| Scalar::float(DType::F64, x);
                return self.filled(ty, end(f64::NEG_INFINITY), end(f64::INFINITY));
            }
        };
        self.filled(ty, Scalar::int(ty.dtype, low), Scalar::int(ty.dtype, high))
    }

    fn filled(&mut self, ty: &TensorType, low: Scalar, high: Scalar) -> Result<Range, GraphError> {
        let mut end = |x: Scalar| {
            let x = self.graph.add(Op::Const(x), &[])?;
            self.graph.broadcast(x, ty.shape.clone())
        };
        Ok(Range { low: end(low)?, high: end(high)? })
    }

    /// The largest magnitude in a range.
    pub fn magnitude(&mut self, r: Range) -> Result<Value, GraphError> {
        let (low, high) = (self.e(E::Abs, &[r.low])?, self.e(E::Abs, &[r.high])?);
        self.max(low, high)
    }

    /// A range by its middle.
    pub fn ball(&mut self, r: Range) -> Result<Ball, GraphError> {
        let most = self.magnitude(r)?;
        if r.is_exact() {
            return Ok(Ball { middle: r.low, size: most, most });
        }
        let sum = self.e(E::Add, &[r.low, r.high])?;
        let middle = self.times(sum, 0.5)?;
        let size = self.e(E::Abs, &[middle])?;
        // |middle| + radius is the larger magnitude; the sum above may have rounded it past that.
        Ok(Ball { middle, size, most: self.max(most, size)? })
    }

    /// `middle - by ..= middle + by`.
    pub fn around(&mut self, middle: Value, by: Value) -> Result<Range, GraphError> {
        Ok(Range { low: self.e(E::Sub, &[middle, by])?, high: self.e(E::Add, &[middle, by])? })
    }

    /// Both ends moved outwards.
    pub fn apart(&mut self, r: Range, by: Value) -> Result<Range, GraphError> {
        Ok(Range { low: self.e(E::Sub, &[r.low, by])?, high: self.e(E::Add, &[r.high, by])? })
    }
}
