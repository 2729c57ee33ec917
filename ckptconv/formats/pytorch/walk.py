"""Flatten nested containers and recorded objects into a sequence of named leaves.

    {"epoch": 3, "state_dict": {"fc.weight": T, ...}, "optimizer": {"state": {0: {"step": 9, "exp_avg": T}}, ...}}
    -> state_dict.fc.weight;  optimizer.state.0.exp_avg (a slot);  optimizer.state.0.step = 9;  epoch = 3

A module gives the names of its `state_dict()`: its parameters, its persistent buffers, its modules; tensors among its
other attributes are left out with a note, in which they are unread unless the same view is read as a weight. Tensors of
subclasses without data of their own are walked, or refused by name. Containers that hold themselves, or share without
bound, are met and do not trap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from typing import Any, Final, Literal, NamedTuple

from ...checkpoint import Note, Role, Tensor
from ...checkpoint.training import (
    BESIDE,
    FLAX_STATE,
    INNER,
    MODELS,
    STEPS,
    TELLING,
    WEIGHT,
    Settled,
    counters,
    is_average,
    is_model,
    of_group,
    of_leaf,
)
from ...errors import UnsafeCheckpoint
from ...messages import listing
from .tensors import Hollow, Pieces, Tagged, View, identity
from .values import HARMLESS, SCALARS, SLOTS, Inert, Known, Ordered, PickledArray

WalkRole = Literal[Settled, "attribute"]
ATTRIBUTE: Final = "attribute"  # the role of what is not in a module's state_dict()
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


def contents(thing: Inert, classes: Classes) -> Iterator[tuple[str, Any, WalkRole]]:
    """The attributes of an object, its items, and its arguments other than scalars.

    Of a module first its groups.
    """
    names = names_of(thing, classes)
    rest: WalkRole = ATTRIBUTE if names is not None or has_parameters(thing) else ""
    for part in states(thing):
        groups = {g: part[g] for g in GROUPS if rest and type(part.get(g)) in (dict, Ordered)}
        transient = part.get("_non_persistent_buffers_set")
        left: Any = transient if type(transient) in (set, frozenset) else ()
        for group, inside in groups.items():
            for key, value in inside.items():
                if value is not None:
                    yield segment(key), value, ATTRIBUTE if group == "_buffers" and key in left else ""
        for key, value in part.items():
            if key not in groups and segment(key) not in _NOISE:
                yield segment(key), value, "" if _is_listed(key, value, names, classes) else rest
    yield from ((name, value, rest) for name, value in _items(thing))


Names = Set[str]  # the parameters and buffers that the class of a TorchScript module lists
Classes = Mapping[str, Mapping[str, Names]]  # by the modules of Python that define them, and their own names


def names_of(thing: Inert, classes: Classes) -> Names | None:
    """The names that an object's class lists, if it is known to be a module."""
    module, _, name = thing.path.rpartition(".")
    return classes.get(module, {}).get(name)


def _is_listed(key: Any, value: Any, names: Names | None, classes: Classes) -> bool:
    """Whether an attribute of a TorchScript module is in its state_dict(), or a module that may be."""
    if names is None or key in names or type(value) is not Inert or value.args is None:
        return names is not None and key in names
    return value.path.rpartition(".")[0] not in classes or names_of(value, classes) is not None


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


# Attributes of every torch.nn.Module that do not describe weights.
_NOISE = frozenset({
    "training", "call_super_init", "dump_patches", "_backend", "_non_persistent_buffers_set", "_is_full_backward_hook",
    "_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
})  # fmt: skip


