//! The graph: an append-only, hash-consed arena of nodes whose operands point backwards.
//!
//! Invariant: node order is a topological order. Invariant: no two nodes are equal, so common
//! subexpressions are one node by construction. A node has one or more results; a [`Value`] names one.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use foldhash::fast::RandomState;
use indexmap::{IndexMap, IndexSet};

use crate::dim::{Dim, Symbol};
use crate::dtype::DType;
use crate::elementwise::ElementwiseOp;
use crate::infer::infer;
use crate::op::{Op, ReduceKind};
use crate::scalar::Scalar;
use crate::shape::{Shape, TensorType};
use crate::sort::SortSpan;

/// Position of a node in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The position as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One result of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// The node.
    pub node: NodeId,
    /// Which of its results.
    pub result: u32,
}

impl From<NodeId> for Value {
    fn from(node: NodeId) -> Self {
        Value { node, result: 0 }
    }
}

/// An op with its operands and result types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it computes.
    pub op: Op,
    /// From what.
    pub operands: Vec<Value>,
    /// The type of each result.
    pub types: Vec<TensorType>,
}

/// A result of the graph, or what it leaves in a state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Output {
    /// Unique name; empty in fusion bodies, and of what is [kept](Graph::keep).
    pub name: String,
    /// The value.
    pub value: Value,
}

/// Why a node could not be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// Operand types do not fit the op.
    #[error("{op}({operands}): {why}")]
    Type {
        /// The op's name.
        op: &'static str,
        /// What is wrong.
        why: String,
        /// The operand types.
        operands: String,
    },
    /// Two leaves or outputs of one name.
    #[error("{what} '{name}' exists already")]
    Duplicate {
        /// "input", "weight", "state" or "output".
        what: &'static str,
        /// The name.
        name: String,
    },
    /// An operand that does not exist.
    #[error("{op}: operand %{node}.{result} does not exist")]
    NoSuchValue {
        /// The op's name.
        op: &'static str,
        /// Node number.
        node: u32,
        /// Result number.
        result: u32,
    },
    /// A symbol declared twice with different ranges.
    #[error("symbol '{name}' is in {}..={} and also in {}..={}", first.0, first.1, second.0, second.1)]
    SymbolRange {
        /// Its name.
        name: String,
        /// The least and the largest value seen first.
        first: (u32, u32),
        /// The others.
        second: (u32, u32),
    },
}

impl Hash for Node {
    /// Types are left out, since they follow from ops and operands; leaves have theirs in the op.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.op.hash(state);
        self.operands.hash(state);
    }
}

/// A DAG of tensor ops.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    name: String,
    /// Hashed each time that a pass copies the graph, which takes SipHash a quarter of all passes.
    nodes: IndexSet<Node, RandomState>,
    outputs: Vec<Output>,
    symbols: IndexMap<String, Symbol>,
    /// Kind and name of every leaf: each name stands for one leaf of its kind.
    leaves: HashSet<(&'static str, String)>,
}

impl PartialEq for Graph {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.outputs == other.outputs && self.nodes.iter().eq(other.nodes.iter())
    }
}

impl Eq for Graph {}

impl Hash for Graph {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
        self.outputs.hash(state);
        for node in &self.nodes {
            node.hash(state);
        }
    }
}

impl Graph {
    /// An empty graph.
    pub fn new(name: &str) -> Self {
        Graph { name: name.into(), ..Graph::default() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True without nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// All nodes in topological order.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> + ExactSizeIterator {
        self.nodes.iter().enumerate().map(|(i, n)| (NodeId(i as u32), n))
    }

    /// A node of this graph.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The op of the node of `value`.
    pub fn op(&self, value: Value) -> &Op {
        &self.node(value.node).op
    }

    /// The type of a value of this graph.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.node(value.node).types[value.result as usize]
    }

