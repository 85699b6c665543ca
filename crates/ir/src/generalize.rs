//! Symbols in place of the integers in which graphs of one structure differ.
//!
//! A loop over a cache that grows builds the same graph each time with other extents. From a few such *instances*, one
//! graph is made that has them all: integers that were equal each time stay, those that differed become symbols or
//! expressions of symbols. Expressions are deduced where the ops leave no choice, as the extents of a reshape, and else
//! guessed from the instances: a wrong guess is found when [`General::bind`] compares each integer of the next instance, and
//! costs a compilation.

mod general;

use std::collections::{BTreeMap, HashMap};

use crate::dim::{Dim, Symbol};
use crate::graph::{Graph, GraphError, Node, Value};
use crate::op::Op;
use crate::structure::{integers, sizes, with_sizes};
pub use general::General;
use general::Source;

/// Symbols of one graph. What is chosen for all values of more would suit few of them.
const MOST_SYMBOLS: usize = 3;

/// Symbols may at first become as large as this, so that loops which count up do not compile for each power of two.
const FIRST_MAXIMUM: i64 = 256;

/// Values that grow beyond this at the maxima of symbols, and beyond four times what the instance has, are too large: plans
/// have memory for the maxima.
const SPARE_BYTES: u64 = 64 << 20;

/// So often is a graph built again for what its nodes tell.
const MOST_LESSONS: usize = 8;

/// The largest power of two that all values of a symbol are known to be multiples of. Tiles have no longer sides.
const MOST_MULTIPLE: i64 = 64;

/// Why there is no such graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is nothing to compare with.
    #[error("no other instance has 0 and 1 in the same places")]
    Alone,
    /// An op does not take the symbols.
    #[error("{node}: {error}")]
    Op {
        /// The node of the instance.
        node: String,
        /// Why it is refused.
        error: GraphError,
    },
}

/// One graph for `current` and for others of its structure, whose integers are `others`: as far as they have 0 and 1 in the
/// same places.
///
/// # Errors
/// When there is none.
pub fn generalize(current: &Graph, others: &[&[i64]]) -> Result<General, Refusal> {
    let own: Vec<i64> = integers(current).collect();
    let is_unit = |value: &i64| (0..=1).contains(value);
    let is_like = |other: &&&[i64]| {
        let mut pairs = other.iter().zip(&own);
        other.len() == own.len()
            && **other != own
            && pairs.all(|(a, b)| a == b || !(is_unit(a) || is_unit(b)))
    };
    let mut instances: Vec<&[i64]> = others.iter().filter(is_like).copied().collect();
    instances.push(&own);
    loop {
        if instances.len() < 2 {
            return Err(Refusal::Alone);
        }
        let general = within_memory(current, &instances)?;
        let Some(pinned) = general.least_varying(&instances) else { return Ok(general) };
        instances.retain(|instance| instance[pinned] == own[pinned]);
    }
}

/// With the largest first maximum for which memory suffices.
fn within_memory(current: &Graph, instances: &[&[i64]]) -> Result<General, Refusal> {
    let mut first_maximum = FIRST_MAXIMUM;
    loop {
        let general = with_any_minimum(current, instances, first_maximum)?;
        let is_small = |((_, symbolic), (_, node)): ((_, &Node), (_, &Node))| {
            let mut pairs = symbolic.types.iter().zip(&node.types);
            pairs.all(|(ty, now)| ty.max_bytes() <= SPARE_BYTES.max(now.max_bytes().saturating_mul(4)))
        };
        if first_maximum == 1 || general.graph.nodes().zip(current.nodes()).all(is_small) {
            return Ok(general);
        }
        first_maximum /= 2;
    }
}

/// With symbols of 2 and more; or, where an op refuses those, of no less than half of the least instance.
fn with_any_minimum(current: &Graph, instances: &[&[i64]], first_maximum: i64) -> Result<General, Refusal> {
    let ranges = |is_tight| Ranges { first_maximum, is_tight };
    learning(current, instances, ranges(false)).or_else(|_| learning(current, instances, ranges(true)))
}

