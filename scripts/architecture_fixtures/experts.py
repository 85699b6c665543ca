"""Mixtures of experts: mixtral, qwen2moe, qwen3moe, gpt-oss and deepseek2."""
import numpy as np
import torch
from parts import (FEED, HEADS, KV_HEADS, WIDTH, attention, ends, gated_feed, linear, norms, qk_norms, shape_config,
                   shape_metadata)
from weights import Fixture, Tensor

EPSILON, BASE, EXPERTS, USED, SMALL = 1e-5, 10000.0, 8, 2, 32
RMS = dict(attention__layer_norm_rms_epsilon=EPSILON)
PRE_NORMS = [("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")]
COUNTS = dict(expert_count=EXPERTS, expert_used_count=USED)
LAYER = "model.layers.{i}."


def experts(feed, gate, up, down, layers=None):
    """Stacked experts; the names in transformers have `{e}`."""
    rows = []
    for name, out, into, to in [("gate", feed, WIDTH, gate), ("up", feed, WIDTH, up), ("down", WIDTH, feed, down)]:
        rows.append(Tensor("blk.{i}.ffn_" + name + "_exps.weight", (EXPERTS, out, into), "matrix",
                           f"{LAYER}{to}.weight", None, layers))
    return rows


def router(to, layers=None):
    """The matrix that scores experts."""
    return [Tensor("blk.{i}.ffn_gate_inp.weight", (EXPERTS, WIDTH), "strong", f"{LAYER}{to}.weight", None, layers)]


def shared(feed, module, layers=None):
    """The expert that every token takes."""
    rows = []
    for name, out, into in [("gate", feed, WIDTH), ("up", feed, WIDTH), ("down", WIDTH, feed)]:
        rows += linear(f"ffn_{name}_shexp", out, into, f"{module}.{name}_proj", layers=layers)
    return rows


def of_logits(module, inputs, output):
    """Scores of a router that is a linear layer."""
    return torch.softmax(output.double(), -1)


def of_weight(module, inputs, output):
    """Scores of a router that gives its choice alone."""
    scores = inputs[0].reshape(-1, WIDTH).double() @ module.weight.double().T
    return torch.softmax(scores + getattr(module, "bias", torch.zeros(EXPERTS, dtype=torch.float64)).double(), -1)


def of_groups(module, inputs, output):
    """Scores of deepseek's sigmoid router in the chosen half of four groups. The groups' own gap is checked here."""
    scores = torch.sigmoid(inputs[0].reshape(-1, WIDTH).double() @ module.weight.double().T)
    scores = scores + module.e_score_correction_bias.double()
    sums = scores.reshape(-1, 4, 2).sum(-1)
    ordered = sums.sort(-1, descending=True).values
    assert float((ordered[:, 1] - ordered[:, 2]).min()) > 1e-3, "two groups are nearly tied"
    chosen = (sums >= ordered[:, 1:2]).repeat_interleave(2, -1)
    return scores.masked_fill(~chosen, 0.0)


def of_best_groups(module, inputs, output):
    """Scores of deepseek V2's router in the two of four groups that have the best experts."""
    scores = of_weight(module, inputs, output)
    best = scores.reshape(-1, 4, 2).amax(-1)
    ordered = best.sort(-1, descending=True).values
    assert float((ordered[:, 1] - ordered[:, 2]).min()) > 1e-3, "two groups are nearly tied"
    chosen = (best >= ordered[:, 1:2]).repeat_interleave(2, -1)
    return scores.masked_fill(~chosen, 0.0)


def precise_weights(model):
    """Makes deepseek's sigmoid router give weights of the precision of its inputs, so that float64 works."""
    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(lambda _, inputs, output: (output[0], output[1].to(inputs[0].dtype)))


def interleaved(state):
    """Joins the halves of gpt-oss's experts: transformers alternates gate and up, and stores [in, out]."""
    for key in [key for key in state if key.endswith("experts.gate_part")]:
        stem = key.removesuffix("gate_part")
        for end in ("", "_bias"):
            pair = np.stack([state.pop(f"{stem}gate_part{end}"), state.pop(f"{stem}up_part{end}")], 2)
            joined = pair.reshape(pair.shape[0], -1, *pair.shape[3:])
            state[f"{stem}gate_up_proj{end}"] = joined if end else np.ascontiguousarray(joined.swapaxes(1, 2))


