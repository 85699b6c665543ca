//! Several texts in one run: the rows of one follow those of another, without padding.
//!
//! Positions restart at each text, attention hides the keys of other texts, recurrences start again, and each text has an
//! embedding. Everything else is computed for each row alone.

use tallow_ir::{DType, Dim, ElementwiseOp, Op, Symbol, Value};

use super::{Builder, Result};
use crate::config::Pooling;
use crate::names::{FIRST_ROWS, LAST_ROWS, TEXT_OF_ROW, TEXTS};

/// The texts of a run.
#[derive(Clone, Debug)]
pub(super) struct Texts {
    /// How many there are.
    count: Dim,
    /// The number of the text of each row, `[rows]` of u32.
    of_row: Value,
    /// The first row of each text, `[texts]` of u32.
    first: Value,
    /// The position of each row in its text, `[rows]` of u32.
    positions: Value,
}

impl Builder<'_> {
    /// The same for the rows of several texts, at most one for each of `limit` rows. Their number is the symbol [`TEXTS`];
    /// inputs are [`TEXT_OF_ROW`], [`FIRST_ROWS`] and, for some kinds of pooling, [`LAST_ROWS`].
    pub(crate) fn with_texts(mut self, limit: usize) -> Result<Self> {
        let count = Dim::from(Symbol::new(TEXTS, limit as u32));
        let of_row = self.g.input(TEXT_OF_ROW, DType::U32, [self.seq.clone()])?;
        let first = self.g.input(FIRST_ROWS, DType::U32, [count.clone()])?;
        let row = self.g.add(Op::Iota { len: self.seq.clone(), dtype: DType::U32 }, &[])?;
        let first_of_row = self.g.add(Op::Gather { axis: 0 }, &[first, of_row])?;
        let positions = self.g.elementwise(ElementwiseOp::Sub, &[row, first_of_row])?;
        self.texts = Some(Texts { count, of_row, first, positions });
        Ok(self)
    }

    /// The positions of the rows in their texts, `[rows]` of u32, where a run has several.
    pub(super) fn positions_in_texts(&self) -> Option<Value> {
        self.texts.as_ref().map(|texts| texts.positions)
    }

    /// What attention adds to scores so that no row sees another text, `[1, rows, rows]`: 0, or negative infinity for a key
    /// of another text. Nothing where a run has one text.
    ///
    /// [`Op::Attention`] hides keys by their distance alone. Causal masks and windows stay its own, as rows of a text lie as
    /// far apart as their positions.
    pub(super) fn bias_of_texts(&mut self) -> Result<Option<Value>> {
        let Some(Texts { of_row, .. }) = self.texts else { return Ok(None) };
        let rows = self.seq.clone();
        let shape = [Dim::one(), rows.clone(), rows.clone()];
        let query = self.g.reshape(of_row, [Dim::one(), rows.clone(), Dim::one()])?;
        let query = self.g.broadcast(query, shape.clone())?;
        let key = self.g.reshape(of_row, [Dim::one(), Dim::one(), rows])?;
        let key = self.g.broadcast(key, shape.clone())?;
        let is_same = self.g.elementwise(ElementwiseOp::Eq, &[query, key])?;
        let [seen, hidden] = [0.0, f64::NEG_INFINITY].map(|score| self.constant(score, &shape));
        self.g.elementwise(ElementwiseOp::Select, &[is_same, seen?, hidden?]).map(Some)
    }

    /// `x: [rows, ..]`, whose rows depend on the row `distance` before them, with zeros where that is of another text.
    pub(super) fn within_texts(&mut self, x: Value, distance: usize) -> Result<Value> {
        let Some(Texts { positions, .. }) = self.texts else { return Ok(x) };
        let shape = self.g.ty(x).shape.clone();
        let least = self.g.full_like(positions, distance as f64)?;
        let is_within = self.g.elementwise(ElementwiseOp::Ge, &[positions, least])?;
        let others: Vec<usize> = (1..shape.rank()).collect();
        let is_within = self.g.reshape(is_within, shape.with_ones(&others))?;
        let is_within = self.g.broadcast(is_within, shape)?;
        let zeros = self.g.full_like(x, 0.0)?;
        self.g.elementwise(ElementwiseOp::Select, &[is_within, x, zeros])
    }

    /// The embeddings of texts whose rows are `x: [rows, width]`: `[texts, width]`, or `x` without pooling.
    ///
    /// # Errors
    /// When `x` is not of floats, or the run has one text.
    pub(super) fn pooled_by_text(&mut self, x: Value, pooling: Pooling, texts: &Texts) -> Result<Value> {
        let Texts { count, of_row, first, .. } = texts.clone();
        match pooling {
            Pooling::None => Ok(x),
            Pooling::Cls => self.g.add(Op::Gather { axis: 0 }, &[x, first]),
            Pooling::Last => {
                let last = self.g.input(LAST_ROWS, DType::U32, [count])?;
                self.g.add(Op::Gather { axis: 0 }, &[x, last])
            }
            Pooling::Mean => {
                let width = self.config.width;
                let last = self.g.input(LAST_ROWS, DType::U32, [count.clone()])?;
                let sums = self.constant(0.0, &[Dim::one(), count.clone(), width.into()])?;
                let rows = self.g.reshape(x, [Dim::one(), self.seq.clone(), width.into()])?;
                let sums = self.g.add(Op::IndexAdd, &[sums, of_row, rows])?;
                let sums = self.g.reshape(sums, [count.clone(), width.into()])?;
                let others = self.g.elementwise(ElementwiseOp::Sub, &[last, first])?;
                let others = self.g.add(Op::Cast(DType::F32), &[others])?;
                let tokens = self.plus(others, 1.0)?;
                let tokens = self.g.reshape(tokens, [count, Dim::one()])?;
                let shape = self.g.ty(sums).shape.clone();
                let tokens = self.g.broadcast(tokens, shape)?;
                self.g.elementwise(ElementwiseOp::Div, &[sums, tokens])
            }
        }
    }

    /// A number in f32, repeated.
    fn constant(&mut self, number: f64, shape: &[Dim]) -> Result<Value> {
        let number = self.g.add(Op::Const(tallow_ir::Scalar::of(DType::F32, number)), &[])?;
        self.g.broadcast(number, shape.to_vec())
    }
}
