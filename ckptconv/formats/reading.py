"""The options of reading that every format's `open(url, how)` receives."""

from __future__ import annotations

from typing import NamedTuple


class Reading(NamedTuple):
    """Options of reading. A format ignores those that have no meaning for it.

    opaque: objects of unknown classes stay inert placeholders instead of being refused, and constants are all read.
    salvage: what is left of a file that is cut or lacks shards is opened, with notes of the kind `damaged`.
    densify: sparse and quantised tensors are computed instead of given as their pieces.
    """

    opaque: bool = False
    salvage: bool = False
    densify: bool = False
