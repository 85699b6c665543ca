//! Convolutions as matrix products of views: the kernel times the windows of the padded input.
//!
//! The left operand is the kernel, `[groups, out, in * window]`; the right one is the input's windows,
//! `[batch, groups, in * window, positions]`, a view of the padded input. So the product has the layout of the
//! result, bias and activation become its epilogue, and the unfolded input exists in no memory. Depthwise and
//! other small convolutions are sums of products of the same views.

use tallow_ir::Dim;
use tallow_ir::form::MATVEC_MAX_ROWS;

use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::windows::Sliding;

/// With so few out-channels a group the product would be a matvec, whose workgroup shares one inner extent: for a
/// short one, as of a depthwise convolution, a sum that each invocation takes by itself is better.
const FEW_CHANNELS: usize = MATVEC_MAX_ROWS as usize;

/// Longest sum (input channels of a group times elements of a window) that an invocation takes by itself.
const SHORT_SUM: usize = 64;

/// Arguments of a convolution, the same for every axis.
#[derive(Clone, Copy)]
struct Params {
    op: &'static str,
    padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
}

impl Params {
    fn fail(&self, why: String) -> Error {
        Error::InvalidArgument { op: self.op, why }
    }

    /// Checks what needs no tensor.
    fn check(&self) -> Result<()> {
        let Params { stride, dilation, groups, .. } = *self;
        if stride == 0 || dilation == 0 || groups == 0 {
            let why = format!("stride {stride}, dilation {dilation} and groups {groups} must not be 0");
            return Err(self.fail(why));
        }
        // Beyond this, extents that follow from them could leave 63 bits.
        if [self.padding, stride, dilation].into_iter().any(|n| u32::try_from(n).is_err()) {
            return Err(self.fail("padding, stride and dilation must be below 2^32".into()));
        }
        Ok(())
    }
}

impl Tensor {
    /// Convolution along one axis: `[batch, in, length]` with a kernel `[out, in / groups, size]` to
    /// `[batch, out, (length + 2 * padding - dilation * (size - 1) - 1) / stride + 1]`.
    ///
    /// # Errors
    /// When ranks, channels, groups, element types or devices do not fit, or the kernel is longer than the
    /// padded input.
    pub fn conv1d(
        &self,
        kernel: &Tensor,
        padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
    ) -> Result<Tensor> {
        let by = Params { op: "conv1d", padding, stride, dilation, groups };
        self.of_rank(by.op, 3)?;
        let [_, c_in, _] = kernel.const_dims_of::<3>("dims3")?;
        if c_in.checked_mul(groups).map(Dim::from).as_ref() != Some(&self.sym_dims()[1]) {
            return Err(Error::Conv1dInvalidArgs {
                inp_shape: self.sym_shape().clone(),
                k_shape: kernel.sym_shape().clone(),
                padding,
                stride,
                msg: "the number of in-channels on the input doesn't match the kernel size",
            });
        }
        self.convolve(kernel, 1, by)
    }

    /// Convolution along two axes: `[batch, in, height, width]` with a kernel `[out, in / groups, h, w]` to
    /// `[batch, out, .., ..]`; extents as of [`Tensor::conv1d`].
    ///
    /// # Errors
    /// As [`Tensor::conv1d`].
    pub fn conv2d(
        &self,
        kernel: &Tensor,
        padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
    ) -> Result<Tensor> {
        self.convolve(kernel, 2, Params { op: "conv2d", padding, stride, dilation, groups })
    }

    /// Convolution along three axes: `[batch, in, depth, height, width]` with a kernel
    /// `[out, in / groups, d, h, w]`; extents as of [`Tensor::conv1d`].
    ///
    /// # Errors
    /// As [`Tensor::conv1d`].
    pub fn conv3d(
        &self,
        kernel: &Tensor,
        padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
    ) -> Result<Tensor> {
        self.convolve(kernel, 3, Params { op: "conv3d", padding, stride, dilation, groups })
    }

    /// Transposed convolution along one axis: `[batch, in, length]` with a kernel `[in, out / groups, size]` to
    /// `[batch, out, (length - 1) * stride - 2 * padding + dilation * (size - 1) + output_padding + 1]`.
    ///
    /// # Errors
    /// When ranks, channels, groups, element types or devices do not fit, or nothing is left of the result.
    pub fn conv_transpose1d(
        &self,
        kernel: &Tensor,
        padding: usize,
        output_padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
    ) -> Result<Tensor> {
        let by = Params { op: "conv_transpose1d", padding, stride, dilation, groups };
        self.of_rank(by.op, 3)?;
        self.convolve_transposed(kernel, output_padding, by)
    }

