//! Indexing: `t.i(0)`, `t.i((.., 1..3))`, `t.i(&indices)`, as in Candle.

use std::ops::{Bound, RangeBounds, RangeFull};

use tallow_ir::Dim;

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// What to keep of one axis.
#[derive(Clone, Debug)]
pub enum TensorIndexer {
    /// One part; the axis disappears.
    Select(usize),
    /// The parts between two bounds.
    Narrow(Bound<usize>, Bound<usize>),
    /// The parts that a tensor of one axis names; they are clamped to the extent.
    IndexSelect(Tensor),
    /// The parts with these numbers, each below the extent.
    Parts(Vec<u32>),
}

impl From<usize> for TensorIndexer {
    fn from(index: usize) -> Self {
        TensorIndexer::Select(index)
    }
}

impl From<&Tensor> for TensorIndexer {
    fn from(indices: &Tensor) -> Self {
        TensorIndexer::IndexSelect(indices.clone())
    }
}

impl From<&[u32]> for TensorIndexer {
    fn from(indices: &[u32]) -> Self {
        TensorIndexer::Parts(indices.to_vec())
    }
}

impl From<Vec<u32>> for TensorIndexer {
    fn from(indices: Vec<u32>) -> Self {
        TensorIndexer::Parts(indices)
    }
}

macro_rules! from_range {
    ($($range:ty),*) => {$(
        impl From<$range> for TensorIndexer {
            fn from(range: $range) -> Self {
                TensorIndexer::Narrow(range.start_bound().cloned(), range.end_bound().cloned())
            }
        }
    )*};
}
from_range!(
    std::ops::Range<usize>,
    std::ops::RangeInclusive<usize>,
    std::ops::RangeFrom<usize>,
    std::ops::RangeTo<usize>,
    std::ops::RangeToInclusive<usize>
);

impl From<RangeFull> for TensorIndexer {
    fn from(_: RangeFull) -> Self {
        TensorIndexer::Narrow(Bound::Unbounded, Bound::Unbounded)
    }
}

/// Indexing with numbers, ranges and tensors of indices, one per leading axis.
pub trait IndexOp<T> {
    /// The part that `index` names.
    ///
    /// # Errors
    /// When it names more axes than there are, or reaches beyond an extent.
    fn i(&self, index: T) -> Result<Tensor>;
}

impl Tensor {
    fn index_axes(&self, indices: &[TensorIndexer]) -> Result<Tensor> {
        if indices.len() > self.rank() {
            let why = format!("{} indices for shape {}", indices.len(), self.sym_shape());
            return Err(Error::InvalidArgument { op: "i", why });
        }
        let mut out = self.clone();
        let mut axis = 0;
        for index in indices {
            out = match index {
                TensorIndexer::Select(at) => {
                    out = out.get_on_dim(axis, *at)?;
                    continue;
                }
                TensorIndexer::Narrow(start, end) => out.between(axis, *start, *end)?,
                TensorIndexer::IndexSelect(indices) => {
                    out.index_select(&indices.to_device(self.device())?, axis)?
                }
                TensorIndexer::Parts(parts) => out.pick(parts, axis)?,
            };
            axis += 1;
        }
        Ok(out)
    }

    /// What lies between two bounds; nothing where they run backwards.
    fn between(&self, axis: usize, start: Bound<usize>, end: Bound<usize>) -> Result<Tensor> {
        let start = match start {
            Bound::Included(at) => at,
            Bound::Excluded(at) => at.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end: Dim = match end {
            Bound::Included(at) => at.saturating_add(1).into(),
            Bound::Excluded(at) => at.into(),
            Bound::Unbounded => self.sym_dims()[axis].clone(),
        };
        let len = &end - &start.into();
        let len = if len.max_value() < 0 { Dim::zero() } else { len };
        self.narrow(axis, start, len)
    }

    /// The parts of these numbers, which the host knows and checks.
    fn pick(&self, parts: &[u32], axis: usize) -> Result<Tensor> {
        let extent = self.sym_dims()[axis].max_value();
        if let Some(index) = parts.iter().find(|index| i64::from(**index) >= extent) {
            let (index, size, shape) = (*index as usize, extent as usize, self.sym_shape().clone());
            return Err(Error::InvalidIndex { op: "i", index, size, shape });
        }
        self.index_select(&Tensor::from_slice(parts, parts.len(), self.device())?, axis)
    }
}

impl<T: Into<TensorIndexer>> IndexOp<T> for Tensor {
    fn i(&self, index: T) -> Result<Tensor> {
        self.index_axes(&[index.into()])
    }
}

macro_rules! tuple_index {
    ($($name:ident $at:tt),*) => {
        impl<$($name: Into<TensorIndexer>),*> IndexOp<($($name,)*)> for Tensor {
            fn i(&self, index: ($($name,)*)) -> Result<Tensor> {
                self.index_axes(&[$(index.$at.into()),*])
            }
        }
    };
}
tuple_index!(A 0);
tuple_index!(A 0, B 1);
tuple_index!(A 0, B 1, C 2);
tuple_index!(A 0, B 1, C 2, E 3);
tuple_index!(A 0, B 1, C 2, E 3, F 4);
tuple_index!(A 0, B 1, C 2, E 3, F 4, G 5);
tuple_index!(A 0, B 1, C 2, E 3, F 4, G 5, H 6);
