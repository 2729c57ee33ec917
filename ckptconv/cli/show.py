"""What people see: tables, JSON, progress, notes, reports and errors. No other module prints.

Names, paths, urls and messages may be a stranger's: whatever it is, it is escaped here, and begins no line of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import islice
from math import isfinite
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import CkptError
from ..messages import brief, indented, paragraph, printable, redacted, scrubbed, table as lines_of, widths_of
from .options import spelled

if TYPE_CHECKING:
    from .. import Note
    from ..api.result import Report


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


def _compact(value: Any) -> str:
    """One line of JSON, in ASCII: nothing in it drives a terminal, and every encoding has it."""
    try:
        return json.dumps(value, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), default=str)


def _finite(value: Any) -> Any:
    """A value with text for NaN and infinities, which are no numbers of JSON."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def escape_unwritable() -> None:
    """Escape lone surrogates, and characters that the encoding of the terminal lacks, as \\u."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def tell(*texts: str, file: TextIO | None = None) -> None:
    """Print what the user asked for, in terms of the command line; of each text only one line begins at the margin."""
    for text in texts:
        print(paragraph(scrubbed(spelled(text))), file=file)


def talk(*texts: str) -> None:
    """Print to stderr, as `tell` does to stdout, what the user should know."""
    tell(*texts, file=sys.stderr)


def document(text: str) -> None:
    """Print a text of ours, a rule file for instance, line by line as it is."""
    print("\n".join(map(printable, text.split("\n"))), end="")


def address(url: str) -> None:
    """Print the address of our own server, at once: whoever started it waits for it."""
    print(printable(url), flush=True)


def failure(e: CkptError, *, machine: bool) -> int:
    """Print an error to stderr, and for `--json` as one line of JSON to stdout; return its exit code."""
    if machine:
        what = {
            "kind": next(c.__name__ for c in type(e).__mro__ if c.__module__ == CkptError.__module__),  # a public one
            "message": spelled(scrubbed(e.message)),
            "url": redacted(e.url or "") or None,
            "tensor": e.tensor,
        }
        print(_compact({"error": {**what, "exit": e.exit_code}}))
    talk(f"error: {e}")
    return e.exit_code


def warnings() -> None:
    """Print what the library warns of that no report and no error says: packages that are broken."""
    import logging

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            talk(f"warning: {record.getMessage()}")

    logging.getLogger("ckptconv.plugins").handlers[:] = [Told()]  # once, however often `main` is called


def crash() -> None:
    """Print the traceback of a defect of ours, indented and without secrets: what it quotes may be a stranger's."""
    import traceback

    print("error: a defect of ckptconv; please report it:", file=sys.stderr)
    print(indented("\n".join(map(printable, scrubbed(traceback.format_exc()).split("\n")))), file=sys.stderr)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> None:
    """Print aligned columns; columns whose letter in `right` is 'r' are right-aligned."""
    lines = iter(lines_of(head, _fitted(head, rows), right))
    while some := list(islice(lines, 1000)):  # a call for each takes a quarter of the time to list a million tensors
        print("\n".join(some))


NARROWEST = 16  # columns of a name that is cut


def _fitted(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
    """On a terminal, the rows with the middle of texts in the widest column left out, so that a line fits it."""
    if not sys.stdout.isatty() or not rows:
        return rows
    widths = widths_of(head, rows)
    i = widths.index(max(widths))
    room = get_terminal_size().columns - sum(widths) - 2 * (len(widths) - 1) + widths[i]
    return [[*row[:i], _cut(row[i], max(room, NARROWEST)), *row[i + 1 :]] for row in rows]


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    left = (width - 1) // 3
    return f"{text[:left]}…{text[len(text) - (width - 1 - left) :]}"


def notes(found: Sequence[Note]) -> None:
    """Print notes to stderr, each with a few of the names that it concerns."""
    for note in found:
        talk(str(note))


def report(done: Report, verbose: bool = False) -> None:
    """Print to stderr what a conversion did; with `verbose`, all names that a note concerns."""
    if verbose:
        for note in done.notes:
            talk(f"{note.kind}: {note.text}")
            if note.names:
                print(folded(note.names, len(note.names)), file=sys.stderr)
        for name, (infinite, zero) in done.loss.items():
            talk(f"lossy: {brief(printable(name))}: {infinite:,} values became infinite or NaN, {zero:,} became zero")
    talk(*done.lines()[-1:] if verbose else done.lines())


def is_watched() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr.isatty()


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal; nothing in a pipe."""
    if quiet or not is_watched():
        yield None
        return
    from ..api.options import rich_bar

    with rich_bar(transient=True) as shown:
        task = shown.add_task("")
        yield lambda done, total: shown.update(task, completed=done, total=total)
