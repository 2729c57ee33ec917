"""Metadata of our own in formats without metadata: one text, stored where other readers ignore it.

.npz          extra fields in the zip's directory     .npy folder   a file ckptconv.json beside the arrays
TensorFlow    a field of the index's header           Flax          no place

What has no place, as all metadata of others, is named in a note.

{"ckptconv.keras": "...", "ckptconv.params": "..."}   the order of Keras layers, what an inverse needs
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..checkpoint import Note

MEANING = {
    "ckptconv.keras": "the order of Keras layers",
    "ckptconv.moved": "the names before the converter",
    "ckptconv.params": "sizes that the converter's inverse needs",
    "ckptconv.tied": "the ties that the converter made",
}
PLAIN = {"format"}  # of safetensors: "pt" or the like, by which a loader makes tensors of that framework


def packed(metadata: Mapping[str, str]) -> bytes:
    """Encode our entries as one text; empty if there are none."""
    own = {k: v for k, v in metadata.items() if k in MEANING}
    return json.dumps(own, separators=(",", ":")).encode() if own else b""


def unpacked(raw: bytes) -> dict[str, str]:
    """Decode the entries; {} if the text is not valid, because other programs may write there, too."""
    try:
        found = json.loads(raw)
        return {k: v for k, v in found.items() if k in MEANING and isinstance(v, str)}
    except (ValueError, AttributeError, RecursionError):
        return {}


def lost(metadata: Mapping[str, str], title: str, *, ours: bool = False) -> tuple[Note, ...]:
    """Notes on the metadata that a format has no place for; with `ours` it has one for our entries."""
    what = [meaning for key, meaning in MEANING.items() if key in metadata and not ours]
    others = tuple(key for key in metadata if key not in MEANING and key not in PLAIN)
    notes = [Note("lossy", f"{title} has no place for metadata: it lacks {', and '.join(what)}")] if what else []
    return (*notes, Note("lossy", f"{title} has no place for this metadata", others)) if others else tuple(notes)
