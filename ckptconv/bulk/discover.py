"""Find checkpoints below folders, each once, however many files it has.

    model.ckpt-100.index + .data-00000-of-00002 + .meta     one: model.ckpt-100
    model.ckpt-00000-of-00003 ... (version 1)               one: its first file
    x.safetensors.index.json + x-00001-of-00003.safetensors one: the index, which names its shards
    export/saved_model.pb + variables/                      one: the folder
    arrays/*.npy and nothing else                           one: the folder
    run/3/params/manifest.ocdbt, step_1/target.w/.zarray    one: run/3/params, step_1
    any other file                                          one, if its suffix or its content belongs to a format

Only names and indexes are read, and a few kilobytes of files without a known suffix. Files whose names begin with a dot
are skipped. In a Hugging Face cache the snapshots count, not the blobs they link to.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from ..errors import AmbiguousFormat, CkptError, StorageError, UnsafeCheckpoint, UsageError
from ..formats import companions, detect, table
from ..formats.orbax import locate as orbax
from ..formats.signatures import DISTRIBUTED, SAVED_MODELS
from ..formats.tensorflow.locate import is_state
from ..messages import many
from ..storage.files import (
    Stat,
    filesystem,
    is_dir,
    is_remote,
    join,
    local,
    names,
    read_all,
    split,
    stat,
    walk,
)
from ..storage.lookups import refuse_unlisted
from ..storage.paths import file_name, inside
from . import globs, links

SHARD = re.compile(r"(?P<prefix>.+?)(\.data)?-\d{5}-of-\d{5}", re.DOTALL)  # of TensorFlow, version 2 or 1
STEP = re.compile(r"(?P<series>.*?)[-_.]?(?P<step>\d+)", re.DOTALL)
INDEXES = (".index.json", ".weights.json")
WHOLE = {*SAVED_MODELS, DISTRIBUTED, orbax.MANIFEST, orbax.METADATA, orbax.V3, ".zgroup", "_sharding"}
ARRAYS = (orbax.V2, orbax.V3)  # in folders of a folder of arrays
# Files beside models that are none, which are known by their names: opening each would cost more than all the rest.
SIDE = companions.KNOWN | {"README.md", "LICENSE", "LICENSE.txt", "NOTICE", "trainer_state.json", "all_results.json"}
MAX_INDEX = 2**26  # bytes


class FoundCheckpoint(NamedTuple):
    """One checkpoint: the argument for `open`, its path below the root without the suffix, and all its files.

    problem: why it cannot be converted, if that is already known. It counts as a failure; the others are converted.
    """

    source: str
    name: str
    suffix: str
    files: tuple[tuple[str, Stat], ...]
    problem: CkptError | None = None

    @property
    def size(self) -> int:
        return sum(status.size for _, status in self.files)


def discover(
    sources: Sequence[str], pattern: str = "", *, latest: bool = False, skip: str = "", follow: bool = False,
    listed: Callable[[str], Sequence[str]] = names,
) -> list[FoundCheckpoint]:  # fmt: skip
    """Find the checkpoints in files, folders and globs, sorted by name; StorageError if a source does not exist.

    pattern (UsageError if nothing matches it), latest, follow: as `zoo` describes them. skip: a folder to leave out.
    listed: gives the sorted names in a folder; the rows of a manifest share it.
    """
    roots = [s for s in sources if not is_glob(s) and is_dir(s)]
    out: list[FoundCheckpoint] = []
    for source in sources:
        if is_glob(source):
            out += _globbed(source, follow)
        elif source in roots:
            base = split(source.rstrip("/"))[1]
            under = "" if len(sources) == 1 or base in ("", ".", "..") else base + "/"
            out += _below(source, under, skip, follow)
        else:
            out.append(_file(source, listed))
    unique = {f.source: f for f in out}
    chosen = [f for f in unique.values() if not pattern or _fits(f, pattern)]
    if unique and not chosen:
        raise UsageError(f"none of {many(len(unique), 'checkpoint')} matches pattern={pattern!r}")
    return sorted(_latest(chosen) if latest else chosen, key=lambda f: (f.name, f.suffix))


def is_glob(source: str) -> bool:
    return any(c in source for c in "*?[") and stat(source) is None


def _fits(f: FoundCheckpoint, pattern: str) -> bool:
    path = f.name + f.suffix
    return fnmatchcase(path, pattern) or fnmatchcase(path.rpartition("/")[2], pattern)


def _latest(checkpoints: Iterable[FoundCheckpoint]) -> list[FoundCheckpoint]:
    """Keep only the highest step of each training series (names that differ in their last number)."""
    best: dict[str, tuple[int, FoundCheckpoint]] = {}
    rest = []
    for f in checkpoints:
        m = STEP.fullmatch(f.name)
        if m is None or f.suffix:
            rest.append(f)
        elif m["series"] not in best or int(m["step"]) > best[m["series"]][0]:
            best[m["series"]] = int(m["step"]), f
    return [*rest, *(f for _, f in best.values())]


def _file(source: str, listed: Callable[[str], Sequence[str]]) -> FoundCheckpoint:
    """The checkpoint of a single source: a file, or a prefix with all its files."""
    folder, base = split(source)[0], file_name(source)
    status = stat(source)
    if status is not None and not SHARD.fullmatch(base) and not base.endswith((".index", ".meta", *INDEXES)):
        return FoundCheckpoint(source, *_stem(base), ((source, status),))
    stem = re.split(r"(?:\.data)?-\d{5}-of-|\.index$|\.meta$|\.index\.json$|\.weights\.json$", base)[0]
    here = listed(folder)
    near: dict[str, Stat] = {}
    for n in takewhile(lambda n: n.startswith(stem), here[bisect_left(here, stem) :]):
        if there := stat(join(folder, n)):
            near[n] = there
    for found in _sets(folder, near, ""):
        if split(found.source)[1] == base or source in {url for url, _ in found.files}:
            return found
    if status is None:
        raise StorageError("no such file, folder or checkpoint prefix", url=source)
    return FoundCheckpoint(source, *_stem(base), ((source, status),))


def _globbed(pattern: str, follow: bool) -> Iterator[FoundCheckpoint]:
    """The checkpoints that a shell pattern matches (`**`: any depth); output paths start at its first wildcard."""
    remote = is_remote(pattern)
    refuse_unlisted(pattern)
    if remote:
        fs, path = filesystem(pattern)
        scheme = pattern.split("://")[0] + "://"
        matches = [scheme + str(p).lstrip("/") for p in fs.glob(path)]
    else:
        matches = globs.matches(local(pattern), follow)
    if not matches:
        raise UsageError(f"nothing matches {pattern}")
    fixed = re.split(r"[*?\[]", pattern)[0]
    root = fixed[: fixed.rfind("/") + 1]
    folders: dict[str, set[str]] = {}
    for path in sorted(matches):
        folder, base = split(path)
        whole = is_dir(path)
        if not (remote or follow or inside(path if whole else folder, root or ".")):
            yield _problem(path, path[len(root) :], UnsafeCheckpoint(links.TEXT, url=path))
        elif whole:
            yield from _below(path, path[len(root) :].strip("/") + "/", "", follow)
        else:
            folders.setdefault(folder, set()).add(base)
    for folder, chosen in folders.items():
        files = next(f for _, _, f in walk(folder))
        under = (folder + "/")[len(root) :].strip("/")
        for name, e in {} if remote else links.bad(folder, root or ".", follow).items():
            files.pop(name, None)
            if name in chosen:
                yield _problem(join(folder, name), f"{under}/{name}", e)
        for f in group(folder, files, under + "/" if under else ""):
            if chosen & {split(url)[1] for url, _ in f.files}:
                yield f


def _problem(url: str, path: str, e: CkptError) -> FoundCheckpoint:
    """A checkpoint that cannot be converted, with its path below the root."""
    above, slash, base = path.strip("/").rpartition("/")
    stem, suffix = _stem(base)
    return FoundCheckpoint(url, above + slash + stem, suffix, (), e)


def _below(root: str, under: str, skip: str, follow: bool) -> Iterator[FoundCheckpoint]:
    """All checkpoints in a folder and below it; `under` is put before their names."""
    problems: list[FoundCheckpoint] = []

    def failed(url: str, e: CkptError) -> None:
        problems.append(FoundCheckpoint(url, under + url[len(root.rstrip("/")) :].strip("/"), "", (), e))

    for folder, folders, files in walk(root, failed):
        inside = folder[len(root.rstrip("/")) :].strip("/")
        at = f"{under}{inside}/" if inside else under
        if _is_whole(folder, folders, files):
            folders.clear()  # what is below belongs to it
            name = at.rstrip("/") or split(os.path.abspath(root))[1]
            yield FoundCheckpoint(folder, name, "", tuple(_all_files(folder)))
            continue
        leave = {n for n in folders if n.startswith(".") or join(folder, n) == skip}
        leave |= {"blobs"} if "snapshots" in folders else set()
        folders[:] = [n for n in folders if n not in leave]
        for name, e in {} if is_remote(folder) else links.bad(folder, root, follow).items():
            files.pop(name, None)
            if name.lower().endswith((*_suffixes(), *INDEXES)) or SHARD.fullmatch(name):
                problems.append(_problem(join(folder, name), at + name, e))
        yield from group(folder, files, at)
    yield from problems


def _is_whole(folder: str, folders: Sequence[str], files: Mapping[str, Stat]) -> bool:
    """Whether the folder itself is one checkpoint."""
    npys = bool(files) and all(n.endswith(".npy") for n in files)
    arrays = bool(folders) and any(stat(join(folder, folders[0], n)) for n in ARRAYS)
    if not npys and not arrays and not WHOLE & files.keys():
        return False
    try:
        detect.detect(folder)
    except CkptError:
        return False
    return True


def _all_files(folder: str) -> Iterator[tuple[str, Stat]]:
    for at, _, files in walk(folder):
        yield from ((join(at, name), status) for name, status in files.items())


# --- the files of one folder ------------------------------------------------------------------------------------


def group(folder: str, files: Mapping[str, Stat], under: str) -> Iterator[FoundCheckpoint]:
    """Group the files of one folder into checkpoints."""
    left = {n: s for n, s in files.items() if not n.startswith(".")}
    yield from _sets(folder, left, under)
    for n, status in left.items():
        url = join(folder, n)
        if _is_checkpoint(url, n, status):
            stem, suffix = _stem(n)
            yield FoundCheckpoint(url, under + stem, suffix, ((url, status),))


def _sets(folder: str, left: dict[str, Stat], under: str) -> Iterator[FoundCheckpoint]:
    """Checkpoints of several files; their files are removed from `left`."""

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
            yield take(n, *_stem(n), [n, *pieces])


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
def _suffixes() -> tuple[str, ...]:
    return tuple(s for f in table.table().values() if f.reads for s in f.suffixes)


def _is_checkpoint(url: str, name: str, status: Stat) -> bool:
    """Whether a file is a checkpoint, by suffix or content. If only the suffix is right, the conversion reports it."""
    if name.lower().endswith(_suffixes()):
        return True
    if status.size < 16 or name in SIDE:
        return False
    try:
        if name == "checkpoint" and is_state(url):  # TensorFlow's list of checkpoints is not one
            return False
        detect.detect(url)
    except AmbiguousFormat:
        return True
    except CkptError:
        return False
    return True


def _stem(name: str) -> tuple[str, str]:
    """Split a file name into the stem that an output keeps and the suffix, the longest one of any format."""
    lower = name.lower()
    for index in INDEXES:
        if lower.endswith(index):
            inner, suffix = _stem(name[: -len(index)])
            return inner, suffix + name[-len(index) :]
    fits = [s for s in _suffixes() if lower.endswith(s) and len(s) < len(name)]
    size = max(map(len, fits), default=0)
    return name[: len(name) - size], name[len(name) - size :]
