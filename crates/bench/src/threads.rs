//! Independent pieces of work on threads of their own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::Result;

/// `one(0)` to `one(count - 1)`, in order, computed by as many threads as there are processors. Not by rayon's: uploads
/// hold a lock while rayon copies for them, and a rayon thread that waits for such a copy would begin the next piece,
/// which waits for the lock.
///
/// # Errors
/// The first in order of those that there are; pieces that were not begun are not.
pub fn in_order<T: Send>(count: usize, one: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count);
    let (next, stopped) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let done: Mutex<Vec<(usize, Result<T>)>> = Mutex::new(vec![]);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while stopped.load(Ordering::Relaxed) == 0 {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= count {
                        break;
                    }
                    let result = one(i);
                    stopped.fetch_add(usize::from(result.is_err()), Ordering::Relaxed);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((i, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::in_order;
    use crate::error::BenchError;

    #[test]
    fn results_are_in_order_and_errors_stop() {
        assert_eq!(in_order(100, |i| Ok(i * i)).unwrap(), (0..100).map(|i| i * i).collect::<Vec<_>>());
        assert_eq!(in_order(0, |_| Ok(())).unwrap(), []);
        let failed = in_order(10_000, |i| if i == 7 { Err(BenchError::Wrong("7".into())) } else { Ok(()) });
        assert!(failed.unwrap_err().to_string().ends_with('7'));
    }
}
