//! Checkpoints: weights, moments, losses and counters in one safetensors file.
//!
//! Weights have their own names, so that any program can read them; what belongs to the optimizer has the prefix
//! `optimizer.`, losses have `history.`. Counters are JSON in the metadata, under one key, so that equal trainings
//! write equal bytes.

use std::collections::HashMap;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use tallow::{Device, Tensor, Var};
use tallow_gguf::GgufFile;

use super::atomic::write_atomically;
use super::config::{NetConfig, Options, Plan};
use super::error::TrainError;
use super::gguf::from_gguf;
use super::history::History;
use super::net::Net;
use crate::error::Result;

/// Name of the checkpoint in the output folder.
pub const CHECKPOINT: &str = "checkpoint.safetensors";
/// Key of the counters in the metadata.
const KEY: &str = "tallow.train";

/// Where a training is. Windows and dropout of a step depend on the seed and its number alone, so there are no others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Counters {
    /// Steps done.
    pub step: usize,
    /// Seed of the training.
    pub seed: u64,
    /// Windows of a step.
    pub batch: usize,
    /// Tokens of a window.
    pub context: usize,
    /// Sizes of the model.
    pub model: NetConfig,
}

impl Counters {
    /// Why a training with this plan cannot go on from here.
    pub fn mismatch(&self, plan: &Plan) -> Option<String> {
        let Options { seed, batch, context, .. } = plan.options;
        let differs = |name: &str, here: String, there: String| {
            (here != there)
                .then(|| format!("it was written with {name} {here}, the configuration says {there}"))
        };
        let number = |name, here: usize, there: usize| differs(name, here.to_string(), there.to_string());
        let (here, there) = (&self.model, &plan.net);
        differs("seed", self.seed.to_string(), seed.to_string())
            .or_else(|| number("batch", self.batch, batch))
            .or_else(|| number("context", self.context, context))
            .or_else(|| number("vocab_size", here.vocab_size, there.vocab_size))
            .or_else(|| number("n_embd", here.n_embd, there.n_embd))
            .or_else(|| number("n_layer", here.n_layer, there.n_layer))
            .or_else(|| differs("the model", format!("{here:?}"), format!("{there:?}")))
    }
}

/// What a checkpoint holds.
pub(super) struct Checkpoint {
    pub counters: Counters,
    /// Weights and, with their prefix, the optimizer's tensors; on the CPU.
    pub tensors: HashMap<String, Tensor>,
    pub history: History,
}

/// Elements of a tensor to be written.
enum Values {
    Floats(Vec<f32>),
    Integers(Vec<u32>),
}

/// Writes a checkpoint. `variables` are weights and the optimizer's, by name.
pub(super) fn save(
    path: &Path,
    counters: &Counters,
    variables: &[(String, Var)],
    history: &History,
) -> Result<()> {
    let mut all = read(variables)?;
    let losses = history.losses.clone();
    let (steps, validation): (Vec<u32>, Vec<f32>) =
        history.validation.iter().map(|(step, loss)| (*step as u32, *loss)).unzip();
    all.push(("history.losses".into(), vec![losses.len()], Values::Floats(losses)));
    all.push(("history.validation_steps".into(), vec![steps.len()], Values::Integers(steps)));
    all.push(("history.validation".into(), vec![validation.len()], Values::Floats(validation)));
    let invalid = |why: String| TrainError::Weights { path: path.into(), why };
    let text = serde_json::to_string(counters).map_err(|error| invalid(error.to_string()))?;
    write(path, &all, Some(HashMap::from([(KEY.to_string(), text)])))
}

/// Writes the weights of a decoder alone.
///
/// # Errors
/// When they cannot be read from the device, or the file cannot be written.
pub fn save_weights(net: &Net, path: &Path) -> Result<()> {
    let variables: Vec<(String, Var)> = net.vars().map(|(name, var)| (name.into(), var.clone())).collect();
    write(path, &read(&variables)?, Some(HashMap::from([("format".into(), "pt".into())])))
}

