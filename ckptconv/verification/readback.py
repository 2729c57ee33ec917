"""Compare a checkpoint with the content hashes that it carries, and an output with the data that was written.

    check(checkpoint, hashes)    reads everything and compares
    watch_reads(checkpoint)      makes later reads compare
    guard_reads(checkpoint)      the same for a conversion, which does not read whole arrays
    salvage(checkpoint)          leaves out damaged tensors
    confirm(plan, outcome, ...)  before publication: the format's own reader sees what the plan says; headers always,
                                 with `full` every byte, by the digests that the jobs computed

formats/own_metadata.py defines the form of hashes in a file. A file is laid out with zeros in their place, and
`Writer.seal` receives the metadata with the hashes when all jobs are done, so every format with metadata can carry
them. For shards, the index carries them. Hashes become stale when a tensor changes: an open checkpoint has them in
`hashes`, not in its metadata, and a conversion computes new ones after it has compared its input with the old ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from ..checkpoint import Checkpoint, Note, Tensor, contiguous
from ..engine.plan import Plan
from ..engine.run import Outcome
from ..errors import CkptError, FormatError, StorageError, UsageError, VerifyError
from ..formats import detect
from ..formats.own_metadata import verified_hashes
from ..formats.table import Format
from ..messages import fold, many, reasons
from ..moves.log import HASH
from ..moves.part import Part, Span, c_strides
from ..moves.read import Opened, each, hash_check, hash_tensor, spans_of
from ..moves.sources import Sources


def check(checkpoint: Checkpoint, hashes: Mapping[str, str], *, workers: int = 1) -> tuple[int, int]:
    """Read everything; return how many tensors have a hash, and how many bytes a checksum.

    VerifyError lists every tensor that does not match its hash or checksum.
    """
    hashes = {n: h for n, h in hashes.items() if n in checkpoint}
    if bad := _damaged(checkpoint, hashes, workers):
        url = checkpoint.urls[0] if checkpoint.urls else None
        raise VerifyError(f"damage in {len(bad)} of {many(len(checkpoint), 'tensor')}:\n{reasons(bad)}", url=url)
    return len(hashes), sum(s.size for s in spans_of(checkpoint.tensors))


def _damaged(checkpoint: Checkpoint, hashes: Mapping[str, str], workers: int) -> dict[str, str]:
    """Read everything; return the tensors that do not match their hash or checksum, with the reason."""

    def why(t: Tensor, sources: Sources) -> str:
        try:
            same = hash_tensor(t, sources) == hashes.get(t.name, "") or t.name not in hashes
        except CkptError as e:
            return e.message
        return "" if same else "its content does not match its hash"

    whys = zip(checkpoint, each(list(checkpoint.values()), why, workers), strict=True)
    return {name: why for name, why in whys if why}


def guard_reads(checkpoint: Checkpoint) -> Checkpoint:
    """Make every later read of a tensor compare it with the hash that the checkpoint carries.

    Tensors that are not one span of a file (strings, compressed data) are read and compared now. VerifyError lists the
    tensors that differ, or reports that the hashes belong to other tensors.
    """
    checkpoint = replace(watch_reads(checkpoint), hashes={})
    if now := _hashes(checkpoint):
        check(checkpoint.with_tensors({n: checkpoint[n] for n in now}), now)
    return checkpoint


def watch_reads(checkpoint: Checkpoint) -> Checkpoint:
    """Make every later read of a whole tensor, as an array, compare it with the hash that the checkpoint carries.

    VerifyError if the hashes belong to other tensors.
    """
    hashes = verified_hashes(checkpoint)
    later = {n: _watched(t, hashes[n]) for n, t in checkpoint.items() if n in hashes}
    return replace(checkpoint, tensors=checkpoint.tensors | later)


def drop_hashes(checkpoint: Checkpoint) -> tuple[Checkpoint, bool]:
    """Remove the hashes, including those that `watch_reads` turned into checks; return whether there were any, too."""
    bare = dict[str, Tensor]()
    for name, t in checkpoint.items():
        parts = tuple(_unchecked(p) for p in t.parts)
        if parts != t.parts:
            bare[name] = replace(t, parts=parts)
        elif t.opened and t.opened.hash_of(t):
            bare[name] = replace(t, opened=Opened(t.opened.stamps))
    return replace(checkpoint, tensors=checkpoint.tensors | bare, hashes={}), bool(checkpoint.hashes or bare)


def _unchecked(part: Part) -> Part:
    if isinstance(part.data, Span) and part.data.check.startswith(f"{HASH}:"):
        return part._replace(data=part.data._replace(check=""))
    return part


def _hashes(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the hashes of the tensors that are not one span, except tensors that were changed after opening."""
    return {n: known for n, t in checkpoint.items() if t.opened and (known := t.opened.hash_of(t))}


