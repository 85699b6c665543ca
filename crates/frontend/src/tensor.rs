//! The lazy tensor: a node of an expression that is computed when somebody asks for its value.
//!
//! Invariant: a node's operands were made before it, so expressions have no cycles. Once its value is
//! known, a node forgets its operands: a loop that forces its result each time neither recomputes nor grows.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tallow_ir::{DType, Dim, Op, Scalar, TensorType, infer::infer};

use crate::blocks::Blocks;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::extents::{Shape, count};
use crate::origin::{Origin, TensorId, origin_of};
use crate::shape::Axis;
use crate::state::State;
use crate::trace::Trace;
use crate::values::OnDevice;

/// A multi-dimensional array on a device. Cheap to clone; clones are the same tensor.
///
/// Operations append to an expression and check shapes and element types at once; `to_vec*`, printing and
/// [`crate::eval`] compute.
#[derive(Clone)]
pub struct Tensor(pub(crate) Arc<Node>);

/// One step of an expression.
pub(crate) struct Node {
    ty: TensorType,
    /// The extents of `ty` as Candle has them.
    shape: Shape,
    /// The strides in Candle's memory, where they may differ from those of row-major order.
    pub(crate) view: Option<Box<[Dim]>>,
    /// The strides as numbers, once they were asked for.
    pub(crate) strides: OnceLock<Vec<usize>>,
    device: Device,
    expr: Mutex<Expr>,
    /// How many evaluations had it as a step and did not keep its value.
    times_step: AtomicU8,
    id: TensorId,
    /// What `backward` goes back to, where a variable has a part in the value.
    origin: Option<Box<Origin>>,
}

/// Where a value comes from.
#[derive(Clone)]
pub(crate) enum Expr {
    /// It is known to the host: row-major, little-endian.
    Data(Arc<Vec<u8>>),
    /// It is on its device, or will be when the device has done what was asked of it.
    #[cfg_attr(not(feature = "vulkan"), expect(dead_code))]
    Device(OnDevice),
    /// It is known, and stays on its device once a graph has read it.
    Blocks(Arc<Blocks>),
    /// It is computed when asked for: a result of an op.
    Op(Op, Vec<Tensor>, u32),
    /// It is given when a compiled graph runs.
    Input(String),
    /// It is what a state holds when a compiled graph runs.
    State(State),
    /// It is what a variable holds: another tensor after each change.
    Variable(State),
}

impl Expr {
    /// A known value of a type: elements, or blocks as they lie in a GGUF file.
    pub(crate) fn known(dtype: DType, bytes: Arc<Vec<u8>>) -> Expr {
        match dtype {
            DType::Block(_) => Expr::Blocks(Arc::new(Blocks::new(bytes))),
            DType::U8
            | DType::U32
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::F8E4M3
            | DType::F16
            | DType::BF16
            | DType::F32
            | DType::F64 => Expr::Data(bytes),
        }
    }
}

impl Drop for Node {
    /// Frees the operands that nobody else holds, one after the other: a chain of a hundred thousand
    /// operations must not need a hundred thousand stack frames.
    fn drop(&mut self) {
        let mut orphans = take_operands(self);
        while let Some(tensor) = orphans.pop() {
            if let Some(mut node) = Arc::into_inner(tensor.0) {
                orphans.append(&mut take_operands(&mut node));
            }
        }
    }
}

fn take_operands(node: &mut Node) -> Vec<Tensor> {
    let mut all = match node.expr.get_mut().unwrap_or_else(PoisonError::into_inner) {
        Expr::Op(_, operands, _) => std::mem::take(operands),
        Expr::Data(_)
        | Expr::Device(_)
        | Expr::Blocks(_)
        | Expr::Input(_)
        | Expr::State(_)
        | Expr::Variable(_) => Vec::new(),
    };
    all.extend(node.origin.take().into_iter().flat_map(|origin| origin.into_operands()));
    all
}

