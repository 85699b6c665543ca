//! From expressions of functions to graphs: what is not known yet becomes nodes, what is known becomes leaves.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use tallow_ir::{Dim, Graph, Op, Value};

use crate::blocks::Blocks;
use crate::draws::{is_draw, is_draw_symbol};
use crate::error::{Error, Result};
use crate::state::State;
use crate::tensor::{Expr, Node, Tensor, address};

/// A graph of expressions and the tensors that its leaves stand for.
pub(crate) struct Lowered {
    /// The graph.
    pub graph: Graph,
    /// Name and tensor of each leaf whose value is known.
    pub known: Vec<(String, Tensor)>,
    /// Name and data of each leaf of blocks, which are weights in any graph.
    pub blocks: Vec<(String, Tensor, Arc<Blocks>)>,
    /// Name of each state leaf of a function, and the state.
    pub captured: Vec<(String, State)>,
    /// What each tensor became.
    pub values: ByNode<Value>,
}

fn walk(
    op: &'static str,
    name: &str,
    roots: &[&Tensor],
    inputs: &[(&str, &Tensor)],
    draws: &[Tensor],
) -> Result<Walk> {
    let mut walk = Walk {
        draws: draws.iter().map(address).collect(),
        lowered: Lowered {
            graph: Graph::new(name),
            known: vec![],
            blocks: vec![],
            captured: vec![],
            values: HashMap::default(),
        },
    };
    // Declared first, so that an input that nothing reads is still one.
    for (input, tensor) in inputs {
        let ty = tensor.ty().clone();
        let value = walk.lowered.graph.add(Op::Input { name: input.to_string(), ty }, &[])?;
        walk.lowered.values.insert(address(tensor), value);
    }
    for (i, root) in roots.iter().enumerate() {
        let value = walk.visit(op, root)?;
        walk.lowered.graph.output(&format!("y{i}"), value)?;
    }
    Ok(walk)
}

/// The graph of a function of `inputs` called `name` that returns `roots` and leaves `versions` in the states whose new
/// versions they are. `draws` are the key of its random draws and the number of the first, if it has any.
pub(crate) fn lower_function(
    name: &str,
    roots: &[&Tensor],
    inputs: &[(&str, &Tensor)],
    versions: &[(State, Tensor)],
    draws: &[Tensor],
) -> Result<Lowered> {
    let op = "compile";
    let mut walk = walk(op, name, roots, inputs, draws)?;
    let returned: Vec<Value> = walk.lowered.graph.outputs().iter().map(|output| output.value).collect();
    for (_, version) in versions {
        let value = walk.visit(op, version)?;
        walk.lowered.graph.keep(value)?;
    }
    check_symbols(&walk.lowered, draws)?;
    let graph = &walk.lowered.graph;
    let overwritten: Vec<Value> = tallow_ir::verify::updates(graph).into_iter().map(|(old, _)| old).collect();
    for mut value in returned {
        while matches!(graph.op(value), Op::Reshape(_)) {
            value = graph.node(value.node).operands[0];
        }
        if overwritten.contains(&value) {
            let why = "a function cannot return what a state held before one of its updates: \
                       read the state before the function runs"
                .into();
            return Err(Error::InvalidArgument { op, why });
        }
    }
    Ok(walk.lowered)
}

/// # Errors
/// When a symbol of the function has a name that is reserved for its random draws.
fn check_symbols(lowered: &Lowered, draws: &[Tensor]) -> Result<()> {
    let nodes: Vec<_> =
        draws.iter().filter_map(|draw| lowered.values.get(&address(draw))).map(|value| value.node).collect();
    for (id, node) in lowered.graph.nodes() {
        if nodes.contains(&id) {
            continue;
        }
        let extents = node.types.iter().flat_map(|ty| ty.shape.dims()).flat_map(Dim::symbols);
        if let Some(symbol) = node.op.symbols().into_iter().chain(extents).find(|s| is_draw_symbol(s.name()))
        {
            let why = format!("the symbol name {} is reserved for random draws", symbol.name());
            return Err(Error::InvalidArgument { op: "compile", why });
        }
    }
    Ok(())
}

