//! What networks take on a device.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use tallow_ir::{Bindings, Graph};
use tallow_runtime::executable::{Compiled, Executable};
use tallow_runtime::record::Timing;
use tallow_runtime::vulkan::Context;

use super::check::{elements, interpret, operands};
use super::on_device::{bind, compare, compare_run};
use super::{Network, Scale, Source, flops, graph};
use crate::Options;
use crate::error::Result;
use crate::measure::{Took, micros_since, repeat_after};
use crate::report::{Row, Table, read};
use crate::run::{Dispatches, by_kernel};
use crate::session::{Report, open};

/// Bytes that all bindings take together: more than the largest last-level caches.
const WORKING_SET: u64 = 128 << 20;
/// The most bindings, so that small networks do not take minutes to upload.
const MOST_BINDINGS: u64 = 64;
/// Networks of more work are compared with the interpreter at their tiny scale alone.
const CHECKED_FLOPS: u64 = 200_000_000;
/// The same, in elements of all values.
const CHECKED_ELEMENTS: u64 = 50_000_000;

/// Measures networks, writes a table to `out`, and says how many failed.
///
/// # Errors
/// When there is no device, or a file cannot be used. A network that fails is a row that says so.
pub fn run(sources: &[Source], options: &Options, out: &mut dyn Write) -> Result<usize> {
    let scale = if options.quick { Scale::Tiny } else { Scale::Full };
    let peer = options.compare.as_deref().map(read).transpose()?;
    let networks: Vec<Network> = sources.iter().map(|source| source.network(scale)).collect();
    let context = open(options)?;
    let width = networks.iter().map(|network| network.name.len()).max().unwrap_or(0);
    let mut report = Report::new(&context, options, Table::new(width, peer), out)?;
    for (source, network) in sources.iter().zip(&networks) {
        let (row, dispatches) = measure(&context, *source, network, options);
        report.add(row)?;
        report.list(&dispatches)?;
    }
    Ok(report.failed())
}

/// The figures of a network; if it fails, the row says why.
fn measure(
    context: &Arc<Context>,
    source: Source,
    network: &Network,
    options: &Options,
) -> (Row, Dispatches) {
    let mut row = Row { name: network.name.clone(), instances: 1, ..Row::default() };
    match fill(context, source, network, options, &mut row) {
        Ok(dispatches) => (row, dispatches),
        Err(error) => {
            row.failed = Some(error.to_string());
            (row, vec![])
        }
    }
}

fn fill(
    context: &Arc<Context>,
    source: Source,
    network: &Network,
    options: &Options,
    row: &mut Row,
) -> Result<Dispatches> {
    let idle = Instant::now();
    let graph = graph(network)?;
    let operands = operands(network)?;
    let results: u64 = graph.outputs().iter().map(|output| graph.ty(output.value).max_bytes()).sum();
    row.bytes = operands.iter().map(|bytes| bytes.len() as u64).sum::<u64>() + results;
    row.flops = flops(&graph);
    let compiled = Compiled::for_any_weights(context, &graph)?;
    let each = row.bytes + compiled.module().plan.arena.bytes;
    let count = if options.quick { 2 } else { WORKING_SET.div_ceil(each).clamp(2, MOST_BINDINGS) };
    row.working_set = count * each;
    let bind_all = |timing| -> Result<Vec<Executable>> {
        (0..count).map(|_| bind(context, &compiled, network, &operands, timing)).collect()
    };
    let bindings = bind_all(Timing::Run)?;
    if let Some(first) = bindings.first() {
        row.dispatches = first.counts().dispatches;
        row.barriers = first.counts().barriers_between;
        let checked = match is_affordable(&graph) {
            true => compare_run(first, network, &interpret(network, &graph, &operands)?)?,
            false => compare(context, &source.network(Scale::Tiny))?,
        };
        (row.nmse, row.checked) = (Some(checked.nmse), checked.elements);
    }
    let times = repeat_after(idle, options.seconds, || run_all(&bindings))?;
    row.timed(times.device);
    row.wall_us = Some(times.wall.median);
    drop(bindings);
    if !options.dispatches {
        return Ok(vec![]);
    }
    let mut runs = vec![];
    for binding in bind_all(Timing::Dispatches)? {
        binding.start(&Bindings::new(), &[])?;
        binding.wait()?;
        runs.push(binding.timings()?);
    }
    Ok(by_kernel(&runs))
}

/// One run of each binding, queued before the device is done with the first, as a loop of a user does and a CUDA graph of
/// PyTorch: microseconds of a run by the device, and of one that is waited for by the host. Each run reads operands that
/// the runs before it have not left in a cache. A timestamp is written when all earlier work is done, so runs do not count
/// each other's time.
fn run_all(bindings: &[Executable]) -> Result<Took> {
    for binding in bindings {
        binding.start(&Bindings::new(), &[])?;
    }
    let mut nanoseconds = 0;
    for binding in bindings {
        binding.wait()?;
        nanoseconds += binding.run_time()?;
    }
    let device = nanoseconds as f64 / 1e3 / bindings.len().max(1) as f64;
    let start = Instant::now();
    if let Some(first) = bindings.first() {
        first.start(&Bindings::new(), &[])?;
        first.wait()?;
    }
    Ok(Took { device, wall: micros_since(start) })
}

/// Whether the interpreter computes a graph in a few seconds.
fn is_affordable(graph: &Graph) -> bool {
    let all: u64 = graph.nodes().map(|(_, node)| elements(&node.types)).sum();
    flops(graph) <= CHECKED_FLOPS && all <= CHECKED_ELEMENTS
}
