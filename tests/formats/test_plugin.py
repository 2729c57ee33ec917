"""A third party's format, the one that docs/write-a-format.md shows: it takes part, and the contract proves it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kit import ROOT, Run, in_memory

import ckptconv
from ckptconv.checkpoint import Checkpoint, Tensor, held
from ckptconv.dtypes import DTYPES
from ckptconv.errors import UnknownFormat
from ckptconv.formats import table
from ckptconv.formats.placement import Placement
from ckptconv.formats.table import Format
from ckptconv.rules import library
from ckptconv.storage import plugins
from ckptconv.testing import NAMES, FormatTests, Subject, write


def shown() -> Any:
    """The module mine.py of the page."""
    text = (ROOT / "docs/write-a-format.md").read_text(encoding="utf-8")
    code = re.search(r'^```python\n("""mine\.py""".*?)^```$', text, re.M | re.S)
    assert code
    module = sys.modules["mine"] = ModuleType("mine")
    exec(code[1], module.__dict__)
    return module


MINE = shown()
ROW: Format = MINE.ROW


class Point:
    """What importlib.metadata gives for an installed entry point."""

    name, group, value, dist = "mine", "ckptconv.formats", "mine:ROW", None

    def load(self) -> Format:
        return ROW


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def points(*, group: str) -> list[Any]:
        return [Point()] if group == "ckptconv.formats" else []

    monkeypatch.setattr("importlib.metadata.entry_points", points)
    plugins.installed.cache_clear()
    yield
    plugins.installed.cache_clear()


# --- that the contract notices what is wrong with a format --------------------------------------------------------

OPEN, PLACE = MINE.open, MINE.Writer.place


def reading(change: Callable[[Checkpoint], Checkpoint]) -> Any:
    """The fault of a reader: what it opens is changed."""
    return MINE, "open", lambda url, how: change(OPEN(url, how))


def placing(change: Callable[[Placement, Checkpoint], Placement]) -> Any:
    """The fault of a writer: what it places is changed."""
    return MINE.Writer, "place", lambda self, whole: change(PLACE(self, whole), whole)


def each(change: Callable[[Tensor], Tensor]) -> Any:
    return reading(lambda found: found.with_tensors({n: change(t) for n, t in found.items()}))


def without(name: str) -> Any:
    return reading(lambda found: found.with_tensors({n: t for n, t in found.items() if n != name}))


def other_bits(tensor: Tensor) -> Tensor:
    array = tensor.numpy().reshape(-1).copy()
    array.view("u1")[-1:] ^= 1
    return held(tensor.name, array.reshape(tensor.shape))


class Lying(Tensor):
    def numpy(self) -> np.ndarray[Any, Any]:
        raise ValueError("a format raises CkptErrors only")


def moved(by: int) -> Any:
    """The last slot and the end of the file lie elsewhere; only the slot if `by` is negative."""

    def change(placed: Placement, whole: Checkpoint) -> Placement:
        last = list(placed.slots)[-1]
        slot = placed.slots[last]
        return placed._replace(slots=placed.slots | {last: slot._replace(start=slot.start + by)})

    return placing(change)


def stamped(placed: Placement, whole: Checkpoint) -> Placement:
    """The time is in the header, in place of a space."""
    head = placed.patches[0].data.replace(b'": ', b'":%c' % (b"\t" if time.time() >= 2e9 else b" "), 1)
    return placed._replace(patches=[placed.patches[0]._replace(data=head)])


HOSTILE = ("truncated", "flipped", "spliced", "random_bytes")
ONE: Any = ("a", DTYPES["float32"], (1,), ())

FAULTS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "a tensor is lost": (without("shape/s0"), ("zoo_round_trip",)),
    "a bit is lost": (each(other_bits), ("zoo_round_trip", "every_tensor_alone", "odd_names_round_trip")),
    "another order": (reading(lambda f: f.with_tensors(dict(sorted(f.items())))), ("order",)),
    "no metadata": (reading(lambda f: replace(f, metadata={})), ("metadata", "ties")),
    "it is not recognised": ((MINE, "sniff", lambda seen: 0), ("it_is_recognised",)),
    "a slot over another": (moved(-1), ("slots_are_apart_and_inside",)),
    "the time in the header": (placing(stamped), ("output_is_determined",)),
    "an exception while reading": ((MINE, "open", lambda url, how: Checkpoint({"a": Lying(*ONE)})), HOSTILE),
}  # fmt: skip


SMALL = {"b/w": np.arange(6, dtype="f4").reshape(2, 3), "a/w": np.array(7, "i4"), "c/e": np.zeros((0, 2), "f4")}


def judged(what: str, folder: Path, subject: Subject) -> None:
    """Run one test of the contract."""
    path = folder / "out" / "x.mine"
    if what in {*HOSTILE, "it_is_recognised"}:
        write(in_memory(SMALL), path, "mine")
    names = {"odd_names_round_trip": [NAMES]}.get(what, [])
    monkeypatch = [pytest.MonkeyPatch()] if what == "output_is_determined" else []
    try:
        getattr(FormatTests(), f"test_{what}")(subject, path, *names, *monkeypatch)
    finally:
        for m in monkeypatch:
            m.undo()


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_noticed(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, noticed = FAULTS[what]
    subject = Subject("mine", "x.mine", metadata="metadata" in noticed, ties="ties" in noticed, tries=100)
    monkeypatch.setattr(*fault)
    for test in noticed:
        with pytest.raises((AssertionError, pytest.fail.Exception, ValueError, UnknownFormat)):
            judged(test, tmp_path / test, subject)


def test_a_format_may_lose_what_its_subject_does_not_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS["another order"][0])
    judged("order", tmp_path, Subject("mine", "x.mine", order=False))


# --- that it takes part ----------------------------------------------------------------------------------------


def test_it_takes_part(tmp_path: Path) -> None:
    ckptconv.save({"a": np.arange(3)}, tmp_path / "x.mine")
    ckptconv.convert(tmp_path / "x.mine", tmp_path / "x.safetensors")
    ckptconv.convert(tmp_path / "x.safetensors", tmp_path / "y.mine")
    assert ckptconv.open(tmp_path / "y.mine")["a"].numpy().tolist() == [0, 1, 2]


def test_ours_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package cannot take the place of a built-in format."""
    monkeypatch.setattr(Point, "load", lambda self: ROW._replace(name="safetensors"))
    plugins.installed.cache_clear()
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
    plugins.installed.cache_clear()
    library._installed.cache_clear()
    try:
        assert library.names().count("mine") == 1
        ckptconv.save({"mine/w": np.arange(3)}, tmp_path / "a.npz")
        ckptconv.convert(tmp_path / "a.npz", tmp_path / "b.npz", converter="mine")
        assert list(ckptconv.open(tmp_path / "b.npz")) == ["theirs.w"]
        assert len(library.load("bert").rules) > 1  # ours, not the package's
    finally:
        library._installed.cache_clear()


