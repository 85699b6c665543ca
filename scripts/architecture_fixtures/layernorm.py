"""Models with layer norms: phi2, gpt2, falcon, starcoder2, stablelm and command-r."""
import numpy as np
from parts import (HEAD, HEADS, KV_HEADS, VOCAB, WIDTH, attention, ends, gated_feed, linear, norms, shape_config,
                   shape_metadata, transposed)
from weights import Fixture, Tensor

EPSILON, BASE, WIDE = 1e-5, 10000.0, 4 * WIDTH
LAYER_NORM = dict(attention__layer_norm_epsilon=EPSILON)
GPT2_LAYER = FALCON_LAYER = "transformer.h.{i}."


def by_group(heads, groups):
    """Queries, keys and values one after the other, to falcon's groups of queries with their key and value."""
    def change(array):
        q, k, v = np.split(array, [heads * HEAD, (heads + groups) * HEAD])
        q = q.reshape(groups, heads // groups * HEAD, -1)
        k, v = k.reshape(groups, HEAD, -1), v.reshape(groups, HEAD, -1)
        return np.ascontiguousarray(np.concatenate([q, k, v], axis=1).reshape(array.shape))
    return change


def by_head(names, count):
    """A norm of [heads, head length] that transformers holds as one norm for each head."""
    gguf, to = names
    targets = ["model.layers.{i}." + to.replace("{h}", str(head)) for head in range(count)]
    return [Tensor("blk.{i}." + gguf + ".weight", (count, HEAD), "norm", targets, list)]


def whole(names, count):
    """A norm of [heads, head length]."""
    gguf, to = names
    return [Tensor("blk.{i}." + gguf + ".weight", (count, HEAD), "norm", "model.layers.{i}." + to)]


def falcon_rows(groups, norm_pairs, head):
    """A falcon model; `groups` counts its keys."""
    place = dict(prefix=FALCON_LAYER)
    return (ends("transformer.word_embeddings", "transformer.ln_f", head, bias=True)
            + norms(norm_pairs, bias=True, **place)
            + linear("attn_qkv", (HEADS + 2 * groups) * HEAD, WIDTH, "self_attention.query_key_value",
                     change=by_group(HEADS, groups), **place)
            + linear("attn_output", WIDTH, WIDTH, "self_attention.dense", **place)
            + linear("ffn_up", WIDE, WIDTH, "mlp.dense_h_to_4h", **place)
            + linear("ffn_down", WIDTH, WIDE, "mlp.dense_4h_to_h", role="weak", **place))


def falcon(name, groups, norm_pairs, head, **config):
    """A falcon fixture."""
    return Fixture(
        name, "falcon", "FalconForCausalLM",
        dict(vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, bias=False,
             parallel_attn=True, alibi=False, layer_norm_epsilon=EPSILON, **config),
        shape_metadata(**LAYER_NORM, attention__head_count_kv=groups, feed_forward_length=WIDE,
                       tensor_data_layout="jploski"),
        falcon_rows(groups, norm_pairs, head), tied=None if head else "transformer.word_embeddings.weight")


def gpt2_linear(name, out, into, to, role="matrix"):
    """A matrix that transformers stores as [in, out], with its bias."""
    rows = linear(name, out, into, to, True, role, prefix=GPT2_LAYER)
    rows[0].change = transposed
    return rows


STABLE = dict(layer_norm_eps=EPSILON, rope_theta=BASE, tie_word_embeddings=False, partial_rotary_factor=0.25)
COHERE = dict(layer_norm_eps=EPSILON, rope_theta=BASE, logit_scale=0.5)
COHERE_KEYS = dict(**LAYER_NORM, rope__freq_base=BASE, logit_scale=0.5, rope__scaling__type="none")
COHERE_ROWS = ends(head=None) + norms([("attn_norm", "input_layernorm")]) + attention() + gated_feed()

FIXTURES = [
    Fixture("phi2", "phi2", "PhiForCausalLM",
            shape_config(num_key_value_heads=HEADS, intermediate_size=WIDE, layer_norm_eps=EPSILON, rope_theta=BASE,
                         partial_rotary_factor=0.5, hidden_act="gelu_new", tie_word_embeddings=False),
            shape_metadata(**LAYER_NORM, attention__head_count_kv=HEADS, feed_forward_length=WIDE,
                           rope__dimension_count=8),
            ends(norm="model.final_layernorm", bias=True) + [Tensor("output.bias", (VOCAB,), "bias", "lm_head.bias")]
            + norms([("attn_norm", "input_layernorm")], bias=True)
            + attention(kv=HEADS, qkv_bias=True, out="self_attn.dense", out_bias=True)
            + linear("ffn_up", WIDE, WIDTH, "mlp.fc1", True)
            + linear("ffn_down", WIDTH, WIDE, "mlp.fc2", True, "weak")),
    Fixture("gpt2", "gpt2", "GPT2LMHeadModel",
            dict(vocab_size=VOCAB, n_positions=64, n_embd=WIDTH, n_layer=2, n_head=HEADS, layer_norm_epsilon=EPSILON,
                 activation_function="gelu_new", bos_token_id=1, eos_token_id=2),
            shape_metadata(**LAYER_NORM, attention__head_count_kv=None, feed_forward_length=WIDE),
            ends("transformer.wte", "transformer.ln_f", None, bias=True)
            + [Tensor("position_embd.weight", (64, WIDTH), (0.5, 0.0), "transformer.wpe.weight")]
            + norms([("attn_norm", "ln_1"), ("ffn_norm", "ln_2")], bias=True, prefix=GPT2_LAYER)
            + gpt2_linear("attn_qkv", 3 * WIDTH, WIDTH, "attn.c_attn")
            + gpt2_linear("attn_output", WIDTH, WIDTH, "attn.c_proj")
            + gpt2_linear("ffn_up", WIDE, WIDTH, "mlp.c_fc")
            + gpt2_linear("ffn_down", WIDTH, WIDE, "mlp.c_proj", "weak"),
            tied="transformer.wte.weight"),
    falcon("falcon", 1, [("attn_norm", "input_layernorm")], None, multi_query=True, new_decoder_architecture=False),
    falcon("falcon-groups", KV_HEADS, [("attn_norm", "ln_mlp"), ("attn_norm_2", "ln_attn")], "lm_head",
           num_kv_heads=KV_HEADS, new_decoder_architecture=True, tie_word_embeddings=False),
    Fixture("starcoder2", "starcoder2", "Starcoder2ForCausalLM",
            shape_config(norm_epsilon=EPSILON, rope_theta=BASE, use_bias=True, hidden_act="gelu_pytorch_tanh"),
            shape_metadata(**LAYER_NORM, rope__freq_base=BASE),
            ends(head=None, bias=True)
            + norms([("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")], bias=True)
            + attention(qkv_bias=True, out_bias=True) + linear("ffn_up", 96, WIDTH, "mlp.c_fc", True)
            + linear("ffn_down", WIDTH, 96, "mlp.c_proj", True), tied="model.embed_tokens.weight"),
    Fixture("stablelm", "stablelm", "StableLmForCausalLM", shape_config(**STABLE, use_qkv_bias=True),
            shape_metadata(**LAYER_NORM, rope__dimension_count=4, use_parallel_residual=False),
            ends(bias=True)
            + norms([("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")], bias=True)
            + attention(qkv_bias=True) + gated_feed()),
    Fixture("stablelm-parallel", "stablelm", "StableLmForCausalLM",
            shape_config(**STABLE, qk_layernorm=True, use_parallel_residual=True),
            shape_metadata(**LAYER_NORM, rope__dimension_count=4, use_parallel_residual=True),
            ends(bias=True) + norms([("attn_norm", "input_layernorm")], bias=True)
            + by_head(("attn_q_norm", "self_attn.q_layernorm.norms.{h}.weight"), HEADS)
            + by_head(("attn_k_norm", "self_attn.k_layernorm.norms.{h}.weight"), KV_HEADS)
            + attention() + gated_feed()),
    Fixture("command-r", "command-r", "CohereForCausalLM", shape_config(**COHERE), shape_metadata(**COHERE_KEYS),
            COHERE_ROWS, tied="model.embed_tokens.weight"),
    Fixture("command-r-qk-norm", "command-r", "CohereForCausalLM", shape_config(**COHERE, use_qk_norm=True),
            shape_metadata(**COHERE_KEYS),
            COHERE_ROWS + whole(("attn_q_norm", "self_attn.q_norm.weight"), HEADS)
            + whole(("attn_k_norm", "self_attn.k_norm.weight"), KV_HEADS), tied="model.embed_tokens.weight"),
]
