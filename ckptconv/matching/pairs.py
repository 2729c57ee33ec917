"""The two sides of a match, and its result: pairs of tensors, with the evidence for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from ..checkpoint import Checkpoint, Tensor
from ..checkpoint.details import LayerInput
from .orders.axes import Order


@dataclass(frozen=True)
class Proposal:
    """The result of a match: pairs, ties of the target, and tensors without a counterpart on either side."""

    pairs: tuple[Pair, ...]
    ties: tuple[tuple[str, ...], ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    source_only: tuple[str, ...] = ()
    target_only: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    every: tuple[str, ...] = ()  # all names of the source; a rule may take only its own
    doubt: str = ""  # why the two may not be one model

    @property
    def assumed(self) -> list[Pair]:
        """The pairs that are not proved by values, or by equal names and a convention."""
        return [p for p in self.pairs if not p.sure]

    @property
    def doubtful(self) -> list[Pair]:
        """The assumed pairs for which another pair or order is likely."""
        return [p for p in self.pairs if p.real and not p.sure]

    def review(self) -> dict[str, list[str]]:
        """Return the target tensors to look at by reason, the most frequent reason first."""
        whys: dict[str, list[str]] = {}
        for p in self.doubtful:
            whys.setdefault("; ".join(p.why), []).extend((*p.targets, *dict(p.fills)))
        return dict(sorted(whys.items(), key=lambda row: -len(row[1])))

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                "from": list(p.sources), "to": list(p.targets), "layout": p.order.text, "sizes": dict(p.order.sizes),
                "evidence": p.evidence, "assumed": not p.sure, "doubtful": p.real, "why": list(p.why),
                "candidates": list(p.rivals), "fill": {n: list(v) for n, v in p.fills},
                **({p.length.word: p.length._asdict()} if p.length else {}),
                **({"flip": p.order.flip} if p.order.flip else {}),
                **({"op": "sum"} if p.adds else {}),
            }
            for p in self.pairs
        ]  # fmt: skip
        return {
            "pairs": rows, "ties": [list(t) for t in self.ties], "copies": dict(self.copies),
            "source_only": list(self.source_only), "target_only": list(self.target_only), "notes": list(self.notes),
        }  # fmt: skip


class Length(NamedTuple):
    """An axis that has another length in the source than in the target."""

    axis: int
    before: int
    to: int

    @property
    def word(self) -> str:
        return "pad" if self.to > self.before else "crop"

    @property
    def text(self) -> str:
        """Format it as a key of a rule."""
        value = ", value = 0" if self.word == "pad" else ""
        return f"{self.word} = {{ axis = {self.axis}, from = {self.before}, to = {self.to}{value} }}"


LISTED = 5  # candidates named for an ambiguous tensor


class Pair(NamedTuple):
    """Source tensors and the target tensors made of them. `why` says what was assumed; if nothing, the pair is `sure`.

    `rivals` are other candidates. `evidence` is values (bit for bit), equal (other tensors have the same values, so
    names decide), names, or shape. `real`: another pair or order is likely, so a person should look and a check tries
    it. `fills` are targets without a source tensor, with the numbers that they must hold, one for each of equal blocks.
    `length` is an axis of the target that is cropped or padded. `each` is the number of names per template and side in
    a stack, such as 1 source and 12 targets, counted by the axis `e`. `adds`: the sources are added first, and the
    order is that of their sum.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    order: Order = Order()
    evidence: str = "names"
    sure: bool = True
    why: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    real: bool = False
    fills: tuple[tuple[str, tuple[float, ...]], ...] = ()
    length: Length | None = None
    each: tuple[int, int] | None = None
    adds: bool = False

    @property
    def inverse(self) -> Pair:
        """Reverse the pair; constants that were filled in become terms of a sum."""
        targets = (*self.targets, *(n for n, _ in self.fills))
        each = self.each and self.each[::-1]
        return self._replace(
            sources=targets, targets=self.sources, order=self.order.inverse, each=each, fills=(), adds=bool(self.fills)
        )


class Alternative(NamedTuple):
    """A change to try: its description, and new pairs by their positions in the proposal."""

    text: str
    pairs: Mapping[int, Pair]


WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
COPY = re.compile(r":[0-9]+$")  # TensorFlow's
DIGITS = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]{0,8})(?![0-9])")


