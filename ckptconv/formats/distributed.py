"""A folder of safetensors files in which each process of a distributed run of torch saved its parts of tensors.

    shard-00001-model-00001-of-00001.safetensors     a.w: 2x3, from [0, 0] on
    shard-00002-model-00001-of-00001.safetensors     a.w: 2x3, from [2, 0] on          ->  a.w: 4x3

The parts of a tensor (safetensors.py) must tile it. No file says how large it is: it reaches as far as its parts do, as
for torch, so a shard that is missing at the end is not noticed unless another tensor has a hole; a note says so.
Processes without a part write no file, so numbers may be missing.
Specification: torch/distributed/checkpoint/hf_storage.py (HuggingFaceStorageReader) and _consolidate_hf_safetensors.py.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from ..checkpoint import Checkpoint, Details, Note, Tensor
from ..errors import CkptError, CorruptCheckpoint
from ..messages import listing, many, printable
from ..moves.part import Part, c_strides, checked_count
from ..storage.files import join, sibling
from ..storage.remote import peek
from . import safetensors
from .table import Reading
from .tiling import Tile, check_tiling

PEEKED = 32  # remote shards whose headers are fetched before the first of them is opened

Piece = tuple[Tensor, safetensors.Start]


def open(folder: str, files: Sequence[str], how: Reading) -> Checkpoint:
    """Open all shards of a folder, and join the parts of each tensor."""
    if len({m[1] for file in files if (m := safetensors.SHARD.fullmatch(file))}) > 1:
        raise CorruptCheckpoint("holds shards of several checkpoints: their names end in other numbers", url=folder)
    pieces: dict[str, list[Piece]] = {}
    metadata: dict[str, str] = {}
    notes: dict[Note, None] = {}
    counts: dict[str, int] = {}
    paths = {file: sibling(join(folder, "."), file) for file in files}
    for at, (file, path) in enumerate(paths.items()):
        if at % PEEKED == 0:
            peek([paths[f] for f in files[at : at + PEEKED]])
        try:
            shard = safetensors.read(path, how)
            starts = safetensors.part_starts(shard.metadata, path)
            own = [(t, _start(t, starts, path)) for t in shard.values()]  # all of a shard, or nothing of it
        except CkptError as e:
            if not how.salvage:
                raise
            text = f"the shard {printable(file)} cannot be opened: {' '.join(e.message.split())}"
            notes[Note("damaged", text)] = None
            continue
        for piece in own:
            pieces.setdefault(piece[0].name, []).append(piece)
        counts[file] = len(shard)
        metadata = shard.metadata | metadata
        notes |= dict.fromkeys(shard.notes)
    left_out = {name for note in notes if note.kind == "skipped" for name in note.names}
    tensors, damaged = _joined(pieces, left_out, folder, how)
    if len(counts) < len(files):
        tensors, cut = _certain(tensors, [n.text for n in notes if n.kind == "damaged"], folder)
        damaged += cut
    text = (
        f"joined from {many(len(counts), 'shard')} of a distributed run; tensors reach as far as their parts, so a "
        "shard that is missing at the end would not be noticed"
    )
    metadata = {k: v for k, v in metadata.items() if k not in safetensors.KEYS}
    details: Details = {"shards": counts}
    urls = tuple(paths[file] for file in counts)
    return Checkpoint(tensors, metadata, (), "safetensors", urls, (Note("assumed", text), *notes, *damaged), details)


def _certain(tensors: dict[str, Tensor], lost: list[str], url: str) -> tuple[dict[str, Tensor], list[Note]]:
    """What is whole although shards are lost, and a note on the rest, of which they may have held the end."""
    left = {name: t for name, t in tensors.items() if not t.shape}
    if not left:
        text = "nothing is left, because any tensor may have parts in shards that cannot be opened; get these again"
        alone = "from_='safetensors' reads a shard alone, if its parts begin where their tensors do"
        raise CorruptCheckpoint(f"{text} ({alone}):\n{listing(lost)}", url=url)
    cut = tuple(name for name in tensors if name not in left)
    text = "not known to be whole: no file says how large they are, and a shard that cannot be opened may hold more"
    return left, [Note("damaged", text, cut)] if cut else []


def _start(t: Tensor, starts: dict[str, safetensors.Start], url: str) -> safetensors.Start:
    """Where a part begins, which must have as many axes."""
    start = starts.get(t.name)
    if start is None or len(start) != len(t.shape):
        what = "says nothing" if start is None else f"says {list(start)}"
        raise CorruptCheckpoint(f"its {safetensors.INFO} {what} of where this begins", url=url, tensor=t.name)
    return start


def _joined(
    pieces: dict[str, list[Piece]], left_out: Container[str], url: str, how: Reading
) -> tuple[dict[str, Tensor], list[Note]]:
    """The tensors, in the order of the first shard that has each, and notes on those that are not whole."""
    tensors: dict[str, Tensor] = {}
    damaged: list[Note] = []
    for name, parts in pieces.items():
        try:
            if name in left_out:
                raise CorruptCheckpoint("some of its parts are of a dtype that is not read", url=url, tensor=name)
            tensors[name] = _join(name, parts, url)
        except CorruptCheckpoint as e:
            if not how.salvage:
                raise
            damaged.append(Note("damaged", f"not whole: {' '.join(e.message.split())}", (name,)))
    return tensors, damaged


def _join(name: str, pieces: list[Piece], url: str) -> Tensor:
    """One tensor of parts that begin at different places."""
    first = pieces[0][0]
    if any((t.dtype, len(t.shape)) != (first.dtype, len(first.shape)) for t, _ in pieces):
        raise CorruptCheckpoint("its parts have different dtypes or numbers of axes", url=url, tensor=name)
    shape = tuple(max(a + n for a, n in zip(*axis, strict=True)) for axis in _axes(pieces))
    total, steps = checked_count(shape, url=url, tensor=name), c_strides(shape)
    check_tiling(name, shape, [Tile(start, t.shape) for t, start in pieces], url)
    if len(pieces) == 1:  # and so the whole
        return first
    parts = []
    for t, start in pieces:
        if t.count:
            at = sum(a * b for a, b in zip(start, steps, strict=True))
            parts.append(Part(t.parts[0].data, t.dtype, t.shape, 0, c_strides(t.shape), at, steps))
    if not total:
        parts = [Part(first.parts[0].data, first.dtype, shape, 0, steps, 0, steps)]
    return Tensor(name, first.dtype, shape, tuple(parts))


def _axes(pieces: list[Piece]) -> list[tuple[list[int], list[int]]]:
    """For each axis where the parts begin, and how long they are."""
    return [
        ([start[axis] for _, start in pieces], [t.shape[axis] for t, _ in pieces]) for axis in range(len(pieces[0][1]))
    ]
