"""Models of JAX programs: what a converter makes of them is, bit for bit, what their own scripts make, and back.

A golden is {"converter": name, "dtype": name, "params": {}, "source": {name: shape}, "target": {name: [shape, hash]},
"back": {name: hash}}: `target` is what the script makes of tensors that are filled by their names, `back` what its
opposite makes of those. fixtures/make/golden_maxtext.py writes them. What rounds on the way, rounds there as well.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import FIXTURES, refused

import ckptconv
from ckptconv.checkpoint import Checkpoint, contiguous
from ckptconv.dtypes import DTYPES
from ckptconv.moves.part import Held
from ckptconv.rules import library
from ckptconv.rules.apply import apply
from ckptconv.rules.assign import takes

GOLDENS: dict[str, Any] = {
    case: golden
    for path in sorted((FIXTURES / "jax").glob("*.json.gz"))
    for case, golden in json.loads(gzip.decompress(path.read_bytes())).items()
}


def filled(shapes: dict[str, list[int]], dtype: str) -> Checkpoint:
    """Tensors with numbers from -0.75 to 1.25 that follow from their names."""
    out = {}
    for name, shape in shapes.items():
        count = np.arange(prod(shape), dtype=np.uint64)
        numbers = ((zlib.crc32(name.encode()) + count * 2654435761) % 2**24).astype(np.float32) / np.float32(2**23)
        array = (numbers - np.float32(0.75)).reshape(shape).astype(DTYPES[dtype].np)
        out[name] = contiguous(name, DTYPES[dtype], shape, Held(array.view(DTYPES[dtype].carrier)))
    return Checkpoint(out)


def hashes(checkpoint: Checkpoint) -> dict[str, str]:
    return {n: hashlib.sha256(t.numpy().tobytes()).hexdigest()[:12] for n, t in checkpoint.items()}


@pytest.mark.many
@pytest.mark.parametrize("case", GOLDENS)
def test_is_what_the_script_makes(case: str) -> None:
    golden = GOLDENS[case]
    converter, source = library.load(golden["converter"]), filled(golden["source"], golden["dtype"])
    there = apply(converter, source, golden["params"])
    assert {n: list(t.shape) for n, t in there.items()} == {n: shape for n, (shape, _) in golden["target"].items()}
    got = hashes(there)
    assert [n for n, (_, h) in golden["target"].items() if got[n] != h] == []
    back = apply(converter.inverse, there)
    assert {n: list(t.shape) for n, t in back.items()} == golden["source"]
    got = hashes(back)
    assert [n for n, h in golden["back"].items() if got[n] != h] == []


def source(case: str) -> Checkpoint:
    return filled(GOLDENS[f"{case}, float32"]["source"], "float32")


# what: converter, source, words of the refusal
STRANGERS = {
    "Qwen 3 as Llama": ("maxtext-llama", "maxtext-qwen, 3", "are normalised, as in Qwen 3: take maxtext-qwen"),
    "Qwen 2 as Llama 3": ("maxtext-llama3", "maxtext-qwen, 2", "have biases, as in Qwen 2: take maxtext-qwen"),
    "Mixtral as Llama": ("maxtext-llama", "maxtext-mixtral", "MoeBlock_0"),
    "Llama as Mixtral": ("maxtext-mixtral", "maxtext-llama", "there are no experts: take maxtext-llama"),
    "Gemma 2 as Gemma 3": ("maxtext-gemma3", "maxtext-gemma2", "mlp_local"),
    "unscanned as scanned": ("maxtext-llama", "maxtext-llama-unscanned", "not scanned: take maxtext-llama-unscanned"),
    "scanned as unscanned": ("maxtext-gemma3-unscanned", "maxtext-gemma3", "are scanned: take maxtext-gemma3"),
}


@pytest.mark.parametrize("case", STRANGERS)
def test_another_family_is_refused(case: str) -> None:
    name, other, words = STRANGERS[case]
    with refused(words):
        apply(library.load(name), source(other))


def test_another_scan_axis_is_refused() -> None:
    shapes = dict(GOLDENS["maxtext-llama3, float32"]["source"])
    for name in [n for n in shapes if "/layers/" in n]:
        first, layers, *rest = shapes[name]
        shapes[name] = [layers, first, *rest]
    with refused("an axis of length"):
        apply(library.load("maxtext-llama3"), filled(shapes, "float32"))


AUTO = {
    case.removesuffix(", float32"): golden["converter"]
    for case, golden in GOLDENS.items()
    if case.endswith("float32") and "llama" not in case
}


@pytest.mark.parametrize("case", AUTO)
def test_the_family_is_told_from_names(case: str) -> None:
    whole = source(case)
    near = [n for n in library.names() if n.startswith("maxtext") and takes(library.load(n), whole)]
    assert near == [AUTO[case]]


@pytest.mark.parametrize("un", ["", "-unscanned"])
def test_what_the_weights_do_not_tell_is_asked(un: str) -> None:
    """Llama 2 and 3.1 differ only in which dimensions of a head turn together."""
    whole = source(f"maxtext-llama{un}")
    near = [n for n in library.names() if n.startswith("maxtext") and takes(library.load(n), whole)]
    assert near == [f"maxtext-llama{un}", f"maxtext-llama3{un}"]


CONFIG = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 14, "num_hidden_layers": 8}


@pytest.mark.parametrize(
    ("case", "config"),
    [
        ("maxtext-llama3", CONFIG),
        ("maxtext-mixtral-unscanned", CONFIG),
        ("maxtext-qwen, 3-moe", CONFIG),
        ("maxtext-gemma3, remainder", {"text_config": CONFIG, "vision_config": {"num_attention_heads": 2}}),
    ],
)
def test_a_model_from_elsewhere_needs_its_config(case: str, config: Any, tmp_path: Path) -> None:
    """Without the metadata that a conversion leaves, sizes come from config.json, or are asked for."""
    golden = GOLDENS[f"{case}, float32"]
    converter = library.load(golden["converter"])
    there = apply(converter, source(case), golden["params"])
    ckptconv.save({n: t.numpy() for n, t in there.items()}, tmp_path / "model.safetensors", metadata={})
    bare = ckptconv.open(tmp_path / "model.safetensors")
    given = {"words": 17, "unpadded": 14} if "gemma3" in case else {}
    with refused("param='heads=NUMBER'"):
        apply(converter.inverse, bare, given)
    (tmp_path / "config.json").write_text(json.dumps(config))
    back = apply(converter.inverse, ckptconv.open(tmp_path / "model.safetensors"), given)
    got = hashes(back)
    assert {n: list(t.shape) for n, t in back.items()} == golden["source"]
    assert [n for n, h in golden["back"].items() if got[n] != h] == []


def test_other_spellings_lead_to_the_one_that_maxtext_restores() -> None:
    """NNX has no `params` and a `value` in each parameter."""
    golden = GOLDENS["maxtext-qwen, 3, float32"]
    nnx = {n.removeprefix("params/params/"): t for n, t in source("maxtext-qwen, 3").items()}
    whole = Checkpoint({f"base/{n}/value": t.renamed(f"base/{n}/value") for n, t in nnx.items()})
    there = apply(library.load("maxtext-qwen"), whole)
    assert {n: h for n, (_, h) in golden["target"].items()} == hashes(there)
    assert hashes(apply(library.load("maxtext-qwen").inverse, there)) == golden["back"]
