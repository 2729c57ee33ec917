"""A converter: rules that say where a name goes and how its axes move. Pure data; converters/README.md is its language.

    [[rule]]
    from = "bert/encoder/layer_{i}/attention/self/{p}/kernel"
    to = "bert.encoder.layer.{i}.attention.self.{p}.weight"
    where = { p = ["query", "key", "value"] }
    layout = "i o -> o i"

Reading a converter checks it; `inverse` swaps its sides; `apply` (rewrite.py) moves a checkpoint through it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from . import layout as layouts
from .errors import LayoutError, UsageError, listing
from .names import Capture, Domain, Fold, Matcher, Template, domain, fold, template
from .tensor import Checkpoint

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_FILE = 2**20  # bytes of a rule file


class Of(NamedTuple):
    """A size read off a tensor named in the source: the length of one of its axes."""

    name: Template
    axis: int


class Param(NamedTuple):
    """A number that names and shapes do not tell; read off a tensor if `of` is given, else asked for."""

    default: int | None = None
    of: Of | None = None
    help: str = ""


@dataclass(frozen=True)
class Rewrite:
    """A replacement made everywhere in all names before rules see them; `^` and `$` hold on to a name's ends."""

    source: Template
    target: Template
    start: bool = False
    end: bool = False
    where: Mapping[str, Domain] = field(default_factory=dict)
    one: str = ""  # only if this capture has one value over all names
    given: Template | None = None  # only if some name is so

    @property
    def anchored(self) -> bool:
        return self.start or self.end

    @cached_property
    def compiled(self) -> tuple[re.Pattern[str], list[str]]:
        """What to search for, and the captures in the order of the groups; a capture is as short as may be."""
        text, order = self.source.regex(self.where)
        text = text.replace("([^/.]+)", "([^/]*?)")
        return re.compile("^" * self.start + text + "$" * self.end), order


