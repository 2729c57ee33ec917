"""From what a pickle held to a checkpoint: nested containers become dotted names, everything else is accounted for.

    {"epoch": 3, "state_dict": {"fc.weight": T, ...}, "optimizer": {"state": {0: {"step": 9, "exp_avg": T}}, ...}}
    -> fc.weight;  optimizer.state.0.exp_avg (a slot);  values: epoch = 3, optimizer.state.0.step = 9

The one entry that is plainly the state dict loses its prefix, and a note says so. Prefixes that wrappers left on all
names (`module.`) stay: they are undone only when asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ...errors import CkptError, NameCollision, UnsafeCheckpoint, listing
from ...tensor import Checkpoint, Note, Tensor, c_strides, held, view
from .arrays import PickledArray
from .plain import SCALARS, Inert, Known, Ordered
from .rebuild import Absent, Pieces, Storage, StorageType, TorchType, View

MAX_DEPTH = 100
SHARING = 16  # visits per byte of pickle: a container may occur at several places, but not without bound
WRAPPERS = (
    "state_dict", "model", "model_state_dict", "module", "net", "params", "params_ema", "ema", "generator", "weights",
)  # fmt: skip
AVERAGES = frozenset({"ema", "params_ema", "model_ema", "ema_model", "state_dict_ema", "ema_state_dict", "shadow"})
PREFIXES = ("module.", "_orig_mod.", "_forward_module.")
METADATA = "__metadata__"  # the attribute of a state dict in which our writer keeps a checkpoint's metadata
MAX_VALUES = 1000


class Leaf(NamedTuple):
    """A value that is no container; `top` is the entry of the root in which it lies."""

    name: str
    value: Any
    role: str
    top: str


def checkpoint(
    root: Any, size: int, *, url: str, format: str, notes: Iterable[Note] = (), quiet: bool = False
) -> Checkpoint:
    """Make a checkpoint of a pickle's value. `size`: bytes of the pickle; `quiet`: values are not worth a note."""
    walked = Walk(size, url)
    leaves = list(walked.leaves(root))
    leaves, unwrapped = unwrap(leaves)
    made = Made(url)
    for leaf in leaves:
        made.add(leaf)
    details: dict[str, Any] = {}
    if made.values and not quiet:
        details["values"] = dict(list(made.values.items())[:MAX_VALUES])
    if made.pieces:
        details["pieces"] = made.pieces
    state = root.state if type(root) is Ordered else {}
    return Checkpoint(
        made.tensors,
        _metadata(state.get(METADATA)),
        ties=made.ties(),
        format=format,
        urls=(url,),
        notes=(*notes, *unwrapped, *walked.notes(), *made.notes(quiet)),
        details=details,
    )


def _metadata(found: Any) -> dict[str, str]:
    if type(found) not in (dict, Ordered) or any(type(x) is not str for pair in found.items() for x in pair):
        return {}
    return dict(found)


# --- walking ----------------------------------------------------------------------------------------------------


class Walk:
    """One walk through nested containers, bounded in depth and in visits."""

    def __init__(self, size: int, url: str) -> None:
        self.left = SHARING * (size + 64)
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
            if all(type(v) in SCALARS for v in value):
                return None
            return [(str(i), v) for i, v in enumerate(value)]
        if kind is Inert and value.args is not None:
            self.inert[value.path] = None
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
    if state is None and type(thing.args) is tuple:
        yield from ((str(i), v) for i, v in enumerate(thing.args) if type(v) not in SCALARS)


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


# --- leaves -----------------------------------------------------------------------------------------------------