/// Built again as long as later nodes tell more of earlier ones.
fn learning(current: &Graph, instances: &[&[i64]], ranges: Ranges) -> Result<General, Refusal> {
    let mut learned = Learned::default();
    let mut lessons = 0;
    loop {
        let mut builder = Builder::new(current, instances, ranges, learned.clone());
        let built = builder.build();
        builder.learn_maxima();
        if builder.learned == learned || lessons == MOST_LESSONS {
            return built.map(|()| builder.general);
        }
        learned = builder.learned;
        lessons += 1;
    }
}

/// The ranges of new symbols.
#[derive(Clone, Copy)]
struct Ranges {
    /// They may at first become as large as this.
    first_maximum: i64,
    /// They are no less than half of the least instance.
    is_tight: bool,
}

/// What nodes tell of integers that come before them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Learned {
    /// The largest value of an integer for which no extent is negative.
    maxima: BTreeMap<usize, i64>,
    /// What is reshaped into other extents is a multiple of their product: the numbers of those that differ, and what nodes
    /// have them.
    products: BTreeMap<usize, Vec<(usize, String)>>,
}

impl General {
    /// Where there are too many symbols, the integer whose symbol has the fewest values.
    fn least_varying(&self, instances: &[&[i64]]) -> Option<usize> {
        let values = |source: &&Source| {
            let mut all: Vec<i64> = instances.iter().map(|instance| instance[source.integer]).collect();
            all.sort_unstable();
            all.dedup();
            all.len()
        };
        let is_many = self.symbols.len() > MOST_SYMBOLS;
        let least = self.symbols.iter().min_by_key(values).filter(|_| is_many);
        least.map(|source| source.integer)
    }
}

struct Builder<'a> {
    current: &'a Graph,
    instances: &'a [&'a [i64]],
    ranges: Ranges,
    learned: Learned,
    general: General,
    /// Extents by their values in all instances.
    known: HashMap<Vec<i64>, Dim>,
    /// The number of the next integer.
    next: usize,
}

