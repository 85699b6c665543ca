//! Cache of legality results by kernel body: layers repeat, and so do the bodies that are tried.

use std::cell::RefCell;
use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::caps::DeviceCaps;
use crate::dot;
use crate::form::{Form, Reason, form, reductions_fit_shared_memory};
use crate::fusion::FusionKind;
use crate::graph::Graph;

/// Maximum bodies in the cache: many more than differ in a model, and little memory beside a graph of as many kernels.
const MOST: usize = 4096;

/// A row kernel that is better split into several kernels: workgroups per row, and bindings for their partials.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitRow {
    pub slices: u32,
    pub bindings: u64,
}

type Legality = Result<Option<SplitRow>, Reason>;

/// Legality of bodies as kernels of a kind, on one device.
#[derive(Default)]
pub(super) struct Forms {
    known: RefCell<HashMap<(FusionKind, Graph), Legality, RandomState>>,
}

impl Forms {
    /// Whether `body` is a legal kernel of `kind` on the device, and whether it is better split.
    pub fn of(&self, kind: FusionKind, body: Graph, caps: &DeviceCaps) -> Legality {
        let key = (kind, body);
        if let Some(found) = self.known.borrow().get(&key) {
            return found.clone();
        }
        let found = judge(kind, &key.1, caps);
        let mut known = self.known.borrow_mut();
        if known.len() == MOST {
            known.clear();
        }
        known.insert(key, found.clone());
        found
    }
}

fn judge(kind: FusionKind, body: &Graph, caps: &DeviceCaps) -> Legality {
    let form = form(kind, body)?;
    computable(body, &form, caps)?;
    Ok(match form {
        Form::Row(rows) if rows.is_better_unfused(body) => {
            rows.slices().map(|slices| SplitRow { slices, bindings: rows.partial_bindings() })
        }
        _ => None,
    })
}

/// Whether the device supports the kernel's quantization of its left operand, or its reduction of results.
fn computable(body: &Graph, form: &Form, caps: &DeviceCaps) -> Result<(), Reason> {
    match form {
        Form::Contraction(c)
            if dot::quantize_node(body, c.lhs).is_some() && !dot::supported(body, c, caps) =>
        {
            Err(Reason("no integer dot products with these weights on this device".into()))
        }
        Form::Contraction(c) if !reductions_fit_shared_memory(body, c, caps) => {
            Err(Reason("no shared memory for the results that are reduced".into()))
        }
        _ => Ok(()),
    }
}
