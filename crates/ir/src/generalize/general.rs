//! A graph that serves instances of one structure.

use crate::dim::{Dim, Symbol};
use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::structure::{sizes, with_sizes};

/// A graph that serves instances of one structure.
#[derive(Clone, Debug)]
pub struct General {
    pub(super) graph: Graph,
    /// What each integer of the structure is.
    pub(super) integers: Vec<Dim>,
    pub(super) symbols: Vec<Source>,
    /// Another graph serves the instances in which each symbol is a multiple of the number in its place. Empty if there is
    /// none.
    pub(super) others: Vec<u32>,
}

/// Where the value of a symbol is read.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub symbol: Symbol,
    /// The number of the integer, which is `multiple` times the symbol.
    pub integer: usize,
    pub multiple: i64,
    /// What has that integer, for people.
    pub place: String,
}

impl General {
    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Sets `values` to those of the symbols in an instance with these integers, in the order of the symbols. False if the
    /// graph does not serve the instance.
    pub fn bind(&self, integers: &[i64], values: &mut Vec<u64>) -> bool {
        values.clear();
        values.extend(self.symbols.iter().map_while(|source| source.value(integers)));
        // Most integers are numbers, which take no look at symbols.
        let value_of = |symbol: &Symbol| {
            let at = self.symbols.iter().position(|source| source.symbol == *symbol)?;
            values.get(at).copied()
        };
        let is_equal = |(dim, integer): (&Dim, &i64)| dim.eval_with(value_of) == Some(*integer);
        values.len() == self.symbols.len()
            && self.integers.len() == integers.len()
            && !self.is_of_others(values)
            && self.integers.iter().zip(integers).all(is_equal)
    }

    /// The same, for instances that state integers of the graph more than once: `places` are the numbers of the graph's
    /// integers, in the order in which instances have them, each at least once.
    #[must_use]
    pub fn repeated(self, places: &[usize]) -> General {
        let integer = |place: &usize| self.integers.get(*place).cloned().unwrap_or_default();
        let integers = places.iter().map(integer).collect();
        let moved = |source: Source| {
            let first = places.iter().position(|place| *place == source.integer);
            Source { integer: first.unwrap_or(usize::MAX), ..source }
        };
        General { integers, symbols: self.symbols.into_iter().map(moved).collect(), ..self }
    }

