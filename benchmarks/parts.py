"""Run the parts of a benchmark that the command line names, or all, each in a temporary folder of its own.

SHARE=0.01 in the environment takes a hundredth of what is counted, to try whether everything runs.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

SHARE = float(os.environ.get("SHARE", "1"))


def of(count: int) -> int:
    """How many to take of what is counted."""
    return max(1, round(count * SHARE))


def row(*cells: str) -> None:
    """Print a row of a table of the docs."""
    print(f"| {' | '.join(cells)} |", flush=True)


def run_parts(every: Mapping[str, Callable[[Path], None]], *, times: bool = False) -> None:
    """Run parts; times: print how long each took."""
    for name in sys.argv[1:] or list(every):
        home, began = Path(tempfile.mkdtemp()), time.monotonic()
        try:
            every[name](home)
        finally:
            shutil.rmtree(home)
        if times:
            print(f"# {name}: {time.monotonic() - began:.0f} s", flush=True)
