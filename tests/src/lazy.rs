//! The fuzzer's programs of lazy tensors: expressions are built, computed in pieces, read, copied and dropped in
//! random order, and each value read must be that of the whole program computed at once.
//!
//! A program is a graph, of which every node becomes a tensor by a method call; data for a few rounds of it; and a
//! list of [`Action`]s. The graph is evaluated by the interpreter with every node as an output, and [`Bounds`] say
//! how far a device may be from that: a piece rounds to 16-bit floats at its border, inside it a kernel need not,
//! and the bounds hold for both. Integers and what is only moved are exact.
//!
//! A seed names a program for good.

mod chains;
mod schedule;
mod shapes;
mod tensors;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use tallow::{DType, Device, Tensor};
use tallow_codegen::CodegenError;
use tallow_ir::{DeviceCaps, Graph, GraphError, Node, NodeId, Op, Value};
use tallow_reference::{Array, evaluate};

use crate::bounds::{Bounds, Interval};
use crate::random_graph::{Options, covering_graph};
use crate::random_inputs::{Inputs, random_inputs};
use crate::rng::Rng;
use schedule::schedule;

pub use schedule::{Action, At};
pub use shapes::{ShapeCounts, check_shapes};

/// A program, and what its values must be.
#[derive(Clone, Debug)]
pub struct Program {
    /// Every node but the inputs is an output.
    graph: Arc<Graph>,
    rounds: Arc<Vec<Round>>,
    /// The steps.
    pub actions: Vec<Action>,
}

/// One evaluation of the graph.
#[derive(Debug)]
struct Round {
    inputs: Inputs,
    /// By node; nothing for inputs.
    expected: Vec<Option<(Array, Interval)>>,
}

/// How often something was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Programs.
    pub programs: u64,
    /// Those of them that kernels refuse by dtype.
    pub refused: u64,
    /// Steps by name, and each node built by the name of its op.
    pub steps: BTreeMap<&'static str, u64>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} programs, {} refused by the device", self.programs, self.refused)?;
        let list: Vec<String> = self.steps.iter().map(|(name, n)| format!("{name} {n}")).collect();
        writeln!(f, "{}", list.join(", "))
    }
}

/// Types that this device computes: 64-bit ones where it has them. The interpreter takes all.
fn options(caps: Option<&DeviceCaps>) -> Options {
    let mut options = Options {
        symbols: false,
        states: false,
        weights: false,
        custom: false,
        ints: vec![DType::U8, DType::U32, DType::I16, DType::I32],
        ..Options::for_kernels()
    };
    if caps.is_none_or(|caps| caps.int64) {
        options.ints.push(DType::I64);
    }
    if caps.is_none_or(|caps| caps.float64) {
        options.floats.push(DType::F64);
    }
    options
}

impl Program {
    /// Program number `seed` for a device.
    ///
    /// # Errors
    /// When the interpreter or the bounds fail on its graph.
    pub fn new(seed: u64, device: &Device) -> Result<Program, String> {
        let mut rng = Rng::new(seed ^ 0x6c61_7a79);
        let all = options(device.caps());
        let f32_alone = Options { floats: vec![DType::F32], ..all.clone() };
        let steps = rng.below(6);
        let drawn = match seed % 4 {
            0 => covering_graph(seed, seed / 4, steps, &all),
            1 => covering_graph(seed, seed / 4, steps, &f32_alone),
            _ => chains::chain(&mut rng, &all.floats).map_err(|e| e.to_string())?,
        };
        let graph = observed(&drawn).map_err(|e| e.to_string())?;
        let count = rng.between(1, 4) as usize;
        let mut bounds = Bounds::of(&graph)?;
        let inputs = (0..count as u64).map(|round| random_inputs(&graph, seed ^ round << 32));
        let rounds =
            inputs.map(|inputs| Round::new(&graph, inputs, &mut bounds)).collect::<Result<_, _>>()?;
        let actions = schedule(&graph, count, &mut rng);
        Ok(Program { graph: Arc::new(graph), rounds: Arc::new(rounds), actions })
    }

    /// Whether kernels refuse a type in it.
    fn is_refused(&self, device: &Device) -> bool {
        let Some(caps) = device.caps() else { return false };
        matches!(tallow_codegen::compile(&self.graph, caps), Err(CodegenError::Dtype { .. }))
    }

    /// Runs the program.
    ///
    /// # Errors
    /// When a value differs or something fails; the message names the step.
    pub fn check(&self, device: &Device, tally: &mut Tally) -> Result<(), String> {
        tally.programs += 1;
        if self.is_refused(device) {
            tally.refused += 1;
            return Ok(());
        }
        let mut machine = Machine { program: self, device, handles: HashMap::new() };
        for (number, action) in self.actions.iter().enumerate() {
            *tally.steps.entry(action.name()).or_default() += 1;
            if let Action::Build(at) = action {
                *tally.steps.entry(self.node(*at).op.name()).or_default() += 1;
            }
            machine.step(action).map_err(|why| format!("step {number}, {action}: {why}"))?;
        }
        Ok(())
    }

