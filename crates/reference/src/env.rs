//! What a graph runs in: values for its symbols and leaves.

use std::collections::HashMap;
use std::sync::Arc;

use tallow_ir::Bindings;

use crate::array::Array;

/// Values of symbols and leaves, by name. What a graph does not name is ignored.
#[derive(Clone, Debug, Default)]
pub struct Env {
    /// Values of the symbols in shapes.
    pub symbols: Bindings,
    /// Tensors given at each run.
    pub inputs: HashMap<String, Arc<Array>>,
    /// Constant tensors.
    pub weights: HashMap<String, Arc<Array>>,
    /// Tensors that outlive runs; a run leaves the newest version of each here.
    pub states: HashMap<String, Array>,
}
