"""Hashes of tensors in a file's metadata.

metadata "ckptconv.xxh3.0": "9f3c..."     32 digits for each tensor, the tensors sorted by name; .1, .2 after 1000
metadata "ckptconv.xxh3":   "1503"        how many there are
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import shake_128
from itertools import islice
from typing import TYPE_CHECKING

from ..checkpoint import Checkpoint
from ..errors import Unrepresentable, VerifyError
from .placement import Patch, Placement, Writer
from .table import Format

if TYPE_CHECKING:
    pass


GROUP = 1000  # hashes in one entry: an attribute of HDF5 holds 64 KB
WIDTH = 32


def reserved(names: Iterable[str]) -> dict[str, str]:
    """Metadata as large as that of these tensors' hashes, of text that stands nowhere else by chance or design."""
    ordered = sorted(names)
    out = {HASHES: str(len(ordered))}
    for i, at in enumerate(range(0, len(ordered), GROUP)):
        group = "\0".join(ordered[at : at + GROUP]).encode("utf-8", "surrogatepass")
        out[f"{HASHES}.{i}"] = shake_128(group).hexdigest(len(ordered[at : at + GROUP]) * WIDTH // 2)
    return out


def entries(hashes: Mapping[str, str]) -> dict[str, str]:
    """The metadata of these tensors and their hashes."""
    ordered = [digits for _, digits in sorted(hashes.items())]
    groups = range(0, len(ordered), GROUP)
    return {HASHES: str(len(ordered))} | {
        f"{HASHES}.{i}": "".join(ordered[at : at + GROUP]) for i, at in enumerate(groups)
    }


def placed(kept: Mapping[str, str], placement: Placement, row: Format) -> None:
    """Raise Unrepresentable unless every entry of `reserved` has its place in the output."""
    wanted = [value.encode() for key, value in kept.items() if key != HASHES]
    if len(list(_places(placement.patches, wanted))) < len(wanted):
        why = "it has its own checksum for each" if placement.check else "it keeps no metadata"
        raise Unrepresentable(f"{row.title} cannot carry hashes of its tensors: {why}; leave --hash out")


def _places(patches: Sequence[Patch], needles: Iterable[bytes]) -> Iterator[tuple[bytes, int, int]]:
    """Where each needle is: number of the patch and place in it. They nearly always come in order, read once."""
    left = list(needles)[::-1]
    for i, patch in enumerate(patches):
        at = 0
        while left and (at := patch.data.find(left[-1], at)) >= 0:
            yield left.pop(), i, at
    for needle in left:
        found = ((i, at) for i, patch in enumerate(patches) if (at := patch.data.find(needle)) >= 0)
        yield from ((needle, i, at) for i, at in islice(found, 1))


def filled(hashes: Mapping[str, str], placement: Placement, writer: Writer) -> Sequence[Patch]:
    """The placement's patches with the hashes in their places.

    A writer that has computed checksums over its metadata is told by `amend`.
    """
    before, after = reserved(hashes), entries(hashes)
    new = {before[k].encode(): after[k].encode() for k in before if k != HASHES}
    places = list(_places(placement.patches, new))
    made = {i: bytearray(placement.patches[i].data) for i in {i for _, i, _ in places}}
    for old, i, at in places:
        made[i][at : at + len(old)] = new[old]
    amend = getattr(writer, "amend", None)
    if amend:
        for old, now in new.items():
            amend(old, now)
    return [p._replace(data=bytes(made[i])) if i in made else p for i, p in enumerate(placement.patches)]


def stated(checkpoint: Checkpoint) -> dict[str, str]:
    """The hashes that a checkpoint carries; VerifyError unless they are of these tensors."""
    carried = checkpoint.details.get("hashes", {})
    if HASHES not in carried:
        return {}
    text = "".join(carried.get(f"{HASHES}.{i}", "") for i in range(len(checkpoint) // GROUP + 2))
    count = carried[HASHES]
    if count != str(len(checkpoint)) or len(text) != WIDTH * len(checkpoint):
        raise VerifyError(
            f"its hashes are of {count:.20} tensors, but it holds {len(checkpoint)}: "
            "whatever changed it kept its metadata",
            url=checkpoint.urls[0] if checkpoint.urls else None,
        )
    return {n: text[WIDTH * i : WIDTH * (i + 1)] for i, n in enumerate(sorted(checkpoint))}


HASHES = "ckptconv.xxh3"  # metadata of this name carries hashes of the tensors: see hashes.py


def hashes_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """The entries that carry hashes of tensors: they are of all tensors together, and of nothing made from them."""
    return {k: v for k, v in metadata.items() if k == HASHES or k.startswith(HASHES + ".")}


def unhashed(metadata: Mapping[str, str]) -> dict[str, str]:
    """The entries that do not."""
    return {k: v for k, v in metadata.items() if k != HASHES and not k.startswith(HASHES + ".")}
