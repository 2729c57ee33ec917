"""All errors, as one tree; a message says what is wrong, where, and what to do.

CkptError
├─ UsageError                an option, converter or parameter is unknown                   exit 2
├─ FormatError
│  ├─ UnknownFormat          no installed format recognises this                            exit 3
│  ├─ AmbiguousFormat        several formats claim it; from_= settles it                    exit 3
│  ├─ CorruptCheckpoint      one invariant of the format is broken                          exit 4
│  └─ UnsafeCheckpoint       it asks to run code, leave its folder or expand without bound  exit 5
├─ ConversionError
│  ├─ UnmatchedTensors       no rule takes these tensors                                    exit 6
│  ├─ NameCollision          two tensors would end at one name                              exit 6
│  ├─ LayoutError            an axis pattern does not fit the shapes                        exit 6
│  └─ Unrepresentable        the target cannot hold this dtype, name or tie                 exit 6
├─ VerifyError               what was written is not what was asked for                     exit 7
├─ MissingExtra              an optional package is needed                                  exit 8
└─ StorageError              the file system refuses: missing, exists, full, no permission  exit 9
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .messages import brief, printable, redacted, scrubbed


class CkptError(Exception):
    """Base of all errors raised on purpose; `url` and `tensor` say where, if known.

    `message` says what is wrong and what to do; it names options as Python spells them (`force=True`).
    `exit_code` is that of the command line.
    """

    exit_code = 1

    def __init__(self, message: str, *, url: str | None = None, tensor: str | None = None) -> None:
        message = scrubbed(message)
        super().__init__(message)
        self.message = message
        self.url = url
        self.tensor = tensor

    def __str__(self) -> str:
        where = [printable(w) for w in (redacted(self.url or ""), brief(self.tensor or "")) if w]
        return ": ".join([*where, self.message])

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with all arguments, so that workers can return errors."""
        return (_rebuild, (type(self), self.message, self.url, self.tensor))


def _rebuild(cls: type[CkptError], message: str, url: str | None, tensor: str | None) -> CkptError:
    return cls(message, url=url, tensor=tensor)


class UsageError(CkptError):
    """An option, converter or parameter is unknown."""

    exit_code = 2


class FormatError(CkptError):
    """A source cannot be read: its format is unknown, or it breaks it."""

    exit_code = 3


class UnknownFormat(FormatError):
    """No installed format recognises this."""

    exit_code = 3


class AmbiguousFormat(FormatError):
    """Several formats claim it; from_= settles it."""

    exit_code = 3


class CorruptCheckpoint(FormatError):
    """One invariant of the format is broken."""

    exit_code = 4


class UnsafeCheckpoint(FormatError):
    """It asks to run code, leave its folder or expand without bound."""

    exit_code = 5


class ConversionError(CkptError):
    """The tensors cannot become what was asked for."""

    exit_code = 6


class UnmatchedTensors(ConversionError):
    """No rule takes these tensors."""


class NameCollision(ConversionError):
    """Two tensors would end at one name."""


class LayoutError(ConversionError):
    """An axis pattern does not fit the shapes."""


class Unrepresentable(ConversionError):
    """The target cannot hold this dtype, name or tie."""


class VerifyError(CkptError):
    """What was written is not what was asked for."""

    exit_code = 7
    options: Mapping[str, Any] = MappingProxyType({})  # those with which it seems to have been made


class MissingExtra(CkptError):
    """An optional package is needed."""

    exit_code = 8


class StorageError(CkptError):
    """The file system refuses: missing, exists, full, no permission."""

    exit_code = 9
