//! Levels: which dispatches run side by side.
//!
//! The earliest level of a dispatch is the longest chain of hazards before it, the latest is what the chain
//! after it leaves. Any choice between the two that keeps the edges rising has the same, least, number of
//! levels, so the choice is free to lower the peak of live arena bytes. A deterministic local search makes
//! it: from the earliest, the latest and some random levels it moves one dispatch at a time, pushing dependents
//! or pulling dependencies along, as long as the highest of the levels that change gets lower, or stays and
//! the bytes times levels get fewer.

use super::plan::Reason;
use super::program::{BufferKind, Program};

/// Visits of levels, dispatches and buffers that all searches together may spend. Keeps planning of
/// thousands of dispatches well under a second; smaller programs converge long before.
const WORK: u64 = 5_000_000;
/// Searches: one from the earliest levels, one from the latest, the others from random ones between.
const STARTS: usize = 12;
/// Passes over all dispatches before a search stops.
const PASSES: usize = 12;
/// Dispatches that one move may shift.
const GROUP: usize = 64;

/// The dispatches of each level, in program order.
pub(super) fn levels(program: &Program, edges: &[Reason]) -> Vec<Vec<usize>> {
    let graph = DispatchGraph::new(program, edges);
    let earliest = earliest(&graph);
    let depth = earliest.iter().map(|level| level + 1).max().unwrap_or(0);
    let latest = latest(&graph, depth);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut work = 0;
    let mut best: Option<(Cost, Vec<usize>)> = None;
    for round in 0..STARTS {
        let start = match round {
            0 => earliest.clone(),
            1 => latest.clone(),
            _ => between(&graph, &earliest, &latest, &mut random),
        };
        let mut search = Search::new(&graph, start, depth, work);
        let unmoved = (search.cost(), search.level.clone());
        search.run(&earliest, &latest);
        work = search.work;
        for candidate in [unmoved, (search.cost(), search.level)] {
            if best.as_ref().is_none_or(|best| candidate.0 < best.0) {
                best = Some(candidate);
            }
        }
        if work > WORK || earliest == latest {
            break;
        }
    }
    let mut levels = vec![Vec::new(); depth];
    if let Some((_, level)) = best {
        for (dispatch, level) in level.into_iter().enumerate() {
            levels[level].push(dispatch);
        }
    }
    levels
}

/// The dispatch DAG, and which arena buffers tie dispatches together in memory.
struct DispatchGraph {
    /// Direct predecessors of each dispatch, all with lower indices.
    before: Vec<Vec<usize>>,
    /// Direct successors of each dispatch, all with higher indices.
    after: Vec<Vec<usize>>,
    /// The arena buffers that each dispatch accesses.
    touches: Vec<Vec<usize>>,
    /// The dispatches that access each arena buffer, and nothing for other buffers.
    users: Vec<Vec<usize>>,
    /// The size of each buffer.
    bytes: Vec<u64>,
}

impl DispatchGraph {
    fn new(program: &Program, edges: &[Reason]) -> Self {
        let count = program.dispatches.len();
        let mut before = vec![Vec::new(); count];
        let mut after = vec![Vec::new(); count];
        for edge in edges {
            before[edge.to].push(edge.from);
            after[edge.from].push(edge.to);
        }
        for list in before.iter_mut().chain(&mut after) {
            list.sort_unstable();
            list.dedup();
        }
        let mut users = vec![Vec::new(); program.buffers.len()];
        let mut touches = Vec::with_capacity(count);
        for (index, dispatch) in program.dispatches.iter().enumerate() {
            let accesses = dispatch.reads.iter().chain(&dispatch.writes);
            let mut buffers: Vec<usize> = accesses
                .map(|access| access.buffer)
                .filter(|&buffer| program.buffers[buffer].kind == BufferKind::Arena)
                .collect();
            buffers.sort_unstable();
            buffers.dedup();
            for &buffer in &buffers {
                users[buffer].push(index);
            }
            touches.push(buffers);
        }
        let bytes = program.buffers.iter().map(|buffer| buffer.bytes).collect();
        DispatchGraph { before, after, touches, users, bytes }
    }
}

/// The longest chain before each dispatch.
fn earliest(graph: &DispatchGraph) -> Vec<usize> {
    let mut level: Vec<usize> = Vec::with_capacity(graph.before.len());
    for before in &graph.before {
        level.push(before.iter().map(|&dispatch| level[dispatch] + 1).max().unwrap_or(0));
    }
    level
}

