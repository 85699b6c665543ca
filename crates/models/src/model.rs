//! A model file, and a model that is ready to run: weights resident, two graphs compiled, a cache.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use tallow::{DType, Device, ExecStats, Executable, Prepared, State, Weight};
use tallow_gguf::{GgufFile, TensorInfo, Tokenizer};
use tallow_ir::{DeviceCaps, Graph, GraphError, Op, dot};

use crate::error::{Error, Result};
use crate::llama::{BEST, BEST_LOGIT, LOGITS, Llama, POS, ROPE_WEIGHT, Rows, SEQ, TOKENS};

/// The values of `general.architecture` that can be loaded.
pub const ARCHITECTURES: &[&str] = &["llama"];

/// The most tokens that prefill takes in one run, where the caller does not say.
pub const DEFAULT_CHUNK: usize = 512;

/// A model file that was read and checked, with nothing on a device yet.
#[derive(Debug)]
pub struct ModelFile {
    file: GgufFile,
    pub(crate) llama: Llama,
    tokenizer: Tokenizer,
}

/// What may be chosen when a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Positions of the key-value cache; the model's own context where not given.
    pub context: Option<usize>,
    /// The most prompt tokens in one run; 512 or the context where not given.
    pub chunk: Option<usize>,
    /// What quantized weights are multiplied by in decode steps.
    pub activations: Activations,
    /// What decode steps give that are compiled when the model is loaded; others are compiled when they are first asked
    /// for.
    pub decode: Decode,
}

/// What a decode step gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decode {
    /// Logits, for [`Model::feed`].
    #[default]
    Logits,
    /// The token with the largest logit, chosen on the device, for [`Model::feed_greedy`]. The logits stay there.
    Token,
}

/// What quantized weights are multiplied by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// Rounded to 8 bits where the device multiplies those faster.
    #[default]
    Auto,
    /// As they are.
    Exact,
    /// Rounded to 8 bits (an NMSE of the logits of about 1e-4) where the device can multiply those at all.
    Rounded,
}

impl LoadOptions {
    /// The most tokens in one run, of a cache of `context` positions.
    pub(crate) fn chunk_within(&self, context: usize) -> usize {
        self.chunk.unwrap_or(DEFAULT_CHUNK).clamp(1, context)
    }
}

/// What loading is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Weights are being copied to the device.
    Upload {
        /// Bytes that are there.
        done: u64,
        /// Bytes of all weights.
        total: u64,
    },
    /// A graph is being compiled.
    Compile {
        /// Its name.
        graph: &'static str,
    },
}

