"""Metadata of our own: content hashes of tensors, the options that made a file, and what an inverse needs.

    metadata "ckptconv.xxh3.0": "9f3c..."          32 digits for each tensor, sorted by name; .1, .2 after 1000 each
    metadata "ckptconv.xxh3":   "2 1503 77ab..."   version, number of tensors, and the seal over all of them
    metadata "ckptconv.options": {"dtype": "float16"}   the options of the conversion, as JSON, if it had any

The seal is the XXH3 of the names, dtypes, shapes and hashes of all tensors, so that the header alone shows whether the
hashes belong to these tensors.

    metadata "ckptconv.keras", "ckptconv.params" ...    what `MEANING` lists

Formats without metadata store the entries of `MEANING` as one text, as JSON, where other readers ignore it: .npz in
extra fields of the zip's directory, a folder of .npy in ckptconv.json, TensorFlow in a field of the index's header.
Flax has no place. What has no place, as all metadata of others, is named in a note.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from ..checkpoint import Checkpoint, Note, Tensor
from ..errors import VerifyError

HASHES = "ckptconv.xxh3"
OPTIONS = "ckptconv.options"
VERSION = "2"
GROUP = 1000  # hashes in one entry: an attribute of HDF5 holds 64 KB
WIDTH = 32
BLANK = "0" * WIDTH
OF_THE_FILE = re.compile(r"(?s)ckptconv\.(options|xxh3(\..*)?)")


def entries(tensors: Mapping[str, Tensor], hashes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The metadata entries for these tensors and hashes; without hashes zeros of the same width, to lay out a file."""
    listed = [BLANK if hashes is None else hashes[name] for name in sorted(tensors)]
    sealed = BLANK if hashes is None else seal(tensors, hashes)
    return {HASHES: f"{VERSION} {len(listed)} {sealed}"} | {
        f"{HASHES}.{at // GROUP}": "".join(listed[at : at + GROUP]) for at in range(0, len(listed), GROUP)
    }


def seal(tensors: Mapping[str, Tensor], hashes: Mapping[str, str]) -> str:
    """XXH3 of [[name, dtype, shape, hash], ...] as JSON without spaces, in ASCII, the tensors sorted by name."""
    from xxhash import xxh3_128_hexdigest

    rows = [(n, t.dtype.name, t.shape, hashes[n]) for n, t in sorted(tensors.items())]
    return xxh3_128_hexdigest(json.dumps(rows, separators=(",", ":")).encode())


def verified_hashes(checkpoint: Checkpoint) -> dict[str, str]:
    """The hashes that a checkpoint carries, by name; VerifyError unless they belong to its tensors."""
    entries = checkpoint.hashes
    if not entries.keys() - {OPTIONS}:
        return {}
    words = entries.get(HASHES, "").split(" ")
    if len(words) != 3 or words[0] != VERSION:
        raise _stale(checkpoint, f"its entry {HASHES} is {entries.get(HASHES, 'missing')!r:.40}")
    _, count, sealed = words
    text = "".join(entries.get(f"{HASHES}.{i}", "") for i in range(len(checkpoint) // GROUP + 2))
    if count != str(len(checkpoint)) or len(text) != WIDTH * len(checkpoint):
        raise _stale(checkpoint, f"its hashes are of {count:.20} tensors, but it holds {len(checkpoint)}")
    hashes = {n: text[WIDTH * i : WIDTH * (i + 1)] for i, n in enumerate(sorted(checkpoint))}
    if seal(checkpoint.tensors, hashes) != sealed:
        raise _stale(checkpoint, "its hashes are of tensors with other names, dtypes or shapes, or are damaged")
    return hashes


def _stale(checkpoint: Checkpoint, what: str) -> VerifyError:
    text = f"{what}: it is damaged, or a program changed it and kept its metadata"
    return VerifyError(text, url=checkpoint.urls[0] if checkpoint.urls else None)


def hashes_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata entries that apply to all tensors together, and not to converted ones."""
    return {k: v for k, v in metadata.items() if OF_THE_FILE.fullmatch(k)}


def without_hashes(metadata: Mapping[str, str]) -> dict[str, str]:
    """The other metadata entries."""
    return {k: v for k, v in metadata.items() if not OF_THE_FILE.fullmatch(k)}


# --- in formats without metadata ------------------------------------------------------------------------------------

MEANING = {
    "ckptconv.keras": "the order of Keras layers",
    "ckptconv.moved": "the names before the converter",
    "ckptconv.params": "sizes that the converter's inverse needs",
    "ckptconv.tied": "the ties that the converter made",
}
PLAIN = {"format"}  # of safetensors: "pt" or the like, by which a loader makes tensors of that framework


def pack(metadata: Mapping[str, str]) -> bytes:
    """Encode our entries as one text; empty if there are none."""
    own = {k: v for k, v in metadata.items() if k in MEANING}
    return json.dumps(own, separators=(",", ":")).encode() if own else b""


def unpack(raw: bytes) -> dict[str, str]:
    """Decode the entries; {} if the text is not valid, because other programs may write there, too."""
    try:
        found = json.loads(raw)
        return {k: v for k, v in found.items() if k in MEANING and isinstance(v, str)}
    except (ValueError, AttributeError, RecursionError):
        return {}


def lost_metadata(metadata: Mapping[str, str], title: str, *, ours: bool = False) -> tuple[Note, ...]:
    """Notes on the metadata that a format has no place for; with `ours` it has one for our entries."""
    what = [meaning for key, meaning in MEANING.items() if key in metadata and not ours]
    others = tuple(key for key in metadata if key not in MEANING and key not in PLAIN)
    notes = [Note("lossy", f"{title} has no place for metadata: it lacks {', and '.join(what)}")] if what else []
    return (*notes, Note("lossy", f"{title} has no place for this metadata", others)) if others else tuple(notes)
