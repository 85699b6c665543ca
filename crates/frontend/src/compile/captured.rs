//! The states that the runs of a function read and update.

use crate::state::State;
use crate::tensor::Tensor;

/// A state that a function reads or updates.
#[derive(Debug)]
pub(super) struct Captured {
    pub(super) name: String,
    pub(super) state: State,
    pub(super) is_updated: bool,
}

impl Captured {
    /// In the order in which runs lock them: two runs at once never wait for each other.
    pub(super) fn of(captured: Vec<(String, State)>, versions: &[(State, Tensor)]) -> Vec<Captured> {
        let is_updated = |state: &State| versions.iter().any(|(updated, _)| updated.is_same(state));
        let one = |(name, state): (String, State)| {
            let is_updated = is_updated(&state);
            Captured { name, state, is_updated }
        };
        let mut all: Vec<Captured> = captured.into_iter().map(one).collect();
        all.sort_by_key(|captured| captured.state.address());
        all
    }
}
