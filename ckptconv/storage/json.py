"""Parse JSON from untrusted files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from ..errors import CorruptCheckpoint
from ..messages import brief

Pairs = list[tuple[str, Any]]


def unique(pairs: Pairs) -> dict[str, Any]:
    """Make a dict of these names and values; ValueError if a name occurs twice."""
    made = dict(pairs)
    if len(made) != len(pairs):
        duplicate, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the name {brief(duplicate)!r} occurs twice")
    return made


def parse_json(raw: bytes, url: str, made: Callable[[Pairs], Any] = unique) -> Any:
    """Parse JSON as strictly as safetensors' reference: UTF-8, no duplicate names, no NaN, bounded nesting.

    made: builds each object from its names and values; it must refuse a name that occurs twice.
    """
    try:
        text = raw.decode()
        del raw  # 90 MB for a million tensors
        return json.loads(text, object_pairs_hook=made, parse_constant=_no_constant)
    except RecursionError:
        raise CorruptCheckpoint("the JSON is nested too deeply", url=url) from None
    except ValueError as e:  # also UnicodeDecodeError
        raise CorruptCheckpoint(f"the JSON is not valid: {e}", url=url) from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
