//! Steps that combine many elements: reductions, products, gathers, attention.

use tallow_ir::{Attention, DType, Dim, ElementwiseOp, Format, Op, ReduceKind, Scalar, Shape, Value};

use super::builder::{Builder, wrapped};
use super::item::Item;

/// The largest sum that the narrow floats hold comfortably.
fn sums_fit(dtype: DType, bound: f64) -> bool {
    dtype != DType::F16 || bound < 30000.0
}

/// A reduction over random axes.
pub fn reduce(b: &mut Builder) -> Option<Item> {
    let a = b.pick(|b, i| !b.dims(i.value).is_empty())?;
    let rank = b.dims(a.value).len();
    let mut axes: Vec<usize> = (0..rank).filter(|_| b.rng.chance(40)).collect();
    if axes.is_empty() {
        axes.push(b.rng.below(rank));
    }
    let kind = *b.rng.pick(&ReduceKind::ALL);
    let result = reduce_by(b, kind, a, &axes)?;
    Some(b.push(result))
}

/// A reduction whose result is tame, or nothing.
pub fn reduce_by(b: &mut Builder, kind: ReduceKind, a: Item, axes: &[usize]) -> Option<Item> {
    let dtype = b.dtype(a.value);
    let dims = b.dims(a.value);
    let count = axes.iter().map(|i| dims[*i].max_value() as f64).product::<f64>();
    let float = dtype.is_float();
    let (low, high, exact) = match kind {
        ReduceKind::Sum => ((a.low * count).min(a.low), (a.high * count).max(a.high), false),
        ReduceKind::Prod => {
            let bound = a.bound().max(1.0).powf(count);
            (-bound, bound, false)
        }
        ReduceKind::Max | ReduceKind::Min => (a.low, a.high, a.exact),
        ReduceKind::ArgMax | ReduceKind::ArgMin => (0.0, count, true),
    };
    if float && (high.max(-low) > 1e4 || !sums_fit(dtype, high.max(-low)) || (kind.is_arg() && !a.exact)) {
        return None;
    }
    let value = b.add(Op::Reduce { kind, axes: axes.to_vec() }, &[a.value]);
    let to = b.dtype(value);
    let (low, high) = if to.is_int() { wrapped(to, low, high) } else { (low, high) };
    Some(Item { value, low, high, exact: exact || to.is_int() })
}

/// A matrix product with a new tensor or with its own transpose.
pub fn matmul(b: &mut Builder) -> Option<Item> {
    let int_matmul = b.options.int_matmul;
    let a = b.pick(|b, i| b.dims(i.value).len() >= 2 && (int_matmul || b.dtype(i.value).is_float()))?;
    let dims = b.dims(a.value);
    let rank = dims.len();
    let dtype = b.dtype(a.value);
    let mut swap: Vec<usize> = (0..rank).collect();
    swap.swap(rank - 2, rank - 1);
    let other = if b.rng.chance(30) {
        b.view(Op::Permute(swap), a)
    } else {
        let mut shape: Vec<Dim> = dims.clone();
        for dim in &mut shape[..rank - 2] {
            if b.rng.chance(50) {
                *dim = Dim::one();
            }
        }
        shape[rank - 2] = dims[rank - 1].clone();
        shape[rank - 1] = b.random_dim();
        if !b.fits(&shape) {
            return None;
        }
        if b.rng.chance(50) {
            // As a linear layer has it: stored transposed.
            shape.swap(rank - 2, rank - 1);
            let stored = b.input(dtype, Shape::new(shape));
            b.view(Op::Permute(swap), stored)
        } else {
            b.input(dtype, Shape::new(shape))
        }
    };
    let result = product(b, a, other)?;
    Some(b.push(result))
}

/// `a b`, or nothing if the result may be too large for its type.
fn product(b: &mut Builder, x: Item, y: Item) -> Option<Item> {
    let (dims, dtype) = (b.dims(x.value), b.dtype(x.value));
    let depth = dims[dims.len() - 1].max_value() as f64;
    let bound = x.bound() * y.bound() * depth;
    let mut shape = dims;
    let last = shape.len() - 1;
    shape[last] = b.dims(y.value)[last].clone();
    if !b.fits(&shape) || (dtype.is_float() && (bound > 1e5 || !sums_fit(dtype, bound))) {
        return None;
    }
    let value = b.add(Op::Matmul, &[x.value, y.value]);
    let (low, high) = if dtype.is_int() { wrapped(dtype, -bound, bound) } else { (-bound, bound) };
    Some(Item { value, low, high, exact: dtype.is_int() })
}

