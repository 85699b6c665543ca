//! Gradients of lazy tensors: the expression of a loss becomes a graph, which is differentiated, and what that appended
//! becomes lazy tensors again.
//!
//! Gradients are expressions like any others: they read what is known of the forward pass, recompute the rest, and what
//! is computed together is fused. They themselves have no gradients.

use std::collections::HashMap;

use tallow_ir::{CustomNode, DType, Graph, Op, Value, backpropagate_with};

use crate::custom::custom_backward;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::lower::ByNode;
use crate::origin::{Origin, TensorId};
use crate::tensor::{Expr, Tensor, address};

/// Gradients by tensor, as [`Tensor::backward`] gives them for the variables that it finds.
#[derive(Clone, Debug, Default)]
pub struct GradStore(HashMap<TensorId, Tensor>);

impl GradStore {
    /// The gradient of a variable.
    pub fn get(&self, tensor: &Tensor) -> Option<&Tensor> {
        self.get_id(tensor.id())
    }

    /// The gradient of the variable of this number.
    pub fn get_id(&self, id: TensorId) -> Option<&Tensor> {
        self.0.get(&id)
    }

    /// Takes the gradient of a variable out.
    pub fn remove(&mut self, tensor: &Tensor) -> Option<Tensor> {
        self.0.remove(&tensor.id())
    }

    /// Puts a gradient in, and returns the one that was there.
    pub fn insert(&mut self, tensor: &Tensor, grad: Tensor) -> Option<Tensor> {
        self.insert_id(tensor.id(), grad)
    }

    /// Puts the gradient of the tensor of this number in, and returns the one that was there.
    pub fn insert_id(&mut self, id: TensorId, grad: Tensor) -> Option<Tensor> {
        self.0.insert(id, grad)
    }

    /// Adds the gradients of another store.
    ///
    /// # Errors
    /// When two gradients of one tensor have different shapes, element types or devices.
    pub fn extend(&mut self, other: GradStore) -> Result<()> {
        for (id, gradient) in other.0 {
            let sum = match self.0.get(&id) {
                Some(known) => known.add(&gradient)?,
                None => gradient,
            };
            self.0.insert(id, sum);
        }
        Ok(())
    }

    /// The numbers of the tensors that have a gradient.
    pub fn get_ids(&self) -> impl Iterator<Item = &TensorId> {
        self.0.keys()
    }
}

impl Tensor {
    /// The gradients of all [variables](crate::Var) that this tensor depends on: derivatives of the sum of its elements. They
    /// are lazy as other tensors are, and are computed when asked for, best together ([`crate::eval`]).
    ///
    /// # Errors
    /// When it holds no floats, or an op on the way has no derivative; the message names the ops from here to it.
    pub fn backward(&self) -> Result<GradStore> {
        if !self.dtype().is_float() {
            let expected = "a float type".to_string();
            return Err(Error::UnexpectedDType { op: "backward", expected, got: self.dtype() });
        }
        let root = self.current()?;
        let Some(mut tape) = Tape::of(&root)? else { return Ok(GradStore::default()) };
        let Some(loss) = tape.values.get(&address(&root)).copied() else { return Ok(GradStore::default()) };
        let forward = tape.graph.len();
        let seed = tape.graph.full_like(loss, 1.0)?;
        let variables: Vec<Value> = tape.variables.iter().map(|(value, _)| *value).collect();
        let found = tape.differentiate((loss, seed), &variables, root.device())?;
        let wanted: Vec<Value> = found.iter().flatten().copied().collect();
        let tensors = tape.raise(&wanted, forward, &root)?;
        let mut store = GradStore::default();
        for ((_, variable), value) in tape.variables.iter().zip(found) {
            let gradient = match value.and_then(|value| tensors.get(&value)) {
                Some(gradient) => gradient.clone(),
                // All that depends on it is constant between jumps.
                None => variable.zeros_like()?,
            };
            // A variable that changed between two uses has two values, and one gradient.
            let id = variable.id();
            let sum = store.get_id(id).map_or(Ok(gradient.clone()), |known| known.add(&gradient))?;
            store.insert_id(id, sum);
        }
        Ok(store)
    }

    /// Whether a variable has a part in its value, so that [`Tensor::backward`] finds gradients.
    pub fn track_op(&self) -> bool {
        self.origin().is_some()
    }

    /// The same value, of which gradients know nothing: for [`Tensor::backward`] it is data.
    pub fn detach(&self) -> Tensor {
        if self.origin().is_none() {
            return self.clone();
        }
        // Fails as `current` does, inside of functions only; the tensor itself is what there is then.
        self.same_value().map_or_else(|_| self.clone(), |tensor| tensor.with_origin(None, None))
    }

