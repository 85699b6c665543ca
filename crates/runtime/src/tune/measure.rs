//! Times the kernels of one fusion, each alone, on random operands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tallow_codegen::{Count, Kernel, Source, Table};
use tallow_ir::verify::updated_param;
use tallow_ir::{Bindings, Dim, Fusion, Symbol, TensorType};

use super::compare::difference;
use super::data::{self, Signs};
use crate::error::{Error, ExecError};
use crate::record::{BarrierKind, BindRange, Grid, RecordCommand, RecordOptions, RecordSpec, Timing};
use crate::resident::{buffer_bytes, write};
use crate::tuner::Limits;
use crate::vulkan::{Buffer, Context, MemoryUse, Pipeline, Recording};

/// Maximum copies of the operands.
const MOST_COPIES: u64 = 64;

/// Target duration of one recording in nanoseconds, and the minimum and maximum dispatches in it.
const RECORDED: u64 = 10_000_000;
const DISPATCHES: (u64, u64) = (3, 64);

/// Runs of each kernel's recording, interleaved with the others', so that all see the device in the same state.
const ROUNDS: usize = 9;

/// Warm-up time. The clocks of an idle H200 take 0.1 s to rise; until then kernels take up to six times as long.
const WARM_UP: Duration = Duration::from_millis(200);

/// A schedule replaces the default only if its time is below this fraction of the default's. Noise is 3 %. But kernels
/// that were 4 to 9 % faster alone made all kernels after them in a graph 6 to 12 % slower
/// (docs/decisions/0021-autotuner.md). The defaults were found in whole graphs, though on one device.
const GAIN: f64 = 0.9;

/// Fills results before a kernel writes them: NaN in each float type, also as scales of blocks.
const UNWRITTEN: u32 = 0xffff_ffff;

/// A kernel for a fusion, ready to run.
pub struct Candidate {
    /// The kernel.
    pub kernel: Kernel,
    /// The symbol table that it reads.
    pub table: Table,
    /// The kernel's pipeline.
    pub pipeline: Arc<Pipeline>,
}

/// Result of measuring a candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Median nanoseconds of a dispatch with the barrier before it; if the loop length depends on symbols, the sum for
    /// a long and a short one.
    Time(f64),
    /// Its results differ from those of the default.
    Wrong(String),
    /// It has no kernel, or time ran out.
    Skipped,
}

/// The fastest candidate, or the first if none is faster by a tenth; `None` if the first was not timed.
pub fn fastest(outcomes: &[Outcome]) -> Option<usize> {
    let time = |outcome: &Outcome| match outcome {
        Outcome::Time(ns) => Some(*ns),
        Outcome::Wrong(_) | Outcome::Skipped => None,
    };
    let first = time(outcomes.first()?)?;
    let timed = outcomes.iter().enumerate().filter_map(|(i, o)| Some((i, time(o)?)));
    let (best, ns) = timed.min_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(if ns < GAIN * first { best } else { 0 })
}

/// Times candidates of one fusion; the first is the reference for the results of the others.
///
/// # Errors
/// When the device writes no timestamps, lacks memory for the operands, or fails.
pub fn measure(
    context: &Arc<Context>,
    fusion: &Fusion,
    candidates: &[Option<Candidate>],
    limits: &Limits,
) -> Result<Vec<Outcome>, ExecError> {
    let start = Instant::now();
    if !matches!(candidates.first(), Some(Some(_))) {
        return Ok(vec![Outcome::Skipped; candidates.len()]);
    }
    let lengths = lengths(fusion).ok_or_else(|| refused(fusion, "symbols have no values"))?;
    let prepared_with = |signs| {
        let operands = Operands::new(context, fusion, limits, signs)?;
        prepare_all(context, candidates, &operands, &lengths, limits, start)
    };
    let mut prepared = prepared_with(Signs::Both)?;
    if prepared.1.is_empty() {
        // With random signs the first computes no finite results to compare with, for example the root of a sum of
        // squares from another kernel.
        prepared = prepared_with(Signs::Positive)?;
    }
    let (mut outcomes, mut runs) = prepared;
    if runs.is_empty() {
        return Ok(outcomes);
    }
    let (warm, warm_up) = (Instant::now(), WARM_UP.min(limits.time / 4));
    while warm.elapsed() < warm_up {
        runs.iter().flat_map(|(_, timed)| timed).try_for_each(|timed| timed.recording.run())?;
    }
    for round in 0..ROUNDS {
        for timed in runs.iter_mut().flat_map(|(_, timed)| timed) {
            if round == 0 || start.elapsed() < limits.time {
                timed.recording.run()?;
                timed.nanoseconds.push(timed.recording.run_time()? / timed.dispatches);
            }
        }
    }
    for (i, mut timed) in runs {
        outcomes[i] = Outcome::Time(timed.iter_mut().map(Timed::median).sum());
    }
    Ok(outcomes)
}

