#!/usr/bin/env python3
"""PyTorch's times of the cases of `tallow bench`, by the same names, as JSON lines.

    python3 scripts/bench_torch.py [CASE ..] [--seconds S] [--out torch.jsonl]
    tallow bench --compare torch.jsonl

Needs PyTorch with CUDA. Each case has as many instances as fit a working set of 512 MiB (at most 64), each with random
operands of its own, which run one after the other between two CUDA events; what is reported is the time of one. They
are captured in a CUDA graph, so that launches from Python are not timed. Cases of quantized weights have no peer here.
"""

import argparse
import json
import statistics
import sys

import torch
import torch.nn.functional as F

WORKING_SET = 512 << 20
MOST_INSTANCES = 64
MOST_FLOPS = 300_000_000_000
SIZES = {torch.float32: 4, torch.float16: 2, torch.bfloat16: 2}
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


class Case:
    """A function of tensors with the shapes and types of its operands; `compiled` if torch.compile may fuse it."""

    def __init__(self, name, body, operands, result, flops=0, compiled=False):
        self.name, self.body, self.operands = name, body, operands
        self.result, self.flops, self.compiled = result, flops, compiled

    def bytes(self):
        total = 0
        for shape, dtype in [*self.operands, self.result]:
            count = SIZES[dtype]
            for extent in shape:
                count *= extent
            total += count
        return total

    def instances(self):
        by_bytes = min(max(-(-WORKING_SET // self.bytes()), 1), MOST_INSTANCES)
        by_flops = max(MOST_FLOPS // self.flops, 2) if self.flops else MOST_INSTANCES
        return min(by_bytes, by_flops)


def cases():
    f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16
    found = []
    for dtype in (f16, bf16, f32):
        for n, k in ((14336, 4096), (4096, 14336), (4096, 4096)):
            operands = [((1, k), dtype), ((n, k), dtype)]
            found.append(Case(f"matvec/{NAMES[dtype]}/{n}x{k}", lambda x, w: x @ w.T, operands, ((1, n), dtype), 2 * n * k))

    def matmul(dtype, m, k, n):
        operands = [((m, k), dtype), ((k, n), dtype)]
        name = f"matmul/{NAMES[dtype]}/{m}x{k}x{n}"
        found.append(Case(name, lambda a, b: a @ b, operands, ((m, n), dtype), 2 * m * k * n))

    matmul(f16, 512, 4096, 14336)
    for n in (256, 512, 1024, 2048, 4096):
        matmul(f32, n, n, n)
    matmul(f16, 4096, 4096, 4096)
    b, m, k, n = 32, 1024, 128, 1024
    operands = [((b, m, k), f16), ((b, k, n), f16)]
    name = f"batched-matmul/f16/{b}x{m}x{k}x{n}"
    found.append(Case(name, torch.bmm, operands, ((b, m, n), f16), 2 * b * m * k * n))
    for dtype in (f32, f16):
        operands = [((8, 64, 128, 128), dtype), ((128, 64, 3, 3), dtype)]
        flops = 2 * 8 * 128 * 128 * 128 * 9 * 64
        name = f"conv2d/{NAMES[dtype]}/8x64x128x128-128x64x3x3"
        found.append(Case(name, lambda x, w: F.conv2d(x, w, padding=1), operands, ((8, 128, 128, 128), dtype), flops))

    def attention(name, groups, per_group, queries, keys, d, causal):
        def body(q, k, v):
            k = k.repeat_interleave(per_group, 0) if per_group > 1 else k
            v = v.repeat_interleave(per_group, 0) if per_group > 1 else v
            return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]

        heads = groups * per_group
        operands = [((heads, queries, d), f16), ((groups, keys, d), f16), ((groups, keys, d), f16)]
        pairs = queries * (queries + 1) // 2 if causal else queries * keys
        found.append(Case(name, body, operands, ((heads, queries, d), f16), 4 * heads * pairs * d))

    attention("attention/decode/32x128-4096", 8, 4, 1, 4096, 128, False)
    attention("attention/full/32x2048x128", 32, 1, 2048, 2048, 128, False)
    attention("attention/causal/32x2048x128", 32, 1, 2048, 2048, 128, True)

    square = (16384, 4096)
    for dtype in (f32, f16):
        body = lambda a, b, c: F.gelu(a * b + c, approximate="tanh") * torch.sigmoid(a)
        found.append(Case(f"map/gelu-sigmoid/{NAMES[dtype]}/{1 << 26}", body, [(square, dtype)] * 3, (square, dtype), compiled=True))
    operands = [(square, f32), ((4096,), f32), (square, f32)]
    found.append(Case("map/silu-bias/f32/16384x4096", lambda x, b, m: F.silu(x + b) * m, operands, (square, f32), compiled=True))

    rows, weight = ((8192, 4096), f32), ((4096,), f32)
    found.append(Case("row/softmax/8192x4096", lambda x: torch.softmax(x, 1), [rows], rows, compiled=True))
    norm = lambda x, w: F.rms_norm(x, (4096,), w, 1e-5)
    found.append(Case("row/rms_norm/8192x4096", norm, [rows, weight], rows, compiled=True))
    norm = lambda x, w, b: F.layer_norm(x, (4096,), w, b, 1e-5)
    found.append(Case("row/layer_norm/8192x4096", norm, [rows, weight, weight], rows, compiled=True))
    found.append(Case("sum/last/16384x4096", lambda x: x.sum(1), [(square, f32)], ((16384,), f32), compiled=True))
    found.append(Case("sum/first/16384x4096", lambda x: x.sum(0), [(square, f32)], ((4096,), f32), compiled=True))
    return found


def measure(case, seconds):
    """Times of one instance in microseconds, one for each run."""
    count = case.instances()
    make = lambda operand: torch.randn(operand[0], device="cuda", dtype=torch.float32).to(operand[1])
    operands = [[make(operand) for operand in case.operands] for _ in range(count)]
    body = torch.compile(case.body, dynamic=False) if case.compiled else case.body
    with torch.no_grad():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                results = [body(*each) for each in operands]
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = [body(*each) for each in operands]
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        times, spent, warm = [], 0.0, 0.0
        while spent < seconds * 1e3 or len(times) < 3:
            before.record()
            graph.replay()
            after.record()
            after.synchronize()
            took = before.elapsed_time(after)
            if warm < seconds * 250.0:
                warm += took
                continue
            spent += took
            times.append(took * 1e3 / count)
    if not all(torch.isfinite(result).all() for result in results):
        raise RuntimeError("results are not finite")
    return sorted(times), count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names, or what they begin with")
    parser.add_argument("--seconds", type=float, default=0.5, help="time to measure each case for")
    parser.add_argument("--out", help="file to write instead of standard output")
    parser.add_argument("--list", action="store_true", help="print the names and measure nothing")
    args = parser.parse_args()
    picked = [w for w in cases() if not args.cases or any(w.name.startswith(prefix) for prefix in args.cases)]
    if args.list:
        print("\n".join(case.name for case in picked))
        return
    if not torch.cuda.is_available():
        sys.exit("bench_torch.py needs a CUDA device")
    out = open(args.out, "w", encoding="utf-8") if args.out else sys.stdout
    for case in picked:
        row = {"name": case.name, "program": f"torch {torch.__version__}", "device": torch.cuda.get_device_name()}
        row |= {"driver": f"CUDA {torch.version.cuda}", "bytes": case.bytes(), "flops": case.flops}
        try:
            times, count = measure(case, args.seconds)
            median = statistics.median(times)
            row |= {"median_us": median, "min_us": times[0], "runs": len(times), "instances": count}
            row |= {"p10_us": times[len(times) // 10], "p90_us": times[-1 - len(times) // 10]}
            row |= {"gbps": case.bytes() / median / 1e3, "working_set": count * case.bytes()}
            if case.flops:
                row["tflops"] = case.flops / median / 1e6
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            row["failed"] = str(error).splitlines()[0]
        print(json.dumps(row), file=out, flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
