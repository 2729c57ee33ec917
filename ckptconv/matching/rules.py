"""Write the rule file of a proposal: doubts first, one reason for each group, rules as patterns over layers.

    bert/layer_0/q/kernel -> layer.0.q.weight     "bert/layer_{i}/q/kernel" = "layer.{i}.q.weight"  # 12 tensors
    bert/layer_1/q/kernel -> layer.1.q.weight

[[rule]]
# look at this: several modules have this shape, paired in order
layout = "h w i o -> o i h w"
...
[[rule]]
# values: equal bit for bit

A rule takes exactly the names that were paired; if an index alone would take more, its values are listed. A number in
the target is one in the source, unchanged, shifted or mapped by a table; otherwise names are written out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..errors import UsageError
from ..messages import fold, is_visible, many, natural, printable
from ..rules.converter import GUESSED
from ..rules.templates import Domain, domain, template
from ..storage.paths import beginning
from .orders.choose import FLAT, without_image
from .pairs import LISTED, Pair, Proposal, folded

EVIDENCE = {
    "values": "values: equal bit for bit",
    "equal": "values and names: several tensors hold these values",
    "proved": "proved: the outputs agree",
    "names": "names and shapes",
}
GONE = "without counterpart in the target: left out"


def toml(found: Proposal, source: str = "", target: str = "") -> str:
    """Write the proposal as a rule file: real doubts, then assumptions, then sure pairs, each in natural order.

    Rules that differ only in names are one table. Raises UsageError for names that no rule file can hold.
    """
    for side, names in (("source", found.every), ("target", [n for p in found.pairs for n in p.targets])):
        if any({"\0", MARK, "\n"} & set(n) for n in names):  # NUL stands for numbers, MARK for the index of a stack
            raise UsageError(f"the {side} has control characters in its names; no rule file is proposed")
    out = [*_head(found, source, target)]
    rows = sorted(compact(found.pairs, found.every), key=lambda r: natural(r.pair.sources[0]))
    for some in sorted(_tables(rows), key=lambda some: 2 if some[0].pair.sure else 1 - some[0].pair.real):
        p = some[0].pair
        doubt = f"{GUESSED if p.real else 'assumed'}: {'; '.join(p.why)}"
        out += _table(some, EVIDENCE[p.evidence] if p.sure else doubt)
    for group in found.ties:
        out += ["", "[[tie]]  # one tensor under several names", f"names = {written(list(group))}"]
    for gone, why in ((found.source_only, GONE), (found.copies, "copies of another tensor, which is taken: left out")):
        for some in _tables(compact([Pair((n,), (n,)) for n in gone], found.every)):
            out += _table([row._replace(targets=()) for row in some], why)
    return "\n".join(out) + "\n"


def _tables(rows: Iterable[Row]) -> list[list[Row]]:
    """Group the rules that can share a table."""
    out: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        p = row.pair
        alone = () if _alone(row) else row.sources
        out[p.order, p.length, p.adds, row.where, p.evidence, p.sure, p.real, p.why, alone].append(row)
    return [*out.values()]


def _alone(row: Row) -> bool:
    """Tell whether a rule only renames one tensor, so that it can share a table."""
    return len(row.sources) == 1 >= len(row.targets) and not row.fills


def _head(found: Proposal, source: str, target: str) -> Iterator[str]:
    yield f"# Proposed by `ckptconv match`: {summary(found)}."
    if found.doubt:
        yield f"# Doubtful as a whole: {printable(found.doubt)}."
    yield from (f"#   {len(names)} to look at: {printable(why)}" for why, names in found.review().items())
    if found.target_only:
        yield f"# Without counterpart in the source ({many(len(found.target_only), 'tensor')} of the target):"
        yield from (f"#   {printable(str(f))}" for f in fold(found.target_only))
    for note in found.notes:
        yield f"# note: {printable(note)}"
    yield f"title = {written(f'{source} to {target}' if source else 'proposed by ckptconv match')}"
    if source:
        yield f"source = {written(source)}"
        yield f"target = {written(target)}"


def summary(found: Proposal) -> str:
    """Say how many tensors of the target are paired, and how."""
    kinds = Counter[str]()
    for p in found.pairs:
        evidence = {"proved": "proved", "equal": "by values and names"}.get(p.evidence, f"by {p.evidence}")
        kinds[evidence if p.sure else "to look at" if p.real else "assumed"] += len(p.targets) + len(p.fills)
    how = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    return f"{many(sum(kinds.values()), 'tensor')} of the target found: {how}"


def _table(some: Sequence[Row], comment: str) -> Iterator[str]:
    first = some[0]
    pair, alone = first.pair, _alone(first)
    yield from ("", "[[rule]]", f"# {comment}")
    if not alone:
        for key, names in (("from", first.sources), ("to", first.targets)):
            yield f"{key} = {written(list(names) if len(names) > 1 else names[0])}{_count(first) * (key == 'to')}"
    if pair.order.text:
        yield f"layout = {written(pair.order.text)}"
    if pair.order.sizes:
        yield f"sizes = {{ {', '.join(f'{k} = {n}' for k, n in pair.order.sizes)} }}"
    if pair.order.flip:
        yield f"flip = {written(pair.order.flip)}"
    if FLAT in pair.why:
        plain = without_image(pair.order, ()).text
        yield f"# or, if the feature map is permuted first: {f'layout = {written(plain)}' if plain else 'no layout'}"
    if pair.adds:
        yield 'op = "sum"'
    if pair.length:
        yield pair.length.text
    if first.where:
        yield f"where = {{ {', '.join(f'{k} = {v}' for k, v in first.where)} }}"
    if first.fills:
        values = ((n, repr(v[0]) if len(v) == 1 else f"[{', '.join(map(repr, v))}]") for n, v in first.fills)
        yield f"fill = {{ {', '.join(f'{written(n)} = {v}' for n, v in values)} }}"
    if alone:
        yield "[rule.names]"
        for row in some:
            if rivals := fold(dict.fromkeys(r for p in row.pairs for r in p.rivals)):
                listed = f"{', '.join(map(str, rivals[:LISTED]))}{', ...' * (len(rivals) > LISTED)}"
                yield f"# could also be {printable(listed)}{' in another order' * (len(row.pairs) > 1)}"
            yield f"{written(row.sources[0])} = {written(row.targets[0]) if row.targets else '[]'}{_count(row)}"


def _count(row: Row) -> str:
    return f"  # {len(row.pairs)} tensors" if len(row.pairs) > 1 else ""


MARK = "\1"  # stands for the index of a stack
CAPTURES = "ijklmnopq"
Numbers = tuple[int, ...]
Known = Mapping[str, set[str]]  # all names, by their text without numbers
Texts = tuple[str, ...]  # names without their numbers
Spec = str | list[str] | dict[str, str]


class Row(NamedTuple):
    """One rule: templates of both sides, the domains of its captures, and the pairs that it covers."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    where: tuple[tuple[str, str], ...]  # capture and its TOML
    pairs: tuple[Pair, ...]
    fills: tuple[tuple[str, tuple[float, ...]], ...] = ()

    @property
    def pair(self) -> Pair:
        return self.pairs[0]


