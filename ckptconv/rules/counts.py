"""Numbers in names that count, as those of layers do: none is missing, and there are as many as config.json says.

    [count]
    "<layers>" = "layers"       # model.layers.{l}: l is 0, 1, 2 ..., as many as the parameter says, if any
    [axes]
    k = "head_size"             # all axes called k are equally long, as long as the parameter says, if any
    [[refuse]]
    equal = ["heads", "kv_heads"]       # two sizes that are equal only in a model of another converter

A file that was cut off, or one of several that was not given, often ends between two layers, and no name would tell. A
number that a person gives is believed, so that the layers of a model can have gaps on purpose. One of several shards is
not checked. Names that are known, although their tensors were left out, count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ..checkpoint import Checkpoint, Tensor
from ..messages import printable
from ..storage.paths import split
from .assign import Names
from .templates import MAX_NAME, Template

if TYPE_CHECKING:
    from .converter import Converter, Count, Rule
    from .domains import Domain
    from .sizes import SizeFinder

MAX_SHOWN = 1000  # numbers that a message looks at: a name may have any
MAX_RUNS = 8
_SHARD = re.compile(r".*-([0-9]{5})-of-([0-9]{5})(?:[^0-9].*)?", re.DOTALL)

Found = dict[tuple[str, ...], set[int]]  # numbers by the other captures of the name


class Head(NamedTuple):
    """The beginning of names, whose last capture counts from `first`."""

    template: Template
    where: Mapping[str, Domain]

    @property
    def number(self) -> str:
        return self.template.captures[-1]

    @property
    def first(self) -> int:
        """The number that becomes 0 in the target, or else 0."""
        domain = self.where.get(self.number)
        return max(0, -domain.shift) if domain else 0

    def find(self, names: Iterable[str]) -> Found:
        text, order = self.template.regex(self.where)
        taken = re.compile(f"{text}(?:[^0-9].*)?", re.DOTALL).fullmatch
        at, out = order.index(self.number), Found()
        for m in filter(None, (taken(n) for n in names if len(n) <= MAX_NAME)):
            rest = tuple(m[k + 1] or "" for k in range(len(order)) if k != at)
            out.setdefault(rest, set()).add(int(m[at + 1]))
        return out

    def text(self, rest: tuple[str, ...]) -> str:
        """The template, with the values of its other captures."""
        others = [c for c in self.template.captures if c != self.number]
        return self.template.render({**dict(zip(others, rest, strict=True)), self.number: f"{{{self.number}}}"})


def wrong(converter: Converter, checkpoint: Checkpoint, made: Iterable[str], sizes: SizeFinder) -> Iterator[str]:
    """Say which numbers are missing, or too many, in the names of a source and in those that were made of it."""
    if not converter.counts or _is_part(checkpoint):
        return
    made = list(made)
    for count in converter.counts:
        given = sizes.params.get(count.param)
        wanted = sizes.known(count.param)
        if count.source.captures:
            head = Head(count.source, count.where)
            for rest, numbers in _numbers(converter, checkpoint, head, given or wanted).items():
                yield from _wrong(head, count, rest, numbers, given, wanted)
        if count.target.stacks:  # split from an axis: only its length can be wrong
            head = Head(count.target, {k: d.inverse for k, d in count.where.items()})
            for rest, numbers in head.find(made).items():
                yield from _wrong(head, count, rest, numbers, given, wanted)


def _numbers(converter: Converter, checkpoint: Checkpoint, head: Head, wanted: int | None) -> Found:
    """The numbers in a source's names; if they are too few, also in those of tensors that were left out."""
    names = [n for n, t in checkpoint.tensors.items() if not t.role or converter.every]
    known = Names(converter, checkpoint, names)
    found = head.find(map(known.canonical, names))
    left = [n for note in checkpoint.notes if note.kind in ("dropped", "damaged") for n in note.names]
    if not left or not any(_faulty(head.first, numbers, wanted) for numbers in found.values()):
        return found
    known = Names(converter, checkpoint, names + left)
    return {rest: n for rest, n in head.find(map(known.canonical, names + left)).items() if rest in found}


