//! Reorders convolutions, so that tiles read vectors of channels.
//!
//! A convolution is a matmul whose right operand consists of windows of an image. Its K axis counts channels and the
//! positions in a window, `(c, y, x)`, and images are stored as `[c, height, width]`: the channels of one position are far
//! apart, and the columns are at odd offsets, so that tiles would load single elements. In the order `(y, x, c)`, with
//! images in the order `[height, width, c]`, eight channels are one aligned vector:
//!
//! `sum over (c, y, x) of w[o, (c, y, x)] i[(c, y, x), p] = sum over (y, x, c) of w[o, (y, x, c)] i[(y, x, c), p]`.
//!
//! The products are the same, and f32 sums of them are within K 2^-24 times the sum of their magnitudes in either order.
//! The image and the weight are copied to that order, unless they have it.
//!
//! Channels that are no multiple of eight are padded by the copies, `w'` and `i'`, to the next one, `C'`:
//!
//! `sum over c < C of w[o, (y, x, c)] i[(y, x, c), p] = sum over c < C' of w'[o, (y, x, c)] i'[(y, x, c), p]`,
//!
//! where both are zero from `C` on. What is added is `0 * 0`, whatever the other elements are: also if they are infinite or
//! NaN.
//!
//! The pass does this where the copies and the added products cost less than the loads of single elements, on devices
//! that multiply such elements by cooperative matrices.

use crate::access::has_groups_along;
use crate::caps::DeviceCaps;
use crate::cost::{self, Product};
use crate::dim::Dim;
use crate::graph::{Graph, GraphError, Value};
use crate::matrix;
use crate::op::Op;
use crate::rewrite::rebuild;
use crate::scalar::Scalar;
use crate::shape::Shape;

/// Elements of a vector: those that tiles of f16 and bf16 load at once.
const VECTOR: i64 = 8;

/// The pass.
pub fn run(graph: &Graph, caps: &DeviceCaps) -> Result<Graph, GraphError> {
    rebuild(graph, |new, node, operands| match (&node.op, operands) {
        (Op::Matmul, [left, right]) => match Windows::of(new, *left, *right) {
            Some(windows) if windows.is_matrix(new, caps) => windows.reordered(new, caps),
            _ => Ok(None),
        },
        _ => Ok(None),
    })
}

/// A matmul whose right operand is `reshape(permute(windows of an image))`.
struct Windows {
    left: Value,
    right: Value,
    /// The image, without its padding.
    image: Value,
    /// The windows and paddings between the image and the permutation, in order.
    windows: Vec<Op>,
    /// The axes of the permutation.
    axes: Vec<usize>,
    /// The axes of its result that count K; the first counts channels.
    inner: std::ops::Range<usize>,
    /// The axis of the image that counts channels.
    channels: usize,
    /// Extents of the axes in `inner`.
    extents: Vec<i64>,
}

impl Windows {
    fn of(graph: &Graph, left: Value, right: Value) -> Option<Windows> {
        let reshape = graph.node(right.node);
        let permute = graph.node(reshape.operands.first()?.node);
        let (Op::Reshape(shape), Op::Permute(axes)) = (&reshape.op, &permute.op) else { return None };
        let inner = inner_axes(&permute.types[0].shape, shape).filter(|inner| inner.len() > 1)?;
        let dims = &permute.types[0].shape.dims()[inner.clone()];
        let extents: Vec<i64> = dims.iter().map(Dim::as_const).collect::<Option<_>>()?;
        let (mut image, mut windows) = (*permute.operands.first()?, vec![]);
        let mut channels = axes[inner.start];
        loop {
            let op = graph.op(image);
            channels = match op {
                Op::Window { axis, .. } if channels < *axis => channels,
                Op::Window { axis, .. } if channels > axis + 1 => channels - 1,
                Op::Pad { axis, .. } if channels != *axis => channels,
                // Channels that are counted by a window, stepped over by one, or padded.
                Op::Window { .. } | Op::Pad { .. } => return None,
                _ => break,
            };
            windows.insert(0, op.clone());
            image = *graph.node(image.node).operands.first()?;
        }
        // Padded channels are at most eight times as many.
        let most = extents.iter().try_fold(VECTOR, |n, extent| n.checked_mul(*extent))?;
        let has_windows = windows.iter().any(|op| matches!(op, Op::Window { .. }));
        let found = Windows { left, right, image, windows, axes: axes.clone(), inner, channels, extents };
        (has_windows && most > 0).then_some(found)
    }

