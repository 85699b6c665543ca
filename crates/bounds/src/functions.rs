//! Intervals of elementwise ops, and the errors of kernels.
//!
//! Errors are in units of 2^-24, half a unit in the last place of an f32 (ULP). Where Vulkan states a precision
//! ("Precision of Individual Operations"), that is the bound; functions that `templates/math.glsl` computes by
//! itself have the error of its arithmetic. f64 has the same table in units of 2^-50.

use tallow_ir::elementwise::TypeRule;
use tallow_ir::{DType, ElementwiseOp as E, GraphError, TensorType, Value};

use super::Intervals;
use super::range::{Range, smallest, unit};

/// What a kernel may miss the exact result by.
enum Error {
    /// Nothing: it picks or truncates.
    None,
    /// `relative * |result| + absolute`.
    Units { relative: f64, absolute: f64 },
    /// `(relative + slope * |operand|) * |result|`.
    Growing { relative: f64, slope: f64 },
}

fn error(op: E) -> Error {
    let units = |relative: f64, absolute: f64| Error::Units { relative, absolute };
    match op {
        E::Neg | E::Abs | E::Sign | E::Minimum | E::Maximum | E::Select => Error::None,
        E::Floor | E::Ceil | E::Round | E::Trunc => Error::None,
        // Remainders are corrected until they are exact.
        E::Rem => Error::None,
        E::Eq | E::Ne | E::Lt | E::Le | E::Gt | E::Ge | E::And | E::Or | E::Xor | E::Not => Error::None,
        E::BitAnd | E::BitOr | E::BitXor | E::BitNot | E::Shl | E::Shr | E::Philox => Error::None,
        // Correctly rounded: one unit, and one for the rounding of intermediates that differ.
        E::Add | E::Sub | E::Mul => units(2.0, 0.0),
        // 2.5 ULP.
        E::Div | E::Recip => units(6.0, 0.0),
        // 2 ULP; the square root is its inverse, divided.
        E::Rsqrt => units(4.0, 0.0),
        E::Sqrt => units(10.0, 0.0),
        // 3 + 2 |x| ULP.
        E::Exp | E::Exp2 => Error::Growing { relative: 6.0, slope: 4.0 },
        // From |x| = 1/2 on the exponential is at most 2.6 times the result.
        E::Expm1 => Error::Growing { relative: 18.0, slope: 12.0 },
        E::Sinh | E::Cosh => Error::Growing { relative: 16.0, slope: 8.0 },
        // 3 ULP, and 2^-21 where x is in 1/2 ..= 2.
        E::Log | E::Log2 => units(6.0, 8.0),
        // That, and the multiplication.
        E::Log10 => units(8.0, 8.0),
        // The same of 1 + x, which is rounded; by a series near 0.
        E::Log1p => units(16.0, 10.0),
        // Vulkan promises 2^-11, which would hide much; drivers keep 2^-20. The reduction is in the operand.
        E::Sin | E::Cos => units(0.0, 16.0),
        E::Tan => units(12.0, 0.0),
        // A division and a series, or twice that of a root.
        E::Atan => units(16.0, 0.0),
        E::Asin => units(40.0, 0.0),
        // Drivers divide exponentials, so near 0 the error is that of their difference.
        E::Tanh => units(32.0, 32.0),
        // 1.5e-7 of the approximation and 2e-8 of the series; the exponential of at most -1.
        E::Erf => units(16.0, 8.0),
        // See `power`.
        E::Pow => units(8.0, 0.0),
        // The arc cosine, and what has no row here yet: as wide as the worst of these.
        _ => units(40.0, 8.0),
    }
}

/// Functions of a float that rise wherever they are defined.
fn rises(op: E) -> bool {
    matches!(
        op,
        E::Sign
            | E::Floor
            | E::Ceil
            | E::Round
            | E::Trunc
            | E::Exp
            | E::Exp2
            | E::Expm1
            | E::Log
            | E::Log2
            | E::Log10
            | E::Log1p
            | E::Sqrt
            | E::Tan
            | E::Asin
            | E::Atan
            | E::Sinh
            | E::Tanh
            | E::Erf
            | E::Minimum
            | E::Maximum
    )
}

