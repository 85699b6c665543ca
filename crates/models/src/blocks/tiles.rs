//! Rows sorted by expert, in tiles that have one expert each.

use tallow_ir::{DType, Dim, ElementwiseOp, Op, ReduceKind, Scalar, ScanKind, ScatterKind, Value};

use super::{Builder, Result};
use crate::config::Experts;

/// Most rows of a run that are not sorted: a row reads the weights of its own experts, and rows share few.
const FEW_ROWS: i64 = 8;

/// Fewest and most rows of a tile: those of a matrix instruction, and where reading and unpacking the weights of a tile no
/// longer takes most of its time.
const TILE_ROWS: [usize; 2] = [16, 64];

/// Where each pair of a row and one of its experts is among tiles of `size` positions. Unused positions hold row 0; their
/// results are never read.
#[derive(Clone, Copy, Debug)]
pub struct Tiles {
    /// The row at each position, `[count * size]` of u32.
    pub rows: Value,
    /// The expert of each tile, `[count]` of u32; of tiles without pairs, a number that is no expert's.
    pub experts: Value,
    /// The position of each pair, `[rows * used]` of u32.
    pub positions: Value,
    /// Whether each tile has pairs, `[count]` of u8.
    pub is_filled: Value,
    /// How many tiles there are.
    pub count: usize,
    /// Positions of a tile.
    pub size: usize,
}

impl Builder<'_> {
    /// The tiles for the experts `[rows * used]` of many rows; `None` where there are few rows.
    ///
    /// An expert's pairs are numbered by counting those of each expert among the pairs before. Its tiles come after those of
    /// the experts before it: with `c` pairs it has `(c + size - 1) / size` tiles. All experts together have at most
    /// `(pairs + experts * (size - 1)) / size`.
    pub(super) fn tiles(&mut self, experts: Value, e: &Experts) -> Result<Option<Tiles>> {
        if self.seq.max_value() <= FEW_ROWS {
            return Ok(None);
        }
        let most = self.seq.max_value() as usize * e.used;
        let size = (most / e.count).next_power_of_two().clamp(TILE_ROWS[0], TILE_ROWS[1]);
        let count = (most + e.count * (size - 1)) / size;
        let pairs = &self.seq * &e.used.into();
        let is_own = self.is_expert(experts, &pairs, e)?;
        let before = self.g.add(Op::Scan { kind: ScanKind::Sum, axis: 0, part: None }, &[is_own])?;
        let counts = self.g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![0] }, &[is_own])?;
        let filled = self.plus(counts, (size - 1) as f32)?;
        let filled = self.over(filled, size)?;
        let ends = self.g.add(Op::Scan { kind: ScanKind::Sum, axis: 0, part: None }, &[filled])?;
        let starts = self.g.elementwise(ElementwiseOp::Sub, &[ends, filled])?;
        // The number of a pair among its expert's, counted from 1.
        let number = self.picked_each(before, experts, &pairs, e)?;
        let first = self.g.add(Op::Gather { axis: 0 }, &[starts, experts])?;
        let first = self.scaled(first, size as f32)?;
        let after = self.add(first, number)?;
        let one = self.g.full_like(after, 1.0)?;
        let positions = self.g.elementwise(ElementwiseOp::Sub, &[after, one])?;
        let rows = self.rows_at(positions, &pairs, (count * size, e.used))?;
        let experts = self.expert_of_tiles(ends, count, e)?;
        let number = self.g.full_like(experts, e.count as f64)?;
        let is_filled = self.g.elementwise(ElementwiseOp::Lt, &[experts, number])?;
        Ok(Some(Tiles { rows, experts, positions, is_filled, count, size }))
    }

    /// Whether each pair is one of each expert, `[pairs, experts]` of u32.
    fn is_expert(&mut self, experts: Value, pairs: &Dim, e: &Experts) -> Result<Value> {
        let shape = [pairs.clone(), e.count.into()];
        let own = self.g.reshape(experts, [pairs.clone(), Dim::one()])?;
        let own = self.g.broadcast(own, shape.clone())?;
        let numbers = self.g.add(Op::Iota { len: e.count.into(), dtype: DType::U32 }, &[])?;
        let numbers = self.g.broadcast(numbers, shape)?;
        let same = self.g.elementwise(ElementwiseOp::Eq, &[own, numbers])?;
        self.g.add(Op::Cast(DType::U32), &[same])
    }

    /// The elements of `x: [pairs, experts]` in the column of each pair's expert: `[pairs]`.
    fn picked_each(&mut self, x: Value, experts: Value, pairs: &Dim, e: &Experts) -> Result<Value> {
        let found = self.picked(x, e.count, experts, 1)?;
        self.g.reshape(found, [pairs.clone()])
    }

    /// `y: [count, size, n]` with zeros in tiles without pairs. Kernels need not compute products there.
    pub(super) fn of_filled(&mut self, y: Value, tiles: &Tiles) -> Result<Value> {
        let shape = self.g.ty(y).shape.clone();
        let is_filled = self.g.reshape(tiles.is_filled, [Dim::from(tiles.count), Dim::one(), Dim::one()])?;
        let is_filled = self.g.broadcast(is_filled, shape)?;
        let zeros = self.g.full_like(y, 0.0)?;
        self.g.elementwise(ElementwiseOp::Select, &[is_filled, y, zeros])
    }

    /// `x / by` for integers.
    fn over(&mut self, x: Value, by: usize) -> Result<Value> {
        let by = self.g.full_like(x, by as f64)?;
        self.g.elementwise(ElementwiseOp::Div, &[x, by])
    }

    /// The row of the pair at each of `count` positions, 0 where there is none.
    fn rows_at(&mut self, positions: Value, pairs: &Dim, (count, used): (usize, usize)) -> Result<Value> {
        let pair = self.g.add(Op::Iota { len: pairs.clone(), dtype: DType::U32 }, &[])?;
        let row = self.over(pair, used)?;
        let zero = self.g.add(Op::Const(Scalar::of(DType::U32, 0.0)), &[])?;
        let zeros = self.g.broadcast(zero, [Dim::from(count)])?;
        // Each position has one pair at most.
        self.g.add(Op::Scatter(ScatterKind::Add), &[zeros, positions, row])
    }

    /// The expert of each tile: how many experts' tiles end before it or where it starts.
    fn expert_of_tiles(&mut self, ends: Value, count: usize, e: &Experts) -> Result<Value> {
        let shape = [Dim::from(count), e.count.into()];
        let tile = self.g.add(Op::Iota { len: count.into(), dtype: DType::U32 }, &[])?;
        let tile = self.g.reshape(tile, [Dim::from(count), Dim::one()])?;
        let tile = self.g.broadcast(tile, shape.clone())?;
        let ends = self.g.broadcast(ends, shape)?;
        let is_over = self.g.elementwise(ElementwiseOp::Le, &[ends, tile])?;
        let is_over = self.g.add(Op::Cast(DType::U32), &[is_over])?;
        self.g.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1] }, &[is_over])
    }
}
