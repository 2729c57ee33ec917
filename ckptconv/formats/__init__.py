"""The formats: each answers where the bytes are and where they should go. See table.py."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import CkptError


class Located(NamedTuple):
    """A context that adds the file and the tensor to errors that do not name them."""

    url: str = ""
    tensor: str = ""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, CkptError):
            error.url, error.tensor = error.url or self.url, error.tensor or self.tensor or None
