//! One case on the device: operands made, results checked, runs timed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tallow_ir::{Bindings, Graph, TensorType, dot, matrix};
use tallow_quant::Format;
use tallow_runtime::executable::{Compiled, DeviceWeight, Executable};
use tallow_runtime::record::{Outputs, RecordOptions, Timing};
use tallow_runtime::vulkan::Context;

use crate::Options;
use crate::case::Case;
use crate::check::{Sample, SampledOperands};
use crate::data::random;
use crate::error::{BenchError, Result};
use crate::instances::{graph, leaf_name};
use crate::measure::{Times, Took, micros_since, repeat};
use crate::report::Row;
use crate::threads::in_order;

/// Bytes that the operands and results of all instances take together: many times the largest last-level caches.
const WORKING_SET: u64 = 512 << 20;
/// The most instances, so that small cases do not make large graphs.
const MOST_INSTANCES: u64 = 64;
/// Floating-point operations of all instances together, so that a run of a large product takes milliseconds.
const MOST_FLOPS: u64 = 300_000_000_000;
/// Floating-point operations that the interpreter may spend on checking a case, or on one instance if that takes more.
const CHECKED_FLOPS: u64 = 200_000_000;

/// What each kind of dispatch takes in a run: name, how many there are, microseconds in all.
pub type Dispatches = Vec<(String, usize, f64)>;

/// The figures of a case; if it fails, the row says why.
pub fn measure(
    context: &Arc<Context>,
    case: &Case,
    options: &Options,
    ceilings: &[Row],
) -> (Row, Dispatches) {
    let mut row = Row { name: case.name.clone(), bytes: case.bytes(), flops: case.flops, ..Row::default() };
    match fill(context, case, options, &mut row) {
        Ok(dispatches) => {
            row.share_of(case.bound.ceilings(), ceilings);
            (row, dispatches)
        }
        Err(error) => {
            row.failed = Some(error.to_string());
            (row, vec![])
        }
    }
}

fn instances(case: &Case, quick: bool) -> usize {
    let by_bytes = WORKING_SET.div_ceil(case.bytes()).clamp(1, MOST_INSTANCES);
    let by_flops = MOST_FLOPS.checked_div(case.flops).unwrap_or(MOST_INSTANCES).max(2);
    // A software device computes them one after the other.
    let most = if quick { 3 } else { MOST_INSTANCES };
    by_bytes.min(by_flops).min(most) as usize
}

fn fill(context: &Arc<Context>, case: &Case, options: &Options, row: &mut Row) -> Result<Dispatches> {
    let count = instances(case, options.quick);
    row.instances = count;
    row.working_set = count as u64 * case.bytes();
    let sizes: HashMap<&str, usize> = case.axes.iter().map(|a| (a.name, a.size)).collect();
    let graph = reduce_precision(context, graph(case, &sizes, count)?, options)?;
    let compiled = Compiled::for_any_weights(context, &graph)?;
    let (weights, samples) = operands(context, case, count)?;
    let record = RecordOptions { timing: Timing::Run, outputs: Outputs::Device, ..RecordOptions::default() };
    let executable = compiled.instance(&weights, &HashMap::new(), record)?;
    row.dispatches = executable.counts().dispatches;
    row.barriers = executable.counts().barriers_between;

    let run = executable.start(&Bindings::new(), &[])?;
    let results = executable.finish(run, &Bindings::new())?;
    for ((sample, operands), (_, _, _, result)) in samples.into_iter().zip(&results) {
        let (error, elements) = sample.compare(case, operands, result)?;
        row.nmse = Some(row.nmse.unwrap_or(0.0).max(error));
        row.checked += elements;
    }
    drop(results);

    let times = time(&executable, options.seconds, &[])?;
    let each = 1.0 / count as f64;
    row.timed(times.device.times(each));
    row.wall_us = Some(times.wall.median * each);
    match options.dispatches {
        true => {
            let record = RecordOptions { timing: Timing::Dispatches, ..record };
            let executable = compiled.instance(&weights, &HashMap::new(), record)?;
            let mut runs = vec![];
            for _ in 0..5 {
                executable.start(&Bindings::new(), &[])?;
                executable.wait()?;
                runs.push(executable.timings()?);
            }
            Ok(by_kernel(&runs))
        }
        false => Ok(vec![]),
    }
}

