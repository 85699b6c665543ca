//! Kernels at the levels of a plan, and the memory that is live at each level.

use std::collections::BTreeMap;
use std::rc::Rc;

use tallow_ir::schedule::BufferKind;
use tallow_ir::{Graph, NodeId, Value};

use super::slice::{Slice, Source};
use crate::builder::Planned;
use crate::donation::through_reshapes;

/// Position in [`Timeline::steps`].
pub(super) type StepId = usize;
/// Position in [`Timeline::slots`].
pub(super) type SlotId = usize;

/// One run of a kernel.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) level: usize,
    /// The node of the fused graph whose kernel, or a part of it, this is.
    pub(super) node: NodeId,
    /// What it computes, if that is not all of the node's kernel.
    pub(super) slice: Option<Rc<Slice>>,
    /// The slot of each operand.
    pub(super) reads: Vec<SlotId>,
    /// Results of the node that it computes, and the slot of each; none if it was removed.
    pub(super) results: Vec<u32>,
    pub(super) writes: Vec<SlotId>,
    /// Whether it runs besides the node's own step.
    pub(super) is_added: bool,
    /// Scratch memory of the run, in bytes.
    pub(super) scratch: u64,
}

/// Memory of one value, or of several that share it.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) bytes: u64,
    /// Whether the planner chooses where it lies.
    pub(super) is_arena: bool,
    /// Whether it has contents before the run.
    pub(super) is_leaf: bool,
    /// The value, if there is one alone: only such a slot may be read for longer, or be replaced.
    pub(super) value: Option<Value>,
    /// The first step that writes it; `None` for leaves.
    pub(super) writer: Option<StepId>,
    /// The level of the first write over what was there before: of a state or of memory that is reused.
    pub(super) overwritten: Option<usize>,
    /// The steps that access it.
    pub(super) users: Vec<StepId>,
}

/// A program in time.
#[derive(Clone, Debug)]
pub(super) struct Timeline<'g> {
    pub(super) graph: &'g Graph,
    pub(super) levels: usize,
    pub(super) steps: Vec<Step>,
    pub(super) slots: Vec<Slot>,
    /// The slots with each value.
    pub(super) versions: BTreeMap<Value, Vec<SlotId>>,
}

