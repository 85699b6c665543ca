//! Hyperparameters of the `llama` architecture, read from GGUF metadata and checked.
//!
//! Key names are those of the GGUF specification (ggml's `docs/gguf.md`, section "LLM").

use tallow_gguf::{Metadata, Value, optional};

use crate::error::{Error, Result};
use crate::rope::RopeScaling;

/// Hyperparameters of a `llama` model.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query head `h` uses key head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Elements of a query or key head.
    pub key_length: usize,
    /// Elements of a value head.
    pub value_length: usize,
    /// Width of the feed-forward layer.
    pub feed_forward: usize,
    /// Positions that the model was trained for.
    pub context: usize,
    /// Added to the mean square in RMS norms.
    pub norm_epsilon: f32,
    /// Leading elements of each head that rope rotates.
    pub rope_dimensions: usize,
    /// Base of rope's frequencies.
    pub rope_base: f32,
    /// How rope's frequencies are stretched beyond the original context.
    pub rope_scaling: RopeScaling,
}

impl LlamaConfig {
    /// Reads the keys `llama.*`.
    ///
    /// # Errors
    /// When a key is missing, of the wrong type, or contradicts another one.
    pub fn from_metadata(metadata: &Metadata) -> Result<LlamaConfig> {
        let bad = |key: &str, why: &str| Error::Hyperparameter { key: key.into(), why: why.into() };
        let number = |key: &str| match metadata.get_u32(key)? {
            0 => Err(bad(key, "is 0")),
            // Extents beyond this overflow index arithmetic long before memory runs out.
            n if n > 1 << 24 => Err(bad(key, &format!("{n} is not plausible"))),
            n => Ok(n as usize),
        };
        let or = |key: &str, default: usize| if metadata.contains(key) { number(key) } else { Ok(default) };
        let float = |key: &str, default: f32| -> Result<f32> {
            match optional(metadata.get_f32(key))?.unwrap_or(default) {
                x if x.is_finite() && x > 0.0 => Ok(x),
                x => Err(bad(key, &format!("{x} is not a positive number"))),
            }
        };

        let width = number("llama.embedding_length")?;
        let heads = number("llama.attention.head_count")?;
        let kv_heads = or("llama.attention.head_count_kv", heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(bad("llama.attention.head_count_kv", "does not divide head_count"));
        }
        if !metadata.contains("llama.attention.key_length") && !width.is_multiple_of(heads) {
            return Err(bad("llama.attention.head_count", "does not divide embedding_length"));
        }
        let key_length = or("llama.attention.key_length", width / heads)?;
        let rope_dimensions = or("llama.rope.dimension_count", key_length)?;
        if rope_dimensions > key_length || !rope_dimensions.is_multiple_of(2) {
            return Err(bad("llama.rope.dimension_count", "is odd or more than a head has"));
        }
        if matches!(optional(metadata.get_u32("llama.expert_count"))?, Some(n) if n > 0) {
            return Err(bad("llama.expert_count", "mixtures of experts are not supported"));
        }
        let epsilon = "llama.attention.layer_norm_rms_epsilon";
        metadata.get_f32(epsilon)?;
        let context = number("llama.context_length")?;
        Ok(LlamaConfig {
            layers: number("llama.block_count")?,
            width,
            heads,
            kv_heads,
            key_length,
            value_length: or("llama.attention.value_length", key_length)?,
            feed_forward: number("llama.feed_forward_length")?,
            context,
            norm_epsilon: float(epsilon, 1e-5)?,
            rope_dimensions,
            rope_base: float("llama.rope.freq_base", 10000.0)?,
            rope_scaling: scaling(metadata, context)?,
        })
    }
}