/// Of what `roots` are made, the largest parts that depend on no input of a function, but on data, and that are computed:
/// views of data, constants and unpacked blocks are parts of the kernels that read them.
pub(crate) fn computed_constants(roots: &[&Tensor]) -> Vec<Tensor> {
    let mut order = Order::default();
    order.collect(roots.iter().copied());
    let order = order.all;
    // Of each node: whether it depends on an input, and whether computing it once saves anything.
    let mut found: ByNode<(bool, bool)> = ByNode::default();
    for tensor in &order {
        let facts = match &*tensor.expr() {
            Expr::Input(_) | Expr::State(_) | Expr::Variable(_) => (true, false),
            Expr::Data(_) | Expr::Device(_) | Expr::Blocks(_) => (false, false),
            Expr::Op(op, operands, _) => {
                let of = |operand: &Tensor| found.get(&address(operand)).copied().unwrap_or_default();
                let depends = operands.iter().any(|operand| of(operand).0);
                let is_constant = |operand: &Tensor| is_constant(operand);
                let free =
                    op.is_view() || matches!(op, Op::Dequantize(_)) || operands.iter().all(is_constant);
                // What has symbols has a value in each run only.
                let of_a_run = tensor.ty().shape.as_const().is_none() || !op.symbols().is_empty();
                (depends || of_a_run, !free || operands.iter().any(|operand| of(operand).1))
            }
        };
        found.insert(address(tensor), facts);
    }
    let is_part = |tensor: &Tensor| found.get(&address(tensor)).is_some_and(|(depends, _)| *depends);
    let is_computed = |tensor: &Tensor| found.get(&address(tensor)).is_some_and(|(_, computed)| *computed);
    let mut all: IndexMap<*const Node, Tensor> = IndexMap::new();
    let mut todo: Vec<Tensor> = vec![];
    for tensor in &order {
        if let Expr::Op(_, operands, _) = &*tensor.expr()
            && is_part(tensor)
        {
            todo.extend(operands.iter().filter(|operand| !is_part(operand) && is_computed(operand)).cloned());
        }
    }
    todo.extend(roots.iter().filter(|root| !is_part(root) && is_computed(root)).map(|root| (*root).clone()));
    while let Some(tensor) = todo.pop() {
        // Below views, which stay views.
        let below = match &*tensor.expr() {
            Expr::Op(op, operands, _) if op.is_view() || matches!(op, Op::Dequantize(_)) => operands.clone(),
            Expr::Op(..)
            | Expr::Data(_)
            | Expr::Device(_)
            | Expr::Blocks(_)
            | Expr::Input(_)
            | Expr::State(_)
            | Expr::Variable(_) => vec![],
        };
        match below.is_empty() {
            true => _ = all.insert(address(&tensor), tensor),
            false => todo.extend(below.into_iter().filter(|operand| is_computed(operand))),
        }
    }
    all.into_values().collect()
}

/// A node without operands that is no data.
fn is_constant(tensor: &Tensor) -> bool {
    match &*tensor.expr() {
        Expr::Op(op, operands, _) => op.is_leaf() || (op.is_view() && operands.iter().all(is_constant)),
        Expr::Data(_)
        | Expr::Device(_)
        | Expr::Blocks(_)
        | Expr::Input(_)
        | Expr::State(_)
        | Expr::Variable(_) => false,
    }
}

/// All that tensors are made of, each once, operands first. Its lists may be used again.
#[derive(Default)]
pub(crate) struct Order {
    all: Vec<Tensor>,
    seen: HashSet<*const Node, RandomState>,
    /// A tensor is entered twice: before its operands, and after them, when it takes its place.
    todo: Vec<(Tensor, bool)>,
}

impl Order {
    /// Forgets all tensors, but gives no memory back.
    pub fn clear(&mut self) {
        let Order { all, seen, todo } = self;
        all.clear();
        seen.clear();
        todo.clear();
    }

    /// The tensors.
    pub fn all(&self) -> &[Tensor] {
        &self.all
    }

