"""What two checkpoints have that a comparison of their tensors does not see.

told(a, b)         unread tensors, and what is not a tensor: notes that say in which of the two
identical(a, b)    whether the files are the same byte for byte, so that what is unread is the same as well
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from ..checkpoint import Checkpoint, Note
from ..storage.files import Reader

WINDOW = 4 << 20  # bytes that are read of each of two files


def told(a: Checkpoint, b: Checkpoint) -> tuple[tuple[Note, ...], tuple[Note, ...]]:
    """Notes on tensors of either that were not read, and on what is not a tensor.

    Files that are the same byte for byte have the same tensors, read or not: they are told with the rest.
    """
    sides: dict[Note, list[str]] = {}
    for side, checkpoint in (("A", a), ("B", b)):
        for note in dict.fromkeys(n for n in checkpoint.notes if n.kind in ("skipped", "unread")):
            sides.setdefault(note, []).append(side)
    notes = [note._replace(text=f"in {' and '.join(found)}: {note.text}") for note, found in sides.items()]
    known = identical(a.urls, b.urls) if any(n.unread for n in notes) else False
    tensors = tuple(n for n in notes if n.unread and not known)
    return tensors, tuple(n for n in notes if n not in tensors)


def identical(a: Iterable[str], b: Iterable[str]) -> bool:
    """Whether two checkpoints were read from the same files, or from files of the same bytes; False if from none."""
    ones, others = list(a), list(b)
    return bool(ones) and len(ones) == len(others) and all(map(_same_bytes, ones, others))


def _same_bytes(a: str, b: str) -> bool:
    if a == b:
        return True
    with ExitStack() as stack:
        one, other = (stack.enter_context(Reader(url)) for url in (a, b))
        if one.size != other.size:
            return False
        places = ((at, min(WINDOW, one.size - at)) for at in range(0, one.size, WINDOW))
        return all(one.read(*place) == other.read(*place) for place in places)


__all__ = ["identical", "told"]
