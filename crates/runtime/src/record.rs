//! A command list as plain data: what is recorded once and replayed.
//!
//! A [`RecordSpec`] names pipelines and buffers by their position in the lists that are given along with it,
//! so it can be built, printed and checked with no device. [`RecordSpec::check`] proves that every index,
//! range and grid is legal for given [`DeviceCaps`]; the Vulkan recorder accepts nothing unchecked.

use tallow_ir::caps::DeviceCaps;

use crate::error::{Error, Result};

/// Commands in the order in which they are recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RecordSpec {
    /// The commands.
    pub commands: Vec<RecordCommand>,
}

/// One command of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RecordCommand {
    /// Runs a compute pipeline.
    Dispatch {
        /// Position of the pipeline in the pipeline list.
        pipeline: usize,
        /// One range per binding of the pipeline, in order of bindings.
        bindings: Vec<BindRange>,
        /// How many workgroups run.
        grid: Grid,
        /// Push constants; exactly as many bytes as the pipeline declares.
        push: Vec<u8>,
        /// Name under which the dispatch is timed and reported.
        label: String,
    },
    /// Orders what comes before against what comes after.
    Barrier(BarrierKind),
    /// Copies bytes from one buffer to another, or to a place in the same one that does not overlap.
    Copy {
        /// Buffer that is read.
        source: usize,
        /// First byte that is read.
        source_offset: u64,
        /// Buffer that is written.
        target: usize,
        /// First byte that is written.
        target_offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// Fills bytes with one 32-bit pattern.
    Fill {
        /// Buffer that is written.
        buffer: usize,
        /// First byte, a multiple of 4.
        offset: u64,
        /// Number of bytes, a multiple of 4.
        bytes: u64,
        /// The pattern.
        value: u32,
    },
}

/// The part of a buffer that one binding sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BindRange {
    /// Position of the buffer in the buffer list.
    pub buffer: usize,
    /// First byte; a multiple of the device's storage-offset alignment.
    pub offset: u64,
    /// Number of bytes; at least 1.
    pub bytes: u64,
}

/// How many workgroups a dispatch runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grid {
    /// Known when recording.
    Direct([u32; 3]),
    /// Three `u32` that lie in a buffer when the dispatch runs.
    Indirect {
        /// Position of the buffer in the buffer list.
        buffer: usize,
        /// First byte of the three numbers; a multiple of 4.
        offset: u64,
    },
}

/// What a barrier orders. All are execution dependencies too, so a later write also waits for earlier reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BarrierKind {
    /// At the start: the host's writes and the previous run, before this run's reads and writes.
    Head,
    /// Between levels: earlier writes of shaders and copies before later reads and writes.
    Between,
    /// At the end: writes of shaders and copies before the host's reads.
    Tail,
}

impl BarrierKind {
    /// The word that is printed for it.
    pub fn name(self) -> &'static str {
        match self {
            BarrierKind::Head => "head",
            BarrierKind::Between => "between",
            BarrierKind::Tail => "tail",
        }
    }
}

/// What a recording is recorded for, besides running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RecordOptions {
    /// Which timestamps are written.
    pub timing: Timing,
    /// Starts a new submission after this many dispatches, for devices whose watchdog kills long ones.
    pub split_after: Option<usize>,
    /// Where the outputs of an executable lie.
    pub outputs: Outputs,
}

/// Where the outputs of an executable lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outputs {
    /// In memory of the host that it reads fast; kernels write them there.
    #[default]
    Readback,
    /// In the device's own memory; they are copied when they are read. For outputs of many megabytes, and where kernels
    /// are timed.
    Device,
    /// In memory of the host where kernels read them, as weights that the device's memory has no room for.
    Host,
}

/// What a recording measures of itself, by the device's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Timing {
    /// Nothing.
    #[default]
    Off,
    /// The run as a whole: a timestamp before its first dispatch, copy or fill and one after its last, none between,
    /// so that what is timed runs as it does otherwise.
    Run,
    /// Every dispatch, by a timestamp before and after it, and the run from the first of them to the last. A dispatch
    /// then waits for the one before it.
    Dispatches,
}

/// What was recorded, counted where the Vulkan commands are issued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RecordCounts {
    /// Dispatches, direct and indirect.
    pub dispatches: usize,
    /// Dispatches whose grid is read from a buffer.
    pub indirect_dispatches: usize,
    /// Barriers at the head.
    pub barriers_head: usize,
    /// Barriers between levels.
    pub barriers_between: usize,
    /// Barriers at the tail.
    pub barriers_tail: usize,
    /// Buffer copies.
    pub copies: usize,
    /// Buffer fills.
    pub fills: usize,
    /// Command buffers, each its own submission.
    pub command_buffers: usize,
    /// Descriptor sets.
    pub descriptor_sets: usize,
}

