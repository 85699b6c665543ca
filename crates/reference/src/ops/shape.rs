//! Ops that move elements and compute nothing. Most only change the layout.

use tallow_ir::{DType, Scalar};

use crate::array::{Array, Data};
use crate::error::Error;
use crate::layout::Layout;
use crate::view::{View, write_box};

/// The same row-major elements in another shape.
pub fn reshape(a: &View, shape: &[usize]) -> View {
    let packed = if a.layout.is_packed() { a.clone() } else { a.clone().into_packed() };
    let layout = Layout { offset: packed.layout.offset, ..Layout::packed(shape) };
    packed.with_layout(layout)
}

/// `value` added before and after along `axis`.
pub fn pad(a: &View, axis: usize, before: usize, shape: &[usize], value: Scalar) -> Result<View, Error> {
    let mut out = filled(a.dtype, shape, value)?;
    let inside = Layout::packed(shape).slice(axis, before, a.shape()[axis]);
    write_box(&mut out, &inside, a);
    Ok(View::packed(a.dtype, shape, out))
}

fn filled(dtype: DType, shape: &[usize], value: Scalar) -> Result<Data, Error> {
    let of_one = super::elementwise::constant(value);
    let all = View { dtype, layout: of_one.layout.broadcast(shape), data: of_one.data };
    Ok(all.into_packed().data)
}

/// One after the other along `axis`.
pub fn concat(operands: &[View], axis: usize, shape: &[usize]) -> Result<View, Error> {
    let dtype = operands[0].dtype;
    let mut out = Array::zeros(dtype, shape)?.data;
    let mut start = 0;
    for a in operands {
        let len = a.shape()[axis];
        write_box(&mut out, &Layout::packed(shape).slice(axis, start, len), a);
        start += len;
    }
    Ok(View::packed(dtype, shape, out))
}

/// `state` with `src` written at `offsets`: in place if nobody else holds the buffer.
pub fn update(state: View, src: &View, offsets: &[usize]) -> View {
    let mut state = state.into_packed();
    let mut inside = state.layout.clone();
    for (axis, (start, len)) in offsets.iter().zip(src.shape()).enumerate() {
        inside = inside.slice(axis, *start, *len);
    }
    write_box(&mut state.data, &inside, src);
    state
}

/// `state` with row `i` of `src` along `axis` written at position `indices[i]`, and at `offsets` along the other axes;
/// nothing where that is beyond the state. Of rows with equal indices the last one wins.
pub fn update_rows(state: View, src: &View, indices: &View, axis: usize, offsets: &[usize]) -> View {
    let mut at = vec![0; indices.layout.len()];
    indices.read_i64(0, &mut at);
    let mut state = state.into_packed();
    let extent = state.shape()[axis];
    let mut inside = state.layout.clone();
    for (other, (start, len)) in offsets.iter().zip(src.shape()).enumerate().filter(|(i, _)| *i != axis) {
        inside = inside.slice(other, *start, *len);
    }
    for (i, to) in at.into_iter().enumerate() {
        if let Some(to) = usize::try_from(to).ok().filter(|to| *to < extent) {
            let row = src.with_layout(src.layout.slice(axis, i, 1));
            write_box(&mut state.data, &inside.slice(axis, to, 1), &row);
        }
    }
    state
}
