//! What a graph holds because of its number: each op, each pair of views in its turn.

use tallow_ir::{DType, Dim, ElementwiseOp as E, Op, ReduceKind, ScanKind, ScatterKind, Shape};

use super::builder::Builder;
use super::item::Item;
use super::{contractions, custom, maps, order, states, views};
use crate::fuzz::VIEWS;

/// Functions of two floats.
const BINARY: [E; 10] =
    [E::Add, E::Sub, E::Mul, E::Div, E::Minimum, E::Maximum, E::Pow, E::Rem, E::Select, E::Pow];

/// Functions of integers and truth values.
const INTEGER: [E; 30] = [
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
    E::Eq,
    E::Ne,
    E::Lt,
    E::Le,
    E::Gt,
    E::Ge,
    E::And,
    E::Or,
    E::Xor,
    E::Not,
    // Often simplified away.
    E::And,
    E::Or,
    E::Xor,
];

/// Elementwise ops of a graph, of each kind.
const AT_ONCE: usize = 5;

/// Adds what is the turn of graph number `turn`.
pub fn add(b: &mut Builder, turn: u64) {
    let turn = turn as usize;
    floats(b, turn);
    integers(b, turn);
    casts(b, turn);
    pair_of_views(b, turn);
    for i in 0..3 {
        anchor(b, 3 * turn + i);
    }
}

/// `count` of `all`, the next ones at the next turn.
fn next<T: Copy>(all: &[T], turn: usize, count: usize) -> Vec<T> {
    (0..count).map(|i| all[(turn * count + i) % all.len()]).collect()
}

/// One to three axes of few elements, sometimes of a number that the run knows.
fn small_shape(b: &mut Builder) -> Shape {
    let rank = *b.rng.pick(&[1, 2, 2, 3]);
    let symbols = b.symbols().to_vec();
    let dim = |b: &mut Builder| match symbols.last() {
        Some(symbol) if b.rng.chance(15) => Dim::from(symbol),
        _ => Dim::from(*b.rng.pick(&[1i64, 2, 3, 4, 5, 6])),
    };
    Shape::new((0..rank).map(|_| dim(b)).collect())
}

/// A chain of floats.
fn floats(b: &mut Builder, turn: usize) {
    let all = [&maps::unary_ops()[..], &BINARY[..]].concat();
    let dtype = b.random_float();
    let shape = small_shape(b);
    let exact = b.input(dtype, shape);
    let mut chain = exact;
    for op in next(&all, turn, AT_ONCE) {
        let jumps = matches!(op, E::Sign | E::Floor | E::Ceil | E::Round | E::Trunc | E::Rem);
        let operand = if jumps { exact } else { chain };
        let result = match op {
            E::Select => {
                let zero = b.constant(exact.value, 0.0);
                let condition = b.apply(E::Gt, &[exact, zero]);
                b.apply(E::Select, &[condition, chain, exact])
            }
            op if BINARY.contains(&op) => {
                let other = maps::companion(b, operand);
                maps::binary_of(b, op, operand, other)
            }
            op => maps::unary_of(b, op, operand),
        };
        let result = b.tame(result);
        chain = if jumps { b.apply(E::Add, &[chain, result]) } else { result };
        chain = b.tame(chain);
    }
    let last = b.push(chain);
    b.want(last.value);
}

/// A chain of integers, with truth values that choose between two of them.
fn integers(b: &mut Builder, turn: usize) {
    let ints = b.options.ints.clone();
    let Some(dtype) = ints.get(turn % ints.len().max(1)).copied() else { return };
    let shape = small_shape(b);
    let (x, y) = (b.input(dtype, shape.clone()), b.input(dtype, shape));
    let mut chain = x;
    for op in next(&INTEGER, turn, AT_ONCE) {
        chain = match op {
            E::Neg | E::Abs | E::Sign | E::BitNot => b.apply(op, &[chain]),
            E::Philox => {
                let words = [chain, y, x].map(|i| as_type(b, i, DType::U32));
                let word = b.apply(op, &words);
                as_type(b, word, dtype)
            }
            E::Eq | E::Ne | E::Lt | E::Le | E::Gt | E::Ge => {
                let condition = b.apply(op, &[chain, y]);
                b.apply(E::Select, &[condition, chain, y])
            }
            E::And | E::Or | E::Xor => {
                let (first, second) = (b.apply(E::Lt, &[chain, y]), b.apply(E::Ne, &[x, y]));
                let condition = b.apply(op, &[first, second]);
                b.apply(E::Select, &[condition, x, chain])
            }
            E::Not => {
                let truth = as_type(b, chain, DType::U8);
                let condition = b.apply(op, &[truth]);
                b.apply(E::Select, &[condition, y, chain])
            }
            op => b.apply(op, &[chain, y]),
        };
    }
    let last = b.push(chain);
    b.want(last.value);
}

fn as_type(b: &mut Builder, a: Item, dtype: DType) -> Item {
    if b.dtype(a.value) == dtype {
        return a;
    }
    let value = b.add(Op::Cast(dtype), &[a.value]);
    let (low, high) = super::builder::wrapped(dtype, a.low, a.high);
    Item { value, low, high, exact: true }
}