impl Tensor {
    /// A node of a type that was checked.
    ///
    /// # Errors
    /// When its shape is symbolic and no function is being compiled.
    pub(crate) fn node(ty: TensorType, device: &Device, expr: Expr) -> Result<Tensor> {
        let trace = match &expr {
            Expr::Op(_, operands, _) => Trace::join(operands.iter().filter_map(|t| t.0.shape.trace())),
            Expr::Data(_)
            | Expr::Device(_)
            | Expr::Blocks(_)
            | Expr::Input(_)
            | Expr::State(_)
            | Expr::Variable(_) => None,
        };
        Tensor::traced(ty, device, expr, trace)
    }

    /// [`Tensor::node`] that belongs to the functions of `trace`, if it is symbolic.
    pub(crate) fn traced(
        ty: TensorType,
        device: &Device,
        expr: Expr,
        trace: Option<Trace>,
    ) -> Result<Tensor> {
        let shape = Shape::of(&ty.shape, trace)?;
        let origin = origin_of(&ty, &expr);
        let (device, expr, strides) = (device.clone(), Mutex::new(expr), OnceLock::new());
        Ok(Tensor(Arc::new(Node {
            ty,
            shape,
            view: None,
            strides,
            device,
            expr,
            times_step: AtomicU8::new(0),
            id: TensorId::next(),
            origin,
        })))
    }

    /// A tensor that was just made, with another origin, and as the tensor of this number where one is given.
    pub(crate) fn with_origin(mut self, origin: Option<Origin>, id: Option<TensorId>) -> Tensor {
        // Nobody else has it.
        if let Some(node) = Arc::get_mut(&mut self.0) {
            node.origin = origin.map(Box::new);
            node.id = id.unwrap_or(node.id);
        }
        self
    }

    /// Notes that an evaluation computed the value on its way and did not keep it.
    pub(crate) fn note_step(&self) {
        let next = self.times_step().saturating_add(1);
        self.0.times_step.store(next, Ordering::Relaxed);
    }

    /// How many evaluations computed the value as a step and did not keep it.
    pub(crate) fn times_step(&self) -> u8 {
        self.0.times_step.load(Ordering::Relaxed)
    }

    /// What `backward` goes back to from here, if there is a variable.
    pub(crate) fn origin(&self) -> Option<&Origin> {
        self.0.origin.as_deref()
    }

    /// The number of this tensor: that of no other, but of what a variable held before and will hold.
    pub fn id(&self) -> TensorId {
        self.0.id
    }

    /// The tensor whose value this one has now: for a variable what it holds, else itself.
    ///
    /// # Errors
    /// Never outside of a function that is being compiled; there as a tensor is made.
    pub(crate) fn current(&self) -> Result<Tensor> {
        let expr = self.expr();
        let Expr::Variable(state) = &*expr else { return Ok(self.clone()) };
        let state = state.clone();
        drop(expr);
        state.read()
    }

    /// The first result of `op`, whose operands are on one device.
    pub(crate) fn of_op(op: Op, operands: &[&Tensor], device: &Device) -> Result<Tensor> {
        let name = op.name();
        let none = || Error::InvalidArgument { op: name, why: "it has no result".into() };
        Tensor::all_of_op(op, operands, device)?.into_iter().next().ok_or_else(none)
    }

    /// All results of `op`, whose operands are on one device. They are computed together where [`crate::eval`] asks for all.
    pub(crate) fn all_of_op(op: Op, operands: &[&Tensor], device: &Device) -> Result<Vec<Tensor>> {
        let types = Tensor::types_of(&op, operands, device)?;
        let operands = operands.iter().map(|t| t.current()).collect::<Result<Vec<_>>>()?;
        let result = |(result, ty)| Tensor::node(ty, device, Expr::Op(op.clone(), operands.clone(), result));
        (0..).zip(types).map(result).collect()
    }

