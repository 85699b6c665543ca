//! The state of the fuser: nodes in clusters, with the questions that all phases ask.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::caps::DeviceCaps;
use crate::dim::Dim;
use crate::dot;
use crate::dtype::DType;
use crate::form::{self, MATVEC_MAX_ROWS, Reason};
use crate::fusion::FusionKind;
use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::op::Op;
use crate::verify::updates;

/// What the fuser may do with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Has a buffer of its own.
    Leaf,
    /// Copied into each kernel that reads through it.
    Inline,
    /// One element of each operand.
    Point,
    /// Needs many elements.
    Anchor(FusionKind),
}

/// Nodes that become one kernel.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub kind: FusionKind,
    pub nodes: BTreeSet<NodeId>,
}

pub(super) struct Clusters<'a> {
    pub graph: &'a Graph,
    pub caps: &'a DeviceCaps,
    pub class: Vec<Class>,
    /// By node: values with buffers or clusters that it reads, looking through inline nodes.
    pub sources: Vec<Vec<Value>>,
    /// By node: compute nodes that read it so.
    pub users: Vec<Vec<NodeId>>,
    /// By node: updates in place that must come after it, since it reads the old version.
    before: Vec<Vec<NodeId>>,
    /// By node: whether a graph output needs its buffer.
    pub is_output: Vec<bool>,
    pub clusters: Vec<Option<Cluster>>,
    /// By node: the clusters that compute it; several once it is duplicated into consumers.
    pub member: Vec<Vec<usize>>,
    pub log: Vec<String>,
}

impl<'a> Clusters<'a> {
    pub fn new(graph: &'a Graph, caps: &'a DeviceCaps) -> Self {
        let mut class = classes(graph);
        let mut is_output = vec![false; graph.len()];
        for output in graph.outputs() {
            // A reshape of a buffer is the same buffer; any other view that is returned must be copied.
            let mut v = output.value;
            while matches!(graph.op(v), Op::Reshape(_)) {
                v = graph.node(v.node).operands[0];
            }
            is_output[v.node.index()] = true;
            if class[v.node.index()] == Class::Inline {
                class[v.node.index()] = Class::Point;
            }
        }
        for (_, node) in graph.nodes() {
            if matches!(node.op, Op::Scatter(_)) {
                // The target is a buffer, also where it is a constant or a weight in another type.
                class[node.operands[0].node.index()] = Class::Point;
            }
            if matches!(node.op, Op::Custom(_)) {
                // So is whatever a custom kernel reads; a reshape of a buffer is the same buffer.
                for v in &node.operands {
                    let mut v = *v;
                    while matches!(graph.op(v), Op::Reshape(_)) {
                        v = graph.node(v.node).operands[0];
                    }
                    if class[v.node.index()] == Class::Inline {
                        class[v.node.index()] = Class::Point;
                    }
                }
            }
        }
        let sources: Vec<Vec<Value>> = graph
            .nodes()
            .map(|(id, _)| sources(graph, &class, graph.node(id).operands.iter().copied()))
            .collect();
        let mut users = vec![vec![]; graph.len()];
        for (id, _) in graph.nodes() {
            if matches!(class[id.index()], Class::Point | Class::Anchor(_)) {
                sources[id.index()].iter().for_each(|v| users[v.node.index()].push(id));
            }
        }
        let mut before = vec![vec![]; graph.len()];
        // A scatter writes its target in place, see `build::copy_scatter_targets`.
        let scatters = graph.nodes().filter(|(_, n)| matches!(n.op, Op::Scatter(_)));
        let scatters = scatters.map(|(id, n)| (n.operands[0], id));
        for (version, update) in updates(graph).into_iter().chain(scatters) {
            for reader in users[version.node.index()].clone() {
                if reader != update {
                    before[reader.index()].push(update);
                }
            }
        }
        let member = vec![vec![]; graph.len()];
        Clusters {
            graph,
            caps,
            class,
            sources,
            users,
            before,
            is_output,
            clusters: vec![],
            member,
            log: vec![],
        }
    }