class Member(NamedTuple):
    """A pair with the texts of its names, a stack counting as one name, and their numbers, for source and target."""

    pair: Pair
    names: tuple[Texts, Texts]
    numbers: tuple[Numbers, Numbers]


def compact(pairs: Iterable[Pair], every: Iterable[str]) -> list[Row]:
    """Make the rules for all pairs, in the order of their first sources."""
    known: tuple[dict[str, set[str]], dict[str, set[str]]] = (defaultdict(set), defaultdict(set))
    for name in every:
        known[0][folded(name)[0]].add(name)
    groups: dict[tuple[tuple[Texts, ...], str, Hashable], list[Member]] = defaultdict(list)
    for pair in pairs:
        sources, targets, axis = _marked(pair)
        for name in targets:
            known[1][folded(name)[0]].add(name)
        left, right = (tuple(n for name in side for n in folded(name)[1]) for side in (sources, targets))
        texts = tuple(tuple(folded(name)[0] for name in side) for side in (sources, targets))
        same = pair._replace(sources=(), targets=(), rivals=(), each=None, fills=tuple(("", v) for _, v in pair.fills))
        groups[texts, axis, same].append(Member(pair, (sources, targets), (left, right)))
    return [row for (texts, axis, _), members in groups.items() for row in _Rows(texts, axis, known).of(members)]