class Made:
    """The tensors made so far, and the account of everything that is none."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.tensors: dict[str, Tensor] = {}
        self.values: dict[str, Any] = {}
        self.pieces: dict[str, Any] = {}
        self.skipped: dict[str, list[str]] = defaultdict(list)  # why -> names
        self.clashes: list[str] = []
        self.groups: dict[Any, list[str]] = defaultdict(list)
        self.extents: dict[int, list[tuple[int, int, str]]] = defaultdict(list)

    def add(self, leaf: Leaf) -> None:
        kind = type(leaf.value)
        name = leaf.name
        if kind is View:
            self.view(name, leaf.value, leaf.role)
        elif kind is PickledArray:
            self.array(name, leaf.value, leaf.role)
        elif kind is Pieces:
            self.split(name, leaf.value, leaf.role)
        elif kind is Absent:
            self.skipped["tensors on the meta device, which have no data"].append(name)
        elif kind is Storage:
            self.skipped["bare storages, which have no shape"].append(name)
        else:
            self.values[name] = _plain(leaf.value)

    def put(self, tensor: Tensor) -> None:
        if tensor.name in self.tensors:
            self.clashes.append(tensor.name)
        self.tensors[tensor.name] = tensor

    def view(self, name: str, v: View, role: str) -> None:
        data = v.storage.data
        if v.row is None or data is None:
            self.skipped[f"of dtype {v.torch}, which nothing else can hold"].append(name)
            return
        if 0 in v.shape:
            self.put(view(name, v.row, v.shape, data, offset=0, strides=c_strides(v.shape), role=role))
            return
        self.put(view(name, v.row, v.shape, data, offset=v.offset, strides=v.strides, ops=v.ops, role=role))
        same = self.groups[id(v.storage), v.offset, v.shape, v.strides, v.torch, v.ops]
        same.append(name)
        if len(same) == 1:
            last = v.offset + sum((n - 1) * s for n, s in zip(v.shape, v.strides, strict=True))
            size = v.row.itemsize
            self.extents[id(v.storage)].append((v.offset * size, (last + 1) * size, name))

    def array(self, name: str, array: PickledArray, role: str) -> None:
        if array.kind.spelling[:1] in "OSUV":
            self.skipped["numpy arrays that hold no numbers"].append(name)
            return
        try:
            t = held(name, array.numpy())
        except CkptError:
            self.skipped[f"numpy arrays of dtype {array.kind.spelling}, which nothing else can hold"].append(name)
            return
        self.put(Tensor(name, t.dtype, t.shape, t.parts, role))

    def split(self, name: str, p: Pieces, role: str) -> None:
        for part, v in p.parts.items():
            self.view(f"{name}.{part}" if part else name, v, role)
        numbers = {k: _plain(v) for k, v in p.details.items()}
        self.pieces[name] = {"kind": p.kind, "shape": list(p.shape), **numbers}

    def ties(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(names) for names in self.groups.values() if len(names) > 1)

    def notes(self, quiet: bool) -> Iterator[Note]:
        if self.clashes:
            raise NameCollision(
                f"tensors at different places would get one name:\n{listing(self.clashes)}\n"
                "(a dotted key beside a nested container)", url=self.url,
            )  # fmt: skip
        for why, names in self.skipped.items():
            yield Note("skipped", why, tuple(names))
        if self.pieces:
            kinds = ", ".join(sorted({p["kind"] for p in self.pieces.values()}))
            yield Note(
                "assumed", f"{kinds} tensors are given as their pieces; densify=True computes them", tuple(self.pieces)
            )
        if self.values and not quiet:
            yield Note("skipped", "values that are no tensors; inspection shows them", tuple(self.values))
        shared = tuple(name for spots in self.extents.values() for name in _overlapping(spots))
        if shared:
            yield Note("lossy", "these share memory in part in the source; they are written apart", shared)
        for prefix in PREFIXES:
            weights = [n for n, t in self.tensors.items() if not t.role]
            if weights and all(n.startswith(prefix) for n in weights):
                yield Note(
                    "hint", f"all names begin with {prefix!r}; --rename '{prefix}{{x...}}={{x...}}' takes it off"
                )


def _overlapping(spots: list[tuple[int, int, str]]) -> list[str]:
    """Names of the distinct views of one storage that overlap another."""
    if len(spots) < 2:
        return []
    spots = sorted(spots)
    out: dict[str, None] = {}
    end, last = spots[0][1], spots[0][2]
    for lo, hi, name in spots[1:]:
        if lo < end:
            out.update({last: None, name: None})
        if hi > end:
            end, last = hi, name
    return list(out)


def _plain(value: Any, room: int = 50) -> Any:
    """A value as JSON can hold it, cut short where it is long."""
    kind = type(value)
    if kind in (str, int, bool, float) or value is None:
        return value if kind is not str or len(value) < 1000 else value[:1000] + "..."
    if kind in (list, tuple, set, frozenset):
        return [_plain(v, room) for v in list(value)[:room]]
    if kind in (Known, Inert):
        return str(value.path)
    if kind in (TorchType, StorageType):
        return f"torch.{value.name}"
    if kind is bytes:
        return f"{len(value)} bytes"
    return str(value)[:1000]


__all__ = ["METADATA", "checkpoint"]
