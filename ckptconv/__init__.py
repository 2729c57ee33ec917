"""Convert checkpoints between frameworks' formats without any of the frameworks.

    ckptconv.open(path)                     a lazy mapping from names to tensors: t.dtype, t.shape, t.numpy()
    ckptconv.save(arrays, path)             write a mapping of arrays
    ckptconv.convert(source, destination)   convert, with the options of the command line as keywords
    ckptconv.dry_run(source, destination)   what convert would do
    ckptconv.diff(a, b)                     all differences, measured
    ckptconv.verify(source, destination)    whether the destination is what convert would write

Names are imported when they are first used, so that `ckptconv --help` does not wait for numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Change, Report, Resources, Select, Target, convert, diff, dry_run, open, save, verify
    from .checkpoint import Checkpoint, Note, Tensor
    from .dtypes import DType
    from .engine.plan import Plan
    from .errors import (
        AmbiguousFormat,
        CkptError,
        ConversionError,
        CorruptCheckpoint,
        FormatError,
        LayoutError,
        MissingExtra,
        NameCollision,
        StorageError,
        UnknownFormat,
        UnmatchedTensors,
        Unrepresentable,
        UnsafeCheckpoint,
        UsageError,
        VerifyError,
    )
    from .verification.compare import Diff
    from .verification.hashes import Checked

__version__ = "0.1.0"
__all__ = [
    "AmbiguousFormat", "Change", "Checked", "Checkpoint", "CkptError", "ConversionError", "CorruptCheckpoint",
    "DType", "Diff", "FormatError", "LayoutError", "MissingExtra", "NameCollision", "Note", "Plan", "Report",
    "Resources", "Select", "StorageError", "Target", "Tensor", "UnknownFormat", "UnmatchedTensors",
    "Unrepresentable", "UnsafeCheckpoint", "UsageError", "VerifyError", "convert", "diff", "dry_run", "open",
    "save", "verify",
]  # fmt: skip

_HOME = {
    "api": {
        "Change", "Report", "Resources", "Select", "Target", "convert", "diff", "dry_run", "open", "save", "verify",
    },
    "checkpoint": {"Checkpoint", "Note", "Tensor"},
    "dtypes": {"DType"},
    "engine.plan": {"Plan"},
    "verification.compare": {"Diff"},
    "verification.hashes": {"Checked"},
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _HOME.items() if name in names), "errors")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
