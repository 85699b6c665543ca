//! From expressions to graphs: what is not known yet becomes nodes, what is known becomes leaves.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use tallow_ir::{DType, Dim, Graph, Op, Scalar, Symbol, Value};

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
    /// The float constants that the graph is given, where values that are known are inputs.
    pub scalars: Vec<(Symbol, Scalar)>,
    /// Where updates of known values write, which the graph is given too.
    pub offsets: Vec<(Symbol, u64)>,
    /// The values of symbols of extents, where the program that was found has some.
    pub extents: Vec<(Symbol, u64)>,
    /// Name and data of each leaf of blocks, which are weights in any graph.
    pub blocks: Vec<(String, Tensor, Arc<Blocks>)>,
    /// Name of each state leaf, and the known value that an update overwrites.
    pub states: Vec<(String, Tensor)>,
    /// Name of each state leaf of a function, and the state.
    pub captured: Vec<(String, State)>,
    /// What each tensor became.
    pub values: ByNode<Value>,
}

/// What a tensor whose value is known becomes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KnownAs {
    /// Given at each run: one compiled graph serves every loop iteration.
    Input,
    /// Resident on the device.
    Weight,
}

/// The graph called `name` with `roots` as its outputs `y0`, `y1`, ...
///
/// Leaves are numbered in the order of a walk from the roots, so that equal expressions give equal graphs
/// whichever tensors they are about.
pub(crate) fn lower(op: &'static str, name: &str, roots: &[&Tensor]) -> Result<Lowered> {
    Ok(walk(op, name, roots, KnownAs::Input, &[], &[])?.lowered)
}

