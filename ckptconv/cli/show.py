"""What people see: sizes, tables, progress and reports."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from ..messages import printable
from .options import spelled

if TYPE_CHECKING:
    from .. import Note
    from ..api import Report


@lru_cache(maxsize=4096)
def bytes_(n: int) -> str:
    """A size as people write it, in decimal units."""
    value, unit = float(n), "B"
    for bigger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, bigger
    return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"


def many(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


@lru_cache(maxsize=4096)
def count(n: int) -> str:
    return f"{n:,}"


@lru_cache(maxsize=4096)
def shape(dims: tuple[int, ...]) -> str:
    return "x".join(map(str, dims)) or "scalar"


def number(value: Any) -> str:
    """A number in at most six significant digits; text as it is."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def folded(names: Sequence[str], limit: int = 20) -> str:
    """Names folded by pattern, a line each."""
    from ..messages import fold, listing

    return listing([str(f) for f in fold(names)], limit)


def as_json(value: Any) -> None:
    """Print JSON, a line for each item of the lists and objects at the top: people read it, and so does `grep`."""
    if not isinstance(value, dict):
        print(_items(value, "[]") if isinstance(value, list) else _compact(value))
        return
    lines = []
    for key, inner in value.items():
        nested = isinstance(inner, (list, tuple)) and any(isinstance(i, (dict, list, tuple)) for i in inner)
        lines.append(f"  {_compact(key)}: {_items(inner, '  ') if nested else _compact(inner)}")
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")


def _items(rows: Sequence[Any], indent: str) -> str:
    pad = indent if indent.isspace() else ""
    return "[\n" + ",\n".join(f"{pad}  {_compact(row)}" for row in rows) + f"\n{pad}]" if rows else "[]"


_AS_IT_IS, _ESCAPED = (json.JSONEncoder(ensure_ascii=escape, default=str).encode for escape in (False, True))


def _compact(value: Any) -> str:
    """One line of JSON, readable where the output can hold every letter."""
    return (_AS_IT_IS if (sys.stdout.encoding or "utf-8").lower() == "utf-8" else _ESCAPED)(value)


def escape_unwritable() -> None:
    """Have names that the terminal's encoding cannot hold, and lone surrogates, written as \\u escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def talk(text: str) -> None:
    """Say something on stderr, where it is safe for a terminal."""
    print(printable(text) if "\n" not in text else "\n".join(map(printable, text.split("\n"))), file=sys.stderr)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: str = "", colours: Sequence[str] = ()) -> None:
    """Print aligned columns; columns whose letter in `right` is 'r' are right-aligned."""
    rows = [row if "".join(row).isprintable() else tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    sides = [">" if right[i : i + 1] == "r" else "<" for i in range(len(head))]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True)).format
    lines = (line(*row).rstrip() for row in (head, *rows))
    if colours:
        lines = (paint(text, how) for text, how in zip(lines, ("bold", *colours), strict=True))
    sys.stdout.writelines(f"{text}\n" for text in lines)


PAINT = {"red": 31, "green": 32, "yellow": 33, "bold": 1, "faint": 2}


def paint(text: str, how: str) -> str:
    """Colour on a terminal that wants it (https://no-color.org): nothing in a pipe, with NO_COLOR or a dumb TERM."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{PAINT[how]}m{text}\x1b[0m"


def notes(found: Sequence[Note], limit: int = 4) -> None:
    """Say the notes on stderr, each with a few of the names it concerns."""
    for note in found:
        more = len(note.names) - limit
        names = ", ".join(note.names[:limit]) + (f" and {more} more" if more > 0 else "")
        talk(f"{note.kind}: {spelled(note.text)}" + (f" ({names})" if names else ""))


def report(done: Report) -> None:
    """Say on stderr what a conversion did."""
    notes(done.notes)
    for name, (overflow, underflow) in done.loss.items():
        talk(f"lossy: {name}: {overflow} values became infinite or NaN, {underflow} became zero")
    rate = bytes_(int(done.bytes / max(done.seconds, 1e-9)))
    talk(f"{done.tensors} tensors, {bytes_(done.bytes)} in {done.seconds:.2f} s ({rate}/s) -> {done.destination}")


def is_watched() -> bool:
    """Whether a person reads what is said."""
    return sys.stderr.isatty()


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal, silence in a pipe."""
    if quiet or not is_watched():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)
