//! Feed-forward layers.

use tallow_ir::Value;

use super::{Builder, Result};
use crate::layers::Activation;

impl Builder<'_> {
    /// `down(f(gate(x)) * up(x))` (gated linear units: Shazeer, arXiv 2002.05202).
    ///
    /// # Errors
    /// When a weight is missing or of another shape.
    pub fn gated(&mut self, x: Value, activation: Activation) -> Result<Value> {
        self.gated_parts(x, activation, ["ffn_gate", "ffn_up", "ffn_down"], self.config.feed_forward)
    }

    /// As [`Builder::gated`], with weights of these names and a hidden width.
    ///
    /// # Errors
    /// As there.
    pub fn gated_parts(
        &mut self,
        x: Value,
        activation: Activation,
        [gate, up, down]: [&str; 3],
        hidden: usize,
    ) -> Result<Value> {
        let gate = self.linear(x, gate, hidden)?;
        let up = self.linear(x, up, hidden)?;
        let gate = activation.of(&mut self.g, gate)?;
        let product = self.mul(gate, up)?;
        self.linear(product, down, self.config.width)
    }

    /// As [`Builder::gated`], with gate and up in one weight, `ffn_up: [2 hidden, width]`, the gate first.
    ///
    /// # Errors
    /// As there.
    pub fn gated_in_one(&mut self, x: Value, activation: Activation) -> Result<Value> {
        let hidden = self.config.feed_forward;
        let both = self.linear(x, "ffn_up", 2 * hidden)?;
        let gate = self.part_of_columns(both, 0, hidden)?;
        let up = self.part_of_columns(both, hidden, hidden)?;
        let gate = activation.of(&mut self.g, gate)?;
        let product = self.mul(gate, up)?;
        self.linear(product, "ffn_down", self.config.width)
    }

    /// `down(f(up(x)))`.
    ///
    /// # Errors
    /// When a weight is missing or of another shape.
    pub fn plain(&mut self, x: Value, activation: Activation) -> Result<Value> {
        let up = self.linear(x, "ffn_up", self.config.feed_forward)?;
        let up = activation.of(&mut self.g, up)?;
        self.linear(up, "ffn_down", self.config.width)
    }

    /// Columns `start .. start + count` of `x: [rows, columns]`.
    pub(super) fn part_of_columns(&mut self, x: Value, start: usize, count: usize) -> Result<Value> {
        self.part(x, 1, start, count)
    }
}