/// A product with the windows of a padded tensor, as a convolution along one axis has it.
pub fn convolution(b: &mut Builder) -> Option<Item> {
    let int_matmul = b.options.int_matmul;
    let a = b.pick(|b, i| !b.dims(i.value).is_empty() && (int_matmul || b.dtype(i.value).is_float()))?;
    let (mut dims, dtype) = (b.dims(a.value), b.dtype(a.value));
    let length = dims.pop()?;
    let channels = dims.iter().fold(Dim::one(), |n, d| &n * d);
    let (before, after) = (Dim::from(b.rng.between(0, 4)), Dim::from(b.rng.between(0, 4)));
    if !b.fits(&[channels.clone(), &(&length + &before) + &after]) {
        return None;
    }
    let flat = b.view(Op::Reshape(Shape::new(vec![channels.clone(), length])), a);
    let value = Scalar::of(dtype, 0.0);
    let padded = b.view(Op::Pad { axis: 1, before, after, value }, flat);
    let padded = Item { low: a.low.min(0.0), high: a.high.max(0.0), ..padded };
    let windows = super::views::windows(b, padded, 1)?;
    let [_, count, size] = <[Dim; 3]>::try_from(b.dims(windows.value)).ok()?;
    let inner = &channels * &size;
    let columns = b.view(Op::Permute(vec![0, 2, 1]), windows);
    let columns = b.view(Op::Reshape(Shape::new(vec![inner.clone(), count])), columns);
    let kernel = [Dim::from(*b.rng.pick(&[1i64, 3, 9, 16])), inner];
    if !b.fits(&kernel) {
        return None;
    }
    let kernel = b.input(dtype, Shape::new(kernel.to_vec()));
    let result = product(b, kernel, columns)?;
    Some(b.push(result))
}

/// One to three linear layers of one input, with weights of any format.
pub fn weights(b: &mut Builder) -> Option<Item> {
    if !b.options.weights {
        return None;
    }
    let depth = *b.rng.pick(&[32i64, 64, 96, 256, 512]);
    let floats = b.options.floats.clone();
    let suits = |b: &Builder, i: &Item| {
        let dims = b.dims(i.value);
        dims.len() == 2 && dims[1].is(depth) && b.dtype(i.value).is_float()
    };
    let x = match b.pick(suits) {
        Some(x) => x,
        None => {
            let rows = *b.rng.pick(&[1i64, 1, 2, 3, 5, 8, 9, 17]);
            let dims = [Dim::from(rows), Dim::from(depth)];
            let dims = if b.fits(&dims) { dims } else { [Dim::one(), Dim::from(depth)] };
            if !b.fits(&dims) {
                return None;
            }
            let dtype = *b.rng.pick(&floats);
            b.input(dtype, dims)
        }
    };
    let x = if b.dtype(x.value) == DType::F32 && b.rng.chance(40) { quantized(b, x) } else { x };
    let mut last = None;
    for _ in 0..b.rng.between(1, 3) {
        let rows = *b.rng.pick(&[1i64, 3, 8, 16, 33]);
        let w = weight_matrix(b, rows, depth, b.dtype(x.value));
        if b.rng.chance(15) {
            last = rows_of(b, w).or(last);
            continue;
        }
        let turned = b.view(Op::Permute(vec![1, 0]), w);
        last = product(b, x, turned).map(|y| b.push(y)).or(last);
    }
    last
}

/// Activations rounded to bytes, which kernels multiply as integers.
fn quantized(b: &mut Builder, x: Item) -> Item {
    // Mostly to what kernels multiply as integers.
    let format = if b.rng.chance(80) { Format::Q8_1 } else { *b.rng.pick(&Op::QUANTIZED) };
    let blocks = b.add(Op::Quantize(format), &[x.value]);
    Item { value: b.add(Op::Dequantize(DType::F32), &[blocks]), exact: false, ..x }
}

