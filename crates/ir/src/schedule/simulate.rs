//! Executes plans on bytes, as adversarially as a device may, with kernels given as a closure.
//!
//! This module knows nothing of how plans are made: it follows the commands and the slots. Between two
//! barriers the dispatches run in random order, and every write becomes visible at a random time: at once,
//! or only at the next barrier. A plan that forgets a barrier or shares bytes too early therefore gives
//! wrong results for some seed, while a right plan gives, for every seed, exactly what [`run_sequential`]
//! gives. Memory that nobody has written holds noise.
//!
//! A kernel is called with its dispatch index, the bytes of each range that it reads, and the bytes of each
//! range that it writes, which it changes in place (so a kernel may leave part of a range as it was).

use thiserror::Error;

use super::plan::{BoundarySubject, Command, Hazard, Plan};
use super::program::{Access, BufferKind, Program};

/// What a dispatch does: `(dispatch, reads, writes)`.
pub type Kernel<'a> = dyn FnMut(usize, &[Vec<u8>], &mut [Vec<u8>]) + 'a;

/// Why a plan cannot be executed at all.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SimulateError {
    /// A dispatch that the program does not have.
    #[error("the plan launches dispatch {dispatch}, which does not exist")]
    UnknownDispatch {
        /// The dispatch.
        dispatch: usize,
    },
    /// An access outside the memory that the plan or the program gives it.
    #[error("bytes {start}..{end} of buffer {buffer} are outside its memory")]
    OutsideMemory {
        /// The buffer.
        buffer: usize,
        /// The first byte of the access within the buffer.
        start: u64,
        /// The byte after the last.
        end: u64,
    },
    /// A host access to a buffer that lives in the arena or does not exist, or of another size.
    #[error("the host cannot access {bytes} bytes of buffer {buffer}")]
    HostAccess {
        /// The buffer.
        buffer: usize,
        /// The number of bytes.
        bytes: usize,
    },
    /// A kernel resized a range that it writes.
    #[error("dispatch {dispatch} changed the length of a range that it writes")]
    WriteLength {
        /// The dispatch.
        dispatch: usize,
    },
}

/// The memory of one simulated device with one executable's arena.
#[derive(Clone, Debug)]
pub struct Device {
    /// Every buffer outside the arena by its index in the program; arena buffers are empty here.
    buffers: Vec<Vec<u8>>,
    /// What the host sees of outputs, by the same index.
    host: Vec<Vec<u8>>,
    windows: Vec<Vec<u8>>,
    slots: Vec<Option<(usize, usize)>>,
}

impl Device {
    /// Memory for `plan`: buffers outside the arena are zero, the arena holds noise drawn by `seed`, and
    /// scratch its fill.
    ///
    /// # Errors
    /// [`SimulateError::OutsideMemory`] if scratch does not lie in the arena.
    pub fn new(program: &Program, plan: &Plan, seed: u64) -> Result<Self, SimulateError> {
        let mut random = Random(seed);
        let outside = |buffer: &super::Buffer| match buffer.kind {
            BufferKind::Arena | BufferKind::Scratch { .. } => Vec::new(),
            BufferKind::Input(_)
            | BufferKind::Output(_)
            | BufferKind::Weight(_)
            | BufferKind::State(_)
            | BufferKind::Symbols
            | BufferKind::Codebooks => vec![0; buffer.bytes as usize],
        };
        let buffers: Vec<Vec<u8>> = program.buffers.iter().map(outside).collect();
        let windows = plan.arena.windows.iter().map(|&bytes| random.noise(bytes as usize)).collect();
        let slots = plan.arena.slots.iter();
        let slots = slots.map(|slot| slot.map(|slot| (slot.window, slot.offset as usize))).collect();
        let mut device = Device { host: buffers.clone(), buffers, windows, slots };
        for (index, buffer) in program.buffers.iter().enumerate() {
            if let (BufferKind::Scratch { fill }, Some(Some(_))) = (buffer.kind, device.slots.get(index)) {
                let range = Access { buffer: index, start: 0, end: buffer.bytes };
                device.bytes_mut(&range)?.copy_from_slice(&filled(fill, buffer.bytes));
            }
        }
        Ok(device)
    }

