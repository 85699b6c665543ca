//! An expression as a program sees it: its steps and leaves in the order of its graph, its integers, its leaves' values.
//!
//! A loop that evaluates one expression after another looks for a program each time. So all lists are used again: looking
//! for a program allocates nothing once the lists are as long as needed.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use foldhash::fast::FixedState;
use tallow_ir::{DType, Dim, General, Op, Scalar, structure};

use crate::blocks::Blocks;
use crate::lower::ByNode;
use crate::tensor::{Expr, Tensor, address};

/// An expression in the order of its graph. Tensors have numbers by that order.
#[derive(Default)]
pub(crate) struct Instance {
    nodes: Vec<Tensor>,
    numbers: ByNode<u32>,
    /// Operands of all steps, one after the other, by number.
    operands: Vec<u32>,
    /// Where those of each node end.
    ends: Vec<usize>,
    /// The numbers of the results.
    outputs: Vec<u32>,
    /// Extents, bounds and offsets, each as often as nodes state them.
    integers: Vec<i64>,
    hash: u64,
    /// The number of each leaf whose value is known, in the order of the graph's inputs.
    known: Vec<u32>,
    /// The float constants, which programs may be given.
    scalars: Vec<Scalar>,
    /// Where updates of known values write, which programs are given.
    offsets: Vec<u64>,
    /// Leaves of blocks, which are weights in any graph.
    blocks: Vec<(u32, Arc<Blocks>)>,
    /// What updates overwrite: the state leaves.
    states: Vec<Tensor>,
    /// The values of the symbols of extents of the program that was found.
    extents: Vec<u64>,
    todo: Vec<Tensor>,
}

/// What is hashed besides ops.
#[derive(Hash)]
enum Leaf<'a> {
    Known(DType, usize),
    Blocks(&'a tallow_ir::TensorType),
    Scalar(DType),
}

impl Instance {
    /// Forgets all tensors, but no list gives its memory back.
    pub fn clear(&mut self) {
        let Instance { nodes, numbers, operands, ends, outputs, integers, hash, .. } = self;
        nodes.clear();
        numbers.clear();
        operands.clear();
        ends.clear();
        outputs.clear();
        integers.clear();
        *hash = 0;
        let Instance { known, scalars, offsets, blocks, states, extents, todo, .. } = self;
        known.clear();
        scalars.clear();
        offsets.clear();
        blocks.clear();
        states.clear();
        extents.clear();
        todo.clear();
    }

