//! Limits for what the engine itself does not bound: nesting of values, recursion, and time.
//!
//! The engine's fuel bounds steps and bytes. It does not bound how deep lists hold lists, or how often they share one:
//! `{% set ns.x = [ns.x, ns.x] %}` in a loop overflows the stack when the value is dropped, or fills the memory when it
//! is printed. So each assigned value is measured. A rendering also has a thread of its own with a large stack, and a
//! deadline.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

/// The functions that assigned values go through, under names that no template uses.
pub(crate) const BOUNDED: &str = "bounded__";
pub(crate) const BOUNDED_ATTRIBUTE: &str = "bounded_attribute__";

/// Bytes that a rendering may have: several times the longest context of any model.
pub(crate) const OUTPUT_BYTES: usize = 16 << 20;

/// Levels of nesting of an assigned value; serde_json reads 128 of a message's.
const DEPTH: usize = 160;

/// Values inside an assigned value, shared ones counted as often as they occur.
const VALUES: usize = 1 << 20;

/// Bytes of stack: enough for the deepest expressions and values that the other limits allow.
const STACK: usize = 256 << 20;

/// Time that parsing or rendering may take; the fuel of [`crate::template`] burns in a second.
pub(crate) const TIME: Duration = Duration::from_secs(10);

/// The value that a template assigns, if its size is in bounds.
pub(crate) fn add_functions(environment: &mut Environment<'_>) {
    environment.add_function(BOUNDED, |state: &State, value: Value| bounded(state, value, false));
    environment.add_function(BOUNDED_ATTRIBUTE, |state: &State, value: Value| bounded(state, value, true));
}

/// The cause of the error of a template that prints too much.
#[derive(Debug, thiserror::Error)]
#[error("too much text")]
pub(crate) struct TooLong;

/// Counts what is printed, so that the error about too much of it has the line.
pub(crate) fn count_output(state: &mut State, bytes: usize) -> Result<(), Error> {
    let printed = state.get_or_insert_extension_with(|| Printed(0));
    printed.0 += bytes;
    if printed.0 <= OUTPUT_BYTES {
        return Ok(());
    }
    Err(Error::new(ErrorKind::WriteFailure, "too much text").with_source(TooLong))
}

/// Bytes that a rendering has printed.
#[derive(Debug)]
struct Printed(usize);

/// Why [`on_own_thread`] has no result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It took too much time; its thread is left behind.
    Slow,
    /// It panicked, or there was no thread for it.
    Broken,
}

/// What `work` returns within this `time`, on a thread with a large stack.
pub(crate) fn on_own_thread<T: Send + 'static>(
    time: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new()
        .name("chat template".to_owned())
        .stack_size(STACK)
        .spawn(move || sender.send(work()))
        .map_err(|_| Failure::Broken)?;
    receiver.recv_timeout(time).map_err(|error| match error {
        RecvTimeoutError::Timeout => Failure::Slow,
        RecvTimeoutError::Disconnected => Failure::Broken,
    })
}

fn bounded(state: &State, mut value: Value, attribute: bool) -> Result<Value, Error> {
    // A lazy value computes its items from another one: a chain of those is as bad as nested lists.
    if value.kind() == ValueKind::Iterable {
        value = value.try_iter()?.collect();
    }
    let mut count = 0;
    measure(&value, 0, attribute, &mut count)?;
    state.consume_fuel((count / 4) as u64)?;
    Ok(value)
}

/// Adds the values in `value` to `count`.
///
/// A namespace may not be inside another one's attributes, since it could hold itself.
fn measure(value: &Value, depth: usize, in_attribute: bool, count: &mut usize) -> Result<(), Error> {
    *count += 1;
    if depth > DEPTH || *count > VALUES {
        return Err(Error::new(ErrorKind::InvalidOperation, "a value is too large or too deeply nested"));
    }
    let Some(object) = value.as_object() else { return Ok(()) };
    let namespace = object.type_name().ends_with("Namespace");
    if namespace && in_attribute {
        return Err(Error::new(ErrorKind::InvalidOperation, "a namespace cannot be inside of another"));
    }
    match value.kind() {
        ValueKind::Map => {
            for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                measure(&key, depth + 1, true, count)?;
                measure(&value, depth + 1, true, count)?;
            }
        }
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                measure(&item, depth + 1, true, count)?;
            }
        }
        // Others have no items; the engine may add kinds.
        _ => {}
    }
    Ok(())
}
