#!/usr/bin/env python3
"""gradient_vectors.py [FILE]: gradients by PyTorch, for the test tests/tests/gradients/torch.rs.

Needs the PyPI package torch, 2.7 or newer (before, hard_swish had other gradients at -3 and 3), and no GPU. Writes
tests/fixtures/gradients/torch.json unless told otherwise. Each case has its inputs, so both sides compute with the
same numbers:
  name    what is computed; the test has a function of this name
  dtype   "f32" or "f64"
  inputs  tensors whose gradients are wanted: [extents, elements]
  data    further tensors, without gradients, of the same type
  ints    tensors of indices
  grads   the elements of the gradient of each input
The loss is the sum of the outputs, each times ((7 i) mod 11 - 5.5) / 4 for element i of the output in row-major order.
Infinities and NaN are strings. The seed is fixed, so the file comes out equal on every run of one version."""

import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

FILE = Path(__file__).resolve().parent.parent / "tests/fixtures/gradients/torch.json"
MOST_BYTES = 60_000

# Where activations bend, where they saturate, and points between.
POINTS = [-100.0, -6.0, -3.0, -1.5, -1.0, -0.25, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 100.0]
POSITIVE = [0.0, 0.25, 1.0, 3.0, 100.0]
WITHIN_ONE = [-1.0, -0.75, 0.0, 0.25, 1.0]

CASES = []


def case(name, function, inputs, data=(), ints=(), dtypes=("f32",)):
    CASES.append((name, function, list(inputs), list(data), list(ints), dtypes))


def numbers(*shape):
    """Multiples of 1/16 about as far from 0 as normal numbers, which every type holds and JSON shortly."""
    return (torch.randn(shape, dtype=torch.float64) * 16).round() / 16


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def elementwise():
    both = ("f32", "f64")
    unary = {
        "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "exp": torch.exp, "exp2": torch.exp2,
        "expm1": torch.expm1, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "atan": torch.atan,
        "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh, "erf": torch.erf, "floor": torch.floor,
        "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc, "sqr": torch.square,
    }
    for name, function in unary.items():
        case(name, function, [tensor(POINTS)])
    positive = {
        "log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "sqrt": torch.sqrt,
        "rsqrt": torch.rsqrt, "recip": torch.reciprocal,
    }
    for name, function in positive.items():
        case(name, function, [tensor(POSITIVE)])
    case("asin", torch.asin, [tensor(WITHIN_ONE)])
    case("acos", torch.acos, [tensor(WITHIN_ONE)])
    a = tensor([0.0, 1.0, 2.0, -3.0, 6.0, -100.0, 3.0, 3.0])
    b = tensor([0.5, 1.0, -2.0, -3.0, 4.0, 100.0, 3.0, -6.0])
    binary = {
        "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "rem": torch.fmod,
        "minimum": torch.minimum, "maximum": torch.maximum,
    }
    for name, function in binary.items():
        case(name, function, [a, b])
    # Also 0 to the power of 0, of 1/2 and of -1, and a negative base, whose exponent has no gradient.
    base = tensor([0.0, 0.0, 0.0, 0.0, 2.0, 0.5, -2.0, 1.0])
    exponent = tensor([0.0, 2.0, 0.5, -1.0, 3.0, -1.5, 3.0, 0.0])
    case("pow", torch.pow, [base, exponent], dtypes=both)
    for e in [0.0, 1.0, 2.0, 3.0]:
        case(f"powf {e:g}", lambda x, e=e: x ** e, [tensor([-2.0, -1.0, 0.0, 0.5, 3.0])])
    case("where positive", lambda a, b: torch.where(a > 0, a, b), [a, b])
    case("broadcast mul", torch.mul, [numbers(2, 1, 3), numbers(4, 1)])


def activations():
    functions = {
        "relu": F.relu, "relu6": F.relu6, "sigmoid": torch.sigmoid, "logsigmoid": F.logsigmoid, "softplus": F.softplus,
        "mish": F.mish, "silu": F.silu, "hard_sigmoid": F.hardsigmoid, "hard_swish": F.hardswish, "selu": F.selu,
        "gelu": lambda x: F.gelu(x, approximate="tanh"), "gelu_erf": F.gelu,
        "leaky_relu": lambda x: F.leaky_relu(x, 0.25), "elu": lambda x: F.elu(x, 1.5),
        "clamp": lambda x: torch.clamp(x, -3.0, 3.0),
    }
    for name, function in functions.items():
        case(name, function, [tensor(POINTS)])
    for name in ["gelu", "silu", "mish"]:
        case(name, functions[name], [tensor(POINTS)], dtypes=("f64",))