    pub fn add(&mut self, kind: FusionKind, nodes: BTreeSet<NodeId>) -> usize {
        let id = self.clusters.len();
        nodes.iter().for_each(|n| self.member[n.index()].push(id));
        self.clusters.push(Some(Cluster { kind, nodes }));
        id
    }

    pub fn remove(&mut self, id: usize) -> Option<Cluster> {
        let cluster = self.clusters[id].take()?;
        cluster.nodes.iter().for_each(|n| self.member[n.index()].retain(|c| *c != id));
        Some(cluster)
    }

    pub fn get(&self, id: usize) -> &Cluster {
        self.clusters[id].as_ref().expect("invariant: ids in use name live clusters")
    }

    pub fn live(&self) -> Vec<usize> {
        (0..self.clusters.len()).filter(|c| self.clusters[*c].is_some()).collect()
    }

    /// Clusters that read something that `id` computes and they do not.
    pub fn consumers(&self, id: usize) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        for node in &self.get(id).nodes {
            for user in &self.users[node.index()] {
                let reads = |c: &&usize| **c != id && !self.get(**c).nodes.contains(node);
                found.extend(self.member[user.index()].iter().filter(reads));
            }
        }
        found
    }

    /// Clusters that update a state version which `id` reads: they must come later.
    pub fn overwriters(&self, id: usize) -> BTreeSet<usize> {
        let updates = self.get(id).nodes.iter().flat_map(|n| &self.before[n.index()]);
        updates.flat_map(|u| &self.member[u.index()]).copied().filter(|c| *c != id).collect()
    }

    /// Clusters that must come after `id`.
    pub fn successors(&self, id: usize) -> BTreeSet<usize> {
        let mut found = self.consumers(id);
        found.extend(self.overwriters(id));
        found
    }

    /// True if `to` is `from` or must come after it.
    pub fn reaches(&self, from: usize, to: usize) -> bool {
        let (mut seen, mut todo) = (HashSet::new(), vec![from]);
        while let Some(cluster) = todo.pop() {
            if cluster == to {
                return true;
            }
            if seen.insert(cluster) {
                todo.extend(self.successors(cluster));
            }
        }
        false
    }

    /// Nodes of `nodes` whose value something else needs: a node that computes from it elsewhere, or a
    /// graph output.
    pub fn escapes(&self, nodes: &BTreeSet<NodeId>) -> Vec<NodeId> {
        let outside = |node: &NodeId| {
            self.users[node.index()].iter().any(|user| {
                !nodes.contains(user)
                    && (self.member[user.index()].is_empty()
                        || self.member[user.index()].iter().any(|c| !self.get(*c).nodes.contains(node)))
            })
        };
        let is_update = |node: &NodeId| matches!(self.graph.node(*node).op, Op::StateUpdate { .. });
        nodes.iter().copied().filter(|n| self.is_output[n.index()] || outside(n) || is_update(n)).collect()
    }

    /// True if making one cluster of `parts` would make kernels wait for each other.
    pub fn cyclic(&self, parts: &[usize]) -> bool {
        let mut seen: HashSet<usize> = HashSet::new();
        let mut todo: Vec<usize> =
            parts.iter().flat_map(|p| self.successors(*p)).filter(|c| !parts.contains(c)).collect();
        while let Some(cluster) = todo.pop() {
            if parts.contains(&cluster) {
                return true;
            }
            if seen.insert(cluster) {
                todo.extend(self.successors(cluster));
            }
        }
        false
    }

    /// All results of `nodes`: of a node with several, a kernel returns all or none.
    pub fn results(&self, nodes: &[NodeId]) -> Vec<Value> {
        let all = |node: &NodeId| {
            let node = *node;
            (0..self.graph.node(node).types.len() as u32).map(move |result| Value { node, result })
        };
        nodes.iter().flat_map(all).collect()
    }

    /// The body of a kernel of `nodes` that returns the results of `outputs`, and the values that it reads.
    pub fn body(
        &self,
        nodes: &BTreeSet<NodeId>,
        outputs: &[NodeId],
    ) -> Result<(Graph, Vec<Value>), GraphError> {
        let mut copy =
            Copy { clusters: self, nodes, body: Graph::new(""), externals: vec![], map: BTreeMap::new() };
        for node in nodes {
            copy.value(Value::from(*node))?;
        }
        for output in self.results(outputs) {
            let value = copy.value(output)?;
            copy.body.output("", value)?;
        }
        Ok((copy.body, copy.externals))
    }

    /// Whether `nodes` can be one kernel of `kind` that returns what escapes.
    pub fn legal(
        &self,
        kind: FusionKind,
        nodes: &BTreeSet<NodeId>,
    ) -> Result<Result<(), Reason>, GraphError> {
        self.legal_with(kind, nodes, &self.escapes(nodes))
    }

    /// Whether `nodes` can be one kernel of `kind` that returns `outputs`.
    pub fn legal_with(
        &self,
        kind: FusionKind,
        nodes: &BTreeSet<NodeId>,
        outputs: &[NodeId],
    ) -> Result<Result<(), Reason>, GraphError> {
        let (body, externals) = self.body(nodes, outputs)?;
        let windows = |v: Value| self.caps.windows(self.graph.ty(v).max_bytes());
        let all = externals.iter().copied().chain(self.results(outputs));
        let bindings = all.map(windows).sum::<u64>() + u64::from(body.symbols().next().is_some());
        let limit = u64::from(self.caps.max_storage_buffers);
        // A kernel of one node cannot be split further; it must do with what it needs.
        if nodes.len() > 1 && bindings > limit {
            return Ok(Err(Reason(format!("{bindings} bindings exceed the device's {limit}"))));
        }
        Ok(form::form(kind, &body).and_then(|form| self.computable(&body, &form)))
    }

    /// Whether the device has what a kernel that rounds its left operand needs.
    fn computable(&self, body: &Graph, form: &form::Form) -> Result<(), Reason> {
        match form {
            form::Form::Contraction(c)
                if dot::rounding(body, c.lhs).is_some() && !dot::supported(body, c, self.caps) =>
            {
                Err(Reason("no integer dot products with these weights on this device".into()))
            }
            _ => Ok(()),
        }
    }

    /// The kind of a kernel of `nodes`, by its anchors.
    pub fn kind_of(&self, nodes: &BTreeSet<NodeId>) -> FusionKind {
        let kind = |n: &NodeId| if let Class::Anchor(k) = self.class[n.index()] { Some(k) } else { None };
        nodes.iter().filter_map(kind).max().unwrap_or(FusionKind::Map)
    }

    /// Largest bytes of a node's value.
    pub fn bytes(&self, node: NodeId) -> u64 {
        self.graph.node(node).types.iter().map(crate::TensorType::max_bytes).sum()
    }

    /// A short text for the log.
    pub fn name(&self, id: usize) -> String {
        let cluster = self.get(id);
        let last = cluster.nodes.last().map(|n| self.graph.node_text(*n)).unwrap_or_default();
        format!("{} kernel ending in '{last}'", cluster.kind.name())
    }
}