    /// The results, in order.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// The symbols that occur, in order of first use.
    pub fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.values()
    }

    /// The types of the params of a fusion body, by index.
    pub fn params(&self) -> Vec<&TensorType> {
        let mut params: Vec<(u32, &TensorType)> = self
            .nodes
            .iter()
            .filter_map(|n| if let Op::Param { index, ty } = &n.op { Some((*index, ty)) } else { None })
            .collect();
        params.sort_by_key(|(i, _)| *i);
        params.into_iter().map(|(_, ty)| ty).collect()
    }

    /// Adds a node, or finds the equal one; returns its id.
    pub fn add_node(&mut self, op: Op, operands: &[Value]) -> Result<NodeId, GraphError> {
        for v in operands {
            let known = self.nodes.get_index(v.node.index());
            if known.is_none_or(|n| v.result as usize >= n.types.len()) {
                return Err(GraphError::NoSuchValue { op: op.name(), node: v.node.0, result: v.result });
            }
        }
        let types: Vec<&TensorType> = operands.iter().map(|v| self.ty(*v)).collect();
        let types = infer(&op, &types)?;
        let (index, is_new) = self.nodes.insert_full(Node { op, operands: operands.to_vec(), types });
        if is_new {
            let node = &self.nodes[index];
            let named = declare_symbols(&mut self.symbols, &node.op, &node.types)
                .and_then(|()| name_leaf(&mut self.leaves, &node.op));
            if let Err(error) = named {
                self.nodes.pop();
                return Err(error);
            }
        }
        Ok(NodeId(index as u32))
    }

    /// Adds a node with one result.
    pub fn add(&mut self, op: Op, operands: &[Value]) -> Result<Value, GraphError> {
        self.add_node(op, operands).map(Value::from)
    }

    /// Names `value` as a result. Of blocks, those leave a graph that it makes, but not those of a leaf.
    pub fn output(&mut self, name: &str, value: impl Into<Value>) -> Result<(), GraphError> {
        if !name.is_empty() && self.outputs.iter().any(|o| o.name == name) {
            return Err(GraphError::Duplicate { what: "output", name: name.into() });
        }
        let value = value.into();
        let known = self.nodes.get_index(value.node.index());
        if known.is_none_or(|n| value.result as usize >= n.types.len()) {
            return Err(GraphError::NoSuchValue { op: "output", node: value.node.0, result: value.result });
        }
        let ty = self.ty(value);
        if !name.is_empty() && matches!(ty.dtype, DType::Block(_)) && self.op(value).is_leaf() {
            let why = "blocks of a leaf are not returned (dequantize first)".into();
            return Err(GraphError::Type { op: "output", why, operands: ty.to_string() });
        }
        self.outputs.push(Output { name: name.into(), value });
        Ok(())
    }

    /// Has a state's new version, the result of a [`StateUpdate`](Op::StateUpdate), computed though nobody is given it: a
    /// run leaves it in the state.
    ///
    /// # Errors
    /// When it is something else.
    pub fn keep(&mut self, version: impl Into<Value>) -> Result<(), GraphError> {
        let version = version.into();
        self.output("", version)?;
        match self.op(version) {
            Op::StateUpdate { .. } => Ok(()),
            other => {
                let why = format!("{} is no new version of a state", other.name());
                self.outputs.pop();
                Err(GraphError::Type { op: "keep", why, operands: self.ty(version).to_string() })
            }
        }
    }

    /// Pairs `(end, extent)` with symbols, of which each run must check `end <= extent`: the bounds of
    /// slices and state updates that no type check can decide.
    pub fn constraints(&self) -> Vec<(Dim, Dim)> {
        let mut found: Vec<(Dim, Dim)> = vec![];
        let mut need = |end: Dim, extent: &Dim| {
            if !end.le(extent) && !found.iter().any(|(e, x)| *e == end && x == extent) {
                found.push((end, extent.clone()));
            }
        };
        for node in &self.nodes {
            match &node.op {
                Op::Slice { axis, start, len } => {
                    need(start + len, &self.ty(node.operands[0]).shape.dims()[*axis]);
                }
                Op::ArgSort { axis, span: SortSpan::First(count), .. } => {
                    need(Dim::constant((*count).into()), &self.ty(node.operands[0]).shape.dims()[*axis]);
                }
                Op::StateUpdate { offsets, rows } => {
                    let (state, src) = (self.ty(node.operands[0]), self.ty(node.operands[1]));
                    let all = offsets.iter().zip(src.shape.dims()).zip(state.shape.dims()).enumerate();
                    // An index says where a row goes; there may be more rows than the state has.
                    for (_, ((o, n), extent)) in all.filter(|(axis, _)| *rows != Some(*axis)) {
                        need(o + n, extent);
                    }
                }
                Op::Fusion(f) => f.body.constraints().into_iter().for_each(|(end, x)| need(end, &x)),
                _ => {}
            }
        }
        found
    }

    /// The nodes that use each node's results, by node index; a user appears once per use.
    pub fn users(&self) -> Vec<Vec<NodeId>> {
        let mut users = vec![vec![]; self.len()];
        for (id, node) in self.nodes() {
            for v in &node.operands {
                users[v.node.index()].push(id);
            }
        }
        users
    }
}

