//! A command list over numbered buffers that are named each time it is appended to a stream.

use std::collections::HashMap;
use std::sync::Arc;

use tallow_ir::DeviceCaps;

use super::pipeline::Pipeline;
use crate::error::{Error, Result};
use crate::record::{BarrierKind, BindRange, Grid, RecordCommand, RecordSpec};

/// A checked command list without buffers.
pub struct Sequence {
    pub(super) steps: Vec<Step>,
    /// The pipeline whose layout a set has, and its ranges; dispatches of equal ranges share a set.
    pub(super) sets: Vec<(usize, Vec<BindRange>)>,
    /// Bindings of all sets.
    pub(super) descriptors: u32,
    pub(super) dispatches: usize,
    /// The kernels, for errors.
    pub(super) label: Arc<str>,
    pub(super) pipelines: Arc<Vec<Arc<Pipeline>>>,
    /// Bytes that each buffer has at most.
    need: Vec<u64>,
    moves: Vec<Moves>,
    /// Whether each buffer must have as many.
    exact: bool,
}

/// A buffer of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Bytes that it has; at most so many, if the sequence is not exact.
    pub bytes: u64,
    /// Whether a copy of it serves.
    pub moves: Moves,
}

/// Whether a sequence may use a copy of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moves {
    /// It is only read: a copy made before the run serves.
    In,
    /// It is written whole, and not read before: a copy made after the run serves.
    Out,
    /// Copies made before and after the run serve.
    Both,
    /// The buffer itself is used.
    Never,
}

/// The kernels of a list in a few words.
fn label(spec: &RecordSpec) -> String {
    let mut names = spec.commands.iter().filter_map(|command| match command {
        RecordCommand::Dispatch { label, .. } => Some(label.as_str()),
        RecordCommand::Barrier(_) | RecordCommand::Copy { .. } | RecordCommand::Fill { .. } => None,
    });
    match (names.next(), names.next_back(), names.count()) {
        (None, _, _) => "no kernels".into(),
        (Some(only), None, _) => only.into(),
        (Some(first), Some(last), between) => format!("{} kernels from {first} to {last}", between + 2),
    }
}

/// One command of a sequence.
pub(super) enum Step {
    Dispatch {
        pipeline: usize,
        set: Option<usize>,
        grid: Grid,
    },
    /// Earlier writes of shaders before later reads and writes.
    Barrier,
}

impl Sequence {
    /// Checks `spec` over `operands`, of which it uses parts.
    ///
    /// Barriers at head and tail are left out: the stream has its own. Unless it is `exact`, buffers may be smaller when it is
    /// appended, since kernels know the extents of each run.
    ///
    /// # Errors
    /// When a command does not fit pipelines, buffers or the limits of `caps`, or is a copy or a fill.
    pub fn new(
        caps: &DeviceCaps,
        spec: &RecordSpec,
        pipelines: &Arc<Vec<Arc<Pipeline>>>,
        operands: &[Operand],
        exact: bool,
    ) -> Result<Sequence> {
        let sizes: Vec<u64> = operands.iter().map(|operand| operand.bytes).collect();
        let shapes: Vec<_> = pipelines.iter().map(|pipeline| pipeline.shape().clone()).collect();
        spec.check(&shapes, &sizes, caps)?;
        let mut made = Sequence {
            steps: vec![],
            sets: vec![],
            descriptors: 0,
            dispatches: 0,
            label: label(spec).into(),
            pipelines: pipelines.clone(),
            need: vec![0; sizes.len()],
            moves: operands.iter().map(|operand| operand.moves).collect(),
            exact,
        };
        let mut known: HashMap<&[BindRange], usize> = HashMap::new();
        for (command, recorded) in spec.commands.iter().enumerate() {
            let refuse = |what: &str| {
                let reason = format!("{what} cannot be appended to a stream");
                Err(Error::BadCommand { command, reason })
            };
            match recorded {
                RecordCommand::Dispatch { pipeline, bindings, grid, push, .. } => {
                    if !push.is_empty() {
                        return refuse("a dispatch with push constants");
                    }
                    let set = match (bindings.is_empty(), known.get(bindings.as_slice())) {
                        (true, _) => None,
                        (false, Some(set)) => Some(*set),
                        (false, None) => {
                            known.insert(bindings, made.sets.len());
                            made.sets.push((*pipeline, bindings.clone()));
                            made.descriptors += bindings.len() as u32;
                            Some(made.sets.len() - 1)
                        }
                    };
                    made.note(bindings, grid);
                    made.steps.push(Step::Dispatch { pipeline: *pipeline, set, grid: *grid });
                    made.dispatches += 1;
                }
                RecordCommand::Barrier(BarrierKind::Between) => made.steps.push(Step::Barrier),
                RecordCommand::Barrier(BarrierKind::Head | BarrierKind::Tail) => {}
                RecordCommand::Copy { .. } => return refuse("a copy"),
                RecordCommand::Fill { .. } => return refuse("a fill"),
            }
        }
        Ok(made)
    }

    fn note(&mut self, bindings: &[BindRange], grid: &Grid) {
        for range in bindings {
            let need = &mut self.need[range.buffer];
            *need = (*need).max(range.offset + range.bytes);
        }
        if let Grid::Indirect { buffer, offset } = grid {
            let need = &mut self.need[*buffer];
            *need = (*need).max(offset + 12);
        }
    }

    /// Number of buffers that are named when it is appended.
    pub(super) fn buffers(&self) -> usize {
        self.need.len()
    }

    /// Whether every buffer must have all the bytes of [`Sequence::need`].
    pub(super) fn is_exact(&self) -> bool {
        self.exact
    }

    /// Bytes that the buffer of this number has at most from its offset on; 0 where nothing uses it.
    pub(super) fn need(&self, buffer: usize) -> u64 {
        self.need[buffer]
    }

    /// Whether a copy of the buffer of this number serves.
    pub(super) fn moves(&self, buffer: usize) -> Moves {
        self.moves[buffer]
    }
}
