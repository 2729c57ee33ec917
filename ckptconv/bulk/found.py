"""Checkpoints that were found, and their compact form: a zoo has millions of them."""

from __future__ import annotations

import marshal
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..errors import CkptError
from ..storage.files import Stat
from ..storage.paths import split

STEP = re.compile(r"(?P<series>.*?)[-_.]?(?P<step>\d+)", re.DOTALL)


class FoundCheckpoint(NamedTuple):
    """One checkpoint: the argument for `open`, its path below the root without the suffix, and all its files.

    problem: why it cannot be converted, if that is already known. It counts as a failure; the others are converted.
    """

    source: str
    name: str
    suffix: str
    files: tuple[tuple[str, Stat], ...]
    problem: CkptError | None = None

    @property
    def size(self) -> int:
        return sum(status.size for _, status in self.files)


# A checkpoint and the path of its output ('' if none was given): as plain values in 120 bytes rather than 700, unless
# it has a problem, because an error is not a plain value.
Packed = bytes | tuple[FoundCheckpoint, str]


def pack(f: FoundCheckpoint, at: str = "") -> Packed:
    """The compact form, without what the name and the files of a checkpoint share with its source."""
    if f.problem:
        return f, at
    cut = len(f.source) - len(f.name) - len(f.suffix)
    named = cut if f.source[max(cut, 0) :] == f.name + f.suffix else f.name
    folder = f.source[: f.source.rfind("/") + 1]
    files = list[int | str]()
    for url, status in f.files:
        same = len(f.source) if url == f.source else len(folder) if url.startswith(folder) else 0
        files += same, url[same:], *status
    return marshal.dumps((f.source, named, f.suffix, tuple(files), at))


def unpack(row: Packed) -> tuple[FoundCheckpoint, str]:
    if not isinstance(row, bytes):
        return row
    source, named, suffix, files, at = marshal.loads(row)
    name = named if isinstance(named, str) else source[named : len(source) - len(suffix)]
    members = [
        (source[: files[k]] + files[k + 1], Stat(*files[k + 2 : k + 6])) for k in range(0, len(files), 6)
    ]  # fmt: skip
    return FoundCheckpoint(source, name, suffix, tuple(members)), at


def parts(row: Packed) -> tuple[str, str, str, str]:
    """The source, the name, the suffix and the path of the output; faster than all that `unpack` gives."""
    if not isinstance(row, bytes):
        return row[0].source, row[0].name, row[0].suffix, row[1]
    source, named, suffix, _, at = marshal.loads(row)
    return source, named if isinstance(named, str) else source[named : len(source) - len(suffix)], suffix, at


def repeated(names: Callable[[], Iterable[str]]) -> set[str]:
    """The names that occur more than once, found in 40 bytes for each; `names` gives all of them, twice."""
    twice = {one for one, other in pairwise(sorted(map(hash, names()))) if one == other}
    often = Counter(n for n in names() if hash(n) in twice) if twice else Counter[str]()
    return {name for name, count in often.items() if count > 1}


def newest(rows: Sequence[Packed]) -> list[bool]:
    """Whether each is the highest readable step of its training series, an unreadable one above it, or not a step.

    The steps of a series are in one folder, and their names, which have no suffix, differ in the number at their end.
    """
    steps = list(map(_step, rows))
    best: dict[str, int] = {}
    for row, (series, step) in zip(rows, steps, strict=True):
        if isinstance(row, bytes):
            best[series] = max(step, best.get(series, 0))
    return [step >= best.get(series, 0) for series, step in steps]


def _step(row: Packed) -> tuple[str, int]:
    source, name, suffix, _ = parts(row)
    m = None if suffix else STEP.fullmatch(name)
    return (f"{split(source)[0]}/{m['series']}", int(m["step"])) if m else ("", 0)


__all__ = ["FoundCheckpoint", "Packed", "newest", "pack", "parts", "repeated", "unpack"]