    /// Whether cooperative matrices multiply the operands.
    fn is_matrix(&self, graph: &Graph, caps: &DeviceCaps) -> bool {
        matrix::multiplies_tensors(graph, caps, [self.left, self.right]) && self.rows(graph).is_some()
    }

    fn rows(&self, graph: &Graph) -> Option<i64> {
        let dims = graph.ty(self.left).shape.dims();
        dims.get(dims.len().checked_sub(2)?)?.as_const()
    }

    /// Channels in the copies.
    fn padded(&self) -> i64 {
        (self.extents[0] + VECTOR - 1) / VECTOR * VECTOR
    }

    fn pads(&self) -> bool {
        self.padded() != self.extents[0]
    }

    /// Microseconds for a copy of an operand with padded channels.
    fn copy_us(&self, graph: &Graph, caps: &DeviceCaps, value: Value) -> f64 {
        let bytes = graph.ty(value).max_bytes();
        let [channels, padded] = [self.extents[0], self.padded()].map(i64::unsigned_abs);
        let written = (bytes / channels).saturating_mul(padded);
        cost::map_us(caps, bytes.saturating_add(written))
    }

    /// Microseconds that the tiles spend on single elements, less those that they spend on products of padded channels.
    fn saved_us(&self, graph: &Graph, caps: &DeviceCaps, rows: i64) -> f64 {
        let [left, right] = [self.left, self.right].map(|v| graph.ty(v));
        let size = right.dtype.size().unwrap_or(1) as u64;
        let k = self.extents.iter().product::<i64>().unsigned_abs();
        let columns = right.shape.dims().last().and_then(Dim::as_const).unwrap_or(0);
        let all = right.shape.max_numel() / k;
        let batch = all / columns.unsigned_abs().max(1);
        let product = Product { batch, rows, columns, k };
        let elements = right.shape.max_numel().saturating_mul(cost::matmul_tiles(rows));
        let mut single = cost::windows_us(caps, elements, size);
        let along = left.shape.rank() - 1;
        if self.pads() && !has_groups_along(graph, self.left, along, VECTOR) {
            let weights = k.saturating_mul(rows.unsigned_abs()).saturating_mul(batch);
            single += cost::prologue_us(caps, weights.saturating_mul(cost::matmul_tiles(columns)), size);
        }
        let [channels, padded] = [self.extents[0], self.padded()].map(i64::unsigned_abs);
        let more = Product { k: k / channels * (padded - channels), ..product };
        (single - cost::convolution_us(caps, more)) / cost::matmul_share(caps, product)
    }

    /// The matmul in the other order of K, if that takes less time.
    fn reordered(&self, graph: &mut Graph, caps: &DeviceCaps) -> Result<Option<Value>, GraphError> {
        let has_vectors =
            |graph: &Graph, v: Value| has_groups_along(graph, v, graph.ty(v).shape.rank() - 2, VECTOR);
        let Some(rows) = self.rows(graph) else { return Ok(None) };
        let left_us = self.copy_us(graph, caps, self.left);
        if has_vectors(graph, self.right) {
            return Ok(None);
        }
        let saved = self.saved_us(graph, caps, rows);
        if saved < left_us {
            return Ok(None);
        }
        let in_place = if self.pads() { None } else { Some(self.right_of(graph, self.image)?) };
        let right = match in_place.filter(|v| has_vectors(graph, *v)) {
            Some(right) => right,
            None if saved < left_us + self.copy_us(graph, caps, self.image) => return Ok(None),
            None => {
                let image = self.channels_last(graph)?;
                self.right_of(graph, image)?
            }
        };
        if !has_vectors(graph, right) {
            return Ok(None);
        }
        let left = self.left_reordered(graph)?;
        graph.add(Op::Matmul, &[left, right]).map(Some)
    }

