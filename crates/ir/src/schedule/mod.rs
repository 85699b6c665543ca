//! Scheduling: from dispatches and the bytes they touch to a recorded order with barriers and offsets.
//!
//! The input is abstract ([`Program`]): buffers, and dispatches that read and write byte ranges of them,
//! listed in an order whose one-after-another execution *is* the meaning. The output ([`Plan`]) says which
//! dispatches run side by side, where barriers stand and where each arena buffer lies. Nothing here knows
//! tensors, GLSL or Vulkan; everything is a pure function and prints as text.
//!
//! The reading order follows the data:
//!
//! 1. [`program`]: the types, and [`Program::validate`].
//! 2. `hazard`: two dispatches need ordering only if their byte ranges overlap and one writes.
//! 3. `order`: a dispatch's level is the longest chain of hazards before it, so the number of barriers is
//!    that of levels minus one, the least possible on one queue. Dispatches then move within their slack
//!    to lower the peak of live bytes.
//! 4. `arena`: offsets by liveness at the grain of levels. Two buffers share bytes only if the last level
//!    of one lies before the first level of the other, so reuse never adds a barrier.
//! 5. `barrier`: the command list, each barrier with its reasons, and the boundaries between runs.
//! 6. [`print`](mod@print): the plan as text.
//!
//! [`check`](mod@check) judges a plan and [`simulate`] executes one; neither shares code with the planner.

pub mod check;
pub mod plan;
pub mod print;
pub mod program;
pub mod simulate;

mod arena;
mod barrier;
mod hazard;
mod order;

pub use check::{Violation, barriers_lower_bound, check};
pub use plan::{ArenaPlan, BoundaryReason, BoundarySubject, Command, Hazard, Plan, Reason, Slot};
pub use program::{Access, Buffer, BufferKind, Dispatch, Limits, Program, ScheduleError};

/// Plans `program`: levels, command order, barriers and arena offsets.
///
/// The result is a pure function of the arguments. It is meant to be recorded once and replayed: the head
/// barrier orders a run after the previous one.
///
/// # Errors
/// [`ScheduleError`] when the program or the limits are not valid, see [`Program::validate`].
pub fn plan(program: &Program, limits: &Limits) -> Result<Plan, ScheduleError> {
    program.validate(limits)?;
    let edges = hazard::edges(program);
    let levels = order::levels(program, &edges);
    let arena = arena::allocate(program, &levels, limits);
    let commands = barrier::commands(&levels, &edges);
    let (head, tail) = barrier::boundaries(program);
    let barriers_lower_bound = check::barriers_lower_bound(program);
    Ok(Plan { levels, commands, head, tail, arena, barriers_lower_bound })
}