impl Intervals {
    /// The interval of an elementwise node, whose last operand is of `dtype`.
    pub fn elementwise(&mut self, op: E, dtype: DType, x: &[Range]) -> Result<Range, GraphError> {
        let float = dtype.is_float();
        match op.rule() {
            TypeRule::Select => {
                let chosen = self.select(x)?;
                Ok(chosen)
            }
            TypeRule::Compare => self.compare(op, x),
            TypeRule::Logic => self.logic(op, x),
            TypeRule::Float | TypeRule::Numeric if float => {
                let image = self.image(op, dtype, x)?;
                let wide = self.erring(op, dtype, x, image)?;
                // What only picks among values that are there rounds nothing.
                if matches!(error(op), Error::None) && op != E::Rem {
                    Ok(wide)
                } else {
                    self.narrowed(dtype, wide)
                }
            }
            TypeRule::Float | TypeRule::Numeric | TypeRule::Int | TypeRule::Word => {
                let lows: Vec<Value> = x.iter().map(|r| r.low).collect();
                if x.iter().all(|r| r.is_exact()) {
                    return Ok(Range::exact(self.e(op, &lows)?));
                }
                self.any_like(dtype, lows[0])
            }
        }
    }

    fn any_like(&mut self, dtype: DType, like: Value) -> Result<Range, GraphError> {
        let ty = TensorType::new(dtype, self.graph.ty(like).shape.clone());
        self.any(&ty)
    }

    /// `r`, but everything where `condition` holds.
    fn unless(&mut self, condition: Value, r: Range) -> Result<Range, GraphError> {
        let all = self.any_like(DType::F64, r.low)?;
        Ok(Range {
            low: self.e(E::Select, &[condition, all.low, r.low])?,
            high: self.e(E::Select, &[condition, all.high, r.high])?,
        })
    }

    /// What the exact op makes of the operands' intervals.
    fn image(&mut self, op: E, dtype: DType, x: &[Range]) -> Result<Range, GraphError> {
        let (a, b) = (x[0], x[x.len() - 1]);
        match op {
            E::Tan => {
                let a = self.reduced(dtype, a)?;
                let r = self.ends_of(op, &[a])?;
                // It rises between two poles: anything where the ends lie in different branches.
                let branches = [self.branch(a.low)?, self.branch(a.high)?];
                let pole = self.e(E::Ne, &branches)?;
                self.unless(pole, r)
            }
            op if rises(op) => self.ends_of(op, x),
            E::Neg => Ok(Range { low: self.e(op, &[a.high])?, high: self.e(op, &[a.low])? }),
            E::Rsqrt | E::Acos => Ok(Range { low: self.e(op, &[a.high])?, high: self.e(op, &[a.low])? }),
            E::Recip => {
                let r = Range { low: self.e(op, &[a.high])?, high: self.e(op, &[a.low])? };
                self.without_pole(a, r)
            }
            E::Abs => self.distance(a),
            E::Cosh => {
                let a = self.distance(a)?;
                self.ends_of(op, &[a])
            }
            E::Sin | E::Cos => {
                // The slope is at most 1.
                let a = self.reduced(dtype, a)?;
                let value = self.e(op, &[a.low])?;
                let width = self.e(E::Sub, &[a.high, a.low])?;
                let r = self.around(value, width)?;
                let one = self.graph.full_like(value, 1.0)?;
                let minus_one = self.graph.full_like(value, -1.0)?;
                Ok(Range { low: self.max(r.low, minus_one)?, high: self.min(r.high, one)? })
            }
            E::Add => self.ends_of(op, x),
            E::Sub => Ok(Range { low: self.e(op, &[a.low, b.high])?, high: self.e(op, &[a.high, b.low])? }),
            E::Mul => self.corners(op, a, b),
            E::Div => {
                let r = self.corners(op, a, b)?;
                self.without_pole(b, r)
            }
            E::Pow => {
                let r = self.corners(op, a, b)?;
                if a.is_exact() && b.is_exact() {
                    return Ok(r);
                }
                // Below 0 a power need not be monotone.
                let zero = self.graph.full_like(a.low, 0.0)?;
                let negative = self.e(E::Lt, &[a.low, zero])?;
                self.unless(negative, r)
            }
            E::Rem if a.is_exact() && b.is_exact() => self.ends_of(op, x),
            E::Rem => {
                // Jumps, but stays below the divisor.
                let most = self.magnitude(b)?;
                let least = self.e(E::Neg, &[most])?;
                Ok(Range { low: least, high: most })
            }
            _ => self.any_like(DType::F64, a.low),
        }
    }

