"""Flax: msgpack."""

from __future__ import annotations

from .common import of_ways, raw

WAYS = (raw("x.msgpack", "flax", "flax/*.msgpack", "hostile/flax/*.msgpack", "t5x/*.msgpack"),)
CONSTANTS = (
    "flax.CHUNKED",
    "flax.ROWS",
)
SPELLED = rb"chunks shape \xc7\x01 \xc9 \xdf\xff\xff \xdd \xdb"
FAMILY = of_ways(WAYS, SPELLED, CONSTANTS)
