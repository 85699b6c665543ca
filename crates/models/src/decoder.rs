//! A model ready to run, without its tokenizer: resident weights, compiled steps and a KV cache.

mod verify;
mod verify_new;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::thread::ScopedJoinHandle;

use tallow::{DType, Device, Executable, GraphState, Prepared, Weight};
use tallow_gguf::GgufFile;
use tallow_ir::{Graph, Op, TensorType};

use crate::error::{Error, Result};
use crate::fit::Fit;
use crate::greedy::DecodeStep;
use crate::host_layers::is_last;
use crate::memory::Purpose;
use crate::model_graph::{LOGITS, ModelGraph, POS, SEQ};
use crate::options::{Activations, Decode, LoadOptions, Progress};
use crate::prefill::Prefill;
use crate::step_graphs::{context, decode_step, name, prefill_step, with_cache};
use crate::tokens::{check_tokens, f32s};
pub use verify::{VerifiedStep, VerifySteps};
pub use verify_new::WrongKernel;

/// A model on a device: tokens in, logits out. The KV cache stays on the device.
#[derive(Debug)]
pub struct Decoder {
    vocabulary: usize,
    layers: usize,
    context: usize,
    chunk: usize,
    prefill: Prefill,
    /// The decode step that was compiled with the model.
    decode: (Decode, DecodeStep),
    /// The other decode step, once it was needed.
    other: Option<DecodeStep>,
    parts: Parts,
    /// Tokens in the cache; allocated for a full cache, so that steps allocate nothing.
    tokens: Vec<u32>,
    /// How many of the tokens the states of a recurrent model include; `None` where a run failed, or one is included that is
    /// not of the text.
    included: Option<usize>,
}

impl Decoder {
    /// Uploads the weights of a file and compiles the graphs of its model, which is [`ModelGraph::from_file`] of that file.
    ///
    /// # Errors
    /// When the options do not fit the model, it does not fit the memory ([`Error::DoesNotFit`]), or compiling fails.
    pub fn load(
        file: &GgufFile,
        model: &ModelGraph,
        device: &Device,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Decoder> {
        let source = Source { file, host_layers: Fit::check(model, device, options, Purpose::Generate)? };
        let context = context(model, options)?;
        let model = &with_cache(model, options)?;
        let chunk = options.chunk_within(&model.config, context);
        let prefill = prefill_step(model, device.caps(), options.activations, context, chunk)?;
        let step = decode_step(model, device.caps(), options.activations, context, options.decode)?;
        // Kernels compile while weights upload.
        let (prefill, step, weights) = std::thread::scope(|scope| {
            let compile = |graph| scope.spawn(move || device.prepare(graph));
            let (prefill_kernels, step_kernels) = (compile(&prefill), compile(&step));
            let weights = upload(source, model, device, &prefill, progress);
            let mut done = |kernels: ScopedJoinHandle<'_, tallow::Result<Prepared>>, graph| {
                progress(Progress::Compile { graph });
                // A panic there continues here.
                kernels.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            (done(prefill_kernels, "prefill"), done(step_kernels, name(options.decode)), weights)
        });
        let (weights, states) = (weights?, states(model, device, context)?);
        let prefill = Prefill::new(prefill?.bind(&weights, &states)?, chunk);
        let decode = (options.decode, DecodeStep::new(&step?, options.decode, &weights, &states)?);
        device.release_staging();
        let (vocabulary, layers) = (model.vocabulary, model.config.layers);
        let (device, activations, model) = (device.clone(), options.activations, model.clone());
        let parts = Parts { device, activations, model, context, weights, states };
        let tokens = Vec::with_capacity(context);
        let (other, included) = (None, None);
        Ok(Decoder { vocabulary, layers, context, chunk, prefill, decode, other, parts, tokens, included })
    }

    /// Capacity of the KV cache in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Number of tokens in the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Number of decoder layers.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Maximum prompt tokens that one run computes.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Number of tokens in the cache.
    pub fn position(&self) -> usize {
        self.tokens.len()
    }

    /// The tokens in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Clears the text.
    pub fn reset(&mut self) {
        // Rows beyond the position are never read, and states at position 0 neither, so nothing need be cleared.
        self.tokens.clear();
    }

    /// How many of the first `position` tokens need not be computed again if the text is truncated to them: all, but of a
    /// recurrent model none, unless it was just there.
    pub fn reusable(&self, position: usize) -> usize {
        if self.can_continue(position) { position } else { 0 }
    }

    /// Whether a text of the first `position` tokens can be continued by those that follow.
    fn can_continue(&self, position: usize) -> bool {
        !self.parts.model.config.architecture.is_recurrent()
            || position == 0
            || self.included == Some(position)
    }

    /// Truncates the text to the first `position` tokens. A recurrent model computes these again when the text goes on.
    ///
    /// # Errors
    /// When the cache holds fewer.
    pub fn rewind(&mut self, position: usize) -> Result<()> {
        if position > self.position() {
            return Err(Error::Rewind { requested: position, held: self.position() });
        }
        self.tokens.truncate(position);
        Ok(())
    }

    /// Appends `tokens` to the text and returns the logits of the next token.
    ///
    /// # Errors
    /// When `tokens` is empty, they do not fit the context or the vocabulary, or the device fails.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut logits = Vec::new();
        self.feed_into(tokens, &mut logits)?;
        Ok(logits)
    }