    /// The symbols, in the order of their values.
    pub fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().map(|source| &source.symbol)
    }

    /// A line for each symbol: what it is, and its guards.
    pub fn explain(&self) -> String {
        let line = |Source { symbol, multiple, place, .. }: &Source| {
            let (name, least, most) = (symbol.name(), symbol.least(), symbol.limit());
            let times = if *multiple == 1 { String::new() } else { format!("{multiple}*") };
            format!("symbol {name} in {least}..={most}: {times}{name} is {place}\n")
        };
        let lines: String = self.symbols.iter().map(line).collect();
        let multiple = |(source, of): (&Source, &u32)| {
            (*of > 1).then(|| format!("{} is a multiple of {of}", source.symbol.name()))
        };
        let all: Vec<String> = self.symbols.iter().zip(&self.others).filter_map(multiple).collect();
        let others =
            if all.is_empty() { String::new() } else { format!("not where {}\n", all.join(" and ")) };
        lines + &others
    }

    /// The same with other ranges of its symbols, each within the one that the symbol has.
    ///
    /// # Errors
    /// When an op refuses it, which it should not.
    pub fn within(&self, ranges: &[(u32, u32)]) -> Result<General, GraphError> {
        let narrowed = |(source, (least, most)): (&Source, &(u32, u32))| Source {
            symbol: Symbol::new(source.symbol.name(), *most).at_least(*least),
            ..source.clone()
        };
        let symbols: Vec<Source> = self.symbols.iter().zip(ranges).map(narrowed).collect();
        let extents: Vec<Dim> = symbols.iter().map(|source| Dim::from(&source.symbol)).collect();
        self.with_symbols(symbols, &extents)
    }

    /// The same for those instances alone in which each symbol is a multiple of the number in its place, which its new value
    /// counts.
    ///
    /// # Errors
    /// When an op refuses it, which it should not.
    pub fn in_multiples(&self, of: &[u32]) -> Result<General, GraphError> {
        let counted = |(source, of): (&Source, &u32)| {
            let (of, symbol) = ((*of).max(1), &source.symbol);
            let counts = Symbol::new(symbol.name(), symbol.limit() / of);
            Source {
                symbol: counts.at_least(symbol.least().div_ceil(of)),
                multiple: source.multiple.saturating_mul(of.into()),
                ..source.clone()
            }
        };
        let symbols: Vec<Source> = self.symbols.iter().zip(of).map(counted).collect();
        let extent = |(source, of): (&Source, &u32)| &Dim::from(&source.symbol) * &Dim::from((*of).max(1));
        let extents: Vec<Dim> = symbols.iter().zip(of).map(extent).collect();
        Ok(self.with_symbols(symbols, &extents)?.without_multiples(vec![]))
    }

    /// The same without those instances in which each symbol is a multiple of the number in its place.
    #[must_use]
    pub fn without_multiples(self, of: Vec<u32>) -> General {
        General { others: of, ..self }
    }

    /// Whether another graph serves instances with these values of the symbols.
    fn is_of_others(&self, values: &[u64]) -> bool {
        let is_multiple = |(value, of): (&u64, &u32)| value.is_multiple_of((*of).into());
        !self.others.is_empty() && values.iter().zip(&self.others).all(is_multiple)
    }

    /// These values of the symbols, or ones next to them that are not left to another graph.
    pub fn served(&self, values: &[u64]) -> Vec<u64> {
        let mut all = values.to_vec();
        let last = self.others.iter().rposition(|of| *of > 1).filter(|_| self.is_of_others(values));
        if let Some((value, source)) = last.and_then(|at| all.get_mut(at).zip(self.symbols.get(at))) {
            *value = if *value < u64::from(source.symbol.limit()) { *value + 1 } else { *value - 1 };
        }
        all
    }

    /// For each symbol, of how many the integer from which its value is read is known to be a multiple: the value counts
    /// them.
    pub fn multiples(&self) -> impl Iterator<Item = u64> {
        self.symbols.iter().map(|source| source.multiple.unsigned_abs())
    }

    fn with_symbols(&self, symbols: Vec<Source>, extents: &[Dim]) -> Result<General, GraphError> {
        let integers = self.integers.iter().map(|dim| self.replaced(dim, extents)).collect();
        Ok(General { graph: self.with(extents)?, integers, symbols, others: self.others.clone() })
    }

    /// The graph with numbers for its symbols.
    ///
    /// # Errors
    /// When an op refuses them.
    pub fn at(&self, values: &[u64]) -> Result<Graph, GraphError> {
        self.with(&values.iter().map(|value| Dim::from(*value)).collect::<Vec<_>>())
    }

    /// The graph with these in place of its symbols.
    fn with(&self, extents: &[Dim]) -> Result<Graph, GraphError> {
        let mut graph = Graph::new(self.graph.name());
        let mut map: Vec<NodeId> = vec![];
        let mapped = |map: &[NodeId], v: Value| Value { node: map[v.node.index()], result: v.result };
        for (_, node) in self.graph.nodes() {
            let operands: Vec<Value> = node.operands.iter().map(|v| mapped(&map, *v)).collect();
            let others = sizes(&node.op).map(|dim| self.replaced(dim, extents)).collect();
            map.push(graph.add_node(with_sizes(&node.op, others), &operands)?);
        }
        for output in self.graph.outputs() {
            graph.output(&output.name, mapped(&map, output.value))?;
        }
        Ok(graph)
    }

    fn replaced(&self, dim: &Dim, extents: &[Dim]) -> Dim {
        dim.replaced(|symbol| {
            let at = self.symbols.iter().position(|source| source.symbol.name() == symbol.name());
            at.map_or_else(|| symbol.into(), |at| extents[at].clone())
        })
    }
}

impl Source {
    /// The symbol's value in an instance with these integers, if it is in its range.
    fn value(&self, integers: &[i64]) -> Option<u64> {
        let integer = *integers.get(self.integer)?;
        let value = u64::try_from(integer / self.multiple).ok()?;
        (integer % self.multiple == 0 && self.symbol.contains(value)).then_some(value)
    }

    /// The integer as an expression.
    pub fn extent(&self) -> Dim {
        &Dim::from(&self.symbol) * &self.multiple.into()
    }
}
