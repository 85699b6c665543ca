//! Fused graphs compared by what they compute: whatever kernels there are, the same nodes must give the results.

use std::collections::HashMap;

use crate::graph::{Graph, GraphError, Output, Value};
use crate::op::Op;

/// Whether two graphs give the same results by the same operations on the same leaves. Which kernels compute them, in
/// which order and how often, does not matter.
///
/// # Errors
/// When a fusion's body does not fit its operands, which the verifier rejects.
pub fn same_results(a: &Graph, b: &Graph) -> Result<bool, GraphError> {
    let mut flat = Flat { graph: Graph::new("flat"), leaves: HashMap::new() };
    Ok(flat.results(a)? == flat.results(b)?)
}

/// A graph without fusions. Nodes are unique, so equal values of several graphs are one value here.
struct Flat {
    graph: Graph,
    leaves: HashMap<Op, Value>,
}

impl Flat {
    /// The results of `graph`, whose nodes are added.
    fn results(&mut self, graph: &Graph) -> Result<Vec<Output>, GraphError> {
        let mut map: HashMap<Value, Value> = HashMap::new();
        for (id, node) in graph.nodes() {
            let operands: Vec<Value> = node.operands.iter().map(|v| map[v]).collect();
            let made = match &node.op {
                Op::Fusion(fusion) => self.body(&fusion.body, &operands)?,
                op => self.node(op, &operands, node.types.len())?,
            };
            for (result, value) in made.into_iter().enumerate() {
                map.insert(Value { node: id, result: result as u32 }, value);
            }
        }
        let output = |output: &Output| Output { name: output.name.clone(), value: map[&output.value] };
        Ok(graph.outputs().iter().map(output).collect())
    }

    /// The results of a fusion's body on these operands.
    fn body(&mut self, body: &Graph, operands: &[Value]) -> Result<Vec<Value>, GraphError> {
        let mut map: HashMap<Value, Value> = HashMap::new();
        for (id, node) in body.nodes() {
            let made = match &node.op {
                Op::Param { index, .. } => operands.get(*index as usize).copied().into_iter().collect(),
                op => {
                    let operands: Vec<Value> = node.operands.iter().map(|v| map[v]).collect();
                    self.node(op, &operands, node.types.len())?
                }
            };
            for (result, value) in made.into_iter().enumerate() {
                map.insert(Value { node: id, result: result as u32 }, value);
            }
        }
        Ok(body.outputs().iter().map(|output| map[&output.value]).collect())
    }

    fn node(&mut self, op: &Op, operands: &[Value], results: usize) -> Result<Vec<Value>, GraphError> {
        if let Some(leaf) = self.leaves.get(op) {
            return Ok(vec![*leaf]);
        }
        let node = self.graph.add_node(op.clone(), operands)?;
        if op.is_leaf() {
            self.leaves.insert(op.clone(), node.into());
        }
        Ok((0..results as u32).map(|result| Value { node, result }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;

    /// Twice the double of `x`, in these kernels.
    fn graph(kernels: &str, result: &str) -> Graph {
        let text =
            format!("graph \"g\" {{\n%0 = input \"x\" : f32[3]\n{kernels}\nreturn {result} as \"y\"\n}}");
        parse(&text).unwrap()
    }

    #[test]
    fn kernels_that_run_again_give_the_same_results() {
        let double = "{\n%0 = param 0 : f32[3]\n%1 = add %0 %0 : f32[3]\nreturn %1\n}";
        let once = graph(
            &format!("%1 = fusion map %0 : f32[3] {double}\n%2 = fusion map %1 : f32[3] {double}"),
            "%2",
        );
        let again = graph(
            &format!(
                "%1 = fusion map %0 : f32[3] {double}\n%2 = fusion map %0 run=1 : f32[3] {double}\n\
                 %3 = fusion map %2 : f32[3] {double}"
            ),
            "%3",
        );
        let other = graph(&format!("%1 = fusion map %0 : f32[3] {double}"), "%1");
        assert_eq!(same_results(&once, &again), Ok(true));
        assert_eq!(same_results(&once, &other), Ok(false));
    }
}
