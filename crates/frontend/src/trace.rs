//! Which functions are being compiled, and what they do that is more than tensors: whether one of them read a symbolic
//! extent as a number, which states it changes, and how often it draws random numbers.
//!
//! Candle's `dims()` cannot fail, so it gives the largest extent that there can be and leaves a note in the trace of the
//! function whose extent it is. [`crate::compile`] reads the note when the function has returned. A note cannot be
//! taken back, so it does not matter what the function does with its own errors.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tallow_ir::{DType, Shape, Symbol};

use crate::device::Device;
use crate::draws::draw_ops;
use crate::error::{Error, Result};
use crate::state::State;
use crate::tensor::{Tensor, address};

/// The functions that a symbolic tensor belongs to: nearly always one, several where tensors of nested calls of
/// [`crate::compile`] met.
#[derive(Clone)]
pub(crate) struct Trace(Arc<[Arc<Record>]>);

/// What is known of one function that is being compiled.
struct Record {
    /// The device that it is compiled for.
    device: Device,
    /// The symbols of its inputs.
    symbols: Vec<Symbol>,
    /// The first extent that was read as a number although it is symbolic.
    read: OnceLock<Error>,
    /// What the function has made of the states that it reads and updates.
    states: Mutex<Vec<Version>>,
    /// Its random draws so far.
    draws: Mutex<Draws>,
}

/// The random draws of a function.
#[derive(Clone, Default)]
pub(crate) struct Draws {
    /// How many there are.
    pub count: u32,
    /// Their key and the number of the first, where there are some. Each function has tensors of its own, so that another
    /// function that reads them is found.
    leaves: Option<[Tensor; 2]>,
}

impl Draws {
    /// The key and the number of the first draw, if there are draws.
    pub fn leaves(&self) -> &[Tensor] {
        self.leaves.as_ref().map_or(&[], |leaves| leaves)
    }
}

/// A state in a function.
struct Version {
    state: State,
    /// What it holds when the function runs.
    first: Tensor,
    /// What it holds after the steps so far.
    current: Tensor,
}

thread_local! {
    /// The functions being compiled on this thread, outermost first.
    static ACTIVE: RefCell<Vec<Arc<Record>>> = const { RefCell::new(Vec::new()) };
}

/// A function being compiled on this thread, until it is dropped.
pub(crate) struct Compiling(Arc<Record>);

