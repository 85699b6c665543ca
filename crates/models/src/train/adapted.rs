//! A decoder of the frozen weights of a model file, with adapters.

use indexmap::IndexMap;
use tallow::Device;

use super::config::NetConfig;
use super::error::TrainError;
use super::frozen::{Adapter, Frozen, LoraConfig, Target};
use super::gguf::{OF_HEADS, OF_LAYER};
use super::heads::Heads;
use super::net::{Net, Weight};
use crate::architecture::Architecture;
use crate::config::Config;
use crate::error::Result;
use crate::model::ModelFile;

impl Net {
    /// A decoder with the frozen weights of a model file, as the file holds them, and an adapter for each target. The same
    /// seed gives the same adapters on each device.
    ///
    /// # Errors
    /// When the rank is 0 or more than a weight has rows or columns, there are no targets, or memory runs out.
    pub fn adapted(model: &ModelFile, lora: &LoraConfig, device: &Device) -> Result<Net> {
        let (graph, file) = (model.model_graph(), &model.file);
        check(&graph.config)?;
        let config = net_config(model);
        if lora.targets.is_empty() {
            return Err(TrainError::Option { name: "targets", why: "there are none".into() }.into());
        }
        if !lora.alpha.is_finite() || lora.alpha <= 0.0 {
            let why = format!("{} is not a positive number", lora.alpha);
            return Err(TrainError::Option { name: "alpha", why }.into());
        }
        let mut weights = IndexMap::new();
        let mut add = |ours: String, theirs: String, target: Option<Target>| -> Result<()> {
            let Some(info) = file.tensor(&theirs) else { return Ok(()) };
            let adapter = match (target, info.shape.as_slice()) {
                (Some(_), [outputs, inputs]) => {
                    let most = *outputs.min(inputs);
                    if !(1..=most).contains(&lora.rank) {
                        let why = format!("{} is not from 1 to {most}, which {theirs} can have", lora.rank);
                        return Err(TrainError::Option { name: "rank", why }.into());
                    }
                    Some(Adapter::new(&theirs, [*outputs, *inputs], lora, device)?)
                }
                (_, _) => None,
            };
            weights.insert(ours, Weight::Frozen(Frozen::of_file(file, &theirs, device)?, adapter));
            Ok(())
        };
        add("model.embed_tokens.weight".into(), "token_embd.weight".into(), None)?;
        for layer in 0..config.n_layer {
            for (ours, theirs) in OF_LAYER.into_iter().chain(OF_HEADS) {
                let target = lora.targets.iter().find(|target| target.in_file() == theirs).copied();
                for (end, target) in [("weight", target), ("bias", None)] {
                    add(
                        format!("model.layers.{layer}.{ours}.{end}"),
                        format!("blk.{layer}.{theirs}.{end}"),
                        target,
                    )?;
                }
            }
        }
        add("model.norm.weight".into(), "output_norm.weight".into(), None)?;
        add("lm_head.weight".into(), "output.weight".into(), None)?;
        let heads = Heads::of_file(&graph.config, &graph.rope);
        Ok(Net::of_weights(&config, heads, weights, device))
    }
}

/// Refuses what the layers of a [`Net`] do not compute.
fn check(config: &Config) -> Result<()> {
    use Architecture::{Llama, Qwen2, Qwen3};
    let name = config.architecture.name();
    if !matches!(config.architecture, Llama | Qwen2 | Qwen3) {
        let known = [Llama, Qwen2, Qwen3].map(Architecture::name).join(", ");
        return Err(TrainError::Architecture(format!("{name}; {known} can be")).into());
    }
    if config.experts.is_some() || config.window.is_some() {
        return Err(TrainError::Architecture(format!("{name} with experts or a sliding window")).into());
    }
    Ok(())
}

/// The sizes of a model file.
fn net_config(model: &ModelFile) -> NetConfig {
    let (graph, config) = (model.model_graph(), &model.model_graph().config);
    NetConfig {
        vocab_size: graph.vocabulary,
        n_embd: config.width,
        n_layer: config.layers,
        n_head: config.heads,
        n_head_kv: config.kv_heads,
        n_ff: config.feed_forward,
        n_ctx: config.context,
        rope_theta: f64::from(config.rope_base),
        rms_eps: f64::from(config.norm_epsilon),
    }
}
