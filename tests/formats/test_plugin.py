"""A third party's format: one module and one row, found by its entry point, proved by the contract."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptconv
from ckptconv.checkpoint import Checkpoint, Tensor, contiguous
from ckptconv.dtypes import DTYPES
from ckptconv.errors import CorruptCheckpoint
from ckptconv.formats import table
from ckptconv.formats.placement import Patch, Placement, Slot, refuse_unheld
from ckptconv.formats.reading import Reading
from ckptconv.formats.table import Format
from ckptconv.moves.part import Span, checked_count
from ckptconv.output.destination import OutputFile
from ckptconv.rules import library
from ckptconv.storage.files import Reader, Seen, split
from ckptconv.testing import FormatTests, Subject

# --- the format: a line of JSON, then everything one after the other ---------------------------------------------

ROW = Format("line", "a line of JSON, then the elements", __name__, (".line",), True, True)
MAGIC = b'{"line": '


def sniff(seen: Seen) -> int:
    return 3 if seen.head.startswith(MAGIC) else int(seen.base.endswith(".line"))


def open(url: str, how: Reading) -> Checkpoint:
    with Reader(url) as f:
        line, newline, _ = f.read(0, min(f.size, 2**16)).partition(b"\n")
        try:
            rows = json.loads(line)["line"]
            tensors, at = {}, len(line) + 1
            for name, kind, shape in rows:
                size = checked_count([int(n) for n in shape]) * DTYPES[kind].itemsize
                tensors[str(name)] = contiguous(str(name), DTYPES[kind], [int(n) for n in shape], Span(url, at, size))
                at += size
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise CorruptCheckpoint(f"the first line is not understood: {e}", url=url) from None
        if not newline or at != f.size:
            raise CorruptCheckpoint(f"needs {at} bytes and has {f.size}", url=url)
    return Checkpoint(tensors, format="line", urls=(url,))


class LineWriter:
    def __init__(self, url: str) -> None:
        self.file = split(url)[1]

    def cannot_hold(self, tensor: Tensor) -> str:
        return "" if tensor.dtype.itemsize else "a line knows no strings"

    def place(self, checkpoint: Checkpoint) -> Placement:
        refuse_unheld(self, checkpoint, "a line")
        rows = [[t.name, t.dtype.name, list(t.shape)] for t in checkpoint.values()]
        head = MAGIC + json.dumps(rows).encode() + b"}\n"
        slots, at = {}, len(head)
        for t in checkpoint.values():
            slots[t.name] = Slot(self.file, at, t.nbytes)
            at += t.nbytes
        return Placement([OutputFile(self.file, at)], slots, [Patch(self.file, 0, head)])

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        return ()


def writer(url: str, max_shard_size: int | None = None) -> LineWriter:
    return LineWriter(url)


# --- that it works ----------------------------------------------------------------------------------------------


class Point:
    """What importlib.metadata gives for an installed entry point."""

    def load(self) -> Format:
        return ROW


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def points(*, group: str) -> list[Any]:
        return [Point()] if group == "ckptconv.formats" else []

    monkeypatch.setattr("importlib.metadata.entry_points", points)
    table.table.cache_clear()
    yield
    table.table.cache_clear()


class TestLine(FormatTests):
    @pytest.fixture
    def subject(self) -> Subject:
        return Subject("line", "x.line", metadata=False)


def test_it_takes_part(tmp_path: Path) -> None:
    ckptconv.save({"a": np.arange(3)}, tmp_path / "x.line")
    ckptconv.convert(tmp_path / "x.line", tmp_path / "x.safetensors")
    ckptconv.convert(tmp_path / "x.safetensors", tmp_path / "y.line")
    assert (tmp_path / "x.line").read_bytes() == (tmp_path / "y.line").read_bytes()
    assert ckptconv.open(tmp_path / "y.line")["a"].numpy().tolist() == [0, 1, 2]


def test_ours_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package cannot take the place of a built-in format."""
    monkeypatch.setattr(Point, "load", lambda self: ROW._replace(name="safetensors"))
    table.table.cache_clear()
    assert table.get("safetensors").module == "ckptconv.formats.safetensors"


RULES = """
[[rule]]
from = "mine/w"
to = "theirs.w"
"""


def test_a_package_brings_converters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(RULES)
    points = [EntryPoint(name, f"test:{name}", "ckptconv.converters") for name in ("mine", "bert")]
    monkeypatch.setattr(EntryPoint, "load", lambda self: file)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: [p for p in points if p.group == group])
    library._installed.cache_clear()
    try:
        assert library.names().count("mine") == 1
        ckptconv.save({"mine/w": np.arange(3)}, tmp_path / "a.npz")
        ckptconv.convert(tmp_path / "a.npz", tmp_path / "b.npz", change=ckptconv.Change(converter="mine"))
        assert list(ckptconv.open(tmp_path / "b.npz")) == ["theirs.w"]
        assert len(library.load("bert").rules) > 1  # ours, not the package's
    finally:
        library._installed.cache_clear()
