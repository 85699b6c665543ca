#!/usr/bin/env python3
"""Reference outputs of tiny models of many architectures, computed by Hugging Face's transformers.

  python3 scripts/architecture_fixtures OUT_DIR [NAME ...]

Writes OUT_DIR/NAME.json for every architecture, or for those named. A file has the GGUF metadata and the list of
GGUF tensors of a small model, a text of token ids, and what the model gives after each token: logits, or hidden
states for an encoder. It has no weights: they follow from names (see weights.py). The outputs are given for F32
weights, for Q8_0 and for Q4_0 (MXFP4 experts for gpt-oss).

Needs the PyPI packages torch (2.6), transformers (4.57.6), gguf (0.19) and numpy. A CPU is enough."""
import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.modeling_utils import no_init_weights

sys.path.insert(0, str(Path(__file__).parent))
from metadata import typed  # noqa: E402
from tables import FIXTURES  # noqa: E402
from weights import arrays, expand, is_quantized, rounded, scale_offset, state  # noqa: E402


def build(fixture):
    """The model, in evaluation mode. Its parameters are NaN, so that one left unset shows in the outputs."""
    model_class = getattr(transformers, fixture.model) if isinstance(fixture.model, str) else fixture.model
    config = model_class.config_class(**fixture.config)
    config._attn_implementation = "eager"
    with no_init_weights():
        model = model_class(config, **fixture.options).eval()
    assert model.config._attn_implementation == "eager"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    return model


def outputs(fixture, tensors, gaps, double):
    """What the model gives after each token: an array of [tokens, vocabulary or width]."""
    model = build(fixture)
    weights = {key: torch.from_numpy(np.array(value)) for key, value in state(fixture, tensors).items()}
    model.load_state_dict(weights, strict=True)
    model = model.double() if double else model.float()
    if fixture.prepare is not None:
        fixture.prepare(model)
    if fixture.router:
        watch_router(model, fixture, gaps)
    given = {} if fixture.hidden else {"use_cache": False}
    with torch.no_grad():
        result = model(torch.tensor([fixture.tokens]), **given)
    rows = (result.last_hidden_state if fixture.hidden else result.logits)[0].double().numpy()
    assert np.all(np.isfinite(rows)), fixture.name
    assert rows.shape[0] == len(fixture.tokens)
    return rows


def watch_router(model, fixture, gaps):
    """Notes the gap between the last chosen score of a router and the best one not chosen."""
    suffix, used, scores = fixture.router

    def note(module, inputs, output):
        ordered = scores(module, inputs, output).reshape(-1, fixture.metadata["expert_count"])
        ordered = ordered.sort(-1, descending=True).values
        gaps.append(float((ordered[:, used - 1] - ordered[:, used]).min()))

    found = [module for name, module in model.named_modules() if name.endswith(suffix)]
    assert found, suffix
    for module in found:
        module.register_forward_hook(note)


def lines(fixture, tensors, results):
    """The file's text: one line for each key, tensor and row."""
    def dump(value):
        return json.dumps(value, separators=(",", ":"))

    def block(items, brackets):
        return brackets[0] + "\n" + ",\n".join(items) + "\n" + brackets[1]

    described = []
    for row, name, _ in expand(fixture):
        entry = {"name": name, "shape": list(row.shape)}
        if row.values is not None:
            entry["values"] = [float(np.float32(value)) for value in row.values]
        else:
            entry["scale"], entry["offset"] = scale_offset(row.role)
        described.append(dump(entry))
    rows = {kind: [dump([float(f"{value:.9g}") for value in row]) for row in table] for kind, table in results.items()}
    meta = typed(fixture.architecture, fixture.metadata)
    parts = [
        ("transformers", dump(transformers.__version__)),
        ("class", dump(fixture.model if isinstance(fixture.model, str) else fixture.model.__name__)),
        ("metadata", block([f"{dump(key)}:{dump(value)}" for key, value in meta.items()], "{}")),
        ("tensors", block(described, "[]")),
        ("quantized", block([dump(name) for name, array in tensors.items() if is_quantized(name, array)], "[]")),
        ("tokens", dump(fixture.tokens)),
        ("hidden" if fixture.hidden else "logits",
         block([f"{dump(kind)}:{block(table, '[]')}" for kind, table in rows.items()], "{}")),
    ]
    return block([f"{dump(key)}:{value}" for key, value in parts], "{}") + "\n"


def make(fixture, folder):
    """Computes one file, checks it and writes it."""
    tensors = arrays(fixture)
    results, gaps = {}, []
    for kind in ("F32", "Q8_0", fixture.low):
        results[kind] = outputs(fixture, rounded(tensors, kind, fixture.low), gaps, True)
    single = outputs(fixture, tensors, [], False)
    error = np.abs(single - results["F32"]).max()
    alike = {kind: np.corrcoef(results["F32"].ravel(), results[kind].ravel())[0, 1] for kind in results}
    spread = results["F32"].std(0).mean()
    text = lines(fixture, tensors, results)
    print(f"{fixture.name:18} spread {spread:6.3f} largest {np.abs(results['F32']).max():7.3f} f32 error {error:.1e} "
          f"Q8_0 {alike['Q8_0']:.5f} {fixture.low} {alike[fixture.low]:.5f} "
          f"gap {min(gaps) if gaps else float('nan'):.4f} bytes {len(text)}", flush=True)
    assert 0.95 < alike["Q8_0"] < 1 and 0.5 < alike[fixture.low] < 1 and error < 1e-3 and spread > 0.05
    assert not fixture.router or min(gaps) > 1e-3, "two experts are nearly tied"
    (folder / f"{fixture.name}.json").write_text(text)


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[2:]
    unknown = set(wanted) - {fixture.name for fixture in FIXTURES}
    assert not unknown, f"no such architecture: {unknown}"
    torch.set_num_threads(1)
    for fixture in FIXTURES:
        if not wanted or fixture.name in wanted:
            make(fixture, folder)


if __name__ == "__main__":
    main()
