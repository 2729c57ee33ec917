"""A plan is pure data: the files, and jobs that each own one disjoint range of one file.

    Plan(files, jobs, patches, ...)       what a dry run shows, as JSON
    Job(file, start, size, pieces)        may run anywhere, twice, in any order
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

BANDS = 8  # what must be decoded and lies across the end of a job is decoded for both: of eight, one at most
WHOLE = 32 * 2**20  # bytes of a tensor with a layout change that is moved at once
BASE_MEMORY = 64 * 2**20  # bytes that the interpreter and the libraries need in addition to --max-memory


@dataclass(frozen=True)
class Budget:
    """`max_memory` in bytes, divided: each worker needs a window for the target and one for the source."""

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
    """One range of one output file and all that goes there; bytes between pieces are zero."""

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

    folder: the destination's. placement: the files and slots of the output. jobs: what is read and written, each one
    range of one file. tensors: the output's. memory: the buffers in bytes. notes: what the user should know.
    moved and metadata: the checkpoint's.
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
        """For each tensor, or each pattern of names with one fate: source and target, count, kind, size, and how."""
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
        """What a dry run shows: a table, the notes, and what it takes."""
        return [*table(self.columns, self.rows(), "lrllr"), *map(str, self.notes), self.sum()]

    def sum(self) -> str:
        """One line: how much goes where, and what it takes."""
        made = self.summary()
        changed = f"; {in_bytes(made['bytes_changed'])} cast, moved or decoded" if made["bytes_changed"] else ""
        size = f"{many(made['tensors'], 'tensor')}, {in_bytes(made['bytes'])}"
        return f"{size} in {many(len(made['files']), 'file')}{changed}"

    def summary(self) -> dict[str, Any]:
        """Cost in numbers: bytes that are copied as they are, and bytes whose layout or elements change."""
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
        """The whole plan as JSON values: what goes where, and how."""
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
    """Whether the bytes of the tensor are copied unchanged."""
    return all(p.dtype == t.dtype and not p.ops and not isinstance(p.data, Coded) and is_contiguous(p) for p in t.parts)


def how(t: Tensor) -> str:
    """A few words for what happens to a tensor: copy, decode, join 2, transpose, axes 3 2 0 1, rearrange, cast."""
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
    words += [f"cast {k}" for k in kinds]
    return ", ".join(words) or "copy"


def _axes(t: Tensor) -> str:
    """How axes move: transpose (of two), axes 3 2 0 1 (those of the source, in the target's order), or rearrange."""
    part = t.parts[0]
    if len(t.parts) > 1 or part.shape != t.shape or part.steps != c_strides(t.shape):
        return "rearrange"
    order = sorted(range(len(t.shape)), key=lambda i: (-part.strides[i], i))
    if c_strides([t.shape[i] for i in order]) != tuple(part.strides[i] for i in order):
        return "rearrange"
    return "transpose" if len(order) == 2 else "axes " + " ".join(str(order.index(i)) for i in range(len(order)))


def made_of(data: Data) -> Sequence[Stored]:
    """The tensors that data is computed from when it is read; none of what a file or an array has as it is."""
    made = derived(data)
    return made.sources if made else ()


def sources(t: Stored) -> list[str]:
    """Where the tensor's bytes come from, for people: 'file@start+size'."""
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
    written = {*placement.values}  # which no note says to be left out
    left = [(n, tuple(name for name in n.names if n.tensors or name not in written)) for n in checkpoint.notes]
    notes = (*(n._replace(names=names) for n, names in left if names or not n.names), *placement.notes)
    return Plan(folder, placement, jobs, tensors, memory, notes, checkpoint.moved, checkpoint.metadata)


def shared_notes(placement: Placement, folder: str) -> tuple[Note, ...]:
    """Say which files that the checkpoints of a folder have in common are there already: the output leaves them alone.

    To replace the state file of a training run would make the checkpoint that is written its newest.
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
    """ConversionError for casts that cannot be; UsageError if a compressed chunk, which is decoded at once, is larger
    than the limit of the memory.
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
    """Small neighbours share a job; a large copy becomes many, as does what must be decoded in small pieces.

    placed: for each (file, byte of it) the tensor whose bytes go there, and how many these are.
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