def losses():
    both = ("f32", "f64")
    logits = numbers(4, 3)
    logits[1] = tensor([2.0, 2.0, 2.0])
    logits[2] = tensor([-100.0, 100.0, 0.0])
    target = torch.tensor([2, 0, 0, 1])
    case("cross_entropy", F.cross_entropy, [logits], ints=[target], dtypes=both)
    case("nll", F.nll_loss, [numbers(4, 3)], ints=[target])
    x, y = tensor([0.0, 1.0, -1.0, 2.5, -3.0, 100.0]), tensor([0.0, 0.0, 0.0, 0.5, 6.0, -100.0])
    case("mse", F.mse_loss, [x, y])
    case("huber", F.huber_loss, [x, y])
    x, y = tensor([0.0, 0.0, 0.0, 3.0, -3.0, 100.0, -100.0]), tensor([0.0, 0.5, 1.0, 1.0, 0.25, 1.0, 1.0])
    case("bce", F.binary_cross_entropy_with_logits, [x], data=[y])


def rows():
    both = ("f32", "f64")
    x = numbers(3, 5)
    x[1] = tensor([2.0, 2.0, 2.0, 2.0, 2.0])
    x[2] = tensor([-100.0, 0.0, 100.0, 3.0, 100.0])
    case("softmax", lambda x: torch.softmax(x, 1), [x], dtypes=both)
    case("log_softmax", lambda x: torch.log_softmax(x, 1), [x], dtypes=both)
    case("log_sum_exp", lambda x: torch.logsumexp(x, 1), [x])
    # Without equal elements only: the variance of equal ones is 0, and 1 / sqrt(1e-5) times the rounding of the mean.
    y, weight, bias = numbers(3, 4), numbers(4), numbers(4)
    case("layer_norm", lambda x, w, b: F.layer_norm(x, (4,), w, b, 1e-5), [y, weight, bias], dtypes=both)
    case("rms_norm", lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w, [y, weight], dtypes=both)
    case("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5), [numbers(2, 4, 3), numbers(4), numbers(4)])


def convolutions():
    case("conv1d", lambda x, k: F.conv1d(x, k, padding=1, stride=2), [numbers(1, 2, 7), numbers(3, 2, 3)])
    case("conv1d dilated", lambda x, k: F.conv1d(x, k, dilation=2, groups=2), [numbers(1, 2, 7), numbers(2, 1, 3)])
    case("conv2d", lambda x, k: F.conv2d(x, k, padding=1, stride=2), [numbers(1, 2, 4, 5), numbers(2, 2, 3, 2)])
    case("conv2d plain", F.conv2d, [numbers(2, 1, 4, 4), numbers(2, 1, 2, 2)])
    transposed = lambda x, k: F.conv_transpose1d(x, k, padding=1, output_padding=1, stride=2)
    case("conv_transpose1d", transposed, [numbers(1, 2, 4), numbers(2, 3, 3)])
    transposed = lambda x, k: F.conv_transpose2d(x, k, padding=1, output_padding=1, stride=2)
    case("conv_transpose2d", transposed, [numbers(1, 2, 3, 3), numbers(2, 1, 3, 3)])
    # All elements differ: among equal largest ones PyTorch chooses the first, and Tallow lets them share.
    distinct = lambda *shape: torch.randperm(math.prod(shape)).to(torch.float64).reshape(shape) / 8 - 2
    case("max_pool2d", lambda x: F.max_pool2d(x, 2), [distinct(1, 2, 4, 5)])
    case("max_pool2d overlapping", lambda x: F.max_pool2d(x, 3, 1), [distinct(1, 1, 4, 5)])
    case("avg_pool2d", lambda x: F.avg_pool2d(x, 2), [numbers(1, 2, 4, 5)])
    case("avg_pool2d overlapping", lambda x: F.avg_pool2d(x, 3, 1), [numbers(1, 1, 4, 5)])


def indexing():
    index = torch.tensor([2, 0, 2])
    case("index_select 0", lambda x, i: x.index_select(0, i), [numbers(3, 2)], ints=[index])
    case("index_select 1", lambda x, i: x.index_select(1, i), [numbers(2, 3)], ints=[index])
    places = torch.tensor([[0, 2], [2, 2], [1, 0]])
    case("gather 0", lambda x, i: x.gather(0, i), [numbers(3, 2)], ints=[places])
    case("gather 1", lambda x, i: x.gather(1, i), [numbers(3, 3)], ints=[places])
    case("scatter_add", lambda x, s, i: x.scatter_add(0, i, s), [numbers(3, 2), numbers(3, 2)], ints=[places])
    case("index_add", lambda x, s, i: x.index_add(1, i, s), [numbers(2, 4), numbers(2, 3)], ints=[index])


def scans_and_reductions():
    both = ("f32", "f64")
    x = numbers(3, 4)
    zeros = tensor([[2.0, 3.0, -1.5, 0.5], [2.0, 0.0, 3.0, 4.0], [0.0, 2.0, 0.0, 3.0]])
    ties = tensor([[1.0, 3.0, 3.0, -2.0], [2.0, 2.0, 2.0, 2.0], [0.0, -1.0, 6.0, -1.0]])
    case("cumsum", lambda x: x.cumsum(1), [x])
    case("cumsum 0", lambda x: x.cumsum(0), [x])
    case("cumprod", lambda x: x.cumprod(1), [zeros], dtypes=both)
    case("prod", lambda x: x.prod(1), [zeros], dtypes=both)
    case("max", lambda x: x.amax(1), [ties])
    case("min", lambda x: x.amin(1), [ties])
    case("sum", lambda x: x.sum(0), [x])
    case("mean", lambda x: x.mean(1), [x])
    case("var", lambda x: x.var(1), [ties])
    case("norm", torch.linalg.vector_norm, [tensor([3.0, -4.0, 0.0])])
    case("norm of zeros", torch.linalg.vector_norm, [tensor([0.0, 0.0])])


def products():
    both = ("f32", "f64")
    case("matmul", torch.matmul, [numbers(2, 3, 4), numbers(2, 4, 2)], dtypes=both)
    case("matmul broadcast", torch.matmul, [numbers(1, 3, 2), numbers(3, 2, 2)])
    q, k, v = numbers(1, 2, 4, 3), numbers(1, 2, 4, 3), numbers(1, 2, 4, 2)
    causal = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    case("sdpa causal", causal, [q, k, v], dtypes=both)
    case("sdpa", F.scaled_dot_product_attention, [numbers(1, 2, 2, 3), numbers(1, 2, 4, 3), numbers(1, 2, 4, 2)])
    # Key heads are repeated here; Tallow shares them.
    repeated = lambda q, k, v: causal(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))
    case("sdpa shared keys", repeated, [numbers(1, 4, 3, 2), numbers(1, 2, 3, 2), numbers(1, 2, 3, 2)])


