//! Classes as vectors.

use crate::element::WithDType;
use crate::error::{Error, Result};
use crate::masks::positions;
use crate::shape::{D, Extent};
use crate::tensor::Tensor;

/// A new last axis of extent `depth`, in which `on_value` is at the index and `off_value` elsewhere. An index
/// out of range, such as -1, is nowhere.
///
/// # Errors
/// When the indices are no integers.
pub fn one_hot<T: WithDType>(indices: Tensor, depth: usize, on_value: T, off_value: T) -> Result<Tensor> {
    if !indices.dtype().is_int() {
        let expected = "an integer type".to_string();
        return Err(Error::UnexpectedDType { op: "one_hot", expected, got: indices.dtype() });
    }
    // Both sides as i64, in which every index is itself.
    let wide = |t: &Tensor| t.to_dtype(tallow_ir::DType::I64);
    let places = wide(&positions(&depth.extent(), indices.device())?)?;
    let hit = wide(&indices)?.unsqueeze(D::Minus1)?.broadcast_eq(&places)?;
    let full = |value: T| Tensor::full(value, hit.shape(), indices.device());
    hit.where_cond(&full(on_value)?, &full(off_value)?)
}
