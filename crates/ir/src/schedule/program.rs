//! What the planner is given: buffers, and dispatches with the byte ranges they read and write.

use thiserror::Error;

/// What a [`Buffer`] is, and so who owns its bytes. Only [`BufferKind::Arena`] and [`BufferKind::Scratch`] get offsets from the
/// planner; the rest is bound by whoever owns it, and each is a memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BufferKind {
    /// An intermediate of one run: written before it is read, of no value once the run is over.
    Arena,
    /// Kernel scratch with an initial value (split counters). It lies in the arena but shares bytes with
    /// nothing; every 32-bit word of it holds `fill` before the first run, and a run finds what the run
    /// before left, so kernels restore it.
    Scratch {
        /// The initial value of every 32-bit word.
        fill: u32,
    },
    /// The input of that number: written by the host or by an earlier executable, read only here.
    Input(u32),
    /// The output of that number: read by the host after the run, or by a later executable.
    Output(u32),
    /// The weight of that number: resident and read only.
    Weight(u32),
    /// The state of that number (a KV cache): outlives the run and may be shared between executables.
    State(u32),
    /// The symbol table: symbol values and what is computed from them (extents, grids).
    Symbols,
    /// The codebooks of block formats: resident once a device, read only.
    Codebooks,
}

impl BufferKind {
    /// Whether the planner assigns offsets to buffers of this kind.
    pub fn is_in_arena(self) -> bool {
        match self {
            BufferKind::Arena | BufferKind::Scratch { .. } => true,
            BufferKind::Input(_) | BufferKind::Output(_) | BufferKind::State(_) | BufferKind::Symbols => {
                false
            }
            BufferKind::Weight(_) | BufferKind::Codebooks => false,
        }
    }
}

/// One memory that dispatches name by its index in [`Program::buffers`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The name in printed plans; need not be unique.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
    /// What it is.
    pub kind: BufferKind,
}

/// A byte range `start..end` of one buffer. An empty range conflicts with nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The index in [`Program::buffers`].
    pub buffer: usize,
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

/// One kernel launch. All its reads happen before its writes as far as other dispatches can tell, so a
/// range both read and written is an update in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// The name in printed plans; need not be unique.
    pub name: String,
    /// Every range that it may read.
    pub reads: Vec<Access>,
    /// Every range that it may write.
    pub writes: Vec<Access>,
}

/// Dispatches over buffers. Executing the dispatches one after another in the listed order is the meaning
/// that every plan must keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The memories. No two may have the same kind, those in the arena excepted.
    pub buffers: Vec<Buffer>,
    /// The launches, in a valid order.
    pub dispatches: Vec<Dispatch>,
}

/// What the device asks of arena buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Every offset is a multiple of this many bytes (`minStorageBufferOffsetAlignment`).
    pub alignment: u64,
    /// No arena window is larger than this many bytes (`maxMemoryAllocationSize`).
    pub max_buffer_bytes: u64,
}

/// Why a program cannot be planned.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ScheduleError {
    /// [`Limits::alignment`] is zero.
    #[error("the arena alignment is 0, it must be at least 1")]
    ZeroAlignment,
    /// An access names no buffer.
    #[error("dispatch {dispatch} accesses buffer {buffer} of {buffers}")]
    UnknownBuffer {
        /// The dispatch's name.
        dispatch: String,
        /// The index that it names.
        buffer: usize,
        /// How many buffers there are.
        buffers: usize,
    },
    /// A range that is reversed or ends after its buffer.
    #[error("dispatch {dispatch} accesses bytes {start}..{end} of {buffer}, which has {bytes}")]
    RangeOutside {
        /// The dispatch's name.
        dispatch: String,
        /// The buffer's name.
        buffer: String,
        /// The first byte of the access.
        start: u64,
        /// The byte after the last of the access.
        end: u64,
        /// The size of the buffer in bytes.
        bytes: u64,
    },
    /// Two buffers that claim the same memory; their hazards could not be seen.
    #[error("buffers {first} and {second} are both {kind:?}")]
    DuplicatePlace {
        /// The name of the first.
        first: String,
        /// The name of the second.
        second: String,
        /// The kind of both.
        kind: BufferKind,
    },
    /// A dispatch writes an input or a weight.
    #[error("dispatch {dispatch} writes {buffer}, which is read only ({kind:?})")]
    WriteToReadOnly {
        /// The dispatch's name.
        dispatch: String,
        /// The buffer's name.
        buffer: String,
        /// Its kind.
        kind: BufferKind,
    },
    /// An intermediate is read where no earlier dispatch wrote it.
    #[error("dispatch {dispatch} reads bytes {start}..{end} of {buffer} before they are written")]
    ReadBeforeWrite {
        /// The dispatch's name.
        dispatch: String,
        /// The buffer's name.
        buffer: String,
        /// The first byte of the access.
        start: u64,
        /// The byte after the last of the access.
        end: u64,
    },
    /// An arena buffer fits in no window.
    #[error("buffer {buffer} has {bytes} bytes, the device binds at most {limit}")]
    BufferTooLarge {
        /// The buffer's name.
        buffer: String,
        /// Its size in bytes.
        bytes: u64,
        /// [`Limits::max_buffer_bytes`].
        limit: u64,
    },
    /// The sizes of the arena buffers add up to more than 64 bits hold.
    #[error("the arena buffers together exceed 2^64 bytes")]
    ArenaOverflow,
}

