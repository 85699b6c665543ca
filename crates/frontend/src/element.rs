//! Rust types that can be elements of a tensor, and nested arrays of them.

use float8::F8E4M3;
use half::{bf16, f16};
use tallow_ir::DType;

use crate::error::{Error, Result};

/// A Rust number that is the element of some [`DType`].
pub trait WithDType: Copy + Send + Sync + std::fmt::Debug + 'static {
    /// The element type.
    const DTYPE: DType;

    /// Appends the little-endian bytes.
    fn write(self, bytes: &mut Vec<u8>);

    /// The number in the first bytes, which are as many as the type has.
    fn read(bytes: &[u8]) -> Self;

    /// The value as f64, rounded for integers above 2^53.
    fn to_f64(self) -> f64;
}

macro_rules! with_dtype {
    ($($rust:ty => $dtype:ident, $to_f64:expr;)*) => {$(
        impl WithDType for $rust {
            const DTYPE: DType = DType::$dtype;

            fn write(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }

            fn read(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<$rust>()];
                array.copy_from_slice(&bytes[..size_of::<$rust>()]);
                <$rust>::from_le_bytes(array)
            }

            fn to_f64(self) -> f64 {
                $to_f64(self)
            }
        }
    )*};
}

with_dtype! {
    u8 => U8, f64::from;
    u32 => U32, f64::from;
    i16 => I16, f64::from;
    i32 => I32, f64::from;
    i64 => I64, |x| x as f64;
    f16 => F16, f16::to_f64;
    bf16 => BF16, bf16::to_f64;
    f32 => F32, f64::from;
    f64 => F64, |x| x;
}

impl WithDType for F8E4M3 {
    const DTYPE: DType = DType::F8E4M3;

    fn write(self, bytes: &mut Vec<u8>) {
        bytes.push(self.to_bits());
    }

    fn read(bytes: &[u8]) -> Self {
        F8E4M3::from_bits(bytes[0])
    }

    fn to_f64(self) -> f64 {
        tallow_ir::float8::decode(self.to_bits())
    }
}

/// The bytes of elements.
pub(crate) fn to_bytes<T: WithDType>(elements: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(elements));
    elements.iter().for_each(|x| x.write(&mut bytes));
    bytes
}

/// Appends the bytes of an integer of one of the integer types, which it fits.
pub(crate) fn write_integer(dtype: DType, value: i64, bytes: &mut Vec<u8>) {
    if let Some(size) = dtype.size() {
        bytes.extend(&value.to_le_bytes()[..size]);
    }
}

/// Appends the bytes of a float of one of the float types, which holds it exactly.
pub(crate) fn write_float(dtype: DType, value: f64, bytes: &mut Vec<u8>) {
    match dtype {
        DType::F8E4M3 => F8E4M3::from_f64(value).write(bytes),
        DType::F16 => f16::from_f64(value).write(bytes),
        DType::BF16 => bf16::from_f64(value).write(bytes),
        DType::F32 => (value as f32).write(bytes),
        DType::F64 => value.write(bytes),
        DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 | DType::Block(_) => {}
    }
}

/// The elements of bytes.
pub(crate) fn from_bytes<T: WithDType>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(T::read).collect()
}

/// A number, or arrays, slices and vectors of numbers nested up to four deep.
pub trait NdArray {
    /// The number's type.
    type Element: WithDType;

    /// Extents, outermost first.
    ///
    /// # Errors
    /// When parts of one level differ in length.
    fn extents(&self) -> Result<Vec<usize>>;

    /// The extents of a part that is not there, because the level above is empty; `None` where only a part
    /// could tell.
    fn extents_of_none() -> Option<Vec<usize>>;

    /// Appends the elements in row-major order.
    fn flatten(&self, elements: &mut Vec<Self::Element>);
}

macro_rules! scalar_array {
    ($($rust:ty),*) => {$(
        impl NdArray for $rust {
            type Element = $rust;

            fn extents(&self) -> Result<Vec<usize>> {
                Ok(vec![])
            }

            fn extents_of_none() -> Option<Vec<usize>> {
                Some(vec![])
            }

            fn flatten(&self, elements: &mut Vec<$rust>) {
                elements.push(*self);
            }
        }
    )*};
}
scalar_array!(u8, u32, i16, i32, i64, F8E4M3, f16, bf16, f32, f64);

impl<T: NdArray> NdArray for [T] {
    type Element = T::Element;

    fn extents(&self) -> Result<Vec<usize>> {
        let Some((first, rest)) = self.split_first() else {
            let unknown = || Error::InvalidArgument { op: "new", why: "an empty list of lists".into() };
            return Ok([vec![0], T::extents_of_none().ok_or_else(unknown)?].concat());
        };
        let inner = first.extents()?;
        for part in rest {
            let other = part.extents()?;
            if other != inner {
                let why = format!("the data is ragged: parts of extents {inner:?} and {other:?}");
                return Err(Error::InvalidArgument { op: "new", why });
            }
        }
        Ok([vec![self.len()], inner].concat())
    }

    fn extents_of_none() -> Option<Vec<usize>> {
        None
    }

    fn flatten(&self, elements: &mut Vec<T::Element>) {
        self.iter().for_each(|part| part.flatten(elements));
    }
}

macro_rules! like_slice {
    ($([$($generics:tt)*] $array:ty, of none: $none:expr;)*) => {$(
        impl<T: NdArray, $($generics)*> NdArray for $array {
            type Element = T::Element;

            fn extents(&self) -> Result<Vec<usize>> {
                self[..].extents()
            }

            fn extents_of_none() -> Option<Vec<usize>> {
                $none
            }

            fn flatten(&self, elements: &mut Vec<T::Element>) {
                self[..].flatten(elements);
            }
        }
    )*};
}
like_slice! {
    [const N: usize] [T; N], of none: T::extents_of_none().map(|inner| [vec![N], inner].concat());
    [] Vec<T>, of none: None;
}

impl<T: NdArray + ?Sized> NdArray for &T {
    type Element = T::Element;

    fn extents(&self) -> Result<Vec<usize>> {
        (**self).extents()
    }

    fn extents_of_none() -> Option<Vec<usize>> {
        T::extents_of_none()
    }

    fn flatten(&self, elements: &mut Vec<T::Element>) {
        (**self).flatten(elements);
    }
}
