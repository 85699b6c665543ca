//! Which values an evaluation may overwrite: those that nobody can ask for once it is done.
//!
//! A value is dead if all handles of its tensor are operands of steps that are computed now, and these are either given their
//! own values, after which they hold no operands, or dead themselves. The lock of [`Device::evaluation`] is held: no
//! other evaluation holds handles meanwhile, and a handle of a user's shows in the count.
//!
//! [`Device::evaluation`]: crate::Device::evaluation

use std::collections::HashSet;
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::lower::ByNode;
use crate::programs::Instance;
use crate::tensor::{Expr, Node, Tensor, address};

/// Smaller values are not worth the search.
const LEAST_BYTES: u64 = 1 << 10;

/// Who holds the tensors of an evaluation.
#[derive(Default)]
pub(super) struct Holders {
    /// Operands of steps of this evaluation that each tensor is.
    uses: ByNode<usize>,
    /// How often each tensor is in the evaluation's own lists.
    listed: ByNode<usize>,
    /// Steps that are given their own values.
    targets: HashSet<*const Node, RandomState>,
    /// What steps read that stay without a value of their own.
    needed: HashSet<*const Node, RandomState>,
}

impl Holders {
    /// Forgets all, but gives no memory back.
    pub fn clear(&mut self) {
        let Holders { uses, listed, targets, needed } = self;
        uses.clear();
        listed.clear();
        targets.clear();
        needed.clear();
    }

    /// `order` are all steps, operands first, of which `instance` is computed now and those numbered by `targets` are given
    /// values.
    pub fn find(&mut self, order: &[Tensor], targets: &[usize], instance: &Instance) {
        self.clear();
        for tensor in order.iter().chain(instance.nodes()).chain(instance.states()) {
            *self.listed.entry(address(tensor)).or_default() += 1;
        }
        let is_computed = |tensor: &&Tensor| instance.contains(tensor);
        for tensor in order.iter().filter(is_computed) {
            if let Expr::Op(_, operands, _) = &*tensor.expr() {
                for operand in operands {
                    *self.uses.entry(address(operand)).or_default() += 1;
                }
            }
        }
        self.targets.extend(targets.iter().map(|target| address(&order[*target])));
        for tensor in order.iter().rev().filter(is_computed) {
            if self.targets.contains(&address(tensor)) || self.is_dead(tensor) {
                continue;
            }
            if let Expr::Op(_, operands, _) = &*tensor.expr() {
                self.needed.extend(operands.iter().map(address));
            }
        }
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

    /// The numbers of known values that may be overwritten.
    pub fn inputs(&self, instance: &Instance) -> impl Iterator<Item = usize> {
        let is_state =
            |tensor: &Tensor| instance.states().iter().any(|state| address(state) == address(tensor));
        let known = instance.known().enumerate();
        let free = known.filter(move |(_, tensor)| self.is_free(tensor) && !is_state(tensor));
        free.map(|(at, _)| at)
    }

    /// Whether the state of this number may be overwritten where it is. It may not where another step reads the value, even
    /// in this evaluation.
    pub fn state(&self, instance: &Instance, at: usize) -> bool {
        let Some(tensor) = instance.states().get(at) else { return false };
        let is_same = |other: &&Tensor| address(other) == address(tensor);
        let readers = instance.known().chain(instance.states()).filter(is_same).count();
        readers == 1 && self.is_free(tensor)
    }
}

/// Whether a value of some leaf is so large that reusing its memory is worth the search.
pub(super) fn is_worthwhile(instance: &Instance) -> bool {
    instance.known().any(|tensor| tensor.ty().max_bytes() >= LEAST_BYTES)
}
