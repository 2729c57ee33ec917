"""Metadata about the file itself: content hashes of its tensors, and the options of the conversion that made it.

    metadata "ckptconv.xxh3.0": "9f3c..."          32 digits for each tensor, sorted by name; .1, .2 after 1000 each
    metadata "ckptconv.xxh3":   "2 1503 77ab..."   version, number of tensors, and the seal over all of them
    metadata "ckptconv.options": {"dtype": "float16"}   the options of the conversion, as JSON, if it had any

The seal is the XXH3 of the names, dtypes, shapes and hashes of all tensors, so that the header alone shows whether the
hashes belong to these tensors. Version 1 has only the number of tensors ("1503") and is still read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from json.encoder import encode_basestring_ascii

from ..checkpoint import Checkpoint, Tensor
from ..errors import Unrepresentable, VerifyError
from .placement import Placement
from .table import Format

HASHES = "ckptconv.xxh3"
OPTIONS = "ckptconv.options"
VERSION = "2"
GROUP = 1000  # hashes in one entry: an attribute of HDF5 holds 64 KB
WIDTH = 32
BLANK = "0" * WIDTH


def entries(tensors: Mapping[str, Tensor], hashes: Mapping[str, str]) -> dict[str, str]:
    """The metadata entries for these tensors and hashes."""
    return _entries([hashes[name] for name in sorted(tensors)], seal(tensors, hashes))


def blank(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Metadata of the same width as `entries`, with zeros for hashes, to lay out a file."""
    return _entries([BLANK] * len(tensors), BLANK)


def _entries(hashes: Sequence[str], sealed: str) -> dict[str, str]:
    groups = range(0, len(hashes), GROUP)
    return {HASHES: f"{VERSION} {len(hashes)} {sealed}"} | {
        f"{HASHES}.{i}": "".join(hashes[at : at + GROUP]) for i, at in enumerate(groups)
    }


def seal(tensors: Mapping[str, Tensor], hashes: Mapping[str, str]) -> str:
    """XXH3 of [[name, dtype, shape, hash], ...] as JSON without spaces, in ASCII, the tensors sorted by name."""
    from xxhash import xxh3_128_hexdigest

    text = encode_basestring_ascii
    rows = [f"[{text(n)},{_described(t.dtype.name, t.shape)},{text(hashes[n])}]" for n, t in sorted(tensors.items())]
    return xxh3_128_hexdigest(f"[{','.join(rows)}]".encode())


@lru_cache(maxsize=4096)
def _described(kind: str, shape: tuple[int, ...]) -> str:
    return json.dumps([kind, shape], separators=(",", ":"))[1:-1]


def refuse_hashes(row: Format, placement: Placement) -> None:
    """Raise Unrepresentable if a format cannot carry hashes."""
    if row.hashes == "never":
        why = "it has a checksum for each" if placement.check else "it has no metadata"
        raise Unrepresentable(f"{row.title} cannot carry hashes of its tensors: {why}; leave hash= out")


def stated(checkpoint: Checkpoint) -> dict[str, str]:
    """The hashes that a checkpoint carries, by name; VerifyError unless they belong to its tensors."""
    carried = checkpoint.hashes
    if not carried.keys() - {OPTIONS}:
        return {}
    words = carried.get(HASHES, "").split(" ")
    version, count, sealed = words if len(words) == 3 else ("1", *words, "") if len(words) == 1 else ("", "", "")
    if version not in ("1", VERSION) or not count.isdigit():
        raise _stale(checkpoint, f"its entry {HASHES} is {carried.get(HASHES, 'missing')!r:.40}")
    text = "".join(carried.get(f"{HASHES}.{i}", "") for i in range(len(checkpoint) // GROUP + 2))
    if count != str(len(checkpoint)) or len(text) != WIDTH * len(checkpoint):
        raise _stale(checkpoint, f"its hashes are of {count:.20} tensors, but it holds {len(checkpoint)}")
    hashes = {n: text[WIDTH * i : WIDTH * (i + 1)] for i, n in enumerate(sorted(checkpoint))}
    if version == VERSION and seal(checkpoint.tensors, hashes) != sealed:
        raise _stale(checkpoint, "its hashes are of tensors with other names, dtypes or shapes, or are damaged")
    return hashes


def _stale(checkpoint: Checkpoint, what: str) -> VerifyError:
    text = f"{what}: it is damaged, or a program changed it and kept its metadata"
    return VerifyError(text, url=checkpoint.urls[0] if checkpoint.urls else None)


def hashes_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata entries that apply to all tensors together, and not to converted ones."""
    return {k: v for k, v in metadata.items() if _of_the_file(k)}


def unhashed(metadata: Mapping[str, str]) -> dict[str, str]:
    """The other metadata entries."""
    return {k: v for k, v in metadata.items() if not _of_the_file(k)}


def _of_the_file(key: str) -> bool:
    return key in (HASHES, OPTIONS) or key.startswith(HASHES + ".")
