"""A plan is pure data: the files, and jobs that each own one disjoint range of one file.

    Plan(files, jobs, patches, ...)       what a dry run shows, as JSON
    Job(file, start, size, pieces)        may run anywhere, more than once, in any order
    Piece(tensor, lo, hi, at, parts)      elements [lo, hi) of a tensor go to byte `at` of the job's range

Checksums and content digests are computed per piece, so pieces of a large tensor are cut at multiples of `CHUNK`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from ..checkpoint import Checkpoint, Move, Note, Tensor
from ..dtypes import castable
from ..errors import CkptError, ConversionError, UsageError
from ..formats.placement import Placement
from ..messages import Fold, Told, fold, in_bytes, in_shape, listing, many, printable, redacted, table
from ..moves.derived import derived, is_constant
from ..moves.log import CHUNK, Loss, Record
from ..moves.part import Coded, Data, Piece, Span, Stored, c_strides, is_contiguous, reach
from ..moves.read import WINDOW
from ..storage.files import exists, join, read_all

BANDS = 8  # chunks per job; one that two jobs share is decoded twice, which is at most one of eight
WHOLE = 32 * 2**20  # bytes moved at once of a tensor whose layout changes
BASE_MEMORY = 64 * 2**20  # bytes that the interpreter and the libraries need in addition to --max-memory


@dataclass(frozen=True)
class Budget:
    """The division of `max_memory` in bytes: each worker needs a window for the target and one for the source."""

    limit: int
    workers: int
    window: int
    whole: int

    @classmethod
    def of(cls, limit: int, workers: int) -> Budget:
        """Divide `limit` bytes among workers; UsageError if it is less than 16 MB."""
        if limit < 16_000_000:
            raise UsageError("max_memory= must be at least 16MB")
        workers = max(1, min(workers, limit // (12 * 2**20)))
        share = limit // workers
        window = max(CHUNK, min(WINDOW, share // 3) // CHUNK * CHUNK)
        whole = max(window, min(WHOLE, share // 3) // CHUNK * CHUNK)
        return cls(limit, workers, window, whole)


class Job(NamedTuple):
    """One range of one output file and the pieces that fill it; bytes between pieces are zero."""

    file: str
    start: int
    size: int
    pieces: tuple[Piece, ...]


class Receipt(NamedTuple):
    """What a job did: plain data, so that it can come from another process."""

    job: Job
    written: tuple[Record, ...]
    read: tuple[Record, ...]
    loss: dict[str, Loss]


@dataclass(frozen=True, repr=False)
class Plan(Told):
    """What a conversion will do, as pure data, decided before any tensor is read.

    folder: of the destination. placement: files and slots of the output. jobs: reads and writes, each for one range of
    one file. tensors: of the output. memory: sizes of buffers. notes: what the user should know. moved, metadata: of
    the checkpoint.
    """

    folder: str
    placement: Placement
    jobs: tuple[Job, ...]
    tensors: Mapping[str, Tensor]
    memory: Budget
    notes: tuple[Note, ...] = ()
    moved: Mapping[str, Move] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The column titles of `rows`."""
        rest = [*["rule"] * bool(self.moved), *["file"] * (len(self.placement.files) > 1)]
        return ("tensor", "many", "dtype", "shape", "size", "how", *rest)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as they will be written."""
        return sum(slot.size for slot in self.placement.slots.values())

    def rows(self, *, folded: bool = True) -> list[tuple[str, ...]]:
        """Return a row for each tensor, or for names that differ only in numbers and are treated alike."""
        alike: dict[tuple[str, ...], dict[str, int]] = {}
        for name, t in self.tensors.items():
            move = self.moved.get(name) or Move("", (name,))
            shown = name if move.sources == (name,) else f"{', '.join(move.sources) or '-'} -> {name}"
            rule = move.rule if shown != name else ""
            kind = (t.dtype.name, in_shape(t.shape), how(t), rule, self.placement.slots[name].file)
            alike.setdefault(kind, {})[shown] = t.nbytes
        rows, columns = list[tuple[str, ...]](), self.columns
        for (dtype, shape, way, rule, file), names in alike.items():
            for line in fold(names) if folded else [Fold(printable(n), (n,)) for n in names]:
                count = f"x{len(line.names)}" if len(line.names) > 1 else ""
                size = in_bytes(sum(names[n] for n in line.names))
                rest = [*[rule] * ("rule" in columns), *[file] * ("file" in columns)]
                rows.append((line.text, count, dtype, shape, size, way, *rest))
        return rows

    def lines(self) -> list[str]:
        """Return what a dry run shows: a table, the notes, and the totals."""
        return [*table(self.columns, self.rows(), "lrllr"), *map(str, self.notes), self.sum()]

    def sum(self) -> str:
        """Sum up the plan in one line: tensors, bytes, files, and how much changes."""
        made = self.summary()
        changed = f"; {in_bytes(made['bytes_changed'])} cast, moved or decoded" if made["bytes_changed"] else ""
        size = f"{many(made['tensors'], 'tensor')}, {in_bytes(made['bytes'])}"
        return f"{size} in {many(len(made['files']), 'file')}{changed}"

    def summary(self) -> dict[str, Any]:
        """Return the cost in numbers, such as bytes that are copied and bytes whose layout or elements change."""
        copied = sum(t.nbytes for t in self.tensors.values() if is_copy(t))
        return {
            "tensors": len(self.placement.slots),
            "bytes": self.nbytes,
            "bytes_copied": copied,
            "bytes_changed": sum(t.nbytes for t in self.tensors.values()) - copied,
            "files": [f.name for f in self.placement.files],
            "jobs": len(self.jobs),
            "workers": self.memory.workers,
            "memory": self.memory.workers * (self.memory.window + self.memory.whole),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values: what goes where, and how."""
        return {
            **self.summary(),
            "folder": self.folder,
            "plan": [
                {
                    "name": name,
                    "dtype": t.dtype.name,
                    "shape": list(t.shape),
                    "file": self.placement.slots[name].file,
                    "start": self.placement.slots[name].start,
                    "bytes": self.placement.slots[name].size,
                    "how": how(t),
                    "from": sources(t),
                    **({"by": self.moved[name].to_json()} if name in self.moved else {}),
                }
                for name, t in self.tensors.items()
            ],
            "notes": [n.to_json() for n in self.notes],
        }