/// Outcomes so far, and the recordings to time, by candidate: none if the first has no finite results on operands with
/// these operands.
type PreparedAll = (Vec<Outcome>, Vec<(usize, Vec<Timed>)>);

fn prepare_all(
    context: &Arc<Context>,
    candidates: &[Option<Candidate>],
    operands: &Operands,
    lengths: &[Bindings],
    limits: &Limits,
    start: Instant,
) -> Result<PreparedAll, ExecError> {
    let mut outcomes = vec![Outcome::Skipped; candidates.len()];
    let (mut expected, mut runs) = (vec![], vec![]);
    for (i, candidate) in candidates.iter().enumerate() {
        let Some(candidate) = candidate.as_ref().filter(|_| i == 0 || start.elapsed() < limits.time / 2)
        else {
            continue;
        };
        match prepare(context, candidate, operands, lengths, &mut expected)? {
            Ok(timed) => runs.push((i, timed)),
            Err(why) => outcomes[i] = Outcome::Wrong(why),
        }
        if runs.is_empty() {
            break;
        }
    }
    Ok((outcomes, runs))
}

/// Dispatches of one kernel, separated by barriers as in most graphs, and the time per dispatch in each run.
struct Timed {
    recording: Recording,
    dispatches: u64,
    nanoseconds: Vec<u64>,
}

impl Timed {
    fn median(&mut self) -> f64 {
        self.nanoseconds.sort_unstable();
        self.nanoseconds.get(self.nanoseconds.len() / 2).map_or(f64::INFINITY, |ns| *ns as f64)
    }
}

/// Runs a candidate once per length and compares its results with `expected`, which the first candidate fills. Then
/// makes the recordings to time. The inner error says what is wrong with the results.
fn prepare(
    context: &Arc<Context>,
    candidate: &Candidate,
    operands: &Operands,
    lengths: &[Bindings],
    expected: &mut Vec<Vec<Vec<u8>>>,
) -> Result<Result<Vec<Timed>, String>, ExecError> {
    let mut all = vec![];
    for (length, symbols) in lengths.iter().enumerate() {
        let bound = Bound::new(context, candidate, operands, symbols)?;
        operands.clear(context)?;
        let once = bound.recording(context, candidate, 1)?;
        once.run()?;
        let found = operands.read_results(context)?;
        if expected.len() == length {
            expected.push(found.clone());
        }
        // The first is compared with itself: it is rejected if no element is finite.
        if let Some(why) = operands.differ(&expected[length], &found) {
            return Ok(Err(why));
        }
        let dispatches = (RECORDED / once.run_time()?.max(1)).clamp(DISPATCHES.0, DISPATCHES.1);
        let recording = bound.recording(context, candidate, dispatches as usize)?;
        all.push(Timed { recording, dispatches, nanoseconds: vec![] });
    }
    Ok(Ok(all))
}

fn refused(fusion: &Fusion, why: &str) -> ExecError {
    ExecError::Leaf { what: "kernel", name: fusion.kind.name().into(), why: why.into() }
}

