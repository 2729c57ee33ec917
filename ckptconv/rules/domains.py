"""The values of a capture in a template: which it takes, and what they become in the target. Pure.

    "int"   "int+1"   "2*int-2"   "int:3" (007 is 7)   "int in 4 4" (5 is 1.1)   ["query", "key"]   { gamma = "weight" }

All are bijections; docs of the language: converters/README.md.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from ..errors import UsageError

MAX_COUNTED = 1000  # numbers of `int in`

DomainKind = Literal["text", "int", "table", "any"]


class Domain(NamedTuple):
    """The values of a capture: `pattern` matches them in the source, `table` or `shift` gives them in the target."""

    kind: DomainKind
    table: tuple[tuple[str, str], ...] = ()
    shift: int = 0
    times: tuple[int, int] = (1, 1)  # an int becomes (value * times[0] + shift) / times[1], if that is an integer
    width: tuple[int, int] = (0, 0)  # digits to which an int is padded with zeros, in the source and in the target

    @property
    def pattern(self) -> str:
        if self.kind == "table":
            words = sorted((a for a, _ in self.table), key=len, reverse=True)
            return "|".join(map(re.escape, words))
        if width := self.width[0]:  # of nine digits there are no more
            return f"[0-9]{{{width}}}" + f"|[1-9][0-9]{{{width},8}}" * (width < 9)
        return {"int": "0|[1-9][0-9]{0,8}", "text": "[^/.]+", "any": ".+"}[self.kind]

    def forward(self, value: str) -> str | None:
        """The value in the target; None if it would be negative or not an integer."""
        if self.kind == "table":
            return dict(self.table)[value]
        if self.kind == "int":
            number, rest = divmod(int(value) * self.times[0] + self.shift, self.times[1])
            return f"{number:0{self.width[1]}}" if number >= 0 and not rest else None
        return value

    def place(self, value: str) -> int:
        """The index of a stacked value along its axis."""
        if self.kind == "table":
            return [a for a, _ in self.table].index(value)
        return int(value)

    def at(self, index: int) -> str:
        """The value at an index along its axis."""
        return self.table[index][0] if self.kind == "table" else f"{index:0{self.width[0]}}"

    @property
    def size(self) -> int:
        """The characters of its table."""
        return sum(len(a) + len(b) for a, b in self.table)

    @property
    def inverse(self) -> Domain:
        table = tuple((b, a) for a, b in self.table)
        return Domain(self.kind, table, -self.shift, (self.times[1], self.times[0]), (self.width[1], self.width[0]))

    def samples(self) -> list[str]:
        """A few values that the capture takes, for lint."""
        if self.kind == "table":
            return [a for a, _ in self.table]
        if self.kind == "int":
            return [f"{n:0{self.width[0]}}" for n in (7, 12)]
        return {"text": ["q7x", "w"], "any": ["q7x/v", "w"]}[self.kind]


def domain(spec: Any) -> Domain:
    """Parse one `where` entry; UsageError lists the forms that it may have."""
    if isinstance(spec, str) and (found := _numbers(spec)):
        return found
    if isinstance(spec, list) and spec and all(isinstance(s, str) for s in spec):
        spec = {s: s for s in spec}
    if isinstance(spec, dict) and spec and all(isinstance(s, str) for s in spec.values()):
        if len(set(spec.values())) < len(spec):
            raise UsageError(f"where {spec} is not a bijection: two keys have the same value")
        return Domain("table", tuple(spec.items()))
    known = '"int", "int+1", "2*int", "int:3", "int in 4 4", ["a", "b"], { a = "b" }'
    raise UsageError(f"where {spec!r} is none of {known}")


def _numbers(spec: str) -> Domain | None:
    """Parse `int`, `2*int+1:3` and `int in 4 4` (numbers counted through blocks of these lengths)."""
    if m := re.fullmatch(r"(?:([1-9])\*)?int([+-][0-9]{1,6})?(?::([1-9]))?", spec):
        return Domain("int", shift=int(m[2] or 0), times=(int(m[1] or 1), 1), width=(int(m[3] or 0), 0))
    if m := re.fullmatch(r"int in ([0-9]{1,3}(?: +[0-9]{1,3}){0,63}) *", spec):
        if not 0 < sum(map(int, m[1].split())) <= MAX_COUNTED:
            raise UsageError(f"where {spec!r}: counts through 1 to {MAX_COUNTED} numbers")
        blocks = [f"{b}.{i}" for b, size in enumerate(m[1].split()) for i in range(int(size))]
        return Domain("table", tuple((str(n), place) for n, place in enumerate(blocks)))
    return None


__all__ = ["Domain", "DomainKind", "domain"]
