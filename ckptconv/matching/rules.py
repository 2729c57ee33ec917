"""The rule file of a proposal: what to look at first, one reason for each group, rules as patterns over layers.

    bert/layer_0/q/kernel -> layer.0.q.weight     "bert/layer_{i}/q/kernel" = "layer.{i}.q.weight"  # 12 tensors
    bert/layer_1/q/kernel -> layer.1.q.weight

[[rule]]
# look at this: several modules have this shape, paired in order
layout = "h w i o -> o i h w"
...
[[rule]]
# values: equal bit for bit

A rule takes the names that were paired and no other name of the source; where an index alone would take more, its
values are listed. A number of the target is one of the source, as it is, shifted or by a table; else names are spelled.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..errors import UsageError
from ..messages import fold, is_visible, printable
from ..rules.templates import Domain, domain, template
from .modules.units import natural
from .orders.axes import Order
from .pairs import LISTED, Length, Pair, Proposal, folded

EVIDENCE = {
    "values": "values: equal bit for bit",
    "equal": "values are equal, but not of one tensor only; names decide",
    "proved": "proved: the outputs agree",
    "names": "names and shapes",
    "shape": "shapes, as names say little",
}
Key = tuple[object, ...]


def toml(found: Proposal, title: str = "", source: str = "", target: str = "") -> str:
    """The proposal as a rule file: real doubts first, then what was assumed, then what is sure, each in natural order.

    Rules that share all but names are one table. Raises UsageError for names that no rule file can hold.
    """
    for side, names in (("source", found.every), ("target", [n for p in found.pairs for n in p.targets])):
        if any({"\0", MARK, "\n"} & set(n) for n in names):  # NUL stands for numbers, MARK for the index of a stack
            raise UsageError(f"the {side} has control characters in its names; no rule file is proposed")
    made = compact(found.pairs, found.every)
    out = [*_head(found, title, source, target)]
    tables: dict[Key, list[Row]] = defaultdict(list)
    for row in sorted(made, key=lambda r: natural(r.pairs[0].sources[0])):
        tables[_key(row)].append(row)
    for many in sorted(tables.values(), key=lambda many: _rank(many[0].pairs[0])):
        out += ["", *_table(many)]
    for group in found.ties:
        out += ["", "[[tie]]  # one tensor under several names", f"names = {written(list(group))}"]
    out += _dropped(found)
    return "\n".join(out) + "\n"


def _key(row: Row) -> Key:
    """What rules must share to be one table."""
    first = row.pairs[0]
    key = (row.order, row.length, row.where, first.evidence, first.sure, first.real, first.why)
    return key if _alone(row) else (*key, row.sources)


def _alone(row: Row) -> bool:
    """Whether a rule is but a name that becomes another, so that it may stand in a table of many."""
    return len(row.sources) == len(row.targets) == 1 and not row.fills


def _rank(p: Pair) -> int:
    return 2 if p.sure else 1 - p.real


def _head(found: Proposal, title: str, source: str, target: str) -> Iterator[str]:
    yield f"# Proposed by `ckptconv match`: {summary(found)}."
    if found.doubt:
        yield f"# Doubtful as a whole: {printable(found.doubt)}."
    for why, count in _reasons(found).items():
        yield f"#   {count} to look at: {printable(why)}"
    if found.target_only:
        count = len(found.target_only)
        yield f"# Without counterpart in the source ({count} tensor{'s' * (count != 1)} of the target):"
        yield from (f"#   {printable(str(f))}" for f in fold(found.target_only))
    for note in found.notes:
        yield f"# note: {printable(note)}"
    yield f"title = {written(title or 'proposed by ckptconv match')}"
    if source or target:
        yield f"source = {written(source)}"
        yield f"target = {written(target)}"


def summary(found: Proposal) -> str:
    """How many tensors of the target are found, how many of them are assumed, and how many are real doubts."""
    total, assumed, real = (_targets(many) for many in (found.pairs, found.assumed, found.doubtful))
    return f"{total} tensors of the target found, {assumed} of them assumed, {real} to look at"


def _targets(pairs: Sequence[Pair]) -> int:
    return sum(len(p.targets) + len(p.fills) for p in pairs)


def _reasons(found: Proposal) -> Counter[str]:
    """The real doubts by reason, the commonest first."""
    out: Counter[str] = Counter()
    for p in found.doubtful:
        out["; ".join(p.why)] += len(p.targets) + len(p.fills)
    return Counter(dict(out.most_common()))


def _table(many: Sequence[Row]) -> Iterator[str]:
    first = many[0]
    pair = first.pairs[0]
    evidence = EVIDENCE[pair.evidence]
    yield "[[rule]]"
    if pair.sure:
        yield f"# {evidence}"
    else:
        yield f"# {'look at this' if pair.real else f'assumed, by {evidence}'}: {'; '.join(pair.why)}"
    if not _alone(first):
        yield f"from = {written(list(first.sources) if len(first.sources) > 1 else first.sources[0])}"
        yield f"to = {written(list(first.targets) if len(first.targets) > 1 else first.targets[0])}{_count(first)}"
    if first.order.text:
        yield f"layout = {written(first.order.text)}"
    if first.order.sizes:
        yield f"sizes = {{ {', '.join(f'{k} = {n}' for k, n in first.order.sizes)} }}"
    if first.length:
        yield first.length.text
    if first.where:
        yield f"where = {{ {', '.join(f'{k} = {v}' for k, v in first.where)} }}"
    if first.fills:
        fills = (f"{written(n)} = {_fill_values(v)}" for n, v in first.fills)
        yield f"fill = {{ {', '.join(fills)} }}"
    if _alone(first):
        yield "[rule.names]"
        for row in many:
            yield from _rivals(row)
            yield f"{written(row.sources[0])} = {written(row.targets[0])}{_count(row)}"


def _fill_values(blocks: tuple[float, ...]) -> str:
    return repr(blocks[0]) if len(blocks) == 1 else f"[{', '.join(map(repr, blocks))}]"


def _count(row: Row) -> str:
    return f"  # {len(row.pairs)} tensors" if len(row.pairs) > 1 else ""


def _rivals(row: Row) -> Iterator[str]:
    rivals = list(dict.fromkeys(r for p in row.pairs for r in p.rivals))
    if rivals:
        more = ", ..." if len(rivals) > LISTED else ""
        yield f"# could also be {', '.join(map(printable, rivals[:LISTED]))}{more}"


def _dropped(found: Proposal) -> Iterator[str]:
    """Rules for what has no place in the target."""
    for names, why in (
        (found.source_only, "without counterpart in the target: left out"),
        (tuple(found.copies), "hold what another tensor holds, which is taken"),
    ):
        if names:
            made = compact([Pair((n,), (n,)) for n in names], found.every)
            yield from ("", "[[rule]]", f"# {why}")
            where = {k: v for r in made for k, v in r.where}
            if len({(k, v) for r in made for k, v in r.where}) > len(where):
                made, where = [Row((_escaped(n),), (), (), (Pair((n,), ()),)) for n in names], {}
            if where:
                yield f"where = {{ {', '.join(f'{k} = {v}' for k, v in where.items())} }}"
            yield "[rule.names]"
            yield from (f"{written(r.sources[0])} = []{_count(r)}" for r in made)


def _escaped(name: str) -> str:
    return name.replace("{", "{{").replace("}", "}}")


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


def compact(pairs: Iterable[Pair], every: Iterable[str]) -> list[Row]:
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