/// Shorthands that passes, tests and the frontend share.
impl Graph {
    /// An input leaf.
    pub fn input(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Result<Value, GraphError> {
        self.add(Op::Input { name: name.into(), ty: TensorType::new(dtype, shape) }, &[])
    }

    /// A weight leaf.
    pub fn weight(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Result<Value, GraphError> {
        self.add(Op::Weight { name: name.into(), ty: TensorType::new(dtype, shape) }, &[])
    }

    /// A state leaf.
    pub fn state(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Result<Value, GraphError> {
        self.add(Op::State { name: name.into(), ty: TensorType::new(dtype, shape) }, &[])
    }

    /// A constant of the dtype of `like`, broadcast to its shape.
    pub fn full_like(&mut self, like: Value, value: f64) -> Result<Value, GraphError> {
        let ty = self.ty(like).clone();
        let scalar = self.add(Op::Const(Scalar::of(ty.dtype, value)), &[])?;
        self.broadcast(scalar, ty.shape)
    }

    /// An elementwise node.
    pub fn elementwise(&mut self, op: ElementwiseOp, operands: &[Value]) -> Result<Value, GraphError> {
        self.add(Op::Elementwise(op), operands)
    }

    /// A broadcast, or the value itself where nothing changes.
    pub fn broadcast(&mut self, a: Value, shape: impl Into<Shape>) -> Result<Value, GraphError> {
        let shape = shape.into();
        if self.ty(a).shape == shape { Ok(a) } else { self.add(Op::Broadcast(shape), &[a]) }
    }

    /// A reshape, or the value itself where nothing changes.
    pub fn reshape(&mut self, a: Value, shape: impl Into<Shape>) -> Result<Value, GraphError> {
        let shape = shape.into();
        if self.ty(a).shape == shape { Ok(a) } else { self.add(Op::Reshape(shape), &[a]) }
    }

    /// A permutation of axes.
    pub fn permute(&mut self, a: Value, axes: &[usize]) -> Result<Value, GraphError> {
        self.add(Op::Permute(axes.to_vec()), &[a])
    }

    /// A reduction whose axes stay with extent 1.
    pub fn reduce_keepdim(
        &mut self,
        kind: ReduceKind,
        a: Value,
        axes: &[usize],
    ) -> Result<Value, GraphError> {
        let shape = self.ty(a).shape.with_ones(axes);
        let reduced = self.add(Op::Reduce { kind, axes: axes.to_vec() }, &[a])?;
        self.reshape(reduced, shape)
    }
}

/// Notes the symbols of a new node; each name stands for one range.
fn declare_symbols(
    symbols: &mut IndexMap<String, Symbol>,
    op: &Op,
    types: &[TensorType],
) -> Result<(), GraphError> {
    let mut found: Vec<Symbol> =
        types.iter().flat_map(|t| t.shape.dims().iter().flat_map(Dim::symbols)).collect();
    found.extend(op.symbols());
    for symbol in found {
        match symbols.get(symbol.name()) {
            Some(known) if *known != symbol => {
                let range = |symbol: &Symbol| (symbol.least(), symbol.limit());
                let (first, second) = (range(known), range(&symbol));
                return Err(GraphError::SymbolRange { name: symbol.name().into(), first, second });
            }
            Some(_) => {}
            None => _ = symbols.insert(symbol.name().into(), symbol),
        }
    }
    Ok(())
}

/// Takes the name of a leaf that is new; an equal leaf would have been found.
fn name_leaf(leaves: &mut HashSet<(&'static str, String)>, op: &Op) -> Result<(), GraphError> {
    let (what, name) = match op {
        Op::Input { name, .. } => ("input", name.clone()),
        Op::Weight { name, .. } => ("weight", name.clone()),
        Op::State { name, .. } => ("state", name.clone()),
        Op::Param { index, .. } => ("param", index.to_string()),
        _ => return Ok(()),
    };
    match leaves.insert((what, name.clone())) {
        true => Ok(()),
        false => Err(GraphError::Duplicate { what, name }),
    }
}
