"""Propose a converter for a source and a target: by values, else by names, with shapes as constraints.

    match(source, target)   Checkpoint, Checkpoint -> Proposal     pairs.py: what is found
        values.py           the same elements, in which order of axes: proved bit for bit
        names.py            words and numbers, solved for all at once; numbering.py: which number is which
        orders.py           how axes may move: conventions, then all that shapes allow; doubt.py: and what is doubtful
    toml(proposal, ...)     toml.py: rules over indices, with evidence; `-c` takes the file as it is

Nothing is guessed in silence: what was not proved by values or said by equal names and a convention is `assumed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from ..checkpoint import Checkpoint, Tensor
from ..dtypes import DTYPES
from ..errors import CkptError
from ..rules import passes
from . import names as by_name
from . import orders
from .doubt import Judge, voted
from .numbering import Unique
from .pairs import Named, Pair, Proposal, leaf, parent

HOPE = 0.5  # of the smaller side must find a partner
SHOWN = 10
ALIKE = 0.2  # likeness below which names say nothing
CLOSE = 0.3  # likeness that goes before equal dimensions
Group = tuple[Hashable, ...]  # kind, dimensions, content: what two tensors must share to be paired


def match(source: Checkpoint, target: Checkpoint, *, values: bool = True, workers: int = 1) -> Proposal:
    """Propose pairs; CkptError if the two have too little in common for any proposal to be of use."""
    made = _Match(source, target, workers)
    if values:
        made.by_values()
    made.by_names()
    return made.done()


class _Match:
    """The pairs as they are found."""

    def __init__(self, source: Checkpoint, target: Checkpoint, workers: int) -> None:
        self.notes: list[str] = []
        self.whole = source
        source = self._of_one_dtype(source, target)
        self.source, self.target, self.workers = source, target, workers
        self.a = {n: t for n, t in source.items() if not t.role}
        self.b = {n: t for n, t in target.items() if not t.role}
        self.judge = Judge(self.a)
        self.unique = Unique(*(by_name.items(side, dict.fromkeys(side)) for side in (self.a, self.b)))
        self.pairs: list[Pair] = []
        self.ties: list[tuple[str, ...]] = []
        self.copies: dict[str, str] = {}
        self.prints: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
        self.trained = False
        self.lone: set[str] = set()  # of the target: the only ones of their shape, as on the other side

    def _of_one_dtype(self, source: Checkpoint, target: Checkpoint) -> Checkpoint:
        kinds = [{t.dtype.name for t in c.values() if t.dtype.kind == "f" and not t.role} for c in (source, target)]
        if len(kinds[0]) == len(kinds[1]) == 1 and kinds[0] != kinds[1]:
            (other,) = kinds[1]
            self.notes.append(f"the target is {other}: convert with --dtype {other}")
            return passes.cast(source, DTYPES[other])
        return source

    # --- values ---------------------------------------------------------------------------------------------------

    def by_values(self) -> None:
        from .values import Values

        if not any(t.parts for t in self.b.values()) or not any(t.parts for t in self.a.values()):
            return
        search = Values(self.a, self.b, self.workers)
        found = search.run()
        self.pairs += found.pairs
        self.ties += found.ties
        self.copies.update(found.copies)
        self.notes += found.notes
        self.trained = found.trained
        if found.trained:
            self.prints = search.prints
        elif not found.pairs:
            self.notes.append("no values agree: the target was not made from this source, or it is not trained")

    # --- names ----------------------------------------------------------------------------------------------------

    def by_names(self) -> None:
        """Pair what values did not: what is alike first, of the same dimensions or as many elements."""
        for least in (CLOSE, 0.0):
            self._named(lambda t: tuple(sorted(n for n in t.shape if n != 1)), "", least)
            self._named(lambda t: t.count, "the dimensions differ", least)
        self.pairs = voted(self.pairs, self.a, self.b)
        self._tied()

    def _open(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        done_a = {n for p in self.pairs for n in p.sources} | set(self.copies)
        done_b = {n for p in self.pairs for n in p.targets} | {n for t in self.ties for n in t}
        return (
            {n: t for n, t in self.a.items() if n not in done_a},
            {n: t for n, t in self.b.items() if n not in done_b},
        )

    def _named(self, dims: Any, told: str, least: float) -> None:
        open_a, open_b = self._open()
        if told and not (open_a and open_b):
            return
        groups = [
            {n: self._group(n, t, side, dims) for n, t in tensors.items()}
            for side, tensors in enumerate((open_a, open_b))
        ]
        if not told and not self.trained:
            self._nearest(groups, (open_a, open_b))
        if not set(groups[0].values()) & set(groups[1].values()):
            return
        items_a, items_b = (by_name.items(g, g) for g in groups)
        proved = [p for p in self.pairs if p.sure or p.evidence == "equal"]
        homes = {(p.sources[0], p.targets[0]) for p in proved if len(p.sources) == len(p.targets) == 1}
        near = Counter((_home(x), _home(y)) for x, y in homes)
        found = by_name.match(items_a, items_b, dict.fromkeys(near, 1.0), self.unique)
        known = [p for p in proved if p.evidence == "values" and not told]  # modules whose other tensors are proved
        at_home = {(parent(p.sources[0]), parent(p.targets[0])) for p in known}
        counts = [Counter(g.values()) for g in groups]
        self.lone |= {n for n, g in groups[1].items() if counts[0][g] == counts[1][g] == 1 and not told}
        for named in self._sound([n for n in found if n.likeness >= least]):
            self._pair(named, told, (parent(named.a), parent(named.b)) in at_home)

    def _nearest(self, groups: list[dict[str, Group]], sides: tuple[dict[str, Tensor], dict[str, Tensor]]) -> None:
        """Let tensors whose dimensions the other side lacks be of the class they can be reshaped to: heads apart."""
        shapes = [{g: sides[k][n].shape for n, g in groups[k].items()} for k in (0, 1)]
        for k in (0, 1):
            other = shapes[1 - k]
            for group, shape in shapes[k].items():
                if group in other or len(shape) not in (2, 3):
                    continue
                fits = [g for g, s in other.items() if len(s) == len(shape) - 1 and g[0] == group[0]]
                fits = [g for g in fits if orders.simple(shape, other[g])]
                if fits:
                    groups[k].update({n: fits[0] for n, g in groups[k].items() if g == group})

    def _group(self, name: str, t: Tensor, side: int, dims: Any) -> Group:
        """What two tensors must share to be paired: in a trained target the content too."""
        return (t.dtype.kind, dims(t), self.prints[side].get(name) if self.trained else None)

    def _sound(self, found: list[Named]) -> Iterator[Named]:
        """Without kernels into which a batch normalisation was folded: copying does not make those."""
        statistics = [any(by_name.words(n)[-1:] == ("running_var",) for n in side) for side in (self.a, self.b)]
        if statistics != [True, False]:
            yield from found
            return
        biased = [{parent(n) for n in side if by_name.words(n)[-1:] == ("bias",)} for side in (self.a, self.b)]
        bad = [
            n for n in found
            if leaf(n.a).endswith("kernel") and parent(n.b) in biased[1] and parent(n.a) not in biased[0]
        ]  # fmt: skip
        homes = {parent(n.b) for n in bad}
        if bad:
            shown = ", ".join(n.b for n in bad[:SHOWN])
            self.notes.append(
                f"batch normalisation seems to be folded into {shown}: that changes values, which no rule does; "
                "unfold it in the target, or fold the source first"
            )
        yield from (n for n in found if parent(n.b) not in homes)

    def _pair(self, named: Named, told: str, at_home: bool) -> None:
        a, b = self.a[named.a], self.b[named.b]
        order, doubt = self.judge.order(a, b)
        if order is None:
            return
        if self._equal(named) and self.prints[0][named.a].constant:
            doubt = ""
        evidence = "equal" if self._equal(named) else "names" if named.likeness >= ALIKE else "shape"
        why = () if at_home else named.why
        if evidence == "shape":
            why = ("no other tensor has this shape" if named.b in self.lone else "others have this shape too",)
        kinds = f"{a.dtype} is to be {b.dtype}" if a.dtype != b.dtype else ""
        why = tuple(dict.fromkeys(w for w in (*why, told, doubt, kinds) if w))
        dims = sorted(n for n in b.shape if n != 1)
        rivals = tuple(r for r in named.rivals if why and sorted(n for n in self.b[r].shape if n != 1) == dims)
        self.pairs.append(Pair((named.a,), (named.b,), order, evidence, not why, why, rivals))

    def _equal(self, named: Named) -> bool:
        return self.trained and named.a in self.prints[0] and named.b in self.prints[1]

    # --- the end --------------------------------------------------------------------------------------------------

    def _tied(self) -> None:
        """Names of the target that share a tensor with one that is paired; copies in the source."""
        done = {n for p in self.pairs for n in p.targets}
        known = {n for t in self.ties for n in t}
        for group in self.target.ties:
            inside = [n for n in group if n in done]
            rest = [n for n in group if n not in done and n not in known]
            if inside and rest:
                self.ties.append((inside[0], *rest))
        used = {n for p in self.pairs for n in p.sources}
        for group in self.source.ties:
            inside = [n for n in group if n in used]
            self.copies.update({n: inside[0] for n in group if inside and n not in used})

    def done(self) -> Proposal:
        open_a, open_b = self._open()
        paired = sum(len(p.targets) for p in self.pairs)
        telling = [p for p in self.pairs if p.evidence != "shape" or p.targets[0] in self.lone]
        hope = HOPE * max(1, min(len(self.a), len(self.b)))
        if not self.trained and (paired < hope or 2 * len(telling) < len(self.pairs)):
            raise CkptError(self._hopeless(paired, len(telling)))
        if self.trained:
            self._contradicted(open_a, open_b)
        order = {n: k for k, n in enumerate(self.a)}
        pairs = sorted(self.pairs, key=lambda p: order[p.sources[0]])
        return Proposal(
            tuple(pairs), tuple(self.ties), self.copies, tuple(open_a), tuple(open_b), tuple(self.notes),
            tuple(n for n, t in self.whole.items() if not t.role),
        )  # fmt: skip

    def _hopeless(self, paired: int, telling: int) -> str:
        shapes = [Counter(tuple(sorted(t.shape)) for t in side.values()) for side in (self.a, self.b)]
        common = sum((shapes[0] & shapes[1]).values())
        return (
            f"these do not look like the same model: of {len(self.a)} tensors in the source and {len(self.b)} in the "
            f"target {common} have a shape in common and {paired} could be paired, {telling} of them by values, names "
            "or a shape of their own. Nothing was written"
        )

    def _contradicted(self, open_a: Mapping[str, Tensor], open_b: Mapping[str, Tensor]) -> None:
        """Say which tensors names would pair but values do not."""
        self.prints = ({}, {})
        groups = [{n: tuple(sorted(t.shape)) for n, t in side.items()} for side in (open_a, open_b)]
        if not set(groups[0].values()) & set(groups[1].values()):
            return
        found = by_name.match(by_name.items(groups[0], groups[0]), by_name.items(groups[1], groups[1]))
        lines = [f"{n.a} and {n.b} agree in name and shape, but not in values" for n in found if n.likeness > 0.4]
        more = [f"... and {len(lines) - SHOWN} more such pairs"] if len(lines) > SHOWN else []
        self.notes += lines[:SHOWN] + more


def _home(name: str) -> str:
    return " ".join(by_name.words(name)[:-1])


__all__ = ["Pair", "match"]