    /// As [`Decoder::feed`], but replaces `logits`. On a GPU, feeding single tokens allocates nothing if `logits` has
    /// the capacity.
    ///
    /// # Errors
    /// As [`Decoder::feed`]. `logits` are then unchanged, and the chunks of a long prompt that were computed before
    /// stay in the text ([`Decoder::position`]).
    pub fn feed_into(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        check_tokens(tokens, self.position(), self.context, self.vocabulary)?;
        self.catch_up()?;
        self.append(tokens, logits)
    }

    /// Computes the text again, from its first token, if the states of a recurrent model are those of another one.
    fn catch_up(&mut self) -> Result<()> {
        if self.can_continue(self.position()) {
            return Ok(());
        }
        let text = self.tokens.clone();
        self.tokens.clear();
        let computed = self.append(&text, &mut Vec::new());
        if computed.is_err() {
            self.tokens.clear();
            self.tokens.extend(text);
            self.included = None;
        }
        computed
    }

    /// As [`Decoder::feed_into`], of tokens that were checked.
    fn append(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        let mut left = tokens.len();
        for part in tokens.chunks(self.chunk) {
            left -= part.len();
            self.included = None;
            let symbols = [(POS, self.position() as u64), (SEQ, part.len() as u64)];
            // A one-token prompt alone is no reason to compile a decode step that later tokens may never use.
            let decodes = part.len() == 1 && (self.decode.0 == Decode::Logits || self.position() > 0);
            let (executable, symbols) = match decodes {
                true => (self.step(Decode::Logits)?.executable(), &symbols[..1]),
                false => {
                    let parts = &self.parts;
                    (self.prefill.step(part.len(), |limit| parts.prefill(limit))?, &symbols[..])
                }
            };
            // Tokens are the only input.
            let mut write = |_: &str, bytes: &mut [u8]| {
                for (to, token) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(part) {
                    *to = token.to_le_bytes();
                }
                Ok(())
            };
            let mut found = false;
            executable.run_with(symbols, &mut write, &mut |output| {
                found |= output.name == LOGITS;
                if output.name == LOGITS && left == 0 {
                    logits.clear();
                    logits.extend(f32s(output.bytes));
                }
            })?;
            self.tokens.extend(part);
            self.included = Some(self.tokens.len());
            if !found {
                return Err(Error::NoLogits);
            }
        }
        Ok(())
    }

    /// Appends `token` to the text and returns the token with the largest logit after it, the first of equals. The
    /// device does the argmax: one submission, and no logits are read back.
    ///
    /// # Errors
    /// When the context is full, the token is not in the vocabulary, a logit is NaN, or the device fails. The text is
    /// then unchanged.
    pub fn feed_greedy(&mut self, token: u32) -> Result<u32> {
        check_tokens(&[token], self.position(), self.context, self.vocabulary)?;
        self.catch_up()?;
        let position = self.position();
        self.included = None;
        let best = self.step(Decode::Token)?.once(token, position)?;
        self.tokens.push(token);
        self.included = Some(self.tokens.len());
        Ok(best)
    }

    /// Greedy decoding: appends `token` to the text, and then each time the token with the largest logit, as
    /// [`Decoder::feed_greedy`] chooses it. `on_token` receives the `count` tokens after `token` (fewer if the context
    /// is full before, or it breaks); the last of them is not in the cache. Returns how many there were.
    ///
    /// The device computes the next token while the caller handles one. Where it computes several within 25 ms, up to
    /// six tokens arrive at once ([`crate::in_flight`]).
    ///
    /// # Errors
    /// As [`Decoder::feed_greedy`]; the text then includes the tokens that `on_token` received before.
    pub fn follow_greedy(
        &mut self,
        token: u32,
        count: usize,
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<usize> {
        if count == 0 {
            return Ok(0);
        }
        check_tokens(&[token], self.position(), self.context, self.vocabulary)?;
        self.catch_up()?;
        self.included = None;
        let position = self.position();
        let count = count.min(self.context - position);
        // Moved out while a step borrows the rest.
        let mut tokens = std::mem::take(&mut self.tokens);
        let mut last = token;
        let followed = self.step(Decode::Token).and_then(|step| {
            let followed = step.follow(token, position, count, &mut |token| {
                tokens.push(std::mem::replace(&mut last, token));
                on_token(token)
            });
            followed.map(|()| step.is_pipelined())
        });
        self.tokens = tokens;
        let taken = self.position() - position;
        followed.map(|is_pipelined| {
            // Steps that were submitted after the last one that counts are in the states.
            let is_exact = taken == count || !is_pipelined;
            self.included = is_exact.then_some(self.position());
            taken
        })
    }

    /// The decode step with output `what`, compiled on first use.
    fn step(&mut self, what: Decode) -> Result<&DecodeStep> {
        if self.decode.0 == what {
            return Ok(&self.decode.1);
        }
        match &mut self.other {
            Some(other) => Ok(other),
            none => Ok(none.insert(self.parts.compile(what)?)),
        }
    }

    /// The decode step that was compiled with the model.
    pub fn decode(&self) -> &Executable {
        self.decode.1.executable()
    }

    /// The prefill step for chunks of long prompts.
    pub fn prefill(&self) -> &Executable {
        self.prefill.longest()
    }
}

/// The inputs for compiling further steps of a model.
#[derive(Debug)]
struct Parts {
    device: Device,
    activations: Activations,
    model: ModelGraph,
    context: usize,
    weights: HashMap<String, Weight>,
    states: HashMap<String, GraphState>,
}

impl Parts {
    /// The prefill step of up to `limit` tokens.
    fn prefill(&self, limit: usize) -> Result<Executable> {
        let step = prefill_step(&self.model, self.device.caps(), self.activations, self.context, limit)?;
        Ok(self.device.prepare(&step)?.bind(&self.weights, &self.states)?)
    }

