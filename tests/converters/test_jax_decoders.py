"""Models of JAX programs: what a converter makes of them is, bit for bit, what their own scripts make, and back.

A golden is {"converter": name, "dtype": name, "params": {}, "source": {name: shape}, "target": {name: [shape, hash]},
"back": {name: hash}}: `target` is what the script makes of tensors that are filled by their names, `back` what its
opposite makes of those. fixtures/make/golden_maxtext.py and golden_google.py write them. What rounds on the way, rounds
there as well.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
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
        array = (numbers - np.float32(0.75)).reshape(shape).astype(DTYPES[dtype].dtype)
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
    assert [n.text for n in there.notes if "matched no tensor" in n.text] == []
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
    "Gemma 7B as 2B": ("gemma-2b", "gemma-7b", "queries, keys and values are in one: take gemma-7b"),
    "Gemma 2B as 7B": ("gemma-7b", "gemma-2b", "queries are not with keys and values: take gemma-2b"),
    "Gemma 2 as 1": ("gemma-2b", "gemma2-2b", "two norms, as in Gemma 2: take gemma2-2b or gemma2-9b"),
    "Gemma 1 as 2": ("gemma2-2b", "gemma-2b", "one norm, as in Gemma 1: take gemma-2b"),
    "Gemma 2 9B as 2B": ("gemma2-2b", "gemma2-9b", "an axis of length"),
    "Gemma 2 2B as 9B": ("gemma2-9b", "gemma2-2b", "an axis of length"),
    "Gemma 3 as 2": ("gemma2-9b", "gemma3-text", "as in Gemma 3: take gemma3 or gemma3-text"),
    "Gemma 2 as 3": ("gemma3-text", "gemma2-9b", "not normalised, as in Gemma 2: take gemma2-2b or gemma2-9b"),
    "PaliGemma 2 as 1": ("paligemma", "paligemma2", "two norms, as in Gemma 2: take paligemma2"),
    "PaliGemma 1 as 2": ("paligemma2", "paligemma", "one norm, as in Gemma 1: take paligemma"),
    "SigLIP scanned": ("siglip", "siglip-scanned", "the blocks are scanned: take siglip-scanned"),
    "SigLIP not scanned": ("siglip-scanned", "siglip", "the blocks are not scanned: take siglip"),
    "UMT5 scanned": ("umt5-unscanned", "umt5", "the layers are scanned: take umt5"),
    "UMT5 not scanned": ("umt5", "umt5-unscanned", "the layers are not scanned: take umt5-unscanned"),
    "pi0.5 as pi0": ("pi0", "pi05", "depend on time, as in pi0.5: take pi05"),
    "pi0 as pi0.5": ("pi05", "pi0", "are constant, as in pi0: take pi0"),
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
    if case.endswith("float32") and "llama" not in case and not case.startswith("gemma2")
}
FAMILIES = sorted({golden["converter"] for golden in GOLDENS.values()})


@pytest.mark.parametrize("case", AUTO)
def test_the_family_is_told_from_names(case: str) -> None:
    whole = source(case)
    assert [n for n in FAMILIES if takes(library.load(n), whole)] == [AUTO[case]]


@pytest.mark.parametrize(
    "names",
    [
        ("maxtext-llama", "maxtext-llama3"),
        ("maxtext-llama-unscanned", "maxtext-llama3-unscanned"),
        ("gemma2-2b", "gemma2-9b"),
    ],
)
def test_what_names_do_not_tell_is_asked(names: tuple[str, str]) -> None:
    """Llama 2 and 3.1 differ in which dimensions of a head turn together, sizes of Gemma 2 in the order of two axes."""
    whole = source(names[0])
    assert [n for n in FAMILIES if takes(library.load(n), whole)] == list(names)


@pytest.mark.parametrize("case", [c.removesuffix(", float32") for c in GOLDENS if c.endswith(", float32")])
def test_a_layer_that_is_missing_is_noticed(case: str) -> None:
    """The second of three or more, the first of two, of each tower, in the source and on the way back."""
    golden = GOLDENS[f"{case}, float32"]
    converter, whole = library.load(golden["converter"]), source(case)
    there = apply(converter, whole, golden["params"])
    for count in converter.counts:
        for model, rules, head in ((whole, converter, count.source), (there, converter.inverse, count.target)):
            if len(head.captures) != 1:  # none, or those of experts
                continue
            spelled = [head.render(dict.fromkeys(head.captures, str(n))) for n in range(3)]
            layers = [[n for n in model if re.match(re.escape(text) + "[/.]", n)] for text in spelled]
            gone = 1 if layers[2] else 0
            assert layers[gone]
            rest = model.with_tensors({n: t for n, t in model.items() if n not in layers[gone]})
            with refused(rf"is not whole.*\n  {re.escape(spelled[0][:-1])}\{{.* {gone} is missing"):
                apply(rules, rest, golden["params"])


@pytest.mark.parametrize("case", ["maxtext-mixtral", "maxtext-mixtral-unscanned", "maxtext-qwen, 3-moe"])
def test_an_expert_that_is_missing_is_noticed(case: str) -> None:
    golden = GOLDENS[f"{case}, float32"]
    converter = library.load(golden["converter"])
    there = apply(converter, source(case), golden["params"])
    experts = {int(m[1]) for n in there if (m := re.search(r"experts[.]([0-9]+)[.]", n))}
    for layers, gone, words in (("", max(experts), f"{max(experts)} is missing, where experts="), ("1[.]", 0, "0 is")):
        left = {n: t for n, t in there.items() if not re.search(rf"layers[.]{layers}.*experts[.]{gone}[.]", n)}
        with refused(rf"is not whole.*\n.*experts\.\{{x\}}: .*{words}"):
            apply(converter.inverse, there.with_tensors(left), {"experts": len(experts)})
    assert apply(converter.inverse, there, {"experts": len(experts)})


CONFIG = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 14}
SEEN = {"text_config": CONFIG, "vision_config": {"num_attention_heads": 2}}


@pytest.mark.parametrize(
    ("case", "config", "given"),
    [
        ("maxtext-llama3", CONFIG, {}),
        ("maxtext-mixtral-unscanned", CONFIG, {}),
        ("maxtext-qwen, 3-moe", CONFIG, {}),
        ("maxtext-gemma3, remainder", SEEN, {"words": 17, "unpadded": 14}),
        ("gemma-2b", CONFIG | {"num_key_value_heads": 1}, {}),
        ("gemma-7b", CONFIG, {}),
        ("gemma3", SEEN, {"words": 78, "unpadded": 14}),
        ("paligemma2", SEEN, {"words": 14, "unpadded": 14}),
        ("umt5", {"num_heads": 4}, {}),
    ],
)
def test_a_model_from_elsewhere_needs_its_config(case: str, config: Any, given: Any, tmp_path: Path) -> None:
    """Without the metadata that a conversion leaves, sizes come from config.json, or are asked for."""
    golden = GOLDENS[f"{case}, float32"]
    converter = library.load(golden["converter"])
    there = apply(converter, source(case), golden["params"])
    ckptconv.save({n: t.numpy() for n, t in there.items()}, tmp_path / "model.safetensors", metadata={})
    bare = ckptconv.open(tmp_path / "model.safetensors")
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


def flat(name: str) -> str:
    """The name in the releases, where the last part of a name is apart from the others."""
    sight = name.replace("vision_encoder/", "SigLiPFromPatches_0/")
    return sight if sight != name else f"transformer/{name}" + ("/w" if "/mlp/" in name else "")


# what: how a name is spelled there
SPELLINGS = {
    "gemma-2b": lambda n: f"transformer/{n}",
    "gemma2-9b": flat,
    "gemma3": flat,
    "gemma3-text": lambda n: f"rlx_networks/policy_network/{n}" + ("/w" if "/mlp/" in n else ""),
    "pi0": lambda n: f"params/{n}/value",
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_names_of_google_s_releases(case: str) -> None:
    """Google's library restores names of its modules from a tree of dictionaries, its releases have flat names."""
    golden, spelled = GOLDENS[f"{case}, float32"], SPELLINGS[case]
    whole = Checkpoint({spelled(n): t.renamed(spelled(n)) for n, t in source(case).items()})
    there = apply(library.load(case), whole, golden["params"])
    assert {n: h for n, (_, h) in golden["target"].items()} == hashes(there)
    assert hashes(apply(library.load(case).inverse, there)) == golden["back"]
    assert takes(library.load(case), whole)
