"""What the inputs of a layer are, by the config of the model: torch has the channels of images first, and flattens so.

    flat_     a flattened image, whose elements Keras has as h w c and torch as c h w
    mixed_    in part one, one whose axes were permuted, or other axes than the kernel's: only a rule for it knows
    maybe_    perhaps one: a layer that is not known here stands between
    shaped_   anything, but its outputs are shaped into an image

These prefix the class of a layer in `details["kinds"]`: flat_dense. An image comes out of a convolution, a pooling or
an input of four axes; what has its features last in Keras (of an Embedding, an LSTM, an input of rows) has them last in
torch, too, and is flattened alike. `behind` goes through the layers in the order in which they feed each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from ...checkpoint.details import prefix
from .flow import BEHIND, FIRST, FRAMES, IMAGE, PIXELS, UNSURE, Flow, Image, passed_on, taken_as, target_axes
from .layers import (
    APPENDING,
    ELEMENTWISE,
    IMAGING,
    MERGING,
    Call,
    built,
    calls_of,
    effect,
    kind_of_row,
    parents_of,
)

MAX_MODELS = 32  # within each other
MAX_ROWS = 32  # dense layers whose outputs become an image together
STATES = 4  # that a recurrent layer gives at most, beside its outputs
PASSES = 4  # over the layers of a model: what is called again may be fed by what stands behind it

Found = dict[int, tuple[str, Image]]  # by the identity of a layer's row
Known = Mapping[int, tuple[str, Image]]


def inherited(above: str, kind: str) -> str:
    """The class of an object in a layer of the class `above`: what that takes, it takes. kind: '' if not known."""
    begin = prefix(above)
    if begin not in BEHIND or prefix(kind):
        return kind
    return begin + kind if kind else ("maybe_" if begin == "maybe_" else "mixed_") + "layer"


def behind(config: Any) -> Known:
    """The layers of a model's config, and of models in it, whose inputs are such: {id(row): (prefix, image)}."""
    found: Found = {}
    _model(config, [], found, 0)
    return {row: what for row, what in found.items() if what[0]}


def _model(config: Any, given: Sequence[Flow], found: Found, depth: int) -> list[Flow]:
    """What the outputs of a model are; `given` is what it is called with, if another model calls it."""
    inner = config.get("config") if isinstance(config, dict) else None
    layers = inner.get("layers") if isinstance(inner, dict) else None
    if not isinstance(layers, list) or not isinstance(inner, dict) or depth > MAX_MODELS:
        return [Flow("maybe_" if any(f.form in BEHIND for f in given) else UNSURE)]
    rows = [r for r in layers if isinstance(r, dict) and kind_of_row(r)]
    outputs = list(parents_of(inner.get("output_layers")))
    if _is_chain(config, rows, outputs):
        return _chain(rows, given, found, depth)
    called = [p[0] for p, _ in parents_of(inner.get("input_layers"))]
    calls = [(row, node, call) for row in rows for node, call in enumerate(calls_of(row))]
    flows = Flows(Counter(row["config"]["name"] for row, _, _ in calls))
    for i, name in enumerate(called if given else ()):
        flows[name, 0] = [_agreed(given[i :: len(called)])]
    for last in (*[False] * (PASSES - 1), True):
        waiting = []
        for row, node, call in calls:
            if not last and not all(map(flows.has, call.parents)):
                waiting.append((row, node, call))
                continue
            name = row["config"]["name"]
            flows[name, node] = _given_by(row, flows.taken(call) or flows.get((name, node), []), call, found, depth)
        calls = waiting
    return [flows.of(p) for p, _ in outputs] or [Flow(UNSURE)]


class Flows(dict[tuple[str, int], list[Flow]]):
    """What the uses of the layers of a model give, by name and number of the use."""

    def __init__(self, uses: Mapping[str, int]) -> None:
        super().__init__()
        self.uses = uses

    def key(self, parent: tuple[str, int, int]) -> tuple[str, int]:
        """Of a layer that is used once, whatever the number: Keras 2 counts uses outside of this model as well."""
        return parent[0], parent[1] if self.uses.get(parent[0], 0) > 1 else 0

    def has(self, parent: tuple[str, int, int]) -> bool:
        return self.key(parent) in self or parent[0] not in self.uses

    def of(self, parent: tuple[str, int, int]) -> Flow:
        """One output; an image if there is no such layer in the config, as of inputs that it does not list."""
        several = self.get(self.key(parent), [Flow(UNSURE if parent[0] in self.uses else IMAGE)])
        return several[parent[2]] if 0 <= parent[2] < len(several) else Flow(UNSURE)

    def taken(self, call: Call) -> list[Flow]:
        """What a use takes; of all uses of a model, which may take what it gave before, what is known."""
        known = [p for p in call.parents if self.has(p)] if call.all else []
        return list(map(self.of, known or call.parents))


def _is_chain(config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], outputs: Sequence[object]) -> bool:
    """Whether the input of each layer is the output of the one before: Sequential, or a class that derives from it."""
    if config.get("class_name") in ("Sequential", "Functional", "Model"):
        return bool(config["class_name"] == "Sequential")
    return not outputs and not any(row.get("inbound_nodes") for row in rows)


def _chain(rows: Sequence[dict[str, Any]], given: Sequence[Flow], found: Found, depth: int) -> list[Flow]:
    last = [_agreed(given)] if given else []
    for row in rows:
        last = _given_by(row, last, Call([], built(row)), found, depth)
    return last or [Flow(IMAGE)]


