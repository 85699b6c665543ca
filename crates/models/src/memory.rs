//! How much memory a model takes, found without a device and without reading its weights.

use tallow::caps::DeviceCaps;
use tallow::{DType, Graph, device_bytes, plan_memory};
use tallow_ir::{Op, TensorType};

use crate::decoder::{context, decode_step, prefill_step, with_cache};
use crate::error::Result;
use crate::llama::Llama;
use crate::model::LoadOptions;

/// The memory that a loaded model takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Positions of the key-value cache.
    pub context: usize,
    /// Weights as the device holds them: `weight_bytes` of the loaded model's figures.
    pub weights: u64,
    /// The key-value cache.
    pub cache: u64,
    /// The arenas; `None` for the interpreter, which allocates each value as it goes.
    pub arenas: Option<Arenas>,
    /// Inputs, outputs, tables and the states that are no cache; for the interpreter what it needs beyond `weights` and
    /// `cache`, as it computes on f32.
    pub other: u64,
}

/// The memory for intermediate values of each step, in bytes: `arena_bytes` of the loaded model's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arenas {
    /// Of the step of many tokens.
    pub prefill: u64,
    /// Of the step of one token. Where the device chooses tokens, each step in flight has such an arena, and at most
    /// [`AHEAD`](crate::ahead::AHEAD) are, fewer where memory is short.
    pub decode: u64,
}

impl Memory {
    /// What loading a model with these options takes, on a device with `caps` or else on the interpreter.
    ///
    /// On a device, the graphs are compiled as far as their memory plan, which is the one of a real load unless
    /// kernels are tuned.
    ///
    /// # Errors
    /// When the options do not fit the model, or it needs what such a device lacks.
    pub fn of(llama: &Llama, caps: Option<&DeviceCaps>, options: &LoadOptions) -> Result<Memory> {
        let context = context(llama, options)?;
        let llama = &with_cache(llama, options)?;
        let prefill = prefill_step(llama, caps, options, context)?;
        let decode = decode_step(llama, caps, options.activations, context, options.decode)?;
        let types = |(_, dtype, shape): (String, DType, Vec<usize>)| TensorType::new(dtype, shape);
        let cache = llama.cache(context).into_iter().map(types);
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
        // A state of one number is all that there is beside the cache.
        let other = prefill.other + decode.other + decode.states.saturating_sub(cache);
        Ok(Memory { context, weights: decode.weights, cache, arenas: Some(arenas), other })
    }

    /// All of it, with one arena for each step.
    pub fn total(&self) -> u64 {
        let arenas = self.arenas.map_or(0, |arenas| arenas.prefill.saturating_add(arenas.decode));
        [self.weights, self.cache, arenas, self.other].into_iter().fold(0, u64::saturating_add)
    }
}

/// The types of the weights that a graph reads.
fn weight_types(graph: &Graph) -> impl Iterator<Item = &TensorType> {
    graph.nodes().filter_map(|(_, node)| match &node.op {
        Op::Weight { ty, .. } => Some(ty),
        _ => None,
    })
}

/// Bytes that a tensor of weights or of the cache takes in the interpreter beyond those of a file: the f32 values of
/// blocks are kept beside them, other floats are kept as f32.
fn unpacked_bytes(ty: &TensorType) -> u64 {
    let values = ty.shape.max_numel().saturating_mul(size_of::<f32>() as u64);
    match ty.dtype {
        DType::Block(_) => values,
        _ => values.saturating_sub(file_bytes(ty)),
    }
}

/// Bytes of a tensor as a file has it.
fn file_bytes(ty: &TensorType) -> u64 {
    match ty.dtype {
        // Rows that are no whole blocks were refused before.
        DType::Block(format) => format.row_bytes(ty.shape.max_numel() as usize).unwrap_or(0) as u64,
        _ => ty.max_bytes(),
    }
}
