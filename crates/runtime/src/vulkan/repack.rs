//! Blocks as a file holds them become the planes that kernels read, on the device, as they are uploaded.
//!
//! The blocks go through the ring of [`Staging`] in runs: while the device rearranges one, the host fills the next. Where
//! host and device share their memory, the kernel reads the host's buffer; elsewhere a copy in the device's memory, which is
//! freed with the last run.

use std::sync::Arc;

use tallow_codegen::{REPACK_PUSH_BYTES, RepackRun, compile_spirv, repack_kernel};
use tallow_ir::caps::DeviceCaps;
use tallow_quant::{Format, FormatSpec, RUN_BLOCKS, plane_offsets};

use super::buffer::{Buffer, MemoryUse};
use super::device::Device;
use super::pipeline::{self, Pipeline};
use super::pipeline_cache::PipelineCache;
use super::pipeline_handles::PipelineDesc;
use super::record::Recording;
use super::staging::{SLOT_BYTES, SLOTS, Staging};
use crate::error::{Error, Result};
use crate::record::{BarrierKind, BindRange, Grid, RecordCommand, RecordOptions, RecordSpec};

/// The name of the kernel in errors and of its dispatches.
const NAME: &str = "repack";

/// Makes the kernel, of one pipeline for all formats.
pub(super) fn pipeline(device: &Arc<Device>, cache: &PipelineCache) -> Result<Arc<Pipeline>> {
    let fail = |reason: String| Error::BadPipeline { name: NAME.to_string(), reason };
    let glsl = repack_kernel().map_err(|e| fail(e.to_string()))?;
    let dir = crate::cache_dir::cache_dir();
    let (modules, _) =
        compile_spirv(&[(NAME, glsl.as_str())], dir.as_deref()).map_err(|e| fail(e.to_string()))?;
    let spirv = modules.first().ok_or_else(|| fail("it was not compiled".to_string()))?;
    let push_bytes = REPACK_PUSH_BYTES;
    let desc = PipelineDesc { name: NAME, spirv, bindings: 2, push_bytes, required_subgroup_size: None };
    let mut made = pipeline::create_all(device, cache, &[desc])?;
    made.pop().ok_or_else(|| fail("it was not made".to_string()))
}

/// Bytes of the blocks that are rearranged at once: what fits a buffer of the ring and a binding, in whole runs. `None` where
/// not even the smallest run fits a binding: it has 4672 bytes at most, and Vulkan promises bindings of 128 MiB, but tests
/// make do with less.
///
/// Beside the blocks, binding 0 has the word behind them; beside the plane, which is smaller than the blocks, binding 1 has
/// what is before it from the last offset on at which a binding may start. Sixteen bytes or the alignment are enough.
pub(super) fn run_bytes(caps: &DeviceCaps, spec: &FormatSpec) -> Option<usize> {
    let unit = RUN_BLOCKS * spec.block_bytes;
    let room = SLOT_BYTES.min(caps.max_storage_buffer_range);
    let room = room.saturating_sub(caps.storage_offset_alignment.max(16)) as usize;
    Some(room / unit * unit).filter(|bytes| *bytes > 0)
}

impl Staging {
    /// Rearranges `data`, whole blocks of `format`, into the planes of `target`, so many bytes of it at once; `progress` hears
    /// the bytes copied into the ring so far.
    pub(super) fn upload_blocks(
        &mut self,
        pipeline: &Arc<Pipeline>,
        target: &Arc<Buffer>,
        format: Format,
        data: &[u8],
        run_bytes: usize,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let queue = self.queue().clone();
        let device = &queue.device;
        let spec = format.spec();
        let planes = plane_offsets(format, data.len() / spec.block_bytes * spec.block_elements);
        let copy = match device.caps.unified_memory {
            true => None,
            false => {
                let bytes = binding_bytes(data.len().min(run_bytes));
                Some(Buffer::new(device, "blocks", bytes, MemoryUse::Device)?)
            }
        };
        // Dropping a recording waits for its run: none outlives this function, however it is left.
        let mut recordings: [Option<Recording>; SLOTS] = [const { None }; SLOTS];
        let mut done = 0;
        for run in data.chunks(run_bytes) {
            let slot = self.free_slot()?;
            let staged = self.slot(slot).clone();
            staged.write_in_parallel(0, run)?;
            let mut buffers = vec![target.clone(), staged];
            buffers.extend(copy.clone());
            let first = done / spec.block_bytes;
            let commands = commands(&device.caps, spec, &planes, first, run.len(), copy.is_some());
            let recording = Recording::of_transfer(
                &queue,
                &RecordSpec { commands },
                std::slice::from_ref(pipeline),
                &buffers,
                RecordOptions::default(),
            )?;
            let handle = recording.submit_transfer()?;
            self.in_use_until(slot, handle.value);
            recordings[slot] = Some(recording);
            done += run.len();
            progress(done as u64);
        }
        Ok(())
    }
}

