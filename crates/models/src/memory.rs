//! Memory estimate of a model, without a device and without reading its weights.

use tallow::caps::DeviceCaps;
use tallow::{DType, Graph, device_bytes, plan_memory};
use tallow_ir::{Op, TensorType};

use crate::decoder::{context, context_of, decode_step, prefill_step, with_cache};
use crate::embedder::{EmbedOptions, embed_step};
use crate::error::{Error, Result};
use crate::model_graph::ModelGraph;
use crate::options::LoadOptions;

/// The memory that a loaded model takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Positions of the key-value cache.
    pub context: usize,
    /// Weights in the device's layout: `weight_bytes` of the loaded model's statistics.
    pub weights: u64,
    /// The key-value cache.
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
    /// Of the prefill step (many tokens), or of the graph that embeds. Steps for short prompts, which are compiled when one comes, have smaller ones.
    pub prefill: u64,
    /// Of the decode step (one token); 0 for encoders, which have none. Where the device chooses tokens (greedy decoding), each step in flight has such
    /// an arena: at most [`MAX_IN_FLIGHT`](crate::in_flight::MAX_IN_FLIGHT), fewer where memory is short.
    pub decode: u64,
}

impl Memory {
    /// The memory that loading a model with these options takes, on a device with `caps`, or else on the interpreter.
    ///
    /// For a device, the graphs are compiled up to their memory plan. A real load has the same plan, unless it tunes
    /// kernels.
    ///
    /// # Errors
    /// When the options do not fit the model, or the device lacks a required feature.
    pub fn of(model: &ModelGraph, caps: Option<&DeviceCaps>, options: &LoadOptions) -> Result<Memory> {
        if model.config.architecture.is_encoder() {
            return Memory::of_encoder(model, caps, options);
        }
        let context = context(model, options)?;
        let model = &with_cache(model, options)?;
        let prefill = prefill_step(
            model,
            caps,
            options.activations,
            context,
            options.chunk_within(&model.config, context),
        )?;
        let decode = decode_step(model, caps, options.activations, context, options.decode)?;
        let cache = model.cache(context).map_err(|source| Error::Graph { graph: "greedy", source })?;
        let cache = cache.into_iter().map(|(_, ty)| ty);
        let Some(caps) = caps else {
            let cache: Vec<TensorType> = cache.collect();
            let sum = |bytes: fn(&TensorType) -> u64, types: &mut dyn Iterator<Item = &TensorType>| {
                types.map(bytes).fold(0, u64::saturating_add)
            };
            let weights = sum(file_bytes, &mut weight_types(&decode));
            let unpacked = sum(unpacked_bytes, &mut weight_types(&decode).chain(&cache));
            let cache = sum(file_bytes, &mut cache.iter());
            return Ok(Memory { context, weights, cache, arenas: None, other: unpacked });
        };
        let cache = cache.map(|ty| device_bytes(&ty)).fold(0, u64::saturating_add);
        let (prefill, decode) = (plan_memory(&prefill, caps)?, plan_memory(&decode, caps)?);
        let arenas = Arenas { prefill: prefill.arena, decode: decode.arena };
        // The only state beside the cache is a single number.
        let other = prefill.other + decode.other + decode.states.saturating_sub(cache);
        Ok(Memory { context, weights: decode.weights, cache, arenas: Some(arenas), other })
    }

    /// The same for an encoder, which has one graph and no cache.
    fn of_encoder(model: &ModelGraph, caps: Option<&DeviceCaps>, options: &LoadOptions) -> Result<Memory> {
        let context = context_of(model, options.context)?;
        let embed = EmbedOptions { activations: options.activations, ..EmbedOptions::default() };
        let step = embed_step(model, caps, &embed, context)?;
        let Some(caps) = caps else {
            let sum =
                |bytes: fn(&TensorType) -> u64| weight_types(&step).map(bytes).fold(0, u64::saturating_add);
            let (weights, other) = (sum(file_bytes), sum(unpacked_bytes));
            return Ok(Memory { context, weights, cache: 0, arenas: None, other });
        };
        let plan = plan_memory(&step, caps)?;
        let arenas = Some(Arenas { prefill: plan.arena, decode: 0 });
        Ok(Memory { context, weights: plan.weights, cache: 0, arenas, other: plan.other })
    }

    /// The total, with one arena per step.
    pub fn total(&self) -> u64 {
        let arenas = self.arenas.map_or(0, |arenas| arenas.prefill.saturating_add(arenas.decode));
        [self.weights, self.cache, arenas, self.other].into_iter().fold(0, u64::saturating_add)
    }
}

/// The types of the weights that a graph reads.
pub(crate) fn weight_types(graph: &Graph) -> impl Iterator<Item = &TensorType> {
    graph.nodes().filter_map(|(_, node)| match &node.op {
        Op::Weight { ty, .. } => Some(ty),
        _ => None,
    })
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
