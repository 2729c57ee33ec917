"""Ask for the room that all outputs of a zoo need together, before any work.

Where the disk has room for `PLENTY` times the bytes of the sources, nothing is asked: each conversion checks its own
files. Elsewhere each is planned, which reads headers only, in the processes that will convert.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import lru_cache, partial

from .. import api
from ..errors import StorageError
from ..messages import in_bytes, many
from ..storage import files
from . import pool
from .conversions import Conversion, Conversions

PLENTY = 4
KEPT = 10_000  # folders whose device is remembered


def check(todo: Conversions, folder: str, workers: int) -> None:
    """StorageError if a file system of the output folder lacks room for the outputs that go to it, with the sums."""
    if files.is_remote(folder) or not hasattr(os, "statvfs"):
        return
    device = lru_cache(KEPT)(lambda above: os.stat(_existing(above)).st_dev)

    def where(item: Conversion) -> int:
        return device(os.path.dirname(files.join(folder, item.at)))

    def on(number: int, item: Conversion) -> bool:
        return where(item) == number

    sums = Counter[int]()
    some: dict[int, Conversion] = {}  # one on each device
    for item in todo:
        sums[where(item)] += item.found.size
        some.setdefault(where(item), item)
    for number, item in some.items():
        at = _existing(os.path.dirname(files.join(folder, item.at)))
        space = os.statvfs(at)
        free = space.f_bavail * space.f_frsize
        if PLENTY * sums[number] <= free:
            continue
        items = todo.where(partial(on, number))
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
