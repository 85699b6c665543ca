//! Result types: what each op accepts, checked when a node is added.

use crate::attention::{Attention, AttentionSide};
use crate::dim::Dim;
use crate::dtype::{DType, Format};
use crate::graph::GraphError;
use crate::op::{Op, ScanKind, ScatterKind};
use crate::shape::{Shape, TensorType};
use crate::sort::{self, SortSpan};

/// The types of the results of `op` applied to operands of types `operands`.
pub fn infer(op: &Op, operands: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
    let fail = |why: String| GraphError::Type {
        op: op.name(),
        why,
        operands: operands.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", "),
    };
    one_or_many(op, operands).map_err(fail)
}

fn one_or_many(op: &Op, operands: &[&TensorType]) -> Result<Vec<TensorType>, String> {
    let one = |ty: Result<TensorType, String>| ty.map(|t| vec![t]);
    match op {
        Op::Input { name, ty } => {
            arity(operands, 0)?;
            match ty.dtype {
                DType::Block(_) => Err(format!("'{name}' cannot hold blocks, only a weight or a state can")),
                _ => one(checked(ty.clone())),
            }
        }
        Op::Weight { ty, .. } | Op::State { ty, .. } => {
            arity(operands, 0)?;
            one(blocks_fit(ty).and_then(|()| checked(ty.clone())))
        }
        Op::Param { ty, .. } => {
            arity(operands, 0)?;
            one(checked(ty.clone()))
        }
        Op::Const(scalar) => {
            arity(operands, 0)?;
            Ok(vec![TensorType::new(scalar.dtype(), Shape::scalar())])
        }
        Op::Iota { len, dtype } => {
            arity(operands, 0)?;
            computable(*dtype)?;
            one(checked(TensorType::new(*dtype, [len.clone()])))
        }
        Op::DimValue { dtype, .. } => {
            arity(operands, 0)?;
            computable(*dtype)?;
            Ok(vec![TensorType::new(*dtype, Shape::scalar())])
        }
        Op::Scalar { symbol, dtype } => {
            arity(operands, 0)?;
            computable(*dtype)?;
            if !dtype.is_float() || symbol.limit() != u32::MAX {
                return Err("a scalar is a float, of any 32 bits".into());
            }
            Ok(vec![TensorType::new(*dtype, Shape::scalar())])
        }
        Op::Elementwise(e) => {
            let dtypes: Vec<DType> = operands.iter().map(|t| t.dtype).collect();
            let dtype = e.result_dtype(&dtypes)?;
            if operands.windows(2).any(|w| w[0].shape != w[1].shape) {
                return Err("shapes differ (broadcast first)".into());
            }
            Ok(vec![TensorType::new(dtype, operands[0].shape.clone())])
        }
        Op::Reduce { kind, axes } => {
            let [a] = exactly(operands)?;
            computable(a.dtype)?;
            if axes.is_empty() || axes.windows(2).any(|w| w[0] >= w[1]) {
                return Err(format!("axes {axes:?} must be ascending and not empty"));
            }
            axis_in(*axes.last().unwrap_or(&0), a)?;
            let dtype = if kind.is_arg() { DType::U32 } else { a.dtype };
            Ok(vec![TensorType::new(dtype, a.shape.without(axes))])
        }
        Op::Scan { kind, axis, part } => one(scan(*kind, *axis, *part, operands)),
        Op::ArgSort { axis, span, .. } => one(argsort(*axis, *span, operands)),
        Op::MergeRuns { axis, run, .. } => one(merge_runs(*axis, *run, operands)),
        Op::Scatter(kind) => one(scatter(*kind, operands)),
        Op::IndexAdd => one(index_add(operands)),
        Op::Matmul => one(matmul(operands)),
        Op::Gather { axis } => one(gather(*axis, operands)),
        Op::Dequantize(dtype) => {
            let [w] = exactly(operands)?;
            match w.dtype {
                DType::Block(_) if dtype.is_float() => Ok(vec![TensorType::new(*dtype, w.shape.clone())]),
                DType::Block(_) => Err(format!("cannot dequantize to {dtype}")),
                _ => Err("needs a weight of blocks".into()),
            }
        }
        Op::Quantize(format) => one(quantize(*format, operands)),
        Op::Attention(attrs) => one(attention(attrs, operands)),
        Op::AttentionGrad(attrs, side) => attention_grad(attrs, *side, operands),
        Op::StateUpdate { offsets, rows } => one(state_update(offsets, *rows, operands)),
        Op::Custom(custom) => custom.types(operands)?.into_iter().map(checked).collect(),
        Op::Fusion(fusion) => {
            let params = fusion.body.params();
            arity(operands, params.len())?;
            for (i, (p, o)) in params.iter().zip(operands).enumerate() {
                if p != o {
                    return Err(format!("param {i} is {p} in the body but {o} outside"));
                }
            }
            Ok(fusion.body.outputs().iter().map(|o| fusion.body.ty(o.value).clone()).collect())
        }
        Op::Cast(_)
        | Op::Reshape(_)
        | Op::Broadcast(_)
        | Op::Permute(_)
        | Op::Slice { .. }
        | Op::Flip { .. }
        | Op::Window { .. }
        | Op::Pad { .. }
        | Op::Concat { .. } => one(view(op, operands)),
    }
}

