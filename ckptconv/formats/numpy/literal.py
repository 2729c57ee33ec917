"""Parse the dictionary in the header of an .npy file, a Python literal, without evaluating it."""

from __future__ import annotations

import re
import sys
from typing import Any

from ...errors import CorruptCheckpoint

_PAIR = re.compile(
    r"""\s*(['"])(descr|fortran_order|shape)\1\s*:\s*
        (True|False | '[^']*' | "[^"]*" | \([\d\s,L]*\) | \[.*\](?=\s*,\s*['"]fortran))\s*(?:,|(?=\}))\s*""",
    re.VERBOSE,
)
_SIZE = re.compile(r"0{1,19}|[1-9]\d{0,18}", re.ASCII)  # Python has no 02


def literal(text: str, url: str, tensor: str | None) -> tuple[str, bool, tuple[int, ...]]:
    """Parse the dictionary of the header: descr, fortran_order and shape, in any order."""
    text = text.strip()
    values: dict[str, str] = {}
    at = 1
    while (pair := _PAIR.match(text, at)) and pair[2] not in values:
        values[pair[2]], at = pair[3], pair.end()
    if text[:1] != "{" or text[at:] != "}" or len(values) != 3:
        what = f"the header {text[:80]!r} is not a dictionary of descr, fortran_order and shape"
        raise CorruptCheckpoint(what, url=url, tensor=tensor)
    descr, fortran, shape = values["descr"], values["fortran_order"], _sizes(values["shape"])
    if shape is None or fortran not in {"True", "False"} or descr[0] not in "'\"[":
        raise CorruptCheckpoint(f"the header {text[:80]!r} has values of the wrong kind", url=url, tensor=tensor)
    return descr.strip("'\"") or " ", fortran == "True", shape


def _sizes(shape: str) -> tuple[int, ...] | None:
    """The sizes in a tuple's literal; None if it is anything else, also for (3), which is not a tuple."""
    sizes = [n.strip().removesuffix("L") for n in shape.strip("()").split(",")]  # Python 2 writes 3L
    if sizes[-1] == "":
        sizes.pop()
    if shape[0] != "(" or len(sizes) > 64 or (len(sizes) == 1 and "," not in shape):
        return None
    return tuple(map(int, sizes)) if all(_SIZE.fullmatch(n) for n in sizes) else None


# --- text elements, checked before NumPy decodes them ---------------------------------------------------------------


def check_text(raw: bytes, kind: Any) -> None:
    """Refuse numbers beyond Unicode in elements of NumPy's dtype `kind`, which would raise a SystemError."""
    import numpy as np

    if kind.kind == "U" and raw and int(np.frombuffer(raw, kind.byteorder + "u4").max()) > sys.maxunicode:
        raise CorruptCheckpoint(f"has text with a character beyond Unicode's last, {sys.maxunicode:#x}")
