//! The cliff finder: families of small programs, each measured against its own roofline.
//!
//! A [`Point`] is a program at one size, written as a [`Network`], so that PyTorch runs the
//! same ones. [`points`] lists them all: grids, and random points by a fixed seed. Each point is checked against the
//! interpreter first, whole or at sampled positions. Its roofline ([`roofline`]) is the larger of bytes over bandwidth
//! and operations over the rate of the best instruction, by ceilings that the same process measured.

mod check;
mod families;
mod graph;
mod point;
mod prediction;
mod roofline;
mod row;
mod summary;

#[cfg(feature = "vulkan")]
mod measure;

use std::path::PathBuf;

use serde::Serialize;

use crate::error::{BenchError, Result};
use crate::networks::Network;

pub use check::expected;
pub use families::{SEED, points};
pub use graph::graph;
#[cfg(feature = "vulkan")]
pub use measure::run;
pub use point::{Extent, Point, Rate};
pub use prediction::{TOLERANCE, is_close, launches, predicted_us};
pub use roofline::{Bound, Ceilings, roofline};
pub use row::{Row, read};
pub use summary::summary;

/// What is swept, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Beginnings of the names of points; all of them if there are none.
    pub points: Vec<String>,
    /// Seconds to measure each point for.
    pub seconds: f64,
    /// Let each kernel wait for the one before, as in a chain, and add up what they take. Otherwise instances overlap.
    pub serial: bool,
    /// Points below this share of their roofline are listed.
    pub threshold: f64,
    /// Small instances and few of them, for a test of the sweep itself.
    pub quick: bool,
    /// Take the fastest of each kernel's candidates.
    pub tune: bool,
    /// Number or part of the name of the Vulkan device.
    pub device: Option<String>,
    /// A file of JSON lines to append to.
    pub json: Option<PathBuf>,
    /// JSON lines of a peer to print beside, or of an earlier sweep.
    pub compare: Option<PathBuf>,
}

/// The points whose names begin as requested: by whole components, or else by any beginning.
///
/// # Errors
/// When a request selects nothing.
pub fn select(requested: &[String]) -> Result<Vec<Point>> {
    let all = points();
    if requested.is_empty() {
        return Ok(all);
    }
    if let Some(wrong) =
        requested.iter().find(|name| all.iter().all(|point| !point.name.starts_with(name.as_str())))
    {
        return Err(BenchError::UnknownCase(wrong.clone()));
    }
    let is_requested = |point: &Point| requested.iter().any(|name| point.name.starts_with(name.as_str()));
    Ok(all.into_iter().filter(is_requested).collect())
}

/// Points as JSON, one network a line, which `scripts/sweep_torch.py` reads.
///
/// # Errors
/// When serde fails.
pub fn describe(points: &[Point]) -> Result<String> {
    #[derive(Serialize)]
    struct Description {
        #[serde(flatten)]
        network: Network,
    }
    let fail = |e: serde_json::Error| BenchError::File { path: "json".into(), why: e.to_string() };
    let one = |point: &Point| {
        serde_json::to_string(&Description { network: point.network(&point.sizes()) }).map_err(fail)
    };
    Ok(format!("[\n{}\n]\n", points.iter().map(one).collect::<Result<Vec<_>>>()?.join(",\n")))
}

/// Checks the names of the points, and says that there is nothing to measure without Vulkan.
///
/// # Errors
/// Always.
#[cfg(not(feature = "vulkan"))]
pub fn run(options: &Options, _out: &mut dyn std::io::Write) -> Result<usize> {
    select(&options.points)?;
    Err(BenchError::NoDevice("this build has no Vulkan".into()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn families_have_enough_points_of_distinct_names() {
        let points = points();
        let mut families: BTreeMap<&str, usize> = BTreeMap::new();
        let mut names: Vec<&str> = points.iter().map(|point| point.name.as_str()).collect();
        points.iter().for_each(|point| *families.entry(point.family()).or_default() += 1);
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "two points of one name");
        assert!(points.len() >= 600, "{} points", points.len());
        assert!(families.values().all(|count| *count >= 30), "{families:?}");
    }

    #[test]
    fn requests_select_by_beginning() {
        let one = |name: &str| select(&[name.to_string()]);
        assert!(one("matmul/f16-nn").is_ok_and(|points| points.len() > 20));
        assert!(matches!(one("nothing"), Err(BenchError::UnknownCase(name)) if name == "nothing"));
    }
}