def is_copy(t: Tensor) -> bool:
    """Tell whether the bytes of the tensor are copied unchanged."""
    return all(p.dtype == t.dtype and not p.ops and not isinstance(p.data, Coded) and is_contiguous(p) for p in t.parts)


def how(t: Tensor) -> str:
    """Say what happens to a tensor: copy, decode, join 2, transpose, axes 3 2 0 1, rearrange, cast float32."""
    words = []
    if made := next(filter(None, (derived(p.data) for p in t.parts)), None):
        words.append(made.how)
    elif any(isinstance(p.data, Coded) for p in t.parts):
        words.append("decode")
    parts = [p for p in t.parts if not is_constant(p)]
    if len(parts) > 1:
        words.append(f"join {len(parts)}")
    if not all(map(is_contiguous, parts)) and t.count:
        words.append(_axes(t))
    words += ["pad"] if len(parts) < len(t.parts) else []
    words += sorted({op for p in t.parts for op in p.ops})
    kinds = sorted({p.dtype.name for p in t.parts if p.dtype != t.dtype})
    words += [f"cast {k} to {t.dtype.name}" for k in kinds]
    return ", ".join(words) or "copy"


def _axes(t: Tensor) -> str:
    """Say how axes move: transpose (two axes), axes 3 2 0 1 (source axes in the target's order), or rearrange."""
    part = t.parts[0]
    if len(t.parts) > 1 or part.shape != t.shape or part.steps != c_strides(t.shape):
        return "rearrange"
    order = sorted(range(len(t.shape)), key=lambda i: (-part.strides[i], i))
    if c_strides([t.shape[i] for i in order]) != tuple(part.strides[i] for i in order):
        return "rearrange"
    return "transpose" if len(order) == 2 else "axes " + " ".join(str(order.index(i)) for i in range(len(order)))


def made_of(data: Data) -> Sequence[Stored]:
    """Return the tensors that data is computed from when it is read; () if it is stored."""
    made = derived(data)
    return made.sources if made else ()


def sources(t: Stored) -> list[str]:
    """Say where the tensor's bytes come from: 'file@start+size'."""
    out = []
    for p in t.parts:
        if several := made_of(p.data):
            out += [at for one in several for at in sources(one)]
        elif isinstance(p.data, Span):
            out.append(f"{redacted(p.data.url)}@{p.data.start}+{p.data.size}")
        elif isinstance(p.data, Coded):
            out.append(f"{redacted(p.data.url)}#{p.data.key}")
        else:
            out.append("memory")
    return list(dict.fromkeys(out))


