//! Benchmarks of kernels and models on a Vulkan device: results checked first, times by the device's clock.
//!
//! A [`Case`](case::Case) is an op over named axes; [`cases`](cases::cases) lists them all. To measure one, a single
//! graph is built of many independent instances, each with random operands of its own, which together are far larger
//! than any last-level cache; the scheduler puts them in one level, so that nothing but the kernels is timed. Before
//! that, results are compared with the interpreter's, whole or on a sample of positions ([`check`]). Times stand beside
//! the device's ceilings (`ceilings`: what plain kernels reach that only read, copy, or multiply), measured in the
//! same process.
//!
//! `llm` measures steps of a synthetic language model: the graphs of `tallow-models`, random weights, no file; decode
//! with logits read back and with tokens that the device chooses, and what compiling takes before the first step.
//!
//! What this crate never does: choose kernels. Cases are graphs like a user's.

pub mod case;
pub mod cases;
pub mod check;
pub mod data;
pub mod error;
pub mod instances;
pub mod networks;
pub mod plan;
pub mod report;
pub mod shapes;
pub mod stats;
pub mod sweep;
pub mod threads;

#[cfg(feature = "vulkan")]
mod ceilings;
#[cfg(feature = "vulkan")]
mod llm;
#[cfg(feature = "vulkan")]
mod llm_host;
#[cfg(feature = "vulkan")]
mod llm_steps;
#[cfg(feature = "vulkan")]
mod llm_weights;
#[cfg(feature = "vulkan")]
mod measure;
#[cfg(feature = "vulkan")]
mod run;
#[cfg(feature = "vulkan")]
mod session;

use std::io::Write;
use std::path::PathBuf;

use tallow_models::CacheTypes;

pub use error::{BenchError, Result};

/// Names of the ceilings, in the order in which they are measured.
pub const CEILINGS: &[&str] = &[
    "ceilings/read",
    "ceilings/copy",
    "ceilings/fill",
    "ceilings/fma",
    "ceilings/dot",
    "ceilings/matrix",
    "ceilings/dispatch",
    "ceilings/barrier-1",
    "ceilings/barrier-132",
    "ceilings/barrier-1056",
];

/// The cases of a synthetic language model, before their shape and type.
pub const LLM: &[&str] = &["llm/decode", "llm/prefill", "llm/greedy", "llm/start"];

/// What is measured, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Multiply quantized weights by activations as they are, also where the device multiplies them faster rounded.
    pub exact: bool,
    /// Take the fastest of each kernel's choices, which are measured first, also where `TALLOW_TUNE` is not set.
    pub tune: bool,
    /// Names of cases, or their beginnings; all but the language models if there are none.
    pub cases: Vec<String>,
    /// Time to measure each case for, in seconds.
    pub seconds: f64,
    /// Small shapes, for a test of the benchmark itself.
    pub quick: bool,
    /// Shape of the language model, one of [`shapes::SHAPES`]; with `quick`, `tiny` if it is not given.
    pub shape: Option<String>,
    /// Formats of its matrices.
    pub types: Vec<String>,
    /// How many of its last layers have their weights in the host's memory.
    pub host_layers: usize,
    /// Types of its cached keys and values.
    pub cache: CacheTypes,
    /// Positions that are in the cache before decode is measured; an empty context if there are none.
    pub depths: Vec<usize>,
    /// Tokens of the prompts that prefill is measured with; those of one step if there are none.
    pub prompts: Vec<usize>,
    /// Number or part of the name of the Vulkan device; the best one if it is not given.
    pub device: Option<String>,
    /// A file of JSON lines to append to.
    pub json: Option<PathBuf>,
    /// A peer's JSON lines to print beside.
    pub compare: Option<PathBuf>,
    /// JSON lines that have the ceilings, which are then not measured.
    pub ceilings: Option<PathBuf>,
    /// Print what each dispatch takes too.
    pub dispatches: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            exact: false,
            tune: false,
            cases: vec![],
            seconds: 0.5,
            quick: false,
            shape: None,
            types: vec!["Q4_0".into()],
            host_layers: 0,
            cache: CacheTypes::default(),
            depths: vec![],
            prompts: vec![],
            device: None,
            json: None,
            compare: None,
            ceilings: None,
            dispatches: false,
        }
    }
}

/// Every name that [`Options::cases`] may pick, in the order in which cases are measured.
pub fn names(quick: bool) -> Vec<String> {
    let cases = cases::cases(quick);
    let fixed = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    [fixed(CEILINGS), cases.into_iter().map(|case| case.name).collect(), fixed(LLM)].concat()
}

/// The names that `requested` picks: a whole name, the components that it begins with, or else any beginning. With nothing
/// asked for, all but the language models, whose weights take gigabytes.
///
/// # Errors
/// When something that is asked for picks nothing.
pub fn select(requested: &[String], quick: bool) -> Result<Vec<String>> {
    let all = names(quick);
    if requested.is_empty() {
        return Ok(all.into_iter().filter(|name| !LLM.contains(&name.as_str())).collect());
    }
    let mut picked = vec![false; all.len()];
    for prefix in requested {
        let begins =
            |name: &String| name == prefix || name.starts_with(&format!("{}/", prefix.trim_end_matches('/')));
        let by_component = all.iter().any(begins);
        let mut found = false;
        for (name, picked) in all.iter().zip(&mut picked) {
            if if by_component { begins(name) } else { name.starts_with(prefix.as_str()) } {
                (*picked, found) = (true, true);
            }
        }
        if !found {
            return Err(BenchError::UnknownCase(prefix.clone()));
        }
    }
    Ok(all.into_iter().zip(picked).filter(|(_, picked)| *picked).map(|(name, _)| name).collect())
}

/// Measures what the options pick, writes a table to `out`, and says how many cases failed.
///
/// # Errors
/// When there is no device, an option makes no sense, or a file cannot be used. A case that fails is a row that says
/// so, and the others go on.
#[cfg(feature = "vulkan")]
pub fn run(options: &Options, out: &mut dyn Write) -> Result<usize> {
    session::run(options, &plan::Plan::new(options)?, out)
}

/// Checks the options, and says that there is nothing to measure without Vulkan.
///
/// # Errors
/// Always.
#[cfg(not(feature = "vulkan"))]
pub fn run(options: &Options, _out: &mut dyn Write) -> Result<usize> {
    plan::Plan::new(options)?;
    Err(BenchError::NoDevice("this build has no Vulkan".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(requested: &[&str]) -> Result<Vec<String>> {
        select(&requested.iter().map(ToString::to_string).collect::<Vec<_>>(), false)
    }

    #[test]
    fn names_pick_by_component_and_then_by_beginning() {
        assert_eq!(selected(&["matvec/q4_0/14336x4096"]).unwrap(), ["matvec/q4_0/14336x4096"]);
        assert!(selected(&["matvec"]).unwrap().iter().all(|name| name.starts_with("matvec/")));
        assert!(selected(&["matvec/q4_"]).unwrap().len() >= 9);
        assert_eq!(selected(&["ceilings"]).unwrap(), CEILINGS);
        assert!(selected(&[]).unwrap().iter().all(|name| !name.starts_with("llm")));
        assert!(
            matches!(selected(&["matvec", "nothing"]), Err(BenchError::UnknownCase(name)) if name == "nothing")
        );
    }
}
