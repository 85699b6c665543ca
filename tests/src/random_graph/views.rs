//! Steps that move elements.

use tallow_ir::{Dim, ElementwiseOp, Op, Scalar, Shape};

use super::builder::Builder;
use super::item::Item;

/// A random view of a remembered value.
pub fn view(b: &mut Builder) -> Option<Item> {
    let a = b.pick(|_, _| true)?;
    let result = match b.rng.below(11) {
        0 => reshape(b, a),
        1 | 2 => permute(b, a),
        3 => broadcast(b, a),
        4 => slice(b, a),
        5 => flip(b, a),
        6 => pad(b, a),
        7 => concat(b, a),
        8 | 9 => window(b, a),
        _ => rotate(b, a),
    }?;
    Some(b.push(result))
}

/// The view called `name` of `a`, if it finds one.
pub fn named(b: &mut Builder, name: &str, a: Item) -> Option<Item> {
    match name {
        "reshape" => reshape(b, a),
        "permute" => permute(b, a),
        "broadcast" => broadcast(b, a),
        "slice" => slice(b, a),
        "flip" => flip(b, a),
        "pad" => pad(b, a),
        "concat" => concat(b, a),
        "window" => window(b, a),
        _ => None,
    }
}

fn random_axis(b: &mut Builder, a: Item) -> Option<usize> {
    let rank = b.dims(a.value).len();
    (rank > 0).then(|| b.rng.below(rank))
}

/// Merges two axes, splits one, or adds or drops an extent of 1.
fn reshape(b: &mut Builder, a: Item) -> Option<Item> {
    let mut dims = b.dims(a.value);
    match (b.rng.below(3), dims.len()) {
        (0, 2..) => {
            let i = b.rng.below(dims.len() - 1);
            let merged = &dims[i] * &dims[i + 1];
            dims.splice(i..i + 2, [merged]);
        }
        (1, 1..=4) => {
            let i = b.rng.below(dims.len());
            let factor = [2, 3, 4].map(Dim::from).into_iter().find(|f| dims[i].div_exact(f).is_some())?;
            let rest = dims[i].div_exact(&factor)?;
            let pair = if b.rng.chance(50) { [rest, factor] } else { [factor, rest] };
            dims.splice(i..i + 1, pair);
        }
        (_, 0..=4) => dims.insert(b.rng.below(dims.len() + 1), Dim::one()),
        _ => {
            let i = dims.iter().position(|d| d.is(1))?;
            dims.remove(i);
        }
    }
    Some(b.view(Op::Reshape(Shape::new(dims)), a))
}

fn permute(b: &mut Builder, a: Item) -> Option<Item> {
    let rank = b.dims(a.value).len();
    let axes = b.rng.permutation(rank);
    (rank >= 2).then(|| b.view(Op::Permute(axes), a))
}

/// New leading axes, and extents of 1 that repeat.
fn broadcast(b: &mut Builder, a: Item) -> Option<Item> {
    let mut dims = b.dims(a.value);
    for dim in dims.iter_mut().filter(|d| d.is(1)) {
        *dim = b.random_dim();
    }
    if dims.len() < 4 && b.rng.chance(60) {
        dims.insert(0, Dim::from(b.rng.between(1, 5)));
    }
    let changes = dims != b.dims(a.value) && b.fits(&dims);
    changes.then(|| b.view(Op::Broadcast(Shape::new(dims)), a))
}

fn slice(b: &mut Builder, a: Item) -> Option<Item> {
    let axis = random_axis(b, a)?;
    let extent = b.dims(a.value)[axis].clone();
    let (start, len) = match extent.as_const() {
        Some(n) => {
            let movable = b.symbols().iter().find(|s| i64::from(s.limit()) < n).cloned();
            match movable {
                // A start that only the run knows.
                Some(s) if b.rng.chance(50) => {
                    let len = b.rng.between(1, n - i64::from(s.limit()));
                    (Dim::from(s), Dim::from(len))
                }
                _ => {
                    let start = b.rng.between(0, n - 1);
                    (Dim::from(start), Dim::from(b.rng.between(1, n - start)))
                }
            }
        }
        // Symbols are at least 1, so the first element exists; the second only for some values of them.
        None if b.rng.chance(70) => (Dim::zero(), Dim::one()),
        None => (Dim::one(), Dim::one()),
    };
    let impossible = (&start + &len).min_value() > extent.max_value();
    (!impossible).then(|| b.view(Op::Slice { axis, start, len }, a))
}

