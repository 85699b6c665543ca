//! Layers that do the same to each row: a compiled function of `[rows, ..]` as a custom op of `[.., ..]`.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Shape};
use tallow::{Device, Tensor};

use crate::error::fail;
use crate::graphs::{Build, Extents, Graphs, Operand};

/// An op that Candle's graph for gradients can hold, and whose `bwd` is an error.
pub(crate) type Op = Arc<Box<dyn CustomOp1 + Send + Sync>>;

pub(crate) fn op(op: impl CustomOp1 + Send + Sync + 'static) -> Op {
    Arc::new(Box::new(op))
}

/// Fails unless every number is below `entries`: on the device it would be clamped.
pub(crate) fn check_ids(ids: &candle_core::Tensor, entries: usize) -> candle_core::Result<()> {
    let flat = ids.flatten_all()?.to_dtype(candle_core::DType::I64)?.to_vec1::<i64>()?;
    match flat.iter().find(|id| usize::try_from(**id).is_ok_and(|id| id < entries).eq(&false)) {
        None => Ok(()),
        Some(id) => fail(format!("embedding: number {id} of a table of {entries}")),
    }
}

/// A function of rows. Candle's tensors have any number of axes before those of a row; they are counted as one.
pub(crate) struct RowOp {
    name: &'static str,
    /// Axes of a row: 1 for features, 0 for numbers that are looked up.
    row_rank: usize,
    graphs: Graphs,
}

impl RowOp {
    pub fn new(
        name: &'static str,
        row_rank: usize,
        device: &Device,
        build: impl Fn(&Tensor) -> tallow::Result<Tensor> + Send + Sync + 'static,
    ) -> RowOp {
        let build: Arc<Build> = Arc::new(move |operands| match operands {
            [rows] => Ok(vec![Some(build(rows)?)]),
            _ => Err(tallow::Error::msg("a layer takes one tensor")),
        });
        RowOp { name, row_rank, graphs: Graphs::new(build, Extents::Rows).on(device) }
    }

    /// Splits extents into those before a row, as one, and the row's.
    fn split<'a>(&self, dims: &'a [usize]) -> candle_core::Result<(&'a [usize], Vec<usize>)> {
        let Some(outer) = dims.len().checked_sub(self.row_rank) else {
            return fail(format!(
                "{} takes tensors of at least {} axes, got {dims:?}",
                self.name, self.row_rank
            ));
        };
        let (before, row) = dims.split_at(outer);
        let flat = [before.iter().product()].into_iter().chain(row.iter().copied()).collect();
        Ok((before, flat))
    }

    /// Computes rows of floats into a slice.
    pub fn floats(&self, rows: &[f32], dims: &[usize], to: &mut [f32]) -> candle_core::Result<()> {
        let (_, flat) = self.split(dims)?;
        self.graphs.run(&[Operand::floats(rows, flat)], &mut |_, view| {
            let (count, got) = (to.len(), view.bytes.len() / 4);
            if view.dtype != tallow::DType::F32 || count != got {
                return fail(format!("{} gives {got} elements, there is room for {count}", self.name));
            }
            to.iter_mut().zip(view.bytes.as_chunks::<4>().0).for_each(|(x, b)| *x = f32::from_le_bytes(*b));
            Ok(())
        })
    }
}

impl CustomOp1 for RowOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, values: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (before, flat) = self.split(layout.dims())?;
        let operand = Operand { dims: flat, ..Operand::storage(values, layout) };
        match self.graphs.results(&[operand])?.pop() {
            Some(Some((values, dims))) => {
                let row = dims.get(1..).unwrap_or_default();
                Ok((values, Shape::from([before, row].concat())))
            }
            Some(None) | None => fail(format!("{} gave no result", self.name)),
        }
    }
}
