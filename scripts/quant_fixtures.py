#!/usr/bin/env python3
"""quant_fixtures.py [OUTDIR]: what every block format must give, by an independent implementation.

Needs the PyPI packages gguf (0.19) and numpy; writes to tests/fixtures/quant unless told otherwise:
  <format>.blocks     blocks as a GGUF file holds them: random ones, then adversarial ones
  <format>.values.gz  their values, f32, by gguf.quants.dequantize
  source_blocks.f32   values to quantize to block formats (finite)
  source_floats.f32   values to round to float formats (with NaN, infinities, subnormals, ties)
  <format>.codebook   for the formats that have one, its points: 16-bit words
  <format>.quantized  the source quantized by gguf.quants.quantize, for the formats that it can do
All files are little endian. The seed is fixed, so the files come out equal on every run."""

import gzip
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

# Where the f16 scales of a block lie; their bytes are set apart from the random ones, because
# random bits would make most of them huge.
FORMATS = {
    "q4_0": [0],
    "q4_1": [0, 2],
    "q5_0": [0],
    "q5_1": [0, 2],
    "q8_0": [0],
    "q8_1": [0],
    "q2_k": [80, 82],
    "q3_k": [108],
    "q4_k": [0, 2],
    "q5_k": [0, 2],
    "q6_k": [208],
    "q8_k": [],
    "iq2_xxs": [0],
    "iq2_xs": [0],
    "iq2_s": [0],
    "iq3_xxs": [0],
    "iq3_s": [0],
    "iq1_s": [0],
    "iq1_m": [48],
    "iq4_nl": [0],
    "iq4_xs": [0],
    "tq1_0": [52],
    "tq2_0": [64],
    "mxfp4": [],
    "nvfp4": [],
    "f16": [],
    "bf16": [],
    "f32": [],
    "f64": [],
    "i8": [],
    "i16": [],
    "i32": [],
    "i64": [],
}
# Formats whose scales are single bytes: how many at the block's start. Every value of them occurs.
BYTE_SCALES = {"mxfp4": 1, "nvfp4": 4}
# Formats whose quantizer the package has; q4_k and q6_k are checked against model files instead.
QUANTIZED = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4", "q8_1", "q8_k", "f64", "f16", "bf16", "f32"]

# Bits of a digit of the codebooks.
CODEBOOKS = {"iq2_xxs": 2, "iq2_xs": 2, "iq2_s": 2, "iq3_xxs": 3, "iq3_s": 3, "iq1_s": 2, "iq1_m": 2}

# 0, -0, smallest and largest subnormal, smallest normal, 1, largest, negative largest, infinities, NaNs.
SPECIAL_F16 = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFD55]


# iq1_m spreads its f16 over the upper quarters of four 16-bit words from here on.
SPREAD = 48


def put_scale(block, at, value, spread):
    value = int(np.frombuffer(value.tobytes(), "<u2")[0])
    if not spread:
        block[at : at + 2] = [value & 0xFF, value >> 8]
        return
    for quarter in range(4):
        high = at + 2 * quarter + 1
        block[high] = block[high] & 0x0F | (value >> 4 * quarter & 0xF) << 4


def random_blocks(rng, count, size, scales):
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in scales:
        for block, d in zip(blocks, (rng.normal(size=count) * 0.01).astype("<f2")):
            put_scale(block, at, d, scales == [SPREAD])
    return blocks


def adversarial_blocks(rng, size, scales):
    rows = [np.full(size, fill, dtype=np.uint8) for fill in (0x00, 0xFF, 0x80, 0x7F)]
    for special in SPECIAL_F16:
        for at in scales:
            block = random_blocks(rng, 1, size, scales)[0]
            put_scale(block, at, np.uint16(special), scales == [SPREAD])
            rows.append(block)
    if scales:  # Every field at its largest under a finite scale.
        block = np.full(size, 0xFF, dtype=np.uint8)
        for at in scales:
            put_scale(block, at, np.uint16(0x7BFF), scales == [SPREAD])
        rows.append(block)
    return np.stack(rows)


