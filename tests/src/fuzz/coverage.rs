//! What the fuzzer has reached, against what it must reach.

use std::collections::BTreeMap;
use std::fmt;

use tallow_ir::{ElementwiseOp, FusionKind, Graph, Op, ReduceKind, ScanKind, ScatterKind};

/// The ops of [`Op::is_view`], by name.
pub const VIEWS: [&str; 8] = ["reshape", "broadcast", "permute", "slice", "flip", "window", "pad", "concat"];

/// Ops that occur in kernels and in no list of kinds.
const OTHERS: [&str; 11] = [
    "const",
    "iota",
    "dim_value",
    "cast",
    "matmul",
    "gather",
    "index_add",
    "argsort",
    "dequantize",
    "quantize",
    "custom",
];

/// How often each op is to be part of a kernel.
const OF_OPS: u64 = 1000;
/// How often each kind of kernel and each pair of views is to occur.
const OF_OTHERS: u64 = 100;

/// How often something was part of a graph that was checked. What is expected is there from the start, at 0.
#[derive(Clone, Debug)]
pub struct Coverage {
    /// Graphs.
    pub graphs: u64,
    /// Those of them that kernels refuse by dtype, say attention of f64.
    pub refused: u64,
    /// Ops inside kernels, by name.
    pub ops: BTreeMap<String, u64>,
    /// Kernels, by kind.
    pub kinds: BTreeMap<String, u64>,
    /// A view of a view, the outer one first, as drawn: some of them the simplifying passes make one.
    pub views: BTreeMap<(String, String), u64>,
}

impl Default for Coverage {
    fn default() -> Self {
        let elementwise = ElementwiseOp::ALL.iter().map(|op| op.name());
        let reduce = ReduceKind::ALL.iter().map(|k| k.name());
        let scan = ScanKind::ALL.iter().map(|k| k.name());
        let scatter = ScatterKind::ALL.iter().map(|k| k.name());
        let kinds = elementwise.chain(reduce).chain(scan).chain(scatter);
        let ops = kinds.chain(VIEWS).chain(OTHERS).chain(["attention", "state_update"]);
        let pairs = VIEWS.iter().flat_map(|outer| VIEWS.iter().map(move |inner| (outer, inner)));
        Coverage {
            graphs: 0,
            refused: 0,
            ops: ops.map(|name| (name.to_string(), 0)).collect(),
            kinds: FusionKind::ALL.iter().map(|k| (k.name().to_string(), 0)).collect(),
            views: pairs.map(|(outer, inner)| ((outer.to_string(), inner.to_string()), 0)).collect(),
        }
    }
}

impl Coverage {
    /// Counts a graph as drawn and as kernels.
    pub fn count(&mut self, drawn: &Graph, fused: &Graph) {
        self.graphs += 1;
        for (_, node) in fused.nodes() {
            let Op::Fusion(fusion) = &node.op else { continue };
            *self.kinds.entry(fusion.kind.name().into()).or_default() += 1;
            for (_, inner) in fusion.body.nodes().filter(|(_, n)| !matches!(n.op, Op::Param { .. })) {
                *self.ops.entry(inner.op.name().into()).or_default() += 1;
            }
        }
        let mut needed = vec![false; drawn.len()];
        drawn.outputs().iter().for_each(|o| needed[o.value.node.index()] = true);
        for (id, node) in drawn.nodes().rev().filter(|(_, n)| !n.operands.is_empty()) {
            if !needed[id.index()] {
                continue;
            }
            for v in &node.operands {
                needed[v.node.index()] = true;
                if node.op.is_view() && drawn.op(*v).is_view() {
                    let pair = (node.op.name().into(), drawn.op(*v).name().into());
                    *self.views.entry(pair).or_default() += 1;
                }
            }
        }
    }

    /// What has not been reached, with how often it has occurred and how often it is to.
    pub fn missing(&self) -> Vec<(String, u64, u64)> {
        let below = |(name, n): (String, u64), least: u64| (n < least).then_some((name, n, least));
        let mut found: Vec<_> =
            self.named().into_iter().filter_map(|(item, least)| below(item, least)).collect();
        found.sort_by_key(|(_, n, least)| n * 1000 / least);
        found
    }

