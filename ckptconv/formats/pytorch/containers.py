"""Nested containers as one row of named leaves, and the state dict among them.

    {"epoch": 3, "state_dict": {"fc.weight": T, ...}, "optimizer": {"state": {0: {"step": 9, "exp_avg": T}}, ...}}
    -> fc.weight;  optimizer.state.0.exp_avg (a slot);  optimizer.state.0.step = 9;  epoch = 3

Containers that hold themselves, or share without bound, are met and do not trap. The one entry that is plainly the
state dict loses its prefix, and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ...checkpoint import Note
from ...errors import UnsafeCheckpoint
from .arrays import PickledArray
from .plain import SCALARS, Inert, Known, Ordered
from .rebuild import Pieces, View

MAX_DEPTH = 100
SHARING = 16  # visits per byte of pickle: a container may occur at several places, but not without bound
NAMING = 64  # characters of names per byte of pickle: those of containers stand before all that they hold
WRAPPERS = (
    "state_dict", "model", "model_state_dict", "module", "net", "params", "params_ema", "ema", "generator", "weights",
)  # fmt: skip
AVERAGES = frozenset({"ema", "params_ema", "model_ema", "ema_model", "state_dict_ema", "ema_state_dict", "shadow"})


class Leaf(NamedTuple):
    """A value that is no container; `top` is the entry of the root in which it lies."""

    name: str
    value: Any
    role: str
    top: str


class Walk:
    """One walk through nested containers, bounded in depth and in visits."""

    def __init__(self, size: int, url: str) -> None:
        self.left = SHARING * (size + 64)
        self.room = NAMING * size + 2**20
        self.url = url
        self.open: set[int] = set()
        self.cyclic: list[str] = []
        self.inert: dict[str, None] = {}

    def leaves(self, value: Any, name: str = "", role: str = "", top: str = "", depth: int = 0) -> Iterator[Leaf]:
        self.left -= 1
        if self.left < 0 or depth > MAX_DEPTH:
            raise UnsafeCheckpoint("its containers are nested or shared without bound", url=self.url)
        children = self.children(value)
        if children is None:
            yield Leaf(name if depth else "tensor", value, role, top)
            return
        if id(value) in self.open:
            self.cyclic.append(name)
            return
        self.open.add(id(value))
        slots = type(value) in (dict, Ordered) and "param_groups" in value and "state" in value
        for key, child in children:
            child_name = f"{name}.{key}" if depth else key
            self.room -= len(child_name)
            if self.room < 0:
                raise UnsafeCheckpoint("the names of its containers are repeated without bound", url=self.url)
            child_role = role or ("slot" if slots else "") or (_top_role(key) if depth == 0 else "")
            if type(child) is View:  # the common case, without another generator
                self.left -= 1
                step = key == "step" and child_role == "slot"
                yield Leaf(child_name, child, "step" if step else child_role, top or key)
            else:
                yield from self.leaves(child, child_name, child_role, top or key, depth + 1)
        self.open.discard(id(value))

    def children(self, value: Any) -> list[tuple[str, Any]] | None:
        """What a container holds, by name segment; None for a leaf."""
        kind = type(value)
        if kind is dict or kind is Ordered:
            return [(k if type(k) is str else segment(k), v) for k, v in value.items()] or None
        if kind in (list, tuple, set, frozenset):
            self.left -= len(value)
            if all(type(v) in SCALARS for v in value):
                return None
            return [(str(i), v) for i, v in enumerate(value)]
        if kind is Inert and value.args is not None:
            self.inert[value.path] = None
            self.left -= len(value.args) if type(value.args) is tuple else 0
            return list(_attributes(value)) or None
        return None

    def notes(self) -> Iterator[Note]:
        if self.cyclic:
            yield Note("skipped", "containers that hold themselves, left out where they repeat", tuple(self.cyclic))
        foreign = tuple(p for p in self.inert if not p.startswith("__torch__"))
        if foreign:
            yield Note("assumed", "objects of unknown classes, read as plain containers of their attributes", foreign)


def segment(key: Any) -> str:
    """A dictionary key as a part of a name."""
    if type(key) is bytes:
        return key.decode("utf-8", "backslashreplace")
    if type(key) in (Inert, Known):
        return str(key.path)
    if type(key) is tuple:
        return "(" + ", ".join(segment(k) for k in key) + ")"
    return str(key)


def _top_role(key: str) -> str:
    return "average" if key in AVERAGES else "state" if "rng_state" in key else ""


def _attributes(thing: Inert) -> Iterator[tuple[str, Any]]:
    """What a placeholder recorded: a module's parameters, buffers and submodules by their own names; else its state."""
    state = thing.state
    states = state if type(state) is tuple else (state,)
    for part in states:
        if type(part) not in (dict, Ordered):
            continue
        module = "_parameters" in part and "_modules" in part
        transient = part.get("_non_persistent_buffers_set")
        for key, value in part.items():
            name = segment(key)
            if module and name in ("_parameters", "_buffers", "_modules") and type(value) in (dict, Ordered):
                left = transient if name == "_buffers" and type(transient) is set else ()
                yield from ((segment(k), v) for k, v in value.items() if v is not None and k not in left)
            elif name not in _NOISE:
                yield name, value
    yield from ((segment(k), v) for k, v in thing.pairs.items())
    yield from ((str(i), v) for i, v in enumerate(thing.items))
    for i, value in enumerate(thing.args if type(thing.args) is tuple else ()):
        name_only = type(value) is Known or (type(value) is Inert and value.args is None)
        if type(value) not in SCALARS and not name_only and value != ():
            yield (str(i) if state is None else f"args.{i}"), value


# What every torch.nn.Module carries and that says nothing about weights.
_NOISE = frozenset({
    "training", "call_super_init", "dump_patches", "_backend", "_non_persistent_buffers_set", "_is_full_backward_hook",
    "_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
})  # fmt: skip


# --- the state dict within --------------------------------------------------------------------------------------


def unwrap(leaves: list[Leaf]) -> tuple[list[Leaf], list[Note]]:
    """Take the prefix off the entry that is plainly the state dict; say so, or say why not."""
    tops: dict[str, bool] = {}  # entry of the root -> holds weights, not only optimizer state
    for leaf in leaves:
        if isinstance(leaf.value, (View, Pieces, PickledArray)):
            tops[leaf.top] = tops.get(leaf.top, False) or leaf.role in ("", "average")
    weights = [t for t, has in tops.items() if has]
    bare = {leaf.top for leaf in leaves if leaf.top == leaf.name}
    found = [t for t in weights if t in WRAPPERS and t not in bare]
    if len(found) > 1:
        text = f"holds several state dicts ({', '.join(found)}); choose one with --include '{found[0]}.*'"
        return leaves, [Note("hint", text)]
    if weights != found:
        return leaves, []
    prefix = found[0] + "." if found else ""
    names = {leaf.name for leaf in leaves}
    if not found or any(leaf.name[len(prefix) :] in names for leaf in leaves if leaf.top == found[0]):
        return leaves, []
    out = [
        leaf._replace(name=leaf.name[len(prefix) :], role="" if leaf.role == "average" else leaf.role)
        if leaf.top == found[0]
        else leaf
        for leaf in leaves
    ]
    return out, [Note("assumed", f"the weights are the entry {found[0]!r}; their names are given without it")]