    /// The program with as few steps as the failure needs.
    pub fn reduced(self, fails: impl Fn(&Program) -> bool) -> Program {
        let mut best = self;
        let mut size = best.actions.len();
        while size > 0 {
            let mut start = 0;
            while start < best.actions.len() {
                let end = (start + size).min(best.actions.len());
                let mut smaller = best.clone();
                smaller.actions.drain(start..end);
                if fails(&smaller) { best = smaller } else { start = end }
            }
            size /= 2;
        }
        best
    }

    fn node(&self, at: At) -> &Node {
        self.graph.node(at.node)
    }
}

/// The steps; a build with the node's text and type, so that nothing else is needed to read them.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, action) in self.actions.iter().enumerate() {
            match action {
                Action::Build(at) => {
                    let (text, ty) = (self.graph.node_text(at.node), &self.node(*at).types[0]);
                    writeln!(f, "{number:4} build {at} = {text} : {ty}")?;
                }
                other => writeln!(f, "{number:4} {other}")?,
            }
        }
        Ok(())
    }
}

/// The nodes that the outputs of `drawn` need, all of them outputs. What no method of a tensor gives becomes an input.
fn observed(drawn: &Graph) -> Result<Graph, GraphError> {
    let mut graph = Graph::new("lazy");
    let mut values: Vec<Option<Value>> = vec![None; drawn.len()];
    let needed = needed(drawn);
    for (id, node) in drawn.nodes().filter(|(id, _)| needed[id.index()]) {
        let operands: Option<Vec<Value>> = node.operands.iter().map(|v| values[v.node.index()]).collect();
        let value = match operands.filter(|_| tensors::is_supported(node)) {
            Some(operands) => graph.add(node.op.clone(), &operands)?,
            None => {
                let ty = &node.types[0];
                graph.input(&format!("cut{}", id.0), ty.dtype, ty.shape.clone())?
            }
        };
        values[id.index()] = Some(value);
    }
    let made: Vec<NodeId> =
        graph.nodes().filter(|(_, n)| !matches!(n.op, Op::Input { .. })).map(|(id, _)| id).collect();
    for id in made {
        graph.output(&name(id), id)?;
    }
    Ok(graph)
}

/// The name of a node as an output.
fn name(id: NodeId) -> String {
    format!("v{}", id.0)
}

/// By node, whether an output needs it; not beyond what becomes an input.
fn needed(graph: &Graph) -> Vec<bool> {
    let mut needed = vec![false; graph.len()];
    graph.outputs().iter().for_each(|output| needed[output.value.node.index()] = true);
    for (id, node) in graph.nodes().rev() {
        if needed[id.index()] && tensors::is_supported(node) {
            node.operands.iter().for_each(|v| needed[v.node.index()] = true);
        }
    }
    needed
}

impl Round {
    fn new(graph: &Graph, inputs: Inputs, bounds: &mut Bounds) -> Result<Round, String> {
        let arrays = evaluate(graph, &mut inputs.env()).map_err(|e| e.to_string())?;
        let mut intervals: HashMap<String, Interval> = bounds.run(&inputs)?.into_iter().collect();
        let mut arrays: HashMap<String, Array> = arrays.into_iter().collect();
        let both = |id: NodeId| Some((arrays.remove(&name(id))?, intervals.remove(&name(id))?));
        let expected = graph.nodes().map(|(id, _)| id).map(both).collect();
        Ok(Round { inputs, expected })
    }
}

/// The tensors that a program has in hand.
struct Machine<'a> {
    program: &'a Program,
    device: &'a Device,
    /// The handles of each, never an empty list.
    handles: HashMap<At, Vec<Tensor>>,
}

