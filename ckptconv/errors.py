"""The tree of all errors; a message says what is wrong, where, and what to do.

CkptError
├─ UsageError              an option, converter or parameter does not fit; also a ValueError       exit 2
├─ FormatError
│  ├─ UnknownFormat        no installed format recognises the source                               exit 3
│  ├─ AmbiguousFormat      several formats recognise the source                                    exit 3
│  ├─ CorruptCheckpoint    the source breaks an invariant of its format                            exit 4
│  └─ UnsafeCheckpoint     the source asks to run code, leave its folder or expand without bound   exit 5
├─ ConversionError
│  ├─ UnmatchedTensors     no rule takes these tensors                                             exit 6
│  ├─ NameCollision        two tensors would get one name                                          exit 6
│  ├─ LayoutError          a layout of axes does not fit the shapes                                exit 6
│  └─ Unrepresentable      the target format cannot hold this dtype, name or tie                   exit 6
├─ VerifyError             the output is not what the conversion gives, or a hash differs          exit 7
├─ MissingExtra            an optional package is not installed                                    exit 8
└─ StorageError            the file system or server refuses                                       exit 9
"""

from __future__ import annotations

from .messages import brief, paragraph, printable, redacted, scrubbed


class CkptError(Exception):
    """The base of all errors that ckptconv raises on purpose.

    message: what is wrong and what to do, with options spelled as in Python (`force=True`). url, tensor: where, or None
    if unknown. exit_code: of the command line. str(e) joins url, tensor and message.
    """

    exit_code = 1

    def __init__(self, message: str, *, url: str | None = None, tensor: str | None = None) -> None:
        message = paragraph(scrubbed(message.replace(url, redacted(url)) if url else message))
        super().__init__(message)
        self.message = message
        self.url = url
        self.tensor = tensor

    def __str__(self) -> str:
        where = [printable(w) for w in (redacted(self.url or ""), brief(self.tensor or "")) if w]
        return ": ".join([*where, paragraph(self.message)])

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with all arguments, so that workers can return errors."""
        return (_rebuild, (type(self), self.message, self.url, self.tensor))


def _rebuild(cls: type[CkptError], message: str, url: str | None, tensor: str | None) -> CkptError:
    return cls(message, url=url, tensor=tensor)


class UsageError(CkptError, ValueError):
    """An option, converter or parameter does not fit; also a ValueError; the message names similar or valid ones."""

    exit_code = 2


class FormatError(CkptError):
    """A source cannot be read: the base of UnknownFormat, AmbiguousFormat, CorruptCheckpoint and UnsafeCheckpoint."""

    exit_code = 3


class UnknownFormat(FormatError):
    """No installed format recognises the source; the message says what it looks like, or what to install."""


class AmbiguousFormat(FormatError):
    """Several formats recognise the source; `from_=` selects one."""


class CorruptCheckpoint(FormatError):
    """The source breaks an invariant of its format, for example a checksum; the message says which."""

    exit_code = 4


class UnsafeCheckpoint(FormatError):
    """The source asks to run code, leave its folder or expand without bound."""

    exit_code = 5


class ConversionError(CkptError):
    """The tensors cannot be converted as requested; the base of the errors of names, layouts and targets."""

    exit_code = 6


class UnmatchedTensors(ConversionError):
    """No rule takes these tensors; the message lists all of them, with the nearest rule."""


class NameCollision(ConversionError):
    """Two tensors would get one name; the message lists all cases and where both tensors come from."""


class LayoutError(ConversionError):
    """A layout of axes does not fit the shapes; the message has the layout, the shapes and the sizes."""


class Unrepresentable(ConversionError):
    """The target format cannot hold this dtype, name or tie; `skip_unrepresentable=True` leaves such tensors out."""


class VerifyError(CkptError):
    """The output is not what the conversion gives, or a hash differs; the message lists the tensors."""

    exit_code = 7


class MissingExtra(CkptError):
    """An optional package is not installed; the message says what to install."""

    exit_code = 8


class StorageError(CkptError):
    """The file system or server refuses: the file exists, the disk is full, permission is denied ...

    The error for a missing file is also a FileNotFoundError, the one for an existing output a FileExistsError.
    """

    exit_code = 9
    number: int | None = None  # errno of a subclass that is a built-in error, too

    def __init__(self, message: str, **where: str | None) -> None:
        super().__init__(message, **where)
        self.errno, self.filename = self.number, self.url
