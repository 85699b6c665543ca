//! Intervals of what many elements are combined into.
//!
//! A sum of n terms in any order, fused or not, differs from the exact one by at most n units of the sum of the
//! magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2).

use tallow_ir::{DType, Dim, ElementwiseOp as E, GraphError, Op, ReduceKind, ScanKind};
use tallow_ir::{Format, ScatterKind, Shape, TensorType, Value};

use super::Intervals;
use super::range::{Range, smallest, unit};

impl Intervals {
    /// Elements of `r`, which are of `dtype`, combined along `axes`.
    pub fn reduce(
        &mut self,
        kind: ReduceKind,
        axes: &[usize],
        count: &Dim,
        dtype: DType,
        r: Range,
    ) -> Result<Range, GraphError> {
        let op = |kind| Op::Reduce { kind, axes: axes.to_vec() };
        match kind {
            ReduceKind::Max | ReduceKind::Min => self.both(&op(kind), &[r]),
            _ if r.is_exact() && (kind.is_arg() || !dtype.is_float()) => self.both(&op(kind), &[r]),
            ReduceKind::ArgMax => self.positions(r.low, r.high, E::Ge, ReduceKind::Max, axes, count),
            ReduceKind::ArgMin => self.positions(r.high, r.low, E::Le, ReduceKind::Min, axes, count),
            ReduceKind::Sum | ReduceKind::Prod if !dtype.is_float() => {
                let ty = self.graph.ty(r.low);
                let ty = TensorType::new(dtype, ty.shape.without(axes));
                self.any(&ty)
            }
            ReduceKind::Sum => self.sums(&op(kind), count.max_value(), dtype, &[r]),
            ReduceKind::Prod => self.products(&op(kind), count.max_value(), dtype, r),
        }
    }

    /// The first to the last position whose element may be the best one: whose `best` end reaches what the best
    /// of the `sure` ends gives.
    fn positions(
        &mut self,
        sure: Value,
        best: Value,
        reaches: E,
        kind: ReduceKind,
        axes: &[usize],
        count: &Dim,
    ) -> Result<Range, GraphError> {
        let shape = self.graph.ty(best).shape.clone();
        let least = self.graph.reduce_keepdim(kind, sure, axes)?;
        let least = self.graph.broadcast(least, shape)?;
        let may = self.e(reaches, &[best, least])?;
        let first = Op::Reduce { kind: ReduceKind::ArgMax, axes: axes.to_vec() };
        let low = self.graph.add(first.clone(), &[may])?;
        let mut turned = may;
        for axis in axes {
            turned = self.graph.add(Op::Flip { axis: *axis }, &[turned])?;
        }
        let after = self.graph.add(first, &[turned])?;
        let last = Op::DimValue { dim: count - &Dim::one(), dtype: DType::U32 };
        let last = self.graph.add(last, &[])?;
        let last = self.graph.broadcast(last, self.graph.ty(after).shape.clone())?;
        Ok(Range { low, high: self.e(E::Sub, &[last, after])? })
    }

    /// An op that adds up to `count` terms an element.
    fn sums(&mut self, op: &Op, count: i64, dtype: DType, operands: &[Range]) -> Result<Range, GraphError> {
        let sum = self.both(op, operands)?;
        let mut most = vec![];
        for r in operands {
            let float = self.graph.ty(r.low).dtype.is_float();
            most.push(if float { self.magnitude(*r)? } else { r.low });
        }
        let most = self.graph.add(op.clone(), &most)?;
        let error = self.times(most, count as f64 * unit(dtype))?;
        let error = self.plus(error, count as f64 * smallest(dtype))?;
        self.apart(sum, error)
    }

    /// An op that multiplies up to `count` factors an element. With factors `c + d`, `|d| <= r`, the product is
    /// within `prod(|c| + r) - prod(|c|)` of `prod(c)`: expand both.
    fn products(&mut self, op: &Op, count: i64, dtype: DType, r: Range) -> Result<Range, GraphError> {
        let ball = self.ball(r)?;
        let middle = self.graph.add(op.clone(), &[ball.middle])?;
        let size = self.graph.add(op.clone(), &[ball.size])?;
        let most = self.graph.add(op.clone(), &[ball.most])?;
        let spread = self.e(E::Sub, &[most, size])?;
        let error = self.times(most, count as f64 * unit(dtype))?;
        // A factor that is flushed takes the others along, so this is relative to the largest they may be.
        let error = self.plus(error, smallest(dtype))?;
        let by = self.e(E::Add, &[spread, error])?;
        self.around(middle, by)
    }

