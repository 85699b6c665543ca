//! Memory estimate of a model, without a device and without reading its weights.

use tallow::caps::DeviceCaps;
use tallow::{DType, Graph, MemoryPlan, device_bytes, plan_memory, plan_memory_by_weight};
use tallow_ir::{Op, TensorType};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::host_layers::{BUS_MB_PER_S, HostLayers, Speed, is_last};
use crate::model_graph::{ModelGraph, Rows};
use crate::options::{EmbedOptions, LoadOptions};
use crate::step_graphs::{Texts, context, context_of, decode_step, embed_step, prefill_step, with_cache};

/// The memory that a loaded model takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Positions of the key-value cache.
    pub context: usize,
    /// Weights in the device's layout: `weight_bytes` of the loaded model's statistics.
    pub weights: u64,
    /// Of `weights`, those in the host's memory. 0 on the interpreter, and where host and device share their memory: there
    /// all of it is one.
    pub host: u64,
    /// The last layers whose weights are meant to be there.
    pub host_layers: usize,
    /// The key-value cache, or the states of recurrent layers.
    pub cache: u64,
    /// The arenas; `None` for the interpreter, which allocates each value on demand.
    pub arenas: Option<Arenas>,
    /// Inputs, outputs, tables and states other than the cache. For the interpreter: what it needs beyond `weights` and
    /// `cache`, as it computes in f32.
    pub other: u64,
}

/// Memory for the intermediate values of each step, in bytes: `arena_bytes` of the loaded model's statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arenas {
    /// Of the prefill step (many tokens), or of the graphs that embed one text and several. Steps for fewer tokens, which
    /// are compiled when such a prompt or text comes, have smaller ones.
    pub prefill: u64,
    /// Of the decode step (one token); 0 for encoders, which have none. Where the device chooses tokens (greedy decoding), each step in flight has such
    /// an arena: at most [`MAX_IN_FLIGHT`](crate::in_flight::MAX_IN_FLIGHT), fewer where memory is short.
    pub decode: u64,
}

/// What a model is loaded for, which decides the graphs that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To generate text, or to embed it where the model is an encoder.
    Generate,
    /// To score text.
    Score,
    /// To embed text, with these options.
    Embed(EmbedOptions),
}

impl Purpose {
    /// The options of the graphs that embed.
    pub fn embed_options(self, options: &LoadOptions) -> EmbedOptions {
        match self {
            Purpose::Embed(embed) => embed,
            Purpose::Generate | Purpose::Score => {
                EmbedOptions { activations: options.activations, ..EmbedOptions::default() }
            }
        }
    }
}

/// What loading a model takes, with all weights in the device's memory, and the weights that it has.
pub(crate) struct Planned<'a> {
    pub memory: Memory,
    /// Of the step that runs most, with copies.
    weights: Vec<(String, u64)>,
    /// Kernels of that step that wait for one another.
    kernels: usize,
    config: &'a Config,
    /// Where that is not the interpreter.
    caps: Option<&'a DeviceCaps>,
}

impl Planned<'_> {
    /// The memory with the weights of the last `count` layers in the host's memory.
    pub fn with_host_layers(&self, count: usize) -> Memory {
        let is_there = |(name, _): &&(String, u64)| is_last(name, self.config.layers, count);
        let bytes = self.weights.iter().filter(is_there).map(|(_, bytes)| *bytes);
        let host = match self.has_bus() {
            true => bytes.fold(0, u64::saturating_add),
            false => 0,
        };
        Memory { host, host_layers: count, ..self.memory }
    }

    /// The fewest layers in the host's memory with which the rest fits `free` bytes, and they fit `host_free`, if that is
    /// known. `None` where no number does.
    pub fn fewest_host_layers(&self, free: u64, host_free: Option<u64>) -> Option<usize> {
        let layers = if self.has_bus() { self.config.layers } else { 0 };
        (0..=layers).find(|count| {
            let memory = self.with_host_layers(*count);
            memory.device() <= free && host_free.is_none_or(|host_free| memory.host <= host_free)
        })
    }

    /// How fast it decodes, with the weights of the last `count` layers in the host's memory; `None` where bytes do not
    /// decide that: on the CPU.
    pub fn speed(&self, count: usize) -> Option<Speed> {
        let caps = self.caps.filter(|caps| !caps.is_software())?;
        let (mut device_bytes, mut host_bytes) = (0u64, 0u64);
        for (name, bytes) in &self.weights {
            let bytes = self.read(name, *bytes);
            match self.has_bus() && is_last(name, self.config.layers, count) {
                true => host_bytes = host_bytes.saturating_add(bytes),
                false => device_bytes = device_bytes.saturating_add(bytes),
            }
        }
        let (device_gb_per_s, kernels) = (caps.hardware.memory_gb_per_s, self.kernels);
        Some(Speed { device_bytes, host_bytes, device_gb_per_s, bus_mb_per_s: BUS_MB_PER_S, kernels })
    }

    /// Of the bytes of a weight, those that a token reads: of the embedding one row, unless that is the output matrix too,
    /// and of the experts those that it uses.
    fn read(&self, name: &str, bytes: u64) -> u64 {
        let has_output = || self.weights.iter().any(|(name, _)| name == "output.weight");
        match &self.config.experts {
            _ if name == "token_embd.weight" && has_output() => 0,
            Some(experts) if name.contains("_exps.") => {
                (u128::from(bytes) * experts.used as u128 / experts.count.max(1) as u128) as u64
            }
            Some(_) | None => bytes,
        }
    }

    /// Whether the device has memory of its own, and reads the host's over a bus.
    fn has_bus(&self) -> bool {
        self.caps.is_some_and(|caps| !caps.unified_memory)
    }
}

