//! The figures of one point.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{BenchError, Result};

/// What was measured of a point; a peer's line has the name and `median_us`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    /// The point.
    pub name: String,
    /// The device, as its driver calls it.
    pub device: String,
    /// Microseconds of one instance by the device's clock: median over runs.
    pub median_us: f64,
    /// What the cost model predicts; 0 in lines of a peer and of older sweeps.
    pub predicted_us: f64,
    /// What it could take at best.
    pub roofline_us: f64,
    /// What bounds it: `read`, `copy`, `fma`, `matrix` or `dispatch`.
    pub bound: String,
    /// Roofline over median.
    pub share: f64,
    /// Bytes that an instance reads and writes at least.
    pub bytes: u64,
    /// Floating-point operations of an instance.
    pub flops: u64,
    /// Instances of one run.
    pub instances: usize,
    /// Dispatches of an instance.
    pub dispatches: usize,
    /// The kernels of an instance, in order of execution.
    pub kernels: Vec<String>,
    /// Why ops were not fused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<String>,
    /// Normalized mean squared error of the results that were checked.
    pub nmse: f64,
    /// Elements that were checked.
    pub checked: usize,
    /// Why the figures do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Row {
    /// The predicted time over the measured one; 0 without a measurement.
    pub fn predicted_ratio(&self) -> f64 {
        if self.median_us > 0.0 { self.predicted_us / self.median_us } else { 0.0 }
    }
}

/// Reads JSON lines: ours, or those of a peer.
///
/// # Errors
/// When the file cannot be read or a line is none of ours.
pub fn read(path: &Path) -> Result<Vec<Row>> {
    let fail = |why: String| BenchError::File { path: path.display().to_string(), why };
    let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    let line = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| fail(format!("line {}: {e}", number + 1)))
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(line).collect()
}
