//! Barriers: the command list with one barrier between levels, and the boundaries between runs.

use super::plan::{BoundaryReason, BoundarySubject, Command, Hazard, Reason};
use super::program::{BufferKind, Program};

/// The recording of `levels`. The reasons of a barrier are the edges between the two levels at its sides;
/// edges over a longer distance pass several barriers and are no reason for any of them.
pub(super) fn commands(levels: &[Vec<usize>], edges: &[Reason]) -> Vec<Command> {
    let mut level_of = vec![0; levels.iter().map(Vec::len).sum()];
    for (level, dispatches) in levels.iter().enumerate() {
        for &dispatch in dispatches {
            level_of[dispatch] = level;
        }
    }
    let mut reasons: Vec<Vec<Reason>> = vec![Vec::new(); levels.len()];
    for edge in edges {
        if level_of[edge.from] + 1 == level_of[edge.to] {
            reasons[level_of[edge.to]].push(*edge);
        }
    }
    let mut commands = Vec::new();
    for (level, mut reasons) in reasons.into_iter().enumerate() {
        if level > 0 {
            reasons.sort_unstable();
            commands.push(Command::Barrier { reasons });
        }
        commands.extend(levels[level].iter().map(|&dispatch| Command::Dispatch(dispatch)));
    }
    commands
}

/// What the barriers before and after a run must cover, as (head, tail).
///
/// The previous user of the same memory may be this plan's previous run or another executable, so the head
/// does not rely on where in a run an access lies.
pub(super) fn boundaries(program: &Program) -> (Vec<BoundaryReason>, Vec<BoundaryReason>) {
    let mut read = vec![false; program.buffers.len()];
    let mut written = vec![false; program.buffers.len()];
    for dispatch in &program.dispatches {
        for access in dispatch.reads.iter().filter(|access| access.start < access.end) {
            read[access.buffer] = true;
        }
        for access in dispatch.writes.iter().filter(|access| access.start < access.end) {
            written[access.buffer] = true;
        }
    }
    let mut head = Vec::new();
    let mut tail = Vec::new();
    for (index, buffer) in program.buffers.iter().enumerate() {
        let (subject, sees_old) = match buffer.kind {
            // A run reads only what it wrote itself there.
            BufferKind::Arena => (BoundarySubject::Arena, false),
            BufferKind::Weight(_) | BufferKind::Codebooks => continue,
            BufferKind::Scratch { .. }
            | BufferKind::Input(_)
            | BufferKind::Output(_)
            | BufferKind::State(_)
            | BufferKind::Symbols => (BoundarySubject::Buffer(index), true),
        };
        if read[index] && sees_old {
            head.push(BoundaryReason { subject, hazard: Hazard::WriteRead });
        }
        if written[index] {
            head.push(BoundaryReason { subject, hazard: Hazard::ReadWrite });
            head.push(BoundaryReason { subject, hazard: Hazard::WriteWrite });
            if matches!(buffer.kind, BufferKind::Output(_)) {
                tail.push(BoundaryReason { subject, hazard: Hazard::WriteRead });
            }
        }
    }
    head.sort_unstable();
    head.dedup();
    (head, tail)
}
