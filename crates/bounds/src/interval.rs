//! The interval of a tensor, and comparison of a kernel's result with it.

use tallow_reference::{Array, Data};

use crate::error::{Error, Result};
use crate::outside::Outside;

/// The two ends of what a kernel may return.
#[derive(Clone, Debug)]
pub struct Interval {
    low: Array,
    high: Array,
}

/// How a kernel's result compares with its interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Elements compared.
    pub elements: usize,
    /// Elements for which the interval excludes nothing: both ends are infinite, or one is NaN.
    pub unbounded: usize,
    /// The largest distance from the interpreter's result, as a share of what is allowed on that side: above 1 if an
    /// element is outside, infinite if one differs that must not.
    pub worst: f64,
    /// Elements outside.
    pub outside: usize,
    /// The first of them.
    pub first: Option<Outside>,
}

/// One element: what is allowed, expected and returned.
#[derive(Clone, Copy)]
struct Element {
    low: f64,
    high: f64,
    expected: f64,
    got: f64,
}

impl Element {
    fn is_within(self) -> bool {
        match (self.expected.is_nan(), self.is_unbounded()) {
            (true, _) => self.got.is_nan(),
            (false, true) => true,
            (false, false) => self.got >= self.low && self.got <= self.high,
        }
    }

    fn is_unbounded(self) -> bool {
        let open = self.low == f64::NEG_INFINITY && self.high == f64::INFINITY;
        !self.expected.is_nan() && (open || self.low.is_nan() || self.high.is_nan())
    }

    /// The distance from the expected value as a share of what is allowed on that side.
    fn share(self) -> f64 {
        let Element { low, high, expected, got } = self;
        if got == expected || (got.is_nan() && expected.is_nan()) || self.is_unbounded() {
            return 0.0;
        }
        let (distance, allowed) =
            if got > expected { (got - expected, high - expected) } else { (expected - got, expected - low) };
        let share = distance / allowed;
        // NaN, or a distance where none is allowed.
        if share.is_nan() { f64::INFINITY } else { share }
    }
}

impl Interval {
    pub(crate) fn new(low: Array, high: Array) -> Interval {
        Interval { low, high }
    }

    /// The least that a kernel may return: f64, or integers of the result's type.
    pub fn low(&self) -> &Array {
        &self.low
    }

    /// The most that a kernel may return.
    pub fn high(&self) -> &Array {
        &self.high
    }

    /// Whether both what the interpreter found and what a kernel returned lie in the interval.
    ///
    /// NaN must meet NaN, but where an end is NaN and the interpreter's result is not: then an operand's interval
    /// leaves the domain of a function, and anything may come out.
    ///
    /// # Errors
    /// When one of them does not; the message says at which index and by how much.
    pub fn check(&self, expected: &Array, got: &Array) -> Result<()> {
        let Comparison { elements, outside, first, .. } = self.compare(expected, got)?;
        match first {
            Some(first) => Err(Error::Outside { first, outside, elements }),
            None => Ok(()),
        }
    }

    /// Compares what a kernel returned with the interval, as [`Interval::check`].
    ///
    /// # Errors
    /// When the two results have different types, or the interpreter's is outside.
    pub fn compare(&self, expected: &Array, got: &Array) -> Result<Comparison> {
        if expected.ty != got.ty || expected.shape != got.shape {
            let ty = |a: &Array| format!("{}{:?}", a.ty, a.shape);
            return Err(Error::Type { expected: ty(expected), got: ty(got) });
        }
        let own = self.outcome(expected, expected)?;
        if let Some(first) = own.first {
            return Err(Error::Wrong(first));
        }
        self.outcome(expected, got)
    }

