"""What recorded objects hold: modules, as their `state_dict()` names it, and objects of unknown classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

from ...checkpoint.training import Settled
from .plain import SCALARS, Inert, Known, Ordered

WalkRole = Literal[Settled, "attribute"]
ATTRIBUTE: Final = "attribute"  # the role of what is not in a module's state_dict()
MESH = 64  # axes of a mesh of devices, at most
STATES = 8  # parts of a state that are looked at for attributes, at each place where the object is
GROUPS = ("_parameters", "_buffers", "_modules")


def segment(key: Any) -> str:
    """A dictionary key as a part of a name."""
    if type(key) is bytes:
        return key.decode("utf-8", "backslashreplace")
    if type(key) in (Inert, Known):
        return str(key.path)
    if type(key) is tuple:
        return "(" + ", ".join(segment(k) for k in key) + ")"
    return str(key)


def states(thing: Inert) -> list[dict[Any, Any]]:
    """The dictionaries of a recorded state: of attributes, and of slots; only in as short a tuple as classes write."""
    parts = thing.state if type(thing.state) is tuple else (thing.state,)
    return [part for part in parts if type(part) in (dict, Ordered)] if len(parts) <= STATES else []


def extent(thing: Inert) -> int:
    """How many values are looked at to list what it holds, at each place where it occurs: also those left out."""
    parts = [v for part in states(thing) for v in (part, *map(part.get, GROUPS))]
    several = [*parts, thing.state, thing.pairs, thing.items, thing.args]
    return sum(len(v) for v in several if type(v) in (dict, Ordered, list, tuple))


def is_module(thing: object) -> bool:
    """Whether this is a recorded torch.nn.Module or an object of TorchScript."""
    if type(thing) is not Inert:
        return False
    return thing.path.startswith("__torch__") or has_parameters(thing)


def has_parameters(thing: Inert) -> bool:
    return any("_parameters" in part and "_modules" in part for part in states(thing))


def of_module(thing: Inert) -> Iterator[tuple[str, Any, WalkRole]]:
    """The contents of a module's state_dict(), in its order; then its other attributes."""
    for part in states(thing):
        transient = part.get("_non_persistent_buffers_set")
        left: Any = transient if type(transient) in (set, frozenset) else ()
        groups = {g: part[g] for g in GROUPS if type(part.get(g)) in (dict, Ordered)}
        for group, inside in groups.items():
            for key, value in inside.items():
                if value is not None:
                    yield segment(key), value, ATTRIBUTE if group == "_buffers" and key in left else ""
        for key, value in part.items():
            if key not in groups and segment(key) not in _NOISE:
                yield segment(key), value, ATTRIBUTE
    yield from ((name, value, ATTRIBUTE) for name, value in _items(thing))


def of_object(thing: Inert) -> Iterator[tuple[str, Any, WalkRole]]:
    """The attributes of an object, its items, and its arguments other than scalars."""
    for part in states(thing):
        yield from ((segment(k), v, "") for k, v in part.items() if segment(k) not in _NOISE)
    yield from ((name, value, "") for name, value in _items(thing))


def _items(thing: Inert) -> Iterator[tuple[str, Any]]:
    """Everything that is not an attribute: other states, items, arguments."""
    attributes = states(thing)
    for i, part in enumerate(thing.state if type(thing.state) is tuple else (thing.state,)):
        if type(part) not in SCALARS and not any(part is a for a in attributes):
            yield f"state.{i}", part
    yield from ((segment(k), v) for k, v in thing.pairs.items())
    yield from ((str(i), v) for i, v in enumerate(thing.items))
    for i, value in enumerate(thing.args if type(thing.args) is tuple else ()):
        name_only = type(value) is Known or (type(value) is Inert and value.args is None)
        if type(value) not in SCALARS and not name_only and value != ():
            yield (str(i) if thing.state is None else f"args.{i}"), value


def is_complete(spec: Any) -> bool:
    """Whether each placement of a DTensor is Shard or Replicate; a Partial one would have to be summed."""
    placements = next((part.get("placements") for part in states(spec)), None) if type(spec) is Inert else None
    if type(placements) is not tuple or len(placements) > MESH:
        return False
    return all(type(p) is Inert and p.path.rpartition(".")[2] in ("Shard", "Replicate") for p in placements)


# Attributes of every torch.nn.Module that do not describe weights.
_NOISE = frozenset({
    "training", "call_super_init", "dump_patches", "_backend", "_non_persistent_buffers_set", "_is_full_backward_hook",
    "_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
})  # fmt: skip
