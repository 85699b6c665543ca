//! Points on a device: checked first, then timed.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::Instant;

use tallow_ir::{Bindings, Graph, Op, TensorType};
use tallow_runtime::executable::{Compiled, DeviceWeight, Executable};
use tallow_runtime::record::{Outputs, RecordOptions, Timing};
use tallow_runtime::vulkan::Context;

use super::check::{Expected, expected};
use super::graph::{graph, keys, stored};
use super::point::Point;
use super::prediction::{launches, predicted_us};
use super::roofline::{CEILINGS, Ceilings, roofline};
use super::row::{Row, read};
use super::summary::summary;
use super::{Options, SEED, select};
use crate::error::{BenchError, Result};
use crate::instances::leaf_name;
use crate::measure::{Took, micros_since, repeat};
use crate::networks::{Network, operand};
use crate::run::reduce_precision;
use crate::{ceilings, session};

/// Bytes that the operands and results of all instances take together: many times the largest last-level caches.
const WORKING_SET: u64 = 512 << 20;
/// The most instances, so that small programs do not make large graphs.
const MOST_INSTANCES: u64 = 32;
/// Floating-point operations of all instances together.
const MOST_FLOPS: u64 = 150_000_000_000;

/// Measures the selected points, writes each to `out` and a summary last, and says how many failed.
///
/// # Errors
/// When there is no device, or a file cannot be used. A point that fails is a row that says so.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<usize> {
    let points = select(&options.points)?;
    let peer = options.compare.as_deref().map(read).transpose()?.unwrap_or_default();
    let general = crate::Options {
        seconds: options.seconds,
        quick: options.quick,
        tune: options.tune,
        device: options.device.clone(),
        ..crate::Options::default()
    };
    let context = session::open(&general)?;
    let mut json = options.json.as_deref().map(Json::open).transpose()?;
    writeln!(out, "{}, {}", context.caps().name, context.caps().driver)?;
    let measured = CEILINGS.iter().filter_map(|name| ceilings::measure(&context, name, &general));
    let ceilings = Ceilings::of(&measured.collect::<Vec<_>>());
    writeln!(out, "{ceilings:.2?}")?;
    let mut rows = vec![];
    measure_all(&context, &points, &general, |point, prepared| {
        let (row, executable) = measure(&context, point, prepared, options, &ceilings);
        writeln!(out, "{}", text(&row))?;
        out.flush()?;
        if let Some(json) = &mut json {
            json.add(&row)?;
        }
        rows.push(row);
        Ok(executable)
    })?;
    write!(out, "{}", summary(&rows, options.threshold, &peer))?;
    Ok(rows.iter().filter(|row| row.failed.is_some()).count())
}

/// A file of JSON lines.
struct Json {
    path: String,
    file: File,
}

impl Json {
    fn open(path: &std::path::Path) -> Result<Json> {
        let text = path.display().to_string();
        let fail = |e: std::io::Error| BenchError::File { path: text.clone(), why: e.to_string() };
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(fail)?;
        Ok(Json { path: text, file })
    }

    fn add(&mut self, row: &Row) -> Result<()> {
        let fail = |why: String| BenchError::File { path: self.path.clone(), why };
        let line = serde_json::to_string(row).map_err(|e| fail(e.to_string()))?;
        writeln!(self.file, "{line}").map_err(|e| fail(e.to_string()))
    }
}

fn text(row: &Row) -> String {
    match &row.failed {
        Some(why) => format!("FAILED   {}: {why}", row.name),
        None => format!(
            "{:5.1} %  {:<58} {:>10.2} us  {:<8} {:>10.2} us  predicted {:>10.2} us, {:4.2} x  {} dispatches",
            100.0 * row.share,
            row.name,
            row.median_us,
            row.bound,
            row.roofline_us,
            row.predicted_us,
            row.predicted_ratio(),
            row.dispatches
        ),
    }
}

/// A point that is compiled, with what its results must be.
struct Prepared {
    row: Row,
    network: Network,
    graph: Graph,
    inputs: Vec<Vec<u8>>,
    compiled: Compiled,
    checked: Checked,
    bytes: [u64; 2],
}

/// What a point's results are compared with.
enum Checked {
    /// Its own results at the positions that are picked.
    Whole(Expected),
    /// Results of the same program at other sizes.
    Resized(Box<Resized>),
}