    fn outcome(&self, expected: &Array, a: &Array) -> Result<Comparison> {
        let elements = a.len();
        if let Some(bounds) =
            [&self.low, &self.high, expected].into_iter().map(Array::len).find(|n| *n != elements)
        {
            return Err(Error::Length { bounds, elements });
        }
        let [low, high, wanted, got] = [&self.low, &self.high, expected, a].map(Array::to_f64s);
        let element = |i: usize| Element { low: low[i], high: high[i], expected: wanted[i], got: got[i] };
        let within: Box<dyn Fn(usize) -> bool> = match (&self.low.data, &self.high.data, &a.data) {
            // As integers: f64 would merge neighbours above 2^53.
            (Data::Int(low), Data::Int(high), Data::Int(a)) => {
                Box::new(move |i| a[i] >= low[i] && a[i] <= high[i])
            }
            _ => Box::new(|i| element(i).is_within()),
        };
        let mut found = Comparison { elements, unbounded: 0, worst: 0.0, outside: 0, first: None };
        for i in 0..elements {
            let at = element(i);
            found.unbounded += usize::from(at.is_unbounded());
            found.worst = found.worst.max(at.share());
            if !within(i) {
                found.outside += 1;
                found.first.get_or_insert_with(|| outside(a, i, at));
            }
        }
        Ok(found)
    }
}

/// The element at a position, which is outside.
fn outside(a: &Array, position: usize, at: Element) -> Outside {
    let mut index = vec![0; a.shape.len()];
    let mut rest = position;
    for (slot, n) in index.iter_mut().zip(&a.shape).rev() {
        *slot = rest % n.max(&1);
        rest /= n.max(&1);
    }
    let Element { low, high, expected, got } = at;
    Outside { index, ty: format!("{}{:?}", a.ty, a.shape), expected, got, low, high }
}

#[cfg(test)]
mod tests {
    use tallow_ir::DType;

    use super::*;

    fn array(values: &[f64]) -> Array {
        Array::from_f64s(DType::F64, &[values.len()], values).expect("fits")
    }

    #[test]
    fn the_worst_element_is_a_share_of_what_is_allowed() {
        let of = |low: f64, high: f64, expected: f64, got: f64| {
            let found = Interval::new(array(&[low]), array(&[high]))
                .compare(&array(&[expected]), &array(&[got]))
                .expect("is sound");
            (found.worst, found.outside, found.unbounded)
        };
        let inf = f64::INFINITY;
        assert_eq!(of(0.0, 4.0, 2.0, 3.0), (0.5, 0, 0));
        assert_eq!(of(0.0, 4.0, 1.0, 0.75), (0.25, 0, 0));
        assert_eq!(of(0.0, 4.0, 2.0, 5.0), (1.5, 1, 0));
        assert_eq!(of(2.0, 2.0, 2.0, 2.0), (0.0, 0, 0));
        assert_eq!(of(2.0, 2.0, 2.0, 2.5), (inf, 1, 0));
        assert_eq!(of(0.0, 4.0, 2.0, f64::NAN), (inf, 1, 0));
        assert_eq!(of(-inf, inf, 2.0, 100.0), (0.0, 0, 1));
        assert_eq!(of(-inf, inf, 2.0, f64::NAN), (0.0, 0, 1));
        assert_eq!(of(f64::NAN, f64::NAN, f64::NAN, f64::NAN), (0.0, 0, 0));
    }

    #[test]
    fn the_first_element_outside_is_named() {
        let two = |a: f64, b: f64, c: f64, d: f64| {
            Array::from_f64s(DType::F64, &[2, 2], &[a, b, c, d]).expect("fits")
        };
        let interval = Interval::new(two(0.0, 0.0, 0.0, 0.0), two(1.0, 1.0, 1.0, 1.0));
        let expected = two(0.5, 0.5, 0.5, 0.5);
        let found = interval.compare(&expected, &two(1.0, 0.0, 2.0, 3.0)).expect("is sound");
        assert_eq!((found.outside, found.first.as_ref().map(|o| o.index.clone())), (2, Some(vec![1, 0])));
        let why = interval.check(&expected, &two(0.5, 0.5, 2.0, 0.5)).expect_err("is outside").to_string();
        let first = "at [1, 0] of f64[2, 2]: expected 0.5, got 2.0, which is outside 0.0 ..= 1.0";
        assert_eq!(why, format!("{first} (1 of 4 elements are)"));
        let wrong = interval.check(&two(2.0, 0.5, 0.5, 0.5), &expected).expect_err("is wrong").to_string();
        assert!(wrong.starts_with("its bounds are wrong: at [0, 0]"), "{wrong}");
    }
}
