//! Hyperparameters of latent attention.

use super::{Config, Keys};
use crate::error::Result;

/// Extents of latent attention (DeepSeek V2: arXiv 2405.04434, section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Elements of the row that the keys and values of a token are products of.
    pub rank: usize,
    /// Elements of the row that the queries of a token are products of, where there is one.
    pub query_rank: Option<usize>,
    /// Elements of a key of a head: those that are not rotated, and those that are.
    pub key_length: usize,
    /// Elements of a value of a head.
    pub value_length: usize,
}

impl Latent {
    /// The keys `attention.*_lora_rank` and `attention.*_length_mla`.
    pub(crate) fn read(keys: &Keys<'_>, config: &Config) -> Result<Latent> {
        let latent = Latent {
            rank: keys.number("attention.kv_lora_rank")?,
            query_rank: keys.count("attention.q_lora_rank")?,
            key_length: keys.number("attention.key_length_mla")?,
            value_length: keys.number("attention.value_length_mla")?,
        };
        if latent.key_length <= config.rope_dimensions {
            return Err(keys.bad("attention.key_length_mla", "is not more than rope.dimension_count"));
        }
        if config.key_length != latent.rank + config.rope_dimensions {
            let why = "is not the sum of attention.kv_lora_rank and rope.dimension_count";
            return Err(keys.bad("attention.key_length", why));
        }
        Ok(latent)
    }
}
