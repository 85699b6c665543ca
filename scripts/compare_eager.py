#!/usr/bin/env python3
"""Loops that force their values in every iteration, in PyTorch eager and in Tallow, side by side.

    cargo build -p tallow-benches --example eager
    python3 scripts/compare_eager.py target/debug/examples/eager [PROGRAM ..]

PyTorch needs CUDA, unless --skip-torch leaves its column empty. Both sides run the same programs with the same shapes,
types and numbers of iterations: one loop to warm up, then --repetitions loops, each between two synchronizations of the
device; the median time per iteration is shown. PyTorch uses plain loops: no CUDA graphs, no torch.compile. Options behind
-- go to the Tallow program, say `-- --device cpu --scale 64`. The exit status is 1 if a limit is missed or a result is
wrong."""

import argparse
import json
import statistics
import subprocess
import sys
import time

# Name: iterations, the largest ratio to PyTorch's time, the largest time in microseconds.
PROGRAMS = {
    "relu_matmul": (50, 2.7, None),
    "tanh_chain": (200, 0.8, None),
    "mean_tanh": (200, 1.0, None),
    "small_add": (2000, None, 25.0),
    "perceptron": (500, 1.0, None),
}
RATE = 0.05


def torch_programs(torch):
    """For each name a function that makes the values that a loop starts with, and an iteration on them.

    As in Tallow's programs, loops start from the same values each time. An iteration may update in place what is its
    own, as code written for eager would."""

    def normal(deviation, *shape, dtype=torch.float32):
        return (torch.randn(*shape, device="cuda") * deviation).to(dtype)

    def relu_matmul():
        w = normal((2 / 4096) ** 0.5, 4096, 4096, dtype=torch.float16)
        x = normal(1.0, 4096, 4096, dtype=torch.float16)

        def step(values):
            values[0] = torch.relu(values[0] @ w)

        return [x], step

    def tanh_chain():
        q = normal(1.0, 4096, 4096)

        def step(values):
            values[0] = torch.tanh(values[0] * q + 1)

        return [normal(1.0, 4096, 4096)], step

    def mean_tanh():
        p, q = normal(1.0, 4096, 4096), normal(1.0, 4096, 4096)

        def step(values):
            values[0] = torch.tanh(p * q).mean()
            values[0].item()

        return [torch.zeros((), device="cuda")], step

    def small_add():
        x, b = normal(1.0, 16), normal(1.0, 16)

        def step(values):
            values[0] = x + b

        return [x], step

    def perceptron():
        x = normal(0.5, 64, 784)
        classes = torch.zeros(64, 10, device="cuda")
        classes[torch.arange(64), torch.arange(64) * 7 % 10] = 1
        w1, w2 = normal((2 / 784) ** 0.5, 784, 512), normal((2 / 512) ** 0.5, 512, 10)
        b1, b2 = torch.zeros(512, device="cuda"), torch.zeros(10, device="cuda")

        def step(values):
            w1, b1, w2, b2 = values
            before = torch.addmm(b1, x, w1)
            hidden = torch.relu(before)
            p = torch.softmax(torch.addmm(b2, hidden, w2), 1)
            of_scores = (p - classes) / 64
            of_hidden = (of_scores @ w2.t()) * (before > 0)
            w1.sub_(x.t() @ of_hidden, alpha=RATE)
            b1.sub_(of_hidden.sum(0), alpha=RATE)
            w2.sub_(hidden.t() @ of_scores, alpha=RATE)
            b2.sub_(of_scores.sum(0), alpha=RATE)

        return [w1, b1, w2, b2], step

    return {f.__name__: f for f in (relu_matmul, tanh_chain, mean_tanh, small_add, perceptron)}


def time_torch(names, repetitions):
    """Microseconds per iteration, by name."""
    import torch

    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device; --skip-torch does without")
    found = {}
    with torch.no_grad():
        programs = torch_programs(torch)
        for name in names:
            start, step = programs[name]()
            times = [time_loop(torch, start, step, PROGRAMS[name][0]) for _ in range(1 + repetitions)]
            found[name] = statistics.median(times[1:])
            torch.cuda.empty_cache()
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}")
    return found


def time_loop(torch, start, step, iterations):
    values = [value.clone() for value in start]
    torch.cuda.synchronize()
    before = time.perf_counter()
    for _ in range(iterations):
        step(values)
    values[0].flatten()[0].item()
    torch.cuda.synchronize()
    took = time.perf_counter() - before
    if not all(torch.isfinite(value).all() for value in values):
        sys.exit("PyTorch's values are not finite")
    return took * 1e6 / iterations


def time_tallow(binary, names, repetitions, options):
    """The rows that the program prints, by name."""
    command = [binary, *names, "--repetitions", str(repetitions), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
    if len(rows) != len(names):
        sys.exit(f"{binary} gave {len(rows)} of {len(names)} rows, exit status {done.returncode}")
    return {row["name"]: row for row in rows}


def judged(name, torch_time, row):
    """The ratio to PyTorch and the limit as text, and the verdict."""
    iterations, most_ratio, most_time = PROGRAMS[name]
    ratio = row["microseconds"] / torch_time if torch_time else None
    limit = f"<= {most_ratio}x" if most_ratio else f"<= {most_time:g} us"
    if row["wrong"]:
        verdict = "WRONG"
    elif row["iterations"] != iterations or row["scale"] != 1:
        verdict = "other size"
    elif most_ratio and ratio is None:
        verdict = "-"
    else:
        met = ratio <= most_ratio if most_ratio else row["microseconds"] <= most_time
        verdict = "pass" if met else "FAIL"
    return (f"{ratio:.2f}x" if ratio else "-"), limit, verdict


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="the program that `--example eager` of tallow-benches builds")
    parser.add_argument("programs", nargs="*", help="all of them, if none is named")
    parser.add_argument("--skip-torch", action="store_true", help="time Tallow alone")
    parser.add_argument("--repetitions", type=int, default=7)
    words = sys.argv[1:]
    options = []
    if "--" in words:
        at = words.index("--")
        words, options = words[:at], words[at + 1 :]
    args = parser.parse_args(words)
    names = [name for name in PROGRAMS if not args.programs or name in args.programs]
    if unknown := set(args.programs) - set(PROGRAMS):
        sys.exit(f"no such program: {', '.join(sorted(unknown))}")

    torch_times = {} if args.skip_torch else time_torch(names, args.repetitions)
    rows = time_tallow(args.binary, names, args.repetitions, options)
    print(f"Tallow on {rows[names[0]]['device']}\n")
    line = "{:12} {:>12} {:>12} {:>8} {:>10}  {}".format
    print(line("program", "PyTorch us", "Tallow us", "ratio", "limit", "verdict"))
    verdicts = []
    for name in names:
        row, torch_time = rows[name], torch_times.get(name)
        ratio, limit, verdict = judged(name, torch_time, row)
        verdicts.append(verdict)
        print(line(name, f"{torch_time:.1f}" if torch_time else "-", f"{row['microseconds']:.1f}", ratio, limit, verdict))
    for name in names:
        row = rows[name]
        per = ", ".join(f"{key} {value:.2f}" for key, value in row["per_iteration"].items())
        seen = ", ".join(f"{key} {value:.4g}" for key, value in row["figures"].items() if value is not None)
        print(f"{name}: {row['least']:.1f} to {row['most']:.1f} us; per iteration: {per or 'not counted'}; {seen}")
        for wrong in row["wrong"]:
            print(f"  wrong: {wrong}")
    sys.exit(1 if {"FAIL", "WRONG"} & set(verdicts) else 0)


if __name__ == "__main__":
    main()