/// Products of few rounded rows with weights, perhaps behind a norm and in front of something.
pub fn quantized_weights(b: &mut Builder) -> Option<Item> {
    if !b.options.weights {
        return None;
    }
    let depth = *b.rng.pick(&[32i64, 64, 96, 256, 512, 1024]);
    let rows = *b.rng.pick(&[1i64, 1, 1, 2, 3, 8]);
    let dims = [Dim::from(rows), Dim::from(depth)];
    let dims = if b.fits(&dims) { dims } else { [Dim::one(), Dim::from(depth)] };
    if !b.fits(&dims) {
        return None;
    }
    let mut x = b.input(DType::F32, dims);
    if b.rng.chance(50) {
        let size = b.apply(ElementwiseOp::Abs, &[x]);
        let most = reduce_by(b, ReduceKind::Max, size, &[1])?;
        let most = b.graph.reshape(most.value, [rows_of_item(b, x), Dim::one()]).ok()?;
        let most = b.graph.broadcast(most, b.graph.ty(x.value).shape.clone()).ok()?;
        let bound = x.bound();
        x = b.apply(ElementwiseOp::Sub, &[x, Item { value: most, low: 0.0, high: bound, exact: false }]);
    }
    let x = quantized(b, x);
    let mut last = None;
    for _ in 0..b.rng.between(1, 3) {
        let columns = *b.rng.pick(&[1i64, 3, 16, 33, 64]);
        let w = weight_matrix(b, columns, depth, DType::F32);
        let turned = b.view(Op::Permute(vec![1, 0]), w);
        let y = product(b, x, turned)?;
        let y = if b.rng.chance(50) { b.apply(ElementwiseOp::Tanh, &[y]) } else { y };
        let y = b.push(y);
        last = Some(y);
        b.want(y.value);
    }
    last
}

/// New rows times one or two weights of whole runs of `length` columns.
pub fn products_of_rows(b: &mut Builder, rows: i64, length: i64) -> Option<Vec<Item>> {
    let depth = *b.rng.pick(&[32i64, 64, 96, 256]);
    let mut x = b.input(DType::F32, [rows, depth]);
    if b.rng.chance(40) {
        x = quantized(b, x);
    }
    let mut all = vec![];
    for _ in 0..b.rng.between(1, 2) {
        let columns = length * b.rng.between(1, 7);
        let w = weight_matrix(b, columns, depth, DType::F32);
        let turned = b.view(Op::Permute(vec![1, 0]), w);
        all.push(product(b, x, turned)?);
    }
    Some(all)
}

fn rows_of_item(b: &Builder, x: Item) -> Dim {
    b.dims(x.value)[0].clone()
}

/// `[rows, depth]` of `dtype`, from a quantized weight or a plain one.
fn weight_matrix(b: &mut Builder, rows: i64, depth: i64, dtype: DType) -> Item {
    let name = b.name("w");
    let fits =
        |f: &Format| depth % f.block_elements() as i64 == 0 && (b.options.plain_blocks || !f.is_plain());
    let formats: Vec<Format> = Format::ALL.iter().copied().filter(fits).collect();
    // Quantization moves a value by less than the spread of its block; blocks of integers hold some up to 8.
    let mut most = 1.0;
    let value: Value = if b.rng.chance(75) {
        let format = *b.rng.pick(&formats);
        if matches!(format, Format::I8 | Format::I16 | Format::I32 | Format::I64) {
            most = 8.0;
        }
        let w = b.graph.weight(&name, DType::Block(format), [rows, depth]).expect("whole blocks");
        b.add(Op::Dequantize(dtype), &[w])
    } else {
        let stored = b.random_float();
        let w = b.graph.weight(&name, stored, [rows, depth]).expect("a plain type");
        if stored == dtype { w } else { b.add(Op::Cast(dtype), &[w]) }
    };
    Item { value, low: -most, high: most, exact: false }
}

/// Rows of a matrix at random positions, as an embedding takes them.
fn rows_of(b: &mut Builder, w: Item) -> Option<Item> {
    let n = b.rng.between(1, 4);
    let dims = [Dim::from(n), b.dims(w.value)[1].clone()];
    if !b.fits(&dims) {
        return None;
    }
    let indices = b.input(DType::U32, [n]);
    let value = b.add(Op::Gather { axis: 0 }, &[w.value, indices.value]);
    Some(b.push(Item { value, ..w }))
}

/// Elements at the positions that another tensor holds.
pub fn gather(b: &mut Builder) -> Option<Item> {
    let src = b.pick(|b, i| !b.dims(i.value).is_empty())?;
    let dims = b.dims(src.value);
    let axis = b.rng.below(dims.len());
    let found = b.pick(|b, i| b.dtype(i.value) == DType::U32 && b.dims(i.value).len() <= 2);
    let indices = match found {
        Some(i) if b.rng.chance(60) => i,
        _ => {
            let shape: Vec<Dim> = (0..b.rng.below(3)).map(|_| Dim::from(b.rng.between(1, 5))).collect();
            b.input(DType::U32, Shape::new(shape))
        }
    };
    let at = b.dims(indices.value);
    let all: Vec<Dim> = [&dims[..axis], &at, &dims[axis + 1..]].concat();
    if !b.fits(&all) {
        return None;
    }
    let value = b.add(Op::Gather { axis }, &[src.value, indices.value]);
    Some(b.push(Item { value, ..src }))
}

