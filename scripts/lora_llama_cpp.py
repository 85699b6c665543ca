#!/usr/bin/env python3
"""Compares the greedy text of `tallow generate --lora` with llama.cpp's, for a model and a LoRA adapter.

Needs llama-cpp-python. Both read the same files. The texts must be equal up to the first token at which llama.cpp's best
two logits are closer than `--tie`: there, other rounding may choose the other token. Prints a line for each prompt, and
exits with 1 if a text differs elsewhere.

    python3 scripts/lora_llama_cpp.py --model models/storyteller-nano-f16.gguf --lora adapter.gguf
"""
import argparse
import json
import subprocess
import sys

import llama_cpp

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--tallow", default="target/debug/tallow", help="the program")
parser.add_argument("--model", required=True)
parser.add_argument("--lora", required=True)
parser.add_argument("--scale", type=float, default=1.0, help="how much the adapter counts")
parser.add_argument("--prompts", default="models/prompts.txt", help="one a line")
parser.add_argument("--tokens", type=int, default=48)
parser.add_argument("--tie", type=float, default=0.05, help="logits this close are a tie")
parser.add_argument("--device", default="cpu", help="where tallow runs")
a = parser.parse_args()


def ours(prompt):
    """The tokens that tallow generates."""
    command = [a.tallow, "generate", "--device", a.device, "--json", "--model", a.model, "--prompt", prompt]
    command += ["--lora", f"{a.lora}:{a.scale}", "--max-tokens", str(a.tokens), "--activations", "exact"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["tokens"]


llama = llama_cpp.Llama(
    model_path=a.model, lora_path=a.lora, lora_scale=a.scale, n_ctx=512, logits_all=True, verbose=False
)
failed = False
for prompt in open(a.prompts, encoding="utf-8").read().splitlines():
    if not prompt:
        continue
    tokens = ours(prompt)
    llama.reset()
    llama.eval(llama.tokenize(prompt.encode(), add_bos=True))
    result = f"{len(tokens)} equal tokens"
    for at, token in enumerate(tokens):
        logits = llama.scores[llama.n_tokens - 1]
        first, second = (int(i) for i in logits.argsort()[::-1][:2])
        if first != token:
            gap = float(logits[first] - logits[second])
            failed |= gap >= a.tie
            name = "a tie" if gap < a.tie else "NOT a tie"
            below = float(logits[first] - logits[token])
            result = f"{at} equal tokens, then {name}: {first} is {gap:.4f} above {second}"
            result += f", tallow has {token}, {below:.4f} below"
            break
        llama.eval([token])
    print(f"{prompt!r}: {result}", flush=True)
sys.exit(failed)
