//! Which weights the graphs of a model require, of which shapes: what a file is checked against, and what a model has that
//! comes from no file.

use std::collections::HashSet;

use tallow_gguf::GgufFile;
use tallow_ir::{DType, GraphError, TensorType};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::model_graph::{ModelGraph, vocabulary};
use crate::weights::WeightTypes;

/// The embedding. Its rows tell the size of the vocabulary.
const EMBEDDING: &str = "token_embd.weight";

impl ModelGraph {
    /// The model of these hyperparameters without a file, for a vocabulary of so many tokens. It has the weights that its
    /// graphs require; `dtype` gives the type of each by its name and shape. `has` names those that it has of the tensors
    /// that some files leave out, such as `output.weight`, or `attn_q.bias` of every layer.
    ///
    /// # Errors
    /// When no graph can be built with these hyperparameters.
    pub fn from_config(
        config: Config,
        vocabulary: usize,
        has: &[&str],
        dtype: &dyn Fn(&str, &[usize]) -> DType,
    ) -> Result<ModelGraph, GraphError> {
        let mut types = WeightTypes::default();
        for name in has {
            // Of tensors whose shape is not asked for, graphs ask only whether they are there.
            types.insert(name, TensorType::new(DType::F32, [0usize]));
            for layer in 0..config.layers {
                types.insert(&format!("blk.{layer}.{name}"), TensorType::new(DType::F32, [0usize]));
            }
        }
        // Its shape is asked for.
        types.insert(EMBEDDING, TensorType::new(DType::F32, [vocabulary, config.width]));
        types.assume();
        let mut model = ModelGraph::of_types(config, types, vocabulary);
        let (required, failed) = model.required();
        if let Some(error) = failed {
            return Err(error);
        }
        let mut types = WeightTypes::default();
        for (name, shape) in required {
            let dtype = if model.computed(&name).is_some() { DType::F32 } else { dtype(&name, &shape) };
            types.insert(&name, TensorType::new(dtype, shape.as_slice()));
        }
        model.types = types;
        Ok(model)
    }
}

/// How many layers have a tensor.
fn layers_with_tensors(file: &GgufFile) -> usize {
    let number = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse::<usize>().ok();
    file.tensors().filter_map(|tensor| number(&tensor.name)).collect::<HashSet<_>>().len()
}

/// What is wrong with the tensors of a file: each that is missing, of an unknown format, or of another shape than the
/// hyperparameters give, at most `most` of them.
pub(crate) fn problems_of_weights(config: &Config, file: &GgufFile, most: usize) -> Vec<Error> {
    let mut types = WeightTypes::of_file(file);
    // Of layers that have no tensor, a few are enough to say so.
    let with_tensors = layers_with_tensors(file);
    if let Err(error) = file.require(EMBEDDING) {
        return vec![error.into()];
    }
    // Each layer has tensors. The graph of a file that claims any number of them could not be built.
    if config.layers > file.tensors().len() {
        let key = format!("{}.block_count", config.architecture.name());
        let why = format!("{} layers of {} tensors in all", config.layers, file.tensors().len());
        return vec![Error::Hyperparameter { key, why }];
    }
    types.assume();
    let mut config = config.clone();
    config.layers = config.layers.min(with_tensors + 16);
    let model = ModelGraph::of_types(config, types, vocabulary(file));
    let (required, failed) = model.required();
    let wrong = |(name, shape): (String, Vec<usize>)| {
        if model.computed(&name).is_some() {
            return None;
        }
        model.types.require(file, &name, &shape).err()
    };
    let found: Vec<Error> = required.into_iter().filter_map(wrong).take(most).collect();
    match failed {
        Some(source) if found.is_empty() => vec![Error::Graph { graph: "decode", source }],
        _ => found,
    }
}
