"""Pairs to rules: templates over indices.

    bert/layer_0/q/kernel -> layer.0.q.weight     "bert/layer_{i}/q/kernel" = "layer.{i}.q.weight"  # 12 tensors
    bert/layer_1/q/kernel -> layer.1.q.weight

A rule takes the names that were paired and no other name of the source; where an index alone would take more, its
values are listed. A number of the target is one of the source, as it is, shifted or by a table; else names are spelled.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..errors import UsageError
from ..messages import is_visible
from ..rules.domains import Domain, domain
from ..rules.templates import template
from .orders import Order
from .pairs import Length, Pair, folded

MARK = "\1"  # where the index of a stack stands
CAPTURES = "ijklmnopq"
Numbers = tuple[int, ...]
Numbered = tuple[tuple[float, ...], ...]  # the numbers of fills
Texts = tuple[tuple[str, ...], tuple[str, ...]]  # names of both sides without their numbers
Kind = tuple[
    Texts, str, Order, str, bool, bool, tuple[str, ...], Numbered, Length | None
]  # what pairs must share to be one rule
Spec = str | list[str] | dict[str, str]


class Row(NamedTuple):
    """One rule: templates of both sides, what its captures may be, and the pairs it stands for."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    where: tuple[tuple[str, str], ...]  # capture and its TOML
    pairs: tuple[Pair, ...]
    fills: tuple[tuple[str, tuple[float, ...]], ...] = ()

    @property
    def order(self) -> Order:
        return self.pairs[0].order

    @property
    def length(self) -> Length | None:
        return self.pairs[0].length


class Member(NamedTuple):
    """A pair on its way: the numbers of all its names, source and target."""

    pair: Pair
    left: Numbers
    right: Numbers


def rows(pairs: Iterable[Pair], every: Iterable[str]) -> list[Row]:
    """The rules for all pairs, in the order of their first sources."""
    known: dict[str, set[Numbers]] = defaultdict(set)
    for name in every:
        text, numbers = folded(name)
        known[text].add(numbers)
    made: dict[str, set[Numbers]] = defaultdict(set)
    groups: dict[Kind, list[Member]] = defaultdict(list)
    for pair in pairs:
        sources, targets, axis = _marked(pair)
        left, right = [folded(n) for n in sources], [folded(n) for n in targets]
        texts = tuple(t for t, _ in left), tuple(t for t, _ in right)
        for text, counted in right:
            made[text].add(counted)
        fills = tuple(f for _, f in pair.fills)
        groups[(texts, axis, pair.order, pair.evidence, pair.sure, pair.real, pair.why, fills, pair.length)].append(
            Member(pair, _joined(left), _joined(right))
        )
    out: list[Row] = []
    for (texts, axis, *_), members in groups.items():
        out += _Rows(*texts, axis, known, made).of(members)
    return out


def _joined(found: Sequence[tuple[str, Numbers]]) -> Numbers:
    return tuple(n for _, numbers in found for n in numbers)


def _marked(pair: Pair) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """The names, those of a stack as one with a mark, and the TOML of what stands there ('' if numbers from 0)."""
    if not pair.axis:
        return pair.sources, (*pair.targets, *(n for n, _ in pair.fills)), ""
    each = pair.each or ((len(pair.sources), 1) if len(pair.sources) > 1 else (1, len(pair.targets)))
    sides, spec = [pair.sources, pair.targets], ""
    for side, n in enumerate(each):
        if n > 1:
            found = [_one(sides[side][k : k + n]) for k in range(0, len(sides[side]), n)]
            sides[side], spec = tuple(name for name, _ in found), found[0][1]
    return sides[0], sides[1], spec


def _one(many: Sequence[str]) -> tuple[str, str]:
    """Several names as one with a mark where they differ."""
    low, high = min(many), max(many)
    head = next((k for k, (x, y) in enumerate(zip(low, high, strict=False)) if x != y), len(low))
    turned = [n[::-1] for n in many]
    low, high = min(turned), max(turned)
    tail = next((k for k, (x, y) in enumerate(zip(low, high, strict=False)) if x != y), len(low))
    first = many[0]
    while head and first[head - 1].isalnum():
        head -= 1
    while tail and first[len(first) - tail].isalnum():
        tail -= 1
    tail = min(tail, min(map(len, many)) - head)
    words = [n[head : len(n) - tail] for n in many]
    spec = "" if words == [str(i) for i in range(len(words))] else written(words)
    return f"{first[:head]}{MARK}{first[len(first) - tail :] if tail else ''}", spec


