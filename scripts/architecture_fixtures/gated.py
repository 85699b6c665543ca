"""Models with RMS norms and a gated feed-forward: llama, mistral, qwen, gemma, phi3, olmo2, granite, smollm3, glm4."""
import math

from parts import (CONTEXT, FEED, HEAD, HEADS, KV_HEADS, WIDTH, attention, ends, gated_feed, less_one, linear, norms,
                   qk_norms, shape_config, shape_metadata)
from weights import Fixture, Tensor

EPSILON, BASE = 1e-5, 10000.0
TIED = "model.embed_tokens.weight"
PRE_NORMS = [("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")]
SANDWICH_NORMS = [("attn_norm", "input_layernorm"), ("post_attention_norm", "post_attention_layernorm"),
                  ("ffn_norm", "pre_feedforward_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm")]
RMS = dict(attention__layer_norm_rms_epsilon=EPSILON)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)


def head_metadata(head):
    """The keys of a head length that is not width / heads."""
    return dict(attention__key_length=head, attention__value_length=head)


def llama3_factors(head, base, rule):
    """What each rotary frequency is divided by, under Llama 3.1's rule."""
    out = []
    for pair in range(head // 2):
        turns = rule["original_max_position_embeddings"] * base ** (-2 * pair / head) / (2 * math.pi)
        share = (turns - rule["low_freq_factor"]) / (rule["high_freq_factor"] - rule["low_freq_factor"])
        share = min(max(share, 0.0), 1.0)
        out.append(1 / ((1 - share) / rule["factor"] + share))
    return out


def long_rope(name, original):
    """Phi3 with long and short rotary factors; `original` is the context length at which the long ones begin."""
    rule = dict(type="longrope", short_factor=[1.0, 1.125, 1.25, 1.5, 1.75, 2.0],
                long_factor=[1.0, 1.5, 2.25, 3.5, 5.0, 8.0])
    factor = math.sqrt(1 + math.log(CONTEXT / original) / math.log(original))
    return Fixture(
        name, "phi3", "Phi3ForCausalLM",
        shape_config(rms_norm_eps=EPSILON, rope_theta=BASE, tie_word_embeddings=False, rope_scaling=rule,
                     original_max_position_embeddings=original, partial_rotary_factor=0.75),
        shape_metadata(**RMS, rope__freq_base=BASE, rope__dimension_count=12, attention__sliding_window=0,
                       rope__scaling__original_context_length=original, rope__scaling__attn_factor=factor),
        PHI3_ROWS + [Tensor(f"rope_factors_{kind}.weight", (6,), None, None, values=rule[f"{kind}_factor"])
                     for kind in ("long", "short")])


PHI3_ROWS = (ends() + norms(PRE_NORMS) + linear("attn_qkv", (HEADS + 2 * KV_HEADS) * HEAD, WIDTH, "self_attn.qkv_proj")
             + linear("attn_output", WIDTH, HEADS * HEAD, "self_attn.o_proj")
             + linear("ffn_up", 2 * FEED, WIDTH, "mlp.gate_up_proj") + linear("ffn_down", WIDTH, FEED, "mlp.down_proj"))
LLAMA_ROWS = ends() + norms(PRE_NORMS) + attention(paired=True) + gated_feed()
GEMMA_EMBEDDING = "weak"

FIXTURES = [
    Fixture("llama", "llama", "LlamaForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=BASE, tie_word_embeddings=False),
            shape_metadata(**RMS, rope__freq_base=BASE, vocab_size=48, rope__dimension_count=16), LLAMA_ROWS),
    Fixture("llama-rope-scaled", "llama", "LlamaForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=500.0, tie_word_embeddings=True, rope_scaling=LLAMA3,
                         head_dim=32),
            shape_metadata(**RMS, **head_metadata(32), rope__freq_base=500.0, vocab_size=48,
                           rope__dimension_count=32),
            ends(head=None) + norms(PRE_NORMS) + attention(head=32, paired=True) + gated_feed()
            + [Tensor("rope_freqs.weight", (16,), None, None, values=llama3_factors(32, 500.0, LLAMA3))],
            tied=TIED),
    Fixture("qwen2", "qwen2", "Qwen2ForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=BASE, tie_word_embeddings=False, use_sliding_window=False),
            shape_metadata(**RMS, rope__freq_base=BASE),
            ends() + norms(PRE_NORMS) + attention(qkv_bias=True) + gated_feed()),
    Fixture("qwen3", "qwen3", "Qwen3ForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=BASE, tie_word_embeddings=True, head_dim=32),
            shape_metadata(**RMS, **head_metadata(32), rope__freq_base=BASE),
            ends(head=None) + norms(PRE_NORMS) + qk_norms(32) + attention(head=32) + gated_feed(), tied=TIED),
    Fixture("mistral", "llama", "MistralForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=BASE, tie_word_embeddings=False, sliding_window=5,
                         head_dim=32),
            shape_metadata(**RMS, **head_metadata(32), rope__freq_base=BASE, vocab_size=48,
                           rope__dimension_count=32, attention__sliding_window=5),
            ends() + norms(PRE_NORMS) + attention(head=32, paired=True) + gated_feed()),
    Fixture("gemma", "gemma", "GemmaForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=BASE, head_dim=32, num_key_value_heads=1,
                         hidden_activation="gelu_pytorch_tanh"),
            shape_metadata(**RMS, **head_metadata(32), attention__head_count_kv=1),
            ends(head=None, embedding=GEMMA_EMBEDDING, change=less_one) + norms(PRE_NORMS, change=less_one)
            + attention(head=32, kv=1) + gated_feed(), tied=TIED),
    Fixture("gemma2", "gemma2", "Gemma2ForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=BASE, head_dim=32, query_pre_attn_scalar=32,
                         sliding_window=5, attn_logit_softcapping=3.0, final_logit_softcapping=2.0,
                         num_hidden_layers=4, hidden_activation="gelu_pytorch_tanh"),
            shape_metadata(**RMS, **head_metadata(32), block_count=4, attn_logit_softcapping=3.0,
                           final_logit_softcapping=2.0, attention__sliding_window=5),
            ends(head=None, embedding=GEMMA_EMBEDDING, change=less_one) + norms(SANDWICH_NORMS, change=less_one)
            + attention(head=32) + gated_feed(), tied=TIED),
    Fixture("gemma3", "gemma3", "Gemma3ForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=1000000.0, rope_local_base_freq=BASE, head_dim=32,
                         query_pre_attn_scalar=32, sliding_window=5, num_hidden_layers=6,
                         rope_scaling=dict(rope_type="linear", factor=8.0), hidden_activation="gelu_pytorch_tanh"),
            shape_metadata(**RMS, **head_metadata(32), block_count=6, rope__freq_base=1000000.0,
                           rope__freq_base_swa=BASE, rope__scaling__type="linear", rope__scaling__factor=8.0,
                           attention__sliding_window=5),
            ends(head=None, embedding=GEMMA_EMBEDDING, change=less_one) + norms(SANDWICH_NORMS, change=less_one)
            + qk_norms(32, change=less_one) + attention(head=32) + gated_feed(), tied=TIED),
    Fixture("phi3", "phi3", "Phi3ForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=BASE, tie_word_embeddings=False,
                         original_max_position_embeddings=CONTEXT),
            shape_metadata(**RMS, rope__freq_base=BASE, rope__dimension_count=16, attention__sliding_window=0,
                           rope__scaling__original_context_length=CONTEXT),
            PHI3_ROWS),
    long_rope("phi3-longrope", 8),
    long_rope("phi3-longrope-short", 32),
    Fixture("olmo2", "olmo2", "Olmo2ForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=BASE, tie_word_embeddings=False),
            shape_metadata(**RMS, rope__freq_base=BASE),
            ends() + norms([("post_attention_norm", "post_attention_layernorm"),
                            ("post_ffw_norm", "post_feedforward_layernorm")])
            + qk_norms(HEADS * HEAD, KV_HEADS * HEAD) + attention() + gated_feed()),
    Fixture("granite", "granite", "GraniteForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=BASE, tie_word_embeddings=False, embedding_multiplier=3.0,
                         residual_multiplier=0.5, attention_multiplier=0.125, logits_scaling=2.0),
            shape_metadata(**RMS, rope__freq_base=BASE, vocab_size=48, rope__dimension_count=16, attention__scale=0.125,
                           embedding_scale=3.0, residual_scale=0.5, logit_scale=2.0),
            LLAMA_ROWS),
    Fixture("smollm3", "smollm3", "SmolLM3ForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=BASE, tie_word_embeddings=True, num_hidden_layers=4,
                         no_rope_layer_interval=4, use_sliding_window=False),
            shape_metadata(**RMS, block_count=4, rope__freq_base=BASE, vocab_size=48, rope__dimension_count=16),
            ends(head=None) + norms(PRE_NORMS) + attention(paired=True) + gated_feed(), tied=TIED),
    Fixture("glm4", "glm4", "Glm4ForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=BASE, tie_word_embeddings=False, head_dim=32,
                         partial_rotary_factor=0.5, attention_bias=True),
            shape_metadata(**RMS, **head_metadata(32), rope__freq_base=BASE, rope__dimension_count=16),
            ends() + norms([("attn_norm", "input_layernorm"), ("post_attention_norm", "post_self_attn_layernorm"),
                            ("ffn_norm", "post_attention_layernorm"), ("post_ffw_norm", "post_mlp_layernorm")])
            + attention(head=32, qkv_bias=True) + linear("ffn_up", 2 * FEED, WIDTH, "mlp.gate_up_proj")
            + linear("ffn_down", WIDTH, FEED, "mlp.down_proj")),
]
