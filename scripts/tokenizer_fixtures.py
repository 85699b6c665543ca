#!/usr/bin/env python3
"""tokenizer_fixtures.py OUT [NAME=VOCAB.gguf ...] [--local DIR]: fixtures of tokenizers, made by other programs.

Writes into OUT (crates/gguf/tests/fixtures/tokenizers):
  lines.json.gz       1,000 texts, always the same (tokenizer_lines.py)
  splits.json.gz      how Python's regex module splits 100 of them by each rule of docs/tokenizers.md
  NAME.vocab.json     for each NAME=VOCAB.gguf, the part of its vocabulary that those texts can ever need
  NAME.ids.gz         the ids of each text by llama.cpp: of the text as ordinary text, and after a tab, where it makes a
                      difference beyond begin and end tokens, of the text with its special tokens

NAME is smollm, gpt-2, qwen2, phi-3, or unigram or wordpiece with what tokenizer_small.py writes; gpt-2 also writes
llama-bpe.ids.gz, GPT-2's vocabulary under the rules of Llama 3. Commit only vocabularies whose licences allow it: those of SmolLM2, GPT-2, Qwen2 and Phi-3 do.
The reduced vocabulary is written as a GGUF file again, and llama.cpp must give the same ids with it as with the whole.

With --local DIR, also writes what crates/gguf/tests/tokenizers_local.rs reads: the ids of all 1,000 texts with the
vocabularies given, and with GPT-2's under each name of a pre-tokenizer.

Needs the PyPI packages llama-cpp-python, gguf, regex and tokenizers. The vocabularies are llama.cpp's models/ggml-vocab-*.gguf,
and any GGUF file of SmolLM2. The ids of wordpiece are those of the tokenizers package."""

import gzip
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import regex
import tokenizers

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tokenizer_lines import lines  # noqa: E402

DOCS = Path(__file__).resolve().parent.parent / "docs" / "tokenizers.md"
# Vocabularies of fewer tokens are fixtures as a whole.
WHOLE = 8192
SEPARATOR = "\n__ggml_vocab_test__\n"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


class Vocab:
    """The tokenizer's metadata of a GGUF file."""

    def __init__(self, path):
        fields = gguf.GGUFReader(path).fields
        self.values = {
            k: f.contents() for k, f in fields.items() if k.startswith("tokenizer.ggml.") or k == "general.name"
        }
        get = lambda key, default=None: self.values.pop("tokenizer.ggml." + key, default)
        self.tokens = get("tokens")
        self.kinds = get("token_type", [NORMAL] * len(self.tokens))
        self.scores = get("scores")
        self.merges = get("merges")
        self.types = {k: fields[k].types[0] for k in self.values}

    def write(self, path, keep, merges):
        """Writes the vocabulary with the tokens of `keep` (ids), placeholders for others, and these merges."""
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in self.values.items():
            writer.add_key_value(key, value, self.types[key])
        ids = range(len(self.tokens))
        writer.add_token_list([self.tokens[i] if i in keep else f"<unused{i}>" for i in ids])
        writer.add_token_types([self.kinds[i] if i in keep else UNUSED for i in ids])
        if self.scores is not None:
            writer.add_token_scores([self.scores[i] if i in keep else 0.0 for i in ids])
        if merges is not None:
            writer.add_token_merges(merges)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()


