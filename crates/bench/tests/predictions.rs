//! Predicted times of points of the sweep on device profiles. This needs no device.

use std::fmt::Write;

use tallow_bench::networks::Network;
use tallow_bench::sweep::{graph, points};
use tallow_codegen::{Launches, Module, compile};
use tallow_ir::caps::{self, PROFILES};
use tallow_ir::{Bindings, DeviceCaps, dot, matrix};

/// Of the points, so many are one apart in the snapshot and in the other test.
const STEP: usize = 20;
const FEW: usize = 80;

fn module(network: &Network, caps: &DeviceCaps) -> Result<Module, Box<dyn std::error::Error>> {
    let graph = graph(network, 1, false)?;
    let graph = if caps.int_dot_accelerated { dot::quantize_activations(&graph, caps)? } else { graph };
    Ok(compile(&matrix::round_operands(&graph, caps)?, caps)?)
}

fn predictions(module: &Module, caps: &DeviceCaps) -> Vec<f64> {
    let each = |launch| module.predict_us(launch, caps, &Bindings::new(), Launches::ONE);
    (0..module.launches.len()).map(each).collect()
}

/// One launch of each kernel by itself.
#[test]
fn predictions_on_an_h200_are_unchanged() {
    let caps = caps::h200();
    let mut text = String::new();
    for point in points().iter().step_by(STEP) {
        writeln!(text, "{}", point.name).unwrap();
        let module = module(&point.network(&point.sizes()), &caps).unwrap();
        for (launch, us) in module.launches.iter().zip(predictions(&module, &caps)) {
            writeln!(text, "{us:10.2} us  {}", module.kernels[launch.kernel].name).unwrap();
        }
    }
    insta::assert_snapshot!("predictions", text);
}

#[test]
fn predictions_are_finite_on_every_profile() {
    for (name, make) in PROFILES {
        let caps = make();
        for point in points().iter().step_by(FEW) {
            // A profile may lack an element type.
            let Ok(module) = module(&point.network(&point.sizes()), &caps) else { continue };
            let all = predictions(&module, &caps);
            assert!(all.iter().all(|us| us.is_finite() && *us > 0.0), "{name}, {}: {all:?}", point.name);
            assert_eq!(module.predicted_us, if caps.is_software() { vec![] } else { all });
        }
    }
}
