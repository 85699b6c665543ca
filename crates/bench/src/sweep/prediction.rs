//! What the cost model predicts for a point, and how far that is from what it took.

use tallow_codegen::{Launches, Module};
use tallow_ir::{Bindings, DeviceCaps};

use crate::networks::{Kind, Network};

/// How far a prediction may be from the measurement, as a share of that.
pub const TOLERANCE: f64 = 0.3;

/// The launches of `instances` of a program as [`graph`](super::graph) makes them: they run side by side, since nothing
/// orders instances.
pub fn launches(network: &Network, instances: usize, shares_weights: bool) -> Launches {
    Launches {
        count: u32::try_from(instances).unwrap_or(u32::MAX),
        share_operands: shares_weights && network.inputs.iter().any(|spec| spec.kind == Kind::Weight),
    }
}

/// Predicts the microseconds of one of the instances that `module` has: the sum over all its kernels. Extents of points
/// are constant.
pub fn predicted_us(module: &Module, caps: &DeviceCaps, launches: Launches) -> f64 {
    let each = |launch| module.predict_us(launch, caps, &Bindings::new(), launches);
    (0..module.launches.len()).map(each).sum::<f64>() / f64::from(launches.count.max(1))
}

/// Whether a prediction is within [`TOLERANCE`] of the measurement.
pub fn is_close(predicted_us: f64, median_us: f64) -> bool {
    (predicted_us - median_us).abs() <= TOLERANCE * median_us
}
