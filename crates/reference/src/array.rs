//! Tensor data outside of a run: what goes into an environment and what comes out.

use std::fmt;
use std::sync::{Arc, OnceLock};

use half::{bf16, f16};
use tallow_ir::{DType, Format, float8};

use crate::error::Error;

/// Elements in row-major order.
///
/// Buffers are shared: cloning an array copies nothing, and a state is written in place unless somebody
/// still holds its old value.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Elements of `f8e4m3`, `f16`, `bf16` and `f32`, all exact in an f32.
    F32(Arc<Vec<f32>>),
    /// Elements of `f64`.
    F64(Arc<Vec<f64>>),
    /// Elements of the integer types.
    Int(Arc<Vec<i64>>),
    /// Blocks of a GGUF format.
    Blocks(Arc<Blocks>),
}

/// Quantized blocks as they lie in a GGUF file, with their values once somebody has asked for them.
///
/// The values stay for as long as the blocks, so that a weight is dequantized once and not at each run.
#[derive(Clone)]
pub struct Blocks {
    format: Format,
    bytes: Vec<u8>,
    elements: usize,
    values: OnceLock<Arc<Vec<f32>>>,
}

impl Blocks {
    /// `values` rounded to blocks of `format`, of which they are whole.
    pub(crate) fn quantized(format: Format, values: &[f32]) -> Self {
        let bytes = tallow_quant::quantize(format, values)
            .expect("invariant: type inference asks for whole blocks of a format that has a quantizer");
        Blocks { format, bytes, elements: values.len(), values: OnceLock::new() }
    }

    /// Overwrites the blocks from element `at` on with those of `count` elements of `from`, from its element `start` on;
    /// all three are whole blocks of one format. Values that are known stay known.
    pub(crate) fn overwrite(&mut self, at: usize, from: &Blocks, start: usize, count: usize) {
        let per = self.format.block_elements();
        let bytes = |elements: usize| elements / per * self.format.block_bytes();
        let source = &from.bytes[bytes(start)..bytes(start + count)];
        let (first, last) = (bytes(at), bytes(at + count));
        self.bytes[first..last].copy_from_slice(source);
        if let Some(values) = self.values.get_mut() {
            tallow_quant::dequantize(self.format, source, &mut Arc::make_mut(values)[at..at + count])
                .expect("invariant: whole blocks, as many values as they mean");
        }
    }

    /// The format of the blocks.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The blocks as in a file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What the blocks mean.
    pub fn values(&self) -> Arc<Vec<f32>> {
        let compute = || {
            let mut values = vec![0.0; self.elements];
            tallow_quant::dequantize(self.format, &self.bytes, &mut values)
                .expect("invariant: the number of bytes was checked when the blocks were made");
            Arc::new(values)
        };
        self.values.get_or_init(compute).clone()
    }
}

impl PartialEq for Blocks {
    fn eq(&self, other: &Self) -> bool {
        self.format == other.format && self.bytes == other.bytes
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} elements of {}", self.elements, self.format)
    }
}

/// A tensor: element type, extents and data.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Element type.
    pub ty: DType,
    /// Extents, outermost first; elements also for blocks.
    pub shape: Vec<usize>,
    /// Elements in row-major order.
    pub data: Data,
}

impl Array {
    /// A tensor from row-major little-endian bytes; blocks as they lie in a GGUF file.
    ///
    /// # Errors
    /// [`Error::Length`] if there are more or fewer bytes than the shape takes, [`Error::Unstorable`] if
    /// the shape is no whole number of blocks or does not fit the address space.
    pub fn from_bytes(ty: DType, shape: &[usize], bytes: &[u8]) -> Result<Array, Error> {
        let elements = checked_len(ty, shape)?;
        let expected = byte_len(ty, shape)?;
        if bytes.len() != expected {
            let got = bytes.len();
            return Err(Error::Length { dtype: ty, shape: shape.into(), unit: "bytes", expected, got });
        }
        let data = match ty {
            DType::U8 => int(bytes, |[b]: [u8; 1]| i64::from(b)),
            DType::U32 => int(bytes, |b| i64::from(u32::from_le_bytes(b))),
            DType::I16 => int(bytes, |b| i64::from(i16::from_le_bytes(b))),
            DType::I32 => int(bytes, |b| i64::from(i32::from_le_bytes(b))),
            DType::I64 => int(bytes, i64::from_le_bytes),
            DType::F8E4M3 => Data::F32(Arc::new(decode(bytes, |[b]: [u8; 1]| float8::decode(b) as f32))),
            DType::F16 => Data::F32(Arc::new(decode(bytes, |b| f16::from_le_bytes(b).to_f32()))),
            DType::BF16 => Data::F32(Arc::new(decode(bytes, |b| bf16::from_le_bytes(b).to_f32()))),
            DType::F32 => Data::F32(Arc::new(decode(bytes, f32::from_le_bytes))),
            DType::F64 => Data::F64(Arc::new(decode(bytes, f64::from_le_bytes))),
            DType::Block(format) => {
                let bytes = bytes.to_vec();
                Data::Blocks(Arc::new(Blocks { format, bytes, elements, values: OnceLock::new() }))
            }
        };
        Ok(Array { ty, shape: shape.into(), data })
    }

