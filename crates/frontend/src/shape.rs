//! Shapes and axes as arguments: `(2, 3)`, `[2, 3]`, `x.shape()`, `(seq, 64)`, `D::Minus1`.

use tallow_ir::{Dim, Shape, Symbol};

use crate::error::{Error, Result};

/// One extent: a number, a symbol, or an expression of symbols.
pub trait Extent {
    /// The extent.
    fn extent(&self) -> Dim;
}

impl Extent for usize {
    fn extent(&self) -> Dim {
        (*self).into()
    }
}

impl Extent for Dim {
    fn extent(&self) -> Dim {
        self.clone()
    }
}

impl Extent for Symbol {
    fn extent(&self) -> Dim {
        self.into()
    }
}

impl<E: Extent + ?Sized> Extent for &E {
    fn extent(&self) -> Dim {
        (**self).extent()
    }
}

/// An extent, or `()` for the one that follows from the number of elements.
pub trait ExtentOrHole {
    /// The extent; `None` for the hole.
    fn extent_or_hole(&self) -> Option<Dim>;
}

impl ExtentOrHole for () {
    fn extent_or_hole(&self) -> Option<Dim> {
        None
    }
}

macro_rules! no_hole {
    ($($extent:ty),*) => {$(
        impl ExtentOrHole for $extent {
            fn extent_or_hole(&self) -> Option<Dim> {
                Some(self.extent())
            }
        }
    )*};
}
no_hole!(usize, Dim, Symbol, &usize, &Dim, &Symbol);

/// What can be a shape: tuples, arrays, slices and vectors of extents, one extent, `()` for a scalar.
pub trait IntoShape {
    /// The shape.
    fn into_shape(self) -> Shape;
}

/// What a tensor can be reshaped to: a shape, in which one extent of a tuple may be left open as `()`.
pub trait ReshapeTo {
    /// The extents; `None` for one left open.
    fn extents(self) -> Vec<Option<Dim>>;
}

macro_rules! shape_of {
    ($([$($generics:tt)*] $ty:ty: |$self:ident| $extents:expr;)*) => {$(
        impl<$($generics)*> IntoShape for $ty {
            fn into_shape(self) -> Shape {
                let $self = self;
                Shape::new($extents)
            }
        }

        impl<$($generics)*> ReshapeTo for $ty {
            fn extents(self) -> Vec<Option<Dim>> {
                let $self = self;
                $extents.into_iter().map(Some).collect()
            }
        }
    )*};
}
shape_of! {
    [] (): |_unit| Vec::<Dim>::new();
    [] usize: |one| vec![one.extent()];
    [] Dim: |one| vec![one];
    [] Symbol: |one| vec![one.extent()];
    [] Shape: |shape| shape.dims().to_vec();
    [] &Shape: |shape| shape.dims().to_vec();
    [E: Extent] Vec<E>: |all| all.iter().map(Extent::extent).collect::<Vec<_>>();
    [E: Extent] &Vec<E>: |all| all.iter().map(Extent::extent).collect::<Vec<_>>();
    [E: Extent] &[E]: |all| all.iter().map(Extent::extent).collect::<Vec<_>>();
    [E: Extent, const N: usize] [E; N]: |all| all.iter().map(Extent::extent).collect::<Vec<_>>();
    [E: Extent, const N: usize] &[E; N]: |all| all.iter().map(Extent::extent).collect::<Vec<_>>();
}

macro_rules! tuple_shape {
    ($($name:ident $at:tt),*) => {
        impl<$($name: Extent),*> IntoShape for ($($name,)*) {
            fn into_shape(self) -> Shape {
                Shape::new(vec![$(self.$at.extent()),*])
            }
        }

        impl<$($name: ExtentOrHole),*> ReshapeTo for ($($name,)*) {
            fn extents(self) -> Vec<Option<Dim>> {
                vec![$(self.$at.extent_or_hole()),*]
            }
        }
    };
}
tuple_shape!(A 0);
tuple_shape!(A 0, B 1);
tuple_shape!(A 0, B 1, C 2);
tuple_shape!(A 0, B 1, C 2, E 3);
tuple_shape!(A 0, B 1, C 2, E 3, F 4);
tuple_shape!(A 0, B 1, C 2, E 3, F 4, G 5);

/// An axis counted from the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum D {
    /// The last axis.
    Minus1,
    /// The one before the last.
    Minus2,
    /// So many from the end; 1 is the last.
    Minus(usize),
}

/// One axis of a tensor: a number from the front, or [`D`] from the end.
pub trait Axis: Copy {
    /// The axis as a number from the front, which may be the rank itself (for a new axis at the end).
    fn position(self, rank: usize) -> Option<usize>;

    /// How messages show it: from the end as a negative number.
    fn shown(self) -> i64;

