//! What a fusion's body must look like for its kind, and the loop structure that follows from it.

use crate::fusion::FusionKind;
use crate::graph::Graph;

/// Why a body does not fit a kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Reason(pub String);

/// The loop structure of `body` as a kernel of `kind`.
pub fn form(_kind: FusionKind, _body: &Graph) -> Result<(), Reason> {
    Ok(())
}