def _watched(t: Tensor, digits: str) -> Tensor:
    """Add its hash to a tensor: as the check of its span, or in `opened` if it is not exactly one span."""
    part = t.parts[0] if len(t.parts) == 1 else None
    if part is not None and isinstance(part.data, Span):
        url, start, size, _ = part.data
        strides = c_strides(t.shape)
        if size == t.nbytes and part[1:-1] == (t.dtype, t.shape, 0, strides, 0, strides) and not part.changes(t.dtype):
            return contiguous(t.name, t.dtype, t.shape, Span(url, start, size, hash_check(t, digits)), role=t.role)
    return replace(t, opened=Opened(hash=digits, of=(t.dtype, t.shape, t.parts)))


def salvage(checkpoint: Checkpoint) -> Checkpoint:
    """Leave out tensors that cannot be read or do not match their checksums, and note the reasons.

    Everything is read once for this. UsageError if no tensor is left.
    """
    bad = _damaged(checkpoint, _hashes(checkpoint), 1)
    if not bad:
        return checkpoint
    sound = {n: t for n, t in checkpoint.items() if n not in bad}
    alike = defaultdict[str, list[str]](list)
    for name, why in bad.items():
        alike[" ".join(why.partition(":\n")[0].split())].append(name)  # `check` says which bytes
    notes = [Note("damaged", f.text, tuple(n for why in f.names for n in alike[why])) for f in fold(alike)]
    if not sound:
        raise UsageError(f"keep_going=True: nothing is left, because every tensor is damaged: {notes[0].text}")
    return checkpoint.with_tensors(sound, *notes)


# --- the output, before it is published ---


def mismatches(expected: Mapping[str, Tensor], got: Checkpoint) -> dict[str, str]:
    """Return the tensors whose name, dtype or shape is not as expected, with a description."""
    wrong = {}
    for name, t in expected.items():
        if (back := got.get(name)) is None:
            wrong[name] = "missing"
        elif (back.dtype, back.shape) != (t.dtype, t.shape):
            wrong[name] = f"{back.dtype}{list(back.shape)} instead of {t.dtype}{list(t.shape)}"
    return wrong


def confirm(made: Plan, outcome: Outcome, url: str, row: Format, *, full: bool, at: str = "") -> None:
    """Open the output with the format's own reader and check names, dtypes and shapes, and with `full` every byte.

    at: the location of the output until it is published at `url`. VerifyError lists all tensors that differ.
    """
    if not row.reads:
        return
    state = "; nothing is published" if at else ""
    try:
        got = detect.open_checkpoint(at or url, format=row.name)
        if row.proves:
            row.load().prove(got)
        got = made.placement.named(got)
        wrong = mismatches(made.tensors, got)
        slots, digests = made.placement.slots, outcome.digests if full and not wrong else {}
        owner = {slots[n]: n for n in digests if slots[n].size}  # tied tensors are written once
        with Sources() as sources:
            for name, slot in slots.items() if digests else ():
                digest = digests.get(name) or digests.get(owner.get(slot, name))
                if digest and hash_tensor(got[name], sources) != digest:
                    wrong[name] = "its bytes differ from those that were written"
    except (FormatError, StorageError) as e:
        # a refusal of the system is not a fault of the output, but a name in it of a missing file is
        kind = StorageError if isinstance(e.__cause__, OSError) else VerifyError
        raise kind(f"the output cannot be read back{state}: {e.message}", url=url) from e
    if wrong:
        text = f"does not read back as written in {many(len(wrong), 'tensor')}{state}:\n{reasons(wrong)}"
        raise VerifyError(text, url=url)
