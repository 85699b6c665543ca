//! Hazards: which dispatches must stay in order, over logical buffers.
//!
//! Two dispatches need ordering only if their byte ranges overlap and one of them writes. Of those pairs
//! only the ones that others do not imply are kept: once a write has covered an access completely, whatever
//! touches those bytes later also touches that write, and is ordered after the access through it.

use super::plan::{Hazard, Reason};
use super::program::{Access, Program};

/// An access that later ones still have to be compared with.
struct Seen {
    dispatch: usize,
    start: u64,
    end: u64,
}

/// The accesses of one buffer that no later write has covered.
#[derive(Default)]
struct Frontier {
    reads: Vec<Seen>,
    writes: Vec<Seen>,
}

/// The ordering edges of `program`, sorted by the later dispatch; each goes from a lower to a higher index.
/// Their transitive closure holds every conflicting pair.
pub(super) fn edges(program: &Program) -> Vec<Reason> {
    let mut frontiers: Vec<Frontier> = Vec::new();
    frontiers.resize_with(program.buffers.len(), Frontier::default);
    let mut edges = Vec::new();
    for (to, dispatch) in program.dispatches.iter().enumerate() {
        let first = edges.len();
        for read in &dispatch.reads {
            collide(&frontiers[read.buffer].writes, read, to, Hazard::WriteRead, &mut edges);
        }
        for write in &dispatch.writes {
            collide(&frontiers[write.buffer].reads, write, to, Hazard::ReadWrite, &mut edges);
            collide(&frontiers[write.buffer].writes, write, to, Hazard::WriteWrite, &mut edges);
        }
        edges[first..].sort_unstable();
        let mut count = first;
        for index in first..edges.len() {
            if count == first || edges[index] != edges[count - 1] {
                edges[count] = edges[index];
                count += 1;
            }
        }
        edges.truncate(count);
        for write in &dispatch.writes {
            let frontier = &mut frontiers[write.buffer];
            frontier.reads.retain(|seen| !is_covered(seen, write));
            frontier.writes.retain(|seen| !is_covered(seen, write));
        }
        for read in &dispatch.reads {
            frontiers[read.buffer].reads.push(Seen { dispatch: to, start: read.start, end: read.end });
        }
        for write in &dispatch.writes {
            frontiers[write.buffer].writes.push(Seen { dispatch: to, start: write.start, end: write.end });
        }
    }
    edges
}

/// Adds an edge for every `seen` access that overlaps `access`.
fn collide(seen: &[Seen], access: &Access, to: usize, hazard: Hazard, edges: &mut Vec<Reason>) {
    for seen in seen {
        if seen.start.max(access.start) < seen.end.min(access.end) {
            edges.push(Reason { buffer: access.buffer, hazard, from: seen.dispatch, to });
        }
    }
}

fn is_covered(seen: &Seen, write: &Access) -> bool {
    write.start <= seen.start && seen.end <= write.end
}
