//! State of the fusion pass: clusters of nodes, and the queries that all phases share.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet};

use super::forms::Forms;
use crate::access::{is_contiguous_along_n, is_copy};
use crate::caps::DeviceCaps;
use crate::dtype::DType;
use crate::form::{self, Reason};
use crate::fusion::FusionKind;
use crate::graph::{Graph, GraphError, Node, NodeId, Value};
use crate::matrix;
use crate::op::Op;
use crate::verify::updates;

/// Role of a node in fusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Has its own buffer.
    Leaf,
    /// Copied into each kernel that reads through it.
    Inline,
    /// Needs one element of each operand.
    Point,
    /// Needs many elements of an operand.
    Anchor(FusionKind),
}

/// Maximum nodes in one kernel. Driver compile time grows faster than kernel length, and next to so much work, writing
/// and reading one buffer costs nothing.
pub(super) const LONGEST_KERNEL: usize = 1024;

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
    /// By node: values in buffers or clusters that it reads, looking through inline nodes.
    pub sources: Vec<Vec<Value>>,
    /// By node: compute nodes that read it, through inline nodes too.
    pub users: Vec<Vec<NodeId>>,
    /// By node: in-place updates that must follow it, since it reads the old version.
    before: Vec<Vec<NodeId>>,
    /// The inverse, by update: readers of the old version.
    after: Vec<Vec<NodeId>>,
    /// By node: its position in a topological order.
    pub rank: Vec<u32>,
    /// By node: the most anchors on a path that ends there.
    pub depth: Vec<u32>,
    /// By cluster: its position in a topological order, except while `prune` splits clusters. Every path between two
    /// clusters has positions between theirs, which bounds cycle searches whatever the size of the graph.
    order: Vec<u32>,
    /// By node: whether a graph output needs its buffer.
    pub is_output: Vec<bool>,
    pub clusters: Vec<Option<Cluster>>,
    /// By node: the clusters that compute it; several once it is duplicated into consumers.
    pub member: Vec<Vec<usize>>,
    /// By cluster: what it computes again for itself alone, although another kernel computes it.
    pub copies: HashMap<usize, BTreeSet<NodeId>>,
    pub log: Vec<String>,
    forms: Forms,
}