    /// A tensor of its own with this one's value.
    pub(crate) fn same_value(&self) -> Result<Tensor> {
        let value = self.current()?;
        let tensor = match value.is_known() {
            true => {
                let expr = value.expr().clone();
                Tensor::node(value.ty().clone(), value.device(), expr)?
            }
            // Simplification removes it.
            false => value.unary(Op::Reshape(value.sym_shape().clone()))?,
        };
        Ok(match &value.0.view {
            Some(strides) => tensor.with_strides(strides.to_vec()),
            None => tensor,
        })
    }
}

/// The part of an expression that depends on variables, as a graph. What it reads of other parts are leaves.
struct Tape {
    graph: Graph,
    values: ByNode<Value>,
    /// The tensor of each value.
    tensors: HashMap<Value, Tensor>,
    /// The leaves that are values of variables.
    variables: Vec<(Value, Tensor)>,
    /// Tensors that gradients of custom kernels read, by the names of their leaves.
    captured: HashMap<String, Tensor>,
}

impl Tape {
    /// `None` where the tensor depends on no variable.
    fn of(root: &Tensor) -> Result<Option<Tape>> {
        if root.origin().is_none() {
            return Ok(None);
        }
        let mut tape = Tape {
            graph: Graph::new("backward"),
            values: ByNode::default(),
            tensors: HashMap::new(),
            variables: vec![],
            captured: HashMap::new(),
        };
        let mut todo = vec![root.clone()];
        while let Some(tensor) = todo.last().cloned() {
            if tape.values.contains_key(&address(&tensor)) {
                todo.pop();
                continue;
            }
            let value = match tensor.origin() {
                Some(Origin::Op(op, operands, result)) => {
                    let known = |operand: &Tensor| tape.values.get(&address(operand)).copied();
                    let ready: Option<Vec<Value>> = operands.iter().map(known).collect();
                    let Some(ready) = ready else {
                        let missing = operands.iter().filter(|operand| known(operand).is_none());
                        todo.extend(missing.cloned());
                        continue;
                    };
                    Value { node: tape.graph.add_node(op.clone(), &ready)?, result: *result }
                }
                Some(Origin::Moved(_)) => {
                    let why = "it was copied from another device, and gradients do not pass between devices";
                    return Err(Error::InvalidArgument { op: "backward", why: why.into() });
                }
                Some(Origin::Variable) => {
                    let value = tape.leaf(&tensor)?;
                    tape.variables.push((value, tensor.clone()));
                    value
                }
                None => tape.leaf(&tensor)?,
            };
            tape.values.insert(address(&tensor), value);
            tape.tensors.entry(value).or_insert(tensor);
            todo.pop();
        }
        Ok(Some(tape))
    }

    fn leaf(&mut self, tensor: &Tensor) -> Result<Value> {
        leaf(&mut self.graph, "t", tensor).map(|(value, _)| value)
    }

    /// Appends the gradients of `variables`, given that of the loss.
    fn differentiate(
        &mut self,
        seed: (Value, Value),
        variables: &[Value],
        device: &Device,
    ) -> Result<Vec<Option<Value>>> {
        let Tape { graph, values, captured, .. } = self;
        let mut rule = |graph: &mut Graph, node: &CustomNode<'_>| {
            Import { graph, tape: values, known: ByNode::default(), captured }
                .rule(node, device)
                .map_err(|error| error.to_string())
        };
        Ok(backpropagate_with(graph, &[seed], variables, &mut rule)?)
    }

    /// The tensors of `wanted`, of which the nodes from number `forward` on are new.
    fn raise(&self, wanted: &[Value], forward: usize, like: &Tensor) -> Result<HashMap<Value, Tensor>> {
        let mut is_needed = vec![false; self.graph.len()];
        wanted.iter().for_each(|value| is_needed[value.node.index()] = true);
        for (id, node) in self.graph.nodes().rev().filter(|(id, _)| id.index() >= forward) {
            if is_needed[id.index()] {
                node.operands.iter().for_each(|operand| is_needed[operand.node.index()] = true);
            }
        }
        let mut tensors = self.tensors.clone();
        let new = self.graph.nodes().filter(|(id, _)| id.index() >= forward && is_needed[id.index()]);
        for (id, node) in new {
            let of = |value: &Value| tensors.get(value).cloned();
            let operands: Option<Vec<Tensor>> = node.operands.iter().map(of).collect();
            let operands = operands.ok_or_else(|| crate::error::no_value("backward"))?;
            if let Op::Input { name, .. } | Op::Weight { name, .. } = &node.op {
                let captured = self.captured.get(name).ok_or_else(|| crate::error::no_value("backward"))?;
                tensors.insert(Value::from(id), captured.clone());
                continue;
            }
            let operands: Vec<&Tensor> = operands.iter().collect();
            let made = Tensor::all_of_op(node.op.clone(), &operands, like.device())?;
            for (result, tensor) in (0..).zip(made) {
                tensors.insert(Value { node: id, result }, tensor.with_origin(None, None));
            }
        }
        Ok(tensors)
    }
}

