//! Indexing: `t.i(0)`, `t.i((.., 1..3))`, as in Candle.

use std::ops::{Bound, RangeBounds};

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// What to keep of one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisIndex {
    /// One part; the axis disappears.
    One(usize),
    /// Parts from the first bound (included) to the second (excluded; `None` for the end).
    Range(usize, Option<usize>),
}

impl From<usize> for AxisIndex {
    fn from(index: usize) -> Self {
        AxisIndex::One(index)
    }
}

macro_rules! from_range {
    ($($range:ty),*) => {$(
        impl From<$range> for AxisIndex {
            fn from(range: $range) -> Self {
                let start = match range.start_bound() {
                    Bound::Included(at) => *at,
                    Bound::Excluded(at) => at.saturating_add(1),
                    Bound::Unbounded => 0,
                };
                let end = match range.end_bound() {
                    Bound::Included(at) => Some(at.saturating_add(1)),
                    Bound::Excluded(at) => Some(*at),
                    Bound::Unbounded => None,
                };
                AxisIndex::Range(start, end)
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

impl From<std::ops::RangeFull> for AxisIndex {
    fn from(_: std::ops::RangeFull) -> Self {
        AxisIndex::Range(0, None)
    }
}

/// Indexing with numbers and ranges, one per leading axis.
pub trait IndexOp<T> {
    /// The part that `index` names.
    ///
    /// # Errors
    /// When it names more axes than there are, or reaches beyond an extent.
    fn i(&self, index: T) -> Result<Tensor>;
}

impl Tensor {
    fn index_axes(&self, indices: &[AxisIndex]) -> Result<Tensor> {
        if indices.len() > self.rank() {
            let why = format!("{} indices for shape {}", indices.len(), self.shape());
            return Err(Error::InvalidArgument { op: "i", why });
        }
        let mut out = self.clone();
        let mut axis = 0;
        for index in indices {
            match *index {
                AxisIndex::One(at) => out = out.get_on_dim(axis, at)?,
                AxisIndex::Range(start, end) => {
                    let end = match end {
                        Some(end) => end,
                        None => out.dim(axis)?,
                    };
                    let Some(len) = end.checked_sub(start) else {
                        let why = format!("{start}..{end} runs backwards");
                        return Err(Error::InvalidArgument { op: "i", why });
                    };
                    out = out.narrow(axis, start, len)?;
                    axis += 1;
                }
            }
        }
        Ok(out)
    }
}

impl<T: Into<AxisIndex>> IndexOp<T> for Tensor {
    fn i(&self, index: T) -> Result<Tensor> {
        self.index_axes(&[index.into()])
    }
}

macro_rules! tuple_index {
    ($($name:ident $at:tt),*) => {
        impl<$($name: Into<AxisIndex>),*> IndexOp<($($name,)*)> for Tensor {
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
