//! Mixtures of experts (Shazeer et al., arXiv 1701.06538): a router chooses a few feed-forward layers for each token.

use tallow_ir::{DType, Dim, ElementwiseOp, Op, ReduceKind, SortSpan, Value};

use super::{Builder, Result};
use crate::config::{Experts, Router};
use crate::layers::{Activation, softmax};

/// The experts of each row.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Numbers of the experts, `[rows * used]` of u32.
    pub experts: Value,
    /// Their weights, `[rows, used]`.
    pub weights: Value,
}

impl Builder<'_> {
    /// The experts of each row of `x: [rows, width]` by the router `ffn_gate_inp: [experts, width]`.
    ///
    /// # Errors
    /// When the weight is missing or of another shape.
    pub fn route(&mut self, x: Value, e: &Experts) -> Result<Choice> {
        let scores = self.linear(x, "ffn_gate_inp", e.count)?;
        let probabilities = match e.router {
            Router::Softmax => softmax(&mut self.g, scores)?,
            Router::Sigmoid => self.sigmoid(scores)?,
            Router::SoftmaxOfChosen => scores,
        };
        let mut candidates = probabilities;
        if self.has("exp_probs_b.bias") {
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
        let mut weights = self.picked(probabilities, e.count, experts, e.used)?;
        if e.router == Router::SoftmaxOfChosen {
            weights = softmax(&mut self.g, weights)?;
        }
        if e.normalizes {
            let sum = self.g.reduce_keepdim(ReduceKind::Sum, weights, &[1])?;
            // All scores may have underflowed.
            let sum = self.at_least(sum, 1e-20)?;
            let shape = self.g.ty(weights).shape.clone();
            let sum = self.g.broadcast(sum, shape)?;
            weights = self.g.elementwise(ElementwiseOp::Div, &[weights, sum])?;
        }
        let weights = if e.scale == 1.0 { weights } else { self.scaled(weights, e.scale)? };
        Ok(Choice { experts, weights })
    }

    /// The columns of the `count` largest elements of each row of `x`, `[rows * count]` of u32.
    fn best(&mut self, x: Value, count: usize) -> Result<Value> {
        let rows = self.g.ty(x).shape.dims()[0].clone();
        let span = SortSpan::First(count as u32);
        let order = self.g.add(Op::ArgSort { axis: 1, descending: true, span }, &[x])?;
        self.g.reshape(order, [&rows * &count.into()])
    }

    /// The elements of `x: [rows, columns]` in `count` columns of each row, `at: [rows * count]`: `[rows, count]`.
    fn picked(&mut self, x: Value, columns: usize, at: Value, count: usize) -> Result<Value> {
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
        let best = if e.router == Router::Sigmoid { 2 } else { 1 };
        let columns = self.best(by_group, best)?;
        let scores = self.picked(by_group, size, columns, best)?;
        let scores = self.g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1] }, &[scores])?;
        let scores = self.g.reshape(scores, [self.seq.clone(), groups.into()])?;
        let best = self.best(scores, chosen)?;
        // Which groups are among the best: one of the chosen numbers is theirs.
        let shape = [self.seq.clone(), chosen.into(), groups.into()];
        let best = self.g.reshape(best, [self.seq.clone(), chosen.into(), Dim::one()])?;
        let best = self.g.broadcast(best, shape.clone())?;
        let number = self.g.add(Op::Iota { len: groups.into(), dtype: DType::U32 }, &[])?;
        let number = self.g.broadcast(number, shape)?;
        let same = self.g.elementwise(ElementwiseOp::Eq, &[best, number])?;
        let is_best = self.g.add(Op::Reduce { kind: ReduceKind::Max, axes: vec![1] }, &[same])?;
        let is_best = self.g.reshape(is_best, [&self.seq * &groups.into(), Dim::one()])?;
        let is_best = self.g.broadcast(is_best, [&self.seq * &groups.into(), size.into()])?;
        let lowest = self.g.full_like(by_group, f64::NEG_INFINITY)?;
        let remaining = self.g.elementwise(ElementwiseOp::Select, &[is_best, by_group, lowest])?;
        self.g.reshape(remaining, [self.seq.clone(), experts.into()])
    }

    /// The sum of the chosen experts' gated layers of `x: [rows, width]`, times their weights: `[rows, width]`. Weights are
    /// `ffn_gate_exps`, `ffn_up_exps: [experts, hidden, width]` and `ffn_down_exps: [experts, width, hidden]`.
    ///
    /// # Errors
    /// When a weight is missing or of another shape.
    pub fn gated_experts(&mut self, x: Value, activation: Activation, e: &Experts) -> Result<Value> {
        let choice = self.route(x, e)?;
        let x = self.for_each_choice(x, e)?;
        let gate = self.grouped(x, choice, "ffn_gate_exps", e, e.feed_forward)?;
        let up = self.grouped(x, choice, "ffn_up_exps", e, e.feed_forward)?;
        let gate = activation.of(&mut self.g, gate)?;
        let product = self.mul(gate, up)?;
        let down = self.grouped(product, choice, "ffn_down_exps", e, self.config.width)?;
        self.combined(down, choice, e)
    }

    /// Rows of `x: [rows, n]` once for each expert of theirs: `[rows * used, n]`.
    pub fn for_each_choice(&mut self, x: Value, e: &Experts) -> Result<Value> {
        let n = Dim::constant(self.columns(x) as i64);
        let x = self.g.reshape(x, [self.seq.clone(), Dim::one(), n.clone()])?;
        let x = self.g.broadcast(x, [self.seq.clone(), e.used.into(), n.clone()])?;
        self.g.reshape(x, [&self.seq * &e.used.into(), n])
    }

    /// The product of each row of `x: [rows * used, inputs]` with its expert's part of `{part}.weight:
    /// [experts, outputs, inputs]`, plus its bias where the file has `{part}.bias: [experts, outputs]`.
    ///
    /// # Errors
    /// When the weight is missing or of another shape.
    pub fn grouped(
        &mut self,
        x: Value,
        choice: Choice,
        part: &str,
        e: &Experts,
        outputs: usize,
    ) -> Result<Value> {
        let inputs = self.columns(x);
        let rows = &self.seq * &e.used.into();
        let w = self.weight(&format!("{part}.weight"), &[e.count, outputs, inputs])?;
        let w = self.g.add(Op::Gather { axis: 0 }, &[w, choice.experts])?;
        let x = self.g.reshape(x, [rows.clone(), inputs.into(), Dim::one()])?;
        let y = self.g.add(Op::Matmul, &[w, x])?;
        let y = self.g.reshape(y, [rows, outputs.into()])?;
        let bias = format!("{part}.bias");
        if !self.has(&bias) {
            return Ok(y);
        }
        let b = self.weight(&bias, &[e.count, outputs])?;
        let b = self.g.add(Op::Gather { axis: 0 }, &[b, choice.experts])?;
        self.add(y, b)
    }

    /// The sum over the experts of each row of `y: [rows * used, n]`, times their weights: `[rows, n]`.
    pub fn combined(&mut self, y: Value, choice: Choice, e: &Experts) -> Result<Value> {
        let shape = [self.seq.clone(), e.used.into(), self.columns(y).into()];
        let y = self.g.reshape(y, shape.clone())?;
        let weights = self.g.reshape(choice.weights, [self.seq.clone(), e.used.into(), Dim::one()])?;
        let weights = self.g.broadcast(weights, shape)?;
        let product = self.mul(y, weights)?;
        self.g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1] }, &[product])
    }
}
