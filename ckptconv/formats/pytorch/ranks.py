"""A folder of files of torch, one of each rank of a parallel run, as one checkpoint.

    model_world_size_2_rank_0.pt   {"fc.weight": DTensor(local rows 0 to 3, mesh (2,), Shard(0)), ...}     FSDP2
    model_world_size_2_rank_0.pt   {"fc.weight": ShardedTensor(shards at [0, 0] ..., metadata), ...}       FSDP1
    consolidated.00.pth            {"layers.0.wq.weight": what rank 0 has of it, ...}                      Meta's Llama
    shard-00001-model-00001-of-00001.safetensors    "DCP_SHARDING_INFO" says where each part begins

Tensors that know which part of the whole they are become one tensor of all their parts. Others are called rank_0.NAME,
rank_1.NAME: how to join them only the model's code knows, which a converter says: `rank_{r*}.{x}.wq.weight`, laid out
`o i -> (r o) i`. Files of which no two have a name in common, as the first ones of Mixtral, are the model as they are.
Where some tensors know their part, those that do not are the same in all ranks: rank 0's are taken.

Sources: torch/distributed/tensor/placement_types.py (Shard, _StridedShard), device_mesh.py, _shard/sharded_tensor.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import prod
from typing import Any

from ...checkpoint import Checkpoint, Note, Tensor
from ...errors import CorruptCheckpoint, Unrepresentable, UsageError
from ...messages import many, shortened
from ...moves.part import c_strides, checked_count
from ...storage.files import Reader, Seen, join, names, within
from .. import safetensors
from ..complete import RANKED
from ..detect import open_checkpoint
from ..own_metadata import lost_metadata
from ..placement import Patch, Placement, folder_name, refuse_shards, refuse_unheld, together
from ..table import DISTRIBUTED, Reading
from ..tiling import joined
from .archive import PICKLE, TorchWriter, enter
from .flatten import gather, stored
from .tensors import PART, TORCH, UNTYPED, Storage, View, bare, from_type, ints
from .values import Inert, Known, Ordered, attribute, shown
from .walk import TENSORS, Leaf, Walk

FILES = (  # the number of a file's rank, and in the first two of how many
    *RANKED,
    re.compile(r"(?P<before>consolidated\.|mp_rank_)(?P<part>\d+)(?P<after>\.pth?|_model_states\.pt)"),
    re.compile(r"(?P<before>(?:.*[._-])?rank[_-]?)(?P<part>\d+)(?P<after>\.\w+)"),
)
BESIDE = re.compile(r"(optim|extra_state|scheduler|rng)")  # beginnings of sets that are not the model
# what a trainer wrote of the whole model
WHOLE = re.compile(r"model\.safetensors(\.index\.json)?|(adapter_model|pytorch_model)\b.*|model-\d+-of-.*")
META = "consolidated."  # of which one file is a model, too
SHOWN = 20  # missing ranks that are looked for
Box = tuple[tuple[int, ...], View]  # the index of the first element, and the elements


@dataclass(frozen=True)
class Set:
    """The files of a set, by rank, and how many their names say there are, 0 if they do not."""

    before: str
    count: int
    files: dict[int, str] = field(default_factory=dict)


def _sets(files: Sequence[str]) -> list[Set]:
    found: dict[tuple[str, str, int], Set] = {}
    for name in files:
        if m := next(filter(None, (pattern.fullmatch(name) for pattern in FILES)), None):
            count = int(m.groupdict().get("all", 0))
            files_of = found.setdefault((m["before"], m["after"], count), Set(m["before"], count)).files
            files_of[int(m["part"])] = name
    sets = [s for s in found.values() if s.count or len(s.files) > 1 or s.before == META]
    sets = [s for s in sets if s.count or s.before.endswith((".", "mp_rank_")) or 0 in s.files]  # else of a LoRA
    return [s for s in sets if not BESIDE.match(s.before)] or sets


def sniff(seen: Seen) -> int:
    if not seen.is_dir or DISTRIBUTED in seen.files or is_gathered(seen.files):
        return 0
    return 3 if len(_sets(seen.files)) == 1 or any(map(safetensors.SHARD.fullmatch, seen.files)) else 0


def is_gathered(files: Sequence[str]) -> bool:
    """Whether a trainer wrote the whole model beside what its ranks wrote."""
    return any(map(WHOLE.fullmatch, files))


def open(url: str, how: Reading) -> Checkpoint:
    inside = names(url)
    if shards := [n for n in inside if safetensors.SHARD.fullmatch(n)]:
        return _of_shards(url, shards, how)
    sets = _sets(inside)
    if len(sets) != 1:
        raise CorruptCheckpoint(f"holds {many(len(sets), 'set')} of files of ranks, not one", url=url)
    files, count = sets[0].files, sets[0].count or max(sets[0].files) + 1
    refuse_incomplete(url, files, count, ((r, f"rank {r}") for r in range(count)))
    urls = [join(url, files[rank]) for rank in range(count)]
    if count == 1:
        return open_checkpoint(urls[0], how)
    read = [_read(path, rank, how) for rank, path in enumerate(urls)]
    parts = {leaf.name for leaves, _, _ in read for leaf in leaves if _is_part(leaf)}
    if not parts:
        each = [{x.name: x for x in of if r == 0 or type(x.value) in TENSORS} for r, (of, _, _) in enumerate(read)]
        leaves = [
            x._replace(name=f"rank_{r}.{x.name}", top=f"rank_{r}") for r, of in enumerate(each) for x in of.values()
        ]
        if len(leaves) == len(whole := {name: x for of in each for name, x in of.items()}):
            note = Note("assumed", f"tensors of {many(count, 'file')}, of which no two have a name in common")
            return gather([*whole.values()], read[0][1], how, urls, "ranks", [note])
        text = f"tensors of {many(count, 'rank')} stay apart, as rank_0.NAME and so on; your own rules can join them"
        note = Note("assumed", text)
        return gather(leaves, read[0][1], how, urls, "ranks", [note], whole=True)
    leaves = list(_joined(read, urls, parts))
    note = Note("assumed", f"joined from {many(count, 'rank')}; of what several hold alike, the first one's is taken")
    return gather(leaves, read[0][1], how, urls, "ranks", [note])


def _of_shards(url: str, shards: Sequence[str], how: Reading) -> Checkpoint:
    """What torch's HuggingFaceStorageWriter saved with `save_distributed`: a file of parts for each process.

    No file says how large a tensor is: it reaches as far as its parts, which must tile it, as for torch. Processes
    without a part write no file, so numbers may be missing. Source: torch/distributed/checkpoint/hf_storage.py.
    """
    if len({n.rpartition("-of-")[2] for n in shards}) > 1:
        raise CorruptCheckpoint("holds shards of several checkpoints: their names end in other numbers", url=url)
    pieces: dict[str, list[tuple[Tensor, tuple[int, ...]]]] = {}
    urls, metadata, notes = [within(url, n) for n in shards], dict[str, str](), dict[Note, None]()
    for path in urls:
        found, starts = safetensors.read(path, how)
        for name, t in found.items():
            start = starts.get(name)
            if start is None or len(start) != len(t.shape) or any(type(n) is not int or n < 0 for n in start):
                what = f"its {safetensors.INFO} does not say where this begins"
                raise CorruptCheckpoint(what, url=path, tensor=name)
            pieces.setdefault(name, []).append((t, start))
        metadata |= {k: v for k, v in found.metadata.items() if k not in (*metadata, *safetensors.KEYS)}
        notes |= dict.fromkeys(found.notes)
    for name in (name for note in notes if note.kind == "skipped" for name in note.names):
        pieces.pop(name, None)  # the part in another shard may be of a shape that is read
    tensors = dict[str, Tensor]()
    for name, parts in pieces.items():
        ends = ([a + n for a, n in zip(start, t.shape, strict=True)] for t, start in parts)
        shape = tuple(map(max, zip(*ends, strict=False)))  # `joined` refuses other numbers of axes
        checked_count(shape, url=url, tensor=name)
        tensors[name] = joined(name, shape, parts, url)
    text = f"joined from {many(len(urls), 'shard')} of a distributed run; one that is missing at the end shows nowhere"
    return Checkpoint(tensors, metadata, (), "safetensors", tuple(urls), (Note("assumed", text), *notes))


def refuse_incomplete(url: str, files: Collection[Any], count: int, wanted: Iterable[tuple[Any, str]]) -> None:
    """CorruptCheckpoint if files of ranks are missing, or of an earlier run. files, wanted: by rank."""
    lacking = list(islice((name for rank, name in wanted if rank not in files), SHOWN))
    if lacking or len(files) > count:
        text = f"missing: {shortened(lacking)}" if lacking else "some are of another run"
        raise CorruptCheckpoint(f"has files of {len(files)} of {many(count, 'rank')}; {text}", url=url)


Boxes = dict[str, list[Box]]
Read = tuple[list[Leaf], Walk, Boxes]


def _read(url: str, rank: int, how: Reading) -> Read:
    """The leaves of a rank's file, and the boxes of tensors that are parts, by the key of their storage."""
    boxes: Boxes = {}
    allowed = {**TORCH, ("torch._tensor", "_rebuild_from_type_v2"): Known("_rebuild", partial(_part, rank, boxes))}
    with Reader(url) as f:
        archive = enter(f)
        root = archive.load(PICKLE, opaque=how.opaque, allowed=allowed)
        walked = Walk(archive.members[PICKLE].packed, {})
        return list(walked.leaves(root)), walked, boxes