fn flip(b: &mut Builder, a: Item) -> Option<Item> {
    let axis = random_axis(b, a)?;
    Some(b.view(Op::Flip { axis }, a))
}

/// Windows that overlap, touch or leave gaps, also of an extent that only the run knows.
fn window(b: &mut Builder, a: Item) -> Option<Item> {
    let axis = random_axis(b, a)?;
    windows(b, a, axis)
}

/// Random windows along `axis`, if any of them fits.
pub fn windows(b: &mut Builder, a: Item, axis: usize) -> Option<Item> {
    let mut dims = b.dims(a.value);
    let least = dims[axis].min_value();
    let size = b.rng.between(1, 4);
    let dilation = b.rng.between(1, 3);
    let rest = least - (size - 1) * dilation - 1;
    let stride = if dims[axis].as_const().is_some() { b.rng.between(1, 4) } else { 1 };
    let op = Op::Window { axis, size: size as usize, stride: stride as usize, dilation: dilation as usize };
    let most = (dims[axis].max_value() - least + rest) / stride + 1;
    dims.splice(axis..=axis, [most.into(), size.into()]);
    (rest >= 0 && dims.len() <= 5 && b.fits(&dims)).then(|| b.view(op, a))
}

fn pad(b: &mut Builder, a: Item) -> Option<Item> {
    let axis = random_axis(b, a)?;
    let mut before = Dim::from(b.rng.between(0, 3));
    if let Some(s) = b.symbols().last().cloned()
        && b.rng.chance(20)
    {
        before = s.into();
    }
    let after = Dim::from(b.rng.between(0, 3));
    let mut dims = b.dims(a.value);
    dims[axis] = &(&dims[axis] + &before) + &after;
    if !b.fits(&dims) {
        return None;
    }
    let value = Scalar::of(b.dtype(a.value), *b.rng.pick(&[0.0, 1.0, 3.0]));
    let x = value.as_f64();
    let padded = b.view(Op::Pad { axis, before, after, value }, a);
    Some(Item { low: a.low.min(x), high: a.high.max(x), ..padded })
}

fn concat(b: &mut Builder, a: Item) -> Option<Item> {
    let axis = random_axis(b, a)?;
    let like = |b: &Builder, i: &Item| {
        let (x, y) = (b.graph.ty(i.value), b.graph.ty(a.value));
        x.dtype == y.dtype
            && x.shape.rank() == y.shape.rank()
            && x.shape.with_ones(&[axis]) == y.shape.with_ones(&[axis])
    };
    let mut parts = vec![a];
    for _ in 0..b.rng.between(1, 2) {
        parts.extend(b.pick(like));
    }
    let mut dims = b.dims(a.value);
    dims[axis] = parts.iter().fold(Dim::zero(), |n, p| &n + &b.dims(p.value)[axis]);
    if !b.fits(&dims) {
        return None;
    }
    let values: Vec<_> = parts.iter().map(|p| p.value).collect();
    let value = b.add(Op::Concat { axis }, &values);
    Some(Item {
        value,
        low: parts.iter().map(|p| p.low).fold(f64::MAX, f64::min),
        high: parts.iter().map(|p| p.high).fold(f64::MIN, f64::max),
        exact: parts.iter().all(|p| p.exact),
    })
}

/// The halves of the last axis swapped and one negated, as rotary embeddings do.
fn rotate(b: &mut Builder, a: Item) -> Option<Item> {
    let dims = b.dims(a.value);
    let axis = dims.len().checked_sub(1)?;
    let half = dims[axis].div_exact(&Dim::from(2))?;
    if !b.dtype(a.value).is_float() {
        return None;
    }
    let low = b.view(Op::Slice { axis, start: Dim::zero(), len: half.clone() }, a);
    let high = b.view(Op::Slice { axis, start: half.clone(), len: half }, a);
    let negated = b.apply(ElementwiseOp::Neg, &[high]);
    let value = b.add(Op::Concat { axis }, &[negated.value, low.value]);
    Some(Item { value, low: -a.bound(), high: a.bound(), exact: a.exact })
}