def gpt_oss(name):
    """A gpt-oss fixture, whose limits of YaRN are not rounded to whole pairs."""
    rows = ends() + norms([("attn_norm", "input_layernorm"), ("post_attention_norm", "post_attention_layernorm")])
    rows += attention(head=32, qkv_bias=True, out_bias=True)
    rows.append(Tensor("blk.{i}.attn_sinks.weight", (HEADS,), (1.0, 0.0), LAYER + "self_attn.sinks"))
    rows.append(Tensor("blk.{i}.ffn_gate_inp.weight", (EXPERTS, WIDTH), "strong", LAYER + "mlp.router.weight"))
    rows.append(Tensor("blk.{i}.ffn_gate_inp.bias", (EXPERTS,), "bias", LAYER + "mlp.router.bias"))
    for part, out, into, role, to in [("gate", FEED, WIDTH, (1.0, 0.0), "gate_part"),
                                      ("up", FEED, WIDTH, (1.0, 0.0), "up_part"),
                                      ("down", WIDTH, FEED, (0.03125, 0.0), "down_proj")]:
        change = (lambda array: np.ascontiguousarray(array.swapaxes(1, 2))) if part == "down" else None
        place = LAYER + "mlp.experts." + to
        rows.append(Tensor("blk.{i}.ffn_" + part + "_exps.weight", (EXPERTS, out, into), role, place, change))
        rows.append(Tensor("blk.{i}.ffn_" + part + "_exps.bias", (EXPERTS, out), "bias", place + "_bias"))
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0,
                truncate=False)
    return Fixture(
        name, "gpt-oss", "GptOssForCausalLM",
        shape_config(rms_norm_eps=EPSILON, rope_theta=100.0, head_dim=32, num_hidden_layers=4, sliding_window=5,
                     num_local_experts=EXPERTS, num_experts_per_tok=USED, rope_scaling=yarn, tie_word_embeddings=False,
                     attention_bias=True),
        shape_metadata(**RMS, **COUNTS, block_count=4, attention__key_length=32, attention__value_length=32,
                       rope__freq_base=100.0, attention__sliding_window=5, expert_feed_forward_length=FEED,
                       rope__scaling__type="yarn", rope__scaling__factor=4.0,
                       rope__scaling__original_context_length=16, rope__scaling__yarn_beta_fast=32.0,
                       rope__scaling__yarn_beta_slow=1.0),
        rows, low="MXFP4", finish=interleaved, router=("mlp.router", USED, of_weight))


NOPE, ROPE, VALUE, RANK = 32, 16, 16, 32


def whole_kv(state):
    """Joins deepseek's k_b (transposed in GGUF) and v_b of each head into the matrix of transformers."""
    for key in [key for key in state if key.endswith("kv_b_proj.keys")]:
        stem = key.removesuffix("keys")
        both = np.concatenate([state.pop(key).swapaxes(1, 2), state.pop(f"{stem}values")], 1)
        state[f"{stem}weight"] = np.ascontiguousarray(both.reshape(-1, RANK))


