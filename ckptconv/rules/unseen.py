"""What a source has and is not read: damaged tensors, and those of which no reader makes one.

Notes have their names, which passes on names select and rename as they do those of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..checkpoint import Checkpoint, Note


def lost(checkpoint: Checkpoint) -> list[str]:
    """The names of what was left out as damaged."""
    return [name for note in checkpoint.notes if note.kind == "damaged" for name in note.names]


def unread(checkpoint: Checkpoint) -> list[str]:
    """The names of tensors that no reader looks at, as no dtype fits, for example."""
    return [name for note in checkpoint.notes if note.unread for name in note.names]


def unseen(notes: Iterable[Note], new: Callable[[str], str], *, some: bool = False) -> tuple[Note, ...]:
    """The notes, those on damaged and unread tensors with new names of what they concern, '' for what is not taken.

    some: tensors were included by name. What is damaged without a name is then none of them, as far as is known.
    """
    out = []
    for note in notes:
        if note.unread or (note.kind == "damaged" and note.names):
            note = note._replace(names=tuple(filter(None, map(new, note.names))))
            out += [note] if note.names else []
        else:
            out.append(note._replace(kind="unread", tensors=False) if note.kind == "damaged" and some else note)
    return tuple(out)
