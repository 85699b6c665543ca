//! Elementwise steps.

use tallow_ir::elementwise::TypeRule;
use tallow_ir::{DType, Dim, ElementwiseOp as E, Op, ReduceKind};

use super::builder::{Builder, wrapped};
use super::item::Item;

/// `|a| + c`: an operand for what needs a positive one.
fn positive(b: &mut Builder, a: Item, c: f64) -> Item {
    let magnitude = b.apply(E::Abs, &[a]);
    let offset = b.constant(a.value, c);
    b.apply(E::Add, &[magnitude, offset])
}

/// A function of one float.
pub fn unary(b: &mut Builder) -> Option<Item> {
    let a = b.pick_float()?;
    let result = random_unary(b, a);
    Some(b.push(result))
}

/// Functions of one float.
pub fn unary_ops() -> Vec<E> {
    let float = |op: &E| matches!(op.rule(), TypeRule::Float | TypeRule::Numeric) && op.arity() == 1;
    let new = E::ALL.iter().copied().filter(|op| float(op) && !UNARY.contains(op));
    UNARY.into_iter().chain(new).collect()
}

/// Those for which this file knows what they must be guarded from.
const UNARY: [E; 26] = [
    E::Neg,
    E::Abs,
    E::Exp,
    E::Exp2,
    E::Expm1,
    E::Log,
    E::Log2,
    E::Log1p,
    E::Sqrt,
    E::Rsqrt,
    E::Recip,
    E::Sin,
    E::Cos,
    E::Tan,
    E::Asin,
    E::Acos,
    E::Atan,
    E::Sinh,
    E::Cosh,
    E::Tanh,
    E::Erf,
    E::Sign,
    E::Floor,
    E::Ceil,
    E::Round,
    E::Trunc,
];

/// A random function of `a`, guarded where it needs to be.
pub fn random_unary(b: &mut Builder, a: Item) -> Item {
    let op = *b.rng.pick(&unary_ops());
    unary_of(b, op, a)
}

/// `op` of `a`, guarded where it needs to be; another function where `op` jumps and `a` is not exact.
pub fn unary_of(b: &mut Builder, op: E, a: Item) -> Item {
    match op {
        op @ (E::Exp | E::Exp2 | E::Expm1) => {
            let a = if a.high > 3.0 { b.apply(E::Tanh, &[a]) } else { a };
            b.apply(op, &[a])
        }
        op @ (E::Sinh | E::Cosh) => {
            let a = if a.bound() > 3.0 { b.apply(E::Tanh, &[a]) } else { a };
            b.apply(op, &[a])
        }
        // Below 1 in magnitude there is no pole, and the slope of all three is bounded.
        op @ (E::Tan | E::Asin | E::Acos) => {
            let a = b.apply(E::Sin, &[a]);
            let most = b.constant(a.value, 0.75);
            let a = b.apply(E::Mul, &[a, most]);
            b.apply(op, &[a])
        }
        op @ (E::Log | E::Log2 | E::Log1p | E::Sqrt | E::Rsqrt | E::Recip) => {
            let a = positive(b, a, 0.5);
            b.apply(op, &[a])
        }
        // Of a new one nothing is known but that most are defined above 0.
        op if !UNARY.contains(&op) => {
            let a = positive(b, a, 0.5);
            b.apply(op, &[a])
        }
        // These jump.
        E::Sign | E::Floor | E::Ceil | E::Round | E::Trunc if !a.exact => b.apply(E::Tanh, &[a]),
        op => b.apply(op, &[a]),
    }
}

/// A function of two floats of one shape.
pub fn binary(b: &mut Builder) -> Option<Item> {
    let a = b.pick_float()?;
    let other = companion(b, a);
    let (x, y) = if b.rng.chance(50) { (a, other) } else { (other, a) };
    let result = random_binary(b, x, y);
    Some(b.push(result))
}

/// A random function of `x` and `y`, guarded where it needs to be.
pub fn random_binary(b: &mut Builder, x: Item, y: Item) -> Item {
    let ops = [E::Add, E::Add, E::Sub, E::Mul, E::Mul, E::Div, E::Minimum, E::Maximum, E::Pow, E::Rem];
    let op = *b.rng.pick(&ops);
    binary_of(b, op, x, y)
}

/// `op` of `x` and `y`, guarded where it needs to be; a difference for a remainder of what is not exact.
pub fn binary_of(b: &mut Builder, op: E, x: Item, y: Item) -> Item {
    match op {
        E::Div => {
            let y = positive(b, y, 0.5);
            b.apply(E::Div, &[x, y])
        }
        E::Pow => {
            let x = positive(b, x, 0.5);
            let exponent = *b.rng.pick(&[-1.0, 0.5, 2.0, 1.25]);
            let exponent = b.constant(x.value, exponent);
            b.apply(E::Pow, &[x, exponent])
        }
        // A remainder jumps, so it is taken of exact values only.
        E::Rem if x.exact => {
            let divisor = b.constant(x.value, 1.5);
            b.apply(E::Rem, &[x, divisor])
        }
        E::Rem => b.apply(E::Sub, &[x, y]),
        op => b.apply(op, &[x, y]),
    }
}