def deepseek_rows(q_rank, bias):
    """A deepseek2 model of two or three layers, the first one dense."""
    rows = ends() + norms(PRE_NORMS)
    if q_rank:
        rows += linear("attn_q_a", q_rank, WIDTH, "self_attn.q_a_proj")
        rows += norms([("attn_q_a_norm", "self_attn.q_a_layernorm")], width=q_rank)
        rows += linear("attn_q_b", HEADS * (NOPE + ROPE), q_rank, "self_attn.q_b_proj")
    else:
        rows += linear("attn_q", HEADS * (NOPE + ROPE), WIDTH, "self_attn.q_proj")
    rows += linear("attn_kv_a_mqa", RANK + ROPE, WIDTH, "self_attn.kv_a_proj_with_mqa")
    rows += norms([("attn_kv_a_norm", "self_attn.kv_a_layernorm")], width=RANK)
    rows.append(Tensor("blk.{i}.attn_k_b.weight", (HEADS, RANK, NOPE), "matrix", LAYER + "self_attn.kv_b_proj.keys"))
    rows.append(Tensor("blk.{i}.attn_v_b.weight", (HEADS, VALUE, RANK), "matrix", LAYER + "self_attn.kv_b_proj.values"))
    rows += linear("attn_output", WIDTH, HEADS * VALUE, "self_attn.o_proj")
    rows += gated_feed(layers=[0]) + router("mlp.gate", [1, 2])
    rows += experts(SMALL, *(f"mlp.experts.{{e}}.{part}_proj" for part in ("gate", "up", "down")), layers=[1, 2])
    rows += shared(2 * SMALL, "mlp.shared_experts", [1, 2])
    if bias:
        rows.append(Tensor("blk.{i}.exp_probs_b.bias", (EXPERTS,), "bias", LAYER + "mlp.gate.e_score_correction_bias",
                           None, [1, 2]))
    return rows


def deepseek(name, model, q_rank, config, metadata, scores, bias=False):
    """A deepseek2 fixture."""
    return Fixture(
        name, "deepseek2", model,
        shape_config(rms_norm_eps=1e-6, rope_theta=BASE, tie_word_embeddings=False, num_key_value_heads=HEADS,
                     num_hidden_layers=3, first_k_dense_replace=1, q_lora_rank=q_rank, kv_lora_rank=RANK,
                     qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE, v_head_dim=VALUE, moe_intermediate_size=SMALL,
                     n_routed_experts=EXPERTS, num_experts_per_tok=USED, n_shared_experts=2, **config),
        shape_metadata(attention__layer_norm_rms_epsilon=1e-6, **COUNTS, block_count=3, rope__freq_base=BASE,
                       attention__head_count_kv=1, leading_dense_block_count=1, vocab_size=48,
                       attention__q_lora_rank=q_rank, attention__kv_lora_rank=RANK,
                       attention__key_length=RANK + ROPE, attention__value_length=RANK,
                       attention__key_length_mla=NOPE + ROPE, attention__value_length_mla=VALUE,
                       expert_feed_forward_length=SMALL, expert_shared_count=2, rope__dimension_count=ROPE,
                       **metadata),
        deepseek_rows(q_rank, bias), finish=whole_kv, router=("mlp.gate", USED, scores),
        prepare=precise_weights if bias else None)


SOFTMAX = dict(n_group=1, topk_group=1, topk_method="greedy", norm_topk_prob=False)
SOFTMAX_KEYS = dict(expert_group_count=1, expert_group_used_count=1, expert_gating_func=1)
SIGMOID = dict(n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5)
SIGMOID_KEYS = dict(expert_group_count=4, expert_group_used_count=2, expert_gating_func=2, expert_weights_norm=True,
                    expert_weights_scale=2.5)
YARN = dict(type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=4.0, beta_slow=1.0, mscale=1.0,
            mscale_all_dim=1.0)

