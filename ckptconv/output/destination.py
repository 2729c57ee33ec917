"""What an output is: its files, what of an older one is at its place, and what may be replaced there."""

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

LONG = 500  # names of a folder that a batch does not list again for each of its outputs


class OutputFile(NamedTuple):
    """One file of an output.

    name: relative to the destination's folder. size: its final size in bytes. shared: whether the checkpoints of a
    folder have it in common; one that exists is then kept.
    """

    name: str
    size: int
    shared: bool = False


class OutputExists(StorageError, FileExistsError):
    """There is something at the destination that may not be replaced."""

    number = errno.EEXIST


def place(url: str) -> str:
    """Where a file is, by whatever path it is named."""
    return url.rstrip("/") if files.is_remote(url) else os.path.realpath(files.local(url))


def check_replaced(own: Sequence[str], older: Sequence[str], *, force: bool) -> None:
    """OutputExists if one of these files, which would be replaced or removed, may not be; StorageError for a source.

    own: of the names of the output. older: of an older checkpoint of its name.
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
    """StorageError if there are other files in a folder that is one checkpoint."""
    if names:
        raise StorageError(
            f"{many(len(names), 'file')} there would be read as part of the checkpoint, or lost with the one that it "
            f"replaces; move them away, or choose another folder:\n{listing(names)}",
            url=folder or ".",
        )


def beginnings(names: Iterable[str], *, unit: bool) -> dict[str, str]:
    """For each folder of an output, '' or with a slash at its end, how the names of older shards of it begin.

    unit: all that is in the folder may belong to it.
    """
    bases: dict[str, list[str]] = {}
    for name in names:
        above, slash, base = name.rpartition("/")
        bases.setdefault(above + slash, []).append(re.split(r"-\d{5}-of-|\.", base)[0])
    return {above: "" if unit else beginning(several) for above, several in bases.items()}


def names_in(folder: str, begin: str) -> list[str]:
    """The names in a folder that begin so. A batch lists a long folder once, since n outputs in it would cost n²."""
    listings, folder = current().listings, folder.rstrip("/") or folder
    if listings is None:
        return files.names(folder, begin)
    names = listings.get(folder) or files.names(folder)
    if len(names) > LONG:
        listings[folder] = names
    return list(takewhile(lambda name: name.startswith(begin), islice(names, bisect_left(names, begin), None)))
