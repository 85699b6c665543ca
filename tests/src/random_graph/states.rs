//! Steps with states: updates of boxes and of rows chosen by index, chains of them, and a key-value cache.

use tallow_ir::{DType, Dim, ElementwiseOp, Op, SortSpan, Value};

use super::builder::Builder;
use super::contractions::attend;
use super::item::Item;

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
    let rows = b.rng.chance(40).then(|| b.rng.below(shape.len()));
    if let Some(axis) = rows {
        // There may be more rows than the state has.
        shape[axis] = Dim::from(b.rng.between(1, b.dims(src.value)[axis].max_value() + 3));
        offsets[axis] = Dim::zero();
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
    let mut version = match rows {
        Some(axis) => updated_rows(b, state, src, offsets.clone(), axis),
        None => updated(b, state, src, offsets.clone()),
    };
    if rows.is_none() && b.rng.chance(30) {
        let between = b.apply(ElementwiseOp::Abs, &[version]);
        b.push(between);
        let twice = b.apply(ElementwiseOp::Neg, &[src]);
        version = updated(b, version, twice, vec![Dim::zero(); offsets.len()]);
    }
    b.want(version.value);
    Some(b.push(version))
}

fn updated(b: &mut Builder, state: Item, src: Item, offsets: Vec<Dim>) -> Item {
    let value: Value = b.add(Op::StateUpdate { offsets, rows: None }, &[state.value, src.value]);
    version_of(state, src, value)
}

/// Rows of `src` along `axis` at positions that differ, some of them beyond the state.
fn updated_rows(b: &mut Builder, state: Item, src: Item, offsets: Vec<Dim>, axis: usize) -> Item {
    let rows = b.dims(src.value)[axis].clone();
    let indices = positions(b, rows);
    let op = Op::StateUpdate { offsets, rows: Some(axis) };
    let value: Value = b.add(op, &[state.value, src.value, indices]);
    version_of(state, src, value)
}

/// Numbers that differ, for so many rows: in an order that only a run knows, or counted by the kernel that reads them.
fn positions(b: &mut Builder, rows: Dim) -> Value {
    // The order of a single row is always the same, whatever was read.
    let sorted = b.rng.chance(50) && !rows.is(1);
    let at = if sorted {
        let key = b.input(DType::U32, [rows]);
        b.add(Op::ArgSort { axis: 0, descending: false, span: SortSpan::All }, &[key.value])
    } else {
        let count = b.add(Op::Iota { len: rows.clone(), dtype: DType::U32 }, &[]);
        let start = b.input(DType::U32, [Dim::one()]);
        let start = b.add(Op::Broadcast(tallow_ir::Shape::new(vec![rows])), &[start.value]);
        b.add(Op::Elementwise(ElementwiseOp::Add), &[count, start])
    };
    if b.rng.chance(50) {
        return at;
    }
    let two = b.constant(at, 2.0);
    b.add(Op::Elementwise(ElementwiseOp::Mul), &[at, two.value])
}

fn version_of(state: Item, src: Item, value: Value) -> Item {
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
    let by_index = b.rng.chance(30);
    let side = |b: &mut Builder| {
        let format = *b.rng.pick(&Op::QUANTIZED);
        let state = b.state(if blocks { DType::Block(format) } else { dtype }, all.clone());
        let src = b.input(dtype, rows.clone());
        let src = b.apply(ElementwiseOp::Neg, &[src]);
        let made = if blocks { b.view(Op::Quantize(format), src) } else { src };
        let version = match by_index {
            true => updated_rows(b, state, made, vec![Dim::zero(); 3], 1),
            false => updated(b, state, made, vec![Dim::zero(), Dim::from(&pos), Dim::zero()]),
        };
        b.want(version.value);
        let version = if blocks { b.view(Op::Dequantize(DType::F32), version) } else { version };
        b.view(Op::Slice { axis: 1, start: Dim::zero(), len: keys.clone() }, version)
    };
    let (k, v) = (side(b), side(b));
    let q = b.input(dtype, queries);
    let result = attend(b, [q, k, v], None);
    Some(b.push(result))
}