    /// The host writes a whole buffer outside the arena, between runs.
    ///
    /// # Errors
    /// [`SimulateError::HostAccess`] for an arena buffer or another size.
    pub fn write(&mut self, buffer: usize, bytes: &[u8]) -> Result<(), SimulateError> {
        match self.buffers.get_mut(buffer) {
            Some(memory) if memory.len() == bytes.len() => {
                memory.copy_from_slice(bytes);
                self.host[buffer].copy_from_slice(bytes);
                Ok(())
            }
            Some(_) | None => Err(SimulateError::HostAccess { buffer, bytes: bytes.len() }),
        }
    }

    /// What the host reads of a buffer outside the arena: of an output, what the tail barrier made visible;
    /// of others, the bytes once everything is done. Empty for arena buffers and unknown ones.
    pub fn read(&self, buffer: usize) -> &[u8] {
        self.host.get(buffer).map(Vec::as_slice).unwrap_or_default()
    }

    fn bytes_mut(&mut self, access: &Access) -> Result<&mut [u8], SimulateError> {
        let (memory, base) = match self.slots.get(access.buffer).copied().flatten() {
            Some((window, offset)) => (self.windows.get_mut(window), offset),
            None => (self.buffers.get_mut(access.buffer), 0),
        };
        let range = base.saturating_add(access.start as usize)..base.saturating_add(access.end as usize);
        memory.and_then(|memory| memory.get_mut(range)).ok_or(SimulateError::OutsideMemory {
            buffer: access.buffer,
            start: access.start,
            end: access.end,
        })
    }
}

/// Writes of one dispatch that are not visible yet.
struct Pending {
    dispatch: usize,
    values: Vec<Vec<u8>>,
}

/// Executes `plan` `runs` times back to back, with no host in between, and waits.
///
/// `seed` draws the order of dispatches and the visibility of writes. One seed is one of many legal device
/// behaviours: try many.
///
/// # Errors
/// [`SimulateError`] if the plan leaves its memory or a kernel resizes a range.
pub fn replay(
    program: &Program,
    plan: &Plan,
    device: &mut Device,
    runs: usize,
    seed: u64,
    kernel: &mut Kernel<'_>,
) -> Result<(), SimulateError> {
    let mut random = Random(seed);
    let mut pending = Vec::new();
    for mut epoch in epochs(plan, runs) {
        commit(program, device, &mut pending, &mut random)?;
        random.shuffle(&mut epoch);
        for dispatch in epoch {
            let values = launch(program, device, dispatch, &mut random, kernel)?;
            if random.below(2) == 0 {
                store(program, device, dispatch, &values)?;
            } else {
                pending.push(Pending { dispatch, values });
            }
        }
    }
    // What the last writes of an output left to the tail reaches the host only through the tail.
    let before_tail = device.buffers.clone();
    commit(program, device, &mut pending, &mut random)?;
    for (index, buffer) in program.buffers.iter().enumerate() {
        let covered = plan.tail.iter().any(|reason| {
            reason.subject == BoundarySubject::Buffer(index) && reason.hazard == Hazard::WriteRead
        });
        let visible = match buffer.kind {
            BufferKind::Output(_) if !covered => &before_tail[index],
            BufferKind::Output(_)
            | BufferKind::Arena
            | BufferKind::Scratch { .. }
            | BufferKind::Input(_)
            | BufferKind::Weight(_)
            | BufferKind::State(_)
            | BufferKind::Symbols
            | BufferKind::Codebooks => &device.buffers[index],
        };
        device.host[index].clone_from(visible);
    }
    Ok(())
}

/// Executes the dispatches one after another on one memory per buffer: the meaning of the program.
///
/// `memory` holds the bytes of every buffer of the program, arena buffers included, and is updated.
///
/// # Errors
/// [`SimulateError`] if an access leaves its buffer or a kernel resizes a range.
pub fn run_sequential(
    program: &Program,
    memory: &mut [Vec<u8>],
    kernel: &mut Kernel<'_>,
) -> Result<(), SimulateError> {
    let outside = |access: &Access| SimulateError::OutsideMemory {
        buffer: access.buffer,
        start: access.start,
        end: access.end,
    };
    for (index, dispatch) in program.dispatches.iter().enumerate() {
        let load = |access: &Access| {
            let bytes = memory.get(access.buffer)?.get(access.start as usize..access.end as usize)?;
            Some(bytes.to_vec())
        };
        let load = |access: &Access| load(access).ok_or_else(|| outside(access));
        let reads = dispatch.reads.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        let mut values = dispatch.writes.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        kernel(index, &reads, &mut values);
        for (access, value) in dispatch.writes.iter().zip(&values) {
            let bytes = &mut memory[access.buffer][access.start as usize..access.end as usize];
            if bytes.len() != value.len() {
                return Err(SimulateError::WriteLength { dispatch: index });
            }
            bytes.copy_from_slice(value);
        }
    }
    Ok(())
}

