"""Write a checkpoint: place, plan, run, seal, and confirm what was written."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import checkpoint
from ..checkpoint import Checkpoint, Note
from ..engine.plan import Budget, Plan, compile_plan, shared_notes
from ..engine.run import How, Outcome, execute, older
from ..errors import Unrepresentable, UsageError
from ..formats import huggingface, own_metadata, table
from ..formats.keras import order
from ..formats.placement import Writer
from ..formats.table import Format
from ..messages import in_bytes, listing, redacted
from ..output.destination import check_replaced, place
from ..rules import passes
from ..storage import files
from ..storage.lookups import cached_lookups, session
from ..verification.readback import confirm, drop_hashes
from .memory import to_checkpoint
from .options import (
    CHANGE,
    RESOURCES,
    SELECT,
    TARGET,
    Options,
    Path,
    Source,
    is_path,
    non_default,
    path as text,
    takes,
)
from .reading import list_of, prepare_with_stamps, refuse_nameless, url_of
from .result import Report, lossy

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .keywords import ConvertOptions

LOG = logging.getLogger("ckptconv")  # what was done, and what a person should know of it
LOG.addHandler(logging.NullHandler())
CONVERT = (*SELECT, *CHANGE, *TARGET, *RESOURCES)
MADE_WITH = (*SELECT, *CHANGE, "skip_unrepresentable")  # what decides which tensors the output holds
FOREIGN = ("tf", "tf-v1", "tf-graph", "keras", "keras3", "flax")  # whose names and layouts are not those of torch.nn


def without_unheld(checkpoint: Checkpoint, writer: Writer) -> Checkpoint:
    """Without what the target cannot hold; if that is all, unchanged, since the writer says why."""
    whys = {n: why for n, t in checkpoint.items() if (why := writer.cannot_hold(t))}
    if len(whys) == len(checkpoint):
        return checkpoint
    for why in sorted(set(whys.values())):
        checkpoint = passes.without(checkpoint, [n for n in whys if whys[n] == why], why)
    return checkpoint


def plan_for(
    checkpoint: Checkpoint, destination: Path, how: Options, sources: Sequence[Source] = ()
) -> tuple[Plan, Writer, Format]:
    """Lay the checkpoint out at the destination, with the small files of the source's folder where they belong."""
    url = text(destination)
    row = _row(checkpoint, url, how)
    checkpoint = passes.escape_metadata(order.fit_to_target(checkpoint, row.name))
    writer: Writer = row.load().writer(url, max_shard_size=how.max_shard_size)
    if folder := _beside(row, how, sources):
        writer = huggingface.along(url, folder, how.max_shard_size)
    if row.name == "hf" and how.copy_files is not False and "config" in checkpoint.details:
        writer = row.load().configured(writer, url, checkpoint.details)
    if how.skip_unrepresentable:
        checkpoint = without_unheld(checkpoint, writer)
    if _hashed(how, row):
        kept = checkpoint.metadata | own_metadata.entries(checkpoint.tensors)
        placement = writer.place(replace(checkpoint, metadata=kept))
    else:
        placement = writer.place(checkpoint)
    notes = list[Note]()
    if names := tuple(f"{old} -> {new}" for old, new in placement.renamed.items() if old != new):
        notes.append(Note("lossy", "the file keeps no name: the tensor is called like it", names))
    slots, owners = placement.slots, checkpoint.owners() if checkpoint.ties else {}
    if again := tuple(n for n, first in owners.items() if slots[n] != slots[first]):
        size = in_bytes(sum(checkpoint[n].nbytes for n in again))
        notes.append(Note("tied", f"{row.name} has no ties: each name gets a copy of its own, {size} more", again))
    folder, _ = files.split(url.rstrip("/"))
    checkpoint = replace(checkpoint, notes=(*checkpoint.notes, *notes, *shared_notes(placement, folder)))
    memory = Budget.of(how.max_memory, how.workers)
    return compile_plan(checkpoint, placement, folder, memory), writer, row


def _beside(row: Format, how: Options, sources: Sequence[Source]) -> str:
    """The folder whose small files are copied, or ''."""
    if how.copy_files and (row.name != "hf" or len(sources) != 1):
        raise UsageError("copy_files=True copies from one source into a folder: use to='hf'")
    if row.name != "hf" or len(sources) != 1 or how.copy_files is False:
        return ""
    source = url_of(sources[0])
    if source and files.is_dir(source):
        return source
    return files.split(source)[0] if how.copy_files else ""


def _row(checkpoint: Checkpoint, url: str, how: Options) -> Format:
    refuse_nameless(url)
    if how.ranks and not how.to:  # a format that is not written by its name, since a converter makes the names
        return table.get("ranks")
    is_keras = checkpoint.format == "keras3" or order.recorded_order(checkpoint)
    row = table.target(url, how.to, "keras" if is_keras else checkpoint.format)
    if row.name == "hdf5" and not how.to and url.endswith(".h5") and order.may_be_keras(checkpoint):
        raise UsageError(
            f"{url!r} could be plain HDF5, or for Keras, whose names these are: use to='keras' or to='hdf5'"
        )
    return row