impl Memory {
    /// The memory that loading a model with these options takes, on a device with `caps`, or else on the interpreter. With
    /// [`HostLayers::Auto`], which depends on what is free, no layer is in the host's memory.
    ///
    /// For a device, the graphs are compiled up to their memory plan. A real load has the same plan, unless it tunes
    /// kernels.
    ///
    /// # Errors
    /// When the options do not fit the model, or the device lacks a required feature.
    pub fn of(model: &ModelGraph, caps: Option<&DeviceCaps>, options: &LoadOptions) -> Result<Memory> {
        let planned = plan(model, caps, options, Purpose::Generate)?;
        let layers = asked_layers(options, &model.config)?.unwrap_or(0);
        Ok(planned.with_host_layers(layers))
    }

    /// The total of device and host, with one arena per step.
    pub fn total(&self) -> u64 {
        let arenas = self.arenas.map_or(0, |arenas| arenas.prefill.saturating_add(arenas.decode));
        [self.weights, self.cache, arenas, self.other].into_iter().fold(0, u64::saturating_add)
    }

    /// What of the total is in the device's memory.
    pub fn device(&self) -> u64 {
        self.total().saturating_sub(self.host)
    }
}

/// How many of the last layers are to be in the host's memory; `None` where that depends on what is free.
///
/// # Errors
/// When the model has fewer.
pub(crate) fn asked_layers(options: &LoadOptions, config: &Config) -> Result<Option<usize>> {
    match options.host_layers {
        HostLayers::Auto => Ok(None),
        HostLayers::Last(count) if count <= config.layers => Ok(Some(count)),
        HostLayers::Last(requested) => Err(Error::HostLayers { requested, layers: config.layers }),
    }
}

/// Plans what loading a model takes.
///
/// # Errors
/// As [`Memory::of`].
pub(crate) fn plan<'a>(
    model: &'a ModelGraph,
    caps: Option<&'a DeviceCaps>,
    options: &LoadOptions,
    purpose: Purpose,
) -> Result<Planned<'a>> {
    let config = &model.config;
    if matches!(purpose, Purpose::Embed(_)) || config.architecture.is_encoder() {
        return plan_embedding(model, caps, options, purpose);
    }
    let context = context(model, options)?;
    let [prefill, step] = steps(model, caps, options, purpose)?;
    let cache = with_cache(model, options)?
        .cache(context)
        .map_err(|source| Error::Graph { graph: "greedy", source })?;
    let cache: Vec<TensorType> = cache.into_iter().map(|(_, ty)| ty).collect();
    let placed = |memory, weights, kernels| Planned { memory, weights, kernels, config, caps };
    let Some(caps) = caps else {
        let unpacked = sum(unpacked_bytes, weight_types(&step).chain(&cache));
        let memory = Memory {
            context,
            weights: sum(file_bytes, weight_types(&step)),
            host: 0,
            host_layers: 0,
            cache: sum(file_bytes, cache.iter()),
            arenas: None,
            other: unpacked,
        };
        return Ok(placed(memory, vec![], 0));
    };
    let cache = sum(device_bytes, cache.iter());
    let prefill = plan_memory(&prefill, caps)?;
    let (decode, weights) = plan_memory_by_weight(&step, caps)?;
    let arenas = Some(Arenas { prefill: prefill.arena, decode: decode.arena });
    // The only state beside the cache is a single number.
    let other = prefill.other + decode.other + decode.states.saturating_sub(cache);
    let MemoryPlan { weights: weight_bytes, levels, .. } = decode;
    let memory = Memory { context, weights: weight_bytes, host: 0, host_layers: 0, cache, arenas, other };
    Ok(placed(memory, weights, levels))
}