    /// The axis of a tensor of this shape.
    ///
    /// # Errors
    /// When the tensor does not have it.
    fn of(self, shape: &Shape, op: &'static str) -> Result<usize> {
        let out = || Error::DimOutOfRange { op, dim: self.shown(), shape: shape.clone() };
        self.position(shape.rank()).filter(|axis| *axis < shape.rank()).ok_or_else(out)
    }
}

impl Axis for usize {
    fn position(self, _rank: usize) -> Option<usize> {
        Some(self)
    }

    fn shown(self) -> i64 {
        i64::try_from(self).unwrap_or(i64::MAX)
    }
}

impl D {
    fn back(self) -> usize {
        match self {
            D::Minus1 => 1,
            D::Minus2 => 2,
            D::Minus(n) => n,
        }
    }
}

impl Axis for D {
    fn position(self, rank: usize) -> Option<usize> {
        rank.checked_sub(self.back())
    }

    fn shown(self) -> i64 {
        -self.back().shown()
    }
}

/// Several axes of a tensor: one, a tuple, an array, a slice or a vector.
pub trait Axes {
    /// The axes in the order given, each once.
    ///
    /// # Errors
    /// When the tensor does not have one of them, or one is named twice.
    fn of(self, shape: &Shape, op: &'static str) -> Result<Vec<usize>>;
}

fn distinct(axes: Vec<usize>, shape: &Shape, op: &'static str) -> Result<Vec<usize>> {
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Error::DuplicateDimIndex { op, shape: shape.clone(), dims: axes });
    }
    Ok(axes)
}

macro_rules! axes {
    ($([$($generics:tt)*] $ty:ty: |$self:ident| $list:expr;)*) => {$(
        impl<$($generics)*> Axes for $ty {
            fn of(self, shape: &Shape, op: &'static str) -> Result<Vec<usize>> {
                let $self = self;
                let axes = $list.iter().map(|axis| Axis::of(*axis, shape, op)).collect::<Result<_>>()?;
                distinct(axes, shape, op)
            }
        }
    )*};
}
impl Axes for () {
    fn of(self, _shape: &Shape, _op: &'static str) -> Result<Vec<usize>> {
        Ok(Vec::new())
    }
}

axes! {
    [] usize: |one| [one];
    [] D: |one| [one];
    [A: Axis] &[A]: |all| all;
    [A: Axis] Vec<A>: |all| all;
    [A: Axis] &Vec<A>: |all| all;
    [A: Axis, const N: usize] [A; N]: |all| all;
    [A: Axis, const N: usize] &[A; N]: |all| all;
}

macro_rules! tuple_axes {
    ($($name:ident $at:tt),*) => {
        impl<$($name: Axis),*> Axes for ($($name,)*) {
            fn of(self, shape: &Shape, op: &'static str) -> Result<Vec<usize>> {
                distinct(vec![$(Axis::of(self.$at, shape, op)?),*], shape, op)
            }
        }
    };
}
tuple_axes!(A 0);
tuple_axes!(A 0, B 1);
tuple_axes!(A 0, B 1, C 2);
tuple_axes!(A 0, B 1, C 2, E 3);
tuple_axes!(A 0, B 1, C 2, E 3, F 4);
tuple_axes!(A 0, B 1, C 2, E 3, F 4, G 5);

/// The smallest shape that both can be repeated to, axes aligned at the end.
pub(crate) fn broadcast_shape(a: &Shape, b: &Shape) -> Option<Shape> {
    let rank = a.rank().max(b.rank());
    let at = |s: &Shape, i: usize| {
        (i + s.rank()).checked_sub(rank).map_or_else(Dim::one, |axis| s.dims()[axis].clone())
    };
    let both = |i| match (at(a, i), at(b, i)) {
        (x, y) if x == y || y.is(1) => Some(x),
        (x, y) if x.is(1) => Some(y),
        _ => None,
    };
    (0..rank).map(both).collect::<Option<Vec<Dim>>>().map(Shape::new)
}

/// The shape of `count` elements in which the open extent, if there is one, is what remains.
pub(crate) fn fill_hole(op: &'static str, count: &Dim, shape: impl ReshapeTo) -> Result<Shape> {
    let extents = shape.extents();
    let known = extents.iter().flatten().fold(Dim::one(), |n, d| &n * d);
    let fail = |why: String| Error::InvalidArgument { op, why };
    let hole = match extents.iter().filter(|d| d.is_none()).count() {
        0 => Dim::one(),
        1 => count
            .div_exact(&known)
            .ok_or_else(|| fail(format!("{count} elements are no multiple of {known}")))?,
        n => return Err(fail(format!("{n} extents are open, at most one can be"))),
    };
    Ok(Shape::new(extents.into_iter().map(|d| d.unwrap_or_else(|| hole.clone())).collect()))
}
