//! Layers of neural networks as compositions of primitive operations, with the names of `candle_nn`. No pass
//! knows their names: what makes each of them one kernel is that its reductions run over the same rows.
//!
//! Layers that have weights take them as tensors (`new`); reading them from files is the caller's.

mod attention;
mod dropout;
pub mod encoding;
pub mod kv_cache;
mod layers;
pub mod loss;
mod norms;
pub mod ops;
pub mod optim;
pub mod rotary_emb;
pub mod sampling;

pub use crate::module::{Module, ModuleT};
pub use attention::{AttentionOptions, alibi_slopes, attention};
pub use dropout::Dropout;
pub use layers::{Embedding, Linear};
pub use norms::{BatchNorm, GroupNorm, LayerNorm, RmsNorm};
pub use ops::{
    dropout, hard_sigmoid, layer_norm, leaky_relu, log_softmax, mish, rms_norm, sdpa, selu, sigmoid, silu,
    softmax, softmax_last_dim,
};
pub use optim::{AdamW, Optimizer, ParamsAdamW, SGD};