fn scan(
    kind: ScanKind,
    axis: usize,
    part: Option<usize>,
    operands: &[&TensorType],
) -> Result<TensorType, String> {
    let a = *operands.first().ok_or("needs an operand")?;
    computable(a.dtype)?;
    axis_in(axis, a)?;
    if kind == ScanKind::Linear {
        return linear_scan(part, operands);
    }
    let Some(part) = part else { return arity(operands, 1).map(|()| a.clone()) };
    arity(operands, 2)?;
    let mut dims = a.shape.dims().to_vec();
    let len = dims[axis].as_const().and_then(|n| usize::try_from(n).ok());
    let len = len.filter(|_| part > 0).ok_or("parts of no elements, or of an extent that is not known")?;
    dims[axis] = len.div_ceil(part).into();
    let wide = if matches!(a.dtype, DType::F16 | DType::BF16) { DType::F32 } else { a.dtype };
    let before = TensorType::new(wide, Shape::new(dims));
    if *operands[1] != before {
        return Err(format!("its parts start from {before}"));
    }
    Ok(a.clone())
}

fn linear_scan(part: Option<usize>, operands: &[&TensorType]) -> Result<TensorType, String> {
    let [a, b] = exactly(operands)?;
    if !a.dtype.is_float() {
        return Err(format!("needs floats, not {}", a.dtype));
    }
    if a != b {
        return Err(format!("the coefficients are {a}, what is added is {b}"));
    }
    match part {
        None => Ok(a.clone()),
        Some(_) => Err("is not divided into parts".into()),
    }
}

