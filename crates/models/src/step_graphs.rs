//! The graphs of a model as they are compiled for a device, and the contexts that they are for.

use tallow_ir::{DeviceCaps, Graph, GraphError, Op, dot, matrix};

use crate::config::Pooling;
use crate::error::{EmbedError, Error, Result};
use crate::model_graph::{ModelGraph, Rows};
use crate::options::{Activations, DEFAULT_CHUNK, Decode, EmbedOptions, LoadOptions};

impl EmbedOptions {
    /// The pooling of a model: the option, or else the file's, or else `mean` for encoders and `last` for other models.
    ///
    /// # Errors
    /// When the file names one that is not known.
    pub fn pooling_of(&self, model: &ModelGraph) -> Result<Pooling> {
        let architecture = model.config.architecture;
        match (self.pooling, model.config.pooling) {
            (Some(pooling), _) => Ok(pooling),
            (None, Some(number)) => Pooling::of_number(number, architecture),
            (None, None) if architecture.is_encoder() => Ok(Pooling::Mean),
            (None, None) => Ok(Pooling::Last),
        }
    }

    /// The most tokens of texts that run together on a device with `caps`, or else on the interpreter.
    pub(crate) fn rows_of(&self, model: &ModelGraph, caps: Option<&DeviceCaps>) -> usize {
        match (self.rows, caps, model.config.state_space) {
            (Some(rows), _, _) => rows.max(1),
            (None, None, _) => 1,
            (None, Some(_), None) => DEFAULT_CHUNK,
            (None, Some(_), Some(states)) => states.rows_that_fit().min(DEFAULT_CHUNK),
        }
    }
}

/// The name of the graph with output `decode`.
pub(crate) fn name(decode: Decode) -> &'static str {
    match decode {
        Decode::Logits => "decode",
        Decode::Token => "greedy",
    }
}

/// A graph of the model; its activations are rounded where `activations` and the device's capabilities call for it.
pub(crate) fn graph(
    model: &ModelGraph,
    caps: Option<&DeviceCaps>,
    activations: Activations,
    name: &'static str,
    build: impl FnOnce(&ModelGraph) -> std::result::Result<Graph, GraphError>,
) -> Result<Graph> {
    let step = build(model).and_then(|step| match caps {
        Some(caps) => round(&step, activations, caps),
        None => Ok(step),
    });
    step.map_err(|source| Error::Graph { graph: name, source })
}

/// The graph of the prefill step of up to `limit` tokens.
pub(crate) fn prefill_step(
    model: &ModelGraph,
    caps: Option<&DeviceCaps>,
    activations: Activations,
    context: usize,
    limit: usize,
) -> Result<Graph> {
    graph(model, caps, activations, "prefill", |model| model.step(Rows::UpTo(limit), context))
}

/// The graph of a decode step.
pub(crate) fn decode_step(
    model: &ModelGraph,
    caps: Option<&DeviceCaps>,
    activations: Activations,
    context: usize,
    decode: Decode,
) -> Result<Graph> {
    graph(model, caps, activations, name(decode), |model| match decode {
        Decode::Logits => model.step(Rows::One, context),
        Decode::Token => model.greedy(context),
    })
}

/// The context length from `options`, in tokens.
///
/// # Errors
/// When the model has not so many, or generates no text.
pub(crate) fn context(model: &ModelGraph, options: &LoadOptions) -> Result<usize> {
    let architecture = model.config.architecture;
    if architecture.is_encoder() {
        return Err(EmbedError::Encoder(architecture.name()).into());
    }
    context_of(model, options.context)
}

/// The requested number of tokens, or the model's own.
pub(crate) fn context_of(model: &ModelGraph, requested: Option<usize>) -> Result<usize> {
    let max = model.config.context;
    match requested {
        None => Ok(max),
        Some(requested) if (1..=max).contains(&requested) => Ok(requested),
        Some(requested) => Err(Error::Context { requested, max }),
    }
}

/// The model with the cache types of `options`.
///
/// # Errors
/// When the cache types do not fit the heads.
pub(crate) fn with_cache(model: &ModelGraph, options: &LoadOptions) -> Result<ModelGraph> {
    options.cache.check(&model.config)?;
    Ok(model.with_context(context(model, options)?, options.cache))
}

/// Rounds activations: to 8 bits for integer dot products with few rows, to f16 for cooperative matrices with many.
fn round(
    graph: &Graph,
    activations: Activations,
    caps: &DeviceCaps,
) -> std::result::Result<Graph, GraphError> {
    let integers = match activations {
        Activations::Exact => return Ok(graph.clone()),
        Activations::Auto => caps.int_dot_accelerated,
        Activations::Quantized => true,
    };
    let graph = if integers { dot::quantize_activations(graph, caps)? } else { graph.clone() };
    matrix::round_operands(&graph, caps)
}

/// The texts that a run embeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Texts {
    /// One, of up to so many tokens.
    One(usize),
    /// Several, of up to so many tokens in all.
    Several(usize),
}

/// The graph that embeds texts, as it is compiled for a device.
pub(crate) fn embed_step(
    model: &ModelGraph,
    caps: Option<&DeviceCaps>,
    options: &EmbedOptions,
    texts: Texts,
) -> Result<Graph> {
    let pooling = options.pooling_of(model)?;
    let name = match texts {
        Texts::One(_) => "embed",
        Texts::Several(_) => "embed_texts",
    };
    let step = graph(model, caps, options.activations, name, |model| match texts {
        Texts::One(limit) => model.embed(pooling, options.normalize, limit),
        Texts::Several(limit) => model.embed_texts(pooling, options.normalize, limit),
    })?;
    if step.nodes().any(|(_, node)| matches!(node.op, Op::State { .. })) {
        return Err(EmbedError::HasStates(model.config.architecture.name()).into());
    }
    Ok(step)
}
