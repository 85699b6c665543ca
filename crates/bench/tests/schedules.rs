//! The kernels of points of the sweep on device profiles, as snapshots: a cliff that was mended cannot come back unseen.
//! This needs no device.

use std::fmt::Write;

use tallow_bench::sweep::{Point, graph, points};
use tallow_codegen::compile;
use tallow_ir::caps::profile;
use tallow_ir::{DeviceCaps, dot, matrix};

/// Of the points, so many are one apart in the snapshots. (All of them would make half a megabyte of text.)
const STEP: usize = 5;

/// A line for each kernel of a point, and one for each fusion that was refused.
fn lines(point: &Point, caps: &DeviceCaps) -> Result<String, Box<dyn std::error::Error>> {
    let graph = graph(&point.network(&point.sizes()), 1, false)?;
    let graph = if caps.int_dot_accelerated { dot::quantize_activations(&graph, caps)? } else { graph };
    let module = compile(&matrix::round_operands(&graph, caps)?, caps)?;
    let mut text = format!("{}\n", point.name);
    for launch in &module.launches {
        writeln!(text, "    {}", module.kernels[launch.kernel].name)?;
    }
    for decision in &module.decisions {
        writeln!(text, "    not fused: {decision}")?;
    }
    Ok(text)
}

fn check(name: &str) {
    let Some(caps) = profile(name) else { panic!("no profile {name}") };
    let one = |point: &Point| {
        lines(point, &caps).unwrap_or_else(|why| format!("{}\n    refused: {why}\n", point.name))
    };
    let text: String = points().iter().step_by(STEP).map(one).collect();
    insta::assert_snapshot!(name, text);
}

#[test]
fn schedules_on_an_h200_are_unchanged() {
    check("h200");
}

#[test]
fn schedules_on_rdna3_are_unchanged() {
    check("rdna3");
}

#[test]
fn schedules_on_the_minimum_are_unchanged() {
    check("minimum");
}
