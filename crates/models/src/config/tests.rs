//! Metadata that is read, and metadata that is refused.

use tallow_gguf::{Metadata, Value};

use super::Config;
use crate::rope::RopeScaling;

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
    let config = Config::from_metadata(&metadata(&[])).unwrap();
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
        ("llama.block_count", Value::String("four".into()), "expected"),
        ("llama.rope.scaling.type", Value::String("longrope".into()), "longrope"),
        ("llama.rope.scaling.factor", Value::F32(-2.0), "not a number of 0 or more"),
    ] {
        let error = Config::from_metadata(&metadata(&[(key, value)])).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(says), "{error}");
    }
    let experts = [("llama.expert_count", Value::U32(4)), ("llama.expert_used_count", Value::U32(5))];
    let error = Config::from_metadata(&metadata(&experts)).unwrap_err().to_string();
    assert!(error.contains("llama.expert_used_count") && error.contains("more than"), "{error}");
    let error = Config::from_metadata(&Metadata::new()).unwrap_err().to_string();
    assert!(error.contains("llama.embedding_length"), "{error}");
}

#[test]
fn scaling_keys_are_read() {
    let linear = metadata(&[("llama.rope.scale_linear", Value::F32(4.0))]);
    let config = Config::from_metadata(&linear).unwrap();
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
        rounds: true,
        log_multiplier: 0.0,
    };
    assert_eq!(Config::from_metadata(&yarn).unwrap().rope_scaling, expected);
}
