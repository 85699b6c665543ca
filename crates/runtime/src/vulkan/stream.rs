//! Stream: work is appended to one open command buffer and submitted in batches.
//!
//! Lazy evaluation computes many small graphs once each. One submission per graph would leave the device idle between
//! them (16 to 25 us on an H200). One recording per graph would cost the host more than its kernels cost the device. So
//! sequences, small uploads and small downloads are appended to an open command buffer, with descriptor sets and symbol
//! tables that live until it is done. Sequences that run again over the same memory are recorded (`replay`), and the
//! open command buffer executes the recording. It is submitted (*flushed*) when
//!
//! * the host needs a result,
//! * other work is submitted to the queue, since all work runs in submission order,
//! * it contains [`MOST_DISPATCHES`], or
//! * fewer than two submissions are in flight, so that the device does not become idle.
//!
//! Each append begins with a barrier against all earlier work. Buffers may therefore be freed and reused in the order
//! of appends, without waiting for the device.

use std::sync::{Arc, Mutex};

use ash::vk;

use super::bound::{Bound, Place};
use super::buffer::Buffer;
use super::device::Device;
use super::error::vulkan;
use super::lock;
use super::replay::{Replay, Replays};
use super::sequence::Sequence;
use super::slot::{ALIGNMENT, BACK_BYTES, HOST_BYTES, Slot};
use super::steps::{AFTER, BEFORE, COPIED, HOST_READ, KERNELS, SetLists, record_steps, write_sets};
use crate::error::{Error, Result};

/// Command buffers, and so the most submissions in flight.
const SLOTS: usize = 8;

/// A command buffer with this many dispatches is submitted: enough that the gap between two does not matter.
const MOST_DISPATCHES: usize = 128;

/// Largest upload or download through a slot; above, a separate transfer costs less than the host's copy.
pub(super) const SMALL_BYTES: u64 = 64 << 10;

/// The open command buffer and those in flight. It is closed before its queue is dropped.
#[derive(Default)]
pub(super) struct Stream {
    slots: Vec<Slot>,
    /// The slot whose command buffer is open.
    open: Option<usize>,
    next: usize,
    /// Timeline values of the last two flushes, the later one first.
    last: [u64; 2],
    lists: Lists,
}

/// What an append lists, in memory that the next one uses again.
#[derive(Default)]
struct Lists {
    places: Vec<Place>,
    sets: SetLists,
}

