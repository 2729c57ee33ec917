"""The checkpoints that a server shows, by number, and what a page may ask of them.

    listing()                    the page that lists them
    page(3)                      the report of one; values are read only if they are few
    page(3) with whole           the report of one with all values
    pair(3, 5)                   how one differs from another
    series(3, 5)                 how the layers moved, from one to another, through those that are listed between
    tensor(3, 17)                statistics and histogram of the tensor in row 17
    region(3, 17, (0, 64, 0, 64))   a rectangle of it (region.py)

What is asked for are numbers: no part of a request becomes a path.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from ..api import Change, Resources, Select, prepare
from ..checkpoint import Checkpoint, Tensor
from ..dtypes import DTYPES
from ..errors import StorageError
from ..messages import in_bytes, many, printable, redacted, version
from ..moves.sources import Sources
from ..storage import files
from . import html, survey
from .outline import natural
from .region import region

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..storage.files import Reader, Stamp, Stat

FEW = 64 * 2**20  # bytes of a checkpoint whose values are read at once
MOST = 256 * 2**20  # bytes of a tensor that is read without being asked for
KEPT = 4  # open checkpoints
LONGEST = 100  # checkpoints of a series, which are open together
READERS = 2  # requests that read values at a time

Watch = Callable[[], None]  # raises an exception when nobody waits for the answer any more


class Offered(NamedTuple):
    """A checkpoint that can be opened. problem: why it cannot. files: its files, as they were when it was listed."""

    source: str
    name: str
    size: int
    problem: str = ""
    files: tuple[tuple[str, Stat], ...] = ()

    @property
    def changed(self) -> bool:
        """Whether a local file is no longer the one that was listed; it may have become a link to any other."""
        return any(files.stat(url) != status for url, status in self.files if not files.is_remote(url))


class Watched(Sources):
    """Open files; before each read it is asked whether somebody still waits."""

    def __init__(self, stamps: dict[str, Stamp], watch: Watch) -> None:
        super().__init__(stamps=stamps)
        self.watch = watch

    def reader(self, url: str) -> Reader:
        self.watch()
        return super().reader(url)


class Shelf:
    """Checkpoints keep their numbers while the server runs; the list is made anew whenever it is shown, 2 before 10.

    find: gives what there is. select: what is read of each. workers: threads.
    """

    def __init__(self, find: Callable[[], Sequence[Offered]], select: Select, workers: int = 1) -> None:
        self.find, self.select, self.workers = find, select, workers
        self._offered: dict[str, Offered] = {}
        self._numbers: dict[str, int] = {}
        self._open: OrderedDict[int, tuple[Checkpoint, dict[str, Stamp]]] = OrderedDict()
        self._lock, self._reading = threading.Lock(), threading.Semaphore(READERS)
        self.refresh()

    def refresh(self) -> list[Offered]:
        """What there is now."""
        found = sorted(self.find(), key=lambda o: natural(o.name))
        with self._lock:
            self._offered = {o.source: o for o in found}
            for o in found:
                self._numbers.setdefault(o.source, len(self._numbers))
        return found

    def only(self) -> int | None:
        """The number of the only checkpoint; None if there are several, or none, or if it cannot be opened."""
        found = self.refresh()
        return self._numbers[found[0].source] if len(found) == 1 and not found[0].problem else None

    def source(self, number: int) -> str:
        """StorageError if there is no checkpoint with this number, or no longer, or if it cannot be opened.

        What has changed since it was listed is looked for anew: it may be a link now that leads out of its folder.
        """
        found = self._listed(number)
        if found and found.changed:
            self.refresh()
            found = self._listed(number)
        if not found:
            raise StorageError("there is no such checkpoint here, or no longer")
        if found.problem:
            raise StorageError(found.problem, url=found.source)
        if found.changed:
            raise StorageError("changes at the moment; try again when it is written", url=found.source)
        return found.source

    def _listed(self, number: int) -> Offered | None:
        with self._lock:
            return next((o for s, o in self._offered.items() if self._numbers[s] == number), None)

    def opened(self, number: int, *, anew: bool = False) -> tuple[Checkpoint, dict[str, Stamp]]:
        """A checkpoint, and the stamps of its files when its headers were read."""
        with self._lock:
            if number in self._open and not anew:
                self._open.move_to_end(number)
                return self._open[number]
        with files.record_stamps() as stamps:
            made = prepare([self.source(number)], self.select, Change()), stamps
        with self._lock:
            self._open[number] = made
            self._open.move_to_end(number)
            while len(self._open) > KEPT:
                self._open.popitem(last=False)
        return made

    # --- pages ---

    def listing(self) -> str:
        """The page that lists the checkpoints."""
        offered = self.refresh()
        rows = "".join(map(self._row, offered))
        style = html.stylesheet()
        policy = f"default-src 'none'; style-src {html.digest(style)}; form-action 'self'; base-uri 'none'"
        words = {"policy": policy, "count": many(len(offered), "checkpoint"), "version": version()}
        return html.filled("list.html", {k: escape(v) for k, v in words.items()} | {"style": style, "rows": rows})

    def _row(self, o: Offered) -> str:
        number, name = self._numbers[o.source], escape(printable(redacted(o.name)))
        if o.problem:
            why = f'<br><span class="soft">{escape(printable(o.problem))}</span>'
            return f"<tr><td></td><td></td><td>{name}{why}</td><td></td></tr>\n"
        choose = "".join(
            f'<td><input type="radio" name="{side}" value="{number}" aria-label="{what}: {name}"></td>'
            for side, what in (("a", "before"), ("b", "after"))
        )
        size = in_bytes(o.size) if o.size else ""
        return f'<tr>{choose}<td><a href="{number}/">{name}</a></td><td class="num">{size}</td></tr>\n'

    def page(self, number: int, watch: Watch, *, whole: bool = False) -> str:
        """The report of one checkpoint."""
        c, _ = self.opened(number, anew=True)
        size = sum(t.nbytes for t in c.values())
        values = whole or size <= FEW
        with self._turn(values):
            data = survey.survey(c, values=values, workers=self.workers, progress=lambda *_: watch())
        links = [] if len(self._offered) == 1 else [["All checkpoints", "../"]]
        links += [] if values else [[f"Read all values: {in_bytes(size)}", "all"]]
        data["numeric"] = [_is_numeric(DTYPES[name].kind) for name in data["dtypes"]]
        return html.render(data | {"url": redacted(self.source(number)), "live": {"most": MOST, "links": links}})

    def pair(self, a: int, b: int, watch: Watch) -> str:
        """How one checkpoint differs from another."""
        return self._several([self.source(a), self.source(b)], watch)

    def series(self, a: int, b: int, watch: Watch) -> str:
        """How the layers moved from one checkpoint to another, through those listed between that have no problem."""
        ends = [self.source(a), self.source(b)]
        with self._lock:
            readable = [s for s, o in self._offered.items() if not o.problem]
        if not set(ends) <= set(readable):
            raise StorageError("a series begins and ends with checkpoints that can be read")
        first, last = sorted(map(readable.index, ends))
        urls = readable[first : last + 1]
        if not 3 <= len(urls) <= LONGEST:
            what = f"from the first to the last of these there are {len(urls)}"
            raise StorageError(f"a series has 3 to {LONGEST} checkpoints; {what}")
        urls = [self.source(self._numbers[url]) for url in urls]
        return self._several(urls if urls[0] == ends[0] else urls[::-1], watch)

    def _several(self, urls: Sequence[str], watch: Watch) -> str:
        resources = Resources(jobs=self.workers, progress=lambda *_: watch())
        with self._turn(True):
            return html.render(html.collected(urls, self.select, Change(), values=True, resources=resources))

    # --- values ---

    def tensor(self, number: int, row: int, watch: Watch) -> dict[str, Any]:
        """Statistics, histogram and findings of one tensor, which is read."""
        with self._turn(True), self._sources(number, row, watch) as (t, sources):
            return survey.one(t, sources)

    def region(self, number: int, row: int, rectangle: Sequence[int], watch: Watch) -> dict[str, Any]:
        """A rectangle of one tensor, of which only that is read."""
        with self._turn(True), self._sources(number, row, watch) as (t, sources):
            found = region(t, rectangle, sources)
        finite = found.cells[found.cells < float("inf")]
        usual = 2 * float(sorted(finite)[int(0.9 * (finite.size - 1))]) if finite.size else 0.0
        return {
            "matrix": found.shape,
            "cells": survey.shaded(found.cells, usual or float("inf")),  # a few large values leave the others visible
            "texts": found.texts,
        }

    @contextmanager
    def _sources(self, number: int, row: int, watch: Watch) -> Iterator[tuple[Tensor, Sources]]:
        c, stamps = self.opened(number)
        tensors = list(c.values())
        if not 0 <= row < len(tensors):
            raise StorageError("there is no such tensor here, or no longer: reload the page")
        with Watched(stamps, watch) as sources:
            yield tensors[row], sources

    @contextmanager
    def _turn(self, values: bool) -> Iterator[None]:
        """Wait until few others read values: what is in memory is bounded."""
        if not values:
            yield
            return
        with self._reading:
            yield


def _is_numeric(kind: str) -> bool:
    return kind not in "sx"


__all__ = ["Offered", "Shelf", "Watch"]
