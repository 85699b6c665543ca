//! Networks as JSON.

use serde::Serialize;

use super::{Network, Scale, Source, expected};
use crate::error::{BenchError, Result};

/// A network, and its results for the values of [`super::operand`].
#[derive(Serialize)]
struct Description {
    #[serde(flatten)]
    network: Network,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<Vec<Vec<f64>>>,
}

/// A JSON array of these networks. At the tiny scale, results of the interpreter are included, against which
/// another implementation can be checked.
///
/// # Errors
/// When the interpreter or serde fails.
pub fn describe(sources: &[Source], scale: Scale) -> Result<String> {
    let one = |source: &Source| {
        let network = source.network(scale);
        let expected = match scale {
            Scale::Full => None,
            Scale::Tiny => Some(expected(&network)?),
        };
        let fail = |e: serde_json::Error| BenchError::File { path: "json".into(), why: e.to_string() };
        serde_json::to_string(&Description { network, expected }).map_err(fail)
    };
    let lines = sources.iter().map(one).collect::<Result<Vec<_>>>()?;
    Ok(format!("[\n{}\n]\n", lines.join(",\n")))
}
