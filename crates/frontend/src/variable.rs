//! Variables: tensors that training changes, and that gradients are asked of.

use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tallow_ir::DType;

use crate::device::Device;
use crate::element::{NdArray, WithDType};
use crate::error::{Error, Result};
use crate::eval::eval;
use crate::origin::{Origin, TensorId};
use crate::shape::{IntoShape, ReshapeTo};
use crate::state::State;
use crate::tensor::{Expr, Node, Tensor, address};

/// A tensor whose value can be changed, and whose gradient [`Tensor::backward`] finds. Clones are the same variable.
///
/// ```
/// use tallow::{Device, Var};
/// let x = Var::new(&[3f32, 1.0], &Device::Cpu)?;
/// for _ in 0..100 {
///     let loss = x.sqr()?.sum_all()?;
///     let grads = loss.backward()?;
///     let step = (grads.get(&x).expect("the loss depends on x") * 0.1)?;
///     x.set(&(x.as_tensor() - step)?)?;
/// }
/// assert!(x.to_vec1::<f32>()?.iter().all(|x| x.abs() < 1e-6));
/// # Ok::<(), tallow::Error>(())
/// ```
///
/// An expression reads what the variable held when it was written, as in Candle: setting the variable later does not
/// change it. In a function that [`crate::compile`] calls, a variable is what it holds in each run, and `set` changes it in
/// each run.
#[derive(Clone)]
pub struct Var(Tensor);

/// Values that variables were set to and that were not computed then.
static SET: Mutex<Vec<Weak<Node>>> = Mutex::new(Vec::new());

impl Var {
    /// A variable that holds what a tensor does; the variable itself, where the tensor is that of one.
    ///
    /// # Errors
    /// When the shape is symbolic or the elements are blocks.
    pub fn from_tensor(tensor: &Tensor) -> Result<Var> {
        if tensor.is_variable() {
            return Ok(Var(tensor.clone()));
        }
        tensor.const_dims()?;
        if tensor.dtype().size().is_none() {
            let expected = "a scalar type".to_string();
            return Err(Error::UnexpectedDType { op: "var", expected, got: tensor.dtype() });
        }
        let id = TensorId::next();
        let state = State::of(tensor, Some(id))?;
        let var = Tensor::node(tensor.ty().clone(), tensor.device(), Expr::Variable(state))?;
        Ok(Var(var.with_origin(Some(Origin::Variable), Some(id))))
    }

    /// A variable that holds numbers of the host's.
    ///
    /// # Errors
    /// As [`Tensor::new`].
    pub fn new<A: NdArray>(array: A, device: &Device) -> Result<Var> {
        Var::from_tensor(&Tensor::new(array, device)?)
    }

    /// As [`Tensor::from_vec`].
    ///
    /// # Errors
    /// As [`Tensor::from_vec`].
    pub fn from_vec<T: WithDType>(data: Vec<T>, shape: impl ReshapeTo, device: &Device) -> Result<Var> {
        Var::from_tensor(&Tensor::from_vec(data, shape, device)?)
    }

    /// As [`Tensor::from_slice`].
    ///
    /// # Errors
    /// As [`Tensor::from_slice`].
    pub fn from_slice<T: WithDType>(data: &[T], shape: impl ReshapeTo, device: &Device) -> Result<Var> {
        Var::from_tensor(&Tensor::from_slice(data, shape, device)?)
    }

    /// As [`Tensor::zeros`].
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn zeros(shape: impl IntoShape, dtype: DType, device: &Device) -> Result<Var> {
        Var::from_tensor(&Tensor::zeros(shape, dtype, device)?)
    }

    /// As [`Tensor::ones`].
    ///
    /// # Errors
    /// As [`Tensor::ones`].
    pub fn ones(shape: impl IntoShape, dtype: DType, device: &Device) -> Result<Var> {
        Var::from_tensor(&Tensor::ones(shape, dtype, device)?)
    }

    /// As [`Tensor::rand`].
    ///
    /// # Errors
    /// As [`Tensor::rand`].
    pub fn rand<T: WithDType>(low: T, up: T, shape: impl IntoShape, device: &Device) -> Result<Var> {
        Var::from_tensor(&Tensor::rand(low, up, shape, device)?)
    }

    /// As [`Tensor::randn`].
    ///
    /// # Errors
    /// As [`Tensor::randn`].
    pub fn randn<T: WithDType>(mean: T, std: T, shape: impl IntoShape, device: &Device) -> Result<Var> {
        Var::from_tensor(&Tensor::randn(mean, std, shape, device)?)
    }

    /// Numbers drawn evenly from `low .. up`, of any float type.
    ///
    /// # Errors
    /// As [`Tensor::rand`].
    pub fn rand_f64(low: f64, up: f64, shape: impl IntoShape, dtype: DType, device: &Device) -> Result<Var> {
        Var::from_tensor(&Tensor::rand(low as f32, up as f32, shape, device)?.to_dtype(dtype)?)
    }

