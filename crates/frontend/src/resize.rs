//! Resizing of images and signals: the nearest element, or a weighted sum of the two or four nearest.
//!
//! Which elements those are is computed here, in f64, and given to the kernel as a table: a kernel's own
//! arithmetic could round to another element. Where the table is a whole factor it becomes a view instead.

use tallow_ir::Dim;

use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::windows::{MAX_TABLE, Sliding};

/// How positions of the result are found in the source.
#[derive(Clone, Copy)]
struct Scaling {
    op: &'static str,
    align_corners: bool,
    /// Factors on height and width, where those were given instead of extents.
    factors: [Option<f64>; 2],
}

/// For each position of an axis of the result, where it reads and with which weights.
struct Taps {
    /// `[tap][position]`.
    indices: Vec<Vec<u32>>,
    weights: Vec<Vec<f64>>,
}

impl Tensor {
    /// `[batch, channels, length]` to `[batch, channels, target]`; element `i` is that of number
    /// `floor(i * length / target)`.
    ///
    /// # Errors
    /// When the rank is not 3, or an extent is 0 or symbolic.
    pub fn interpolate1d(&self, target: usize) -> Result<Tensor> {
        self.of_rank("interpolate1d", 3)?;
        self.nearest("interpolate1d", 2, target)
    }

    /// [`Tensor::interpolate1d`].
    ///
    /// # Errors
    /// As there.
    pub fn upsample_nearest1d(&self, target: usize) -> Result<Tensor> {
        self.interpolate1d(target)
    }

    /// `[batch, channels, height, width]` to `[batch, channels, target_h, target_w]`, each axis as by
    /// [`Tensor::interpolate1d`].
    ///
    /// # Errors
    /// When the rank is not 4, or an extent is 0 or symbolic.
    pub fn interpolate2d(&self, target_h: usize, target_w: usize) -> Result<Tensor> {
        self.of_rank("interpolate2d", 4)?;
        self.nearest("interpolate2d", 2, target_h)?.nearest("interpolate2d", 3, target_w)
    }

    /// [`Tensor::interpolate2d`].
    ///
    /// # Errors
    /// As there.
    pub fn upsample_nearest2d(&self, target_h: usize, target_w: usize) -> Result<Tensor> {
        self.interpolate2d(target_h, target_w)
    }

    /// `[batch, channels, height, width]` to `[batch, channels, target_h, target_w]`, linear along both axes.
    /// Elements are areas, or with `align_corners` points of which the outermost stay where they are.
    ///
    /// # Errors
    /// When the rank is not 4, an extent is 0 or symbolic, or the elements are no floats.
    pub fn upsample_bilinear2d(
        &self,
        target_h: usize,
        target_w: usize,
        align_corners: bool,
    ) -> Result<Tensor> {
        let by = Scaling { op: "upsample_bilinear2d", align_corners, factors: [None, None] };
        self.resized(target_h, target_w, by, linear)
    }

    /// [`Tensor::upsample_bilinear2d`] to `floor(extent * factor)` by axis, with exactly these factors between
    /// positions.
    ///
    /// # Errors
    /// As there, or when a factor is no positive number.
    pub fn upsample_bilinear2d_with_scale(
        &self,
        scale_h: f64,
        scale_w: f64,
        align_corners: bool,
    ) -> Result<Tensor> {
        self.rescaled("upsample_bilinear2d_with_scale", [scale_h, scale_w], align_corners, linear)
    }

    /// As [`Tensor::upsample_bilinear2d`] with cubic convolution (Keys 1981, a = -0.75) of the four nearest
    /// elements along each axis; beyond the border the outermost element repeats.
    ///
    /// # Errors
    /// As there.
    pub fn upsample_bicubic2d(
        &self,
        target_h: usize,
        target_w: usize,
        align_corners: bool,
    ) -> Result<Tensor> {
        let by = Scaling { op: "upsample_bicubic2d", align_corners, factors: [None, None] };
        self.resized(target_h, target_w, by, cubic)
    }

    /// [`Tensor::upsample_bicubic2d`] by factors, as [`Tensor::upsample_bilinear2d_with_scale`].
    ///
    /// # Errors
    /// As there.
    pub fn upsample_bicubic2d_with_scale(
        &self,
        scale_h: f64,
        scale_w: f64,
        align_corners: bool,
    ) -> Result<Tensor> {
        self.rescaled("upsample_bicubic2d_with_scale", [scale_h, scale_w], align_corners, cubic)
    }

    fn nearest(&self, op: &'static str, axis: usize, target: usize) -> Result<Tensor> {
        let extent = self.resizable(op, axis, target)?;
        let scale = extent as f64 / target as f64;
        let at = |i: usize| ((i as f64 * scale) as usize).min(extent - 1);
        if extent == target {
            return Ok(self.clone());
        }
        // i / f for a whole f: each element repeats.
        if target.is_multiple_of(extent) && (0..target).all(|i| at(i) == i / (target / extent)) {
            let mut dims = self.sym_dims().to_vec();
            dims.insert(axis + 1, (target / extent).into());
            let spread = self.unsqueeze(axis + 1)?.broadcast_as(dims.clone())?;
            dims.remove(axis + 1);
            dims[axis] = target.into();
            return spread.reshape(dims);
        }
        // i * f for a whole f: windows of one element.
        if extent.is_multiple_of(target) && (0..target).all(|i| at(i) == i * (extent / target)) {
            let every = Sliding { size: 1, stride: extent / target, dilation: 1 };
            return self.windows(op, axis, every)?.squeeze(axis + 1);
        }
        let indices: Vec<u32> = (0..target).map(|i| at(i) as u32).collect();
        self.index_select(&Tensor::from_vec(indices, target, self.device())?, axis)
    }