impl ModelFile {
    /// Reads a file's head, checks that it is a model of a known architecture with all its weights, and
    /// builds its tokenizer. Weight data is only mapped.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, or holds what this crate does not know; the message says
    /// which.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFile> {
        ModelFile::new(GgufFile::open(path)?)
    }

    /// As [`ModelFile::open`], of a file that is open already.
    ///
    /// # Errors
    /// As there.
    pub fn new(file: GgufFile) -> Result<ModelFile> {
        let found = file.metadata().get_str("general.architecture")?;
        if !ARCHITECTURES.contains(&found) {
            return Err(Error::UnsupportedArchitecture {
                found: found.into(),
                known: ARCHITECTURES.to_vec(),
            });
        }
        let llama = Llama::from_file(&file)?;
        let tokenizer = Tokenizer::from_metadata(file.metadata())?;
        Ok(ModelFile { file, llama, tokenizer })
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Hyperparameters and weight types.
    pub fn llama(&self) -> &Llama {
        &self.llama
    }

    /// The context that `options` give.
    ///
    /// # Errors
    /// When it is 0 or more than the model was trained for.
    pub fn context(&self, options: &LoadOptions) -> Result<usize> {
        let max = self.llama.config.context;
        match options.context {
            None => Ok(max),
            Some(asked) if (1..=max).contains(&asked) => Ok(asked),
            Some(asked) => Err(Error::Context { asked, max }),
        }
    }

    /// Checks, before any work, that a prompt is not empty, fits the context and is in the vocabulary.
    ///
    /// # Errors
    /// When it is not.
    pub fn check_prompt(&self, tokens: &[u32], options: &LoadOptions) -> Result<()> {
        check_tokens(tokens, 0, self.context(options)?, self.llama.vocabulary)
    }

    /// Copies the weights to the device and compiles the graphs.
    ///
    /// # Errors
    /// When the options do not fit the model, the weights do not fit the device, or compiling fails.
    pub fn load(
        self,
        device: &Device,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model> {
        let context = self.context(options)?;
        let chunk = options.chunk_within(context);
        let prefill = graph(&self.llama, device, options.activations, "prefill", |llama| {
            llama.step(Rows::UpTo(chunk), context)
        })?;
        let step = decode_step(&self.llama, device, options.activations, context, options.decode)?;
        // Kernels are made while weights stream in.
        let (prefill, step, weights) = std::thread::scope(|scope| {
            let compile = |graph| scope.spawn(move || device.prepare(graph));
            let (prefill_kernels, step_kernels) = (compile(&prefill), compile(&step));
            let weights = self.upload(device, &prefill, progress);
            let mut done = |kernels: ScopedJoinHandle<'_, tallow::Result<Prepared>>, graph| {
                progress(Progress::Compile { graph });
                // What panicked there goes on here.
                kernels.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            (done(prefill_kernels, "prefill"), done(step_kernels, options.decode.name()), weights)
        });
        let (weights, states) = (weights?, self.cache(device, context)?);
        let prefill = prefill?.bind(&weights, &states)?;
        let decode = (options.decode, step?.bind(&weights, &states)?);
        let parts = Parts {
            device: device.clone(),
            activations: options.activations,
            llama: self.llama,
            context,
            weights,
            states,
        };
        Ok(Model {
            tokenizer: Arc::new(self.tokenizer),
            vocabulary: parts.llama.vocabulary,
            layers: parts.llama.config.layers,
            context,
            chunk,
            prefill,
            decode,
            other: None,
            parts,
            position: 0,
        })
    }

    /// An empty cache for `context` positions.
    pub(crate) fn cache(&self, device: &Device, context: usize) -> Result<HashMap<String, State>> {
        let cache = self.llama.cache(context);
        let bytes = cache.iter().try_fold(0usize, |sum, (_, dtype, shape)| {
            let elements = shape.iter().try_fold(1usize, |product, n| product.checked_mul(*n))?;
            sum.checked_add(elements.checked_mul(dtype.size()?)?)
        });
        // The context comes from the file where nobody asked for less, and the interpreter's memory is the
        // system's, which ends the process when it runs out. A Vulkan device says so by itself.
        if matches!(device, Device::Cpu) && !fits(bytes) {
            return Err(Error::CacheTooLarge { context });
        }
        let mut states = HashMap::new();
        for (name, dtype, shape) in cache {
            states.insert(name, device.state(dtype, &shape)?);
        }
        Ok(states)
    }

    /// Makes every weight of `graph` resident; all graphs of a model have the same ones.
    pub(crate) fn upload(
        &self,
        device: &Device,
        graph: &Graph,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<HashMap<String, Weight>> {
        let names: Vec<&String> = graph
            .nodes()
            .filter_map(|(_, n)| if let Op::Weight { name, .. } = &n.op { Some(name) } else { None })
            .collect();
        let size = |name: &&String| self.file.tensor(name).map_or(0, |t| t.bytes as u64);
        let total = names.iter().map(size).sum();
        let (mut weights, mut done) = (HashMap::new(), 0);
        for name in names {
            progress(Progress::Upload { done, total });
            let weight = if name == ROPE_WEIGHT {
                let per_pair = &self.llama.rope.per_pair;
                let bytes: Vec<u8> = per_pair.iter().flat_map(|x| x.to_le_bytes()).collect();
                device.weight(DType::F32, &[per_pair.len()], &bytes)?
            } else {
                let info = self.file.require(name)?;
                let dtype = crate::weights::dtype(info.format()?);
                device.weight(dtype, &info.shape, self.file.tensor_data(info)?)?
            };
            done += size(&name);
            weights.insert(name.clone(), weight);
        }
        progress(Progress::Upload { done, total });
        Ok(weights)
    }
}

impl Decode {
    /// The name of its graph.
    fn name(self) -> &'static str {
        match self {
            Decode::Logits => "decode",
            Decode::Token => "greedy",
        }
    }
}

/// A graph of the model, its activations rounded where `activations` and the device ask for that.
fn graph(
    llama: &Llama,
    device: &Device,
    activations: Activations,
    name: &'static str,
    build: impl FnOnce(&Llama) -> Result<Graph, GraphError>,
) -> Result<Graph> {
    let rounds = |caps: &DeviceCaps| match activations {
        Activations::Auto => caps.int_dot_accelerated,
        Activations::Exact => false,
        Activations::Rounded => true,
    };
    let rounded = build(llama).and_then(|step| match device.caps() {
        Some(caps) if rounds(caps) => dot::quantize_activations(&step, caps),
        _ => Ok(step),
    });
    rounded.map_err(|source| Error::Graph { graph: name, source })
}

/// What further steps of a model are compiled from.
#[derive(Debug)]
struct Parts {
    device: Device,
    activations: Activations,
    llama: Llama,
    context: usize,
    weights: HashMap<String, Weight>,
    states: HashMap<String, State>,
}

impl Parts {
    fn compile(&self, decode: Decode) -> Result<Executable> {
        let step = decode_step(&self.llama, &self.device, self.activations, self.context, decode)?;
        Ok(self.device.compile(&step, &self.weights, &self.states)?)
    }
}

/// The graph of a decode step.
fn decode_step(
    llama: &Llama,
    device: &Device,
    activations: Activations,
    context: usize,
    decode: Decode,
) -> Result<Graph> {
    graph(llama, device, activations, decode.name(), |llama| match decode {
        Decode::Logits => llama.step(Rows::One, context),
        Decode::Token => llama.greedy(context),
    })
}

/// A model on a device, with the text that its cache holds.
#[derive(Debug)]
pub struct Model {
    tokenizer: Arc<Tokenizer>,
    vocabulary: usize,
    layers: usize,
    context: usize,
    chunk: usize,
    prefill: Executable,
    /// The decode step that was compiled with the model.
    decode: (Decode, Executable),
    /// The other one, once it was asked for.
    other: Option<Executable>,
    parts: Parts,
    /// Tokens in the cache.
    position: usize,
}

impl Model {
    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Positions of the cache.
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

    /// Tokens that the cache holds.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Forgets the text.
    pub fn reset(&mut self) {
        // Rows beyond the position are never read, so the cache need not be cleared.
        self.position = 0;
    }

    /// Continues the text by `tokens` and gives the logits of the token after them.
    ///
    /// # Errors
    /// When there are none, they do not fit the context or the vocabulary, or the device fails.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        check_tokens(tokens, self.position, self.context, self.vocabulary)?;
        let mut logits = Vec::new();
        for part in tokens.chunks(self.chunk) {
            let bytes = to_bytes(part);
            let pos = (POS, self.position as u64);
            let inputs = [(TOKENS, bytes.as_slice())];
            // A prompt of one token is no reason to compile a decode step that no later token may take.
            let decodes = part.len() == 1 && (self.decode.0 == Decode::Logits || self.position > 0);
            let outputs = match decodes {
                true => self.step(Decode::Logits)?.run(&[pos], &inputs)?,
                false => self.prefill.run(&[pos, (SEQ, part.len() as u64)], &inputs)?,
            };
            self.position += part.len();
            let found = outputs.into_iter().find(|o| o.name == LOGITS);
            logits = found.ok_or(Error::NoLogits)?.bytes;
        }
        Ok(to_f32(&logits))
    }

    /// Continues the text by `token` and gives the token with the largest logit after it, the first of equals. The
    /// device chooses: one submission, and no logits are read.
    ///
    /// # Errors
    /// When the context is full, the token is not in the vocabulary, a logit is NaN, or the device fails.
    pub fn feed_greedy(&mut self, token: u32) -> Result<u32> {
        check_tokens(&[token], self.position, self.context, self.vocabulary)?;
        let pos = (POS, self.position as u64);
        let outputs = self.step(Decode::Token)?.run(&[pos], &[(TOKENS, &token.to_le_bytes())])?;
        self.position += 1;
        let word = |name| {
            let found = outputs.iter().find(|o| o.name == name);
            found.and_then(|o| o.bytes.first_chunk::<4>()).copied().ok_or(Error::NoLogits)
        };
        let best = u32::from_le_bytes(word(BEST)?);
        match f32::from_le_bytes(word(BEST_LOGIT)?).is_nan() {
            true => Err(Error::NanLogit { token: best as usize }),
            false => Ok(best),
        }
    }

    /// The decode step that gives `what`, compiled if it was not yet.
    fn step(&mut self, what: Decode) -> Result<&Executable> {
        if self.decode.0 == what {
            return Ok(&self.decode.1);
        }
        match &mut self.other {
            Some(other) => Ok(other),
            none => Ok(none.insert(self.parts.compile(what)?)),
        }
    }

    /// Figures of the decode step that was compiled with the model.
    pub fn decode_stats(&self) -> ExecStats {
        self.decode.1.stats()
    }

    /// Figures of the prefill step.
    pub fn prefill_stats(&self) -> ExecStats {
        self.prefill.stats()
    }

    /// The decode step that was compiled with the model.
    pub fn decode(&self) -> &Executable {
        &self.decode.1
    }

    /// The compiled prefill step.
    pub fn prefill(&self) -> &Executable {
        &self.prefill
    }
}

