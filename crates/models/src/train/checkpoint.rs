//! Checkpoints: weights, moments, losses and counters in one safetensors file.
//!
//! Weights have their own names, so that any program can read them; what belongs to the optimizer has the prefix
//! `optimizer.`, losses have `history.`. Counters are JSON in the metadata, under one key, so that equal trainings
//! write equal bytes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Map, Value as Json};
use tallow::{Device, Tensor, Var};
use tallow_gguf::GgufFile;

use super::atomic::write_atomically;
use super::error::TrainError;
use super::gguf::from_gguf;
use super::history::History;
use super::net::Net;
use crate::error::Result;

/// Name of the checkpoint in the output folder.
pub const CHECKPOINT: &str = "checkpoint.safetensors";
/// Where the counters say how many steps are done. Windows, the order of examples, and dropout of a step depend on the
/// seed and its number alone, so nothing else counts.
const STEP: &str = "step";

/// Where checkpoints of a training go, and what another run must have in common with one to go on from it.
#[derive(Clone, Debug)]
pub(super) struct CheckpointFile {
    pub path: PathBuf,
    /// Key of the counters in the metadata.
    pub key: &'static str,
    /// The counters besides the step; those of an object count each by itself.
    pub common: Map<String, Json>,
    /// How a message about a difference says where the other value is from.
    pub origin: &'static str,
    /// What messages advise in the end.
    pub advice: &'static str,
}

/// What a checkpoint holds.
pub(super) struct Checkpoint {
    file: CheckpointFile,
    /// Steps done.
    pub step: usize,
    /// Weights and, with their prefix, the optimizer's tensors; on the CPU.
    tensors: HashMap<String, Tensor>,
    pub history: History,
}

impl CheckpointFile {
    /// Writes a checkpoint after `step` steps. `variables` are weights and the optimizer's, by name.
    ///
    /// # Errors
    /// When they cannot be read from the device, or the file cannot be written.
    pub fn save(&self, step: usize, variables: &[(String, Var)], history: &History) -> Result<()> {
        let mut all = read(variables)?;
        let losses = history.losses.clone();
        let (steps, validation): (Vec<u32>, Vec<f32>) =
            history.validation.iter().map(|(step, loss)| (*step as u32, *loss)).unzip();
        all.push(("history.losses".into(), vec![losses.len()], Values::Floats(losses)));
        all.push(("history.validation_steps".into(), vec![steps.len()], Values::Integers(steps)));
        all.push(("history.validation".into(), vec![validation.len()], Values::Floats(validation)));
        let mut counters = Map::from_iter([(STEP.to_owned(), step.into())]);
        counters.extend(self.common.clone());
        let text = Json::Object(counters).to_string();
        write(&self.path, &all, Some(HashMap::from([(self.key.to_owned(), text)])))
    }

    /// Reads the checkpoint.
    ///
    /// # Errors
    /// When it cannot be read, is damaged, or differs in what it must have in common with this run.
    pub fn load(&self) -> Result<Checkpoint> {
        let read = |source| TrainError::Read { path: self.path.clone(), source };
        let bytes = std::fs::read(&self.path).map_err(read)?;
        let (_, metadata) =
            SafeTensors::read_metadata(&bytes).map_err(|error| self.invalid(error.to_string()))?;
        let text = metadata.metadata().as_ref().and_then(|metadata| metadata.get(self.key));
        let missing = || self.invalid(format!("the metadata has no key {}: it is no checkpoint", self.key));
        let counters: Map<String, Json> = serde_json::from_str(text.ok_or_else(missing)?)
            .map_err(|error| self.invalid(error.to_string()))?;
        if let Some(why) = self.difference(&counters) {
            return Err(self.invalid(why).into());
        }
        let step = counters.get(STEP).and_then(Json::as_u64).and_then(|step| usize::try_from(step).ok());
        let step = step.ok_or_else(|| self.invalid("it does not say how many steps are done".into()))?;
        let mut tensors = tallow::safetensors::load_buffer(&bytes, &Device::Cpu)
            .map_err(|error| self.invalid(error.to_string()))?;
        let history = history(&mut tensors)?;
        if history.losses.len() != step {
            let why = format!("it has {} losses of {step} steps", history.losses.len());
            return Err(self.invalid(why).into());
        }
        Ok(Checkpoint { file: self.clone(), step, tensors, history })
    }

    /// Why this run cannot go on from a checkpoint with these counters.
    fn difference(&self, counters: &Map<String, Json>) -> Option<String> {
        // Reading may change the last bit of a float, so both sides were read.
        let text = Json::Object(self.common.clone()).to_string();
        let common: Map<String, Json> = serde_json::from_str(&text).unwrap_or_else(|_| self.common.clone());
        let found = leaves(counters);
        leaves(&common).into_iter().find_map(|(name, value)| {
            match found.iter().find(|(other, _)| *other == name) {
                None => Some(format!("it does not say {name}")),
                Some((_, other)) if *other == value => None,
                Some((_, other)) => {
                    let (other, value) = (plain(other), plain(value));
                    Some(format!("it was written with {name} {other}, {} {value}", self.origin))
                }
            }
        })
    }

    fn invalid(&self, why: String) -> TrainError {
        TrainError::Weights { path: self.path.clone(), why: format!("{why}{}", self.advice) }
    }
}

impl Checkpoint {
    /// The value of a variable.
    ///
    /// # Errors
    /// When there is none, or it has another shape or type.
    pub fn value(&self, name: &str, var: &Var) -> Result<&Tensor> {
        let found = self.tensors.get(name);
        let found = found.ok_or_else(|| self.file.invalid(format!("{name} is missing")))?;
        if found.dims() != var.dims() {
            let why = format!("{name} has shape {:?}, not {:?}", found.dims(), var.dims());
            return Err(self.file.invalid(why).into());
        }
        if found.dtype() != var.dtype() {
            let why = format!("{name} is of {}, not {}", found.dtype().as_str(), var.dtype().as_str());
            return Err(self.file.invalid(why).into());
        }
        Ok(found)
    }
}

/// The values of an object by their names, and in place of an object in it its values.
fn leaves(object: &Map<String, Json>) -> Vec<(&str, &Json)> {
    let mut all = vec![];
    for (name, value) in object {
        match value {
            Json::Object(inner) => all.extend(inner.iter().map(|(name, value)| (name.as_str(), value))),
            _ => all.push((name.as_str(), value)),
        }
    }
    all
}

/// A value in a message: texts without their quotation marks, unless they would break the line.
fn plain(value: &Json) -> String {
    match value {
        Json::String(text) if !text.contains(char::is_control) => text.clone(),
        _ => value.to_string(),
    }
}

/// Takes the losses out of what was read.
fn history(tensors: &mut HashMap<String, Tensor>) -> Result<History> {
    let mut take = |name: &str| tensors.remove(name).filter(|found| found.elem_count() > 0);
    let mut history = History::default();
    if let Some(losses) = take("history.losses") {
        history.losses = losses.to_vec1()?;
    }
    if let (Some(steps), Some(losses)) = (take("history.validation_steps"), take("history.validation")) {
        let (steps, losses) = (steps.to_vec1::<u32>()?, losses.to_vec1::<f32>()?);
        history.validation = steps.into_iter().map(|step| step as usize).zip(losses).collect();
    }
    Ok(history)
}

/// Elements of a tensor to be written.
enum Values {
    Floats(Vec<f32>),
    Integers(Vec<u32>),
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