    /// The extent of an axis that is to become `target`.
    fn resizable(&self, op: &'static str, axis: usize, target: usize) -> Result<usize> {
        let extent = self.const_dim(axis)?;
        if extent == 0 || target == 0 || target > MAX_TABLE || u32::try_from(extent).is_err() {
            let why = format!("axis {axis} of shape {} cannot be resized to {target}", self.sym_shape());
            return Err(Error::InvalidArgument { op, why });
        }
        Ok(extent)
    }

    fn rescaled(
        &self,
        op: &'static str,
        factors: [f64; 2],
        align_corners: bool,
        taps: fn(usize, &[f64]) -> Taps,
    ) -> Result<Tensor> {
        self.of_rank("rescaled", 4)?;
        if let Some(factor) = factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
            let why = format!("a factor of {factor} is no positive number");
            return Err(Error::InvalidArgument { op, why });
        }
        let target = |axis: usize, factor: f64| -> Result<usize> {
            Ok((self.const_dim(axis)? as f64 * factor).floor() as usize)
        };
        let (h, w) = (target(2, factors[0])?, target(3, factors[1])?);
        let by = Scaling { op, align_corners, factors: factors.map(Some) };
        self.resized(h, w, by, taps)
    }

    fn resized(&self, h: usize, w: usize, by: Scaling, taps: fn(usize, &[f64]) -> Taps) -> Result<Tensor> {
        self.of_rank("resized", 4)?;
        self.floats(by.op)?;
        let extents = [self.resizable(by.op, 2, h)?, self.resizable(by.op, 3, w)?];
        if extents == [h, w] {
            return Ok(self.clone());
        }
        // Along rows first: neighbouring results then share what they read.
        let mut wide = self.widened()?;
        for (i, target) in [(1, w), (0, h)] {
            let positions = positions(extents[i], target, by.align_corners, by.factors[i]);
            // An axis on which nothing moves costs nothing.
            if extents[i] != target || positions.iter().enumerate().any(|(i, x)| *x != i as f64) {
                wide = wide.weighted(2 + i, &taps(extents[i], &positions))?;
            }
        }
        wide.to_dtype(self.dtype())
    }

    /// The sum over taps of weighted elements of an axis.
    fn weighted(&self, axis: usize, taps: &Taps) -> Result<Tensor> {
        let (count, target) = (taps.indices.len(), taps.indices[0].len());
        let indices = Tensor::from_vec(taps.indices.concat(), (count, target), self.device())?;
        let weights = Tensor::table(self.dtype(), &taps.weights.concat(), (count, target), self.device())?;
        let mut shape = vec![Dim::one(); self.rank()];
        shape[axis] = target.into();
        let mut sum: Option<Tensor> = None;
        for tap in 0..count {
            let weight = weights.get(tap)?.reshape(shape.clone())?;
            let term = self.index_select(&indices.get(tap)?, axis)?.broadcast_mul(&weight)?;
            sum = Some(match sum {
                Some(sum) => sum.add(&term)?,
                None => term,
            });
        }
        sum.map_or_else(|| Ok(self.clone()), Ok)
    }
}

/// Where each position of the result lies in the source, in units of its elements.
fn positions(extent: usize, target: usize, align_corners: bool, factor: Option<f64>) -> Vec<f64> {
    let scale = match (align_corners, factor) {
        (true, _) if target > 1 => (extent - 1) as f64 / (target - 1) as f64,
        (true, _) => 0.0,
        (false, Some(factor)) => 1.0 / factor,
        (false, None) => extent as f64 / target as f64,
    };
    let at = |i: usize| {
        if align_corners { scale * i as f64 } else { scale * (i as f64 + 0.5) - 0.5 }
    };
    (0..target).map(at).collect()
}

/// The two nearest elements; before the first and after the last there is only that one.
fn linear(extent: usize, positions: &[f64]) -> Taps {
    let last = extent - 1;
    let clamped = || positions.iter().map(|x| x.max(0.0));
    let low = |x: f64| (x.floor() as usize).min(last);
    let weight = |x: f64| (x - low(x) as f64).clamp(0.0, 1.0);
    Taps {
        indices: vec![
            clamped().map(|x| low(x) as u32).collect(),
            clamped().map(|x| (low(x) + 1).min(last) as u32).collect(),
        ],
        weights: vec![clamped().map(|x| 1.0 - weight(x)).collect(), clamped().map(weight).collect()],
    }
}

/// The four nearest elements.
fn cubic(extent: usize, positions: &[f64]) -> Taps {
    const A: f64 = -0.75;
    let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let index = |x: f64, tap: i64| (x.floor() as i64 + tap - 1).clamp(0, extent as i64 - 1) as u32;
    let weight = |x: f64, tap: i64| {
        let distance = (x - x.floor() - (tap - 1) as f64).abs();
        if distance <= 1.0 { near(distance) } else { far(distance) }
    };
    Taps {
        indices: (0..4).map(|tap| positions.iter().map(|x| index(*x, tap)).collect()).collect(),
        weights: (0..4).map(|tap| positions.iter().map(|x| weight(*x, tap)).collect()).collect(),
    }
}
