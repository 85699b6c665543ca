"""Encoders, whose outputs are hidden states: bert and nomic-bert."""
from types import SimpleNamespace

import torch
from parts import CONTEXT, FEED, HEAD, HEADS, VOCAB, WIDTH, linear
from weights import Fixture, Tensor

EPSILON, BASE = 1e-12, 1000.0


class NomicBert(torch.nn.Module):
    """Nomic's BERT: rotary positions, a gated feed-forward, norms after each sum, no biases in the matrices.

    It is not part of this version of transformers."""
    config_class = SimpleNamespace

    def __init__(self, config):
        super().__init__()
        self.config = config
        size, feed = config.hidden_size, config.intermediate_size
        self.embeddings = torch.nn.Embedding(config.vocab_size, size)
        self.types = torch.nn.Embedding(2, size)
        self.norm = torch.nn.LayerNorm(size, config.layer_norm_eps)
        self.layers = torch.nn.ModuleList()
        for _ in range(config.num_hidden_layers):
            self.layers.append(torch.nn.ModuleDict({
                "qkv": torch.nn.Linear(size, 3 * size, bias=False), "out": torch.nn.Linear(size, size, bias=False),
                "norm1": torch.nn.LayerNorm(size, config.layer_norm_eps),
                "up": torch.nn.Linear(size, feed, bias=False), "gate": torch.nn.Linear(size, feed, bias=False),
                "down": torch.nn.Linear(feed, size, bias=False),
                "norm2": torch.nn.LayerNorm(size, config.layer_norm_eps)}))

    def attention(self, layer, x):
        """Attention of every token to every token."""
        count, half = x.shape[0], HEAD // 2
        q, k, v = layer["qkv"](x).reshape(count, 3, HEADS, HEAD).permute(1, 2, 0, 3)
        angles = torch.arange(count, dtype=x.dtype)[:, None] * BASE ** (-torch.arange(half, dtype=x.dtype) / half)
        cos, sin = angles.cos(), angles.sin()

        def rotate(y):
            first, second = y[..., :half], y[..., half:]
            return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

        scores = torch.softmax(rotate(q) @ rotate(k).swapaxes(1, 2) / HEAD ** 0.5, -1)
        return layer["out"]((scores @ v).permute(1, 0, 2).reshape(count, -1))

    def forward(self, tokens):
        x = self.norm(self.embeddings(tokens[0]) + self.types.weight[0])
        for layer in self.layers:
            x = layer["norm1"](x + self.attention(layer, x))
            x = layer["norm2"](x + layer["down"](layer["up"](x) * torch.nn.functional.silu(layer["gate"](x))))
        return SimpleNamespace(last_hidden_state=x[None])


def metadata(**more):
    """The keys of an encoder."""
    return {"block_count": 2, "context_length": CONTEXT, "embedding_length": WIDTH, "feed_forward_length": FEED,
            "attention.head_count": HEADS, "attention.layer_norm_epsilon": EPSILON, "attention.causal": False, **more}


def norm(name, to):
    """A layer norm with its bias."""
    return [Tensor(f"{name}.weight", (WIDTH,), "norm", f"{to}.weight"),
            Tensor(f"{name}.bias", (WIDTH,), "bias", f"{to}.bias")]


BERT_LAYER = "encoder.layer.{i}."
BERT_ROWS = [Tensor("token_embd.weight", (VOCAB, WIDTH), "embedding", "embeddings.word_embeddings.weight"),
             Tensor("position_embd.weight", (CONTEXT, WIDTH), "strong", "embeddings.position_embeddings.weight"),
             Tensor("token_types.weight", (2, WIDTH), "strong", "embeddings.token_type_embeddings.weight")]
BERT_ROWS += norm("token_embd_norm", "embeddings.LayerNorm")
for letter, part in [("q", "query"), ("k", "key"), ("v", "value")]:
    BERT_ROWS += linear(f"attn_{letter}", WIDTH, WIDTH, f"attention.self.{part}", True, prefix=BERT_LAYER)
BERT_ROWS += linear("attn_output", WIDTH, WIDTH, "attention.output.dense", True, prefix=BERT_LAYER)
BERT_ROWS += norm("blk.{i}.attn_output_norm", BERT_LAYER + "attention.output.LayerNorm")
BERT_ROWS += linear("ffn_up", FEED, WIDTH, "intermediate.dense", True, prefix=BERT_LAYER)
BERT_ROWS += linear("ffn_down", WIDTH, FEED, "output.dense", True, prefix=BERT_LAYER)
BERT_ROWS += norm("blk.{i}.layer_output_norm", BERT_LAYER + "output.LayerNorm")

NOMIC_LAYER = "layers.{i}."
NOMIC_ROWS = [Tensor("token_embd.weight", (VOCAB, WIDTH), "embedding", "embeddings.weight"),
              Tensor("token_types.weight", (2, WIDTH), "strong", "types.weight")]
NOMIC_ROWS += norm("token_embd_norm", "norm")
for name, out, into, to in [("attn_qkv", 3 * WIDTH, WIDTH, "qkv"), ("attn_output", WIDTH, WIDTH, "out"),
                            ("ffn_up", FEED, WIDTH, "up"), ("ffn_gate", FEED, WIDTH, "gate"),
                            ("ffn_down", WIDTH, FEED, "down")]:
    NOMIC_ROWS += linear(name, out, into, to, prefix=NOMIC_LAYER)
NOMIC_ROWS += norm("blk.{i}.attn_output_norm", NOMIC_LAYER + "norm1")
NOMIC_ROWS += norm("blk.{i}.layer_output_norm", NOMIC_LAYER + "norm2")

SIZES = dict(vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
             intermediate_size=FEED, layer_norm_eps=EPSILON)
FIXTURES = [
    Fixture("bert", "bert", "BertModel",
            dict(**SIZES, hidden_act="gelu", max_position_embeddings=CONTEXT, type_vocab_size=2, pad_token_id=0),
            metadata(), BERT_ROWS, hidden=True, options=dict(add_pooling_layer=False)),
    Fixture("nomic-bert", "nomic-bert", NomicBert, SIZES, metadata(**{"rope.freq_base": BASE}), NOMIC_ROWS,
            hidden=True),
]