MAX_DEPTH = 100
SHARING = 4  # visits per byte of pickle: a container may occur at several places, but not without bound
NAMING = 64  # characters of names per byte of pickle: those of containers stand before all that they hold
NUMBERS = 3  # at most, that belong to the pieces of a tensor and become tensors as they do
VALUE = 6  # bytes of pickle for each value that is not a tensor: its name and its account take 250 of memory
PIECES = 6  # as many values take the memory of a sparse or quantised tensor, of which three or four are made
KEPT = frozenset({"_metadata", "__metadata__", SLOTS})  # attributes of an OrderedDict that are read or may be left out
TENSORS = (View, Pieces, PickledArray, Tensor)
CONTAINERS = (dict, Ordered, list, tuple, set, frozenset, Inert)

OPTIMIZER = re.compile(r"[Oo]ptim(?:i[sz]er|s?(?![a-z]))|OPTIM")  # optimizer_states, g_optim; not optimal_query


def role_of(entry: str) -> Role:
    """What a container at the root is for, by its name; what a module keeps as its extra state is its own."""
    if entry.endswith("_extra_state"):
        return ""
    if is_average(entry):
        return "average"
    if OPTIMIZER.search(entry):
        return "slot"
    return "state" if "rng_state" in entry else ""


class Leaf(NamedTuple):
    """A value that is not a container; `top` is the entry of the root in which it lies."""

    name: str
    value: Any
    role: Role
    top: str


