//! Nodes of a graph as calls of the methods of lazy tensors.

use half::{bf16, f16};
use tallow::{DType, Device, Tensor};
use tallow_ir::{ElementwiseOp, Node, Op, ReduceKind, Scalar, ScanKind, ScatterKind, SortSpan, TensorType};

use crate::random_inputs::Leaf;

/// True if [`build`] knows methods that give what this node gives.
pub fn is_supported(node: &Node) -> bool {
    let real = |dtype: DType| !matches!(dtype, DType::F8E4M3 | DType::Block(_));
    node.types.iter().all(|ty| real(ty.dtype))
        && match &node.op {
            Op::Reduce { kind, axes } => !kind.is_arg() || axes.len() == 1,
            Op::Scatter(kind) => match kind {
                ScatterKind::Add => true,
                // No method makes one alone.
                ScatterKind::Max => false,
            },
            Op::Input { .. }
            | Op::Const(_)
            | Op::Iota { .. }
            | Op::DimValue { .. }
            | Op::Elementwise(_)
            | Op::Cast(_)
            | Op::Reshape(_)
            | Op::Broadcast(_)
            | Op::Permute(_)
            | Op::Slice { .. }
            | Op::Flip { .. }
            | Op::Window { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Matmul
            | Op::Gather { .. }
            | Op::IndexAdd
            | Op::Scan { .. }
            | Op::ArgSort { span: SortSpan::All, .. } => true,
            Op::Weight { .. }
            | Op::ArgSort { .. }
            | Op::MergeRuns { .. }
            | Op::State { .. }
            | Op::Param { .. }
            | Op::Scalar { .. }
            | Op::Dequantize(_)
            | Op::Quantize(_)
            | Op::Attention(_)
            | Op::AttentionGrad(..)
            | Op::StateUpdate { .. }
            | Op::Custom(_)
            | Op::Fusion(_) => false,
        }
}

/// The tensor of a node, from those of its operands; `leaf` is the data of an input.
pub fn build(
    node: &Node,
    operands: &[Tensor],
    leaf: Option<&Leaf>,
    device: &Device,
) -> tallow::Result<Tensor> {
    let missing = || tallow::Error::InvalidArgument { op: node.op.name(), why: "no method gives it".into() };
    match &node.op {
        Op::Input { .. } => {
            let leaf = leaf.ok_or_else(missing)?;
            Tensor::from_raw_bytes(&leaf.bytes, leaf.dtype, &leaf.shape, device)
        }
        Op::Const(scalar) => constant(*scalar, device),
        Op::Iota { len, dtype } => {
            let len = len.as_const().and_then(|n| u32::try_from(n).ok()).ok_or_else(missing)?;
            Tensor::arange(0, len, device)?.to_dtype(*dtype)
        }
        Op::DimValue { dim, dtype } => {
            constant(Scalar::of(*dtype, dim.as_const().ok_or_else(missing)? as f64), device)
        }
        Op::Elementwise(op) => elementwise(*op, operands),
        Op::Matmul => operands[0].broadcast_matmul(&operands[1]),
        Op::Concat { axis } => Tensor::cat(operands, *axis),
        Op::Gather { axis } => {
            let found = operands[0].index_select(&operands[1].flatten_all()?, *axis)?;
            found.reshape(&node.types[0].shape)
        }
        Op::Scatter(ScatterKind::Add) => operands[0].scatter_add(&operands[1], &operands[2], 0),
        Op::IndexAdd => operands[0].index_add(&operands[1], &operands[2], 1),
        Op::Reduce { kind, axes } => reduce(*kind, axes, &operands[0]),
        Op::Scan { kind: ScanKind::Sum, axis, .. } => operands[0].cumsum(*axis),
        Op::Scan { kind: ScanKind::Prod, axis, .. } => operands[0].cumprod(*axis),
        Op::Scan { kind: ScanKind::Linear, axis, .. } => operands[0].linear_scan(&operands[1], *axis),
        Op::ArgSort { axis, descending, span: SortSpan::All } => {
            let last = operands[0].rank() - 1;
            operands[0].transpose(*axis, last)?.arg_sort_last_dim(!descending)?.transpose(*axis, last)
        }
        Op::Cast(_)
        | Op::Reshape(_)
        | Op::Broadcast(_)
        | Op::Permute(_)
        | Op::Slice { .. }
        | Op::Flip { .. }
        | Op::Window { .. }
        | Op::Pad { .. } => view(&node.op, &operands[0]),
        Op::Scatter(ScatterKind::Max)
        | Op::ArgSort { .. }
        | Op::MergeRuns { .. }
        | Op::Weight { .. }
        | Op::State { .. }
        | Op::Param { .. }
        | Op::Scalar { .. }
        | Op::Dequantize(_)
        | Op::Quantize(_)
        | Op::Attention(_)
        | Op::AttentionGrad(..)
        | Op::StateUpdate { .. }
        | Op::Custom(_)
        | Op::Fusion(_) => Err(missing()),
    }
}

/// A method of one tensor.
fn view(op: &Op, a: &Tensor) -> tallow::Result<Tensor> {
    match op {
        Op::Cast(dtype) => a.to_dtype(*dtype),
        Op::Reshape(shape) => a.reshape(shape),
        Op::Broadcast(shape) => a.broadcast_as(shape),
        Op::Permute(axes) => a.permute(axes),
        Op::Slice { axis, start, len } => a.narrow(*axis, start, len),
        Op::Flip { axis } => a.flip(*axis),
        Op::Window { axis, size, stride, dilation } => {
            // Elements side by side, of which every one in `dilation` stays.
            let rank = a.rank();
            let span = (size - 1) * dilation + 1;
            let wide = a.unfold(*axis, span, *stride)?;
            let spread =
                if *dilation == 1 { wide } else { wide.unfold(rank, 1, *dilation)?.squeeze(rank + 1)? };
            let mut order: Vec<usize> = (0..rank).collect();
            order.insert(axis + 1, rank);
            spread.permute(order)
        }
        Op::Pad { axis, before, after, value } if value.as_f64() == 0.0 => {
            a.pad_with_zeros(*axis, before, after)
        }
        Op::Pad { axis, before, after, value } => {
            let part = |len: &tallow::Dim| {
                let mut dims = a.sym_dims().to_vec();
                dims[*axis] = len.clone();
                constant(*value, a.device())?.broadcast_as(dims)
            };
            Tensor::cat(&[part(before)?, a.clone(), part(after)?], *axis)
        }
        other => Err(tallow::Error::InvalidArgument {
            op: other.name(),
            why: "it is no view of one tensor".into(),
        }),
    }
}

fn reduce(kind: ReduceKind, axes: &[usize], a: &Tensor) -> tallow::Result<Tensor> {
    match kind {
        ReduceKind::Sum => a.sum(axes),
        ReduceKind::Prod => a.prod(axes),
        ReduceKind::Max => a.max(axes),
        ReduceKind::Min => a.min(axes),
        ReduceKind::ArgMax => a.argmax(axes[0]),
        ReduceKind::ArgMin => a.argmin(axes[0]),
    }
}

/// A scalar.
fn constant(scalar: Scalar, device: &Device) -> tallow::Result<Tensor> {
    let x = scalar.as_f64();
    match scalar.dtype() {
        DType::U8 => Tensor::full(x as u8, (), device),
        DType::U32 => Tensor::full(x as u32, (), device),
        DType::I16 => Tensor::full(x as i16, (), device),
        DType::I32 => Tensor::full(x as i32, (), device),
        DType::I64 => Tensor::full(x as i64, (), device),
        DType::F16 => Tensor::full(f16::from_f64(x), (), device),
        DType::BF16 => Tensor::full(bf16::from_f64(x), (), device),
        DType::F32 => Tensor::full(x as f32, (), device),
        DType::F64 => Tensor::full(x, (), device),
        got @ (DType::F8E4M3 | DType::Block(_)) => {
            Err(tallow::Error::UnexpectedDType { op: "const", expected: "a type with constants".into(), got })
        }
    }
}

/// The method of a row of the table of elementwise ops, called.
macro_rules! call {
    ($operands:ident select $name:literal) => {
        $operands[0].where_cond(&$operands[1], &$operands[2])
    };
    ($operands:ident ternary $name:literal) => {
        pastey::paste! { $operands[0].[<$name>](&$operands[1], &$operands[2]) }
    };
    ($operands:ident float_unary $name:literal) => {
        pastey::paste! { $operands[0].[<$name>]() }
    };
    ($operands:ident int_unary $name:literal) => {
        pastey::paste! { $operands[0].[<$name>]() }
    };
    ($operands:ident unary $name:literal) => {
        pastey::paste! { $operands[0].[<$name>]() }
    };
    ($operands:ident test $name:literal) => {
        pastey::paste! { $operands[0].[<$name>]() }
    };
    ($operands:ident $binary:ident $name:literal) => {
        pastey::paste! { $operands[0].[<$name>](&$operands[1]) }
    };
}

macro_rules! calls {
    ($( $(#[doc = $doc:literal])+ $variant:ident $name:literal $rule:ident $cost:ident $shape:ident($($meaning:tt)*) $slope:ident($($derivative:tt)*); )*) => {
        fn elementwise(op: ElementwiseOp, operands: &[Tensor]) -> tallow::Result<Tensor> {
            match op { $(ElementwiseOp::$variant => call!(operands $shape $name)),* }
        }
    };
}

tallow_ir::elementwise_table!(calls);

/// True if the tensor has this type.
pub fn has_type(tensor: &Tensor, ty: &TensorType) -> bool {
    tensor.dtype() == ty.dtype && tensor.sym_dims() == ty.shape.dims()
}
