"""Paths that match a shell pattern, each once; local ones in time linear in the tree.

glob.glob follows links to folders below `**`, so two links to their own folder are 2^40 paths, and walks the tree again
for each further `**`. Here each folder is walked once; below `**` links to folders are followed only with `follow`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase

from ..errors import CkptError
from ..storage import web
from ..storage.faults import asking
from ..storage.lookups import MANY, filesystem
from ..storage.paths import join
from ..storage.walking import entries

ANY = "**"  # a part that stands for any number of folders


def matches(pattern: str, follow: bool) -> list[str]:
    """The paths that match, sorted; as for a shell, names that begin with a dot match only what begins with one."""
    first, *rest = pattern.split("/")
    found, parts = ({"/"}, rest) if not first and rest else ({""}, [first, *rest])
    parts = [p for i, p in enumerate(parts) if p and not (p == ANY and parts[i + 1 : i + 2] == [ANY])]
    for i, part in enumerate(parts):
        if part == ANY:
            tree = set(_tree(found, follow))
            if i == len(parts) - 1:  # files as well
                tree |= {path for folder in tree for path in _named(folder, "*") if not os.path.isdir(path)}
            found = tree - {""} if i == len(parts) - 1 else tree
        elif any(c in part for c in "*?["):
            found = {path for folder in found for path in _named(folder, part)}
        else:
            found = {path for folder in found if os.path.lexists(path := os.path.join(folder, part))}
    return sorted(found)


def listed(pattern: str, root: str) -> dict[str, CkptError | None]:
    """The urls that match in a remote file system, each `root` and a path; and why one of them cannot be read."""
    fs, path = filesystem(pattern)
    with asking(pattern):
        found = web.bounded(fs, "glob", MANY, path, detail=True)
    return {join(root, at): odd for at, _, odd in entries(root, filesystem(root)[1], found)}


def _named(folder: str, pattern: str) -> Iterator[str]:
    try:
        names = os.listdir(folder or ".")
    except OSError:  # not a folder, or one that cannot be read
        return
    for name in names:
        if fnmatchcase(name, pattern) and (pattern.startswith(".") or not name.startswith(".")):
            yield os.path.join(folder, name)


def _tree(folders: Iterable[str], follow: bool) -> Iterator[str]:
    """These folders and all below them: each once, whatever links lead to it."""
    todo, seen = sorted(folders, reverse=True), set[str]()
    later: list[str] = []  # links: a folder has the path without them, if there is one
    while todo or later:
        at = todo.pop() if todo else later.pop(0)
        where = os.path.realpath(at)
        if where in seen or not os.path.isdir(at or "."):
            continue
        seen.add(where)
        yield at
        with suppress(OSError), os.scandir(at or ".") as entries:
            below = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name, reverse=True)
            todo += [os.path.join(at, e.name) for e in below if e.is_dir(follow_symlinks=False)]
            later += [os.path.join(at, e.name) for e in below if follow and e.is_symlink()]


__all__ = ["listed", "matches"]