/// What the checker must know of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PipelineShape {
    /// Name of the pipeline.
    pub name: String,
    /// Storage buffers that it binds.
    pub bindings: u32,
    /// Bytes of push constants that it takes.
    pub push_bytes: u32,
}

impl RecordSpec {
    /// Checks every command against the pipelines, the buffers' sizes in bytes, and the device's limits.
    ///
    /// The error names the first command that does not fit, by its position.
    pub fn check(&self, pipelines: &[PipelineShape], buffers: &[u64], caps: &DeviceCaps) -> Result<()> {
        for (command, recorded) in self.commands.iter().enumerate() {
            check_command(recorded, pipelines, buffers, caps)
                .map_err(|reason| Error::BadCommand { command, reason })?;
        }
        Ok(())
    }

    /// Whether any command copies or fills, so that barriers must cover transfers too.
    pub fn has_transfers(&self) -> bool {
        self.commands.iter().any(|command| match command {
            RecordCommand::Copy { .. } | RecordCommand::Fill { .. } => true,
            RecordCommand::Dispatch { .. } | RecordCommand::Barrier(_) => false,
        })
    }
}

fn check_command(
    command: &RecordCommand,
    pipelines: &[PipelineShape],
    buffers: &[u64],
    caps: &DeviceCaps,
) -> Result<(), String> {
    match command {
        RecordCommand::Dispatch { pipeline, bindings, grid, push, label } => {
            let shape = pipelines
                .get(*pipeline)
                .ok_or_else(|| format!("dispatch {label} uses pipeline {pipeline} of {}", pipelines.len()))?;
            check_dispatch(shape, bindings, push, buffers, caps)
                .and_then(|()| check_grid(grid, buffers, caps))
                .map_err(|reason| format!("dispatch {label} of {}: {reason}", shape.name))
        }
        RecordCommand::Barrier(BarrierKind::Head | BarrierKind::Between | BarrierKind::Tail) => Ok(()),
        RecordCommand::Copy { source, source_offset, target, target_offset, bytes } => {
            check_range("copy source", *source, *source_offset, *bytes, buffers)?;
            check_range("copy target", *target, *target_offset, *bytes, buffers)?;
            if source == target && source_offset.abs_diff(*target_offset) < *bytes {
                return Err(format!("copy of {bytes} bytes overlaps itself in buffer {source}"));
            }
            Ok(())
        }
        RecordCommand::Fill { buffer, offset, bytes, value: _ } => {
            check_range("fill", *buffer, *offset, *bytes, buffers)?;
            if !offset.is_multiple_of(4) || !bytes.is_multiple_of(4) {
                return Err(format!("fill of {bytes} bytes at {offset}: both must be multiples of 4"));
            }
            Ok(())
        }
    }
}

fn check_dispatch(
    shape: &PipelineShape,
    bindings: &[BindRange],
    push: &[u8],
    buffers: &[u64],
    caps: &DeviceCaps,
) -> Result<(), String> {
    if bindings.len() != shape.bindings as usize {
        return Err(format!("{} buffers bound, {} declared", bindings.len(), shape.bindings));
    }
    if push.len() != shape.push_bytes as usize {
        return Err(format!("{} bytes of push constants, {} declared", push.len(), shape.push_bytes));
    }
    for (slot, range) in bindings.iter().enumerate() {
        check_range(&format!("binding {slot}"), range.buffer, range.offset, range.bytes, buffers)?;
        if range.offset % caps.storage_offset_alignment != 0 {
            let need = caps.storage_offset_alignment;
            return Err(format!("binding {slot} starts at {}, not a multiple of {need}", range.offset));
        }
        if range.bytes > caps.max_storage_buffer_range {
            let most = caps.max_storage_buffer_range;
            return Err(format!("binding {slot} spans {} bytes, the device allows {most}", range.bytes));
        }
    }
    Ok(())
}

fn check_grid(grid: &Grid, buffers: &[u64], caps: &DeviceCaps) -> Result<(), String> {
    match grid {
        Grid::Direct(groups) => {
            if groups.iter().zip(&caps.max_workgroup_count).any(|(count, most)| count > most) {
                return Err(format!("grid {groups:?} exceeds {:?}", caps.max_workgroup_count));
            }
            Ok(())
        }
        Grid::Indirect { buffer, offset } => {
            check_range("indirect grid", *buffer, *offset, 12, buffers)?;
            if !offset.is_multiple_of(4) {
                return Err(format!("indirect grid at {offset}, not a multiple of 4"));
            }
            Ok(())
        }
    }
}

