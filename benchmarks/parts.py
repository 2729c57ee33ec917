"""Run the parts of a benchmark that the command line names, or all, each in a temporary folder of its own."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path


def run_parts(every: Mapping[str, Callable[[Path], None]]) -> None:
    for name in sys.argv[1:] or list(every):
        home = Path(tempfile.mkdtemp())
        try:
            every[name](home)
        finally:
            shutil.rmtree(home)
