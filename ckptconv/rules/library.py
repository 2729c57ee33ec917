"""Converters by name: find one, choose the one that fits, apply it. A rename is a converter, too.

toml.py parses their files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from operator import itemgetter
from typing import TYPE_CHECKING, Literal

from ..errors import UsageError
from .assign import translated
from .templates import Capture, CaptureKind, Domain, DomainKind, Matcher, Template

if TYPE_CHECKING:
    from .converter import Count, Size

import os
import re
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint
from ..errors import UnmatchedTensors
from ..messages import Fold, brief, did_you_mean, fold, listing, printable
from ..storage import plugins
from ..storage.paths import refuse_remote
from .apply import apply
from .assign import assign, resembles, takes
from .converter import NONE, Converter, Rule
from .templates import MAX_NAME, halves, template
from .toml import MAX_FILE, beside, included, parse, read, shipped


def _plugins() -> plugins.Installed:
    return plugins.installed("ckptconv.converters", _checked)


@lru_cache(maxsize=1)
def _installed() -> dict[str, Path]:
    """Files of converters by name: those shipped, and those of packages with the entry point `ckptconv.converters`."""
    found = {p.stem: p for p in sorted(shipped().glob("*.toml")) if not p.name.startswith("_")}
    for name, path in _plugins().found:
        found.setdefault(name, path)
    return found


def _checked(name: str, given: Any) -> Path:
    """The path of a package's converter, which can be parsed; whatever is wrong with it is raised."""
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"it gives a {type(given).__name__}, not the path of a converter")
    path = Path(given)
    parse(read(path), name, folder=path.parent)
    return path


def names() -> list[str]:
    """The names of all converters."""
    return list(_installed())


def load(name: str | Path) -> Converter:
    """Load a converter by name, or from a .toml file; UsageError suggests names that are like it, or lists all."""
    refuse_remote(str(name), "a converter's file")
    if str(name).endswith(".toml"):
        path = Path(name)
        return parse(read(path), path.stem, folder=path.parent)
    found = _installed()
    if str(name) not in found:
        hint = did_you_mean(str(name), found, "converters", count=3)
        raise UsageError(f"no converter is called {str(name)!r}, and it is not a .toml file{hint}{_plugins().hint()}")
    path = found[str(name)]
    return _kept(path) if path.parent == shipped() else parse(read(path), str(name), folder=path.parent)


@cache
def _kept(path: Path) -> Converter:
    """A converter that we ship, parsed once: the one that fits is searched for among all of them."""
    return parse(read(path), path.stem, folder=path.parent)


def texts(name: str) -> tuple[str, ...]:
    """The text of a converter's file and of all files that it includes: everything its rules depend on."""
    start = Path(name) if name.endswith(".toml") else _installed().get(name)
    found, todo = dict[Path, str](), [start] if start else []
    while todo:
        path = todo.pop()
        if path not in found and os.path.isfile(path):  # also False for an invalid file name
            found[path] = read(path)
            todo += [beside(other, path.parent) for other in included(found[path])]
    return tuple(found.values())


def auto(checkpoint: Checkpoint) -> Converter:
    """The one converter that takes every tensor; UsageError lists the candidates if there are several."""
    fits = _fitting(checkpoint)
    if len(fits) == 1:
        return fits[0]
    if fits:
        shown = [f"{c.name}: {c.title}" for c in fits]
        raise UsageError(f"several converters take every tensor; choose one with converter=:\n{listing(shown)}")
    raise UsageError(f"no converter takes every tensor; {_closest(checkpoint) or '`ckptconv converters` lists them'}")


def _closest(checkpoint: Checkpoint) -> str:
    """The converter that takes most tensors, if that is more than half of the weights."""
    weights = sum(1 for t in checkpoint.values() if not t.role)
    known = (c for c in map(load, names()) if resembles(c, checkpoint))
    left = {c.name: n for c in known if (n := len(assign(c, checkpoint).unmatched))}
    name = min(left, key=lambda n: (left[n], not checkpoint.format.startswith(n.partition("-")[0])), default="")
    if not name or 2 * left[name] > weights:
        return ""
    return f"{name} takes all but {left[name]} of {weights}, which converter={name!r} lists"


def _fitting(checkpoint: Checkpoint) -> list[Converter]:
    """Converters that take every tensor: those for the family, or else those for conventions."""
    fits = [c for c in map(load, names()) if takes(c, checkpoint)]
    own = [c for c in fits if checkpoint.format.startswith(c.name.partition("-")[0])]  # keras-torch for a Keras file
    return [c for c in fits if c.present] or own or fits


def suggestion(checkpoint: Checkpoint, *, conventions: bool = False) -> str:
    """The name of the only converter for the family that takes every tensor, or ''.

    With `conventions`, also that of a converter for the naming and layout conventions of the source's framework.
    """
    fits = _fitting(checkpoint)
    return fits[0].name if len(fits) == 1 and (fits[0].present or conventions) else ""