impl<'a> Builder<'a> {
    fn new(current: &'a Graph, instances: &'a [&'a [i64]], ranges: Ranges, learned: Learned) -> Self {
        let general =
            General { graph: Graph::new(current.name()), integers: vec![], symbols: vec![], others: vec![] };
        Builder { current, instances, ranges, learned, general, known: HashMap::new(), next: 0 }
    }

    fn build(&mut self) -> Result<(), Refusal> {
        let current = self.current;
        let mut map: Vec<u32> = vec![];
        let mapped =
            |map: &[u32], v: Value| Value { node: crate::NodeId(map[v.node.index()]), result: v.result };
        for (id, node) in current.nodes() {
            let operands: Vec<Value> = node.operands.iter().map(|v| mapped(&map, *v)).collect();
            let op = with_sizes(&node.op, self.integers_of(node, &operands));
            let refused = |error| Refusal::Op { node: current.node_text(id), error };
            let new = self.general.graph.add_node(op, &operands).map_err(refused)?;
            self.note_extents(new);
            map.push(new.0);
        }
        for output in current.outputs() {
            let (name, value) = (&output.name, mapped(&map, output.value));
            let refused = |error| Refusal::Op { node: current.node_text(output.value.node), error };
            self.general.graph.output(name, value).map_err(refused)?;
        }
        Ok(())
    }

    /// Of integers that are a number less a multiple of a symbol, where they would be negative: what the symbol may be.
    fn learn_maxima(&mut self) {
        for dim in self.general.integers.iter().filter(|dim| dim.min_value() < 0) {
            for Source { symbol, integer, multiple, .. } in &self.general.symbols {
                let at = |value: u64| dim.eval_with(|other| (other == symbol).then_some(value));
                let Some((start, next)) = at(0).zip(at(1)).filter(|(start, next)| next < start) else {
                    continue;
                };
                let most = start / (start - next) * multiple;
                let known = self.learned.maxima.entry(*integer).or_insert(most);
                *known = most.min(*known);
            }
        }
    }

    /// What the integers of a node become, where its operands are those of the new graph.
    fn integers_of(&mut self, node: &Node, operands: &[Value]) -> Vec<Dim> {
        let extents: Vec<Dim> =
            operands.first().map_or(vec![], |v| self.general.graph.ty(*v).shape.dims().to_vec());
        match &node.op {
            Op::Broadcast(shape) => {
                let added = shape.rank().saturating_sub(extents.len());
                let of_operand =
                    |axis: usize| axis.checked_sub(added).map(|at| extents[at].clone()).filter(|e| !e.is(1));
                (0..shape.rank()).map(|axis| self.choose(node, axis, of_operand(axis))).collect()
            }
            Op::Reshape(shape) => self.reshape(node, shape.rank(), &extents),
            Op::Slice { axis, .. } => {
                let start = self.choose(node, 0, None);
                let rest = extents.get(*axis).map(|extent| extent - &start);
                let is_rest = rest.filter(|rest| self.values_of(rest) == Some(self.values(self.next)));
                vec![start, self.choose(node, 1, is_rest)]
            }
            Op::StateUpdate { offsets, .. } => {
                let sizes =
                    operands.get(1).map_or(vec![], |v| self.general.graph.ty(*v).shape.dims().to_vec());
                let given = |(axis, offset): (usize, &Dim)| match offset.as_const() {
                    Some(_) => self.choose(node, axis, None),
                    None => offset_within(offset, &extents[axis], &sizes[axis]),
                };
                offsets.iter().enumerate().map(given).collect()
            }
            op => {
                let symbolic: Vec<Option<Dim>> =
                    sizes(op).map(|dim| dim.as_const().is_none().then(|| dim.clone())).collect();
                let one = |(place, given): (usize, Option<Dim>)| match given {
                    Some(symbolic) => symbolic,
                    None => self.choose(node, place, None),
                };
                symbolic.into_iter().enumerate().map(one).collect()
            }
        }
    }

    /// The extents of a reshape: those that are known, and if one is left, what the others leave of the elements.
    fn reshape(&mut self, node: &Node, rank: usize, extents: &[Dim]) -> Vec<Dim> {
        let found: Vec<Option<Dim>> =
            (0..rank).map(|axis| self.find(&self.values(self.next + axis))).collect();
        let mut missing = found
            .iter()
            .enumerate()
            .filter(|(_, found)| found.as_ref().is_none_or(|d| d.as_const().is_none()));
        // The last symbolic extent follows from the others, whatever expression has its values.
        let last = missing.next_back().map(|(axis, _)| axis);
        let mut all = vec![];
        let mut rest = extents.iter().fold(Dim::one(), |n, extent| &n * extent);
        let mut is_exact = true;
        for axis in (0..rank).filter(|axis| Some(*axis) != last) {
            let dim = self.choose_at(node, axis, self.next + axis, None);
            match rest.div_exact(&dim) {
                Some(left) => rest = left,
                None => is_exact = false,
            }
            all.push(dim);
        }
        if let Some(axis) = last {
            let at = self.next + axis;
            let follows = Some(rest).filter(|rest| is_exact && self.values_of(rest) == Some(self.values(at)));
            if follows.is_none() {
                self.learn_product(node, rank, extents);
            }
            all.insert(axis, self.choose_at(node, axis, at, follows));
        }
        self.next += rank;
        let start = self.general.integers.len();
        self.general.integers.extend(all.iter().cloned());
        debug_assert_eq!(start + rank, self.next);
        all
    }

    /// Of an operand's extent that is no multiple of the product of the extents of its reshape, but has such values: that it
    /// is one.
    fn learn_product(&mut self, node: &Node, rank: usize, extents: &[Dim]) {
        let varies = |at: &usize| self.values(*at).iter().any(|value| *value != self.instances[0][*at]);
        let factors: Vec<usize> = (self.next..self.next + rank).filter(varies).collect();
        let is_multiple = |source: &&Source| {
            let ratio = |instance: &&[i64]| {
                let product = factors.iter().try_fold(1i64, |n, f| n.checked_mul(instance[*f]))?;
                let value = instance[source.integer];
                (product > 0 && value % product == 0).then(|| value / product)
            };
            let ratios: Vec<Option<i64>> = self.instances.iter().map(ratio).collect();
            extents.contains(&source.extent())
                && ratios[0].is_some()
                && ratios.iter().all(|r| *r == ratios[0])
        };
        if let Some(source) = self.general.symbols.iter().find(is_multiple) {
            let named = |at: usize| (at, place_text(node, at - self.next));
            self.learned.products.insert(source.integer, factors.into_iter().map(named).collect());
        }
    }

    /// What the next integer becomes: what follows from the op, or else what has its values.
    fn choose(&mut self, node: &Node, place: usize, follows: Option<Dim>) -> Dim {
        let dim = self.choose_at(node, place, self.next, follows);
        self.next += 1;
        self.general.integers.push(dim.clone());
        dim
    }

    fn choose_at(&mut self, node: &Node, place: usize, at: usize, follows: Option<Dim>) -> Dim {
        let values = self.values(at);
        if let Some(dim) = follows.or_else(|| self.find(&values)) {
            return dim;
        }
        let Some(factors) = self.learned.products.get(&at).cloned() else {
            return self.symbol(at, place_text(node, place));
        };
        let mut product = Dim::one();
        for (factor, place) in factors {
            let known = self.find(&self.values(factor));
            product = &product * &known.unwrap_or_else(|| self.symbol(factor, place));
        }
        let of = self.values_of(&product).map_or(1, |of| of[0].max(1));
        &product * &(values[0] / of).into()
    }

    /// The values of an integer in all instances.
    fn values(&self, integer: usize) -> Vec<i64> {
        self.instances.iter().map(|instance| instance[integer]).collect()
    }

    /// The values of an expression in all instances.
    fn values_of(&self, dim: &Dim) -> Option<Vec<i64>> {
        let value = |instance: &&[i64]| {
            dim.eval_with(|symbol| {
                let source = self.general.symbols.iter().find(|source| source.symbol == *symbol)?;
                u64::try_from(instance[source.integer] / source.multiple).ok()
            })
        };
        self.instances.iter().map(value).collect()
    }

    /// A known expression with these values: a number, an extent, a multiple of a symbol plus a number, or a multiple of two
    /// symbols.
    fn find(&self, values: &[i64]) -> Option<Dim> {
        if values.iter().all(|value| *value == values[0]) {
            return Some(values[0].into());
        }
        self.known.get(values).cloned().or_else(|| {
            let symbols = &self.general.symbols;
            let line = |source: &Source| affine(values, &self.values(source.integer), &source.extent());
            let pairs =
                symbols.iter().enumerate().flat_map(|(at, a)| symbols[at..].iter().map(move |b| (a, b)));
            let area = |(a, b): (&Source, &Source)| {
                let sides = self.values(a.integer).into_iter().zip(self.values(b.integer));
                let areas = sides.map(|(a, b)| a.checked_mul(b)).collect::<Option<Vec<_>>>()?;
                let extent = &a.extent() * &b.extent();
                affine(values, &areas, &extent).filter(|dim| dim.div_exact(&extent).is_some())
            };
            symbols.iter().find_map(line).or_else(|| pairs.into_iter().find_map(area))
        })
    }

    /// A symbol for an integer.
    fn symbol(&mut self, integer: usize, place: String) -> Dim {
        let values = self.values(integer);
        let is_multiple = |m: &i64| values.iter().all(|value| value % m == 0);
        let candidates = std::iter::successors(Some(MOST_MULTIPLE), |m| Some(m / 2)).take_while(|m| *m >= 4);
        let multiple = candidates.into_iter().find(is_multiple).unwrap_or(1);
        let units = |value: i64| u32::try_from(value / multiple).unwrap_or(u32::MAX);
        let (least, most) = (values.iter().min().copied(), values.iter().max().copied());
        let (least, most) = (units(least.unwrap_or(0)), units(most.unwrap_or(0)));
        let first = units(self.ranges.first_maximum);
        let limit = self.learned.maxima.get(&integer).map_or(u32::MAX, |limit| units(*limit)).max(most);
        let max = most.checked_next_power_of_two().unwrap_or(u32::MAX).max(first).min(limit);
        // 0 and 1 stay numbers.
        let above = if multiple == 1 { 2 } else { 1 };
        let min = if self.ranges.is_tight { above.max(least / 2) } else { above };
        let symbol = Symbol::new(&format!("n{}", self.general.symbols.len()), max).at_least(min.min(least));
        let source = Source { symbol, integer, multiple, place };
        let extent = source.extent();
        self.general.symbols.push(source);
        self.known.insert(values, extent.clone());
        extent
    }

    /// Remembers the extents of a new node's results.
    fn note_extents(&mut self, node: crate::NodeId) {
        let types = self.general.graph.node(node).types.clone();
        for dim in types.iter().flat_map(|ty| ty.shape.dims()).filter(|dim| dim.as_const().is_none()) {
            if let Some(values) = self.values_of(dim) {
                self.known.entry(values).or_insert_with(|| dim.clone());
            }
        }
    }
}

/// `a * extent + b` with these values, where `extent` has the values `of`. Two instances do not tell whether two numbers
/// that grow at different rates have to do with each other, so one of `a = 1`, `a = -1` and `b = 0` must hold of them.
fn affine(values: &[i64], of: &[i64], extent: &Dim) -> Option<Dim> {
    let other = (1..of.len()).find(|at| of[*at] != of[0])?;
    let (rise, run) = (values[other].checked_sub(values[0])?, of[other] - of[0]);
    let a = (rise % run == 0).then_some(rise / run)?;
    let b = values[0].checked_sub(a.checked_mul(of[0])?)?;
    let holds = |(value, of): (&i64, &i64)| a.checked_mul(*of).and_then(|x| x.checked_add(b)) == Some(*value);
    let is_simple = matches!(a, 1 | -1) || b == 0 || values.len() > 2;
    (a != 0 && is_simple && values.iter().zip(of).all(holds)).then(|| &(extent * &a.into()) + &b.into())
}

/// The symbol of an offset with the range that it has in a state of extent `extent`, for a source of extent `size`.
fn offset_within(offset: &Dim, extent: &Dim, size: &Dim) -> Dim {
    let most = u32::try_from((extent - size).max_value()).unwrap_or(u32::MAX);
    match offset.symbols().as_slice() {
        [symbol] if *offset == Dim::from(symbol) => Symbol::new(symbol.name(), most).into(),
        _ => offset.clone(),
    }
}

/// What people call an integer of a node.
fn place_text(node: &Node, place: usize) -> String {
    match &node.op {
        Op::Input { name, .. } | Op::State { name, .. } => format!("extent {place} of {name}"),
        Op::Reshape(_) | Op::Broadcast(_) => format!("extent {place} of a {}", node.op.name()),
        Op::Slice { .. } => ["the start of a slice", "the length of a slice"][place.min(1)].into(),
        Op::Pad { .. } => ["the padding before", "the padding after"][place.min(1)].into(),
        op => format!("an integer of {}", op.name()),
    }
}
