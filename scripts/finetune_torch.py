#!/usr/bin/env python3
"""LoRA fine-tuning in PyTorch, from the same weights, adapters and windows as `tallow finetune` on the CPU.

Needs PyTorch, safetensors and numpy. Reads what crates/models/examples/finetune_reference.rs wrote, and prints the loss
of each step as JSON: {"cpu": [..], "cuda": [..]}, without "cuda" where there is none. The loss is that before the step.

    tallow quantize --type Q4_K_M models/storyteller-nano-f16.gguf nano.gguf
    cargo run -p tallow-models --example finetune_reference -- nano.gguf LICENSE-APACHE reference.safetensors
    python3 scripts/finetune_torch.py reference.safetensors > tests/fixtures/finetune/torch_losses.json
"""
import json
import math
import sys

import torch
import torch.nn.functional as F
from safetensors import safe_open


def linear(t, name, x, scale):
    """The product with a frozen weight, and that of its adapter."""
    y = F.linear(x, t[name])
    if f"{name}.lora_a" not in t:
        return y
    return y + F.linear(F.linear(x, t[f"{name}.lora_a"]) * scale, t[f"{name}.lora_b"])


def norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x, cos, sin):
    """Rope of neighbours, as GGUF files of the architecture llama have it; x is (batch, heads, time, length)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def loss_of(t, s, tokens, targets):
    batch, time = tokens.shape
    heads, kv_heads, scale = int(s["heads"]), int(s["kv_heads"]), s["scale"]
    x = t["token_embd.weight"][tokens]
    length = t["blk.0.attn_q.weight"].shape[0] // heads
    frequency = s["rope_base"] ** (-torch.arange(0, length, 2, dtype=torch.float64) / length)
    angle = torch.outer(torch.arange(time, dtype=torch.float64), frequency)
    cos, sin = angle.cos().float().to(x.device), angle.sin().float().to(x.device)
    for layer in range(int(s["layers"])):
        at = f"blk.{layer}."
        h = norm(x, t[f"{at}attn_norm.weight"], s["rms_eps"])

        def split(part, count):
            return linear(t, f"{at}attn_{part}.weight", h, scale).view(batch, time, count, length).transpose(1, 2)

        q, k = rotate(split("q", heads), cos, sin), rotate(split("k", kv_heads), cos, sin)
        v = split("v", kv_heads)
        k, v = (y.repeat_interleave(heads // kv_heads, 1) for y in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(length)
        future = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        mixed = mixed.transpose(1, 2).reshape(batch, time, heads * length)
        x = x + linear(t, f"{at}attn_output.weight", mixed, scale)
        h = norm(x, t[f"{at}ffn_norm.weight"], s["rms_eps"])
        gate = F.silu(linear(t, f"{at}ffn_gate.weight", h, scale))
        x = x + linear(t, f"{at}ffn_down.weight", gate * linear(t, f"{at}ffn_up.weight", h, scale), scale)
    output = t["output.weight"] if "output.weight" in t else t["token_embd.weight"]
    logits = F.linear(norm(x, t["output_norm.weight"], s["rms_eps"]), output)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def rate(s, step, steps):
    """Linear warm-up, then a cosine to 0."""
    if step < s["warmup"]:
        return s["learning_rate"] * (step + 1) / s["warmup"]
    progress = (step - s["warmup"]) / max(steps - s["warmup"], 1)
    return s["learning_rate"] * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def train(path, device):
    with safe_open(path, "pt") as file:
        t = {name: file.get_tensor(name).to(device) for name in file.keys()}
        s = {name: float(value) for name, value in file.metadata().items()}
    tokens, targets = t.pop("tokens"), t.pop("targets")
    adapters = [t[name].requires_grad_() for name in t if ".lora_" in name]
    adam = torch.optim.AdamW(adapters, lr=s["learning_rate"], betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    losses = []
    for step in range(len(tokens)):
        for group in adam.param_groups:
            group["lr"] = rate(s, step, len(tokens))
        loss = loss_of(t, s, tokens[step], targets[step])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(adapters, s["clip"])
        adam.step()
        adam.zero_grad()
        losses.append(loss.item())
    return losses


torch.backends.cuda.matmul.allow_tf32 = False
result = {"torch": torch.__version__, "cpu": train(sys.argv[1], "cpu")}
if torch.cuda.is_available():
    result["cuda"] = train(sys.argv[1], "cuda")
print(json.dumps(result))
