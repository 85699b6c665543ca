//! Tensors that change: a key-value cache, a running mean, the moments of an optimizer.
//!
//! Tensors are values; a [`State`] is a place that holds one. An update makes a new value of the old one. Where nobody else
//! holds the old value when the update is computed, the new one overwrites it in place, so a loop that updates a state
//! runs in constant memory and writes only what changes. Where somebody does, the old value is copied first: what
//! [`State::read`] gave stays as it was.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tallow_ir::{DType, Dim, Op, TensorType};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::origin::{Origin, TensorId};
use crate::shape::{Axis, Extent, IntoShape};
use crate::tensor::{Expr, Tensor, address};
use crate::trace::in_function;

/// A tensor that can be changed. Cheap to clone; clones are the same state.
///
/// ```
/// use tallow::{DType, Device, State, Tensor};
///
/// let device = Device::Cpu;
/// let rows = State::zeros((4, 2), DType::F32, &device)?;
/// rows.slice_set(&Tensor::new([[1f32, 2.0]], &device)?, 0, 3)?;
/// let before = rows.read()?;
/// rows.set(&(rows.read()? * 2.0)?)?;
/// assert_eq!(rows.read()?.get(3)?.to_vec1::<f32>()?, [2.0, 4.0]);
/// assert_eq!(before.get(3)?.to_vec1::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), tallow::Error>(())
/// ```
///
/// In a function that [`crate::compile`] calls, reads and updates are those of each run, in the order of the calls; offsets
/// may have symbols there. A value that was read before an update may not be combined with one that was read after it:
/// compiling then fails.
#[derive(Clone)]
pub struct State(Arc<Cell>);

struct Cell {
    ty: TensorType,
    device: Device,
    current: Mutex<Tensor>,
    /// How often `current` was locked by others than runs of functions: since then they may hold or have replaced it.
    accesses: AtomicU64,
    /// The number of the variable whose value this is.
    variable: Option<TensorId>,
}

impl State {
    /// A state that holds `value`.
    ///
    /// # Errors
    /// When the shape is symbolic, the elements are blocks, or `value` depends on an input of a function being compiled.
    pub fn new(value: &Tensor) -> Result<State> {
        value.const_dims()?;
        if value.dtype().size().is_none() {
            let expected = "a scalar type".to_string();
            return Err(Error::UnexpectedDType { op: "state", expected, got: value.dtype() });
        }
        if !value.is_known() {
            // It must not belong to a function.
            value.check_outside_function("state")?;
        }
        State::of(value, None)
    }

    /// A state that holds what `value` does now: that of the variable of this number, if one is given.
    pub(crate) fn of(value: &Tensor, variable: Option<TensorId>) -> Result<State> {
        let current = Mutex::new(value_of(variable, value)?);
        Ok(State::in_cell(value.ty(), value.device(), current, variable))
    }

