//! What derivatives are written in: `g * x.cos()` of numbers is a number, of nodes a node.

use std::ops::{Add, Div, Mul, Neg, Sub};

/// An operand of a formula.
pub trait Formula:
    Copy
    + Neg<Output = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Add<f64, Output = Self>
    + Sub<f64, Output = Self>
    + Mul<f64, Output = Self>
{
    /// The number, of this operand's type and shape.
    fn filled(self, value: f64) -> Self;
    /// -1, 0 or 1.
    fn sign(self) -> Self;
    /// `e^x`.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn log(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Sine.
    fn sin(self) -> Self;
    /// Cosine.
    fn cos(self) -> Self;
    /// Hyperbolic sine.
    fn sinh(self) -> Self;
    /// Hyperbolic cosine.
    fn cosh(self) -> Self;
    /// Nearest integer towards 0.
    fn trunc(self) -> Self;
    /// `self ^ exponent`.
    fn pow(self, exponent: Self) -> Self;
    /// A truth value: `self < other`.
    fn lt(self, other: Self) -> Self;
    /// A truth value: `self == value`.
    fn is(self, value: f64) -> Self;
    /// This truth value chooses: `self ? a : b`.
    fn select(self, a: Self, b: Self) -> Self;

    /// `self * slope`, and 0 where this gradient is 0.
    ///
    /// A gradient of 0 stays 0 whatever it meets: an element that does not contribute to the result has none, though the
    /// slope there be infinite or NaN. PyTorch gives NaN in these cases, where the mathematical gradient is 0.
    fn times(self, slope: Self) -> Self {
        self.is(0.0).select(self.filled(0.0), self * slope)
    }

    /// `self / divisor`, and 0 where this gradient is 0.
    fn over(self, divisor: Self) -> Self {
        self.is(0.0).select(self.filled(0.0), self / divisor)
    }

    /// The gradient of `a` in `a^b`: `g b a^(b-1)`, and 0 where `b` is 0.
    fn power_base(self, a: Self, b: Self) -> Self {
        b.is(0.0).select(self.filled(0.0), self.times(b * a.pow(b - 1.0)))
    }

    /// The gradient of `b` in `y = a^b`: `g y ln a`, and 0 where `a` is 0 and `b` is not negative.
    fn power_exponent(self, a: Self, b: Self, y: Self) -> Self {
        let zero = self.filled(0.0);
        let slope = self.times(y * a.log());
        a.is(0.0).select(b.lt(b.filled(0.0)).select(slope, zero), slope)
    }

    /// The gradients of both operands of a minimum or maximum: to the one that won, half to each if neither did.
    fn shared(self, is_first: Self, is_second: Self) -> [Self; 2] {
        let half = self * 0.5;
        let share = |won: Self, lost: Self| won.select(self, lost.select(self.filled(0.0), half));
        [share(is_first, is_second), share(is_second, is_first)]
    }
}
