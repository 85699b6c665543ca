"""The ops of networks as PyTorch expressions: each takes a step's attributes and the names of its arguments."""

import torch
import torch.nn.functional as F

DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    # Indices, as PyTorch's lookups want them.
    "u32": torch.int64,
}

UNARY = {
    "relu": "F.relu({})",
    "gelu": "F.gelu({}, approximate='tanh')",
    "gelu_erf": "F.gelu({})",
    "silu": "F.silu({})",
    "sigmoid": "torch.sigmoid({})",
    "tanh": "torch.tanh({})",
    "exp": "torch.exp({})",
    "log": "torch.log({})",
    "sqrt": "torch.sqrt({})",
    "abs": "torch.abs({})",
    "neg": "-{}",
    "square": "torch.square({})",
}
BINARY = {"add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "maximum": "torch.maximum({}, {})"}
RELATIONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=="}
REDUCTIONS = {"sum": "sum", "mean": "mean", "max": "amax"}


def rope(x, cos, sin):
    """Rotates element i of each head against element i + dim / 2."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def attention(q, k, v, causal):
    """Scaled dot product attention, whose heads of keys and values may be fewer than those of queries."""
    shared = q.shape[1] // k.shape[1]
    # For f32, only the slow kernel without fusion takes fewer heads.
    if shared > 1 and q.dtype == torch.float32:
        k, v, shared = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1), 1
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=shared > 1)


def matmul(step, args):
    a = f"{args[0]}.mT" if step["transpose_a"] else args[0]
    b = f"{args[1]}.mT" if step["transpose_b"] else args[1]
    return f"torch.matmul({a}, {b})"


def conv(step, args):
    bias = args[2] if len(args) > 2 else None
    attributes = ", ".join(f"{key}={step[key]}" for key in ("stride", "padding", "dilation", "groups"))
    return f"F.{step['op']}({args[0]}, {args[1]}, {bias}, {attributes})"


def reduce(step, args):
    return f"{args[0]}.{REDUCTIONS[step['kind']]}({step['axes']}, keepdim={step['keepdim']})"


def compare(step, args):
    other = args[1] if step["value"] is None else step["value"]
    return f"{args[0]} {RELATIONS[step['relation']]} {other}"


def pad(step, args):
    # Pairs of the last axis come first.
    return f"F.pad({args[0]}, [0, 0] * ({args[0]}.dim() - 1 - {step['axis']}) + [{step['before']}, {step['after']}])"


def slice_(step, args):
    return f"{args[0]}.narrow({step['axis']}, {step['start']}, {step['len']})"


EXPRESSIONS = {
    "matmul": matmul,
    "linear": lambda s, a: f"F.linear({', '.join(a)})",
    "conv1d": conv,
    "conv2d": conv,
    "binary": lambda s, a: BINARY[s["function"]].format(*a),
    "unary": lambda s, a: UNARY[s["function"]].format(*a),
    "where": lambda s, a: f"torch.where({', '.join(a)})",
    "compare": compare,
    "affine": lambda s, a: f"{a[0]} * {s['mul']} + {s['add']}" if s["add"] else f"{a[0]} * {s['mul']}",
    "full_like": lambda s, a: f"torch.full_like({a[0]}, {s['value']})",
    "softmax": lambda s, a: f"F.softmax({a[0]}, {s['axis']})",
    "log_softmax": lambda s, a: f"F.log_softmax({a[0]}, {s['axis']})",
    "reduce": reduce,
    "argmax": lambda s, a: f"{a[0]}.argmax({s['axis']})",
    "argmin": lambda s, a: f"{a[0]}.argmin({s['axis']})",
    "rms_norm": lambda s, a: f"F.rms_norm({a[0]}, {a[1]}.shape, {a[1]}, {s['epsilon']})",
    "layer_norm": lambda s, a: f"F.layer_norm({a[0]}, {a[1]}.shape, {a[1]}, {a[2]}, {s['epsilon']})",
    "group_norm": lambda s, a: f"F.group_norm({a[0]}, {s['groups']}, {a[1]}, {a[2]}, {s['epsilon']})",
    "reshape": lambda s, a: f"{a[0]}.reshape({s['shape']})",
    "permute": lambda s, a: f"{a[0]}.permute({s['order']})",
    "broadcast": lambda s, a: f"{a[0]}.expand({s['shape']})",
    "slice": slice_,
    "concat": lambda s, a: f"torch.cat(({', '.join(a)},), {s['axis']})",
    "gather": lambda s, a: f"{a[0]}.gather({s['axis']}, {a[1]})",
    "index_select": lambda s, a: f"{a[0]}.index_select({s['axis']}, {a[1]})",
    "embedding": lambda s, a: f"F.embedding({a[1]}, {a[0]})",
    "index_add": lambda s, a: f"{a[0]}.index_add({s['axis']}, {a[1]}, {a[2]})",
    "cumsum": lambda s, a: f"{a[0]}.cumsum({s['axis']})",
    "rope": lambda s, a: f"rope({', '.join(a)})",
    "attention": lambda s, a: f"attention({', '.join(a)}, {s['causal']})",
    "argsort": lambda s, a: f"{a[0]}.argsort(-1)",
    "random_like": lambda s, a: f"torch.{'randn' if s['normal'] else 'rand'}_like({a[0]})",
    "max_pool2d": lambda s, a: f"F.max_pool2d({a[0]}, {s['size']}, {s['stride']})",
    "topk": lambda s, a: f"{a[0]}.topk({s['k']}).values",
    "cast": lambda s, a: f"{a[0]}.to({DTYPES[s['dtype']]})",
    "pad": pad,
    "avg_pool2d": lambda s, a: f"F.avg_pool2d({a[0]}, {s['size']}, {s['stride']})",
    "upsample": lambda s, a: f"F.interpolate({a[0]}, scale_factor={s['factor']}, mode='nearest')",
}
# What expressions name.
NAMES = {"torch": torch, "F": F, "rope": rope, "attention": attention}


def expression(step, args):
    """The expression of one step."""
    return EXPRESSIONS[step["op"]](step, args)
