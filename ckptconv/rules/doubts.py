"""What a rule cannot know of the tensors that it takes. The note says so, and only where it applies.

doubts = { class = "TEXT", flatten = "TEXT" }          in a [[rule]]; TEXT is the note

class      neither the file nor a default name (conv2d_transpose_3) tells the layer's class
flatten    the rows of a dense layer can be those of flattened images, and no config says whether they are
unsure     the config says that they can be: a layer that is not known stands between
shaped     the config says that its outputs become an image
equation   an EinsumDense, of which no config tells the equation
images     several that take images of one given size, while the file does not tell theirs
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ..checkpoint import Checkpoint, Note
from ..checkpoint.details import bare, prefixes
from .assign import Assignment, layer_kind
from .converter import Converter

MAX_CHANNELS = 300  # sizes of convolutions that are compared with: a model has a few dozen
HEADS = {"einsum", "query", "key", "value", "output", "attention_output"}  # (_dense) with an axis of heads
PLAIN = {"conv1d", "conv2d", "conv3d", "Conv"}  # default names of layers for which the rules of convolutions are right


def notes(converter: Converter, checkpoint: Checkpoint, found: Assignment) -> Iterator[Note]:
    """The doubts of rules about tensors that they took."""
    taken: dict[tuple[str, str], list[str]] = {}
    for group in found.groups:
        for doubt, text in converter.rules[group.rule].doubts.items():
            taken.setdefault((doubt, text), []).extend(n for members in group.members for n in members.values())
    for (doubt, text), names in taken.items():
        if doubtful := tuple(DOUBTS[doubt](checkpoint, names)):
            yield Note("assumed", text, doubtful)


def _unclassed(checkpoint: Checkpoint, names: Sequence[str]) -> Iterable[str]:
    told = checkpoint.details.get("kinds", {})
    return (n for n in names if not told.get(n) and layer_kind(checkpoint, n) not in PLAIN)


def _flattened(checkpoint: Checkpoint, names: Sequence[str]) -> Iterable[str]:
    """Matrices whose rows are a multiple of the channels of a convolution, but the output of no layer before them."""
    listed = checkpoint.details.get("images", {})
    channels = {
        t.shape[-1]
        for n, t in checkpoint.tensors.items()
        if not t.role and (len(t.shape) in (4, 5) or (len(t.shape) == 3 and _is_conv1d(checkpoint, n)))
    }
    matrices = _matrices(checkpoint, names)
    several = sorted(c for c in channels if c > 1)[:MAX_CHANNELS]
    suspects = {n for n, (rows, _) in matrices.items() if n not in listed and any(not rows % c for c in several)}
    made = {size for _, outputs in matrices.values() for size in outputs}
    known = Sizes(matrices.values())
    known.feed(channels, *(outputs for n, (_, outputs) in matrices.items() if n in listed))
    known.feed(t.shape[-1] for n, t in checkpoint.tensors.items() if n.endswith("embeddings") and t.shape)
    known.feed(rows for n, (rows, _) in matrices.items() if n not in suspects and rows not in made)
    found = set()
    for circular in (False, True):  # an encoder's first layer may have as many inputs as its decoder's last has outputs
        for n, (rows, outputs) in matrices.items():
            if n in suspects and rows not in known and (circular or rows not in made):
                found.add(n)
                known.feed(outputs)
    return (n for n in names if n in found)


def _is_conv1d(checkpoint: Checkpoint, name: str) -> bool:
    """Of a tensor of three axes: also if no name tells, unless it is attention's or an EinsumDense's."""
    kind, leaf = bare(layer_kind(checkpoint, name)), name.rpartition("/")[2]
    heads = kind.strip("_").removesuffix("_dense") in HEADS
    return kind == "conv1d" or (leaf in ("kernel", "pointwise_kernel") and not heads)


def _matrices(checkpoint: Checkpoint, names: Sequence[str]) -> dict[str, tuple[int, tuple[int, ...]]]:
    """The rows of each matrix that multiplies inputs, and how many features its layer may give, in the file's order."""
    found: dict[str, tuple[int, tuple[int, ...]]] = {}
    chosen = set(names)
    for n, t in checkpoint.tensors.items():
        if len(t.shape) != 2 or t.role or n.endswith("recurrent_kernel") or not (n in chosen or n.endswith("kernel")):
            continue
        state = checkpoint.tensors.get(f"{n.removesuffix('kernel')}recurrent_kernel")
        units = state.shape[0] if state and state.shape else 0
        found[n] = t.shape[0], (units, 2 * units) if units else (t.shape[1],)  # both directions, one behind the other
    return found


class Sizes(set[int]):
    """How many features the layers give that are fed by what is known, each by its rows and its outputs."""

    def __init__(self, layers: Iterable[tuple[int, Sequence[int]]]) -> None:
        super().__init__()
        self._waiting: dict[int, list[int]] = {}
        for rows, outputs in layers:
            self._waiting.setdefault(rows, []).extend(outputs)

    def feed(self, *several: Iterable[int]) -> None:
        left = [size for sizes in several for size in sizes]
        while left:
            if (size := left.pop()) not in self:
                self.add(size)
                left += self._waiting.pop(size, ())


def _of_kind(begin: str) -> Callable[[Checkpoint, Sequence[str]], Iterable[str]]:
    """Of layers whose class begins so, what multiplies their inputs."""

    def of(found: Checkpoint, names: Sequence[str]) -> Iterator[str]:
        for name in names:
            if begin in prefixes(layer_kind(found, name)) and not name.endswith("recurrent_kernel"):
                yield name

    return of


def _untold(checkpoint: Checkpoint, names: Sequence[str]) -> Iterable[str]:
    listed = checkpoint.details.get("images", {})
    return (n for n in names if n not in listed and bare(layer_kind(checkpoint, n)).startswith("einsum_dense"))


def _of_one_size(checkpoint: Checkpoint, names: Sequence[str]) -> Iterable[str]:
    rest = [n for n in names if not checkpoint.details.get("images", {}).get(n)]
    return rest if len(rest) > 1 else ()


DOUBTS: dict[str, Callable[[Checkpoint, Sequence[str]], Iterable[str]]] = {
    "class": _unclassed, "flatten": _flattened, "unsure": _of_kind("maybe_"), "shaped": _of_kind("shaped_"),
    "equation": _untold, "images": _of_one_size,
}  # fmt: skip

__all__ = ["DOUBTS", "notes"]
