"""A converter: rules that say how names and axes change. Pure data; toml.py parses it from a file.

    [[rule]]
    from = "bert/encoder/layer_{i}/attention/self/{p}/kernel"
    to = "bert.encoder.layer.{i}.attention.self.{p}.weight"
    where = { p = ["query", "key", "value"] }
    layout = "i o -> o i"

`inverse` swaps its sides; apply.py applies it to a checkpoint; library.lint checks it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from ..errors import UsageError
from ..messages import listing, printable
from . import layout as layouts, operations
from .operations import Of, Resize
from .templates import Domain, Matcher, Template

Pattern = tuple[Template, Mapping[str, Domain]]
Size = int | str | Of  # a number, a parameter's name, or the length of an axis of another tensor
Fill = tuple[float | str, ...]  # one value, or one for each of equal blocks; each a number or a parameter's name

RANKS = "ranks"  # the parameter that says of how many ranks an inverse makes tensors, called rank_{r*}.NAME
GUESSED = "look at this"  # how `match` marks a rule, in a comment, whose pairs may be wrong
MAX_COPIES = 64  # that are compared: 4 MB of each are in memory


class Param(NamedTuple):
    """A number that names and shapes do not determine: from a tensor, else from the model's settings, else given."""

    default: int | None = None
    of: Of | None = None
    help: str = ""
    config: tuple[str, ...] = ()  # keys of settings, of which the first that is there counts: a.b, dim/n_heads/2


class Tie(NamedTuple):
    """Names that share one tensor in the target; `apart` if the source may have a tensor for each."""

    names: tuple[Template, ...]
    apart: bool = False
    having: tuple[str, ...] = ()  # names that must be in the source


class Count(NamedTuple):
    """The beginning of names in the source and in the target, whose last capture counts; the parameter: how many."""

    source: Template
    target: Template
    param: str


class Refusal(NamedTuple):
    """Why a model of which these sizes are equal is another converter's."""

    equal: tuple[int | str, int | str]
    why: str


