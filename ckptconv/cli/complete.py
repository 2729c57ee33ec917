"""What the shell offers on TAB: formats, converters, dtypes, columns, and names of tensors in the SRC that was typed.

Completion must be quick and silent: it opens a checkpoint's headers at most, and offers nothing if they cannot be read.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from ..errors import CkptError
from ..messages import printable

LIMIT = 200  # names offered at a time
PLAIN = re.compile(r"[\w./:@%+,-]+")  # a name that a shell would read as anything else is not offered: `$(...)`


def _starting(words: Iterable[str], typed: str) -> list[str]:
    """The words that continue what was typed and that no shell takes for anything else: every offer passes here.

    Nor may a person: letters that are not seen, and names like options where none was begun, are not offered.
    """
    dash = () if typed.startswith("-") else "-"
    words = (w for w in words if w.startswith(typed) and not w.startswith(dash))
    return [w for w in words if PLAIN.fullmatch(w) and printable(w) == w]


def readable(incomplete: str) -> list[str]:
    """Formats for --from."""
    from ..formats.table import table

    return _starting((f.name for f in table().values() if f.reads), incomplete)


def writable(incomplete: str) -> list[str]:
    """Formats for --to."""
    from ..formats.table import table

    return _starting((f.name for f in table().values() if f.writes), incomplete)


def converters(incomplete: str) -> list[str]:
    """Converters for -c, and rule files."""
    from ..rules.library import names

    folder = os.path.dirname(incomplete)
    try:
        rules = (f for f in sorted(os.listdir(folder or ".")) if f.endswith(".toml") and not f.startswith("-"))
        files = [os.path.join(folder, f) for f in rules]
    except OSError:
        files = []
    return _starting(["auto", *names(), *files], incomplete)


def dtypes(incomplete: str) -> list[str]:
    """Floating-point dtypes for --dtype."""
    from ..api.values import floats

    return _starting(floats(), incomplete)


def columns(incomplete: str) -> list[str]:
    """Columns for --sort."""
    from ..reporting.outline import KEYS

    return _starting([*KEYS, *(f"-{k}" for k in KEYS)], incomplete)


def tensors(incomplete: str) -> list[str]:
    """Names of tensors in the sources that were typed, up to the next separator: TAB walks down the scopes."""
    found: dict[str, None] = {}
    for word in _typed():
        try:
            found.update(dict.fromkeys(_names(word)))
        except CkptError:
            continue
    return list(dict.fromkeys(_step(n, incomplete) for n in _starting(found, incomplete)))[:LIMIT]


def _typed() -> list[str]:
    """The words before the cursor that may be checkpoints; parsing stops at an option without its value."""
    try:
        words = shlex.split(os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", ""))
    except ValueError:  # a quote is still open
        return []
    return [w for w in words[2:] if not w.startswith("-")][:8]


def _names(source: str) -> Iterator[str]:
    from ..api import open

    yield from open(source)


def _step(name: str, typed: str) -> str:
    """The name up to the next separator, which stands for all below it; a shell would put names of files for a `*`."""
    sep = "/" if "/" in name else "."
    at = name.find(sep, len(typed))
    return name if at < 0 else name[: at + 1]


def with_verb(environ: Mapping[str, str], verbs: Iterable[str]) -> dict[str, str]:
    """What to change in a completion's environment so that the default verb stands before what was typed."""
    key = "_TYPER_COMPLETE_ARGS" if "_TYPER_COMPLETE_ARGS" in environ else "COMP_WORDS"
    program, *rest = re.split(r"\s", environ.get(key, ""), maxsplit=1)
    first, *more = re.split(r"\s", rest[0], maxsplit=1) if rest else [""]
    if not first or not more or first in {*verbs, "-h", "--help", "-V", "--version"}:
        return {}
    changed = {key: f"{program} convert {rest[0]}"}
    if "COMP_CWORD" in environ:
        changed["COMP_CWORD"] = str(int(environ["COMP_CWORD"]) + 1)
    return changed
