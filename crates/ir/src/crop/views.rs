//! Parts of views.

use std::ops::Range;

use super::region::contiguous;
use super::{Builder, CropError, Region, Span, extents, whole};
use crate::dim::Dim;
use crate::graph::Value;
use crate::op::Op;
use crate::scalar::Scalar;
use crate::shape::Shape;

/// The range of an axis of a part, which must be one.
fn range(region: &Region, axis: usize) -> Result<Range<usize>, CropError> {
    region[axis].range().ok_or(CropError::Unsupported("chosen rows"))
}

fn constant(dim: &Dim) -> Result<usize, CropError> {
    let value = dim.as_const().and_then(|n| usize::try_from(n).ok());
    value.ok_or(CropError::Unsupported("a symbolic extent"))
}

fn with(region: &Region, axis: usize, span: Range<usize>) -> Region {
    let mut to = region.clone();
    to[axis] = span.into();
    to
}

impl Builder<'_> {
    pub(super) fn broadcast(&mut self, v: Value, region: &Region) -> Result<Value, CropError> {
        let shape = self.shape(self.operand(v, 0))?;
        let axes = &region[region.len() - shape.len()..];
        let span = |(n, span): (&usize, &Span)| if *n == 1 { Span::all(1) } else { span.clone() };
        let from = shape.iter().zip(axes).map(span).collect();
        let a = self.value(self.operand(v, 0), &from)?;
        Ok(self.graph.broadcast(a, Shape::from(extents(region)))?)
    }

    pub(super) fn slice(
        &mut self,
        v: Value,
        region: &Region,
        (axis, start): (usize, &Dim),
    ) -> Result<Value, CropError> {
        let (mut from, start) = (region.clone(), constant(start)?);
        match &mut from[axis] {
            Span::Range { start: first, .. } => *first += start,
            Span::List(list) => list.iter_mut().for_each(|at| *at += start),
        }
        self.value(self.operand(v, 0), &from)
    }

    pub(super) fn flip(&mut self, v: Value, region: &Region, axis: usize) -> Result<Value, CropError> {
        let (n, asked) = (self.shape(v)?[axis], range(region, axis)?);
        let a = self.value(self.operand(v, 0), &with(region, axis, n - asked.end..n - asked.start))?;
        Ok(self.graph.add(Op::Flip { axis }, &[a])?)
    }

    pub(super) fn window(
        &mut self,
        v: Value,
        region: &Region,
        (axis, [size, stride, dilation]): (usize, [usize; 3]),
    ) -> Result<Value, CropError> {
        let windows = range(region, axis)?;
        if windows.is_empty() {
            return self.all(v, region);
        }
        let start = windows.start * stride;
        let end = (windows.end - 1) * stride + (size - 1) * dilation + 1;
        let mut from = region.clone();
        from.splice(axis..axis + 2, [Span::from(start..end)]);
        let a = self.value(self.operand(v, 0), &from)?;
        let all = self.graph.add(Op::Window { axis, size, stride, dilation }, &[a])?;
        self.narrow(all, &with(region, axis + 1, 0..size), region)
    }

    pub(super) fn pad(
        &mut self,
        v: Value,
        region: &Region,
        (axis, before, value): (usize, &Dim, Scalar),
    ) -> Result<Value, CropError> {
        let (before, n) = (constant(before)?, self.shape(self.operand(v, 0))?[axis]);
        let asked = range(region, axis)?;
        let [start, end] = [before, before + n].map(|at| at.clamp(asked.start, asked.end));
        if start == end {
            let scalar = self.graph.add(Op::Const(value), &[])?;
            return Ok(self.graph.broadcast(scalar, Shape::from(extents(region)))?);
        }
        let a = self.value(self.operand(v, 0), &with(region, axis, start - before..end - before))?;
        let [before, after] = [start - asked.start, asked.end - end];
        match before + after {
            0 => Ok(a),
            _ => Ok(self
                .graph
                .add(Op::Pad { axis, before: before.into(), after: after.into(), value }, &[a])?),
        }
    }

    pub(super) fn concat(&mut self, v: Value, region: &Region, axis: usize) -> Result<Value, CropError> {
        let asked = range(region, axis)?;
        let (mut parts, mut start) = (vec![], 0);
        for operand in &self.of.node(v.node).operands {
            let n = self.shape(*operand)?[axis];
            let [low, high] = [start, start + n].map(|at| at.clamp(asked.start, asked.end));
            if low < high {
                parts.push(self.value(*operand, &with(region, axis, low - start..high - start))?);
            }
            start += n;
        }
        if parts.is_empty() { self.all(v, region) } else { self.joined(axis, &parts) }
    }

    /// Axes fall into groups of equal products on both sides. Of each group, adjacent elements are taken in row-major order
    /// that are a box on both sides.
    pub(super) fn reshape(&mut self, v: Value, region: &Region) -> Result<Value, CropError> {
        let (from, to) = (self.shape(self.operand(v, 0))?, self.shape(v)?);
        if from.contains(&0) {
            return self.all(v, region);
        }
        let (mut needed, mut made): (Region, Region) = (vec![], vec![]);
        for (of, at) in groups(&from, &to) {
            let (of, shape, asked) = (&from[of], &to[at.clone()], &region[at]);
            if of == shape {
                needed.extend_from_slice(asked);
                made.extend_from_slice(asked);
                continue;
            }
            let asked: Option<Vec<_>> = asked.iter().map(Span::range).collect();
            let asked = asked.ok_or(CropError::Unsupported("chosen rows"))?;
            if asked.iter().any(Range::is_empty) {
                needed.extend(whole(of));
                made.extend(whole(shape));
                continue;
            }
            let corner = |at: &dyn Fn(&Range<usize>) -> usize| {
                shape.iter().zip(&asked).fold(0, |sum, (n, range)| sum * n + at(range))
            };
            let mut positions = corner(&|range| range.start)..corner(&|range| range.end - 1) + 1;
            loop {
                let (there, all) = contiguous(shape, positions.clone());
                let (here, all) = contiguous(of, all);
                if all == positions {
                    needed.extend(here.into_iter().map(Span::from));
                    made.extend(there.into_iter().map(Span::from));
                    break;
                }
                positions = all;
            }
        }
        let a = self.value(self.operand(v, 0), &needed)?;
        let reshaped = self.graph.reshape(a, Shape::from(extents(&made)))?;
        self.narrow(reshaped, &made, region)
    }
}

/// The fewest axes on both sides that have as many elements, in order.
fn groups(from: &[usize], to: &[usize]) -> Vec<(Range<usize>, Range<usize>)> {
    let (mut found, mut at) = (vec![], [0, 0]);
    while at[0] < from.len() || at[1] < to.len() {
        let [i, j] = at;
        let size = |shape: &[usize], at: &mut usize| {
            let n = shape.get(*at).copied().unwrap_or(1);
            *at = (*at + 1).min(shape.len());
            n
        };
        let (mut a, mut b) = (size(from, &mut at[0]), size(to, &mut at[1]));
        while a != b {
            match a < b {
                true => a *= size(from, &mut at[0]),
                false => b *= size(to, &mut at[1]),
            }
        }
        found.push((i..at[0], j..at[1]));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_of_reshapes_fall_into_groups() {
        assert_eq!(groups(&[6, 4], &[2, 3, 4]), [(0..1, 0..2), (1..2, 2..3)]);
        assert_eq!(groups(&[6, 4], &[24]), [(0..2, 0..1)]);
        assert_eq!(groups(&[6], &[1, 6, 1]), [(0..1, 0..2), (1..1, 2..3)]);
        assert_eq!(groups(&[], &[1]), [(0..0, 0..1)]);
    }
}