@dataclass(frozen=True)
class Rewrite:
    """A replacement made everywhere in all names before rules see them; `^` and `$` anchor it to a name's ends."""

    source: Template
    target: Template
    start: bool = False
    end: bool = False
    where: Mapping[str, Domain] = field(default_factory=dict)
    one: str = ""  # apply only if this capture has one value over all names
    given: Template | None = None  # apply only if some name matches this

    @property
    def anchored(self) -> bool:
        return self.start or self.end

    @cached_property
    def literal(self) -> str:
        """Text that every name contains in which something is replaced."""
        return max((p for p in self.source.parts if isinstance(p, str)), key=len, default="")

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The regular expression; captures match as little as possible."""
        text = self.source.regex(self.where).replace("[^/.]+)", "[^/]*?)")
        return re.compile("^" * self.start + text + "$" * self.end)


@dataclass(frozen=True)
class Rule:
    """How names change (`sources` to `targets`), how axes move (`layout`), and under which conditions."""

    sources: tuple[Template, ...]
    targets: tuple[Template, ...]
    layout: str = ""
    flip: frozenset[str] = frozenset()  # axes of the layout that run the other way in the targets
    where: Mapping[str, Domain] = field(default_factory=dict)
    sizes: Mapping[str, Size] = field(default_factory=dict)
    op: tuple[str, ...] = ()
    resize: Resize | None = None  # of the target
    same: bool = False  # the sources are equal copies, of which the first is taken
    rank: tuple[int, ...] = ()  # of the first source; empty: any
    having: tuple[Template, ...] = ()  # other names that the source must contain
    lacking: tuple[Template, ...] = ()  # names that it must not contain
    kind: tuple[str, ...] = ()  # the tensor must belong to a layer of one of these classes, or ("!x") of none of them
    input: tuple[str, ...] = ()  # what its layer must take, by a Keras model's config (LayerInput.state)
    metadata: Mapping[str, str] = field(default_factory=dict)  # what the file's must say
    fill: tuple[tuple[Template, Fill], ...] = ()  # constants beside the first target; an inverse leaves them out
    optional: bool = False  # no note if it never matches
    note: str = ""  # what to know of each conversion in which the rule takes a tensor
    doubts: tuple[str, ...] = ()  # keys of assign.DOUBTS, each a note where it applies
    refuse: str = ""  # why tensors with these names cannot be converted
    backward: bool = False  # an inverse: conditions and sizes refer to its targets

    @property
    def adds(self) -> bool:
        """Whether the sources are added before anything else is done."""
        return self.op[:1] == ("sum",) and not self.same

    @property
    def merges(self) -> bool:
        """Whether several sources are one tensor for the layout."""
        return self.same or self.adds

    @cached_property
    def label(self) -> str:
        left = ", ".join(t.text for t in self.sources)
        label = f"{left} -> {', '.join(t.text for t in self.targets) or '(dropped)'}"
        flip = f"flip {' '.join(sorted(self.flip))}" if self.flip else ""
        how = ", ".join(filter(None, (self.layout, flip, str(self.resize or ""), "sum" * self.adds)))
        return printable(f"{label} ({how})" if how else label)

    @cached_property
    def pattern(self) -> layouts.Layout | None:
        """The layout with its flips, and the stacked axis first in tensors that are stacked or split.

        None if nothing moves. It moves one of several copies. If both sides stack, or one name along several axes, the
        layout of the file has these axes already.
        """
        before, after = ({s for t in side for s in t.stacks if not self.same} for side in (self.sources, self.targets))
        if not self.targets or not (self.layout or before or after):
            return None
        if both := before & after:
            axis = min(both)
            raise UsageError(f"stacks {{{axis}*}} on both sides; write {{{axis}}} for an index that stays as it is")
        text = self.layout
        spells = (before and after) or any(len(t.stacks) > 1 for t in (*self.sources, *self.targets))
        if spells and not text:
            raise UsageError("stacks on both sides, or along two axes: give a layout that begins with these axes")
        if not spells:
            if len(before | after) > 1:
                raise UsageError("stacks along more than one axis")
            axis = min(before | after, default="")
            text = text or (f"... -> {axis} ..." if before else f"{axis} ... -> ...")
            sides = []
            for side, templates in zip(text.split("->"), (self.sources, self.targets), strict=False):
                stacks = [() if self.same else t.stacks for t in templates]  # one layout may be that of all sources
                pairs = zip(stacks, side.split(","), strict=False)
                sides.append(", ".join(" ".join((*stack, axes.strip())).strip() for stack, axes in pairs))
            text = " -> ".join(sides)
        return replace(layouts.parse(text), flips=self.flip) if self.flip else layouts.parse(text)

    @cached_property
    def counts(self) -> dict[str, int]:
        """The lengths of stacked axes whose names are all known: those with a table in `where`."""
        stacks = [s for t in (*self.sources, *self.targets) for s in t.stacks if s in self.where]
        return {s: len(self.where[s].table) for s in stacks if self.where[s].table}

    def unsolved(self, known: Collection[str]) -> tuple[str, ...]:
        """The axes whose sizes neither shapes nor `known` give, such as the number of copies of an inverse."""
        copies = tuple(s for t in self.targets for s in t.stacks if self.same and s not in known)
        return (*copies, *(self.pattern.undetermined(known) if self.pattern else ()))

    @cached_property
    def alone(self) -> bool:
        """True if the rule takes one tensor at a time."""
        return len(self.sources) == 1 and not self.sources[0].stacks

    @cached_property
    def wide(self) -> frozenset[str]:
        """The captures {x...}, in which separators change."""
        parts = (p for t in self.sources for p in t.parts)
        return frozenset(p.name for p in parts if not isinstance(p, str) and p.kind == "...")

    def _rank(self, side: int, k: int = 0) -> tuple[int, ...]:
        """The rank that the layout gives a tensor; () if it has `...` or there is none."""
        axes = (self.pattern.sources, self.pattern.targets)[side][k] if self.pattern else ("...",)
        return () if "..." in axes else (len(axes) - len((self.sources, self.targets)[side][k].stacks),)

    @cached_property
    def wanted(self) -> tuple[tuple[int, ...], ...]:
        """The ranks that each source may have (empty: any): those given, or that of the layout."""
        first = self.rank or self._rank(0)
        return tuple(first if self.merges or k == 0 else self._rank(0, k) for k in range(len(self.sources)))

    def check(self, layout: str) -> None:
        """Refuse names that copies, another size, or a layout do not fit, and operations that do not exist."""
        stacked = any(t.stacks for t in (*self.sources, *self.targets))
        counts = 1 if self.merges else len(self.sources), len(self.targets)
        one = len(self.targets) == 1 or (self.adds and self.targets)
        gathers = self.same and len(self.sources) == 1 and self.sources[0].stacks and not self.targets[0].stacks
        if self.merges and (((stacked or not 1 < len(self.sources) <= MAX_COPIES) and not gathers) or not one):
            word = "sum" if self.adds else "same"
            other = "" if self.adds else "; or one name with {e*}"
            raise UsageError(f"`{word}` takes a list of 2 to {MAX_COPIES} names, without {{e*}}, to one name{other}")
        if how := self.resize:
            scaled = not self.op or (not how.value and all(map(operations.scales, self.op)))
            if any(t.stacks for t in self.targets) or counts != (1, 1) or not scaled:
                what = "take one name to one name, {e*} only in the first, and an `op` only if it scales and value is 0"
                raise UsageError(f"`crop` and `pad` {what}")
        if layout and tuple(len(side.split(",")) for side in layout.split("->")) != counts:
            raise UsageError(f"layout {layout!r} does not list one tensor for each name")
        if not layout and self.targets and counts != (1, 1):
            raise UsageError(f"several {'targets' if counts[1] > 1 else 'sources'} need a layout")
        axes = self.pattern.names if self.pattern else set()
        flips = self.flip - {"..."} if "..." in layout else self.flip
        for word, given in (("flip", flips), ("sizes", self.sizes.keys())):
            if self.targets and (odd := given - axes):
                raise UsageError(f"`{word}` refers to {min(odd)}, which is not an axis of the layout")
        for op in self.op[self.adds :]:
            operations.check(op, axes)

    @cached_property
    def inverse(self) -> Rule:
        """The rule in the other direction; UsageError if an operation cannot be undone."""
        ranks = self.rank
        if ranks and self.pattern:
            before, after = len(self.pattern.sources[0]), len(self.pattern.targets[0])
            more = after - before + len(self.sources[0].stacks) - len(self.targets[0].stacks)
            ranks = () if self._rank(1) else tuple(r + more for r in ranks)
        left, _, right = self.layout.partition("->")
        made = replace(
            self,
            sources=self.targets,
            targets=self.sources,
            layout=f"{right.strip()} -> {left.strip()}" if self.layout else "",
            where={k: d.inverse for k, d in self.where.items()},
            op=tuple(operations.inverse(op) for op in reversed(self.op)),
            rank=ranks,
            kind=(),
            input=(),
            backward=not self.backward,
        )
        asked = dict[str, Size]()
        while open_axes := made.unsolved({*made.sizes, *made.counts, *asked}):
            many = [axis for axis in open_axes if any(f"rank_{{{axis}*}}." in t.text for t in made.targets)]
            asked[(*many, *open_axes[::-1])[0]] = RANKS if many else open_axes[-1]
        return replace(made, sizes={**made.sizes, **asked}) if asked else made


@dataclass(frozen=True)
class Converter:
    """Rules, of which the first that takes a name applies; their parameters; and how the model family is recognised."""

    name: str
    rules: tuple[Rule, ...]
    title: str = ""
    source: str = ""
    target: str = ""
    separators: tuple[str, str] = ("/", "/")  # what joins segments on the two sides: captures {x...} are translated
    params: Mapping[str, Param] = field(default_factory=dict)
    rewrites: tuple[Rewrite, ...] = ()
    ties: tuple[Tie, ...] = ()
    counts: tuple[Count, ...] = ()  # numbers in names, of which none may be missing
    axes: Mapping[str, str] = field(default_factory=dict)  # that are equally long in all layouts, as parameters say
    refusals: tuple[Refusal, ...] = ()
    present: tuple[Pattern, ...] = ()  # detect: each matches some name
    absent: tuple[Pattern, ...] = ()  # detect: none matches any name
    optional: bool = False  # no note on rules that never match: conventions rather than a family
    every: bool = False  # tensors of every role, not only weights: renames
    config: Mapping[str, Any] = field(default_factory=dict)  # the template of config.json; see sizes.py
    ranks: str = ""  # the file of rank 0, if an inverse makes those of several
    one_way: str = ""  # why names alone do not determine the inverse
    notes: tuple[str, ...] = ()
    forward: Converter | None = None  # of an inverse: the converter that it undoes
    texts: tuple[str, ...] = ()  # of its file and of all that it includes: everything that its rules depend on

    @cached_property
    def inverse(self) -> Converter:
        """The converter in the other direction; UsageError lists the rules that cannot be undone."""
        if self.forward:
            return self.forward
        rules, bad = [], []
        for rule in self.rules:
            try:
                rules += [rule.inverse] if rule.targets else []
            except UsageError as e:
                bad.append(f"{rule.label}: {e.message}")
        helps = {RANKS: "how many files of ranks to write"}
        asked = {
            size: Param(help=helps.get(size, f"an axis of {rule.layout} whose size is not recorded"))
            for rule in rules for size in rule.sizes.values() if isinstance(size, str)
        }  # fmt: skip
        filled = {t.text: t for r in self.rules for t, _ in r.fill}
        rules += (Rule((t,), (), optional=True) for t in filled.values())
        if bad:
            raise UsageError(f"the converter {self.name} cannot be inverted:\n{listing(bad)}")
        return replace(
            self, rules=tuple(rules), source=self.target, target=self.source, separators=self.separators[::-1],
            params={**asked, **self.params}, rewrites=(),
            counts=tuple(Count(c.target, c.source, c.param) for c in self.counts), forward=self,
        )  # fmt: skip

    @cached_property
    def matcher(self) -> Matcher:
        """All source templates of all rules, in order."""
        return Matcher([(t, r.where) for r in self.rules for t in r.sources])

    @cached_property
    def free(self) -> tuple[list[int], Matcher]:
        """The rules that take each tensor of their names and ranks, whatever else is there, and their sources."""
        rules = [
            i for i, r in enumerate(self.rules)
            if len(r.sources) == 1 and not (r.having or r.lacking or r.kind or r.input or r.metadata)
        ]  # fmt: skip
        return rules, Matcher([(self.rules[i].sources[0], self.rules[i].where) for i in rules])

    @cached_property
    def origins(self) -> list[tuple[int, int]]:
        """For each template of `matcher` its rule, and its index among that rule's sources."""
        return [(i, k) for i, r in enumerate(self.rules) for k in range(len(r.sources))]
