"""Check a converter without weights: each name leads to one target, and the inverse leads back to it. Pure.

Both sides of a rule must bind the same captures; a layout must name the stacked axis, and sizes only axes of the
layout; no rule may follow one that takes all its names; nothing may be defined and never used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from operator import itemgetter
from typing import TYPE_CHECKING, Literal

from ..errors import UsageError
from .assign import translated
from .domains import Domain, DomainKind
from .templates import Capture, CaptureKind, Matcher, Template

if TYPE_CHECKING:
    from .converter import Converter, Count, Rule

MAX_SAMPLES = 64  # names tried per template
MAX_TRIED = 10_000  # names tried in all: with more templates than a sensible file has, fewer of each
Rank = int | Literal["any", "each"]  # of the tensors that a rule is for
ANY: Rank = "any"  # the rules that are for any
EACH: Rank = "each"  # all rules, of whatever rank


def lint(converter: Converter) -> list[str]:
    """The faults of the rules, one sentence each; empty if there are none."""
    out = [f"rule {r.label}: {p}" for r in converter.rules for p in _rule(r, converter)]
    out += _unused(converter)
    captured = sum(bool(t.captures) for r in converter.rules for t in r.sources)
    most = min(MAX_SAMPLES, MAX_TRIED // max(captured, 1))  # a converter of a file has at most MAX_CAPTURED
    out += _shadowed(converter, most)
    if not converter.one_way:
        out += _way_back(converter, most)
    return out


def _rule(rule: Rule, converter: Converter) -> Iterator[str]:
    """The faults of a rule by itself."""
    yield from _captures(rule, one_way=bool(converter.one_way))
    yield from _fills(rule, converter)
    yield from _sizes(rule, converter)


def _captures(rule: Rule, *, one_way: bool) -> Iterator[str]:
    """Captures that one name binds and another one does not."""
    left, right = _bound(rule.sources), _bound(rule.targets)
    if rule.targets and left != right and not (rule.shared and one_way):
        for name in sorted(left ^ right):
            yield f"{{{name}}} is on one side only"
    for side in (rule.sources, rule.targets):
        if len({frozenset(t.captures) - {*t.stacks} for t in side}) > 1:
            yield "the names of one side bind different captures"
    stacked = {s for t in (*rule.sources, *rule.targets) for s in t.stacks}
    if len(stacked) > 1 and not rule.explicit:
        yield "stacks along more than one axis"
    for name in sorted(set(rule.where) - left - stacked):
        yield f"`where` refers to {{{name}}}, which is in no name"


def _fills(rule: Rule, converter: Converter) -> Iterator[str]:
    """Constants of `fill` whose names or numbers are not defined."""
    right = _bound(rule.targets)
    for t, blocks in rule.fills:
        if set(t.captures) - right or t.stacks or not rule.targets:
            yield f"`fill` {t.text} must bind captures of its targets, and stack nothing"
        for value in blocks:
            if isinstance(value, str) and value not in converter.params:
                yield f"the number {value!r} of `fill` is not a parameter"


def _sizes(rule: Rule, converter: Converter) -> Iterator[str]:
    """Sizes of axes that are not in the layout, or that nothing determines."""
    if rule.pattern:
        for name in sorted(set(rule.sizes) - rule.pattern.names):
            yield f"`sizes` refers to {name}, which is not an axis of the layout"
        if rule.undetermined:  # backwards, the metadata records sizes
            axes = ", ".join(rule.undetermined)
            yield f"layout {rule.layout!r}: the shapes do not determine the size of {axes}; give it in `sizes`"
    elif rule.sizes:
        yield "`sizes` needs a layout"
    for size in rule.lengths:
        if isinstance(size, str) and size not in converter.params:
            yield f"the size {size!r} is not a parameter"


def _bound(templates: Sequence[Template]) -> set[str]:
    return {c for t in templates for c in t.captures if c not in t.stacks}


def _unused(converter: Converter) -> list[str]:
    used = {s for r in converter.rules for s in r.lengths if isinstance(s, str)}
    used |= {v for r in converter.rules for _, blocks in r.fills for v in blocks if isinstance(v, str)}
    checks = {c.param for c in converter.counts} | {p for p in converter.axes.values() if p}
    checks |= {n for r in converter.refusals for n in r.equal if isinstance(n, str)}
    out = [f"the parameter {p} is never used" for p in converter.params if p not in used | checks]
    out += [
        f"`count`, `axes` or `refuse` refers to {p}, which is not a parameter" for p in checks - {*converter.params}
    ]
    axes = {a for r in converter.rules if r.pattern for a in r.pattern.names}
    out += [f"`axes` refers to {a}, which is in no layout" for a in converter.axes if a not in axes]
    return out + [f"`count` refers to {c.source.text}, with which no name begins" for c in converter.counts
                  if not any(_begins(r, c) for r in converter.rules)]  # fmt: skip


def _begins(rule: Rule, count: Count) -> bool:
    """Whether the names of a rule begin with those that a count is about."""
    pairs = ((rule.sources, count.source), (rule.targets, count.target))
    return all(any(t.text.startswith(head.text) for t in side) for side, head in pairs)


FREE: dict[CaptureKind, DomainKind] = {"": "text", "...": "any", "*": "int"}


def samples(template: Template, where: Mapping[str, Domain], most: int = MAX_SAMPLES) -> list[str]:
    """Up to `most` names that a template takes: with the values of its tables, and a few of its free captures."""
    values = []
    for name in template.captures:
        kind = next(p.kind for p in template.parts if isinstance(p, Capture) and p.name == name)
        free = Domain(FREE[kind])
        values.append((where.get(name) or free).samples())
    picks = islice(product(*values), most)
    return [template.render(dict(zip(template.captures, pick, strict=True))) for pick in picks]


class _Unconditional:
    """The rules that take a name whatever else is there, by the number of axes that they are for."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._kept: dict[Rank, list[int]] = {}
        for i, r in enumerate(rules):
            if len(r.sources) == 1 and not (r.having or r.lacking or r.kinds or r.inputs):
                for rank in {EACH, *(r.wanted[0] or (ANY,))}:
                    self._kept.setdefault(rank, []).append(i)
        self._matchers = {
            rank: Matcher([(rules[i].sources[0], rules[i].where) for i in kept]) for rank, kept in self._kept.items()
        }

    def first(self, name: str, *ranks: Rank) -> tuple[int, dict[str, str]] | None:
        """The index of the first rule for tensors of these ranks that takes a name, and its captures."""
        found = [(r, m) for r in ranks if r in self._matchers and (m := self._matchers[r].first(name))]
        return min(((self._kept[r][m.number], m.values) for r, m in found), key=itemgetter(0), default=None)