/// Casts and views: the ops that only say where or as what an element is read.
fn view(op: &Op, operands: &[&TensorType]) -> Result<TensorType, String> {
    let a = *operands.first().ok_or("needs an operand")?;
    computable(a.dtype)?;
    if !matches!(op, Op::Concat { .. }) {
        arity(operands, 1)?;
    }
    let with = |shape: Shape| TensorType { dtype: a.dtype, shape };
    let set = |axis: usize, len: Dim| {
        let mut dims = a.shape.dims().to_vec();
        dims[axis] = len;
        Shape::new(dims)
    };
    let ty = match op {
        Op::Cast(dtype) => {
            computable(*dtype)?;
            TensorType { dtype: *dtype, shape: a.shape.clone() }
        }
        Op::Reshape(shape) => {
            if shape.numel() != a.shape.numel() {
                return Err(format!("{shape} has {} elements, not {}", shape.numel(), a.shape.numel()));
            }
            with(shape.clone())
        }
        Op::Broadcast(shape) => {
            let missing = shape.rank().checked_sub(a.shape.rank());
            let missing = missing.ok_or_else(|| format!("{shape} has fewer axes"))?;
            for (from, to) in a.shape.dims().iter().zip(&shape.dims()[missing..]) {
                if from != to && !from.is(1) {
                    return Err(format!("extent {from} cannot become {to} of {shape}"));
                }
            }
            with(shape.clone())
        }
        Op::Permute(axes) => {
            let mut sorted = axes.clone();
            sorted.sort_unstable();
            if sorted != (0..a.shape.rank()).collect::<Vec<_>>() {
                return Err(format!("{axes:?} is not a permutation of {} axes", a.shape.rank()));
            }
            with(axes.iter().map(|i| a.shape.dims()[*i].clone()).collect())
        }
        Op::Slice { axis, start, len } => {
            axis_in(*axis, a)?;
            let extent = &a.shape.dims()[*axis];
            let end = start + len;
            if !start.is_nonnegative() || !len.is_nonnegative() || !may_fit(&end, extent) {
                return Err(format!("{start}..{end} is outside axis {axis} of extent {extent}"));
            }
            with(set(*axis, len.clone()))
        }
        Op::Flip { axis } => {
            axis_in(*axis, a)?;
            a.clone()
        }
        Op::Window { axis, size, stride, dilation } => {
            axis_in(*axis, a)?;
            let count = windows(&a.shape.dims()[*axis], *size, *stride, *dilation)?;
            let mut dims = a.shape.dims().to_vec();
            dims.splice(*axis..=*axis, [count, Dim::from(*size)]);
            with(Shape::new(dims))
        }
        Op::Pad { axis, before, after, value } => {
            axis_in(*axis, a)?;
            if value.dtype() != a.dtype {
                return Err(format!("padding of dtype {}", value.dtype()));
            }
            if !before.is_nonnegative() || !after.is_nonnegative() {
                return Err("negative padding".into());
            }
            with(set(*axis, &(&a.shape.dims()[*axis] + before) + after))
        }
        Op::Concat { axis } => with(set(*axis, joined(*axis, a, operands)?)),
        other => return Err(format!("{} is not a view", other.name())),
    };
    checked(ty)
}

/// The extent of the operands, which are like `a`, one behind the other along `axis`.
fn joined(axis: usize, a: &TensorType, operands: &[&TensorType]) -> Result<Dim, String> {
    axis_in(axis, a)?;
    let mut len = Dim::zero();
    for o in operands {
        if o.dtype != a.dtype || o.shape.rank() != a.shape.rank() {
            return Err("operands differ in dtype or rank".into());
        }
        if o.shape.with_ones(&[axis]) != a.shape.with_ones(&[axis]) {
            return Err(format!("operands differ outside axis {axis}"));
        }
        len = &len + &o.shape.dims()[axis];
    }
    Ok(len)
}

/// How many windows fit into `extent`.
fn windows(extent: &Dim, size: usize, stride: usize, dilation: usize) -> Result<Dim, String> {
    let small = |x: usize| u32::try_from(x).ok().filter(|x| *x > 0).map(i64::from);
    let (Some(size), Some(stride), Some(dilation)) = (small(size), small(stride), small(dilation)) else {
        return Err(format!(
            "size {size}, stride {stride} and dilation {dilation} must be from 1 to 2^32 - 1"
        ));
    };
    // Elements from the first to the last of a window; the product of two u32 stays below 2^63 or is refused.
    let span = dilation.checked_mul(size - 1).and_then(|x| x.checked_add(1)).ok_or("windows too large")?;
    let rest = extent - &span.into();
    if rest.max_value() < 0 {
        return Err(format!("windows of {span} elements do not fit an axis of extent {extent}"));
    }
    let steps = match rest.as_const() {
        Some(rest) => Some((rest / stride).into()),
        None => rest.div_exact(&stride.into()),
    };
    let steps =
        steps.ok_or_else(|| format!("{rest} is no multiple of the stride {stride} for every value"))?;
    Ok(&steps + &Dim::one())
}

