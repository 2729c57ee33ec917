"""Look at what there is at a path, local or remote: whether, how large, and which names lie in a folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from zlib import crc32

from ..errors import CkptError
from . import lookups
from .faults import refused
from .lookups import Stat
from .paths import is_remote, join, local


def exists(url: str) -> bool:
    if is_remote(url):
        return lookups.info(url) is not None
    return os.path.lexists(local(url))


def is_dir(url: str) -> bool:
    if is_remote(url):
        return lookups.is_dir(url)
    return os.path.isdir(local(url))


def walk(
    folder: str, failed: Callable[[str, CkptError], None] | None = None
) -> Iterator[tuple[str, list[str], dict[str, Stat]]]:
    """Yield this folder and each below it: its url, the names of its folders, and its files; sorted, outer ones first.

    Removing a name from the list of folders leaves that folder out. Links to folders are not followed. What vanishes
    meanwhile is left out. `failed` is given the folders and files below that cannot be looked at, instead of an error.
    """
    if is_remote(folder):
        yield from lookups.walk(folder)
        return
    todo = [folder]
    while todo:
        at = todo.pop()
        folders, files, bad = _scanned(at)
        for url, e in bad.items():
            if at == folder == url or (failed is None and not isinstance(e, FileNotFoundError)):
                raise refused(e, url) from e
            if failed and not isinstance(e, FileNotFoundError):
                failed(url, refused(e, url))
        if at not in bad:
            yield at, folders, files
        todo += [join(at, name) for name in reversed(folders)]


def _scanned(folder: str) -> tuple[list[str], dict[str, Stat], dict[str, OSError]]:
    """The folders and the files in a local folder, sorted, and what cannot be looked at, or the folder itself."""
    folders, files, bad = list[str](), dict[str, Stat](), dict[str, OSError]()
    try:
        with os.scandir(local(folder)) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                try:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                    elif entry.is_file():
                        files[entry.name] = _of(entry.stat())
                except OSError as e:
                    if e.errno != errno.ELOOP:  # a link to itself leads nowhere, like one to a file that is gone
                        bad[join(folder, entry.name)] = e
    except OSError as e:
        bad[folder] = e
    return folders, files, bad


def stat(url: str) -> Stat | None:
    """Size and time of a file, or None if there is none."""
    if is_remote(url):
        return lookups.stat(url)
    try:
        status = os.stat(local(url))
    except OSError:
        return None
    return _of(status)


def _of(status: os.stat_result) -> Stat:
    known = os.name != "nt" and status.st_ino
    mark = crc32(b"%d %d" % (status.st_ino, status.st_ctime_ns)) if known else 0
    return Stat(status.st_size, status.st_mtime_ns, mark=mark)


def names(folder: str, prefix: str = "") -> list[str]:
    """Names of the files and folders in a folder, sorted; empty if the folder does not exist.

    With `prefix`, those that begin with it: of many objects in a store only these are listed.
    """
    try:
        if is_remote(folder):
            return lookups.names(folder, prefix)
        return sorted(name for name in os.listdir(local(folder)) if name.startswith(prefix))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        if e.errno == errno.ELOOP:  # a link to itself leads nowhere, like one to a file that is gone
            return []
        raise refused(e, folder) from e


__all__ = ["Stat", "exists", "is_dir", "names", "stat", "walk"]
