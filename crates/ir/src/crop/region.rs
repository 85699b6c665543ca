//! Boxes of tensors: per axis, a range of positions or a list of them.

use std::ops::Range;

/// Positions along one axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Span {
    /// Adjacent positions.
    Range {
        /// The first.
        start: usize,
        /// How many.
        len: usize,
    },
    /// Positions in any order, also several times.
    List(Vec<usize>),
}

impl Span {
    /// All positions of an axis.
    pub fn all(len: usize) -> Span {
        Span::Range { start: 0, len }
    }

    /// How many positions.
    pub fn count(&self) -> usize {
        match self {
            Span::Range { len, .. } => *len,
            Span::List(list) => list.len(),
        }
    }

    /// The positions as a range, if they are one.
    pub fn range(&self) -> Option<Range<usize>> {
        match self {
            Span::Range { start, len } => Some(*start..start + len),
            Span::List(_) => None,
        }
    }

    /// Position `i` of them. Beyond the last there are none.
    pub fn get(&self, i: usize) -> Option<usize> {
        match self {
            Span::Range { start, len } => (i < *len).then_some(start + i),
            Span::List(list) => list.get(i).copied(),
        }
    }
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Span {
        Span::Range { start: range.start, len: range.len() }
    }
}

/// The part of a tensor with these positions along each axis.
pub type Region = Vec<Span>;

/// The whole tensor of these extents.
pub fn whole(shape: &[usize]) -> Region {
    shape.iter().map(|n| Span::all(*n)).collect()
}

/// The extents of a region.
pub fn extents(region: &[Span]) -> Vec<usize> {
    region.iter().map(Span::count).collect()
}

/// The smallest box around some positions in row-major order that has no gaps in that order, and the positions that it has.
pub(super) fn contiguous(shape: &[usize], positions: Range<usize>) -> (Vec<Range<usize>>, Range<usize>) {
    let (mut ranges, mut is_cut) = (vec![], false);
    let (mut low, mut high) = (positions.start, positions.end - 1);
    let (mut first, mut count) = (0, 1);
    let mut stride: usize = shape.iter().product();
    for n in shape {
        stride /= n;
        // Behind the first axis with several positions all are whole.
        let range = if is_cut { 0..*n } else { low / stride..high / stride + 1 };
        is_cut |= range.len() > 1;
        (low, high) = (low % stride, high % stride);
        first += range.start * stride;
        count *= range.len();
        ranges.push(range);
    }
    (ranges, first..first + count)
}

/// Copies a region of a tensor of `bytes`: row-major elements, of which a unit of `unit_elements` along the innermost axis
/// takes `unit_bytes`. `None` if there are fewer bytes, or the region cuts a unit.
pub fn copy_region(
    bytes: &[u8],
    shape: &[usize],
    region: &[Span],
    (unit_elements, unit_bytes): (usize, usize),
) -> Option<Vec<u8>> {
    let Some((inner, outer)) = region.split_last() else {
        return bytes.get(..unit_bytes).map(<[u8]>::to_vec);
    };
    let (inner_extent, outer_shape) = shape.split_last()?;
    let row_bytes = inner_extent / unit_elements * unit_bytes;
    let mut found = vec![];
    let mut at = vec![0; outer.len()];
    let rows: usize = outer.iter().map(Span::count).product();
    for _ in 0..rows {
        let mut row = 0;
        for ((span, i), n) in outer.iter().zip(&at).zip(outer_shape) {
            row = row * n + span.get(*i)?;
        }
        let row = bytes.get(row * row_bytes..(row + 1) * row_bytes)?;
        match inner.range() {
            Some(range) => {
                let is_whole = |at: usize| at.is_multiple_of(unit_elements);
                let ends = [range.start, range.end].map(|at| at / unit_elements * unit_bytes);
                let row =
                    (is_whole(range.start) && is_whole(range.end)).then(|| row.get(ends[0]..ends[1]))??;
                found.extend_from_slice(row);
            }
            None => {
                for i in 0..inner.count() {
                    let at = (unit_elements == 1).then(|| inner.get(i))?? * unit_bytes;
                    found.extend_from_slice(row.get(at..at + unit_bytes)?);
                }
            }
        }
        for (i, span) in at.iter_mut().zip(outer).rev() {
            *i += 1;
            if *i < span.count() {
                break;
            }
            *i = 0;
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_without_gaps_have_one_partial_axis() {
        assert_eq!(contiguous(&[3, 4, 5], 0..60), (vec![0..3, 0..4, 0..5], 0..60));
        assert_eq!(contiguous(&[3, 4, 5], 22..24), (vec![1..2, 0..1, 2..4], 22..24));
        assert_eq!(contiguous(&[3, 4, 5], 22..31), (vec![1..2, 0..3, 0..5], 20..35));
        assert_eq!(contiguous(&[3, 4, 5], 19..21), (vec![0..2, 0..4, 0..5], 0..40));
    }

    #[test]
    fn regions_are_copied_in_units() {
        let bytes: Vec<u8> = (0..24).collect();
        let region = vec![Span::List(vec![2, 0]), Span::from(1..3)];
        assert_eq!(copy_region(&bytes, &[3, 8], &region, (1, 1)), Some(vec![17, 18, 1, 2]));
        let blocks = vec![Span::from(1..2), Span::from(8..16)];
        assert_eq!(copy_region(&bytes, &[3, 16], &blocks, (8, 4)), Some(vec![12, 13, 14, 15]));
        assert_eq!(copy_region(&bytes, &[3, 16], &[Span::all(3), Span::from(4..16)], (8, 4)), None);
        assert_eq!(copy_region(&bytes, &[4, 8], &[Span::from(3..4), Span::all(8)], (1, 1)), None);
    }
}
