//! What the planner returns: levels, commands, boundaries between runs and the arena.

/// Why two accesses of the same bytes must stay in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hazard {
    /// Read after write: the reader needs the value.
    WriteRead,
    /// Write after read: the reader must be done with the old value.
    ReadWrite,
    /// Write after write: the later value must win.
    WriteWrite,
}

/// One pair of dispatches that a barrier separates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason {
    /// The buffer whose bytes both touch, an index in [`Program::buffers`](super::Program::buffers).
    pub buffer: usize,
    /// The dispatch before the barrier.
    pub from: usize,
    /// The dispatch after the barrier.
    pub to: usize,
    /// What would go wrong.
    pub hazard: Hazard,
}

/// One entry of a recording, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Launch the dispatch of that index in [`Program::dispatches`](super::Program::dispatches).
    Dispatch(usize),
    /// A global memory barrier: every write before it is done and visible to everything after it, indirect
    /// arguments included, and every read before it is done.
    Barrier {
        /// The pairs of the two neighbouring levels that need it. Never empty.
        reasons: Vec<Reason>,
    },
}

/// What the barrier at the head or tail of a run orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BoundarySubject {
    /// All [`BufferKind::Arena`](super::BufferKind::Arena) buffers: a run overwrites the bytes of the one before.
    Arena,
    /// One buffer that outlives the run, an index in [`Program::buffers`](super::Program::buffers).
    Buffer(usize),
}

/// One reason for the barrier at the head or at the tail of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BoundaryReason {
    /// Whose bytes.
    pub subject: BoundarySubject,
    /// What would go wrong. At the tail always [`Hazard::WriteRead`], the reader being the host.
    pub hazard: Hazard,
}

/// Where one buffer lies in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The index in [`ArenaPlan::windows`].
    pub window: usize,
    /// The offset in that window, in bytes, a multiple of the alignment.
    pub offset: u64,
}

/// The memory that one executable instance needs for its intermediates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaPlan {
    /// The size of each window in bytes, none above the limit. One window is one device buffer, or one
    /// binding range of a larger one.
    pub windows: Vec<u64>,
    /// The slot of each buffer of the program; `None` for those outside the arena or never accessed.
    pub slots: Vec<Option<Slot>>,
    /// The sum of the windows in bytes.
    pub bytes: u64,
    /// The most bytes live at one level, inputs and outputs of all its dispatches together. No arena for
    /// these levels can be smaller.
    pub lower_bound_bytes: u64,
}

/// A schedule: what to record once and replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The dispatches of each level, which run side by side. Level `i` is the `i`-th run of dispatches
    /// between barriers of `commands`.
    pub levels: Vec<Vec<usize>>,
    /// The recording between the head and the tail. One barrier stands between every two levels.
    pub commands: Vec<Command>,
    /// What the barrier before the first command must cover: the previous run, and other executables that
    /// share states, inputs or symbols. Empty if no such barrier is needed. Host writes made before the
    /// submission need nothing.
    pub head: Vec<BoundaryReason>,
    /// What the barrier after the last command must cover: outputs that the host, or the copy that fetches
    /// them, reads. Empty if no such barrier is needed.
    pub tail: Vec<BoundaryReason>,
    /// Offsets of the intermediates.
    pub arena: ArenaPlan,
    /// The longest chain of hazards over logical buffers, minus one: what [`Plan::barriers`] cannot go
    /// below. Computed by [`barriers_lower_bound`](super::barriers_lower_bound), not by the planner.
    pub barriers_lower_bound: usize,
}

impl Plan {
    /// The number of barriers between dispatches; head and tail are not counted.
    pub fn barriers(&self) -> usize {
        self.commands.iter().filter(|command| matches!(command, Command::Barrier { .. })).count()
    }
}
