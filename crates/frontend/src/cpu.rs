//! The interpreter as a device: the same API as a GPU, without kernels.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tallow_ir::{Bindings, DType, Graph, Op, TensorType};
use tallow_reference::{Array, Data, Env, evaluate};

use crate::error::{Error, Result};
use crate::outputs::RunOutput;
use crate::resident::{GraphState, Weight, array, lock, run_shape};
use crate::stats::ExecStats;

/// A graph's weights and states, ready to be interpreted.
#[derive(Debug)]
pub(crate) struct CpuExecutable {
    weights: HashMap<String, Arc<Array>>,
    /// By address: every executable locks in one order, so that two of them never lock each other out.
    states: Vec<(String, Arc<Mutex<Array>>)>,
    inputs: Vec<(String, TensorType)>,
    /// States that each run is given.
    given: Vec<(String, TensorType)>,
    weight_bytes: u64,
}

impl CpuExecutable {
    /// Binds the leaves of `graph`, which the caller has checked to be there.
    pub fn new(
        graph: &Graph,
        weights: &HashMap<String, Weight>,
        states: &HashMap<String, GraphState>,
    ) -> Result<Self> {
        let mut bound = CpuExecutable {
            weights: HashMap::new(),
            states: Vec::new(),
            inputs: Vec::new(),
            given: Vec::new(),
            weight_bytes: 0,
        };
        let wrong = |what, name: &str| Error::WrongDevice { what, name: name.into(), device: "cpu".into() };
        for (_, node) in graph.nodes() {
            match &node.op {
                Op::Weight { name, .. } => {
                    if let Some(weight) = weights.get(name) {
                        let data = weight.on_cpu().ok_or_else(|| wrong("weight", name))?;
                        bound.weight_bytes += weight.bytes() as u64;
                        bound.weights.insert(name.clone(), data.clone());
                    }
                }
                Op::State { name, ty } => match states.get(name) {
                    Some(state) => {
                        let data = state.on_cpu().ok_or_else(|| wrong("state", name))?;
                        bound.states.push((name.clone(), data.clone()));
                    }
                    None => bound.given.push((name.clone(), ty.clone())),
                },
                Op::Input { name, ty } => bound.inputs.push((name.clone(), ty.clone())),
                _ => {}
            }
        }
        bound.states.sort_by_key(|(_, cell)| Arc::as_ptr(cell));
        if let Some(pair) = bound.states.windows(2).find(|pair| Arc::ptr_eq(&pair[0].1, &pair[1].1)) {
            let why = format!("states {:?} and {:?} are one state", pair[0].0, pair[1].0);
            return Err(Error::InvalidArgument { op: "compile", why });
        }
        Ok(bound)
    }

    /// Evaluates the graph; values were checked by the caller. States that are not bound are given, and replaced by their
    /// new versions.
    pub fn run(
        &self,
        graph: &Graph,
        bindings: &Bindings,
        inputs: &[(&str, &[u8])],
        given_states: &mut [(&str, Arc<Vec<u8>>)],
    ) -> Result<Vec<RunOutput>> {
        let mut given = HashMap::new();
        for (name, ty) in &self.inputs {
            if let Some((_, bytes)) = inputs.iter().find(|(n, _)| n == name) {
                let value = array(ty.dtype, &run_shape(ty, bindings)?, bytes)?;
                given.insert(name.clone(), Arc::new(value));
            }
        }
        // The run owns the states while it lasts: they move into its environment and back.
        let mut guards: Vec<_> = self.states.iter().map(|(name, cell)| (name, lock(cell))).collect();
        let mut states: HashMap<String, Array> =
            guards.iter_mut().map(|(name, array)| ((*name).clone(), take(array))).collect();
        for (name, ty) in &self.given {
            if let Some((_, bytes)) = given_states.iter().find(|(given, _)| given == name) {
                states.insert(name.clone(), array(ty.dtype, &run_shape(ty, bindings)?, bytes)?);
            }
        }
        let mut env = Env { symbols: bindings.clone(), inputs: given, weights: self.weights.clone(), states };
        let result = evaluate(graph, &mut env);
        for (name, guard) in &mut guards {
            if let Some(array) = env.states.remove(*name) {
                **guard = array;
            }
        }
        for (name, bytes) in given_states {
            if let Some(array) = env.states.remove(*name) {
                *bytes = Arc::new(array.to_bytes());
            }
        }
        let outputs = result.map_err(|e| Error::Interpreter(e.to_string()))?;
        Ok(outputs
            .into_iter()
            .map(|(name, a)| RunOutput { name, shape: a.shape.clone(), dtype: a.ty, bytes: a.to_bytes() })
            .collect())
    }

    /// The interpreter has weights, and nothing else to count.
    pub fn stats(&self) -> ExecStats {
        ExecStats { weight_bytes: self.weight_bytes, ..ExecStats::default() }
    }
}

/// Moves an array out, leaving nothing.
fn take(array: &mut Array) -> Array {
    std::mem::replace(array, Array { ty: DType::U8, shape: vec![0], data: Data::Int(Arc::default()) })
}