@takes(*CONVERT, listed=False)
@cached_lookups()
def dry_run(sources: Source | Sequence[Source], destination: Path, **given: Unpack[ConvertOptions]) -> Plan:
    """Plan a conversion without running it; arguments, options and errors are those of `convert`.

    Returns a Plan; print() shows it.
    """
    how, many = Options(**given), list_of(sources)
    checkpoint, stamps, how = _prepared(many, destination, how)
    plan = plan_for(checkpoint, destination, how, many)[0]
    return preview(plan, stamps) if how.force else plan


@takes(*CONVERT)
@cached_lookups()
def convert(sources: Source | Sequence[Source], destination: Path, **given: Unpack[ConvertOptions]) -> Report:
    """Convert a checkpoint, or several merged into one; the destination appears complete or not at all.

    sources: a path or URL, an open checkpoint or what `save` takes, or several of these. destination: the path or URL
    to write; its suffix selects the format unless `to` does. Without other options only the format changes: names,
    values and layouts stay the same.

    Returns a Report. Raises UsageError (options, converters), FormatError (the sources), ConversionError (names,
    layouts, casts, or what the target cannot hold), VerifyError (hashes, reading back), MissingExtra (an optional
    package) and StorageError (the file system; an existing destination without `force`).
    """
    how, many, began = Options(**given), list_of(sources), time.monotonic()
    if how.engine != "local":
        from ..engine import ray

        many = [ray.absolute(text(s)) if is_path(s) else s for s in many]
        destination = ray.absolute(text(destination))
        how = replace(how, map=how.map or ray.engine(how.engine))
    checkpoint, stamps, how = _prepared(many, destination, how)
    return write(checkpoint, destination, how, many, began, stamps)


def _prepared(
    sources: list[Source], destination: Path, how: Options
) -> tuple[Checkpoint, Mapping[str, files.Stamp], Options]:
    """What the target shall hold, with what its metadata shall say of how it was made; the stamps of its files."""
    made, stamps = prepare_with_stamps(sources, how, guard=how.verify is not False)
    if how.verify is False:  # what is not compared with its hashes gets no new ones
        made, hashed = drop_hashes(made)
        how = replace(how, hash=False) if hashed and how.hash is None else how
    url = text(destination)
    row = _row(made, url, how)
    if (given := non_default(how, *MADE_WITH)) and _hashed(how, row):
        made = replace(made, metadata={**made.metadata, own_metadata.OPTIONS: json.dumps(given)})
    hints = dict[str, tuple[str, ...]]()  # and the names that each concerns
    unconverted = not (how.converter or how.rename or how.rename_regex) and made.format in FOREIGN
    if unconverted and row.name in ("torch", "hf"):
        from ..rules import library  # imported only where it is needed: it takes longer than converting a small file

        if name := library.suggestion(made, conventions=True):
            hints[f"names and layouts stay those of the source; converter={name!r} gives those of PyTorch"] = ()
    if row.name == "hdf5" and made.format != "hdf5" and url.endswith(".h5"):
        hints["this is plain HDF5, which Keras' load_weights does not take"] = ()
    if not how.dtype and (scaled := passes.quantised(made)):
        hints["quantised weights and their scales stay as they are stored"] = tuple(sorted(scaled))
    if how.like is None and (others := passes.in_roles(Counter(t.role for t in made.values()))):
        hints[f"includes {others}; weights_only=True leaves them out"] = ()
    folders = filter(files.is_dir, map(url_of, sources)) if row.name != "hf" else ()
    if behind := {n for folder in folders for n in files.names(folder)} & huggingface.KNOWN:
        hints["not copied; to='hf' into a folder copies them"] = tuple(sorted(behind))
    hints[table.of_another(url, row.name)] = ()
    notes = (Note("hint", hint, names) for hint, names in hints.items() if hint)
    return replace(made, notes=(*made.notes, *notes)), stamps, how