/// Another value of the type and shape of `a`: remembered, broadcast, reduced from `a`, or new.
pub fn companion(b: &mut Builder, a: Item) -> Item {
    let (dtype, shape) = (b.dtype(a.value), b.graph.ty(a.value).shape.clone());
    let repeats = |b: &Builder, i: &Item| {
        let dims = b.dims(i.value);
        let Some(missing) = shape.rank().checked_sub(dims.len()) else { return false };
        dims.iter().zip(&shape.dims()[missing..]).all(|(from, to)| from == to || from.is(1))
    };
    let found = match b.rng.below(4) {
        0 | 1 => b.pick(|b, i| b.dtype(i.value) == dtype && i.value != a.value && repeats(b, i)),
        2 if shape.rank() > 0 => {
            let axis = b.rng.below(shape.rank());
            let kind = *b.rng.pick(&[ReduceKind::Max, ReduceKind::Min]);
            let reduced = b.graph.reduce_keepdim(kind, a.value, &[axis]).expect("an axis of a");
            Some(Item { value: reduced, ..a })
        }
        _ => None,
    };
    let item = found.unwrap_or_else(|| {
        if b.rng.chance(40) {
            let x = *b.rng.pick(&[-1.5, 0.0, 0.5, 1.0, 3.0]);
            return b.constant(a.value, x);
        }
        // A vector along one axis.
        let axis = b.rng.below(shape.rank().max(1));
        let others: Vec<usize> = (0..shape.rank()).filter(|i| *i != axis).collect();
        b.input(dtype, shape.with_ones(&others))
    });
    let value = b.graph.broadcast(item.value, shape).expect("the shape repeats");
    Item { value, ..item }
}

/// `a < b ? c : d` and the like.
pub fn select(b: &mut Builder) -> Option<Item> {
    let a = b.pick(|_, i| i.exact)?;
    let x = b.constant(a.value, 1.0);
    let relations = [E::Eq, E::Ne, E::Lt, E::Le, E::Gt, E::Ge];
    let (first, second) = (*b.rng.pick(&relations), *b.rng.pick(&relations));
    let mut condition = b.apply(first, &[a, x]);
    if b.rng.chance(40) {
        let zero = b.constant(a.value, 0.0);
        let other = b.apply(second, &[a, zero]);
        let both = *b.rng.pick(&[E::And, E::Or, E::Xor]);
        condition = b.apply(both, &[condition, other]);
    }
    if b.rng.chance(20) {
        condition = b.apply(E::Not, &[condition]);
    }
    let shape = b.graph.ty(a.value).shape.clone();
    let of_shape = b.pick(|b, i| b.graph.ty(i.value).shape == shape && b.dtype(i.value).is_float());
    let c = of_shape.unwrap_or(a);
    let d = companion(b, c);
    let result = b.apply(E::Select, &[condition, c, d]);
    Some(b.push(result))
}

/// A conversion between any two types.
pub fn cast(b: &mut Builder) -> Option<Item> {
    let a = b.pick(|_, _| true)?;
    let from = b.dtype(a.value);
    let all = [b.options.floats.clone(), b.options.ints.clone()].concat();
    let to = *b.rng.pick(&all);
    // An integer of any size is no tame float, and a float between two integers may round either way.
    if (from.is_int() && to.is_float() && a.bound() > 256.0) || (from.is_float() && to.is_int() && !a.exact) {
        return None;
    }
    let value = b.add(Op::Cast(to), &[a.value]);
    let widens = matches!((from, to), (_, DType::F64 | DType::F32)) && from != DType::F64;
    let (low, high) = match to.is_int() {
        true if from.is_int() => wrapped(to, a.low, a.high),
        // Saturated, not wrapped.
        true => (a.low.trunc().max(wrapped(to, -1e300, 0.0).0), a.high.trunc().max(0.0)),
        false => (a.low, a.high),
    };
    let exact = a.exact && (to.is_int() || widens || from == to);
    Some(b.push(Item { value, low, high, exact }))
}

/// Arithmetic of integers, which may wrap.
pub fn integers(b: &mut Builder) -> Option<Item> {
    let found = b.pick(|b, i| b.dtype(i.value).is_int() && b.options.ints.contains(&b.dtype(i.value)));
    let a = match found {
        Some(a) => a,
        None if b.options.ints.is_empty() => return None,
        None => {
            let dtype = *b.rng.pick(&b.options.ints);
            let shape = b.random_shape();
            b.input(dtype, shape)
        }
    };
    let other = companion(b, a);
    let ops = [
        E::Add,
        E::Sub,
        E::Mul,
        E::Div,
        E::Rem,
        E::Minimum,
        E::Maximum,
        E::Neg,
        E::Abs,
        E::Sign,
        E::BitAnd,
        E::BitOr,
        E::BitXor,
        E::BitNot,
        E::Shl,
        E::Shr,
        E::Philox,
    ];
    let result = match *b.rng.pick(&ops) {
        op @ (E::Neg | E::Abs | E::Sign | E::BitNot) => b.apply(op, &[a]),
        E::Philox if b.dtype(a.value) == DType::U32 => b.apply(E::Philox, &[a, other, a]),
        E::Philox => b.apply(E::BitXor, &[a, other]),
        op => b.apply(op, &[a, other]),
    };
    Some(b.push(result))
}

/// Numbers that follow from the position alone: iota and the values of extents.
pub fn index_values(b: &mut Builder) -> Option<Item> {
    let all = [b.options.floats.clone(), b.options.ints.clone()].concat();
    let dtype = *b.rng.pick(&all);
    let dim: Dim = b.random_dim();
    if !b.fits(std::slice::from_ref(&dim)) {
        return None;
    }
    let high = dim.max_value() as f64;
    // bf16 has 8 bits, so integers up to 256 are exact; u8 wraps.
    let (low, high) = if dtype.is_int() { wrapped(dtype, 0.0, high) } else { (0.0, high) };
    let op = if b.rng.chance(60) { Op::Iota { len: dim, dtype } } else { Op::DimValue { dim, dtype } };
    let value = b.add(op, &[]);
    // f8e4m3 has 4.
    let most = if dtype == DType::F8E4M3 { 16.0 } else { 256.0 };
    Some(b.push(Item { value, low, high, exact: high <= most || dtype.is_int() }))
}
