//! Ctrl-C as a request to stop an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// The exit code of a program that an interrupt ended (128 + SIGINT).
const INTERRUPTED: i32 = 130;

/// Whether Ctrl-C was pressed. A second one before the first was noticed ends the program.
pub struct Interrupt {
    raised: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes over Ctrl-C for the rest of the program's life.
    pub fn install() -> Result<Interrupt> {
        let raised = Arc::new(AtomicBool::new(false));
        let flag = raised.clone();
        ctrlc::set_handler(move || {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(INTERRUPTED);
            }
        })
        .map_err(Error::Interrupt)?;
        Ok(Interrupt { raised })
    }

    /// Whether it was pressed since it was last cleared.
    pub fn raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// Forgets that it was pressed.
    pub fn clear(&self) {
        self.raised.store(false, Ordering::Relaxed);
    }
}
