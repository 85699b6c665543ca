//! What a recurrent layer carries from token to token: states of the graph, which are 0 where a text begins.

use tallow_ir::{DType, Dim, ElementwiseOp, Op, Scalar, ScanKind, Shape, Value};

use super::{Builder, Result};
use crate::layers::last_row;

/// A state of a layer.
#[derive(Clone, Copy, Debug)]
struct Carried {
    /// The state, if the graph has a cache.
    state: Option<Value>,
    /// What it holds before this run: zeros at position 0, whatever is in memory.
    before: Value,
}

impl Builder<'_> {
    /// The state `name` of this layer, in f32.
    fn carried(&mut self, name: &str, shape: &[Dim]) -> Result<Carried> {
        let shape = Shape::from(shape.to_vec());
        let zero = self.g.add(Op::Const(Scalar::of(DType::F32, 0.0)), &[])?;
        let zeros = self.g.broadcast(zero, shape.clone())?;
        if !self.has_cache {
            return Ok(Carried { state: None, before: zeros });
        }
        let state = self.g.state(&format!("{name}.{}", self.layer()), DType::F32, shape.clone())?;
        let position = self.g.add(Op::DimValue { dim: self.pos.clone(), dtype: DType::U32 }, &[])?;
        let start = self.g.full_like(position, 0.0)?;
        let is_later = self.g.elementwise(ElementwiseOp::Gt, &[position, start])?;
        let is_later = self.g.broadcast(is_later, shape)?;
        let before = self.g.elementwise(ElementwiseOp::Select, &[is_later, state, zeros])?;
        Ok(Carried { state: Some(state), before })
    }

    /// Writes what the next run finds in a state.
    fn carry_on(&mut self, carried: Carried, after: Value) -> Result<()> {
        let Some(state) = carried.state else { return Ok(()) };
        let offsets = vec![Dim::zero(); self.g.ty(state).shape.rank()];
        let written = self.g.add(Op::StateUpdate { offsets, rows: None }, &[state, after])?;
        self.g.keep(written)
    }

    /// The convolution of each channel of `x: [rows, channels]` over the last `kernel` tokens, by the weight
    /// `{part}.weight: [channels, kernel]`, whose last column is for the token itself; plus `{part}.bias` where the file has
    /// it. Tokens before the text are 0. The state holds the `kernel - 1` last ones.
    ///
    /// # Errors
    /// When the weight is missing or of another shape.
    pub fn short_convolution(&mut self, x: Value, part: &str, kernel: usize) -> Result<Value> {
        let (channels, shape) = (self.columns(x), self.g.ty(x).shape.clone());
        let carried = self.carried("conv", &[(kernel - 1).into(), channels.into()])?;
        let all = self.joined(&[carried.before, x], 0)?;
        let w = self.weight(&format!("{part}.weight"), &[channels, kernel])?;
        let w = self.g.permute(w, &[1, 0])?;
        let mut sum = None;
        for column in 0..kernel {
            let slice = Op::Slice { axis: 0, start: column.into(), len: self.seq.clone() };
            let tokens = self.g.add(slice, &[all])?;
            let factor = self.part(w, 0, column, 1)?;
            let factor = self.g.broadcast(factor, shape.clone())?;
            let tokens = self.within_texts(tokens, kernel - 1 - column)?;
            let term = self.mul(tokens, factor)?;
            sum = Some(match sum {
                Some(sum) => self.add(sum, term)?,
                None => term,
            });
        }
        let last = Op::Slice { axis: 0, start: self.seq.clone(), len: (kernel - 1).into() };
        let last = self.g.add(last, &[all])?;
        self.carry_on(carried, last)?;
        self.plus_bias(sum.unwrap_or(x), part)
    }

    /// `h[t] = a[t] * h[t-1] + b[t]` over the tokens, for `a` and `b` of `[rows, channels, n]`: every `h`, of the same shape.
    /// The state `[channels, n]` holds the last one.
    ///
    /// # Errors
    /// When the shapes differ.
    pub fn recurrence(&mut self, a: Value, b: Value) -> Result<Value> {
        let shape = self.g.ty(a).shape.clone();
        let of_state = shape.dims()[1..].to_vec();
        let carried = self.carried("ssm", &of_state)?;
        let before = self.g.reshape(carried.before, [&[Dim::one()], &of_state[..]].concat())?;
        let before = self.g.broadcast(before, shape)?;
        let before = self.mul(a, before)?;
        let h = if self.seq.is(1) {
            self.add(before, b)?
        } else {
            let before = self.of_first_row(before)?;
            // A text starts from 0: the first row's factor of what other texts leave is 0.
            let a = self.within_texts(a, 1)?;
            let b = self.add(before, b)?;
            self.g.add(Op::Scan { kind: ScanKind::Linear, axis: 0, part: None }, &[a, b])?
        };
        let last = last_row(&mut self.g, h)?;
        let last = self.g.reshape(last, of_state)?;
        self.carry_on(carried, last)?;
        Ok(h)
    }

    /// `x: [rows, ..]` with zeros in all rows but the first.
    fn of_first_row(&mut self, x: Value) -> Result<Value> {
        let shape = self.g.ty(x).shape.clone();
        let row = self.g.add(Op::Iota { len: self.seq.clone(), dtype: DType::U32 }, &[])?;
        let first = self.g.full_like(row, 0.0)?;
        let is_first = self.g.elementwise(ElementwiseOp::Eq, &[row, first])?;
        let others: Vec<usize> = (1..shape.rank()).collect();
        let is_first = self.g.reshape(is_first, shape.with_ones(&others))?;
        let is_first = self.g.broadcast(is_first, shape)?;
        let zeros = self.g.full_like(x, 0.0)?;
        self.g.elementwise(ElementwiseOp::Select, &[is_first, x, zeros])
    }
}
