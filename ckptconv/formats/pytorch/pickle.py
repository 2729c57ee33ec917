"""A pickle machine that runs no code of the file: protocols 2 to 5, with our own functions in the place of calls.

    80 02                      PROTO 2
    7d 28                      EMPTY_DICT MARK
    58 01000000 77             BINUNICODE 'w'
    63 torch._utils\\n _rebuild_tensor_v2\\n      GLOBAL: looked up in a table; nothing is ever imported
    ... 74 52                  TUPLE REDUCE: calls the table's own function, which only checks and records
    75 2e                      SETITEMS STOP

Specification: Lib/pickletools.py of CPython. A global is compared as two whole strings with an exact table. One that
is not there becomes an `Inert` placeholder and the scan continues, so that the error at the end names them all; with
`opaque` there is no error and the placeholders are the result. Opcodes that no checkpoint needs are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ...errors import CkptError, CorruptCheckpoint, UnsafeCheckpoint
from .machine import (
    Machine,
    Table,
    Truncated,
)
from .opcodes import OPS, REFUSED
from .plain import PLAIN, Inert, Known, Ordered, shown

MAX_STEPS = 2**25  # opcodes; a million tensors need about 30 each


def load(
    data: bytes,
    *,
    allowed: Table | None = None,
    persistent_load: Callable[[Any], Any] | None = None,
    opaque: bool | tuple[str, ...] = False,
    url: str | None = None,
    packed: int | None = None,
) -> Any:
    """Interpret one pickle, which must fill `data`; see `load_some` for the options."""
    value, end = load_some(
        data, allowed=allowed, persistent_load=persistent_load, opaque=opaque, url=url, packed=packed
    )
    if end != len(data):
        raise UnsafeCheckpoint(f"{len(data) - end} bytes follow the end of the pickle at {end}", url=url)
    return value


def load_some(
    data: bytes,
    start: int = 0,
    *,
    allowed: Table | None = None,
    persistent_load: Callable[[Any], Any] | None = None,
    opaque: bool | tuple[str, ...] = False,
    url: str | None = None,
    partial: bool = False,
    packed: int | None = None,
) -> tuple[Any, int]:
    """Interpret the pickle at `start`; return its value and where it ends.

    allowed: (module, name) -> `Known` or a constant; `PLAIN` if not given.
    persistent_load: what a persistent id stands for.
    opaque: True, every unknown global may stay an `Inert`; a tuple of names, only those of these packages.
    packed: how many bytes of a file these are, if they were compressed: what is made is in proportion to that.
    partial: `data` is only the beginning of something longer: raise `Truncated` where it does not suffice.
    Raises UnsafeCheckpoint with all globals that are not allowed, and CorruptCheckpoint.
    """
    machine = Machine(data, start, PLAIN if allowed is None else allowed, persistent_load, opaque, url, packed)
    try:
        value = _run(machine)
    except CkptError as e:
        if not (partial and isinstance(e, Truncated)):
            machine.complain()
        if isinstance(e, Truncated) and not partial:
            raise CorruptCheckpoint(e.message, url=url) from None
        e.url = e.url or url
        raise
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError, struct.error) as e:
        if partial and machine.at >= len(data):
            raise Truncated("the pickle goes on", url=url) from e
        machine.complain()
        why = shown(e.args[0]) if isinstance(e, KeyError) and e.args else e
        raise CorruptCheckpoint(f"the pickle is damaged before byte {machine.at}: {why}", url=url) from e
    machine.complain()
    return value, machine.at


def _run(m: Machine) -> Any:
    data, ops = m.data, OPS
    for _ in range(MAX_STEPS):
        try:
            op = data[m.at]
        except IndexError:
            raise m.short(1) from None
        m.at += 1
        do = ops.get(op)
        if do is None:
            return _end(m, op)
        do(m)
    raise UnsafeCheckpoint(f"the pickle has more than {MAX_STEPS} steps", url=m.url)


def _end(m: Machine, op: int) -> Any:
    """Return the value on STOP, refuse anything else."""
    if op == 0x2E:
        if len(m.stack) != 1 or m.below:
            raise CorruptCheckpoint(f"the pickle ends at byte {m.at} with an untidy stack", url=m.url)
        return m.stack[0]
    where = f"at byte {m.at - 1} of the pickle"
    if op in REFUSED:
        raise UnsafeCheckpoint(f"opcode {REFUSED[op]} {where}: no checkpoint needs it", url=m.url)
    raise CorruptCheckpoint(f"byte {op:#04x} {where} is not an opcode", url=m.url)


__all__ = ["PLAIN", "Inert", "Known", "Ordered", "Truncated", "load", "load_some"]