/// Checks that tokens are there, fit the context behind `position`, and are in the vocabulary.
pub(crate) fn check_tokens(tokens: &[u32], position: usize, context: usize, vocabulary: usize) -> Result<()> {
    if tokens.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if position + tokens.len() > context {
        return Err(Error::PromptTooLong { tokens: position + tokens.len(), context });
    }
    match tokens.iter().find(|t| **t as usize >= vocabulary) {
        Some(&token) => Err(Error::UnknownToken { token, vocabulary }),
        None => Ok(()),
    }
}

/// The values of a small tensor of any plain float format.
pub(crate) fn floats(file: &GgufFile, info: &TensorInfo) -> Result<Vec<f32>> {
    let mut values = vec![0.0; info.elements()];
    let format = info.format()?;
    tallow_quant::dequantize(format, file.tensor_data(info)?, &mut values)
        .map_err(|source| tallow_gguf::GgufError::Quant { tensor: info.name.clone(), source })?;
    Ok(values)
}

/// Whether the system would give so many bytes at once. None are kept.
fn fits(bytes: Option<usize>) -> bool {
    bytes.is_some_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok())
}

/// Token ids as a graph's input.
pub(crate) fn to_bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
}

/// The floats of an output.
pub(crate) fn to_f32(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_system_gives_does_not_fit() {
        assert!(fits(Some(0)) && fits(Some(1 << 20)));
        assert!(!fits(None) && !fits(Some(1 << 60)) && !fits(Some(usize::MAX)));
    }
}