impl Program {
    /// Checks what the planner relies on: indices and ranges inside their buffers, one buffer a memory,
    /// inputs and weights never written, intermediates written before they are read, and every arena
    /// buffer no larger than a window.
    ///
    /// # Errors
    /// The first defect found, naming the dispatch and the buffer.
    pub fn validate(&self, limits: &Limits) -> Result<(), ScheduleError> {
        if limits.alignment == 0 {
            return Err(ScheduleError::ZeroAlignment);
        }
        self.validate_buffers(limits)?;
        // What has been written of each buffer so far, as disjoint sorted ranges.
        let mut written: Vec<Vec<(u64, u64)>> = vec![Vec::new(); self.buffers.len()];
        for dispatch in &self.dispatches {
            for access in dispatch.reads.iter().chain(&dispatch.writes) {
                self.validate_range(dispatch, access)?;
            }
            for read in &dispatch.reads {
                let buffer = &self.buffers[read.buffer];
                if buffer.kind == BufferKind::Arena && !covers(&written[read.buffer], read.start, read.end) {
                    return Err(ScheduleError::ReadBeforeWrite {
                        dispatch: dispatch.name.clone(),
                        buffer: buffer.name.clone(),
                        start: read.start,
                        end: read.end,
                    });
                }
            }
            for write in &dispatch.writes {
                let buffer = &self.buffers[write.buffer];
                match buffer.kind {
                    BufferKind::Arena => cover(&mut written[write.buffer], write.start, write.end),
                    BufferKind::Input(_) | BufferKind::Weight(_) | BufferKind::Codebooks => {
                        return Err(ScheduleError::WriteToReadOnly {
                            dispatch: dispatch.name.clone(),
                            buffer: buffer.name.clone(),
                            kind: buffer.kind,
                        });
                    }
                    BufferKind::Scratch { .. }
                    | BufferKind::Output(_)
                    | BufferKind::State(_)
                    | BufferKind::Symbols => {}
                }
            }
        }
        Ok(())
    }

    fn validate_buffers(&self, limits: &Limits) -> Result<(), ScheduleError> {
        let mut owner = std::collections::BTreeMap::new();
        let mut total = 0u64;
        for buffer in &self.buffers {
            if !buffer.kind.is_in_arena() {
                if let Some(first) = owner.insert(buffer.kind, buffer) {
                    return Err(ScheduleError::DuplicatePlace {
                        first: first.name.clone(),
                        second: buffer.name.clone(),
                        kind: buffer.kind,
                    });
                }
                continue;
            }
            if buffer.bytes > limits.max_buffer_bytes {
                return Err(ScheduleError::BufferTooLarge {
                    buffer: buffer.name.clone(),
                    bytes: buffer.bytes,
                    limit: limits.max_buffer_bytes,
                });
            }
            // The worst packing is one after another, each aligned: if that fits 64 bits, no sum overflows.
            total = buffer
                .bytes
                .checked_next_multiple_of(limits.alignment)
                .and_then(|bytes| total.checked_add(bytes))
                .ok_or(ScheduleError::ArenaOverflow)?;
        }
        Ok(())
    }

    fn validate_range(&self, dispatch: &Dispatch, access: &Access) -> Result<(), ScheduleError> {
        let Some(buffer) = self.buffers.get(access.buffer) else {
            return Err(ScheduleError::UnknownBuffer {
                dispatch: dispatch.name.clone(),
                buffer: access.buffer,
                buffers: self.buffers.len(),
            });
        };
        if access.start > access.end || access.end > buffer.bytes {
            return Err(ScheduleError::RangeOutside {
                dispatch: dispatch.name.clone(),
                buffer: buffer.name.clone(),
                start: access.start,
                end: access.end,
                bytes: buffer.bytes,
            });
        }
        Ok(())
    }
}

/// Whether `ranges` (disjoint, sorted, not touching) contain all of `start..end`.
fn covers(ranges: &[(u64, u64)], start: u64, end: u64) -> bool {
    start == end || ranges.iter().any(|&(from, to)| from <= start && end <= to)
}

/// Adds `start..end` to `ranges`, keeping them disjoint, sorted and not touching.
fn cover(ranges: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    if start == end {
        return;
    }
    let first = ranges.partition_point(|&(_, to)| to < start);
    let last = ranges.partition_point(|&(from, _)| from <= end);
    let merged = ranges[first..last]
        .iter()
        .fold((start, end), |(from, to), range| (from.min(range.0), to.max(range.1)));
    ranges.splice(first..last, [merged]);
}