    fn ends_of(&mut self, op: E, x: &[Range]) -> Result<Range, GraphError> {
        let lows: Vec<Value> = x.iter().map(|r| r.low).collect();
        let highs: Vec<Value> = x.iter().map(|r| r.high).collect();
        Ok(Range { low: self.e(op, &lows)?, high: self.e(op, &highs)? })
    }

    /// `|a|`.
    fn distance(&mut self, a: Range) -> Result<Range, GraphError> {
        let high = self.magnitude(a)?;
        if a.is_exact() {
            return Ok(Range::exact(high));
        }
        // max(low, -high, 0): 0 if the interval holds 0.
        let below = self.e(E::Neg, &[a.high])?;
        let nearer = self.max(a.low, below)?;
        let zero = self.graph.full_like(a.low, 0.0)?;
        Ok(Range { low: self.max(nearer, zero)?, high })
    }

    /// Every combination of ends, for what is monotone in each operand.
    fn corners(&mut self, op: E, a: Range, b: Range) -> Result<Range, GraphError> {
        let first = self.e(op, &[a.low, b.low])?;
        let mut r = Range::exact(first);
        for (x, y) in [(a.low, b.high), (a.high, b.low), (a.high, b.high)] {
            let corner = self.e(op, &[x, y])?;
            if corner != first {
                r = Range { low: self.min(r.low, corner)?, high: self.max(r.high, corner)? };
            }
        }
        Ok(r)
    }

    /// A quotient, which is anything where the divisor may be 0.
    fn without_pole(&mut self, divisor: Range, r: Range) -> Result<Range, GraphError> {
        if divisor.is_exact() {
            return Ok(r);
        }
        let zero = self.graph.full_like(divisor.low, 0.0)?;
        let below = self.e(E::Le, &[divisor.low, zero])?;
        let above = self.e(E::Ge, &[divisor.high, zero])?;
        let holds_zero = self.e(E::And, &[below, above])?;
        self.unless(holds_zero, r)
    }

    /// An angle after the reduction by multiples of pi: what is subtracted is rounded to f32.
    fn reduced(&mut self, dtype: DType, a: Range) -> Result<Range, GraphError> {
        let most = self.magnitude(a)?;
        let by = self.times(most, 2.0 * unit(dtype))?;
        let by = self.plus(by, 4.0 * unit(dtype))?;
        self.apart(a, by)
    }

    /// Which branch of the tangent an angle is in: `floor(a / pi + 1/2)`.
    fn branch(&mut self, a: Value) -> Result<Value, GraphError> {
        let quotient = self.times(a, std::f64::consts::FRAC_1_PI)?;
        let half = self.graph.full_like(a, 0.5)?;
        let shifted = self.e(E::Add, &[quotient, half])?;
        self.e(E::Floor, &[shifted])
    }

    /// The image widened by the error of a kernel.
    fn erring(&mut self, op: E, dtype: DType, x: &[Range], image: Range) -> Result<Range, GraphError> {
        let u = unit(dtype);
        let (relative, absolute) = match error(op) {
            Error::None => return Ok(image),
            Error::Units { relative, .. } if op == E::Pow => (Some(self.power(u, relative, x)?), 0.0),
            Error::Units { relative: 0.0, absolute } => (None, absolute),
            Error::Units { relative, absolute } => {
                (Some(self.graph.full_like(image.low, relative * u)?), absolute)
            }
            Error::Growing { relative, slope } => {
                let most = self.magnitude(x[0])?;
                let growing = self.times(most, slope * u)?;
                (Some(self.plus(growing, relative * u)?), 0.0)
            }
        };
        let absolute = absolute * u + smallest(dtype);
        let Some(relative) = relative else {
            let by = self.graph.full_like(image.low, absolute)?;
            return self.apart(image, by);
        };
        let most = self.magnitude(image)?;
        let by = self.e(E::Mul, &[most, relative])?;
        let by = self.plus(by, absolute)?;
        self.apart(image, by)
    }

