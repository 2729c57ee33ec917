"""Text elements of NumPy arrays, checked before NumPy decodes them."""

from __future__ import annotations

import sys
from typing import Any

from ...errors import CorruptCheckpoint


def check_text(raw: bytes, kind: Any) -> None:
    """Refuse numbers beyond Unicode in elements of NumPy's dtype `kind`, which would raise a SystemError."""
    import numpy as np

    if kind.kind == "U" and raw and int(np.frombuffer(raw, kind.byteorder + "u4").max()) > sys.maxunicode:
        raise CorruptCheckpoint(f"has text with a character beyond Unicode's last, {sys.maxunicode:#x}")