/// Symbol values to measure with: the largest for which every slice and update is in bounds. If the maxima are not,
/// symbols that are not extents of a result (such as a position) are halved until they are, or else all symbols.
///
/// If results have no symbolic extents, as for one query over a cache, the kernel is also measured with an eighth of
/// these values: a nearly empty cache needs another partition than a full one. Otherwise most results are computed by
/// runs of as many rows as possible.
fn lengths(fusion: &Fusion) -> Option<Vec<Bindings>> {
    let constraints = fusion.body.constraints();
    let results = || fusion.body.outputs().iter().map(|o| fusion.body.ty(o.value));
    let of_results: Vec<Symbol> =
        results().flat_map(|ty| ty.shape.dims()).flat_map(|dim| dim.symbols()).collect();
    let values = |halvings: u32, halved: &dyn Fn(&Symbol) -> bool| -> Bindings {
        let by = |s: &Symbol| if halved(s) { halvings.min(31) } else { 0 };
        fusion
            .body
            .symbols()
            .map(|s| (s.name().to_string(), u64::from((s.limit() >> by(s)).max(s.least()))))
            .collect()
    };
    let holds = |values: &Bindings| {
        let within = |(end, extent): &(Dim, Dim)| {
            end.eval(values).zip(extent.eval(values)).is_none_or(|(end, extent)| end <= extent)
        };
        constraints.iter().all(within)
    };
    let positions = |s: &Symbol| !of_results.contains(s);
    let tried = (0..32).map(|n| values(n, &positions)).chain((0..32).map(|n| values(n, &|_| true)));
    let most = tried.into_iter().find(holds)?;
    let few: Bindings = most.iter().map(|(name, value)| (name.clone(), value / 8)).collect();
    let several = of_results.is_empty() && few != most && holds(&few);
    Some(if several { vec![most, few] } else { vec![most] })
}

/// Operands and results of a fusion, in several copies.
struct Operands {
    /// By copy: operands, then results. A result that updates an operand is the same buffer.
    copies: Vec<Vec<Arc<Buffer>>>,
    params: usize,
    results: Vec<TensorType>,
}

impl Operands {
    fn new(
        context: &Arc<Context>,
        fusion: &Fusion,
        limits: &Limits,
        signs: Signs,
    ) -> Result<Operands, ExecError> {
        let params: Vec<TensorType> = fusion.body.params().into_iter().cloned().collect();
        let results: Vec<TensorType> =
            fusion.body.outputs().iter().map(|o| fusion.body.ty(o.value).clone()).collect();
        let own = |(r, _): &(usize, &TensorType)| updated_param(fusion, *r as u32).is_none();
        let bytes: u64 = params.iter().map(buffer_bytes).sum::<u64>()
            + results.iter().enumerate().filter(own).map(|(_, ty)| buffer_bytes(ty)).sum::<u64>();
        if bytes > limits.largest {
            return Err(refused(fusion, &format!("has {bytes} bytes of operands and results")));
        }
        // A CPU has smaller caches and is slower.
        let rotated = if context.caps().is_software() { limits.rotated / 16 } else { limits.rotated };
        let mut copies: Vec<Vec<Arc<Buffer>>> = vec![];
        for copy in 0..(rotated / bytes.max(1)).clamp(1, MOST_COPIES) {
            let mut all = vec![];
            for (i, ty) in params.iter().enumerate() {
                let buffer = context.buffer(&format!("operand {i}"), buffer_bytes(ty), MemoryUse::Device)?;
                if copy == 0 {
                    let fail = |e: tallow_quant::QuantError| refused(fusion, &e.to_string());
                    let data = data::random(ty, i as u64 + 1, signs).map_err(fail)?;
                    if !data.is_empty() {
                        write(context, ty, &buffer, &data, &mut |_, _| {})?;
                    }
                }
                all.push(buffer);
            }
            for (r, ty) in results.iter().enumerate() {
                all.push(match updated_param(fusion, r as u32) {
                    Some(param) => all[param as usize].clone(),
                    None => context.buffer(&format!("result {r}"), buffer_bytes(ty), MemoryUse::Device)?,
                });
            }
            copies.push(all);
        }
        let operands = Operands { copies, params: params.len(), results };
        operands.fill_copies(context)?;
        Ok(operands)
    }

