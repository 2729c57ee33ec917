"""Converters by name: find one, choose the one that fits, apply it. A rename is a converter, too.

toml.py parses their files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate, islice, product, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint
from ..errors import UnmatchedTensors, UsageError
from ..messages import brief, did_you_mean, listing
from ..storage import plugins
from ..storage.paths import refuse_remote
from .apply import apply
from .assign import Names, assign, resembles, sole_target, takes, with_records_of
from .converter import Converter, Rule
from .templates import INT, MAX_NAME, TEXT, Capture, Domain, Matcher, Template, any_taken, halves, template
from .toml import MAX_FILE, parse, read, shipped

if TYPE_CHECKING:
    from .converter import Size


def _plugins() -> plugins.Installed:
    return plugins.installed("ckptconv.converters", _checked)


@lru_cache(maxsize=1)
def _installed() -> dict[str, Path]:
    """Files of converters by name: those shipped, and those of packages with the entry point `ckptconv.converters`."""
    return dict(_plugins().found) | {p.stem: p for p in sorted(shipped().glob("*.toml")) if p.name[0] != "_"}


def _checked(name: str, given: Any) -> Path:
    """The path of a package's converter, which can be parsed; whatever is wrong with it is raised."""
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"it gives a {type(given).__name__}, not the path of a converter")
    _parsed(path := Path(given), name)
    return path


def names() -> list[str]:
    """The names of all converters."""
    return list(_installed())


def load(name: str | Path | Converter) -> Converter:
    """Load a converter by name, or from a .toml file; UsageError suggests names that are like it."""
    if isinstance(name, Converter):
        return name
    name = str(name)
    refuse_remote(name, "a converter's file")
    path = Path(name) if name.endswith(".toml") else _installed().get(name)
    if path is None:
        hint = "" if {"/", "."} & {*name} else did_you_mean(name, _installed(), count=3)
        raise UsageError(f"no converter is called {name!r}, and it is not a .toml file{hint}{_plugins().hint()}")
    called = path.stem if name.endswith(".toml") else name
    return (_kept if path.parent == shipped() else _parsed)(path, called)


def _parsed(path: Path, name: str) -> Converter:
    return parse(read(path), name, folder=path.parent)


_kept = cache(_parsed)  # those that we ship: the one that fits is searched for among all of them


def auto(checkpoint: Checkpoint) -> Converter:
    """The one converter that takes every tensor; UsageError lists the candidates if there are several."""
    fits = _fitting(checkpoint)
    if len(fits) == 1:
        return fits[0]
    if fits:
        shown = [f"{c.name}: {c.title}" for c in fits]
        raise UsageError(f"several converters take every tensor; choose one with converter=:\n{listing(shown)}")
    hint = _closest(checkpoint) or "`ckptconv match` proposes rules for a model of your own"
    raise UsageError(f"no converter takes every tensor; {hint}")


def _closest(checkpoint: Checkpoint) -> str:
    """The converter that takes most tensors, if that is more than half of the weights."""
    weights = sum(not t.role for t in checkpoint.values())
    left = {
        c.name: n for c in map(load, names())
        if resembles(c, checkpoint) and (n := len(assign(Names(c, checkpoint)).unmatched))
    }  # fmt: skip
    name = min(left, key=lambda n: (left[n], not _native(n, checkpoint)), default="")
    if name and 2 * left[name] <= weights:
        return f"{name} takes all but {left[name]} of {weights}, which converter={name!r} lists"
    return ""


def _native(name: str, checkpoint: Checkpoint) -> bool:
    """Whether a converter is for the format of the source: keras-torch for a Keras file."""
    return checkpoint.format.startswith(name.partition("-")[0])


def _fitting(checkpoint: Checkpoint) -> list[Converter]:
    """Converters that take every tensor: those for the family, or else those for conventions.

    Flax and Keras both have kernels, but flatten images, and name layers and lists, in different ways.
    """
    own = re.match("tf|keras", checkpoint.format)
    fits = [c for c in map(load, names()) if not (own and "Flax" in c.source) and takes(c, checkpoint)]
    return [c for c in fits if c.present] or [c for c in fits if _native(c.name, checkpoint)] or fits


def suggestion(checkpoint: Checkpoint, *, conventions: bool = False) -> str:
    """The name of the only converter for the family that takes every tensor, or ''.

    With `conventions`, also that of a converter for the naming and layout conventions of the source's framework.
    """
    fits = _fitting(checkpoint)
    return fits[0].name if len(fits) == 1 and (fits[0].present or conventions) else ""


