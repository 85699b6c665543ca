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
//!    above hold across the boundary. States, inputs and symbols may also come from other executables.
//! 6. What the host reads is covered by the tail barrier.
//! 7. The figures it states (arena bytes, lower bounds) are true.

use std::collections::BTreeSet;

use thiserror::Error;

use super::plan::{BoundaryReason, BoundarySubject, Command, Hazard, Plan};
use super::program::{Access, BufferKind, Limits, Program, ScheduleError};

/// A rule that a plan breaks. Dispatches and buffers are indices in the program.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Violation {
    /// The program itself cannot be planned, so there is nothing to judge.
    #[error("invalid program: {0}")]
    Program(#[from] ScheduleError),
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
        subject: BoundarySubject,
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
/// All violations, in the order of the rules. If the program is not valid or rule 1 is broken, the
/// others are not judged.
pub fn check(program: &Program, plan: &Plan, limits: &Limits) -> Result<(), Vec<Violation>> {
    program.validate(limits).map_err(|error| vec![error.into()])?;
    let mut violations = Vec::new();
    let Some(epochs) = epochs(program, plan, &mut violations) else { return Err(violations) };
    check_levels(plan, &epochs, &mut violations);
    check_order(program, &epochs, &mut violations);
    let spans = lifetimes(program, &epochs);
    check_slots(program, plan, limits, &spans, &mut violations);
    check_sharing(program, plan, &spans, &mut violations);
    check_two_runs(program, plan, &epochs, &mut violations);
    check_boundaries(program, plan, &mut violations);
    check_figures(program, plan, &spans, &mut violations);
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// The least number of barriers that any recording of `program` on one queue needs: the longest chain of
/// conflicting pairs over logical buffers, minus one.
///
/// The plain dynamic program over all pairs of accesses to a buffer. Accesses to buffers that the program
/// does not have are ignored.
pub fn barriers_lower_bound(program: &Program) -> usize {
    // Per buffer: every access so far, with the length of the longest chain that ends in its dispatch.
    let mut history: Vec<Vec<(Access, bool, usize)>> = vec![Vec::new(); program.buffers.len()];
    let mut longest = 0;
    for index in 0..program.dispatches.len() {
        let mut length = 1;
        for (access, writes) in touches(program, index) {
            for (other, other_writes, other_length) in history.get(access.buffer).into_iter().flatten() {
                if (writes || *other_writes) && *other_length >= length && overlap(access, other) {
                    length = other_length + 1;
                }
            }
        }
        for (access, writes) in touches(program, index) {
            if let Some(history) = history.get_mut(access.buffer) {
                history.push((*access, writes, length));
            }
        }
        longest = longest.max(length);
    }
    longest.saturating_sub(1)
}

/// The accesses of one dispatch, each with whether it writes.
fn touches(program: &Program, dispatch: usize) -> impl Iterator<Item = (&Access, bool)> {
    let dispatch = &program.dispatches[dispatch];
    let reads = dispatch.reads.iter().map(|access| (access, false));
    reads.chain(dispatch.writes.iter().map(|access| (access, true)))
}

fn overlap(a: &Access, b: &Access) -> bool {
    let empty = a.start == a.end || b.start == b.end;
    !empty && a.start < b.end && b.start < a.end
}

/// How many barriers stand before each dispatch. `None` if a dispatch is not recorded exactly once.
fn epochs(program: &Program, plan: &Plan, violations: &mut Vec<Violation>) -> Option<Vec<usize>> {
    let mut times = vec![0; program.dispatches.len()];
    let mut epochs = vec![0; program.dispatches.len()];
    let mut epoch = 0;
    for (command, entry) in plan.commands.iter().enumerate() {
        match *entry {
            Command::Barrier { .. } => epoch += 1,
            Command::Dispatch(dispatch) => match times.get_mut(dispatch) {
                Some(times) => {
                    *times += 1;
                    epochs[dispatch] = epoch;
                }
                None => violations.push(Violation::UnknownDispatch { command, dispatch }),
            },
        }
    }
    for (dispatch, &times) in times.iter().enumerate() {
        if times != 1 {
            violations.push(Violation::Recorded { dispatch, times });
        }
    }
    violations.is_empty().then_some(epochs)
}

/// Rule 1, the levels.
fn check_levels(plan: &Plan, epochs: &[usize], violations: &mut Vec<Violation>) {
    let depth = epochs.iter().map(|epoch| epoch + 1).max().unwrap_or(0).max(plan.levels.len());
    let mut recorded = vec![BTreeSet::new(); depth];
    for (dispatch, &epoch) in epochs.iter().enumerate() {
        recorded[epoch].insert(dispatch);
    }
    for (level, recorded) in recorded.iter().enumerate() {
        let stated = plan.levels.get(level).map(Vec::as_slice).unwrap_or_default();
        let same = stated.len() == recorded.len() && stated.iter().all(|d| recorded.contains(d));
        if !same || recorded.is_empty() {
            violations.push(Violation::LevelMismatch { level });
        }
    }
}

/// Rule 2: all pairs of accesses to one buffer.
fn check_order(program: &Program, epochs: &[usize], violations: &mut Vec<Violation>) {
    let mut buffers: Vec<Vec<(usize, &Access, bool)>> = vec![Vec::new(); program.buffers.len()];
    for dispatch in 0..program.dispatches.len() {
        for (access, writes) in touches(program, dispatch) {
            buffers[access.buffer].push((dispatch, access, writes));
        }
    }
    for (buffer, accesses) in buffers.iter().enumerate() {
        let mut reported = BTreeSet::new();
        for (index, &(second, later, later_writes)) in accesses.iter().enumerate() {
            for &(first, earlier, earlier_writes) in &accesses[..index] {
                if first != second
                    && (earlier_writes || later_writes)
                    && epochs[first] >= epochs[second]
                    && overlap(earlier, later)
                    && reported.insert((first, second))
                {
                    violations.push(Violation::Unordered { first, second, buffer });
                }
            }
        }
    }
}

/// The first and the last epoch of each arena buffer that is accessed, scratch being alive in all of them.
fn lifetimes(program: &Program, epochs: &[usize]) -> Vec<Option<(usize, usize)>> {
    let last = epochs.iter().copied().max().unwrap_or(0);
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; program.buffers.len()];
    for (dispatch, &epoch) in epochs.iter().enumerate() {
        for (access, _) in touches(program, dispatch) {
            let span = &mut spans[access.buffer];
            *span = match program.buffers[access.buffer].kind {
                BufferKind::Arena => {
                    Some(span.map_or((epoch, epoch), |(from, to)| (from.min(epoch), to.max(epoch))))
                }
                BufferKind::Scratch { .. } => Some((0, last)),
                BufferKind::Input(_) | BufferKind::Output(_) | BufferKind::State(_) | BufferKind::Symbols => {
                    None
                }
                BufferKind::Weight(_) | BufferKind::Codebooks => None,
            };
        }
    }
    spans
}

/// Rule 3, where each buffer lies.
fn check_slots(
    program: &Program,
    plan: &Plan,
    limits: &Limits,
    spans: &[Option<(usize, usize)>],
    violations: &mut Vec<Violation>,
) {
    for (window, &bytes) in plan.arena.windows.iter().enumerate() {
        if bytes > limits.max_buffer_bytes {
            violations.push(Violation::WindowTooLarge { window, bytes });
        }
    }
    for (buffer, span) in spans.iter().enumerate() {
        let slot = plan.arena.slots.get(buffer).copied().flatten();
        if slot.is_some() != span.is_some() {
            violations.push(Violation::Slot { buffer, expected: span.is_some() });
        }
        let Some(slot) = slot else { continue };
        let end = slot.offset.checked_add(program.buffers[buffer].bytes);
        let window = plan.arena.windows.get(slot.window);
        let inside = matches!((end, window), (Some(end), Some(&bytes)) if end <= bytes);
        if !inside || slot.offset % limits.alignment != 0 {
            violations.push(Violation::Misplaced { buffer, window: slot.window, offset: slot.offset });
        }
    }
}

/// Rule 3, who shares bytes with whom.
fn check_sharing(
    program: &Program,
    plan: &Plan,
    spans: &[Option<(usize, usize)>],
    violations: &mut Vec<Violation>,
) {
    // (window, start, end, buffer) in the order of memory.
    let mut extents: Vec<(usize, u64, u64, usize)> = Vec::new();
    for (buffer, slot) in plan.arena.slots.iter().enumerate() {
        let (Some(slot), Some(buffer_info)) = (slot, program.buffers.get(buffer)) else { continue };
        let end = slot.offset.saturating_add(buffer_info.bytes);
        if slot.offset < end {
            extents.push((slot.window, slot.offset, end, buffer));
        }
    }
    extents.sort_unstable();
    for (index, &(window, _, end, a)) in extents.iter().enumerate() {
        for &(_, _, _, b) in
            extents[index + 1..].iter().take_while(|other| other.0 == window && other.1 < end)
        {
            let (Some(a_span), Some(b_span)) = (spans[a], spans[b]) else { continue };
            let level = a_span.0.max(b_span.0);
            if level <= a_span.1.min(b_span.1) {
                violations.push(Violation::Shared { first: a.min(b), second: a.max(b), level });
            }
        }
    }
}

/// A memory outside of which no two accesses meet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Memory {
    Window(usize),
    Outside(usize),
}