class Walk:
    """One walk through nested containers, bounded in depth and in visits."""

    def __init__(self, size: int, classes: Classes) -> None:
        self.classes = classes
        self.left, self.room, self.values = 2**14 + SHARING * size, 2**20 + NAMING * size, 2**16 + size // VALUE
        self.open: set[int] = set()
        self.cyclic: list[str] = []
        self.beside: list[str] = []
        self.inert: dict[str, None] = {}
        self.attributes: list[tuple[str, Any]] = []  # of modules, tensors
        self.hung: list[str] = []  # on dictionaries
        self.refused: list[str] = []

    def leaves(self, value: Any, name: str = "", role: WalkRole = "", top: str = "", depth: int = 0) -> Iterator[Leaf]:
        self.visit(1, depth)
        if type(value) is Tagged:
            if value.path:
                self.inert[value.path] = None
            own = name or "tensor"
            for key, attribute in value.attributes.items() if value.value is not None else ():
                yield from self.leaves(attribute, f"{own}.{key}", role or "state", top or own, depth + 1)
            value = value.attributes if value.value is None else value.value
        if id(value) in self.open:  # asked first, since to list a container takes as long as it is large
            self.cyclic.append(name)
            return
        children = self.children(value, name)
        if children is None:
            yield from self.leaf(name if depth else "tensor", value, role, top)
            return
        self.open.add(id(value))
        role_of_child = _roles(value, role, depth)
        for key, child, own_role in children:
            child_name = f"{name}.{key}" if depth else key
            self.name(child_name)
            child_role = role_of_child(key, child, own_role)
            if type(child) is View and child_role != ATTRIBUTE:  # the common case, without another generator
                self.left -= 1
                yield Leaf(child_name, child, _plain(child_role), top or key)
            else:
                yield from self.leaves(child, child_name, child_role, top or key, depth + 1)
        self.open.discard(id(value))

    def visit(self, count: int, depth: int = 0) -> None:
        """Count values that are looked at, which may occur at several places."""
        self.left -= count
        if self.left < 0 or depth > MAX_DEPTH:
            raise UnsafeCheckpoint("its containers are nested or shared without bound")

    def name(self, name: str, times: int = 1) -> None:
        """Count the characters of a name, which may be that of several tensors."""
        self.room -= len(name) * times
        if self.room < 0:
            raise UnsafeCheckpoint("the names of its containers are repeated without bound")

    def leaf(self, name: str, value: Any, role: WalkRole, top: str) -> Iterator[Leaf]:
        """Yield one leaf, or none if it is left out or refused."""
        if type(value) is Hollow:
            value = value.value
            if value is None:
                self.refused.append(f"{name}: a tensor made without data, which no state fills")
                return
        if type(value) is Pieces:
            self.name(name, len(value.parts) + NUMBERS)
            self.values -= PIECES
        self.values -= type(value) not in TENSORS
        if self.values < 0:
            raise UnsafeCheckpoint("it holds values without end that are not plain tensors")
        if role == ATTRIBUTE and type(value) in TENSORS:
            self.attributes.append((name, value))
        else:
            yield Leaf(name, value, _plain(role), top)

    def children(self, value: Any, name: str) -> Iterable[tuple[str, Any, WalkRole]] | None:
        """The contents of a container: name segment, value, role; None for a leaf."""
        if type(value) is PickledArray and type(value.items) is list and any(type(v) in TENSORS for v in value.items):
            value = value.items  # NumPy's way to hold arrays of several shapes
        kind = type(value)
        if kind is dict:
            if beside := self.listed([*value.values()]):
                return self.children(beside, name)
            return ((k if type(k) is str else segment(k), v, "") for k, v in value.items()) if value else None
        if kind is Ordered:
            self.visit(len(value.state))
            for key in value.state:
                if key not in KEPT:
                    self.hung.append(f"{name}.{segment(key)}" if name else segment(key))
                    self.name(self.hung[-1])
            return self.children(dict(value), name)
        if kind in (list, tuple, set, frozenset):
            self.visit(len(value))
            value = self.listed(value) or value
            if paired(value):
                return ((segment(k), v, "") for k, v in value)
            scalars = all(type(v) in SCALARS for v in value)
            return None if scalars else ((str(i), v, "") for i, v in enumerate(value))
        return self.recorded(value) if kind is Inert and value.args is not None else None

    def listed(self, values: Any) -> list[Any]:
        """Pairs of a name and an array, of a list of names and one of as many arrays; [] of anything else."""
        if len(values) == 2 and {*map(type, values)} <= {list, tuple} and len({*map(len, values)}) == 1:
            pairs = [*zip(*values, strict=True)]
            if paired(pairs) and all(type(v) in TENSORS for _, v in pairs):
                self.beside += values[0]
                return pairs
        return []

    def recorded(self, thing: Inert) -> list[tuple[str, Any, WalkRole]] | None:
        """The contents of a recorded object."""
        self.visit(extent(thing))
        found = list(contents(thing, self.classes)) or None
        if found or thing.path not in HARMLESS:
            self.inert[thing.path] = None
        return found

    def notes(self, read: Iterable[Any] = ()) -> Iterator[Note]:
        """What was left out. `read`: the values of all leaves, which attributes of modules may be as well."""
        if self.refused:
            raise UnsafeCheckpoint(
                "it holds tensors of kinds that are not read; save them as full, plain tensors:\n"
                f"{listing(self.refused)}",
            )  # fmt: skip
        if self.beside:
            yield Note(
                "assumed", "the names in a list are those of the arrays in the list beside it", tuple(self.beside)
            )
        if self.cyclic:
            text = "containers that hold themselves, left out where they repeat"
            yield Note("skipped", text, tuple(self.cyclic), tensors=False)
        foreign = tuple(p for p in self.inert if not p.startswith("__torch__") and p not in HARMLESS)
        if foreign:
            yield Note("assumed", "objects of unknown classes, read as plain containers of their attributes", foreign)
        if self.attributes:
            weights = set(map(identity, read))  # an LSTM lists its own weights once more
            text = "tensors that are plain attributes of modules, not in their state_dict()"
            if others := tuple(name for name, value in self.attributes if identity(value) not in weights):
                yield Note("skipped", text, others)
            text = "plain attributes of modules that are tensors of their state_dict() once more"
            if again := tuple(name for name, value in self.attributes if identity(value) in weights):
                yield Note("skipped", text, again, tensors=False)
        if self.hung:
            text = "attributes that Python code hung on dictionaries"
            yield Note("skipped", text, tuple(self.hung), tensors=False)


