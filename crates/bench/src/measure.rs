//! Runs that are timed until there are enough of them.

use std::time::Instant;

use crate::error::Result;
use crate::stats::Spread;

/// What one run took, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// By the device's clock.
    pub device: f64,
    /// By the host's.
    pub wall: f64,
}

/// Spread over runs by each clock.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// By the device's.
    pub device: Spread,
    /// By the host's.
    pub wall: Spread,
}

/// Runs at least so often are timed, however long they take.
const LEAST_RUNS: usize = 3;
/// More runs than this say nothing more.
const MOST_RUNS: usize = 20_000;

/// Seconds that a device is kept busy before anything is timed: while operands are made it idles, and its clocks need so long
/// to rise again. (On an H200, after a warm-up of a few hundredths, kernels took up to 6 times as long.)
const WARM_UP: f64 = 0.2;
/// The same after a long pause, such as one in which the host computes what results must be: its clocks fall lower.
const LONG_WARM_UP: f64 = 1.0;

/// Runs `once` to warm up (clocks rise, pages are touched) and then for `seconds`; for 0, where times mean nothing, once and
/// [`LEAST_RUNS`] times.
pub fn repeat(seconds: f64, once: impl FnMut() -> Result<Took>) -> Result<Times> {
    repeat_after(Instant::now(), seconds, once)
}

/// Like [`repeat`], for a device that has been idle since `idle`: warms up as long as it was, within limits.
pub fn repeat_after(idle: Instant, seconds: f64, mut once: impl FnMut() -> Result<Took>) -> Result<Times> {
    let warm = Instant::now();
    let idled = warm.duration_since(idle).as_secs_f64();
    let warm_up = if seconds > 0.0 { idled.clamp(WARM_UP, LONG_WARM_UP) } else { 0.0 };
    once()?;
    while warm.elapsed().as_secs_f64() < warm_up {
        once()?;
    }
    let start = Instant::now();
    let (mut device, mut wall) = (vec![], vec![]);
    while device.len() < LEAST_RUNS || start.elapsed().as_secs_f64() < seconds && device.len() < MOST_RUNS {
        let took = once()?;
        device.push(took.device);
        wall.push(took.wall);
    }
    Ok(Times { device: Spread::of(device), wall: Spread::of(wall) })
}

/// Microseconds since `start`.
pub fn micros_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}
