//! The table of elementwise ops: one row says name, type rule, whether it is fast or slow on a device, scalar meaning, and
//! derivative.
//!
//! The meaning is given in `f64` for floats and in `i64` for integers (wrapped to the node's type
//! afterwards); the interpreter, constant folding, documentation and the frontend's methods follow from
//! the row. A derivative gives the gradient of each operand from the gradient `g` of the result `y`: `d1(|g, x, y| ..)`,
//! `d2(|g, a, b, y| [.., ..])`, or `flat()` where it is 0. Code generation adds one arm (`codegen/src/scalar.rs`), which the compiler demands.

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, LN_10};

use crate::dtype::DType;
use crate::formula::Formula;

/// Which operand types an op accepts and what it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeRule {
    /// Floats of one type; returns that type.
    Float,
    /// Floats or integers of one type; returns that type.
    Numeric,
    /// Operands of one type; returns `u8` 0 or 1.
    Compare,
    /// `u8` truth values (non-zero is true); returns `u8` 0 or 1.
    Logic,
    /// Integers of one type; returns that type.
    Int,
    /// `u32` operands; returns `u32`.
    Word,
    /// `(u8, T, T)`; returns `T`.
    Select,
}

/// Scalar meaning of an op, by arity. Integers take and give `i64`.
#[derive(Clone, Copy)]
pub enum Meaning {
    /// One operand.
    Unary(fn(f64) -> f64, fn(i64) -> i64),
    /// Two operands.
    Binary(fn(f64, f64) -> f64, fn(i64, i64) -> i64),
    /// Two operands to a truth value.
    Relation(fn(f64, f64) -> bool, fn(i64, i64) -> bool),
    /// One truth value to another.
    Test(fn(i64) -> bool),
    /// Three integers.
    Ternary(fn(i64, i64, i64) -> i64),
    /// `condition ? a : b`, on either kind of number.
    Select,
}

macro_rules! elementwise_ops {
    ($( $(#[doc = $doc:literal])+ $variant:ident $name:literal $rule:ident $cost:ident $shape:ident($($meaning:expr),*) $slope:ident($($derivative:expr)?); )*) => {
        /// An elementwise op; every operand has the shape of the result.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ElementwiseOp { $( $(#[doc = $doc])+ $variant, )* }

        impl ElementwiseOp {
            /// Every op, in table order.
            pub const ALL: &'static [ElementwiseOp] = &[$(ElementwiseOp::$variant),*];

            /// The name in the text form.
            pub fn name(self) -> &'static str {
                match self { $(ElementwiseOp::$variant => $name),* }
            }

            /// One-line description.
            pub fn doc(self) -> &'static str {
                match self { $(ElementwiseOp::$variant => concat!($($doc),+).trim_ascii()),* }
            }

            /// Operand and result types.
            pub fn rule(self) -> TypeRule {
                match self { $(ElementwiseOp::$variant => TypeRule::$rule),* }
            }

            /// Whether it is too slow to compute again in each consumer: a special function or a division, which take
            /// the special function unit or many instructions.
            pub fn is_slow(self) -> bool {
                match self { $(ElementwiseOp::$variant => elementwise_ops!(@slow $cost)),* }
            }

            /// Scalar meaning.
            pub fn meaning(self) -> Meaning {
                match self { $(ElementwiseOp::$variant => elementwise_ops!(@meaning $shape $($meaning),*)),* }
            }

            /// What the gradient `g` of the result `y` passes back to each operand; nothing where the result is constant
            /// between jumps, or of integers.
            pub fn derivative<F: Formula>(self, g: F, operands: &[F], y: F) -> Vec<Option<F>> {
                match self {
                    $(ElementwiseOp::$variant => elementwise_ops!(@derivative $slope (g, operands, y) $($derivative)?)),*
                }
            }
        }
    };
    (@slow fast) => { false };
    (@slow slow) => { true };
    (@meaning float_unary $f:expr) => { Meaning::Unary($f, |a| a) };
    (@meaning unary $f:expr, $i:expr) => { Meaning::Unary($f, $i) };
    (@meaning float_binary $f:expr) => { Meaning::Binary($f, |a, _| a) };
    (@meaning binary $f:expr, $i:expr) => { Meaning::Binary($f, $i) };
    (@meaning extremum $f:expr, $i:expr) => { Meaning::Binary($f, $i) };
    (@meaning relation $f:expr, $i:expr) => { Meaning::Relation($f, $i) };
    (@meaning int_unary $i:expr) => { Meaning::Unary(|a| a, $i) };
    (@meaning int_binary $i:expr) => { Meaning::Binary(|a, _| a, $i) };
    (@meaning test $i:expr) => { Meaning::Test($i) };
    (@meaning ternary $i:expr) => { Meaning::Ternary($i) };
    (@meaning select) => { Meaning::Select };
    (@derivative flat ($g:ident, $operands:ident, $y:ident)) => { vec![None; $operands.len()] };
    (@derivative d1 ($g:ident, $operands:ident, $y:ident) $f:expr) => { unary($f, $g, $operands, $y) };
    (@derivative d2 ($g:ident, $operands:ident, $y:ident) $f:expr) => { binary($f, $g, $operands, $y) };
    (@derivative choice ($g:ident, $operands:ident, $y:ident)) => { chosen($g, $operands) };
}

