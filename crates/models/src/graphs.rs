//! The graphs of a model as they are compiled for a device, without loading it.

use tallow::caps::DeviceCaps;
use tallow_ir::Graph;

use crate::error::Result;
use crate::model_graph::ModelGraph;
use crate::options::{Decode, EmbedOptions, LoadOptions};
use crate::step_graphs::{Texts, context, context_of, decode_step, embed_step, prefill_step, with_cache};

/// The graphs that a model loaded with these options runs on a device with `caps`, or else on the interpreter: `decode`
/// with logits as its result, `greedy`, the decode step that chooses the token, and `prefill`. `options.decode` is not heeded.
/// An encoder has one, `embed`.
///
/// # Errors
/// When the options do not fit the model.
pub fn graphs(model: &ModelGraph, caps: Option<&DeviceCaps>, options: &LoadOptions) -> Result<Vec<Graph>> {
    if model.config.architecture.is_encoder() {
        let embed = EmbedOptions { activations: options.activations, ..EmbedOptions::default() };
        let texts = Texts::One(context_of(model, options.context)?);
        return Ok(vec![embed_step(model, caps, &embed, texts)?]);
    }
    let context = context(model, options)?;
    let model = &with_cache(model, options)?;
    let decode = |kind| decode_step(model, caps, options.activations, context, kind);
    Ok(vec![
        decode(Decode::Logits)?,
        decode(Decode::Token)?,
        prefill_step(
            model,
            caps,
            options.activations,
            context,
            options.chunk_within(&model.config, context),
        )?,
    ])
}
