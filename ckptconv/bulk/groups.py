"""Group the files of one folder into checkpoints: those of several files, then each file that is one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from ..errors import AmbiguousFormat, CkptError
from ..formats import companions, detect, huggingface, offsets, shard_index, table
from ..formats.tensorflow.locate import STATE_FILE, is_state
from ..storage.files import Stat, join, read_all
from .found import FoundCheckpoint

SHARD = re.compile(r"(?P<prefix>.+?)(\.data)?-\d{5}-of-\d{5}", re.DOTALL)  # of TensorFlow, version 2 or 1
INDEXES = (shard_index.SUFFIX, ".weights.json")
# Files beside models that are none, which are known by their names: opening each would cost more than all the rest.
SIDE = companions.KNOWN | {"README.md", "LICENSE", "LICENSE.txt", "NOTICE", "trainer_state.json", "all_results.json"}
MAX_INDEX = 2**26  # bytes


def group(folder: str, files: Mapping[str, Stat], under: str) -> Iterator[FoundCheckpoint]:
    """Group the files of one folder into checkpoints."""
    left = {n: s for n, s in files.items() if not n.startswith(".")}
    yield from sets(folder, left, under, files)
    for n, status in left.items():
        url = join(folder, n)
        if _is_checkpoint(url, n, status):
            stem, suffix = split_suffix(n)
            yield FoundCheckpoint(url, under + stem, suffix, ((url, status),))


def sets(folder: str, left: dict[str, Stat], under: str, names: Iterable[str]) -> Iterator[FoundCheckpoint]:
    """Checkpoints of several files; their files are removed from `left`. `names`: of all files of the folder."""

    def take(base: str, stem: str, suffix: str, members: Iterable[str]) -> FoundCheckpoint:
        mine = [n for n in dict.fromkeys(members) if n in left]
        return FoundCheckpoint(
            join(folder, base), under + stem, suffix, tuple((join(folder, n), left.pop(n)) for n in mine)
        )

    bundles: dict[tuple[str, str], list[str]] = {}
    for n in sorted(left):
        if m := SHARD.fullmatch(n):
            bundles.setdefault((m["prefix"], m[2] or ""), []).append(n)
    for (prefix, data), shards in bundles.items():
        first = prefix if data else shards[0]
        yield take(first, prefix, "", [prefix + ".index", *shards, prefix + ".meta"])
    for n in [n for n in left if _is_graph(n, left, bool(bundles))]:
        del left[n]
    for n in [n for n in left if n.endswith(INDEXES)]:
        pieces = _pieces(join(folder, n), left[n]) if n in left else None
        if pieces is not None:
            yield take(n, *split_suffix(n), [n, *pieces])
    parts = offsets.shards(left)
    if parts and _are_joined(join(folder, parts[0])):
        model = huggingface.pieces(list(names))  # unless another is: the two would have one name
        yield take(parts[0], "model" if model else "shards", ".safetensors", parts)


def _are_joined(url: str) -> bool:
    """Whether the shards of a distributed run are one checkpoint: only if the first says so, or cannot be read."""
    try:
        return detect.detect(url).name == detect.INDEX
    except CkptError:
        return True


def _is_graph(name: str, left: Mapping[str, Stat], beside: bool) -> bool:
    """Whether a file is the graph (.meta, .pbtxt) that TensorFlow saves beside a checkpoint."""
    return (name.endswith(".meta") and name[:-5] in left) or (beside and name == "graph.pbtxt")


def _pieces(url: str, status: Stat) -> list[str] | None:
    """The files that the index of a sharded checkpoint names; None if it is not an index."""
    if status.size > MAX_INDEX:
        return None
    try:
        names = json.loads(read_all(url, MAX_INDEX))["weight_map"].values()
    except (CkptError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    flat = [m for n in names for m in (n if isinstance(n, list) else [n])]
    return sorted({n for n in flat if isinstance(n, str)})


@lru_cache(maxsize=1)
def suffixes() -> tuple[str, ...]:
    return tuple(s for f in table.table().values() if f.reads for s in f.suffixes)


@lru_cache(maxsize=1)
def _by_end() -> dict[str, list[str]]:
    """The suffixes of formats by their last part."""
    ends: dict[str, list[str]] = {}
    for s in suffixes():
        ends.setdefault(s[s.rfind(".") :], []).append(s)
    return ends


def _is_checkpoint(url: str, name: str, status: Stat) -> bool:
    """Whether a file is a checkpoint, by suffix or content. If only the suffix is right, the conversion reports it."""
    if name.lower().endswith(suffixes()):
        return True
    if status.size < 16 or name in SIDE:
        return False
    try:
        if name == STATE_FILE and is_state(url):  # TensorFlow's list of checkpoints is not one
            return False
        detect.detect(url)
    except AmbiguousFormat:
        return True
    except CkptError:
        return False
    return True


def split_suffix(name: str) -> tuple[str, str]:
    """Split a file name into the stem that an output keeps and the suffix, the longest one of any format."""
    lower = name.lower()
    for index in INDEXES:
        if lower.endswith(index):
            inner, suffix = split_suffix(name[: -len(index)])
            return inner, suffix + name[-len(index) :]
    fits = [s for s in _by_end().get(lower[lower.rfind(".") :], ()) if lower.endswith(s) and len(s) < len(name)]
    size = max(map(len, fits), default=0)
    return name[: len(name) - size], name[len(name) - size :]


__all__ = ["INDEXES", "SHARD", "group", "sets", "split_suffix", "suffixes"]