/// Attention over new tensors.
pub fn attention(b: &mut Builder) -> Option<Item> {
    let (key_heads, group) = (b.rng.between(1, 2), b.rng.between(1, 3));
    let (depth, width) = (*b.rng.pick(&[3i64, 4, 8, 16]), *b.rng.pick(&[4i64, 5, 8, 16]));
    let queries = b.random_dim();
    // Enough keys that each query sees one.
    let keys = &queries + &Dim::from(b.rng.between(0, 4));
    let q_dims = [Dim::from(key_heads * group), queries, Dim::from(depth)];
    let k_dims = [Dim::from(key_heads), keys.clone(), Dim::from(depth)];
    let v_dims = [Dim::from(key_heads), keys, Dim::from(width)];
    let out = [q_dims[0].clone(), q_dims[1].clone(), Dim::from(width)];
    if [&q_dims, &k_dims, &v_dims, &out].into_iter().any(|d| !b.fits(d)) {
        return None;
    }
    let dtype = b.random_float();
    let kv_dtype = if b.rng.chance(70) { dtype } else { b.random_float() };
    let (q, k, v) = (b.input(dtype, q_dims), b.input(kv_dtype, k_dims), b.input(kv_dtype, v_dims));
    let bias = if b.rng.chance(40) { bias(b, &[q, k]) } else { None };
    let result = attend(b, [q, k, v], bias);
    Some(b.push(result))
}

/// What is added to the scores of `q` and `k`, repeated along some axes: a tensor, often with some keys hidden.
fn bias(b: &mut Builder, [q, k]: &[Item; 2]) -> Option<Item> {
    let (q, k) = (b.dims(q.value), b.dims(k.value));
    let mut dims = [q[0].clone(), q[1].clone(), k[1].clone()];
    for dim in &mut dims {
        if b.rng.chance(30) {
            *dim = Dim::one();
        }
    }
    if !b.fits(&dims) {
        return None;
    }
    let dtype = b.random_float();
    let bias = b.input(dtype, dims.clone());
    // An 8-bit float has no infinity.
    if dtype == DType::F8E4M3 || b.rng.chance(50) {
        return Some(bias);
    }
    // Keys where another tensor is above 1 are hidden; each query may have lost them all.
    let other = b.input(DType::F32, dims);
    let one = b.constant(other.value, 1.0);
    let hide = b.apply(ElementwiseOp::Gt, &[other, one]);
    let hidden = b.constant(bias.value, f64::NEG_INFINITY);
    Some(b.apply(ElementwiseOp::Select, &[hide, hidden, bias]))
}

/// A score of each head of `q` that has no value; some are negative infinity.
fn sinks(b: &mut Builder, q: &Item) -> Item {
    let dims = vec![b.dims(q.value)[0].clone()];
    let dtype = b.random_float();
    let sinks = b.input(dtype, dims);
    // An 8-bit float has no infinity.
    if dtype == DType::F8E4M3 || b.rng.chance(70) {
        return sinks;
    }
    let one = b.constant(sinks.value, 1.0);
    let hide = b.apply(ElementwiseOp::Gt, &[sinks, one]);
    let hidden = b.constant(sinks.value, f64::NEG_INFINITY);
    b.apply(ElementwiseOp::Select, &[hide, hidden, sinks])
}

/// Attention of a query that may first be scaled, as rotary embeddings would change it.
pub fn attend(b: &mut Builder, [q, k, v]: [Item; 3], bias: Option<Item>) -> Item {
    let q = if b.rng.chance(50) {
        let half = b.constant(q.value, 0.5);
        b.apply(ElementwiseOp::Mul, &[q, half])
    } else {
        q
    };
    let (scale, causal) = (*b.rng.pick(&[0.125, 0.3]), b.rng.chance(60));
    let window = b.rng.chance(30).then(|| *b.rng.pick(&[1, 2, 5, 70]));
    let softcap = b.rng.chance(30).then(|| *b.rng.pick(&[0.5, 3.0, 50.0]));
    let attrs = Attention::new(scale).causal(causal).window(window).softcap(softcap);
    let sinks = if b.options.sinks && b.rng.chance(30) { Some(sinks(b, &q)) } else { None };
    let attrs = attrs.sinks(sinks.is_some());
    let operands: Vec<Value> = [q, k, v].into_iter().chain(bias).chain(sinks).map(|i| i.value).collect();
    let value = b.add(Op::Attention(attrs), &operands);
    // A query that sees no key gives 0.
    Item { value, low: v.low.min(0.0), high: v.high.max(0.0), exact: false }
}