def change(
    checkpoint: Checkpoint,
    converter: str | None,
    renames: Sequence[str] = (),
    *,
    inverse: bool = False,
    params: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Apply a converter (a name, a file or 'auto'), then renames `FROM=TO`, which leave other names alone."""
    if converter:
        rules = auto(checkpoint) if converter == "auto" else load(converter)
        if not inverse and not resembles(rules, checkpoint):
            raise _stranger(rules, checkpoint)
        checkpoint = apply(rules.inverse if inverse else rules, checkpoint, params)
    elif inverse or params:
        raise UsageError("inverse= and param= apply to a converter; choose one with converter=")
    if not renames:
        return checkpoint
    _sought(made := renaming(renames), checkpoint)
    return apply(made, checkpoint)


def _stranger(rules: Converter, checkpoint: Checkpoint) -> UnmatchedTensors:
    """Of a converter that may take some names by chance, but is of another family."""
    known = ", ".join(t.text for t, _ in rules.present)
    fits = [c.name for c in _fitting(checkpoint)]
    better = f"converter={fits[0]!r} takes every tensor" if len(fits) == 1 else "`ckptconv match` proposes rules"
    return UnmatchedTensors(
        f"none of the names that identify {rules.name} is here ({known}); {better}",
        url=checkpoint.urls[0] if checkpoint.urls else None,
    )


def _sought(renames: Converter, checkpoint: Checkpoint) -> None:
    """Refuse renames of names that do not exist: most of them are misspelt."""
    lost = []
    for source in (t for rule in renames.rules if not rule.optional for t in rule.sources):
        matcher = Matcher([(source, {})])
        if not any(map(matcher.first, checkpoint)):
            text = "".join(p for p in source.parts if isinstance(p, str))
            prefix = next((text + s for n in checkpoint for s in "/." if n.startswith(text + s)), "")
            if prefix:
                hint = f"; a prefix is renamed by '{prefix}=NEW{prefix[-1]}'"
            else:
                hint = did_you_mean(text, checkpoint, count=3)
            lost.append(source.text + hint)
        if not source.simple and (far := _far(source, checkpoint)):
            text = f"rename= {source.text!r} has several captures, which take names of up to {MAX_NAME} characters"
            raise UsageError(f"{text}; rename_regex= takes any: {brief(printable(far), 80)}")
    if lost:
        raise UsageError(f"no tensor matches these values of rename=; `inspect` lists the names:\n{listing(lost)}")


def _far(source: Template, names: Iterable[str]) -> str:
    """A name too long for a template that begins as it does, or ''."""
    first = source.parts[0] if isinstance(source.parts[0], str) else ""
    return next((n for n in names if len(n) > MAX_NAME and n.startswith(first)), "")


def _whole(a: str, equals: str, b: str) -> tuple[str, str]:
    """Turn a prefix that ends with a separator, `old/=new/` or `module.=`, into templates of whole names."""
    a = re.sub(r"\\([\\=])", r"\1", a)
    return (a + "{any...}", b + "{any...}") if a[-1:] in ("/", ".") and equals and "{" not in a + b else (a, b)


def renaming(renames: Sequence[str]) -> Converter:
    """Make a converter from `FROM=TO` pairs of templates; other names stay as they are."""
    pairs = [_whole(*halves(r)) for r in renames]
    if bad := [r for r, (a, b) in zip(renames, pairs, strict=True) if not (a and b)]:
        raise UsageError(f"rename= takes FROM=TO, not {bad[0]!r}")
    rules = [Rule((template(a),), (template(b),)) for a, b in pairs]
    keep = Rule((template("{any...}"),), (template("{any...}"),), optional=True)
    return Converter("rename=", (*rules, keep), separators=("", ""), every=True)


# --- Check a converter without weights: each name leads to one target, and the inverse leads back to it.  ---
#
# Both sides of a rule must bind the same captures; a layout must name the stacked axis, and sizes only axes of the
# layout; no rule may follow one that takes all its names; nothing may be defined and never used.


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
    yield from _captures(rule)
    yield from _fills(rule, converter)
    yield from _sizes(rule, converter)


def _captures(rule: Rule) -> Iterator[str]:
    """Captures that one name binds and another one does not."""
    left, right = _bound(rule.sources), _bound(rule.targets)
    if rule.targets and left != right:
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
    for size in _lengths(rule):
        if isinstance(size, str) and size not in converter.params:
            yield f"the size {size!r} is not a parameter"


def _lengths(rule: Rule) -> list[Size]:
    """The sizes that a person gave: of axes of the layout, and of one that is cropped or padded."""
    changed = (rule.resize.to, rule.resize.before) if rule.resize else ()
    return [*rule.sizes.values(), *(n for n in changed if n is not None)]


def _bound(templates: Sequence[Template]) -> set[str]:
    return {c for t in templates for c in t.captures if c not in t.stacks}


def _unused(converter: Converter) -> list[str]:
    used = {s for r in converter.rules for s in _lengths(r) if isinstance(s, str)}
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
            if len(r.sources) == 1 and r.when._replace(ranks=()) == NONE:
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
        if (
            rule.targets[0].stacks
            or rule.when.having
            or rule.when.lacking
            or _bound(rule.sources) != _bound(rule.targets)
        ):
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


__all__ = [
    "MAX_FILE",
    "Converter",
    "Fold",
    "Rule",
    "auto",
    "change",
    "fold",
    "lint",
    "load",
    "names",
    "parse",
    "renaming",
    "samples",
    "shipped",
]
