#!/usr/bin/env python3
"""tokenizer_small.py DIR: small vocabularies of the kinds whose real ones are too large to commit.

Writes DIR/unigram.gguf, a unigram model that the sentencepiece library trains on the texts of tokenizer_lines.py, with a
character map of a few rules, and DIR/wordpiece.gguf, BERT's form with the words and letters of those texts.
tokenizer_fixtures.py OUT unigram=DIR/unigram.gguf wordpiece=DIR/wordpiece.gguf makes fixtures of them.
Needs the PyPI packages sentencepiece and gguf."""

import io
import sys
import tempfile
import unicodedata
from collections import Counter
from pathlib import Path

import gguf
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tokenizer_lines import lines  # noqa: E402

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# What the character map replaces: single characters and sequences, by none, one or several characters.
MAP = {
    "\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "\u2003": " ", "\x01": "", "\u00ad": "", "\u200b": "",
    "e\u0301": "é", "n\u0303": "ñ", "o\u0308": "ö", "o\u0308\u0304": "ȫ", "™": "TM", "½": "1⁄2", "①": "1", "…": "...",
    **{chr(c): chr(c - 0xFEE0) for c in range(0xFF01, 0xFF5F)},
}


def unigram(path):
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as rules:
        for source, target in MAP.items():
            rules.write("\t".join(" ".join(f"{ord(c):X}" for c in text) for text in (source, target)) + "\n")
        rules.flush()
        model = io.BytesIO()
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter([text.replace("\x00", "").replace("\n", " ") for text in lines()] * 2),
            model_writer=model,
            model_type="unigram",
            vocab_size=900,
            character_coverage=0.98,
            normalization_rule_tsv=rules.name,
            user_defined_symbols=["<tool>", "[INST]"],
            control_symbols=["<|user|>"],
            minloglevel=2,
        )
    sp = spm.SentencePieceProcessor(model_proto=model.getvalue())
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    writer = gguf.GGUFWriter(path, "t5")
    writer.add_tokenizer_model("t5")
    ids = range(sp.get_piece_size())
    user_defined = {p.piece for p in proto.pieces if p.type == p.USER_DEFINED}
    kind = lambda i: (
        UNKNOWN if sp.is_unknown(i) else CONTROL if sp.is_control(i) else USER_DEFINED if sp.id_to_piece(i) in user_defined else NORMAL
    )
    writer.add_token_list([sp.id_to_piece(i) for i in ids])
    writer.add_token_scores([sp.get_score(i) for i in ids])
    writer.add_token_types([kind(i) for i in ids])
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    writer.add_precompiled_charsmap(proto.normalizer_spec.precompiled_charsmap)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    finish(writer)


def wordpiece(path):
    counts, letters = Counter(), set()
    for text in lines():
        text = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
        for word in text.split():
            if word.isalnum():
                counts[word] += 1
            # The texts have some letters that the vocabulary lacks.
            letters |= {c for c in word if ord(c) % 13 and c != "▁" and not c.isspace() and unicodedata.category(c)[0] != "C"}
    words = [word for word, _ in counts.most_common(700)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    plain = [*sorted(letters), *(word[-3:] for word in words), *(word[2:] for word in words)]
    tokens += dict.fromkeys(["▁" + t for t in [*words, *sorted(letters)]] + [t for t in plain if t])
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if i < 5 else NORMAL for i in range(len(tokens))])
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_mask_token_id(4)
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
unigram(folder / "unigram.gguf")
wordpiece(folder / "wordpiece.gguf")