def _shadowed(converter: Converter, most: int) -> Iterator[str]:
    """Rules that can never match because earlier ones take all their names."""
    takers = _Unconditional(converter.rules)
    for i, rule in enumerate(converter.rules):
        for t, wanted in zip(rule.sources, rule.wanted, strict=True):
            ranks: Sequence[Rank] = wanted or (ANY,)
            found = [takers.first(name, r, ANY) for name in samples(t, rule.where, most) for r in ranks]
            if found and all(m and m[0] < i for m in found):
                first = min(converter.rules[m[0]].label for m in found if m)
                yield f"rule {rule.label}: never matches, {first} takes all its names"


def _way_back(converter: Converter, most: int) -> Iterator[str]:
    """Names that the inverse would not restore."""
    try:
        back = converter.inverse
    except UsageError as e:
        yield e.message
        return
    takers = _Unconditional(back.rules)
    for rule in converter.rules:
        if not rule.targets or len(rule.sources) != 1 or len(rule.targets) != 1 or rule.sources[0].stacks:
            continue
        if rule.targets[0].stacks or rule.having or rule.lacking or _bound(rule.sources) != _bound(rule.targets):
            continue
        ranks: Sequence[Rank] = rule.inverse.wanted[0] or (EACH,)
        own = Matcher([(rule.sources[0], rule.where)])
        for name in samples(rule.sources[0], rule.where, most):
            m = own.first(name)
            values = translated(rule, m.values, converter.separators) if m else None
            if values is None:
                continue
            taken = takers.first(rule.targets[0].render(values), *ranks, ANY)
            if taken and (wrong := _restored(back, *taken)) not in ("", name):
                yield f"rule {rule.label}: {name} would come back as {wrong}; add a rank or a where, or declare one_way"
                break


def _restored(back: Converter, index: int, captures: Mapping[str, str]) -> str:
    """The name to which a rule of the inverse leads, or '' if it depends on more than a name."""
    taker = back.rules[index]
    values = translated(taker, captures, back.separators)
    if values is None or len(taker.targets) != 1 or not set(taker.targets[0].captures) <= set(values):
        return ""
    return taker.targets[0].render(values)


__all__ = ["lint", "samples"]