def _is_part(leaf: Leaf) -> bool:
    return type(leaf.value) is View and leaf.value.torch == PART


def _joined(read: list[Read], urls: Sequence[str], parts: Collection[str]) -> Iterator[Leaf]:
    others = [{leaf.name: leaf for leaf in leaves} for leaves, _, _ in read]
    for leaf in read[0][0]:
        if leaf.name not in parts:
            yield leaf
            continue
        pieces, empty, shape = dict[tuple[int, ...], Tensor](), list[Tensor](), getattr(leaf.value, "shape", ())
        checked_count(shape, tensor=leaf.name)
        for url, by_name, (_, _, boxes) in zip(urls, others, read, strict=True):
            one = by_name.get(leaf.name)
            if one is None or not _is_part(one) or one.value.shape != shape:
                raise CorruptCheckpoint("is no part of the same tensor as in rank 0", url=url, tensor=leaf.name)
            for start, view in boxes[one.value.storage.key]:
                if (tensor := stored(leaf.name, view)) is None:
                    raise CorruptCheckpoint(f"a part of it is {shown(view)}", url=url, tensor=leaf.name)
                if tensor.count:
                    pieces.setdefault(start, tensor)  # replicas are the same
                else:
                    empty.append(tensor)
        every = [(t, start) for start, t in pieces.items()] or [(t, (0,) * len(shape)) for t in empty[:1]]
        if not every:
            raise CorruptCheckpoint("no rank has a part of it", tensor=leaf.name)
        yield leaf._replace(value=joined(leaf.name, shape, every, urls[0]))
    if lacking := sorted(set().union(*others) - others[0].keys()):
        raise CorruptCheckpoint(f"other ranks have {shortened(lacking)}, rank 0 has not", url=urls[0])


