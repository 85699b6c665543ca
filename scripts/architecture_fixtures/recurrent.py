"""State space models: mamba and mamba2."""
import numpy as np
import torch
from parts import VOCAB, WIDTH, ends, linear, norms
from weights import Fixture, Tensor

INNER, STATE, CONV, RANK, HEADS, HEAD, EPSILON = 128, 16, 4, 32, 8, 16, 1e-5
LAYER = "backbone.layers.{i}."
DECAY = (0.75, -1.0)


def logarithm(array):
    """The state's decay as transformers holds it: A_log, where GGUF has A = -exp(A_log)."""
    return np.log(-array.astype(np.float64))


def in_groups(groups):
    """Makes mamba2's gated norm work by groups, as its authors' code and llama.cpp do; transformers ignores them."""
    def normalize(module, y, gate):
        y = y * torch.nn.functional.silu(gate)
        parts = y.reshape(*y.shape[:-1], groups, -1)
        parts = parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
        return parts.reshape(y.shape) * module.weight

    def prepare(model):
        for layer in model.backbone.layers:
            norm = layer.mixer.norm
            norm.forward = lambda y, gate=None, norm=norm: normalize(norm, y, gate)
    return prepare


def metadata(rank, **more):
    """The keys of a state space model."""
    out = {"block_count": 2, "context_length": 1 << 20, "embedding_length": WIDTH, "feed_forward_length": 0,
           "attention.head_count": 0, "ssm.conv_kernel": CONV, "ssm.inner_size": INNER, "ssm.state_size": STATE,
           "ssm.time_step_rank": rank, "attention.layer_norm_rms_epsilon": EPSILON}
    out.update({f"ssm.{key}": value for key, value in more.items()})
    return out


def convolution(channels):
    """The short convolution of each channel: [channels, kernel]."""
    return [Tensor("blk.{i}.ssm_conv1d.weight", (channels, CONV), "strong", LAYER + "mixer.conv1d.weight",
                   lambda array: array[:, None]),
            Tensor("blk.{i}.ssm_conv1d.bias", (channels,), "bias", LAYER + "mixer.conv1d.bias")]


def mamba2(name, groups):
    """A mamba2 fixture."""
    channels = INNER + 2 * groups * STATE
    rows = ends("backbone.embeddings", "backbone.norm_f") + norms([("attn_norm", "norm")], prefix=LAYER)
    rows += linear("ssm_in", INNER + channels + HEADS, WIDTH, "mixer.in_proj", prefix=LAYER) + convolution(channels)
    rows.append(Tensor("blk.{i}.ssm_dt.bias", (HEADS,), "strong", LAYER + "mixer.dt_bias"))
    for gguf, to, role, change in [("ssm_a", "A_log", DECAY, logarithm), ("ssm_d", "D", "norm", None)]:
        rows.append(Tensor("blk.{i}." + gguf, (HEADS, 1), role, f"{LAYER}mixer.{to}",
                           lambda array, change=change: change(array[:, 0]) if change else array[:, 0]))
    rows.append(Tensor("blk.{i}.ssm_norm.weight", (groups, INNER // groups), "norm", LAYER + "mixer.norm.weight",
                       lambda array: array.reshape(-1)))
    rows += linear("ssm_out", WIDTH, INNER, "mixer.out_proj", prefix=LAYER)
    return Fixture(
        name, "mamba2", "Mamba2ForCausalLM",
        dict(vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=2, state_size=STATE, expand=2, conv_kernel=CONV,
             num_heads=HEADS, head_dim=HEAD, n_groups=groups, layer_norm_epsilon=EPSILON, residual_in_fp32=False,
             chunk_size=8, use_bias=False, use_conv_bias=True, tie_word_embeddings=False, pad_token_id=0,
             bos_token_id=1, eos_token_id=2),
        metadata(HEADS, group_count=groups), rows, prepare=in_groups(groups) if groups > 1 else None)


def mamba(name, model, norms_parts, **more):
    """A mamba fixture; `norms_parts` is Falcon Mamba's norm of the time steps, B and C."""
    rows = ends("backbone.embeddings", "backbone.norm_f", None) + norms([("attn_norm", "norm")], prefix=LAYER)
    rows += linear("ssm_in", 2 * INNER, WIDTH, "mixer.in_proj", prefix=LAYER) + convolution(INNER)
    rows += linear("ssm_x", RANK + 2 * STATE, INNER, "mixer.x_proj", prefix=LAYER)
    rows += linear("ssm_dt", INNER, RANK, "mixer.dt_proj", True, prefix=LAYER)
    rows += [Tensor("blk.{i}.ssm_a", (INNER, STATE), DECAY, LAYER + "mixer.A_log", logarithm),
             Tensor("blk.{i}.ssm_d", (INNER,), "norm", LAYER + "mixer.D")]
    rows += linear("ssm_out", WIDTH, INNER, "mixer.out_proj", prefix=LAYER)
    return Fixture(
        name, "mamba", model,
        dict(vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=2, state_size=STATE, expand=2, conv_kernel=CONV,
             time_step_rank=RANK, layer_norm_epsilon=EPSILON, residual_in_fp32=False, use_bias=False,
             use_conv_bias=True, pad_token_id=0, bos_token_id=1, eos_token_id=2, **more),
        metadata(RANK, dt_b_c_rms=norms_parts), rows, tied="backbone.embeddings.weight")


FIXTURES = [
    mamba("mamba", "MambaForCausalLM", False),
    mamba("falcon-mamba", "FalconMambaForCausalLM", True, mixer_rms_eps=EPSILON),
    mamba2("mamba2", 1),
    mamba2("mamba2-groups", 2),
]