    /// The relative error of `a^b = exp2(b log2 a)`: the logarithm misses by 6 units of itself or by 8 units, which
    /// `b` multiplies, the product by one more, and the exponential of `t = b log2 a` by `6 + 4 |t|`. Together, and
    /// with `ln 2 < 1`, at most `8 + 12 |t| + 8 |b|` units.
    fn power(&mut self, u: f64, relative: f64, x: &[Range]) -> Result<Value, GraphError> {
        let exponent = self.magnitude(x[1])?;
        let low = self.e(E::Log2, &[x[0].low])?;
        let high = self.e(E::Log2, &[x[0].high])?;
        let logarithm = self.magnitude(Range { low, high })?;
        let t = self.e(E::Mul, &[exponent, logarithm])?;
        let of_t = self.times(t, 12.0 * u)?;
        let of_exponent = self.times(exponent, 8.0 * u)?;
        let sum = self.e(E::Add, &[of_t, of_exponent])?;
        self.plus(sum, relative * u)
    }

    /// Truth values by what certainly and what possibly holds.
    fn compare(&mut self, op: E, x: &[Range]) -> Result<Range, GraphError> {
        let (a, b) = (x[0], x[1]);
        let mut both = |low: [Value; 2], high: [Value; 2]| -> Result<Range, GraphError> {
            Ok(Range { low: self.e(op, &low)?, high: self.e(op, &high)? })
        };
        match op {
            E::Lt | E::Le => both([a.high, b.low], [a.low, b.high]),
            E::Gt | E::Ge => both([a.low, b.high], [a.high, b.low]),
            _ if a.is_exact() && b.is_exact() => both([a.low, b.low], [a.low, b.low]),
            _ => {
                // Equal for certain: both are one number. Possibly: the intervals meet.
                let (over, under) = (self.e(E::Ge, &[a.low, b.high])?, self.e(E::Le, &[a.high, b.low])?);
                let certain = self.e(E::And, &[over, under])?;
                let (over, under) = (self.e(E::Ge, &[a.high, b.low])?, self.e(E::Le, &[a.low, b.high])?);
                let possible = self.e(E::And, &[over, under])?;
                if op == E::Eq {
                    return Ok(Range { low: certain, high: possible });
                }
                Ok(Range { low: self.e(E::Not, &[possible])?, high: self.e(E::Not, &[certain])? })
            }
        }
    }

    fn logic(&mut self, op: E, x: &[Range]) -> Result<Range, GraphError> {
        match op {
            E::Not => Ok(Range { low: self.e(op, &[x[0].high])?, high: self.e(op, &[x[0].low])? }),
            E::And | E::Or => self.ends_of(op, x),
            _ if x.iter().all(|r| r.is_exact()) => self.ends_of(op, x),
            _ => {
                let zero = self.graph.full_like(x[0].low, 0.0)?;
                Ok(Range { low: zero, high: self.graph.full_like(x[0].low, 1.0)? })
            }
        }
    }

    fn select(&mut self, x: &[Range]) -> Result<Range, GraphError> {
        let (condition, a, b) = (x[0], x[1], x[2]);
        if condition.is_exact() {
            return Ok(Range {
                low: self.e(E::Select, &[condition.low, a.low, b.low])?,
                high: self.e(E::Select, &[condition.low, a.high, b.high])?,
            });
        }
        let (low, high) = (self.min(a.low, b.low)?, self.max(a.high, b.high)?);
        let low = self.e(E::Select, &[condition.high, low, b.low])?;
        let high = self.e(E::Select, &[condition.high, high, b.high])?;
        Ok(Range {
            low: self.e(E::Select, &[condition.low, a.low, low])?,
            high: self.e(E::Select, &[condition.low, a.high, high])?,
        })
    }
}