impl<'a> Clusters<'a> {
    pub fn new(graph: &'a Graph, caps: &'a DeviceCaps) -> Self {
        let mut class = classes(graph);
        let mut is_output = vec![false; graph.len()];
        for output in graph.outputs() {
            // A reshape aliases its buffer; any other view that is returned must be copied.
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
                // The target is a buffer, even if it is a constant or a cast weight.
                class[node.operands[0].node.index()] = Class::Point;
            }
            if matches!(node.op, Op::Custom(_)) {
                // Operands of a custom kernel are buffers too, looking through reshapes.
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
        let depth = depths(&class, &sources);
        let mut users = vec![vec![]; graph.len()];
        for (id, _) in graph.nodes() {
            if matches!(class[id.index()], Class::Point | Class::Anchor(_)) {
                sources[id.index()].iter().for_each(|v| users[v.node.index()].push(id));
            }
        }
        let (mut before, mut after) = (vec![vec![]; graph.len()], vec![vec![]; graph.len()]);
        // A scatter writes its target in place, see `build::copy_scatter_targets`.
        let scatters = graph.nodes().filter(|(_, n)| matches!(n.op, Op::Scatter(_)));
        let scatters = scatters.map(|(id, n)| (n.operands[0], id));
        for (version, update) in updates(graph).into_iter().chain(scatters) {
            for reader in users[version.node.index()].clone() {
                if reader != update {
                    before[reader.index()].push(update);
                    after[update.index()].push(reader);
                }
            }
        }
        let member = vec![vec![]; graph.len()];
        let next = |n: usize| users[n].iter().chain(&before[n]).map(|n: &NodeId| n.index()).collect();
        let rank = topological(&(0..graph.len()).map(next).collect::<Vec<Vec<usize>>>());
        Clusters {
            graph,
            caps,
            class,
            sources,
            users,
            before,
            after,
            rank,
            depth,
            order: vec![],
            is_output,
            clusters: vec![],
            member,
            copies: HashMap::new(),
            log: vec![],
            forms: Forms::default(),
        }
    }

    pub fn add(&mut self, kind: FusionKind, nodes: BTreeSet<NodeId>) -> usize {
        let id = self.clusters.len();
        nodes.iter().for_each(|n| self.member[n.index()].push(id));
        self.order.push(nodes.last().map_or(0, |n| self.rank[n.index()]));
        self.clusters.push(Some(Cluster { kind, nodes }));
        id
    }

    /// Replaces cluster `id` by one of these nodes, and returns the new id.
    pub fn replace(&mut self, id: usize, kind: FusionKind, nodes: BTreeSet<NodeId>) -> usize {
        self.remove(id);
        let new = self.add(kind, nodes);
        self.order[new] = self.order[id];
        new
    }

    /// Replaces cluster `id` by two. They share its position until the order is computed again.
    pub fn split(
        &mut self,
        id: usize,
        first: (FusionKind, BTreeSet<NodeId>),
        second: (FusionKind, BTreeSet<NodeId>),
    ) -> (usize, usize) {
        let first = self.replace(id, first.0, first.1);
        let second = self.replace(id, second.0, second.1);
        (first, second)
    }

    /// Merges two clusters that share no node into one of `kind`. `None` if that closes a cycle, that is, if a path
    /// through others leads from one to the other. Returns the id of the larger one.
    ///
    /// Of the clusters between the two in the order, some are predecessors of the later one and some successors of the
    /// earlier one. None is both, or a path would lead through it. So the positions of all of them are reused in this
    /// sequence: predecessors, union, successors. Predecessors move forwards and still follow what they depend on;
    /// successors move backwards (Pearce and Kelly, "A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs",
    /// 2006).
    pub fn merge(&mut self, a: usize, b: usize, kind: FusionKind) -> Option<usize> {
        let position = self.position_of_union(a, b)?;
        let (to, from) = if self.get(a).nodes.len() >= self.get(b).nodes.len() { (a, b) } else { (b, a) };
        let moved = self.remove(from)?;
        moved.nodes.iter().for_each(|n| self.member[n.index()].push(to));
        if let Some(cluster) = &mut self.clusters[to] {
            cluster.kind = kind;
            cluster.nodes.extend(moved.nodes);
        }
        self.order[to] = position;
        Some(to)
    }

    /// As [`Clusters::merge`], for clusters that may share nodes, and with a new id; `nodes` are those of both.
    pub fn unite(&mut self, a: usize, b: usize, kind: FusionKind, nodes: BTreeSet<NodeId>) -> Option<usize> {
        let position = self.position_of_union(a, b)?;
        let copies = self.copies_of_union(a, b);
        self.remove(a);
        self.remove(b);
        let id = self.add(kind, nodes);
        self.order[id] = position;
        self.copies.extend((!copies.is_empty()).then_some((id, copies)));
        Some(id)
    }

    /// The nodes of two clusters that each of them that has them computes again.
    fn copies_of_union(&self, a: usize, b: usize) -> BTreeSet<NodeId> {
        let is_original = |id: usize, node: &NodeId| {
            self.get(id).nodes.contains(node) && !self.copies.get(&id).is_some_and(|all| all.contains(node))
        };
        let both = [a, b].into_iter().flat_map(|id| self.copies.get(&id).into_iter().flatten());
        both.filter(|node| !is_original(a, node) && !is_original(b, node)).copied().collect()
    }

    /// Frees a position in the order for the union of two clusters, and returns it. `None` if a path through others
    /// leads from one to the other.
    fn position_of_union(&mut self, a: usize, b: usize) -> Option<u32> {
        let (former, latter) = if self.order[a] < self.order[b] { (a, b) } else { (b, a) };
        // Searching from the smaller cluster is cheaper. If no cluster is in between, nothing moves.
        if self.get(former).nodes.len() > self.get(latter).nodes.len() {
            if self.between(latter, former, Clusters::predecessors)?.is_empty() {
                return Some(self.order[former]);
            }
        } else if self.between(former, latter, Clusters::successors)?.is_empty() {
            return Some(self.order[latter]);
        }
        let mut first = self.between(latter, former, Clusters::predecessors)?;
        let mut second = self.between(former, latter, Clusters::successors)?;
        let by_order = |ids: &mut Vec<usize>| ids.sort_by_key(|c| self.order[*c]);
        by_order(&mut first);
        by_order(&mut second);
        let all = first.iter().chain([&former, &latter]).chain(&second);
        let mut positions: Vec<u32> = all.map(|c| self.order[*c]).collect();
        positions.sort_unstable();
        let middle = positions[first.len()];
        for (id, position) in
            first.iter().zip(&positions).chain(second.iter().rev().zip(positions.iter().rev()))
        {
            self.order[*id] = *position;
        }
        Some(middle)
    }

    /// Clusters positioned between `from` and `to` that are reachable from `from` by `neighbours`. `None` if one of
    /// them leads to `to`.
    fn between(
        &self,
        from: usize,
        to: usize,
        neighbours: fn(&Self, usize) -> BTreeSet<usize>,
    ) -> Option<Vec<usize>> {
        let (one, other) = (self.order[from], self.order[to]);
        let is_between = |c: &usize| (one.min(other) + 1..one.max(other)).contains(&self.order[*c]);
        let mut seen = HashSet::new();
        let mut todo: Vec<usize> = neighbours(self, from).into_iter().filter(|c| is_between(c)).collect();
        while let Some(cluster) = todo.pop() {
            if !seen.insert(cluster) {
                continue;
            }
            for next in neighbours(self, cluster) {
                if next == to {
                    return None;
                }
                if is_between(&next) {
                    todo.push(next);
                }
            }
        }
        Some(seen.into_iter().collect())
    }

    /// Computes a topological order of the clusters.
    pub fn put_in_order(&mut self) {
        let live = self.live();
        let mut next: Vec<Vec<usize>> = vec![vec![]; self.clusters.len()];
        live.iter().for_each(|c| next[*c] = self.successors(*c).into_iter().collect());
        self.order = topological(&next);
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

    /// Clusters that read a node of `id` and do not compute it themselves.
    pub fn consumers(&self, id: usize) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let is_copy = |node: &NodeId| self.copies.get(&id).is_some_and(|copies| copies.contains(node));
        for node in self.get(id).nodes.iter().filter(|node| !is_copy(node)) {
            for user in &self.users[node.index()] {
                let reads = |c: &&usize| **c != id && !self.get(**c).nodes.contains(node);
                found.extend(self.member[user.index()].iter().filter(reads));
            }
        }
        found
    }

    /// Clusters that update a state version which `id` reads, and so must follow it.
    pub fn overwriters(&self, id: usize) -> BTreeSet<usize> {
        let updates = self.get(id).nodes.iter().flat_map(|n| &self.before[n.index()]);
        updates.flat_map(|u| &self.member[u.index()]).copied().filter(|c| *c != id).collect()
    }

    /// Whether `node` reads a version of a state that is overwritten afterwards.
    pub fn is_overwritten_later(&self, node: NodeId) -> bool {
        !self.before[node.index()].is_empty()
    }

    /// Clusters that must follow `id`.
    pub fn successors(&self, id: usize) -> BTreeSet<usize> {
        let mut found = self.consumers(id);
        found.extend(self.overwriters(id));
        found
    }

    /// Clusters that must precede `id`.
    pub fn predecessors(&self, id: usize) -> BTreeSet<usize> {
        let nodes = &self.get(id).nodes;
        let computed = nodes.iter().flat_map(|n| &self.sources[n.index()]).map(|v| v.node);
        let computed = computed.filter(|n| !nodes.contains(n));
        let readers = nodes.iter().flat_map(|n| &self.after[n.index()]).copied();
        let all = computed.chain(readers).flat_map(|n| &self.member[n.index()]);
        all.copied().filter(|c| *c != id).collect()
    }

    /// True if `to` is `from` or must follow it.
    pub fn reaches(&self, from: usize, to: usize) -> bool {
        let waits = self.order[from] < self.order[to];
        let direct = || self.successors(from).contains(&to);
        from == to || waits && (direct() || self.between(from, to, Clusters::successors).is_none())
    }

    /// The nodes of `nodes` whose value is needed outside: by a node computed elsewhere, or as a graph output.
    pub fn escapes(&self, nodes: &BTreeSet<NodeId>) -> Vec<NodeId> {
        // Of a user that `nodes` compute and others compute again: one of those that lacks the node.
        let lacks = |user: &NodeId, node: &NodeId| {
            let other = |c: &&usize| !self.get(**c).nodes.contains(node);
            self.member[user.index()].len() > 1
                && self.member[user.index()]
                    .iter()
                    .filter(other)
                    .any(|c| !self.get(*c).nodes.is_subset(nodes))
        };
        let outside = |node: &NodeId| {
            self.users[node.index()].iter().any(|user| {
                if nodes.contains(user) {
                    return lacks(user, node);
                }
                self.member[user.index()].is_empty()
                    || self.member[user.index()].iter().any(|c| !self.get(*c).nodes.contains(node))
            })
        };
        let is_update = |node: &NodeId| matches!(self.graph.node(*node).op, Op::StateUpdate { .. });
        nodes.iter().copied().filter(|n| self.is_output[n.index()] || outside(n) || is_update(n)).collect()
    }

    /// The nodes of a cluster whose value is needed outside, and that no other cluster computes.
    pub fn outputs(&self, id: usize) -> Vec<NodeId> {
        let mut found = self.escapes(&self.get(id).nodes);
        if let Some(copies) = self.copies.get(&id) {
            found.retain(|node| !copies.contains(node));
        }
        found
    }

    /// All results of `nodes`: a kernel returns all results of a node or none.
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
        if nodes.len() > LONGEST_KERNEL {
            return Ok(Err(Reason(format!("{} nodes are too many for one kernel", nodes.len()))));
        }
        let (body, _) = self.body(nodes, outputs)?;
        let bindings = form::bindings(&body, self.caps);
        let limit = u64::from(self.caps.max_storage_buffers);
        // A kernel of one node cannot be split, whatever it binds.
        if nodes.len() > 1 && bindings > limit {
            return Ok(Err(Reason(format!("{bindings} bindings exceed the device's {limit}"))));
        }
        if kind == FusionKind::Row
            && let Some(why) = form::opposite_reductions(&body)
        {
            return Ok(Err(why));
        }
        match self.forms.of(kind, body, self.caps) {
            Ok(Some(split)) if nodes.len() > 1 && bindings + split.bindings <= limit => {
                Ok(Err(Reason(format!("{} workgroups share a row", split.slices))))
            }
            legality => Ok(legality.map(|_| ())),
        }
    }

