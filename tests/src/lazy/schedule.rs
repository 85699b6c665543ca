//! When a program computes, reads, copies and drops its tensors.

use std::collections::HashMap;
use std::fmt;

use tallow_ir::{Graph, NodeId};

use crate::rng::Rng;

/// A tensor of a program: the result of node `node` of the graph from the inputs of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct At {
    /// The round.
    pub round: usize,
    /// The node.
    pub node: NodeId,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.%{}", self.round, self.node.0)
    }
}

/// A step of a program. What it names and does not exist (any more) is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Calls the method that makes the tensor.
    Build(At),
    /// Computes these together.
    Eval(Vec<At>),
    /// Each list is computed by a thread of its own, which then reads the first; all at the same time.
    Threads(Vec<Vec<At>>),
    /// Reads the value and compares it.
    Read(At),
    /// Another handle of the same tensor.
    Clone(At),
    /// Drops a handle.
    Drop(At),
    /// Waits for the device.
    Synchronize,
}

impl Action {
    /// A name for counting.
    pub fn name(&self) -> &'static str {
        match self {
            Action::Build(_) => "build",
            Action::Eval(_) => "eval",
            Action::Threads(_) => "threads",
            Action::Read(_) => "read",
            Action::Clone(_) => "clone",
            Action::Drop(_) => "drop",
            Action::Synchronize => "synchronize",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |all: &[At]| all.iter().map(At::to_string).collect::<Vec<_>>().join(" ");
        match self {
            Action::Build(at) | Action::Read(at) | Action::Clone(at) | Action::Drop(at) => {
                write!(f, "{} {at}", self.name())
            }
            Action::Eval(all) => write!(f, "eval {}", list(all)),
            Action::Threads(lists) => {
                let lists: Vec<String> = lists.iter().map(|all| list(all)).collect();
                write!(f, "threads {}", lists.join(" | "))
            }
            Action::Synchronize => f.write_str("synchronize"),
        }
    }
}

/// How often in a hundred chances a program does something. Programs differ in it: one forces each value as eager
/// code does, another computes everything at the end.
struct Habits {
    /// Compute what was just built.
    eval: usize,
    /// Read something between two steps.
    read: usize,
    /// Drop what nothing that is still to be built needs.
    drop: usize,
    /// Do something else between two steps.
    other: usize,
}

/// The steps of `rounds` runs of `graph`.
pub fn schedule(graph: &Graph, rounds: usize, rng: &mut Rng) -> Vec<Action> {
    let habits = Habits {
        eval: *rng.pick(&[0, 10, 30, 60, 100]),
        read: *rng.pick(&[0, 3, 10, 30]),
        drop: *rng.pick(&[0, 50, 90, 100]),
        other: *rng.pick(&[2, 10, 25]),
    };
    // Like iterations of a loop, so that compiled graphs are found again, or mixed.
    if rng.chance(60) { looped(graph, rounds, &habits, rng) } else { mixed(graph, rounds, &habits, rng) }
}

/// The same steps for each round, one round after the other. What a round leaves is read while later ones run.
fn looped(graph: &Graph, rounds: usize, habits: &Habits, rng: &mut Rng) -> Vec<Action> {
    let mut one = Scheduler::new(graph, habits, rng);
    one.start(0);
    for node in graph.nodes().map(|(id, _)| id) {
        one.build(At { round: 0, node });
    }
    let (body, left) = (one.actions, one.live);
    let mut all: Vec<Action> = vec![];
    let mut old: Vec<At> = vec![];
    for round in 0..rounds {
        let of_round = |at: &At| At { round, ..*at };
        for action in &body {
            all.push(in_round(action, of_round));
            if rng.chance(5) && !old.is_empty() {
                let at = rng.below(old.len());
                all.push(Action::Read(old[at]));
                if rng.chance(50) {
                    all.push(Action::Drop(old.swap_remove(at)));
                }
            }
        }
        old.extend(left.iter().map(of_round));
    }
    finish(&mut all, old, rng);
    all
}

/// All rounds at once: the next step is one of any of them.
fn mixed(graph: &Graph, rounds: usize, habits: &Habits, rng: &mut Rng) -> Vec<Action> {
    let mut all = Scheduler::new(graph, habits, rng);
    (0..rounds).for_each(|round| all.start(round));
    let nodes: Vec<NodeId> = graph.nodes().map(|(id, _)| id).collect();
    let mut next = vec![0; rounds];
    loop {
        let open: Vec<usize> = (0..rounds).filter(|round| next[*round] < nodes.len()).collect();
        if open.is_empty() {
            break;
        }
        let round = *all.rng.pick(&open);
        for _ in 0..all.rng.between(1, 8) {
            if let Some(node) = nodes.get(next[round]) {
                all.build(At { round, node: *node });
                next[round] += 1;
            }
        }
    }
    let (mut actions, left) = (all.actions, all.live);
    finish(&mut actions, left, rng);
    actions
}