/// The last level that leaves room for the longest chain after each dispatch.
fn latest(graph: &DispatchGraph, depth: usize) -> Vec<usize> {
    let mut level = vec![0; graph.after.len()];
    for dispatch in (0..graph.after.len()).rev() {
        let bound = graph.after[dispatch].iter().map(|&after| level[after]).min().unwrap_or(depth);
        level[dispatch] = bound - 1;
    }
    level
}

/// Levels drawn between the earliest and the latest. Xorshift with a fixed seed: the plan is a pure function
/// of the program.
fn between(graph: &DispatchGraph, earliest: &[usize], latest: &[usize], random: &mut u64) -> Vec<usize> {
    let mut level: Vec<usize> = Vec::with_capacity(earliest.len());
    for dispatch in 0..earliest.len() {
        let bound = graph.before[dispatch].iter().map(|&before| level[before] + 1).max();
        let first = bound.unwrap_or(0).max(earliest[dispatch]);
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        level.push(first + (*random % (latest[dispatch] - first + 1) as u64) as usize);
    }
    level
}

/// The peak of live bytes, then bytes times levels.
type Cost = (u64, u128);

/// A change of one buffer's lifetime: `bytes` more (or fewer) over the levels `first..=last`.
struct LiveChange {
    first: usize,
    last: usize,
    bytes: i128,
}

/// The state of a local search.
struct Search<'a> {
    graph: &'a DispatchGraph,
    level: Vec<usize>,
    /// Live arena bytes at each level.
    live: Vec<u64>,
    work: u64,
}

impl<'a> Search<'a> {
    fn new(graph: &'a DispatchGraph, start: Vec<usize>, depth: usize, work: u64) -> Self {
        // Differences between neighbouring levels, then their sums.
        let (mut born, mut dead) = (vec![0u64; depth], vec![0u64; depth]);
        for (buffer, users) in graph.users.iter().enumerate() {
            if let Some((first, last)) = span(users.iter().map(|&user| start[user])) {
                born[first] += graph.bytes[buffer];
                dead[last] += graph.bytes[buffer];
            }
        }
        let mut live = born;
        for level in 1..depth {
            live[level] += live[level - 1] - dead[level - 1];
        }
        Search { graph, level: start, live, work }
    }

    fn cost(&self) -> Cost {
        let peak = self.live.iter().copied().max().unwrap_or(0);
        (peak, self.live.iter().map(|&live| u128::from(live)).sum())
    }