def byte_characters():
    """GPT-2's characters for bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def reduce(vocab, texts):
    """Ids of the tokens and the merges that encoding `texts` can need: those whose texts occur in them."""
    if len(vocab.tokens) < WHOLE:
        return set(range(len(vocab.tokens))), vocab.merges
    if vocab.merges is not None:
        chars = byte_characters()
        spelled = ["".join(chars[b] for b in text.encode()) for text in texts]
        always = set(chars.values())
    else:
        spelled = ["▁" + text.replace(" ", "▁") for text in texts]
        always = set()
    longest = max(map(len, vocab.tokens))
    occurring = {s[i:j] for s in spelled for i in range(len(s)) for j in range(i + 1, min(len(s), i + longest) + 1)}
    if vocab.merges is None:
        # What follows a special token is a text of its own, with a space in front.
        occurring |= {"▁" + part for part in occurring}
    keep = {
        i
        for i, (token, kind) in enumerate(zip(vocab.tokens, vocab.kinds))
        if token in occurring or token in always or kind not in (NORMAL, UNUSED)
    }
    merges = None
    if vocab.merges is not None:
        merges = [m for m in vocab.merges if m[0] + m[1:].replace(" ", "", 1) in occurring]
    return keep, merges


# llama.cpp warns whenever a text starts with a begin token.
QUIET = llama_cpp.llama_log_callback(lambda *_: None)
llama_cpp.llama_log_set(QUIET, None)


def encode(path, texts, pre=None):
    """What llama.cpp gives for each text: ordinary ids, and ids with special tokens."""
    overrides = {"tokenizer.ggml.pre": pre} if pre else None
    llama = llama_cpp.Llama(str(path), vocab_only=True, verbose=False, kv_overrides=overrides)
    both = [
        (llama.tokenize(t.encode(), add_bos=False, special=False), llama.tokenize(t.encode(), add_bos=True, special=True))
        for t in texts
    ]
    around = llama.tokenize(b"", add_bos=True, special=True)
    llama.close()
    return both, around


def end_ids(path):
    """The ids that end generation in llama.cpp."""
    llama = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    vocab = llama_cpp.llama_model_get_vocab(llama.model)
    return [i for i in range(llama.n_vocab()) if llama_cpp.llama_vocab_is_eog(vocab, i)]


def encode_bert(vocab, texts):
    """What the tokenizers package gives for each text: its normalization is BERT's, llama.cpp's is not quite."""
    ids = {t[1:] if t[0] == "▁" else t if k == CONTROL else "##" + t: i for i, (t, k) in enumerate(zip(vocab.tokens, vocab.kinds))}
    control = [t for t, k in zip(vocab.tokens, vocab.kinds) if k == CONTROL]

    def tokenizer():
        model = tokenizers.models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=1 << 30)
        made = tokenizers.Tokenizer(model)
        made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        return made

    ordinary, special = tokenizer(), tokenizer()
    special.add_special_tokens(control)
    around = [ids["[CLS]"], ids["[SEP]"]]
    both = [(ordinary.encode(t).ids, [around[0], *special.encode(t).ids, around[1]]) for t in texts]
    return both, around


def write_gzip(path, text):
    """Compresses a text. Neither a name nor a time is stored, so that the same text gives the same file."""
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, 0) as packed:
        packed.write(text.encode())


def write_ids(path, both, around):
    """One text a line. Begin and end tokens alone are no difference."""
    rows = []
    for ordinary, special in both:
        row = " ".join(map(str, ordinary))
        if [i for i in special if i not in around] != [i for i in ordinary if i not in around]:
            row += "\t" + " ".join(map(str, special))
        rows.append(row)
    write_gzip(path, "\n".join(rows) + "\n")


def fixture(out, name, path, texts):
    """Writes a vocabulary's fixtures, after llama.cpp has shown that the reduced vocabulary is as good as the whole."""
    vocab = Vocab(path)
    keep, merges = reduce(vocab, texts)
    pres = [(name, None)] + ([("llama-bpe", "llama-bpe")] if name == "gpt-2" else [])
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.gguf"
        if len(keep) < len(vocab.tokens):
            vocab.write(small, keep, merges)
        for pre_name, pre in pres:
            both, around = encode(path, texts, pre)
            if vocab.values.get("tokenizer.ggml.model") == "bert":
                theirs = both
                both, around = encode_bert(vocab, texts)
                print(f"{name}: {sum(a == b for a, b in zip(both, theirs))} equal in llama.cpp")
            if small.exists() and encode(small, texts, pre)[0] != both:
                sys.exit(f"{pre_name}: the reduced vocabulary gives other ids")
            write_ids(out / f"{pre_name}.ids.gz", both, around)
    ids = sorted(keep)
    data = {
        "metadata": vocab.values,
        "size": len(vocab.tokens),
        "ends": end_ids(path),
        "ids": [b - a for a, b in zip([0, *ids], ids)],
        "tokens": [vocab.tokens[i] for i in ids],
        "kinds": {i: vocab.kinds[i] for i in ids if vocab.kinds[i] != NORMAL},
    }
    if vocab.scores is not None:
        data["scores"] = [vocab.scores[i] for i in ids]
    if merges is not None:
        data["merges"] = merges
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    (out / f"{name}.vocab.json").write_text(text + "\n", encoding="utf-8")
    print(f"{name}: {len(ids)} of {len(vocab.tokens)} tokens, {len(merges or [])} merges")