fn matmul(operands: &[&TensorType]) -> Result<TensorType, String> {
    let [a, b] = exactly(operands)?;
    if a.dtype != b.dtype {
        return Err("dtypes differ".into());
    }
    computable(a.dtype)?;
    let (ra, rb) = (a.shape.rank(), b.shape.rank());
    if ra < 2 || ra != rb {
        return Err("needs two operands of one rank >= 2".into());
    }
    let (da, db) = (a.shape.dims(), b.shape.dims());
    if da[ra - 1] != db[ra - 2] {
        return Err(format!("inner extents {} and {} differ", da[ra - 1], db[ra - 2]));
    }
    let mut dims = vec![];
    for (x, y) in da[..ra - 2].iter().zip(&db[..ra - 2]) {
        dims.push(match (x == y || y.is(1), x.is(1)) {
            (true, _) => x.clone(),
            (false, true) => y.clone(),
            (false, false) => return Err(format!("batch extents {x} and {y} differ")),
        });
    }
    dims.push(da[ra - 2].clone());
    dims.push(db[ra - 1].clone());
    checked(TensorType::new(a.dtype, Shape::new(dims)))
}

fn gather(axis: usize, operands: &[&TensorType]) -> Result<TensorType, String> {
    let [src, indices] = exactly(operands)?;
    computable(src.dtype)?;
    axis_in(axis, src)?;
    if indices.dtype != DType::U32 {
        return Err("indices must be u32".into());
    }
    if src.shape.dims()[axis].is(0) {
        return Err("cannot gather from an empty axis".into());
    }
    let dims = src.shape.dims();
    let all = dims[..axis].iter().chain(indices.shape.dims()).chain(&dims[axis + 1..]);
    checked(TensorType::new(src.dtype, all.cloned().collect::<Shape>()))
}

fn argsort(axis: usize, span: SortSpan, operands: &[&TensorType]) -> Result<TensorType, String> {
    let [a] = exactly(operands)?;
    computable(a.dtype)?;
    axis_in(axis, a)?;
    let mut dims = a.shape.dims().to_vec();
    match span {
        SortSpan::All => {}
        SortSpan::Runs(run) if run.is_power_of_two() => {}
        SortSpan::Runs(run) => return Err(format!("runs of {run} elements: not a power of two")),
        SortSpan::First(count) => {
            let count = Dim::constant(count.into());
            if !may_fit(&count, &dims[axis]) {
                return Err(format!("the first {count} of axis {axis} of extent {}", dims[axis]));
            }
            dims[axis] = count;
        }
    }
    checked(TensorType::new(DType::U32, Shape::new(dims)))
}

fn merge_runs(axis: usize, run: u32, operands: &[&TensorType]) -> Result<TensorType, String> {
    let [a, order] = exactly(operands)?;
    computable(a.dtype)?;
    axis_in(axis, a)?;
    if order.dtype != DType::U32 || order.shape != a.shape {
        return Err("the order must be u32 and of the operand's shape".into());
    }
    if !run.is_power_of_two() || run < sort::LEAST_RUN {
        return Err(format!("runs of {run} elements: not a power of two from {} on", sort::LEAST_RUN));
    }
    checked(order.clone())
}

fn scatter(kind: ScatterKind, operands: &[&TensorType]) -> Result<TensorType, String> {
    let [dst, indices, src] = exactly(operands)?;
    computable(dst.dtype)?;
    if kind == ScatterKind::Max && !dst.dtype.is_int() {
        return Err(format!("needs integers, got {}", dst.dtype));
    }
    if dst.dtype != src.dtype {
        return Err("dtypes differ".into());
    }
    if indices.dtype != DType::U32 {
        return Err("indices must be u32".into());
    }
    if dst.shape.rank() != 1 || indices.shape.rank() != 1 || indices.shape != src.shape {
        return Err("needs operands of one axis, indices and source of one length".into());
    }
    Ok(dst.clone())
}

fn index_add(operands: &[&TensorType]) -> Result<TensorType, String> {
    let [dst, indices, src] = exactly(operands)?;
    computable(dst.dtype)?;
    if dst.dtype != src.dtype {
        return Err("dtypes differ".into());
    }
    if indices.dtype != DType::U32 {
        return Err("indices must be u32".into());
    }
    let ([outer, _, inner], [count]) = (dst.shape.dims(), indices.shape.dims()) else {
        return Err("needs a target of three axes and indices of one".into());
    };
    if src.shape.dims() != [outer.clone(), count.clone(), inner.clone()] {
        return Err(format!("the source is [{outer},{count},{inner}] for these indices"));
    }
    Ok(dst.clone())
}