def _part(rank: int, boxes: Boxes, make: Any, kind: Any, args: Any, state: Any) -> Any:
    """_rebuild_from_type_v2, which keeps of a part what it is a part of."""
    value = from_type(make, kind, args, state)
    if type(value) is not View or value.torch != PART:
        return value
    key, halves = str(len(boxes)), state if type(state) is tuple else (state,)
    shards = halves[0] if halves and type(halves[0]) is list else None
    attributes: Mapping[Any, Any] = next((half for half in halves if type(half) in (dict, Ordered)), {})
    if shards is not None:
        boxes[key] = [_shard(s) for s in shards]
    else:
        boxes[key] = [_local(rank, value.shape, attributes)]
    return value._replace(storage=Storage(UNTYPED, key, None, 0))


def _view(value: Any, shape: Sequence[int] | None = None) -> View:
    view = bare(value)
    if type(view) is not View or (shape is not None and view.shape != tuple(shape)):
        raise CorruptCheckpoint(f"a part of a tensor is {shown(value)}, not of shape {shown(shape)}")
    return view


def _shard(shard: Any) -> Box:
    """A shard of a ShardedTensor."""
    start = ints(attribute(shard, "metadata", "shard_offsets"), "offsets")
    return start, _view(attribute(shard, "tensor"), ints(attribute(shard, "metadata", "shard_sizes"), "sizes"))


