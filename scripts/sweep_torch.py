#!/usr/bin/env python3
"""PyTorch's times of the networks of `tallow bench networks`, by the same names, as JSON lines.

    tallow bench networks --seeds 0..99 --describe networks.json
    python3 scripts/sweep_torch.py --networks networks.json --out torch.jsonl
    tallow bench networks --seeds 0..99 --compare torch.jsonl

Needs PyTorch with CUDA. Each network runs as it is (eager) and through torch.compile, both captured in CUDA graphs, TF32 off.
`median_us` is the faster of both. With `--check`, descriptions of `--quick` are computed on the CPU and compared with the
results that they include; this needs no CUDA.
"""

import argparse
import functools
import json
import sys

import torch

from sweep_torch import networks, timing


def measure(args, out):
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    modes = {"all": timing.MODES, "none": ()}.get(args.mode, (args.mode,))
    failed = 0
    for description in networks.load(args.networks):
        function = networks.function(description)
        inputs = functools.partial(networks.random_inputs, description, "cuda")
        row = timing.measure(description["name"], function, inputs, args.seconds, modes)
        failed += "failed" in row
        print(json.dumps(row), file=out, flush=True)
    return failed


def check(args):
    failed = 0
    for description in networks.load(args.networks):
        try:
            error, limit = networks.check(description)
        except Exception as exception:
            error, limit = exception, None
        right = limit is not None and error <= limit
        failed += not right
        print(f"{description['name']}: {error}{'' if right else ' WRONG'}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", required=True, help="descriptions, from `tallow bench networks --describe`")
    parser.add_argument("--out", help="file to append to instead of standard output")
    parser.add_argument("--seconds", type=float, default=0.5, help="time to measure each network for")
    parser.add_argument("--mode", default="all", choices=["all", *timing.MODES, "none"], help="of torch.compile; all: the first that works")
    parser.add_argument("--check", action="store_true", help="compare results on the CPU instead of measuring")
    args = parser.parse_args()
    if args.check:
        failed = check(args)
    elif args.out:
        with open(args.out, "a") as out:
            failed = measure(args, out)
    else:
        failed = measure(args, sys.stdout)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
