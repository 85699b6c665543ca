//! A sequence recorded once, for runs whose operands lie where they lay before.
//!
//! A loop runs one sequence again and again, mostly over the same memory: states are updated in place, and dropped values
//! come back from the pool. Then the stream executes a secondary command buffer instead of appending hundreds of
//! commands and descriptor sets, which takes about 3 us each.
//!
//! An operand that lies elsewhere in each run, like a batch or a loss that the caller keeps, would need a new recording
//! each time. If it is small, a recording has memory of its own for it: it is copied in before a run or out after it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Weak};

use ash::vk;

use super::bound::{Bound, Place};
use super::buffer::{Buffer, MemoryUse};
use super::device::{Counts, Device};
use super::error::vulkan;
use super::pipeline::Pipeline;
use super::sequence::{Moves, Sequence};
use super::steps::{self, SetLists};
use crate::error::{Error, Result};

/// Fewer dispatches are appended as fast, about, as their operands are looked up.
const FEWEST_DISPATCHES: usize = 8;

/// Recordings of a sequence: operands that alternate between two places need two, for two functions that share them four.
const MOST_RECORDINGS: usize = 4;

/// Runs whose places are remembered, to record what comes again.
const MOST_REMEMBERED: usize = 8;

/// Largest operand that is copied: at 200 GB/s, copies in and out take 10 us.
const MOST_COPIED_BYTES: u64 = 1 << 20;

/// A copy takes the device about as long as a short kernel, so the copies of a recording add an eighth at most.
const DISPATCHES_PER_COPY: usize = 8;

/// Where copies add so little, all that may move is copied from the first run on.
const DISPATCHES_PER_FREE_COPY: usize = 32;

/// A recorded sequence with its own resources, and the places of its operands.
pub(super) struct Replay {
    device: Arc<Device>,
    pool: vk::CommandPool,
    pub(super) commands: vk::CommandBuffer,
    descriptors: Option<vk::DescriptorPool>,
    operands: Vec<Operand>,
    _pipelines: Arc<Vec<Arc<Pipeline>>>,
}

/// Where an operand lies in the runs of a recording.
enum Operand {
    /// Used where the caller has it. The weak reference does not hold the memory, but no other buffer gets its address.
    InPlace { buffer: Weak<Buffer>, offset: u64 },
    /// In memory of the recording, which is copied from or to the caller's.
    Copied { own: Arc<Buffer>, moves: Moves },
    /// Bytes of the host's, copied in before each run.
    Table { own: Arc<Buffer> },
    /// Used by no command.
    Unused,
}

impl Operand {
    /// Whether the recording serves a run with this operand.
    fn fits(&self, bound: &Bound<'_>) -> bool {
        match (self, bound, bound.place()) {
            (Operand::InPlace { buffer, offset }, _, Some((other, start))) => {
                std::ptr::eq(buffer.as_ptr(), Arc::as_ptr(other)) && *offset == start
            }
            (Operand::Copied { own, .. }, _, Some((other, start))) => own.size() == other.size() - start,
            (Operand::Table { own }, Bound::Table(table), _) => own.size() == table.len() as u64,
            (Operand::Unused, Bound::Table([]), _) => true,
            _ => false,
        }
    }

    fn place(&self, bound: &Bound<'_>) -> Place {
        match (self, bound.place()) {
            (Operand::InPlace { .. }, Some((buffer, start))) => Place::of(buffer, start),
            (Operand::Copied { own, .. } | Operand::Table { own }, _) => Place::of(own, 0),
            (Operand::InPlace { .. } | Operand::Unused, _) => Place::NONE,
        }
    }
}

/// The recordings of a sequence, the one used last first.
#[derive(Default)]
pub(crate) struct Replays {
    recorded: Vec<Arc<Replay>>,
    /// Places of the last run before the first recording, by operand.
    places: Vec<Spot>,
    /// Places of runs that no recording served, as hashes.
    remembered: Vec<u64>,
}

/// The address of an operand's buffer, which another may have once it is gone, and the offset.
type Spot = Option<(usize, u64)>;

fn spot(bound: &Bound<'_>) -> Spot {
    bound.place().map(|(buffer, start)| (Arc::as_ptr(buffer).addr(), start))
}