/// Bytes of a binding of so many bytes of blocks: whole words, and the word behind.
fn binding_bytes(bytes: usize) -> u64 {
    bytes.next_multiple_of(4) as u64 + 4
}

/// Rearranges `bytes` bytes of blocks, the first of which is number `first` of the weight. Buffer 0 is the weight, 1 the
/// host's with the blocks, and 2, if it is there, what they are copied to.
fn commands(
    caps: &DeviceCaps,
    spec: &FormatSpec,
    planes: &[usize],
    first: usize,
    bytes: usize,
    copied: bool,
) -> Vec<RecordCommand> {
    let mut commands = vec![RecordCommand::Barrier(BarrierKind::Head)];
    if copied {
        let (source_offset, target_offset) = (0, 0);
        let bytes = bytes as u64;
        commands.push(RecordCommand::Copy { source: 1, source_offset, target: 2, target_offset, bytes });
        commands.push(RecordCommand::Barrier(BarrierKind::Between));
    }
    let source = if copied { 2 } else { 1 };
    let blocks = BindRange { buffer: source, offset: 0, bytes: binding_bytes(bytes) };
    for (plane, start) in spec.planes.iter().zip(planes) {
        let start = (start + first * plane.bytes_per_block) as u64;
        let before = start % caps.storage_offset_alignment;
        let run =
            RepackRun { spec, plane, blocks: (bytes / spec.block_bytes) as u32, first: (before / 4) as u32 };
        let words =
            BindRange { buffer: 0, offset: start - before, bytes: before + 4 * u64::from(run.words()) };
        commands.push(RecordCommand::Dispatch {
            pipeline: 0,
            bindings: vec![blocks, words],
            grid: Grid::Direct([run.workgroups(), 1, 1]),
            push: run.push().to_vec(),
            label: NAME.to_string(),
        });
    }
    commands.push(RecordCommand::Barrier(BarrierKind::Tail));
    commands
}

#[cfg(test)]
mod tests {
    use tallow_ir::caps;
    use tallow_quant::repack;

    use super::*;
    use crate::record::PipelineShape;

    /// What the kernel does, word by word, with the bytes that its bindings see.
    fn dispatch(push: &[u8], blocks: &[u8], words: &mut [u8]) {
        let run: Vec<usize> =
            push.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b) as usize).collect();
        let [block_bytes, start, field, bytes, first, count, share, own, shifts] = run[..] else {
            panic!("nine numbers")
        };
        let byte = |i: usize| match i < bytes {
            true => blocks[i / field * block_bytes + start + i % field] as usize,
            false => 0,
        };
        let shift = |share: usize| shifts >> (4 * share) & 15;
        for i in 0..4 * count {
            let (eight, p, k) = (i / 32 * 32, i % 32 / (4 * own), i % (4 * own));
            let shares =
                (0..8 / own).map(|j| (byte(eight + 4 * j * own + k) >> shift(p) & share & 0xff) << shift(j));
            words[4 * first + i] = shares.fold(0, |all, bits| all | bits) as u8;
        }
    }

    /// Devices differ in where a binding may start, and no machine of the tests has an alignment above 16: there a
    /// binding also sees bytes of the plane before, which stay as they are.
    #[test]
    fn runs_are_legal_and_right_at_every_alignment() {
        let shape = PipelineShape { name: NAME.into(), bindings: 2, push_bytes: REPACK_PUSH_BYTES };
        for alignment in [1, 16, 64, 256] {
            let mut caps = caps::minimum();
            (caps.storage_offset_alignment, caps.max_storage_buffer_range) = (alignment, 8192);
            for &format in Format::ALL {
                let spec = format.spec();
                let file: Vec<u8> = (0..20_000 / spec.block_bytes * spec.block_bytes)
                    .map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0])
                    .collect();
                let expected = repack(format, &file).unwrap();
                let elements = file.len() / spec.block_bytes * spec.block_elements;
                let planes = plane_offsets(format, elements);
                let mut found = vec![0xaa; expected.len()];
                let run_bytes = run_bytes(&caps, spec).unwrap();
                for (number, run) in file.chunks(run_bytes).enumerate() {
                    let first = number * run_bytes / spec.block_bytes;
                    let commands = commands(&caps, spec, &planes, first, run.len(), true);
                    let sizes = [found.len() as u64, SLOT_BYTES, binding_bytes(run_bytes)];
                    RecordSpec { commands: commands.clone() }
                        .check(std::slice::from_ref(&shape), &sizes, &caps)
                        .unwrap();
                    for command in &commands {
                        let RecordCommand::Dispatch { bindings, push, .. } = command else { continue };
                        let words = &mut found[bindings[1].offset as usize..][..bindings[1].bytes as usize];
                        dispatch(push, run, words);
                    }
                }
                assert!(found == expected, "{format} at multiples of {alignment}");
            }
        }
    }
}
