"""Arrays of objects, whose elements are a pickle: np.save of a dictionary, or of a list of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...checkpoint import Checkpoint, Note
from ...errors import CorruptCheckpoint

OBJECTS = "|O"
MAX_PICKLE = 2**31  # bytes
MAX_PREFIX = 300  # characters of the name of an array of objects, which prefixes the names of the tensors in it


def check_pickle(size: int, url: str) -> None:
    if size > MAX_PICKLE:
        raise CorruptCheckpoint(f"an array of objects in {size} bytes; at most {MAX_PICKLE} are unpickled", url=url)


def unpickled(raw: bytes, url: str, opaque: bool, packed: int | None = None) -> Checkpoint:
    """The arrays in an array of objects, under the names of the dictionaries and lists that hold them."""
    from ..pytorch import flatten, pickle
    from ..pytorch.values import NUMPY, PLAIN, PickledArray

    value = pickle.load(raw, allowed={**PLAIN, **NUMPY}, opaque=opaque, url=url, packed=packed)
    if not isinstance(value, PickledArray) or not isinstance(value.items, list):
        raise CorruptCheckpoint("claims to hold objects, but its pickle is not an array of objects", url=url)
    root = value.items[0] if value.shape == () else dict(enumerate(value.items))
    return flatten.checkpoint(root, len(raw) if packed is None else packed, url=url, format="npy")


def within(prefix: str, note: Note) -> Note:
    """A note on an array of objects, with the names that its entries have here."""
    # a longer one, of an array without tensors, would take memory for each entry
    return note._replace(names=tuple(prefix + n for n in note.names)) if len(prefix) <= MAX_PREFIX + 1 else note


def together(notes: Iterable[Note]) -> Iterator[Note]:
    """The notes, one of those that say the same of several arrays of objects."""
    names: dict[Note, list[str]] = {}
    for note in notes:
        names.setdefault(note._replace(names=()), []).extend(note.names)
    yield from (note._replace(names=tuple(found)) for note, found in names.items())