def byte_scaled_blocks(rng, size, scales):
    blocks = rng.integers(0, 256, (256, size), dtype=np.uint8)
    for at in range(scales):
        blocks[:, at] = np.roll(np.arange(256), 67 * at)
    fills = [np.full(size, fill, dtype=np.uint8) for fill in (0x00, 0xFF, 0x80, 0x7F, 0x77)]
    return np.concatenate([blocks, np.stack(fills)])


# What the package cannot do, written here: activations, and plain numbers.
PLAIN = {"f64": "<f8", "i8": "i1", "i16": "<i2", "i32": "<i4", "i64": "<i8"}


def values_of(name, blocks, kind):
    if name in PLAIN:
        return blocks.reshape(-1).view(PLAIN[name]).astype("<f4")
    if name == "q8_1":
        return blocks[:, 4:].view("i1").astype("<f4") * blocks[:, :2].copy().view("<f2").astype("<f4")
    if name == "q8_k":
        return blocks[:, 4:260].view("i1").astype("<f4") * blocks[:, :4].copy().view("<f4")
    # The package wants f16 and f32 data typed.
    typed = {"f16": "<f2", "f32": "<f4"}.get(name)
    return dequantize(blocks.reshape(-1).view(typed) if typed else blocks, kind)


def quantized(name, source, kind):
    if name == "f64":
        return source.astype("<f8")
    if name not in ("q8_1", "q8_k"):
        return quantize(source, kind)
    x = source.reshape(-1, 32 if name == "q8_1" else 256)
    if name == "q8_1":
        d = abs(x).max(axis=1, keepdims=True) / np.float32(127)
        q = gguf.quants.np_roundf(x * np.where(d == 0, np.float32(0), np.float32(1) / d))
        s = q.sum(axis=1, keepdims=True) * d
        fields = [d.astype("<f2"), s.astype("<f2"), q.astype("i1")]
    else:
        largest = np.take_along_axis(x, abs(x).argmax(axis=1, keepdims=True), axis=1)
        inverse = np.where(largest == 0, np.float32(0), np.float32(-127) / largest)
        q = np.minimum(np.rint(x * inverse), 127)
        d = np.where(largest == 0, np.float32(0), np.float32(1) / inverse)
        fields = [d.astype("<f4"), q.astype("i1"), q.reshape(-1, 16, 16).sum(axis=2).astype("<i2")]
    return np.concatenate([np.ascontiguousarray(f).view(np.uint8) for f in fields], axis=1)


def scaled_by_f32(rng, size):
    blocks = random_blocks(rng, 6, size, [])
    blocks[:, :4] = (rng.normal(size=6) * 0.01).astype("<f4").view(np.uint8).reshape(-1, 4)
    special = np.array([0, 1, 0x80000000, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000], "<u4")
    odd = random_blocks(rng, len(special), size, [])
    odd[:, :4] = special.view(np.uint8).reshape(-1, 4)
    return np.concatenate([blocks, odd])


