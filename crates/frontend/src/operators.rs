//! `+ - * /` on tensors, references, numbers, and the results of other operators.
//!
//! As in Candle, an operator gives a `Result<Tensor>`, which is accepted on either side of the next one:
//! `((&a * &b)? + c)?` can be written `(&a * &b + c)?`.

use std::borrow::Borrow;
use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::error::Result;
use crate::tensor::Tensor;

macro_rules! operator {
    ($trait:ident $method:ident, number on the right: $right:expr, on the left: $left:expr) => {
        impl<B: Borrow<Tensor>> $trait<B> for Tensor {
            type Output = Result<Tensor>;

            fn $method(self, rhs: B) -> Self::Output {
                Tensor::$method(&self, rhs.borrow())
            }
        }

        impl<B: Borrow<Tensor>> $trait<B> for &Tensor {
            type Output = Result<Tensor>;

            fn $method(self, rhs: B) -> Self::Output {
                Tensor::$method(self, rhs.borrow())
            }
        }

        impl<B: Borrow<Tensor>> $trait<Tensor> for Result<B> {
            type Output = Result<Tensor>;

            fn $method(self, rhs: Tensor) -> Self::Output {
                Tensor::$method(self?.borrow(), &rhs)
            }
        }

        impl<B: Borrow<Tensor>> $trait<&Tensor> for Result<B> {
            type Output = Result<Tensor>;

            fn $method(self, rhs: &Tensor) -> Self::Output {
                Tensor::$method(self?.borrow(), rhs)
            }
        }

        impl<B: Borrow<Tensor>> $trait<Result<B>> for Tensor {
            type Output = Result<Tensor>;

            fn $method(self, rhs: Result<B>) -> Self::Output {
                Tensor::$method(&self, rhs?.borrow())
            }
        }

        impl<B: Borrow<Tensor>> $trait<Result<B>> for &Tensor {
            type Output = Result<Tensor>;

            fn $method(self, rhs: Result<B>) -> Self::Output {
                Tensor::$method(self, rhs?.borrow())
            }
        }

        impl $trait<f64> for Tensor {
            type Output = Result<Tensor>;

            fn $method(self, rhs: f64) -> Self::Output {
                $right(&self, rhs)
            }
        }

        impl $trait<f64> for &Tensor {
            type Output = Result<Tensor>;

            fn $method(self, rhs: f64) -> Self::Output {
                $right(self, rhs)
            }
        }

        impl $trait<Tensor> for f64 {
            type Output = Result<Tensor>;

            fn $method(self, rhs: Tensor) -> Self::Output {
                $left(self, &rhs)
            }
        }

        impl $trait<&Tensor> for f64 {
            type Output = Result<Tensor>;

            fn $method(self, rhs: &Tensor) -> Self::Output {
                $left(self, rhs)
            }
        }
    };
}

operator!(Add add, number on the right: |t: &Tensor, x| t.affine(1.0, x), on the left: |x, t: &Tensor| t.affine(1.0, x));
operator!(Sub sub, number on the right: |t: &Tensor, x: f64| t.affine(1.0, -x), on the left: |x, t: &Tensor| t.affine(-1.0, x));
operator!(Mul mul, number on the right: |t: &Tensor, x| t.affine(x, 0.0), on the left: |x, t: &Tensor| t.affine(x, 0.0));
operator!(Div div,
    // Divided, not multiplied by a rounded reciprocal; integers truncate.
    number on the right: |t: &Tensor, x| t.constant_like(x).and_then(|x| t.div(&x)),
    on the left: |x, t: &Tensor| t.constant_like(x).and_then(|x| x.div(t)));

impl Neg for Tensor {
    type Output = Result<Tensor>;

    fn neg(self) -> Self::Output {
        Tensor::neg(&self)
    }
}

impl Neg for &Tensor {
    type Output = Result<Tensor>;

    fn neg(self) -> Self::Output {
        Tensor::neg(self)
    }
}
