//! Steps of a synthetic language model: the graphs of `tallow-models`, random weights, a cache.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tallow_ir::{Bindings, DType};
use tallow_models::model_graph::{LOGITS, ModelGraph, POS, Rows, SEQ, TOKENS};
use tallow_models::{CacheType, prefill_limit};
use tallow_reference::{Array, Env, evaluate};
use tallow_runtime::executable::{Compiled, DeviceState, DeviceWeight, Executable};
use tallow_runtime::record::{RecordOptions, Timing};
use tallow_runtime::vulkan::Context;

use crate::Options;
use crate::case::{F32_LIMIT, INTEGER_ERROR};
use crate::check::nmse;
use crate::error::{BenchError, Result};
use crate::llm_weights::{upload, weight};
use crate::measure::{Took, micros_since, repeat};
use crate::plan::ModelPlan;
use crate::report::Row;
use crate::run::{Dispatches, by_kernel, reduce_precision};
use crate::shapes::{Shape, cache_read, multiplied, multiply_adds};

/// Multiply-adds a token that are not too many for the interpreter, which checks smaller models.
const INTERPRETED: u64 = 1 << 23;

/// A model on the device.
pub(crate) struct Model {
    pub(crate) shape: &'static Shape,
    planned: ModelPlan,
    graph: ModelGraph,
    weights: HashMap<String, DeviceWeight>,
    states: HashMap<String, DeviceState>,
    prefill: Compiled,
    decode: Compiled,
    /// The decode step that ends in a token, if it is asked for.
    pub(crate) greedy: Option<Compiled>,
}

impl Model {
    pub(crate) fn load(context: &Arc<Context>, planned: &ModelPlan, options: &Options) -> Result<Model> {
        let (shape, context_size) = (planned.shape, planned.context());
        let model = planned.model()?;
        let prefill = model.step(Rows::UpTo(shape.prefill), context_size)?;
        let decode = model.step(Rows::One, context_size)?;
        let greedy = planned.greedy.then(|| model.greedy(context_size)).transpose()?;
        let mut states = HashMap::new();
        for (name, ty) in model.states(context_size)? {
            let state = DeviceState::zeroed(context, &name, &ty)?;
            states.insert(name, state);
        }
        let weights = upload(context, &model, planned)?;
        Ok(Model {
            shape,
            planned: planned.clone(),
            graph: model,
            weights,
            states,
            prefill: Compiled::new(context, &reduce_precision(context, prefill, options)?)?,
            decode: Compiled::new(context, &reduce_precision(context, decode, options)?)?,
            greedy: match greedy {
                Some(graph) => Some(Compiled::new(context, &reduce_precision(context, graph, options)?)?),
                None => None,
            },
        })
    }

    pub(crate) fn decode_step(&self) -> &Compiled {
        &self.decode
    }

    pub(crate) fn instance(&self, compiled: &Compiled, timing: Timing) -> Result<Executable> {
        let options = RecordOptions { timing, ..RecordOptions::default() };
        Ok(compiled.instance(&self.weights, &self.states, options)?)
    }

    /// Tokens to feed, always the same.
    pub(crate) fn tokens(&self, count: usize) -> Vec<u8> {
        let token = |i: usize| ((i * 7919 + 13) % self.shape.vocabulary) as u32;
        (0..count).flat_map(|i| token(i).to_le_bytes()).collect()
    }

    /// Whether prefill and decode, which are other kernels, agree on the logits after a few tokens, and with the
    /// interpreter if the model is small: the error, and how many logits were compared.
    pub(crate) fn check(&self) -> Result<(f64, usize)> {
        let count = 6;
        let tokens = self.tokens(count);
        let decode = self.instance(&self.decode, Timing::Off)?;
        let (mut stepped, mut at_once) = (vec![], vec![]);
        for (pos, token) in tokens.as_chunks::<4>().0.iter().enumerate() {
            run(&decode, &[(POS, pos as u64)], token, &mut stepped)?;
        }
        let prefill = self.instance(&self.prefill, Timing::Off)?;
        run(&prefill, &[(POS, 0), (SEQ, count as u64)], &tokens, &mut at_once)?;
        let floats = |logits: &[f32]| -> Vec<f64> { logits.iter().map(|x| f64::from(*x)).collect() };
        let error = nmse(&floats(&at_once), &floats(&stepped))?;
        self.within(error, "prefill and decode differ by")?;
        let Some(expected) = self.interpreted(&tokens)? else { return Ok((error, at_once.len())) };
        let error = nmse(&expected, &floats(&stepped))?;
        self.within(error, "decode and the interpreter differ by")?;
        Ok((error, expected.len()))
    }

