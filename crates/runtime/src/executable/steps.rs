//! A run of an executable one kernel at a time: what each reads and writes can be read between them.

use std::borrow::Cow;
use std::sync::{Arc, MutexGuard, PoisonError};

use tallow_codegen::Launch;
use tallow_ir::schedule::Command;
use tallow_ir::{Bindings, Fusion, Op, TensorType};

use super::{Executable, InputWriter, Last, numbered, physical, record_spec, rows_of_file};
use crate::error::ExecError;
use crate::record::{BarrierKind, RecordCommand, RecordOptions, RecordSpec};
use crate::vulkan::{Buffer, Recording};

/// Fills results before a kernel writes them: NaN in each float type, also as scales of blocks.
const UNWRITTEN: u32 = 0xffff_ffff;

/// Extents and bytes of a value: row-major little-endian elements, or blocks as in a file.
pub type ValueBytes = (Vec<usize>, Vec<u8>);

/// A run under way, one kernel at a time. No other run of its executable starts while it lives.
///
/// Kernels run in the plan's order, each in a submission of its own, with the pipelines, buffers and grids of the
/// recording.
pub struct Steps<'a> {
    executable: &'a Executable,
    _last: MutexGuard<'a, Last>,
    bindings: &'a Bindings,
    /// Launch and command of each dispatch, in order.
    order: Vec<(usize, RecordCommand)>,
    /// Device buffers, as commands number them.
    buffers: Vec<Arc<Buffer>>,
    /// How many have run.
    done: usize,
}

impl Executable {
    /// Writes symbols and inputs as [`Executable::start_with`], and submits nothing yet.
    ///
    /// # Errors
    /// As [`Executable::start_with`].
    pub fn steps<'a>(
        &'a self,
        bindings: &'a Bindings,
        write: &mut InputWriter<'_>,
    ) -> Result<Steps<'a>, ExecError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        self.write_leaves(&mut last, bindings, write)?;
        last.handle = None;
        // Results of earlier runs are overwritten from here on.
        last.number += 1;
        let module = &self.compiled.module;
        let (buffers, number) = numbered(&self.places);
        let dispatches = physical(record_spec(module), &number, &self.places).commands.into_iter();
        let dispatches = dispatches.filter(|command| matches!(command, RecordCommand::Dispatch { .. }));
        let launches = module.plan.commands.iter().filter_map(|command| match command {
            Command::Dispatch(launch) => Some(*launch),
            Command::Barrier { .. } => None,
        });
        let order = launches.zip(dispatches).collect();
        Ok(Steps { executable: self, _last: last, bindings, order, buffers, done: 0 })
    }
}

impl Steps<'_> {
    /// The position in [`Module::launches`](tallow_codegen::Module::launches) of what [`Steps::run`] runs next.
    pub fn next_launch(&self) -> Option<usize> {
        self.order.get(self.done).map(|(launch, _)| *launch)
    }

    /// The number of a launch's kernel, and the name of its dispatch in the plan.
    pub fn names(&self, launch: usize) -> Option<(usize, String)> {
        let module = &self.executable.compiled.module;
        let dispatch = module.program.dispatches.get(launch)?;
        Some((self.launch(launch)?.kernel, dispatch.name.clone()))
    }

    /// What a launch computes.
    pub fn fusion(&self, launch: usize) -> Option<&Fusion> {
        let module = &self.executable.compiled.module;
        match &module.graph.graph().node(module.launches.get(launch)?.node).op {
            Op::Fusion(fusion) => Some(fusion),
            // Nothing else is launched.
            _ => None,
        }
    }

    /// An operand of a launch as it is now. None if it has no such operand.
    ///
    /// # Errors
    /// When the device fails.
    pub fn operand(&self, launch: usize, index: usize) -> Result<Option<ValueBytes>, ExecError> {
        let (Some(fusion), Some(at)) = (self.fusion(launch), self.launch(launch)) else { return Ok(None) };
        let params = fusion.body.params();
        match (params.get(index), at.operands.get(index)) {
            (Some(ty), Some(buffer)) => self.read(ty, *buffer).map(Some),
            _ => Ok(None),
        }
    }

    /// As [`Steps::operand`], of a result.
    ///
    /// # Errors
    /// When the device fails.
    pub fn result(&self, launch: usize, index: usize) -> Result<Option<ValueBytes>, ExecError> {
        let (Some(fusion), Some(at)) = (self.fusion(launch), self.launch(launch)) else { return Ok(None) };
        let output = fusion.body.outputs().get(index);
        match (output, at.results.get(index)) {
            (Some(output), Some(buffer)) => self.read(fusion.body.ty(output.value), *buffer).map(Some),
            _ => Ok(None),
        }
    }

    /// Overwrites the results of the next launch that are none of its operands, so that what it leaves out is noticed:
    /// floats with NaN.
    ///
    /// # Errors
    /// When the device fails.
    pub fn clear_results(&self) -> Result<(), ExecError> {
        let Some(launch) = self.next_launch().and_then(|launch| self.launch(launch)) else { return Ok(()) };
        for buffer in launch.results.iter().filter(|buffer| !launch.operands.contains(buffer)) {
            let (memory, offset) = &self.executable.places[*buffer];
            let bytes = self.executable.compiled.module.program.buffers[*buffer].bytes;
            self.executable.compiled.context.fill(memory, *offset, bytes, UNWRITTEN)?;
        }
        Ok(())
    }

    /// Runs the next launch and waits for it. Does nothing after the last.
    ///
    /// # Errors
    /// When the device fails.
    pub fn run(&mut self) -> Result<(), ExecError> {
        let Some((_, dispatch)) = self.order.get(self.done) else { return Ok(()) };
        let commands = vec![
            RecordCommand::Barrier(BarrierKind::Head),
            dispatch.clone(),
            RecordCommand::Barrier(BarrierKind::Tail),
        ];
        let compiled = &self.executable.compiled;
        let options = RecordOptions::default();
        let spec = RecordSpec { commands };
        Recording::new(&compiled.context, &spec, &compiled.pipelines, &self.buffers, options)?.run()?;
        self.done += 1;
        Ok(())
    }

    fn launch(&self, launch: usize) -> Option<&Launch> {
        self.executable.compiled.module.launches.get(launch)
    }

    fn read(&self, ty: &TensorType, buffer: usize) -> Result<ValueBytes, ExecError> {
        let name = &self.executable.compiled.module.program.buffers[buffer].name;
        let fail = |why: String| ExecError::Leaf { what: "value", name: name.clone(), why };
        let shape =
            ty.shape.eval(self.bindings).ok_or_else(|| fail(format!("{ty} has an unbound extent")))?;
        let elements: usize = shape.iter().product();
        // Plane offsets of blocks depend on the maximum number of elements.
        let mut bytes = vec![0; ty.dtype.size().map_or(ty.max_bytes() as usize, |n| elements * n)];
        if !bytes.is_empty() {
            let (memory, offset) = &self.executable.places[buffer];
            self.executable.compiled.context.download(memory, *offset, &mut bytes)?;
        }
        // Tensors may be gigabytes: what is as in a file already is not copied.
        let rows = match rows_of_file(name, ty, &shape, &bytes)? {
            Cow::Borrowed(_) => None,
            Cow::Owned(rows) => Some(rows),
        };
        Ok((shape, rows.unwrap_or(bytes)))
    }
}
