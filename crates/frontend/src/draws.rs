//! The sequence of random draws: one seed for the process, and the number of the next draw, which each run of a compiled
//! function reads through two symbols.

use std::sync::{Mutex, PoisonError};

use tallow_ir::{DType, Dim, Op, Symbol};

use crate::device::Device;
use crate::error::Result;

/// The symbol of the key of all random draws in a compiled function's graph. Symbols of other meaning cannot have this
/// name in a function.
pub const RANDOM_KEY: &str = "random_key";

/// The symbol of the number of the first random draw in a compiled function's graph: draw `i` has the number that is this
/// plus `i`, modulo 2^32. Symbols of other meaning cannot have this name in a function.
pub const RANDOM_DRAW: &str = "random_draw";

impl Device {
    /// Takes the next `count` random draws, for one run of a graph that has them: the values of [`RANDOM_KEY`] and
    /// [`RANDOM_DRAW`]. Runs of a [`crate::Function`] and of its executable do this themselves. Who compiles the graph of one
    /// with [`Device::compile`] gives these values to each run, with `count` from [`crate::Function::draws`].
    pub fn next_draws(&self, count: u32) -> [(&'static str, u64); 2] {
        let [key, number] = next_draws(count);
        [(RANDOM_KEY, key.into()), (RANDOM_DRAW, number.into())]
    }

    /// Starts the sequence of random draws anew. It is one for all devices of the process, so a program gives the
    /// same numbers wherever it runs.
    ///
    /// # Errors
    /// None; a `Result` because Candle's is one.
    pub fn set_seed(&self, seed: u64) -> Result<()> {
        *STATE.lock().unwrap_or_else(PoisonError::into_inner) = (seed, 0);
        Ok(())
    }

    /// The seed that [`Device::set_seed`] set last, 299792458 if none was.
    ///
    /// # Errors
    /// None; a `Result` because Candle's is one.
    pub fn get_current_seed(&self) -> Result<u64> {
        Ok(STATE.lock().unwrap_or_else(PoisonError::into_inner).0)
    }
}

/// The seed, and the number of the next draw.
static STATE: Mutex<(u64, u32)> = Mutex::new((299_792_458, 0));

/// Key and first number of the next `count` draws.
pub(crate) fn next_draws(count: u32) -> [u32; 2] {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let (seed, draw) = *state;
    state.1 = draw.wrapping_add(count);
    // A key has 32 bits.
    [(seed as u32) ^ ((seed >> 32) as u32).rotate_left(16), draw]
}

/// Whether symbols of this name stand for random draws.
pub(crate) fn is_draw_symbol(name: &str) -> bool {
    name == RANDOM_KEY || name == RANDOM_DRAW
}

/// Whether `op` is the key or the number of a draw, which each run of a function is given.
pub(crate) fn is_draw(op: &Op) -> bool {
    matches!(op, Op::DimValue { .. }) && op.symbols().iter().any(|symbol| is_draw_symbol(symbol.name()))
}

/// The key of a function's draws and the number of the first: scalars (u32) that a run gives.
pub(crate) fn draw_ops() -> [Op; 2] {
    [RANDOM_KEY, RANDOM_DRAW].map(|name| {
        let symbol = Symbol::new(name, u32::MAX);
        Op::DimValue { dim: Dim::from(symbol), dtype: DType::U32 }
    })
}
