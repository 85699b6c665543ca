//! Wrong calls of every method: both sides fail, in the same variant of the error where Candle has one of its own, and
//! ours names the operation, and shapes or types.

use tallow::{DType, Device};

use crate::inputs::{Input, Layout};
use crate::suite::{Outputs, candles};

/// One wrong call.
struct Call {
    text: &'static str,
    ours: Result<(), tallow::Error>,
    theirs: Result<(), candle_core::Error>,
    /// The name of the variant and what the message must say.
    variant: &'static str,
    says: &'static str,
}

/// What stands before the fields of a variant of ours.
fn variant(error: &tallow::Error) -> String {
    let text = format!("{error:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_string()
}

/// Candle's variant; its `Debug` shows only the message.
fn candles_variant(error: &candle_core::Error) -> &'static str {
    use candle_core::Error as E;
    match error {
        // With RUST_BACKTRACE=1, errors are wrapped.
        E::WithBacktrace { inner, .. } | E::Context { inner, .. } => candles_variant(inner),
        E::UnexpectedDType { .. } => "UnexpectedDType",
        E::DTypeMismatchBinaryOp { .. } => "DTypeMismatchBinaryOp",
        E::UnsupportedDTypeForOp(..) => "UnsupportedDTypeForOp",
        E::DimOutOfRange { .. } => "DimOutOfRange",
        E::DuplicateDimIndex { .. } => "DuplicateDimIndex",
        E::UnexpectedNumberOfDims { .. } => "UnexpectedNumberOfDims",
        E::UnexpectedShape { .. } => "UnexpectedShape",
        E::ShapeMismatch { .. } => "ShapeMismatch",
        E::ShapeMismatchBinaryOp { .. } => "ShapeMismatchBinaryOp",
        E::ShapeMismatchCat { .. } => "ShapeMismatchCat",
        E::EmptyTensor { .. } => "EmptyTensor",
        E::NarrowInvalidArgs { .. } => "NarrowInvalidArgs",
        E::Conv1dInvalidArgs { .. } => "Conv1dInvalidArgs",
        E::InvalidIndex { .. } => "InvalidIndex",
        E::BroadcastIncompatibleShapes { .. } => "BroadcastIncompatibleShapes",
        E::OpRequiresAtLeastOneTensor { .. } => "OpRequiresAtLeastOneTensor",
        E::Msg(_) => "Msg",
        _ => "another",
    }
}

