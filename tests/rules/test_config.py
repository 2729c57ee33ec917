"""Parameters that a converter reads from the config.json beside its source."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from kit import examples

import ckptconv
from ckptconv.errors import CkptError, CorruptCheckpoint, UnsafeCheckpoint, UsageError
from ckptconv.rules import library

RULES = """
[params]
heads = {{ config = "{key}", help = "number of heads" }}
[[rule]]
from = "att/kernel"
to = "att.weight"
layout = "(h d) o -> o (d h)"
sizes = {{ h = "heads" }}
"""
KEY = "num_attention_heads"
VALUES = np.arange(72.0).reshape(24, 3)


def source(folder: Path, said: Any = None) -> Path:
    """A checkpoint with config.json beside it: JSON of `said`, or `said` itself if it is bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    if said is not None:
        raw = said if isinstance(said, bytes) else json.dumps(said).encode()
        (folder / "config.json").write_bytes(raw)
    ckptconv.save({"att/kernel": VALUES}, folder / "a.safetensors", force=True)
    return folder / "a.safetensors"


def rules(folder: Path, key: str = KEY) -> Path:
    (folder / "mine.toml").write_text(RULES.format(key=key))
    return folder / "mine.toml"


def merged(heads: int) -> np.ndarray[Any, Any]:
    """The kernel as a model of that many heads has it."""
    return VALUES.reshape(heads, 24 // heads, 3).transpose(2, 1, 0).reshape(3, 24)


FOUND: dict[str, tuple[str, Any, dict[str, int], int]] = {
    "a key": (KEY, {KEY: 4}, {}, 4),
    "a nested key": ("text.heads", {"text": {"heads": 6}, "heads": 5}, {}, 6),
    "given as well": (KEY, {KEY: 4}, {"heads": 8}, 8),
    "given, and the file is broken": (KEY, b"{", {"heads": 8}, 8),
    "given, and the file says no number": (KEY, {KEY: "x"}, {"heads": 8}, 8),
}


@pytest.mark.parametrize("what", FOUND)
def test_a_number_is_found(what: str, tmp_path: Path) -> None:
    key, said, params, heads = FOUND[what]
    out = tmp_path / "b.safetensors"
    report = ckptconv.convert(source(tmp_path, said), out, converter=str(rules(tmp_path, key)), param=params)
    assert np.array_equal(ckptconv.open(out)["att.weight"], merged(heads))
    noted = [n.text for n in report.notes if "config.json" in n.text]
    assert noted == ([] if params else [f"read from config.json: heads={heads} ({key})"])


BAD = "an integer from 1 to 2147483647; give param='heads=NUMBER'"
REFUSED: dict[str, tuple[Any, type[CkptError], str]] = {
    "no file": (
        None,
        UsageError,
        r"needs param='heads=NUMBER'\n  heads: number of heads \(a config.json beside the source has no num",
    ),
    "null": ({KEY: None}, UsageError, r"config.json beside the source has no num_attention_heads"),
    "a float": ({KEY: 4.0}, UsageError, f"num_attention_heads is 4.0, not {BAD}"),
    "a truth": ({KEY: True}, UsageError, f"num_attention_heads is True, not {BAD}"),
    "a number beyond sizes": ({KEY: 2**31}, UsageError, BAD),
    "thousands of digits": (
        b'{"%b": %b}' % (KEY.encode(), b"9" * 5000),
        CorruptCheckpoint,
        "integer string conversion",
    ),
    "a long text": ({KEY: "x" * 5000}, UsageError, "x{20}.*not an integer"),
    "no JSON": (b"{", CorruptCheckpoint, "the JSON is not valid"),
    "twice": (b'{"num_attention_heads": 4, "num_attention_heads": 6}', CorruptCheckpoint, "occurs twice"),
    "nested deeply": (b"[" * 100_000, CorruptCheckpoint, "the JSON is n"),
    "too large": (b" " * 2**20 + b"{}", CorruptCheckpoint, "at most 1048576 are sensible here"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_number_is_refused(what: str, tmp_path: Path) -> None:
    said, error, words = REFUSED[what]
    with pytest.raises(error, match=words) as caught:
        ckptconv.convert(source(tmp_path, said), tmp_path / "b.safetensors", converter=str(rules(tmp_path)))
    assert len(str(caught.value)) < 1000
    assert not (tmp_path / "b.safetensors").exists()


def test_the_file_is_beside_the_source(tmp_path: Path) -> None:
    """No link that leaves the folder, no pipe, no folder."""
    (tmp_path / "elsewhere.json").write_text(json.dumps({KEY: 4}))
    made = source(tmp_path / "model")
    config = made.parent / "config.json"
    for lay, error, words in [
        (lambda: config.symlink_to(tmp_path / "elsewhere.json"), UnsafeCheckpoint, "a symlink that leaves"),
        (lambda: os.mkfifo(config), CkptError, "is a pipe or a device"),
    ]:
        lay()
        with pytest.raises(error, match=words):
            library.change(ckptconv.open(made), str(rules(tmp_path)))
        config.unlink()


def test_sources_whose_files_differ_are_refused(tmp_path: Path) -> None:
    first, second = source(tmp_path / "p", {KEY: 4}), source(tmp_path / "q", {KEY: 6})
    ckptconv.save({"other": VALUES}, second, force=True)
    (tmp_path / "more.toml").write_text(rules(tmp_path).read_text() + "[[rule]]\nfrom = 'other'\nto = 'other'\n")
    with pytest.raises(UsageError, match=r"differ in num_attention_heads: 4 in .*config.json, 6 in .*config.json"):
        ckptconv.convert([first, second], tmp_path / "b.safetensors", converter=str(tmp_path / "more.toml"))


@examples(20)
@given(heads=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]), recorded=st.booleans())
def test_the_way_back(heads: int, recorded: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The inverse has the number from the metadata, or, of a file without any, from the config.json beside it."""
    folder = tmp_path_factory.mktemp("way")
    at = source(folder / "b", None if recorded else {KEY: heads}).with_name("b.safetensors")
    ckptconv.convert(source(folder / "a", {KEY: heads}), at, converter=str(rules(folder)))
    if not recorded:
        ckptconv.save({n: t.numpy() for n, t in ckptconv.open(at).items()}, at, force=True)
    back = library.change(ckptconv.open(at), str(folder / "mine.toml"), inverse=True)
    assert np.array_equal(back["att/kernel"].numpy(), VALUES)