impl Replays {
    /// The recording that serves a run over these buffers, if there is one.
    pub(super) fn known(&mut self, bound: &[Bound<'_>]) -> Option<Arc<Replay>> {
        let at = self.recorded.iter().position(|replay| replay.fits(bound))?;
        self.recorded[..=at].rotate_right(1);
        self.recorded.first().cloned()
    }

    /// A recording for a run over these buffers, which were checked, if it is likely to serve again: for places that come
    /// again, or where only operands moved that it may copy.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn record(
        &mut self,
        device: &Arc<Device>,
        sequence: &Sequence,
        bound: &[Bound<'_>],
    ) -> Result<Option<Arc<Replay>>> {
        if sequence.dispatches < FEWEST_DISPATCHES {
            return Ok(None);
        }
        let Some(copied) = self.copied(sequence, bound) else { return Ok(None) };
        let made = match Replay::new(device, sequence, bound, &copied) {
            Ok(made) => Arc::new(made),
            // Without one the run needs no memory.
            Err(Error::OutOfMemory { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.recorded.insert(0, made.clone());
        self.recorded.truncate(MOST_RECORDINGS);
        Ok(Some(made))
    }

    /// Which operands a new recording copies; none is made yet if this is `None`.
    fn copied(&mut self, sequence: &Sequence, bound: &[Bound<'_>]) -> Option<Vec<bool>> {
        let may = |number: usize| may_be_copied(sequence.moves(number), &bound[number]);
        let none = || vec![false; bound.len()];
        let count = |copied: &[bool]| copied.iter().filter(|copied| **copied).count();
        let moved: Vec<bool> = match (self.recorded.first(), self.places.is_empty()) {
            // Inputs and results are likely to move, and copies of a few cost next to nothing.
            (None, true) => {
                let moves = |number| !matches!(sequence.moves(number), Moves::Both);
                let all: Vec<bool> = (0..bound.len()).map(|number| moves(number) && may(number)).collect();
                self.places = bound.iter().map(spot).collect();
                let is_free = count(&all) * DISPATCHES_PER_FREE_COPY <= sequence.dispatches;
                return is_free.then_some(all);
            }
            (None, false) => {
                let last = std::mem::replace(&mut self.places, bound.iter().map(spot).collect());
                last.iter().zip(&self.places).map(|(last, now)| last != now).collect()
            }
            (Some(last), _) => {
                let copied = |operand: &Operand| matches!(operand, Operand::Copied { .. });
                let pairs = last.operands.iter().zip(bound);
                pairs.map(|(operand, bound)| copied(operand) || !operand.fits(bound)).collect()
            }
        };
        let copied: Vec<bool> = moved.iter().enumerate().map(|(at, moved)| *moved && may(at)).collect();
        let are_few = count(&copied) * DISPATCHES_PER_COPY <= sequence.dispatches;
        if are_few && copied == moved {
            return Some(copied);
        }
        self.comes_again(bound).then(|| if are_few { copied } else { none() })
    }

    /// Whether a run that no recording served had these places; the next time it had.
    fn comes_again(&mut self, bound: &[Bound<'_>]) -> bool {
        let mut hasher = DefaultHasher::new();
        bound.iter().map(spot).for_each(|spot| spot.hash(&mut hasher));
        let hash = hasher.finish();
        if self.remembered.contains(&hash) {
            return true;
        }
        if self.remembered.len() == MOST_REMEMBERED {
            self.remembered.remove(0);
        }
        self.remembered.push(hash);
        false
    }
}

fn may_be_copied(moves: Moves, bound: &Bound<'_>) -> bool {
    let is_small = bound.place().is_some_and(|(buffer, start)| buffer.size() - start <= MOST_COPIED_BYTES);
    is_small && moves != Moves::Never
}

impl Replay {
    fn new(
        device: &Arc<Device>,
        sequence: &Sequence,
        bound: &[Bound<'_>],
        copied: &[bool],
    ) -> Result<Replay> {
        let own = |bytes| Buffer::new(device, "operand of a recording", bytes, MemoryUse::Device);
        let operand = |(number, bound): (usize, &Bound<'_>)| {
            Ok(match (bound, bound.place()) {
                (_, Some((buffer, start))) if copied[number] => {
                    Operand::Copied { own: own(buffer.size() - start)?, moves: sequence.moves(number) }
                }
                (_, Some((buffer, offset))) => Operand::InPlace { buffer: Arc::downgrade(buffer), offset },
                (Bound::Table(table), _) if !table.is_empty() => {
                    Operand::Table { own: own(table.len() as u64)? }
                }
                (_, None) => Operand::Unused,
            })
        };
        let operands = bound.iter().enumerate().map(operand).collect::<Result<Vec<_>>>()?;
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(device.queue_family);
        // SAFETY: the family is the one that the device was created with.
        let pool = unsafe { device.raw.create_command_pool(&info, None) }
            .map_err(|code| vulkan("vkCreateCommandPool", code))?;
        device.counts.objects.command_pools.created();
        // From here on dropping the value destroys the pools.
        let mut made = Replay {
            device: device.clone(),
            pool,
            commands: vk::CommandBuffer::null(),
            descriptors: None,
            operands,
            _pipelines: sequence.pipelines.clone(),
        };
        made.record(sequence, bound)?;
        Counts::add(&device.counts.recordings, 1);
        Ok(made)
    }

    fn record(&mut self, sequence: &Sequence, bound: &[Bound<'_>]) -> Result<()> {
        let device = &*self.device;
        let places: Vec<_> =
            self.operands.iter().zip(bound).map(|(operand, bound)| operand.place(bound)).collect();
        let mut lists = SetLists::default();
        if !sequence.sets.is_empty() {
            let pool = steps::descriptor_pool(device, sequence.sets.len() as u32, sequence.descriptors)?;
            self.descriptors = Some(pool);
            steps::allocate_sets(device, sequence, pool, &mut lists)
                .map_err(|code| vulkan("vkAllocateDescriptorSets", code))?;
            steps::write_sets(device, sequence, &mut lists, &places);
        }
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.pool)
            .level(vk::CommandBufferLevel::SECONDARY)
            .command_buffer_count(1);
        let inheritance = vk::CommandBufferInheritanceInfo::default();
        // The next run is appended while this one is in flight.
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE)
            .inheritance_info(&inheritance);
        // SAFETY: the pool belongs to this recording, and `&mut self` excludes other threads. Pipelines and own memory are
        // live as long as the recording; a run over the caller's buffers holds those.
        unsafe {
            let allocated = device.raw.allocate_command_buffers(&info);
            self.commands = allocated.map_err(|code| vulkan("vkAllocateCommandBuffers", code))?[0];
            device.counts.objects.command_buffers.created();
            let begun = device.raw.begin_command_buffer(self.commands, &begin);
            begun.map_err(|code| vulkan("vkBeginCommandBuffer", code))?;
            // Each run has a table of its own.
            steps::record_steps(device, self.commands, sequence, &lists.sets, &places, |_, _| None);
            let ended = device.raw.end_command_buffer(self.commands);
            ended.map_err(|code| vulkan("vkEndCommandBuffer", code))
        }
    }

    fn fits(&self, bound: &[Bound<'_>]) -> bool {
        self.operands.iter().zip(bound).all(|(operand, bound)| operand.fits(bound))
    }

    /// The copies of a run over buffers that it fits. `put` copies bytes of the host's to memory that the device reads.
    ///
    /// # Errors
    /// Those of `put`.
    pub(super) fn copies(
        &self,
        bound: &[Bound<'_>],
        mut put: impl FnMut(&[u8]) -> Result<Place>,
    ) -> Result<Copies> {
        let mut copies = Copies::default();
        for (operand, bound) in self.operands.iter().zip(bound) {
            match (operand, bound, bound.place()) {
                (Operand::Table { own }, Bound::Table(table), _) => {
                    copies.before.push((put(table)?, Place::of(own, 0)));
                }
                (Operand::Copied { own, moves }, _, Some((buffer, start))) => {
                    let (own, theirs) = (Place::of(own, 0), Place::of(buffer, start));
                    if matches!(moves, Moves::In | Moves::Both) {
                        copies.before.push((theirs, own));
                    }
                    if matches!(moves, Moves::Out | Moves::Both) {
                        copies.after.push((own, theirs));
                    }
                }
                _ => {}
            }
        }
        Ok(copies)
    }
}

/// Sources and targets of the copies before and after a run. Targets are as large as their sources and apart from all others.
#[derive(Default)]
pub(super) struct Copies {
    pub(super) before: Vec<(Place, Place)>,
    pub(super) after: Vec<(Place, Place)>,
}

impl Drop for Replay {
    fn drop(&mut self) {
        let counts = &self.device.counts.objects;
        // SAFETY: slots hold a recording until the device is done with it, so nothing executes it.
        unsafe {
            if let Some(pool) = self.descriptors {
                self.device.raw.destroy_descriptor_pool(pool, None);
                counts.descriptor_pools.destroyed(1);
            }
            self.device.raw.destroy_command_pool(self.pool, None);
        }
        counts.command_buffers.destroyed(usize::from(self.commands != vk::CommandBuffer::null()));
        counts.command_pools.destroyed(1);
    }
}
