"""The files of an output, the older files at its destination, and which of them may be replaced."""

from __future__ import annotations

import errno
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from typing import NamedTuple

from ..errors import StorageError
from ..messages import listing, many, redacted
from ..storage import files
from ..storage.lookups import current
from ..storage.paths import beginning

LONG = 500  # names; a batch lists a folder that has more only once


class OutputFile(NamedTuple):
    """One file of an output.

    name: relative to the destination's folder. size: its final size in bytes. shared: whether all checkpoints of a
    folder share it; an existing one is then kept.
    """

    name: str
    size: int
    shared: bool = False


class OutputExists(StorageError, FileExistsError):
    """The destination has a file that may not be replaced."""

    number = errno.EEXIST


def place(url: str) -> str:
    """Return the real path of a local file, or the url of a remote one."""
    return url.rstrip("/") if files.is_remote(url) else os.path.realpath(files.local(url))


def check_replaced(own: Sequence[str], older: Sequence[str], *, force: bool) -> None:
    """Raise OutputExists if a file may not be replaced or removed, StorageError if it is a source.

    own: existing files with the names of the output. older: files of an older checkpoint with its name.
    """
    now, written = current(), current().written
    if own and not force:
        raise OutputExists("already exists; force=True replaces it", url=own[0])
    if older and not force:
        raise OutputExists("belongs to a checkpoint of the same name; force=True replaces it", url=older[0])
    urls = [*own, *older]
    if lost := [url for url in urls if now.spared and place(url) in now.spared]:
        names = listing(map(redacted, lost))
        raise StorageError(f"the output would replace or remove its own source; write to another path:\n{names}")
    if written is None:
        return
    for url in urls:
        status = files.stat(url)
        if status and written.get(place(url)) != (status.size, status.mtime):
            raise OutputExists(
                "already exists, and is not what was written here before; force=True replaces it", url=url
            )


def refuse_foreign(names: Sequence[str], folder: str) -> None:
    """Raise StorageError if a folder that is one checkpoint has other files."""
    if names:
        raise StorageError(
            f"{many(len(names), 'file')} there would be read as part of the checkpoint, or lost with the one that it "
            f"replaces; move them away, or choose another folder:\n{listing(names)}",
            url=folder or ".",
        )


def beginnings(names: Iterable[str], *, unit: bool) -> dict[str, str]:
    """Return, for each folder of an output ('' or ending in a slash), how the names of its older shards begin.

    unit: every file in the folder may belong to the output.
    """
    bases: dict[str, list[str]] = {}
    for name in names:
        above, slash, base = name.rpartition("/")
        bases.setdefault(above + slash, []).append(re.split(r"-\d{5}-of-|\.", base)[0])
    return {above: "" if unit else beginning(several) for above, several in bases.items()}


def names_in(folder: str, begin: str) -> list[str]:
    """List the names in a folder with a prefix. A batch lists a long folder once, since n outputs would cost n²."""
    listings, folder = current().listings, folder.rstrip("/") or folder
    if listings is None:
        return files.names(folder, begin)
    names = listings.get(folder) or files.names(folder)
    if len(names) > LONG:
        listings[folder] = names
    return list(takewhile(lambda name: name.startswith(begin), islice(names, bisect_left(names, begin), None)))
