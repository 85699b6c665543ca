//! The shapes that can be measured.

use tallow_models::Architecture;
use tallow_quant::Format;

use super::Key::{self, Count, Float, Text};
use super::Shape;

const fn shape(name: &'static str, sizes: [usize; 7]) -> Shape {
    let [layers, width, feed_forward, heads, kv_heads, head, vocabulary] = sizes;
    Shape {
        name,
        architecture: Architecture::Llama,
        layers,
        width,
        feed_forward,
        heads,
        kv_heads,
        head,
        vocabulary,
        keys: &[],
        has: &["output.weight"],
        expert_format: None,
        decode: 128,
        prefill: 512,
    }
}

const fn of(architecture: Architecture, keys: &'static [(&'static str, Key)], shape: Shape) -> Shape {
    Shape { architecture, keys, ..shape }
}

/// The shapes that can be measured.
pub const SHAPES: &[Shape] = &[
    shape("llama3-8b", [32, 4096, 14336, 32, 8, 128, 32000]),
    shape("llama3-3b", [28, 3072, 8192, 24, 8, 128, 32000]),
    shape("llama3-1b", [16, 2048, 8192, 32, 8, 64, 32000]),
    shape("tinyllama-1b", [22, 2048, 5632, 32, 4, 64, 32000]),
    of(
        Architecture::Qwen3Moe,
        &[
            ("expert_count", Count(128)),
            ("expert_used_count", Count(8)),
            ("expert_feed_forward_length", Count(768)),
        ],
        shape("qwen3-30b-a3b", [48, 2048, 6144, 32, 4, 128, 151936]),
    ),
    // As many active weights as qwen3-30b-a3b: 8 experts of 768 columns are a feed-forward layer of 6144.
    shape("qwen3-30b-a3b-dense", [48, 2048, 6144, 32, 4, 128, 151936]),
    of(Architecture::Phi3, &[], shape("phi4-14b", [40, 5120, 17920, 40, 10, 128, 100352])),
    // The same in separate weights.
    shape("phi4-14b-llama", [40, 5120, 17920, 40, 10, 128, 100352]),
    of(Architecture::Deepseek2, DEEPSEEK, shape("deepseek-v2-lite", [27, 2048, 10944, 16, 1, 576, 102400])),
    Shape { has: BIASES, expert_format: Some(Format::MXFP4), ..GPT_OSS },
    Shape { has: &[], ..GEMMA },
    TINY,
    of(Architecture::Phi3, &[], Shape { name: "tiny-joined", ..TINY }),
    of(
        Architecture::Qwen3Moe,
        &[
            ("expert_count", Count(8)),
            ("expert_used_count", Count(2)),
            ("expert_feed_forward_length", Count(256)),
        ],
        Shape { name: "tiny-experts", ..TINY },
    ),
    of(Architecture::Deepseek2, TINY_LATENT, Shape { name: "tiny-latent", kv_heads: 1, head: 96, ..TINY }),
    Shape { name: "tiny-sinks", has: BIASES, expert_format: Some(Format::MXFP4), ..TINY_GPT_OSS },
    Shape { name: "tiny-post-norms", layers: 6, has: &[], ..TINY_GEMMA },
];

/// DeepSeek V2 Lite (arXiv 2405.04434, appendix B): a row of 512 elements and a rotated part of 64 for all heads, which
/// are both the one key head of the cache; then keys of 128 + 64 elements and values of 128 of each head.
const DEEPSEEK: &[(&str, Key)] = &[
    ("attention.value_length", Count(512)),
    ("attention.kv_lora_rank", Count(512)),
    ("attention.key_length_mla", Count(192)),
    ("attention.value_length_mla", Count(128)),
    ("attention.layer_norm_rms_epsilon", Float(1e-6)),
    ("rope.dimension_count", Count(64)),
    ("rope.freq_base", Float(10_000.0)),
    ("rope.scaling.type", Text("yarn")),
    ("rope.scaling.factor", Float(40.0)),
    ("rope.scaling.original_context_length", Count(4096)),
    ("rope.scaling.yarn_log_multiplier", Float(0.0707)),
    ("leading_dense_block_count", Count(1)),
    ("expert_count", Count(64)),
    ("expert_used_count", Count(6)),
    ("expert_shared_count", Count(2)),
    ("expert_feed_forward_length", Count(1408)),
];

const TINY_LATENT: &[(&str, Key)] = &[
    ("attention.value_length", Count(64)),
    ("attention.kv_lora_rank", Count(64)),
    ("attention.key_length_mla", Count(64)),
    ("attention.value_length_mla", Count(32)),
    ("rope.dimension_count", Count(32)),
    ("leading_dense_block_count", Count(1)),
    ("expert_count", Count(8)),
    ("expert_used_count", Count(2)),
    ("expert_shared_count", Count(2)),
    ("expert_feed_forward_length", Count(128)),
];

/// gpt-oss-20b (arXiv 2508.10925, section 2).
const GPT_OSS: Shape = of(
    Architecture::GptOss,
    &[
        ("attention.sliding_window", Count(128)),
        ("rope.freq_base", Float(150_000.0)),
        ("rope.scaling.type", Text("yarn")),
        ("rope.scaling.factor", Float(32.0)),
        ("rope.scaling.original_context_length", Count(4096)),
        ("expert_count", Count(32)),
        ("expert_used_count", Count(4)),
        ("expert_feed_forward_length", Count(2880)),
    ],
    shape("gpt-oss-20b", [24, 2880, 2880, 64, 8, 64, 201088]),
);

const TINY_GPT_OSS: Shape = of(
    Architecture::GptOss,
    &[
        ("attention.sliding_window", Count(8)),
        ("expert_count", Count(8)),
        ("expert_used_count", Count(2)),
        ("expert_feed_forward_length", Count(256)),
    ],
    TINY,
);

/// What gpt-oss has beside matrices and norms. Sinks are required.
const BIASES: &[&str] = &[
    "output.weight",
    "attn_q.bias",
    "attn_k.bias",
    "attn_v.bias",
    "attn_output.bias",
    "ffn_gate_inp.bias",
    "ffn_gate_exps.bias",
    "ffn_up_exps.bias",
    "ffn_down_exps.bias",
];

/// Gemma 3 4B (arXiv 2503.19786, section 2), whose embedding is the output matrix too.
const GEMMA: Shape = of(
    Architecture::Gemma3,
    &[
        ("attention.sliding_window", Count(1024)),
        ("attention.layer_norm_rms_epsilon", Float(1e-6)),
        ("rope.freq_base", Float(1_000_000.0)),
        ("rope.scaling.type", Text("linear")),
        ("rope.scaling.factor", Float(8.0)),
    ],
    shape("gemma3-4b", [34, 2560, 10240, 8, 4, 256, 262144]),
);

const TINY_GEMMA: Shape = of(Architecture::Gemma3, &[("attention.sliding_window", Count(8))], TINY);

/// A shape for tests of what is around a model.
pub const TINY: Shape = Shape { decode: 6, prefill: 24, ..shape("tiny", [2, 256, 512, 4, 2, 64, 512]) };
