//! Which kernels run again.

use std::collections::BTreeMap;

use tallow_ir::Value;

use super::again::{Again, Operands, Slices};
use super::prune::is_read;
use super::timeline::{SlotId, Timeline};
use crate::error::CodegenError;

/// Values that are looked at closely in each round: those that seem to free most bytes for their time.
const LOOKED_AT: usize = 12;

/// The most kernels that are added, for each kernel that there is.
const MOST_ADDED: usize = 3;

/// Microseconds that a kernel costs which only runs at another level.
const LEAST_US: f64 = 0.1;

/// A value that nothing reads for some levels.
struct Gap {
    slot: SlotId,
    value: Value,
    /// The level of the first reader after the gap.
    end: usize,
    /// Bytes above the target that the value's memory takes, summed over the levels of the gap.
    bytes: u128,
    /// The microseconds of its kernel.
    us: f64,
}

/// Adds runs of kernels until at most `target` bytes are live at each level, or until nothing more helps.
pub(super) fn lower(
    timeline: &mut Timeline<'_>,
    target: u64,
    slices: &mut Slices<'_>,
) -> Result<(), CodegenError> {
    let (most, times) = (timeline.steps.len() * (1 + MOST_ADDED), slices.times(timeline)?);
    while timeline.steps.len() < most {
        let above: Vec<u64> = timeline.live().iter().map(|live| live.saturating_sub(target)).collect();
        let all: u128 = above.iter().map(|bytes| u128::from(*bytes)).sum();
        if all == 0 {
            break;
        }
        let mut gaps = gaps(timeline, &above, &times);
        gaps.sort_by(|a, b| (b.bytes as f64 / b.us).total_cmp(&(a.bytes as f64 / a.us)));
        gaps.truncate(LOOKED_AT);
        let mut best: Option<(f64, Timeline<'_>)> = None;
        for gap in &gaps {
            for operands in [Operands::Stay, Operands::Again] {
                let Some((next, us)) = filled(timeline, gap, operands, slices)? else { continue };
                let left: u128 = next.live().iter().map(|live| u128::from(live.saturating_sub(target))).sum();
                let score = all.saturating_sub(left) as f64 / us;
                if score > best.as_ref().map_or(0.0, |(score, _)| *score) {
                    best = Some((score, next));
                }
            }
        }
        let Some((_, next)) = best else { break };
        *timeline = next;
    }
    Ok(())
}

/// The widest gap of each value that a kernel can compute again.
fn gaps(timeline: &Timeline<'_>, above: &[u64], times: &BTreeMap<Value, f64>) -> Vec<Gap> {
    let mut gaps = vec![];
    for (slot, of) in timeline.slots.iter().enumerate() {
        let Some(value) = of.value.filter(|_| of.is_arena) else { continue };
        let Some(us) = times.get(&value).copied() else { continue };
        let levels = timeline.accesses(slot);
        let freed = |(start, end): (usize, usize)| -> u128 {
            // The result is there again one level before it is read.
            let free = (start + 1)..end.saturating_sub(1).max(start + 1);
            above[free].iter().map(|above| u128::from(*above.min(&of.bytes))).sum()
        };
        let pairs = levels.windows(2).map(|pair| (freed((pair[0], pair[1])), pair[1]));
        let Some((bytes, end)) = pairs.max().filter(|(bytes, _)| *bytes > 0) else { continue };
        gaps.push(Gap { slot, value, end, bytes, us });
    }
    gaps
}

/// The timeline with the gap's value computed again at its end, and the microseconds which that takes.
fn filled<'g>(
    timeline: &Timeline<'g>,
    gap: &Gap,
    operands: Operands,
    slices: &mut Slices<'_>,
) -> Result<Option<(Timeline<'g>, f64)>, CodegenError> {
    let mut next = timeline.clone();
    let mut again = Again {
        bytes: timeline.slots[gap.slot].bytes,
        timeline: &mut next,
        slices,
        operands,
        steps: 0,
        us: 0.0,
    };
    let Some(slot) = again.run(gap.value, gap.end - 1)? else { return Ok(None) };
    let us = again.us;
    next.switch(gap.slot, slot, gap.end);
    let results = next.slots[gap.slot].writer.map(|writer| next.steps[writer].writes.clone());
    let is_moved = results.is_some_and(|results| !results.iter().any(|slot| is_read(&next, *slot)));
    Ok(Some((next, if is_moved { (us - gap.us).max(LEAST_US) } else { us })))
}