    /// A state of zeros.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn zeros(shape: impl IntoShape, dtype: DType, device: &Device) -> Result<State> {
        State::new(&Tensor::zeros(shape, dtype, device)?)
    }

    /// A state of its own that holds the same.
    pub fn copy(&self) -> State {
        let Cell { ty, device, .. } = &*self.0;
        State::in_cell(ty, device, Mutex::new(self.lock().clone()), None)
    }

    fn in_cell(
        ty: &TensorType,
        device: &Device,
        current: Mutex<Tensor>,
        variable: Option<TensorId>,
    ) -> State {
        let (ty, device, accesses) = (ty.clone(), device.clone(), AtomicU64::new(0));
        State(Arc::new(Cell { ty, device, current, accesses, variable }))
    }

    /// Element type and shape.
    pub(crate) fn ty(&self) -> &TensorType {
        &self.0.ty
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.0.ty.dtype
    }

    /// The extents.
    pub fn dims(&self) -> Vec<usize> {
        self.0.ty.shape.as_const().unwrap_or_default()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Whether both are one state.
    pub(crate) fn is_same(&self, other: &State) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// What it holds when a function runs that is being compiled.
    pub(crate) fn in_runs(&self) -> Result<Tensor> {
        let tensor = Tensor::node(self.ty().clone(), self.device(), Expr::State(self.clone()))?;
        Ok(match self.0.variable {
            Some(id) => tensor.with_origin(Some(Origin::Variable), Some(id)),
            None => tensor,
        })
    }

    /// Where it is in memory, to lock several states in one order.
    pub(crate) fn address(&self) -> *const () {
        Arc::as_ptr(&self.0).cast()
    }

    /// What it holds. The value does not change when the state does.
    ///
    /// # Errors
    /// Never, but the methods that the value is used with fail.
    pub fn read(&self) -> Result<Tensor> {
        let value = |current: &mut Tensor| Ok(current.clone());
        self.change(value, value)
    }

    /// Holds `value` from now on.
    ///
    /// # Errors
    /// When it is of another shape, element type or device.
    pub fn set(&self, value: &Tensor) -> Result<()> {
        let op = "set";
        if value.sym_shape() != &self.0.ty.shape {
            let (lhs, rhs) = (self.0.ty.shape.clone(), value.sym_shape().clone());
            return Err(Error::ShapeMismatchBinaryOp { op, lhs, rhs });
        }
        self.check(op, value)?;
        let update = Op::StateUpdate { offsets: vec![Dim::zero(); value.rank()], rows: None };
        self.change(
            |current| {
                *current = value_of(self.0.variable, value)?;
                Ok(())
            },
            |current| {
                // What it holds already is no update.
                if address(current) != address(value) {
                    *current = self.version(Tensor::of_op(update, &[&*current, value], value.device())?);
                }
                Ok(())
            },
        )
    }

    /// Holds `src` in place of as many elements of `axis` from `offset` on; other extents are the state's.
    ///
    /// # Errors
    /// When element types, devices, ranks or other extents differ, or `src` reaches beyond the axis; where that depends on
    /// symbols, the run of the function fails.
    pub fn slice_set(&self, src: &Tensor, axis: impl Axis, offset: impl Extent) -> Result<()> {
        let op = "slice_set";
        let shape = &self.0.ty.shape;
        let axis = axis.of(shape, op)?;
        self.check(op, src)?;
        let (lhs, rhs) = (shape.clone(), src.sym_shape().clone());
        if rhs.rank() != lhs.rank() || rhs.with_ones(&[axis]) != lhs.with_ones(&[axis]) {
            return Err(Error::ShapeMismatchBinaryOp { op, lhs, rhs });
        }
        let mut offsets = vec![Dim::zero(); lhs.rank()];
        offsets[axis] = offset.extent();
        self.update(op, offsets, None, &[src])
    }

    /// Holds element `i` of `src` along `axis` in place of element `indices[i]`; other extents are the state's. What an index
    /// beyond the axis names is not written. Of several elements for one place, which one stays is open.
    ///
    /// Indices are data: one program serves whatever they are, so this is how to fill a table in any order, or many
    /// sequences' caches at once.
    ///
    /// # Errors
    /// When element types, devices or extents do not fit, or the indices are not integers along one axis.
    pub fn index_set(&self, indices: &Tensor, src: &Tensor, axis: impl Axis) -> Result<()> {
        let op = "index_set";
        let shape = &self.0.ty.shape;
        let axis = axis.of(shape, op)?;
        self.check(op, src)?;
        let (lhs, rhs) = (shape.clone(), src.sym_shape().clone());
        if rhs.rank() != lhs.rank()
            || rhs.with_ones(&[axis]) != lhs.with_ones(&[axis])
            || indices.sym_dims() != [rhs.dims()[axis].clone()]
        {
            return Err(Error::ShapeMismatchBinaryOp { op, lhs, rhs });
        }
        let chosen = row_indices(op, indices)?;
        self.update(op, vec![Dim::zero(); lhs.rank()], Some(axis), &[src, &chosen])
    }

    /// A new version of the value, just made. That of a variable is where gradients end, that of a state has none.
    pub(crate) fn version(&self, made: Tensor) -> Tensor {
        let origin = self.0.variable.map(|_| Origin::Variable);
        made.with_origin(origin, self.0.variable)
    }

    fn check(&self, op: &'static str, value: &Tensor) -> Result<()> {
        if value.dtype() != self.dtype() {
            return Err(Error::DTypeMismatchBinaryOp { op, lhs: self.dtype(), rhs: value.dtype() });
        }
        if value.device() != self.device() {
            return Err(self.device().mismatch(op, value.device()));
        }
        Ok(())
    }

    /// Writes `written`, a source and perhaps indices along axis `rows`, at `offsets`.
    fn update(
        &self,
        op: &'static str,
        offsets: Vec<Dim>,
        rows: Option<usize>,
        written: &[&Tensor],
    ) -> Result<()> {
        let symbol = offsets.iter().flat_map(Dim::symbols).next();
        let update = Op::StateUpdate { offsets, rows };
        let next = |current: &mut Tensor| {
            let operands = [&[&*current], written].concat();
            *current = self.version(Tensor::of_op(update.clone(), &operands, self.device())?);
            Ok(())
        };
        let now = |current: &mut Tensor| {
            if let Some(symbol) = symbol {
                let why = format!("an offset with symbol {} has no value here", symbol.name());
                return Err(Error::InvalidArgument { op, why });
            }
            // One update at a time, so that a loop of updates that nobody reads holds no more than one.
            if !current.is_known() {
                current.compute(op)?;
            }
            next(current)
        };
        self.change(now, next)
    }

    /// Reads or replaces the value `now`, or in a function being compiled on this thread that of each run.
    fn change<T>(
        &self,
        now: impl FnOnce(&mut Tensor) -> Result<T>,
        in_runs: impl FnOnce(&mut Tensor) -> Result<T>,
    ) -> Result<T> {
        match in_function(self, in_runs) {
            Some(result) => result,
            None => now(&mut self.lock()),
        }
    }

    /// The value.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Tensor> {
        let current = self.lock_for_run();
        self.0.accesses.fetch_add(1, Ordering::Relaxed);
        current
    }

    /// The value, for a run of a function, which leaves it without other owners if it updates it.
    pub(crate) fn lock_for_run(&self) -> MutexGuard<'_, Tensor> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a run that gave it another tensor. Returns the new number of [`State::accesses`].
    #[cfg(feature = "vulkan")]
    pub(crate) fn note_replacement(&self) -> u64 {
        self.0.accesses.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A number that is another one once somebody else than a run locked the value, or a run replaced it. To be read
    /// while it is locked.
    #[cfg(feature = "vulkan")]
    pub(crate) fn accesses(&self) -> u64 {
        self.0.accesses.load(Ordering::Relaxed)
    }
}

/// What a state holds that is given `value`, or the variable of this number: a tensor of its own, where gradients end.
fn value_of(variable: Option<TensorId>, value: &Tensor) -> Result<Tensor> {
    match variable {
        Some(id) => Ok(value.same_value()?.with_origin(Some(Origin::Variable), Some(id))),
        None => value.current(),
    }
}

/// Indices as an update takes them; what is below 0 names nothing.
fn row_indices(op: &'static str, indices: &Tensor) -> Result<Tensor> {
    let clamped = indices.as_indices(op)?;
    if matches!(indices.dtype(), DType::U8 | DType::U32) {
        return Ok(clamped);
    }
    let nowhere = clamped.constant_like(f64::from(u32::MAX))?;
    indices.ge(0.0)?.where_cond(&clamped, &nowhere)
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State[{} on {}]", self.0.ty, self.0.device.name())
    }
}