    /// Numbers drawn from a normal distribution, of any float type.
    ///
    /// # Errors
    /// As [`Tensor::randn`].
    pub fn randn_f64(
        mean: f64,
        std: f64,
        shape: impl IntoShape,
        dtype: DType,
        device: &Device,
    ) -> Result<Var> {
        Var::from_tensor(&Tensor::randn(mean as f32, std as f32, shape, device)?.to_dtype(dtype)?)
    }

    /// The variable as a tensor, whose value changes with it.
    pub fn as_tensor(&self) -> &Tensor {
        &self.0
    }

    /// What it holds now, of which gradients know nothing.
    pub fn as_detached_tensor(&self) -> Tensor {
        self.0.detach()
    }

    /// The variable as a tensor.
    pub fn into_inner(self) -> Tensor {
        self.0
    }

    /// Holds `value` from now on.
    ///
    /// The value is lazy. All variables that were set since are computed together when one of them is read or set again.
    ///
    /// # Errors
    /// When it is of another shape, element type or device, or is the variable itself.
    pub fn set(&self, value: &Tensor) -> Result<()> {
        if address(value) == address(&self.0) {
            let why = "cannot set a variable to itself".into();
            return Err(Error::InvalidArgument { op: "set", why });
        }
        let Some(state) = self.0.variable_state() else {
            return Err(crate::error::no_value("set"));
        };
        let chosen = CONDITION.with_borrow(|condition| {
            let choose = |condition: &Tensor| {
                let condition = condition.broadcast_as(self.0.sym_shape())?;
                condition.where_cond(value, &self.as_detached_tensor())
            };
            condition.as_ref().map(choose).transpose()
        })?;
        let value = chosen.as_ref().unwrap_or(value);
        if crate::trace::is_compiling() {
            return state.set(value);
        }
        if !self.0.is_known() {
            // A loop that reads nothing holds the steps of one round and no more.
            compute_all(&self.0)?;
        }
        state.set(value)?;
        if !self.0.is_known() {
            let current = state.read()?;
            note(&current);
        }
        Ok(())
    }
}

thread_local! {
    /// Whether variables that are set on this thread change: a number on their device (u8, rank 0); `None` for yes.
    static CONDITION: RefCell<Option<Tensor>> = const { RefCell::new(None) };
}

/// The condition before, until it is dropped.
struct Before(Option<Tensor>);

impl Drop for Before {
    fn drop(&mut self) {
        // Also when a step panics.
        CONDITION.set(self.0.take());
    }
}

/// Runs `step`, in which variables that are set change only where `condition` (u8, rank 0) is not 0. The device decides, so
/// nobody waits for the number. Whatever sets variables needs to know nothing of it: optimizers of others work, too.
///
/// # Errors
/// Those of `step`.
pub(crate) fn set_where<T>(condition: &Tensor, step: impl FnOnce() -> Result<T>) -> Result<T> {
    let _before = Before(CONDITION.replace(Some(condition.clone())));
    step()
}

/// Notes a value that is to be computed with others.
fn note(value: &Tensor) {
    let mut set = lock_set();
    if set.len() >= 64 && set.len().is_power_of_two() {
        set.retain(|value| value.upgrade().is_some_and(|node| !Tensor(node).is_known()));
    }
    set.push(Arc::downgrade(&value.0));
}

/// Computes what variables were set to, with that of `variable`, in one plan for its device.
fn compute_all(variable: &Tensor) -> Result<()> {
    let set = std::mem::take(&mut *lock_set());
    let alive = set.iter().filter_map(Weak::upgrade).map(Tensor).filter(|value| !value.is_known());
    let (here, elsewhere): (Vec<Tensor>, Vec<Tensor>) =
        alive.partition(|value| value.device() == variable.device());
    lock_set().extend(elsewhere.iter().map(|value| Arc::downgrade(&value.0)));
    eval(&here.iter().chain([variable]).collect::<Vec<_>>())
}

fn lock_set() -> MutexGuard<'static, Vec<Weak<Node>>> {
    SET.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tensor {
    /// Whether it is that of a [`Var`].
    pub fn is_variable(&self) -> bool {
        self.variable_state().is_some()
    }

    fn variable_state(&self) -> Option<State> {
        match &*self.expr() {
            Expr::Variable(state) => Some(state.clone()),
            Expr::Data(_)
            | Expr::Device(_)
            | Expr::Blocks(_)
            | Expr::Op(..)
            | Expr::Input(_)
            | Expr::State(_) => None,
        }
    }
}

impl Deref for Var {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.0
    }
}

impl AsRef<Tensor> for Var {
    fn as_ref(&self) -> &Tensor {
        &self.0
    }
}

impl fmt::Debug for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
