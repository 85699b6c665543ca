//! Steps with states: updates, chains of them, and a key-value cache.

use tallow_ir::{DType, Dim, ElementwiseOp, Op, Value};

use super::builder::{Builder, Item};
use super::contractions::attend;

/// A state that is read, updated once or twice, and read again.
pub fn update(b: &mut Builder) -> Option<Item> {
    let src = b.pick(|b, i| {
        let rank = b.dims(i.value).len();
        b.options.states && b.dtype(i.value).is_float() && (1..=4).contains(&rank)
    })?;
    let mut shape = vec![];
    let mut offsets = vec![];
    for dim in b.dims(src.value) {
        let slack = b.rng.between(0, 3);
        let by_symbol = b.symbols().last().cloned().filter(|_| slack > 1);
        let room = by_symbol.as_ref().map_or(slack, |s| i64::from(s.limit()));
        shape.push(Dim::from(dim.max_value() + room));
        offsets.push(by_symbol.map_or_else(|| Dim::from(b.rng.between(0, slack)), Dim::from));
    }
    if !b.fits(&shape) {
        return None;
    }
    let state = b.state(b.dtype(src.value), tallow_ir::Shape::new(shape));
    if b.rng.chance(30) {
        // A reader of the old version, which the update must not disturb.
        let old = b.apply(ElementwiseOp::Neg, &[state]);
        b.push(old);
    }
    let mut version = updated(b, state, src, offsets.clone());
    if b.rng.chance(30) {
        let between = b.apply(ElementwiseOp::Abs, &[version]);
        b.push(between);
        let twice = b.apply(ElementwiseOp::Neg, &[src]);
        version = updated(b, version, twice, vec![Dim::zero(); offsets.len()]);
    }
    b.want(version.value);
    Some(b.push(version))
}

fn updated(b: &mut Builder, state: Item, src: Item, offsets: Vec<Dim>) -> Item {
    let value: Value = b.add(Op::StateUpdate { offsets }, &[state.value, src.value]);
    Item {
        value,
        low: state.low.min(src.low),
        high: state.high.max(src.high),
        exact: state.exact && src.exact,
    }
}

/// New keys and values appended at `pos` to a cache, and attention over all of it.
pub fn cache(b: &mut Builder) -> Option<Item> {
    let [seq, pos] = b.symbols() else { return None };
    let (seq, pos) = (seq.clone(), pos.clone());
    if !b.options.states {
        return None;
    }
    // Blocks hold 32 elements of a head.
    let blocks = b.rng.chance(30);
    let depth = if blocks { 32 } else { 4 * b.rng.between(1, 2) };
    let (heads, group) = (b.rng.between(1, 2), b.rng.between(1, 3));
    let capacity = i64::from(seq.limit() + pos.limit());
    let new = if b.rng.chance(50) { Dim::one() } else { Dim::from(&seq) };
    let rows = [Dim::from(heads), new.clone(), Dim::from(depth)];
    let all = [Dim::from(heads), Dim::from(capacity), Dim::from(depth)];
    let queries = [Dim::from(heads * group), new.clone(), Dim::from(depth)];
    if !b.fits(&all) || !b.fits(&queries) {
        return None;
    }
    let dtype = if blocks { DType::F32 } else { b.random_float() };
    let keys = &new + &Dim::from(&pos);
    let side = |b: &mut Builder| {
        let format = *b.rng.pick(&Op::QUANTIZED);
        let state = b.state(if blocks { DType::Block(format) } else { dtype }, all.clone());
        let src = b.input(dtype, rows.clone());
        let src = b.apply(ElementwiseOp::Neg, &[src]);
        let made = if blocks { b.view(Op::Quantize(format), src) } else { src };
        let version = updated(b, state, made, vec![Dim::zero(), Dim::from(&pos), Dim::zero()]);
        b.want(version.value);
        let version = if blocks { b.view(Op::Dequantize(DType::F32), version) } else { version };
        b.view(Op::Slice { axis: 1, start: Dim::zero(), len: keys.clone() }, version)
    };
    let (k, v) = (side(b), side(b));
    let q = b.input(dtype, queries);
    let result = attend(b, [q, k, v], None);
    Some(b.push(result))
}
