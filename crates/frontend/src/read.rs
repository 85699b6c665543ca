//! Reading values: these methods compute what is not known yet.

use crate::element::{WithDType, from_bytes};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

impl Tensor {
    fn elements<T: WithDType>(&self, op: &'static str, rank: usize) -> Result<(Vec<T>, &[usize])> {
        let dims = self.const_dims()?;
        if dims.len() != rank {
            let shape = self.sym_shape().clone();
            return Err(Error::UnexpectedNumberOfDims { op, expected: rank, got: dims.len(), shape });
        }
        if self.dtype() != T::DTYPE {
            let expected = T::DTYPE.to_string();
            return Err(Error::UnexpectedDType { op, expected, got: self.dtype() });
        }
        Ok((from_bytes(&self.bytes(op)?), dims))
    }

    /// The value of a scalar.
    ///
    /// # Errors
    /// When this is no scalar of that type, or computing fails.
    pub fn to_vec0<T: WithDType>(&self) -> Result<T> {
        let (elements, _) = self.elements("to_vec0", 0)?;
        elements.first().copied().ok_or_else(|| Error::Invalid {
            graph: "to_vec0".into(),
            why: "a scalar without an element".into(),
        })
    }

    /// The value of a scalar.
    ///
    /// # Errors
    /// As [`Tensor::to_vec0`].
    pub fn to_scalar<T: WithDType>(&self) -> Result<T> {
        self.to_vec0()
    }

    /// The elements of a tensor of one axis.
    ///
    /// # Errors
    /// When this is another tensor, or computing fails.
    pub fn to_vec1<T: WithDType>(&self) -> Result<Vec<T>> {
        Ok(self.elements("to_vec1", 1)?.0)
    }

    /// The rows of a tensor of two axes.
    ///
    /// # Errors
    /// When this is another tensor, or computing fails.
    pub fn to_vec2<T: WithDType>(&self) -> Result<Vec<Vec<T>>> {
        let (elements, dims) = self.elements("to_vec2", 2)?;
        Ok(rows(&elements, dims[0], dims[1]))
    }

    /// The matrices of a tensor of three axes.
    ///
    /// # Errors
    /// When this is another tensor, or computing fails.
    pub fn to_vec3<T: WithDType>(&self) -> Result<Vec<Vec<Vec<T>>>> {
        let (elements, dims) = self.elements("to_vec3", 3)?;
        let size = dims[1] * dims[2];
        Ok((0..dims[0]).map(|i| rows(&elements[i * size..], dims[1], dims[2])).collect())
    }

    /// The elements in row-major order, whatever the rank.
    ///
    /// # Errors
    /// When the elements are of another type, or computing fails.
    pub fn to_flat_vec<T: WithDType>(&self) -> Result<Vec<T>> {
        Ok(self.elements("to_flat_vec", self.rank())?.0)
    }

    /// The elements' bytes, row-major and little-endian; blocks as they lie in a GGUF file.
    ///
    /// # Errors
    /// When computing fails.
    pub fn raw_bytes(&self) -> Result<std::sync::Arc<Vec<u8>>> {
        self.bytes("raw_bytes")
    }

    /// Writes the elements' bytes: row-major, little-endian.
    ///
    /// # Errors
    /// When computing or writing fails.
    pub fn write_bytes(&self, output: &mut impl std::io::Write) -> Result<()> {
        let io = |e: std::io::Error| Error::Io { path: "write_bytes".into(), why: e.to_string() };
        output.write_all(&self.bytes("write_bytes")?).map_err(io)
    }
}

/// `count` rows; a width of 0 gives empty ones.
fn rows<T: Copy>(elements: &[T], count: usize, width: usize) -> Vec<Vec<T>> {
    (0..count).map(|i| elements[i * width..(i + 1) * width].to_vec()).collect()
}