    /// The types of the results of `op`, whose operands are on one device.
    pub(crate) fn types_of(op: &Op, operands: &[&Tensor], device: &Device) -> Result<Vec<TensorType>> {
        let types: Vec<&TensorType> = operands.iter().map(|t| t.ty()).collect();
        if let Some(other) = operands.iter().find(|t| t.device() != device) {
            return Err(device.mismatch(op.name(), other.device()));
        }
        Ok(infer(op, &types)?)
    }

    /// `op` of this tensor alone.
    pub(crate) fn unary(&self, op: Op) -> Result<Tensor> {
        Tensor::of_op(op, &[self], self.device())
    }

    /// A constant of this tensor's element type and shape.
    pub(crate) fn constant_like(&self, value: f64) -> Result<Tensor> {
        Tensor::constant(self.dtype(), value, self.sym_shape(), self.device())
    }

    /// A constant, repeated to a shape.
    pub(crate) fn constant(
        dtype: DType,
        value: f64,
        shape: &tallow_ir::Shape,
        device: &Device,
    ) -> Result<Tensor> {
        if dtype.size().is_none() {
            let expected = "a scalar type".to_string();
            return Err(Error::UnexpectedDType { op: "full", expected, got: dtype });
        }
        let scalar = Tensor::of_op(Op::Const(Scalar::of(dtype, value)), &[], device)?;
        scalar.unary(Op::Broadcast(shape.clone()))
    }

    pub(crate) fn ty(&self) -> &TensorType {
        &self.0.ty
    }

    pub(crate) fn expr(&self) -> MutexGuard<'_, Expr> {
        self.0.expr.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is nothing to compute, and without reading anything back.
    pub(crate) fn is_known(&self) -> bool {
        match &*self.expr() {
            Expr::Data(_) | Expr::Device(_) | Expr::Blocks(_) => true,
            Expr::Op(..) | Expr::Input(_) | Expr::State(_) => false,
            Expr::Variable(state) => state.lock().is_known(),
        }
    }

    /// The bytes, where the value is known. What only the device has is waited for and read back; the host keeps no copy.
    ///
    /// # Errors
    /// When the device failed.
    pub(crate) fn host_bytes(&self) -> Result<Option<Arc<Vec<u8>>>> {
        // Not under the lock: reading may take long, and others may want the value meanwhile.
        let expr = self.expr().clone();
        match expr {
            Expr::Data(bytes) => Ok(Some(bytes)),
            Expr::Device(value) => value.read(self.ty()).map(|bytes| Some(Arc::new(bytes))),
            Expr::Blocks(blocks) => blocks.bytes(self.device()).map(Some),
            Expr::Op(..) | Expr::Input(_) | Expr::State(_) => Ok(None),
            Expr::Variable(state) => {
                let value = state.lock().clone();
                value.host_bytes()
            }
        }
    }

    /// Replaces the expression by its value on the host.
    pub(crate) fn set_data(&self, bytes: Vec<u8>) {
        self.set(Expr::known(self.dtype(), Arc::new(bytes)));
    }

    /// Replaces the expression by one of the same value.
    pub(crate) fn set(&self, expr: Expr) {
        let old = std::mem::replace(&mut *self.expr(), expr);
        // Freed only now that the lock is released: the operands may be many.
        drop(old);
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.0.ty.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.sym_shape().rank()
    }

    /// The extents as expressions, also where only a run knows them.
    pub fn sym_dims(&self) -> &[Dim] {
        self.sym_shape().dims()
    }

    /// The extents as numbers.
    ///
    /// A symbolic extent, which there is only while [`crate::compile`] calls a function, gives its largest value; the
    /// compilation then fails, as its result would be wrong for all other values. [`Tensor::sym_dims`] gives extents
    /// that can be computed with and passed on there.
    pub fn dims(&self) -> &[usize] {
        self.0.shape.dims()
    }

