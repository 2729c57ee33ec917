"""Every limit by its own name: what just fits passes, what is one more is refused, on the limit's own words.

A file that breaks a limit often breaks something else as well, and is refused for that where the limit is forgotten.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import kit
import msgpack
import numpy as np
import pytest
from kit import refused
from pickles import Raw, pickled

import ckptconv
from ckptconv.formats import flax as walker, safetensors
from ckptconv.formats.keras import v3
from ckptconv.formats.pytorch import pickle, walk
from ckptconv.moves import part
from ckptconv.rules import layout, library, templates, toml

ARRAY = msgpack.ExtType(1, msgpack.packb(((2,), "float32", np.ones(2, "<f4").tobytes())))


def flax(folder: Path, value: Any) -> Path:
    (folder / "a.msgpack").write_bytes(msgpack.packb(value))
    return folder / "a.msgpack"


def header(folder: Path) -> Path:
    said = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(64)
    return kit.safetensors(folder / "a.safetensors", said, bytes(4))


def nested(folder: Path) -> Path:
    (folder / "a.pkl").write_bytes(pickled({"a": {"b": {"c": 1}}}))
    return folder / "a.pkl"


def marks(count: int) -> bytes:
    return pickled(Raw(b"(" * count + b"t" * count))


def rules(text: str) -> Callable[[Path], object]:
    return lambda _: library.parse(text, "test")


Case = tuple[ModuleType, str, int, Callable[[Path], object], str]
LIMITS: dict[str, Case] = {
    "a header of safetensors": (
        safetensors, "MAX_HEADER", 64, lambda p: ckptconv.open(header(p)), "claims a header of 64 bytes; at most 63 are"
    ),
    "the depth of msgpack": (
        walker, "MAX_DEPTH", 5, lambda p: ckptconv.open(flax(p, {"a": {"b": {"c": ARRAY}}})), "nested deeper than 4"
    ),
    "the values of msgpack": (
        walker, "MAX_VALUES", 6, lambda p: ckptconv.open(flax(p, {"a": {"b": {"c": ARRAY}}})), "has more than 5 values"
    ),
    "the texts of msgpack": (
        walker, "MAX_TEXT", 9, lambda p: ckptconv.open(flax(p, {"a" * 9: ARRAY})), "text of at most 8 bytes is expected"
    ),
    "the depth of a pickle's value": (
        walk, "MAX_DEPTH", 3, lambda p: ckptconv.open(nested(p)), "its containers are nested or shared without"
    ),
    "the stack of a pickle": (
        pickle, "MAX_STACK", 7, lambda _: pickle.load(pickled(Raw(b"(" + b"N" * 7 + b"t"))), "stacks more than 6"
    ),
    "the marks of a pickle": (
        pickle, "MAX_STACK", 4, lambda _: pickle.load(marks(4)), "the pickle nests more than 3 marks"
    ),
    "the steps of a pickle": (
        pickle, "MAX_STEPS", 5, lambda _: pickle.load(b"\x80\2]K\1a."), "the pickle has more than 4 steps"
    ),
    "the length of a layout": (
        layout, "MAX_PATTERN", 10, lambda _: layout.sides("i o -> o i"), r"layout 'i o -> o i'\.\.\. is longer than 9"
    ),
    "the parentheses of a layout": (
        layout, "MAX_DEPTH", 2, lambda _: layout.sides("((i o)) -> o i"), r"'\(' is left over"
    ),
    "the blocks of a layout": (
        layout, "MAX_BLOCKS", 3, lambda _: layout.parse.__wrapped__("(a + b + c) -> (c + b + a)"), "more than 2 blocks"
    ),
    "the captures of a template": (
        templates, "MAX_ANY", 2, lambda _: templates.template("{a...}x{b...}"), "has more than 1 captures"
    ),
    "the text of a template": (
        toml, "MAX_TEMPLATE", 8, rules("let = { a = 'bbbbbbbb' }\n[[rule]]\nfrom = '<a>'\nto = 'c'"),
        "grows beyond 7"
    ),
    "the names with captures": (
        toml, "MAX_CAPTURED", 3, rules("[[rule]]\nfrom = ['a{x}', 'b{x}']\nto = 'c{x}'\nlayout = 'a, b -> (a + b)'"),
        "more than 2 names with captures"
    ),
    "the values of captures": (
        toml, "MAX_WORDS", 12, rules("[[rule]]\nwhere = { x = ['abc'] }\nnames = { '{x}' = 'c{x}', 'd' = 'e' }"),
        "have more than 11 characters"
    ),
    "the entries of a table": (
        toml, "MAX_ENTRIES", 2, rules("params = { a = 1, b = 2 }\n[[rule]]\nfrom = 'a'\nto = 'b'"),
        "`params` has 2 entries, more than 1"
    ),
    "the rewrites": (
        toml, "MAX_ENTRIES", 2, rules("rewrite = [['a', 'b'], ['c', 'd']]\n[[rule]]\nfrom = 'a'\nto = 'b'"),
        "`rewrite` has 2 entries, more than 1"
    ),
    "the conditions of a rule": (
        toml, "MAX_LISTED", 2, rules("[[rule]]\nfrom = 'a'\nto = 'b'\nif = ['c', 'd']"),
        "`if` has 2 entries, more than 1"
    ),
    "the numbers of a fill": (
        toml, "MAX_FILL", 3, rules("[[rule]]\nfrom = 'a'\nto = 'b'\nfill = { c = [1, 2, 3] }"), "nor a list of up to 2"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LIMITS)
def test_limits(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, least, do, words = LIMITS[what]
    assert getattr(module, name) >= least
    monkeypatch.setattr(module, name, least)
    do(tmp_path)
    monkeypatch.setattr(module, name, least - 1)
    with refused(words):
        do(tmp_path)


@pytest.mark.parametrize(
    ("opcodes", "count", "packed", "words"),
    [
        (b"\x94", 80_000, None, ""),
        (b"\x94", 90_000, None, "memorises more than 88"),
        (b"\x94", 80_000, 1000, "memorises more than 65786 values"),
        (b"]", 70_000, None, ""),
        (b"]", 80_000, None, "makes containers and objects without end"),
        (b"}", 70_000, 1000, "makes containers and objects without end"),
        (b"\x8f", 70_000, 1000, "makes containers and objects without end"),
        (b"(", 100_000, None, "makes containers and objects without end"),
    ],
)
def test_what_a_pickle_makes_is_bounded_by_its_packed_size(
    opcodes: bytes, count: int, packed: int | None, words: str
) -> None:
    data = b"\x80\4(N" + opcodes * count + (b"t" if opcodes == b"(" else b"") * count + b"t."
    if words:
        with refused(words):
            pickle.load(data, packed=packed)
    else:
        pickle.load(data, packed=packed)


def test_a_member_that_is_read_whole_is_not_unpacked_without_bound(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.keras", "w", zipfile.ZIP_DEFLATED) as z:
        for name, size in (("config.json", 2**24), ("metadata.json", 2**26)):
            z.writestr(name, b" " * size)
    assert len(v3.read_json(str(tmp_path / "m.keras"), "config.json")) == 2**24
    with refused(r"metadata\.json would take some 256 MB of memory"):
        v3.read_json(str(tmp_path / "m.keras"), "metadata.json")


def test_names_that_are_too_long_match_nothing_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a template with several captures is not linear in the name."""
    made = templates.Matcher([(templates.template("{x}b{y}"), {}), (templates.template("{x...}"), {})])
    monkeypatch.setattr(templates, "MAX_NAME", 4)
    for name, number in ("abcd", 0), ("abcde", 1):
        found = made.first(name)
        assert found is not None
        assert found.number == number


def test_pieces_of_a_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    made = layout.parse("(a + b + c) -> (c + b + a)")
    before = ckptconv.Checkpoint({"t": ckptconv.checkpoint.held("t", np.arange(6.0))})["t"]
    monkeypatch.setattr(part, "MAX_PIECES", 4)
    (after,) = made.apply([before], {"a": 1, "b": 2})
    assert after[0] == (6,)
    monkeypatch.setattr(part, "MAX_PIECES", 3)
    with pytest.raises(ckptconv.LayoutError, match="needs more than 3 pieces for one part; convert in two steps"):
        made.apply([before], {"a": 2, "b": 1})
