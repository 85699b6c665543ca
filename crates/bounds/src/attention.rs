//! Intervals of attention.

use tallow_ir::{Attention, DType, Dim, ElementwiseOp as E, GraphError, Op, ReduceKind, Shape, Value};

use super::Intervals;
use super::range::{Ball, Range, smallest, unit};

impl Intervals {
    /// Attention. If no score moves by more than d, each weight stays within a factor `e^(2d)` of what it was: so
    /// the result is within `(e^(2d) - 1) * sum w |v|` and what the values themselves move by of that of the middles.
    ///
    /// Scores move by the radii of q and k and the error of their product, as in [`Intervals::matmul`]. A kernel's
    /// exponentials and sums count as moved scores: `e^x` has an error of `3 + 2 |x|` units in the last place, also
    /// where the sum so far is scaled to a new largest score, which happens at most once a key.
    ///
    /// A bias moves scores by its radius, and its magnitude counts as theirs; where it hides a key it does neither. A
    /// cap moves none further apart, as the slope of tanh is at most 1; the error of `cap * tanh(x / cap)` is 32 units of
    /// the cap at most ([`super::functions`]).
    ///
    /// A sink is a score of each row that no product makes. One whose magnitude is 1000 above all others' does nothing, or all:
    /// its exponential is 0 or infinite in any type. Beside a sink all weights may be so small that they are flushed to zero,
    /// each with its value; without one, the largest weight is at least that of one of the keys.
    ///
    /// Weights that may be rounded are off by a factor of [`Attention::weight_rounding`] for the type of the values, or by
    /// [`Attention::LEAST_WEIGHT`] of a sum that is 1 at least.
    ///
    /// All of it is computed in `dtype`.
    pub fn attention(
        &mut self,
        attention: &Attention,
        [dtype, values]: [DType; 2],
        operands: &[Range],
    ) -> Result<Range, GraphError> {
        let (op, scale) = (Op::Attention(*attention), attention.scale.as_f64());
        let (q, k, v) = (self.ball(operands[0])?, self.ball(operands[1])?, self.ball(operands[2])?);
        let [bias, sinks] = attention.bias_and_sinks(operands).map(|range| range.copied());
        let bias = bias.map(|b| self.ball(b)).transpose()?;
        let sinks = sinks.map(|s| self.ball(s)).transpose()?;
        let types = [q.middle, k.middle].map(|v| self.graph.ty(v).shape.dims().to_vec());
        let ([heads, queries, depth], [groups, keys, _]) = (&types[0][..], &types[1][..]) else {
            return self.any(&self.graph.ty(v.middle).clone());
        };
        let rows = heads.div_exact(groups).map_or_else(|| queries.clone(), |n| &n * queries);
        let mut scores = |q: Value, k: Value| -> Result<Value, GraphError> {
            // The heads of a group are neighbours.
            let q = self.graph.reshape(q, [groups.clone(), rows.clone(), depth.clone()])?;
            let k = self.graph.permute(k, &[0, 2, 1])?;
            self.graph.add(Op::Matmul, &[q, k])
        };
        let (size, most) = (scores(q.size, k.size)?, scores(q.most, k.most)?);
        let mut largest =
            |v: Value| self.graph.add(Op::Reduce { kind: ReduceKind::Max, axes: vec![2] }, &[v]);
        let score = largest(most)?;
        let moved = self.e(E::Sub, &[most, size])?;
        let moved = self.graph.add(Op::Reduce { kind: ReduceKind::Max, axes: vec![2] }, &[moved])?;
        let (mut moved, mut score) = (self.times(moved, scale.abs())?, self.times(score, scale.abs())?);
        if let Some(bias) = &bias {
            [moved, score] = self.with_bias([moved, score], bias, [heads, queries, keys])?;
        }
        if let Some(sinks) = &sinks {
            [moved, score] = self.with_sinks([moved, score], sinks, [heads, queries])?;
        }
        let u = unit(dtype);
        // Per unit of the largest score: the products of the score, and both sides of each exponent.
        let by_score = self.times(score, u * (depth.max_value() as f64 + 18.0))?;
        let moved = self.e(E::Add, &[moved, by_score])?;
        let cap = attention.softcap.map_or(0.0, |cap| 32.0 * cap.as_f64());
        let moved = self.plus(moved, u * (8.0 * keys.max_value() as f64 + 16.0 + cap))?;
        let moved = self.graph.reshape(moved, [heads.clone(), queries.clone(), Dim::one()])?;
        let twice = self.times(moved, 2.0)?;
        let mut factor = self.e(E::Expm1, &[twice])?;
        if attention.round_weights {
            let rounding = Attention::weight_rounding(values);
            factor = self.times(factor, 1.0 + rounding)?;
            factor = self.plus(factor, rounding)?;
        }
        let mut of = |v: Value| {
            let others = [&bias, &sinks].into_iter().flatten().map(|ball| ball.middle);
            let all = [q.middle, k.middle, v].into_iter().chain(others);
            self.graph.add(op.clone(), &all.collect::<Vec<_>>())
        };
        let (middle, size, most) = (of(v.middle)?, of(v.size)?, of(v.most)?);
        let spread = self.e(E::Sub, &[most, size])?;
        let factor = self.graph.broadcast(factor, self.graph.ty(most).shape.clone())?;
        let by_weights = self.e(E::Mul, &[factor, most])?;
        let mut by = self.e(E::Add, &[spread, by_weights])?;
        let rounded = if attention.round_weights { Attention::LEAST_WEIGHT } else { 0.0 };
        let flushed = if attention.sinks { smallest(dtype) } else { 0.0 };
        if rounded + flushed > 0.0 {
            let shape = self.graph.ty(most).shape.clone();
            let width = &shape.dims()[2];
            let all = self.graph.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1] }, &[v.most])?;
            let all = self.graph.reshape(all, [groups.clone(), Dim::one(), width.clone()])?;
            let all = self.graph.broadcast(all, Shape::new(vec![groups.clone(), rows, width.clone()]))?;
            let all = self.graph.reshape(all, shape)?;
            let all = self.times(all, rounded + flushed)?;
            by = self.e(E::Add, &[by, all])?;
        }
        let by = self.plus(by, smallest(dtype))?;
        self.around(middle, by)
    }

    /// How far scores move and how large they are, `[G, H / G * S]`, with a bias added to them.
    fn with_bias(
        &mut self,
        [moved, score]: [Value; 2],
        bias: &Ball,
        extents: [&Dim; 3],
    ) -> Result<[Value; 2], GraphError> {
        let (all, shape) = (Shape::new(extents.map(Dim::clone).to_vec()), self.graph.ty(score).shape.clone());
        let hidden = self.graph.full_like(bias.middle, f64::NEG_INFINITY)?;
        let hidden = self.e(E::Eq, &[bias.middle, hidden])?;
        let nothing = self.graph.full_like(bias.middle, 0.0)?;
        let radius = self.e(E::Sub, &[bias.most, bias.size])?;
        let mut of_rows = |v: Value| -> Result<Value, GraphError> {
            let v = self.graph.elementwise(E::Select, &[hidden, nothing, v])?;
            let v = self.graph.broadcast(v, all.clone())?;
            let largest = self.graph.add(Op::Reduce { kind: ReduceKind::Max, axes: vec![2] }, &[v])?;
            self.graph.reshape(largest, shape.clone())
        };
        let (most, radius) = (of_rows(bias.most)?, of_rows(radius)?);
        Ok([self.e(E::Add, &[moved, radius])?, self.e(E::Add, &[score, most])?])
    }

    /// How far scores move and how large they are, `[G, H / G * S]`, with `sinks: [H]` among them.
    fn with_sinks(
        &mut self,
        [moved, score]: [Value; 2],
        sinks: &Ball,
        [heads, queries]: [&Dim; 2],
    ) -> Result<[Value; 2], GraphError> {
        let shape = self.graph.ty(score).shape.clone();
        let mut of_rows = |v: Value| -> Result<Value, GraphError> {
            let v = self.graph.reshape(v, [heads.clone(), Dim::one()])?;
            let v = self.graph.broadcast(v, [heads.clone(), queries.clone()])?;
            self.graph.reshape(v, shape.clone())
        };
        let (size, most) = (of_rows(sinks.size)?, of_rows(sinks.most)?);
        let infinite = self.graph.full_like(most, f64::INFINITY)?;
        let infinite = self.e(E::Eq, &[most, infinite])?;
        let nothing = self.graph.full_like(most, 0.0)?;
        let radius = self.e(E::Sub, &[most, size])?;
        let radius = self.e(E::Select, &[infinite, nothing, radius])?;
        let limit = self.e(E::Add, &[score, radius])?;
        let limit = self.plus(limit, 1000.0)?;
        let far = self.e(E::Gt, &[size, limit])?;
        let [radius, most] = [radius, most].map(|v| self.e(E::Select, &[far, nothing, v]));
        Ok([self.e(E::Add, &[moved, radius?])?, self.e(E::Add, &[score, most?])?])
    }
}
