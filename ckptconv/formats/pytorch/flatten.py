"""Turn the contents of a pickle into a checkpoint: named leaves become tensors, and everything else is accounted for.

    fc.weight  View of a storage        -> a tensor;  two equal views -> a tie
    q.weight   Pieces                   -> q.weight, q.weight.scale ...; what they are is a detail and a note;
                                           with densify=True one tensor, computed when it is read
    epoch      3                        -> details["values"], and a note that names it

Prefixes that wrappers left on all names (`module.`) stay: only `strip_prefix` removes them.

Find the entry of a nested checkpoint that is the model's state dict.

    {"state_dict": {...}, "optimizer": {...}, "best_score": T}      state_dict: its names are given without the prefix
    {"model": {...}, "model_ema": {...}}                            model; model_ema is its moving average
    {"generator": {...}, "discriminator": {...}}                    undecidable: all names stay

What lies beside the entry never changes its names, so all checkpoints of a run have the same: one stray tensor does
not count. The passes `at`, `averages` and `weights_only` take what is to be taken, by names, roles and `details`.

Sparse and quantised tensors: what they are made of beside stored tensors, and on request what they amount to.

sparse_coo   indices (ndim, nnz), values (nnz, ...): duplicates add up
sparse_csr   crow_indices (rows + 1), col_indices (nnz), values (nnz, ...), as above; csc by columns; bsr, bsc in blocks
quantised    value = (q - zero_point) * scale, per tensor or along an axis

Numbers without a tensor of their own (the scale of a whole tensor, the dense shape) become tensors, so that no writer
loses them and no comparison overlooks them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from math import isfinite, prod
from typing import TYPE_CHECKING, Any

from ...checkpoint import Checkpoint, Details, Entry, Note, Role, Tensor, contiguous, held, view
from ...checkpoint.training import COLLECTIONS, is_average
from ...dtypes import DTYPES
from ...errors import CkptError, CorruptCheckpoint, NameCollision, UnsafeCheckpoint
from ...messages import brief, listing, printable
from ...moves import derived
from ...moves.part import FILL_RATIO, MAX_FILL, c_strides
from ..table import Reading
from .tensors import Absent, Layout, Pieces, Storage, StorageType, TorchType, View, identity
from .values import ArrayType, Inert, Known, Ordered, PickledArray
from .walk import Leaf, Walk, is_module

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

# What training code calls the entry that holds a model's state dict; the last only where nothing else holds weights.
MODELS = (
    "state_dict", "model_state_dict", "model", "module", "net", "network", "params", "weights", "weight", "student",
)  # fmt: skip
ALONE = ("generator", "encoder", "backbone", "teacher", "checkpoint", "model_dict", "G", "g")
STATES = ("params", "state")  # Haiku's two halves of a model
TENSORS = (View, Pieces, PickledArray)
SHOWN = 6  # entries that a note names


class _Entries:
    """The entries of a root: how many tensors each has, which hold weights, which are tensors themselves."""

    def __init__(self, leaves: list[Leaf]) -> None:
        self.counts: Counter[str] = Counter()
        self.models: dict[str, None] = {}
        self.loose: dict[str, None] = {}
        self.grouped: set[str] = set()  # in which tensors lie in groups
        for leaf in leaves:
            if type(leaf.value) not in TENSORS:
                continue
            self.counts[leaf.top] += 1
            if "." in leaf.name[len(leaf.top) + 1 :]:
                self.grouped.add(leaf.top)
            if leaf.top == leaf.name:
                self.loose[leaf.top] = None
            elif leaf.role in ("", "average"):
                self.models[leaf.top] = None
        flat = any("." in name for name in self.loose)  # the root is a state dict itself
        self.models = {} if flat else self.models
        self.chosen = _choose(list(self.models))
        pair = ("student", "teacher")
        self.averages = [n for n in self.models if n != self.chosen and (is_average(n) or (self.chosen, n) == pair)]

    def taken(self, leaf: Leaf) -> bool:
        return leaf.top == self.chosen and leaf.top != leaf.name


def unwrap(leaves: list[Leaf]) -> tuple[list[Leaf], list[Note], Details]:
    """Remove the prefix of the model's state dict, and note what is beside it; return also details for the passes.

    details["entry"] = {"name": the entry without its prefix or "", "beside": other entries, "averages": of these,
                        "average": whether the entry itself is one}
    """
    found = _Entries(leaves)
    about: Entry = {"name": found.chosen, "beside": list(found.counts), "averages": found.averages}
    if not found.chosen:
        return leaves, _choices(list(found.models), found.averages), {"entry": about} if found.models else {}
    about |= {"beside": [n for n in found.counts if n != found.chosen], "average": is_average(found.chosen)}
    size = len(found.chosen) + 1
    names = {leaf.name[size:] for leaf in leaves if found.taken(leaf)}
    halves = _halves(found)
    made = [_inside(leaf, size) if found.taken(leaf) else _beside(leaf, names, found, halves) for leaf in leaves]
    text = f"the weights are the entry {found.chosen!r}; their names are given without it"
    if about["beside"]:
        text += f"; beside it {'is' if len(about['beside']) == 1 else 'are'} {_listed(about['beside'], found)}"
    return made, [Note("assumed", text)], {"entry": about}


def _inside(leaf: Leaf, size: int) -> Leaf:
    return leaf._replace(name=leaf.name[size:], role="" if leaf.role == "average" else leaf.role)


def _beside(leaf: Leaf, names: set[str], found: _Entries, halves: set[str]) -> Leaf:
    """What is not the model has a role, unless it is a collection of one.

    A tensor that is called as one of the model's stands under another name.
    """
    name = f"beside.{leaf.name}" if leaf.name in names and type(leaf.value) in TENSORS else leaf.name
    role: Role = "average" if leaf.top in found.averages else "state"
    if leaf.name != leaf.top and leaf.top in halves:
        role = ""
    return leaf._replace(name=name, role=leaf.role or role)


def _halves(found: _Entries) -> set[str]:
    """The entries that are the other half of the model: batch_stats beside params, Haiku's state, a module's buffers.

    A module's `buffers` and Haiku's `state` have tensors in groups; an optimizer's `state` has bare tensors.
    """
    if found.chosen == STATES[0]:
        return {*COLLECTIONS} | ({STATES[1]} & found.grouped)
    return {*COLLECTIONS - {"buffers"}} | ({"buffers"} & found.grouped)


def _choose(models: list[str]) -> str:
    """The entry that is the model, or '' if that is undecidable."""
    others = [name for name in models if not is_average(name)]
    named = [name for name in others if name in MODELS]
    if len(named) == 1:
        return named[0]
    if not others and len(models) == 1:
        return models[0]
    return others[0] if len(others) == 1 and others[0] in ALONE else ""


def _choices(models: list[str], averages: list[str]) -> list[Note]:
    if len(models) < 2:
        return []
    shown = ", ".join(printable(brief(name)) for name in models[:SHOWN])
    average = "; ema=True puts averages in the place of their weights" if averages else ""
    return [Note("hint", f"holds several state dicts ({shown}); at={brief(models[0])!r} takes one{average}")]


def _listed(beside: list[str], found: _Entries) -> str:
    """optimizer (12 tensors), best_score."""
    words = []
    for name in beside:
        count = found.counts[name]
        many = "" if name in found.loose else f" ({count} tensor{'s' * (count > 1)})"
        words.append(printable(brief(name)) + many)
    return ", ".join(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")


MAX_LISTED = 2**24  # bytes of numbers that dense tensors carry with them


class Numbers:
    """The numbers of pieces as arrays in memory, each once, however many tensors have it."""

    def __init__(self) -> None:
        self.known: dict[object, Tensor] = {}
        self.lists: list[Any] = []  # whose ids must not become those of others

    def of(self, p: Pieces) -> dict[str, Tensor]:
        """By the name that a tensor in their place would have; of the dtypes that torch makes of them."""
        if p.kind == "nested":  # its pieces hold all there is
            return {}
        if p.kind != "quantised":
            return {"shape": self.held(p.shape, "int64")}
        listed = "float32" if p.details["scheme"].endswith("float_qparams") else ""
        kinds = {"scale": listed or "float64", "zero_point": listed or "int64", "axis": "int64"}
        return {part: self.held(p.details[part], kind) for part, kind in kinds.items() if part in p.details}

    def held(self, value: Any, kind: str) -> Tensor:
        import numpy as np

        listed = type(value) is list
        key: object = (id(value), kind)
        if not listed or key not in self.known:
            try:
                array = np.array(value, kind)
            except OverflowError as e:
                raise CorruptCheckpoint(f"a number of a quantised tensor does not fit {kind}") from e
            key = key if listed else (array.shape, array.tobytes(), kind)
            self.lists += [value] if listed else []
            if key not in self.known:
                self.known[key] = held("", array)
        return self.known[key]


class Wholes:
    """Dense tensors in place of pieces. What they amount to is bounded, as a shape costs nothing to claim."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self.room, self.listed = MAX_FILL, MAX_LISTED
        self.storages: set[int] = set()

    def tensor(self, name: str, p: Pieces, role: Role) -> Tensor:
        """The dense tensor, which is computed when it is read."""
        pieces = {part: stored("", v) for part, v in p.parts.items()}
        kind = DTYPES["float32"] if p.kind == "quantised" else pieces["values"].dtype
        self.take(name, p, max(prod(p.shape) * kind.itemsize, sum(t.nbytes for t in pieces.values())))
        if p.kind == "quantised":
            pieces |= self.numbers.of(p)
            pieces.pop("axis", None)
            numbers = sum(t.nbytes for part, t in pieces.items() if part not in p.parts)
            if numbers > self.listed:
                raise UnsafeCheckpoint(
                    f"the scales of its tensors are lists of more than {MAX_LISTED} bytes", tensor=name
                )
            self.listed -= numbers
        data = derived.dense(name, p.shape, kind, pieces, p.details.get("axis"))
        return contiguous(name, kind, p.shape, data, role=role)

    def take(self, name: str, p: Pieces, size: int) -> None:
        """Count the bytes of a dense tensor, or of its pieces if they are more."""
        for v in p.parts.values():
            if id(v.storage) not in self.storages:
                self.storages.add(id(v.storage))
                self.room += FILL_RATIO * v.storage.size
        if size > self.room:
            raise UnsafeCheckpoint(
                f"its tensors are more than {FILL_RATIO} times what is stored and {MAX_FILL} bytes when dense; "
                f"without densify=True they are given as their pieces", tensor=name,
            )  # fmt: skip
        self.room -= size


def stored(name: str, v: View, role: Role = "") -> Tensor:
    """A view as a tensor; its dtype and its data are known."""
    if v.row is None or v.storage.data is None:
        raise TypeError("a tensor of a dtype that nothing else can hold")
    if 0 in v.shape:
        return view(name, v.row, v.shape, v.storage.data, offset=0, strides=c_strides(v.shape), role=role)
    return view(name, v.row, v.shape, v.storage.data, offset=v.offset, strides=v.strides, ops=v.ops, role=role)


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
        self.numbers = Numbers()
        self.wholes = Wholes(self.numbers)
        self.computed: list[str] = []
        self.damaged: list[Note] = []
        self.skipped: dict[str, list[str]] = defaultdict(list)  # why -> names
        self.clashes: list[str] = []
        self.groups: dict[Any, list[str]] = defaultdict(list)

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
        numbers = {k: jsonable(v) for k, v in p.details.items()}
        self.pieces[name] = {"kind": p.kind, "shape": list(p.shape), "parts": list(p.parts), **numbers}
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