/// The bytes that a dispatch of the first or second run touches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Touch {
    epoch: usize,
    memory: Memory,
    start: u64,
    end: u64,
    run: usize,
    dispatch: usize,
    writes: bool,
}

/// Rules 4 and 5: the plan twice, one run after the other. Whatever is not separated by a barrier must not
/// meet in physical memory.
fn check_two_runs(program: &Program, plan: &Plan, epochs: &[usize], violations: &mut Vec<Violation>) {
    let depth = epochs.iter().copied().max().unwrap_or(0);
    let second_run = if plan.head.is_empty() { depth } else { depth + 1 };
    let mut all: Vec<Touch> = Vec::new();
    for (run, shift) in [(0, 0), (1, second_run)] {
        for (dispatch, &epoch) in epochs.iter().enumerate() {
            for (access, writes) in touches(program, dispatch) {
                if access.start == access.end {
                    continue;
                }
                let (memory, base) = match plan.arena.slots.get(access.buffer).copied().flatten() {
                    Some(slot) => (Memory::Window(slot.window), slot.offset),
                    None => (Memory::Outside(access.buffer), 0),
                };
                let start = base.saturating_add(access.start);
                let end = base.saturating_add(access.end);
                all.push(Touch { epoch: epoch + shift, memory, start, end, run, dispatch, writes });
            }
        }
    }
    all.sort_unstable();
    let mut reported = BTreeSet::new();
    for (index, a) in all.iter().enumerate() {
        let meets = |b: &&Touch| b.epoch == a.epoch && b.memory == a.memory && b.start < a.end;
        for b in all[index + 1..].iter().take_while(meets) {
            if !(a.writes || b.writes) || (a.run, a.dispatch) == (b.run, b.dispatch) {
                continue;
            }
            let (earlier, later) = if (a.run, a.dispatch) < (b.run, b.dispatch) { (a, b) } else { (b, a) };
            // The second run repeats what the first has shown already.
            if earlier.run == 1
                || !reported.insert((earlier.run, earlier.dispatch, later.run, later.dispatch))
            {
                continue;
            }
            violations.push(if later.run == 0 {
                Violation::PhysicalConflict { first: earlier.dispatch, second: later.dispatch }
            } else {
                Violation::UnorderedRuns { earlier: earlier.dispatch, later: later.dispatch }
            });
        }
    }
}