fn in_round(action: &Action, at: impl Fn(&At) -> At) -> Action {
    match action {
        Action::Build(one) => Action::Build(at(one)),
        Action::Eval(all) => Action::Eval(all.iter().map(at).collect()),
        Action::Threads(lists) => {
            Action::Threads(lists.iter().map(|all| all.iter().map(&at).collect()).collect())
        }
        Action::Read(one) => Action::Read(at(one)),
        Action::Clone(one) => Action::Clone(at(one)),
        Action::Drop(one) => Action::Drop(at(one)),
        Action::Synchronize => Action::Synchronize,
    }
}

/// What is left is read in random order, most of it, and some of it dropped, so that reading also follows reuse.
fn finish(actions: &mut Vec<Action>, mut left: Vec<At>, rng: &mut Rng) {
    while !left.is_empty() {
        let at = left.swap_remove(rng.below(left.len()));
        if rng.chance(70) {
            actions.push(Action::Read(at));
        }
        if rng.chance(50) {
            actions.push(Action::Drop(at));
        }
    }
}

struct Scheduler<'a> {
    graph: &'a Graph,
    habits: &'a Habits,
    rng: &'a mut Rng,
    actions: Vec<Action>,
    /// One entry for each handle.
    live: Vec<At>,
    /// How many nodes are still to be built from each node.
    users: HashMap<At, usize>,
}

impl<'a> Scheduler<'a> {
    fn new(graph: &'a Graph, habits: &'a Habits, rng: &'a mut Rng) -> Scheduler<'a> {
        Scheduler { graph, habits, rng, actions: vec![], live: vec![], users: HashMap::new() }
    }

    fn start(&mut self, round: usize) {
        for (at, mut users) in self.graph.users().into_iter().enumerate() {
            // `x * x` uses x twice and is built once.
            users.dedup();
            self.users.insert(At { round, node: NodeId(at as u32) }, users.len());
        }
    }

    fn build(&mut self, at: At) {
        self.actions.push(Action::Build(at));
        self.live.push(at);
        let mut operands: Vec<NodeId> = self.graph.node(at.node).operands.iter().map(|v| v.node).collect();
        operands.sort_unstable();
        operands.dedup();
        for node in operands {
            let operand = At { node, ..at };
            let left = self.users.entry(operand).or_insert(1);
            *left = left.saturating_sub(1);
            if *left == 0 && self.rng.chance(self.habits.drop) {
                self.drop_handle(operand);
            }
        }
        if self.rng.chance(self.habits.eval) {
            // Perhaps with what was built before it, so that one plan has several results of one operand.
            let earlier = if self.rng.chance(40) { self.rng.between(1, 3) as usize } else { 0 };
            let all = self.live.iter().rev().take(earlier).copied();
            let all = std::iter::once(at).chain(all).collect();
            self.actions.push(Action::Eval(all));
        }
        if self.rng.chance(self.habits.read) {
            let some = *self.rng.pick(&self.live);
            self.actions.push(Action::Read(some));
        }
        if self.rng.chance(self.habits.other) {
            self.something_else();
        }
    }

    fn something_else(&mut self) {
        match self.rng.below(10) {
            0..=3 => {
                let some = self.some();
                self.actions.push(Action::Eval(some));
            }
            4 => {
                let lists = (0..self.rng.between(1, 3)).map(|_| self.some()).collect();
                self.actions.push(Action::Threads(lists));
            }
            5..=6 => {
                let at = *self.rng.pick(&self.live);
                self.actions.push(Action::Clone(at));
                self.live.push(at);
            }
            7..=8 => {
                let at = *self.rng.pick(&self.live);
                let handles = self.live.iter().filter(|other| **other == at).count();
                if handles > 1 || self.users.get(&at) == Some(&0) {
                    self.drop_handle(at);
                }
            }
            _ => self.actions.push(Action::Synchronize),
        }
    }

    /// Up to five of the tensors that there are, perhaps one of them twice.
    fn some(&mut self) -> Vec<At> {
        (0..self.rng.between(1, 5)).map(|_| *self.rng.pick(&self.live)).collect()
    }

    fn drop_handle(&mut self, at: At) {
        if let Some(place) = self.live.iter().position(|other| *other == at) {
            self.live.swap_remove(place);
            self.actions.push(Action::Drop(at));
        }
    }
}
