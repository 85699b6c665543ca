//! Hyperparameters of the `llama` architecture and its kin, read from GGUF metadata and checked.
//!
//! Key names are those of the GGUF specification (ggml's `docs/gguf.md`, section "LLM").

use tallow_gguf::{Metadata, Value, optional};

use crate::error::{Error, Result};
use crate::rope::{Pairing, RopeScaling};

/// A value of `general.architecture`: `llama`, or one that differs from it in few places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `llama`.
    Llama,
    /// `qwen2`: rope pairs the halves of a head; queries, keys and values have biases.
    Qwen2,
    /// `qwen3`: rope pairs the halves of a head; each head of queries and keys goes through an RMS norm before it.
    Qwen3,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Architecture; 3] = [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3];

    /// The name in files, which starts the names of their keys too.
    pub const fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
        }
    }

    /// Which elements of a head rope rotates together.
    pub fn pairing(self) -> Pairing {
        match self {
            Architecture::Llama => Pairing::Neighbours,
            Architecture::Qwen2 | Architecture::Qwen3 => Pairing::Halves,
        }
    }

    /// Whether each head of queries and keys goes through a norm.
    pub fn norms_heads(self) -> bool {
        match self {
            Architecture::Llama | Architecture::Qwen2 => false,
            Architecture::Qwen3 => true,
        }
    }

    /// What a file says; `llama` where it says nothing.
    ///
    /// # Errors
    /// When that is not among [`Architecture::ALL`].
    pub fn of(metadata: &Metadata) -> Result<Architecture> {
        let Some(found) = optional(metadata.get_str("general.architecture"))? else {
            return Ok(Architecture::Llama);
        };
        let unknown = || Error::UnsupportedArchitecture {
            found: found.into(),
            known: Architecture::ALL.map(Architecture::name).to_vec(),
        };
        Architecture::ALL.into_iter().find(|a| a.name() == found).ok_or_else(unknown)
    }
}

/// Hyperparameters of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// The architecture.
    pub architecture: Architecture,
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
    /// Reads the keys that start with the architecture's name.
    ///
    /// # Errors
    /// When a key is missing, of the wrong type, or contradicts another one.
    pub fn from_metadata(metadata: &Metadata) -> Result<LlamaConfig> {
        let architecture = Architecture::of(metadata)?;
        let named = |key: &str| format!("{}.{key}", architecture.name());
        let bad = |key: &str, why: &str| Error::Hyperparameter { key: named(key), why: why.into() };
        let has = |key: &str| metadata.contains(&named(key));
        let number = |key: &str| match metadata.get_u32(&named(key))? {
            0 => Err(bad(key, "is 0")),
            // Extents beyond this overflow index arithmetic long before memory runs out.
            n if n > 1 << 24 => Err(bad(key, &format!("{n} is not plausible"))),
            n => Ok(n as usize),
        };
        let or = |key: &str, default: usize| if has(key) { number(key) } else { Ok(default) };
        let float = |key: &str, default: f32| -> Result<f32> {
            match optional(metadata.get_f32(&named(key)))?.unwrap_or(default) {
                x if x.is_finite() && x > 0.0 => Ok(x),
                x => Err(bad(key, &format!("{x} is not a positive number"))),
            }
        };

        let width = number("embedding_length")?;
        let heads = number("attention.head_count")?;
        let kv_heads = or("attention.head_count_kv", heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(bad("attention.head_count_kv", "does not divide head_count"));
        }
        if !has("attention.key_length") && !width.is_multiple_of(heads) {
            return Err(bad("attention.head_count", "does not divide embedding_length"));
        }
        let key_length = or("attention.key_length", width / heads)?;
        let rope_dimensions = or("rope.dimension_count", key_length)?;
        if rope_dimensions > key_length || !rope_dimensions.is_multiple_of(2) {
            return Err(bad("rope.dimension_count", "is odd or more than a head has"));
        }
        if matches!(optional(metadata.get_u32(&named("expert_count")))?, Some(n) if n > 0) {
            return Err(bad("expert_count", "mixtures of experts are not supported"));
        }
        let epsilon = "attention.layer_norm_rms_epsilon";
        metadata.get_f32(&named(epsilon))?;
        let context = number("context_length")?;
        Ok(LlamaConfig {
            architecture,
            layers: number("block_count")?,
            width,
            heads,
            kv_heads,
            key_length,
            value_length: or("attention.value_length", key_length)?,
            feed_forward: number("feed_forward_length")?,
            context,
            norm_epsilon: float(epsilon, 1e-5)?,
            rope_dimensions,
            rope_base: float("rope.freq_base", 10000.0)?,
            rope_scaling: scaling(metadata, architecture, context)?,
        })
    }
}

/// The keys `rope.scaling.*` and the older `rope.scale_linear`.
fn scaling(metadata: &Metadata, architecture: Architecture, context: usize) -> Result<RopeScaling> {
    let key = |name: &str| format!("{}.rope.scaling.{name}", architecture.name());
    let float = |name: &str, default: f32| -> Result<f32> {
        let key = key(name);
        let value = optional(metadata.get_f32(&key))?.unwrap_or(default);
        if value.is_finite() && value >= 0.0 {
            return Ok(value);
        }
        Err(Error::Hyperparameter { key, why: format!("{value} is not a number of 0 or more") })
    };
    let older =
        optional(metadata.get_f32(&format!("{}.rope.scale_linear", architecture.name())))?.unwrap_or(0.0);
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
