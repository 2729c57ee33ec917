"""Find checkpoints below folders, each once, however many files it has.

    model.ckpt-100.index + .data-00000-of-00002 + .meta     one: model.ckpt-100
    model.ckpt-00000-of-00003 ... (version 1)               one: its first file
    x.safetensors.index.json + x-00001-of-00003.safetensors one: the index, which names its shards
    export/saved_model.pb + variables/                      one: the folder
    arrays/*.npy and nothing else                           one: the folder
    run/3/params/manifest.ocdbt, step_1/target.w/.zarray    one: run/3/params, step_1
    model_world_size_2_rank_0.pt ... and no other model     one: the folder
    iter_0000100/mp_rank_00/model_optim_rng.pt ...          one: iter_0000100
    any other file                                          one, if its suffix or its content belongs to a format

Only names and indexes are read, and a few kilobytes of files without a known suffix. Files whose names begin with a dot
are skipped. In a Hugging Face cache the snapshots count, not the blobs they link to. Links may lead out of a searched
tree only with follow_links=True.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from itertools import takewhile
from stat import S_ISDIR
from typing import NamedTuple

from ..errors import AmbiguousFormat, CkptError, UnsafeCheckpoint, UsageError
from ..formats import detect, huggingface, shard_index, table
from ..formats.orbax import ocdbt as orbax
from ..formats.table import DISTRIBUTED, SAVED_MODEL
from ..formats.tensorflow.bundle import STATE_FILE, is_state
from ..messages import many, printable, redacted
from ..storage.faults import MissingFile, refused
from ..storage.files import Stat, is_dir, is_remote, join, local, names, read_all, split, stat, walk, within
from ..storage.lookups import EXACT, refuse_unlisted
from ..storage.paths import file_name, inside

SHARD = re.compile(r"(?P<prefix>.+?)(\.data)?-\d{5}-of-\d{5}", re.DOTALL)  # of TensorFlow, version 2 or 1
ENDS = re.compile(r"(?:\.data)?-\d{5}-of-|\.index$|\.meta$|\.index\.json$|\.weights\.json$")  # of names of parts
INDEXES = (shard_index.SUFFIX, ".weights.json")
# Common files next to models that are not checkpoints: opening each would cost more than everything else.
SIDE = huggingface.KNOWN | {"README.md", "LICENSE", "LICENSE.txt", "NOTICE", "trainer_state.json", "all_results.json"}
WHOLE = {SAVED_MODEL, DISTRIBUTED, orbax.MANIFEST, orbax.METADATA, orbax.V3, ".zgroup", "_sharding"}
ARRAYS = (orbax.V2, orbax.V3)  # files of each array in a folder of arrays
RANKS = ("ranks", "deepspeed", "dcp", "megatron")
STEP = re.compile(r"(?i)((?:epoch|step|iter|iteration|ckpt|checkpoint)s?[-_.=]?)(\d+)")
MAX_INDEX = 2**26  # bytes
OUTSIDE = "is a link that leads out of the given folder; follow_links=True follows it"


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
    def urls(self) -> list[str]:
        return [url for url, _ in self.files]

    @property
    def size(self) -> int:
        return sum(status.size for _, status in self.files)

    def matches(self, pattern: str) -> bool:
        path = self.name + self.suffix
        return fnmatchcase(path, pattern) or fnmatchcase(path.rpartition("/")[2], pattern)

    @property
    def step(self) -> tuple[str, tuple[int, ...]]:
        """The training series of this step, and its numbers; () if no word in the path, such as `step`, marks them.

        A number at the end of a name without a suffix needs no such word.
        """
        path = self.source if self.suffix else re.sub(r"[-_.]?(\d+)$", r"step\1", self.source)
        return STEP.sub(r"\1", path), tuple(int(n) for _, n in STEP.findall(path))


def discover(
    sources: Sequence[str], pattern: str = "", *, skip: str = "", follow: bool = False,
    listed: Callable[[str], Sequence[str]] = names,
) -> list[FoundCheckpoint]:  # fmt: skip
    """Find the checkpoints in files, folders and globs, sorted by name; StorageError if a source does not exist.

    pattern (UsageError if it matches nothing), follow: as in `zoo`. skip: a folder that globs leave out. listed:
    returns the sorted names in a folder; the rows of a manifest share it.
    """
    found: list[FoundCheckpoint] = []
    for source in sources:
        if is_glob(source):
            found += _globbed(source, skip, follow)
        elif is_dir(source):
            base = _called(source)
            under = "" if len(sources) == 1 or base in ("", ".", "..") else base + "/"
            found += _search(source, under, "", follow)
        else:
            found.append(_file(source, listed))
    distinct = list({f.source: f for f in found}.values())  # sources may overlap
    chosen = [f for f in distinct if f.matches(pattern)] if pattern else distinct
    if distinct and not chosen:
        raise UsageError(f"none of {many(len(distinct), 'checkpoint')} matches pattern={pattern!r}")
    return sorted(chosen, key=lambda f: (f.name, f.suffix))


def _called(root: str) -> str:
    """The name of a folder."""
    return split(root.rstrip("/"))[1]


def is_glob(source: str) -> bool:
    return any(c in source for c in "*?[") and stat(source) is None


def _file(source: str, listed: Callable[[str], Sequence[str]]) -> FoundCheckpoint:
    """Find the checkpoint of a single source: a file, or a prefix with all its files."""
    folder, base = split(source)[0], file_name(source)
    status = stat(source)
    stem = ENDS.split(base)[0]
    if status is None or stem != base:
        here = listed(folder)
        start = bisect_left(here, stem)
        beside = takewhile(lambda n: n.startswith(stem), here[start:])
        near = {n: there for n in beside if (there := stat(join(folder, n)))}
        for found in sets(folder, near, ""):
            if split(found.source)[1] == base or source in found.urls:
                return found
    if status is None:
        raise MissingFile("no such file, folder or checkpoint prefix", url=source)
    return FoundCheckpoint(source, *split_suffix(base), ((source, status),))


# --- folders and globs ---


def _globbed(pattern: str, skip: str, follow: bool) -> list[FoundCheckpoint]:
    """Find the checkpoints that a shell pattern matches (`**`: any depth); output paths start at its first wildcard."""
    refuse_unlisted(pattern)
    if not is_remote(pattern):
        pattern = re.sub("/+", "/", local(pattern))
    elif pattern.startswith(EXACT):  # they have no host
        pattern = re.sub("^([^/:]+://)/+", r"\1", pattern)
    fixed = re.split(r"[*?\[]", pattern)[0]
    root = fixed[: fixed.rfind("/") + 1]
    parts = tuple(part for part in pattern[len(root) :].split("/") if part)
    if ".." in parts:
        raise UsageError(f"{printable(redacted(pattern))}: a pattern goes down only, `..` comes before its wildcards")
    if not (found := list(_search(root or ".", "", skip, follow, parts))):
        raise MissingFile("no checkpoint matches", url=pattern)
    return found


def _search(
    root: str, under: str, skip: str, follow: bool, parts: tuple[str, ...] = ()
) -> Iterator[FoundCheckpoint]:  # fmt: skip
    """Yield all checkpoints in a folder and below it; `under` is put before their names.

    parts: of a pattern, which a file or a folder above it matches. Each folder is searched once. Links to folders are
    followed if the pattern has a part for them that is not `**`; with `follow` also below `**`.
    """
    problems: list[FoundCheckpoint] = []
    todo, seen = [(root, under)], {_number(skip)} - {_number(root), ""}

    def failed(start: str, url: str, path: str, e: CkptError) -> None:
        path = start + path
        above, _, name = path.rpartition("/")
        if not os.path.islink(local(url)) and _leads(f"{above}/" if above else "", name, parts):  # links: see _links
            problems.append(_problem(url, path, e))

    while todo:
        top, start = todo.pop(0)
        for folder, path, folders, files in walk(top, partial(failed, start)):
            at = f"{start}{path}/" if path else start
            if (number := _number(folder)) in seen:
                folders.clear()
                continue
            seen.add(number)
            if _covers(parts, tuple(at.split("/")[:-1])) and _is_whole(folder, folders, files):
                folders.clear()  # the files below belong to it
                yield _whole(
                    folder, at.rstrip("/") or _called(root if is_remote(root) else os.path.abspath(local(root)))
                )
                continue
            blobs = "blobs" if "snapshots" in folders else ""
            folders[:] = [n for n in folders if n != blobs and _leads(at, n, parts)]
            try:
                wrong, linked = _links(folder, root, follow)
            except CkptError as e:
                failed(start, folder, path, e)
                continue
            if not _plain(at, parts) and not (follow and "**" in parts):
                linked = []
            linked = [n for n in linked if _leads(at, n, parts)]
            todo += [(join(folder, n), f"{at}{n}/") for n in linked if n not in wrong]
            for name, why in wrong.items():
                files.pop(name, None)
                known = name.lower().endswith((*suffixes(), *INDEXES)) or SHARD.fullmatch(name)
                if name in linked or (known and _covers(parts, tuple((at + name).split("/")))):
                    problems.append(_problem(join(folder, name), at + name, why))
            for f in group(folder, files, at):
                if any(_covers(parts, tuple((at + split(url)[1]).split("/"))) for url in f.urls):
                    yield f
    yield from problems


def _number(folder: str) -> object:
    """Identify a folder, whatever links lead to it."""
    with suppress(OSError):
        if not is_remote(folder):
            status = os.stat(local(folder))
            return status.st_dev, status.st_ino
    return folder


@lru_cache(2**12)  # without a cache the time is exponential in the number of `**`
def _covers(parts: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """Tell whether a pattern matches a path or a folder above it."""
    if not parts or (parts[0] == "**" and _covers(parts[1:], names)):
        return True
    rest = parts if parts[0] == "**" else parts[1:]
    return bool(names) and _fits(names[0], parts[0]) and _covers(rest, names[1:])


def _plain(at: str, parts: Sequence[str]) -> str:
    """Return the part of a pattern for names in a folder; '' below a match, or if `**` may match the names."""
    depth = at.count("/")
    return "" if "**" in parts[: depth + 1] else "".join(parts[depth : depth + 1])


def _leads(at: str, name: str, parts: Sequence[str]) -> bool:
    """Tell whether a folder `name` in `at` may contain matches, if `at` may."""
    part = _plain(at, parts)
    return _fits(name, part) if part else not name.startswith(".")


def _fits(name: str, part: str) -> bool:
    """Tell whether a part of a pattern matches a name; a dot at the beginning must be in both."""
    return fnmatchcase(name, part) and name.startswith(".") <= part.startswith(".")


def _problem(url: str, path: str, e: CkptError) -> FoundCheckpoint:
    """Make a checkpoint that cannot be converted, with its path below the root."""
    above, slash, base = path.strip("/").rpartition("/")
    stem, suffix = split_suffix(base)
    return FoundCheckpoint(url, above + slash + stem, suffix, (), e)


def _is_whole(folder: str, folders: Sequence[str], files: Mapping[str, Stat]) -> bool:
    """Tell whether the folder itself is one checkpoint."""
    npys = bool(files) and all(n.endswith(".npy") for n in files)
    arrays = bool(folders) and any(stat(join(folder, folders[0], n)) for n in ARRAYS)
    models = [n for n in files if n.lower().endswith((".pt", ".pth", ".bin", ".safetensors"))]
    models += [n for n in folders if n.startswith("mp_rank_")]
    ranks = bool(models) and all("rank" in n or n.startswith(("consolidated.", "shard-")) for n in models)
    if not npys and not arrays and not ranks and not WHOLE & files.keys():
        return False
    try:
        return detect.detect(folder).name in RANKS or not ranks
    except CkptError:
        return False


def _whole(folder: str, name: str) -> FoundCheckpoint:
    """Make the checkpoint of a folder, with all files in it and below it."""
    try:
        inside = tuple((join(at.url, n), status) for at in walk(folder) for n, status in at.files.items())
    except CkptError as e:
        return FoundCheckpoint(folder, name, "", (), e)
    return FoundCheckpoint(folder, name, "", inside)


# --- the files of one folder ---


def group(folder: str, files: Mapping[str, Stat], under: str) -> Iterator[FoundCheckpoint]:
    """Group the files of one folder into checkpoints."""
    left = {n: s for n, s in files.items() if not n.startswith(".")}
    yield from sets(folder, left, under)
    for n, status in left.items():
        url = join(folder, n)
        if _is_checkpoint(url, n, status):
            stem, suffix = split_suffix(n)
            yield FoundCheckpoint(url, under + stem, suffix, ((url, status),))


def sets(folder: str, left: dict[str, Stat], under: str) -> Iterator[FoundCheckpoint]:
    """Yield checkpoints of several files, and remove their files from `left`."""

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
    for n in list(left):  # the graphs that TensorFlow saves with a checkpoint
        if (n.endswith(".meta") and n[:-5] in left) or (bundles and n == "graph.pbtxt"):
            del left[n]
    for n in [n for n in left if n.endswith(INDEXES)]:
        pieces = _pieces(join(folder, n)) if n in left else None
        if pieces is not None:
            yield take(n, *split_suffix(n), [n, *pieces])


def _pieces(url: str) -> list[str] | None:
    """List the files that the index of a sharded checkpoint names; None if it is not an index."""
    try:
        names = json.loads(read_all(url, MAX_INDEX))["weight_map"].values()
    except (CkptError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    flat = [m for n in names for m in (n if isinstance(n, list) else [n])]
    return sorted({n for n in flat if isinstance(n, str)})


@lru_cache(maxsize=1)
def suffixes() -> tuple[str, ...]:
    return tuple(s for f in table.table().values() if f.reads for s in f.suffixes)


def _is_checkpoint(url: str, name: str, status: Stat) -> bool:
    """Tell by suffix or content whether a file is a checkpoint. If only the suffix fits, the conversion reports it."""
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
    size = max((len(s) for s in suffixes() if len(s) < len(name) and lower.endswith(s)), default=0)
    return name[: len(name) - size], name[len(name) - size :]


def _links(folder: str, root: str, follow: bool) -> tuple[dict[str, CkptError], list[str]]:
    """Return the links in a folder that are broken or leave the tree, except to the blobs of a Hugging Face cache; and
    the links to folders."""
    bad, folders = dict[str, CkptError](), list[str]()
    if is_remote(folder):
        return bad, folders
    try:
        with os.scandir(local(folder)) as children:
            links = sorted(e.name for e in children if e.is_symlink())
    except OSError as e:
        raise refused(e, folder) from e
    for name in links:
        url = join(folder, name)
        try:
            if S_ISDIR(os.stat(local(url)).st_mode):
                folders.append(name)
            if not follow and not inside(url, root):
                within(folder, name)
        except OSError as e:
            bad[name] = refused(e, url)
        except CkptError:
            bad[name] = UnsafeCheckpoint(OUTSIDE, url=url)
    return bad, folders
