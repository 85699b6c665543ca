//! The host's work grows with a graph, not with its square: counted in heap allocations, which are the same on every
//! machine, not in time. What searches or copies too much allocates for it, since sets, lists and strings are what the
//! compiler works on.
//!
//! A target of its own, because the crate that counts allocations replaces the allocator of the whole program.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use allocation_counter::measure;
use tallow_benches::Family;
use tallow_codegen::{KERNELS, PLAN, compile_observed};
use tallow_ir::caps::profile;

/// Allocations of each stage, and nodes.
fn counts(family: Family, nodes: usize) -> ([u64; 4], u64) {
    let mut graph = None;
    let build = measure(|| graph = Some(family.graph(nodes).unwrap())).count_total;
    let graph = graph.unwrap();
    let caps = profile("h200").unwrap();
    // The stages end where the observer is called; the counter is read by running up to each of them.
    let upto = |last: &str| {
        let mut ended = false;
        let info = measure(|| {
            let mut stop = |stage: &str, _: &tallow_ir::Graph| ended |= stage == last;
            match last {
                "fuse" => drop(tallow_ir::passes::run(&graph, &caps, &mut stop).unwrap()),
                _ => drop(compile_observed(&graph, &caps, &mut stop).unwrap()),
            }
        });
        assert!(ended, "{last}");
        info.count_total
    };
    let (passes, whole) = (upto("fuse"), upto(PLAN));
    assert!(whole > passes, "{KERNELS} and {PLAN} come after the passes");
    let lookup = measure(|| {
        let cache = std::collections::HashMap::from([(&graph, ())]);
        assert!(cache.contains_key(&graph));
    });
    ([build, passes, whole - passes, lookup.count_total], graph.len() as u64)
}

/// Sixteen times the nodes take sixteen times the allocations, to within a quarter (trees get deeper, and lists grow in
/// steps of two); quadratic work would take sixteen times as many a node.
#[test]
fn allocations_a_node_do_not_grow_with_the_graph() {
    for family in Family::ALL {
        let ((few, small), (many, large)) = (counts(family, 1_000), counts(family, 16_000));
        for (stage, (few, many)) in
            ["build", "passes", "kernels and plan", "lookup"].iter().zip(few.into_iter().zip(many))
        {
            let (before, after) = (few as f64 / small as f64, many as f64 / large as f64);
            println!("{} {stage}: {before:.2} a node of {small}, {after:.2} of {large}", family.name());
            assert!(
                after <= 1.25 * before + 0.01,
                "{} {stage}: {before} a node, then {after}",
                family.name()
            );
        }
    }
}
