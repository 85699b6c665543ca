//! What the host has to do with a language model: compiling its steps, and replaying a decode step whose token the
//! device chooses.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use cpu_time::ThreadTime;
use tallow_ir::Bindings;
use tallow_models::in_flight::{self, MAX_IN_FLIGHT, Steps};
use tallow_models::model_graph::{CHOSEN, LOGITS, POS, Rows, TOKENS};
use tallow_runtime::executable::{Compiled, Executable, Phases};
use tallow_runtime::record::Timing;
use tallow_runtime::vulkan::Context;

use crate::Options;
use crate::error::{BenchError, Result};
use crate::llm::Model;
use crate::measure::{Took, micros_since, repeat};
use crate::plan::ModelPlan;
use crate::report::Row;
use crate::run::{Dispatches, reduce_precision};
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
    let begin = Instant::now();
    let (shape, model) = (planned.shape, planned.model()?);
    let prefill =
        reduce_precision(context, model.step(Rows::UpTo(shape.prefill), shape.context())?, options)?;
    let decode = reduce_precision(context, model.greedy(shape.context())?, options)?;
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
        let Phases { passes, glsl, plan, spirv, pipelines, cache } = compiled.phases;
        let count = compiled.module().kernels.len();
        let dispatches = compiled.module().program.dispatches.len();
        let from_disk = compiled.spirv.cache_hits;
        lines.push((format!("{name}: passes"), 1, 1e3 * passes));
        lines.push((format!("{name}: glsl"), count, 1e3 * glsl));
        lines.push((format!("{name}: plan of {dispatches} dispatches"), 1, 1e3 * plan));
        lines.push((format!("{name}: spirv, {from_disk} from disk"), count, 1e3 * spirv));
        lines.push((format!("{name}: pipelines"), count, 1e3 * pipelines));
        lines.push((format!("{name}: pipeline cache"), 1, 1e3 * cache));
    }
    Ok((all, lines))
}

/// A decode step as it is replayed: all that its runs read and write.
struct Replay<'a> {
    executable: &'a Executable,
    bindings: Bindings,
    shape: Vec<usize>,
    best: Vec<u8>,
}

impl<'a> Replay<'a> {
    fn new(executable: &'a Executable) -> Replay<'a> {
        let bindings = Bindings::from([(POS.to_string(), 0)]);
        Replay { executable, bindings, shape: vec![], best: vec![] }
    }

    /// Submits the step of `token`, which is at this position.
    fn start(&mut self, position: usize, token: u32) -> Result<u64> {
        if let Some(pos) = self.bindings.get_mut(POS) {
            *pos = position as u64;
        }
        Ok(self.executable.start(&self.bindings, &[(TOKENS, &token.to_le_bytes())])?)
    }

    /// The token that a run chose.
    fn finish(&mut self, run: u64) -> Result<u32> {
        let results = self.executable.results(run)?;
        results.read(0, &self.bindings, &mut self.shape, &mut self.best)?;
        let missing = || BenchError::Wrong("there is no token".into());
        self.best.first_chunk().map(|b| u32::from_le_bytes(*b)).ok_or_else(missing)
    }

    /// The token after `token`, which is at this position.
    fn step(&mut self, position: usize, token: u32) -> Result<u32> {
        let run = self.start(position, token)?;
        self.finish(run)
    }
}

/// The token that every text begins with.
const FIRST: u32 = 1;

/// Replays that take turns, from an empty context, each submitted before the tokens of those ahead of it are waited for.
struct Pipeline<'a> {
    replays: [Replay<'a>; MAX_IN_FLIGHT],
    /// How many may be under way.
    most: usize,
}

impl Steps for Pipeline<'_> {
    /// The replay and its run.
    type Run = (usize, u64);
    type Output = u32;
    type Error = BenchError;

    fn most(&self) -> usize {
        self.most
    }

    fn submit(&mut self, index: usize) -> Result<(usize, u64)> {
        let token = if index == 0 { FIRST } else { CHOSEN };
        Ok((index % self.most, self.replays[index % self.most].start(index, token)?))
    }

