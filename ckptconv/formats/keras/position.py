"""Positions in a legacy file of Keras: the layers to write, and whether a file lists them as Keras loads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...checkpoint import Checkpoint
from ...errors import Unrepresentable, VerifyError
from ...messages import listing
from . import order
from .naming import OPTIMIZER
from .order import Order
from .paths import of_names

GIVEN = ("", "memory")  # a caller's dict, in the caller's order
KEPT = ("npz", "torch", "torch-legacy", "torchscript", "pickle")  # these keep the order of saving; all others sort


def _is_sorted(names: Sequence[str]) -> bool:
    """Whether names are sorted: as a whole, or group by group."""
    return names in (sorted(names), sorted(names, key=lambda name: name.split("/")))


def layered(checkpoint: Checkpoint) -> Order:
    """The layers that the source listed, if they have the same tensors; otherwise those derived from the names."""
    weights = {n: t for n, t in checkpoint.items() if not n.startswith(OPTIMIZER + "/")}
    found = order.known(checkpoint)
    if found is None:
        names = list(weights)
        integer = {n for n, t in weights.items() if t.dtype.kind not in "fc"}
        shapes = {n: t.shape for n, t in weights.items()}
        given = checkpoint.format in GIVEN
        ordered = given or (checkpoint.format in KEPT and not _is_sorted(names))
        return of_names(names, shapes, integer.__contains__, ordered=ordered, given=given)
    listed = set(found.names())
    if extra := [n for n in weights if n not in listed]:
        raise Unrepresentable(
            "these belong to no layer, and a legacy file has no place for them; weights_only=True leaves them out:\n"
            + listing(extra)
        )
    return found


def misplaced(expected: Checkpoint, got: Checkpoint) -> Iterator[str]:
    """Weights of a legacy file that Keras would load into the wrong variables, one line for each layer.

    expected: the source of the file. If the order of its layers is guessed, each layer is compared by itself.
    """
    planned, found = layered(expected), order.known(got)
    if found is None:
        return
    rows = [([n for n, _ in weights], layer) for layer, weights in found.layers if weights]
    due = [[n for n, _ in weights] for _, weights in planned.layers if weights]
    if planned.guess:
        by_set = {frozenset(names): names for names in due}
        due = [by_set.get(frozenset(names), names) for names, _ in rows]
    for i, (names, layer) in enumerate(rows):
        wanted = due[i] if i < len(due) else []
        if names != wanted:
            yield f"{layer} lists {', '.join(names)}, where Keras takes {', '.join(wanted) or 'nothing'}"


def refuse_misplaced(expected: Checkpoint, got: Checkpoint, url: str) -> None:
    """Raise VerifyError if Keras, which loads the file `got` by position, would confuse weights."""
    if wrong := list(misplaced(expected, got)):
        text = f"{len(wrong)} layers list their weights in another order, and Keras loads by position"
        raise VerifyError(f"{text}:\n{listing(wrong)}", url=url)