def rules():
    """The rules of docs/tokenizers.md: for each, its names and its expressions."""
    found = []
    for block in DOCS.read_text(encoding="utf-8").split("\n#### ")[1:]:
        names = regex.findall(r"`([^`]+)`", block.split("\n")[0])
        patterns = block.split("```text\n")[1].split("\n```")[0].split("\n")
        found.append((names, patterns))
    return found


def split(text, patterns):
    """Lengths of the pieces, in characters."""
    pieces = [text]
    for pattern in patterns:
        # Set operations are what version 1 of the module's syntax is for.
        flags = regex.V1 if "&&" in pattern or "--[" in pattern else regex.V0
        after = []
        for piece in pieces:
            at = 0
            for match in regex.finditer(pattern, piece, flags):
                after += [piece[at : match.start()], match[0]]
                at = match.end()
            after.append(piece[at:])
        pieces = [piece for piece in after if piece]
    return [len(piece) for piece in pieces]


def splits(out, texts):
    """Writes how each rule splits every tenth text and joins of others."""
    chosen = [a + b for a, b in zip(texts[0::10], texts[5::10])]
    data = {names[0]: [split(text, patterns) for text in chosen] for names, patterns in rules()}
    data = {"texts": chosen, "rules": data}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    write_gzip(out / "splits.json.gz", text.replace("]],", "]],\n") + "\n")
    print(f"splits of {len(data['rules'])} rules")


def local(folder, vocabularies, texts):
    """Writes whole vocabularies and their ids in the form of llama.cpp's own tests."""
    os.makedirs(folder, exist_ok=True)
    for name, path in vocabularies.items():
        shutil.copy(path, folder / f"{name}.gguf")
        runs = [(f"{name}.gguf", None)]
        if name == "gpt-2":
            runs += [(f"{name}.gguf+{pre}", pre) for names, _ in rules() for pre in names]
        for file, pre in runs:
            # llama.cpp aborts on what it cannot encode, so each run has a process of its own.
            run = multiprocessing.get_context("fork").Process(target=local_ids, args=(folder / file, path, pre, texts))
            run.start()
            run.join()
            if run.exitcode != 0:
                print(f"{file}: llama.cpp ends with {run.exitcode}")


def local_ids(file, path, pre, texts):
    """Writes the texts, their ids without and with special tokens, and the ids that end generation."""
    Path(f"{file}.ends").write_text(" ".join(map(str, end_ids(path))) + "\n")
    both, _ = encode(path, texts, pre)
    Path(f"{file}.inp").write_bytes(SEPARATOR.join(texts).encode())
    for column, suffix in enumerate(["out", "special"]):
        Path(f"{file}.{suffix}").write_text("".join(" ".join(map(str, ids[column])) + "\n" for ids in both))


def main():
    arguments = sys.argv[1:]
    folder = None
    if "--local" in arguments:
        at = arguments.index("--local")
        folder = Path(arguments[at + 1])
        del arguments[at : at + 2]
    out = Path(arguments[0])
    vocabularies = dict(argument.split("=", 1) for argument in arguments[1:])
    out.mkdir(parents=True, exist_ok=True)
    texts = lines()
    if folder:
        local(folder, vocabularies, texts)
        return
    write_gzip(out / "lines.json.gz", json.dumps(texts, ensure_ascii=False, indent=0) + "\n")
    splits(out, texts)
    for name, path in vocabularies.items():
        fixture(out, name, path, texts)


main()
