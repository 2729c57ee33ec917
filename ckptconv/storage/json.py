"""JSON of files that nobody vouches for."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from ..errors import CorruptCheckpoint
from ..messages import brief


def parse_json(raw: bytes, url: str) -> Any:
    """Parse JSON as strictly as safetensors' reference: UTF-8, no duplicate names, no NaN, bounded nesting."""
    try:
        return json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise CorruptCheckpoint("the JSON is nested too deeply", url=url) from None
    except ValueError as e:  # also UnicodeDecodeError and integers of thousands of digits
        raise CorruptCheckpoint(f"the JSON is not valid: {e}", url=url) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        duplicate, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the name {brief(duplicate)!r} occurs twice")
    return unique


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


__all__ = ["parse_json"]