    /// Running sums and products of `count` elements, and linear recurrences.
    pub fn scan(
        &mut self,
        kind: ScanKind,
        axis: usize,
        count: i64,
        ty: &TensorType,
        operands: &[Range],
    ) -> Result<Range, GraphError> {
        let op = Op::Scan { kind, axis, part: None };
        match kind {
            _ if !ty.dtype.is_float() && operands[0].is_exact() => self.both(&op, operands),
            _ if !ty.dtype.is_float() => self.any(ty),
            ScanKind::Sum => self.sums(&op, count, ty.dtype, operands),
            ScanKind::Prod => self.products(&op, count, ty.dtype, operands[0]),
            ScanKind::Linear => self.linear_scan(axis, count, ty.dtype, [operands[0], operands[1]]),
        }
    }

    /// A linear recurrence of `count` elements: element `t` is the sum of `b_s a_{s+1} .. a_t` over `s <= t`. As in
    /// [`Intervals::products`], operands `c + d` with `|d| <= r` move it by the recurrence of `|c| + r` less that of
    /// `|c|`. Each term is rounded in a product and a sum at each step, in any grouping of the steps.
    fn linear_scan(
        &mut self,
        axis: usize,
        count: i64,
        dtype: DType,
        operands: [Range; 2],
    ) -> Result<Range, GraphError> {
        let op = Op::Scan { kind: ScanKind::Linear, axis, part: None };
        let [a, b] = operands;
        let (a, b) = (self.ball(a)?, self.ball(b)?);
        let middle = self.graph.add(op.clone(), &[a.middle, b.middle])?;
        let size = self.graph.add(op.clone(), &[a.size, b.size])?;
        // What is flushed at a step is multiplied by the coefficients of those behind it.
        let added = self.plus(b.most, 2.0 * smallest(dtype))?;
        let most = self.graph.add(op, &[a.most, added])?;
        let spread = self.e(E::Sub, &[most, size])?;
        let rounded = self.times(most, 2.0 * count as f64 * unit(dtype))?;
        // A product of coefficients that is flushed takes along the element before them, which no earlier sum exceeds.
        let all = self.graph.add(Op::Scan { kind: ScanKind::Sum, axis, part: None }, &[most])?;
        let flushed = self.times(all, count as f64 * smallest(dtype))?;
        let error = self.e(E::Add, &[rounded, flushed])?;
        let by = self.e(E::Add, &[spread, error])?;
        self.around(middle, by)
    }

    /// `count` values combined into elements of another tensor.
    pub fn scatter(
        &mut self,
        kind: ScatterKind,
        count: u64,
        ty: &TensorType,
        operands: &[Range],
    ) -> Result<Range, GraphError> {
        let op = Op::Scatter(kind);
        let exact = operands.iter().all(|r| r.is_exact());
        match kind {
            _ if !operands[1].is_exact() => self.any(ty),
            ScatterKind::Max => self.both(&op, operands),
            ScatterKind::Add if ty.dtype.is_float() => self.sums(&op, count as i64 + 1, ty.dtype, operands),
            ScatterKind::Add if exact => self.both(&op, operands),
            ScatterKind::Add => self.any(ty),
        }
    }

    /// `count` rows added to rows of another tensor.
    pub fn index_add(
        &mut self,
        count: u64,
        ty: &TensorType,
        operands: &[Range],
    ) -> Result<Range, GraphError> {
        let exact = operands.iter().all(|r| r.is_exact());
        match ty.dtype.is_float() {
            _ if !operands[1].is_exact() => self.any(ty),
            true => self.sums(&Op::IndexAdd, count as i64 + 1, ty.dtype, operands),
            false if exact => self.both(&Op::IndexAdd, operands),
            false => self.any(ty),
        }
    }