    fn within(&self, error: f64, what: &str) -> Result<()> {
        // Every layer adds the errors of its seven matrices and of its cache to a stream that grows no faster than they do.
        // Twice that, as both sides of a comparison may err.
        let is_plain = self.planned.format.is_plain() && self.shape.expert_format.is_none();
        let matrix = if is_plain { F32_LIMIT } else { INTEGER_ERROR };
        let cache = self.planned.cache;
        let cache = rounding_error(cache.keys).max(rounding_error(cache.values));
        let limit = 2.0 * (cache + 7.0 * matrix) * self.shape.layers as f64;
        match error <= limit {
            true => Ok(()),
            false => {
                let why = format!("{what} a normalized mean squared error of {error:.1e}, not {limit:.0e}");
                Err(BenchError::Wrong(why))
            }
        }
    }

    /// The interpreter's logits after `tokens`, if the model is small enough for it.
    fn interpreted(&self, tokens: &[u8]) -> Result<Option<Vec<f64>>> {
        if multiply_adds(&self.graph) > INTERPRETED {
            return Ok(None);
        }
        let model = &self.graph;
        let graph = model.step(Rows::One, self.shape.context())?;
        let mut env = Env::default();
        for number in 0.. {
            let Some((name, ty, bytes)) = weight(model, &self.planned, number)? else { break };
            let shape = ty.shape.eval(&Bindings::new()).unwrap_or_default();
            env.weights.insert(name, Arc::new(Array::from_bytes(ty.dtype, &shape, &bytes)?));
        }
        for (name, ty) in model.cache(self.shape.context())? {
            let extents = ty.shape.eval(&Bindings::new()).unwrap_or_default();
            let zeros = if let DType::Block(format) = ty.dtype {
                // Blocks whose scale is 0.
                let bytes = vec![0; format.row_bytes(extents.iter().product())?];
                Array::from_bytes(ty.dtype, &extents, &bytes)?
            } else {
                Array::zeros(ty.dtype, &extents)?
            };
            env.states.insert(name, zeros);
        }
        let mut logits = vec![];
        for (pos, token) in tokens.as_chunks::<4>().0.iter().enumerate() {
            env.symbols.insert(POS.into(), pos as u64);
            env.inputs.insert(TOKENS.into(), Arc::new(Array::from_bytes(DType::U32, &[1], token)?));
            logits = evaluate(&graph, &mut env)?.swap_remove(0).1.to_f64s();
        }
        Ok(Some(logits))
    }

    /// Bytes of matrices that a step of one token reads: all but the embedding, of which it reads a row, and the experts
    /// that the token does not use.
    pub(crate) fn matrix_bytes(&self) -> u64 {
        let bytes = |name: &str| self.weights.get(name).map_or(0, DeviceWeight::bytes);
        multiplied(&self.graph).map(|(name, _, used)| bytes(name) as f64 * used).sum::<f64>() as u64
    }

    /// Fills the cache with the keys and values of the tokens `from .. to`, as a prompt does.
    pub(crate) fn fill(&self, from: usize, to: usize) -> Result<()> {
        let executable = self.instance(&self.prefill, Timing::Off)?;
        let tokens = self.tokens(to);
        self.feed(&executable, &tokens, from).map(|_| ())
    }

    /// The tokens from position `from` on, as many in one step as it takes.
    fn feed(&self, executable: &Executable, tokens: &[u8], from: usize) -> Result<Took> {
        let (mut took, mut logits) = (Took { device: 0.0, wall: 0.0 }, vec![]);
        let mut pos = from;
        for step in tokens[4 * from..].chunks(4 * self.shape.prefill) {
            let count = step.len() / 4;
            let symbols = [(POS, pos as u64), (SEQ, count as u64)];
            let (device, wall) = run(executable, &symbols, step, &mut logits)?;
            took = Took { device: took.device + device, wall: took.wall + wall };
            pos += count;
        }
        Ok(took)
    }

