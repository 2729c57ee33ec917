"""Content hashes that travel along with a checkpoint, and what to do when tensors do not match them or cannot be read.

    check(checkpoint, hashes)    reads everything and compares
    guarded(checkpoint)          compares whatever is read later, by whomever
    salvaged(checkpoint)         leaves out what is damaged

formats/hash_metadata.py says how they stand in a file. A file is laid out with zeros in their place, and `Writer.seal`
is given the metadata with the hashes when all jobs are done; so every format that keeps metadata can carry them.
Of shards the index carries them. They go stale when a tensor changes: what is opened has them in `hashes`, not in
its metadata, and conversions make them anew, after they have compared what they read with the old ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ..checkpoint import Checkpoint, Note, Tensor, plain
from ..errors import CkptError, UsageError, VerifyError
from ..formats.hash_metadata import stated
from ..moves.part import Span
from ..moves.read import hash_check, hash_tensor, spans_of
from ..moves.sources import Sources


class Checked(NamedTuple):
    """Tensors, how many of them had a hash, and bytes that had a checksum."""

    tensors: int
    hashed: int
    checked: int


def check(checkpoint: Checkpoint, hashes: Mapping[str, str], *, workers: int = 1) -> Checked:
    """Read everything; VerifyError names every tensor that is not what its hash or checksum says."""
    hashes = {n: h for n, h in hashes.items() if n in checkpoint}
    if bad := _damaged(checkpoint, hashes, workers):
        from .readback import listed

        url = checkpoint.urls[0] if checkpoint.urls else None
        raise VerifyError(f"{len(bad)} of {len(checkpoint)} tensors are damaged:\n{listed(bad)}", url=url)
    spans = set(spans_of(checkpoint.tensors))
    return Checked(len(checkpoint), len(hashes), sum(s.size for s in spans))


def _damaged(checkpoint: Checkpoint, hashes: Mapping[str, str], workers: int) -> dict[str, str]:
    """Read everything: the tensors that are not what their hash or checksum says, and why."""
    from ..moves.read import each

    def why(t: Tensor, sources: Sources) -> str:
        try:
            same = hash_tensor(t, sources) == hashes.get(t.name, "") or t.name not in hashes
        except CkptError as e:
            return e.message
        return "" if same else "other content than its hash says"

    whys = zip(checkpoint, each(list(checkpoint.values()), why, workers), strict=True)
    return {name: why for name, why in whys if why}


def guarded(checkpoint: Checkpoint) -> Checkpoint:
    """Make every later read of a tensor compare it with the hash that the checkpoint carries.

    What does not lie in one piece (strings, compressed data) is read and compared now. VerifyError names the tensors
    that differ, or says that the hashes are of others.
    """
    hashes = stated(checkpoint)
    checked = {n: _checked(t, hashes[n]) for n, t in checkpoint.tensors.items() if n in hashes}
    now = {n: t for n, t in checkpoint.tensors.items() if n in hashes and checked[n] is None}
    if now:
        check(checkpoint.with_tensors(now), hashes)
    later = {n: t for n, t in checked.items() if t is not None}
    return replace(checkpoint, tensors=checkpoint.tensors | later, hashes={})


def _checked(t: Tensor, digits: str) -> Tensor | None:
    """The tensor with its hash at its span, if it is one span and nothing else."""
    data = t.parts[0].data if len(t.parts) == 1 else None
    if not isinstance(data, Span) or data.size != t.nbytes or t != plain(t.name, t.dtype, t.shape, data, role=t.role):
        return None
    return plain(t.name, t.dtype, t.shape, data._replace(check=hash_check(t, digits)), role=t.role)


def salvaged(checkpoint: Checkpoint, *, workers: int = 1) -> Checkpoint:
    """Without the tensors that cannot be read or do not match their checksums, each noted with the reason.

    Everything is read once for that. UsageError if nothing is left.
    """

    bad = _damaged(checkpoint, {}, workers)
    if not bad:
        return checkpoint
    kept = {n: t for n, t in checkpoint.tensors.items() if n not in bad}
    notes = [Note("damaged", " ".join(why.split()), (name,)) for name, why in bad.items()]
    if not kept:
        raise UsageError(f"keep_going=True: all {len(bad)} tensors are damaged: {notes[0].text}")
    return checkpoint.with_tensors(kept, *notes)


__all__ = ["Checked", "check", "guarded", "salvaged"]