def plain(x, digits):
    """A number as JSON has it, as short as `digits` allow."""
    if not math.isfinite(x):
        return "nan" if math.isnan(x) else "inf" if x > 0 else "-inf"
    short = float(f"%.{digits}g" % x)
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def gradients(function, inputs, data, ints, dtype):
    variables = [x.to(dtype).clone().requires_grad_() for x in inputs]
    output = function(*variables, *[x.to(dtype) for x in data], *ints)
    weights = ((torch.arange(output.numel()) * 7) % 11 - 5.5) / 4
    loss = (output * weights.to(dtype).reshape(output.shape)).sum()
    # What jumps is not part of PyTorch's graph at all.
    found = torch.autograd.grad(loss, variables, allow_unused=True) if loss.requires_grad else [None] * len(variables)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(variables, found)]


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    for group in [elementwise, activations, losses, rows, convolutions, indexing, scans_and_reductions, products]:
        group()
    made = []
    for name, function, inputs, data, ints, dtypes in CASES:
        for dtype in dtypes:
            kind, digits = (torch.float32, 7) if dtype == "f32" else (torch.float64, 12)
            found = gradients(function, inputs, data, ints, kind)
            both = lambda x: [list(x.shape), [plain(v, 17) for v in x.flatten().tolist()]]
            made.append({
                "name": name,
                "dtype": dtype,
                "inputs": [both(x) for x in inputs],
                "data": [both(x) for x in data],
                "ints": [both(x) for x in ints],
                "grads": [[plain(v, digits) for v in g.flatten().tolist()] for g in found],
            })
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in made)
    text = f'{{"torch":"{torch.__version__}","cases":[\n{lines}\n]}}\n'
    if len(text) > MOST_BYTES:
        sys.exit(f"{len(text)} bytes: more than {MOST_BYTES}")
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    print(f"{len(made)} cases, {len(text)} bytes: {file}")


main()