/// The same for the graphs that embed, which have no cache: of a text of `options.context` tokens, and of several.
fn plan_embedding<'a>(
    model: &'a ModelGraph,
    caps: Option<&'a DeviceCaps>,
    options: &LoadOptions,
    purpose: Purpose,
) -> Result<Planned<'a>> {
    let context = context_of(model, options.context)?;
    let embed = purpose.embed_options(options);
    let step = embed_step(model, caps, &embed, Texts::One(context))?;
    let none = Memory { context, weights: 0, host: 0, host_layers: 0, cache: 0, arenas: None, other: 0 };
    let (memory, weights) = match caps {
        None => {
            let (weights, other) =
                (sum(file_bytes, weight_types(&step)), sum(unpacked_bytes, weight_types(&step)));
            (Memory { weights, other, ..none }, vec![])
        }
        Some(caps) => {
            let (plan, weights) = plan_memory_by_weight(&step, caps)?;
            // Texts run alone where there is no memory for several, so that these are not required.
            let packed = match purpose {
                Purpose::Embed(_) => MemoryPlan::default(),
                Purpose::Generate | Purpose::Score => {
                    let rows = embed.rows_of(model, Some(caps));
                    plan_memory(&embed_step(model, Some(caps), &embed, Texts::Several(rows))?, caps)?
                }
            };
            let arenas = Some(Arenas { prefill: plan.arena + packed.arena, decode: 0 });
            (Memory { weights: plan.weights, arenas, other: plan.other + packed.other, ..none }, weights)
        }
    };
    Ok(Planned { memory, weights, kernels: 0, config: &model.config, caps })
}

/// The graphs of a model that is loaded: for many tokens of a prompt, and for what it is for.
///
/// # Errors
/// When the options do not fit the model.
pub(crate) fn steps(
    model: &ModelGraph,
    caps: Option<&DeviceCaps>,
    options: &LoadOptions,
    purpose: Purpose,
) -> Result<[Graph; 2]> {
    let context = context(model, options)?;
    let chunk = options.chunk_within(&model.config, context);
    let model = &with_cache(model, options)?;
    let invalid = |graph| move |source| Error::Graph { graph, source };
    match purpose {
        Purpose::Generate | Purpose::Embed(_) => Ok([
            prefill_step(model, caps, options.activations, context, chunk)?,
            decode_step(model, caps, options.activations, context, options.decode)?,
        ]),
        // Scores are computed from activations as they are.
        Purpose::Score => Ok([
            model.step(Rows::UpTo(chunk), context).map_err(invalid("prefill"))?,
            model.score(chunk, context).map_err(invalid("score"))?,
        ]),
    }
}

fn sum<'a>(bytes: impl Fn(&TensorType) -> u64, types: impl Iterator<Item = &'a TensorType>) -> u64 {
    types.map(bytes).fold(0, u64::saturating_add)
}

/// The types of the weights that a graph reads.
pub(crate) fn weight_types(graph: &Graph) -> impl Iterator<Item = &TensorType> {
    graph.nodes().filter_map(|(_, node)| match &node.op {
        Op::Weight { ty, .. } => Some(ty),
        _ => None,
    })
}

/// No less than the intermediate values of a run take, each in memory of its own. What depends on weights alone is not
/// counted, as kernels unpack weights when they read them, but for what is rounded to f16: that may be in memory.
pub(crate) fn value_bytes(graph: &Graph) -> u64 {
    let mut is_constant = vec![];
    let mut bytes = 0u64;
    for (_, node) in graph.nodes() {
        let constant = match &node.op {
            Op::Input { .. } | Op::State { .. } => false,
            _ => node.operands.iter().all(|operand| is_constant[operand.node.index()]),
        };
        is_constant.push(constant);
        if !constant || node.op == Op::Cast(DType::F16) {
            bytes = bytes.saturating_add(sum(TensorType::max_bytes, node.types.iter()));
        }
    }
    bytes
}

/// Bytes that a weight or cache tensor takes in the interpreter beyond those of a file: f32 values of blocks are stored
/// beside the blocks, and other floats as f32.
fn unpacked_bytes(ty: &TensorType) -> u64 {
    let values = ty.shape.max_numel().saturating_mul(size_of::<f32>() as u64);
    match ty.dtype {
        DType::Block(_) => values,
        _ => values.saturating_sub(file_bytes(ty)),
    }
}

/// Bytes of a tensor in a file.
fn file_bytes(ty: &TensorType) -> u64 {
    match ty.dtype {
        // Rows that are not whole blocks were rejected before.
        DType::Block(format) => format.row_bytes(ty.shape.max_numel() as usize).unwrap_or(0) as u64,
        _ => ty.max_bytes(),
    }
}
