//! Pooling: a reduction over windows, which no memory holds.

use tallow_ir::Dim;

use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::windows::{MAX_TABLE, Sliding, ToUsize2};

/// What is kept of a window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pooling {
    Mean,
    Max,
}

impl Tensor {
    /// Mean over windows of `size` that touch each other: `[batch, channels, length]` to
    /// `[batch, channels, length / size]`.
    ///
    /// # Errors
    /// When the rank is not 3, the window is empty or longer than the axis, or the elements are no floats.
    pub fn avg_pool1d(&self, size: usize) -> Result<Tensor> {
        self.avg_pool1d_with_stride(size, size)
    }

    /// Mean over windows of `size` elements, `stride` apart.
    ///
    /// # Errors
    /// As [`Tensor::avg_pool1d`].
    pub fn avg_pool1d_with_stride(&self, size: usize, stride: usize) -> Result<Tensor> {
        self.pooled("avg_pool1d", Pooling::Mean, &[size], &[stride])
    }

    /// Largest element of windows of `size` that touch each other.
    ///
    /// # Errors
    /// As [`Tensor::avg_pool1d`], for any element type.
    pub fn max_pool1d(&self, size: usize) -> Result<Tensor> {
        self.max_pool1d_with_stride(size, size)
    }

    /// Largest element of windows of `size` elements, `stride` apart; NaN where a window has one.
    ///
    /// # Errors
    /// As [`Tensor::max_pool1d`].
    pub fn max_pool1d_with_stride(&self, size: usize, stride: usize) -> Result<Tensor> {
        self.pooled("max_pool1d", Pooling::Max, &[size], &[stride])
    }

    /// Mean over windows that touch each other: `[batch, channels, height, width]` to
    /// `[batch, channels, height / h, width / w]`.
    ///
    /// # Errors
    /// When the rank is not 4, the window is empty or longer than an axis, or the elements are no floats.
    pub fn avg_pool2d<T: ToUsize2>(&self, size: T) -> Result<Tensor> {
        let size = size.to_usize2();
        self.avg_pool2d_with_stride(size, size)
    }

    /// Mean over windows, `stride` apart.
    ///
    /// # Errors
    /// As [`Tensor::avg_pool2d`].
    pub fn avg_pool2d_with_stride<T: ToUsize2>(&self, size: T, stride: T) -> Result<Tensor> {
        let (size, stride) = (size.to_usize2(), stride.to_usize2());
        self.pooled("avg_pool2d", Pooling::Mean, &[size.0, size.1], &[stride.0, stride.1])
    }

    /// Largest element of windows that touch each other.
    ///
    /// # Errors
    /// As [`Tensor::avg_pool2d`], for any element type.
    pub fn max_pool2d<T: ToUsize2>(&self, size: T) -> Result<Tensor> {
        let size = size.to_usize2();
        self.max_pool2d_with_stride(size, size)
    }

    /// Largest element of windows, `stride` apart; NaN where a window has one.
    ///
    /// # Errors
    /// As [`Tensor::max_pool2d`].
    pub fn max_pool2d_with_stride<T: ToUsize2>(&self, size: T, stride: T) -> Result<Tensor> {
        let (size, stride) = (size.to_usize2(), stride.to_usize2());
        self.pooled("max_pool2d", Pooling::Max, &[size.0, size.1], &[stride.0, stride.1])
    }

    /// Mean over as many windows as are asked for: window `i` of `n` reaches from `floor(i * length / n)` to
    /// `ceil((i + 1) * length / n)`.
    ///
    /// # Errors
    /// When the rank is not 3, the axis or the number is 0 or symbolic, or the elements are no floats.
    pub fn adaptive_avg_pool1d(&self, windows: usize) -> Result<Tensor> {
        self.adaptive("adaptive_avg_pool1d", Pooling::Mean, &[windows])
    }

    /// Largest element of windows as of [`Tensor::adaptive_avg_pool1d`].
    ///
    /// # Errors
    /// As there, for any element type.
    pub fn adaptive_max_pool1d(&self, windows: usize) -> Result<Tensor> {
        self.adaptive("adaptive_max_pool1d", Pooling::Max, &[windows])
    }

    /// Mean over windows as of [`Tensor::adaptive_avg_pool1d`], along two axes.
    ///
    /// # Errors
    /// When the rank is not 4, and as there.
    pub fn adaptive_avg_pool2d<T: ToUsize2>(&self, windows: T) -> Result<Tensor> {
        let windows = windows.to_usize2();
        self.adaptive("adaptive_avg_pool2d", Pooling::Mean, &[windows.0, windows.1])
    }

    /// Largest element of windows as of [`Tensor::adaptive_avg_pool1d`], along two axes.
    ///
    /// # Errors
    /// As [`Tensor::adaptive_avg_pool2d`], for any element type.
    pub fn adaptive_max_pool2d<T: ToUsize2>(&self, windows: T) -> Result<Tensor> {
        let windows = windows.to_usize2();
        self.adaptive("adaptive_max_pool2d", Pooling::Max, &[windows.0, windows.1])
    }

    fn pooled(
        &self,
        op: &'static str,
        pooling: Pooling,
        sizes: &[usize],
        strides: &[usize],
    ) -> Result<Tensor> {
        let extents = &self.of_rank(op, 2 + sizes.len())?[2..];
        let larger =
            |(n, size): (&Dim, &usize)| n.as_const().is_some_and(|n| Dim::from(*size) > Dim::from(n));
        if extents.iter().zip(sizes).any(larger) {
            let why = format!("kernel-size {sizes:?} is larger than the input size {}", self.sym_shape());
            return Err(Error::InvalidArgument { op, why });
        }
        let slide = |(size, stride): (&usize, &usize)| Sliding { size: *size, stride: *stride, dilation: 1 };
        let slides: Vec<Sliding> = sizes.iter().zip(strides).map(slide).collect();
        let axes = (0..sizes.len()).map(|i| 3 + 2 * i).collect();
        self.reduced_windows(op, pooling, |x| x.windows_from(op, 2, &slides), axes, sizes.iter().product())
    }

