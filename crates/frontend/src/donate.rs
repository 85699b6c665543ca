//! Which values an evaluation may overwrite: those that nobody can ask for once it is done.
//!
//! A value is dead if all handles of its tensor are operands of steps that are computed now, and these are either given their
//! own values, after which they hold no operands, or dead themselves. The lock of [`Device::evaluation`] is held: no
//! other evaluation holds handles meanwhile, and a handle of a user's shows in the count.
//!
//! [`Device::evaluation`]: crate::Device::evaluation

use std::collections::HashSet;
use std::sync::Arc;

use crate::lower::{ByNode, Lowered};
use crate::tensor::{Expr, Node, Tensor, address};

/// Smaller values are not worth the search.
const LEAST_BYTES: u64 = 1 << 10;

/// Who holds the tensors of an evaluation.
pub(crate) struct Holders {
    /// Operands of steps of this evaluation that each tensor is.
    uses: ByNode<usize>,
    /// How often each tensor is in the evaluation's own lists.
    listed: ByNode<usize>,
    /// What steps read that stay without a value of their own.
    needed: HashSet<*const Node, foldhash::fast::RandomState>,
}

impl Holders {
    /// `order` are all steps, operands first, of which `lowered` is computed now and `targets` are given values.
    pub fn of(order: &[Tensor], targets: &[&Tensor], lowered: &Lowered) -> Holders {
        let mut all =
            Holders { uses: ByNode::default(), listed: ByNode::default(), needed: HashSet::default() };
        let leaves = lowered.known.iter().map(|(_, tensor)| tensor);
        for tensor in order.iter().chain(leaves).chain(lowered.states.iter().map(|(_, tensor)| tensor)) {
            *all.listed.entry(address(tensor)).or_default() += 1;
        }
        let is_computed = |tensor: &&Tensor| lowered.values.contains_key(&address(tensor));
        for tensor in order.iter().filter(is_computed) {
            if let Expr::Op(_, operands, _) = &*tensor.expr() {
                for operand in operands {
                    *all.uses.entry(address(operand)).or_default() += 1;
                }
            }
        }
        let targets: HashSet<*const Node> = targets.iter().map(|target| address(target)).collect();
        for tensor in order.iter().rev().filter(is_computed) {
            if targets.contains(&address(tensor)) || all.is_dead(tensor) {
                continue;
            }
            if let Expr::Op(_, operands, _) = &*tensor.expr() {
                all.needed.extend(operands.iter().map(address));
            }
        }
        all
    }

    fn count(counts: &ByNode<usize>, tensor: &Tensor) -> usize {
        counts.get(&address(tensor)).copied().unwrap_or(0)
    }

    /// Whether nobody can ask for the tensor once the targets have their values.
    fn is_dead(&self, tensor: &Tensor) -> bool {
        let known = Holders::count(&self.uses, tensor) + Holders::count(&self.listed, tensor);
        !self.needed.contains(&address(tensor)) && Arc::strong_count(&tensor.0) == known
    }

    /// Whether the memory of a leaf on the device may be overwritten by a step that reads it.
    fn is_free(&self, tensor: &Tensor) -> bool {
        self.is_dead(tensor) && matches!(&*tensor.expr(), Expr::Device(value) if value.has_holders(1))
    }

    /// The positions in `lowered.known` of values that may be overwritten.
    pub fn inputs(&self, lowered: &Lowered) -> Vec<usize> {
        let is_state =
            |tensor: &Tensor| lowered.states.iter().any(|(_, state)| address(state) == address(tensor));
        let known = lowered.known.iter().enumerate();
        let free = known.filter(|(_, (_, tensor))| self.is_free(tensor) && !is_state(tensor));
        free.map(|(at, _)| at).collect()
    }

    /// Whether the state at this position of `lowered.states` may be overwritten where it is. It may not where another step
    /// reads the value, even in this evaluation.
    pub fn state(&self, lowered: &Lowered, at: usize) -> bool {
        let Some((_, tensor)) = lowered.states.get(at) else { return false };
        let is_same = |(_, other): &&(String, Tensor)| address(other) == address(tensor);
        let readers = lowered.known.iter().chain(&lowered.states).filter(is_same).count();
        readers == 1 && self.is_free(tensor)
    }
}

/// Whether a value of some leaf is so large that reusing its memory is worth the search.
pub(crate) fn is_worthwhile(lowered: &Lowered) -> bool {
    lowered.known.iter().any(|(_, tensor)| tensor.ty().max_bytes() >= LEAST_BYTES)
}