def paired(values: Collection[Any]) -> bool:
    """Whether these are pairs of a name and a value, some of which is or may hold tensors, without a name twice."""
    pairs = all(type(v) in (tuple, list) and len(v) == 2 and type(v[0]) in (str, bytes) for v in values)
    held = pairs and any(type(v) in (*TENSORS, *CONTAINERS) for _, v in values)
    return held and len({segment(k) for k, _ in values}) == len(values)


def holds_tensors(value: Any) -> bool:
    """Whether there is a tensor in it, at any depth; each container is looked into once."""
    seen, left = set[int](), [value]
    while left:
        one = left.pop()
        if type(one) in (*TENSORS, Tagged, Hollow):
            return True
        if type(one) in CONTAINERS and id(one) not in seen:
            seen.add(id(one))
            keyed = type(one) in (dict, Ordered)
            left += one.values() if keyed else (v for _, v, _ in contents(one, {})) if type(one) is Inert else one
    return False


# --- roles --------------------------------------------------------------------------------------------------------


def _roles(value: Any, settled: WalkRole, depth: int) -> Callable[[str, Any, WalkRole], WalkRole]:
    """What the children of a container are for, by their keys, what lies beside them, and the roles that they have.

    A module says nothing: its keys are names of submodules. Nor does a key that is the whole name of a weight: of the
    root, only its containers are entries; under a key with dots, a list or tuple is a weight (`fc._packed_params`).
    Counters of wrappers are known by all that the wrapper writes.
    """
    named, beside = not is_module(value), set[str]()
    root = named and not depth
    if settled in ("", WEIGHT):
        slots = type(value) in (dict, Ordered) and "param_groups" in value and "state" in value
        slots = slots or (type(value) is Ordered and SLOTS in value.state)
        settled = "slot" if slots else settled if named else ""
    steps = _counters(value) if settled in ("", WEIGHT) else ()
    if named and not settled:
        beside = _groups(value, TELLING)
        parts = _maps(value) if depth < MODELS else []
        entries = [(k, v) for part in parts for k, v in part.items() if type(v) in (dict, Ordered, Inert)]
        if any(type(k) is str and is_model(k, _groups(v, INNER), depth) for k, v in entries):
            beside.add(BESIDE)

    def by_key(key: str, child: Any) -> WalkRole:
        if type(child) in CONTAINERS:
            keyed = type(child) in (dict, Ordered)
            inside = child if keyed else {k for part in _maps(child) for k in FLAX_STATE if k in part}
            entry = root and key not in TELLING and (keyed or "." not in key)
            return of_group(key, inside, beside) or (role_of(key) if entry else "")
        return "state" if root and "rng_state" in key and "." not in key else of_leaf(key, beside)

    def role(key: str, child: Any, own: WalkRole) -> WalkRole:
        one = settled or own or (by_key(key, child) if named else "")
        counts = key in steps or (one == "slot" and key in STEPS)
        return "step" if counts and type(child) in TENSORS else one

    return role


def _maps(value: Any) -> list[dict[Any, Any]]:
    """A dictionary, or those of an object's attributes; none of other containers."""
    return [value] if type(value) in (dict, Ordered) else states(value) if type(value) is Inert else []


def _groups(value: Any, keys: Collection[str]) -> set[str]:
    """Those of the keys under which containers lie in it."""
    return {key for part in _maps(value) for key in keys if type(part.get(key)) in CONTAINERS}


def _counters(value: Any) -> tuple[str, ...]:
    """The counters that a wrapper of a module keeps in its state dict, if this is one of those that do."""
    parts = _maps(value)
    if is_module(value):
        parts = [part[g] for part in parts for g in ("_buffers", "_modules") if type(part.get(g)) in (dict, Ordered)]
    return counters(parts)


def _plain(role: WalkRole) -> Role:
    if role == ATTRIBUTE:
        return ""
    return "" if role == WEIGHT else role