/// A point at the sizes at which it is checked.
struct Resized {
    network: Network,
    graph: Graph,
    inputs: Vec<Vec<u8>>,
    expected: Expected,
}

/// Prepares points in a thread of its own. Meanwhile the device runs the point before, so that its clocks stay up: an H200
/// that idled for a second ran kernels at a fifth of its speed for longer than they are warmed up.
fn measure_all(
    context: &Arc<Context>,
    points: &[Point],
    options: &crate::Options,
    mut each: impl FnMut(&Point, Result<Prepared>) -> Result<Option<Executable>>,
) -> Result<()> {
    let (send, receive) = sync_channel(1);
    thread::scope(|scope| {
        scope.spawn(move || {
            for point in points {
                if send.send(prepare(context, point, options)).is_err() {
                    return;
                }
            }
        });
        let mut before = None;
        for point in points {
            let Some(prepared) = busy_until_received(&receive, before.take())? else { break };
            before = each(point, prepared)?;
        }
        Ok(())
    })
}

/// The next item; `None` if no more are sent. The device repeats `executable` until the item is there.
fn busy_until_received<T>(receive: &Receiver<T>, executable: Option<Executable>) -> Result<Option<T>> {
    let Some(executable) = executable else { return Ok(receive.recv().ok()) };
    loop {
        match receive.try_recv() {
            Ok(item) => return Ok(Some(item)),
            Err(TryRecvError::Disconnected) => return Ok(None),
            Err(TryRecvError::Empty) => {
                executable.start(&Bindings::new(), &[])?;
                executable.wait()?;
            }
        }
    }
}

fn prepare(context: &Arc<Context>, point: &Point, options: &crate::Options) -> Result<Prepared> {
    let network = point.network(&point.sizes());
    let shares_weights = point.bytes_read.is_some();
    let one = graph(&network, 1, shares_weights)?;
    let inputs = inputs(&network)?;
    let all = inputs.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
    let written: u64 = one.outputs().iter().map(|output| one.ty(output.value).max_bytes()).sum();
    let bytes = [point.bytes_read.unwrap_or(all), written];
    let each = if point.bytes_read.is_some() { bytes.iter().sum() } else { all + written };
    let by_flops = MOST_FLOPS.checked_div(point.flops).unwrap_or(MOST_INSTANCES).max(2);
    let most = if options.quick { 2 } else { MOST_INSTANCES };
    let instances = WORKING_SET.div_ceil(each.max(1)).min(by_flops).clamp(1, most) as usize;
    let graph = graph(&network, instances, shares_weights)?;
    let compiled = Compiled::for_any_weights(context, &reduce_precision(context, graph.clone(), options)?)?;
    let module = compiled.module();
    let dispatches = module.launches.len().div_ceil(instances);
    let kernels = module.launches.iter().take(dispatches).map(|launch| &module.kernels[launch.kernel]);
    let launches = launches(&network, instances, shares_weights);
    let row = Row {
        predicted_us: predicted_us(module, context.caps(), launches),
        bytes: bytes.iter().sum(),
        flops: point.flops,
        instances,
        dispatches,
        kernels: kernels.map(|kernel| kernel.name.clone()).collect(),
        decisions: module
            .decisions
            .iter()
            .take(module.decisions.len().div_ceil(instances))
            .cloned()
            .collect(),
        ..Row::default()
    };
    let checked = match &point.checked_at {
        Some(sizes) => Checked::Resized(Box::new(resized(&point.resized(sizes))?)),
        None => Checked::Whole(expected(point, &one, &inputs)?),
    };
    Ok(Prepared { row, network, graph, inputs, compiled, checked, bytes })
}

fn resized(point: &Point) -> Result<Resized> {
    let network = point.network(&point.sizes());
    let graph = graph(&network, 1, false)?;
    let inputs = inputs(&network)?;
    let expected = expected(point, &graph, &inputs)?;
    Ok(Resized { network, graph, inputs, expected })
}