@dataclass(frozen=True)
class Rule:
    """Where names go (`sources` to `targets`), how axes move (`layout`), and under which conditions."""

    sources: tuple[Template, ...]
    targets: tuple[Template, ...]
    layout: str = ""
    where: Mapping[str, Domain] = field(default_factory=dict)
    sizes: Mapping[str, int | str | Of] = field(default_factory=dict)
    ops: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()  # of the first source; none: any
    having: tuple[Template, ...] = ()  # names that must be in the source too
    lacking: tuple[Template, ...] = ()  # names that must not
    shared: bool = False  # several names of one variable: the first is taken
    optional: bool = False  # not worth a note when it never matches
    backward: bool = False  # an inverse: conditions and sizes speak of its targets

    @property
    def label(self) -> str:
        left = ", ".join(t.text for t in self.sources)
        label = f"{left} -> {', '.join(t.text for t in self.targets) or '(dropped)'}"
        return f"{label} ({self.layout})" if self.layout else label

    @cached_property
    def pattern(self) -> layouts.Layout | None:
        """The layout with the stacked axis in front of the tensors that are stacked or cut; None if nothing moves."""
        stacked = [any(t.stacked for t in side) for side in (self.sources, self.targets)]
        if not self.targets or not (self.layout or any(stacked)):
            return None
        if all(stacked):
            raise UsageError("stacks on both sides; write {e} for an index that is only passed on")
        axis = next(t.stacked for t in (*self.sources, *self.targets) if t.stacked) if any(stacked) else ""
        text = self.layout or (f"... -> {axis} ..." if stacked[0] else f"{axis} ... -> ...")
        sides = []
        for side, templates in zip(text.split("->"), (self.sources, self.targets), strict=True):
            tensors = side.split(",")
            sides.append(", ".join(f"{t.stacked} {s.strip()}".strip() for t, s in zip(templates, tensors, strict=True)))
        return layouts.parse(" -> ".join(sides))

    def _axes(self, side: int, k: int) -> tuple[int, bool]:
        """How many axes the layout spells out for a tensor, and whether that is all."""
        if self.pattern is None:
            return 0, False
        axes = (self.pattern.sources, self.pattern.targets)[side][k]
        stacked = bool((self.sources, self.targets)[side][k].stacked)
        return len(axes) - stacked - ("..." in axes), "..." not in axes

    @cached_property
    def wanted(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of axes that each source may have; none: any. What a layout spells out, it wants."""
        spelled = [self._axes(0, k) for k in range(len(self.sources))]
        told = [(n,) if whole else () for n, whole in spelled]
        return (self.ranks or told[0], *told[1:])

    @cached_property
    def inverse(self) -> Rule:
        """The same rule backwards; UsageError if an operation cannot be undone."""
        ranks = self.ranks
        if ranks and self.pattern:
            (before, _), (after, whole) = self._axes(0, 0), self._axes(1, 0)
            ranks = () if whole else tuple(r + after - before for r in ranks)
        left, _, right = self.layout.partition("->")
        return replace(
            self,
            sources=self.targets,
            targets=self.sources,
            layout=f"{right.strip()} -> {left.strip()}" if self.layout else "",
            where={k: d.inverse for k, d in self.where.items()},
            ops=tuple(inverse_op(op) for op in reversed(self.ops)),
            ranks=ranks,
            backward=not self.backward,
        )


def inverse_op(op: str) -> str:
    """The operation that undoes `op`; UsageError if none does so exactly."""
    name, _, x = op.partition(":")
    if name in ("neg", "conj", "swap"):
        return op
    if name == "add":
        return f"add:{x[1:]}" if x.startswith("-") else f"add:-{x}"
    if name == "mul" and float(x):
        value = abs(Fraction(x))
        if {value.numerator & (value.numerator - 1), value.denominator & (value.denominator - 1)} == {0}:
            return f"mul:{1 / float(x)!r}"
    raise UsageError(f"the operation {op!r} cannot be undone exactly")


@dataclass(frozen=True)
class Converter:
    """Rules in order, the first that takes a name wins; what they need to be told; how the family is recognised."""

    name: str
    rules: tuple[Rule, ...]
    title: str = ""
    source: str = ""
    target: str = ""
    separators: tuple[str, str] = ("/", ".")
    params: Mapping[str, Param] = field(default_factory=dict)
    rewrites: tuple[Rewrite, ...] = ()
    ties: tuple[tuple[Template, ...], ...] = ()
    present: tuple[Template, ...] = ()  # detect: each takes some name
    absent: tuple[Template, ...] = ()  # detect: none takes any name
    optional: bool = False  # rules that never match are no news: conventions rather than a family
    every: bool = False  # tensors of every role, not only weights: renames
    one_way: str = ""  # why names alone do not lead back
    notes: tuple[str, ...] = ()
    forward: Converter | None = None  # of an inverse: what it undoes

    @cached_property
    def inverse(self) -> Converter:
        """The converter backwards; UsageError lists the rules that cannot be undone."""
        if self.forward:
            return self.forward
        rules, bad = [], []
        for rule in self.rules:
            try:
                rules += [rule.inverse] if rule.targets else []
            except UsageError as e:
                bad.append(f"{rule.label}: {e.message}")
        if bad:
            raise UsageError(f"the converter {self.name} cannot be run backwards:\n{listing(bad)}")
        return replace(
            self, rules=tuple(rules), source=self.target, target=self.source, separators=self.separators[::-1],
            rewrites=(), forward=self,
        )  # fmt: skip

    @cached_property
    def matcher(self) -> Matcher:
        """All source templates of all rules, in order."""
        return Matcher([(t, r.where) for r in self.rules for t in r.sources])

    @cached_property
    def origins(self) -> list[tuple[int, int]]:
        """For each template of `matcher` its rule, and its place among that rule's sources."""
        return [(i, k) for i, r in enumerate(self.rules) for k in range(len(r.sources))]

    def apply(self, checkpoint: Checkpoint, params: Mapping[str, Any] | None = None, *, slots: bool = False) -> Checkpoint:  # fmt: skip
        """Move every tensor to its new name and layout; nothing is read.

        Raises UnmatchedTensors, NameCollision, LayoutError, UsageError (a parameter is unknown or missing), each
        listing all there are. Optimizer slots and the like are left out with a note; `slots` keeps those that follow
        a weight. `details["moved"]` says for every target by which rule it came, and from what.
        """
        from .rewrite import apply

        return apply(self, checkpoint, params or {}, slots=slots)

    def takes(self, checkpoint: Checkpoint) -> bool:
        """True if the family is recognised and every weight has a rule."""
        from .rewrite import assign

        names = list(checkpoint)
        if not all(_any(t, names) for t in self.present) or any(_any(t, names) for t in self.absent):
            return False
        return not assign(self, checkpoint).unmatched

    def lint(self) -> list[str]:
        """What is wrong with the rules, one sentence each; empty if nothing is."""
        from .lint import lint

        return lint(self)


def _any(t: Template, names: Iterable[str]) -> bool:
    matcher = Matcher([(t, {})])
    return any(matcher.first(n) for n in names)


# --- reading ----------------------------------------------------------------------------------------------------

_TOP = {
    "title", "source", "target", "separators", "include", "params", "let", "rewrite", "rule", "tie", "detect",
    "optional", "one_way", "notes",
}  # fmt: skip
_RULE = {
    "from", "to", "names", "layout", "where", "sizes", "op", "rank", "if", "unless", "shared", "optional", "note",
}  # fmt: skip


def _known(table: Any, keys: Iterable[str], what: str) -> dict[str, Any]:
    """Refuse keys that nothing reads: a misspelt one would be ignored in silence."""
    if not isinstance(table, dict):
        raise UsageError(f"{what} must be a table")
    keys = sorted(keys)
    for key in table:
        if key not in keys:
            near = get_close_matches(key, keys, 1)
            raise UsageError(f"{what}: {key!r} means nothing" + (f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(keys)}"))  # fmt: skip
    return table


def parse(text: str, name: str, *, folder: Path | None = None, depth: int = 0) -> Converter:
    """Read a rule file; UsageError (with the file's name) for anything it may not say."""
    try:
        return _converter(_known(tomllib.loads(text), _TOP, "the file"), name, folder, depth)
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"converter {name}: no valid TOML: {e}") from e
    except RecursionError as e:
        raise UsageError(f"converter {name}: is nested beyond reason") from e
    except (UsageError, LayoutError) as e:
        raise UsageError(e.message if e.message.startswith("converter ") else f"converter {name}: {e.message}") from e


def _converter(top: dict[str, Any], name: str, folder: Path | None, depth: int) -> Converter:
    shared = [_included(i, folder, depth) for i in _strings(top.get("include", []))]
    let = {k: _strings(v) for k, v in _known(top.get("let", {}), top.get("let", {}), "let").items()}
    rules = [r for table in top.get("rule", []) for r in _rules(table, let)]
    detect = _known(top.get("detect", {}), {"all", "none"}, "detect")
    ties = [_strings(_known(t, {"names"}, "tie").get("names", [])) for t in top.get("tie", [])]
    separators = _strings(top.get("separators", list(shared[0].separators) if shared else ["/", "."]))
    if len(separators) != 2:
        raise UsageError("separators are two: that of the source and that of the target")
    rewrites = [_rewrite(r) for r in top.get("rewrite", [])]
    params = {k: _param(k, v) for k, v in _known(top.get("params", {}), top.get("params", {}), "params").items()}
    return Converter(
        name=name,
        rules=(*rules, *(r for s in shared for r in s.rules)),
        title=str(top.get("title", "")),
        source=str(top.get("source", "")),
        target=str(top.get("target", "")),
        separators=(separators[0], separators[1]),
        params={**{k: v for s in shared for k, v in s.params.items()}, **params},
        rewrites=(*rewrites, *(r for s in shared for r in s.rewrites)),
        ties=(*(tuple(map(template, t)) for t in ties), *(t for s in shared for t in s.ties)),
        present=tuple(map(template, _strings(detect.get("all", [])))),
        absent=tuple(map(template, _strings(detect.get("none", [])))),
        optional=bool(top.get("optional", False)),
        one_way=str(top.get("one_way", "")),
        notes=tuple(_strings(top.get("notes", []))),
    )


def _rewrite(value: Any) -> Rewrite:
    if isinstance(value, list) and len(_strings(value)) == 2:
        value = {"from": value[0], "to": value[1]}
    _known(value, {"from", "to", "where", "one", "if"}, "rewrite")
    source, target = str(value.get("from", "")), str(value.get("to", ""))
    start, end = source.startswith("^"), source.endswith("$")
    parsed = template(source[start : len(source) - end])
    if not parsed.parts or any(p.kind for p in parsed.parts if not isinstance(p, str)):
        raise UsageError(f"rewrite {source!r}: text and {{x}} may stand in it")
    where = {k: domain(v) for k, v in value.get("where", {}).items()}
    given = template(value["if"]) if "if" in value else None
    made = Rewrite(parsed, template(target), start, end, where, str(value.get("one", "")), given)
    if odd := ({*made.target.captures, made.one} - {"", *parsed.captures}):
        raise UsageError(f"rewrite {source!r}: {{{min(odd)}}} is not in it")
    return made


def _included(name: str, folder: Path | None, depth: int) -> Converter:
    if depth > 4:
        raise UsageError(f"include {name!r}: files include each other")
    if "/" in name or "\\" in name or name.startswith("."):
        raise UsageError(f"include {name!r}: only a file beside this one, by its bare name")
    for home in filter(None, (folder, shipped())):
        if (path := home / f"{name}.toml").is_file():
            return parse(_text(path), name, folder=home, depth=depth + 1)
    raise UsageError(f"include {name!r}: there is no {name}.toml beside this file")


def _strings(value: Any) -> list[str]:
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise UsageError(f"{value!r} must be a string or a list of strings")
    return value


def _rules(table: Any, let: Mapping[str, Sequence[str]]) -> list[Rule]:
    """The rules of one [[rule]]: one, or one per pair of `names`."""
    _known(table, _RULE, "rule")
    pairs = [(table["from"], table.get("to"))] if "from" in table else []
    pairs += list(table.get("names", {}).items())
    if not pairs or any(b is None for _, b in pairs):
        raise UsageError(f"rule {table!r} needs `from` and `to`, or `names`")
    return [_rule(a, b, table, let) for a, b in pairs]


def _rule(source: Any, target: Any, table: dict[str, Any], let: Mapping[str, Sequence[str]]) -> Rule:
    def side(texts: Any, which: int) -> tuple[Template, ...]:
        return tuple(template(_expand(t, let, which)) for t in _strings(texts))

    sources, targets = side(source, 0), side(target, 1)
    layout = str(table.get("layout", ""))
    rank = table.get("rank", [])
    rule = Rule(
        sources, targets, layout if targets else "",
        where={k: domain(v) for k, v in _known(table.get("where", {}), table.get("where", {}), "where").items()},
        sizes={k: _size(v, side) for k, v in table.get("sizes", {}).items()},
        ops=tuple(_strings(table.get("op", []))),
        ranks=tuple(rank if isinstance(rank, list) else [rank]),
        having=side(table.get("if", []), 0),
        lacking=side(table.get("unless", []), 0),
        shared=bool(table.get("shared", False)),
        optional=bool(table.get("optional", False)),
    )  # fmt: skip
    try:
        if rule.layout and [len(side.split(",")) for side in layout.split("->")] != [len(sources), len(targets)]:
            raise UsageError(f"layout {layout!r} has not one tensor for each name")
        if not layout and len(targets) != 1 and targets:
            raise UsageError("several targets need a layout")
        if not layout and len(sources) != 1 and targets:
            raise UsageError("several sources need a layout")
        _ = rule.pattern
    except (UsageError, LayoutError) as e:
        raise UsageError(f"rule {rule.label}: {e.message}") from e
    return rule


def _expand(text: str, let: Mapping[str, Sequence[str]], which: int) -> str:
    """Put the text of `let` for <name>: the first of its two in sources, the second in targets."""
    for name, texts in let.items():
        text = text.replace(f"<{name}>", texts[min(which, len(texts) - 1)])
    return text


def _size(value: Any, side: Any) -> int | str | Of:
    if isinstance(value, dict):
        _known(value, {"of", "axis"}, "sizes")
        return Of(side(value.get("of", ""), 0)[0], int(value.get("axis", 0)))
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UsageError(f"a size is a number, a parameter's name or {{ of, axis }}, not {value!r}")
    return value


def _param(name: str, value: Any) -> Param:
    if isinstance(value, int):
        return Param(default=value)
    _known(value, {"of", "axis", "default", "help"}, f"parameter {name}")
    of = Of(template(value["of"]), int(value.get("axis", 0))) if "of" in value else None
    return Param(value.get("default"), of, str(value.get("help", "")))


# --- finding ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def shipped() -> Path:
    """The folder of the converters that come with the package: in the wheel, or in the source tree."""
    here = Path(__file__).parent
    return here / "converters" if (here / "converters").is_dir() else here.parent / "converters"


@lru_cache(maxsize=1)
def _installed() -> dict[str, Path]:
    """Files of converters by name: ours, and those that packages give under the entry point `ckptconv.converters`."""
    from importlib.metadata import entry_points

    found = {p.stem: p for p in sorted(shipped().glob("*.toml")) if not p.name.startswith("_")}
    for point in entry_points(group="ckptconv.converters"):
        found.setdefault(point.name, Path(str(point.load())))
    return found


def names() -> list[str]:
    """The names of all converters there are."""
    return list(_installed())


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if len(data) > MAX_FILE:
            raise UsageError(f"converter {path.name}: {len(data)} bytes are no rule file")
        return data.decode()
    except OSError as e:
        raise UsageError(f"converter {path}: {(e.strerror or str(e)).lower()}") from e
    except UnicodeDecodeError as e:
        raise UsageError(f"converter {path}: is no UTF-8 text") from e


def load(name: str | Path) -> Converter:
    """Load a converter by name, or from a .toml file; UsageError names the near ones."""
    if str(name).endswith(".toml"):
        path = Path(name)
        return parse(_text(path), path.stem, folder=path.parent)
    found = _installed()
    if str(name) not in found:
        near = get_close_matches(str(name), found, 3) or list(found)
        raise UsageError(f"no converter is called {str(name)!r}; there are {', '.join(near)} (or give a .toml file)")
    path = found[str(name)]
    return parse(_text(path), str(name), folder=path.parent)


def auto(checkpoint: Checkpoint) -> Converter:
    """The one converter that takes everything; UsageError names the rivals, or says that there is none."""
    fits = [c for c in map(load, names()) if c.takes(checkpoint)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        shown = [f"{c.name}: {c.title}" for c in fits]
        raise UsageError(f"several converters take every tensor; choose one with -c:\n{listing(shown)}")
    raise UsageError("no converter takes every tensor; `ckptconv converters` lists them, -c NAME says what one lacks")


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
        checkpoint = (rules.inverse if inverse else rules).apply(checkpoint, params)
    elif inverse or params:
        raise UsageError("--inverse and --param say something to a converter; choose one with -c")
    return renaming(renames).apply(checkpoint) if renames else checkpoint


def renaming(renames: Sequence[str]) -> Converter:
    """A converter from `FROM=TO` pairs of templates; names that none takes stay as they are."""
    pairs = [r.partition("=") for r in renames]
    if bad := [r for r, (a, _, b) in zip(renames, pairs, strict=True) if not (a and b)]:
        raise UsageError(f"--rename takes FROM=TO, not {bad[0]!r}")
    rules = [Rule((template(a),), (template(b),)) for a, _, b in pairs]
    keep = Rule((template("{any...}"),), (template("{any...}"),), optional=True)
    return Converter("--rename", (*rules, keep), separators=("", ""), every=True)


__all__ = [
    "Capture", "Converter", "Domain", "Fold", "Of", "Param", "Rewrite", "Rule", "auto", "fold", "load", "names", "parse",
]  # fmt: skip