fn walk(
    op: &'static str,
    name: &str,
    roots: &[&Tensor],
    known_as: KnownAs,
    inputs: &[(&str, &Tensor)],
    draws: &[Tensor],
) -> Result<Walk> {
    let mut walk = Walk {
        draws: draws.iter().map(address).collect(),
        lowered: Lowered {
            graph: Graph::new(name),
            known: vec![],
            scalars: vec![],
            offsets: vec![],
            extents: vec![],
            blocks: vec![],
            states: vec![],
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
        let value = walk.visit(op, root, known_as)?;
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
    let mut walk = walk(op, name, roots, KnownAs::Weight, inputs, draws)?;
    let returned: Vec<Value> = walk.lowered.graph.outputs().iter().map(|output| output.value).collect();
    for (_, version) in versions {
        let value = walk.visit(op, version, KnownAs::Weight)?;
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

/// The tensors that `roots` need and whose value is not known, each once, operands first.
pub(crate) fn pending(op: &'static str, roots: &[&Tensor]) -> Result<Vec<Tensor>> {
    let mut order = operands_first(roots);
    let mut input = None;
    order.retain(|tensor| match &*tensor.expr() {
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
        None => Ok(order),
    }
}

/// Of what `roots` are made, the largest parts that depend on no input of a function, but on data, and that are computed:
/// views of data, constants and unpacked blocks are parts of the kernels that read them.
pub(crate) fn computed_constants(roots: &[&Tensor]) -> Vec<Tensor> {
    let order = operands_first(roots);
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

/// All that `roots` are made of, each once, operands first.
fn operands_first(roots: &[&Tensor]) -> Vec<Tensor> {
    let mut order = Vec::new();
    let mut seen: HashSet<*const Node, RandomState> = HashSet::default();
    // A tensor is entered twice: before its operands, and after them, when it takes its place.
    let mut todo: Vec<(Tensor, bool)> = roots.iter().rev().map(|root| ((*root).clone(), false)).collect();
    while let Some((tensor, operands_done)) = todo.pop() {
        if operands_done {
            order.push(tensor);
        } else if seen.insert(address(&tensor)) {
            let operands = match &*tensor.expr() {
                Expr::Op(_, operands, _) => operands.clone(),
                Expr::Data(_)
                | Expr::Device(_)
                | Expr::Blocks(_)
                | Expr::Input(_)
                | Expr::State(_)
                | Expr::Variable(_) => vec![],
            };
            todo.push((tensor, true));
            todo.extend(operands.into_iter().rev().map(|operand| (operand, false)));
        }
    }
    order
}

/// Whether every value of the type is that of 32 bits.
fn is_short_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
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
    fn visit(&mut self, op: &'static str, root: &Tensor, known_as: KnownAs) -> Result<Value> {
        let mut todo = vec![root.clone()];
        while let Some(tensor) = todo.last().cloned() {
            if self.lowered.values.contains_key(&address(&tensor)) {
                todo.pop();
                continue;
            }
            let expr = tensor.expr().clone();
            let value = match expr {
                Expr::Data(_) | Expr::Device(_) => self.leaf(&tensor, known_as)?,
                Expr::Blocks(blocks) => {
                    let name = format!("q{}", self.lowered.blocks.len());
                    self.lowered.blocks.push((name.clone(), tensor.clone(), blocks));
                    self.lowered.graph.add(Op::Weight { name, ty: tensor.ty().clone() }, &[])?
                }
                Expr::Input(input) => return Err(Error::NoValue { op, input }),
                Expr::State(state) if known_as == KnownAs::Weight => {
                    let name = format!("s{}", self.lowered.captured.len());
                    self.lowered.captured.push((name.clone(), state));
                    self.lowered.graph.add(Op::State { name, ty: tensor.ty().clone() }, &[])?
                }
                Expr::State(_) | Expr::Variable(_) => return Err(Error::NoValue { op, input: STATE.into() }),
                // Of another function, which alone gives it a value.
                Expr::Op(draw, ..) if is_draw(&draw) && !self.draws.contains(&address(&tensor)) => {
                    return Err(Error::NoValue { op, input: DRAW.into() });
                }
                Expr::Op(Op::Const(scalar), _, _)
                    if known_as == KnownAs::Input && is_short_float(scalar.dtype()) =>
                {
                    let symbol = Symbol::new(&format!("c{}", self.lowered.scalars.len()), u32::MAX);
                    self.lowered.scalars.push((symbol.clone(), scalar));
                    self.lowered.graph.add(Op::Scalar { symbol, dtype: scalar.dtype() }, &[])?
                }
                Expr::Op(node, operands, result) => {
                    // A value that is updated is a state of this update alone, also where others read the value.
                    let updates = matches!(node, Op::StateUpdate { .. }) && operands[0].is_known();
                    let visited = &operands[usize::from(updates)..];
                    let mut ready = Vec::with_capacity(operands.len());
                    for operand in visited {
                        match self.lowered.values.get(&address(operand)) {
                            Some(value) => ready.push(*value),
                            None => todo.push(operand.clone()),
                        }
                    }
                    if ready.len() < visited.len() {
                        continue;
                    }
                    let node = match updates {
                        true => {
                            ready.insert(0, self.updated(&operands[0])?);
                            self.with_given_offsets(node, &operands)
                        }
                        false => node,
                    };
                    Value { node: self.lowered.graph.add_node(node, &ready)?, result }
                }
            };
            self.lowered.values.insert(address(&tensor), value);
            todo.pop();
        }
        Ok(self.lowered.values[&address(root)])
    }

    /// The state leaf of an update of a known value.
    fn updated(&mut self, tensor: &Tensor) -> Result<Value> {
        let name = format!("s{}", self.lowered.states.len());
        self.lowered.states.push((name.clone(), tensor.clone()));
        Ok(self.lowered.graph.add(Op::State { name, ty: tensor.ty().clone() }, &[])?)
    }

    /// The update with its offsets as symbols, so that one program serves a loop that fills a state.
    fn with_given_offsets(&mut self, update: Op, operands: &[Tensor]) -> Op {
        let Op::StateUpdate { offsets, rows } = update else { return update };
        let extents = operands[0].sym_dims().iter().zip(operands[1].sym_dims());
        let mut given = |(axis, (offset, (extent, len))): (usize, (Dim, (&Dim, &Dim)))| {
            if rows == Some(axis) {
                return offset;
            }
            let numbers = (offset.as_const(), (extent - len).as_const());
            let (Some(value), Some(most @ 1..)) = numbers else { return offset };
            let (Ok(value), Ok(most)) = (u64::try_from(value), u32::try_from(most)) else { return offset };
            let symbol = Symbol::new(&format!("o{}", self.lowered.offsets.len()), most);
            self.lowered.offsets.push((symbol.clone(), value));
            Dim::from(&symbol)
        };
        let offsets = offsets.into_iter().zip(extents).enumerate().map(&mut given).collect();
        Op::StateUpdate { offsets, rows }
    }

    fn leaf(&mut self, tensor: &Tensor, known_as: KnownAs) -> Result<Value> {
        let ty = tensor.ty().clone();
        let number = self.lowered.known.len();
        let (name, op) = match known_as {
            KnownAs::Input => {
                let name = format!("x{number}");
                (name.clone(), Op::Input { name, ty })
            }
            KnownAs::Weight => {
                let name = format!("w{number}");
                (name.clone(), Op::Weight { name, ty })
            }
        };
        self.lowered.known.push((name, tensor.clone()));
        Ok(self.lowered.graph.add(op, &[])?)
    }
}