/// The times of runs without inputs.
fn time(executable: &Executable, seconds: f64, inputs: &[(&str, &[u8])]) -> Result<Times> {
    repeat(seconds, || {
        let start = Instant::now();
        executable.start(&Bindings::new(), inputs)?;
        executable.wait()?;
        let wall = micros_since(start);
        Ok(Took { device: executable.run_time()? as f64 / 1e3, wall })
    })
}

/// Instances that are compared with the interpreter: all of them, unless it would take too long.
fn checked(case: &Case, sample: &Sample) -> usize {
    let flops = case.flops as f64 * sample.share(case);
    (CHECKED_FLOPS as f64 / flops.max(1.0)) as usize + 1
}

type Operands = (HashMap<String, DeviceWeight>, Vec<(Sample, SampledOperands)>);

/// Makes the operands of all instances and uploads them; keeps what is checked.
fn operands(context: &Arc<Context>, case: &Case, count: usize) -> Result<Operands> {
    let one = |i: usize| -> Result<_> {
        let mut full = vec![];
        let mut weights = vec![];
        for (number, operand) in case.operands.iter().enumerate() {
            let extents = case.extents(&operand.axes);
            let format = operand.format().ok_or_else(|| no_format(&operand.stored.to_string()))?;
            let seed = (i as u64) << 8 | number as u64 | 1 << 40;
            let bytes = random(format, extents.iter().product(), operand.size, seed)?;
            let name = leaf_name(operand.name, i);
            let ty = TensorType::new(operand.stored, extents);
            let weight = DeviceWeight::upload(context, &name, &ty, &bytes, &mut |_, _| {})?;
            weights.push((name, weight));
            full.push(bytes);
        }
        let sample = Sample::new(case, i as u64);
        let reference = (i < checked(case, &sample)).then(|| {
            let operands = sample.operands(case, &full);
            (sample, operands)
        });
        Ok((weights, reference))
    };
    let made = in_order(count, one)?;
    let (mut weights, mut samples) = (HashMap::new(), vec![]);
    for (named, reference) in made {
        weights.extend(named);
        samples.extend(reference);
    }
    Ok((weights, samples))
}

fn no_format(dtype: &str) -> BenchError {
    let names = Format::ALL.iter().map(|f| f.name()).collect::<Vec<_>>().join(", ");
    BenchError::Build(format!("no random values of {dtype}; there are {names}"))
}

/// Sums dispatches of one kernel, medians over runs, largest first. A dispatch is called `%node kernel`.
pub fn by_kernel(runs: &[Vec<(String, u64)>]) -> Dispatches {
    let mut kinds: HashMap<&str, (usize, f64)> = HashMap::new();
    let first = runs.first().map_or(&[][..], Vec::as_slice);
    for (position, (label, _)) in first.iter().enumerate() {
        let mut times: Vec<u64> =
            runs.iter().filter_map(|run| run.get(position)).map(|(_, ns)| *ns).collect();
        times.sort_unstable();
        let name = label.split_once(' ').map_or(label.as_str(), |(_, kernel)| kernel);
        let kind = kinds.entry(name).or_default();
        kind.0 += 1;
        kind.1 += times.get(times.len() / 2).map_or(0.0, |ns| *ns as f64 / 1e3);
    }
    let mut all: Dispatches = kinds.into_iter().map(|(name, (count, us))| (name.into(), count, us)).collect();
    all.sort_by(|a, b| b.2.total_cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
    all
}

/// The graph as a model of it would be loaded: activations rounded where products of integers are faster.
pub fn reduce_precision(context: &Context, graph: Graph, options: &Options) -> Result<Graph> {
    let caps = context.caps();
    if options.exact {
        return Ok(graph);
    }
    let graph = if caps.int_dot_accelerated { dot::quantize_activations(&graph, caps)? } else { graph };
    Ok(matrix::round_operands(&graph, caps)?)
}
