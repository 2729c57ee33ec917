"""The conversions of a zoo: a sequence that holds each in some 200 bytes and makes it anew when it is asked for."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, Literal, NamedTuple, overload

from ..errors import CkptError
from ..formats import table
from .found import FoundCheckpoint, Packed, newest, pack, parts, repeated, unpack
from .ledger import LedgerEntry
from .manifest import FORMAT, Settings

State = Literal["convert", "retry", "changed", "done", "problem"]


class Conversion(NamedTuple):
    """One checkpoint to convert, the path of its output below the output folder, and its state.

    state: convert (new, or interrupted), retry (it failed before), changed (the source, the options or the output
    changed), done (up to date), problem (it cannot be converted). ours: the output may be replaced, because ckptconv
    wrote it or it did not exist.
    """

    found: FoundCheckpoint
    at: str
    settings: Settings
    state: State = "convert"
    ours: bool = False
    options: str = ""  # a hash of the settings, the converter's text and the version of ckptconv
    written: tuple[tuple[str, int, int], ...] = ()  # what an earlier run wrote: path, size, time


class Way(NamedTuple):
    """What many conversions have in common; `ending`: what the name of an output ends with."""

    ending: str
    settings: Settings
    state: State = "convert"
    ours: bool = False
    options: str = ""


class Conversions(Sequence[Conversion]):
    """Conversions, each a packed checkpoint and the number of its way."""

    def __init__(self, items: Iterable[Conversion] = ()) -> None:
        self._rows: list[Packed] = []
        self._ways = array("L")
        self._all: list[Way] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        for i in items:
            self.append(pack(i.found, i.at), Way("", *i[2:6]))

    def append(self, row: Packed, way: Way) -> None:
        self._rows.append(row)
        self._ways.append(self._number(way))

    def _number(self, way: Way) -> int:
        key = (way.ending, id(way.settings), *way[2:])
        if key not in self._numbers:
            self._numbers[key] = len(self._all)
            self._all.append(way)
        return self._numbers[key]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, k: int) -> Conversion: ...
    @overload
    def __getitem__(self, k: slice) -> Conversions: ...
    def __getitem__(self, k: int | slice) -> Conversion | Conversions:
        if isinstance(k, slice):
            return self._of(self._rows[k], self._ways[k])
        found, at = unpack(self._rows[k])
        way = self._all[self._ways[k]]
        return Conversion(found, at or found.name + way.ending, way.settings, way.state, way.ours, way.options)

    def settings(self) -> Iterator[Settings]:
        """All that occur."""
        return (way.settings for way in self._all)

    def paths(self) -> Iterator[str]:
        """The paths of all outputs."""
        for row, number in zip(self._rows, self._ways, strict=True):
            _, name, _, at = parts(row)
            yield at or name + self._all[number].ending

    def outputs(self) -> Iterator[tuple[str, str]]:
        """The paths of all outputs, and their formats; '' for torch if it has no shards."""
        targets = [way.settings.target for way in self._all]
        formats = [table.get(t.format).name if t.format else "" for t in targets]
        for path, number in zip(self.paths(), self._ways, strict=True):
            format = formats[number] or min(table.by_suffix(path), default=FORMAT)
            yield path, "" if format == "torch" and targets[number].max_shard_size is None else format

    def lengthen(self, k: int) -> None:
        """Keep the suffix of the source in the path of the output, unless that path was given."""
        suffix, way = parts(self._rows[k])[2], self._all[self._ways[k]]
        self._ways[k] = self._number(way._replace(ending=suffix + way.ending))

    def mark(self, k: int, state: State, ours: bool) -> None:
        way = self._all[self._ways[k]]
        self._ways[k] = self._number(Way(way.ending, way.settings, state, ours, way.options))

    def do_again(self) -> None:
        """Convert what is done as well."""
        for k, i in enumerate(self):
            self.mark(k, "problem" if i.found.problem else "convert", i.ours)

    def fail(self, k: int, problem: CkptError) -> None:
        """Note why one cannot be converted, unless that is known."""
        found, at = unpack(self._rows[k])
        if not found.problem:
            self._rows[k] = found._replace(problem=problem), at

    def where(self, fits: Callable[[Conversion], object]) -> Conversions:
        return self._chosen([bool(fits(i)) for i in self])

    def in_state(self, *states: State) -> Conversions:
        return self._chosen([self._all[number].state in states for number in self._ways])

    def _chosen(self, chosen: Sequence[bool]) -> Conversions:
        return self._of(list(compress(self._rows, chosen)), array("L", compress(self._ways, chosen)))

    def distinct(self) -> Conversions:
        """Each once, of those that are the same in everything: rows of a manifest may be repeated."""

        def keys() -> Iterator[str]:
            for row, number in zip(self._rows, self._ways, strict=True):
                source, name, _, at = parts(row)
                yield f"{source}\0{name}\0{at}\0{number}"

        often = repeated(keys)
        last = {key: k for k, key in enumerate(keys()) if key in often}
        return self._chosen([last.get(key, k) == k for k, key in enumerate(keys())])

    def newest(self) -> Conversions:
        """The highest step of each training series, and what is not a step."""
        return self._chosen(newest(self._rows))

    def largest_first(self) -> Conversions:
        sizes = [i.found.size for i in self]
        order = sorted(range(len(self)), key=lambda k: -sizes[k])
        return self._of([self._rows[k] for k in order], array("L", (self._ways[k] for k in order)))

    def _of(self, rows: list[Packed], ways: array[int]) -> Conversions:
        made = Conversions()
        made._rows, made._ways, made._all, made._numbers = rows, ways, self._all, self._numbers
        return made


class Known(Sequence[Conversion]):
    """Conversions with what the ledger says that earlier runs wrote; its line is read when one is asked for."""

    def __init__(self, items: Sequence[Conversion], entries: Mapping[str, LedgerEntry]) -> None:
        self._items, self._entries = items, entries

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, k: int) -> Conversion: ...
    @overload
    def __getitem__(self, k: slice) -> Known: ...
    def __getitem__(self, k: int | slice) -> Conversion | Known:
        if isinstance(k, slice):
            return Known(self._items[k], self._entries)
        item = self._items[k]
        return item._replace(written=self._entries[item.at].written) if item.at in self._entries else item


__all__ = ["Conversion", "Conversions", "Known", "State", "Way"]
