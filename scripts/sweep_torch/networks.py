"""Networks of `tallow bench networks --describe`: their functions, their inputs, and whether results are right."""

import json

import numpy
import torch

from .ops import DTYPES, NAMES, expression

# The largest normalized mean squared error of a right result, before it grows with the number of steps: f16 as in
# crates/bench/src/case.rs.
LIMITS = {"f32": 1e-7, "f16": 24 * 8e-8, "bf16": 64 * 24 * 8e-8}
MASK = (1 << 64) - 1


def load(path):
    with open(path) as file:
        return json.load(file)


def source(description):
    """The network as the text of a Python function. Values are deleted after their last use, as a program's would be."""
    inputs = len(description["inputs"])
    last_use = {}
    for number, step in enumerate(description["steps"]):
        for arg in step["args"]:
            last_use[arg] = number
    lines = [f"def network({', '.join(f'v{i}' for i in range(inputs))}):"]
    for number, step in enumerate(description["steps"]):
        lines.append(f"    v{inputs + number} = {expression(step, [f'v{arg}' for arg in step['args']])}")
        dead = {arg for arg in step["args"] if last_use[arg] == number} - set(description["outputs"])
        lines.extend(f"    del v{arg}" for arg in sorted(dead) if arg >= inputs)
    lines.append(f"    return ({''.join(f'v{output}, ' for output in description['outputs'])})")
    return "\n".join(lines)


def function(description):
    """The network as a function of its inputs."""
    scope = dict(NAMES)
    exec(compile(source(description), description["name"], "exec"), scope)
    return scope["network"]


def random_inputs(description, device):
    """Inputs of random values, for a measurement."""

    def one(spec):
        if isinstance(spec["kind"], dict):
            (order, limit), = spec["kind"].items()
            values = torch.randint(limit, spec["shape"], device=device)
            return values.sort().values if order == "sorted_below" else values
        values = torch.rand(spec["shape"], device=device) * 2 - 1
        return (values * (3**0.5 * spec["scale"])).to(DTYPES[spec["dtype"]])

    return [one(spec) for spec in description["inputs"]]


def mix(state):
    """The output function of SplitMix64, of an array of u64."""
    state = (state ^ (state >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return state ^ (state >> numpy.uint64(31))


def exact_inputs(description):
    """The inputs for which the description has results: as crates/bench/src/networks/operands.rs makes them."""

    def one(number, spec):
        count = int(numpy.prod(spec["shape"], dtype=numpy.int64))
        stream = mix(numpy.array([(description["seed"] << 16 | number) & MASK], dtype=numpy.uint64))
        bits = mix(stream + numpy.arange(count, dtype=numpy.uint64))
        if isinstance(spec["kind"], dict):
            values = (bits >> numpy.uint64(32)) % numpy.uint64(spec["kind"]["integer_below"])
            return torch.from_numpy(values.astype(numpy.int64)).reshape(spec["shape"])
        unit = (bits >> numpy.uint64(40)).astype(numpy.float64) / (1 << 24)
        values = (2 * unit - 1) * 3**0.5 * float(numpy.float32(spec["scale"]))
        return torch.from_numpy(values).to(DTYPES[spec["dtype"]]).reshape(spec["shape"])

    return [one(number, spec) for number, spec in enumerate(description["inputs"])]


def check(description):
    """The normalized mean squared error of the worst result on the CPU, and the largest that is right."""
    dtypes = {spec["dtype"] for spec in description["inputs"]}
    limit = next(LIMITS[dtype] for dtype in ("bf16", "f16", "f32") if dtype in dtypes)
    limit *= max(len(description["steps"]) / 24, 1)
    with torch.no_grad():
        results = function(description)(*exact_inputs(description))
    worst = 0.0
    for result, expected in zip(results, description["expected"], strict=True):
        got = result.double().flatten()
        expected = torch.tensor(expected, dtype=torch.float64)
        worst = max(worst, (((got - expected) ** 2).sum() / (expected**2).sum()).item())
    return worst, limit