class _Rows:
    """The rules of pairs that share everything but numbers."""

    def __init__(
        self, sources: tuple[str, ...], targets: tuple[str, ...], axis: str,
        known: Mapping[str, set[Numbers]], made: Mapping[str, set[Numbers]],
    ) -> None:  # fmt: skip
        self.sources, self.targets, self.axis, self.known, self.made = sources, targets, axis, known, made

    def of(self, members: Sequence[Member]) -> list[Row]:
        """One rule if the numbers allow, else one for each value of the number that varies least."""
        columns = list(zip(*(m.left for m in members), strict=True))
        varying = [k for k, c in enumerate(columns) if len(set(c)) > 1]
        if len(members) == 1 or not varying:
            return [row for m in members for row in self._try([m], narrow=False)]
        for narrow in (False, True):
            if found := self._try(members, narrow=narrow):
                return found
        k = min(varying, key=lambda k: len(set(columns[k])))
        parts: dict[int, list[Member]] = defaultdict(list)
        for m in members:
            parts[m.left[k]].append(m)
        return [row for part in parts.values() for row in self.of(part)]

    def _try(self, members: Sequence[Member], *, narrow: bool) -> list[Row]:
        lefts, rights = (
            list(zip(*side, strict=True)) for side in ([m.left for m in members], [m.right for m in members])
        )
        varying = list(dict.fromkeys(c for c in lefts if len(set(c)) > 1))
        if len(varying) > len(CAPTURES):
            return []
        free = dict(zip(varying, CAPTURES, strict=False))
        shifts: dict[str, Spec] = {}
        words = [str(c[0]) if len(set(c)) == 1 else self._capture(c, free, shifts, narrow) for c in rights]
        if "" in words or set(free.values()) - set(shifts):
            return []
        left = [f"{{{free[c]}}}" if c in free else str(c[0]) for c in lefts]
        made = self._rendered(self.sources, left), self._rendered(self.targets, words)
        where = tuple((k, written(v)) for k, v in shifts.items())
        where += (("e", self.axis),) if self.axis else ()
        if not self._exact(made, {k: domain(v) for k, v in shifts.items()}, members):
            return []
        first = members[0].pair
        count = len(made[1]) - len(first.fills)
        fills = tuple(zip(made[1][count:], (f for _, f in first.fills), strict=True))
        return [Row(made[0], made[1][:count], where, tuple(m.pair for m in members), fills)]

    def _capture(self, c: Numbers, free: Mapping[Numbers, str], shifts: dict[str, Spec], narrow: bool) -> str:
        """The capture that gives a column of the target, as {i}; '' if none does."""
        for source, name in free.items():
            spec = _bijection(source, c, narrow)
            if spec and shifts.setdefault(name, spec) == spec:
                return f"{{{name}}}"
        return ""

    def _rendered(self, texts: Sequence[str], words: Sequence[str]) -> tuple[str, ...]:
        """Folded names as templates, their numbers put back."""
        left, out = list(words), []
        for text in texts:
            escaped = text.replace("{", "{{").replace("}", "}}").replace(MARK, "{e*}")
            out.append(re.sub("\0", lambda _: left.pop(0), escaped))
        return tuple(out)

    def _exact(
        self, made: tuple[tuple[str, ...], tuple[str, ...]], where: Mapping[str, Domain], members: Sequence[Member]
    ) -> bool:
        """Whether the templates take their own names only; they can take only names that fold to one text."""
        if len(members) == 1 and not any(MARK in text for text in (*self.sources, *self.targets)):
            return True
        inverse = {k: d.inverse for k, d in where.items()}
        for side, (texts, names, spoken) in enumerate(
            ((self.sources, self.known, where), (self.targets, self.made, inverse))
        ):
            at = 0
            for k, text in enumerate(texts):
                try:
                    pattern, _ = template(made[side][k]).regex(spoken)
                except UsageError:  # more captures in one segment than the language allows
                    return False
                count = text.count("\0")
                own = {(m.left, m.right)[side][at : at + count] for m in members}
                at += count
                others = names.get(text, set()) - own
                if MARK in text or not others or len(own) == len(members) == 1:
                    continue
                regex = re.compile(pattern, re.DOTALL)
                if any(regex.fullmatch(_filled(text, numbers)) for numbers in others):
                    return False
        return True


def _filled(text: str, numbers: Iterable[int]) -> str:
    left = iter(numbers)
    return re.sub("\0", lambda _: str(next(left)), text)


def _bijection(a: Numbers, b: Numbers, narrow: bool) -> Spec | None:
    """How numbers become others: "int", "int+1", a list of the values, or a table; None if they do not."""
    table = dict(zip(a, b, strict=True))
    if any(table[x] != y for x, y in zip(a, b, strict=True)) or len(set(table.values())) < len(table):
        return None
    steps = {y - x for x, y in table.items()}
    if narrow or len(steps) > 1:
        if steps == {0}:
            return [str(x) for x in sorted(table)]
        return {str(x): str(table[x]) for x in sorted(table)}
    (step,) = steps
    return f"int{step:+d}" if step else "int"


def written(value: Spec) -> str:
    """A value as TOML."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_quoted, value))}]"
    return f"{{ {', '.join(f'{_quoted(k)} = {_quoted(v)}' for k, v in value.items())} }}"


def _quoted(text: str) -> str:
    """A TOML basic string."""
    out = (f"\\{c}" if c in '"\\' else c if is_visible(c) else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(out)}"'
