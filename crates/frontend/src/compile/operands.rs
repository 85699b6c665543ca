//! The memory of a function's operands on a GPU.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use tallow_runtime::lazy::RunMemory;

use super::captured::Captured;
use crate::error::{Error, Result};
use crate::resident::Weight;
use crate::tensor::{Expr, Tensor};
use crate::vulkan::LazyPlan;

/// The memory that the runs of a function use. A training step has hundreds of states, of which few moved since the last run.
#[derive(Debug)]
pub(super) struct Operands {
    pub(super) memory: RunMemory,
    /// By state, what [`State::accesses`] was at the last run; none before the first.
    accesses: Vec<Option<u64>>,
}

impl Operands {
    /// Those of runs with inputs of these names.
    pub fn new(
        inputs: &[&str],
        weights: &HashMap<String, Weight>,
        states: &[Captured],
        plan: &LazyPlan,
    ) -> Result<Operands> {
        let mut named = HashMap::new();
        for (name, weight) in weights {
            let elsewhere =
                || Error::WrongDevice { what: "weight", name: name.clone(), device: plan.device_name() };
            named.insert(name.as_str(), weight.on_vulkan().ok_or_else(elsewhere)?);
        }
        named.extend(plan.copies().iter().map(|(name, weight)| (name.as_str(), weight)));
        let names: Vec<&str> = states.iter().map(|captured| captured.name.as_str()).collect();
        let memory = plan.memory(inputs, &named, &names)?;
        Ok(Operands { memory, accesses: vec![None; states.len()] })
    }

    /// Locks the states until the returned guards are dropped, and finds their memory.
    ///
    /// A state that the run updates is overwritten where nobody else holds its tensor or, as a result that a function
    /// returned, its memory. Otherwise it moves to a copy. Then it has one owner until somebody locks it or takes a result.
    pub fn lock<'a>(&mut self, states: &'a [Captured]) -> Result<Vec<MutexGuard<'a, Tensor>>> {
        let mut cells: Vec<_> = states.iter().map(|captured| captured.state.lock_for_run()).collect();
        for (at, (Captured { state, is_updated, .. }, cell)) in states.iter().zip(&mut cells).enumerate() {
            let mut accesses = state.accesses();
            if self.accesses[at] == Some(accesses) && (!is_updated || self.memory.has_one_owner(at)) {
                continue;
            }
            crate::eval::eval_for("run", &[&**cell])?;
            let value = cell.on_device()?;
            let is_sole = Arc::strong_count(&cell.0) == 1 && value.has_holders(2);
            if *is_updated && !is_sole {
                let (ty, copy) = (cell.ty().clone(), value.copy()?);
                self.memory.set_state(at, copy.value());
                let device = cell.device().clone();
                **cell = state.version(Tensor::node(ty, &device, Expr::Device(copy))?);
                accesses = state.note_replacement();
            } else {
                self.memory.set_state(at, value.value());
            }
            self.accesses[at] = Some(accesses);
        }
        Ok(cells)
    }
}
