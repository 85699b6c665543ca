//! The kernels of points of the sweep on device profiles, as snapshots: a cliff that was mended cannot come back unseen.
//! This needs no device.

use std::fmt::Write;

use tallow_bench::networks::{Network, Scale, generate};
use tallow_bench::sweep::{graph, points};
use tallow_codegen::compile;
use tallow_ir::caps::profile;
use tallow_ir::{DeviceCaps, dot, matrix};

/// Of the points, so many are one apart in the snapshots. (All of them would make half a megabyte of text.)
const STEP: usize = 5;

/// A line for each kernel of a network, and one for each fusion that was refused.
fn lines(network: &Network, caps: &DeviceCaps) -> Result<String, Box<dyn std::error::Error>> {
    let graph = graph(network, 1, false)?;
    let graph = if caps.int_dot_accelerated { dot::quantize_activations(&graph, caps)? } else { graph };
    let module = compile(&matrix::round_operands(&graph, caps)?, caps)?;
    let mut text = String::new();
    for launch in &module.launches {
        writeln!(text, "    {}", module.kernels[launch.kernel].name)?;
    }
    for decision in &module.decisions {
        writeln!(text, "    not fused: {decision}")?;
    }
    Ok(text)
}

fn check(name: &str) {
    let all = points();
    let of = all.iter().step_by(STEP).map(|point| (point.name.clone(), point.network(&point.sizes())));
    insta::assert_snapshot!(name, text(name, of));
}

fn text(profile_name: &str, networks: impl Iterator<Item = (String, Network)>) -> String {
    let Some(caps) = profile(profile_name) else { panic!("no profile {profile_name}") };
    let one = |(name, network): (String, Network)| {
        let lines = lines(&network, &caps).unwrap_or_else(|why| format!("    refused: {why}\n"));
        format!("{name}\n{lines}")
    };
    networks.map(one).collect()
}

/// The networks that were fixed before any kernel was tuned for them.
#[test]
fn schedules_of_networks_are_unchanged() {
    let names = include_str!("../../../benches/sweep/networks.txt").lines();
    let networks = names.map(|name| {
        let seed = name.rsplit('/').next().and_then(|seed| seed.parse().ok());
        let network = generate(seed.expect("a name ends in its seed"), Scale::Full);
        assert_eq!(network.name, name);
        (name.to_string(), network)
    });
    insta::assert_snapshot!("networks", text("h200", networks));
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
