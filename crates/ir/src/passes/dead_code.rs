//! Dead code elimination. Inputs stay: callers supply them by name.

use crate::caps::DeviceCaps;
use crate::graph::{Graph, GraphError};
use crate::rewrite::rebuild;

/// The pass.
pub fn run(graph: &Graph, _: &DeviceCaps) -> Result<Graph, GraphError> {
    rebuild(graph, |_, _, _| Ok(None))
}