@checkpoint.uncollected()
def write(
    checkpoint: Checkpoint,
    destination: Path,
    how: Options = Options(),  # noqa: B008 - frozen
    sources: Sequence[Source] = (),
    began: float | None = None,
    stamps: Mapping[str, files.Stamp] | None = None,
) -> Report:
    """Write a checkpoint as it stands; `stamps` are those of its files when it was opened."""
    began = time.monotonic() if began is None else began
    url = text(destination)
    made, writer, row = plan_for(checkpoint, destination, how, sources)
    read = {**dict.fromkeys(checkpoint.urls, ()), **(stamps or {})}

    def confirmed(outcome: Outcome, unpublished: Callable[[str], str] | None = None) -> None:
        at = unpublished(files.split(url.rstrip("/"))[1]) if unpublished else ""
        # what an earlier run wrote has lain there since, and nobody looked after it
        confirm(made, outcome, url, row, full=how.verify or outcome.resumed, at=at)

    run = How(
        force=how.force,
        sync=how.sync,
        resume=how.resume,
        digest=bool(how.verify) or how.resume or _hashed(how, row),
        map=how.map,
        progress=how.progress,
        hashes=_hashed(how, row),
        stamps=read,  # as private as all of them
        confirm=confirmed if how.verify is not False else None,
        ahead=not how.verify,  # which reads every byte before anything is published
    )
    with session(spared={*map(place, read)} if how.force else ()):
        outcome = execute(made, writer, run)
    if how.verify is not False and (files.is_remote(url) or not outcome.confirmed):  # sent, or renamed by a resumed run
        try:
            confirmed(outcome)
        except KeyboardInterrupt as e:
            vars(e)["written"] = redacted(url)  # whoever reports the interrupt should not deny the output
            raise
    named = tuple(filter(None, map(url_of, sources)))
    done = _report(made, outcome, row.name, how.verify, named, url, checkpoint.format, began)
    for note in done.notes:
        LOG.log(logging.WARNING if note.kind in ("damaged", "lossy") else logging.INFO, "%s", note)
    for line in lossy(done.loss):
        LOG.warning("%s", line)
    LOG.info("%s", done.sum())
    return done


def _report(
    made: Plan,
    outcome: Outcome,
    to: str,
    verify: bool | None,
    sources: tuple[str, ...],
    url: str,
    format: str,
    began: float,
) -> Report:
    """What was done, for people: urls without secrets, the plan's notes with those of the run."""
    folder = url.rstrip("/").removesuffix(files.split(url.rstrip("/"))[1])
    gone = [
        Note("hint", "left by a killed run, now removed", tuple(outcome.cleared)),
        Note("hint", OLDER.format("removed"), tuple(outcome.removed)),
    ]
    kinds = ((t.dtype.name, {p.dtype.name for p in t.parts if p.dtype != t.dtype}) for t in made.tensors.values())
    return Report(
        sources=tuple(map(redacted, sources)),
        destination=redacted(url),
        source_format=format,
        target_format=to,
        tensors=len(made.tensors),
        bytes=made.nbytes,
        seconds=time.monotonic() - began,
        files=tuple(redacted(folder + f.name) for f in made.placement.files),
        notes=(*made.notes, *(note for note in gone if note.names)),
        loss={n: (loss.overflow, loss.underflow) for n, loss in outcome.loss.items()},
        verified_bytes=outcome.verified,
        verify=verify,
        damaged={name: n.text for n in made.notes if n.kind == "damaged" for name in n.names},
        casts=Counter(f"{was} to {now}" for now, before in kinds for was in before),
    )


def _hashed(how: Options, row: Format) -> bool:
    """Whether the output carries content hashes; Unrepresentable if they are asked for and it cannot."""
    if how.hash and row.hashes == "never":
        what = f"{row.title} cannot carry hashes of its tensors"
        raise Unrepresentable(f"{what}: it has a checksum for each, or no metadata; leave hash= out")
    return row.hashes == "always" if how.hash is None else how.hash


@takes(*CONVERT, listed=False)
def save(
    tensors: Any, destination: Path, *, metadata: Mapping[str, str] | None = None, **given: Unpack[ConvertOptions]
) -> Report:
    """Write tensors to `destination`: `convert` for what is in memory, with its options.

    tensors: NumPy, torch or JAX arrays (or what numpy.asarray makes one of) or tensors of an open checkpoint, by
    name; a checkpoint, a state dict, or a torch module. Names in nested dicts, such as the parameters of JAX, are
    joined by '/', or all by '.' if one of the values is a torch tensor. Torch tensors that share memory are tied, if
    the format supports ties. metadata: texts to store; they replace those of a checkpoint.

    Returns a Report. Raises UsageError (lists all values that are not arrays), and what `convert` raises.
    """
    made = to_checkpoint(tensors)
    if odd := {k: v for k, v in (metadata or {}).items() if not isinstance(k, str) or not isinstance(v, str)}:
        lines = listing(f"{k!r} is {type(v).__name__}" for k, v in odd.items())
        raise UsageError(f"names and values of metadata are str; not so:\n{lines}")
    if metadata is not None:
        made = replace(made, metadata=own_metadata.without_hashes(dict(metadata)))
    return convert(made, destination, **given)


OLDER = "files of an older checkpoint of this name, which force=True {}"


def preview(plan: Plan, read: Iterable[str]) -> Plan:
    """The plan, with a note on what `force` would remove; StorageError if a file that was read is in the way."""
    gone = older(plan)
    own = [files.join(plan.folder, f.name) for f in plan.placement.files if not f.shared]
    with session(spared={*map(place, read)}):
        check_replaced(own, [files.join(plan.folder, name) for name in gone], force=True)
    note = Note("hint", OLDER.format("removes"), tuple(gone))
    return replace(plan, notes=(*plan.notes, note)) if gone else plan
