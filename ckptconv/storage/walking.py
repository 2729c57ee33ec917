"""Walk over a folder and all below it, local or remote; each has its path below the first, which no url is cut for."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from urllib.parse import quote

from ..errors import CkptError, UnsafeCheckpoint
from ..messages import brief, printable
from .faults import asking, refused
from .lookups import Info, Stat, filesystem, kept, refuse_unlisted, stat_of, status_of
from .paths import is_remote, join, local

MAX_DEPTH = 32  # folders above an object; each takes memory, and a key of 1 kB could name 500
_MORE = re.compile(r"\0|\?versionId=")  # in a url: a version of S3
_GENERATION = re.compile(r"#\d+$")  # a version of Google's store
FOLDER: Info = {"type": "directory"}
Failed = Callable[[str, str, CkptError], None]


class Level(NamedTuple):
    """One folder. path: below the one where the walk began, '' for that one; folders: names; files: by their names."""

    url: str
    path: str
    folders: list[str]
    files: dict[str, Stat]


def walk(folder: str, failed: Failed | None = None) -> Iterator[Level]:
    """Yield this folder and each below it; sorted, outer ones first.

    Removing a name from the list of folders leaves that folder out. Links to folders are not followed. What vanishes
    meanwhile is left out. `failed` is given the url and the path of what cannot be looked at, instead of an error.
    """
    return _remote(folder, failed) if is_remote(folder) else _local(folder, failed)


def _local(folder: str, failed: Failed | None) -> Iterator[Level]:
    todo = [(folder, "")]
    while todo:
        at, path = todo.pop()
        folders, files, bad = _scanned(at)
        for name, e in bad.items():
            url = join(at, name) if name else at
            if (at == folder and not name) or (failed is None and not isinstance(e, FileNotFoundError)):
                raise refused(e, url) from e
            if failed and not isinstance(e, FileNotFoundError):
                failed(url, _below(path, name) if name else path, refused(e, url))
        if "" not in bad:
            yield Level(at, path, folders, files)
        todo += [(join(at, name), _below(path, name)) for name in reversed(folders)]


def _below(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _scanned(folder: str) -> tuple[list[str], dict[str, Stat], dict[str, OSError]]:
    """The folders and the files in a local folder, sorted, and what cannot be looked at; '' is the folder itself."""
    folders, files, bad = list[str](), dict[str, Stat](), dict[str, OSError]()
    try:
        with os.scandir(local(folder)) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                try:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                    elif entry.is_file():
                        files[entry.name] = status_of(entry.stat())
                except OSError as e:
                    if e.errno != errno.ELOOP:  # a link to itself leads nowhere, like one to a file that is gone
                        bad[entry.name] = e
    except OSError as e:
        bad[""] = e
    return folders, files, bad


# --- remote: one recursive listing, which an object store answers in pages whatever the number of folders -----------


class _Folder:
    __slots__ = ("files", "folders")

    def __init__(self) -> None:
        self.folders: dict[str, _Folder] = {}
        self.files: dict[str, Info] = {}


def _remote(folder: str, failed: Failed | None) -> Iterator[Level]:
    refuse_unlisted(folder)
    fs, path = filesystem(folder)
    with asking(folder):
        found = fs.find(path, detail=True)
    todo = [("", _tree(folder, entries(folder, path, found), failed))]
    run = kept()
    while todo:
        at, node = todo.pop()
        folders, inside = sorted(node.folders), dict(sorted(node.files.items()))
        url = join(folder, at) if at else folder
        if run is not None:
            run.learn(url, {**dict.fromkeys(folders, FOLDER), **inside}, whole=True)
        yield Level(url, at, folders, {name: stat_of(what) for name, what in inside.items()})
        todo += [(_below(at, name), node.folders[name]) for name in reversed(folders)]


def entries(folder: str, root: str, found: dict[str, Info]) -> Iterator[tuple[str, Info, CkptError | None]]:
    """The paths below a folder, what its file system says of each, and why an object is not read.

    root: the folder as its file system calls it. Left out are the empty objects that stand for folders, and what stands
    for `root`, whatever is in it.
    """
    start = root.strip("/") + "/" if root.strip("/") else ""
    for where, what in found.items():
        path = str(where).removeprefix("/").removeprefix(start)
        if not path or (path.endswith("/") and not what.get("size")):
            continue
        try:
            check_path(path, folder)
            yield path, what, None
        except CkptError as e:
            yield _as_path(path), what, e


def _tree(folder: str, found: Iterable[tuple[str, Info, CkptError | None]], failed: Failed | None) -> _Folder:
    tree = _Folder()
    for path, what, e in found:
        if e:
            if failed is None:
                raise e
            failed(join(folder, path), path, e)
            continue
        at = tree
        *above, name = path.split("/")
        for part in above:
            at = at.folders.setdefault(part, _Folder())
        at.files[name] = what
    return tree


def check_path(path: str, folder: str) -> None:
    """UnsafeCheckpoint for what a store may call an object, while no path is called so, or another one is.

    Path and url of such an object would be those of another: `a//b` is read as `a/b`, and `..` as the folder above.
    """
    parts = path.split("/")
    versioned = folder.startswith(("gs://", "gcs://")) and _GENERATION.search(path)
    if versioned or any(p in ("", ".", "..") or _MORE.search(p) for p in parts):
        what = f"holds an object called {printable(brief(path))!r}, which reads as more than a path"
        raise UnsafeCheckpoint(f"{what}; it is not read", url=folder)
    if len(parts) > MAX_DEPTH:
        raise UnsafeCheckpoint(f"holds an object {len(parts) - 1} folders deep; {MAX_DEPTH - 1} are read", url=folder)


def _as_path(path: str) -> str:
    """A path by which an object that has none is told from others."""
    odd = {"": "%2F", ".": "%2E", "..": "%2E%2E"}
    return "/".join(odd.get(p) or (quote(p, safe=" ") if _MORE.search(p) else p) for p in path.split("/"))
