#!/usr/bin/env python3
"""spm_fixture.py OUT.json: a small SentencePiece BPE vocabulary and what the sentencepiece library encodes with it.

Needs the PyPI package sentencepiece (0.2); trains on the README of the models and a few sentences below, with the settings
of Llama's tokenizer: byte fallback, digits apart, no normalization, a space put in front. The result is committed as
crates/gguf/tests/fixtures/spm.json; other versions of the library may train another vocabulary, which is as good a test."""

import io
import json
import sys
from pathlib import Path

import sentencepiece as spm

TEXTS = [
    "Once upon a time there was a king who had three sons.",
    "  two  spaces   and three ",
    "tabs\tand\nnew lines\r\n",
    "numbers 1234567890 3.14",
    "accents: café, naïve, Ångström",
    "日本語 and 🦀, all spelled in bytes",
    "aaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbb",
    "the the the there then thesis other",
    "\u2581 is the space in disguise",
    "x",
    " ",
    "",
]

root = Path(__file__).resolve().parent.parent
text = (root / "models" / "README.md").read_text(encoding="utf-8") * 2 + "\n".join(TEXTS[:6] * 4)
model = io.BytesIO()
spm.SentencePieceTrainer.train(
    sentence_iterator=iter(text.splitlines()),
    model_writer=model,
    model_type="bpe",
    vocab_size=560,
    byte_fallback=True,
    split_digits=True,
    character_coverage=0.98,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    allow_whitespace_only_pieces=True,
    add_dummy_prefix=True,
    minloglevel=2,
)
sp = spm.SentencePieceProcessor(model_proto=model.getvalue())


def kind(i):
    return 2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1


ids = range(sp.get_piece_size())
fixture = {
    "tokens": [sp.id_to_piece(i) for i in ids],
    "scores": [sp.get_score(i) for i in ids],
    "kinds": [kind(i) for i in ids],
    "texts": [{"text": t, "ids": sp.encode(t), "decoded": sp.decode(sp.encode(t))} for t in TEXTS],
}
Path(sys.argv[1]).write_text(json.dumps(fixture, ensure_ascii=False) + "\n", encoding="utf-8")
