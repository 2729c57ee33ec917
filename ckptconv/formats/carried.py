"""Metadata of our own in formats without metadata: one text, stored where other readers ignore it.

.npz          extra fields in the zip's directory     .npy folder   a file ckptconv.json beside the arrays
TensorFlow    a field of the index's header           Flax          no place: a note says what is lost

{"ckptconv.keras": "...", "ckptconv.params": "..."}   the order of Keras layers, what an inverse needs
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from ..checkpoint import Note

MEANING = {
    "ckptconv.keras": "the order of Keras layers",
    "ckptconv.moved": "the names before the converter",
    "ckptconv.params": "sizes that the converter's inverse needs",
    "ckptconv.tied": "the ties that the converter made",
}


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


def lost(entries: Collection[str], title: str) -> tuple[Note, ...]:
    """A note on our entries that a format has no place for."""
    what = [meaning for key, meaning in MEANING.items() if key in entries]
    return (Note("lossy", f"{title} has no place for metadata: it lacks {', and '.join(what)}"),) if what else ()
