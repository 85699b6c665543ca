//! Reorders convolutions of many channels, so that tiles read vectors of channels.
//!
//! A convolution is a matmul whose right operand consists of windows of an image. Its K axis counts channels and the
//! positions in a window, `(c, y, x)`, and images are stored as `[c, height, width]`: the channels of one position are far
//! apart, and the columns are at odd offsets, so that tiles would load single elements. In the order `(y, x, c)`, with
//! images in the order `[height, width, c]`, eight channels are one aligned vector:
//!
//! `sum over (c, y, x) of w[o, (c, y, x)] i[(c, y, x), p] = sum over (y, x, c) of w[o, (y, x, c)] i[(y, x, c), p]`.
//!
//! The products are the same, and f32 sums of them are within K 2^-24 times the sum of their magnitudes in either order.
//! The image and the weight are copied to that order, unless they have it. The pass does this where the copies cost less
//! than the loads of single elements, on devices that multiply such elements by cooperative matrices.

use crate::access::has_groups_along;
use crate::caps::DeviceCaps;
use crate::cost;
use crate::dim::Dim;
use crate::graph::{Graph, GraphError, Value};
use crate::matrix;
use crate::op::Op;
use crate::rewrite::rebuild;
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
        let has_vectors = extents[0] % VECTOR == 0 && extents[0] > 0;
        let has_windows = windows.iter().any(|op| matches!(op, Op::Window { .. }));
        let found = Windows { left, right, image, windows, axes: axes.clone(), inner, channels, extents };
        (has_vectors && has_windows).then_some(found)
    }

    /// Whether cooperative matrices multiply the operands.
    fn is_matrix(&self, graph: &Graph, caps: &DeviceCaps) -> bool {
        matrix::multiplies_tensors(graph, caps, [self.left, self.right]) && self.rows(graph).is_some()
    }

    fn rows(&self, graph: &Graph) -> Option<i64> {
        let dims = graph.ty(self.left).shape.dims();
        dims.get(dims.len().checked_sub(2)?)?.as_const()
    }

    /// The matmul in the other order of K, if that takes less time.
    fn reordered(&self, graph: &mut Graph, caps: &DeviceCaps) -> Result<Option<Value>, GraphError> {
        let has_vectors =
            |graph: &Graph, v: Value| has_groups_along(graph, v, graph.ty(v).shape.rank() - 2, VECTOR);
        let Some(rows) = self.rows(graph) else { return Ok(None) };
        let loaded = graph.ty(self.right).shape.max_numel().saturating_mul(cost::matmul_tiles(rows));
        let copied = |graph: &Graph, v: Value| cost::map_us(caps, graph.ty(v).max_bytes().saturating_mul(2));
        let size = graph.ty(self.right).dtype.size().unwrap_or(1) as u64;
        let single = cost::windows_us(caps, loaded, size);
        if has_vectors(graph, self.right) || single < copied(graph, self.left) {
            return Ok(None);
        }
        let mut right = self.right_of(graph, self.image)?;
        if !has_vectors(graph, right) {
            if single < copied(graph, self.left) + copied(graph, self.image) {
                return Ok(None);
            }
            let image = self.channels_last(graph)?;
            right = self.right_of(graph, image)?;
        }
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
        let shape = graph.ty(self.right).shape.clone();
        graph.add(Op::Reshape(shape), &[permuted])
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
        let copy = graph.add(Op::Cast(ty.dtype), &[permuted])?;
        graph.add(Op::Reshape(ty.shape), &[copy])
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
        let copy = graph.add(Op::Cast(ty.dtype), &[permuted])?;
        let apart = Shape::new([outer, inner, channels].concat());
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
