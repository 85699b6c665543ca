//! The structure of an instance, and its graph.

use tallow_ir::{DType, Dim, Graph, Op, Symbol, TensorType, Value, structure};

use super::instance::{Instance, given_offset, is_given, updated};
use crate::error::Result;
use crate::tensor::{Expr, Tensor};

/// The steps and leaves of the first instance of a structure.
pub(super) struct Recorded {
    nodes: Vec<Recording>,
    outputs: Vec<u32>,
    /// How many leaves are values that are known, and how many are blocks.
    leaves: [usize; 2],
}

struct Recording {
    what: What,
    operands: Vec<u32>,
    result: u32,
}

enum What {
    /// A value that is known.
    Known(TensorType),
    /// Blocks, whose extents are part of the structure.
    Blocks(TensorType),
    /// A constant that programs may be given.
    Scalar(DType),
    /// A step.
    Op(Op),
    /// An update of a known value. Of its offsets, those that programs are given are symbols.
    Update { op: Op, state: TensorType },
}

/// A graph, and where it has the integers of its instance: those of equal nodes are one.
pub(super) struct Lowered {
    pub graph: Graph,
    /// For each integer of the instance, which of the graph's it is.
    pub places: Vec<usize>,
}

impl Lowered {
    /// The integers of the graph for an instance with these. None where nodes that are one here differ there.
    pub fn integers(&self, instance: &[i64]) -> Option<Vec<i64>> {
        let count = self.places.iter().max().map_or(0, |last| last + 1);
        let mut integers = vec![None; count];
        for (place, integer) in self.places.iter().zip(instance) {
            if *integers[*place].get_or_insert(*integer) != *integer {
                return None;
            }
        }
        integers.into_iter().collect()
    }
}

impl Recorded {
    /// The structure of an instance. None where another thread computed a part of it meanwhile.
    pub fn of(instance: &Instance) -> Option<Recorded> {
        let mut offsets = 0;
        let node = |(number, tensor): (usize, &Tensor)| {
            let (what, result) = match &*tensor.expr() {
                Expr::Op(Op::Const(scalar), ..) if is_given(*scalar) => (What::Scalar(scalar.dtype()), 0),
                Expr::Op(op, operands, result) => match updated(op, operands) {
                    Some(state) => {
                        let (op, state) =
                            (with_given_offsets(op, operands, &mut offsets), state.ty().clone());
                        (What::Update { op, state }, *result)
                    }
                    None => (What::Op(op.clone()), *result),
                },
                Expr::Blocks(_) => (What::Blocks(tensor.ty().clone()), 0),
                Expr::Data(_) | Expr::Device(_) => (What::Known(tensor.ty().clone()), 0),
                Expr::Input(_) | Expr::State(_) | Expr::Variable(_) => return None,
            };
            Some(Recording { what, operands: instance.operands(number).to_vec(), result })
        };
        let nodes = instance.nodes().iter().enumerate().map(node).collect::<Option<Vec<_>>>()?;
        let is = |what: fn(&What) -> bool| nodes.iter().filter(|node| what(&node.what)).count();
        let leaves = [is(|what| matches!(what, What::Known(_))), is(|what| matches!(what, What::Blocks(_)))];
        // A step that was computed meanwhile is a leaf more.
        let is_whole = leaves == counts(instance);
        is_whole.then(|| Recorded { nodes, outputs: instance.outputs().to_vec(), leaves })
    }

    /// Whether an instance has this structure.
    pub fn matches(&self, instance: &Instance) -> bool {
        let nodes = instance.nodes();
        let is_alike = |(number, (node, tensor)): (usize, (&Recording, &Tensor))| {
            node.operands == instance.operands(number) && node.is_like(tensor)
        };
        self.nodes.len() == nodes.len()
            && self.leaves == counts(instance)
            && self.outputs == instance.outputs()
            && self.nodes.iter().zip(nodes).enumerate().all(is_alike)
    }

    /// The graph of the instance that was recorded.
    ///
    /// # Errors
    /// When an op refuses its operands, which were checked when it was made.
    pub fn graph(&self) -> Result<Lowered> {
        let mut builder = Builder::default();
        for node in &self.nodes {
            builder.add(node)?;
        }
        let Builder { mut graph, values, places, .. } = builder;
        for (at, number) in self.outputs.iter().enumerate() {
            graph.output(&format!("y{at}"), values[*number as usize])?;
        }
        Ok(Lowered { graph, places })
    }
}

/// How many leaves of an instance are values that are known, and how many are blocks.
fn counts(instance: &Instance) -> [usize; 2] {
    [instance.known().len(), instance.blocks().len()]
}