/// Rules 5 and 6: what the head and the tail must name. Each is judged by what it lists, because the runtime may
/// narrow the barrier to that.
fn check_boundaries(program: &Program, plan: &Plan, violations: &mut Vec<Violation>) {
    let mut head = BTreeSet::new();
    let mut outputs = BTreeSet::new();
    for dispatch in 0..program.dispatches.len() {
        for (access, writes) in touches(program, dispatch) {
            if access.start == access.end {
                continue;
            }
            let buffer = BoundarySubject::Buffer(access.buffer);
            let overwritten = [Hazard::ReadWrite, Hazard::WriteWrite];
            match (program.buffers[access.buffer].kind, writes) {
                // Nobody writes weights and codebooks, and a run sees only its own intermediates.
                (BufferKind::Weight(_) | BufferKind::Codebooks, _) | (BufferKind::Arena, false) => {}
                (BufferKind::Arena, true) => {
                    head.extend(overwritten.map(|hazard| (BoundarySubject::Arena, hazard)));
                }
                (
                    BufferKind::Input(_)
                    | BufferKind::Output(_)
                    | BufferKind::State(_)
                    | BufferKind::Symbols
                    | BufferKind::Scratch { .. },
                    false,
                ) => {
                    head.insert((buffer, Hazard::WriteRead));
                }
                (BufferKind::Output(_), true) => {
                    head.extend(overwritten.map(|hazard| (buffer, hazard)));
                    outputs.insert(access.buffer);
                }
                (
                    BufferKind::Input(_)
                    | BufferKind::State(_)
                    | BufferKind::Symbols
                    | BufferKind::Scratch { .. },
                    true,
                ) => {
                    head.extend(overwritten.map(|hazard| (buffer, hazard)));
                }
            }
        }
    }
    for (subject, hazard) in head {
        if !plan.head.contains(&BoundaryReason { subject, hazard }) {
            violations.push(Violation::HeadUncovered { subject, hazard });
        }
    }
    for buffer in outputs {
        let reason = BoundaryReason { subject: BoundarySubject::Buffer(buffer), hazard: Hazard::WriteRead };
        if !plan.tail.contains(&reason) {
            violations.push(Violation::TailUncovered { buffer });
        }
    }
}

/// Rule 7.
fn check_figures(
    program: &Program,
    plan: &Plan,
    spans: &[Option<(usize, usize)>],
    violations: &mut Vec<Violation>,
) {
    let depth = spans.iter().flatten().map(|span| span.1 + 1).max().unwrap_or(0);
    let mut live = vec![0u64; depth];
    for (buffer, span) in program.buffers.iter().zip(spans) {
        let Some((first, last)) = *span else { continue };
        for live in &mut live[first..=last] {
            *live = live.saturating_add(buffer.bytes);
        }
    }
    let windows = plan.arena.windows.iter().fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
    let figures = [
        ("arena bytes", plan.arena.bytes, windows),
        ("arena lower bound", plan.arena.lower_bound_bytes, live.iter().copied().max().unwrap_or(0)),
        ("barriers lower bound", plan.barriers_lower_bound as u64, barriers_lower_bound(program) as u64),
    ];
    for (what, stated, actual) in figures {
        if stated != actual {
            violations.push(Violation::Figure { what, stated, actual });
        }
    }
}
