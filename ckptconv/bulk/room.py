"""Ask for the room that all outputs of a zoo need together, before any work.

Where the disk has room for `PLENTY` times the bytes of the sources, nothing is asked: each conversion checks its own
files. Elsewhere each is planned, which reads headers only, in the processes that will convert.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from .. import api
from ..errors import StorageError
from ..messages import in_bytes, many
from ..storage import files
from . import pool
from .planning import Conversion

PLENTY = 4


def check(todo: Sequence[Conversion], folder: str, workers: int) -> None:
    """StorageError if a file system of the output folder lacks room for the outputs that go to it, with the sums."""
    if files.is_remote(folder) or not hasattr(os, "statvfs"):
        return
    by_device: dict[int, tuple[str, list[Conversion]]] = {}
    for item in todo:
        at = _existing(os.path.dirname(files.join(folder, item.at)))
        by_device.setdefault(os.stat(at).st_dev, (at, []))[1].append(item)
    for at, items in by_device.values():
        space = os.statvfs(at)
        free = space.f_bavail * space.f_frsize
        if PLENTY * sum(i.found.size for i in items) <= free:
            continue
        planned = pool.run(partial(needed, folder), items, min(workers, len(items)))
        need = sum(size for _, size in filter(None, planned) if isinstance(size, int))  # the others will fail
        if need > free:
            raise StorageError(
                f"{many(len(items), 'output')} need {in_bytes(need)} and {in_bytes(free)} are free: "
                f"{in_bytes(need - free)} are missing; nothing was changed",
                url=at,
            )


def needed(folder: str, item: Conversion) -> int:
    """The bytes that the output takes beyond those of the files that it replaces, in a worker."""
    where = files.join(folder, item.at)
    select, change, target = item.settings
    with pool.contained(item.found.source):
        plan = api.dry_run(item.found.source, where, select=select, change=change, target=target)
    above = files.split(where)[0]
    replaced = (files.stat(files.join(above, f.name)) for f in plan.placement.files)
    return max(0, sum(f.size for f in plan.placement.files) - sum(s.size for s in replaced if s))


def _existing(path: str) -> str:
    """The nearest folder above a path that exists."""
    while path and not os.path.isdir(path):
        path = os.path.dirname(path)
    return path or "."


__all__ = ["check", "needed"]