    /// Moves dispatches until nothing helps or the budget is spent.
    fn run(&mut self, earliest: &[usize], latest: &[usize]) {
        for _ in 0..PASSES {
            let mut moved = false;
            for dispatch in 0..self.level.len() {
                if earliest[dispatch] == latest[dispatch] {
                    continue;
                }
                for target in self.targets(dispatch, earliest[dispatch], latest[dispatch]) {
                    if self.work > WORK {
                        return;
                    }
                    moved |= self.try_move(dispatch, target);
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// The levels worth trying for `dispatch`: the ends of its range, one step to each side, and where the
    /// lifetimes of its buffers end without it.
    fn targets(&mut self, dispatch: usize, earliest: usize, latest: usize) -> Vec<usize> {
        let here = self.level[dispatch];
        let mut targets = vec![earliest, latest, here + 1, here.saturating_sub(1)];
        for &after in &self.graph.after[dispatch] {
            targets.push(self.level[after].saturating_sub(1));
        }
        for &before in &self.graph.before[dispatch] {
            targets.push(self.level[before] + 1);
        }
        for &buffer in &self.graph.touches[dispatch] {
            let users = &self.graph.users[buffer];
            self.work += users.len() as u64;
            let others = users.iter().filter(|&&user| user != dispatch);
            if let Some((first, last)) = span(others.map(|&user| self.level[user])) {
                targets.extend([first, last, last + 1, first.saturating_sub(1)]);
            }
        }
        targets.retain(|&target| earliest <= target && target <= latest && target != here);
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// Moves `dispatch` to `target` with whatever must move along, if that lowers the cost.
    fn try_move(&mut self, dispatch: usize, target: usize) -> bool {
        if target == self.level[dispatch] {
            return false;
        }
        let Some(moves) = self.closure(dispatch, target) else { return false };
        let changes = self.changes(&moves);
        let first = changes.iter().map(|change| change.first).min();
        let last = changes.iter().map(|change| change.last).max();
        let (Some(first), Some(last)) = (first, last) else { return false };
        self.work += (last - first) as u64;
        // Differences between neighbouring levels, summed up below.
        let mut deltas = vec![0i128; last - first + 2];
        for change in &changes {
            deltas[change.first - first] += change.bytes;
            deltas[change.last + 1 - first] -= change.bytes;
        }
        let (mut old_peak, mut new_peak, mut area, mut sum) = (0, 0, 0, 0);
        for (level, delta) in (first..=last).zip(&deltas) {
            sum += delta;
            if sum != 0 {
                let old = i128::from(self.live[level]);
                old_peak = old_peak.max(old);
                new_peak = new_peak.max(old + sum);
                area += sum;
            }
        }
        if (new_peak, area) >= (old_peak, 0) {
            return false;
        }
        let mut sum = 0;
        for (level, delta) in (first..=last).zip(&deltas) {
            sum += delta;
            let live = i128::from(self.live[level]) + sum;
            self.live[level] = u64::try_from(live).expect("invariant: live bytes are a sum of sizes");
        }
        for (dispatch, level) in moves {
            self.level[dispatch] = level;
        }
        true
    }

    /// `dispatch` at `target`, and the new levels of those that have to give way; sorted by dispatch.
    fn closure(&mut self, dispatch: usize, target: usize) -> Option<Vec<(usize, usize)>> {
        let later = target > self.level[dispatch];
        let mut pending = std::collections::BTreeMap::from([(dispatch, target)]);
        let mut moves: Vec<(usize, usize)> = Vec::new();
        // Indices rise along edges: taken in that order, a dispatch's level is final when it is taken.
        while let Some((dispatch, level)) = if later { pending.pop_first() } else { pending.pop_last() } {
            if moves.len() == GROUP {
                return None;
            }
            moves.push((dispatch, level));
            let neighbours = if later { &self.graph.after[dispatch] } else { &self.graph.before[dispatch] };
            self.work += neighbours.len() as u64;
            for &next in neighbours {
                if later && self.level[next] <= level {
                    let bound = pending.entry(next).or_insert(level + 1);
                    *bound = (*bound).max(level + 1);
                } else if !later && self.level[next] >= level {
                    let bound = pending.entry(next).or_insert(level - 1);
                    *bound = (*bound).min(level - 1);
                }
            }
        }
        if !later {
            moves.reverse();
        }
        Some(moves)
    }

    /// How the lifetimes of arena buffers change under `moves`.
    fn changes(&mut self, moves: &[(usize, usize)]) -> Vec<LiveChange> {
        let mut buffers: Vec<usize> =
            moves.iter().flat_map(|&(dispatch, _)| self.graph.touches[dispatch].iter().copied()).collect();
        buffers.sort_unstable();
        buffers.dedup();
        let moved = |user: usize| match moves.binary_search_by_key(&user, |&(dispatch, _)| dispatch) {
            Ok(index) => moves[index].1,
            Err(_) => self.level[user],
        };
        let mut changes = Vec::new();
        for buffer in buffers {
            let users = &self.graph.users[buffer];
            self.work += users.len() as u64;
            let old = span(users.iter().map(|&user| self.level[user]));
            let new = span(users.iter().map(|&user| moved(user)));
            let (Some(old), Some(new)) = (old, new) else { continue };
            let bytes = i128::from(self.graph.bytes[buffer]);
            difference(new, old, bytes, &mut changes);
            difference(old, new, -bytes, &mut changes);
        }
        changes
    }
}

/// Adds a change for each part of `a` outside of `b`; both are inclusive ranges.
fn difference(a: (usize, usize), b: (usize, usize), bytes: i128, changes: &mut Vec<LiveChange>) {
    if a.1 < b.0 || b.1 < a.0 {
        changes.push(LiveChange { first: a.0, last: a.1, bytes });
        return;
    }
    if a.0 < b.0 {
        changes.push(LiveChange { first: a.0, last: b.0 - 1, bytes });
    }
    if b.1 < a.1 {
        changes.push(LiveChange { first: b.1 + 1, last: a.1, bytes });
    }
}

/// The least and the greatest.
fn span(levels: impl Iterator<Item = usize>) -> Option<(usize, usize)> {
    levels.fold(None, |span, level| match span {
        None => Some((level, level)),
        Some((first, last)) => Some((level.min(first), level.max(last))),
    })
}