    /// A product of matrices. With elements `a + d`, `|d| <= r` and `b + e`, `|e| <= s`, it is within
    /// `(|a| + r)(|b| + s) - |a||b|` of `a b`.
    pub fn matmul(&mut self, depth: i64, ty: &TensorType, operands: &[Range]) -> Result<Range, GraphError> {
        let exact = operands.iter().all(|r| r.is_exact());
        match ty.dtype.is_float() {
            false if exact => self.both(&Op::Matmul, operands),
            false => self.any(ty),
            true => {
                let (a, b) = (self.ball(operands[0])?, self.ball(operands[1])?);
                let middle = self.graph.add(Op::Matmul, &[a.middle, b.middle])?;
                let size = self.graph.add(Op::Matmul, &[a.size, b.size])?;
                let most = self.graph.add(Op::Matmul, &[a.most, b.most])?;
                let spread = self.e(E::Sub, &[most, size])?;
                let error = self.times(most, depth as f64 * unit(ty.dtype))?;
                let error = self.plus(error, depth as f64 * smallest(ty.dtype))?;
                let by = self.e(E::Add, &[spread, error])?;
                self.around(middle, by)
            }
        }
    }

    /// The values of blocks. Kernels compute `scale * quant - minimum` in f32: at most four roundings of terms
    /// that are, as far as rows hold both ends of their range, no larger than twice the largest value.
    pub fn dequantize(&mut self, blocks: Range) -> Result<Range, GraphError> {
        let values = self.graph.add(Op::Dequantize(DType::F64), &[blocks.low])?;
        let size = self.e(E::Abs, &[values])?;
        let last = self.graph.ty(size).shape.rank() - 1;
        let most = self.graph.reduce_keepdim(ReduceKind::Max, size, &[last])?;
        let most = self.graph.broadcast(most, self.graph.ty(size).shape.clone())?;
        let by = self.times(most, 8.0 * unit(DType::F32))?;
        self.around(values, by)
    }

    /// The values of blocks that values are rounded to, `d q` with `q` the integer nearest to `x / d`, where `d` is a part
    /// of the block's largest magnitude `a` ([`Rounding`]). If `x` moves by at most `r` and `a` too, `q` stays what it is
    /// where `x / d` is further than `2 r / d` (and the thousandth part of a step that divisions may lose) from a half; then
    /// the value moves as `d` does, by `r / a` and one step of f16, in which `d` is kept. Elsewhere `x` is off by what
    /// rounding in that format may lose.
    ///
    /// Of a format that no kernel rounds to, nothing is known.
    pub fn quantize(&mut self, format: Format, ty: &TensorType, x: Range) -> Result<Range, GraphError> {
        let Some(rounding) = Rounding::of(format) else { return self.any(ty) };
        let middle = self.ball(x)?.middle;
        let radius = self.e(E::Sub, &[x.high, x.low])?;
        let radius = self.largest_of_32(radius)?;
        let size = self.e(E::Abs, &[middle])?;
        let most = self.largest_of_32(size)?;
        let tiny = self.graph.full_like(most, 1e-30)?;
        let most = self.max(most, tiny)?;
        // A scale below the least of f16 is none.
        let least = rounding.levels * 2f64.powi(-24);
        let largest = self.e(E::Add, &[most, radius])?;
        let by = self.times(largest, rounding.error)?;
        let by = self.plus(by, least)?;
        let low = self.e(E::Sub, &[x.low, by])?;
        let high = self.e(E::Add, &[x.high, by])?;
        let Some(certain) = rounding.certain else { return Ok(Range { low, high }) };
        let narrow = self.graph.add(Op::Cast(DType::F32), &[middle])?;
        let blocks = self.graph.add(Op::Quantize(format), &[narrow])?;
        let value = self.graph.add(Op::Dequantize(DType::F64), &[blocks])?;
        let moved = self.e(E::Div, &[radius, most])?;
        let moved = self.plus(moved, 2f64.powi(-10))?;
        let size_of_value = self.e(E::Abs, &[value])?;
        let by = self.e(E::Mul, &[size_of_value, moved])?;
        let by = self.plus(by, least)?;
        let found = self.around(value, by)?;
        let step = self.times(most, 1.0 / rounding.levels)?;
        let steps = self.e(E::Div, &[size, step])?;
        let whole = self.e(E::Floor, &[steps])?;
        let rest = self.e(E::Sub, &[steps, whole])?;
        let rest = self.plus(rest, -0.5)?;
        let distance = self.e(E::Abs, &[rest])?;
        let reach = self.e(E::Div, &[radius, step])?;
        let reach = self.times(reach, certain)?;
        let reach = self.plus(reach, 1e-3)?;
        let uncertain = self.e(E::Le, &[distance, reach])?;
        Ok(Range {
            low: self.e(E::Select, &[uncertain, low, found.low])?,
            high: self.e(E::Select, &[uncertain, high, found.high])?,
        })
    }