    /// The right operand with the channels as the last of its K axes.
    fn right_of(&self, graph: &mut Graph, image: Value) -> Result<Value, GraphError> {
        let windows = self.windows.iter().try_fold(image, |value, op| graph.add(op.clone(), &[value]))?;
        let mut axes = self.axes.clone();
        axes[self.inner.clone()].rotate_left(1);
        let permuted = graph.permute(windows, &axes)?;
        let mut dims = graph.ty(self.right).shape.dims().to_vec();
        let k = dims.len() - 2;
        dims[k] = self.padded_k();
        graph.add(Op::Reshape(Shape::new(dims)), &[permuted])
    }

    /// K with padded channels.
    fn padded_k(&self) -> Dim {
        Dim::constant(self.padded() * self.extents[1..].iter().product::<i64>())
    }

    /// A copy of an operand whose last axis counts channels, with zeros after them.
    fn copied(&self, graph: &mut Graph, value: Value) -> Result<Value, GraphError> {
        let ty = graph.ty(value).clone();
        let mut padded = value;
        if self.pads() {
            let (axis, before) = (ty.shape.rank() - 1, Dim::zero());
            let after = Dim::constant(self.padded() - self.extents[0]);
            let zero = Scalar::float(ty.dtype, 0.0);
            padded = graph.add(Op::Pad { axis, before, after, value: zero }, &[value])?;
        }
        graph.add(Op::Cast(ty.dtype), &[padded])
    }

    /// The left operand in the same order, as a copy. The positions in a window are transposed as one.
    fn left_reordered(&self, graph: &mut Graph) -> Result<Value, GraphError> {
        let ty = graph.ty(self.left).clone();
        let outer = &ty.shape.dims()[..ty.shape.rank() - 1];
        let inner = [self.extents[0], self.extents[1..].iter().product()].map(Dim::constant);
        let apart = graph.add(Op::Reshape(Shape::new([outer, &inner[..]].concat())), &[self.left])?;
        let mut axes: Vec<usize> = (0..outer.len() + inner.len()).collect();
        axes[outer.len()..].reverse();
        let permuted = graph.permute(apart, &axes)?;
        let copy = self.copied(graph, permuted)?;
        let reordered = Shape::new([outer, &[self.padded_k()]].concat());
        graph.add(Op::Reshape(reordered), &[copy])
    }

    /// The image with the channels in adjacent elements of memory, and its axes in the order that they had. The axes after
    /// the channels are transposed as one.
    fn channels_last(&self, graph: &mut Graph) -> Result<Value, GraphError> {
        let ty = graph.ty(self.image).clone();
        let (outer, rest) = ty.shape.dims().split_at(self.channels);
        let (channels, inner) = (&rest[..1], &rest[1..]);
        let one = Shape::new(inner.to_vec()).numel();
        let merged = Shape::new([outer, channels, &[one]].concat());
        let merged = graph.add(Op::Reshape(merged), &[self.image])?;
        let mut swapped: Vec<usize> = (0..outer.len() + 2).collect();
        swapped[outer.len()..].reverse();
        let permuted = graph.permute(merged, &swapped)?;
        let copy = self.copied(graph, permuted)?;
        let apart = Shape::new([outer, inner, &[Dim::constant(self.padded())]].concat());
        let apart = graph.add(Op::Reshape(apart), &[copy])?;
        let mut back: Vec<usize> = (0..ty.shape.rank()).collect();
        back[self.channels..].rotate_right(1);
        graph.permute(apart, &back)
    }
}

/// The axes of `from` that a reshape to `to`, which is `[.., K, N]`, merges to K. `None` unless their extents and those of
/// N are constant.
fn inner_axes(from: &Shape, to: &Shape) -> Option<std::ops::Range<usize>> {
    let [.., k, n] = to.dims() else { return None };
    let mut end = from.rank();
    let mut merge = |target: i64| {
        let (mut product, last) = (1, end);
        while product < target && end > 0 {
            end -= 1;
            product *= from.dims()[end].as_const()?;
        }
        (product == target).then_some(end..last)
    };
    merge(n.as_const()?)?;
    merge(k.as_const()?)
}