def _marked(pair: Pair) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Return the names, those of a stack as one with a mark, and the TOML of the mark ('' for numbers from 0)."""
    if not pair.each:
        return pair.sources, (*pair.targets, *(n for n, _ in pair.fills)), ""
    sides, spec = [pair.sources, pair.targets], ""
    for side, n in enumerate(pair.each):
        if n > 1:
            found = [_one(sides[side][k : k + n]) for k in range(0, len(sides[side]), n)]
            sides[side], spec = tuple(name for name, _ in found), found[0][1]
    return sides[0], sides[1], spec


def _one(some: Sequence[str]) -> tuple[str, str]:
    """Merge names into one, with a mark where they differ."""
    first = some[0]
    head, tail = (len(beginning(n[::step] for n in some)) for step in (1, -1))
    while head and first[head - 1].isalnum():
        head -= 1
    while tail and first[len(first) - tail].isalnum():
        tail -= 1
    tail = min(tail, min(map(len, some)) - head)
    words = [n[head : len(n) - tail] for n in some]
    spec = "" if words == [*map(str, range(len(words)))] else written(words)
    return f"{first[:head]}{MARK}{first[len(first) - tail :] if tail else ''}", spec


class _Rows:
    """Makes the rules of pairs that differ only in numbers."""

    def __init__(self, texts: tuple[Texts, ...], axis: str, known: Sequence[Known]) -> None:
        self.texts, self.axis, self.known = texts, axis, known

    def of(self, members: Sequence[Member]) -> list[Row]:
        """Make one rule if the numbers allow it, else one for each value of the number that varies least."""
        columns = list(zip(*(m.numbers[0] for m in members), strict=True))
        varying = [k for k, c in enumerate(columns) if len(set(c)) > 1]
        if len(members) == 1 or not varying:
            return [row for m in members for row in self._try([m], narrow=False)]
        for narrow in (False, True):
            if found := self._try(members, narrow=narrow):
                return found
        k = min(varying, key=lambda k: len(set(columns[k])))
        parts: dict[int, list[Member]] = defaultdict(list)
        for m in members:
            parts[m.numbers[0][k]].append(m)
        return [row for part in parts.values() for row in self.of(part)]

    def _try(self, members: Sequence[Member], *, narrow: bool) -> list[Row]:
        lefts, rights = (list(zip(*(m.numbers[side] for m in members), strict=True)) for side in (0, 1))
        varying = list(dict.fromkeys(c for c in lefts if len(set(c)) > 1))
        free = dict(zip(varying, CAPTURES, strict=False))
        specs: dict[str, Spec] = {}

        def capture(c: Numbers) -> str:
            """Find the capture that yields a column of the target, as {i}; '' if none does."""
            for source, name in free.items():
                spec = _bijection(source, c, narrow)
                if spec and specs.setdefault(name, spec) == spec:
                    return f"{{{name}}}"
            return ""

        words = [str(c[0]) if len(set(c)) == 1 else capture(c) for c in rights]
        if len(varying) > len(CAPTURES) or "" in words or set(free.values()) - set(specs):
            return []
        left = [f"{{{free[c]}}}" if c in free else str(c[0]) for c in lefts]
        made = [
            tuple(_filled(t.replace("{", "{{").replace("}", "}}").replace(MARK, "{e*}"), numbers) for t in texts)
            for texts, numbers in zip(self.texts, (iter(left), iter(words)), strict=True)
        ]
        if not self._exact(made, {k: domain(v) for k, v in specs.items()}, members):
            return []
        where = tuple((k, written(v)) for k, v in specs.items()) + (("e", self.axis),) * bool(self.axis)
        fills = members[0].pair.fills
        count = len(made[1]) - len(fills)
        named = tuple(zip(made[1][count:], (v for _, v in fills), strict=True))
        return [Row(made[0], made[1][:count], where, tuple(m.pair for m in members), named)]

    def _exact(self, made: Sequence[Texts], where: Mapping[str, Domain], members: Sequence[Member]) -> bool:
        """Tell whether the templates take only their own names; others must have the same text without numbers."""
        if len(members) == 1 and not any(MARK in text for texts in self.texts for text in texts):
            return True
        for side, domains in enumerate((where, {k: d.inverse for k, d in where.items()})):
            for k, (text, written_) in enumerate(zip(self.texts[side], made[side], strict=True)):
                try:
                    pattern = template(written_).regex(domains)
                except UsageError:  # more captures in one segment than the language allows
                    return False
                own = {m.names[side][k] for m in members}
                others = set() if MARK in text or len(own) == len(members) == 1 else self.known[side][text] - own
                if any(re.fullmatch(pattern, name, re.DOTALL) for name in others):
                    return False
        return True


def _filled(text: str, numbers: Iterator[object]) -> str:
    """Put the next numbers back into a text."""
    return re.sub("\0", lambda _: str(next(numbers)), text)


def _bijection(a: Numbers, b: Numbers, narrow: bool) -> Spec | None:
    """Describe a mapping of numbers: "int", "int+1", a list of the values, or a table; None if there is none."""
    table = dict(zip(a, b, strict=True))
    if len(set(zip(a, b, strict=True))) > len(table) or len(set(table.values())) < len(table):
        return None
    steps = {y - x for x, y in table.items()}
    if narrow or len(steps) > 1:
        if steps == {0}:
            return [str(x) for x in sorted(table)]
        return {str(x): str(table[x]) for x in sorted(table)}
    (step,) = steps
    return f"int{step:+d}" if step else "int"


def written(value: Spec) -> str:
    """Format a value as TOML."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_quoted, value))}]"
    return f"{{ {', '.join(f'{_quoted(k)} = {_quoted(v)}' for k, v in value.items())} }}"


def _quoted(text: str) -> str:
    """Format a TOML basic string."""
    out = (f"\\{c}" if c in '"\\' else c if is_visible(c) else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(out)}"'