impl Compiling {
    /// Begins a function for `device` whose inputs have these shapes.
    pub fn begin<'a>(device: &Device, shapes: impl Iterator<Item = &'a Shape>) -> Compiling {
        let symbols = shapes.flat_map(Shape::dims).flat_map(tallow_ir::Dim::symbols).collect();
        let record = Arc::new(Record {
            device: device.clone(),
            symbols,
            read: OnceLock::new(),
            states: Mutex::default(),
            draws: Mutex::default(),
        });
        ACTIVE.with_borrow_mut(|active| active.push(record.clone()));
        Compiling(record)
    }

    /// The trace of its inputs.
    pub fn trace(&self) -> Trace {
        Trace([self.0.clone()].into())
    }

    /// The states that the function updates, and their new versions.
    pub fn versions(&self) -> Vec<(State, Tensor)> {
        let states = lock(&self.0.states);
        let updated = |version: &&Version| address(&version.first) != address(&version.current);
        let pair = |version: &Version| (version.state.clone(), version.current.clone());
        states.iter().filter(updated).map(pair).collect()
    }

    /// The random draws of the function.
    pub fn draws(&self) -> Draws {
        lock(&self.0.draws).clone()
    }

    /// # Errors
    /// When the function read a symbolic extent as a number.
    pub fn check(&self) -> Result<()> {
        self.0.read.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

/// Whether a function is being compiled on this thread.
pub(crate) fn is_compiling() -> bool {
    ACTIVE.with_borrow(|active| !active.is_empty())
}

/// Calls `change` with what `state` holds at this point of the function that is being compiled on this thread, to be replaced
/// by what it holds afterwards. `None` where no function is.
pub(crate) fn in_function<T>(
    state: &State,
    change: impl FnOnce(&mut Tensor) -> Result<T>,
) -> Option<Result<T>> {
    let record = ACTIVE.with_borrow(|active| active.last().cloned())?;
    // Not under the lock, which the change may ask for again.
    let known = lock(&record.states).iter().position(|version| version.state.is_same(state));
    let at = match known {
        Some(at) => at,
        None => {
            let first = match state.in_runs() {
                Ok(first) => first,
                Err(error) => return Some(Err(error)),
            };
            let mut states = lock(&record.states);
            states.push(Version { state: state.clone(), current: first.clone(), first });
            states.len() - 1
        }
    };
    let mut current = lock(&record.states)[at].current.clone();
    let result = change(&mut current);
    lock(&record.states)[at].current = current;
    Some(result)
}

/// Key and number of the next random draw on `device` in the function that is being compiled on this thread, each a tensor
/// of one element (u32) that a run gives its value. `None` where no function is, or one for another device.
pub(crate) fn drawn_in_function(device: &Device) -> Result<Option<[Tensor; 2]>> {
    let Some(record) = ACTIVE.with_borrow(|active| active.last().cloned()) else { return Ok(None) };
    if record.device != *device {
        return Ok(None);
    }
    let mut draws = lock(&record.draws);
    let [key, first] = match &draws.leaves {
        Some(leaves) => leaves.clone(),
        None => {
            let [key, first] = draw_ops();
            let leaves = [Tensor::of_op(key, &[], device)?, Tensor::of_op(first, &[], device)?];
            draws.leaves.insert(leaves).clone()
        }
    };
    let at = draws.count;
    draws.count = at.wrapping_add(1);
    // The sum wraps around, as the number of draws outside of functions does.
    let number = match at {
        0 => first,
        at => first.add(&Tensor::constant(DType::U32, f64::from(at), first.sym_shape(), device)?)?,
    };
    Ok(Some([key, number]))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Compiling {
    fn drop(&mut self) {
        // The versions hold traces, which hold the record.
        lock(&self.0.states).clear();
        // Also when the function panics. By identity: the order of the others does not depend on it.
        ACTIVE.with_borrow_mut(|active| active.retain(|record| !Arc::ptr_eq(record, &self.0)));
    }
}

impl Trace {
    /// The trace of a result of tensors with these traces; `None` where none of them has one.
    pub fn join<'a>(traces: impl Iterator<Item = &'a Trace>) -> Option<Trace> {
        let mut all: Option<Trace> = None;
        for trace in traces {
            let Some(known) = &all else {
                all = Some(trace.clone());
                continue;
            };
            let new: Vec<&Arc<Record>> = trace.0.iter().filter(|record| !known.has(record)).collect();
            if !new.is_empty() {
                all = Some(Trace(known.0.iter().chain(new).cloned().collect()));
            }
        }
        all
    }

    /// The trace of a tensor that is symbolic because it was made from symbols, such as `zeros((seq, 4))`: the functions
    /// on this thread whose inputs have one of its symbols, or else the innermost one.
    ///
    /// # Errors
    /// When no function is being compiled on this thread: such a tensor could not be computed, and reading its extents
    /// would have nothing to warn.
    pub fn of_symbols(shape: &Shape) -> Result<Trace> {
        let symbols: Vec<Symbol> = shape.dims().iter().flat_map(tallow_ir::Dim::symbols).collect();
        let named = |record: &&Arc<Record>| record.symbols.iter().any(|symbol| symbols.contains(symbol));
        let found: Vec<Arc<Record>> = ACTIVE.with_borrow(|active| {
            let named: Vec<Arc<Record>> = active.iter().filter(named).cloned().collect();
            if named.is_empty() { active.last().cloned().into_iter().collect() } else { named }
        });
        if found.is_empty() {
            return Err(Error::SymbolicShape { shape: shape.clone() });
        }
        Ok(Trace(found.into()))
    }

    /// Notes that `method` read the extent of `axis` of `shape` as a number.
    ///
    /// The functions to warn are those that the extent belongs to, and those being compiled inside of them on this
    /// thread, whose plans would have the number in them too. Where the extent belongs to none on this thread, all are.
    pub fn extent_was_read(&self, method: &'static str, axis: usize, shape: &Shape) {
        let note = |record: &Arc<Record>| {
            record.read.get_or_init(|| Error::SymbolicExtent { method, axis, shape: shape.clone() });
        };
        self.0.iter().for_each(note);
        let inside = |active: &RefCell<Vec<Arc<Record>>>| {
            let active = active.borrow();
            let outermost = active.iter().position(|record| self.has(record)).unwrap_or(0);
            active[outermost..].iter().for_each(note);
        };
        // A thread that is ending compiles nothing any more.
        let _ = ACTIVE.try_with(inside);
    }

    fn has(&self, record: &Arc<Record>) -> bool {
        self.0.iter().any(|seen| Arc::ptr_eq(seen, record))
    }
}