    /// Copies the operands of the first copy to the others.
    fn fill_copies(&self, context: &Context) -> Result<(), Error> {
        let Some((first, others)) = self.copies.split_first() else { return Ok(()) };
        for other in others {
            let buffers: Vec<Arc<Buffer>> = first.iter().chain(other).cloned().collect();
            let copy = |i: usize| RecordCommand::Copy {
                source: i,
                source_offset: 0,
                target: first.len() + i,
                target_offset: 0,
                bytes: first[i].size(),
            };
            let mut commands = vec![RecordCommand::Barrier(BarrierKind::Head)];
            commands.extend((0..self.params).map(copy));
            commands.push(RecordCommand::Barrier(BarrierKind::Tail));
            Recording::new(context, &RecordSpec { commands }, &[], &buffers, RecordOptions::default())?
                .run()?;
        }
        Ok(())
    }

    /// Overwrites the first copy's results with [`UNWRITTEN`].
    fn clear(&self, context: &Context) -> Result<(), Error> {
        let results = &self.copies[0][self.params..];
        results.iter().try_for_each(|buffer| context.fill(buffer, 0, buffer.size(), UNWRITTEN))
    }

    /// Reads the first copy's results.
    fn read_results(&self, context: &Context) -> Result<Vec<Vec<u8>>, Error> {
        let read = |(ty, buffer): (&TensorType, &Arc<Buffer>)| {
            let mut bytes = vec![0; ty.max_bytes() as usize];
            if !bytes.is_empty() {
                context.download(buffer, 0, &mut bytes)?;
            }
            Ok(bytes)
        };
        self.results.iter().zip(&self.copies[0][self.params..]).map(read).collect()
    }

    /// What is wrong with results.
    fn differ(&self, expected: &[Vec<u8>], found: &[Vec<u8>]) -> Option<String> {
        let wrong = |(r, ty)| {
            let (r, ty): (usize, &TensorType) = (r, ty);
            difference(ty, &expected[r], &found[r]).map(|why| format!("result {r}: {why}"))
        };
        self.results.iter().enumerate().find_map(wrong)
    }
}

/// Bindings of a candidate, over a list of buffers.
struct Bound {
    buffers: Vec<Arc<Buffer>>,
    /// By copy.
    ranges: Vec<Vec<BindRange>>,
    grid: [u32; 3],
}

impl Bound {
    fn new(
        context: &Arc<Context>,
        candidate: &Candidate,
        operands: &Operands,
        symbols: &Bindings,
    ) -> Result<Bound, ExecError> {
        let kernel = &candidate.kernel;
        let unbound = || ExecError::Leaf {
            what: "kernel",
            name: kernel.name.clone(),
            why: "an expression has no value".into(),
        };
        let table: Vec<u8> =
            candidate.table.eval(symbols).ok_or_else(unbound)?.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut buffers: Vec<Arc<Buffer>> = operands.copies.iter().flatten().cloned().collect();
        let mut add = |buffer| {
            buffers.push(buffer);
            buffers.len() - 1
        };
        // Shared by all copies: the table, the codebooks, and scratch, which each dispatch restores.
        let mut shared = vec![];
        for binding in &kernel.bindings {
            shared.push(match binding.source {
                Source::Operand(_) | Source::Result(_) => 0,
                Source::Table => {
                    let bytes = (table.len() as u64).max(1).next_multiple_of(16);
                    let buffer = context.buffer("table", bytes, MemoryUse::Shared)?;
                    buffer.write(0, &table)?;
                    add(buffer)
                }
                Source::Codebooks => add(context.codebooks()?),
                Source::Scratch(i) => {
                    let scratch = kernel.scratch[i as usize];
                    let bytes = scratch.bytes.max(1).next_multiple_of(16);
                    let buffer = context.buffer("scratch", bytes, MemoryUse::Device)?;
                    context.fill(&buffer, 0, bytes, scratch.fill.unwrap_or(UNWRITTEN))?;
                    add(buffer)
                }
            });
        }
        let each = operands.copies[0].len();
        let ranges = (0..operands.copies.len()).map(|copy| {
            let range = |(binding, shared): (&tallow_codegen::Binding, &usize)| {
                let buffer = match binding.source {
                    Source::Operand(i) => copy * each + i as usize,
                    Source::Result(r) => copy * each + operands.params + r as usize,
                    Source::Table | Source::Codebooks | Source::Scratch(_) => *shared,
                };
                let (offset, end) = (binding.range.0, binding.range.1.min(buffers[buffer].size()));
                BindRange { buffer, offset, bytes: end.saturating_sub(offset) }
            };
            kernel.bindings.iter().zip(&shared).map(range).collect()
        });
        let ranges = ranges.collect();
        let grid: Option<Vec<u32>> = kernel.grid.iter().map(|c: &Count| c.eval(symbols)).collect();
        let grid = grid.and_then(|g| g.try_into().ok()).ok_or_else(unbound)?;
        Ok(Bound { buffers, ranges, grid })
    }

