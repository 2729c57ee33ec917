"""Turn the contents of a pickle into a checkpoint: named leaves become tensors, and everything else is accounted for.

    fc.weight  View of a storage        -> a tensor;  two equal views -> a tie;  two that overlap -> a note
    q.weight   Pieces                   -> q.weight, q.weight.scale ...; what they are is a detail and a note;
                                           with densify=True one tensor, computed when it is read (dense.py)
    epoch      3                        -> details["values"], and a note that names it

Prefixes that wrappers left on all names (`module.`) stay: only `strip_prefix` removes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import isfinite, prod
from typing import Any

from ...checkpoint import Checkpoint, Details, Note, Role, Tensor, held
from ...errors import CkptError, CorruptCheckpoint, NameCollision, UnsafeCheckpoint
from ...messages import listing
from ...moves.part import MAX_FILL
from ..reading import Reading
from .arrays import ArrayType, PickledArray
from .dense import Numbers, Wholes, stored
from .entries import Leaf, unwrap
from .plain import Inert, Known, Ordered
from .rebuild import Layout
from .recorded import is_module
from .views import Absent, Pieces, Storage, StorageType, TorchType, View, identity
from .walk import Walk

METADATA = "__metadata__"  # the attribute of a state dict in which our writer keeps a checkpoint's metadata
MAX_VALUES = 1000
PLAIN = Reading()


def checkpoint(
    root: Any,
    size: int,
    how: Reading = PLAIN,
    *,
    url: str,
    format: str,
    notes: Iterable[Note] = (),
    quiet: bool = False,
) -> Checkpoint:
    """Make a checkpoint of a pickle's value. `size`: bytes of the pickle; `quiet`: values are not worth a note."""
    walked = Walk(size, url)
    leaves = list(walked.leaves(root))
    unwrapped: list[Note] = []
    details = Details()
    if not is_module(root):  # whose attribute may be called `model` as well
        leaves, unwrapped, details = unwrap(leaves)
    made = Made(url, how)
    for leaf in leaves:
        made.add(leaf)
    details |= made.details(quiet=quiet)
    left_out = walked.notes(leaf.value for leaf in leaves if not leaf.role)
    state = root.state if type(root) is Ordered else {}
    return Checkpoint(
        made.tensors,
        _metadata(state.get(METADATA)),
        ties=made.ties(),
        format=format,
        urls=(url,),
        notes=(*notes, *unwrapped, *left_out, *made.notes(quiet=quiet)),
        details=details,
    )


def _metadata(found: Any) -> dict[str, str]:
    if type(found) not in (dict, Ordered) or any(type(x) is not str for pair in found.items() for x in pair):
        return {}
    return dict(found)


# --- leaves -----------------------------------------------------------------------------------------------------


