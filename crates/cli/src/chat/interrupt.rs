//! Ctrl-C as a request to stop an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::{Error, Result};

/// The exit code of a program that an interrupt ended (128 + SIGINT).
pub const INTERRUPTED: i32 = 130;

/// Nothing is being answered: Ctrl-C ends the program.
const IDLE: u8 = 0;
/// An answer is being written.
const ANSWERING: u8 = 1;
/// Ctrl-C was pressed during the answer. A second one before it was noticed ends the program.
const RAISED: u8 = 2;

/// Whether Ctrl-C was pressed during an answer.
pub struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// Takes over Ctrl-C for the rest of the program's life.
    pub fn install() -> Result<Interrupt> {
        let state = Arc::new(AtomicU8::new(IDLE));
        let handled = state.clone();
        ctrlc::set_handler(move || {
            let raised = handled.compare_exchange(ANSWERING, RAISED, Ordering::Relaxed, Ordering::Relaxed);
            if raised.is_err() {
                std::process::exit(INTERRUPTED);
            }
        })
        .map_err(Error::Interrupt)?;
        Ok(Interrupt(state))
    }

    /// From now on Ctrl-C stops the answer.
    pub fn begin(&self) {
        self.0.store(ANSWERING, Ordering::Relaxed);
    }

    /// Whether it was pressed since.
    pub fn raised(&self) -> bool {
        self.0.load(Ordering::Relaxed) == RAISED
    }

    /// The answer has ended; whether it was stopped.
    pub fn end(&self) -> bool {
        self.0.swap(IDLE, Ordering::Relaxed) == RAISED
    }
}
