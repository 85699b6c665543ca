//! Products of rows with the weights of the experts that each of them chose.
//!
//! With few rows, the chosen experts of a row are one matrix: their outputs are its columns, side by side, and the sum over
//! them is part of the sum over inputs. With many, rows are sorted into tiles of one expert each, so that each expert's
//! weights are read once per tile.

use tallow_ir::{Dim, Op, ReduceKind, Value};

use super::experts::Choice;
use super::tiles::Tiles;
use super::{Builder, Result};
use crate::config::Experts;

impl Builder<'_> {
    /// The rows of `x: [rows, width]` as [`Builder::of_experts`] takes them: `[rows, 1, width]`, or `[tiles, tile rows,
    /// width]`.
    ///
    /// # Errors
    /// None for a choice of this graph.
    pub fn expert_rows(&mut self, x: Value, choice: &Choice) -> Result<Value> {
        let width = Dim::constant(self.columns(x) as i64);
        match &choice.tiles {
            None => self.g.reshape(x, [self.seq.clone(), Dim::one(), width]),
            Some(tiles) => {
                let sorted = self.g.add(Op::Gather { axis: 0 }, &[x, tiles.rows])?;
                self.g.reshape(sorted, [tiles.count.into(), tiles.size.into(), width])
            }
        }
    }

    /// The products of [rows](Builder::expert_rows) with the `{part}.weight: [experts, hidden, width]` of their experts, plus
    /// `{part}.bias: [experts, hidden]` where the file has it: `[rows, 1, used * hidden]`, or `[tiles, tile rows, hidden]`.
    ///
    /// # Errors
    /// When the weight is missing or of another shape.
    pub fn of_experts(&mut self, x: Value, choice: &Choice, part: &str, e: &Experts) -> Result<Value> {
        let (inputs, outputs) = (self.columns(x), e.feed_forward);
        let w = self.weight(&format!("{part}.weight"), &[e.count, outputs, inputs])?;
        let (numbers, shape) = match &choice.tiles {
            None => (choice.experts, [self.seq.clone(), (e.used * outputs).into(), inputs.into()]),
            Some(tiles) => (tiles.experts, [tiles.count.into(), outputs.into(), inputs.into()]),
        };
        let w = self.g.add(Op::Gather { axis: 0 }, &[w, numbers])?;
        let w = self.g.reshape(w, shape)?;
        let w = self.g.permute(w, &[0, 2, 1])?;
        let mut y = self.g.add(Op::Matmul, &[x, w])?;
        if let Some(tiles) = &choice.tiles {
            y = self.of_filled(y, tiles)?;
        }
        let bias = format!("{part}.bias");
        if !self.has(&bias) {
            return Ok(y);
        }
        let shape = self.g.ty(y).shape.clone();
        let [batch, _, columns] = shape.dims() else { return Ok(y) };
        let b = self.weight(&bias, &[e.count, outputs])?;
        let b = self.g.add(Op::Gather { axis: 0 }, &[b, numbers])?;
        let b = self.g.reshape(b, [batch.clone(), Dim::one(), columns.clone()])?;
        let b = self.g.broadcast(b, shape)?;
        self.add(y, b)
    }

    /// The sum over the experts of each row of their products of `h`, as [`Builder::of_experts`] returns it, with
    /// `{part}.weight: [experts, width, hidden]`, plus biases, times their weights: `[rows, width]`.
    ///
    /// # Errors
    /// When the weight is missing or of another shape.
    pub fn sum_of_experts(&mut self, h: Value, choice: &Choice, part: &str, e: &Experts) -> Result<Value> {
        let (width, hidden) = (self.config.width, e.feed_forward);
        let w = self.weight(&format!("{part}.weight"), &[e.count, width, hidden])?;
        let bias = format!("{part}.bias");
        let bias = if self.has(&bias) { Some(self.weight(&bias, &[e.count, width])?) } else { None };
        let sum = match &choice.tiles {
            None => self.sum_of_rows(h, choice, (w, bias), e)?,
            Some(tiles) => self.sum_of_tiles(h, (choice, tiles), (w, bias), e)?,
        };
        let Some(factor) = choice.factor else { return Ok(sum) };
        let shape = self.g.ty(sum).shape.clone();
        let factor = self.g.broadcast(factor, shape)?;
        self.mul(sum, factor)
    }

    /// `sum_e p_e (W_e h_e + b_e)` of each row is a product with all `W_e` side by side, plus one with all `b_e`.
    fn sum_of_rows(
        &mut self,
        h: Value,
        choice: &Choice,
        (w, bias): (Value, Option<Value>),
        e: &Experts,
    ) -> Result<Value> {
        let (width, hidden, used, rows) = (self.config.width, e.feed_forward, e.used, self.seq.clone());
        let h = self.g.reshape(h, [rows.clone(), used.into(), hidden.into()])?;
        let h = self.weighted(h, choice, e)?;
        let h = self.g.reshape(h, [rows.clone(), Dim::one(), (used * hidden).into()])?;
        let w = self.g.add(Op::Gather { axis: 0 }, &[w, choice.experts])?;
        let w = self.g.reshape(w, [rows.clone(), used.into(), width.into(), hidden.into()])?;
        let w = self.g.permute(w, &[0, 1, 3, 2])?;
        let w = self.g.reshape(w, [rows.clone(), (used * hidden).into(), width.into()])?;
        let y = self.g.add(Op::Matmul, &[h, w])?;
        let y = self.g.reshape(y, [rows.clone(), width.into()])?;
        let Some(bias) = bias else { return Ok(y) };
        let bias = self.g.add(Op::Gather { axis: 0 }, &[bias, choice.experts])?;
        let bias = self.g.reshape(bias, [rows.clone(), used.into(), width.into()])?;
        let weights = self.g.reshape(choice.weights, [rows.clone(), Dim::one(), used.into()])?;
        let bias = self.g.add(Op::Matmul, &[weights, bias])?;
        let bias = self.g.reshape(bias, [rows, width.into()])?;
        self.add(y, bias)
    }

    /// The products of the tiles, and the sum over the positions of each row in them.
    fn sum_of_tiles(
        &mut self,
        h: Value,
        (choice, tiles): (&Choice, &Tiles),
        (w, bias): (Value, Option<Value>),
        e: &Experts,
    ) -> Result<Value> {
        let width = Dim::from(self.config.width);
        let w = self.g.add(Op::Gather { axis: 0 }, &[w, tiles.experts])?;
        let w = self.g.permute(w, &[0, 2, 1])?;
        let y = self.g.add(Op::Matmul, &[h, w])?;
        let y = self.of_filled(y, tiles)?;
        let y = self.g.reshape(y, [(tiles.count * tiles.size).into(), width.clone()])?;
        let mut y = self.g.add(Op::Gather { axis: 0 }, &[y, tiles.positions])?;
        if let Some(bias) = bias {
            let bias = self.g.add(Op::Gather { axis: 0 }, &[bias, choice.experts])?;
            y = self.add(y, bias)?;
        }
        let y = self.g.reshape(y, [self.seq.clone(), e.used.into(), width])?;
        let y = self.weighted(y, choice, e)?;
        self.g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1] }, &[y])
    }

    /// `y: [rows, used, n]` times the weights of the experts.
    fn weighted(&mut self, y: Value, choice: &Choice, e: &Experts) -> Result<Value> {
        let shape = self.g.ty(y).shape.clone();
        let weights = self.g.reshape(choice.weights, [self.seq.clone(), e.used.into(), Dim::one()])?;
        let weights = self.g.broadcast(weights, shape)?;
        self.mul(y, weights)
    }
}
