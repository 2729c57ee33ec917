"""The rule file of a proposal: what to look at first, one reason for each group, rules as patterns over layers.

[[rule]]
# look at this: several modules have this shape, paired in order
layout = "h w i o -> o i h w"
...
[[rule]]
# assumed, by names and shapes: the names are alike, not the same
...
[[rule]]
# values: equal bit for bit
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from ..errors import UsageError
from ..messages import fold, printable
from .pairs import LISTED, Pair, Proposal
from .rows import MARK, Row, rows, written
from .units import natural

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
    made = rows(found.pairs, found.every)
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
        fills = (f"{written(n)} = {_numbers(v)}" for n, v in first.fills)
        yield f"fill = {{ {', '.join(fills)} }}"
    if _alone(first):
        yield "[rule.names]"
        for row in many:
            yield from _rivals(row)
            yield f"{written(row.sources[0])} = {written(row.targets[0])}{_count(row)}"


def _numbers(blocks: tuple[float, ...]) -> str:
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
            made = rows([Pair((n,), (n,)) for n in names], found.every)
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
