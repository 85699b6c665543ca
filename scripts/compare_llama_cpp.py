#!/usr/bin/env python3
"""compare_llama_cpp.py MODEL.gguf TEXT [--tallow PATH] [--device DEVICE]: greedy texts and perplexity against llama.cpp's CPU backend.

Needs the PyPI packages llama-cpp-python (built from source) and numpy, and a built `tallow` command. Prints, for each of 20
prompts, whether 32 greedy tokens are equal, and where not, how far apart llama.cpp's two best logits lie at the first
difference; then the perplexity of both on the first chunks of TEXT."""

import argparse
import json
import math
import subprocess

import llama_cpp
import numpy as np

PROMPTS = [
    "Once upon a time",
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):",
    "The three primary colours are",
    "In 1969, the first man",
    "To bake bread, you need",
    "The sun rises in the",
    "My favourite book is",
    "import numpy as np\n",
    "The mitochondria is",
    "A good night's sleep",
    "The largest planet in our solar system",
    "Shakespeare wrote",
    "The quick brown fox",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,",
    "The best way to learn a language is",
    "When it rains, the streets",
    "An electron is a particle",
]
COUNT = 32
NEAR = 0.05


def greedy(model, prompt):
    """The ids of the prompt, those that follow, and the logits before each."""
    ids = model.tokenize(prompt.encode(), add_bos=True, special=True)
    model.reset()
    model.eval(ids)
    tokens, logits = [], []
    for _ in range(COUNT):
        row = np.array(model.scores[model.n_tokens - 1], dtype=np.float32)
        token = int(row.argmax())
        if llama_cpp.llama_vocab_is_eog(model._model.vocab, token):
            break
        tokens.append(token)
        logits.append(row)
        model.eval([token])
    return ids, tokens, logits


def ours(args, prompt):
    command = [args.tallow, "generate", "--model", args.model, "--prompt", prompt, "--max-tokens", str(COUNT), "--json"]
    command += ["--activations", args.activations]
    return json.loads(subprocess.run(command + ["--device", args.device], check=True, capture_output=True).stdout)["tokens"]


def perplexity(model, text, context, chunks):
    """llama.cpp's measure: each chunk starts with the begin token where the model has one; the second half counts."""
    ids = model.tokenize(text.encode(), add_bos=True, special=False)
    bos = llama_cpp.llama_vocab_bos(model._model.vocab)
    adds = llama_cpp.llama_vocab_get_add_bos(model._model.vocab)
    total, count = 0.0, 0
    for chunk in range(min(chunks, len(ids) // context)):
        part = list(ids[chunk * context : (chunk + 1) * context])
        if adds:
            part[0] = bos
        model.reset()
        model.eval(part)
        for i in range(context // 2, context - 1):
            row = np.array(model.scores[i], dtype=np.float64)
            top = row.max()
            total += math.log(np.exp(row - top).sum()) + top - row[part[i + 1]]
            count += 1
    return math.exp(total / count)


def load(path):
    """The model with plain CPU buffers: those for AMX crash on virtual machines that announce it and do not have it."""
    defaults = llama_cpp.llama_cpp.llama_model_default_params

    def plain():
        params = defaults()
        params.use_extra_bufts = False
        return params

    llama_cpp.llama_cpp.llama_model_default_params = plain
    return llama_cpp.Llama(path, n_ctx=512, n_batch=512, logits_all=True, verbose=False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--tallow", default="target/debug/tallow")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--activations", default="auto", help="as for `tallow generate`")
    parser.add_argument("--reference", help="the file that llama.cpp runs, such as the same weights in F32 [default: MODEL]")
    parser.add_argument("--chunks", type=int, default=4)
    args = parser.parse_args()
    model = load(args.reference or args.model)
    equal, near, far = 0, 0, 0
    for prompt in PROMPTS:
        _, theirs, logits = greedy(model, prompt)
        mine = ours(args, prompt)
        at = next((i for i, (a, b) in enumerate(zip(theirs, mine)) if a != b), None)
        if at is None and len(theirs) == len(mine):
            equal += 1
            print(f"equal  {prompt!r}")
            continue
        at = min(len(theirs), len(mine)) - 1 if at is None else at
        best = np.sort(logits[at])[-2:]
        gap = float(best[1] - best[0])
        near, far = near + (gap < NEAR), far + (gap >= NEAR)
        print(f"differ {prompt!r}: token {at}, {gap:.4f} between the two best logits")
    print(f"{equal} of {len(PROMPTS)} equal, {near} differ within {NEAR}, {far} beyond")
    with open(args.text, encoding="utf-8") as file:
        theirs = perplexity(model, file.read(), 512, args.chunks)
    command = [args.tallow, "perplexity", "--model", args.model, "--file", args.text, "--ctx", "512", "--json"]
    run = subprocess.run(command + ["--chunks", str(args.chunks), "--device", args.device], check=True, capture_output=True)
    mine = json.loads(run.stdout)["perplexity"]
    print(f"perplexity {mine:.4f} here, {theirs:.4f} by llama.cpp: {100 * (mine / theirs - 1):+.3f} %")


if __name__ == "__main__":
    main()