class Made:
    """The tensors made so far, and the account of everything else."""

    def __init__(self, url: str, how: Reading = PLAIN) -> None:
        self.url, self.how = url, how
        self.left = MAX_FILL  # bytes that all views may have beyond their storages'
        self.arrays: dict[int, Tensor] = {}
        self.tensors: dict[str, Tensor] = {}
        self.values: dict[str, Any] = {}
        self.pieces: dict[str, Any] = {}
        self.known: dict[int, dict[str, Any]] = {}  # what is said of pieces
        self.numbers = Numbers()
        self.wholes = Wholes(self.numbers)
        self.computed: list[str] = []
        self.damaged: list[Note] = []
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
            self.values[name] = jsonable(leaf.value) if len(self.values) < MAX_VALUES else None

    def put(self, tensor: Tensor) -> None:
        if tensor.name in self.tensors:
            self.clashes.append(tensor.name)
        self.tensors[tensor.name] = tensor

    def view(self, name: str, v: View, role: Role) -> None:
        data = v.storage.data
        if v.row is None or data is None:
            self.skipped[f"of dtype {v.torch}, which nothing else can hold"].append(name)
            return
        self.put(stored(name, v, role))
        if 0 in v.shape:
            return
        same = self.groups[identity(v)]
        same.append(name)
        if len(same) == 1:
            self.left -= max(0, prod(v.shape) * v.row.itemsize - v.storage.size)
            if self.left < 0:
                raise UnsafeCheckpoint("its views repeat what is stored without bound", url=self.url, tensor=name)
            last = v.offset + sum((n - 1) * s for n, s in zip(v.shape, v.strides, strict=True))
            size = v.row.itemsize
            self.extents[id(v.storage)].append((v.offset * size, (last + 1) * size, name))

    def array(self, name: str, array: PickledArray, role: Role) -> None:
        if array.kind.spelling[:1] in "OSUV":
            self.skipped["numpy arrays that hold no numbers"].append(name)
            return
        t = self.arrays.get(id(array))
        if t is None:
            try:
                t = self.arrays[id(array)] = held(name, array.numpy())
            except CkptError:
                self.skipped[f"numpy arrays of dtype {array.kind.spelling}, which nothing else can hold"].append(name)
                return
        self.put(Tensor(name, t.dtype, t.shape, t.parts, role))

    def split(self, name: str, p: Pieces, role: Role) -> None:
        odd = next((v for v in p.parts.values() if v.row is None or v.storage.data is None), None)
        if odd is not None:
            self.view(name, odd, role)
            return
        if (about := self.known.get(id(p))) is None:  # one tensor may have any number of names
            numbers = {k: jsonable(v) for k, v in p.details.items()}
            about = {"kind": p.kind, "shape": list(p.shape), "parts": list(p.parts), **numbers}
            self.known[id(p)] = about
        self.pieces[name] = about
        if self.how.densify and p.kind != "nested":
            self.whole(name, p, role)
            return
        for part, v in p.parts.items():
            self.view(f"{name}.{part}" if part else name, v, role)
        for part, t in self.numbers.of(p).items():
            self.put(Tensor(f"{name}.{part}", t.dtype, t.shape, t.parts, role))

    def whole(self, name: str, p: Pieces, role: Role) -> None:
        """The dense tensor in place of its pieces; what does not fit together is an error, or salvaged without."""
        try:
            self.put(self.wholes.tensor(name, p, role))
            self.computed.append(name)
        except (CorruptCheckpoint, UnsafeCheckpoint) as e:
            if not self.how.salvage:
                raise
            self.damaged.append(Note("damaged", " ".join(e.message.split()), (name,)))

    def ties(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(names) for names in self.groups.values() if len(names) > 1)

    def details(self, *, quiet: bool = False) -> Details:
        """What is known beside the tensors."""
        out = Details()
        if self.values and not quiet:
            out["values"] = dict(list(self.values.items())[:MAX_VALUES])
        if self.pieces:
            out["pieces"] = self.pieces
        return out

    def notes(self, *, quiet: bool = False) -> Iterator[Note]:
        if self.clashes:
            raise NameCollision(
                "tensors at different places (a dotted key beside a nested container, or beside a piece of a sparse or "
                "quantised tensor, which densify=True does not name) would get one name:\n"
                f"{listing(self.clashes)}", url=self.url,
            )  # fmt: skip
        for why, names in self.skipped.items():
            yield Note("skipped", why, tuple(names))
        yield from self.damaged
        if apart := {
            name: p["kind"] for name, p in self.pieces.items() if not self.how.densify or p["kind"] == "nested"
        }:
            kinds = {*apart.values()}
            hint = "" if kinds == {"nested"} else "; densify=True computes them"
            text = f"{', '.join(sorted(kinds))} tensors are given as their pieces{hint}"
            yield Note("assumed", text, tuple(apart))
        if self.computed:
            yield Note("assumed", "sparse or quantised in the source, computed in full here", tuple(self.computed))
        if self.values and not quiet:
            text = "values that are not tensors; inspect with graph=True shows them"
            yield Note("skipped", text, tuple(self.values), tensors=False)
        shared = tuple(name for spots in self.extents.values() for name in _overlapping(spots))
        if shared:
            yield Note("lossy", "these share memory in part in the source; they are written apart", shared)


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


def jsonable(value: Any, room: int = 50) -> Any:
    """A value as JSON, truncated if it is long."""
    kind = type(value)
    if kind is float and not isfinite(value):
        return str(value)  # JSON has no word for it
    if kind in (str, int, bool, float) or value is None:
        return value if kind is not str or len(value) < 1000 else value[:1000] + "..."
    if kind in (list, tuple, set, frozenset):
        return [jsonable(v, room) for v in list(value)[:room]]
    if kind in (Known, Inert):
        return str(value.path)
    if kind in (TorchType, StorageType, Layout):
        return f"torch.{value.name}"
    if kind is ArrayType:
        return value.spelling
    if kind is bytes:
        return f"{len(value)} bytes"
    return str(value)[:1000]


__all__ = ["METADATA", "Made", "checkpoint", "jsonable"]
