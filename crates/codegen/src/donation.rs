//! Donation: memory of operands that is reused for results.
//!
//! An intermediate that one kernel reads is overwritten by a result of that kernel where it supports this in place
//! ([`tallow_ir::donation`]): both have one buffer of the program, so that the planner sees an update in place.
//!
//! A caller that no longer needs an input donates it to a run. A result may then overwrite the input on two conditions.
//! The kernel that writes the result must support it in place ([`tallow_ir::donation`]). All other kernels that read
//! the input must run in earlier levels, so that a barrier separates them.

use std::collections::{BTreeMap, BTreeSet};

use tallow_ir::donation::in_place;
use tallow_ir::schedule::{Buffer, BufferKind, Plan, Program};
use tallow_ir::{Fusion, FusionKind, Graph, Node, NodeId, Op, Value};

use crate::schedule::{Algorithm, Schedule};

/// A result that may overwrite an input: positions in [`Program::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Donation {
    /// Buffer of the input.
    pub input: usize,
    /// Buffer of the result.
    pub output: usize,
}

/// A donation that the kernel of a dispatch supports.
pub(crate) struct Candidate {
    donation: Donation,
    dispatch: usize,
}

/// Pairs of a result and an operand of a fusion of which a kernel with this schedule may write the one over the other.
pub(crate) fn pairs(fusion: &Fusion, schedule: &Schedule) -> Vec<(u32, u32)> {
    let by_whole_rows = match schedule.algorithm {
        Algorithm::Row | Algorithm::ShortRows => schedule.split.slices <= 1,
        _ => false,
    };
    match fusion.kind {
        FusionKind::Row if !by_whole_rows => vec![],
        _ => in_place(fusion),
    }
}

/// The smallest intermediate whose memory a result takes: for less, the planner's freedom is worth more.
const FEWEST_BYTES: u64 = 1 << 20;

/// How many kernels of a fused graph read each value.
pub(crate) struct Readers<'g> {
    graph: &'g Graph,
    counts: BTreeMap<Value, usize>,
}

impl<'g> Readers<'g> {
    /// Of a fused graph.
    pub(crate) fn of(graph: &'g Graph) -> Self {
        let mut counts = BTreeMap::new();
        for (_, node) in graph.nodes().filter(|(_, node)| matches!(node.op, Op::Fusion(_))) {
            let values: BTreeSet<Value> = node.operands.iter().map(|v| through_reshapes(graph, *v)).collect();
            values.into_iter().for_each(|value| *counts.entry(value).or_default() += 1);
        }
        Readers { graph, counts }
    }

    /// The intermediate buffer that a result of `node` is written into: that of an operand which no other node reads.
    /// `pairs` are those of its kernel.
    pub(crate) fn reused(
        &self,
        node: &Node,
        (result, pairs): (u32, &[(u32, u32)]),
        program: &Program,
        buffer_of: &BTreeMap<Value, usize>,
    ) -> Option<usize> {
        let bytes = node.types[result as usize].max_bytes().next_multiple_of(16);
        if bytes < FEWEST_BYTES {
            return None;
        }
        let of = |operand: &Value| buffer_of.get(operand).copied();
        pairs.iter().filter(|(r, _)| *r == result).find_map(|(_, p)| {
            let operand = node.operands.get(*p as usize)?;
            let buffer = of(operand)?;
            let is_read_once = node.operands.iter().filter(|other| of(other) == Some(buffer)).count() == 1;
            let is_free = self.counts.get(&through_reshapes(self.graph, *operand)) == Some(&1);
            let Buffer { bytes: size, kind, .. } = program.buffers[buffer];
            (is_read_once && is_free && size == bytes && kind == BufferKind::Arena).then_some(buffer)
        })
    }
}

/// What lies in the memory of a value, which a reshape shares with its operand.
pub(crate) fn through_reshapes(graph: &Graph, mut value: Value) -> Value {
    while matches!(graph.op(value), Op::Reshape(_)) {
        value = graph.node(value.node).operands[0];
    }
    value
}

/// The donations that the kernel of a fusion (node `id`) supports with these pairs: its results that it can write over an
/// input of the program.
pub(crate) fn candidates(
    (id, node): (NodeId, &Node),
    pairs: &[(u32, u32)],
    dispatch: usize,
    program: &Program,
    buffer_of: &BTreeMap<Value, usize>,
) -> Vec<Candidate> {
    let place = |buffer: usize| program.buffers[buffer].kind;
    let operand = |operand: usize| node.operands.get(operand).and_then(|value| buffer_of.get(value)).copied();
    let result = |result: u32| buffer_of.get(&Value { node: id, result }).copied();
    let is_input = |buffer: usize| matches!(place(buffer), BufferKind::Input(_));
    let is_output = |buffer: usize| matches!(place(buffer), BufferKind::Output(_));
    let mut inputs = (0..node.operands.len()).filter_map(operand);
    let mut outputs = (0..node.types.len() as u32).filter_map(result);
    if !inputs.any(is_input) || !outputs.any(is_output) {
        return vec![];
    }
    let mut found = vec![];
    for (r, p) in pairs {
        let (Some(input), Some(output)) = (operand(*p as usize), result(*r)) else { continue };
        // The kernel may receive the input as several operands.
        let mut aliases = (0..node.operands.len()).filter(|other| operand(*other) == Some(input));
        let all_in_place = aliases.all(|other| pairs.contains(&(*r, other as u32)));
        if is_input(input) && is_output(output) && all_in_place {
            found.push(Candidate { donation: Donation { input, output }, dispatch });
        }
    }
    found
}

/// The candidates whose input no other kernel reads in the same level or a later one.
pub(crate) fn donations(candidates: &[Candidate], program: &Program, plan: &Plan) -> Vec<Donation> {
    let mut level_of = vec![0; program.dispatches.len()];
    for (level, dispatches) in plan.levels.iter().enumerate() {
        dispatches.iter().for_each(|dispatch| level_of[*dispatch] = level);
    }
    let is_last = |candidate: &&Candidate| {
        let mut others = program.dispatches.iter().enumerate().filter(|(at, _)| *at != candidate.dispatch);
        others.all(|(at, dispatch)| {
            let reads = dispatch.reads.iter().any(|read| read.buffer == candidate.donation.input);
            !reads || level_of[at] < level_of[candidate.dispatch]
        })
    };
    candidates.iter().filter(is_last).map(|candidate| candidate.donation).collect()
}