    /// Becomes the instance of these roots, which need no input of a function: [`crate::lower::Order`] refuses those.
    pub fn collect<'a>(&mut self, roots: impl Iterator<Item = &'a Tensor>) {
        self.clear();
        let mut hasher = FixedState::default().build_hasher();
        for root in roots {
            self.visit(root, &mut hasher);
            self.outputs.push(self.numbers[&address(root)]);
        }
        self.outputs.hash(&mut hasher);
        self.hash = hasher.finish();
    }

    /// Adds all that `root` needs, operands first, without recursion.
    fn visit(&mut self, root: &Tensor, hasher: &mut impl Hasher) {
        self.todo.push(root.clone());
        while let Some(tensor) = self.todo.last().cloned() {
            if self.numbers.contains_key(&address(&tensor)) || self.enter(&tensor, hasher) {
                self.todo.pop();
            }
        }
    }

    /// Adds a tensor, unless operands of it come first: those are to do then.
    fn enter(&mut self, tensor: &Tensor, hasher: &mut impl Hasher) -> bool {
        let number = self.nodes.len() as u32;
        match &*tensor.expr() {
            Expr::Op(Op::Const(scalar), ..) if is_given(*scalar) => {
                Leaf::Scalar(scalar.dtype()).hash(hasher);
                self.scalars.push(*scalar);
            }
            Expr::Op(op, operands, result) => {
                let updated = updated(op, operands);
                let visited = &operands[usize::from(updated.is_some())..];
                let before = self.todo.len();
                let is_missing = |operand: &&Tensor| !self.numbers.contains_key(&address(operand));
                self.todo.extend(visited.iter().filter(is_missing).cloned());
                if self.todo.len() > before {
                    return false;
                }
                if let Some(state) = updated {
                    Leaf::Known(state.dtype(), state.rank()).hash(hasher);
                    self.integers.extend(state.sym_dims().iter().filter_map(Dim::as_const));
                    self.states.push(state.clone());
                }
                structure::hash(op, hasher);
                let first = self.operands.len();
                self.operands.extend(visited.iter().map(|operand| self.numbers[&address(operand)]));
                (&self.operands[first..], result).hash(hasher);
                for (at, dim) in structure::sizes(op).enumerate() {
                    match (given_offset(op, operands, at), dim.as_const()) {
                        (Some((value, _)), _) => {
                            at.hash(hasher);
                            self.offsets.push(value);
                        }
                        (None, Some(integer)) => self.integers.push(integer),
                        (None, None) => {}
                    }
                }
            }
            Expr::Blocks(blocks) => {
                Leaf::Blocks(tensor.ty()).hash(hasher);
                self.blocks.push((number, blocks.clone()));
            }
            // Inputs and states of functions were refused before.
            Expr::Data(_) | Expr::Device(_) | Expr::Input(_) | Expr::State(_) | Expr::Variable(_) => {
                Leaf::Known(tensor.dtype(), tensor.rank()).hash(hasher);
                self.integers.extend(tensor.sym_dims().iter().filter_map(Dim::as_const));
                self.known.push(number);
            }
        }
        self.ends.push(self.operands.len());
        self.nodes.push(tensor.clone());
        self.numbers.insert(address(tensor), number);
        true
    }

    /// All tensors, by number.
    pub fn nodes(&self) -> &[Tensor] {
        &self.nodes
    }

    /// Whether a tensor is a part of it.
    #[cfg(feature = "vulkan")]
    pub fn contains(&self, tensor: &Tensor) -> bool {
        self.numbers.contains_key(&address(tensor))
    }

    /// The numbers of a step's operands, without a value that it updates.
    pub(super) fn operands(&self, number: usize) -> &[u32] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.operands[start..self.ends[number]]
    }

    pub(super) fn outputs(&self) -> &[u32] {
        &self.outputs
    }

    pub(super) fn integers(&self) -> &[i64] {
        &self.integers
    }

    /// Equal for instances of one structure.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// The leaves whose values are known, in the order of the graph's inputs.
    pub fn known(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.known.iter().map(|number| &self.nodes[*number as usize])
    }

    /// Whether a graph with symbols serves it; the values of its symbols are those of [`Instance::extents`] then.
    pub(super) fn bind(&mut self, general: &General) -> bool {
        general.bind(&self.integers, &mut self.extents)
    }

    /// The values of the symbols of the graph that [`Instance::bind`] found to serve.
    pub(super) fn extents(&self) -> &[u64] {
        &self.extents
    }

    pub(super) fn scalars(&self) -> &[Scalar] {
        &self.scalars
    }

    pub(super) fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// Leaves of blocks with their data, in the order of the graph's weights.
    pub(super) fn blocks(&self) -> impl ExactSizeIterator<Item = (&Tensor, &Arc<Blocks>)> {
        self.blocks.iter().map(|(number, blocks)| (&self.nodes[*number as usize], blocks))
    }

    /// The leaf of blocks of a number, with its data.
    #[cfg(feature = "vulkan")]
    pub(super) fn block(&self, number: usize) -> Option<(&Tensor, &Arc<Blocks>)> {
        self.blocks().nth(number)
    }

    /// The known values that updates overwrite, in the order of the graph's states.
    pub fn states(&self) -> &[Tensor] {
        &self.states
    }
}

/// Whether a constant is given to programs: every value of its type is one of 32 bits.
pub(super) fn is_given(scalar: Scalar) -> bool {
    matches!(scalar.dtype(), DType::F32 | DType::F16 | DType::BF16)
}

/// The known value that an update overwrites: a state of this update alone, also where others read the value.
pub(super) fn updated<'a>(op: &Op, operands: &'a [Tensor]) -> Option<&'a Tensor> {
    operands.first().filter(|first| matches!(op, Op::StateUpdate { .. }) && first.is_known())
}

/// Of an update of a known value: an offset that programs are given, so that one serves a loop that fills a state, and its
/// largest value.
pub(super) fn given_offset(op: &Op, operands: &[Tensor], axis: usize) -> Option<(u64, u32)> {
    let Op::StateUpdate { offsets, rows } = op else { return None };
    updated(op, operands)?;
    if *rows == Some(axis) {
        return None;
    }
    let (extent, len) = (operands[0].sym_dims()[axis].as_const()?, operands[1].sym_dims()[axis].as_const()?);
    let most = u32::try_from(extent - len).ok().filter(|most| *most > 0)?;
    Some((u64::try_from(offsets[axis].as_const()?).ok()?, most))
}
