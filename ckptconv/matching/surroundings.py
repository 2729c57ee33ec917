"""The evidence for a pair of modules besides their words: neighbours, blocks, and what they are named after.

batch_normalization_3 after conv2d_3      blocks.1.bn after blocks.1.conv      their neighbours are a pair
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .blocks import Aligned, Named, within
from .pairs import parent
from .units import Unit

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

BESIDE = 0.1  # weight of each neighbour that is paired with the neighbour
INSIDE = 0.4  # weight of the blocks that hold them: the same, or others
ROLE = 0.4  # weight of standing in the same blocks
PARENT = 0.2  # weight of the part of a module's siblings that are paired with the other's siblings
NAMED = 0.3  # weight of the module that a normalisation is named after or follows

Beside = Mapping[str, tuple[str, str]]  # of each home the homes before it and after it


def beside(many: Sequence[Unit]) -> Beside:
    """The neighbours of each module, before it and after it."""
    homes = ["", *(u.home for u in many), ""]
    return {u.home: (homes[k], homes[k + 2]) for k, u in enumerate(many)}


@dataclass(frozen=True)
class Near:
    """What is known of the surroundings of modules: pairs, neighbours on both sides, and the blocks that hold them."""

    pairs: Mapping[str, str]
    beside: tuple[Beside, Beside]
    blocks: Aligned
    named: tuple[Mapping[str, Named], Mapping[str, Named]]  # the modules that normalisations are named after
    rows: set[str]  # normalisations of the target in a row: their order means nothing

    def gains(self, a: Sequence[Unit], b: Sequence[Unit], held: Array | None = None) -> Array:
        """The evidence for each pair of two modules; `held` is what the blocks say, if that is known."""
        out = self.held(a, b) if held is None else held.copy()
        places = {u.home: c for c, u in enumerate(b)}
        near, named = self._neighbours(places)
        for r, u in enumerate(a):
            for at, x in enumerate(self.beside[0][u.home]):
                if (c := near[at].get(self.pairs.get(x, ""), -1)) >= 0:
                    out[r, c] += BESIDE
            mine = self.named[0].get(u.home)
            goals = {self.pairs.get(x, "") for x in mine.homes} if mine else set()
            found = {c for y in goals for at, c in named.get(y, ()) if mine and (mine.before, mine.after, True)[at]}
            for c in found:
                out[r, c] += NAMED * (mine.share if mine else 0)
        return out + PARENT * self._siblings(a, b)

    def _siblings(self, a: Sequence[Unit], b: Sequence[Unit]) -> Array:
        """The share of the pairs of two parents that are pairs of both, 0 to 1; the top says nothing."""
        import numpy as np

        places: tuple[dict[str, list[int]], dict[str, list[int]]] = (defaultdict(list), defaultdict(list))
        for many, at in zip((a, b), places, strict=True):
            for k, u in enumerate(many):
                at[parent(u.home)].append(k)
        out = np.zeros((len(a), len(b)))
        for x, rows in places[0].items():
            for y, share in self.shares.get(x, ()):
                if y in places[1]:
                    out[np.ix_(rows, places[1][y])] = share
        return out

    @cached_property
    def shares(self) -> Mapping[str, Sequence[tuple[str, float]]]:
        """For each parent those whose modules are paired with its own, and the share of these pairs in the larger."""
        counts = Counter((parent(x), parent(y)) for x, y in self.pairs.items())
        of_a, of_b = Counter[str](), Counter[str]()
        for (x, y), n in counts.items():
            of_a[x] += n
            of_b[y] += n
        out: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for (x, y), n in counts.items():
            if x and y:
                out[x].append((y, n / max(of_a[x], of_b[y])))
        return out

    def _neighbours(self, places: Mapping[str, int]) -> tuple[list[dict[str, int]], dict[str, list[tuple[int, int]]]]:
        """The modules that stand behind and before each home; and those to which it gives a name, and how.

        How is 0 if they stand before it, 1 if behind it, 2 if their names say so.
        """
        near: list[dict[str, int]] = [{}, {}]
        named: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for home, c in places.items():
            for at, y in enumerate(self.beside[1][home]):
                if y:
                    near[at][y] = c
                    if home not in self.rows:
                        named[y].append((1 - at, c))
            for y in self.named[1][home].homes if home in self.named[1] else ():
                named[y].append((2, c))
        return near, named

    def held(self, one: Sequence[Unit], other: Sequence[Unit]) -> Array:
        """What the blocks say: those that go together, and the names inside them; the same for all pairs."""
        import numpy as np

        a, b = [u.home for u in one], [u.home for u in other]
        chains: tuple[dict[tuple[str, ...], int], dict[tuple[str, ...], int]] = ({}, {})
        known = self.blocks.blocks, self.blocks.back
        at = [
            np.array([chain.setdefault(tuple(p for p in within(home) if p in found), len(chain)) for home in homes])
            for homes, chain, found in zip((a, b), chains, known, strict=True)
        ]
        table = np.array([[self.blocks.agree(x, y) for y in chains[1]] for x in chains[0]])
        out = np.asarray(INSIDE * table[np.ix_(*at)], "f8")
        places = {home: c for c, home in enumerate(b)}
        for r, home in enumerate(a):
            for x, share in self.blocks.inside.get(home, {}).items():
                if x in places:
                    out[r, places[x]] += ROLE * share
        return out