    /// If `node` updates a block state: the node that quantizes the blocks. It must be in the same kernel, as no kernel
    /// copies blocks.
    pub fn quantize_of_update(&self, node: NodeId) -> Option<NodeId> {
        let n = self.graph.node(node);
        let blocks = matches!(n.types[0].dtype, DType::Block(_)) && matches!(n.op, Op::StateUpdate { .. });
        blocks.then(|| n.operands[1].node)
    }

    /// True for a quantization that only state updates need: their kernels repeat it.
    pub fn is_recomputed(&self, node: NodeId) -> bool {
        let users = &self.users[node.index()];
        let by_all = || users.iter().all(|user| self.quantize_of_update(*user) == Some(node));
        !users.is_empty() && !self.is_output[node.index()] && by_all()
    }

    /// The kind of a kernel of `nodes`, by its anchors.
    pub fn kind_of(&self, nodes: &BTreeSet<NodeId>) -> FusionKind {
        let kind = |n: &NodeId| if let Class::Anchor(k) = self.class[n.index()] { Some(k) } else { None };
        nodes.iter().filter_map(kind).max().unwrap_or(FusionKind::Map)
    }

    /// Largest size of a node's results in bytes.
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

/// By node, whose operands precede it: the most anchors on a path that ends there.
fn depths(class: &[Class], sources: &[Vec<Value>]) -> Vec<u32> {
    let mut depths: Vec<u32> = vec![];
    for (class, sources) in class.iter().zip(sources) {
        let before = sources.iter().map(|v| depths[v.node.index()]).max().unwrap_or(0);
        depths.push(before + u32::from(matches!(class, Class::Anchor(_))));
    }
    depths
}

/// The values that `from` are read from, looking through inline nodes.
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

/// The position of each node in a topological order, smallest index first among those ready. Nodes on a cycle (which
/// the verifier rejects), and those after it, come last.
fn topological(next: &[Vec<usize>]) -> Vec<u32> {
    let mut waits = vec![0u32; next.len()];
    next.iter().flatten().for_each(|n| waits[*n] += 1);
    let ready = (0..next.len()).filter(|n| waits[*n] == 0);
    let mut ready: BinaryHeap<Reverse<usize>> = ready.map(Reverse).collect();
    let mut position = vec![u32::MAX; next.len()];
    let mut count = 0;
    while let Some(Reverse(one)) = ready.pop() {
        position[one] = count;
        count += 1;
        for later in &next[one] {
            waits[*later] -= 1;
            if waits[*later] == 0 {
                ready.push(Reverse(*later));
            }
        }
    }
    let left = position.iter_mut().filter(|p| **p == u32::MAX);
    left.zip(count..).for_each(|(p, n)| *p = n);
    position
}

/// By node: whether it depends on `update`.
fn waits_for(graph: &Graph, update: NodeId) -> Vec<bool> {
    let mut waits = vec![false; graph.len()];
    waits[update.index()] = true;
    for (id, node) in graph.nodes().skip(update.index()) {
        waits[id.index()] |= node.operands.iter().any(|v| waits[v.node.index()]);
    }
    waits
}

/// Whether a cast only widens the encoding, without loss.
fn widens(from: DType, to: DType) -> bool {
    match from {
        DType::F16 | DType::BF16 | DType::F8E4M3 => matches!(to, DType::F32 | DType::F64),
        DType::F32 => to == DType::F64,
        DType::U8 | DType::I16 | DType::U32 | DType::I32 | DType::I64 | DType::F64 | DType::Block(_) => false,
    }
}

/// Fewest columns for which a right operand that is contiguous along them is read by tiles: those of the smallest tile.
/// Below it, the columns of a matvec's workgroup share what they read. (H100, f16, 2 rows, K 2796, 44 columns: a matvec
/// takes 0.53 us, tiles 1.27. 1 row, K 4096, 64 columns: 1.29 and 0.63.)
const MIN_TILED_COLUMNS: i64 = 64;

/// Fewest elements of such a right operand. Below it, reading with a stride costs less than what the fusions around a
/// matvec save, which a matmul has not. (H100, f16, 1 row, us: 127 x 251 0.37 and 0.42; 44 x 3127 0.96 and 0.42.)
const MIN_TILED_ELEMENTS: u64 = 1 << 17;

/// The kind of a matmul's kernel. A matvec reduces columns of the right operand, each contiguous along K. It reads a
/// right operand `[k, n]` with a stride, one element per sector: for that the tiles of a matmul are faster also for few
/// rows, although most of their rows are empty. (H100, f16 4096 x 4096, us: 1 row 218, 8 rows 77; a tile of 64 rows 17.) So
/// are they for some rows whose right operand was rounded for them ([`matrix::rounds_few_rows`]).
fn contraction(graph: &Graph, node: &Node) -> FusionKind {
    let dims = node.types[0].shape.dims();
    let [.., rows, columns] = dims else { return FusionKind::Matmul };
    let right = node.operands[1];
    let large =
        columns.max_value() >= MIN_TILED_COLUMNS && graph.ty(right).shape.max_numel() >= MIN_TILED_ELEMENTS;
    let tiled = large && is_contiguous_along_n(graph, right);
    let rounded = matrix::rounds_few_rows(graph, rows.max_value(), right);
    if form::are_few(rows) && !tiled && !rounded { FusionKind::Matvec } else { FusionKind::Matmul }
}

fn classes(graph: &Graph) -> Vec<Class> {
    let users = graph.users();
    let mut updates: HashMap<Value, Vec<NodeId>> = HashMap::new();
    for (id, node) in graph.nodes().filter(|(_, n)| matches!(n.op, Op::StateUpdate { .. })) {
        updates.entry(node.operands[0]).or_default().push(id);
    }
    // Computed lazily: hardly anything but the update reads an old version.
    let mut waits: HashMap<NodeId, Vec<bool>> = HashMap::new();
    let mut class: Vec<Class> = vec![];
    // By inline node: the overwritten state versions that it reads.
    let mut old: Vec<Vec<Value>> = vec![];
    for (id, node) in graph.nodes() {
        // A cast of a weight reads the weight directly. One that narrows may be computed once instead of for each tile.
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
            | Op::Scalar { .. }
            | Op::Reshape(_)
            | Op::Broadcast(_)
            | Op::Permute(_)
            | Op::Slice { .. }
            | Op::Flip { .. }
            | Op::Window { .. }
            | Op::Dequantize(_) => Class::Inline,
            Op::Cast(_) if is_copy(graph, node) => Class::Point,
            Op::Cast(to) if of_weight(&class) && !widens(*to, graph.ty(node.operands[0]).dtype) => {
                Class::Inline
            }
            // Reading the narrow source moves fewer bytes.
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
            Op::ArgSort { .. } | Op::MergeRuns { .. } => Class::Anchor(FusionKind::Sort),
            Op::Quantize(_) => Class::Anchor(FusionKind::Quantize),
            Op::Scatter(_) => Class::Anchor(FusionKind::Scatter),
            Op::IndexAdd => Class::Anchor(FusionKind::IndexAdd),
            Op::AttentionGrad(..) => Class::Anchor(FusionKind::AttentionGrad),
            Op::Custom(_) => Class::Anchor(FusionKind::Custom),
            Op::Matmul => Class::Anchor(contraction(graph, node)),
        };
        let mut read: Vec<Value> = vec![];
        if one == Class::Inline && !updates.is_empty() {
            for v in &node.operands {
                let through =
                    if class[v.node.index()] == Class::Inline { &old[v.node.index()][..] } else { &[] };
                let overwritten = updates.contains_key(v).then_some(v);
                for version in through.iter().chain(overwritten) {
                    if !read.contains(version) {
                        read.push(*version);
                    }
                }
            }
        }
        // A view of an old state version must be copied if a reader depends on the update.
        let mut has_later_reader = |update: &NodeId| {
            let waits = waits.entry(*update).or_insert_with(|| waits_for(graph, *update));
            users[id.index()].iter().any(|u| waits[u.index()])
        };
        let copied = read.iter().flat_map(|version| &updates[version]).any(&mut has_later_reader);
        class.push(if copied { Class::Point } else { one });
        old.push(if copied { vec![] } else { read });
    }
    class
}
