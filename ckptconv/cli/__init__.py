"""The command line: one file per verb; `main` runs it."""

from .main import main

__all__ = ["main"]
