//! The judge of plans. It shares no code with the planner and derives everything again from the program.
//!
//! What must hold of a plan:
//!
//! 1. Every dispatch is recorded once; the levels are the runs of dispatches between barriers.
//! 2. Two dispatches that access overlapping bytes of one buffer, one of them writing, have a barrier
//!    between them and keep the order of the program.
//! 3. Arena buffers lie inside their windows, aligned; two that overlap are never alive at one level.
//! 4. Two dispatches between the same barriers never touch the same arena bytes if one writes, whatever
//!    buffers those bytes belong to.
//! 5. The plan may be replayed: in two runs, one after the other with the head barrier between, the rules
//!    above hold across the seam. States, inputs and symbols may also come from other executables.
//! 6. What the host reads is covered by the tail barrier.
//! 7. The figures it states (arena bytes, lower bounds) are true.

use std::collections::BTreeSet;

use thiserror::Error;

use super::plan::{Command, Hazard, Plan, SeamReason, SeamSubject};
use super::program::{Access, Limits, Place, Program};

/// A rule that a plan breaks. Dispatches and buffers are indices in the program.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Violation {
    /// A dispatch is missing from the commands or recorded more than once.
    #[error("dispatch {dispatch} is recorded {times} times")]
    Recorded {
        /// The dispatch.
        dispatch: usize,
        /// How often it is recorded.
        times: usize,
    },
    /// The commands name a dispatch that the program does not have.
    #[error("command {command} launches dispatch {dispatch}, which does not exist")]
    UnknownDispatch {
        /// The position in the commands.
        command: usize,
        /// The dispatch.
        dispatch: usize,
    },
    /// The levels and the commands tell different stories.
    #[error("level {level} is not what stands between its barriers")]
    LevelMismatch {
        /// The level.
        level: usize,
    },
    /// A conflicting pair with no barrier between, or in the wrong order.
    #[error("dispatches {first} and {second} conflict on buffer {buffer} and are not ordered")]
    Unordered {
        /// The dispatch that comes first in the program.
        first: usize,
        /// The dispatch that comes second in the program.
        second: usize,
        /// The buffer.
        buffer: usize,
    },
    /// An arena buffer that is accessed has no slot, or a buffer outside the arena has one.
    #[error("buffer {buffer} should {} have an arena slot", if *.expected { "" } else { "not" })]
    Slot {
        /// The buffer.
        buffer: usize,
        /// Whether a slot was expected.
        expected: bool,
    },
    /// A slot outside its window, or not aligned.
    #[error("buffer {buffer} does not fit window {window} at offset {offset}")]
    Misplaced {
        /// The buffer.
        buffer: usize,
        /// The window.
        window: usize,
        /// The offset in bytes.
        offset: u64,
    },
    /// A window larger than the device binds.
    #[error("window {window} has {bytes} bytes, more than the limit")]
    WindowTooLarge {
        /// The window.
        window: usize,
        /// Its size in bytes.
        bytes: u64,
    },
    /// Two arena buffers share bytes at a time when both are alive.
    #[error("buffers {first} and {second} share bytes and are both alive at level {level}")]
    Shared {
        /// The lower buffer index.
        first: usize,
        /// The higher buffer index.
        second: usize,
        /// The first level at which both are alive.
        level: usize,
    },
    /// Two dispatches between the same barriers touch the same arena bytes, and one writes.
    #[error("dispatches {first} and {second} touch the same arena bytes with no barrier between")]
    PhysicalConflict {
        /// The lower dispatch index.
        first: usize,
        /// The higher dispatch index.
        second: usize,
    },
    /// Two runs in a row: these dispatches conflict and no barrier stands between them.
    #[error("dispatch {earlier} of a run and dispatch {later} of the next conflict with no barrier between")]
    UnorderedRuns {
        /// The dispatch of the earlier run.
        earlier: usize,
        /// The dispatch of the later run.
        later: usize,
    },
    /// The head does not list something that it has to order.
    #[error("the head barrier does not cover {subject:?} {hazard:?}")]
    HeadUncovered {
        /// Whose bytes.
        subject: SeamSubject,
        /// The hazard with what ran before.
        hazard: Hazard,
    },
    /// An output that the host reads is not covered by the tail.
    #[error("the tail barrier does not cover output buffer {buffer}")]
    TailUncovered {
        /// The buffer.
        buffer: usize,
    },
    /// A figure that the plan states is wrong.
    #[error("the plan states {what} {stated}, it is {actual}")]
    Figure {
        /// Which figure.
        what: &'static str,
        /// What the plan says.
        stated: u64,
        /// What it is.
        actual: u64,
    },
}

/// Checks every rule of this module's list.
///
/// # Errors
/// All violations found, in the order of the rules. If rule 1 is broken, the others are not judged.
pub fn check(program: &Program, plan: &Plan, limits: &Limits) -> Result<(), Vec<Violation>> {
    let mut found = Vec::new();
    let Some(epochs) = epochs(program, plan, &mut found) else { return Err(found) };
    check_levels(plan, &epochs, &mut found);
    check_order(program, &epochs, &mut found);
    let physical = check_arena(program, plan, limits, &epochs, &mut found);
    check_physical(&physical, &mut found);
    check_replay(program, plan, &physical, &epochs, &mut found);
    check_seams(program, plan, &mut found);
    check_figures(program, plan, &epochs, &mut found);
    if found.is_empty() { Ok(()) } else { Err(found) }
}

