#!/usr/bin/env python3
"""The training step of crates/frontend/examples/train_gpt.rs in PyTorch: tokens a second, eager and compiled.

Needs PyTorch and an NVIDIA GPU. Parameters are f32, products bf16 (autocast), attention is PyTorch's flash attention,
AdamW is the fused one, gradients are clipped. Prints one line for each mode. `--story main` measures a story model of
models/training/model.py in place of the GPT."""
import argparse
import pathlib
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        batch, time_, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time_, 3, self.heads, width // self.heads)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time_, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tokens = nn.Embedding(a.vocabulary, a.width)
        self.positions = nn.Embedding(a.context, a.width)
        self.layers = nn.ModuleList(Layer(a.width, a.heads) for _ in range(a.layers))
        self.last = nn.LayerNorm(a.width)
        for p in self.parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.last(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def story(a):
    sys.path.append(str(pathlib.Path(__file__).parent.parent / "models" / "training"))
    from model import CONFIGS, Llama

    config = CONFIGS[a.story]
    a.vocabulary = config.vocab_size
    config.dropout = a.dropout
    return Llama(config)


def measure(a, compiled):
    torch.manual_seed(0)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    gpt = (story(a) if a.story else Gpt(a)).cuda()
    model = torch.compile(gpt) if compiled else gpt
    groups = [
        {"params": [p for p in gpt.parameters() if p.dim() >= 2], "weight_decay": 0.01},
        {"params": [p for p in gpt.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, lr=1e-3, fused=True)
    drawn = torch.randint(a.vocabulary, (a.batch, a.context + 1), device="cuda")
    tokens, targets = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        return loss

    first = step().item()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    start = time.time()
    for _ in range(a.steps):
        loss = step()
    torch.cuda.synchronize()
    seconds = time.time() - start
    name = "compiled" if compiled else "eager"
    print(
        f"{name}: loss {first:.4f} to {loss.item():.4f}, {1e3 * seconds / a.steps:.2f} ms a step, "
        f"{a.steps * a.batch * a.context / seconds:.0f} tokens/s, "
        f"{torch.cuda.max_memory_allocated() / 1e9:.2f} GB at most",
        flush=True,
    )


parser = argparse.ArgumentParser(description=__doc__)
for name, default in [("layers", 12), ("width", 768), ("heads", 12), ("vocabulary", 50304), ("context", 1024)]:
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--story", help="main or nano")
parser.add_argument("--dropout", type=float, default=0.0, help="of the story model")
parser.add_argument("--eager", action="store_true", help="leave the compiled one out")
arguments = parser.parse_args()
torch.backends.cuda.matmul.allow_tf32 = False
measure(arguments, False)
if not arguments.eager:
    measure(arguments, True)