impl<'g> Timeline<'g> {
    /// The program of a fused graph as it was planned.
    pub(super) fn new(graph: &'g Graph, planned: &Planned) -> Timeline<'g> {
        let Planned { builder, plan } = planned;
        let (launches, program, buffer_of) = (&builder.launches, &builder.program, &builder.buffer_of);
        let slot = |buffer: &tallow_ir::schedule::Buffer| Slot {
            bytes: buffer.bytes,
            is_arena: buffer.kind.is_in_arena(),
            is_leaf: !matches!(buffer.kind, BufferKind::Arena | BufferKind::Output(_)),
            value: None,
            writer: None,
            overwritten: None,
            users: vec![],
        };
        let mut slots: Vec<Slot> = program.buffers.iter().map(slot).collect();
        // One value in each, reshapes aside.
        let mut sharing: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
        for (value, buffer) in buffer_of {
            if through_reshapes(graph, *value) == *value {
                sharing.entry(*buffer).or_default().push(*value);
            }
        }
        let mut versions = BTreeMap::new();
        for (buffer, values) in &sharing {
            slots[*buffer].value = values.first().copied().filter(|_| values.len() == 1);
            for value in values {
                versions.insert(*value, vec![*buffer]);
            }
        }
        let mut level_of = vec![0; launches.len()];
        for (level, dispatches) in plan.levels.iter().enumerate() {
            dispatches.iter().for_each(|dispatch| level_of[*dispatch] = level);
        }
        let mut steps = vec![];
        for (at, launch) in launches.iter().enumerate() {
            let node = graph.node(launch.node);
            let slot_of = |value: &Value| buffer_of[&through_reshapes(graph, *value)];
            let result = |result: usize| Value { node: launch.node, result: result as u32 };
            let writes: Vec<SlotId> = (0..node.types.len()).map(|r| buffer_of[&result(r)]).collect();
            let accesses = program.dispatches[at].reads.iter().chain(&program.dispatches[at].writes);
            let is_scratch = |buffer: usize| {
                matches!(program.buffers[buffer].kind, BufferKind::Arena) && !sharing.contains_key(&buffer)
            };
            let mut scratch: Vec<usize> =
                accesses.map(|access| access.buffer).filter(|buffer| is_scratch(*buffer)).collect();
            scratch.sort_unstable();
            scratch.dedup();
            steps.push(Step {
                level: level_of[at],
                node: launch.node,
                slice: None,
                is_added: false,
                results: (0..node.types.len() as u32).collect(),
                reads: node.operands.iter().map(slot_of).collect(),
                writes,
                scratch: scratch.iter().map(|buffer| program.buffers[*buffer].bytes).sum(),
            });
        }
        let mut timeline = Timeline { graph, levels: plan.levels.len(), steps, slots, versions };
        (0..timeline.steps.len()).for_each(|step| timeline.register(step));
        timeline
    }

    /// Notes what a step accesses.
    fn register(&mut self, id: StepId) {
        let step = self.steps[id].clone();
        for slot in &step.reads {
            self.slots[*slot].users.push(id);
        }
        for slot in &step.writes {
            let slot = &mut self.slots[*slot];
            slot.users.push(id);
            if slot.writer.is_some() || slot.is_leaf {
                let level = slot.overwritten.map_or(step.level, |level| level.min(step.level));
                slot.overwritten = Some(level);
            }
            slot.writer.get_or_insert(id);
        }
    }

    /// Adds a step that computes `value` again.
    pub(super) fn add(&mut self, value: Value, slice: Rc<Slice>, reads: Vec<SlotId>, level: usize) -> SlotId {
        let original = self.slots[self.versions[&value][0]].writer;
        let scratch = original.map_or(0, |step| self.steps[step].scratch);
        let slot = self.slots.len();
        self.slots.push(Slot {
            bytes: self.slots[self.versions[&value][0]].bytes,
            is_arena: true,
            is_leaf: false,
            value: Some(value),
            writer: None,
            overwritten: None,
            users: vec![],
        });
        self.versions.entry(value).or_default().push(slot);
        let writes = vec![slot];
        let (node, results) = (value.node, vec![value.result]);
        let slice = Some(slice);
        self.steps.push(Step { level, node, slice, is_added: true, reads, results, writes, scratch });
        self.register(self.steps.len() - 1);
        slot
    }

    /// Lets the steps from `level` on read `value` from slot `to` instead of `from`.
    pub(super) fn switch(&mut self, from: SlotId, to: SlotId, level: usize) {
        for step in std::mem::take(&mut self.slots[from].users) {
            let reads = &mut self.steps[step];
            if reads.level < level || reads.writes.contains(&from) {
                self.slots[from].users.push(step);
                continue;
            }
            for slot in &mut reads.reads {
                if *slot == from {
                    *slot = to;
                }
            }
            self.slots[to].users.push(step);
        }
    }

    /// Removes a step, none of whose results is read.
    pub(super) fn remove(&mut self, id: StepId) {
        let step = &mut self.steps[id];
        step.results.clear();
        for slot in std::mem::take(&mut step.reads).into_iter().chain(std::mem::take(&mut step.writes)) {
            self.slots[slot].users.retain(|user| *user != id);
        }
    }

    /// Replaces a step by one that computes only the results that are `read`.
    pub(super) fn narrow(&mut self, id: StepId, slice: Rc<Slice>, read: &[u32]) {
        let step = self.steps[id].clone();
        self.remove(id);
        let reads = slice.params.iter().map(|source| match source {
            Source::Operand(operand) => step.reads[*operand as usize],
            Source::Result(result) => step.writes[*result as usize],
        });
        let writes = read.iter().map(|result| step.writes[*result as usize]).collect();
        let (reads, results, slice) = (reads.collect(), read.to_vec(), Some(slice));
        self.steps[id] = Step { reads, results, writes, slice, ..step };
        for slot in self.steps[id].reads.iter().chain(&self.steps[id].writes) {
            self.slots[*slot].users.push(id);
        }
    }

    /// The levels of the first and the last access of a slot.
    pub(super) fn span(&self, slot: SlotId) -> Option<(usize, usize)> {
        let levels = || self.slots[slot].users.iter().map(|step| self.steps[*step].level);
        levels().min().zip(levels().max())
    }

    /// The levels at which a slot is accessed, in order.
    pub(super) fn accesses(&self, slot: SlotId) -> Vec<usize> {
        let mut levels: Vec<usize> =
            self.slots[slot].users.iter().map(|step| self.steps[*step].level).collect();
        levels.sort_unstable();
        levels.dedup();
        levels
    }

    /// Bytes of the arena that are live at each level.
    pub(super) fn live(&self) -> Vec<u64> {
        let (mut born, mut dead) = (vec![0u64; self.levels + 1], vec![0u64; self.levels + 1]);
        for (id, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.is_arena) {
            if let Some((first, last)) = self.span(id) {
                born[first] += slot.bytes;
                dead[last + 1] += slot.bytes;
            }
        }
        for step in self.steps.iter() {
            born[step.level] += step.scratch;
            dead[step.level + 1] += step.scratch;
        }
        let mut live = vec![0; self.levels];
        let mut now = 0;
        for level in 0..self.levels {
            now = now + born[level] - dead[level];
            live[level] = now;
        }
        live
    }

    /// The operand or the other result of a node.
    pub(super) fn given(&self, node: NodeId, source: Source) -> Value {
        match source {
            Source::Operand(index) => self.graph.node(node).operands[index as usize],
            Source::Result(result) => Value { node, result },
        }
    }

    /// As [`Timeline::given`], without reshapes.
    pub(super) fn value_of(&self, node: NodeId, source: Source) -> Value {
        through_reshapes(self.graph, self.given(node, source))
    }
}
