"""The verbs: open, save, plan, convert, verify. Each is a paragraph over the parts.

path -> detect -> open -> passes -> place -> plan -> run -> seal -> verify
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from . import checkpoint
from .checkpoint import Checkpoint, Note, Tensor, held
from .dtypes import dtype
from .engine import ray
from .engine.plan import Plan, compile_plan
from .engine.run import How, Map, Metadata, Outcome, Progress, execute, threads
from .errors import UsageError
from .formats import detect, table
from .formats.placement import Writer
from .formats.reading import Reading
from .formats.table import Format
from .messages import redacted
from .moves.budget import Budget
from .moves.read import content_hash, hash_tensor
from .moves.sources import Sources
from .rules import passes
from .storage import files
from .verification.readback import confirm

if TYPE_CHECKING:
    from .verification.compare import Diff
    from .verification.hashes import Checked

MEMORY = 512 * 2**20
Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Select:
    """What to read of a source; the same on every verb that reads."""

    format: str | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    opaque: bool = False
    weights_only: bool = False
    ema: bool = False
    keep_going: bool = False  # leave out, with notes, tensors that are damaged or missing
    densify: bool = False  # compute sparse and quantised tensors instead of giving their pieces


@dataclass(frozen=True)
class Change:
    """What to do to names, layouts and dtypes on the way; `converter` is a name, a .toml file or 'auto'."""

    converter: str | None = None
    inverse: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)
    renames: Sequence[str] = ()
    scopes: Sequence[str] = ()
    dtype: str | None = None


@dataclass(frozen=True)
class Target:
    """How to write."""

    format: str | None = None
    max_shard_size: int | None = None
    skip_unrepresentable: bool = False
    force: bool = False
    verify: str = "receipts"  # none, receipts, full
    sync: bool = True
    hash: bool | None = None  # carry a hash of each tensor in the metadata; None: where the format has no checksums
    resume: bool = False  # go on where a killed run of the same plan stopped, and let the next one do so


@dataclass(frozen=True)
class Resources:
    """What it may cost: bytes of memory and threads (None: as many as there are processors, at most 8)."""

    max_memory: int = MEMORY
    jobs: int | None = None
    map: Map | None = None
    progress: Progress | None = None
    engine: str = "local"  # or ray, ray://HOST:PORT

    @property
    def workers(self) -> int:
        return self.jobs or max(1, min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4))


@dataclass(frozen=True)
class Report:
    """What a conversion did."""

    sources: tuple[str, ...]
    destination: str
    source_format: str
    target_format: str
    tensors: int
    bytes: int
    seconds: float
    files: tuple[str, ...]
    notes: tuple[Note, ...]
    loss: Mapping[str, tuple[int, int]]
    verified_bytes: int
    verify: str
    damaged: Mapping[str, str] = field(default_factory=dict)  # tensors that were left out, and why

    def to_json(self) -> dict[str, Any]:
        out = asdict(self)
        out["notes"] = [{"kind": n.kind, "text": n.text, "names": list(n.names)} for n in self.notes]
        return out


def open(
    path: Path,
    *,
    format: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    opaque: bool = False,
    weights_only: bool = False,
    ema: bool = False,
) -> Checkpoint:
    """Open a checkpoint of any known format: a lazy mapping from names to tensors; only headers are read.

    Raises a CkptError for anything that is not a sound checkpoint.
    """
    return _open(os.fspath(path), Select(format, include, exclude, opaque, weights_only, ema))


def _open(url: str, select: Select, *, guard: bool = False) -> Checkpoint:
    found = _opened(url, select)
    if guard and found.hashes:
        from .verification.hashes import guarded

        found = guarded(found)
    return _selected(found, select)


def _opened(url: str, select: Select) -> Checkpoint:
    return detect.open_checkpoint(url, Reading(select.opaque, select.keep_going, select.densify), format=select.format)


def _selected(found: Checkpoint, select: Select) -> Checkpoint:
    found = passes.select(passes.roles(found), select.include, select.exclude)
    if select.ema:
        found = passes.averages(found)
    found = passes.weights_only(found) if select.weights_only else found
    if select.keep_going:
        from .verification.hashes import salvaged

        return salvaged(found)
    return found


@checkpoint.uncollected()
def prepare(sources: Sequence[Path], select: Select, change: Change, *, guard: bool = False) -> Checkpoint:
    """Open the sources and apply all passes: what the target shall hold, still without reading a tensor.

    guard: what is read later is compared with the hashes that the sources carry; VerifyError if they are of others.
    """
    if not sources:
        raise UsageError("no source was given")
    if change.scopes and len(change.scopes) != len(sources):
        raise UsageError(f"{len(sources)} sources need {len(sources)} --scope, one for each; got {len(change.scopes)}")
    opened = [_open(os.fspath(s), select, guard=guard) for s in sources]
    if change.scopes:
        opened = [passes.scope(c, name) for c, name in zip(opened, change.scopes, strict=True)]
    merged = passes.merge(opened)
    if change.converter or change.renames or change.inverse or change.params:
        from .rules import library

        merged = library.change(merged, change.converter, change.renames, inverse=change.inverse, params=change.params)
    return passes.cast(merged, dtype(change.dtype)) if change.dtype else merged


def _holdable(checkpoint: Checkpoint, writer: Writer) -> Checkpoint:
    """Without what the target cannot hold."""
    whys = {n: why for n, t in checkpoint.items() if (why := writer.cannot_hold(t))}
    for why in sorted(set(whys.values())):
        checkpoint = passes.without(checkpoint, [n for n in whys if whys[n] == why], why)
    return checkpoint


def plan_for(
    checkpoint: Checkpoint, destination: Path, target: Target, resources: Resources
) -> tuple[Plan, Writer, Format]:
    """Lay the checkpoint out at the destination."""
    url = os.fspath(destination)
    row = table.target(url, target.format, checkpoint.format)
    writer: Writer = row.load().writer(url, max_shard_size=target.max_shard_size)
    if target.skip_unrepresentable:
        checkpoint = _holdable(checkpoint, writer)
    if _hashed(target, row):
        from .formats import hash_metadata

        kept = checkpoint.metadata | hash_metadata.blank(checkpoint.tensors)
        placement = writer.place(replace(checkpoint, metadata=kept))
        hash_metadata.refuse_hashes(row, placement)
    else:
        placement = writer.place(checkpoint)
    folder, _ = files.split(url.rstrip("/"))
    memory = Budget.of(resources.max_memory, resources.workers)
    moved = checkpoint.details.get("moved", {})
    return compile_plan(checkpoint, placement, folder, memory, moved=moved), writer, row


def _several(sources: Path | Sequence[Path]) -> list[Path]:
    return [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)


def dry_run(
    sources: Path | Sequence[Path],
    destination: Path,
    *,
    select: Select = Select(),
    change: Change = Change(),
    target: Target = Target(),
    resources: Resources = Resources(),
) -> Plan:
    """Say what `convert` would do, without doing it."""
    many = _several(sources)
    checkpoint = prepare(many, select, change, guard=target.verify != "none")
    return plan_for(checkpoint, destination, target, resources)[0]


def convert(
    sources: Path | Sequence[Path],
    destination: Path,
    *,
    select: Select = Select(),
    change: Change = Change(),
    target: Target = Target(),
    resources: Resources = Resources(),
) -> Report:
    """Convert one checkpoint (or several, merged) into one; the destination appears whole or not at all."""
    many = _several(sources)
    began = time.monotonic()
    if resources.engine != "local":
        many = [ray.absolute(os.fspath(s)) for s in many]
        destination = ray.absolute(os.fspath(destination))
    with files.record_stamps() as stamps:
        checkpoint = prepare(many, select, change, guard=target.verify != "none")
    if checkpoint.hashes and target.hash is None:  # --no-verify: what was not compared gets no new hashes
        target = replace(target, hash=False)
    return write(checkpoint, destination, target, resources, tuple(os.fspath(s) for s in many), began, stamps)


@checkpoint.uncollected()
def write(
    checkpoint: Checkpoint,
    destination: Path,
    target: Target = Target(),
    resources: Resources = Resources(),
    sources: tuple[str, ...] = (),
    began: float | None = None,
    stamps: Mapping[str, files.Stamp] | None = None,
) -> Report:
    """Write a checkpoint as it stands; `stamps` are those of its files when it was opened."""
    began = time.monotonic() if began is None else began
    if target.verify not in ("none", "receipts", "full"):
        raise UsageError(f"verify is one of none, receipts, full; not {target.verify!r}")
    made, writer, row = plan_for(checkpoint, destination, target, resources)
    url = os.fspath(destination)

    def confirmed(outcome: Outcome, unpublished: Callable[[str], str]) -> None:
        at = unpublished(files.split(url.rstrip("/"))[1])
        confirm(made, outcome, url, row, full=target.verify == "full", at=at)

    how = How(
        force=target.force,
        sync=target.sync,
        resume=target.resume,
        digest=target.verify == "full" or _hashed(target, row),
        map=resources.map or ray.engine(resources.engine),
        progress=resources.progress,
        metadata=_stated(made, checkpoint) if _hashed(target, row) else None,
        stamps=stamps,
        confirm=confirmed if target.verify != "none" else None,
    )
    outcome = execute(made, writer, how)
    if target.verify != "none" and (files.is_remote(url) or not outcome.confirmed):  # sent, or renamed by a resumed run
        confirm(made, outcome, url, row, full=target.verify == "full")
    return Report(
        tuple(map(redacted, sources)), redacted(os.fspath(destination)), checkpoint.format, row.name,
        len(made.tensors), made.nbytes, time.monotonic() - began, tuple(f.name for f in made.placement.files),
        (*made.notes, *_cleared(outcome)),
        {n: (loss.overflow, loss.underflow) for n, loss in outcome.loss.items()}, outcome.verified, target.verify,
        {name: n.text for n in made.notes if n.kind == "damaged" for name in n.names},
    )  # fmt: skip


def _hashed(target: Target, row: Format) -> bool:
    return row.hashes == "always" if target.hash is None else target.hash


def _stated(made: Plan, checkpoint: Checkpoint) -> Metadata:
    """The metadata with the hashes, once the jobs are done."""
    from .formats import hash_metadata

    def metadata(outcome: Outcome, sources: Sources) -> dict[str, str]:
        found = {n: outcome.digests.get(n) or hash_tensor(t, sources) for n, t in made.tensors.items()}
        return checkpoint.metadata | hash_metadata.entries(made.tensors, found)

    return metadata


def _cleared(outcome: Outcome) -> list[Note]:
    return [Note("hint", "left by a killed run and cleared away", outcome.cleared)] if outcome.cleared else []


def save(
    tensors: Mapping[str, Any], path: Path, *, metadata: Mapping[str, str] | None = None, **options: Any
) -> Report:
    """Write a mapping of arrays (or of tensors that `open` gave) to a file; options are those of `Target`."""
    made = {n: replace(t, name=n) if isinstance(t, Tensor) else _held(n, t) for n, t in tensors.items()}
    ties = tensors.ties if isinstance(tensors, Checkpoint) else ()
    if metadata is None:
        metadata = tensors.metadata if isinstance(tensors, Checkpoint) else {}
    return write(Checkpoint(made, dict(metadata), ties, "memory"), path, Target(**options))


def _held(name: str, array: Any) -> Tensor:
    import numpy as np

    return held(name, np.asarray(array))


def diff(
    a: Path,
    b: Path,
    *,
    select: Select = Select(),
    change: Change = Change(),
    rtol: float | None = None,
    atol: float | None = None,
    resources: Resources = Resources(),
) -> Diff:
    """Compare two checkpoints of any formats, bit for bit or within a tolerance; `change` is applied to A first.

    What is selected of A by name is, without a converter, selected of B as well; with one, what only B holds is not
    a difference.
    """
    from .verification import compare

    left = prepare([a], select, change)
    right = _open(os.fspath(b), replace(select, format=None, include=(), exclude=(), ema=False))
    if select.include or select.exclude:
        renames = change.converter or change.renames
        wanted = (lambda n: n in left) if renames else passes.wanted(select.include, select.exclude)
        right = right.with_tensors({n: t for n, t in right.items() if wanted(n)})
    return compare.diff(left, right, compare.Tolerance(rtol, atol), workers=resources.workers)


def check_itself(source: Path, *, select: Select = Select(), resources: Resources = Resources()) -> Checked:
    """Read a checkpoint whole and compare it with its own checksums and hashes; VerifyError names what is damaged."""
    from .formats import hash_metadata
    from .verification import hashes

    whole = _opened(os.fspath(source), select)
    return hashes.check(_selected(whole, select), hash_metadata.stated(whole), workers=resources.workers)


def check(
    sources: Path | Sequence[Path],
    destination: Path,
    *,
    select: Select = Select(),
    change: Change = Change(),
    target: Target = Target(),
    resources: Resources = Resources(),
) -> Checkpoint:
    """Derive again what the destination should hold and compare every bit; VerifyError says where they differ."""
    from .verification.compare import same

    many = _several(sources)
    url = os.fspath(destination)
    row = table.get(target.format) if target.format else detect.detect(url)
    expected = prepare(many, select, change)
    if target.skip_unrepresentable and row.writes:
        expected = _holdable(expected, row.load().writer(url))
    same(expected, detect.open_checkpoint(url, format=row.name), url, workers=resources.workers)
    return expected


__all__ = [
    "Change", "Report", "Resources", "Select", "Target", "check", "content_hash", "convert", "diff", "dry_run", "open",
    "prepare", "save", "threads", "write",
]  # fmt: skip