    /// The row-major little-endian bytes of the elements.
    pub fn to_bytes(&self) -> Vec<u8> {
        match &self.data {
            Data::F32(v) => match self.ty {
                DType::F8E4M3 => v.iter().map(|x| float8::encode(f64::from(*x))).collect(),
                DType::F16 => v.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
                DType::BF16 => v.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
                DType::F32
                | DType::F64
                | DType::U8
                | DType::U32
                | DType::I16
                | DType::I32
                | DType::I64
                | DType::Block(_) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            },
            Data::F64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Data::Int(v) => {
                let size = self.ty.size().unwrap_or(8).min(8);
                // Two's complement: the low bytes are the narrower integer.
                v.iter().flat_map(|x| x.to_le_bytes().into_iter().take(size)).collect()
            }
            Data::Blocks(blocks) => blocks.bytes.clone(),
        }
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// [`Error::Unstorable`] for blocks and for shapes that do not fit the address space.
    pub fn zeros(ty: DType, shape: &[usize]) -> Result<Array, Error> {
        let n = checked_len(ty, shape)?;
        let data = match ty {
            DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32 => Data::F32(Arc::new(vec![0.0; n])),
            DType::F64 => Data::F64(Arc::new(vec![0.0; n])),
            DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 => Data::Int(Arc::new(vec![0; n])),
            DType::Block(_) => return Err(unstorable(ty, shape, "zeros are not quantized".into())),
        };
        Ok(Array { ty, shape: shape.into(), data })
    }

    /// A tensor of a computable type from values that are rounded to it; for integer types they are
    /// truncated and saturated.
    ///
    /// # Errors
    /// [`Error::Length`] if there are more or fewer values than elements, [`Error::Unstorable`] for blocks.
    pub fn from_f64s(ty: DType, shape: &[usize], values: &[f64]) -> Result<Array, Error> {
        let expected = checked_len(ty, shape)?;
        if values.len() != expected {
            let got = values.len();
            return Err(Error::Length { dtype: ty, shape: shape.into(), unit: "elements", expected, got });
        }
        let round = |x: &f64| tallow_ir::round::float(ty, *x);
        let data = match ty {
            DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32 => {
                Data::F32(Arc::new(values.iter().map(|x| round(x) as f32).collect()))
            }
            DType::F64 => Data::F64(Arc::new(values.to_vec())),
            DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 => {
                let convert = |x: &f64| tallow_ir::round::float_to_int(ty, *x);
                Data::Int(Arc::new(values.iter().map(convert).collect()))
            }
            DType::Block(_) => return Err(unstorable(ty, shape, "values are not quantized here".into())),
        };
        Ok(Array { ty, shape: shape.into(), data })
    }

    /// The elements as f64: exact but for integers above 2^53; of blocks, what they mean.
    pub fn to_f64s(&self) -> Vec<f64> {
        match &self.data {
            Data::F32(v) => v.iter().map(|x| f64::from(*x)).collect(),
            Data::F64(v) => v.to_vec(),
            Data::Int(v) => v.iter().map(|x| *x as f64).collect(),
            Data::Blocks(b) => b.values().iter().map(|x| f64::from(*x)).collect(),
        }
    }

    /// Number of elements that the data holds.
    pub fn len(&self) -> usize {
        match &self.data {
            Data::F32(v) => v.len(),
            Data::F64(v) => v.len(),
            Data::Int(v) => v.len(),
            Data::Blocks(b) => b.elements,
        }
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the data is of the kind and length that the type and shape say; the fields are public, so
    /// a run asks.
    pub(crate) fn is_sound(&self) -> bool {
        let kind = match (&self.data, self.ty) {
            (Data::F32(_), DType::F8E4M3 | DType::F16 | DType::BF16 | DType::F32) => true,
            (Data::F64(_), DType::F64) => true,
            (Data::Int(_), DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64) => true,
            (Data::Blocks(b), DType::Block(format)) => b.format == format,
            (Data::F32(_) | Data::F64(_) | Data::Int(_) | Data::Blocks(_), _) => false,
        };
        kind && checked_len(self.ty, &self.shape) == Ok(self.len())
    }
}

/// Bytes that a tensor takes in the layout of [`Array::from_bytes`].
///
/// # Errors
/// [`Error::Unstorable`] if the shape is no whole number of blocks or does not fit the address space.
pub fn byte_len(ty: DType, shape: &[usize]) -> Result<usize, Error> {
    let elements = checked_len(ty, shape)?;
    match (ty, ty.size()) {
        (DType::Block(format), _) => {
            // Rows are whole blocks, not only the tensor.
            format
                .row_bytes(shape.last().copied().unwrap_or(1))
                .map_err(|e| unstorable(ty, shape, e.to_string()))?;
            format.row_bytes(elements).map_err(|e| unstorable(ty, shape, e.to_string()))
        }
        (_, size) => elements
            .checked_mul(size.unwrap_or(1))
            .ok_or_else(|| unstorable(ty, shape, "too large for the address space".into())),
    }
}

fn checked_len(ty: DType, shape: &[usize]) -> Result<usize, Error> {
    let len = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    len.ok_or_else(|| unstorable(ty, shape, "too large for the address space".into()))
}

fn unstorable(dtype: DType, shape: &[usize], why: String) -> Error {
    Error::Unstorable { dtype, shape: shape.into(), why }
}

fn decode<const N: usize, T>(bytes: &[u8], convert: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|b| convert(*b)).collect()
}

fn int<const N: usize>(bytes: &[u8], convert: impl Fn([u8; N]) -> i64) -> Data {
    Data::Int(Arc::new(decode(bytes, convert)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip_in_every_type() {
        let values = [0.0, 1.0, 2.0, 240.0, 7.0, 96.0];
        for ty in DType::SCALARS {
            let array = Array::from_f64s(ty, &[2, 3], &values).expect("six values");
            let bytes = array.to_bytes();
            assert_eq!(bytes.len(), byte_len(ty, &[2, 3]).expect("small"));
            assert_eq!(Array::from_bytes(ty, &[2, 3], &bytes), Ok(array.clone()));
            assert_eq!(array.to_f64s(), values, "{ty}");
            assert!(array.is_sound());
        }
        let negative = Array::from_f64s(DType::I64, &[1], &[-5.0]).expect("one value");
        assert_eq!(Array::from_bytes(DType::I64, &[1], &negative.to_bytes()), Ok(negative));
    }

    #[test]
    fn wrong_lengths_are_errors() {
        let short = Array::from_bytes(DType::F32, &[2], &[0; 7]).map_err(|e| e.to_string());
        assert_eq!(short, Err("f32[2] takes 8 bytes, got 7".into()));
        let format = DType::Block(Format::Q8_0);
        assert!(Array::from_bytes(format, &[2, 32], &[0; 68]).is_ok());
        assert!(matches!(Array::from_bytes(format, &[4, 16], &[0; 68]), Err(Error::Unstorable { .. })));
        let huge = [usize::MAX, 2];
        assert!(matches!(Array::from_bytes(DType::U8, &huge, &[]), Err(Error::Unstorable { .. })));
        assert!(matches!(Array::from_f64s(DType::F32, &[3], &[1.0]), Err(Error::Length { .. })));
        let unsound = Array { ty: DType::F32, shape: vec![2], data: Data::Int(Arc::new(vec![1, 2])) };
        assert!(!unsound.is_sound());
    }

    #[test]
    fn blocks_are_dequantized_once() {
        let mut bytes = vec![0u8; 34];
        bytes[..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        bytes[2] = 3;
        let array = Array::from_bytes(DType::Block(Format::Q8_0), &[1, 32], &bytes).expect("one block");
        let Data::Blocks(blocks) = &array.data else { panic!("not blocks") };
        assert_eq!(blocks.values()[..2], [1.5, 0.0]);
        assert!(Arc::ptr_eq(&blocks.values(), &blocks.values()));
        assert_eq!(array.to_bytes(), bytes);
    }
}