    /// The largest of each 32 neighbours in a row, for each of them.
    fn largest_of_32(&mut self, x: Value) -> Result<Value, GraphError> {
        let shape = self.graph.ty(x).shape.clone();
        let (dims, block) = (shape.dims(), Dim::from(32i64));
        let blocks = dims[dims.len() - 1].div_exact(&block).unwrap_or_else(Dim::one);
        let split = Shape::new([&dims[..dims.len() - 1], &[blocks, block]].concat());
        let x = self.graph.reshape(x, split.clone())?;
        let most = self.graph.reduce_keepdim(ReduceKind::Max, x, &[dims.len()])?;
        let most = self.graph.broadcast(most, split)?;
        self.graph.reshape(most, shape)
    }
}

/// What rounding to a format may lose.
struct Rounding {
    /// Levels on the longer side of zero: the largest magnitude in steps of the scale.
    levels: f64,
    /// How far a value may be from what it is rounded to, in parts of the block's largest magnitude.
    error: f64,
    /// How many times further than the values move a quotient must be from a half for its level to be certain; none where
    /// levels are not counted from zero or scales are searched.
    certain: Option<f64>,
}

impl Rounding {
    fn of(format: Format) -> Option<Rounding> {
        let row = |levels: f64, error: f64, certain| Some(Rounding { levels, error, certain });
        match format {
            // Half a step, and the 127 half steps of f16 that the scale may be off: 0.57 steps.
            Format::Q8_0 | Format::Q8_1 => row(127.0, 0.57 / 127.0, Some(2.0)),
            // The levels end one before the largest magnitude on the other side of zero: a step, and what f16 makes of the
            // scale. If two values of opposite signs are largest, any move may turn the block around.
            Format::Q4_0 => row(8.0, 1.01 / 8.0, Some(1e30)),
            Format::Q5_0 => row(16.0, 1.01 / 16.0, Some(1e30)),
            // Half a step of up to twice the largest magnitude, what f16 makes of the scale, and of the offset.
            Format::Q4_1 => row(16.0, 1.04 / 15.0 + 2f64.powi(-10), None),
            Format::Q5_1 => row(32.0, 1.08 / 31.0 + 2f64.powi(-10), None),
            // One of the scales that are tried is a 127th of the largest magnitude, with which no value is off by more than
            // 14 of it. What is chosen leaves no larger sum of 32 squares: each is off by less than sqrt(32) times that,
            // and by what f16 makes of the scale.
            Format::IQ4_NL => row(127.0, 32f64.sqrt() * 14.0 / 127.0 + 2f64.powi(-10), None),
            Format::Q2_K
            | Format::Q3_K
            | Format::Q4_K
            | Format::Q5_K
            | Format::Q6_K
            | Format::Q8_K
            | Format::IQ2_XXS
            | Format::IQ2_XS
            | Format::IQ2_S
            | Format::IQ3_XXS
            | Format::IQ3_S
            | Format::IQ1_S
            | Format::IQ1_M
            | Format::IQ4_XS
            | Format::TQ1_0
            | Format::TQ2_0
            | Format::MXFP4
            | Format::NVFP4
            | Format::F16
            | Format::BF16
            | Format::F32
            | Format::F64
            | Format::I8
            | Format::I16
            | Format::I32
            | Format::I64 => None,
        }
    }
}