def change(
    checkpoint: Checkpoint,
    converter: str | Converter | None,
    renames: Sequence[str | tuple[str, str]] = (),
    *,
    inverse: bool = False,
    params: Mapping[str, Any] | None = None,
    template: Checkpoint | None = None,
) -> Checkpoint:
    """Apply a converter (a name, a file or 'auto'), then renames `FROM=TO`, which leave other names alone.

    template: a checkpoint whose names an inverse restores where those of `checkpoint` do not tell.
    """
    if converter:
        rules = auto(checkpoint) if converter == "auto" else load(converter)
        if inverse and rules.one_way and template is not None:
            checkpoint = with_records_of(checkpoint, apply(rules, template, params))
        try:
            if not inverse and not resembles(rules, checkpoint):
                known = ", ".join(t.text for t, _ in rules.present)
                raise UnmatchedTensors(
                    f"none of the names that identify {rules.name} is here ({known}); `ckptconv match` proposes rules",
                    url="".join(checkpoint.urls[:1]) or None,
                )
            checkpoint = apply(rules.inverse if inverse else rules, checkpoint, params)
        except UnmatchedTensors as e:
            refused = any(r.refuse and r.refuse in e.message for r in rules.rules)  # with a reason that holds for all
            if not refused and (fit := suggestion(checkpoint, conventions=True)):
                raise UnmatchedTensors(f"converter={fit!r} takes every tensor; {e.message}", url=e.url) from None
            raise
    elif inverse or params:
        raise UsageError("inverse=, param= and ranks= apply to a converter; choose one with converter=")
    if not renames:
        return checkpoint
    made = renaming(renames)
    _check_renames(made, checkpoint)
    return apply(made, checkpoint)


def _check_renames(renames: Converter, checkpoint: Checkpoint) -> None:
    """Refuse renames of names that do not exist, which are misspelt, and of names that are too long for them."""
    lost = []
    for rule in renames.rules[:-1]:
        source, target = *rule.sources, *rule.targets
        text = re.sub("{.*?}", "", source.text)
        if not any_taken(source, {}, checkpoint):
            prefix = next((text + s for n in checkpoint for s in "/." if n.startswith(text + s)), "")
            known = dict.fromkeys(p for n in checkpoint for p in accumulate(re.split("(?<=[/.])", n[:MAX_NAME])))
            lost.append(
                source.text.removesuffix("{any...}")
                + (
                    f"; a prefix is renamed by '{prefix}={target.text}{prefix[-1:]}'"
                    if prefix
                    else did_you_mean(text, known, count=3)
                )
            )
        for name in checkpoint:
            if len(name) > MAX_NAME and not source.simple and name.startswith(source.text.partition("{")[0]):
                raise UsageError(
                    f"rename= {source.text!r} has several captures, which take names of up to {MAX_NAME} characters; "
                    f"rename_regex= takes any: {brief(name, 80)}"
                )
    if lost:
        raise UsageError(f"no tensor matches these values of rename=; `inspect` lists the names:\n{listing(lost)}")


def renaming(renames: Sequence[str | tuple[str, str]]) -> Converter:
    """Make a converter from `FROM=TO` pairs of templates; other names stay as they are.

    A prefix that ends with a separator, `old/=new/` or `module.=`, stands for all names that begin with it.
    """
    rules = []
    for pair in renames:
        if isinstance(pair, str):
            a, _, b = halves(pair)
            pair = re.sub(r"\\([\\=])", r"\1", a), b
        a, b = pair
        if a[-1:] in ("/", "."):
            template(a)  # whose errors show what was given
            if b[-1:] not in "/.":
                raise UsageError(f"rename= {a!r} is a prefix that ends in {a[-1]!r}; {b!r} must, too: {b + a[-1]!r}")
            a, b = a + "{any...}", b + "{any...}"
        rule = Rule((template(a),), (template(b),))
        if not (a and b) or _bound(rule.targets) - _bound(rule.sources):
            raise UsageError(f"rename= takes 'FROM=TO', where FROM has each {{name}} of TO, not {'='.join(pair)!r}")
        rules.append(rule)
    rest = (template("{any...}"),)
    return Converter("rename=", (*rules, Rule(rest, rest, optional=True)), every=True)


# --- Check a converter without weights: each name leads to one target, and the inverse leads back to it ---
#
# Both sides of a rule must bind the same captures; a layout must name the stacked axis, and sizes only axes of the
# layout; no rule may follow one that takes all its names; nothing may be defined and never used.


