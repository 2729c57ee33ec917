"""What the output at a path may write, replace or remove, so that no two outputs of a zoo meet.

An output is more than its path: shards and their index, the state file of TensorFlow, a folder. Names are compared as
the least exact file system does: without letter case, and however letters with accents are spelled.
"""

from __future__ import annotations

import os
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..formats import shard_index
from ..formats.huggingface import NUMBERED
from ..formats.tensorflow.locate import STATE_FILE, prefix_of
from ..output.staging import TEMPORARY

NUMBER = re.compile(rf"{NUMBERED}(?=(\.[^./]*)?\Z)|_\d{{5}}(?=\.weights\.h5\Z)")  # of a shard
OURS = re.compile(rf"{TEMPORARY}|\.ckptconv.*", re.DOTALL | re.IGNORECASE)
LONG = 4096  # characters; no system has longer paths
Outputs = Callable[[], Iterable[tuple[str, str]]]


def key(path: str) -> str:
    """What two names have in common that are one on some file system."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())


def of(at: str, format: str) -> Iterator[tuple[str, str]]:
    """The names of all that an output at this path may hold, each with what it is.

    own: a name. shared: one that other TensorFlow checkpoints have as well. shards: names that differ in a number,
    which is a #, all of which an output may replace. shard: that of its own name, which is such a number's.
    """
    if format == "tf":
        at = prefix_of(at)
        yield from (("own", f"{at}.index"), ("shards", f"{at}.data#"))
        yield "shared", at[: at.rfind("/") + 1] + STATE_FILE
        return
    yield "own", at
    if (numbered := NUMBER.sub("#", at)) != at:
        yield "shard", numbered
    suffix = ".safetensors" if format == "safetensors" else os.path.splitext(at)[1]
    if format in ("safetensors", "torch"):
        yield from (("own", at + shard_index.SUFFIX), ("shards", f"{at.removesuffix(suffix)}#{suffix}"))
    elif at.endswith(".weights.json"):
        yield "shards", f"{at.removesuffix('.weights.json')}#.weights.h5"


def reserved(at: str) -> bool:
    """Whether a path has a name of our temporary files or ledgers, which a later run may remove or write."""
    hidden = at.startswith(".") or "/." in at
    return hidden and any(OURS.fullmatch(word) for word in at.split("/"))


def meeting(outputs: Outputs) -> list[list[int]]:
    """Groups of outputs, by number, of which one may write or remove what another writes, or something below it.

    outputs: gives their paths and formats, twice: torch if it has shards, '' for a file. A name takes 8 bytes here.
    """
    often = _often(outputs)
    groups: dict[int, set[int]] = {}
    for k, (at, format) in enumerate(outputs() if often else ()):
        names = {hash(key(name)) for _, name in of(at, format)}
        for name in often.intersection({*names, *_above(at, "")}):
            groups.setdefault(name, set()).add(k)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def _often(outputs: Outputs) -> set[int]:
    """The hashes of the names at which outputs meet."""
    kinds = {kind: array("q") for kind in ("own", "shared", "shards", "shard", "above")}
    last = ""
    for at, format in outputs():
        for kind, name in of(at, format):
            kinds[kind].append(hash(key(name)))
        kinds["above"].extend(_above(at, last))
        last = at
    found = {kind: np.frombuffer(hashes, np.int64) for kind, hashes in kinds.items()}
    for hashes in found.values():
        hashes.sort()  # in place
    own, above = found["own"], found["above"]
    met = [own[1:][own[1:] == own[:-1]], _both(own, above), _both(found["shards"], found["shard"])]
    met += [_both(found["shared"], own), _both(found["shared"], above)]
    return {int(name) for names in met for name in names}


def _both(some: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """What is in both of two sorted arrays."""
    if not len(others):
        return some[:0]
    found: NDArray[np.int64] = some[others[np.minimum(np.searchsorted(others, some), len(others) - 1)] == some]
    return found


def _above(at: str, last: str) -> Iterator[int]:
    """The hashes of the folders above a path, the nearest first, up to one that is above the last path, too."""
    path = at.rpartition("/")[0] if len(at) < LONG else ""
    while path and not last.startswith(f"{path}/"):
        yield hash(key(path))
        path = path.rpartition("/")[0]


__all__ = ["key", "meeting", "reserved"]
