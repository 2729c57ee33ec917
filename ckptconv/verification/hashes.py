"""Content hashes that travel along with a checkpoint, and what to do when tensors do not match them or cannot be read.

    metadata "ckptconv.xxh3.0": "9f3c..."     32 digits for each tensor, the tensors sorted by name; .1, .2 after 1000
    metadata "ckptconv.xxh3":   "1503"        how many there are

The digits are `run.content_hash` of dtype, shape and bytes. Their place is laid out before any data exists, filled with
placeholders of the same width, and patched when all jobs are done; so every format that keeps metadata can carry them.
Formats with a row that says `hashes` do unless told otherwise. Of shards the index carries them. They go stale when a
tensor changes: what is opened has them in its details, not in its metadata, and conversions make them anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..checkpoint import Checkpoint, Note, Tensor
from ..errors import CkptError, UsageError, VerifyError
from ..moves.read import hash_tensor, spans_of
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
        raise UsageError(f"--keep-going: all {len(bad)} tensors are damaged: {notes[0].text}")
    return checkpoint.with_tensors(kept, *notes)


__all__ = ["Checked", "check", "salvaged"]
