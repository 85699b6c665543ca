#!/usr/bin/env python3
"""The losses of the first steps of storyteller-nano's training in PyTorch, in f32, on the CPU and on a GPU.

crates/models/tests/models/curve.rs takes the same steps and compares. Weights, batches and hyperparameters need no files but
the tokens: weights and windows come from a counter-based generator that both have. The model and AdamW's settings are those
of models/training.

  python3 scripts/curve_torch.py --tokens crates/models/tests/fixtures/story.tokens.json --out OUT.json"""
import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "models/training"))
from model import CONFIGS, Llama  # noqa: E402


def mixed(counter):
    """SplitMix64 of an array of u64."""
    with np.errstate(over="ignore"):
        x = (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def normal(number, count, deviation):
    """Weights of matrix `number`: the sum of four uniform numbers of 16 bits, less its mean, with this deviation."""
    bits = mixed(mixed(np.uint64(number)) ^ np.arange(count, dtype=np.uint64))
    parts = sum((bits >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)).astype(np.float64)
    return ((parts - 131070.0) * (deviation / math.sqrt((65536.0**2 - 1) / 3))).astype(np.float32)


def windows(tokens, seed, step, batch, context):
    """Those of `tallow_models::train::Windows`."""
    places = len(tokens) - context
    rows = []
    for row in range(batch):
        drawn = int(mixed(mixed(np.uint64(seed)) ^ np.uint64(step * batch + row)))
        at = drawn * places >> 64
        rows.append(tokens[at : at + context + 1])
    return np.stack(rows)


def losses(tokens, device, a):
    cfg = CONFIGS["nano"]
    cfg.dropout = 0.0
    model = Llama(cfg)
    with torch.no_grad():
        for number, (name, p) in enumerate((n, p) for n, p in model.named_parameters() if p.dim() == 2):
            residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            deviation = 0.02 / math.sqrt(2 * cfg.n_layer) if residual else 0.02
            p.copy_(torch.from_numpy(normal(number, p.numel(), deviation)).view_as(p))
    model.to(device).train()
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.95), eps=1e-8)
    found = []
    for step in range(a.steps):
        f = min(1.0, (step + 1) / a.warmup) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / a.steps)))
        for group in opt.param_groups:
            group["lr"] = a.lr * f
        block = torch.from_numpy(windows(tokens, 1, step, a.batch, a.context)).to(device)
        loss = model(block[:, :-1], block[:, 1:])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        found.append(loss.detach())
    return [float(x) for x in found]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tokens", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--warmup", type=int, default=20)
    ap.add_argument("--batch", type=int, default=2)
    ap.add_argument("--context", type=int, default=64)
    ap.add_argument("--lr", type=float, default=3e-3)
    a = ap.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    tokens = np.array(json.load(open(a.tokens)), dtype=np.int64)
    out = {name: getattr(a, name) for name in ("steps", "warmup", "batch", "context", "lr")}
    out["torch"] = torch.__version__
    for device in ("cpu", "cuda"):
        out[device] = [round(x, 7) for x in losses(tokens, device, a)]
        print(device, out[device][0], out[device][-1], flush=True)
    print("largest gap", max(abs(x - y) for x, y in zip(out["cpu"], out["cuda"])))
    Path(a.out).write_text(json.dumps(out) + "\n")


main()