fn attention(attrs: &Attention, operands: &[&TensorType]) -> Result<TensorType, String> {
    let [_, sinks] = attrs.bias_and_sinks(operands);
    let operands = &operands[..operands.len() - usize::from(sinks.is_some())];
    let (main, bias) = operands.split_at(operands.len().min(3));
    let [q, k, v] = exactly(main)?;
    if !operands.iter().all(|t| t.dtype.is_float() && t.shape.rank() == 3) {
        return Err("needs float operands of rank 3".into());
    }
    if attrs.window == Some(0) {
        return Err("a window of no keys".into());
    }
    if let Some(cap) = attrs.softcap.filter(|c| !(c.as_f64() > 0.0 && c.as_f64().is_finite())) {
        return Err(format!("scores cannot be capped at {}", cap.as_f64()));
    }
    let ([h, s, d], [g, t, dk], [gv, tv, e]) = (q.shape.dims(), k.shape.dims(), v.shape.dims()) else {
        return Err("needs three operands of rank 3".into());
    };
    if d != dk || g != gv || t != tv {
        return Err("q, k and v do not fit each other".into());
    }
    match (h.as_const(), g.as_const(), d.as_const(), e.as_const()) {
        (Some(h), Some(g), Some(_), Some(_)) if g > 0 && h % g == 0 => {}
        _ => return Err("heads must be constant and a multiple of the key heads".into()),
    }
    match bias {
        [] => {}
        [bias] => {
            let pairs = bias.shape.dims().iter().zip([h, s, t]);
            if pairs.into_iter().any(|(have, full)| have != full && !have.is(1)) {
                return Err(format!("a bias of shape {} for scores of [{h},{s},{t}]", bias.shape));
            }
        }
        more => {
            let more = 3 + more.len();
            return Err(format!("takes 3 or 4 operands and sinks only as an attribute says, got {more}"));
        }
    }
    if let Some(sinks) = sinks.filter(|t| !t.dtype.is_float() || t.shape.dims() != [h.clone()]) {
        return Err(format!("sinks are floats of [{h}], not {sinks}"));
    }
    checked(TensorType::new(q.dtype, [h.clone(), s.clone(), e.clone()]))
}

fn attention_grad(
    attrs: &Attention,
    side: AttentionSide,
    operands: &[&TensorType],
) -> Result<Vec<TensorType>, String> {
    let (main, bias) = operands.split_at(operands.len().min(side.operands()));
    let [q, k, v, g, rows @ ..] = main else { return Err(format!("takes {} operands", side.operands())) };
    if attrs.sinks {
        return Err("gradients of attention have no sinks".into());
    }
    let forward: Vec<&TensorType> = [*q, *k, *v].into_iter().chain(bias.iter().copied()).collect();
    let result = attention(attrs, &forward)?;
    if g.shape != result.shape || !g.dtype.is_float() {
        return Err(format!("the gradient is {g}, the result {result}"));
    }
    let is_double = [*q, *k, *v, *g].into_iter().chain(bias.iter().copied()).any(|t| t.dtype == DType::F64);
    let wide = if is_double { DType::F64 } else { DType::F32 };
    let row = TensorType::new(wide, q.shape.dims()[..2].to_vec());
    if main.len() != side.operands() || rows.iter().any(|t| **t != row) {
        return Err(format!("takes {} operands, those of rows as {row}", side.operands()));
    }
    Ok(match side {
        AttentionSide::Queries => vec![(*q).clone(), row],
        AttentionSide::Keys => vec![(*k).clone(), (*v).clone()],
    })
}

fn quantize(format: Format, operands: &[&TensorType]) -> Result<TensorType, String> {
    let [a] = exactly(operands)?;
    if a.dtype != DType::F32 {
        return Err(format!("quantizes f32, not {}", a.dtype));
    }
    if !Op::QUANTIZED.contains(&format) {
        return Err(format!("no kernel quantizes to {}", format.spec().name));
    }
    let ty = TensorType::new(DType::Block(format), a.shape.clone());
    blocks_fit(&ty)?;
    checked(ty)
}