# --- and what is broken takes no part --------------------------------------------------------------------------

# what an entry point names, and what is said of it
BROKEN: dict[str, tuple[Any, str]] = {
    "no module": (ModuleNotFoundError("No module named 'gone'"), "ModuleNotFoundError: No module named 'gone'"),
    "not a format": ({"name": "mine"}, "TypeError: it gives a dict, not a Format"),
    "a format of another type": (ROW._replace(suffixes=".mine"), "TypeError: its Format has the suffixes '.mine'"),
    "a suffix of every file": (ROW._replace(suffixes=("",)), "TypeError: its Format has the suffixes ('',)"),
}


class Broken:
    """An entry point of a package that cannot be used, and of another that can."""

    def __init__(self, group: str, gives: Any) -> None:
        self.name, self.group, self.value, self.gives = "theirs", group, "theirs:IT", gives
        self.dist = type("Dist", (), {"name": "their-package", "version": "1.0"})

    def load(self) -> Any:
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Any], None]]:
    """Install an entry point that gives something, before the format above."""

    def install(group: str, gives: Any) -> None:
        points = {group: [Broken(group, gives)]}
        points.setdefault("ckptconv.formats", []).append(Point())  # type: ignore[arg-type]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: points.get(group, []))
        plugins.installed.cache_clear()
        plugins.leave_out.cache_clear()
        library._installed.cache_clear()

    yield install
    library._installed.cache_clear()


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_format_is_left_out(what: str, broken: Any, cli: Run, tmp_path: Path) -> None:
    """Every verb goes on without it and says so once; who asks for it is told why it is not there."""
    gives, why = BROKEN[what]
    broken("ckptconv.formats", gives)
    listed = cli("formats")
    assert listed.returncode == 0
    assert "mine " in listed.stdout  # what is sound is there
    said = (
        f"warning: left out, since it cannot be used: their-package 1.0: ckptconv.formats: theirs = theirs:IT: {why}\n"
    )
    assert listed.stderr == said
    ckptconv.save({"a": np.arange(3)}, tmp_path / "zoo" / "a.npz")
    (tmp_path / "zoo" / "x.bin").write_bytes(b"nothing that is known")
    if what == "no module":
        assert cli("zoo", tmp_path / "zoo", "-o", tmp_path / "out", "--jobs", "1").stdout == ""
        assert list(ckptconv.open(tmp_path / "out" / "a.safetensors")) == ["a"]
    for argv in (["inspect", tmp_path / "zoo" / "x.bin"], ["zoo/a.npz", "-o", "b", "--to", "theirs"]):
        done = cli(*argv)
        assert done.returncode in (2, 3)
        assert why in done.stderr, argv


def test_a_format_whose_module_is_broken_claims_nothing(broken: Any, cli: Run, tmp_path: Path) -> None:
    """Its row is sound; the module is imported when a file is looked at that nothing else claims."""
    broken("ckptconv.formats", ROW._replace(name="theirs", module="ckptconv.there_is_none", suffixes=(".theirs",)))
    ckptconv.save(SMALL, tmp_path / "x.mine")
    done = cli("inspect", tmp_path / "x.mine")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: left out, since it cannot be used: the format theirs: ")
    named = cli("inspect", tmp_path / "x.mine", "--from", "theirs")
    assert (named.returncode, "there_is_none" in named.stderr) == (8, True)


@pytest.mark.parametrize(
    ("gives", "why"),
    [
        (ModuleNotFoundError("No module named 'gone'"), "ModuleNotFoundError: No module named 'gone'"),
        (7, "it gives a int, not the path of a converter"),
        (Path("nothing.toml"), "nothing.toml: no such file"),
        (Path(__file__), "not valid TOML"),
    ],
)
def test_a_broken_converter_is_left_out(gives: Any, why: str, broken: Any, cli: Run, tmp_path: Path) -> None:
    broken("ckptconv.converters", gives)
    listed = cli("converters")
    assert (listed.returncode, listed.stderr.count("warning: ")) == (0, 1)
    assert why in listed.stderr
    ckptconv.save({"a": np.arange(3)}, tmp_path / "a.npz")
    for name in ("auto", "theirs"):
        done = cli("convert", tmp_path / "a.npz", "-o", tmp_path / "b.npz", "-c", name)
        assert done.returncode == 2
        assert "defect" not in done.stderr
        assert (why in done.stderr) == (name == "theirs")
