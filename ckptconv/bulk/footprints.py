"""What the output at a path may write, replace or remove, so that no two outputs of a zoo meet.

An output is more than its path: shards and their index, the state file of TensorFlow, a folder. Names are compared as
the least exact file system does: without letter case, and however letters with accents are spelled.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np

NUMBERED = re.compile(r"-\d{5}-of-\d{5}|_\d{5}(?=\.weights\.h5)")  # of shards, however many there are
OURS = re.compile(r"\..+\.([0-9a-f]{8}\.(part|publish)|resume\..*)|\.ckptconv.*", re.DOTALL | re.IGNORECASE)
STATE = "checkpoint"  # of TensorFlow: the checkpoints of a folder share it
LONG = 4096  # characters; no system has longer paths


def key(path: str) -> str:
    """What two names have in common that are one on some file system."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())


def of(at: str, format: str) -> Iterator[str]:
    """The keys of all that an output at this path may hold; numbers of shards are a #."""
    plain = key(at)
    above, slash, base = plain.rpartition("/")
    if format == "tf":
        yield from (f"{plain}.index", f"{plain}.data#", f"{above}{slash}{STATE}")
        return
    yield NUMBERED.sub("#", plain)
    stem, dot, suffix = base.rpartition(".")
    if format in ("hf", "safetensors") and dot:
        yield f"{plain}.index.json"
        yield f"{above}{slash}{stem}#.{suffix}"
    elif base.endswith(".weights.json"):
        yield f"{above}{slash}{base.removesuffix('.weights.json')}#.weights.h5"


def reserved(at: str) -> bool:
    """Whether a path has a name of our temporary files or ledgers, which a later run may remove or write."""
    hidden = at.startswith(".") or "/." in at
    return hidden and any(OURS.fullmatch(word) for word in at.split("/"))


def meeting(outputs: Callable[[], Iterable[tuple[str, str]]]) -> list[list[int]]:
    """Groups of outputs, by number, of which one may write what another does, or something below it.

    outputs: gives their paths and formats, twice. A path takes 8 bytes here.
    """
    hashes, above, states = array("q"), set[int](), set[int]()
    for at, format in outputs():
        for path in of(at, format):
            name = hash(path)
            if format == "tf" and path.endswith(STATE):
                if name in states:
                    continue
                states.add(name)
            hashes.append(name)
        above.update(_above(at, above))
    found = np.sort(np.frombuffer(hashes, np.int64))
    inside = set(np.intersect1d(found, np.fromiter(above, np.int64, len(above))).tolist())
    often = {*found[1:][found[1:] == found[:-1]].tolist(), *inside}
    groups: dict[int, set[int]] = {}
    for k, (at, format) in enumerate(outputs() if often else ()):
        for name in {hash(path) for path in of(at, format)} & often | inside.intersection(_above(at)):
            groups.setdefault(name, set()).add(k)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def _above(at: str, known: Collection[int] = ()) -> Iterator[int]:
    """The hashes of the folders above a path, the nearest first, up to one that is known."""
    path = key(at).rpartition("/")[0] if len(at) < LONG else ""
    while path and (name := hash(path)) not in known:
        yield name
        path = path.rpartition("/")[0]


__all__ = ["key", "meeting", "reserved"]