def compile_plan(checkpoint: Checkpoint, placement: Placement, folder: str, memory: Budget) -> Plan:
    """Cut the placed tensors into jobs."""
    tensors = checkpoint.tensors
    _check(tensors, memory.limit)
    placed: dict[tuple[str, int], tuple[str, int]] = {}
    for name, slot in placement.slots.items():
        if slot.payload is None and slot.size:
            placed.setdefault((slot.file, slot.start), (name, slot.size))  # ties share a slot and are written once
    jobs = tuple(_cut(placed, tensors, memory))
    written = {*placement.values}  # so notes must not call them left out
    left = [(n, tuple(name for name in n.names if n.tensors or name not in written)) for n in checkpoint.notes]
    notes = (*(n._replace(names=names) for n, names in left if names or not n.names), *placement.notes)
    return Plan(folder, placement, jobs, tensors, memory, notes, checkpoint.moved, checkpoint.metadata)


def shared_notes(placement: Placement, folder: str) -> tuple[Note, ...]:
    """Note which shared files of the folder exist already; the output does not change them.

    Replacing the state file of a training run would make this output its newest checkpoint.
    """
    there = {f.name: url for f in placement.files if f.shared and exists(url := join(folder, f.name))}
    same = {p.file for p in placement.patches if p.file in there and _holds(there[p.file], p.data)}
    text = "the folder's state file stays unchanged; open this checkpoint by its own name, not by its folder"
    return (Note("hint", text, tuple(other)),) if (other := sorted(there.keys() - same)) else ()


def _holds(url: str, data: bytes) -> bool:
    try:
        return read_all(url, len(data)) == data
    except CkptError:
        return False


def _check(tensors: Mapping[str, Tensor], limit: int) -> None:
    """Raise ConversionError for impossible casts, and UsageError if a compressed chunk, which is decoded at once, is
    larger than the memory limit.
    """
    bad = [
        f"{t.name} ({p.dtype} to {t.dtype})"
        for t in tensors.values()
        for p in t.parts
        if p.dtype != t.dtype and not castable(p.dtype, t.dtype)
    ]
    if bad:
        raise ConversionError(f"{len(bad)} tensors cannot be cast:\n{listing(bad)}")
    coded = [(t.name, p.data.chunk) for t in tensors.values() for p in t.parts if isinstance(p.data, Coded)]
    if large := {name: size for name, size in sorted(coded, key=itemgetter(1)) if size > limit}:
        text = "a compressed chunk is decoded at once, and those of these tensors do not fit in max_memory=; give"
        rows = [f"{name}: {in_bytes(size)}" for name, size in large.items()]
        raise UsageError(f"{text} {-(-max(large.values()) // 10**6)}MB:\n{listing(rows)}")


def _cut(
    placed: Mapping[tuple[str, int], tuple[str, int]], tensors: Mapping[str, Tensor], memory: Budget
) -> Iterator[Job]:
    """Cut tensors into jobs: small neighbours share one, a large copy becomes many, and so does a chunked tensor.

    placed: for each (file, start) the tensor whose bytes go there, and their number.
    """
    file, start, end, pieces = "", 0, 0, list[Piece]()
    for (name_of_file, at), (name, size) in sorted(placed.items()):
        t = tensors[name]
        item = t.dtype.itemsize
        decoded = (reach(p.shape, p.steps) for p in t.parts if isinstance(p.data, Coded) and 0 not in p.shape)
        if coded := max(decoded, default=0):
            whole = max(memory.window, -(-BANDS * coded * item // CHUNK) * CHUNK)
        else:
            whole = memory.window if all(map(is_contiguous, t.parts)) else memory.whole
        if pieces and (name_of_file != file or at + size - start > memory.window or whole > memory.window):
            yield Job(file, start, end - start, tuple(pieces))
            pieces = []
        if not pieces:
            file, start = name_of_file, at
        if size <= memory.window:
            pieces.append(Piece(name, t.dtype, 0, size // item, at - start, t.parts))
            end = at + size
            continue
        step = whole // item * item
        for lo in range(0, size, step):
            hi = min(size, lo + step)
            yield Job(file, at + lo, hi - lo, (Piece(name, t.dtype, lo // item, hi // item, 0, t.parts),))
    if pieces:
        yield Job(file, start, end - start, tuple(pieces))