impl Machine<'_> {
    fn step(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::Build(at) => self.build(*at),
            Action::Eval(all) => self.eval(all),
            Action::Threads(lists) => self.threads(lists),
            Action::Read(at) => self.read(*at),
            Action::Clone(at) => {
                if let Some(handles) = self.handles.get_mut(at) {
                    handles.push(handles[0].clone());
                }
                Ok(())
            }
            Action::Drop(at) => {
                // The oldest handle goes, and its clone is read.
                if let Some(handles) = self.handles.get_mut(at) {
                    handles.swap_remove(0);
                }
                self.handles.retain(|_, handles| !handles.is_empty());
                Ok(())
            }
            Action::Synchronize => self.device.synchronize().map_err(|e| e.to_string()),
        }
    }

    fn eval(&self, all: &[At]) -> Result<(), String> {
        let tensors: Vec<&Tensor> =
            all.iter().filter_map(|at| self.handles.get(at)).map(|handles| &handles[0]).collect();
        tallow::eval(&tensors).map_err(|e| e.to_string())
    }

    fn build(&mut self, at: At) -> Result<(), String> {
        let (node, round) = (self.program.node(at), &self.program.rounds[at.round]);
        let operand = |v: &Value| {
            let handles = self.handles.get(&At { node: v.node, ..at })?;
            handles.last().cloned()
        };
        let Some(operands) = node.operands.iter().map(operand).collect::<Option<Vec<Tensor>>>() else {
            return Ok(());
        };
        let leaf = match &node.op {
            Op::Input { name, .. } => round.inputs.inputs.get(name),
            _ => None,
        };
        let tensor = tensors::build(node, &operands, leaf, self.device).map_err(|e| e.to_string())?;
        if !tensors::has_type(&tensor, &node.types[0]) {
            return Err(format!("is {}{}, not {}", tensor.dtype(), tensor.shape(), node.types[0]));
        }
        self.handles.insert(at, vec![tensor]);
        Ok(())
    }

    fn threads<'a>(&'a self, lists: &'a [Vec<At>]) -> Result<(), String> {
        std::thread::scope(|scope| {
            let run = |all: &'a Vec<At>| {
                scope.spawn(move || {
                    self.eval(all)?;
                    all.first().map_or(Ok(()), |at| self.read(*at))
                })
            };
            let started: Vec<_> = lists.iter().map(run).collect();
            let joined = |thread: std::thread::ScopedJoinHandle<Result<(), String>>| {
                thread.join().unwrap_or_else(|_| Err("a thread panicked".into()))
            };
            // All are waited for before the first error is returned.
            started.into_iter().map(joined).collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// Compares a value, if there is such a tensor.
    fn read(&self, at: At) -> Result<(), String> {
        let Some(tensor) = self.handles.get(&at).map(|handles| &handles[0]) else { return Ok(()) };
        let bytes = tensor.raw_bytes().map_err(|e| e.to_string())?;
        let round = &self.program.rounds[at.round];
        if let Op::Input { name, .. } = &self.program.node(at).op {
            let same = round.inputs.inputs.get(name).is_some_and(|leaf| leaf.bytes == *bytes);
            return if same { Ok(()) } else { Err(format!("input {name} is no longer what it was")) };
        }
        let Some((expected, interval)) = &round.expected[at.node.index()] else {
            return Err("nothing is expected".into());
        };
        let dims = tensor.dims();
        let got = Array::from_bytes(tensor.dtype(), dims, &bytes).map_err(|e| e.to_string())?;
        interval.check(expected, &got).map_err(|why| why.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_names_a_program() {
        for seed in 0..8 {
            let text = |seed| Program::new(seed, &Device::Cpu).unwrap().to_string();
            assert_eq!(text(seed), text(seed));
            assert_ne!(text(seed), text(seed + 8));
        }
    }

    /// The interpreter computes pieces as a device does, and at the rounding of each.
    #[test]
    fn segments_match_the_undivided_program() {
        let mut tally = Tally::default();
        for seed in 0..100 {
            let program = Program::new(seed, &Device::Cpu).unwrap();
            program
                .check(&Device::Cpu, &mut tally)
                .unwrap_or_else(|why| panic!("seed {seed}: {why}\n{program}"));
        }
        for action in ["build", "eval", "threads", "read", "clone", "drop", "synchronize"] {
            assert!(tally.steps.contains_key(action), "never: {action}\n{tally}");
        }
    }

    #[test]
    fn what_remains_is_what_the_failure_needs() {
        let program = Program::new(2, &Device::Cpu).unwrap();
        let reads = |p: &Program| p.actions.iter().filter(|a| matches!(a, Action::Read(_))).count() >= 2;
        assert!(reads(&program));
        assert_eq!(program.reduced(reads).actions.len(), 2);
    }

    /// Memory that is used again too early holds what another tensor was given, say the same one of another round.
    #[test]
    fn the_value_of_another_round_is_an_error() {
        let (mut differ, mut found) = (0, 0);
        for seed in 0..40 {
            let program = Program::new(seed, &Device::Cpu).unwrap();
            for pair in program.rounds.windows(2) {
                let both = pair[0].expected.iter().zip(&pair[1].expected);
                for ((right, interval), (wrong, _)) in both.filter_map(|(a, b)| a.as_ref().zip(b.as_ref())) {
                    interval.check(right, right).unwrap();
                    differ += usize::from(right.to_bytes() != wrong.to_bytes());
                    found += usize::from(interval.check(right, wrong).is_err());
                }
            }
        }
        println!("{found} of {differ}");
        assert!(differ > 300 && found * 10 > differ * 9, "{found} of {differ}");
    }
}
