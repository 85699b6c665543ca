//! Cache of legality results by kernel body: layers repeat, and so do the bodies that are tried.

use std::cell::RefCell;
use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::caps::DeviceCaps;
use crate::dot;
use crate::form::{Form, Reason, form, results_fit};
use crate::fusion::FusionKind;
use crate::graph::Graph;

/// Maximum bodies in the cache: many more than differ in a model, and little memory beside a graph of as many kernels.
const MOST: usize = 4096;

/// A row kernel that is better split into several kernels: workgroups per row, and bindings for their partials.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    pub parts: u32,
    pub places: u64,
}

type Found = Result<Option<Shared>, Reason>;

/// Legality of bodies as kernels of a kind, on one device.
#[derive(Default)]
pub(super) struct Forms {
    known: RefCell<HashMap<(FusionKind, Graph), Found, RandomState>>,
}

impl Forms {
    /// Whether `body` is a legal kernel of `kind` on the device, and whether it is better split.
    pub fn of(&self, kind: FusionKind, body: Graph, caps: &DeviceCaps) -> Found {
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

fn judge(kind: FusionKind, body: &Graph, caps: &DeviceCaps) -> Found {
    let form = form(kind, body)?;
    computable(body, &form, caps)?;
    Ok(match form {
        Form::Row(rows) if rows.better_apart(body) => {
            rows.parts().map(|parts| Shared { parts, places: rows.meeting_places() })
        }
        _ => None,
    })
}

/// Whether the device supports the kernel's quantization of its left operand, or its reduction of results.
fn computable(body: &Graph, form: &Form, caps: &DeviceCaps) -> Result<(), Reason> {
    match form {
        Form::Contraction(c) if dot::rounding(body, c.lhs).is_some() && !dot::supported(body, c, caps) => {
            Err(Reason("no integer dot products with these weights on this device".into()))
        }
        Form::Contraction(c) if !results_fit(body, c, caps) => {
            Err(Reason("no shared memory for the results that are reduced".into()))
        }
        _ => Ok(()),
    }
}