fn measure(
    context: &Arc<Context>,
    point: &Point,
    prepared: Result<Prepared>,
    options: &Options,
    ceilings: &Ceilings,
) -> (Row, Option<Executable>) {
    let timed = prepared.and_then(|prepared| time(context, point, prepared, options, ceilings));
    let (row, executable) = match timed {
        Ok((row, executable)) => (row, Some(executable)),
        Err(error) => (Row { failed: Some(error.to_string()), ..Row::default() }, None),
    };
    (Row { name: point.name.clone(), device: context.caps().name.clone(), ..row }, executable)
}

fn time(
    context: &Arc<Context>,
    point: &Point,
    prepared: Prepared,
    options: &Options,
    ceilings: &Ceilings,
) -> Result<(Row, Executable)> {
    let Prepared { mut row, network, graph, inputs, compiled, checked, bytes } = prepared;
    let weights = upload(context, (&network, &graph), &inputs, row.instances)?;
    let timing = if options.serial { Timing::Dispatches } else { Timing::Run };
    let record = RecordOptions { timing, outputs: Outputs::Device, ..RecordOptions::default() };
    let executable = compiled.instance(&weights, &HashMap::new(), record)?;
    (row.nmse, row.checked) = match &checked {
        Checked::Whole(expected) => expected.compare(&first_outputs(&executable)?)?,
        Checked::Resized(resized) => check_resized(context, resized)?,
    };
    let times = repeat(options.seconds, || {
        let start = Instant::now();
        executable.start(&Bindings::new(), &[])?;
        executable.wait()?;
        let nanoseconds = match options.serial {
            true => executable.timings()?.iter().map(|(_, each)| each).sum(),
            false => executable.run_time()?,
        };
        Ok(Took { device: nanoseconds as f64 / 1e3, wall: micros_since(start) })
    })?;
    row.median_us = times.device.median / row.instances as f64;
    let (us, bound) = roofline(point, ceilings, bytes);
    (row.roofline_us, row.bound) = (us, bound.name().into());
    row.share = if row.median_us > 0.0 { us / row.median_us } else { 0.0 };
    Ok((row, executable))
}

/// The bytes of the outputs of the first instance.
fn first_outputs(executable: &Executable) -> Result<Vec<Vec<u8>>> {
    let started = executable.start(&Bindings::new(), &[])?;
    let results = executable.finish(started, &Bindings::new())?;
    let first = results.into_iter().filter(|(name, ..)| name.ends_with(".0"));
    Ok(first.map(|(_, _, _, bytes)| bytes).collect())
}

/// Compares the results of a point at other sizes.
fn check_resized(context: &Arc<Context>, resized: &Resized) -> Result<(f64, usize)> {
    let Resized { network, graph, inputs, expected } = resized;
    let weights = upload(context, (network, graph), inputs, 1)?;
    let executable = Compiled::for_any_weights(context, graph)?.instance(
        &weights,
        &HashMap::new(),
        RecordOptions::default(),
    )?;
    expected.compare(&first_outputs(&executable)?)
}

fn inputs(network: &Network) -> Result<Vec<Vec<u8>>> {
    network.inputs.iter().enumerate().map(|(number, spec)| operand(spec, number, SEED)).collect()
}

/// Copies of the inputs for all instances of `graph`, each in memory of its own.
fn upload(
    context: &Arc<Context>,
    (network, graph): (&Network, &Graph),
    inputs: &[Vec<u8>],
    instances: usize,
) -> Result<HashMap<String, DeviceWeight>> {
    let mut weights = HashMap::new();
    for (name, array) in keys(graph, network)? {
        let (ty, bytes) = (TensorType::new(array.ty, array.shape.clone()), array.to_bytes());
        let weight = DeviceWeight::upload(context, &name, &ty, &bytes, &mut |_, _| {})?;
        weights.insert(name, weight);
    }
    let is_read = |name: &str| {
        graph.nodes().any(|(_, node)| matches!(&node.op, Op::Weight { name: leaf, .. } if leaf == name))
    };
    for i in 0..instances {
        for (spec, bytes) in network.inputs.iter().zip(inputs) {
            let name = leaf_name(&spec.name, i);
            if is_read(&name) {
                let ty = TensorType::new(stored(spec), spec.shape.clone());
                let weight = DeviceWeight::upload(context, &name, &ty, bytes, &mut |_, _| {})?;
                weights.insert(name, weight);
            }
        }
    }
    Ok(weights)
}