impl Recording {
    fn is_like(&self, tensor: &Tensor) -> bool {
        match (&self.what, &*tensor.expr()) {
            (What::Known(ty), Expr::Data(_) | Expr::Device(_)) => {
                ty.dtype == tensor.dtype() && ty.shape.rank() == tensor.rank()
            }
            (What::Blocks(ty), Expr::Blocks(_)) => ty == tensor.ty(),
            (What::Scalar(dtype), Expr::Op(Op::Const(scalar), ..)) => *dtype == scalar.dtype(),
            (What::Op(op), Expr::Op(other, operands, result)) => {
                self.result == *result && updated(other, operands).is_none() && structure::is_alike(op, other)
            }
            (What::Update { op, state }, Expr::Op(other, operands, result)) => {
                let is_given = |(axis, offset): (usize, &Dim)| {
                    given_offset(other, operands, axis).is_some() == offset.as_const().is_none()
                };
                let is_state =
                    |other: &Tensor| other.dtype() == state.dtype && other.rank() == state.shape.rank();
                self.result == *result
                    && updated(other, operands).is_some_and(is_state)
                    && structure::is_alike_without_sizes(op, other)
                    && structure::sizes(op).enumerate().all(is_given)
            }
            _ => false,
        }
    }
}

/// The update with symbols for the offsets that programs are given, of which `count` precede.
fn with_given_offsets(op: &Op, operands: &[Tensor], count: &mut usize) -> Op {
    let mut offset = |(axis, offset): (usize, &Dim)| match given_offset(op, operands, axis) {
        Some((_, most)) => {
            let symbol = Symbol::new(&format!("{OFFSET}{count}"), most);
            *count += 1;
            symbol.into()
        }
        None => offset.clone(),
    };
    let offsets = structure::sizes(op).enumerate().map(&mut offset).collect();
    structure::with_sizes(op, offsets)
}

/// What the names of constants that programs are given begin with.
pub(super) const SCALAR: &str = "c";

/// What the names of offsets that programs are given begin with.
pub(super) const OFFSET: &str = "o";

/// The name of the input for a value that is known.
pub(super) fn input_name(number: usize) -> String {
    format!("x{number}")
}

/// The name of the weight for blocks.
pub(super) fn weight_name(number: usize) -> String {
    format!("q{number}")
}

/// The name of the state for a value that is updated.
pub(super) fn state_name(number: usize) -> String {
    format!("s{number}")
}

/// The symbol of a constant.
pub(super) fn scalar_symbol(number: usize) -> Symbol {
    Symbol::new(&format!("{SCALAR}{number}"), u32::MAX)
}

struct Builder {
    graph: Graph,
    values: Vec<Value>,
    places: Vec<usize>,
    /// The number of the first integer of each node of the graph, and after the last node how many there are.
    starts: Vec<usize>,
    known: usize,
    blocks: usize,
    scalars: usize,
    states: usize,
}

impl Default for Builder {
    fn default() -> Self {
        let (values, places, starts) = (vec![], vec![], vec![0]);
        let (known, blocks, scalars, states) = (0, 0, 0, 0);
        Builder { graph: Graph::new("eval"), values, places, starts, known, blocks, scalars, states }
    }
}

impl Builder {
    fn add(&mut self, node: &Recording) -> Result<()> {
        let mut operands: Vec<Value> =
            node.operands.iter().map(|number| self.values[*number as usize]).collect();
        let op = match &node.what {
            What::Known(ty) => Op::Input { name: input_name(next(&mut self.known)), ty: ty.clone() },
            What::Blocks(ty) => Op::Weight { name: weight_name(next(&mut self.blocks)), ty: ty.clone() },
            What::Scalar(dtype) => {
                Op::Scalar { symbol: scalar_symbol(next(&mut self.scalars)), dtype: *dtype }
            }
            What::Op(op) => op.clone(),
            What::Update { op, state } => {
                let name = state_name(next(&mut self.states));
                operands.insert(0, self.node(Op::State { name, ty: state.clone() }, &[], 0)?);
                op.clone()
            }
        };
        let value = self.node(op, &operands, node.result)?;
        self.values.push(value);
        Ok(())
    }

    fn node(&mut self, op: Op, operands: &[Value], result: u32) -> Result<Value> {
        let count = structure::sizes(&op).filter(|dim| dim.as_const().is_some()).count();
        let node = self.graph.add_node(op, operands)?;
        if node.index() + 1 == self.starts.len() {
            self.starts.push(self.starts[node.index()] + count);
        }
        let start = self.starts[node.index()];
        self.places.extend(start..start + count);
        Ok(Value { node, result })
    }
}

fn next(count: &mut usize) -> usize {
    *count += 1;
    *count - 1
}
