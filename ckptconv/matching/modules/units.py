"""Find modules by names: tensors that belong together, each with its role.

    conv1/kernel, conv1/bias                     conv1        {weight, bias}
    block.0.bn.weight, .bias, .running_mean ...  block.0.bn   {weight, bias, running_mean, running_var}
    sep/depthwise_kernel, sep/pointwise_kernel   sep/depthwise {weight}, sep/pointwise {weight}
    rnn.weight_ih_l1_reverse, ...                rnn/backward/l1 {weight_ih, weight_hh, bias_ih, bias_hh}

A unit's signature is its kind, its roles and their dimensions: a norm's bias never meets a convolution's.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from weakref import WeakKeyDictionary

from ...checkpoint import Tensor
from ...messages import natural
from ..likeness import KINDS, LEAVES, RECURRENT, averaged, words
from ..orders.axes import is_kernel
from ..pairs import Side, folded, leaf, parent

Dims = tuple[int, ...]
Numbers = tuple[int, ...]
PARAMETRIZED = re.compile(r"(.+)\.parametrizations\.(\w+)\.original([01])")
NORMED = {"0": "weight_g", "1": "weight_v"}
SEPARATOR = re.compile("[/.]")
ROOTS = re.compile(r"^(?:params|batch_stats|state)[/.]")  # collections of JAX
CELL = {"kernel": "weight_ih", "recurrent_kernel": "weight_hh", "bias": "bias_ih", "recurrent_bias": "bias_hh"}
GATES = 4  # of an LSTM
_FOUND: WeakKeyDictionary[Side, list[Unit]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Unit:
    """A module: its name, its tensors by role, and its places in the natural order of all modules and in the file."""

    home: str
    members: Mapping[str, Tensor]
    words: tuple[str, ...]
    natural: int
    at: int

    @cached_property
    def counted(self) -> Numbers:
        """The numbers in its name, which order modules."""
        return folded(re.sub(r"(?i)(conv|pool|norm)[123]d", "", self.home))[1]

    @cached_property
    def main(self) -> str:
        """The role that the module is known by."""
        likely = ("weight", "weight_ih", "joint", "running_mean", "bias")
        return next((r for r in likely if r in self.members), min(self.members))

    @cached_property
    def kind(self) -> str:
        if {"weight_ih", "joint"} & set(self.members):
            return "cell"
        if "running_mean" in self.members:
            return "batch norm"
        if self.main == "bias":
            return "bias"
        return "norm" if len(_dims(self.members[self.main].shape)) < 2 else "weight"

    @property
    def shape(self) -> Hashable:
        """What a module with the same name must share to match."""
        return self.kind, tuple(sorted(_dims(self.members[self.main].shape)))

    def fits(self, other: Unit) -> bool:
        """Tell whether the tensors that both modules have are equally large: kernel and bias stay together."""
        both = ((t, other.members[role]) for role, t in self.members.items() if role in other.members)
        return self.kind == "cell" or all(t.count == u.count for t, u in both)

    @cached_property
    def signatures(self) -> tuple[Hashable, ...]:
        """What another module must share to match, the strictest signature first."""
        return tuple(signature(self) for signature in SIGNATURES)


def units(side: Side) -> list[Unit]:
    """Return the modules of a checkpoint, in the order of their first tensors; cached for each side."""
    if side not in _FOUND:
        _FOUND[side] = _units(side)
    return [*_FOUND[side]]


def _units(side: Side) -> list[Unit]:
    if side.single:
        order = {name: k for k, name in enumerate(sorted(side.tensors, key=natural))}
        return [Unit(n, {"weight": t}, words(n), order[n], at) for at, (n, t) in enumerate(side.tensors.items())]
    beside: dict[str, set[str]] = defaultdict(set)
    bare = {name: ROOTS.sub("", averaged(name)) for name in side.tensors}
    for name in bare.values():
        beside[parent(name)].add(leaf(name))
    made: dict[str, dict[str, Tensor]] = {}
    for name, t in side.tensors.items():
        home, role = place(bare[name], beside[parent(bare[name])])
        if role in made.get(home, {}):  # two tensors with one role: separate modules
            home, role = name, "weight"
        made.setdefault(home, {})[role] = t
    made = {home: _joint(home, m) for home, m in _from_zero(_of_two(made)).items()}
    order = {home: k for k, home in enumerate(sorted(made, key=natural))}
    return [Unit(n, m, words(f"{n}/weight")[:-1], order[n], at) for at, (n, m) in enumerate(made.items())]


def _of_two(made: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Join two dense layers of Flax into a cell: SimpleCell's i and h, or dense_i and dense_h of NNX."""
    out = dict(made)
    for home, state in made.items():
        stem = home.removesuffix("h")
        inputs = made.get(f"{stem}i", {})
        shapes = [m["weight"].shape for m in (inputs, state) if "weight" in m]
        if not stem.endswith(("/", "dense_")) or [len(shape) for shape in shapes] != [2, 2]:
            continue
        (_, wide), (rows, last) = shapes
        if last == wide and wide in (rows, GATES * rows):  # the biases of NNX's GRU differ from torch's
            biases = [m["bias"] for m in (inputs, state) if "bias" in m]
            matrices = {"weight_ih": inputs["weight"], "weight_hh": state["weight"]}
            out[parent(stem)] = matrices | dict(zip(("bias_ih", "bias_hh"), biases, strict=False))
            del out[home], out[f"{stem}i"]
    return out