    /// The extent of one axis as a number; [`Tensor::dims`] says what a symbolic one gives.
    ///
    /// # Errors
    /// When there is no such axis.
    pub fn dim(&self, axis: impl Axis) -> Result<usize> {
        self.0.shape.dim(axis)
    }

    /// Number of elements; [`Tensor::dims`] says what a symbolic extent gives.
    pub fn elem_count(&self) -> usize {
        self.0.shape.elem_count()
    }

    /// The extents as expressions.
    pub(crate) fn sym_shape(&self) -> &tallow_ir::Shape {
        &self.0.ty.shape
    }

    /// The extents as numbers, for what cannot do with expressions.
    ///
    /// # Errors
    /// When one is symbolic.
    pub(crate) fn const_dims(&self) -> Result<&[usize]> {
        self.0.shape.numbers().ok_or_else(|| self.symbolic())
    }

    /// The extent of one axis as a number, for what cannot do with an expression.
    ///
    /// # Errors
    /// When there is no such axis, or it is symbolic.
    pub(crate) fn const_dim(&self, axis: impl Axis) -> Result<usize> {
        let axis = axis.of(self.sym_shape(), "dim")?;
        let extent = self.sym_dims()[axis].as_const().and_then(|n| usize::try_from(n).ok());
        extent.ok_or_else(|| self.symbolic())
    }

    /// The extents of a tensor of rank `N`, for what cannot do with expressions.
    ///
    /// # Errors
    /// When the rank is another or an extent is symbolic.
    pub(crate) fn const_dims_of<const N: usize>(&self, op: &'static str) -> Result<[usize; N]> {
        self.const_dims()?;
        self.0.shape.array(op)
    }

    /// Number of elements, for what cannot do with an expression.
    ///
    /// # Errors
    /// When the shape is symbolic.
    pub(crate) fn const_elem_count(&self) -> Result<usize> {
        Ok(count(self.const_dims()?))
    }

    fn symbolic(&self) -> Error {
        Error::SymbolicShape { shape: self.sym_shape().clone() }
    }

    /// The axis that `axis` means; negative ones count from the end.
    ///
    /// # Errors
    /// When the tensor does not have it.
    pub fn normalize_axis(&self, axis: i64) -> Result<usize> {
        let rank = self.rank();
        let from_front = if axis < 0 { axis.saturating_add_unsigned(rank as u64) } else { axis };
        let out =
            || Error::DimOutOfRange { op: "normalize_axis", dim: axis, shape: self.sym_shape().clone() };
        usize::try_from(from_front).ok().filter(|a| *a < rank).ok_or_else(out)
    }

    /// This tensor on another device: computed where it is, then copied. The tensor itself where it is there
    /// already.
    ///
    /// # Errors
    /// When the shape is symbolic or computing fails.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if self.device() == device {
            return Ok(self.clone());
        }
        self.const_dims()?;
        let bytes = self.bytes("to_device")?;
        let expr = Expr::known(self.dtype(), bytes);
        let copy = Tensor::node(self.ty().clone(), device, expr)?;
        let moved = self.origin().map(|_| self.current().map(Origin::Moved)).transpose()?;
        let copy = copy.with_origin(moved, None);
        Ok(match &self.0.view {
            Some(strides) => copy.with_strides(strides.to_vec()),
            None => copy,
        })
    }

    /// The tensor itself: its value never changes.
    ///
    /// # Errors
    /// Never; the signature is Candle's.
    pub fn copy(&self) -> Result<Tensor> {
        Ok(self.clone())
    }
}

impl AsRef<Tensor> for Tensor {
    fn as_ref(&self) -> &Tensor {
        self
    }
}

/// Identifies a node while its tensor is alive.
pub(crate) fn address(tensor: &Tensor) -> *const Node {
    Arc::as_ptr(&tensor.0)
}

/// How far apart neighbours along each axis of these extents are in row-major order.
pub(crate) fn row_major(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(dims[axis]);
    }
    strides
}
