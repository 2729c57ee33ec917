"""Convert checkpoints between frameworks' formats without any of the frameworks.

    ckptconv.open(path)                     a lazy mapping from names to tensors: t.dtype, t.shape, t[0:2], t.numpy()
    ckptconv.save(arrays, path)             write arrays, a state dict or a module
    ckptconv.convert(source, destination)   convert, with the options of the command line as keywords
    ckptconv.dry_run(source, destination)   what convert would do
    ckptconv.inspect(path)                  names, shapes, totals, statistics
    ckptconv.check(path)                    what is wrong with its values
    ckptconv.diff(a, b)                     all differences, measured
    ckptconv.verify(source, destination)    whether the destination is what convert would write
    ckptconv.match(source, target)          propose the rules that lead from one to the other
    ckptconv.report(source, output=...)     a page for a browser
    ckptconv.zoo(folder, output)            many at once

Names are imported when they are first used, so that printing the help does not wait for NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Report, convert, diff, dry_run, open, save, verify
    from .bulk.run import zoo
    from .bulk.summary import Summary
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
    from .matching.proposal import Match, match
    from .reporting.html import Page, report
    from .reporting.inspection import Inspection, check, inspect
    from .verification.difference import Diff
    from .verification.readback import Checked

__version__ = "0.1.0"
__all__ = [
    "AmbiguousFormat", "Checked", "Checkpoint", "CkptError", "ConversionError", "CorruptCheckpoint",
    "DType", "Diff", "FormatError", "Inspection", "LayoutError", "Match", "MissingExtra", "NameCollision", "Note",
    "Page", "Plan", "Report", "StorageError", "Summary", "Tensor", "UnknownFormat",
    "UnmatchedTensors", "Unrepresentable", "UnsafeCheckpoint", "UsageError", "VerifyError", "check", "convert", "diff",
    "dry_run", "inspect", "match", "open", "report", "save", "verify", "zoo",
]  # fmt: skip

_HOME = {
    "api": {
        "Report", "convert", "diff", "dry_run", "open", "save", "verify",
    },
    "checkpoint": {"Checkpoint", "Note", "Tensor"},
    "dtypes": {"DType"},
    "engine.plan": {"Plan"},
    "bulk.summary": {"Summary"},
    "bulk.run": {"zoo"},
    "matching.proposal": {"Match", "match"},
    "reporting.html": {"Page", "report"},
    "reporting.inspection": {"Inspection", "check", "inspect"},
    "verification.difference": {"Diff"},
    "verification.readback": {"Checked"},
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "torch":  # a module, which imports torch
        return import_module(f"{__name__}.torch")
    if name not in __all__:
        from .messages import did_you_mean

        hint = "" if name.startswith("_") else did_you_mean(name, __all__)
        hint = "; open(path) opens a checkpoint, and its torch() is a state dict" if name.startswith("load") else hint
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    home = next((module for module, names in _HOME.items() if name in names), "errors")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
