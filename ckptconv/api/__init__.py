"""The verbs that work on checkpoints: open, save, convert, verify, diff. Each is a few lines over lower rooms.

path -> detect -> open -> passes -> place -> plan -> run -> seal -> verify

    options.py   the options of all verbs   reading.py    a source, selected and changed
    writing.py   a destination              comparing.py  two checkpoints
    memory.py    arrays in memory           result.py     the report of a conversion

Names are imported when they are first used: the command line needs the options long before numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comparing import diff, verify
    from .options import MEMORY, Options, Path, parse_options
    from .reading import dated, open, opened, prepare
    from .result import Report, Verified
    from .writing import convert, dry_run, plan_for, save, write

__all__ = [
    "MEMORY", "Options", "Path", "Report", "Verified", "convert", "dated", "diff", "dry_run", "open", "opened",
    "parse_options", "plan_for", "prepare", "save", "verify", "write",
]  # fmt: skip

_HOME = {
    "comparing": {"diff", "verify"},
    "reading": {"dated", "open", "opened", "prepare"},
    "result": {"Report", "Verified"},
    "writing": {"convert", "dry_run", "plan_for", "save", "write"},
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _HOME.items() if name in names), "options")
    return getattr(import_module(f"{__name__}.{home}"), name)