    /// Becomes all that `roots` are made of.
    fn collect<'a>(&mut self, roots: impl DoubleEndedIterator<Item = &'a Tensor>) {
        self.clear();
        self.todo.extend(roots.rev().map(|root| (root.clone(), false)));
        while let Some((tensor, operands_done)) = self.todo.pop() {
            if operands_done {
                self.all.push(tensor);
            } else if self.seen.insert(address(&tensor)) {
                self.todo.push((tensor.clone(), true));
                if let Expr::Op(_, operands, _) = &*tensor.expr() {
                    self.todo.extend(operands.iter().rev().map(|operand| (operand.clone(), false)));
                }
            }
        }
    }

    /// Becomes the tensors that `roots` need and whose value is not known.
    ///
    /// # Errors
    /// When they need an input of a function.
    pub fn collect_pending(&mut self, op: &'static str, roots: &[Tensor]) -> Result<()> {
        self.collect(roots.iter());
        let mut input = None;
        self.all.retain(|tensor| match &*tensor.expr() {
            Expr::Op(op, ..) => {
                if is_draw(op) {
                    input.get_or_insert_with(|| DRAW.into());
                }
                true
            }
            Expr::Data(_) | Expr::Device(_) | Expr::Blocks(_) => false,
            Expr::Input(name) => {
                input.get_or_insert_with(|| name.clone());
                false
            }
            Expr::State(_) | Expr::Variable(_) => {
                input.get_or_insert_with(|| STATE.into());
                false
            }
        });
        match input {
            Some(input) => Err(Error::NoValue { op, input }),
            None => Ok(()),
        }
    }
}

/// What messages call a state of the function that is being compiled.
const STATE: &str = "(a state)";

/// What messages call the random numbers of a function that is being compiled.
const DRAW: &str = "(a random draw)";

/// Facts about nodes, by address.
pub(crate) type ByNode<T> = HashMap<*const Node, T, RandomState>;

struct Walk {
    lowered: Lowered,
    /// The random draws of the function: their key and the number of the first.
    draws: Vec<*const Node>,
}

impl Walk {
    /// The value of `root` in the graph; adds all that it needs, operands first, without recursion.
    fn visit(&mut self, op: &'static str, root: &Tensor) -> Result<Value> {
        let mut todo = vec![root.clone()];
        while let Some(tensor) = todo.last().cloned() {
            if self.lowered.values.contains_key(&address(&tensor)) {
                todo.pop();
                continue;
            }
            let expr = tensor.expr().clone();
            let value = match expr {
                Expr::Data(_) | Expr::Device(_) => self.leaf(&tensor)?,
                Expr::Blocks(blocks) => {
                    let name = format!("q{}", self.lowered.blocks.len());
                    self.lowered.blocks.push((name.clone(), tensor.clone(), blocks));
                    self.lowered.graph.add(Op::Weight { name, ty: tensor.ty().clone() }, &[])?
                }
                Expr::Input(input) => return Err(Error::NoValue { op, input }),
                Expr::State(state) => {
                    let name = format!("s{}", self.lowered.captured.len());
                    self.lowered.captured.push((name.clone(), state));
                    self.lowered.graph.add(Op::State { name, ty: tensor.ty().clone() }, &[])?
                }
                Expr::Variable(_) => return Err(Error::NoValue { op, input: STATE.into() }),
                // Of another function, which alone gives it a value.
                Expr::Op(draw, ..) if is_draw(&draw) && !self.draws.contains(&address(&tensor)) => {
                    return Err(Error::NoValue { op, input: DRAW.into() });
                }
                Expr::Op(node, operands, result) => {
                    let mut ready = Vec::with_capacity(operands.len());
                    for operand in &operands {
                        match self.lowered.values.get(&address(operand)) {
                            Some(value) => ready.push(*value),
                            None => todo.push(operand.clone()),
                        }
                    }
                    if ready.len() < operands.len() {
                        continue;
                    }
                    Value { node: self.lowered.graph.add_node(node, &ready)?, result }
                }
            };
            self.lowered.values.insert(address(&tensor), value);
            todo.pop();
        }
        Ok(self.lowered.values[&address(root)])
    }

    fn leaf(&mut self, tensor: &Tensor) -> Result<Value> {
        let (name, ty) = (format!("w{}", self.lowered.known.len()), tensor.ty().clone());
        self.lowered.known.push((name.clone(), tensor.clone()));
        Ok(self.lowered.graph.add(Op::Weight { name, ty }, &[])?)
    }
}
