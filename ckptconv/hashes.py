"""Content hashes that travel with a checkpoint, and what to do when tensors do not match them or cannot be read.

    metadata "ckptconv.blake3.0": "9f3c..."     32 digits for each tensor, the tensors sorted by name; .1, .2 after 1000
    metadata "ckptconv.blake3":   "1503"        how many there are

The digits are `run.content_hash` of dtype, shape and bytes. Their place is laid out before any data exists, filled with
placeholders of the same width, and patched when all jobs are done; so every format that keeps metadata can carry them.
They go stale when a tensor changes: conversions therefore drop them and, if asked, make them anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

from .errors import CkptError, Unrepresentable, UsageError, VerifyError
from .formats import Format, Patch, Placement, Writer
from .job import Sources
from .run import HASHES, hash_tensor, spans_of, stripped, windows
from .stats import each
from .tensor import Checkpoint, Note, Tensor

GROUP = 1000  # hashes in one entry: an attribute of HDF5 holds 64 KB
WIDTH = 32


def entries(names: Iterable[str], hashes: Mapping[str, str]) -> dict[str, str]:
    """The metadata for these tensors; placeholders for those without a hash."""
    ordered = sorted(names)
    digits = [hashes.get(n) or _placeholder(n) for n in ordered]
    groups = range(0, len(digits), GROUP)
    return {HASHES: str(len(ordered))} | {
        f"{HASHES}.{i}": "".join(digits[at : at + GROUP]) for i, at in enumerate(groups)
    }


def _placeholder(name: str) -> str:
    """No file holds it by chance, and it depends on nothing but the name."""
    key = name.encode("utf-8", "surrogatepass")
    return blake2b(key, digest_size=WIDTH // 2, person=b"ckptconv").hexdigest()


def placed(reserved: Mapping[str, str], placement: Placement, row: Format) -> None:
    """Raise Unrepresentable unless every entry has its place in the output."""
    data = [p.data for p in placement.patches]
    for key, value in reserved.items():
        if key != HASHES and not any(value.encode() in d for d in data):
            why = "it has its own checksum for each" if placement.check else "it keeps no metadata"
            raise Unrepresentable(f"{row.title} cannot carry hashes of its tensors: {why}; leave --hash out")


def filled(hashes: Mapping[str, str], placement: Placement, writer: Writer) -> Sequence[Patch]:
    """The placement's patches with the hashes in their places.

    A writer that has computed checksums over its metadata is told by `amend`.
    """
    before, after = entries(hashes, {}), entries(hashes, hashes)
    pairs = [(before[k].encode(), after[k].encode()) for k in before if k != HASHES]
    patches = list(placement.patches)
    for i, patch in enumerate(patches):
        data = patch.data
        for old, new in pairs:
            data = data.replace(old, new)
        patches[i] = patch._replace(data=data)
    amend = getattr(writer, "amend", None)
    if amend:
        for old, new in pairs:
            amend(old, new)
    return patches


def stated(checkpoint: Checkpoint) -> dict[str, str]:
    """The hashes that a checkpoint carries; VerifyError unless they are of these tensors."""
    if HASHES not in checkpoint.metadata:
        return {}
    text = "".join(checkpoint.metadata.get(f"{HASHES}.{i}", "") for i in range(len(checkpoint) // GROUP + 2))
    count = checkpoint.metadata[HASHES]
    if count != str(len(checkpoint)) or len(text) != WIDTH * len(checkpoint):
        raise VerifyError(
            f"its hashes are of {count:.20} tensors, but it holds {len(checkpoint)}; of shards, verify their index",
            url=checkpoint.urls[0] if checkpoint.urls else None,
        )
    return {n: text[WIDTH * i : WIDTH * (i + 1)] for i, n in enumerate(sorted(checkpoint))}


class Checked(NamedTuple):
    """Tensors, how many of them had a hash, and bytes that had a checksum."""

    tensors: int
    hashed: int
    checked: int


def check(checkpoint: Checkpoint, *, workers: int = 1) -> Checked:
    """Read everything; VerifyError names every tensor that is not what its hash or checksum says."""
    hashes = stated(checkpoint)

    def one(t: Tensor, sources: Sources) -> str:
        try:
            same = hash_tensor(t, sources) == hashes.get(t.name, "") or t.name not in hashes
        except CkptError as e:
            return e.message
        return "" if same else "other content than its hash says"

    whys = zip(checkpoint, each(list(checkpoint.values()), one, workers), strict=True)
    bad = {name: why for name, why in whys if why}
    if bad:
        from .confirm import listed

        url = checkpoint.urls[0] if checkpoint.urls else None
        raise VerifyError(f"{len(bad)} of {len(checkpoint)} tensors are damaged:\n{listed(bad)}", url=url)
    spans = set(spans_of(checkpoint.tensors))
    return Checked(len(checkpoint), len(hashes), sum(s.size for s in spans))


def salvaged(checkpoint: Checkpoint, *, workers: int = 1) -> Checkpoint:
    """Without the tensors that cannot be read or do not match their checksums, each noted with the reason.

    Everything is read once for that. UsageError if nothing is left.
    """

    def one(t: Tensor, sources: Sources) -> str:
        try:
            if t.dtype.kind == "s":
                hash_tensor(t, sources)
                return ""
            for _ in windows(t, sources):
                pass
        except CkptError as e:
            return e.message
        return ""

    whys = zip(checkpoint, each(list(checkpoint.values()), one, workers), strict=True)
    bad = {name: why for name, why in whys if why}
    if not bad:
        return checkpoint
    kept = {n: t for n, t in checkpoint.tensors.items() if n not in bad}
    notes = [Note("damaged", " ".join(why.split()), (name,)) for name, why in bad.items()]
    if not kept:
        raise UsageError(f"--keep-going: all {len(bad)} tensors are damaged: {notes[0].text}")
    return replace(checkpoint.with_tensors(kept, *notes), metadata=stripped(checkpoint.metadata))


__all__ = ["Checked", "check", "entries", "filled", "salvaged", "stated"]
