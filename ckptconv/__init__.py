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
    ckptconv.report(source)                 a page for a browser
    ckptconv.zoo(folder, destination)       many at once

A source is a path, a URL, an open checkpoint or a dict of arrays. `ckptconv.torch.load_into(module, source)` loads into
a torch module. The errors are in `ckptconv.errors`, and the classes of the results have names of their own here:
`help(ckptconv.Checkpoint)`, Tensor, Report, Plan, Inspection, Checked, Diff, Verified, Match, Page, Summary.

Names are imported when they are first used, so that printing the help does not wait for NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api.comparing import diff, verify
    from .api.reading import open
    from .api.result import Report as Report, Verified as Verified
    from .api.writing import convert, dry_run, save
    from .bulk.run import zoo
    from .bulk.summary import Summary as Summary
    from .checkpoint import Checkpoint as Checkpoint, Note as Note, Tensor as Tensor
    from .dtypes import DType as DType
    from .engine.plan import Plan as Plan
    from .errors import (
        AmbiguousFormat as AmbiguousFormat,
        CkptError as CkptError,
        ConversionError as ConversionError,
        CorruptCheckpoint as CorruptCheckpoint,
        FormatError as FormatError,
        LayoutError as LayoutError,
        MissingExtra as MissingExtra,
        NameCollision as NameCollision,
        StorageError as StorageError,
        UnknownFormat as UnknownFormat,
        UnmatchedTensors as UnmatchedTensors,
        Unrepresentable as Unrepresentable,
        UnsafeCheckpoint as UnsafeCheckpoint,
        UsageError as UsageError,
        VerifyError as VerifyError,
    )
    from .matching.proposal import Match as Match, match
    from .reporting.html import Page as Page, report
    from .reporting.inspection import Checked as Checked, Inspection as Inspection, check, inspect
    from .verification.difference import Diff as Diff

__version__ = "0.1.0"
__all__ = ["check", "convert", "diff", "dry_run", "inspect", "match", "open", "report", "save", "verify", "zoo"]

_HOME = {
    "api.comparing": {"diff", "verify"},
    "api.reading": {"open"},
    "api.result": {"Report", "Verified"},
    "api.writing": {"convert", "dry_run", "save"},
    "bulk.run": {"zoo"},
    "bulk.summary": {"Summary"},
    "checkpoint": {"Checkpoint", "Note", "Tensor"},
    "dtypes": {"DType"},
    "engine.plan": {"Plan"},
    "errors": {
        "AmbiguousFormat", "CkptError", "ConversionError", "CorruptCheckpoint", "FormatError", "LayoutError",
        "MissingExtra", "NameCollision", "StorageError", "UnknownFormat", "UnmatchedTensors",
        "Unrepresentable", "UnsafeCheckpoint", "UsageError", "VerifyError",
    },
    "matching.proposal": {"Match", "match"},
    "reporting.html": {"Page", "report"},
    "reporting.inspection": {"Checked", "Inspection", "check", "inspect"},
    "verification.difference": {"Diff"},
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "torch":  # a module, which imports torch
        return import_module(f"{__name__}.torch")
    home = next((module for module, names in _HOME.items() if name in names), None)
    if not home:
        from .messages import did_you_mean

        hint = "" if name.startswith("_") else did_you_mean(name, [*__dir__(), "torch"])
        if name.startswith("load"):
            hint = "; open(path) opens a checkpoint, torch.load_into(module, path) loads it into a torch module"
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{home}"), name))


def __dir__() -> list[str]:
    return [*(name for names in _HOME.values() for name in names), "__version__"]
