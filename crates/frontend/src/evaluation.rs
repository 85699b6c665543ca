//! What an evaluation works with: its steps, the part that is computed next, and who holds values.
//!
//! A loop evaluates one expression after another, so each thread uses its lists again. They hold no tensors between
//! evaluations.

#[cfg(feature = "vulkan")]
mod holders;

use std::cell::Cell;
use std::collections::HashSet;

use foldhash::fast::RandomState;

#[cfg(feature = "vulkan")]
use self::holders::Holders;
use crate::error::Result;
use crate::lower::Order;
use crate::programs::Instance;
use crate::segments::{self, is_materialized};
use crate::tensor::{Node, Tensor, address};

thread_local! {
    /// The lists of this thread, while no evaluation uses them.
    static SPARE: Cell<Option<Box<Evaluation>>> = const { Cell::new(None) };
}

/// The lists of an evaluation.
#[derive(Default)]
pub(crate) struct Evaluation {
    /// All steps, operands first.
    pub order: Order,
    /// Numbers, in `order`, of the steps that are given their own values by the program that runs next.
    targets: Vec<usize>,
    /// What that program computes.
    pub instance: Instance,
    /// What is wanted, and its addresses.
    wanted: Vec<Tensor>,
    roots: HashSet<*const Node, RandomState>,
    #[cfg(feature = "vulkan")]
    holders: Holders,
}

impl Evaluation {
    /// Calls `f` with empty lists.
    pub fn with<T>(f: impl FnOnce(&mut Evaluation) -> T) -> T {
        // One inside of another has lists of its own, and so has the end of a thread.
        let mut lists = SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default();
        let done = f(&mut lists);
        lists.clear();
        lists.wanted.clear();
        let _ = SPARE.try_with(|spare| spare.set(Some(lists)));
        done
    }

    /// Forgets all tensors but those that are wanted; no list gives its memory back.
    pub fn clear(&mut self) {
        #[cfg(feature = "vulkan")]
        self.holders.clear();
        let Evaluation { order, targets, instance, roots, .. } = self;
        order.clear();
        targets.clear();
        instance.clear();
        roots.clear();
    }

    /// Is asked for tensors, which for variables are what they hold.
    ///
    /// # Errors
    /// Those of [`Tensor::current`].
    pub fn want(&mut self, tensors: &[&Tensor]) -> Result<()> {
        self.wanted.clear();
        for tensor in tensors {
            self.wanted.push(tensor.current()?);
        }
        Ok(())
    }

    /// What it was asked for.
    pub fn wanted(&self) -> &[Tensor] {
        &self.wanted
    }

    /// Finds the steps that wanted tensors need.
    ///
    /// # Errors
    /// When they depend on an input of a function.
    pub fn begin(&mut self, op: &'static str) -> Result<()> {
        self.clear();
        self.order.collect_pending(op, &self.wanted)?;
        self.roots.extend(self.wanted.iter().map(address));
        Ok(())
    }

    /// In how many pieces the steps are computed, with the targets of each, if they are too many for one.
    pub fn pieces(&self) -> Option<Vec<Vec<usize>>> {
        segments::is_long(self.order.all()).then(|| segments::segments(self.order.all(), &self.roots))
    }

    /// What is computed next: these targets, or without any all that are wanted or stored besides.
    pub fn choose(&mut self, targets: Option<&[usize]>) {
        let Evaluation { order, roots, .. } = self;
        self.targets.clear();
        match targets {
            Some(targets) => self.targets.extend(targets),
            None => {
                let is_target = |(_, tensor): &(usize, &Tensor)| {
                    roots.contains(&address(tensor)) || is_materialized(tensor)
                };
                let found = order.all().iter().enumerate().filter(is_target);
                self.targets.extend(found.map(|(number, _)| number));
            }
        }
        let all = order.all();
        self.instance.collect(self.targets.iter().map(|number| &all[*number]));
    }

    /// The steps that the next program gives their own values, in the order of its results.
    pub fn targets(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.targets.iter().map(|number| &self.order.all()[*number])
    }

    /// Finds out who holds the values of the instance.
    #[cfg(feature = "vulkan")]
    pub fn find_holders(&mut self) {
        let Evaluation { order, targets, instance, holders, .. } = self;
        holders.find(order.all(), targets, instance);
    }

    /// The numbers of known values that nobody needs any more, after [`Evaluation::find_holders`].
    #[cfg(feature = "vulkan")]
    pub fn free_inputs(&self) -> impl Iterator<Item = usize> {
        self.holders.inputs(&self.instance)
    }

    /// Whether the state of this number may be overwritten where it is, after [`Evaluation::find_holders`].
    #[cfg(feature = "vulkan")]
    pub fn is_state_free(&self, at: usize) -> bool {
        self.holders.state(&self.instance, at)
    }

    /// Whether the value of some leaf is so large that reusing its memory is worth the search.
    #[cfg(feature = "vulkan")]
    pub fn is_worthwhile_to_donate(&self) -> bool {
        holders::is_worthwhile(&self.instance)
    }
}