    /// Everything that is counted, with its minimum.
    fn named(&self) -> Vec<((String, u64), u64)> {
        let ops = self.ops.iter().map(|(name, n)| ((name.clone(), *n), OF_OPS));
        let kinds = self.kinds.iter().map(|(name, n)| ((format!("{name} kernels"), *n), OF_OTHERS));
        let views =
            self.views.iter().map(|((outer, inner), n)| ((format!("{outer} of {inner}"), *n), OF_OTHERS));
        ops.chain(kinds).chain(views).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} graphs, {} refused by the device", self.graphs, self.refused)?;
        let missing = self.missing();
        if missing.is_empty() {
            writeln!(
                f,
                "everything has been reached: {OF_OPS} of each op, {OF_OTHERS} of each kind and pair"
            )?;
        } else {
            let list: Vec<String> =
                missing.iter().map(|(name, n, least)| format!("{name} {n}/{least}")).collect();
            writeln!(f, "below the minimum, {} of {}: {}", list.len(), self.named().len(), list.join(", "))?;
        }
        let line = |f: &mut fmt::Formatter<'_>, what: &str, all: Vec<(String, u64)>| {
            let list: Vec<String> = all.iter().map(|(name, n)| format!("{name} {n}")).collect();
            writeln!(f, "{} {what}\n  {}", all.len(), list.join(", "))
        };
        let pairs = |all: &BTreeMap<String, u64>| all.iter().map(|(k, n)| (k.clone(), *n)).collect();
        line(f, "ops in kernels", pairs(&self.ops))?;
        line(f, "kinds of kernels", pairs(&self.kinds))?;
        let views = self.views.iter().map(|((a, b), n)| (format!("{a} of {b}"), *n)).collect();
        line(f, "pairs of views", views)
    }
}

#[cfg(test)]
mod tests {
    use tallow_ir::{caps, passes, text::parse};

    use super::*;

    #[test]
    fn what_is_missing_comes_first() {
        let text = "graph \"g\" {\n  %0 = input \"x\" : f32[2,3]\n  %1 = flip %0 axis=0 : f32[2,3]\n  \
                    %2 = permute %1 [1,0] : f32[3,2]\n  %3 = neg %2 : f32[3,2]\n  %4 = permute %2 [1,0] : f32[2,3]\n  \
                    return %3 as \"y\"\n}\n";
        let graph = parse(text).expect("parses");
        let fused = passes::run(&graph, &caps::minimum(), &mut |_, _| {}).expect("fuses");
        let mut coverage = Coverage::default();
        let all = coverage.missing().len();
        for _ in 0..OF_OTHERS {
            coverage.count(&graph, fused.graph());
        }
        let pair = |outer: &str, inner: &str| coverage.views[&(outer.to_string(), inner.to_string())];
        // The second permute is dead.
        assert_eq!((pair("permute", "flip"), pair("permute", "permute")), (100, 0));
        assert_eq!((coverage.kinds["map"], coverage.ops["neg"], coverage.ops["exp"]), (100, 100, 0));
        assert_eq!(coverage.missing().len(), all - 2);
        assert!(coverage.missing().iter().rev().any(|m| *m == ("neg".into(), 100, 1000)));
        let text = coverage.to_string();
        assert!(text.contains("below the minimum") && text.contains("map 100"), "{text}");
    }

    #[test]
    fn views_are_the_ops_that_say_so() {
        let graph = (0..60).map(|seed| crate::random_graph(seed, 12, &crate::Options::default()));
        let mut seen: Vec<&str> = vec![];
        for graph in graph {
            seen.extend(graph.nodes().filter(|(_, n)| n.op.is_view()).map(|(_, n)| n.op.name()));
        }
        seen.sort_unstable();
        seen.dedup();
        let mut all = VIEWS.to_vec();
        all.sort_unstable();
        assert_eq!(seen, all);
    }
}
