//! Random training steps: layers, a loss, its gradients, and the update of each parameter. Values of the forward pass wait
//! for the backward pass, so that memory has a peak between the two.

use tallow_ir::{DType, Dim, ElementwiseOp as E, Graph, GraphError, Op, ReduceKind, Value, gradient};

use crate::rng::Rng;

/// Training step number `seed`, of 2 to 9 layers of a few rows in f32 or f16.
///
/// # Errors
/// When the builder is wrong.
pub fn training_step(seed: u64) -> Result<Graph, GraphError> {
    training_step_of(seed, 19)
}

/// The same with up to `rows` rows. From some thousand on, kernels write results over operands.
///
/// # Errors
/// When the builder is wrong.
pub fn training_step_of(seed: u64, rows: i64) -> Result<Graph, GraphError> {
    let mut step = Step::new(seed, rows)?;
    let layers = step.rng.between(2, 9);
    for layer in 0..layers {
        step.layer(layer)?;
    }
    step.finish()
}

struct Step {
    rng: Rng,
    graph: Graph,
    dtype: DType,
    rows: i64,
    columns: i64,
    /// The rows after each layer.
    streams: Vec<Value>,
    parameters: Vec<String>,
}

impl Step {
    fn new(seed: u64, most_rows: i64) -> Result<Step, GraphError> {
        let mut rng = Rng::new(seed);
        let (rows, columns) = (rng.between(1, most_rows), rng.between(1, 37));
        let dtype = *rng.pick(&[DType::F32, DType::F32, DType::F16]);
        let mut graph = Graph::new(&format!("training_{seed}"));
        let x = graph.input("x", dtype, [rows, columns])?;
        Ok(Step { rng, graph, dtype, rows, columns, streams: vec![x], parameters: vec![] })
    }

    fn parameter(&mut self, shape: [i64; 2]) -> Result<Value, GraphError> {
        let name = format!("p{}", self.parameters.len());
        self.parameters.push(name.clone());
        let shape: Vec<Dim> = shape.into_iter().map(Dim::from).collect();
        self.graph.state(&name, self.dtype, shape)
    }

    /// Reads the last rows, or those of any layer before.
    fn layer(&mut self, number: i64) -> Result<(), GraphError> {
        let last = self.streams.len() - 1;
        let x = match self.rng.chance(80) {
            true => self.streams[last],
            false => self.streams[self.rng.below(last + 1)],
        };
        let y = match self.rng.below(5) {
            0 => self.normed(x)?,
            1 => self.mixed_rows(x)?,
            _ => {
                let w = self.parameter([self.columns, self.columns])?;
                let y = self.graph.add(Op::Matmul, &[x, w])?;
                let y = self.scaled(y, self.columns)?;
                self.activated(y)?
            }
        };
        let y =
            if self.rng.chance(40) { self.graph.elementwise(E::Add, &[y, self.streams[last]])? } else { y };
        self.streams.push(y);
        if number % 3 == 2 && self.rng.chance(30) {
            self.graph.output(&format!("y{number}"), y)?;
        }
        Ok(())
    }

    fn activated(&mut self, x: Value) -> Result<Value, GraphError> {
        match self.rng.below(4) {
            0 => self.graph.elementwise(E::Tanh, &[x]),
            1 => {
                let half = self.graph.full_like(x, 0.5)?;
                let scaled = self.graph.elementwise(E::Mul, &[x, half])?;
                let t = self.graph.elementwise(E::Tanh, &[scaled])?;
                self.graph.elementwise(E::Mul, &[t, x])
            }
            2 => {
                // A second result of the same kernel, which the next layers do not read.
                let other = self.parameter([1, self.columns])?;
                let other = self.graph.broadcast(other, [self.rows, self.columns])?;
                let t = self.graph.elementwise(E::Tanh, &[x])?;
                self.graph.elementwise(E::Mul, &[t, other])
            }
            _ => Ok(x),
        }
    }

    /// `x / sqrt(mean(x^2) + 1)` by rows.
    fn normed(&mut self, x: Value) -> Result<Value, GraphError> {
        let squares = self.graph.elementwise(E::Mul, &[x, x])?;
        let sum = self.graph.reduce_keepdim(ReduceKind::Sum, squares, &[1])?;
        let mean = self.scaled(sum, self.columns)?;
        let one = self.graph.full_like(mean, 1.0)?;
        let mean = self.graph.elementwise(E::Add, &[mean, one])?;
        let root = self.graph.elementwise(E::Sqrt, &[mean])?;
        let root = self.graph.broadcast(root, [self.rows, self.columns])?;
        self.graph.elementwise(E::Div, &[x, root])
    }

    /// A product over the rows.
    fn mixed_rows(&mut self, x: Value) -> Result<Value, GraphError> {
        let w = self.parameter([self.rows, self.rows])?;
        let y = self.graph.add(Op::Matmul, &[w, x])?;
        self.scaled(y, self.rows)
    }

    /// `x / count`, so that sums of so many terms stay in the range of f16.
    fn scaled(&mut self, x: Value, count: i64) -> Result<Value, GraphError> {
        let scale = self.graph.full_like(x, 1.0 / count as f64)?;
        self.graph.elementwise(E::Mul, &[x, scale])
    }

    fn finish(mut self) -> Result<Graph, GraphError> {
        let y = self.streams[self.streams.len() - 1];
        let y = self.scaled(y, self.rows * self.columns)?;
        let y = self.graph.elementwise(E::Mul, &[y, y])?;
        let loss = self.graph.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![0, 1] }, &[y])?;
        self.graph.output("loss", loss)?;
        let names: Vec<&str> = self.parameters.iter().map(String::as_str).collect();
        let mut graph = gradient(&self.graph, &["loss"], &names).unwrap_or(self.graph);
        let leaves: Vec<(String, Value)> = graph
            .nodes()
            .filter_map(|(id, node)| match &node.op {
                Op::State { name, .. } => Some((name.clone(), id.into())),
                _ => None,
            })
            .collect();
        let mut updates = vec![];
        for (name, state) in leaves {
            let output = graph.outputs().iter().find(|output| output.name == format!("grad.{name}"));
            let Some(value) = output.map(|output| output.value) else { continue };
            let rate = graph.full_like(value, 0.125)?;
            let step = graph.elementwise(E::Mul, &[value, rate])?;
            let next = graph.elementwise(E::Sub, &[state, step])?;
            let offsets = vec![Dim::zero(); graph.ty(state).shape.rank()];
            updates.push(graph.add(Op::StateUpdate { offsets, rows: None }, &[state, next])?);
        }
        // Without the gradients as results, which no step returns.
        let outputs: Vec<_> =
            graph.outputs().iter().filter(|output| !output.name.starts_with("grad.")).cloned().collect();
        let mut step = Graph::new(graph.name());
        let mut map = vec![];
        for (_, node) in graph.nodes() {
            let operands: Vec<Value> = node.operands.iter().map(|v| value_in(&map, *v)).collect();
            map.push(step.add_node(node.op.clone(), &operands)?);
        }
        for output in outputs {
            step.output(&output.name, value_in(&map, output.value))?;
        }
        for update in updates {
            step.keep(value_in(&map, update))?;
        }
        Ok(step)
    }
}

fn value_in(map: &[tallow_ir::NodeId], value: Value) -> Value {
    Value { node: map[value.node.index()], result: value.result }
}
