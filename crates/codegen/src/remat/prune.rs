//! Kernels and results that nothing reads any more, because all readers read what is computed again.

use std::rc::Rc;

use tallow_ir::{DeviceCaps, GraphError, Op};

use super::slice::{is_repeatable, slice};
use super::timeline::{SlotId, StepId, Timeline};

/// Removes them from a timeline. Kernels with several results of which some are read become smaller ones.
pub(super) fn prune(timeline: &mut Timeline<'_>, caps: &DeviceCaps) -> Result<(), GraphError> {
    let mut order: Vec<StepId> = (0..timeline.steps.len()).collect();
    order.sort_by_key(|step| std::cmp::Reverse(timeline.steps[*step].level));
    for id in order {
        let step = &timeline.steps[id];
        let Op::Fusion(fusion) = &timeline.graph.node(step.node).op else { continue };
        if step.is_added || !is_repeatable(fusion) {
            continue;
        }
        let read: Vec<u32> = (0..step.writes.len() as u32)
            .filter(|result| is_read(timeline, step.writes[*result as usize]))
            .collect();
        if read.len() == step.writes.len() {
            continue;
        }
        if read.is_empty() {
            timeline.remove(id);
        } else if let Some(slice) = slice(fusion, &read, &[], caps)? {
            timeline.narrow(id, Rc::new(slice), &read);
        }
    }
    Ok(())
}

/// Whether anything reads a slot besides the step that writes it. Several values in one slot, and results of the graph,
/// count as read.
pub(super) fn is_read(timeline: &Timeline<'_>, slot: SlotId) -> bool {
    let of = &timeline.slots[slot];
    !of.is_arena || of.value.is_none() || of.users.iter().any(|user| Some(*user) != of.writer)
}
