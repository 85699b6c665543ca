//! Donation: inputs whose memory may be reused for results.
//!
//! A caller that no longer needs an input donates it to a run. A result may then overwrite the input on two conditions.
//! The kernel that writes the result must support it in place ([`tallow_ir::donation`]). All other kernels that read
//! the input must run in earlier levels, so that a barrier separates them.

use std::collections::BTreeMap;

use tallow_ir::donation::in_place;
use tallow_ir::schedule::{BufferKind, Plan, Program};
use tallow_ir::{Fusion, Node, NodeId, Value};

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

/// The donations that the kernel of a fusion (node `id`) supports: its results that it can write over an input of the
/// program.
pub(crate) fn candidates(
    (id, node): (NodeId, &Node),
    fusion: &Fusion,
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
    let pairs = in_place(fusion);
    let mut found = vec![];
    for (r, p) in &pairs {
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