struct Copy<'c, 'a> {
    clusters: &'c Clusters<'a>,
    nodes: &'c BTreeSet<NodeId>,
    body: Graph,
    externals: Vec<Value>,
    map: BTreeMap<Value, Value>,
}

impl Copy<'_, '_> {
    fn value(&mut self, v: Value) -> Result<Value, GraphError> {
        if let Some(done) = self.map.get(&v) {
            return Ok(*done);
        }
        let node = self.clusters.graph.node(v.node);
        let copied = if self.nodes.contains(&v.node) || self.clusters.class[v.node.index()] == Class::Inline {
            let operands = node.operands.iter().map(|o| self.value(*o)).collect::<Result<Vec<_>, _>>()?;
            Value { node: self.body.add_node(node.op.clone(), &operands)?, result: v.result }
        } else {
            let index = self.externals.len() as u32;
            self.externals.push(v);
            self.body.add(Op::Param { index, ty: self.clusters.graph.ty(v).clone() }, &[])?
        };
        self.map.insert(v, copied);
        Ok(copied)
    }
}

/// What `from` are read from, looking through inline nodes.
pub(super) fn sources(graph: &Graph, class: &[Class], from: impl Iterator<Item = Value>) -> Vec<Value> {
    let mut found: Vec<Value> = vec![];
    let mut todo: Vec<Value> = from.collect();
    while let Some(v) = todo.pop() {
        if class[v.node.index()] == Class::Inline {
            todo.extend(&graph.node(v.node).operands);
        } else if !found.contains(&v) {
            found.push(v);
        }
    }
    found.sort();
    found
}

