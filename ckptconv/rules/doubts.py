"""What a rule cannot know of the tensors that it takes. A note says so, and only where it applies.

doubts = ["class", "flatten"]          in a [[rule]]; the keys of DOUBTS
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..checkpoint import Checkpoint, Note
from .assign import Assignment, input_of, layer_kind

HEADS = {"einsum", "query", "key", "value", "output", "attention_output"}  # (_dense) with an axis of heads
PLAIN = {"conv1d", "conv2d", "conv3d", "Conv"}  # default names of layers for which the rules of convolutions are right


def notes(checkpoint: Checkpoint, found: Assignment) -> Iterator[Note]:
    """The doubts of rules about tensors that they took."""
    taken: dict[str, list[str]] = {}
    for group in found.groups:
        for doubt in group.rule.doubts:
            taken.setdefault(doubt, []).extend(group.names)
    for doubt, names in taken.items():
        text, applies = DOUBTS[doubt]
        after = _after_images(checkpoint) if doubt == "flatten" else ()
        if doubtful := tuple(n for n in names if applies(checkpoint, n) and (doubt != "flatten" or n in after)):
            yield Note("assumed", text, doubtful)


def _after_images(checkpoint: Checkpoint) -> set[str]:
    """Matrices whose rows are a multiple of the channels of a convolution, but the output of no layer before them."""
    shapes = {n: t.shape for n, t in checkpoint.tensors.items() if not t.role}
    channels = {s[-1] for n, s in shapes.items() if len(s) in (4, 5) or (len(s) == 3 and _is_conv1d(checkpoint, n))}
    made = channels | {s[-1] for n, s in shapes.items() if n.endswith("embeddings") and s}
    made |= {k * s[0] for n, s in shapes.items() if n.endswith("recurrent_kernel") and s for k in (1, 2)}
    out = set()
    for n, s in shapes.items():
        if len(s) == 2 and n.endswith(("kernel", "_W", "_W_1", "_W_i", "_W_z")):
            if s[0] not in made and any(c > 1 and s[0] % c == 0 for c in channels):
                out.add(n)
            made.add(s[1])
    return out


def _is_conv1d(checkpoint: Checkpoint, name: str) -> bool:
    """Of a tensor of three axes: also if no name tells, unless it is attention's or an EinsumDense's."""
    kind, leaf = layer_kind(checkpoint, name), name.rpartition("/")[2]
    heads = kind.strip("_").removesuffix("_dense") in HEADS
    return kind == "conv1d" or (leaf in ("kernel", "pointwise_kernel") and not heads)


def _into_image(checkpoint: Checkpoint, name: str) -> bool:
    taken = checkpoint.details.get("inputs", {}).get(name)
    return bool(taken and taken.into_image)


# The text of a note, and whether it is right for a tensor that a rule takes.
DOUBTS: dict[str, tuple[str, Callable[[Checkpoint, str], bool]]] = {
    "class": (
        "taken for a plain convolution: neither the file nor the layer's name tells whether it is a transposed or a "
        "depthwise one",
        lambda c, n: not c.details.get("kinds", {}).get(n) and layer_kind(c, n) not in PLAIN,
    ),
    "flatten": (
        "whether this layer follows a Flatten of images is not known. If it does, its inputs are now in the wrong "
        "order for torch, and so are those of a normalisation between them: convert the .keras file of the model, or "
        "use the rules of `ckptconv match SRC MODULE`",
        lambda c, n: not input_of(c, n) and not n.endswith("recurrent_kernel"),
    ),
    "unknown": (
        "follows an image and a layer whose effect on it is not known; if it takes a flattened image, torch has its "
        "features in another order: a rule with the layout '(h w c) -> (c h w)'",
        lambda c, n: input_of(c, n) == "unknown",
    ),
    "into_image": (
        "its outputs are shaped into an image: if the module shapes them into (c, h, w), it needs them in another "
        "order, and so do a bias and a normalisation between them: a rule with the layout 'i (h w c) -> (c h w) i'",
        _into_image,
    ),
    "equation": (
        "taken for an EinsumDense of inputs times kernel, abc,cd->abd: the file does not tell its equation",
        lambda c, n: not input_of(c, n) and layer_kind(c, n).startswith("einsum_dense"),
    ),
}