MAX_SAMPLES = 64  # names tried per template
MAX_TRIED = 10_000  # names tried in all: with more templates than a sensible file has, fewer of each


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
    """The faults of a rule by itself: captures, sizes and constants that do not fit each other."""
    left, right = _bound(rule.sources), _bound(rule.targets)
    for name in sorted(left ^ right if rule.targets else ()):
        yield f"{{{name}}} is on one side only"
    for side in (rule.sources, rule.targets):
        if len({frozenset(_bound([t])) for t in side}) > 1:
            yield "the names of one side bind different captures"
    for t, _ in rule.fill:
        if set(t.captures) - right or t.stacks or not rule.targets:
            yield f"`fill` {t.text} must bind captures of its targets, and stack nothing"
    if axes := ", ".join(rule.unsolved({*rule.sizes, *rule.counts})):  # backwards, the metadata records sizes
        yield f"layout {rule.layout!r}: the shapes do not determine the size of {axes}; give it in `sizes`"
    for name in _params(rule):
        if name not in converter.params:
            yield f"the size or number {name!r} is not a parameter"


def _params(rule: Rule) -> list[str]:
    """The parameters to which a rule refers, by sizes of axes and by numbers of `fill`."""
    lengths: list[Size | float | None] = [*rule.sizes.values(), *(b for _, blocks in rule.fill for b in blocks)]
    lengths += (rule.resize.to, rule.resize.before) if rule.resize else ()
    return [n for n in lengths if isinstance(n, str)]


def _bound(templates: Sequence[Template]) -> set[str]:
    return {c for t in templates for c in t.captures if c not in t.stacks}


def _unused(converter: Converter) -> Iterator[str]:
    """What a converter defines and does not use, or uses and does not define."""
    checks = {c.param for c in converter.counts} | {p for p in converter.axes.values() if p}
    checks |= {n for r in converter.refusals for n in r.equal if isinstance(n, str)}
    for name in converter.params.keys() - checks - {n for r in converter.rules for n in _params(r)}:
        yield f"the parameter {name} is never used"
    for name in checks - converter.params.keys():
        yield f"`count`, `axes` or `refuse` refers to {name}, which is not a parameter"
    for axis in converter.axes.keys() - {a for r in converter.rules if r.pattern for a in r.pattern.names}:
        yield f"`axes` refers to {axis}, which is in no layout"
    names = [t.text for r in converter.rules for t in (*r.sources, *r.targets)]
    for head in (head.text for c in converter.counts for head in (c.source, c.target)):
        if not any(map(str.startswith, names, repeat(head))):
            yield f"`count` refers to {head}, with which no name begins"


def samples(template: Template, where: Mapping[str, Domain], most: int = MAX_SAMPLES) -> list[str]:
    """Up to `most` names that a template takes: with the values of its tables, and a few of its free captures."""
    kinds = {p.name: p.kind for p in template.parts if isinstance(p, Capture)}
    free = {"": TEXT.samples(), "...": ["q7x/v", "w"], "*": INT.samples()}
    values = [where[name].samples() if name in where else free[kinds[name]] for name in template.captures]
    picks = islice(product(*values), most)
    return [template.render(dict(zip(template.captures, pick, strict=True))) for pick in picks]


def _first(converter: Converter, name: str, ranks: Collection[int]) -> tuple[int, dict[str, str]] | None:
    """The index of the first rule that takes a name of one of these ranks whatever else is there, and its captures."""
    rules, matcher = converter.free  # of conditional rules, all may take the same names
    for m in matcher.matches(name):
        wanted = converter.rules[rules[m.number]].wanted[0]
        if not wanted or {*wanted} & {*ranks}:
            return rules[m.number], m.values
    return None


def _shadowed(converter: Converter, most: int) -> Iterator[str]:
    """Rules that can never match because earlier ones take all their names."""
    for i, rule in enumerate(converter.rules):
        for t, wanted in zip(rule.sources, rule.wanted, strict=True):
            each = [[r] for r in wanted] or [[]]
            found = [_first(converter, name, ranks) for name in samples(t, rule.where, most) for ranks in each]
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
    for rule in converter.rules:
        if not rule.alone or rule.having or rule.lacking:
            continue
        own = Matcher([(rule.sources[0], rule.where)])
        for name in samples(rule.sources[0], rule.where, most):
            m = own.first(name)
            new = sole_target(rule, m.values, converter.separators) if m else ""
            taken = _first(back, new, rule.inverse.wanted[0] or range(MAX_NAME)) if new else None
            if taken and (wrong := sole_target(back.rules[taken[0]], taken[1], back.separators)) not in ("", name):
                yield f"rule {rule.label}: {name} would come back as {wrong}; add a rank or a where, or declare one_way"
                break


__all__ = ["MAX_FILE", "Converter", "auto", "change", "lint", "load", "names", "parse", "renaming", "shipped"]