def _given_by(row: dict[str, Any], taken: Sequence[Flow], call: Call, found: Found, depth: int) -> list[Flow]:
    """What a layer, or a model, gives for what it takes; nothing of that is known at the beginning of a model."""
    own, kind = row["config"], kind_of_row(row)
    if isinstance(own.get("layers"), list):
        return _model(row, taken, found, depth + 1)
    before = (_agreed if call.all or kind == "concatenate" else _joined)(taken) if taken else _entered(own)
    alike = len(taken) > 1 and len({f._replace(rows=()) for f in taken}) == 1
    if alike and kind in (MERGING | ELEMENTWISE) - APPENDING:
        return [before]
    made = _layer(row, kind, before, call.shape, found, merges=len(taken) > 1, depth=depth)
    return [made, *[Flow("")] * STATES] if effect(kind) == "own" else [made]


def _layer(row: dict[str, Any], kind: str, before: Flow, shape: Any, found: Found, *, merges: bool, depth: int) -> Flow:
    """What one layer gives, and what its prefix is. shape: of its input, if that is known."""
    own, inner = row["config"], row["config"].get("layer")
    several = kind == "time_distributed"
    if (several or kind == "spectral_normalization") and isinstance(inner, dict) and kind_of_row(inner):
        kind, own = kind_of_row(inner), inner["config"]
        shape = shape[1:] if several and isinstance(shape, list) else shape
        before = before._replace(form=IMAGE, image=None) if several and before.form == FRAMES else before
    text = taken_as(kind, own, before, shape)
    found[id(row)] = _used(found.get(id(row)), (text, before.image if text else None))
    if before.rows and _is_shaped(kind, own, before):
        found.update({r: _shaped(*found[r]) for r in before.rows})
    if isinstance(own.get("layers"), list):
        within = {r: found[r] for r in before.rows}
        made = _joined(_model(inner, [before], within, depth + 1))
        found.update({r: within.pop(r) for r in before.rows})
        if any(what for what, _ in within.values()):  # names do not tell which layer of a model within a layer this is
            found[id(row)] = "maybe_", None
    else:
        made = passed_on(kind, own, before, shape, merges=merges)
    if several and made.form in (IMAGE, FIRST):
        made = Flow(FRAMES)
    elif several or kind == "repeat_vector":
        made = made._replace(steps=made.form in BEHIND)
    return _followed(made, kind, id(row), own, before)


def _shaped(text: str, image: Image) -> tuple[str, Image]:
    """What a layer is, if its outputs become an image as well."""
    return {"": "shaped_", "flat_": "flat_shaped_"}.get(text, text), image


def _used(before: tuple[str, Image] | None, now: tuple[str, Image]) -> tuple[str, Image]:
    """What the inputs of a layer are that is used again."""
    if before is None or (before[0].removesuffix("shaped_"), before[1]) == now:
        return before or now
    return ("maybe_" if {before[0], now[0]} <= {"", "maybe_", "shaped_"} else "mixed_"), None


def _followed(made: Flow, kind: str, row: int, own: Mapping[str, Any], before: Flow) -> Flow:
    """The flow with the rows of the dense layers that it comes from."""
    if made.form not in ("", PIXELS) or (kind != "dense" and not before.rows):
        return made._replace(rows=(), reshaped=False)
    if kind == "dense":
        return made._replace(rows=(row,), reshaped=False)
    if kind == "reshape":
        return made._replace(rows=before.rows, reshaped=1 not in target_axes(own))
    kept = effect(kind) in ("same", "merged", "") and kind != "dot"
    return made._replace(rows=before.rows if kept else (), reshaped=kept and before.reshaped)


def _is_shaped(kind: str, own: Mapping[str, Any], before: Flow) -> bool:
    """Whether it makes an image of several pixels and channels of what a dense layer gives."""
    if kind == "reshape" and (axes := target_axes(own)):
        return len(axes) > 2 and axes[-1] != 1 and axes[:-1] != [1] * (len(axes) - 1)
    return before.reshaped and IMAGING.fullmatch(kind) is not None


def _entered(own: Mapping[str, Any]) -> Flow:
    """What comes in from outside: an image if it has four axes, or if nobody says."""
    shape = own.get("batch_shape") or own.get("batch_input_shape")
    return Flow("" if isinstance(shape, list) and len(shape) < 4 else IMAGE)


def _joined(several: Iterable[Flow]) -> Flow:
    """What a layer takes that takes several."""
    several = list(several)
    shaped = [f for f in several if f.reshaped] or several
    rows = tuple(islice(dict.fromkeys(row for f in shaped for row in f.rows), MAX_ROWS))
    seen = {f._replace(rows=()) for f in several}
    if len(seen) == 1:
        return several[0]._replace(rows=rows)
    if any(f.form in BEHIND for f in seen):
        order = "mixed_" if any(f.form in ("flat_", "mixed_") for f in seen) else "maybe_"
        return Flow(order, steps=any(f.steps for f in seen))
    form = max((f.form for f in seen), default="")
    return Flow(form) if form else Flow("", rows=rows, reshaped=any(f.reshaped for f in seen))


def _agreed(several: Iterable[Flow]) -> Flow:
    """What is taken at one place, in several uses or beside each other: not known if they differ."""
    one = _joined(several)
    return one if one.form in BEHIND or len({f.form for f in several}) == 1 else Flow(UNSURE)


__all__ = ["behind", "inherited"]
