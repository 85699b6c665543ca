//! The arena: an offset for every intermediate, so that buffers alive at one level never overlap.
//!
//! A buffer lives from its first to its last level, both included; nothing is shared inside a level. Any
//! packing can be got by placing the buffers one by one at the lowest free offset in the right order, so
//! the work is to find a good order: several rules of thumb are tried, then buffers that stick out at the
//! top are placed earlier, over and over, until the lower bound is met or a fixed amount of work is done.

use super::plan::{ArenaPlan, Slot};
use super::program::{BufferKind, Limits, Program};

/// Comparisons of two buffers that the search for a better order may spend.
const WORK: u64 = 30_000_000;
/// Packings that the search may try without getting better.
const PATIENCE: u32 = 3000;

/// A buffer to place: alive on the levels `first..=last`.
#[derive(Clone, Debug)]
struct Item {
    buffer: usize,
    bytes: u64,
    first: usize,
    last: usize,
}

/// How a gap is chosen among those that fit.
#[derive(Clone, Copy)]
enum Fit {
    /// The lowest offset.
    Lowest,
    /// The smallest gap.
    Tightest,
}

/// The result of placing all items in one order.
#[derive(Clone)]
struct ArenaLayout {
    windows: Vec<u64>,
    slots: Vec<Slot>,
    bytes: u64,
}

/// Assigns offsets to the arena buffers of `program` for the given `levels`.
pub(super) fn allocate(program: &Program, levels: &[Vec<usize>], limits: &Limits) -> ArenaPlan {
    let items = lifetimes(program, levels);
    let live = live_bytes(&items, levels.len());
    let lower_bound_bytes = live.iter().copied().max().unwrap_or(0);
    let enough = reachable_bytes(&items, levels.len(), limits).max(lower_bound_bytes);
    let packing = pack(&items, &live, enough, limits);
    let mut slots = vec![None; program.buffers.len()];
    for (item, slot) in items.iter().zip(packing.slots) {
        slots[item.buffer] = Some(slot);
    }
    ArenaPlan { windows: packing.windows, slots, bytes: packing.bytes, lower_bound_bytes }
}

/// The arena buffers that are accessed, with the levels they live on.
fn lifetimes(program: &Program, levels: &[Vec<usize>]) -> Vec<Item> {
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; program.buffers.len()];
    for (level, dispatches) in levels.iter().enumerate() {
        for &dispatch in dispatches {
            let dispatch = &program.dispatches[dispatch];
            for access in dispatch.reads.iter().chain(&dispatch.writes) {
                let span = spans[access.buffer].get_or_insert((level, level));
                span.1 = level;
            }
        }
    }
    let mut items = Vec::new();
    for (index, (buffer, span)) in program.buffers.iter().zip(spans).enumerate() {
        let Some((first, last)) = span else { continue };
        let (first, last) = match buffer.kind {
            BufferKind::Arena => (first, last),
            BufferKind::Scratch { .. } => (0, levels.len() - 1),
            BufferKind::Input(_) | BufferKind::Output(_) | BufferKind::State(_) | BufferKind::Symbols => {
                continue;
            }
            BufferKind::Weight(_) | BufferKind::Codebooks => continue,
        };
        items.push(Item { buffer: index, bytes: buffer.bytes, first, last });
    }
    items
}

/// The bytes alive at each level.
fn live_bytes(items: &[Item], depth: usize) -> Vec<u64> {
    let mut live = vec![0; depth];
    for item in items {
        live[item.first..=item.last].iter_mut().for_each(|live| *live += item.bytes);
    }
    live
}

/// What one window cannot go below with aligned offsets: at each level every buffer but the top one takes
/// its aligned size. Beside several windows this is only where the search stops.
fn reachable_bytes(items: &[Item], depth: usize, limits: &Limits) -> u64 {
    let mut aligned = vec![0; depth];
    let mut padding = vec![0; depth];
    for item in items {
        let bytes = item.bytes.next_multiple_of(limits.alignment);
        for level in item.first..=item.last {
            aligned[level] += bytes;
            padding[level] = bytes.saturating_sub(item.bytes).max(padding[level]);
        }
    }
    aligned.iter().zip(&padding).map(|(aligned, padding)| aligned - padding).max().unwrap_or(0)
}

/// The best packing found. `enough` bytes end the search.
fn pack(items: &[Item], live: &[u64], enough: u64, limits: &Limits) -> ArenaLayout {
    let mut work = 0;
    let mut best: Option<Placed> = None;
    for order in orders(items, live) {
        for fit in [Fit::Lowest, Fit::Tightest] {
            let packing = place(items, &order, fit, limits, &mut work);
            let done = packing.bytes <= enough;
            if best.as_ref().is_none_or(|best| packing.bytes < best.packing.bytes) {
                best = Some(Placed { packing, order: order.clone(), fit });
            }
            if done {
                break;
            }
        }
    }
    match best {
        Some(best) => improve(items, best, enough, limits, work),
        None => ArenaLayout { windows: Vec::new(), slots: Vec::new(), bytes: 0 },
    }
}

/// A packing, and the order and fit with which [`place`] made it.
struct Placed {
    packing: ArenaLayout,
    order: Vec<usize>,
    fit: Fit,
}

