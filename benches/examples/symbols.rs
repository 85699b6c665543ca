//! Times of kernels whose extents are symbols against those of kernels for numbers, by the device's timestamps around each
//! dispatch. A graph in the text form runs with values for its symbols, and with numbers in their place.
//!
//! ```text
//! TALLOW_TIMINGS=1 cargo run -p tallow-benches --example symbols -- FILE.ir NAME=VALUE[,VALUE ..] ..
//! ```
//!
//! Prints a line of JSON for each value of the symbols, of which all have equally many: the median microseconds of both
//! graphs, and of each dispatch.

use std::collections::HashMap;
use std::error::Error;
use std::io::Write;

use serde_json::json;
use tallow::{Device, Executable};
use tallow_ir::rewrite::rebuild;
use tallow_ir::{Bindings, DType, Dim, Graph, Op, structure, text};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str = "symbols FILE.ir NAME=VALUE[,VALUE ..] ..";

/// Runs of which the median is taken, and those before.
const RUNS: usize = 301;
const FIRST_RUNS: usize = 20;

/// Indices are below this.
const ROWS: u64 = 1000;

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let graph = text::parse(&std::fs::read_to_string(words.next().ok_or(USAGE)?)?)?;
    let mut symbols: Vec<(String, Vec<u64>)> = vec![];
    for word in words {
        let (name, values) = word.split_once('=').ok_or(USAGE)?;
        let values = values.split(',').map(str::parse).collect::<std::result::Result<Vec<u64>, _>>()?;
        symbols.push((name.into(), values));
    }
    let count = symbols.first().map_or(1, |(_, values)| values.len());
    for at in 0..count {
        let value = |(name, values): &(String, Vec<u64>)| Some((name.clone(), *values.get(at)?));
        let bindings: Option<Bindings> = symbols.iter().map(value).collect();
        let bindings = bindings.ok_or(USAGE)?;
        let [general, literal] =
            [times(&graph, &bindings)?, times(&with_numbers(&graph, &bindings)?, &bindings)?];
        let total = |times: &[(String, f64)]| times.iter().map(|(_, us)| us).sum::<f64>();
        let (symbols_us, numbers_us) = (total(&general), total(&literal));
        let line = json!({
            "graph": graph.name(), "symbols": bindings, "symbols_us": symbols_us, "numbers_us": numbers_us,
            "share": numbers_us / symbols_us, "kernels_of_symbols": general, "kernels_of_numbers": literal,
        });
        writeln!(std::io::stdout(), "{line}")?;
    }
    Ok(())
}

/// The graph with numbers in place of its symbols.
fn with_numbers(graph: &Graph, bindings: &Bindings) -> Result<Graph> {
    Ok(rebuild(graph, |new, node, operands| {
        let number = |dim: &Dim| dim.eval(bindings).map_or_else(|| dim.clone(), Dim::constant);
        let op = structure::with_sizes(&node.op, structure::sizes(&node.op).map(number).collect());
        new.add(op, operands).map(Some)
    })?)
}

/// The median microseconds of each dispatch, over runs on random data.
fn times(graph: &Graph, bindings: &Bindings) -> Result<Vec<(String, f64)>> {
    let device = Device::best_vulkan()?;
    let executable: Executable = device.compile(graph, &HashMap::new(), &HashMap::new())?;
    let data = inputs(graph, bindings)?;
    let data: Vec<(&str, &[u8])> =
        data.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let known = |name: &str| graph.symbols().any(|symbol| symbol.name() == name);
    let symbols =
        bindings.iter().filter(|(name, _)| known(name)).map(|(name, value)| (name.as_str(), *value));
    let symbols: Vec<(&str, u64)> = symbols.collect();
    let mut all: Vec<(String, Vec<u64>)> = vec![];
    for run in 0..FIRST_RUNS + RUNS {
        executable.run(&symbols, &data)?;
        for (at, (name, ns)) in executable.timings().into_iter().enumerate() {
            if run == FIRST_RUNS {
                all.push((name, vec![ns]));
            } else if let Some((_, times)) = all.get_mut(at) {
                times.push(ns);
            }
        }
    }
    if all.is_empty() {
        return Err("set TALLOW_TIMINGS=1".into());
    }
    let median = |(name, mut times): (String, Vec<u64>)| {
        times.sort_unstable();
        (name, times[times.len() / 2] as f64 / 1e3)
    };
    Ok(all.into_iter().map(median).collect())
}

/// Random bytes of all inputs: floats of -1 to 1, integers of rows.
fn inputs(graph: &Graph, bindings: &Bindings) -> Result<Vec<(String, Vec<u8>)>> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut all = vec![];
    for (_, node) in graph.nodes() {
        let Op::Input { name, ty } = &node.op else { continue };
        let count: usize = ty.shape.eval(bindings).ok_or("a symbol without a value")?.iter().product();
        let mut number = || (next() % 4096) as f32 / 2048.0 - 1.0;
        let bytes = match ty.dtype {
            DType::F32 => (0..count).flat_map(|_| number().to_le_bytes()).collect(),
            DType::F16 => (0..count).flat_map(|_| half::f16::from_f32(number()).to_le_bytes()).collect(),
            DType::U32 => (0..count).flat_map(|_| ((next() % ROWS) as u32).to_le_bytes()).collect(),
            other => return Err(format!("no data of {other:?}").into()),
        };
        all.push((name.clone(), bytes));
    }
    Ok(all)
}