    /// Transposed convolution along two axes: `[batch, in, height, width]` with a kernel `[in, out, h, w]`;
    /// extents as of [`Tensor::conv_transpose1d`].
    ///
    /// # Errors
    /// As [`Tensor::conv_transpose1d`].
    pub fn conv_transpose2d(
        &self,
        kernel: &Tensor,
        padding: usize,
        output_padding: usize,
        stride: usize,
        dilation: usize,
    ) -> Result<Tensor> {
        let by = Params { op: "conv_transpose2d", padding, stride, dilation, groups: 1 };
        self.of_rank(by.op, 4)?;
        self.convolve_transposed(kernel, output_padding, by)
    }

    fn convolve(&self, kernel: &Tensor, axes: usize, by: Params) -> Result<Tensor> {
        by.check()?;
        self.same_dtype(by.op, kernel)?;
        let rank = 2 + axes;
        let c_in = self.of_rank(by.op, rank)?[1].clone();
        kernel.of_rank(by.op, rank)?;
        let k = kernel.const_dims()?;
        let (c_out, per_group) = (k[0], k[1]);
        if per_group.checked_mul(by.groups).map(Dim::from) != Some(c_in.clone()) {
            let why = format!(
                "in_channel mismatch between input ({c_in}, groups {}) and kernel ({per_group})",
                by.groups
            );
            return Err(by.fail(why));
        }
        if c_out % by.groups != 0 {
            return Err(by.fail(format!("{c_out} out-channels are no multiple of {} groups", by.groups)));
        }
        let mut x = self.in_groups(per_group, by.groups)?;
        if by.padding > 0 {
            for axis in 2..rank {
                x = x.pad_with_zeros(axis, by.padding, by.padding)?;
            }
        }
        let slide = |size: &usize| Sliding { size: *size, stride: by.stride, dilation: by.dilation };
        let slides: Vec<Sliding> = k[2..].iter().map(slide).collect();
        let kernel = kernel.reshape(split(by.groups, c_out / by.groups, &k[1..]))?;
        contract(&x, &kernel, &slides, by)
    }

    /// The input with zeros between its elements, convolved with the mirrored kernel by steps of one.
    fn convolve_transposed(&self, kernel: &Tensor, output_padding: usize, by: Params) -> Result<Tensor> {
        by.check()?;
        self.same_dtype(by.op, kernel)?;
        let rank = self.rank();
        kernel.of_rank(by.op, rank)?;
        let k = kernel.const_dims()?;
        let (c_in, c_out) = (k[0], k[1]);
        if self.sym_dims()[1] != Dim::from(c_in) {
            let why =
                format!("in_channel mismatch between input ({}) and kernel ({c_in})", self.sym_dims()[1]);
            return Err(by.fail(why));
        }
        if c_in % by.groups != 0 {
            return Err(by.fail(format!("in_channel {c_in} is not divisible by the number of groups")));
        }
        if u32::try_from(output_padding).is_err() {
            return Err(by.fail("output padding must be below 2^32".into()));
        }
        let mut x = self.in_groups(c_in / by.groups, by.groups)?;
        for (axis, size) in (2..rank).zip(&k[2..]) {
            x = x.spread(axis, *size, output_padding, by)?;
        }
        // [in, out, ..] to [groups, out, in / groups, ..], mirrored.
        let mut order: Vec<usize> = (0..rank + 1).collect();
        order.swap(1, 2);
        let kernel = kernel.reshape(split(by.groups, c_in / by.groups, &k[1..]))?.permute(order)?;
        let kernel = kernel.flip((3..rank + 1).collect::<Vec<_>>())?;
        let per_group = [&[c_in / by.groups], &k[2..]].concat();
        let kernel = kernel.reshape(split(by.groups, c_out, &per_group))?;
        let slide = |size: &usize| Sliding { size: *size, stride: 1, dilation: by.dilation };
        let slides: Vec<Sliding> = k[2..].iter().map(slide).collect();
        contract(&x, &kernel, &slides, by)
    }

    /// `[batch, channels, ..]` as `[batch * groups, channels / groups, ..]`.
    fn in_groups(&self, per_group: usize, groups: usize) -> Result<Tensor> {
        let dims = self.sym_dims();
        let lead = [&dims[0] * &groups.into(), per_group.into()];
        self.reshape(lead.into_iter().chain(dims[2..].iter().cloned()).collect::<Vec<_>>())
    }

