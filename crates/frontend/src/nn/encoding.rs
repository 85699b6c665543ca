//! Classes as vectors.

use tallow_ir::DType;

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
    // A type that holds every index and that a device has if it has the indices.
    let wide = match indices.dtype() {
        DType::U8 => DType::U32,
        other => other,
    };
    let depths = positions(&depth.extent(), indices.device())?.to_dtype(wide)?;
    let hit = indices.to_dtype(wide)?.unsqueeze(D::Minus1)?.broadcast_eq(&depths)?;
    let full = |value: T| Tensor::full(value, hit.sym_shape(), indices.device());
    hit.where_cond(&full(on_value)?, &full(off_value)?)
}
