"""What people see: sizes, tables, progress and reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import printable

if TYPE_CHECKING:
    from ..api import Report
    from ..run import Progress
    from ..tensor import Note


def bytes_(n: int) -> str:
    """A size as people write it, in decimal units."""
    value, unit = float(n), "B"
    for bigger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, bigger
    return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"


def shape(dims: Sequence[int]) -> str:
    return "x".join(map(str, dims)) or "scalar"


def as_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def talk(text: str) -> None:
    """Say something on stderr, where it is safe for a terminal."""
    print(printable(text) if "\n" not in text else "\n".join(map(printable, text.split("\n"))), file=sys.stderr)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> None:
    """Print aligned columns; columns whose letter in `right` is 'r' are right-aligned."""
    safe = [[printable(cell) for cell in row] for row in rows]
    widths = [max([len(h), *(len(row[i]) for row in safe)]) for i, h in enumerate(head)]
    for row in ([*head], *safe):
        cells = [c.rjust(w) if right[i : i + 1] == "r" else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))]  # noqa: B905 - one cell a column
        print("  ".join(cells).rstrip())


def notes(found: Sequence[Note], limit: int = 4) -> None:
    """Say the notes on stderr, each with a few of the names it concerns."""
    for note in found:
        names = ", ".join(note.names[:limit]) + (" ..." if len(note.names) > limit else "")
        count = f"{len(note.names)} tensors: " if len(note.names) > 1 else ""
        talk(f"{note.kind}: {count}{note.text}" + (f" ({names})" if names else ""))


def report(done: Report) -> None:
    """Say on stderr what a conversion did."""
    notes(done.notes)
    for name, (overflow, underflow) in done.loss.items():
        talk(f"lossy: {name}: {overflow} values became infinite or NaN, {underflow} became zero")
    rate = bytes_(int(done.bytes / max(done.seconds, 1e-9)))
    talk(f"{done.tensors} tensors, {bytes_(done.bytes)} in {done.seconds:.2f} s ({rate}/s) -> {done.destination}")


@contextmanager
def progress(quiet: bool) -> Iterator[Progress | None]:
    """A bar on a terminal, silence in a pipe."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)