def float_blocks(rng, name):
    if name == "f64":
        bits = [0, 1 << 63, 1, 0x7FF0 << 48, 0xFFF0 << 48, 0x7FF8 << 48, 0x7FEF << 48, 0x380 << 52, 0x369 << 52]
        odd = np.array(bits, dtype="<u8").view("<f8")
        # Ties of the rounding to f32, and their neighbours.
        ties = 1.0 + (2 * np.arange(40) + 1) * 2.0**-24
        values = np.concatenate([rng.normal(size=400), rng.normal(size=60) * 1e30, ties, np.nextafter(ties, 2.0), odd])
        return values.astype("<f8").view(np.uint8).reshape(-1, 8)
    if name in PLAIN:
        ends = np.iinfo(PLAIN[name])
        odd = [0, 1, -1, ends.min, ends.max, ends.min + 1, ends.max - 1]
        values = np.concatenate([rng.integers(ends.min, ends.max, 640, endpoint=True, dtype=ends.dtype), odd])
        return values.astype(PLAIN[name]).view(np.uint8).reshape(-1, ends.bits // 8)
    if name == "f32":
        bits = np.concatenate([float_source(rng).view("<u4"), rng.integers(0, 2**32, 256, dtype=np.uint32)])
        return bits.astype("<u4").view(np.uint8).reshape(-1, 4)
    # A step through all 16-bit patterns that meets every exponent, and the ends.
    bits = np.concatenate([np.arange(0, 65536, 31), np.array(SPECIAL_F16), [0x7F80, 0xFF80, 0x7FC0, 0xFFA0]])
    return bits.astype("<u2").view(np.uint8).reshape(-1, 2)


def block_source(rng):
    rows = [rng.normal(size=256) * scale for scale in (0.02, 1.0, 3e4, 1e6, 1e-6, 1e-30)]
    rows += [rng.uniform(0.5, 1.0, 256), -rng.uniform(0.5, 1.0, 256), rng.standard_cauchy(256)]
    rows += [np.zeros(256), np.full(256, 0.37), np.full(256, -5.0)]
    # Equal magnitudes of both signs: the first one decides the sign of the scale.
    rows.append(np.where(np.arange(256) % 2 == 0, 1.0, -1.0))
    rows.append(np.where(np.arange(256) % 2 == 0, -1.0, 1.0))
    # Halves of the step 1/8, 1/127 or 1/15, which rounding must break the right way.
    rows.append((np.arange(256) % 33 - 16) / 16.0)
    rows.append((np.arange(256) % 255 - 127) / 2.0)
    single = np.zeros(256)
    single[::37] = 1e-3
    rows.append(single)
    return np.concatenate(rows).astype("<f4")


def float_source(rng):
    values = np.concatenate([rng.normal(size=400), rng.normal(size=100) * 1e5, rng.normal(size=100) * 1e-6]).astype("<f4")
    bits = [0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000]
    bits += [0x7FC00000, 0x7F800001, 0xFFBFFFFF]  # NaN: quiet, signalling, signalling with a full payload
    bits += [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7F8000]  # halfway between two bf16
    bits += [0x3F801000, 0x3F803000, 0x3F801001, 0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001, 0x387FE000]  # of f16
    return np.concatenate([values, np.array(bits, dtype="<u4").view("<f4")])


def codebook(kind, bits):
    """The points of a codebook, each a word of the numbers of its levels, the first lowest."""
    traits = getattr(gguf.quants, kind.name)
    traits.init_grid()
    grid = traits.grid.reshape(traits.grid_shape)
    digits = np.searchsorted(np.array(traits.grid_map, dtype=np.float32), grid)
    return (digits << bits * np.arange(grid.shape[1])).sum(axis=1).astype("<u2")


def main():
    root = Path(__file__).resolve().parent.parent
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else root / "tests" / "fixtures" / "quant"
    out.mkdir(parents=True, exist_ok=True)
    np.seterr(all="ignore")
    rng = np.random.default_rng(20261121)
    sources = {"blocks": block_source(rng), "floats": float_source(rng)}
    for name, source in sources.items():
        (out / f"source_{name}.f32").write_bytes(source.tobytes())
    for name, scales in FORMATS.items():
        # A stream of its own, so that a new format changes no other's blocks.
        rng = np.random.default_rng([20261121, *name.encode()])
        kind = gguf.GGMLQuantizationType[name.upper()]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        if name == "q8_1":
            size = 36  # The package still has the old layout, with f32 scale and sum.
        if elements == 1:
            blocks = float_blocks(rng, name)
        elif name == "q8_k":
            blocks = scaled_by_f32(rng, size)
        elif name in BYTE_SCALES:
            blocks = byte_scaled_blocks(rng, size, BYTE_SCALES[name])
        else:
            random = random_blocks(rng, 24 if elements == 32 else 6, size, scales)
            blocks = np.concatenate([random, adversarial_blocks(rng, size, scales)])
        values = values_of(name, blocks, kind)
        (out / f"{name}.blocks").write_bytes(blocks.tobytes())
        packed = gzip.compress(values.astype("<f4").tobytes(), 9, mtime=0)
        (out / f"{name}.values.gz").write_bytes(packed)
        if name in CODEBOOKS:
            (out / f"{name}.codebook").write_bytes(codebook(kind, CODEBOOKS[name]).tobytes())
        if name in QUANTIZED:
            source = sources["floats" if elements == 1 else "blocks"]
            (out / f"{name}.quantized").write_bytes(quantized(name, source, kind).tobytes())
    print(f"{sum(f.stat().st_size for f in out.iterdir())} bytes in {out}")


main()