    /// The mean or maximum over `axes` of a view; sums of short floats are taken in f32.
    fn reduced_windows(
        &self,
        op: &'static str,
        pooling: Pooling,
        view: impl Fn(&Tensor) -> Result<Tensor>,
        axes: Vec<usize>,
        count: usize,
    ) -> Result<Tensor> {
        match pooling {
            Pooling::Max => view(self)?.max(axes),
            Pooling::Mean => {
                self.floats(op)?;
                let sum = view(&self.widened()?)?.sum(axes)?;
                sum.affine(1.0 / count as f64, 0.0)?.to_dtype(self.dtype())
            }
        }
    }

    fn adaptive(&self, op: &'static str, pooling: Pooling, windows: &[usize]) -> Result<Tensor> {
        self.of_rank(op, 2 + windows.len())?;
        let per_axis: Vec<Windows> =
            (2..).zip(windows).map(|(axis, n)| self.windows_of(op, axis, *n)).collect::<Result<_>>()?;
        // Windows of one size and distance are those of a plain pool.
        let regular: Option<(Vec<usize>, Vec<usize>)> = per_axis.iter().map(Windows::regular).collect();
        if let Some((sizes, strides)) = regular {
            return self.pooled(op, pooling, &sizes, &strides);
        }
        let wide = if pooling == Pooling::Mean { self.widened()? } else { self.clone() };
        let pooled = (2..)
            .zip(&per_axis)
            .try_fold(wide, |x, (axis, windows)| x.pooled_by(op, pooling, axis, windows))?;
        pooled.to_dtype(self.dtype())
    }

    fn windows_of(&self, op: &'static str, axis: usize, count: usize) -> Result<Windows> {
        let extent = self.const_dim(axis)?;
        if extent == 0 || count == 0 {
            let why = format!("{count} windows of axis {axis} of shape {}", self.sym_shape());
            return Err(Error::InvalidArgument { op, why });
        }
        let at = |i: usize| i.checked_mul(extent);
        // The largest product; the others are below.
        if at(count).is_none() || count > MAX_TABLE {
            return Err(Error::InvalidArgument { op, why: format!("{count} windows are too many") });
        }
        Ok(Windows((0..count).map(|i| (i * extent / count, ((i + 1) * extent).div_ceil(count))).collect()))
    }

    /// Pools one axis by windows of several sizes: short ones are filled up with their last element, which a
    /// maximum does not notice and a mean masks.
    fn pooled_by(
        &self,
        op: &'static str,
        pooling: Pooling,
        axis: usize,
        windows: &Windows,
    ) -> Result<Tensor> {
        let (count, longest) = (windows.0.len(), windows.longest());
        let mut indices = Vec::with_capacity(count * longest);
        let mut inside = Vec::with_capacity(count * longest);
        for (start, end) in &windows.0 {
            for i in *start..start + longest {
                indices.push(i.min(end - 1) as u32);
                inside.push(u8::from(i < *end));
            }
        }
        let indices = Tensor::from_vec(indices, count * longest, self.device())?;
        let mut dims = self.sym_dims().to_vec();
        dims.splice(axis..=axis, [count.into(), longest.into()]);
        let view = self.index_select(&indices, axis)?.reshape(dims.clone())?;
        if pooling == Pooling::Max {
            return view.max(axis + 1);
        }
        self.floats(op)?;
        let mut shape = vec![1; dims.len()];
        (shape[axis], shape[axis + 1]) = (count, longest);
        let inside = Tensor::from_vec(inside, shape, self.device())?.broadcast_as(dims.clone())?;
        let sum = inside.where_cond(&view, &view.zeros_like()?)?.sum(axis + 1)?;
        let share: Vec<f64> = windows.0.iter().map(|(start, end)| 1.0 / (end - start) as f64).collect();
        let mut shape = vec![1; sum.rank()];
        shape[axis] = count;
        sum.broadcast_mul(&Tensor::table(sum.dtype(), &share, shape, self.device())?)
    }
}

/// Where each window of an axis starts and ends.
struct Windows(Vec<(usize, usize)>);

impl Windows {
    fn longest(&self) -> usize {
        self.0.iter().map(|(start, end)| end - start).max().unwrap_or(0)
    }

    /// Size and distance, where they are the same everywhere.
    fn regular(&self) -> Option<(usize, usize)> {
        let size = self.longest();
        let stride = self.0.get(1).map_or(size, |second| second.0);
        let is_regular = |(i, window): (usize, &(usize, usize))| *window == (i * stride, i * stride + size);
        (stride > 0 && self.0.iter().enumerate().all(is_regular)).then_some((size, stride))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_windows_are_found() {
        let windows_of = |extent: usize, count: usize| {
            Windows((0..count).map(|i| (i * extent / count, ((i + 1) * extent).div_ceil(count))).collect())
        };
        assert_eq!(windows_of(12, 4).regular(), Some((3, 3)));
        assert_eq!(windows_of(7, 3).regular(), Some((3, 2)));
        assert_eq!(windows_of(7, 1).regular(), Some((7, 7)));
        assert_eq!(windows_of(5, 5).regular(), Some((1, 1)));
        assert_eq!(windows_of(10, 4).regular(), None);
        assert_eq!(windows_of(3, 7).regular(), None);
    }
}
