"""Weights that need no file: a function of a tensor's name and of an element's index, and their quantized copies.

The seed is FNV-1a 64 of the GGUF tensor's name. Element i (row-major) takes the top nine bits u of SplitMix64 at
seed + i * 0x9E3779B97F4A7C15, and its value is offset + scale * (u - 255.5) / 256. It is exact in f32."""
from dataclasses import dataclass, field

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

# The scale and offset by role. A matrix's scale suits rows of 64 elements and inputs near one.
ROLES = {
    "matrix": (0.25, 0.0),
    "strong": (0.5, 0.0),
    "weak": (0.125, 0.0),
    "embedding": (1.0, 0.0),
    "norm": (0.25, 1.0),
    "bias": (0.125, 0.0),
}
# Matrices that llama.cpp's converter leaves in F32.
FULL_PRECISION = ("ffn_gate_inp.weight", "ssm_conv1d.weight", "ssm_a", "ssm_d", "position_embd.weight",
                  "token_types.weight", "ssm_norm.weight", "attn_q_norm.weight", "attn_k_norm.weight")


@dataclass
class Tensor:
    """A GGUF tensor and its place in transformers. `{i}` in names stands for a layer, `{e}` for an expert.

    `change` maps the GGUF tensor's array to what transformers stores. `values`, where given, replace the generator."""
    name: str
    shape: tuple
    role: object
    to: object
    change: object = None
    layers: object = None
    values: object = None


@dataclass
class Fixture:
    """One model: the class and config of transformers, and the metadata and tensors of GGUF.

    `tied` names the embedding that is the head too, `low` the second block format, `options` what the class's
    constructor takes besides the config. `finish` changes the state dict, `prepare` the loaded model. `router` has
    the end of the routers' module names, the count of experts used, and a function that gives the scores."""
    name: str
    architecture: str
    model: str
    config: dict
    metadata: dict
    tensors: list
    tied: bool = False
    low: str = "Q4_0"
    hidden: bool = False
    finish: object = None
    router: tuple = ()
    tokens: list = field(default_factory=lambda: [1, 17, 5, 42, 29, 3, 11, 38, 23, 7, 46, 14])
    options: dict = field(default_factory=dict)
    prepare: object = None


def fnv1a(text):
    """FNV-1a 64 of a string's UTF-8 bytes."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def generate(name, shape, scale, offset):
    """The tensor's values, f32."""
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        z = np.uint64(fnv1a(name)) + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    values = offset + scale * ((z >> np.uint64(55)).astype(np.float64) - 255.5) / 256
    assert np.all(values.astype(np.float32) == values), name
    return values.astype(np.float32).reshape(shape)


def expand(fixture):
    """The rows of the fixture's table with the layers filled in: (row, GGUF name, layer or None)."""
    layers = fixture.metadata["block_count"]
    for row in fixture.tensors:
        if "{i}" not in row.name:
            yield row, row.name, None
            continue
        for layer in row.layers if row.layers is not None else range(layers):
            yield row, row.name.replace("{i}", str(layer)), layer


def scale_offset(role):
    """A role's scale and offset; a role may be the pair itself."""
    return ROLES[role] if isinstance(role, str) else role


def arrays(fixture):
    """The GGUF tensors in F32, by name."""
    out = {}
    for row, name, _ in expand(fixture):
        if row.values is not None:
            out[name] = np.array(row.values, dtype=np.float32).reshape(row.shape)
        else:
            out[name] = generate(name, row.shape, *scale_offset(row.role))
    return out


def is_quantized(name, array):
    """Whether a tensor is stored in blocks in the quantized files."""
    return array.ndim >= 2 and name.endswith(".weight") and not name.endswith(FULL_PRECISION)


def rounded(tensors, kind, low):
    """The tensors after quantizing the matrices and back. MXFP4 is for stacked experts alone; the rest is Q8_0."""
    out = {}
    for name, array in tensors.items():
        out[name] = array
        if kind == "F32" or not is_quantized(name, array):
            continue
        form = "Q8_0" if kind == "MXFP4" and not name.endswith("_exps.weight") else kind
        tag = GGMLQuantizationType[form]
        out[name] = dequantize(quantize(array, tag), tag).reshape(array.shape).astype(np.float32)
    return out


def state(fixture, tensors):
    """The state dict of transformers that holds these GGUF tensors, as arrays."""
    out = {}

    def put(key, array):
        assert key not in out, f"{key} is set twice"
        out[key] = array

    for row, name, layer in expand(fixture):
        if row.to is None:
            continue
        array = tensors[name]
        if row.change is not None:
            array = row.change(array)
        targets, parts = (row.to, array) if isinstance(row.to, (list, tuple)) else ([row.to], [array])
        assert len(targets) == len(parts), name
        for target, part in zip(targets, parts):
            target = target.replace("{i}", str(layer))
            if "{e}" in target:
                for expert, slab in enumerate(part):
                    put(target.replace("{e}", str(expert)), slab)
            else:
                put(target, part)
    if fixture.finish is not None:
        fixture.finish(out)
    if fixture.tied:
        put("lm_head.weight", out[fixture.tied])
    return out