def _faulty(first: int, numbers: set[int], wanted: int | None) -> bool:
    return len(numbers) != wanted if wanted else max(numbers) - first + 1 != len(numbers) or min(numbers) < first


def _wrong(
    head: Head, count: Count, rest: tuple[str, ...], numbers: set[int], given: int | None, wanted: int | None
) -> Iterator[str]:
    """What is wrong with the numbers of one kind of names."""
    end = head.first + (wanted or max(numbers) - head.first + 1)
    whole = len(numbers) == end - head.first and min(numbers) == head.first and max(numbers) == end - 1
    if len(numbers) == given or (given is None and whole):
        return
    lacking = list(islice((n for n in range(head.first, end) if n not in numbers), MAX_SHOWN))
    beyond = sorted(n for n in numbers if not head.first <= n < end)
    shown = [f"{_runs(sorted(numbers)[:MAX_SHOWN])} there"]
    shown += [f"{_runs(lacking)} missing"] * bool(lacking) + [f"{_runs(beyond)} too many"] * bool(beyond)
    said = f", where {count.param}={wanted}" if wanted else ""
    name, right = printable(head.text(rest)), f"if that is right, param='{count.param}={len(numbers)}'"
    yield f"{name}: {', '.join(shown)}{said}; {right}"


def _runs(numbers: Sequence[int]) -> str:
    """Sorted numbers in words: 0 to 3, 5 are."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    words = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a} to {b}" for a, b in runs[:MAX_RUNS]]
    return ", ".join(words + ["..."] * (len(runs) > MAX_RUNS)) + (" is" if len(numbers) == 1 else " are")


class Lengths:
    """The lengths of axes that have one name in several layouts, as they are found."""

    def __init__(self, converter: Converter) -> None:
        self._axes = converter.axes
        # the first tensor of each length
        self._found: dict[str, dict[int, str]] = {axis: {} for axis in converter.axes}

    def note(self, rule: Rule, sources: Sequence[Tensor], known: Mapping[str, int]) -> None:
        if rule.pattern is None or not (here := self._axes.keys() & rule.pattern.names):
            return
        shapes = [t.shape for t in sources]
        sizes = rule.pattern.unrolled(shapes).solve(shapes, known)
        for axis in here:
            self._found[axis].setdefault(sizes[axis], f"{sources[0].name or rule.sources[0].text} {list(shapes[0])}")

    def wrong(self, sizes: SizeFinder) -> Iterator[str]:
        """Say which axes have several lengths, or another than their parameter says."""
        for axis, found in self._found.items():
            wanted = sizes.known(param) if (param := self._axes[axis]) and found else None
            if len(found) > 1 or (wanted and wanted not in found):
                shown = ", ".join(f"{n} in {name}" for n, name in found.items())
                given = ", ".join(f"{k}={n}" for k, n in sizes.params.items())
                yield f"{param or axis} would be {shown}, with {given or 'no parameters'}"


def refused(converter: Converter, sizes: SizeFinder) -> Iterator[str]:
    """Say why a model with these sizes is another converter's."""
    for refusal in converter.refusals:
        a, b = (sizes.known(n) if isinstance(n, str) else n for n in refusal.equal)
        if a is not None and a == b:
            yield f"{' and '.join(map(str, refusal.equal))} are {a}: {refusal.why}"


def _is_part(checkpoint: Checkpoint) -> bool:
    """Whether the source is some of the shards of a checkpoint, by their names."""
    shards: dict[tuple[str, str], set[str]] = {}
    for url in checkpoint.urls:
        folder, base = split(url)
        if m := _SHARD.fullmatch(base):
            shards.setdefault((folder, m[2]), set()).add(m[1])
    return any(len(numbers) < int(total) for (_, total), numbers in shards.items())


__all__ = ["Head", "wrong"]
