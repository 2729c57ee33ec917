"""The options of reading that every format's `open(url, how)` receives."""

from __future__ import annotations

from typing import NamedTuple


class Reading(NamedTuple):
    """Options of reading. A format ignores those that have no meaning for it.

    opaque: keep objects of unknown classes as inert placeholders instead of refusing them, and read all constants.
    salvage: open the complete tensors of a truncated file or an incomplete set, with notes of the kind `damaged`.
    densify: compute sparse and quantised tensors instead of returning their pieces.
    """

    opaque: bool = False
    salvage: bool = False
    densify: bool = False
