"""Find checkpoints below folders, each once, however many files it has.

    model.ckpt-100.index + .data-00000-of-00002 + .meta     one: model.ckpt-100
    model.ckpt-00000-of-00003 ... (version 1)               one: its first file
    x.safetensors.index.json + x-00001-of-00003.safetensors one: the index, which names its shards
    shard-00001-model-00001-of-00001.safetensors, shard-... one: the first of these, which hold parts of tensors
    export/saved_model.pb + variables/                      one: the folder
    arrays/*.npy and nothing else                           one: the folder
    run/3/params/manifest.ocdbt, step_1/target.w/.zarray    one: run/3/params, step_1
    any other file                                          one, if its suffix or its content belongs to a format

Only names and indexes are read, and a few kilobytes of files without a known suffix. Files whose names begin with a dot
are skipped. In a Hugging Face cache the snapshots count, not the blobs they link to.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile

from ..errors import CkptError, StorageError, UnsafeCheckpoint, UsageError
from ..formats import detect, offsets
from ..formats.orbax import locate as orbax
from ..formats.signatures import DISTRIBUTED, SAVED_MODELS
from ..messages import links as chain
from ..messages import many, printable, redacted
from ..storage.files import (
    Stat,
    is_dir,
    is_remote,
    join,
    local,
    names,
    split,
    stat,
    walk,
)
from ..storage.lookups import EXACT, refuse_unlisted
from ..storage.paths import file_name, inside
from . import globs, links
from .found import FoundCheckpoint, Packed, pack, parts, repeated, unpack
from .groups import INDEXES, SHARD, group, sets, split_suffix, suffixes

WHOLE = {*SAVED_MODELS, DISTRIBUTED, orbax.MANIFEST, orbax.METADATA, orbax.V3, ".zgroup", "_sharding"}
ARRAYS = (orbax.V2, orbax.V3)  # in folders of a folder of arrays


def discover(
    sources: Sequence[str], pattern: str = "", *, skip: str = "", follow: bool = False,
    listed: Callable[[str], Sequence[str]] = names,
) -> list[FoundCheckpoint]:  # fmt: skip
    """Find the checkpoints in files, folders and globs, sorted by name; StorageError if a source does not exist.

    pattern (UsageError if nothing matches it), follow: as `zoo` describes them. skip: a folder to leave out.
    listed: gives the sorted names in a folder; the rows of a manifest share it.
    """
    return [unpack(row)[0] for row in packed(sources, pattern, skip=skip, follow=follow, listed=listed)]


def packed(
    sources: Sequence[str], pattern: str = "", *, skip: str = "", follow: bool = False,
    listed: Callable[[str], Sequence[str]] = names,
) -> list[Packed]:  # fmt: skip
    """As `discover`, in the compact form."""
    rows = [pack(f) for f in _all(sources, skip, follow, listed)]
    if twice := repeated(lambda: (parts(row)[0] for row in rows)):
        last = {source: k for k, row in enumerate(rows) if (source := parts(row)[0]) in twice}
        rows = [row for k, row in enumerate(rows) if last.get(parts(row)[0], k) == k]
    if pattern and rows:
        count, rows = len(rows), [row for row in rows if fits(row, pattern)]
        if not rows:
            raise UsageError(f"none of {many(count, 'checkpoint')} matches pattern={pattern!r}")
    rows.sort(key=lambda row: "\0".join(parts(row)[1:3]))  # as by name and then suffix
    return rows


def _all(
    sources: Sequence[str], skip: str, follow: bool, listed: Callable[[str], Sequence[str]]
) -> Iterator[FoundCheckpoint]:
    """The checkpoints of all sources, in any order; those of sources that overlap twice."""
    roots = {s for s in sources if not is_glob(s) and is_dir(s)}
    for source in sources:
        if is_glob(source):
            yield from _globbed(source, skip, follow)
        elif source in roots:
            base = _called(source)
            under = "" if len(sources) == 1 or base in ("", ".", "..") else base + "/"
            yield from _below(source, under, skip, follow)
        else:
            yield _file(source, listed)


def _called(root: str) -> str:
    """The name of a folder, or of the archive of which it is the outermost one."""
    return split(root.rstrip("/"))[1] or file_name(redacted(chain(root)[-1]))


def is_glob(source: str) -> bool:
    return any(c in source for c in "*?[") and stat(source) is None


def fits(row: Packed, pattern: str) -> bool:
    path = "".join(parts(row)[1:3])
    return fnmatchcase(path, pattern) or fnmatchcase(path.rpartition("/")[2], pattern)


def _file(source: str, listed: Callable[[str], Sequence[str]]) -> FoundCheckpoint:
    """The checkpoint of a single source: a file, or a prefix with all its files."""
    folder, base = split(source)[0], file_name(source)
    status = stat(source)
    several = SHARD.fullmatch(base) or offsets.SHARD.fullmatch(base) or base.endswith((".index", ".meta", *INDEXES))
    if status is not None and not several:
        return FoundCheckpoint(source, *split_suffix(base), ((source, status),))
    stem = re.split(r"(?:\.data)?-\d{5}-of-|\.index$|\.meta$|\.index\.json$|\.weights\.json$", base)[0]
    stem = "shard-" if offsets.SHARD.fullmatch(base) else stem
    here = listed(folder)
    near: dict[str, Stat] = {}
    for n in takewhile(lambda n: n.startswith(stem), here[bisect_left(here, stem) :]):
        if there := stat(join(folder, n)):
            near[n] = there
    for found in sets(folder, near, "", here):
        if split(found.source)[1] == base or source in {url for url, _ in found.files}:
            return found
    if status is None:
        raise StorageError("no such file, folder or checkpoint prefix", url=source)
    return FoundCheckpoint(source, *split_suffix(base), ((source, status),))


def _globbed(pattern: str, skip: str, follow: bool) -> Iterator[FoundCheckpoint]:
    """The checkpoints that a shell pattern matches (`**`: any depth); output paths start at its first wildcard."""
    remote = is_remote(pattern)
    refuse_unlisted(pattern)
    if not remote:
        pattern = re.sub("/+", "/", local(pattern))  # as matches are spelled, from which the root is cut off
    elif pattern.startswith(EXACT):  # they have no host; elsewhere an empty one may be the usual one
        pattern = re.sub("^([^/:]+://)/+", r"\1", pattern)
    fixed = re.split(r"[*?\[]", pattern)[0]
    root = fixed[: fixed.rfind("/") + 1]
    if ".." in (chain(pattern)[0] if remote else pattern)[len(root) :].split("/"):
        raise UsageError(f"{printable(redacted(pattern))}: a pattern goes down only, `..` comes before its wildcards")
    matches = globs.listed(pattern, root) if remote else dict.fromkeys(globs.matches(pattern, follow))
    if not matches:
        raise UsageError(f"nothing matches {printable(redacted(pattern))}")
    folders: dict[str, set[str]] = {}
    for path, odd in sorted(matches.items(), key=lambda found: found[0]):
        if odd:
            yield _problem(path, path[len(root) :], odd)
            continue
        folder, base = split(path)
        whole = is_dir(path)
        if not (remote or follow or inside(path if whole else folder, root or ".")):
            yield _problem(path, path[len(root) :], UnsafeCheckpoint(links.TEXT, url=path))
        elif whole:
            try:
                yield from _below(path, path[len(root) :].strip("/") + "/", skip, follow)
            except CkptError as e:  # it cannot be read
                yield _problem(path, path[len(root) :], e)
        else:
            folders.setdefault(folder, set()).add(base)
    for folder, chosen in folders.items():
        yield from _chosen(folder, chosen, root, follow)


def _chosen(folder: str, chosen: set[str], root: str, follow: bool) -> Iterator[FoundCheckpoint]:
    """The checkpoints in a folder to which one of these files belongs."""
    wrong: dict[str, CkptError] = {}
    try:
        files = next(level.files for level in walk(folder, lambda _, path, e: wrong.update({path: e})))
        wrong |= links.bad(folder, root or ".", follow)
    except CkptError as e:
        files, wrong = {}, dict[str, CkptError].fromkeys(sorted(chosen), e)
    under = "" if folder == "." else (folder + "/")[len(root) :].strip("/")
    for name, why in wrong.items():
        files.pop(name, None)
        if name in chosen:
            yield _problem(join(folder, name), f"{under}/{name}", why)
    for f in group(folder, files, under + "/" if under else ""):
        if chosen & {split(url)[1] for url, _ in f.files}:
            yield f


def _problem(url: str, path: str, e: CkptError) -> FoundCheckpoint:
    """A checkpoint that cannot be converted, with its path below the root."""
    above, slash, base = path.strip("/").rpartition("/")
    stem, suffix = split_suffix(base)
    return FoundCheckpoint(url, above + slash + stem, suffix, (), e)


def _below(root: str, under: str, skip: str, follow: bool) -> Iterator[FoundCheckpoint]:
    """All checkpoints in a folder and below it; `under` is put before their names."""
    problems: list[FoundCheckpoint] = []

    def failed(url: str, path: str, e: CkptError) -> None:
        if not os.path.islink(local(url)):  # of those links.bad tells
            problems.append(FoundCheckpoint(url, under + path, "", (), e))

    for folder, path, folders, files in walk(root, failed):
        at = f"{under}{path}/" if path else under
        if _is_whole(folder, folders, files):
            folders.clear()  # what is below belongs to it
            yield _whole(folder, at.rstrip("/") or _called(root if is_remote(root) else os.path.abspath(local(root))))
            continue
        leave = {n for n in folders if n.startswith(".") or _is_one(join(folder, n), skip)}
        leave |= {"blobs"} if "snapshots" in folders else set()
        folders[:] = [n for n in folders if n not in leave]
        try:
            wrong = links.bad(folder, root, follow)
        except CkptError as e:
            failed(folder, path, e)
            continue
        for name, why in wrong.items():
            files.pop(name, None)
            if name.lower().endswith((*suffixes(), *INDEXES)) or SHARD.fullmatch(name):
                problems.append(_problem(join(folder, name), at + name, why))
        yield from group(folder, files, at)
    yield from problems


def _is_one(folder: str, other: str) -> bool:
    """Whether two paths lead to one folder, however they are spelled."""
    if folder == other or is_remote(folder) or is_remote(other) or not other:
        return folder == other
    real = os.path.realpath(local(other))  # only a folder of this name is asked for
    return os.path.basename(folder) == os.path.basename(real) and os.path.realpath(local(folder)) == real


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


def _whole(folder: str, name: str) -> FoundCheckpoint:
    """The checkpoint that a folder is, with all files in it and below it."""
    try:
        inside = tuple((join(at.url, n), status) for at in walk(folder) for n, status in at.files.items())
    except CkptError as e:
        return FoundCheckpoint(folder, name, "", (), e)
    return FoundCheckpoint(folder, name, "", inside)