fn state_update(
    offsets: &[Dim],
    rows: Option<usize>,
    operands: &[&TensorType],
) -> Result<TensorType, String> {
    arity(operands, if rows.is_some() { 3 } else { 2 })?;
    let (state, src) = (operands[0], operands[1]);
    if state.dtype != src.dtype || state.shape.rank() != src.shape.rank() || offsets.len() != src.shape.rank()
    {
        return Err("state, source and offsets do not fit each other".into());
    }
    if let Some(axis) = rows {
        index_rows(axis, offsets, src, operands[2])?;
    }
    let box_of = state.shape.dims().iter().zip(src.shape.dims()).zip(offsets).enumerate();
    for (_, ((extent, len), offset)) in box_of.filter(|(axis, _)| rows != Some(*axis)) {
        let end = offset + len;
        if !offset.is_nonnegative() || !may_fit(&end, extent) {
            return Err(format!("{offset}..{end} is outside extent {extent}"));
        }
    }
    if let (DType::Block(format), Some(offset)) = (state.dtype, offsets.last()) {
        let per = format.block_elements() as i64;
        if offset.div_exact(&per.into()).is_none() {
            return Err(format!("{offset} is not the start of a block of {per}"));
        }
    }
    Ok(state.clone())
}

/// Checks the axis along which `indices` choose where rows of `src` are written.
fn index_rows(axis: usize, offsets: &[Dim], src: &TensorType, indices: &TensorType) -> Result<(), String> {
    axis_in(axis, src)?;
    let rows = &src.shape.dims()[axis];
    if indices.dtype != DType::U32 || indices.shape.dims() != std::slice::from_ref(rows) {
        return Err(format!("indices of {rows} rows are u32[{rows}]"));
    }
    if !offsets[axis].is(0) {
        return Err(format!("axis {axis} has an offset, though its rows are chosen by index"));
    }
    if matches!(src.dtype, DType::Block(_)) && axis + 1 == src.shape.rank() {
        return Err("rows are not chosen along the innermost axis of blocks".into());
    }
    Ok(())
}

/// False if `end` exceeds `extent` for all symbol values. What only a run can know, the run checks
/// ([`crate::Graph::constraints`]).
fn may_fit(end: &Dim, extent: &Dim) -> bool {
    (end - extent).min_value() <= 0
}

fn exactly<'a, const N: usize>(operands: &[&'a TensorType]) -> Result<[&'a TensorType; N], String> {
    operands.try_into().map_err(|_| format!("takes {N} operands, got {}", operands.len()))
}

fn arity(operands: &[&TensorType], n: usize) -> Result<(), String> {
    if operands.len() == n { Ok(()) } else { Err(format!("takes {n} operands, got {}", operands.len())) }
}

fn axis_in(axis: usize, a: &TensorType) -> Result<(), String> {
    if axis < a.shape.rank() {
        Ok(())
    } else {
        Err(format!("axis {axis} of a rank-{} tensor", a.shape.rank()))
    }
}

fn computable(dtype: DType) -> Result<(), String> {
    match dtype {
        DType::Block(f) => Err(format!("cannot compute on {} blocks (dequantize first)", f.spec().name)),
        _ => Ok(()),
    }
}

fn blocks_fit(ty: &TensorType) -> Result<(), String> {
    let DType::Block(format) = ty.dtype else { return Ok(()) };
    let per = format.spec().block_elements as i64;
    match ty.shape.dims().last().and_then(Dim::as_const) {
        Some(row) if row % per == 0 => Ok(()),
        _ => Err(format!("rows of {ty} must be whole blocks of {per}")),
    }
}

/// Rejects shapes that no device could hold, so that later index arithmetic stays within 63 bits.
fn checked(ty: TensorType) -> Result<TensorType, String> {
    if ty.shape.rank() > 8 {
        return Err(format!("rank {} exceeds 8", ty.shape.rank()));
    }
    if ty.shape.dims().iter().any(|d| d.min_value() < 0) {
        return Err(format!("negative extent in {}", ty.shape));
    }
    if ty.shape.max_numel() > 1 << 40 {
        return Err(format!("{} has more than 2^40 elements", ty.shape));
    }
    Ok(ty)
}
