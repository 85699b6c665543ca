#!/usr/bin/env python3
"""compare_llama_cpp.py MODEL.gguf TEXT [--tallow PATH] [--device DEVICE]: greedy texts and perplexity against llama.cpp's CPU backend.
compare_llama_cpp.py --self MODEL.gguf [TEXT] [--reference FILE] [--base FILE]: llama.cpp's CPU backend against itself.

Needs the PyPI packages llama-cpp-python (built from source) and numpy, and without --self a built `tallow` command. Prints,
for each of 20 prompts, whether 32 greedy tokens are equal, and where not, how far apart llama.cpp's two best logits lie at
the first difference; then the perplexity of both on the first chunks of TEXT.

With --self, runs llama.cpp with settings that change kernels or the order of operations, and prints a table against its
plain run: equal texts, gaps as above, and along the plain run's tokens how far logits and the distance between its two best
tokens move. With --base, the plain run may come from another build of llama.cpp (LLAMA_CPP_LIB_PATH names its folder)."""

import argparse
import json
import math
import os
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
# Settings of the plain run, and what the others change. The last two also change which numbers of attention are f16.
PLAIN = {"n_threads": 1, "n_threads_batch": 1}
VARIATIONS = {
    "same settings": {},
    "two threads": {"n_threads": 2, "n_threads_batch": 2},
    "prompt token by token": {"n_batch": 1, "n_ubatch": 1},
    "repacked weights": {"extra": True},
    "flash attention": {"flash_attn": True},
    "f32 cache": {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32},
}


def greedy(model, prompt, forced=None):
    """The tokens that follow the prompt, up to one that ends the text, and the logits before each; or the logits along `forced`."""
    model.reset()
    model.eval(model.tokenize(prompt.encode(), add_bos=True, special=True))
    tokens, logits = [], []
    for step in range(COUNT if forced is None else len(forced)):
        row = np.array(model.scores[model.n_tokens - 1], dtype=np.float32)
        tokens.append(int(row.argmax()) if forced is None else int(forced[step]))
        logits.append(row)
        if llama_cpp.llama_vocab_is_eog(model._model.vocab, tokens[-1]):
            break
        model.eval(tokens[-1:])
    return tokens, np.array(logits)


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


def load(path, extra=False, **settings):
    """The model with plain CPU buffers: those for AMX crash on virtual machines that announce it and do not have it."""
    defaults = llama_cpp.llama_cpp.llama_model_default_params

    def plain():
        params = defaults()
        params.use_extra_bufts = extra
        return params

    llama_cpp.llama_cpp.llama_model_default_params = plain
    try:
        return llama_cpp.Llama(path, **{"n_ctx": 512, "n_batch": 512, "logits_all": True, "verbose": False, **settings})
    finally:
        llama_cpp.llama_cpp.llama_model_default_params = defaults


def first_difference(a, b):
    """The index of the first token that differs, or None where the texts are equal."""
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)
    return min(len(a), len(b)) if at is None and len(a) != len(b) else at


def gap(row):
    best = np.sort(row)[-2:]
    return float(best[1] - best[0])


def plain_run(args):
    """Tokens and logits of each prompt with plain settings: from the file --base where it exists, else computed and kept there."""
    if args.base and os.path.exists(args.base):
        with np.load(args.base) as file:
            return [(file[f"tokens{i}"].tolist(), file[f"logits{i}"]) for i in range(len(PROMPTS))]
    model = load(args.model, **PLAIN)
    run = [greedy(model, prompt) for prompt in PROMPTS]
    if args.base:
        kept = {f"tokens{i}": tokens for i, (tokens, _) in enumerate(run)}
        np.savez(args.base, **kept, **{f"logits{i}": logits for i, (_, logits) in enumerate(run)})
    return run


def compare_self(args):
    """A table of llama.cpp's runs against its plain one. All follow the tokens of the plain run, so that logits can be compared;
    where the greedy texts differ first, the best tokens do too."""
    base = plain_run(args)
    runs = [(name, args.model, settings) for name, settings in VARIATIONS.items()]
    runs += [("--reference", args.reference, {})] if args.reference else []
    heads = ["run", "equal", f"within {NEAR}", "beyond", "gaps at the first differences", "logits differ: mean, max"]
    heads += ["gap moves: mean, max", "perplexity"]
    print("|", " | ".join(heads), "|\n" + "|---" * len(heads) + "|")
    for name, path, settings in runs:
        model = load(path, **{**PLAIN, **settings})
        gaps, off, moves = [], [], []
        for prompt, (tokens, logits) in zip(PROMPTS, base):
            other = greedy(model, prompt, tokens)[1]
            at = first_difference(tokens, other.argmax(axis=1).tolist())
            gaps += [] if at is None else [gap(logits[at])]
            off.append(np.abs(other - logits))
            best = np.argsort(logits, axis=1)[:, -2:]
            apart = [np.diff(np.take_along_axis(rows, best, axis=1)) for rows in (logits, other)]
            moves.append(np.abs(apart[1] - apart[0]))
        far = sum(g >= NEAR for g in gaps)
        cells = [name, len(PROMPTS) - len(gaps), len(gaps) - far, far, " ".join(f"{g:.3f}" for g in sorted(gaps))]
        cells += [f"{np.mean([x.mean() for x in rows]):.4f}, {max(x.max() for x in rows):.3f}" for rows in (off, moves)]
        cells.append(f"{perplexity(model, read(args.text), 512, args.chunks):.4f}" if args.text else "")
        print("|", " | ".join(str(cell) for cell in cells), "|", flush=True)
        model.close()


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def compare_tallow(args):
    model = load(args.reference or args.model)
    equal, near, far = 0, 0, 0
    for prompt in PROMPTS:
        theirs, logits = greedy(model, prompt)
        theirs = [token for token in theirs if not llama_cpp.llama_vocab_is_eog(model._model.vocab, token)]
        at = first_difference(theirs, ours(args, prompt))
        if at is None:
            equal += 1
            print(f"equal  {prompt!r}")
            continue
        apart = gap(logits[at])
        near, far = near + (apart < NEAR), far + (apart >= NEAR)
        print(f"differ {prompt!r}: token {at}, {apart:.4f} between the two best logits")
    print(f"{equal} of {len(PROMPTS)} equal, {near} differ within {NEAR}, {far} beyond")
    theirs = perplexity(model, read(args.text), 512, args.chunks)
    command = [args.tallow, "perplexity", "--model", args.model, "--file", args.text, "--ctx", "512", "--json"]
    run = subprocess.run(command + ["--chunks", str(args.chunks), "--device", args.device], check=True, capture_output=True)
    mine = json.loads(run.stdout)["perplexity"]
    print(f"perplexity {mine:.4f} here, {theirs:.4f} by llama.cpp: {100 * (mine / theirs - 1):+.3f} %")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("text", nargs="?", help="a file of text for perplexity; --self does without")
    parser.add_argument("--self", action="store_true", help="compare llama.cpp with itself under other settings; needs no tallow")
    parser.add_argument("--base", help="with --self: .npz file of the plain run, read if it exists, else written")
    parser.add_argument("--tallow", default="target/debug/tallow")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--activations", default="auto", help="as for `tallow generate`")
    parser.add_argument(
        "--reference",
        help="the file that llama.cpp runs, such as the same weights in F32 [default: MODEL]; with --self, one more line of the table",
    )
    parser.add_argument("--chunks", type=int, default=4)
    args = parser.parse_args()
    if args.self:
        compare_self(args)
    elif args.text is None:
        parser.error("TEXT is needed without --self")
    else:
        compare_tallow(args)


if __name__ == "__main__":
    main()