/// The leaf of a tensor, with its name.
fn leaf(graph: &mut Graph, prefix: &str, tensor: &Tensor) -> Result<(Value, String)> {
    let (name, ty) = (format!("{prefix}{}", graph.len()), tensor.ty().clone());
    let op = match ty.dtype {
        DType::Block(_) => Op::Weight { name: name.clone(), ty },
        DType::U8
        | DType::U32
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::F8E4M3
        | DType::F16
        | DType::BF16
        | DType::F32
        | DType::F64 => Op::Input { name: name.clone(), ty },
    };
    Ok((graph.add(op, &[])?, name))
}

/// Appends expressions of tensors to a graph that is being differentiated: the gradients of custom kernels.
struct Import<'a> {
    graph: &'a mut Graph,
    /// The values of the forward pass.
    tape: &'a ByNode<Value>,
    known: ByNode<Value>,
    captured: &'a mut HashMap<String, Tensor>,
}

impl Import<'_> {
    /// The gradients of a custom kernel's operands.
    fn rule(&mut self, node: &CustomNode<'_>, device: &Device) -> Result<Option<Vec<Option<Value>>>> {
        let inputs = self.stand_ins("input", node.operands, device)?;
        let outputs = self.stand_ins("output", node.results, device)?;
        let mut given = vec![];
        for (result, gradient) in node.results.iter().zip(node.gradients) {
            given.push(match gradient {
                Some(gradient) => *gradient,
                None => self.graph.full_like(*result, 0.0)?,
            });
        }
        let gradients = self.stand_ins("gradient", &given, device)?;
        let Some(found) = custom_backward(node.custom, &inputs, &outputs, &gradients)? else {
            return Ok(None);
        };
        let mut values = vec![];
        for gradient in &found {
            values.push(match gradient {
                Some(gradient) if gradient.device() != device => {
                    return Err(device.mismatch("backward", gradient.device()));
                }
                Some(gradient) => Some(self.value(&gradient.current()?)?),
                None => None,
            });
        }
        Ok(Some(values))
    }

    /// Tensors without values that stand for these.
    fn stand_ins(&mut self, name: &str, values: &[Value], device: &Device) -> Result<Vec<Tensor>> {
        let mut tensors = vec![];
        for (i, value) in values.iter().enumerate() {
            let expr = Expr::Input(format!("{name} {i} of a kernel's gradient"));
            let tensor = Tensor::node(self.graph.ty(*value).clone(), device, expr)?;
            self.known.insert(address(&tensor), *value);
            tensors.push(tensor);
        }
        Ok(tensors)
    }

    /// The value of a tensor, whose expression is appended as far as it is new.
    fn value(&mut self, root: &Tensor) -> Result<Value> {
        let mut todo = vec![root.clone()];
        while let Some(tensor) = todo.last().cloned() {
            if self.find(&tensor).is_some() {
                todo.pop();
                continue;
            }
            let op = match &*tensor.expr() {
                Expr::Op(op, operands, result) => Some((op.clone(), operands.clone(), *result)),
                Expr::Data(_)
                | Expr::Device(_)
                | Expr::Blocks(_)
                | Expr::Input(_)
                | Expr::State(_)
                | Expr::Variable(_) => None,
            };
            let value = match op {
                Some((op, operands, result)) => {
                    let missing: Vec<&Tensor> = operands.iter().filter(|t| self.find(t).is_none()).collect();
                    if !missing.is_empty() {
                        todo.extend(missing.into_iter().cloned());
                        continue;
                    }
                    let ready: Vec<Value> = operands.iter().filter_map(|t| self.find(t)).collect();
                    Value { node: self.graph.add_node(op, &ready)?, result }
                }
                None => {
                    let (value, name) = leaf(self.graph, "c", &tensor)?;
                    self.captured.insert(name, tensor.clone());
                    value
                }
            };
            self.known.insert(address(&tensor), value);
            todo.pop();
        }
        self.find(root).ok_or_else(|| crate::error::no_value("backward"))
    }

    fn find(&self, tensor: &Tensor) -> Option<Value> {
        self.known.get(&address(tensor)).or_else(|| self.tape.get(&address(tensor))).copied()
    }
}
