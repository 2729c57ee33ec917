"""Look at what there is at a path, local or remote: whether, how large, and which names lie in a folder."""

from __future__ import annotations

import errno
import os
from zlib import crc32

from . import lookups
from .faults import refused
from .lookups import Stat
from .paths import is_remote, local


def exists(url: str) -> bool:
    if is_remote(url):
        return lookups.info(url) is not None
    return os.path.lexists(local(url))


def is_dir(url: str) -> bool:
    if is_remote(url):
        return lookups.is_dir(url)
    return os.path.isdir(local(url))


def stat(url: str) -> Stat | None:
    """Size and time of a file, or None if there is none."""
    if is_remote(url):
        return lookups.stat(url)
    try:
        status = os.stat(local(url))
    except OSError:
        return None
    return status_of(status)


def status_of(status: os.stat_result) -> Stat:
    """What `stat` says of a local file."""
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


__all__ = ["Stat", "exists", "is_dir", "names", "stat", "status_of"]
