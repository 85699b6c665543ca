//! Adding runs of kernels to a timeline.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use tallow_ir::{Bindings, DeviceCaps, Fusion, Op, Value};

use super::slice::{Slice, is_repeatable, slice};
use super::timeline::{SlotId, StepId, Timeline};
use crate::error::CodegenError;
use crate::kernel::Table;
use crate::kinds;
use crate::predict::{Launches, predict_us};

/// A kernel and the microseconds that it is predicted to take.
pub(super) type Timed = (Rc<Slice>, f64);

/// Kernels that compute single results again, each made once.
pub(super) struct Slices<'c> {
    pub(super) caps: &'c DeviceCaps,
    table: Table,
    /// By kernel, result and other results in memory.
    known: HashMap<(Fusion, u32, Vec<u32>), Option<Timed>>,
}

impl<'c> Slices<'c> {
    pub(super) fn new(caps: &'c DeviceCaps) -> Slices<'c> {
        Slices { caps, table: Table::default(), known: HashMap::new() }
    }

    /// The kernel that computes `value` of `timeline` while the results `in_memory` of its node are in memory.
    fn of(
        &mut self,
        timeline: &Timeline<'_>,
        value: Value,
        in_memory: Vec<u32>,
    ) -> Result<Option<Timed>, CodegenError> {
        let Op::Fusion(fusion) = timeline.graph.op(value) else { return Ok(None) };
        let key = (Fusion { run: 0, ..(**fusion).clone() }, value.result, in_memory);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let made = match is_repeatable(fusion) {
            true => slice(fusion, &[value.result], &key.2, self.caps)?.and_then(|slice| self.timed(slice)),
            false => None,
        };
        self.known.insert(key, made.clone());
        Ok(made)
    }

    /// `None` if there is no kernel for this part of a kernel on the device.
    fn timed(&mut self, slice: Slice) -> Option<Timed> {
        let kernel = kinds::kernel(&slice.fusion, self.caps, &mut self.table).ok()?;
        let us = predict_us(&slice.fusion, &kernel, self.caps, &Bindings::new(), Launches::ONE);
        Some((Rc::new(slice), us))
    }

    /// The microseconds that it takes to compute each value of `timeline` again, from its operands alone. Without those
    /// that no kernel computes again.
    pub(super) fn times(&mut self, timeline: &Timeline<'_>) -> Result<BTreeMap<Value, f64>, CodegenError> {
        let mut times = BTreeMap::new();
        for value in timeline.versions.keys() {
            times.extend(self.of(timeline, *value, vec![])?.map(|(_, us)| (*value, us)));
        }
        Ok(times)
    }
}

/// What happens to large operands of a kernel that runs again, which were not in memory any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operands {
    /// They stay in memory until then.
    Stay,
    /// They are computed again, too.
    Again,
}

/// An operand with at most this part of a result's bytes stays in memory, whatever it would take to compute it.
const SMALL_PART: u64 = 8;

/// The most kernels that run again for one result.
const MOST_STEPS: usize = 16;

/// Kernels added to a timeline for one result.
pub(super) struct Again<'t, 'g, 'c> {
    pub(super) timeline: &'t mut Timeline<'g>,
    pub(super) slices: &'t mut Slices<'c>,
    pub(super) operands: Operands,
    /// Bytes of the result.
    pub(super) bytes: u64,
    /// What was added: kernels and their microseconds.
    pub(super) steps: usize,
    pub(super) us: f64,
}

impl Again<'_, '_, '_> {
    /// Runs the kernel of `value` at `level` again; the slot with the result, or `None` if it cannot run then.
    pub(super) fn run(&mut self, value: Value, level: usize) -> Result<Option<SlotId>, CodegenError> {
        if self.steps == MOST_STEPS {
            return Ok(None);
        }
        let in_memory = self.results_in_memory(value, level);
        let Some((slice, us)) = self.slices.of(self.timeline, value, in_memory)? else { return Ok(None) };
        (self.steps, self.us) = (self.steps + 1, self.us + us);
        let mut reads = vec![];
        for source in &slice.params {
            let operand = self.timeline.value_of(value.node, *source);
            let Some(slot) = self.read(operand, level)? else { return Ok(None) };
            reads.push(slot);
        }
        Ok(Some(self.timeline.add(value, slice, reads, level)))
    }

    /// The other results of a value's node that are in memory at `level`.
    fn results_in_memory(&self, value: Value, level: usize) -> Vec<u32> {
        let count = self.timeline.graph.node(value.node).types.len() as u32;
        let others = (0..count).filter(|result| *result != value.result);
        let is_there = |result: &u32| {
            let value = Value { node: value.node, result: *result };
            let slots = self.timeline.versions.get(&value).into_iter().flatten();
            slots.copied().any(|slot| self.is_there(slot, level))
        };
        others.filter(is_there).collect()
    }

    /// Whether a step at `level` can read a slot that is in memory anyway.
    fn is_there(&self, slot: SlotId, level: usize) -> bool {
        let of = &self.timeline.slots[slot];
        let is_written = of.writer.is_none_or(|writer| self.timeline.steps[writer].level < level);
        if !of.is_arena {
            let is_itself = of.overwritten.is_none_or(|overwritten| overwritten > level);
            return is_itself && (is_written || of.is_leaf);
        }
        let is_live = self.timeline.span(slot).is_some_and(|(_, last)| last >= level);
        of.value.is_some() && is_written && is_live
    }

    /// A slot in which a step at `level` finds `value`.
    fn read(&mut self, value: Value, level: usize) -> Result<Option<SlotId>, CodegenError> {
        let Some(slots) = self.timeline.versions.get(&value).cloned() else { return Ok(None) };
        if let Some(slot) = slots.iter().find(|slot| self.is_there(**slot, level)) {
            return Ok(Some(*slot));
        }
        // One that is computed again, but later, can be computed earlier.
        for slot in &slots {
            let writer = self.timeline.slots[*slot].writer;
            if let (Some(writer), Some(before)) = (writer, level.checked_sub(1))
                && self.timeline.steps[writer].is_added
                && self.timeline.steps[writer].level >= level
            {
                return Ok(self.pull(writer, before).then_some(*slot));
            }
        }
        let earlier = |slot: &&SlotId| {
            let of = &self.timeline.slots[**slot];
            let level_of = of.writer.map(|writer| self.timeline.steps[writer].level);
            of.is_arena && of.value.is_some() && level_of.is_some_and(|writer| writer < level)
        };
        let stays = slots.iter().filter(earlier).max_by_key(|slot| self.timeline.span(**slot)).copied();
        let is_small = |slot: SlotId| self.timeline.slots[slot].bytes * SMALL_PART <= self.bytes;
        match (self.operands, level.checked_sub(1)) {
            (Operands::Again, Some(before)) if !stays.is_some_and(is_small) => self.run(value, before),
            (Operands::Again | Operands::Stay, _) => Ok(stays),
        }
    }

    /// Moves an added step to `level`, before the one where it is, and what it reads before it. False if that is not
    /// possible.
    fn pull(&mut self, step: StepId, level: usize) -> bool {
        if self.timeline.steps[step].level <= level {
            return true;
        }
        for slot in self.timeline.steps[step].reads.clone() {
            let Some(writer) = self.timeline.slots[slot].writer else { continue };
            let of = &self.timeline.steps[writer];
            if of.level < level || !self.timeline.slots[slot].is_arena {
                continue;
            }
            let Some(before) = level.checked_sub(1) else { return false };
            if !of.is_added || !self.pull(writer, before) {
                return false;
            }
        }
        self.timeline.steps[step].level = level;
        true
    }
}