FIXTURES = [
    Fixture("mixtral", "llama", "MixtralForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=BASE, num_local_experts=EXPERTS, num_experts_per_tok=USED,
                         sliding_window=None, tie_word_embeddings=False),
            shape_metadata(**RMS, **COUNTS, rope__freq_base=BASE, vocab_size=48, rope__dimension_count=16),
            ends() + norms(PRE_NORMS) + attention(paired=True) + router("block_sparse_moe.gate")
            + experts(FEED, *(f"block_sparse_moe.experts.{{e}}.{part}" for part in ("w1", "w3", "w2"))),
            router=("block_sparse_moe.gate", USED, of_logits)),
    Fixture("qwen2moe", "qwen2moe", "Qwen2MoeForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=BASE, num_experts=EXPERTS, num_experts_per_tok=USED,
                         moe_intermediate_size=SMALL, shared_expert_intermediate_size=64, norm_topk_prob=False,
                         use_sliding_window=False, tie_word_embeddings=False),
            shape_metadata(**RMS, **COUNTS, rope__freq_base=BASE, expert_feed_forward_length=SMALL,
                           expert_shared_feed_forward_length=64),
            ends() + norms(PRE_NORMS) + attention(qkv_bias=True) + router("mlp.gate")
            + experts(SMALL, *(f"mlp.experts.{{e}}.{part}_proj" for part in ("gate", "up", "down")))
            + shared(64, "mlp.shared_expert")
            + [Tensor("blk.{i}.ffn_gate_inp_shexp.weight", (WIDTH,), "matrix", LAYER + "mlp.shared_expert_gate.weight",
                      lambda array: array[None])],
            router=("mlp.gate", USED, of_logits)),
    Fixture("qwen3moe", "qwen3moe", "Qwen3MoeForCausalLM",
            shape_config(rms_norm_eps=EPSILON, rope_theta=BASE, num_experts=EXPERTS, num_experts_per_tok=USED,
                         moe_intermediate_size=SMALL, norm_topk_prob=True, head_dim=32, tie_word_embeddings=False),
            shape_metadata(**RMS, **COUNTS, rope__freq_base=BASE, attention__key_length=32, attention__value_length=32,
                           expert_feed_forward_length=SMALL),
            ends() + norms(PRE_NORMS) + qk_norms(32) + attention(head=32) + router("mlp.gate")
            + experts(SMALL, *(f"mlp.experts.{{e}}.{part}_proj" for part in ("gate", "up", "down"))),
            router=("mlp.gate", USED, of_logits)),
    gpt_oss("gpt-oss"),
    deepseek("deepseek2", "DeepseekV2ForCausalLM", 32, dict(**SOFTMAX, routed_scaling_factor=1.5),
             dict(**SOFTMAX_KEYS, expert_weights_scale=1.5), of_weight),
    deepseek("deepseek2-lite", "DeepseekV2ForCausalLM", None, dict(**SOFTMAX, routed_scaling_factor=1.0),
             dict(**SOFTMAX_KEYS, expert_weights_scale=1.0), of_weight),
    deepseek("deepseek2-groups", "DeepseekV2ForCausalLM", None,
             dict(n_group=4, topk_group=2, topk_method="group_limited_greedy", norm_topk_prob=False,
                  routed_scaling_factor=1.5),
             dict(expert_group_count=4, expert_group_used_count=2, expert_gating_func=1, expert_weights_scale=1.5),
             of_best_groups),
    deepseek("deepseek2-sigmoid", "DeepseekV3ForCausalLM", 32, SIGMOID, SIGMOID_KEYS, of_groups, True),
    deepseek("deepseek2-yarn", "DeepseekV3ForCausalLM", 32, dict(**SIGMOID, rope_scaling=YARN),
             dict(**SIGMOID_KEYS, rope__scaling__type="yarn", rope__scaling__factor=4.0,
                  rope__scaling__original_context_length=16, rope__scaling__yarn_beta_fast=4.0,
                  rope__scaling__yarn_beta_slow=1.0, rope__scaling__yarn_log_multiplier=0.1), of_groups, True),
]

# Texts without near ties between experts.
TEXTS = {
    "qwen2moe": [1, 39, 8, 34, 19, 5, 3, 12, 40, 33, 26, 23],
    "qwen3moe": [1, 11, 39, 7, 19, 10, 34, 31, 33, 27, 16, 9],
    "deepseek2": [1, 9, 42, 44, 36, 18, 20, 19, 21, 7, 31, 22],
    "deepseek2-lite": [1, 15, 45, 16, 30, 41, 37, 6, 11, 33, 5, 35],
    "deepseek2-groups": [1, 41, 18, 24, 46, 43, 35, 3, 31, 17, 43, 5],
    "deepseek2-sigmoid": [1, 11, 39, 7, 19, 10, 34, 31, 33, 27, 16, 9],
    "deepseek2-yarn": [1, 42, 19, 25, 44, 36, 4, 32, 18, 6, 13, 10],
}
for fixture in FIXTURES:
    fixture.tokens = TEXTS.get(fixture.name, fixture.tokens)