fn read(variables: &[(String, Var)]) -> Result<Vec<(String, Vec<usize>, Values)>> {
    let current: Vec<Tensor> = variables.iter().map(|(_, var)| var.as_detached_tensor()).collect();
    tallow::eval(&current.iter().collect::<Vec<_>>())?;
    let mut all = vec![];
    for ((name, _), tensor) in variables.iter().zip(&current) {
        let values = Values::Floats(tensor.flatten_all()?.to_vec1()?);
        all.push((name.clone(), tensor.dims().to_vec(), values));
    }
    Ok(all)
}

fn write(
    path: &Path,
    tensors: &[(String, Vec<usize>, Values)],
    metadata: Option<HashMap<String, String>>,
) -> Result<()> {
    let invalid = |error: safetensors::SafeTensorError| TrainError::Weights {
        path: path.into(),
        why: error.to_string(),
    };
    let bytes: Vec<(Dtype, Vec<u8>)> = tensors
        .iter()
        .map(|(_, _, values)| match values {
            Values::Floats(values) => (Dtype::F32, values.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Values::Integers(values) => (Dtype::U32, values.iter().flat_map(|x| x.to_le_bytes()).collect()),
        })
        .collect();
    let mut views = vec![];
    for ((name, shape, _), (dtype, bytes)) in tensors.iter().zip(&bytes) {
        views.push((name, TensorView::new(*dtype, shape.clone(), bytes).map_err(invalid)?));
    }
    let file = safetensors::serialize(views, metadata).map_err(invalid)?;
    write_atomically(path, |out| out.write_all(&file))
        .map_err(|source| TrainError::Write { path: path.into(), source })?;
    Ok(())
}

/// Reads a checkpoint.
pub(super) fn load(path: &Path) -> Result<Checkpoint> {
    let invalid = |why: String| TrainError::Weights { path: path.into(), why };
    let bytes = std::fs::read(path).map_err(|source| TrainError::Read { path: path.into(), source })?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|error| invalid(error.to_string()))?;
    let text = metadata.metadata().as_ref().and_then(|metadata| metadata.get(KEY));
    let text = text.ok_or_else(|| invalid(format!("the metadata has no key {KEY}: it is no checkpoint")))?;
    let counters = serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
    let mut tensors =
        tallow::safetensors::load_buffer(&bytes, &Device::Cpu).map_err(|error| invalid(error.to_string()))?;
    let mut history = History::default();
    let mut steps: Vec<u32> = vec![];
    if let Some(losses) = tensors.remove("history.losses").filter(|losses| losses.elem_count() > 0) {
        history.losses = losses.to_vec1()?;
    }
    if let Some(found) = tensors.remove("history.validation_steps").filter(|found| found.elem_count() > 0) {
        steps = found.to_vec1()?;
    }
    if let Some(found) = tensors.remove("history.validation").filter(|found| found.elem_count() > 0) {
        let losses = found.to_vec1::<f32>()?;
        history.validation = steps.into_iter().map(|step| step as usize).zip(losses).collect();
    }
    Ok(Checkpoint { counters, tensors, history })
}

/// Weights by Hugging Face's names from a safetensors or GGUF file, on the CPU.
///
/// # Errors
/// When the file cannot be read, or is of a model that cannot be trained.
pub fn load_weights(path: &Path) -> Result<HashMap<String, Tensor>> {
    let invalid = |why: String| TrainError::Weights { path: path.into(), why };
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
        return Ok(from_gguf(&GgufFile::open(path)?).map_err(invalid)?.1);
    }
    let bytes = std::fs::read(path).map_err(|source| TrainError::Read { path: path.into(), source })?;
    let loaded = tallow::safetensors::load_buffer(&bytes, &Device::Cpu);
    Ok(loaded.map_err(|error| invalid(error.to_string()))?)
}