/// One memory per buffer for [`run_sequential`]: zeros, and the fill of scratch.
pub fn sequential_memory(program: &Program) -> Vec<Vec<u8>> {
    let memory = |buffer: &super::Buffer| match buffer.kind {
        BufferKind::Scratch { fill } => filled(fill, buffer.bytes),
        BufferKind::Arena
        | BufferKind::Input(_)
        | BufferKind::Output(_)
        | BufferKind::Weight(_)
        | BufferKind::State(_)
        | BufferKind::Symbols
        | BufferKind::Codebooks => vec![0; buffer.bytes as usize],
    };
    program.buffers.iter().map(memory).collect()
}

/// The dispatches between device barriers over `runs` runs. The tail is a barrier to the host only.
fn epochs(plan: &Plan, runs: usize) -> Vec<Vec<usize>> {
    let mut epochs = vec![Vec::new()];
    for _ in 0..runs {
        if !plan.head.is_empty() {
            epochs.push(Vec::new());
        }
        for command in &plan.commands {
            match command {
                Command::Barrier { .. } => epochs.push(Vec::new()),
                Command::Dispatch(dispatch) => {
                    if let Some(epoch) = epochs.last_mut() {
                        epoch.push(*dispatch);
                    }
                }
            }
        }
    }
    epochs
}

/// Runs one dispatch on what it sees now and returns what it writes.
///
/// Inside a dispatch, invocations write while others still read. A kernel is made for that where it updates
/// a buffer in place, but not where two buffers share bytes: those may read as noise.
fn launch(
    program: &Program,
    device: &mut Device,
    index: usize,
    random: &mut Random,
    kernel: &mut Kernel<'_>,
) -> Result<Vec<Vec<u8>>, SimulateError> {
    let dispatch = program.dispatches.get(index).ok_or(SimulateError::UnknownDispatch { dispatch: index })?;
    let mut load = |access: &Access| device.bytes_mut(access).map(|bytes| bytes.to_vec());
    let mut reads = dispatch.reads.iter().map(&mut load).collect::<Result<Vec<_>, _>>()?;
    let mut values = dispatch.writes.iter().map(&mut load).collect::<Result<Vec<_>, _>>()?;
    if random.below(2) == 0 {
        for write in &dispatch.writes {
            let bytes = device.bytes_mut(write)?;
            let noise = random.noise(bytes.len());
            bytes.copy_from_slice(&noise);
        }
        for (read, bytes) in dispatch.reads.iter().zip(&mut reads) {
            if dispatch.writes.iter().all(|write| write.buffer != read.buffer) {
                bytes.copy_from_slice(device.bytes_mut(read)?);
            }
        }
        for (write, old) in dispatch.writes.iter().zip(&values) {
            device.bytes_mut(write)?.copy_from_slice(old);
        }
    }
    kernel(index, &reads, &mut values);
    Ok(values)
}

/// Makes the writes of one dispatch visible.
fn store(
    program: &Program,
    device: &mut Device,
    dispatch: usize,
    values: &[Vec<u8>],
) -> Result<(), SimulateError> {
    for (access, value) in program.dispatches[dispatch].writes.iter().zip(values) {
        let bytes = device.bytes_mut(access)?;
        if bytes.len() != value.len() {
            return Err(SimulateError::WriteLength { dispatch });
        }
        bytes.copy_from_slice(value);
    }
    Ok(())
}

/// Makes all pending writes visible, in random order.
fn commit(
    program: &Program,
    device: &mut Device,
    pending: &mut Vec<Pending>,
    random: &mut Random,
) -> Result<(), SimulateError> {
    random.shuffle(pending);
    for Pending { dispatch, values } in pending.drain(..) {
        store(program, device, dispatch, &values)?;
    }
    Ok(())
}

/// `bytes` bytes of the little-endian word `fill`, over and over.
fn filled(fill: u32, bytes: u64) -> Vec<u8> {
    fill.to_le_bytes().into_iter().cycle().take(bytes as usize).collect()
}

/// The SplitMix64 generator (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index + 1));
        }
    }

    fn noise(&mut self, bytes: usize) -> Vec<u8> {
        let mut noise = Vec::with_capacity(bytes + 8);
        while noise.len() < bytes {
            noise.extend(self.next().to_le_bytes());
        }
        noise.truncate(bytes);
        noise
    }
}
