//! Layers of neural networks as compositions of primitive operations, with the names of `candle_nn`. No pass
//! knows their names: what makes each of them one kernel is that its reductions run over the same rows.
//!
//! Layers that have weights take them as tensors (`new`), or from a [`VarBuilder`] by the function of their name: as
//! variables of a [`VarMap`] to train, or from files. Functions of tensors with the same names are in [`ops`].

mod activation;
mod attention;
mod batch_norm;
mod conv;
mod dropout;
pub mod encoding;
pub mod init;
pub mod kv_cache;
mod layers;
pub mod loss;
mod norms;
pub mod ops;
pub mod optim;
pub mod rnn;
pub mod rotary_emb;
pub mod sampling;
mod sequential;
pub mod var_builder;
mod var_map;

pub use crate::module::{Module, ModuleT};
pub use activation::{Activation, PReLU, prelu};
pub use attention::{AttentionOptions, alibi_slopes, attention};
pub use batch_norm::{BatchNorm, BatchNormConfig, batch_norm};
pub use conv::{
    Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, ConvTranspose1d, ConvTranspose1dConfig, ConvTranspose2d,
    ConvTranspose2dConfig, conv_transpose1d, conv_transpose1d_no_bias, conv_transpose2d,
    conv_transpose2d_no_bias, conv1d, conv1d_no_bias, conv2d, conv2d_no_bias,
};
pub use dropout::Dropout;
pub use init::Init;
pub use layers::{Embedding, Linear, embedding, linear, linear_b, linear_no_bias};
pub use norms::{
    GroupNorm, LayerNorm, LayerNormConfig, RmsNorm, group_norm, layer_norm, layer_norm_no_bias, rms_norm,
};
pub use ops::{
    dropout, hard_sigmoid, leaky_relu, log_softmax, mish, sdpa, selu, sigmoid, silu, softmax,
    softmax_last_dim,
};
pub use optim::{AdamW, Optimizer, ParamsAdamW, SGD};
pub use rnn::{GRU, GRUConfig, LSTM, LSTMConfig, RNN, gru, lstm};
pub use sequential::{Func, FuncT, Sequential, func, func_t, seq};
pub use var_builder::VarBuilder;
pub use var_map::VarMap;