/// The table: calls the macro `$callback` with all rows. The frontend makes a method of each.
#[macro_export]
macro_rules! elementwise_table {
    ($callback:ident) => {
        $callback! {
            /// `-x`.
            Neg "neg" Numeric fast unary(|x| -x, |x| x.wrapping_neg()) d1(|g, _, _| -g);
            /// `|x|`.
            Abs "abs" Numeric fast unary(f64::abs, |x| x.wrapping_abs()) d1(|g, x, _| g * x.sign());
            /// -1, 0 or 1; NaN stays NaN.
            Sign "sign" Numeric fast unary(|x| if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { x * 0.0 }, i64::signum) flat();
            /// `e^x`.
            Exp "exp" Float slow float_unary(f64::exp) d1(|g, _, y| g.times(y));
            /// `2^x`.
            Exp2 "exp2" Float slow float_unary(f64::exp2) d1(|g, _, y| g.times(y * LN_2));
            /// `e^x - 1`, exact to rounding also where `x` is near 0.
            Expm1 "expm1" Float slow float_unary(f64::exp_m1) d1(|g, _, y| g.times(y + 1.0));
            /// Natural logarithm.
            Log "log" Float slow float_unary(f64::ln) d1(|g, x, _| g.over(x));
            /// Logarithm to base 2.
            Log2 "log2" Float slow float_unary(f64::log2) d1(|g, x, _| g.over(x * LN_2));
            /// Logarithm to base 10.
            Log10 "log10" Float slow float_unary(f64::log10) d1(|g, x, _| g.over(x * LN_10));
            /// `ln(1 + x)`, exact to rounding also where `x` is near 0.
            Log1p "log1p" Float slow float_unary(f64::ln_1p) d1(|g, x, _| g.over(x + 1.0));
            /// Square root.
            Sqrt "sqrt" Float slow float_unary(f64::sqrt) d1(|g, _, y| g.over(y * 2.0));
            /// `1 / sqrt(x)`.
            Rsqrt "rsqrt" Float slow float_unary(|x| 1.0 / x.sqrt()) d1(|g, _, y| g.times(y * y * y * -0.5));
            /// `1 / x`.
            Recip "recip" Float slow float_unary(|x| 1.0 / x) d1(|g, _, y| -g.times(y * y));
            /// Sine of radians.
            Sin "sin" Float slow float_unary(f64::sin) d1(|g, x, _| g * x.cos());
            /// Cosine of radians.
            Cos "cos" Float slow float_unary(f64::cos) d1(|g, x, _| -g * x.sin());
            /// Tangent of radians.
            Tan "tan" Float slow float_unary(f64::tan) d1(|g, _, y| g.times(y * y + 1.0));
            /// Arc sine in radians, from -pi/2 to pi/2; NaN beyond -1 and 1.
            Asin "asin" Float slow float_unary(f64::asin) d1(|g, x, _| g.over((-(x * x) + 1.0).sqrt()));
            /// Arc cosine in radians, from 0 to pi; NaN beyond -1 and 1.
            Acos "acos" Float slow float_unary(f64::acos) d1(|g, x, _| -g.over((-(x * x) + 1.0).sqrt()));
            /// Arc tangent in radians, from -pi/2 to pi/2.
            Atan "atan" Float slow float_unary(f64::atan) d1(|g, x, _| g.over(x * x + 1.0));
            /// Hyperbolic sine.
            Sinh "sinh" Float slow float_unary(f64::sinh) d1(|g, x, _| g.times(x.cosh()));
            /// Hyperbolic cosine.
            Cosh "cosh" Float slow float_unary(f64::cosh) d1(|g, x, _| g.times(x.sinh()));
            /// Hyperbolic tangent.
            Tanh "tanh" Float slow float_unary(f64::tanh) d1(|g, _, y| g * (-(y * y) + 1.0));
            /// Gauss error function.
            Erf "erf" Float slow float_unary($crate::special::erf) d1(|g, x, _| g * (-(x * x)).exp() * FRAC_2_SQRT_PI);
            /// Largest integer not above `x`.
            Floor "floor" Float fast float_unary(f64::floor) flat();
            /// Smallest integer not below `x`.
            Ceil "ceil" Float fast float_unary(f64::ceil) flat();
            /// Nearest integer, halves away from zero.
            Round "round" Float fast float_unary(f64::round) flat();
            /// Nearest integer towards 0.
            Trunc "trunc" Float fast float_unary(f64::trunc) flat();
            /// `a + b`.
            Add "add" Numeric fast binary(|a, b| a + b, |a, b| a.wrapping_add(b)) d2(|g, _, _, _| [g, g]);
            /// `a - b`.
            Sub "sub" Numeric fast binary(|a, b| a - b, |a, b| a.wrapping_sub(b)) d2(|g, _, _, _| [g, -g]);
            /// `a * b`.
            Mul "mul" Numeric fast binary(|a, b| a * b, |a, b| a.wrapping_mul(b)) d2(|g, a, b, _| [g * b, g * a]);
            /// `a / b`; integers truncate, and dividing one by zero gives 0.
            Div "div" Numeric slow binary(|a, b| a / b, |a, b| if b == 0 { 0 } else { a.wrapping_div(b) }) d2(|g, _, b, y| [g.over(b), -g.times(y).over(b)]);
            /// Remainder with the sign of `a`; an integer modulo zero gives 0.
            Rem "rem" Numeric fast binary(|a, b| a % b, |a, b| if b == 0 { 0 } else { a.wrapping_rem(b) }) d2(|g, a, b, _| [g, -g.times((a / b).trunc())]);
            /// `a^b`.
            Pow "pow" Float slow float_binary(f64::powf) d2(|g, a, b, y| [g.power_base(a, b), g.power_exponent(a, b, y)]);
            /// The smaller operand; NaN if either is NaN.
            Minimum "minimum" Numeric fast extremum(|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }, |a, b| a.min(b)) d2(|g, a, b, _| g.shared(a.lt(b), b.lt(a)));
            /// The larger operand; NaN if either is NaN.
            Maximum "maximum" Numeric fast extremum(|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }, |a, b| a.max(b)) d2(|g, a, b, _| g.shared(b.lt(a), a.lt(b)));
            /// The bits that are 1 in both.
            BitAnd "bit_and" Int fast int_binary(|a, b| a & b) flat();
            /// The bits that are 1 in either.
            BitOr "bit_or" Int fast int_binary(|a, b| a | b) flat();
            /// The bits that are 1 in one alone.
            BitXor "bit_xor" Int fast int_binary(|a, b| a ^ b) flat();
            /// Every bit turned over.
            BitNot "bit_not" Int fast int_unary(|a| !a) flat();
            /// `a * 2^b` in the bits that there are: 0 for shifts by the width or more, and for negative `b`.
            Shl "shl" Int fast int_binary(|a, b| if (0..64).contains(&b) { a << b } else { 0 }) flat();
            /// `a / 2^b` rounded down: by the width or more 0, or -1 of negative `a`; 0 for negative `b`.
            Shr "shr" Int fast int_binary(|a, b| if b < 0 { 0 } else { a >> b.min(63) }) flat();
            /// Random bits that depend on nothing but `(counter, key, stream)`: word `counter % 4` of the
            /// Philox4x32-10 block at `(counter / 4, stream, 0, 0)` under the key `(key, 0)`.
            Philox "philox" Word slow ternary($crate::philox::word) flat();
            /// `a == b`.
            Eq "eq" Compare fast relation(|a, b| a == b, |a, b| a == b) flat();
            /// `a != b`.
            Ne "ne" Compare fast relation(|a, b| a != b, |a, b| a != b) flat();
            /// `a < b`.
            Lt "lt" Compare fast relation(|a, b| a < b, |a, b| a < b) flat();
            /// `a <= b`.
            Le "le" Compare fast relation(|a, b| a <= b, |a, b| a <= b) flat();
            /// `a > b`.
            Gt "gt" Compare fast relation(|a, b| a > b, |a, b| a > b) flat();
            /// `a >= b`.
            Ge "ge" Compare fast relation(|a, b| a >= b, |a, b| a >= b) flat();
            /// Both are true.
            And "logical_and" Logic fast relation(|a, b| a != 0.0 && b != 0.0, |a, b| a != 0 && b != 0) flat();
            /// Either is true.
            Or "logical_or" Logic fast relation(|a, b| a != 0.0 || b != 0.0, |a, b| a != 0 || b != 0) flat();
            /// One is true and the other is not.
            Xor "logical_xor" Logic fast relation(|a, b| (a != 0.0) != (b != 0.0), |a, b| (a != 0) != (b != 0)) flat();
            /// It is not true.
            Not "logical_not" Logic fast test(|a| a == 0) flat();
            /// `condition ? a : b`; the condition is true when not 0.
            Select "select" Select fast select() choice();
        }
    };
}

