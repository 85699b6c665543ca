//! Mixtures of experts (Shazeer et al., arXiv 1701.06538): a router chooses a few feed-forward layers for each token.

use tallow_ir::{DType, Dim, ElementwiseOp, Op, ReduceKind, SortSpan, Value};

use super::tiles::Tiles;
use super::{Builder, Result};
use crate::config::{Experts, Router};
use crate::layers::{Activation, softmax};

/// The experts of each row.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Numbers of the experts, `[rows * used]` of u32.
    pub experts: Value,
    /// Their weights, `[rows, used]`, up to the factor.
    pub weights: Value,
    /// What the sum of each row is multiplied by, `[rows, 1]`.
    pub factor: Option<Value>,
    /// The tiles of rows of one expert each, where there are many rows.
    pub tiles: Option<Tiles>,
}

impl Builder<'_> {
    /// The experts of each row of `x: [rows, width]` by the router `ffn_gate_inp: [experts, width]`.
    ///
    /// The divisor of a softmax is a factor of a row, which the sum over experts takes in: products need not wait for it.
    ///
    /// # Errors
    /// When the weight is missing or of another shape.
    pub fn route(&mut self, x: Value, e: &Experts) -> Result<Choice> {
        let scores = self.linear(x, "ffn_gate_inp", e.count)?;
        let is_biased = self.has("exp_probs_b.bias");
        let (values, are_exponents) = match e.router {
            Router::Sigmoid => (self.sigmoid(scores)?, false),
            Router::Softmax if is_biased => (softmax(&mut self.g, scores)?, false),
            // Exponentials have the order of their exponents.
            Router::Softmax | Router::SoftmaxOfChosen => (scores, true),
        };
        let mut candidates = values;
        if is_biased {
            // It moves the choice, not the weights (DeepSeek V3: arXiv 2412.19437, section 2.1.2).
            let bias = self.weight("exp_probs_b.bias", &[e.count])?;
            let shape = self.g.ty(candidates).shape.clone();
            let bias = self.g.broadcast(bias, shape)?;
            candidates = self.add(candidates, bias)?;
        }
        if let Some([groups, chosen]) = e.groups {
            candidates = self.of_best_groups(candidates, e, [groups, chosen])?;
        }
        let experts = self.best(candidates, e.used)?;
        let chosen = self.picked(values, e.count, experts, e.used)?;
        let (weights, sum) = match are_exponents {
            true => self.exponentials(chosen, scores, e)?,
            // All may have underflowed.
            false => (chosen, if e.normalizes { Some(self.sum_of_row(chosen, 1e-20)?) } else { None }),
        };
        let factor = match sum {
            Some(sum) => {
                let scale = self.g.full_like(sum, e.scale.into())?;
                Some(self.g.elementwise(ElementwiseOp::Div, &[scale, sum])?)
            }
            None => None,
        };
        let weights =
            if e.scale == 1.0 || factor.is_some() { weights } else { self.scaled(weights, e.scale)? };
        let tiles = self.tiles(experts, e)?;
        Ok(Choice { experts, weights, factor, tiles })
    }

    /// The exponentials of the scores of the experts chosen from all `scores: [rows, experts]`, relative to the greatest, and
    /// the sum that they are divided by: their own, or that of all experts.
    fn exponentials(&mut self, chosen: Value, scores: Value, e: &Experts) -> Result<(Value, Option<Value>)> {
        // The greatest comes first, unless a bias moved the choice.
        let greatest = match self.has("exp_probs_b.bias") {
            false => self.g.add(Op::Slice { axis: 1, start: Dim::zero(), len: Dim::one() }, &[chosen])?,
            true => self.g.reduce_keepdim(ReduceKind::Max, chosen, &[1])?,
        };
        let weights = self.exponential_above(chosen, greatest)?;
        let of_chosen = e.normalizes || e.router == Router::SoftmaxOfChosen;
        let terms = if of_chosen { weights } else { self.exponential_above(scores, greatest)? };
        Ok((weights, Some(self.sum_of_row(terms, 0.0)?)))
    }

    /// `e^(x - bound)` for `x: [rows, n]` and `bound: [rows, 1]`.
    fn exponential_above(&mut self, x: Value, bound: Value) -> Result<Value> {
        let shape = self.g.ty(x).shape.clone();
        let bound = self.g.broadcast(bound, shape)?;
        let above = self.g.elementwise(ElementwiseOp::Sub, &[x, bound])?;
        self.g.elementwise(ElementwiseOp::Exp, &[above])
    }

    /// The sum of each row of `x: [rows, n]`, `[rows, 1]`, at least `least`.
    fn sum_of_row(&mut self, x: Value, least: f32) -> Result<Value> {
        let sum = self.g.reduce_keepdim(ReduceKind::Sum, x, &[1])?;
        if least == 0.0 { Ok(sum) } else { self.at_least(sum, least) }
    }

    /// The columns of the `count` largest elements of each row of `x`, `[rows * count]` of u32.
    fn best(&mut self, x: Value, count: usize) -> Result<Value> {
        let rows = self.g.ty(x).shape.dims()[0].clone();
        let span = SortSpan::First(count as u32);
        let order = self.g.add(Op::ArgSort { axis: 1, descending: true, span }, &[x])?;
        self.g.reshape(order, [&rows * &count.into()])
    }

    /// The elements of `x: [rows, columns]` in `count` columns of each row, `at: [rows * count]`: `[rows, count]`.
    pub(super) fn picked(&mut self, x: Value, columns: usize, at: Value, count: usize) -> Result<Value> {
        let rows = self.g.ty(x).shape.dims()[0].clone();
        let flat = self.g.reshape(x, [&rows * &columns.into()])?;
        let row = self.g.add(Op::Iota { len: rows.clone(), dtype: DType::U32 }, &[])?;
        let start = self.scaled(row, columns as f32)?;
        let start = self.g.reshape(start, [rows.clone(), Dim::one()])?;
        let start = self.g.broadcast(start, [rows.clone(), count.into()])?;
        let start = self.g.reshape(start, [&rows * &count.into()])?;
        let at = self.add(start, at)?;
        let found = self.g.add(Op::Gather { axis: 0 }, &[flat, at])?;
        self.g.reshape(found, [rows, count.into()])
    }

    /// `x: [rows, experts]` with negative infinity for all experts but those of the `chosen` groups with the largest scores.
    /// The score of a group is its best one (DeepSeek V2), or with sigmoids the sum of its two best (V3).
    fn of_best_groups(&mut self, x: Value, e: &Experts, [groups, chosen]: [usize; 2]) -> Result<Value> {
        let (experts, size) = (e.count, e.count / groups);
        let by_group = self.g.reshape(x, [&self.seq * &groups.into(), size.into()])?;
        let scores = match e.router {
            Router::Sigmoid => {
                let columns = self.best(by_group, 2)?;
                let scores = self.picked(by_group, size, columns, 2)?;
                self.across(scores, 2, ElementwiseOp::Add)?
            }
            Router::Softmax | Router::SoftmaxOfChosen => {
                self.g.add(Op::Reduce { kind: ReduceKind::Max, axes: vec![1] }, &[by_group])?
            }
        };
        let scores = self.g.reshape(scores, [self.seq.clone(), groups.into()])?;
        let best = self.best(scores, chosen)?;
        // Which groups are among the best: one of the chosen numbers is theirs.
        let shape = [&self.seq * &groups.into(), chosen.into()];
        let best = self.g.reshape(best, [self.seq.clone(), Dim::one(), chosen.into()])?;
        let best = self.g.broadcast(best, [self.seq.clone(), groups.into(), chosen.into()])?;
        let best = self.g.reshape(best, shape.clone())?;
        let number = self.g.add(Op::Iota { len: groups.into(), dtype: DType::U32 }, &[])?;
        let number = self.g.reshape(number, [Dim::one(), groups.into(), Dim::one()])?;
        let number = self.g.broadcast(number, [self.seq.clone(), groups.into(), chosen.into()])?;
        let number = self.g.reshape(number, shape)?;
        let same = self.g.elementwise(ElementwiseOp::Eq, &[best, number])?;
        let is_best = self.across(same, chosen, ElementwiseOp::Or)?;
        let is_best = self.g.reshape(is_best, [&self.seq * &groups.into(), Dim::one()])?;
        let is_best = self.g.broadcast(is_best, [&self.seq * &groups.into(), size.into()])?;
        let lowest = self.g.full_like(by_group, f64::NEG_INFINITY)?;
        let remaining = self.g.elementwise(ElementwiseOp::Select, &[is_best, by_group, lowest])?;
        self.g.reshape(remaining, [self.seq.clone(), experts.into()])
    }

    /// The columns of `x: [rows, count]`, a few, combined by `op`: `[rows]`. Unlike a reduction, what reads it computes it.
    fn across(&mut self, x: Value, count: usize, op: ElementwiseOp) -> Result<Value> {
        let mut all = self.part(x, 1, 0, 1)?;
        for column in 1..count {
            let next = self.part(x, 1, column, 1)?;
            all = self.g.elementwise(op, &[all, next])?;
        }
        let rows = self.g.ty(x).shape.dims()[0].clone();
        self.g.reshape(all, [rows])
    }

    /// The sum of the chosen experts' gated layers of `x: [rows, width]`, times their weights: `[rows, width]`. Weights are
    /// `ffn_gate_exps`, `ffn_up_exps: [experts, hidden, width]` and `ffn_down_exps: [experts, width, hidden]`.
    ///
    /// # Errors
    /// When a weight is missing or of another shape.
    pub fn gated_experts(&mut self, x: Value, activation: Activation, e: &Experts) -> Result<Value> {
        let choice = self.route(x, e)?;
        let x = self.expert_rows(x, &choice)?;
        let gate = self.of_experts(x, &choice, "ffn_gate_exps", e)?;
        let up = self.of_experts(x, &choice, "ffn_up_exps", e)?;
        let gate = activation.of(&mut self.g, gate)?;
        let product = self.mul(gate, up)?;
        self.sum_of_experts(product, &choice, "ffn_down_exps", e)
    }
}