@lru_cache(maxsize=2**16)
def leaf(name: str) -> str:
    """Return the last segment, without TensorFlow's `:0` and Keras' `_` of private variables."""
    bare = COPY.sub("", name)
    return bare[max(bare.rfind("/"), bare.rfind(".")) + 1 :].lower().lstrip("_")


@lru_cache(maxsize=2**16)
def parent(name: str) -> str:
    """Return all but the last segment."""
    cut = max(name.rfind("/"), name.rfind("."))
    return name[: max(cut, 0)]


@lru_cache(maxsize=2**16)
def folded(name: str) -> tuple[str, tuple[int, ...]]:
    """Split a name into its text and its integers; `007` is text, not a number."""
    return DIGITS.sub("\0", name), tuple(map(int, DIGITS.findall(name)))


class Print(NamedTuple):
    """A fingerprint of a tensor's content in any order; a constant (zeros, ones) proves nothing."""

    kind: str
    elements: int
    total: int
    constant: bool


class Bundle(NamedTuple):
    """Tensors of one shape that are matched as one: stacked along a new first axis, or concatenated."""

    names: tuple[str, ...]
    kind: str  # stacked, fused or gates
    shape: tuple[int, ...]  # of each
    layers: int = 1  # names per fused part: query 0, query 1, ..., key 0, ...
    counted: bool = False  # the parts of a fusion are numbered: experts.0, experts.1, ...


@dataclass(frozen=True, eq=False)
class Side:
    """Weights by name, in the order of the checkpoint.

    `kinds` has the class of a tensor's layer in snake case, if the file or the module gives it; `inputs` the input kind
    of that layer, from the config of a Keras model; `prints` the fingerprints of contents, if these may be compared;
    `bundles` the tensors of a name that is not in the checkpoint (see bundles.py).
    """

    tensors: Mapping[str, Tensor]
    kinds: Mapping[str, str] = field(default_factory=dict)
    prints: Mapping[str, Print] = field(default_factory=dict)
    bundles: Mapping[str, Bundle] = field(default_factory=dict)
    inputs: Mapping[str, LayerInput] = field(default_factory=dict)
    flattens: bool = False  # the model flattens an image somewhere; known without a config
    flax: bool = False  # also its transposed kernels have the inputs before the outputs
    single: bool = False  # each tensor is a module by itself: leftovers of modules

    def without(self, names: Iterable[str]) -> Side:
        """Remove tensors from the side."""
        gone = self.tensors.keys() & names
        if not gone:
            return self
        return replace(self, tensors={n: t for n, t in self.tensors.items() if n not in gone})

    def named(self, names: Iterable[str]) -> list[str]:
        """Replace the names of bundles by those in the checkpoint."""
        return [m for n in names for m in (self.bundles[n].names if n in self.bundles else (n,))]


def weights(checkpoint: Checkpoint, *, tied: bool = False) -> Side:
    """Make the side of a checkpoint: only weights, and one name of each tie, or all if `tied`."""
    again = {n for group in checkpoint.ties for n in group[1:] if not tied}
    tensors = {n: t for n, t in checkpoint.items() if not t.role and n not in again}
    known = checkpoint.details
    names = known.get("names", {})
    layers = " ".join([*names, *names.values(), *(str(row[0]) for row in known.get("layers", ()))]).lower()
    inputs = known.get("inputs", {})
    # configs of these name all layers
    whole = names.get("") in ("functional", "sequential")
    if whole and "global" in layers and "flat" not in layers and "reshape" not in layers:
        inputs = dict.fromkeys(tensors, LayerInput("plain")) | inputs
    flattens = not inputs and "flat" in layers
    flax = checkpoint.format in JAX or (checkpoint.format == "memory" and any("/" in n for n in tensors))
    return Side(tensors, known.get("kinds", {}), inputs=inputs, flattens=flattens, flax=flax)


JAX = {"flax", "orbax"}  # formats
Sides = tuple[Side, Side]


def left(sides: Sides, pairs: Iterable[Pair], done: tuple[Iterable[str], Iterable[str]] = ((), ())) -> Sides:
    """Remove tensors that are in pairs or in `done`."""
    used = {n for p in pairs for n in p.sources}
    made = {n for p in pairs for n in (*p.targets, *(f for f, _ in p.fills))}
    return sides[0].without(used.union(done[0])), sides[1].without(made.union(done[1]))