    /// Records `times` dispatches, each on the next copy.
    fn recording(
        &self,
        context: &Context,
        candidate: &Candidate,
        times: usize,
    ) -> Result<Recording, ExecError> {
        let mut commands = vec![RecordCommand::Barrier(BarrierKind::Head)];
        for i in 0..times {
            if i > 0 {
                commands.push(RecordCommand::Barrier(BarrierKind::Between));
            }
            commands.push(RecordCommand::Dispatch {
                pipeline: 0,
                bindings: self.ranges[i % self.ranges.len()].clone(),
                grid: Grid::Direct(self.grid),
                push: vec![],
                label: candidate.kernel.name.clone(),
            });
        }
        commands.push(RecordCommand::Barrier(BarrierKind::Tail));
        let options = RecordOptions { timing: Timing::Run, ..RecordOptions::default() };
        let pipelines = std::slice::from_ref(&candidate.pipeline);
        Ok(Recording::new(context, &RecordSpec { commands }, pipelines, &self.buffers, options)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wins_unless_another_is_clearly_faster() {
        let wrong = || Outcome::Wrong("far too fast".into());
        assert_eq!(fastest(&[]), None);
        assert_eq!(fastest(&[Outcome::Skipped, Outcome::Time(1.0)]), None);
        assert_eq!(fastest(&[Outcome::Time(10.0), wrong(), Outcome::Skipped]), Some(0));
        assert_eq!(fastest(&[Outcome::Time(10.0), Outcome::Time(9.2)]), Some(0));
        assert_eq!(fastest(&[Outcome::Time(10.0), Outcome::Time(8.9)]), Some(1));
        assert_eq!(fastest(&[Outcome::Time(10.0), Outcome::Time(9.0), Outcome::Time(8.0), wrong()]), Some(2));
    }

    fn found(lines: &str) -> Vec<(u64, u64)> {
        let text = format!(
            r#"graph "slice" {{
  symbol pos <= 100
  symbol seq <= 40
  %0 = state "k" : f32[100,8]
  %1 = slice %0 axis=0 start=0 len=pos+seq : f32[pos+seq,8]
  {lines}
}}"#
        );
        let body = tallow_ir::text::parse(&text).unwrap();
        let fusion = Fusion::new(tallow_ir::FusionKind::Row, body);
        lengths(&fusion).unwrap().iter().map(|v| (v["pos"], v["seq"])).collect()
    }

    #[test]
    fn symbols_get_values_under_which_slices_are_whole() {
        let sum = "%2 = reduce_sum %1 axes=[0,1] : f32[]\n  return %2 as \"y\"";
        assert_eq!(found(sum), [(50, 20), (6, 2)], "of results without symbols a short one too");
        let rows = "%2 = reduce_sum %1 axes=[1] : f32[pos+seq]\n  return %2 as \"y\"";
        assert_eq!(found(rows), [(50, 20)], "all are halved, being extents of results");
        let seq = "%2 = reduce_sum %1 axes=[0] : f32[8]\n  %3 = reshape %2 : f32[1,8]\n  \
                   %4 = broadcast %3 : f32[seq,8]\n  return %4 as \"y\"";
        assert_eq!(found(seq), [(50, 40)], "only what is no extent of a result");
    }
}
