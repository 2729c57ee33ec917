"""What names say about axes: a kernel of TensorFlow has its inputs before its outputs, a weight of torch behind them.

kernel [3, 3, 8, 16] -> weight [16, 8, 3, 3]      h w i o -> o i h w
kernel [7, 1, 8, 16] -> weight [16, 8, 7]         h 1 i o -> o i h
depthwise_kernel [3, 3, 8, 2] -> [16, 1, 3, 3]    h w c m -> (c m) 1 h w
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations

from .orders import DEPTHWISE, KERNELS, Order, Shape, fits, merged

# One matrix for all heads: into them, out of them, and into them where the heads come first.
HEADS = ("a b c -> (b c) a", "a b c -> c (a b)", "a b c -> (a c) b")
KERNELS_TOO = (
    "weights", "depthwise_weights", "pointwise_weights", "w", "wi", "wo", "wi_0", "wi_1", "filter", "filters", "linear",
)  # fmt: skip


def is_kernel(leaf: str) -> bool:
    """Whether a variable has TensorFlow's order of axes: inputs before outputs, space before both."""
    return "kernel" in leaf or leaf in KERNELS_TOO or leaf.endswith(("_w", "_einsum"))


@lru_cache(maxsize=2**12)
def convention(a: Shape, b: Shape, leaf_a: str, leaf_b: str) -> Order | None:
    """What the names of two variables say about their axes; None if they say nothing or the shapes contradict."""
    if is_kernel(leaf_a) and not is_kernel(leaf_b):
        return next((o for o in _usual(a, leaf_a, b) if _leads(o, a, b)), None)
    if is_kernel(leaf_b) and not is_kernel(leaf_a):
        back = convention(b, a, leaf_b, leaf_a)
        return back.inverse if back else None
    return Order() if a == b else None


def _usual(a: Shape, leaf_a: str, b: Shape) -> Iterator[Order]:
    """Orders in which a kernel of TensorFlow becomes a weight of torch, the likeliest first."""
    depthwise = "depthwise" in leaf_a
    if depthwise and len(a) == 4 and a[3] > 1:
        yield Order("h w c m -> (c m) 1 h w", (("m", a[3]),))
    for table in (DEPTHWISE, KERNELS) if depthwise else (KERNELS, DEPTHWISE):
        if len(a) in table:
            yield Order(table[len(a)])
    if len(a) == 4:  # time before frequencies there, behind them here
        yield Order("h w i o -> o i w h")
    if len(a) in KERNELS:
        yield from map(Order, _squeezed(KERNELS[len(a)], a, b))
    if (len(a), len(b)) == (3, 2):
        yield from (o for text in HEADS for o in merged(a, b) if o.text == text)


def _leads(order: Order, a: Shape, b: Shape) -> bool:
    """Whether an order fits two shapes; one that merges axes was made for them, but for depthwise kernels."""
    if "(c m)" in order.text:
        return b == (a[2] * a[3], 1, a[0], a[1])
    return "(" in order.text or fits(order.text, a, b)


def _squeezed(text: str, a: Shape, b: Shape) -> Iterator[str]:
    """A convention with axes of size one left out (h 1 i o -> o i h) or put in (k i o -> o i k 1)."""
    left, right = (side.split() for side in text.split("->"))
    space = [k for k, x in enumerate(left) if x not in ("i", "o")]
    if len(a) > len(b):
        for gone in combinations([k for k in space if a[k] == 1], len(a) - len(b)):
            ones = ["1" if k in gone else x for k, x in enumerate(left)]
            yield f"{' '.join(ones)} -> {' '.join(x for x in right if left.index(x) not in gone)}"
    elif len(b) > len(a):
        for at in combinations(range(2, len(b)), len(b) - len(a)):
            rest = iter(right[2:])
            words = ["1" if k in at else next(rest) for k in range(2, len(b))]
            yield f"{' '.join(left)} -> {' '.join([*right[:2], *words])}"
