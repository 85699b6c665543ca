//! What the host has to do with a language model: compiling its steps, and replaying a decode step whose token the
//! device chooses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use tallow_ir::Bindings;
use tallow_models::llama::{LOGITS, POS, Rows, TOKENS};
use tallow_runtime::executable::{Compiled, Executable, Phases};
use tallow_runtime::record::Timing;
use tallow_runtime::vulkan::Context;

use crate::Options;
use crate::error::{BenchError, Result};
use crate::llm::Model;
use crate::measure::{Took, micros_since, repeat};
use crate::plan::ModelPlan;
use crate::report::Row;
use crate::run::{Dispatches, rounded};
use crate::stats::Spread;

/// Compiles prefill and greedy decode side by side, once, as loading a model does; without weights, which stream in
/// meanwhile. How much is found in the caches on disk depends on what ran before (`TALLOW_CACHE_DIR`).
pub fn start(context: &Arc<Context>, planned: &ModelPlan, options: &Options) -> (Row, Dispatches) {
    let mut row = Row { name: planned.name("start"), instances: 1, ..Row::default() };
    match compile(context, planned, options) {
        Ok((micros, phases)) => {
            row.timed(Spread::of(vec![micros]));
            row.wall_us = Some(micros);
            (row, phases)
        }
        Err(error) => (Row { failed: Some(error.to_string()), ..row }, vec![]),
    }
}

fn compile(context: &Arc<Context>, planned: &ModelPlan, options: &Options) -> Result<(f64, Dispatches)> {
    let ModelPlan { shape, format, .. } = *planned;
    let begin = Instant::now();
    let llama = shape.llama(format);
    let prefill = rounded(context, llama.step(Rows::UpTo(shape.prefill), shape.context())?, options)?;
    let decode = rounded(context, llama.greedy(shape.context())?, options)?;
    let graphs = micros_since(begin);
    let [prefill, decode] = std::thread::scope(|scope| {
        [&prefill, &decode]
            .map(|graph| scope.spawn(move || Compiled::new(context, graph)))
            // What panicked there goes on here.
            .map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let all = micros_since(begin);
    let mut lines = vec![("graphs".to_string(), 2, graphs)];
    for (name, compiled) in [("prefill", prefill?), ("decode", decode?)] {
        let Phases { passes, glsl, plan, spirv, pipelines } = compiled.phases;
        let count = compiled.module().kernels.len();
        let dispatches = compiled.module().program.dispatches.len();
        let from_disk = compiled.spirv.cache_hits;
        lines.push((format!("{name}: passes"), 1, 1e3 * passes));
        lines.push((format!("{name}: glsl"), count, 1e3 * glsl));
        lines.push((format!("{name}: plan of {dispatches} dispatches"), 1, 1e3 * plan));
        lines.push((format!("{name}: spirv, {from_disk} from disk"), count, 1e3 * spirv));
        lines.push((format!("{name}: pipelines"), count, 1e3 * pipelines));
    }
    Ok((all, lines))
}

/// A decode step as it is replayed: all that a run reads and writes.
struct Replay<'a> {
    executable: &'a Executable,
    bindings: Bindings,
    shape: Vec<usize>,
    best: Vec<u8>,
    /// Thread CPU time until a run was submitted, since it was last taken.
    submitting: Duration,
}

impl Replay<'_> {
    /// The token after `token`, which is at this position.
    fn step(&mut self, position: usize, token: u32) -> Result<u32> {
        if let Some(pos) = self.bindings.get_mut(POS) {
            *pos = position as u64;
        }
        let clock = ThreadTime::now();
        let run = self.executable.start(&self.bindings, &[(TOKENS, &token.to_le_bytes())])?;
        self.submitting += clock.elapsed();
        let results = self.executable.results(run)?;
        results.read(0, &self.bindings, &mut self.shape, &mut self.best)?;
        let missing = || BenchError::Wrong("there is no token".into());
        self.best.first_chunk().map(|b| u32::from_le_bytes(*b)).ok_or_else(missing)
    }
}

/// Tokens from an empty context, each chosen by the device and fed to the next step.
pub fn greedy(model: &Model, options: &Options, row: &mut Row) -> Result<Dispatches> {
    let Some(compiled) = &model.greedy else { return Ok(vec![]) };
    let executable = model.instance(compiled, Timing::Run)?;
    let bindings = Bindings::from([(POS.to_string(), 0)]);
    let mut replay =
        Replay { executable: &executable, bindings, shape: vec![], best: vec![], submitting: Duration::ZERO };
    check(model, &mut replay)?;
    let steps = model.shape.decode;
    let (mut cpu, mut submitting) = (vec![], vec![]);
    let times = repeat(options.seconds, || {
        let (mut device, mut wall, mut busy) = (0.0, 0.0, 0.0);
        let mut token = 1;
        for position in 0..steps {
            let (start, clock) = (Instant::now(), ThreadTime::now());
            token = replay.step(position, token)?;
            busy += clock.elapsed().as_secs_f64() * 1e6;
            wall += micros_since(start);
            device += executable.run_time().map_or(0.0, |ns| ns as f64 / 1e3);
        }
        cpu.push(busy / steps as f64);
        submitting.push(std::mem::take(&mut replay.submitting).as_secs_f64() * 1e6 / steps as f64);
        Ok(Took { device: device / steps as f64, wall: wall / steps as f64 })
    })?;
    let cpu = Spread::of(cpu);
    row.bytes = model.matrix_bytes();
    row.timed(times.device);
    row.wall_us = Some(times.wall.median);
    row.cpu_us = Some(cpu.median);
    row.tokens_per_s = Some(1e6 / times.wall.median);
    model.counts(&executable, row);
    let submitting = Spread::of(submitting).median;
    let mut lines = vec![
        ("thread CPU time of a token".to_string(), 1, cpu.median),
        ("of it until it is submitted".to_string(), 1, submitting),
    ];
    lines.extend(model.dispatches(options, compiled, &[(POS, steps as u64 - 1)], &1u32.to_le_bytes())?);
    Ok(lines)
}

/// Whether the device chooses what has the largest logit, the first of equals.
fn check(model: &Model, replay: &mut Replay<'_>) -> Result<()> {
    let decode = model.instance(model.decode_step(), Timing::Off)?;
    let mut token = 1;
    for position in 0..model.shape.decode.min(6) {
        let bindings = Bindings::from([(POS.to_string(), position as u64)]);
        let results = decode.run(&bindings, &[(TOKENS, &u32::to_le_bytes(token))])?;
        let logits = results
            .into_iter()
            .find(|(name, ..)| name == LOGITS)
            .map(|(.., bytes)| bytes)
            .unwrap_or_default();
        let logits: Vec<f32> = logits.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let best = (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a }).unwrap_or(0);
        token = replay.step(position, token)?;
        if token as usize != best {
            let why = format!("the device chose token {token} after {position} others, not {best}");
            return Err(BenchError::Wrong(why));
        }
    }
    Ok(())
}