    fn compile(&self, decode: Decode) -> Result<DecodeStep> {
        let step = decode_step(&self.model, self.device.caps(), self.activations, self.context, decode)?;
        DecodeStep::new(&self.device.prepare(&step)?, decode, &self.weights, &self.states)
    }
}

/// The states of a model's graphs, with an empty cache for `context` positions.
pub(crate) fn states(
    model: &ModelGraph,
    device: &Device,
    context: usize,
) -> Result<HashMap<String, GraphState>> {
    let all = model.states(context).map_err(|source| Error::Graph { graph: "greedy", source })?;
    let bytes = all.iter().try_fold(0usize, |sum, (_, ty)| sum.checked_add(state_bytes(ty)?));
    // The context defaults to the file's maximum, and the interpreter uses system memory: running out of it ends the
    // process. A Vulkan device reports the failure itself.
    if matches!(device, Device::Cpu) && !system_allocates(bytes) {
        return Err(Error::CacheTooLarge { context });
    }
    let mut states = HashMap::new();
    for (name, ty) in all {
        states.insert(name, device.state(ty.dtype, &extents(&ty))?);
    }
    Ok(states)
}

/// The extents of a state, which are constants.
pub(crate) fn extents(ty: &TensorType) -> Vec<usize> {
    ty.shape.dims().iter().map(|dim| dim.max_value() as usize).collect()
}

/// Bytes of a state, if they can be counted.
fn state_bytes(ty: &TensorType) -> Option<usize> {
    let elements = extents(ty).iter().try_fold(1usize, |product, n| product.checked_mul(*n))?;
    match ty.dtype {
        DType::Block(format) => format.row_bytes(elements).ok(),
        scalar => elements.checked_mul(scalar.size()?),
    }
}

/// Where weights come from and go to.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    /// The file.
    pub file: &'a GgufFile,
    /// How many of the last layers have theirs in the host's memory. (Those of adapters are small and on the device.)
    pub host_layers: usize,
}

/// Uploads every weight of `graph`; all graphs of a model have the same ones.
pub(crate) fn upload(
    Source { file, host_layers }: Source<'_>,
    model: &ModelGraph,
    device: &Device,
    graph: &Graph,
    progress: &mut dyn FnMut(Progress),
) -> Result<HashMap<String, Weight>> {
    let names: Vec<&String> = graph
        .nodes()
        .filter_map(|(_, n)| if let Op::Weight { name, .. } = &n.op { Some(name) } else { None })
        .collect();
    let size = |name: &&String| match model.types.adapter_data(name) {
        Some(found) => found.map_or(0, |(info, _)| info.bytes as u64),
        None => file.tensor(name).map_or(0, |t| t.bytes as u64),
    };
    let total = names.iter().map(size).sum();
    let (mut weights, mut done) = (HashMap::new(), 0);
    for name in names {
        progress(Progress::Upload { done, total });
        let weight = if let Some(per_pair) = model.computed(name) {
            let bytes: Vec<u8> = per_pair.iter().flat_map(|x| x.to_le_bytes()).collect();
            device.weight(DType::F32, &[per_pair.len()], &bytes)?
        } else {
            let (info, data) = match model.types.adapter_data(name) {
                Some(found) => found?,
                None => {
                    let info = file.require(name)?;
                    (info, file.tensor_data(info)?)
                }
            };
            let dtype = crate::weights::dtype(info.format()?);
            match is_last(name, model.config.layers, host_layers) {
                true => device.host_weight(dtype, &info.shape, data)?,
                false => device.weight(dtype, &info.shape, data)?,
            }
        };
        done += size(&name);
        weights.insert(name.clone(), weight);
    }
    progress(Progress::Upload { done, total });
    Ok(weights)
}

/// Whether the system would allocate so many bytes at once. The memory is released again.
fn system_allocates(bytes: Option<usize>) -> bool {
    bytes.is_some_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_sizes_are_not_allocated() {
        assert!(system_allocates(Some(0)) && system_allocates(Some(1 << 20)));
        assert!(
            !system_allocates(None)
                && !system_allocates(Some(1 << 60))
                && !system_allocates(Some(usize::MAX))
        );
    }
}