/// What a cast there and back loses: to an integer the fraction, to a narrower float the last places.
fn casts(b: &mut Builder, turn: usize) {
    let all = [b.options.floats.clone(), b.options.ints.clone()].concat();
    let (from, to) = (all[turn % all.len()], all[turn / all.len() % all.len()]);
    let exact = small(b, from);
    // Inputs have few places. Where the last one could decide, to an integer, they are enough.
    let value = if from.is_float() && to.is_float() { b.apply(E::Sin, &[exact]) } else { exact };
    let there = b.add(Op::Cast(to), &[value.value]);
    let back = b.add(Op::Cast(from), &[there]);
    let back = Item { value: back, exact: value.exact, ..value };
    let lost = b.apply(E::Sub, &[value, back]);
    let last = b.push(lost);
    b.want(last.value);
}

/// A view of a view, as an output or in front of something.
fn pair_of_views(b: &mut Builder, turn: usize) {
    let (outer, inner) = (VIEWS[turn % VIEWS.len()], VIEWS[turn / VIEWS.len() % VIEWS.len()]);
    let all = [b.options.floats.clone(), b.options.ints.clone()].concat();
    for _ in 0..12 {
        let dtype = *b.rng.pick(&all);
        let shape = small_shape(b);
        let a = b.input(dtype, shape);
        let Some(below) = views::named(b, inner, a) else { continue };
        let Some(mut above) = views::named(b, outer, below) else { continue };
        if b.rng.chance(50) {
            let other = maps::companion(b, above);
            above = b.apply(E::Add, &[above, other]);
        }
        let last = b.push(above);
        return b.want(last.value);
    }
}

/// One of the ops that combine elements.
fn anchor(b: &mut Builder, turn: usize) {
    for _ in 0..4 {
        let found = match turn % 25 {
            i @ 0..=5 => {
                let dtype = if b.rng.chance(50) { b.random_float() } else { DType::I32 };
                let a = small(b, dtype);
                let axis = b.rng.below(b.dims(a.value).len());
                contractions::reduce_by(b, ReduceKind::ALL[i], a, &[axis]).map(|r| b.push(r))
            }
            i @ (6 | 7) => {
                let dtype = b.random_float();
                let a = small(b, dtype);
                order::scan_of(b, ScanKind::ALL[i - 6], a)
            }
            8 => {
                let all = [b.options.floats.clone(), b.options.ints.clone()].concat();
                let dtype = *b.rng.pick(&all);
                let a = small(b, dtype);
                order::scatter_of(b, ScatterKind::Add, a)
            }
            9 => {
                let ints = b.options.ints.clone();
                let dtype = *b.rng.pick(&ints);
                let a = small(b, dtype);
                order::scatter_of(b, ScatterKind::Max, a)
            }
            10 => order::argsort(b),
            11 => contractions::gather(b),
            12 => iota(b),
            13 => maps::cast(b),
            14 => contractions::weights(b),
            15 => contractions::attention(b),
            16 => contractions::matmul(b),
            17 => contractions::convolution(b),
            18 => states::update(b),
            19 => extent(b),
            20 => {
                small(b, DType::F32);
                custom::custom(b)
            }
            21 => contractions::quantized_weights(b),
            22 => {
                let all = [b.options.floats.clone(), b.options.ints.clone()].concat();
                let dtype = *b.rng.pick(&all);
                let a = small(b, dtype);
                order::index_add_to(b, a)
            }
            23 => {
                let dtype = b.random_float();
                let a = small(b, dtype);
                order::scan_of(b, ScanKind::Linear, a)
            }
            _ => states::cache(b),
        };
        if let Some(found) = found {
            return b.want(found.value);
        }
        let dtype = b.random_float();
        small(b, dtype);
    }
}

/// Positions, added to something.
fn iota(b: &mut Builder) -> Option<Item> {
    let a = small(b, DType::F32);
    let last = b.dims(a.value).last().cloned()?;
    let high = last.max_value() as f64;
    let value = b.add(Op::Iota { len: last, dtype: DType::F32 }, &[]);
    let value = b.graph.broadcast(value, b.graph.ty(a.value).shape.clone()).ok()?;
    let sum = b.apply(E::Add, &[a, Item { value, low: 0.0, high, exact: true }]);
    Some(b.push(sum))
}

/// An extent that the run knows, added to something.
fn extent(b: &mut Builder) -> Option<Item> {
    let symbol = b.symbols().first().cloned()?;
    let a = small(b, DType::F32);
    let high = f64::from(symbol.limit());
    let value = b.add(Op::DimValue { dim: Dim::from(&symbol), dtype: DType::F32 }, &[]);
    let value = b.graph.broadcast(value, b.graph.ty(a.value).shape.clone()).ok()?;
    let sum = b.apply(E::Add, &[a, Item { value, low: 1.0, high, exact: true }]);
    Some(b.push(sum))
}

/// A new input of few elements.
fn small(b: &mut Builder, dtype: DType) -> Item {
    let shape = small_shape(b);
    b.input(dtype, shape)
}
