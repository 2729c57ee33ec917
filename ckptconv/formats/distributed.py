"""A folder of safetensors files in which each process of a distributed run of torch saved its parts of tensors.

    shard-00001-model-00001-of-00001.safetensors     a.w: 2x3, from [0, 0] on
    shard-00002-model-00001-of-00001.safetensors     a.w: 2x3, from [2, 0] on          ->  a.w: 4x3

The parts of a tensor (safetensors.py) must tile it. No file says how large it is: it reaches as far as its parts do, as
for torch, so a shard that is missing at the end is not noticed unless another tensor has a hole; a note says so.
Processes without a part write no file, so numbers may be missing.
Specification: torch/distributed/checkpoint/hf_storage.py (HuggingFaceStorageReader) and _consolidate_hf_safetensors.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..checkpoint import Checkpoint, Details, Note, Tensor, contiguous, tiled
from ..errors import CorruptCheckpoint
from ..messages import many
from ..moves.part import checked_count
from ..storage.files import join, sibling
from ..storage.remote import peek
from . import safetensors
from .table import Reading
from .tiling import Tile, check_tiling

PEEKED = 32  # remote shards whose headers are fetched before the first of them is opened

Piece = tuple[Tensor, safetensors.Start]


def open(folder: str, files: Sequence[str], how: Reading) -> Checkpoint:
    """Open all shards of a folder, and join the parts of each tensor.

    With `how.salvage`, a tensor whose parts do not make it up is left out with a note. A shard that cannot be opened is
    an error also then: any tensor may have parts in it.
    """
    if len({m[1] for file in files if (m := safetensors.SHARD.fullmatch(file))}) > 1:
        raise CorruptCheckpoint("holds shards of several checkpoints: their names end in other numbers", url=folder)
    pieces: dict[str, list[Piece]] = {}
    metadata: dict[str, str] = {}
    notes: dict[Note, None] = {}
    counts: dict[str, int] = {}
    paths = [sibling(join(folder, "."), file) for file in files]
    for at, (file, path) in enumerate(zip(files, paths, strict=True)):
        if at % PEEKED == 0:
            peek(paths[at : at + PEEKED])
        shard = safetensors.read(path, how)
        starts = safetensors.part_starts(shard.metadata, path)
        for name, t in shard.items():
            start = starts.get(name)
            if start is None or len(start) != len(t.shape):
                raise CorruptCheckpoint(f"its {safetensors.INFO} does not say where this begins", url=path, tensor=name)
            pieces.setdefault(name, []).append((t, start))
        counts[file] = len(shard)
        metadata = shard.metadata | metadata
        notes |= dict.fromkeys(shard.notes)
    left_out = {name for note in notes if note.kind == "skipped" for name in note.names}
    tensors, damaged = dict[str, Tensor](), list[Note]()
    for name, parts in pieces.items():
        try:
            if name in left_out:
                raise CorruptCheckpoint("some of its parts are of a dtype that is not read", tensor=name)
            tensors[name] = _join(name, parts, folder)
        except CorruptCheckpoint as e:
            if not how.salvage:
                raise
            damaged.append(Note("damaged", f"not whole: {' '.join(e.message.split())}", (name,)))
    text = (
        f"joined from {many(len(counts), 'shard')} of a distributed run; tensors reach as far as their parts, so a "
        "shard that is missing at the end would not be noticed"
    )
    metadata = {k: v for k, v in metadata.items() if k not in safetensors.KEYS}
    details: Details = {"shards": counts}
    every = (Note("assumed", text), *notes, *damaged)
    return Checkpoint(tensors, metadata, (), "safetensors", tuple(paths), every, details)


def _join(name: str, pieces: list[Piece], url: str) -> Tensor:
    """One tensor of parts that begin at different places."""
    first = pieces[0][0]
    if any((t.dtype, len(t.shape)) != (first.dtype, len(first.shape)) for t, _ in pieces):
        raise CorruptCheckpoint("its parts have different dtypes or numbers of axes", tensor=name)
    ends = [[a + n for a, n in zip(start, t.shape, strict=True)] for t, start in pieces]
    shape = tuple(map(max, *ends)) if len(ends) > 1 else tuple(ends[0])
    total = checked_count(shape, tensor=name)
    check_tiling(name, shape, [Tile(start, t.shape) for t, start in pieces], url)
    if not total:
        return contiguous(name, first.dtype, shape, first.parts[0].data)
    tiles = [(start, t.shape, t.parts[0].data) for t, start in pieces if t.count]
    return tiled(name, first.dtype, shape, tiles)