def _from_zero(made: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Rename the first block of Keras' block, block_1, block_2 to block_0, so that it counts as one of them."""
    held = Counter(home[: m.start()] for home in made for m in SEPARATOR.finditer(home))
    firsts = {b for b, n in held.items() if n > 1 and f"{b}_1" in held and f"{b}_0" not in held}
    out = {}
    for home, members in made.items():
        for m in reversed([*SEPARATOR.finditer(home)]) if firsts else ():
            if home[: m.start()] in firsts:
                home = f"{home[: m.start()]}_0{home[m.start() :]}"
        out[home] = members
    return out


def _joint(home: str, members: dict[str, Tensor]) -> dict[str, Tensor]:
    """Mark the joint kernel of a TensorFlow 1 LSTM, [inputs + state, 4 state]."""
    shape = members["weight"].shape if "weight" in members else ()
    if "lstm" not in home.lower() or len(shape) != 2 or shape[1] % GATES or shape[0] <= shape[1] // GATES:
        return members
    names = {"weight": "joint", "bias": "bias_ih"}
    return {names.get(role, role): t for role, t in members.items()}


def place(name: str, beside: set[str]) -> tuple[str, str]:
    """Return the module of a tensor and its role there; `beside` are the leaves next to it."""
    home, last = parent(name), leaf(name)
    if m := PARAMETRIZED.fullmatch(name):
        return m[1], NORMED[m[3]]
    if m := RECURRENT.fullmatch(last):
        layer = re.search(r"_l([0-9]+)", last)
        way = ("backward/" if m[2] else "forward/") if any(x.endswith("_reverse") for x in beside) else ""
        return f"{home}/{way}l{layer[1] if layer else 0}", m[1]
    if "recurrent_kernel" in beside:
        return home, CELL.get(last, last)
    if "pointwise_kernel" in beside:
        kind = "depthwise" if last == "depthwise_kernel" else "pointwise"
        return f"{home}/{kind}", "bias" if last == "bias" else "weight"
    if last.endswith(("depthwise_weights", "depthwise_kernel")):
        return f"{home}/depthwise", "weight"
    if last in LEAVES or last in KINDS or last in ("weight_g", "weight_v"):
        return home, LEAVES.get(last, last)
    head, _, tail = last.rpartition("_")
    if head and (tail in LEAVES or tail in KINDS):
        return f"{home}/{head}", LEAVES.get(tail, tail)
    return name, "weight"


# --- signatures -------------------------------------------------------------------------------------------------------


def _dims(shape: Sequence[int]) -> Dims:
    return tuple(n for n in shape if n != 1)


def oriented(t: Tensor) -> Dims:
    """Return the dimensions in torch's order (outputs, inputs, space) if the name tells which they are."""
    shape, last = t.shape, leaf(t.name)
    if len(shape) in (3, 4) and "depthwise" in last:
        *space, inputs, each = shape
        return _dims((inputs * each, *space))
    if len(shape) > 1 and is_kernel(last):
        *space, inputs, outputs = shape
        return _dims((outputs, inputs, *(space if "kernel" in last else sorted(space))))
    return _dims(shape)


def _outputs(t: Tensor) -> Dims:
    """Return the outputs, and all other dimensions sorted, since layers can be stacked along any axis."""
    first, *rest = oriented(t) or (1,)
    return (first, *sorted(rest))


def _cell(u: Unit) -> tuple[Dims, Dims] | None:
    """Return the dimensions of a recurrent cell's matrices, for inputs and state; None if it is not a cell."""
    if "joint" in u.members:
        rows, columns = u.members["joint"].shape
        return (columns, rows - columns // GATES), (columns, columns // GATES)
    if {"weight_ih", "weight_hh"} <= set(u.members):
        return oriented(u.members["weight_ih"]), oriented(u.members["weight_hh"])
    return None


def _whole(dims: Callable[[Tensor], Dims]) -> Callable[[Unit], Hashable]:
    return lambda u: _cell(u) or (u.kind, frozenset((role, dims(t)) for role, t in u.members.items()))


def _main(u: Unit) -> Hashable:
    return _cell(u) or (u.kind, oriented(u.members[u.main]))


def _count(u: Unit) -> Hashable:
    return _cell(u) or prod(u.members[u.main].shape)


MAIN, COUNT = 1, 4  # levels of the main tensor and its number of elements; those between concern all tensors
SIGNATURES: tuple[Callable[[Unit], Hashable], ...] = (
    _whole(oriented), _main, _whole(_outputs), _whole(lambda t: (t.count,)), _count
)  # fmt: skip