    /// Tokens one by one after `depth` positions, several times: times of one token.
    pub(crate) fn decode(&self, options: &Options, depth: usize, row: &mut Row) -> Result<Dispatches> {
        let executable = self.instance(&self.decode, Timing::Run)?;
        let tokens = self.tokens(self.shape.decode);
        let per_token = 1.0 / self.shape.decode as f64;
        let mut logits = vec![];
        let times = repeat(options.seconds, || {
            let mut took = Took { device: 0.0, wall: 0.0 };
            for (i, token) in tokens.as_chunks::<4>().0.iter().enumerate() {
                let symbols = [(POS, (depth + i) as u64)];
                let (device, wall) = run(&executable, &symbols, token, &mut logits)?;
                took = Took { device: took.device + device, wall: took.wall + wall };
            }
            Ok(Took { device: took.device * per_token, wall: took.wall * per_token })
        })?;
        row.bytes = self.matrix_bytes() + cache_read(&self.graph, depth)?;
        row.timed(times.device);
        row.wall_us = Some(times.wall.median);
        row.tokens_per_s = Some(1e6 / times.wall.median);
        self.counts(&executable, row);
        let last = tokens.as_chunks::<4>().0.last().map_or(&[][..], |token| token);
        let position = depth + self.shape.decode - 1;
        self.dispatches(options, &self.decode, &[(POS, position as u64)], last)
    }

    /// The step of up to `limit` tokens of a short prompt.
    fn prefill_step(&self, context: &Arc<Context>, options: &Options, limit: usize) -> Result<Compiled> {
        let step = self.graph.step(Rows::UpTo(limit), self.planned.context())?;
        Ok(Compiled::new(context, &reduce_precision(context, step, options)?)?)
    }

    /// A prompt of `count` tokens, several times: times of the whole prompt.
    pub(crate) fn prefill(
        &self,
        context: &Arc<Context>,
        options: &Options,
        count: usize,
        row: &mut Row,
    ) -> Result<Dispatches> {
        let limit = prefill_limit(count, self.shape.prefill);
        let short = match limit < self.shape.prefill {
            true => Some(self.prefill_step(context, options, limit)?),
            false => None,
        };
        let compiled = short.as_ref().unwrap_or(&self.prefill);
        let executable = self.instance(compiled, Timing::Run)?;
        let tokens = self.tokens(count);
        let times = repeat(options.seconds, || self.feed(&executable, &tokens, 0))?;
        row.flops = 2 * multiply_adds(&self.graph) * count as u64;
        row.timed(times.device);
        row.wall_us = Some(times.wall.median);
        row.tokens_per_s = Some(count as f64 * 1e6 / times.wall.median);
        self.counts(&executable, row);
        let first = &tokens[..4 * count.min(self.shape.prefill)];
        self.dispatches(options, compiled, &[(POS, 0), (SEQ, first.len() as u64 / 4)], first)
    }

    pub(crate) fn counts(&self, executable: &Executable, row: &mut Row) {
        row.instances = 1;
        row.dispatches = executable.counts().dispatches;
        row.barriers = executable.counts().barriers_between;
        row.working_set = executable.weight_bytes();
    }

    pub(crate) fn dispatches(
        &self,
        options: &Options,
        compiled: &Compiled,
        symbols: &[(&str, u64)],
        tokens: &[u8],
    ) -> Result<Dispatches> {
        if !options.dispatches {
            return Ok(vec![]);
        }
        let executable = self.instance(compiled, Timing::Dispatches)?;
        let mut runs = vec![];
        for _ in 0..5 {
            executable.run(&values(symbols), &[(TOKENS, tokens)])?;
            runs.push(executable.timings()?);
        }
        Ok(by_kernel(&runs))
    }
}

/// What rounding to a type costs, as a share of the energy: for f16 (2^-11)^2/3, for blocks as [`INTEGER_ERROR`] says of
/// bytes. With 4 bits a value is off by at most 1/16 of the largest of its 32: (2.4/16)^2/3.
fn rounding_error(kind: CacheType) -> f64 {
    match kind {
        CacheType::F32 => 0.0,
        CacheType::F16 => 8e-8,
        CacheType::Q8_0 => INTEGER_ERROR,
        CacheType::Q4_0 => 7.5e-3,
    }
}

fn values(symbols: &[(&str, u64)]) -> Bindings {
    symbols.iter().map(|(name, value)| (name.to_string(), *value)).collect()
}

/// One step that replaces `logits`: microseconds by the device's clock (0 if it is not timed as a whole) and by the host's.
fn run(
    executable: &Executable,
    symbols: &[(&str, u64)],
    tokens: &[u8],
    logits: &mut Vec<f32>,
) -> Result<(f64, f64)> {
    let bindings = values(symbols);
    let mut found = false;
    let start = Instant::now();
    let run = executable.start(&bindings, &[(TOKENS, tokens)])?;
    executable.finish_with(run, &bindings, &mut |name, _, _, bytes| {
        if name == LOGITS {
            found = true;
            logits.clear();
            logits.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)));
        }
    })?;
    let wall = micros_since(start);
    if !found {
        return Err(BenchError::Wrong("there are no logits".into()));
    }
    let device = executable.run_time().map_or(0.0, |ns| ns as f64 / 1e3);
    Ok((device, wall))
}