/// The keys `llama.rope.scaling.*` and the older `llama.rope.scale_linear`.
fn scaling(metadata: &Metadata, context: usize) -> Result<RopeScaling> {
    let key = |name: &str| format!("llama.rope.scaling.{name}");
    let float = |name: &str, default: f32| -> Result<f32> {
        let key = key(name);
        let value = optional(metadata.get_f32(&key))?.unwrap_or(default);
        if value.is_finite() && value >= 0.0 {
            return Ok(value);
        }
        Err(Error::Hyperparameter { key, why: format!("{value} is not a number of 0 or more") })
    };
    let older = optional(metadata.get_f32("llama.rope.scale_linear"))?.unwrap_or(0.0);
    // 0 stands for "not given", as in llama.cpp.
    let factor = match float("factor", older)? {
        0.0 => 1.0,
        factor => factor,
    };
    let attention_factor = float("attn_factor", 1.0)?;
    let kind = match metadata.get(&key("type")) {
        None => "linear",
        Some(Value::String(kind)) => kind,
        Some(_) => metadata.get_str(&key("type"))?,
    };
    match kind {
        "none" => Ok(RopeScaling::None),
        "linear" if factor == 1.0 => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor }),
        "yarn" => {
            let original = optional(metadata.get_u32(&key("original_context_length")))?;
            Ok(RopeScaling::Yarn {
                factor,
                original_context: original.filter(|n| *n > 0).map_or(context, |n| n as usize),
                attention_factor,
                extrapolation: float("yarn_ext_factor", 1.0)?,
                beta_fast: float("yarn_beta_fast", 32.0)?,
                beta_slow: float("yarn_beta_slow", 1.0)?,
                log_multiplier: float("yarn_log_multiplier", 0.0)?,
            })
        }
        other => Err(Error::Hyperparameter {
            key: key("type"),
            why: format!("{other:?} is not supported; none, linear and yarn are"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The metadata of a small model, with `changes` on top; an empty string removes a key.
    fn metadata(changes: &[(&str, Value)]) -> Metadata {
        let mut all = Metadata::new();
        for (key, value) in [
            ("llama.context_length", Value::U32(1024)),
            ("llama.embedding_length", Value::U32(256)),
            ("llama.block_count", Value::U32(4)),
            ("llama.feed_forward_length", Value::U32(768)),
            ("llama.attention.head_count", Value::U32(4)),
            ("llama.attention.head_count_kv", Value::U32(2)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ] {
            all.insert(key, value);
        }
        for (key, value) in changes {
            all.insert(*key, value.clone());
        }
        all
    }

    #[test]
    fn defaults_follow_from_other_keys() {
        let config = LlamaConfig::from_metadata(&metadata(&[])).unwrap();
        assert_eq!((config.key_length, config.value_length, config.rope_dimensions), (64, 64, 64));
        assert_eq!((config.rope_base, config.rope_scaling), (10000.0, RopeScaling::None));
    }

    #[test]
    fn contradictions_name_their_key() {
        for (key, value, says) in [
            ("llama.attention.head_count_kv", Value::U32(3), "does not divide"),
            ("llama.attention.head_count", Value::U32(0), "is 0"),
            ("llama.rope.dimension_count", Value::U32(65), "is odd or more"),
            ("llama.rope.freq_base", Value::F32(f32::NAN), "not a positive"),
            ("llama.expert_count", Value::U32(8), "experts"),
            ("llama.block_count", Value::String("four".into()), "expected"),
            ("llama.rope.scaling.type", Value::String("longrope".into()), "longrope"),
            ("llama.rope.scaling.factor", Value::F32(-2.0), "not a number of 0 or more"),
        ] {
            let error = LlamaConfig::from_metadata(&metadata(&[(key, value)])).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains(says), "{error}");
        }
        let error = LlamaConfig::from_metadata(&Metadata::new()).unwrap_err().to_string();
        assert!(error.contains("llama.embedding_length"), "{error}");
    }

    #[test]
    fn scaling_keys_are_read() {
        let linear = metadata(&[("llama.rope.scale_linear", Value::F32(4.0))]);
        let config = LlamaConfig::from_metadata(&linear).unwrap();
        assert_eq!(config.rope_scaling, RopeScaling::Linear { factor: 4.0 });
        let yarn = metadata(&[
            ("llama.rope.scaling.type", Value::String("yarn".into())),
            ("llama.rope.scaling.factor", Value::F32(8.0)),
            ("llama.rope.scaling.original_context_length", Value::U32(128)),
            ("llama.rope.scaling.attn_factor", Value::F32(0.5)),
        ]);
        let expected = RopeScaling::Yarn {
            factor: 8.0,
            original_context: 128,
            attention_factor: 0.5,
            extrapolation: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            log_multiplier: 0.0,
        };
        assert_eq!(LlamaConfig::from_metadata(&yarn).unwrap().rope_scaling, expected);
    }
}
