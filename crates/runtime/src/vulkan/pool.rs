//! Memory pool for device values: a caching allocator with size classes.
//!
//! A dropped block is free at once, although submitted or appended work may still use it. That is safe because all work
//! goes to one queue in order: the next owner records commands after those that use it now, and the barrier before them
//! orders the two. Only two operations wait for the device: host writes, which need blocks that no command has used,
//! and returning memory to the driver.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::bound::{Bound, Pooled};
use super::buffer::{Buffer, MemoryUse};
use super::device::Counts;
use super::lock;
use super::queue::Queue;
use crate::error::{Error, Result};

/// The smallest size class, in bytes: a descriptor alignment that is valid on any device.
const SMALLEST: u64 = 256;

/// From this size on, size classes are finer.
const LARGE: u64 = 1 << 20;

/// From this size on, they are finer still: blocks of this size are arenas, whose next run asks for as many bytes.
const HUGE: u64 = 1 << 28;

/// The size class for `bytes` bytes: 4 classes per power of two, 8 from 1 MiB on and 64 from 256 MiB on, so that at most
/// a fifth, a ninth or a 65th of a block is unused.
fn class(bytes: u64) -> u64 {
    let bytes = bytes.max(SMALLEST);
    let below = 1 << (bytes - 1).ilog2();
    let steps = match (bytes > LARGE, bytes > HUGE) {
        (false, _) => 4,
        (true, false) => 8,
        (true, true) => 64,
    };
    bytes.next_multiple_of((below / steps).max(SMALLEST / 4))
}

/// Free blocks by size class, the last one freed at the end.
pub(super) struct Pool {
    free: Mutex<HashMap<u64, Vec<Arc<Buffer>>>>,
    queue: Arc<Queue>,
}

/// Device memory of a value. When dropped, it is reused by the next value of its size class.
pub struct Block {
    buffer: Arc<Buffer>,
    /// Whether it is new from the driver, so that no command uses the memory yet.
    fresh: bool,
    pool: Arc<Pool>,
}

impl Pool {
    pub(super) fn new(queue: &Arc<Queue>) -> Arc<Pool> {
        Arc::new(Pool { free: Mutex::default(), queue: queue.clone() })
    }

    /// A block of at least `bytes` bytes, whose contents are undefined: that at address `wanted`, if it is free.
    pub(super) fn take(self: &Arc<Pool>, what: &str, bytes: u64, wanted: Option<usize>) -> Result<Block> {
        self.queue.device.check_open()?;
        let class = match class(bytes) {
            class if class <= self.queue.device.caps.max_allocation_bytes => class,
            _ => bytes,
        };
        let counts = &self.queue.device.counts;
        let cached = lock(&self.free).get_mut(&class).and_then(|free| {
            let at = wanted.and_then(|wanted| free.iter().rposition(|b| Arc::as_ptr(b).addr() == wanted));
            match at {
                Some(at) => Some(free.remove(at)),
                None => free.pop(),
            }
        });
        let (buffer, fresh) = match cached {
            Some(buffer) => {
                counts.cached_bytes.fetch_sub(class, Ordering::Relaxed);
                (buffer, false)
            }
            None => {
                let make = || Buffer::new(&self.queue.device, what, class, MemoryUse::Device);
                (self.or_after_trim(what, bytes, make)?, true)
            }
        };
        counts.note_peak();
        Ok(Block { buffer, fresh, pool: self.clone() })
    }

    /// The queue whose work uses the memory.
    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// A buffer that is not a block; see [`Buffer::new`].
    pub(super) fn buffer(&self, name: &str, bytes: u64, memory: MemoryUse) -> Result<Arc<Buffer>> {
        self.or_after_trim(name, bytes, || Buffer::new(&self.queue.device, name, bytes, memory))
    }

    /// Calls `make`; if memory runs out, returns the cached blocks to the driver and retries once.
    ///
    /// The error says what the memory was for, its size, and how much is in use.
    fn or_after_trim<T>(&self, what: &str, bytes: u64, make: impl Fn() -> Result<T>) -> Result<T> {
        let first = match make() {
            Err(error @ Error::OutOfMemory { .. }) => error,
            other => return other,
        };
        let second = match self.trim() {
            Ok(0) => first,
            Ok(_) => match make() {
                Err(error @ Error::OutOfMemory { .. }) => error,
                other => return other,
            },
            Err(error) => return Err(error),
        };
        let Error::OutOfMemory { reason, .. } = second else { return Err(second) };
        let in_use = self.queue.device.counts.in_use();
        let reason = format!("{reason}; {in_use} bytes are in use");
        Err(Error::OutOfMemory { what: what.to_string(), bytes, reason })
    }

    /// Returns all cached blocks to the driver, once no work uses them; returns their bytes.
    pub(super) fn trim(&self) -> Result<u64> {
        let free = std::mem::take(&mut *lock(&self.free));
        let bytes = free.values().flatten().map(|buffer| buffer.size()).sum();
        if bytes > 0 {
            self.queue.device.counts.cached_bytes.fetch_sub(bytes, Ordering::Relaxed);
            // If this fails, the device is lost, and no work uses them any more.
            let waited = self.queue.wait_for_all();
            drop(free);
            waited?;
        }
        Ok(bytes)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // As in `trim`: no work runs on a lost device.
        let _ = self.trim();
    }
}

impl Block {
    /// The memory. Callers that record commands with it must hold the block until they are recorded.
    pub(crate) fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    /// Its address, by which it can be wanted again. Another block may have it, once this one was given back to the driver.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.buffer).addr()
    }

    /// The memory from byte `offset` on, as a binding of a sequence.
    pub(crate) fn bound(&self, offset: u64) -> Bound<'_> {
        Bound::Block(Pooled { buffer: &self.buffer, offset })
    }

    /// Whether no command used the memory before it was taken, so that the host may write it without waiting.
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Bytes of device memory.
    pub fn size(&self) -> u64 {
        self.buffer.size()
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({} bytes)", self.buffer.size())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let size = self.buffer.size();
        Counts::add(&self.pool.queue.device.counts.cached_bytes, size);
        lock(&self.pool.free).entry(size).or_default().push(self.buffer.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_their_bytes_and_waste_little() {
        for bytes in (0..4096).chain((1..400).map(|i| i * 77_777)).chain([
            1 << 28,
            (1 << 28) + 1,
            1 << 30,
            (1 << 30) + 1,
            3_879_421_472,
        ]) {
            let found = class(bytes);
            assert!(found >= bytes && found.is_multiple_of(64), "{bytes}: {found}");
            assert_eq!(class(found), found);
            let part = if bytes > HUGE {
                64
            } else if bytes > LARGE {
                8
            } else {
                4
            };
            let most = bytes + bytes / part;
            assert!(found <= most.max(SMALLEST).next_multiple_of(64), "{bytes}: {found}");
        }
        assert_eq!(class(64 << 20), 64 << 20);
    }
}