fn check_range(what: &str, buffer: usize, offset: u64, bytes: u64, buffers: &[u64]) -> Result<(), String> {
    let size =
        *buffers.get(buffer).ok_or_else(|| format!("{what} uses buffer {buffer} of {}", buffers.len()))?;
    if bytes == 0 {
        return Err(format!("{what} spans no bytes"));
    }
    if offset.checked_add(bytes).is_none_or(|end| end > size) {
        return Err(format!("{what} takes {bytes} bytes at {offset} of buffer {buffer}, which has {size}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallow_ir::caps::minimum;

    fn dispatch(bindings: Vec<BindRange>, grid: Grid, push: Vec<u8>) -> RecordCommand {
        RecordCommand::Dispatch { pipeline: 0, bindings, grid, push, label: "k".to_string() }
    }

    fn range(buffer: usize, offset: u64, bytes: u64) -> BindRange {
        BindRange { buffer, offset, bytes }
    }

    fn check(command: RecordCommand) -> Result<(), String> {
        let pipelines = [PipelineShape { name: "add".to_string(), bindings: 2, push_bytes: 4 }];
        let spec = RecordSpec { commands: vec![RecordCommand::Barrier(BarrierKind::Head), command] };
        match spec.check(&pipelines, &[1024, 1 << 28], &minimum()) {
            Ok(()) => Ok(()),
            Err(Error::BadCommand { command: 1, reason }) => Err(reason),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn legal_commands_pass() {
        let both = vec![range(0, 0, 1024), range(1, 256, 16)];
        assert_eq!(check(dispatch(both.clone(), Grid::Direct([1, 65535, 0]), vec![0; 4])), Ok(()));
        assert_eq!(check(dispatch(both, Grid::Indirect { buffer: 0, offset: 1012 }, vec![0; 4])), Ok(()));
        let copy =
            RecordCommand::Copy { source: 0, source_offset: 0, target: 0, target_offset: 512, bytes: 512 };
        assert_eq!(check(copy), Ok(()));
        assert_eq!(check(RecordCommand::Fill { buffer: 0, offset: 4, bytes: 8, value: 1 }), Ok(()));
    }

    #[test]
    fn each_mistake_is_named() {
        let good = range(0, 0, 16);
        let one = Grid::Direct([1; 3]);
        let push = vec![0; 4];
        let cases = [
            (dispatch(vec![good], one, push.clone()), "1 buffers bound, 2 declared"),
            (dispatch(vec![good; 2], one, vec![]), "0 bytes of push constants, 4 declared"),
            (dispatch(vec![good, range(2, 0, 16)], one, push.clone()), "binding 1 uses buffer 2 of 2"),
            (dispatch(vec![good, range(0, 0, 0)], one, push.clone()), "binding 1 spans no bytes"),
            (dispatch(vec![good, range(0, 1024, 4)], one, push.clone()), "takes 4 bytes at 1024"),
            (dispatch(vec![good, range(0, u64::MAX, 4)], one, push.clone()), "which has 1024"),
            (dispatch(vec![good, range(0, 16, 4)], one, push.clone()), "not a multiple of 256"),
            (dispatch(vec![good, range(1, 0, 1 << 28)], one, push.clone()), "the device allows 134217728"),
            (
                dispatch(vec![good; 2], Grid::Direct([65536, 1, 1]), push.clone()),
                "grid [65536, 1, 1] exceeds",
            ),
            (dispatch(vec![good; 2], Grid::Indirect { buffer: 0, offset: 1016 }, push.clone()), "12 bytes"),
            (dispatch(vec![good; 2], Grid::Indirect { buffer: 0, offset: 2 }, push), "not a multiple of 4"),
            (
                RecordCommand::Copy { source: 0, source_offset: 0, target: 0, target_offset: 8, bytes: 9 },
                "overlaps itself",
            ),
            (
                RecordCommand::Copy { source: 0, source_offset: 0, target: 1, target_offset: 0, bytes: 1025 },
                "copy source takes 1025 bytes",
            ),
            (RecordCommand::Fill { buffer: 0, offset: 2, bytes: 8, value: 0 }, "multiples of 4"),
        ];
        for (command, part) in cases {
            let reason = check(command.clone()).unwrap_err();
            assert!(reason.contains(part), "{command:?} gave {reason:?}, not {part:?}");
        }
        let missing = RecordCommand::Dispatch {
            pipeline: 1,
            bindings: vec![],
            grid: one,
            push: vec![],
            label: "k".to_string(),
        };
        assert!(check(missing).unwrap_err().contains("pipeline 1 of 1"));
    }
}
