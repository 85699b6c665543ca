//! Where the elements of a tensor lie in a buffer: extents, strides and the position of the first.
//!
//! Broadcast, permute, slice, flip and window change only this, so they cost nothing.

/// A strided box of elements in a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Distance in elements between neighbours along each axis.
    pub strides: Vec<isize>,
    /// Position of the element at index 0, 0, ..
    pub offset: isize,
}

/// Elements of a box that lie at one distance: `count` elements from `start`, `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Position of the first.
    pub start: isize,
    /// Distance.
    pub stride: isize,
    /// How many.
    pub count: usize,
}

impl Run {
    /// Position of element `i`. Positions in a buffer are never negative.
    #[inline(always)]
    pub fn at(&self, i: usize) -> usize {
        (self.start + self.stride * i as isize) as usize
    }
}

impl Layout {
    /// Row-major order without gaps.
    pub fn packed(shape: &[usize]) -> Self {
        let mut strides = vec![1isize; shape.len()];
        for i in (1..shape.len()).rev() {
            strides[i - 1] = strides[i] * shape[i].max(1) as isize;
        }
        Layout { shape: shape.to_vec(), strides, offset: 0 }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if the elements lie in row-major order without gaps.
    pub fn is_packed(&self) -> bool {
        let mut expected = 1;
        for (&n, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if n != 1 && stride != expected {
                return false;
            }
            expected *= n.max(1) as isize;
        }
        true
    }

    /// The same elements with axis `i` of the result being axis `axes[i]`.
    pub fn permute(&self, axes: &[usize]) -> Self {
        Layout {
            shape: axes.iter().map(|i| self.shape[*i]).collect(),
            strides: axes.iter().map(|i| self.strides[*i]).collect(),
            offset: self.offset,
        }
    }

    /// Aligned at the last axis; extents of 1 and missing axes repeat.
    pub fn broadcast(&self, shape: &[usize]) -> Self {
        let missing = shape.len() - self.shape.len();
        let stride = |(i, to): (usize, &usize)| match i.checked_sub(missing) {
            Some(from) if self.shape[from] == *to => self.strides[from],
            Some(_) | None => 0,
        };
        let strides = shape.iter().enumerate().map(stride).collect();
        Layout { shape: shape.to_vec(), strides, offset: self.offset }
    }

    /// `len` elements of `axis` from `start`.
    pub fn slice(&self, axis: usize, start: usize, len: usize) -> Self {
        let mut out = self.clone();
        out.shape[axis] = len;
        out.offset += self.strides[axis] * start as isize;
        out
    }

    /// Reversed along `axis`.
    pub fn flip(&self, axis: usize) -> Self {
        let mut out = self.clone();
        out.offset += self.strides[axis] * (self.shape[axis].max(1) - 1) as isize;
        out.strides[axis] = -self.strides[axis];
        out
    }

    /// `axis` as `count` windows of `size` elements: element `(o, k)` is element `o * stride + k * dilation`.
    pub fn window(&self, axis: usize, count: usize, size: usize, stride: usize, dilation: usize) -> Self {
        let mut out = self.clone();
        // A single window or element has no neighbour, and a step to it might not fit an isize.
        let step = |n: usize, by: usize| if n > 1 { self.strides[axis] * by as isize } else { 0 };
        out.shape.splice(axis..=axis, [count, size]);
        out.strides.splice(axis..=axis, [step(count, stride), step(size, dilation)]);
        out
    }

    /// Position of the element of row-major number `index`.
    pub fn position(&self, mut index: usize) -> isize {
        let mut at = self.offset;
        for (&n, &stride) in self.shape.iter().zip(&self.strides).rev() {
            at += (index % n) as isize * stride;
            index /= n;
        }
        at
    }

    /// Calls `each` with the runs that make up elements `start .. start + count` in row-major order.
    pub fn runs(&self, start: usize, count: usize, mut each: impl FnMut(Run)) {
        let merged = self.merged();
        let Some((&n, outer)) = merged.shape.split_last() else {
            if count > 0 {
                each(Run { start: self.offset, stride: 0, count });
            }
            return;
        };
        let stride = merged.strides[outer.len()];
        let mut index = vec![0usize; outer.len()];
        let (mut row, mut column) = (start / n.max(1), start % n.max(1));
        let mut at = merged.offset;
        for (i, &extent) in outer.iter().enumerate().rev() {
            index[i] = row % extent.max(1);
            row /= extent.max(1);
            at += index[i] as isize * merged.strides[i];
        }
        let mut left = count;
        while left > 0 {
            let count = left.min(n - column);
            each(Run { start: at + column as isize * stride, stride, count });
            left -= count;
            column = 0;
            // The next index of the outer axes, innermost first, as an odometer counts.
            for i in (0..outer.len()).rev() {
                index[i] += 1;
                at += merged.strides[i];
                if index[i] < outer[i] {
                    break;
                }
                at -= merged.strides[i] * outer[i] as isize;
                index[i] = 0;
            }
        }
    }

    /// The same elements in the same order with as few axes as possible, so that runs are long.
    fn merged(&self) -> Layout {
        let mut out = Layout { shape: vec![], strides: vec![], offset: self.offset };
        for (&n, &stride) in self.shape.iter().zip(&self.strides) {
            if n == 1 {
                continue;
            }
            match (out.shape.last_mut(), out.strides.last_mut()) {
                (Some(last), Some(last_stride)) if *last_stride == stride * n as isize => {
                    *last *= n;
                    *last_stride = stride;
                }
                _ => {
                    out.shape.push(n);
                    out.strides.push(stride);
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(layout: &Layout, start: usize, count: usize) -> Vec<isize> {
        let mut all = vec![];
        layout.runs(start, count, |r| all.extend((0..r.count).map(|i| r.at(i) as isize)));
        all
    }

    #[test]
    fn runs_are_the_positions_in_row_major_order() {
        let packed = Layout::packed(&[3, 4, 5]);
        let layouts = [
            packed.clone(),
            packed.permute(&[2, 0, 1]),
            packed.permute(&[1, 2, 0]).slice(1, 1, 3).flip(0),
            packed.slice(1, 2, 1).broadcast(&[2, 3, 4, 5]),
            Layout::packed(&[]).broadcast(&[4, 3]),
            Layout::packed(&[]),
            packed.slice(2, 0, 0),
            packed.window(2, 3, 3, 1, 1).window(1, 2, 2, 1, 2).permute(&[0, 2, 4, 1, 3]),
            packed.flip(2).window(2, 2, 2, 2, 2),
        ];
        for layout in layouts {
            let expected: Vec<isize> = (0..layout.len()).map(|i| layout.position(i)).collect();
            assert_eq!(positions(&layout, 0, layout.len()), expected, "{layout:?}");
            for start in 0..layout.len() {
                let count = (layout.len() - start).min(7);
                assert_eq!(positions(&layout, start, count), expected[start..start + count], "{layout:?}");
            }
        }
    }

    #[test]
    fn packed_ignores_the_strides_of_single_elements() {
        let layout = Layout::packed(&[4, 6]);
        assert!(layout.is_packed());
        assert!(layout.slice(0, 2, 1).is_packed());
        assert!(!layout.slice(1, 2, 1).is_packed());
        assert!(!layout.permute(&[1, 0]).is_packed());
        assert!(Layout::packed(&[1, 5]).permute(&[1, 0]).is_packed());
    }
}