/// Ours for one of Candle's that we do not have.
fn as_ours(theirs: &'static str) -> &'static str {
    match theirs {
        "UnsupportedDTypeForOp" => "UnexpectedDType",
        "Msg" => "InvalidArgument",
        other => other,
    }
}

macro_rules! calls {
    ($input:expr; $($variant:ident $says:literal |$a:ident| $body:expr;)*) => {{
        let input = &$input;
        vec![$(Call {
            text: stringify!($body),
            variant: stringify!($variant),
            says: $says,
            ours: {
                #[allow(unused_imports)]
                use tallow::{D, DType, Device, IndexOp, Module, Tensor};
                #[allow(unused_imports)]
                use crate::inputs::ours::*;
                let run = |$a: &crate::inputs::In<Tensor>| -> tallow::Result<Vec<Tensor>> {
                    Ok(Outputs::<Tensor>::outputs($body))
                };
                run(&input.ours).map(|_| ())
            },
            theirs: {
                #[allow(unused_imports)]
                use candle_core::{D, DType, Device, IndexOp, Module, Tensor};
                #[allow(unused_imports)]
                use crate::inputs::theirs::*;
                let mut found = Ok(());
                let run = |$a: &crate::inputs::In<Tensor>| -> candle_core::Result<Vec<Tensor>> {
                    Ok(Outputs::<Tensor>::outputs($body))
                };
                let held = candles(|| {
                    found = run(&input.theirs).map(|_| ());
                    Ok(vec![])
                });
                assert!(held.is_ok(), "{} panics", stringify!($body));
                found
            },
        }),*]
    }};
}

fn input() -> Input {
    Input::new(1, &[2, 3], Layout::Contiguous, DType::F32, &Device::Cpu)
}

/// Each call fails in its variant on both sides.
fn check(calls: Vec<Call>) {
    let mut wrong = vec![];
    for call in calls {
        let (ours, theirs) = match (call.ours, call.theirs) {
            (Err(ours), Err(theirs)) => (ours, theirs),
            (ours, theirs) => {
                wrong.push(format!("{}: {ours:?}, Candle {theirs:?}", call.text));
                continue;
            }
        };
        let said = ours.to_string().contains(call.says);
        if variant(&ours) != call.variant || as_ours(candles_variant(&theirs)) != call.variant || !said {
            wrong.push(format!(
                "{}: {} ({ours}), Candle {} ({theirs}); wanted {} with {:?}",
                call.text,
                variant(&ours),
                candles_variant(&theirs),
                call.variant,
                call.says
            ));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn mismatched_operands_fail() {
    check(calls! { input();
        ShapeMismatchBinaryOp "add, lhs: [2,3], rhs: [3]" |a| a.x.add(&a.row)?;
        ShapeMismatchBinaryOp "sub" |a| a.x.sub(&a.row)?;
        ShapeMismatchBinaryOp "mul" |a| a.x.mul(&a.row)?;
        ShapeMismatchBinaryOp "div" |a| a.x.div(&a.row)?;
        ShapeMismatchBinaryOp "maximum" |a| a.x.maximum(&a.row)?;
        ShapeMismatchBinaryOp "minimum" |a| a.x.minimum(&a.row)?;
        ShapeMismatchBinaryOp "pow" |a| a.x.pow(&a.row)?;
        ShapeMismatchBinaryOp "eq" |a| a.x.eq(&a.row)?;
        ShapeMismatchBinaryOp "ne" |a| a.x.ne(&a.row)?;
        ShapeMismatchBinaryOp "lt" |a| a.x.lt(&a.row)?;
        ShapeMismatchBinaryOp "le" |a| a.x.le(&a.row)?;
        ShapeMismatchBinaryOp "gt" |a| a.x.gt(&a.row)?;
        ShapeMismatchBinaryOp "ge" |a| a.x.ge(&a.row)?;
        ShapeMismatchBinaryOp "broadcast_add, lhs: [2,3], rhs: [3,2]" |a| a.x.broadcast_add(&a.y.t()?)?;
        ShapeMismatchBinaryOp "broadcast_sub" |a| a.x.broadcast_sub(&a.y.t()?)?;
        ShapeMismatchBinaryOp "broadcast_mul" |a| a.x.broadcast_mul(&a.y.t()?)?;
        ShapeMismatchBinaryOp "broadcast_div" |a| a.x.broadcast_div(&a.y.t()?)?;
        ShapeMismatchBinaryOp "broadcast_maximum" |a| a.x.broadcast_maximum(&a.y.t()?)?;
        ShapeMismatchBinaryOp "broadcast_minimum" |a| a.x.broadcast_minimum(&a.y.t()?)?;
        ShapeMismatchBinaryOp "broadcast_pow" |a| a.x.broadcast_pow(&a.y.t()?)?;
        ShapeMismatchBinaryOp "broadcast_eq" |a| a.x.broadcast_eq(&a.y.t()?)?;
        ShapeMismatchBinaryOp "broadcast_lt" |a| a.x.broadcast_lt(&a.y.t()?)?;
        DTypeMismatchBinaryOp "add, lhs: f32, rhs: u8" |a| a.x.add(&a.mask)?;
        DTypeMismatchBinaryOp "mul" |a| a.x.mul(&a.mask)?;
        DTypeMismatchBinaryOp "eq" |a| a.x.eq(&a.mask)?;
        DTypeMismatchBinaryOp "broadcast_add" |a| a.x.broadcast_add(&a.ids)?;
        ShapeMismatchBinaryOp "matmul, lhs: [2,3], rhs: [2,3]" |a| a.x.matmul(&a.y)?;
        ShapeMismatchBinaryOp "matmul" |a| a.x.matmul(&a.row)?;
        DTypeMismatchBinaryOp "matmul, lhs: f32, rhs: u8" |a| a.x.matmul(&a.mask.t()?)?;
        ShapeMismatchBinaryOp "mv" |a| a.x.t()?.mv(&a.row)?;
    });
}

#[test]
fn wrong_axes_and_shapes_fail() {
    check(calls! { input();
        BroadcastIncompatibleShapes "[2,3] to [3,3]" |a| a.x.broadcast_as((3, 3))?;
        BroadcastIncompatibleShapes "[2,3] to [3]" |a| a.x.expand(3)?;
        ShapeMismatch "reshape, 6 elements do not fill shape [4,2]" |a| a.x.reshape((4, 2))?;
        DimOutOfRange "dim 2 out of range in sum for shape [2,3]" |a| a.x.sum(2)?;
        DimOutOfRange "dim -3" |a| a.x.sum(D::Minus(3))?;
        DuplicateDimIndex "sum, shape: [2,3], dims: [0, 0]" |a| a.x.sum((0, 0))?;
        DimOutOfRange "sum" |a| a.x.sum_keepdim((0, 5))?;
        DimOutOfRange "max" |a| a.x.max(7)?;
        DimOutOfRange "min" |a| a.x.min_keepdim(2)?;
        DimOutOfRange "argmax" |a| a.x.argmax(2)?;
        DimOutOfRange "argmin" |a| a.x.argmin_keepdim(2)?;
        DimOutOfRange "mean" |a| a.x.mean(3)?;
        DimOutOfRange "var" |a| a.x.var(2)?;
        DimOutOfRange "log_sum_exp" |a| a.x.log_sum_exp(5)?;
        DimOutOfRange "cumsum" |a| a.x.cumsum(3)?;
        DimOutOfRange "transpose" |a| a.x.transpose(0, 2)?;
        UnexpectedNumberOfDims "t, expected: 2, got: 1 ([3])" |a| a.row.t()?;
        DimOutOfRange "unsqueeze" |a| a.x.unsqueeze(4)?;
        DimOutOfRange "squeeze" |a| a.x.squeeze(5)?;
        DimOutOfRange "flatten" |a| a.x.flatten(0, 4)?;
    });
}

#[test]
fn wrong_places_fail() {
    check(calls! { input();
        NarrowInvalidArgs "[2,3], dim: 0, start: 2, len: 2" |a| a.x.narrow(0, 2, 2)?;
        DimOutOfRange "narrow" |a| a.x.narrow(2, 0, 1)?;
        NarrowInvalidArgs "[2,3]" |a| a.x.narrow(0, usize::MAX, 1)?;
        NarrowInvalidArgs "[2,3]" |a| a.x.get(5)?;
        NarrowInvalidArgs "[2,3]" |a| a.x.get_on_dim(1, 3)?;
        DimOutOfRange "chunk" |a| a.x.chunk(2, 5)?;
        NarrowInvalidArgs "[2,3]" |a| a.x.i(7)?;
        NarrowInvalidArgs "[2,3]" |a| a.x.i((.., 9))?;
        DimOutOfRange "index_select" |a| a.x.index_select(&a.ids, 2)?;
        UnexpectedDType "index_select" |a| a.x.index_select(&a.row, 0)?;
        UnexpectedDType "gather" |a| a.x.gather(&a.y, 0)?;
        DimOutOfRange "gather" |a| a.x.gather(&a.first, 2)?;
        DimOutOfRange "scatter" |a| a.x.scatter_add(&a.first, &a.y, 2)?;
        ShapeMismatchBinaryOp "scatter" |a| a.x.scatter_add(&a.ids, &a.y, 0)?;
        DTypeMismatchBinaryOp "scatter_add, lhs: f32, rhs: u8" |a| a.x.scatter_add(&a.first, &a.mask, 0)?;
        DimOutOfRange "index_add" |a| a.x.index_add(&a.ids, &a.y, 4)?;
        ShapeMismatchBinaryOp "index_add" |a| a.x.index_add(&a.ids, &a.row, 0)?;
        UnexpectedNumberOfDims "slice_scatter" |a| a.x.slice_scatter(&a.row, 0, 0)?;
    });
}

#[test]
fn wrong_joins_windows_and_reads_fail() {
    check(calls! { input();
        OpRequiresAtLeastOneTensor "cat" |a| Tensor::cat(&[&a.x][..0], 0)?;
        DimOutOfRange "cat" |a| Tensor::cat(&[&a.x, &a.y], 5)?;
        DTypeMismatchBinaryOp "cat, lhs: f32, rhs: u8" |a| Tensor::cat(&[&a.x, &a.mask], 0)?;
        ShapeMismatchCat "[2,3]" |a| Tensor::cat(&[&a.x, &a.y.t()?], 0)?;
        DimOutOfRange "pad_with" |a| a.x.pad_with_zeros(4, 0, 1)?;
        DimOutOfRange "pad_with_same" |a| a.x.pad_with_same(4, 1, 1)?;
        DimOutOfRange "roll" |a| a.x.roll(1, 4)?;
        ShapeMismatchBinaryOp "where_cond" |a| a.mask.where_cond(&a.x, &a.row)?;
        DTypeMismatchBinaryOp "where_cond" |a| a.mask.where_cond(&a.x, &a.mask)?;
        UnexpectedNumberOfDims "expected: 3, got: 2" |a| a.x.conv1d(&a.y, 0, 1, 1, 1)?;
        UnexpectedNumberOfDims "expected: 4, got: 2" |a| a.x.conv2d(&a.y, 0, 1, 1, 1)?;
        UnexpectedNumberOfDims "expected: 4, got: 2" |a| a.x.max_pool2d(2)?;
        UnexpectedNumberOfDims "expected: 4, got: 2" |a| a.x.avg_pool2d(2)?;
        UnexpectedNumberOfDims "expected: 4, got: 2" |a| a.x.upsample_nearest2d(2, 2)?;
        UnexpectedNumberOfDims "expected: 3, got: 2" |a| a.x.upsample_nearest1d(2)?;
        ShapeMismatch "5 elements" |a| Tensor::from_vec(vec![1f32; 5], (2, 3), device(&a.x))?;
        UnexpectedNumberOfDims "expected: 1, got: 2" |a| { a.x.to_vec1::<f32>()?; a.x.clone() };
        UnexpectedNumberOfDims "expected: 3, got: 2" |a| { a.x.to_vec3::<f32>()?; a.x.clone() };
        UnexpectedNumberOfDims "expected: 0, got: 2" |a| { a.x.to_scalar::<f32>()?; a.x.clone() };
        UnexpectedNumberOfDims "expected: 4, got: 2" |a| { a.x.dims4()?; a.x.clone() };
        UnexpectedDType "f32" |a| { a.row.to_vec1::<u32>()?; a.x.clone() };
        DimOutOfRange "dim" |a| { a.x.dim(2)?; a.x.clone() };
    });
}
