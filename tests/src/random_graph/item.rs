//! What is known of a value: its range, and whether it is exact.

use tallow_ir::elementwise::{Meaning, TypeRule};
use tallow_ir::{ElementwiseOp as E, Value};

/// A value that later steps may use.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// The value.
    pub value: Value,
    /// No element is below.
    pub low: f64,
    /// No element is above.
    pub high: f64,
    /// Every device computes the same bits.
    pub exact: bool,
}

impl Item {
    /// The largest magnitude that an element may have.
    pub fn bound(&self) -> f64 {
        self.low.abs().max(self.high.abs())
    }
}

/// The range of the result of `op` for operands in their ranges.
pub fn range(op: E, of: &[Item]) -> (f64, f64) {
    let (a, b) = (of[0], of[of.len() - 1]);
    let products = [a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high];
    let hull = |all: [f64; 4]| {
        (all.iter().copied().fold(f64::MAX, f64::min), all.iter().copied().fold(f64::MIN, f64::max))
    };
    match op {
        E::Neg => (-a.high, -a.low),
        E::Abs if a.low >= 0.0 => (a.low, a.high),
        E::Abs => (0.0, a.bound()),
        E::Sign | E::Sin | E::Cos | E::Tanh | E::Erf => (-1.0, 1.0),
        E::Atan | E::Asin => (-1.6, 1.6),
        E::Acos => (0.0, 3.2),
        E::Expm1 => (a.low.exp_m1(), a.high.exp_m1()),
        E::Sinh => (a.low.sinh(), a.high.sinh()),
        E::Cosh => (1.0, a.bound().cosh()),
        // Callers see to it that the operand stays between two poles.
        E::Tan => (a.low.tan(), a.high.tan()),
        E::Rsqrt => (1.0 / a.high.sqrt(), 1.0 / a.low.sqrt()),
        E::Exp => (a.low.exp(), a.high.exp()),
        E::Log => (a.low.ln(), a.high.ln()),
        E::Sqrt => (a.low.sqrt(), a.high.sqrt()),
        // Callers see to it that the operand has one sign.
        E::Recip => (1.0 / a.high, 1.0 / a.low),
        E::Floor | E::Ceil | E::Round | E::Trunc => (a.low - 1.0, a.high + 1.0),
        E::Add => (a.low + b.low, a.high + b.high),
        E::Sub => (a.low - b.high, a.high - b.low),
        E::Mul => hull(products),
        E::Div if b.low > 0.0 => hull([a.low / b.low, a.low / b.high, a.high / b.low, a.high / b.high]),
        // A quotient of integers is no larger than the dividend.
        E::Div => (-a.bound(), a.bound()),
        E::Rem if a.low >= 0.0 => (0.0, a.high.min(b.bound())),
        E::Rem => (-a.bound().min(b.bound()), a.bound().min(b.bound())),
        // Callers see to it that the base is positive.
        E::Pow => hull([a.low.powf(b.low), a.low.powf(b.high), a.high.powf(b.low), a.high.powf(b.high)]),
        E::Minimum => (a.low.min(b.low), a.high.min(b.high)),
        E::Maximum => (a.low.max(b.low), a.high.max(b.high)),
        // Of any size; the caller clips the range to that of the type.
        E::BitAnd | E::BitOr | E::BitXor | E::BitNot | E::Shl | E::Shr | E::Philox => {
            (f64::NEG_INFINITY, f64::INFINITY)
        }
        E::Eq | E::Ne | E::Lt | E::Le | E::Gt | E::Ge => (0.0, 1.0),
        E::And | E::Or | E::Xor | E::Not => (0.0, 1.0),
        E::Select => (of[1].low.min(b.low), of[1].high.max(b.high)),
        // What has no row here, from the table's meaning: exact where it is monotone.
        _ => sampled(op, a, b),
    }
}

/// The range of what `op` means at 33 points of the range of each operand.
fn sampled(op: E, a: Item, b: Item) -> (f64, f64) {
    let points = |i: Item| (0..=32).map(move |n| i.low + (i.high - i.low) * f64::from(n) / 32.0);
    let found: Vec<f64> = match op.meaning() {
        Meaning::Unary(f, _) => points(a).map(f).collect(),
        Meaning::Binary(f, _) => points(a).flat_map(|x| points(b).map(move |y| f(x, y))).collect(),
        Meaning::Relation(..) | Meaning::Test(_) => vec![0.0, 1.0],
        Meaning::Ternary(_) | Meaning::Select => vec![f64::NEG_INFINITY, f64::INFINITY],
    };
    (found.iter().copied().fold(f64::MAX, f64::min), found.iter().copied().fold(f64::MIN, f64::max))
}

/// True if every device gives the same bits for the same operands, in whatever precision it computes.
pub fn is_exact(op: E) -> bool {
    let picks = matches!(op, E::Neg | E::Abs | E::Sign | E::Minimum | E::Maximum | E::Select);
    let jumps = matches!(op, E::Floor | E::Ceil | E::Round | E::Trunc);
    let whole = match op.rule() {
        TypeRule::Compare | TypeRule::Logic | TypeRule::Int | TypeRule::Word => true,
        TypeRule::Float | TypeRule::Numeric | TypeRule::Select => false,
    };
    picks || jumps || whole
}
