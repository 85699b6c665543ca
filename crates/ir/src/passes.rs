//! The ordered list of passes and the driver that verifies between them.

pub mod align_operands;
pub mod channels_last;
pub mod dead_code;
pub mod expand_attention;
pub mod fold_constants;
pub mod fold_views;
pub mod fuse;
pub mod simplify;
pub mod split_concats;
pub mod split_products;
pub mod split_scans;
pub mod split_sorts;

use crate::caps::DeviceCaps;
use crate::graph::{Graph, GraphError};
use crate::verify::{Diagnostic, Verified, verify};

/// Sees each stage: its name and the graph after it.
pub type Observer<'a> = dyn FnMut(&str, &Graph) + 'a;

/// A pass that says what it decided against, and reports its phases.
pub type Explain = fn(&Graph, &DeviceCaps, &mut Observer<'_>) -> Result<(Graph, Vec<String>), GraphError>;

/// A named function from a graph to an equivalent one.
#[derive(Clone, Copy)]
pub struct Pass {
    /// Verb and object.
    pub name: &'static str,
    /// The rewrite; it never changes what the outputs mean.
    pub run: fn(&Graph, &DeviceCaps) -> Result<Graph, GraphError>,
    /// As `run`, with a line for each rewrite that was considered and not made; for a pass that weighs some. Reports
    /// each phase to the observer.
    pub explain: Option<Explain>,
}

/// All passes in the order in which they run.
pub const PASSES: &[Pass] = &[
    // First, so that no later pass spends time on what nobody reads.
    Pass { name: "dead_code", run: dead_code::run, explain: None },
    // Before the rules, which simplify what it makes.
    Pass { name: "expand_attention", run: expand_attention::run, explain: None },
    // Constants before rules: the rules look for constant operands.
    Pass { name: "fold_constants", run: fold_constants::run, explain: None },
    Pass { name: "simplify", run: simplify::run, explain: None },
    // After the rules, which leave views of views behind.
    Pass { name: "fold_views", run: fold_views::run, explain: None },
    // After views are folded, so that windows are next to the matmul that reads them.
    Pass { name: "channels_last", run: channels_last::run, explain: None },
    // After convolutions have what vectors they can have.
    Pass { name: "align_operands", run: align_operands::run, explain: None },
    // After views are folded, so that slices are next to what they slice.
    Pass { name: "split_products", run: split_products::run, explain: None },
    // After all that may join concatenations.
    Pass { name: "split_concats", run: split_concats::run, explain: None },
    // After views are folded: a selection is a slice of a sort.
    Pass { name: "split_sorts", run: split_sorts::run, explain: None },
    // After the rules: the views that divide a row into parts are as simple as they get.
    Pass { name: "split_scans", run: split_scans::run, explain: None },
    // Last: everything after it sees kernels.
    Pass { name: "fuse", run: fuse::run, explain: Some(fuse::explain) },
];

/// Why the pass list failed.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// The given graph is not valid: the caller's mistake.
    #[error("the graph is not valid: {}", list(.0))]
    Invalid(Vec<Diagnostic>),
    /// A pass built an ill-typed node: a bug in the pass.
    #[error("bug in pass {pass}: {source}")]
    Build {
        /// The pass.
        pass: &'static str,
        /// What it tried.
        source: GraphError,
    },
    /// The verifier rejects what a pass returned: a bug in the pass.
    #[error("bug in pass {pass}: {}", list(.diagnostics))]
    Verify {
        /// The pass.
        pass: &'static str,
        /// What is violated.
        diagnostics: Vec<Diagnostic>,
    },
}

fn list(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(|d| d.to_string()).collect::<Vec<_>>().join("; ")
}

/// Runs all passes. `observer` sees the graph under the name "input" and after each pass; dumps, timing
/// and tests hang on it. Verifies after every pass in debug builds, at both ends in release builds.
///
/// Each phase of the pass `fuse` is a stage, too, named `fuse.<phase>`. It only groups nodes, and kernels are built from
/// the last grouping. The observer therefore sees the ungrouped graph.
pub fn run(graph: &Graph, caps: &DeviceCaps, observer: &mut Observer<'_>) -> Result<Verified, PassError> {
    run_logged(graph, caps, &mut vec![], observer)
}

/// As [`run`]; `log` gets a line for each rewrite that a pass considered and did not make.
///
/// # Errors
/// As [`run`].
pub fn run_logged(
    graph: &Graph,
    caps: &DeviceCaps,
    log: &mut Vec<String>,
    observer: &mut Observer<'_>,
) -> Result<Verified, PassError> {
    let mut now = verify(graph.clone()).map_err(PassError::Invalid)?;
    observer("input", now.graph());
    for (i, pass) in PASSES.iter().enumerate() {
        let (next, lines) = match pass.explain {
            Some(explain) => explain(now.graph(), caps, observer),
            None => (pass.run)(now.graph(), caps).map(|next| (next, vec![])),
        }
        .map_err(|source| PassError::Build { pass: pass.name, source })?;
        log.extend(lines);
        observer(pass.name, &next);
        now = if cfg!(debug_assertions) || i + 1 == PASSES.len() {
            verify(next).map_err(|diagnostics| PassError::Verify { pass: pass.name, diagnostics })?
        } else {
            Verified::trusted(next)
        };
    }
    Ok(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;

    #[test]
    fn the_observer_sees_each_pass_and_phase() {
        let text = "graph \"g\" {\n%0 = input \"x\" : f32[4]\n%1 = exp %0 : f32[4]\nreturn %1 as \"y\"\n}";
        let graph = parse(text).unwrap();
        let mut stages: Vec<(String, bool)> = vec![];
        let is_fused = |g: &Graph| g.nodes().any(|(_, n)| matches!(n.op, crate::op::Op::Fusion(_)));
        run(&graph, &crate::caps::minimum(), &mut |name, g| stages.push((name.into(), is_fused(g)))).unwrap();
        let passes = PASSES.iter().map(|pass| pass.name.to_string());
        let phases = fuse::PHASES.iter().map(|phase| format!("fuse.{}", phase.name));
        let mut expected: Vec<String> = ["input".into()].into_iter().chain(passes).collect();
        let last = expected.len() - 1;
        expected.splice(last..last, phases);
        assert!(stages.iter().map(|(name, _)| name).eq(&expected), "{stages:?}");
        assert!(stages.iter().all(|(name, fused)| *fused == (name == "fuse")), "{stages:?}");
    }
}
