"""Numbers of a model's config.json, in which Hugging Face stores, beside the weights, what shapes do not determine.

{"num_attention_heads": 12, "text_config": {"num_attention_heads": 8}}      keys: the first, or with dots the second
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ..errors import UsageError
from ..messages import brief, printable
from ..storage.files import exists, read_all
from ..storage.json import parse_json
from ..storage.paths import sibling, split

NAME = "config.json"
MAX_SIZE = 2**20  # bytes; a language model of 500 labels has 50 kB
MAX_NUMBER = 2**31 - 1


class Config:
    """The config.json beside the files of a checkpoint; read when a number of it is first wanted, and not before."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls

    @cached_property
    def _files(self) -> dict[str, Any]:
        """What each file says, by its path: several sources may stand in several folders."""
        folders = {split(url)[0]: url for url in reversed(self._urls)}
        paths = [sibling(url, NAME) for url in reversed(folders.values())]
        return {path: parse_json(read_all(path, MAX_SIZE), path) for path in paths if exists(path)}

    def number(self, key: str, param: str) -> int | None:
        """The integer of a dotted key; None if no file has it, or has null there.

        Raises UsageError, which names `param`, if it cannot be a size or two files differ, and
        CorruptCheckpoint or UnsafeCheckpoint if a file cannot be trusted.
        """
        found: dict[str, int] = {}
        for path, value in self._files.items():
            for word in key.split("."):
                value = value.get(word) if isinstance(value, dict) else None
            if value is None:
                continue
            if type(value) is not int or not 0 < value <= MAX_NUMBER:
                shown = brief(printable(repr(value)), 100)
                raise UsageError(
                    f"{key} is {shown}, not an integer from 1 to {MAX_NUMBER}; give param='{param}=NUMBER'", url=path
                )
            found[path] = value
        if len(set(found.values())) > 1:
            shown = ", ".join(f"{n} in {printable(path)}" for path, n in found.items())
            raise UsageError(f"the sources' {NAME} differ in {key}: {shown}; give param='{param}=NUMBER'")
        return next(iter(found.values()), None)

    def lacks(self, key: str) -> str:
        """Why there is no number for the key, for the error that asks for the parameter."""
        return f"{NAME} has no {key}" if self._files else f"there is no {NAME} beside the source to read {key} from"


__all__ = ["Config"]
