"""Rows that many architectures share, and the changes of layout between GGUF and transformers."""
import numpy as np
from weights import Tensor

WIDTH, HEADS, KV_HEADS, HEAD, FEED, VOCAB, CONTEXT = 64, 4, 2, 16, 96, 48, 64


def neighbours_to_halves(heads):
    """Rows of rotary pairs that lie side by side, as llama.cpp's `llama` has them, to halves of a head."""
    def change(array):
        grouped = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:])
        return grouped.swapaxes(1, 2).reshape(array.shape)
    return change


def less_one(array):
    """A norm's weight as gemma stores it in transformers, which adds one when it is used."""
    return (array.astype(np.float64) - 1).astype(np.float32)


def transposed(array):
    """The last two axes exchanged, for layers that store [in, out]."""
    return np.ascontiguousarray(array.swapaxes(-1, -2))


def ends(embed="model.embed_tokens", norm="model.norm", head="lm_head", bias=False, embedding="embedding", change=None,
         width=WIDTH):
    """Embedding, last norm and head. Without `head` the embedding is the head too."""
    rows = [Tensor("token_embd.weight", (VOCAB, width), embedding, f"{embed}.weight"),
            Tensor("output_norm.weight", (width,), "norm", f"{norm}.weight", change)]
    if bias:
        rows.append(Tensor("output_norm.bias", (width,), "bias", f"{norm}.bias"))
    if head:
        rows.append(Tensor("output.weight", (VOCAB, width), "matrix", f"{head}.weight"))
    return rows


def norms(pairs, bias=False, width=WIDTH, change=None, prefix="model.layers.{i}."):
    """Norms of a layer: pairs of the GGUF name and the name in transformers."""
    rows = []
    for name, to in pairs:
        rows.append(Tensor("blk.{i}." + name + ".weight", (width,), "norm", f"{prefix}{to}.weight", change))
        if bias:
            rows.append(Tensor("blk.{i}." + name + ".bias", (width,), "bias", f"{prefix}{to}.bias"))
    return rows


def linear(name, out, into, to, bias=False, role="matrix", change=None, prefix="model.layers.{i}.", layers=None):
    """A matrix of [out, in] of a layer, and its bias where it has one."""
    rows = [Tensor("blk.{i}." + name + ".weight", (out, into), role, f"{prefix}{to}.weight", change, layers)]
    if bias:
        rows.append(Tensor("blk.{i}." + name + ".bias", (out,), "bias", f"{prefix}{to}.bias", change, layers))
    return rows


def attention(heads=HEADS, kv=KV_HEADS, head=HEAD, width=WIDTH, qkv_bias=False, out_bias=False, paired=False,
              out="self_attn.o_proj", module="self_attn", prefix="model.layers.{i}.", role="matrix"):
    """Query, key, value and output. `paired`: GGUF has the rotary pairs of query and key side by side."""
    rows = []
    for letter, count in [("q", heads), ("k", kv), ("v", kv)]:
        change = neighbours_to_halves(count) if paired and letter != "v" else None
        rows += linear(f"attn_{letter}", count * head, width, f"{module}.{letter}_proj", qkv_bias, role, change, prefix)
    return rows + linear("attn_output", width, heads * head, out, out_bias, prefix=prefix)


def gated_feed(width=WIDTH, feed=FEED, module="mlp", prefix="model.layers.{i}.", bias=False, layers=None):
    """Gate, up and down projections."""
    rows = []
    for name, out, into in [("gate", feed, width), ("up", feed, width), ("down", width, feed)]:
        rows += linear(f"ffn_{name}", out, into, f"{module}.{name}_proj", bias, prefix=prefix, layers=layers)
    return rows


def qk_norms(size=HEAD, kv_size=None, q="self_attn.q_norm", k="self_attn.k_norm", change=None):
    """Norms of queries and keys."""
    return (norms([("attn_q_norm", q)], width=size, change=change)
            + norms([("attn_k_norm", k)], width=kv_size or size, change=change))


def shape_config(**more):
    """The sizes that most configs name alike."""
    config = dict(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
                  intermediate_size=FEED, vocab_size=VOCAB, max_position_embeddings=CONTEXT, bos_token_id=1,
                  eos_token_id=2, pad_token_id=0)
    return {**config, **more}


def shape_metadata(**more):
    """The metadata that most architectures have; dots of the keys are written as double underscores."""
    base = dict(block_count=2, context_length=CONTEXT, embedding_length=WIDTH, feed_forward_length=FEED,
                attention__head_count=HEADS, attention__head_count_kv=KV_HEADS)
    merged = {**base, **more}
    return {key.replace("__", "."): value for key, value in merged.items() if value is not None}
