//! A plan as text, for people and for snapshots.
//!
//! ```text
//! plan: 3 dispatches, 2 levels, 1 barrier (at least 1), head, tail
//! arena: 512 bytes in 1 window, 512 live at most (1.000)
//! head: arena read->write write->write, cache write->read
//! level 0:
//!   d0 norm: read x [in0 0..256] write h [w0 0..256]
//! barrier: h write->read (d0 -> d1)
//! ...
//! ```
//!
//! An access is printed as the buffer's name and, in brackets, its physical place: `w` for an arena window,
//! `in`, `out`, `weight`, `state` with their number, `symbols` or `codebooks`, and the bytes there.

use std::fmt::{self, Display, Formatter};

use super::plan::{BoundaryReason, BoundarySubject, Command, Hazard, Plan, Reason};
use super::program::{Access, BufferKind, Program};

/// A [`Plan`] with the names of its program, ready to print.
#[derive(Clone, Copy, Debug)]
pub struct PlanText<'a> {
    program: &'a Program,
    plan: &'a Plan,
}

impl Plan {
    /// The plan as text, with the names of the `program` it was made from.
    pub fn text<'a>(&'a self, program: &'a Program) -> PlanText<'a> {
        PlanText { program, plan: self }
    }
}

impl Display for Hazard {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hazard::WriteRead => "write->read",
            Hazard::ReadWrite => "read->write",
            Hazard::WriteWrite => "write->write",
        })
    }
}

impl Display for PlanText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.summary(f)?;
        self.boundary(f, "head", &self.plan.head)?;
        let mut level = 0;
        for (index, command) in self.plan.commands.iter().enumerate() {
            if index == 0 || matches!(self.plan.commands[index - 1], Command::Barrier { .. }) {
                writeln!(f, "level {level}:")?;
                level += 1;
            }
            match command {
                Command::Dispatch(dispatch) => self.dispatch(f, *dispatch)?,
                Command::Barrier { reasons } => self.barrier(f, reasons)?,
            }
        }
        self.boundary(f, "tail", &self.plan.tail)
    }
}

impl PlanText<'_> {
    fn summary(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Plan { levels, head, tail, arena, barriers_lower_bound, .. } = self.plan;
        let dispatches = levels.iter().map(Vec::len).sum();
        write!(
            f,
            "plan: {}, {}, {} (at least {barriers_lower_bound})",
            count(dispatches, "dispatch", "es"),
            count(levels.len(), "level", "s"),
            count(self.plan.barriers(), "barrier", "s"),
        )?;
        f.write_str(if head.is_empty() { "" } else { ", head" })?;
        f.write_str(if tail.is_empty() { "\n" } else { ", tail\n" })?;
        write!(f, "arena: {} bytes in {}", arena.bytes, count(arena.windows.len(), "window", "s"))?;
        if arena.windows.len() > 1 {
            let windows: Vec<String> = arena.windows.iter().map(u64::to_string).collect();
            write!(f, " of {}", windows.join(" + "))?;
        }
        let bound = arena.lower_bound_bytes;
        let ratio = if bound == 0 { 1.0 } else { arena.bytes as f64 / bound as f64 };
        writeln!(f, ", {bound} live at most ({ratio:.3})")
    }

    fn dispatch(&self, f: &mut Formatter<'_>, index: usize) -> fmt::Result {
        let Some(dispatch) = self.program.dispatches.get(index) else { return writeln!(f, "  d{index} ?") };
        write!(f, "  d{index} {}:", dispatch.name.escape_debug())?;
        for (label, accesses) in [("read", &dispatch.reads), ("write", &dispatch.writes)] {
            for (index, access) in accesses.iter().enumerate() {
                if index == 0 {
                    write!(f, " {label}")?;
                }
                f.write_str(if index == 0 { " " } else { ", " })?;
                self.access(f, access)?;
            }
        }
        writeln!(f)
    }

    fn access(&self, f: &mut Formatter<'_>, access: &Access) -> fmt::Result {
        let Some(buffer) = self.program.buffers.get(access.buffer) else {
            return write!(f, "b{} ?", access.buffer);
        };
        self.name(f, access.buffer)?;
        let mut base = 0;
        match buffer.kind {
            BufferKind::Arena | BufferKind::Scratch { .. } => {
                match self.plan.arena.slots.get(access.buffer).copied().flatten() {
                    Some(slot) => {
                        base = slot.offset;
                        write!(f, " [w{} ", slot.window)?;
                    }
                    None => f.write_str(" [nowhere ")?,
                }
            }
            BufferKind::Input(number) => write!(f, " [in{number} ")?,
            BufferKind::Output(number) => write!(f, " [out{number} ")?,
            BufferKind::Weight(number) => write!(f, " [weight{number} ")?,
            BufferKind::State(number) => write!(f, " [state{number} ")?,
            BufferKind::Symbols => f.write_str(" [symbols ")?,
            BufferKind::Codebooks => f.write_str(" [codebooks ")?,
        }
        write!(f, "{}..{}]", base.saturating_add(access.start), base.saturating_add(access.end))
    }

    fn barrier(&self, f: &mut Formatter<'_>, reasons: &[Reason]) -> fmt::Result {
        f.write_str("barrier:")?;
        // Several hazards of one pair on one buffer (an update in place) stand together.
        let same = |a: &Reason, b: &Reason| (a.buffer, a.from, a.to) == (b.buffer, b.from, b.to);
        for (index, pair) in reasons.chunk_by(same).enumerate() {
            f.write_str(if index == 0 { " " } else { ", " })?;
            self.name(f, pair[0].buffer)?;
            for reason in pair {
                write!(f, " {}", reason.hazard)?;
            }
            write!(f, " (d{} -> d{})", pair[0].from, pair[0].to)?;
        }
        writeln!(f)
    }

    fn boundary(&self, f: &mut Formatter<'_>, label: &str, reasons: &[BoundaryReason]) -> fmt::Result {
        if reasons.is_empty() {
            return Ok(());
        }
        write!(f, "{label}:")?;
        let mut previous = None;
        for reason in reasons {
            if previous != Some(reason.subject) {
                f.write_str(if previous.is_some() { ", " } else { " " })?;
                match reason.subject {
                    BoundarySubject::Arena => f.write_str("arena")?,
                    BoundarySubject::Buffer(buffer) => self.name(f, buffer)?,
                }
                previous = Some(reason.subject);
            }
            write!(f, " {}", reason.hazard)?;
        }
        writeln!(f)
    }

    /// The buffer's name, or its index if it has none.
    fn name(&self, f: &mut Formatter<'_>, buffer: usize) -> fmt::Result {
        match self.program.buffers.get(buffer) {
            Some(info) if !info.name.is_empty() => write!(f, "{}", info.name.escape_debug()),
            Some(_) | None => write!(f, "b{buffer}"),
        }
    }
}

/// `1 level`, `2 levels`.
fn count(number: usize, noun: &str, plural: &str) -> String {
    let ending = if number == 1 { "" } else { plural };
    format!("{number} {noun}{ending}")
}