def _local(rank: int, shape: tuple[int, ...], state: Mapping[Any, Any]) -> Box:
    """What a DTensor's rank has of it, by its mesh and placements, which are applied in order."""
    mesh, placements = attribute(state.get("_spec"), "mesh"), attribute(state.get("_spec"), "placements")
    axes, ranks = _mesh(mesh)
    sizes = [prod(inner) for inner, _ in axes]
    if type(placements) is not tuple or len(placements) != len(axes) or rank not in ranks:
        raise CorruptCheckpoint(f"has the placements {shown(placements)} on a mesh of {sizes}")
    index, start, size = ranks.index(rank), [0] * len(shape), list(shape)
    order = sorted(range(len(axes)), key=lambda i: "_StridedShard" in _path(placements[i]))  # these are applied last
    for i in order:
        path = _path(placements[i])
        if path.endswith("Replicate"):
            continue
        axis = attribute(placements[i], "dim") if path.endswith("Shard") else None
        if type(axis) is not int or not 0 <= axis < len(shape):
            raise CorruptCheckpoint(f"is placed as {shown(placements[i])}, which is not read")
        place = 0
        for n, stride in zip(*axes[i], strict=True):
            place = place * n + index // stride % n
        step = -(-size[axis] // sizes[i])
        lo = min(size[axis], place * step)
        start[axis], size[axis] = start[axis] + lo, min(step, size[axis] - lo)
    return tuple(start), _view(state.get("_local_tensor"), size)


def _path(thing: Any) -> str:
    return thing.path if type(thing) is Inert else ""


def _mesh(mesh: Any) -> tuple[list[tuple[tuple[int, ...], ...]], tuple[int, ...]]:
    """Of each axis of a mesh the sizes and strides, several if others were made one, none if it is 1; and the ranks."""
    state = mesh.state if type(mesh) is Inert and type(mesh.state) in (dict, Ordered) else {}
    if "_layout" in state:
        layouts, ranks = attribute(mesh, "_layout", "axes"), attribute(mesh, "_flatten_rank_map")
        axes = [tuple(ints(attribute(layout, key), "mesh") for key in ("shape", "stride")) for layout in layouts]
    else:
        sizes, ranks = _view(attribute(mesh, "mesh")).shape, attribute(mesh, "_flatten_mesh_list")
        axes = [((n,), (stride,)) for n, stride in zip(sizes, c_strides(sizes), strict=True)]
    if any(n < 1 for axis in axes for numbers in axis for n in numbers):
        raise CorruptCheckpoint(f"lies on the mesh {axes}")
    return axes, ints(ranks, "mesh")


# --- writing --------------------------------------------------------------------------------------------------------
#
# rank_0.NAME, rank_1.NAME ... go to a file of each rank, there called NAME. The inverse of a converter says how the
# files are called, by that of rank 0: consolidated.00.pth; else they are rank_0.pt, rank_1.pt ...

NAMED = re.compile(r"rank_(0|[1-9]\d{0,3})\..+", re.DOTALL)
FIRST = re.compile(r"([\w-]*?[._-]?)(0+)([A-Za-z_.-]+)")


@dataclass
class RanksWriter:
    """Lay out a folder with an archive for each rank."""

    url: str
    max_shard_size: int | None = None
    inside: TorchWriter = field(default_factory=lambda: TorchWriter(""))

    def cannot_hold(self, tensor: Tensor) -> str:
        odd = "" if NAMED.fullmatch(tensor.name) else "its name does not begin with a rank, such as rank_0."
        return odd or self.inside.cannot_hold(tensor)

    def place(self, checkpoint: Checkpoint) -> Placement:
        base, first = folder_name(self.url, "a set of files of ranks"), checkpoint.details.get("ranks", "rank_0.pt")
        form = FIRST.fullmatch(first)
        if not form:
            raise UsageError(f"the file of rank 0 has no 0 in its name ({first!r})", url=self.url)
        refuse_unheld(self, checkpoint, "a set of files of ranks")
        refuse_shards(checkpoint, self.max_shard_size, "what a rank has")
        ranks = dict[int, dict[str, Tensor]]()
        for name, t in checkpoint.items():
            if m := NAMED.fullmatch(name):
                ranks.setdefault(int(m[1]), {})[name] = t
        if lacking := sorted({*range(max(2, *(r + 1 for r in ranks)))} - ranks.keys()):
            text = "two are the fewest: for one, choose a converter of one file, such as meta-llama, without ranks="
            raise Unrepresentable(f"no tensor is of {shortened([f'rank {r}' for r in lacking])}; {text}")
        self.inside.archives, bare = [], replace(checkpoint, metadata={})
        placed = [
            self.inside.lay_out(
                f"{base}/{form[1]}{rank:0{len(form[2])}}{form[3]}", bare.with_tensors(tensors), len(f"rank_{rank}.")
            )
            for rank, tensors in sorted(ranks.items())
        ]
        return together(placed)._replace(unit=True, notes=lost_metadata(checkpoint.metadata, "a set of files of ranks"))

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Iterable[Patch]:
        return self.inside.seal(checks, {})


writer = RanksWriter