/// Orders that are good more often than not; none if there are no items.
fn orders(items: &[Item], live: &[u64]) -> Vec<Vec<usize>> {
    if items.is_empty() {
        return Vec::new();
    }
    let levels = |item: &Item| (item.last - item.first + 1) as u128;
    let sorted = |key: &dyn Fn(&Item) -> (u128, u128)| {
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(key(&items[index])));
        order
    };
    let busiest = |item: &Item| live[item.first..=item.last].iter().copied().max().unwrap_or(0);
    vec![
        // Largest first, the longer lived of equal ones before.
        sorted(&|item| (u128::from(item.bytes), levels(item))),
        // By area: bytes times levels.
        sorted(&|item| (u128::from(item.bytes) * levels(item), u128::from(item.bytes))),
        // What lives at the fullest level first, so that this level is packed without gaps.
        sorted(&|item| (u128::from(busiest(item)), levels(item))),
        // The longest lived first.
        sorted(&|item| (levels(item), u128::from(item.bytes))),
        // In the order of first use, as an allocator at run time would.
        sorted(&|item| (u128::from(u64::MAX) - item.first as u128, u128::from(item.bytes))),
    ]
}

/// What a window holds so far.
#[derive(Default)]
struct Window {
    /// The highest end of any placed item.
    bytes: u64,
    /// (offset, end, item), sorted.
    placed: Vec<(u64, u64, usize)>,
}

/// A place for one item, ordered by how good it is: growth of the arena, then size of the gap under
/// [`Fit::Tightest`], then window, then offset.
type Candidate = (u64, u64, usize, u64);

/// Places `items` one by one in `order`.
fn place(items: &[Item], order: &[usize], fit: Fit, limits: &Limits, work: &mut u64) -> ArenaLayout {
    let mut windows: Vec<Window> = Vec::new();
    let mut slots = vec![Slot { window: 0, offset: 0 }; items.len()];
    for &index in order {
        let item = &items[index];
        // A new window is always possible, as no buffer is larger than one, but the last resort: every
        // window is one more buffer to bind.
        let mut best: Candidate = (u64::MAX, u64::MAX, windows.len(), 0);
        for (number, window) in windows.iter().enumerate() {
            *work += window.placed.len() as u64;
            if let Some(candidate) = lowest_or_tightest(items, item, window, number, fit, limits) {
                best = best.min(candidate);
            }
        }
        let (_, _, window, offset) = best;
        if window == windows.len() {
            windows.push(Window::default());
        }
        slots[index] = Slot { window, offset };
        let end = offset + item.bytes;
        let window = &mut windows[window];
        window.bytes = window.bytes.max(end);
        let position = window.placed.partition_point(|placed| *placed < (offset, end, index));
        window.placed.insert(position, (offset, end, index));
    }
    let windows: Vec<u64> = windows.iter().map(|window| window.bytes).collect();
    let bytes = windows.iter().sum();
    ArenaLayout { windows, slots, bytes }
}

/// The best offset for `item` in one window, if it fits at all.
fn lowest_or_tightest(
    items: &[Item],
    item: &Item,
    window: &Window,
    number: usize,
    fit: Fit,
    limits: &Limits,
) -> Option<Candidate> {
    // Offsets below the sum of aligned sizes cannot overflow (Program::validate).
    let mut free = 0u64;
    let mut best: Option<Candidate> = None;
    for &(offset, end, other) in &window.placed {
        let other = &items[other];
        if other.last < item.first || item.last < other.first {
            continue;
        }
        if offset >= free && offset - free >= item.bytes {
            let gap = match fit {
                Fit::Lowest => return Some((0, 0, number, free)),
                Fit::Tightest => offset - free,
            };
            best = best.into_iter().chain([(0, gap, number, free)]).min();
        }
        free = free.max(end.next_multiple_of(limits.alignment));
    }
    if item.bytes <= limits.max_buffer_bytes && free <= limits.max_buffer_bytes - item.bytes {
        let growth = (free + item.bytes).saturating_sub(window.bytes);
        let gap = match fit {
            Fit::Lowest => 0,
            Fit::Tightest => window.bytes.saturating_sub(free),
        };
        best = best.into_iter().chain([(growth, gap, number, free)]).min();
    }
    best
}

/// Reorders until `enough` is met, nothing has got better for long, or the work is spent.
///
/// One round takes the items that end at the top of a window and places one of them earlier; a round that
/// made things worse is undone, one that left them equal is kept, so that plateaus are crossed.
fn improve(items: &[Item], start: Placed, enough: u64, limits: &Limits, mut work: u64) -> ArenaLayout {
    let Placed { packing: mut best, mut order, fit } = start;
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut below = |bound: usize| {
        // Xorshift, fixed seed: the plan is a pure function of the program.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        ((u128::from(random) * bound as u128) >> 64) as usize
    };
    let mut current = best.clone();
    let mut stale = 0;
    while best.bytes > enough && work < WORK && stale < PATIENCE {
        stale += 1;
        let is_top = |index: usize| {
            let slot = current.slots[index];
            slot.offset + items[index].bytes == current.windows[slot.window]
        };
        let tops: Vec<usize> = (0..order.len()).filter(|&position| is_top(order[position])).collect();
        // Every fourth round moves any item at all, which gets out of corners.
        let from = match below(4) {
            0 => below(order.len()),
            _ => tops[below(tops.len())],
        };
        let to = match below(2) {
            0 => 0,
            _ => below(order.len()),
        };
        if from == to {
            continue;
        }
        let mut next = order.clone();
        let moved = next.remove(from);
        next.insert(to, moved);
        let packing = place(items, &next, fit, limits, &mut work);
        if packing.bytes <= current.bytes {
            if packing.bytes < best.bytes {
                best = packing.clone();
                stale = 0;
            }
            current = packing;
            order = next;
        }
    }
    best
}