    /// `stride - 1` zeros between the elements of an axis, and as many around them that a window of `size` elements
    /// visits each of them `size` times, less the padding that the result is to lose.
    fn spread(&self, axis: usize, size: usize, output_padding: usize, by: Params) -> Result<Tensor> {
        let mut x = self.clone();
        let stride = by.stride;
        if stride > 1 {
            let mut dims = self.sym_dims().to_vec();
            if dims[axis].is(0) {
                return Err(by.fail(format!("axis {axis} of {} is empty", self.sym_shape())));
            }
            dims[axis] = &dims[axis] * &stride.into();
            x = x.unsqueeze(axis + 1)?.pad_with_zeros(axis + 1, 0, stride - 1)?.reshape(dims)?;
        }
        // All below 2^32 but the reach, which is a product of two that are; the sum of two of those fits.
        let too_large = || by.fail(format!("a kernel of {size} elements {} apart is too long", by.dilation));
        let reach = by.dilation.checked_mul(size.saturating_sub(1)).and_then(|n| i64::try_from(n).ok());
        let before = reach.ok_or_else(too_large)?.checked_sub(by.padding as i64).ok_or_else(too_large)?;
        // The zeros after the last element count already.
        let after = before.checked_add(output_padding as i64 - (stride as i64 - 1)).ok_or_else(too_large)?;
        let zeros = |n: i64| Dim::constant(n.max(0));
        if before > 0 || after > 0 {
            x = x.pad_with_zeros(axis, zeros(before), zeros(after))?;
        }
        if before < 0 || after < 0 {
            let (skip, drop) = (zeros(-before), zeros(-after));
            let len = &(&x.sym_dims()[axis] - &skip) - &drop;
            if len.max_value() < 1 {
                let padding = by.padding;
                return Err(by.fail(format!(
                    "padding {padding} leaves nothing of axis {axis} of {}",
                    self.sym_shape()
                )));
            }
            x = x.narrow(axis, skip, len)?;
        }
        Ok(x)
    }
}

/// `[groups, first / groups, rest..]`.
fn split(groups: usize, per_group: usize, rest: &[usize]) -> Vec<usize> {
    [&[groups, per_group], rest].concat()
}

/// A kernel `[groups, out, in, size..]` times the windows of `[batch * groups, in, ..]`:
/// `[batch, groups * out, positions..]`.
fn contract(x: &Tensor, kernel: &Tensor, slides: &[Sliding], by: Params) -> Result<Tensor> {
    let k = kernel.const_dims()?;
    let (groups, c_out) = (k[0], k[1]);
    let inner: usize = k[2..].iter().product();
    let unfolded = x.windows_from(by.op, 2, slides)?;
    // [batch * groups, in, (positions, size)..] to [batch * groups, in, size.., positions..].
    let (positions, sizes): (Vec<usize>, Vec<usize>) =
        (0..slides.len()).map(|i| (2 + 2 * i, 3 + 2 * i)).unzip();
    let order = [&[0, 1], sizes.as_slice(), positions.as_slice()].concat();
    let output_dims: Vec<Dim> = positions.iter().map(|axis| unfolded.sym_dims()[*axis].clone()).collect();
    let count = output_dims.iter().fold(Dim::one(), |n, d| &n * d);
    let batch = x.sym_dims()[0].div_exact(&groups.into()).unwrap_or_default();
    let rows: Vec<Dim> = [&batch, &groups.into(), &inner.into(), &count].map(Dim::clone).to_vec();
    let right = unfolded.permute(order)?.reshape(rows)?;
    let product = if c_out <= FEW_CHANNELS && inner <= SHORT_SUM {
        let shape = vec![batch.clone(), groups.into(), c_out.into(), inner.into(), count];
        let spread = |t: &Tensor, axis: usize| t.widened()?.unsqueeze(axis)?.broadcast_as(shape.clone());
        let left = kernel.reshape((groups, c_out, inner))?;
        let sum = spread(&right, 2)?.mul(&spread(&left, 3)?)?.sum(3)?;
        sum.to_dtype(x.dtype())?
    } else {
        kernel.reshape((1, groups, c_out, inner))?.broadcast_matmul(&right)?
    };
    let all = [batch, (groups * c_out).into()];
    product.reshape(all.into_iter().chain(output_dims).collect::<Vec<_>>())
}
