"""Name templates: the grammar in which rules refer to names. Pure.

    bert/encoder/layer_{i}/{x...}/kernel

    {x}      text within one segment: no `/` and no `.`          {x...}  any number of whole segments, also none
    {e*}     like {x}; the matches are stacked along an axis e (or, in a target, an axis e is split into them)
             also {l*} and {e*} in one name: along two axes
    {{ }}    a literal brace

`where` restricts a capture and translates it: "int", "int+1" (one more in the target), "2*int-2", "int:3" (007 is 7 in
the target), "int in 4 4" (5 is 1.1: counted through blocks of 4 and 4), ["query", "key"], {gamma = "weight"}; all are
bijections. In {x...} the separator of the source becomes that of the target. A template compiles to a regular
expression without nested repeats, and one with several captures takes names of at most MAX_NAME, so matching is fast
for any name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import merge
from itertools import pairwise
from typing import Any, NamedTuple

from ..errors import LayoutError, UsageError

MAX_NAME = 500  # characters; a longer name matches no template with several captures, whose time is not linear
MAX_ANY = 2  # {x...} per template
MAX_STACKS = 2  # {x*} per template
MAX_FREE = 3  # {x...} and {x} in one segment: each may begin at any character, so the cost grows with their power


# --- templates --------------------------------------------------------------------------------------------------


class Capture(NamedTuple):
    name: str
    kind: str  # "", "..." or "*"
    before: str = ""  # of a {x...} that stands for whole segments: the separator that is omitted if it is empty,
    after: str = ""  # the one before it at the end of a name, else the one after it


_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_PIECE = re.compile(
    rf"\{{\{{|\}}\}}|(?<![^/.])\{{(?P<whole>{_NAME})\.\.\.\}}(?P<after>[/.])"  # whole segments, and at the end
    rf"|(?P<before>[/.])\{{(?P<last>{_NAME})\.\.\.\}}\Z|\{{(?P<name>{_NAME})(?P<kind>\.\.\.|\*)?\}}|[^{{}}/.]+|.",
    re.DOTALL,
)


class Template(NamedTuple):
    """A parsed template; `parts` alternates text and captures."""

    text: str
    parts: tuple[str | Capture, ...]

    @property
    def captures(self) -> list[str]:
        return list(dict.fromkeys(p.name for p in self.parts if isinstance(p, Capture)))

    @property
    def stacks(self) -> tuple[str, ...]:
        """The names of the captures {e*}: the axes along which it stacks."""
        return tuple(dict.fromkeys(p.name for p in self.parts if isinstance(p, Capture) and p.kind == "*"))

    @property
    def simple(self) -> bool:
        """Whether it takes names of any length: the time of one capture is linear in the name."""
        return sum(isinstance(p, Capture) for p in self.parts) < 2

    @property
    def last(self) -> str:
        """The last segment if it is plain text, else ''."""
        text = "".join(p if isinstance(p, str) else f"\0{p.after}" for p in self.parts)
        end = re.split("[/.]", text)[-1]
        return "" if "\0" in end else end

    def regex(self, where: Mapping[str, Domain]) -> str:
        """The regular expression, with a group for each capture."""
        out = ""
        seen = set[str]()
        for p in self.parts:
            if isinstance(p, str):
                out += re.escape(p)
            elif p.name in seen:
                out += f"(?({p.name}){re.escape(p.before)}(?P={p.name}){re.escape(p.after)})"
            else:
                seen.add(p.name)
                out += _expression(p, where)
        return out

    def render(self, values: Mapping[str, str]) -> str:
        """Fill in the captures; an empty {x...} omits its separator. LayoutError if a capture has no value."""
        out = ""
        try:
            for p in self.parts:
                if isinstance(p, str):
                    out += p
                elif value := values[p.name]:
                    out += p.before + value + p.after
        except KeyError as e:
            raise LayoutError(f"{self.text} refers to {{{e.args[0]}}}, which the other side does not bind") from None
        return out


def _expression(p: Capture, where: Mapping[str, Domain]) -> str:
    group = f"(?P<{p.name}>"
    if p.kind != "...":
        return f"{group}{where.get(p.name, INT if p.kind else TEXT).pattern})"
    if p.before or p.after:
        return f"(?:{re.escape(p.before)}{group}.+){re.escape(p.after)})?"
    return f"{group}.*)"


def template(text: Any) -> Template:
    """Parse a template; UsageError says what is wrong with it."""
    if not isinstance(text, str):
        raise UsageError(f"{text!r} is not a name template")
    parts: list[str | Capture] = []
    for m in _PIECE.finditer(text):
        if name := m["whole"] or m["last"] or m["name"]:
            kind = m["kind"] or "" if m["name"] else "..."
            parts.append(Capture(name, kind, m["before"] or "", m["after"] or ""))
        elif m[0] in "{}":
            raise UsageError(f"template {text!r}: {m[0]!r} opens or closes nothing; write {m[0] * 2} for a brace")
        else:
            word = m[0][0] if m[0] in ("{{", "}}") else m[0]
            if parts and isinstance(last := parts[-1], str):
                parts[-1] = last + word
            else:
                parts.append(word)
    _check(text, parts)
    return Template(text, tuple(parts))


def halves(pair: str) -> tuple[str, str, str]:
    """FROM=TO in two, as `str.partition` would, at the first = that has no backslash before it: names may hold one."""
    m = re.fullmatch(r"((?:[^\\=]|\\.)*)(=)(.*)", pair, re.DOTALL)
    return (m[1], m[2], m[3]) if m else (pair, "", "")


def _check(text: str, parts: Sequence[str | Capture]) -> None:
    """Refuse a template that would match in several ways, or slowly."""
    found = [p for p in parts if isinstance(p, Capture)]
    pairs = ((a, b) for a, b in pairwise(parts) if isinstance(a, Capture) and isinstance(b, Capture))
    if not all(a.after or b.before for a, b in pairs):
        raise UsageError(f"template {text!r}: text must stand between two captures")
    anys = sum(p.kind == "..." for p in found)
    if anys > MAX_ANY:
        raise UsageError(f"template {text!r}: has more than {MAX_ANY} captures of the kind {{x...}}")
    if len({p.name for p in found if p.kind == "*"}) > MAX_STACKS:
        raise UsageError(f"template {text!r}: has more than {MAX_STACKS} captures {{x*}}")
    if re.search(r"\.\.\.\}[/.]\{[A-Za-z0-9_]+\.\.\.\}", text):
        raise UsageError(f"template {text!r}: more than a separator must stand between two {{x...}}")
    check_free(text, parts, MAX_FREE - max(anys, 1))


def check_free(text: str, parts: Sequence[str | Capture], most: int, separators: str = "/.") -> None:
    """Refuse more than `most` captures {x} in one segment."""
    free = "".join(p if isinstance(p, str) else "\0" * (p.kind == "") for p in parts)
    if max(segment.count("\0") for segment in re.split(f"[{separators}]", free)) > most:
        raise UsageError(f"template {text!r}: has more captures in one segment than {most}")


# --- many templates at once -------------------------------------------------------------------------------------


class Match(NamedTuple):
    number: int  # of the template
    values: dict[str, str]


class Matcher:
    """Find which of many templates take a name: those that end in its last segment, or in a capture.

    Templates without captures are looked up: a checkpoint whose names follow no pattern may have thousands of them.
    """

    def __init__(self, templates: Sequence[tuple[Template, Mapping[str, Domain]]]) -> None:
        self._rows: dict[str, list[_Row]] = {}
        self._spelled: dict[str, list[Match]] = {}
        for i, (t, where) in enumerate(templates):
            if t.captures:
                self._rows.setdefault(t.last, []).append(_Row(i, t, where))
            else:
                self._spelled.setdefault(t.render({}), []).append(Match(i, {}))

    def matches(self, name: str, begin: int = 0) -> Iterator[Match]:
        """The templates that take the name, in order, from number `begin` on."""
        last = name[max(name.rfind("/"), name.rfind(".")) + 1 :]
        found = [self._taken(self._rows[key], name, begin) for key in {last, ""} if key in self._rows]
        if spelled := self._spelled.get(name):
            found.append(m for m in spelled if m.number >= begin)
        return found[0] if len(found) == 1 else merge(*found)

    def _taken(self, rows: Sequence[_Row], name: str, begin: int) -> Iterator[Match]:
        for row in rows:
            if (
                row.number >= begin
                and (len(name) <= MAX_NAME or row.template.simple)
                and (m := row.regex.fullmatch(name))
            ):
                yield Match(row.number, m.groupdict(""))

    def first(self, name: str) -> Match | None:
        """The first template that takes the name."""
        return next(self.matches(name), None)


class _Row:
    """A template, and its expression, which is compiled when a name is first compared with it."""

    def __init__(self, number: int, template: Template, where: Mapping[str, Domain]) -> None:
        self.number, self.template, self.where = number, template, where

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.template.regex(self.where), re.DOTALL)


def any_taken(template: Template, where: Mapping[str, Domain], names: Collection[str]) -> bool:
    """Whether a template takes one of the names."""
    return any(map(Matcher([(template, where)]).first, names))


# --- The values of a capture in a template: which it takes, and what they become in the target. Pure ---
#
# "int"   "int+1"   "2*int-2"   "int:3" (007 is 7)   "int in 4 4" (5 is 1.1)   ["query", "key"]   { gamma = "weight" }
#
# All are bijections; docs of the language: converters/README.md.


MAX_COUNTED = 1000  # numbers of `int in`


class Domain(NamedTuple):
    """The values of a capture: `pattern` matches them in the source, `table` or `shift` gives them in the target."""

    kind: str  # "text", "int" or "table"
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
        return "0|[1-9][0-9]{0,8}" if self.kind == "int" else "[^/.]+"

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
        return [f"{n:0{self.width[0]}}" for n in (7, 12)] if self.kind == "int" else ["q7x", "w"]


INT, TEXT = Domain("int"), Domain("text")


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
