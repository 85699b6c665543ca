//! Cutting long expressions into segments that are compiled and computed one after the other.
//!
//! Few programs are so large, and nothing is gained by compiling as one what no device runs as one. A loop that was never
//! forced gives many segments of one structure, of which one is compiled.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;
use tallow_ir::Op;

use crate::origin::Origin;
use crate::tensor::{Expr, Node, Tensor, address};

/// Steps of a segment, about.
const SEGMENT_STEPS: usize = 1024;

/// Whether steps are too many for one segment.
pub(crate) fn is_long(order: &[Tensor]) -> bool {
    order.len() > SEGMENT_STEPS
}

/// Cuts `order`, in which operands come first, into segments of about [`SEGMENT_STEPS`] steps, where the fewest bytes
/// are live. Returns the numbers of the values that leave each segment: what later segments read, what is materialized
/// besides, and the `roots`.
pub(crate) fn segments(order: &[Tensor], roots: &HashSet<*const Node, RandomState>) -> Vec<Vec<usize>> {
    let steps = Steps::of(order, roots);
    let mut all = vec![];
    let mut start = 0;
    while start < order.len() {
        let end = steps.cut(start);
        let is_live_out = |at: &usize| steps.last_use[*at] >= end && steps.bytes[*at] > 0;
        let live_out: Vec<usize> = (start..end).filter(is_live_out).collect();
        if !live_out.is_empty() {
            all.push(live_out);
        }
        start = end;
    }
    all
}

/// So often is a step computed on the way to something else; then its value is stored. A training loop that reads a loss, then an
/// accuracy, and then computes gradients has the same steps three times, and is faster where they stay inside of kernels.
const MOST_TIMES: u8 = 3;

/// Whether a step is given its own value though nobody asked for it.
///
/// An update may overwrite the value that it updates, and nobody could compute it again; what a variable holds is read in each
/// step of a training loop. A loop that carries a tensor along and never reads it would compute all of its past in each step: what
/// is computed again and again is stored, and what is appended to, at once.
pub(crate) fn is_materialized(tensor: &Tensor) -> bool {
    let Expr::Op(op, ..) = &*tensor.expr() else { return false };
    let is_computed_again = match op {
        Op::StateUpdate { .. } => return true,
        Op::Concat { .. } => tensor.times_step() > 0,
        // Kernels read through views.
        op => tensor.times_step() >= MOST_TIMES && !op.is_view() && !op.is_leaf(),
    };
    is_computed_again || matches!(tensor.origin(), Some(Origin::Variable))
}

/// What is known of each step of an expression.
struct Steps {
    /// The position of the last step that reads it; past the end for roots.
    last_use: Vec<usize>,
    /// Bytes of its value; 0 for what each segment computes anew, since no kernel runs for it: constants, and views of
    /// values that are known.
    bytes: Vec<u64>,
    /// Bytes that are kept where the expression is cut before each step.
    live: Vec<u64>,
}

impl Steps {
    fn of(order: &[Tensor], roots: &HashSet<*const Node, RandomState>) -> Steps {
        let index: HashMap<*const Node, usize> = order.iter().map(address).zip(0..).collect();
        let count = order.len();
        let mut steps = Steps { last_use: vec![0; count], bytes: vec![0; count], live: vec![0; count + 1] };
        for (by, tensor) in order.iter().enumerate() {
            let Expr::Op(op, operands, _) = &*tensor.expr() else { continue };
            let operands = || operands.iter().filter_map(|operand| index.get(&address(operand)).copied());
            let is_free = op.is_leaf() || (op.is_view() && operands().all(|at| steps.bytes[at] == 0));
            steps.bytes[by] = if is_free { 0 } else { tensor.ty().max_bytes().max(1) };
            for at in operands() {
                steps.last_use[at] = by;
            }
        }
        let materialized = (0..count).filter(|at| is_materialized(&order[*at]));
        let roots = roots.iter().filter_map(|root| index.get(root).copied());
        for root in roots.chain(materialized) {
            steps.last_use[root] = count;
            steps.bytes[root] = steps.bytes[root].max(order[root].ty().max_bytes().max(1));
        }
        let mut change = vec![0i128; count + 2];
        for at in 0..count {
            // It is live where a cut lies behind it and not behind its last use.
            change[at + 1] += i128::from(steps.bytes[at]);
            change[steps.last_use[at].max(at) + 1] -= i128::from(steps.bytes[at]);
        }
        let mut sum = 0;
        for (live, change) in steps.live.iter_mut().zip(change) {
            sum += change;
            *live = u64::try_from(sum).unwrap_or(0);
        }
        steps
    }

    /// Where the segment that starts at `start` ends.
    fn cut(&self, start: usize) -> usize {
        let count = self.last_use.len();
        if count - start <= SEGMENT_STEPS * 3 / 2 {
            return count;
        }
        let around = start + SEGMENT_STEPS / 2..=start + SEGMENT_STEPS * 3 / 2;
        let best = around.min_by_key(|end| (self.live[*end], end.abs_diff(start + SEGMENT_STEPS)));
        best.unwrap_or(count)
    }
}
