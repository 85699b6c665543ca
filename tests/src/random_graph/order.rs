//! Steps whose elements depend on their order or place: scans, sorting, scatters, indexed additions.

use tallow_ir::{DType, Dim, Op, ScanKind, ScatterKind, Shape, SortSpan};

use super::builder::{Builder, wrapped};
use super::item::Item;
use super::maps;

/// A running sum, product or linear recurrence along a random axis.
pub fn scan(b: &mut Builder) -> Option<Item> {
    let a = b.pick(|b, i| !b.dims(i.value).is_empty())?;
    let kind = *b.rng.pick(&ScanKind::ALL);
    scan_of(b, kind, a)
}

/// A running combination of elements of `a`, or nothing if it may grow too large.
pub fn scan_of(b: &mut Builder, kind: ScanKind, a: Item) -> Option<Item> {
    let (dims, dtype) = (b.dims(a.value), b.dtype(a.value));
    let axis = b.rng.below(dims.len());
    let count = dims[axis].max_value() as f64;
    let power = a.bound().max(1.0).powf(count);
    let bound = match kind {
        ScanKind::Sum => a.bound() * count,
        ScanKind::Prod => power,
        ScanKind::Linear if !dtype.is_float() || power > 1e4 => return None,
        ScanKind::Linear => {
            return linear_scan(b, axis, a, (0..count as i32).map(|i| a.bound().powi(i)).sum());
        }
    };
    if dtype.is_float() && bound > 1e4 {
        return None;
    }
    let value = b.add(Op::Scan { kind, axis, part: None }, &[a.value]);
    let (low, high) = if dtype.is_int() { wrapped(dtype, -bound, bound) } else { (-bound, bound) };
    Some(b.push(Item { value, low, high, exact: dtype.is_int() }))
}

/// A linear recurrence with coefficients `a`, of a new tensor or of `a` itself; it grows what is added by at most `growth`.
fn linear_scan(b: &mut Builder, axis: usize, a: Item, growth: f64) -> Option<Item> {
    let added = if b.rng.chance(20) { a } else { maps::companion(b, a) };
    let bound = growth * added.bound();
    // What was drawn for it stays unused.
    if bound > 1e4 {
        return None;
    }
    let value = b.add(Op::Scan { kind: ScanKind::Linear, axis, part: None }, &[a.value, added.value]);
    Some(b.push(Item { value, low: -bound, high: bound, exact: false }))
}

/// The order along a random axis.
pub fn argsort(b: &mut Builder) -> Option<Item> {
    // Elsewhere the last bit could decide.
    let a = b.pick(|b, i| i.exact && !b.dims(i.value).is_empty())?;
    let dims = b.dims(a.value);
    let axis = b.rng.below(dims.len());
    let descending = b.rng.chance(50);
    let value = b.add(Op::ArgSort { axis, descending, span: SortSpan::All }, &[a.value]);
    Some(b.push(Item { value, low: 0.0, high: dims[axis].max_value() as f64, exact: true }))
}

/// New values combined into a tensor at positions some of which are equal and some beyond it.
pub fn scatter(b: &mut Builder) -> Option<Item> {
    let a = b.pick(|_, _| true)?;
    let float = b.dtype(a.value).is_float();
    let kind = if float { ScatterKind::Add } else { *b.rng.pick(&ScatterKind::ALL) };
    scatter_of(b, kind, a)
}

/// New values combined into `a`, or nothing if they may grow too large.
pub fn scatter_of(b: &mut Builder, kind: ScatterKind, a: Item) -> Option<Item> {
    let (dims, dtype) = (b.dims(a.value), b.dtype(a.value));
    let shape = Shape::new(dims);
    let n = b.random_dim();
    if !b.fits(std::slice::from_ref(&n)) {
        return None;
    }
    let indices = b.input(DType::U32, [n.clone()]);
    let src = b.input(dtype, [n.clone()]);
    let bound = a.bound() + src.bound() * n.max_value() as f64;
    if dtype.is_float() && bound > 1e4 {
        return None;
    }
    let flat = b.view(Op::Reshape([shape.numel()].into()), a);
    let value = b.add(Op::Scatter(kind), &[flat.value, indices.value, src.value]);
    let (low, high) = if dtype.is_int() { wrapped(dtype, -bound, bound) } else { (-bound, bound) };
    let result = Item { value, low, high, exact: dtype.is_int() };
    let result = b.view(Op::Reshape(shape), result);
    Some(b.push(result))
}

/// New rows added to rows of a tensor, some of which are the same and some beyond it.
pub fn index_add(b: &mut Builder) -> Option<Item> {
    let a = b.pick(|b, i| !b.dims(i.value).is_empty())?;
    index_add_to(b, a)
}

/// New rows added to rows of `a` along a random axis, or nothing if sums may grow too large.
pub fn index_add_to(b: &mut Builder, a: Item) -> Option<Item> {
    let (dims, dtype) = (b.dims(a.value), b.dtype(a.value));
    let axis = b.rng.below(dims.len());
    let count = b.random_dim();
    let product = |dims: &[Dim]| dims.iter().fold(Dim::one(), |n, d| &n * d);
    let (outer, inner) = (product(&dims[..axis]), product(&dims[axis + 1..]));
    let rows = [outer.clone(), count.clone(), inner.clone()];
    if !b.fits(&rows) {
        return None;
    }
    let indices = b.input(DType::U32, [count.clone()]);
    let source = b.input(dtype, rows);
    let bound = a.bound() + source.bound() * count.max_value() as f64;
    if dtype.is_float() && bound > 1e4 {
        return None;
    }
    let target = b.view(Op::Reshape(Shape::new(vec![outer, dims[axis].clone(), inner])), a);
    let value = b.add(Op::IndexAdd, &[target.value, indices.value, source.value]);
    let (low, high) = if dtype.is_int() { wrapped(dtype, -bound, bound) } else { (-bound, bound) };
    let result = Item { value, low, high, exact: dtype.is_int() };
    let result = b.view(Op::Reshape(Shape::new(dims)), result);
    Some(b.push(result))
}