impl Stream {
    /// Appends a sequence with these buffers.
    pub(super) fn append(
        &mut self,
        device: &Arc<Device>,
        sequence: &Sequence,
        replays: &Mutex<Replays>,
        bound: &[Bound<'_>],
    ) -> Result<()> {
        // What fits a recording was checked when it was made.
        let known = lock(replays).known(bound);
        let tables = match known {
            Some(_) => table_bytes(bound),
            None => check(device, sequence, bound)?,
        };
        let open = self.open_slot(device, tables, 0)?;
        let Stream { slots, lists, .. } = self;
        let slot = &mut slots[open];
        let replay = match known {
            Some(replay) => Some(replay),
            None => lock(replays).record(device, sequence, bound)?,
        };
        // Everything that can fail precedes the first command, so that no partial sequence is recorded.
        match replay {
            Some(replay) => append_replay(device, slot, replay, bound)?,
            None => append_steps(device, slot, sequence, bound, lists)?,
        }
        slot.buffers.extend(bound.iter().filter_map(|bound| match bound {
            Bound::Buffer(buffer) => Some((*buffer).clone()),
            Bound::Block(..) | Bound::Table(_) => None,
        }));
        slot.dispatches += sequence.dispatches;
        device.note_work(&sequence.label);
        self.flush_if_due(device)
    }

    /// Appends a copy of all bytes of `source` to the start of `target`, a block.
    pub(super) fn copy(
        &mut self,
        device: &Arc<Device>,
        source: &Bound<'_>,
        target: &Arc<Buffer>,
    ) -> Result<()> {
        let Some((buffer, offset)) = source.place() else { return Ok(()) };
        let slot = self.slot(device, 0, 0)?;
        let bytes = buffer.size() - offset;
        let region = vk::BufferCopy::default().src_offset(offset).size(bytes);
        let commands = slot.commands;
        if let Bound::Buffer(buffer) = source {
            slot.buffers.push((*buffer).clone());
        }
        slot.dispatches += 1;
        // SAFETY: as in `append`; the caller checked that the target is as large as the source.
        unsafe {
            device.record_barrier(commands, BEFORE, AFTER);
            device.raw.cmd_copy_buffer(commands, buffer.handle(), target.handle(), &[region]);
        }
        self.flush_if_due(device)
    }

    /// Appends an upload of at most [`SMALL_BYTES`] bytes to the start of `target`, a block.
    pub(super) fn upload(&mut self, device: &Arc<Device>, target: &Arc<Buffer>, data: &[u8]) -> Result<()> {
        let slot = self.slot(device, data.len() as u64, 0)?;
        let region = vk::BufferCopy::default().src_offset(slot.put(data)?).size(data.len() as u64);
        let (source, commands) = (slot.host.handle(), slot.commands);
        // SAFETY: as in `append`; the caller checked the range.
        unsafe {
            device.record_barrier(commands, BEFORE, AFTER);
            device.raw.cmd_copy_buffer(commands, source, target.handle(), &[region]);
        }
        // No flush: the next append waits for it anyway, and an upload alone has no use.
        Ok(())
    }

    /// Appends a download of at most [`SMALL_BYTES`] bytes of `source`, a block, and flushes. Returns the host memory,
    /// the offset of the bytes in it, and the timeline value at which they are there. The memory is not reused while
    /// the caller holds it.
    pub(super) fn download(
        &mut self,
        device: &Arc<Device>,
        source: &Arc<Buffer>,
        offset: u64,
        bytes: u64,
    ) -> Result<(Arc<Buffer>, u64, u64)> {
        let slot = self.slot(device, 0, bytes)?;
        let start = slot.back_used;
        slot.back_used = (start + bytes).next_multiple_of(16);
        let region = vk::BufferCopy::default().src_offset(offset).dst_offset(start).size(bytes);
        let (back, commands) = (slot.back.clone(), slot.commands);
        // SAFETY: as in `append`; the caller checked the range.
        unsafe {
            device.record_barrier(commands, BEFORE, AFTER);
            device.raw.cmd_copy_buffer(commands, source.handle(), back.handle(), &[region]);
            device.record_barrier(commands, COPIED, HOST_READ);
        }
        let value = self.flush(device)?;
        Ok((back, start, value))
    }

    /// Submits the open command buffer, if there is one. Returns the timeline value at which everything flushed is
    /// done.
    pub(super) fn flush(&mut self, device: &Device) -> Result<u64> {
        let Some(open) = self.open.take() else { return Ok(self.last[0]) };
        let slot = &mut self.slots[open];
        // SAFETY: the command buffer is being recorded; its resources are held until the value is reached.
        let submitted = unsafe {
            match device.raw.end_command_buffer(slot.commands) {
                Ok(()) => device.submit_alone(&[slot.commands]),
                Err(code) => Err(vulkan("vkEndCommandBuffer", code)),
            }
        };
        match submitted {
            Ok(value) => {
                slot.free_at = value;
                self.last = [value, self.last[0]];
                Ok(value)
            }
            // Promised timeline values will never be reached, so nothing may be read from now on.
            Err(error) => Err(device.fail(error)),
        }
    }

    /// Flushes if the command buffer is full, or if the device would become idle.
    fn flush_if_due(&mut self, device: &Device) -> Result<()> {
        let full = self.open.is_some_and(|open| self.slots[open].dispatches >= MOST_DISPATCHES);
        if full || device.is_done(self.last[1])? {
            self.flush(device)?;
        }
        Ok(())
    }

    /// The open slot, with room for `host` bytes of uploads and `back` bytes of downloads.
    fn slot(&mut self, device: &Arc<Device>, host: u64, back: u64) -> Result<&mut Slot> {
        let open = self.open_slot(device, host, back)?;
        Ok(&mut self.slots[open])
    }

    /// The number of [`Stream::slot`].
    fn open_slot(&mut self, device: &Arc<Device>, host: u64, back: u64) -> Result<usize> {
        if let Some(open) = self.open {
            let slot = &self.slots[open];
            if slot.host_used + host > HOST_BYTES || slot.back_used + back > BACK_BYTES {
                self.flush(device)?;
            }
        }
        match self.open {
            Some(open) => Ok(open),
            None => self.begin(device),
        }
    }

    /// Opens the next command buffer, once the device is done with it.
    fn begin(&mut self, device: &Arc<Device>) -> Result<usize> {
        device.check_open()?;
        let index = self.next;
        if index == self.slots.len() {
            self.slots.push(Slot::new(device)?);
        }
        self.slots[index].begin(device)?;
        self.next = (index + 1) % SLOTS;
        self.open = Some(index);
        Ok(index)
    }

    /// Waits for all work and frees all resources, which otherwise keep the device alive.
    pub(super) fn close(&mut self, device: &Device) {
        // If this fails, the device is lost, and no work runs any more.
        let _ = self.flush(device).and_then(|value| device.wait(value, None));
        self.open = None;
        let counts = &device.counts.objects;
        for slot in self.slots.drain(..) {
            counts.descriptor_pools.destroyed(slot.descriptors.len());
            counts.command_buffers.destroyed(1);
            counts.command_pools.destroyed(1);
            // SAFETY: nothing is in flight; destroying pools frees what was allocated from them.
            unsafe {
                for pool in slot.descriptors {
                    device.raw.destroy_descriptor_pool(pool, None);
                }
                device.raw.destroy_command_pool(slot.pool, None);
            }
        }
    }
}

/// Appends the commands of a sequence one by one.
fn append_steps(
    device: &Arc<Device>,
    slot: &mut Slot,
    sequence: &Sequence,
    bound: &[Bound<'_>],
    lists: &mut Lists,
) -> Result<()> {
    let Lists { places, sets } = lists;
    places.clear();
    for bound in bound {
        places.push(match (bound, bound.place()) {
            (Bound::Table(table), _) => {
                Place { start: slot.put(table)?, handle: slot.host.handle(), bytes: table.len() as u64 }
            }
            (_, Some((buffer, start))) => Place::of(buffer, start),
            (_, None) => Place::NONE,
        });
    }
    slot.sets(device, sequence, sets)?;
    write_sets(device, sequence, sets, places);
    slot.pipelines.push(sequence.pipelines.clone());
    // SAFETY: the command buffer is recorded under the stream's lock; pipelines, sets and buffers are live and held until
    // the device is done, by the slot or, for blocks, by their pool; the sequence was checked against layouts and limits,
    // and by the caller against the buffers.
    unsafe {
        device.record_barrier(slot.commands, BEFORE, AFTER);
        record_steps(device, slot.commands, sequence, &sets.sets, places, |number, offset| {
            bound.get(number)?.workgroups(offset)
        });
    }
    Ok(())
}

/// Appends a run of a recording over buffers that it fits.
fn append_replay(device: &Device, slot: &mut Slot, replay: Arc<Replay>, bound: &[Bound<'_>]) -> Result<()> {
    let copies = replay.copies(bound, |table| {
        let start = slot.put(table)?;
        Ok(Place { start, handle: slot.host.handle(), bytes: table.len() as u64 })
    })?;
    let commands = slot.commands;
    // SAFETY: the command buffer is recorded under the stream's lock. The slot holds the recording, with its pipelines, sets
    // and own memory, until the device is done; the caller's buffers are live and were checked.
    unsafe {
        device.record_barrier(commands, BEFORE, AFTER);
        record_copies(device, commands, &copies.before);
        if !copies.before.is_empty() {
            device.record_barrier(commands, COPIED, AFTER);
        }
        device.raw.cmd_execute_commands(commands, &[replay.commands]);
        if !copies.after.is_empty() {
            device.record_barrier(commands, KERNELS, AFTER);
        }
        record_copies(device, commands, &copies.after);
    }
    slot.replays.push(replay);
    Ok(())
}

/// Records copies of sources to targets of their size.
///
/// # Safety
/// As for [`record_steps`]; the places are within their buffers and do not overlap.
unsafe fn record_copies(device: &Device, commands: vk::CommandBuffer, copies: &[(Place, Place)]) {
    for (source, target) in copies {
        let region = vk::BufferCopy::default()
            .src_offset(source.start)
            .dst_offset(target.start)
            .size(source.bytes.min(target.bytes));
        // SAFETY: the caller's promise.
        unsafe { device.raw.cmd_copy_buffer(commands, source.handle, target.handle, &[region]) };
    }
}

/// Bytes that the tables take in a slot.
fn table_bytes(bound: &[Bound<'_>]) -> u64 {
    let bytes = |bound: &Bound<'_>| match bound {
        Bound::Table(table) => (table.len() as u64).next_multiple_of(ALIGNMENT),
        Bound::Block(..) | Bound::Buffer(_) => 0,
    };
    bound.iter().map(bytes).sum()
}

/// Checks that every buffer belongs to the device and is as large as the sequence needs; returns the bytes of tables.
fn check(device: &Arc<Device>, sequence: &Sequence, bound: &[Bound<'_>]) -> Result<u64> {
    let refuse = |reason| Err(Error::BadCommand { command: 0, reason });
    if bound.len() != sequence.buffers() {
        return refuse(format!("{} buffers of {} are named", bound.len(), sequence.buffers()));
    }
    let tables = table_bytes(bound);
    for (number, bound) in bound.iter().enumerate() {
        let need = sequence.need(number);
        if let Bound::Table(table) = bound {
            let bytes = table.len() as u64;
            if bytes < need || tables > HOST_BYTES {
                return refuse(format!("a table of {bytes} bytes where {need} are used"));
            }
        }
        let Some((buffer, offset)) = bound.place().filter(|_| need > 0) else { continue };
        let name = buffer.name();
        if !Arc::ptr_eq(buffer.device(), device) {
            return refuse(format!("buffer {name} belongs to another context"));
        }
        if !offset.is_multiple_of(device.caps.storage_offset_alignment) {
            return refuse(format!("buffer {name} is bound at {offset}, which is not aligned"));
        }
        buffer.check_range(offset, if sequence.is_exact() { need } else { 1 })?;
    }
    Ok(tables)
}
