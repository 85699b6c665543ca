//! Models without a file: their weights are those that their graphs require.

use tallow_ir::{DType, GraphError, TensorType};

use crate::config::Config;
use crate::model_graph::ModelGraph;
use crate::weights::WeightTypes;

impl ModelGraph {
    /// The model of these hyperparameters without a file, for a vocabulary of so many tokens. It has the weights that
    /// its graphs require; `dtype` gives the type of each by its name and shape. `has` names those that it has of the
    /// tensors that some files leave out, such as `output.weight`, or `attn_q.bias` of every layer.
    ///
    /// # Errors
    /// When no graph can be built with these hyperparameters. Those of encoders leave out how many types of
    /// tokens there are.
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
        types.insert("token_embd.weight", TensorType::new(DType::F32, [vocabulary, config.width]));
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
