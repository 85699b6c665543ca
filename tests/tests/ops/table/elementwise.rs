//! The table of elementwise ops, and casts.

use candle_core as candle;
use tallow_ir::elementwise::{Meaning, TypeRule};
use tallow_ir::{DType, ElementwiseOp as E, Op};

use super::add;
use crate::row::{Bound, Candle, CandleSide, Fill, Operand, Row};

pub fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = E::ALL.iter().map(|op| elementwise(*op)).collect();
    rows.extend(DType::SCALARS.into_iter().map(cast));
    rows
}

fn elementwise(op: E) -> Row {
    let operands = move |dims: &[usize], dtype: DType| {
        let operand = Operand::new(dims, dtype).of(fill(op));
        match op.arity() {
            1 => vec![operand],
            2 => vec![operand.clone(), second(op, operand)],
            _ if op.rule() == TypeRule::Select => {
                vec![Operand::new(dims, DType::U8).of(Fill::Truths), operand.clone(), operand]
            }
            _ => vec![operand.clone(), operand.clone(), operand],
        }
    };
    let row = Row::new("Elementwise", op.name(), operands, move |g, v| add(g, Op::Elementwise(op), v));
    Row { candle: candle_side(op), bound: bound(op), ..row }
}

/// Arguments for which the function is defined, and a few for which it is not, where Candle agrees.
fn fill(op: E) -> Fill {
    match op {
        E::Asin | E::Acos => Fill::Unit,
        E::Pow => Fill::Positive,
        E::And | E::Or | E::Xor | E::Not => Fill::Truths,
        _ => Fill::Numbers,
    }
}

/// Candle panics where an integer is divided by 0; what we give there is tested in `device/differential.rs`.
fn second(op: E, operand: Operand) -> Operand {
    match op {
        E::Div | E::Rem if operand.dtype.is_int() => operand.of(Fill::NonZero),
        E::Shl | E::Shr => operand.of(Fill::Shifts),
        _ => operand,
    }
}

fn bound(op: E) -> Bound {
    match op {
        E::Neg | E::Abs | E::Sign | E::Floor | E::Ceil | E::Round | E::Trunc => Bound::Exact,
        // Sums and products of 7 bits need 14, and each is rounded once.
        E::Add | E::Sub | E::Mul | E::Minimum | E::Maximum | E::Select => Bound::Exact,
        E::BitAnd | E::BitOr | E::BitXor | E::BitNot | E::Shl | E::Shr | E::Philox => Bound::Exact,
        E::Eq | E::Ne | E::Lt | E::Le | E::Gt | E::Ge | E::And | E::Or | E::Xor | E::Not => Bound::Exact,
        _ => Bound::Function,
    }
}

/// Candle's functions are those of libm in f32 or f64, which err by less than 1 step (of f16, bf16 and f8e4m3: by their
/// own rounding after it), and ours round once: 2 steps apart at most.
const LIBM: Bound = Bound::Steps(2.0);

fn candle_side(op: E) -> Candle {
    type T = candle::Tensor;
    let unary = |f: fn(&T) -> candle::Result<T>, bound| {
        Candle::Has(Box::new(move |t: &[T]| f(&t[0])) as CandleSide, bound)
    };
    let binary = |f: fn(&T, &T) -> candle::Result<T>, bound| {
        Candle::Has(Box::new(move |t: &[T]| f(&t[0], &t[1])) as CandleSide, bound)
    };
    match op {
        E::Neg => unary(T::neg, Bound::Exact),
        E::Abs => unary(T::abs, Bound::Exact),
        E::Sign => unary(T::sign, Bound::Exact),
        E::Floor => unary(T::floor, Bound::Exact),
        E::Ceil => unary(T::ceil, Bound::Exact),
        E::Round => unary(T::round, Bound::Exact),
        E::Exp => unary(T::exp, LIBM),
        E::Log => unary(T::log, LIBM),
        E::Sqrt => unary(T::sqrt, LIBM),
        E::Recip => unary(T::recip, LIBM),
        E::Sin => unary(T::sin, LIBM),
        E::Cos => unary(T::cos, LIBM),
        E::Tanh => unary(T::tanh, LIBM),
        // Ours is exact to 1e-15 (`ir/src/special.rs`), 5 steps of f64.
        E::Erf => unary(T::erf, Bound::Steps(7.0)),
        E::Add => binary(T::add, Bound::Exact),
        E::Sub => binary(T::sub, Bound::Exact),
        E::Mul => binary(T::mul, Bound::Exact),
        E::Div => binary(T::div, Bound::Exact),
        // e^(y ln x): the logarithm (at most 1.4) and its product (at most 5.6) are rounded, by half a step of 2 and
        // of 8, whose exponential then errs by as much of itself: 1 * 4 + 4 steps, and one each for the functions.
        E::Pow => binary(T::pow, Bound::Steps(12.0)),
        E::Minimum => binary(|a, b| a.minimum(b), Bound::Exact),
        E::Maximum => binary(|a, b| a.maximum(b), Bound::Exact),
        E::Eq => binary(|a, b| a.eq(b), Bound::Exact),
        E::Ne => binary(|a, b| a.ne(b), Bound::Exact),
        E::Lt => binary(|a, b| a.lt(b), Bound::Exact),
        E::Le => binary(|a, b| a.le(b), Bound::Exact),
        E::Gt => binary(|a, b| a.gt(b), Bound::Exact),
        E::Ge => binary(|a, b| a.ge(b), Bound::Exact),
        E::Select => Candle::Has(Box::new(|t: &[T]| t[0].where_cond(&t[1], &t[2])), Bound::Exact),
        E::BitAnd | E::BitOr | E::BitXor | E::BitNot | E::Shl | E::Shr => {
            Candle::Lacks("no bit operations in Candle")
        }
        E::And | E::Or | E::Xor | E::Not => Candle::Lacks("no logic in Candle"),
        E::Philox => {
            Candle::Lacks("Candle draws from another generator; the published vectors are tested in ir")
        }
        _ => Candle::Lacks("no such function in Candle"),
    }
}

fn cast(to: DType) -> Row {
    Row::new(
        "Casts",
        &format!("cast to {to}"),
        |dims, dtype| vec![Operand::new(dims, dtype).of(Fill::Ends)],
        move |g, v| add(g, Op::Cast(to), v),
    )
    .candle(Bound::Exact, move |t| match to {
        DType::F64 => crate::candle_side::to_f64(&t[0]),
        to => t[0].to_dtype(crate::candle_side::dtype(to)),
    })
}

/// The ops whose meaning takes one operand are as many as the table says; a new one needs no row here.
#[test]
fn every_elementwise_op_has_a_row() {
    let rows = rows();
    for op in E::ALL {
        let found = rows.iter().find(|r| r.name == op.name()).unwrap();
        let operands = (found.operands)(&[2], DType::U8);
        let arity = match op.meaning() {
            Meaning::Unary(..) | Meaning::Test(..) => 1,
            Meaning::Binary(..) | Meaning::Relation(..) => 2,
            Meaning::Ternary(..) | Meaning::Select => 3,
        };
        assert_eq!(operands.len(), arity, "{}", op.name());
    }
}