elementwise_table!(elementwise_ops);

fn unary<F: Formula>(slope: fn(F, F, F) -> F, g: F, operands: &[F], y: F) -> Vec<Option<F>> {
    operands.iter().map(|x| Some(slope(g, *x, y))).collect()
}

fn binary<F: Formula>(slopes: fn(F, F, F, F) -> [F; 2], g: F, operands: &[F], y: F) -> Vec<Option<F>> {
    match operands {
        [a, b] => slopes(g, *a, *b, y).map(Some).to_vec(),
        _ => vec![None; operands.len()],
    }
}

fn chosen<F: Formula>(g: F, operands: &[F]) -> Vec<Option<F>> {
    let zero = g.filled(0.0);
    let [condition, ..] = operands else { return vec![] };
    vec![None, Some(condition.select(g, zero)), Some(condition.select(zero, g))]
}

impl ElementwiseOp {
    /// The op called `name` in the text form.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|op| op.name() == name)
    }

    /// Number of operands.
    pub fn arity(self) -> usize {
        match self.meaning() {
            Meaning::Unary(..) | Meaning::Test(..) => 1,
            Meaning::Binary(..) | Meaning::Relation(..) => 2,
            Meaning::Ternary(..) | Meaning::Select => 3,
        }
    }

    /// The result type for operand types, or what is wrong with them.
    pub fn result_dtype(self, operands: &[DType]) -> Result<DType, String> {
        let name = self.name();
        if operands.len() != self.arity() {
            return Err(format!("{name} takes {} operands, got {}", self.arity(), operands.len()));
        }
        let list = || operands.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ");
        let same = |d: &[DType]| d.windows(2).all(|w| w[0] == w[1]);
        let computable = |d: DType| d.is_float() || d.is_int();
        match self.rule() {
            TypeRule::Float if same(operands) && operands[0].is_float() => Ok(operands[0]),
            TypeRule::Float => Err(format!("{name} needs floats of one dtype, got {}", list())),
            TypeRule::Numeric if same(operands) && computable(operands[0]) => Ok(operands[0]),
            TypeRule::Numeric => Err(format!("{name} needs operands of one dtype, got {}", list())),
            TypeRule::Compare if same(operands) && computable(operands[0]) => Ok(DType::U8),
            TypeRule::Compare => Err(format!("{name} needs operands of one dtype, got {}", list())),
            TypeRule::Logic if operands.iter().all(|d| *d == DType::U8) => Ok(DType::U8),
            TypeRule::Logic => Err(format!("{name} needs u8 operands, got {}", list())),
            TypeRule::Int if same(operands) && operands[0].is_int() => Ok(operands[0]),
            TypeRule::Int => Err(format!("{name} needs integers of one dtype, got {}", list())),
            TypeRule::Word if operands.iter().all(|d| *d == DType::U32) => Ok(DType::U32),
            TypeRule::Word => Err(format!("{name} needs u32 operands, got {}", list())),
            TypeRule::Select
                if operands[0] == DType::U8 && same(&operands[1..]) && computable(operands[1]) =>
            {
                Ok(operands[1])
            }
            TypeRule::Select => Err(format!("select needs (u8, T, T), got ({})", list())),
        }
    }
}