/// For each version of a state that is overwritten, which nodes wait for that.
fn after_updates(graph: &Graph) -> Vec<(Value, Vec<bool>)> {
    let updates = graph.nodes().filter(|(_, n)| matches!(n.op, Op::StateUpdate { .. }));
    let after = |update: NodeId| {
        let mut waits = vec![false; graph.len()];
        waits[update.index()] = true;
        for (id, node) in graph.nodes() {
            waits[id.index()] |= node.operands.iter().any(|v| waits[v.node.index()]);
        }
        waits
    };
    updates.map(|(id, n)| (n.operands[0], after(id))).collect()
}

/// Whether a cast gives every value a longer encoding of itself.
fn widens(from: DType, to: DType) -> bool {
    match from {
        DType::F16 | DType::BF16 | DType::F8E4M3 => matches!(to, DType::F32 | DType::F64),
        DType::F32 => to == DType::F64,
        DType::U8 | DType::I16 | DType::U32 | DType::I32 | DType::I64 | DType::F64 | DType::Block(_) => false,
    }
}

fn classes(graph: &Graph) -> Vec<Class> {
    let (users, after) = (graph.users(), after_updates(graph));
    let mut class: Vec<Class> = vec![];
    for (id, node) in graph.nodes() {
        // Anything that is a weight in another element type is read as the weight.
        let of_weight = |class: &[Class]| {
            let all = sources(graph, class, node.operands.iter().copied());
            all.iter().all(|v| matches!(graph.op(*v), Op::Weight { .. }))
        };
        let one = match &node.op {
            Op::Input { .. } | Op::Weight { .. } | Op::State { .. } | Op::Param { .. } | Op::Fusion(_) => {
                Class::Leaf
            }
            Op::Const(_)
            | Op::Iota { .. }
            | Op::DimValue { .. }
            | Op::Reshape(_)
            | Op::Broadcast(_)
            | Op::Permute(_)
            | Op::Slice { .. }
            | Op::Flip { .. }
            | Op::Window { .. }
            | Op::Dequantize(_) => Class::Inline,
            Op::Cast(_) if of_weight(&class) => Class::Inline,
            // Read as what it was, with fewer bytes.
            Op::Cast(to) if widens(graph.ty(node.operands[0]).dtype, *to) => Class::Inline,
            Op::Elementwise(_)
            | Op::Cast(_)
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Gather { .. }
            | Op::StateUpdate { .. } => Class::Point,
            Op::Reduce { .. } => Class::Anchor(FusionKind::Row),
            Op::Attention(_) => Class::Anchor(FusionKind::Attention),
            Op::Scan { .. } => Class::Anchor(FusionKind::Scan),
            Op::ArgSort { .. } => Class::Anchor(FusionKind::Sort),
            Op::Quantize(_) => Class::Anchor(FusionKind::Quantize),
            Op::Scatter(_) => Class::Anchor(FusionKind::Scatter),
            Op::Custom(_) => Class::Anchor(FusionKind::Custom),
            Op::Matmul => {
                let dims = node.types[0].shape.dims();
                let rows = dims.get(dims.len().wrapping_sub(2)).and_then(Dim::as_const);
                let few = rows.is_some_and(|m| m <= MATVEC_MAX_ROWS);
                Class::Anchor(if few { FusionKind::Matvec } else { FusionKind::Matmul })
            }
        };
        // A view of an old version of a state cannot be read in place by what waits for the update.
        let is_late = |class: &[Class]| {
            let old = sources(graph, class, node.operands.iter().copied());
            let waits = |w: &[bool]| users[id.index()].iter().any(|u| w[u.index()]);
            after.iter().any(|(version, w)| old.contains(version) && waits(w))
        };
        let copied = one == Class::Inline && !after.is_empty() && is_late(&class);
        class.push(if copied { Class::Point } else { one });
    }
    class
}