    fn wait(&mut self, (replay, run): (usize, u64)) -> Result<u32> {
        self.replays[replay].finish(run)
    }
}

/// Tokens from an empty context, each chosen by the device: what a step takes by the device's clock where the host gives
/// each token to the next step, and what a token takes by the host's where steps are submitted ahead.
pub fn greedy(context: &Arc<Context>, model: &Model, options: &Options, row: &mut Row) -> Result<Dispatches> {
    let Some(compiled) = &model.greedy else { return Ok(vec![]) };
    let timed = model.instance(compiled, Timing::Run)?;
    let others =
        (0..MAX_IN_FLIGHT).map(|_| model.instance(compiled, Timing::Off)).collect::<Result<Vec<_>>>()?;
    let mut single = Replay::new(&timed);
    let replays = std::array::from_fn(|at| Replay::new(&others[at]));
    // As in generating: who polls has one step ahead.
    let mut pipeline = Pipeline { replays, most: if context.polls() { 2 } else { MAX_IN_FLIGHT } };
    check(model, &mut single, &mut pipeline)?;
    let steps = model.shape.decode;
    let per_token = 1.0 / steps as f64;

    let mut busy_alone = vec![];
    let alone = repeat(options.seconds, || {
        let (mut device, mut wall, mut busy, mut token) = (0.0, 0.0, 0.0, FIRST);
        for position in 0..steps {
            let (start, clock) = (Instant::now(), ThreadTime::now());
            token = single.step(position, token)?;
            busy += clock.elapsed().as_secs_f64() * 1e6;
            wall += micros_since(start);
            // Read outside of what is timed.
            device += timed.run_time().map_or(0.0, |ns| ns as f64 / 1e3);
        }
        busy_alone.push(busy * per_token);
        Ok(Took { device: device * per_token, wall: wall * per_token })
    })?;
    let mut busy = vec![];
    let times = repeat(options.seconds, || {
        let (start, clock) = (Instant::now(), ThreadTime::now());
        in_flight::follow(&mut pipeline, steps, &mut |_| ControlFlow::Continue(()))?;
        busy.push(clock.elapsed().as_secs_f64() * 1e6 * per_token);
        Ok(Took { device: 0.0, wall: micros_since(start) * per_token })
    })?;

    let median = |of: Vec<f64>| Spread::of(of).median;
    let (cpu, cpu_alone) = (median(busy), median(busy_alone));
    row.bytes = model.matrix_bytes();
    row.timed(alone.device);
    row.wall_us = Some(times.wall.median);
    row.cpu_us = Some(cpu);
    row.tokens_per_s = Some(1e6 / times.wall.median);
    model.counts(&timed, row);
    let mut lines = vec![
        ("a token, each step after the host has the one before".to_string(), 1, alone.wall.median),
        ("thread CPU time of it".to_string(), 1, cpu_alone),
        ("a token, steps submitted ahead".to_string(), 1, times.wall.median),
        ("thread CPU time of it".to_string(), 1, cpu),
    ];
    lines.extend(model.dispatches(options, compiled, &[(POS, steps as u64 - 1)], &FIRST.to_le_bytes())?);
    Ok(lines)
}

/// Whether the device chooses what has the largest logit, the first of equals, and the same where steps are submitted ahead,
/// by each of the executables.
fn check(model: &Model, replay: &mut Replay<'_>, pipeline: &mut Pipeline<'_>) -> Result<()> {
    let decode = model.instance(model.decode_step(), Timing::Off)?;
    let mut token = FIRST;
    let mut tokens = vec![];
    for position in 0..model.shape.decode.min(2 * MAX_IN_FLIGHT) {
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
        tokens.push(token);
    }
    let mut followed = vec![];
    in_flight::follow(pipeline, tokens.len(), &mut |token| {
        followed.push(token);
        ControlFlow::Continue(())
    })?;
    match followed == tokens {
        true => Ok(()),
        false => Err(BenchError::Wrong(format!("steps submitted ahead chose {followed:?}, not {tokens:?}"))),
    }
}