/// The least number of barriers that any recording of `program` on one queue needs: the longest chain of
/// conflicting pairs over logical buffers, minus one.
///
/// The plain dynamic program over all pairs of accesses to a buffer. Ranges must lie inside their buffers
/// ([`Program::validate`]); accesses to unknown buffers are ignored.
pub fn barriers_lower_bound(program: &Program) -> usize {
    // Per buffer: every access so far with the length of the longest chain that ends in its dispatch.
    let mut history: Vec<Vec<(Access, bool, usize)>> = vec![Vec::new(); program.buffers.len()];
    let mut longest = 0;
    for dispatch in &program.dispatches {
        let accesses = || {
            let reads = dispatch.reads.iter().map(|access| (access, false));
            reads.chain(dispatch.writes.iter().map(|access| (access, true)))
        };
        let mut length = 1;
        for (access, writes) in accesses() {
            for (other, other_writes, other_length) in history.get(access.buffer).into_iter().flatten() {
                if (writes || *other_writes) && *other_length >= length && overlap(access, other) {
                    length = other_length + 1;
                }
            }
        }
        for (access, writes) in accesses() {
            if let Some(history) = history.get_mut(access.buffer) {
                history.push((*access, writes, length));
            }
        }
        longest = longest.max(length);
    }
    longest.saturating_sub(1)
}

/// How many barriers stand before each dispatch. `None` if a dispatch is not recorded exactly once.
fn epochs(program: &Program, plan: &Plan, found: &mut Vec<Violation>) -> Option<Vec<usize>> {
    let mut times = vec![0; program.dispatches.len()];
    let mut epochs = vec![0; program.dispatches.len()];
    let mut epoch = 0;
    for (command, entry) in plan.commands.iter().enumerate() {
        match entry {
            Command::Barrier { .. } => epoch += 1,
            Command::Dispatch(dispatch) if *dispatch < times.len() => {
                times[*dispatch] += 1;
                epochs[*dispatch] = epoch;
            }
            Command::Dispatch(dispatch) => {
                found.push(Violation::UnknownDispatch { command, dispatch: *dispatch });
            }
        }
    }
    for (dispatch, &times) in times.iter().enumerate() {
        if times != 1 {
            found.push(Violation::Recorded { dispatch, times });
        }
    }
    found.is_empty().then_some(epochs)
}

fn check_levels(plan: &Plan, epochs: &[usize], found: &mut Vec<Violation>) {
    let depth = epochs.iter().map(|epoch| epoch + 1).max().unwrap_or(0).max(plan.levels.len());
    let mut recorded = vec![BTreeSet::new(); depth];
    for (dispatch, &epoch) in epochs.iter().enumerate() {
        recorded[epoch].insert(dispatch);
    }
    for (level, recorded) in recorded.iter().enumerate() {
        let stated = plan.levels.get(level).map(Vec::as_slice).unwrap_or_default();
        let same = stated.len() == recorded.len() && stated.iter().all(|d| recorded.contains(d));
        if !same || recorded.is_empty() {
            found.push(Violation::LevelMismatch { level });
        }
    }
}

/// Rule 2: all pairs of accesses to one buffer.
fn check_order(program: &Program, epochs: &[usize], found: &mut Vec<Violation>) {
    for (buffer, accesses) in by_buffer(program).into_iter().enumerate() {
        let mut reported = BTreeSet::new();
        for (index, later) in accesses.iter().enumerate() {
            for earlier in &accesses[..index] {
                if earlier.dispatch == later.dispatch || !(earlier.writes || later.writes) {
                    continue;
                }
                let (first, second) = (earlier.dispatch, later.dispatch);
                if epochs[first] >= epochs[second]
                    && overlap(earlier.access, later.access)
                    && reported.insert((first, second))
                {
                    found.push(Violation::Unordered { first, second, buffer });
                }
            }
        }
    }
}

/// An access of one dispatch.
struct Touch<'a> {
    dispatch: usize,
    access: &'a Access,
    writes: bool,
}

/// The accesses of each buffer, in the order of the program.
fn by_buffer(program: &Program) -> Vec<Vec<Touch<'_>>> {
    let mut buffers = Vec::new();
    buffers.resize_with(program.buffers.len(), Vec::new);
    for (dispatch, Dispatched { reads, writes }) in dispatched(program).enumerate() {
        for access in reads {
            if let Some(touches) = buffers.get_mut(access.buffer) {
                touches.push(Touch { dispatch, access, writes: false });
            }
        }
        for access in writes {
            if let Some(touches) = buffers.get_mut(access.buffer) {
                touches.push(Touch { dispatch, access, writes: true });
            }
        }
    }
    buffers
}

struct Dispatched<'a> {
    reads: &'a [Access],
    writes: &'a [Access],
}

fn dispatched(program: &Program) -> impl Iterator<Item = Dispatched<'_>> {
    program.dispatches.iter().map(|dispatch| Dispatched { reads: &dispatch.reads, writes: &dispatch.writes })
}
