"""Make text for people: safe to print, short, folded by number, with suggestions for near misses; redact urls."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

MAX_CELL = 300  # characters of a name in a table
MAX_LINE, MAX_TEXT = 5000, 100_000  # characters of a line (a path has up to 4,096), and of a whole message
NEAR = 0.67  # least similarity of a near miss: twice the common letters, divided by all letters
MAX_WORD = 200  # letters that are compared, in quadratic time


def version() -> str:
    """Return our own version without importing the package, which imports this module."""
    return str(sys.modules["ckptconv"].__version__)


_BARE = r"(?:(?i:https?):?)?/{0,3}[^/\s@:'\"`]+:[^/\s@]*@"  # also without ://, after a typing mistake
_LOGIN = re.compile(_BARE)
_USER = re.compile(r"/*[^/?#]*@")
_URL = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]{0,30}://(?:[^\s/@?#]*:(?![0-9]+\s)[^/@\n]{0,100}@)?\S*" + rf"|(?<![^\s'\"`]){_BARE}\S*"
)


def redacted(url: str) -> str:
    """Remove secrets from a url: the login before the host, and signed queries. If in doubt, show less."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return _unsigned(f"...@{url[m.end() :]}", web=True) if (m := _LOGIN.match(url)) else url
    if scheme in ("file", "memory") and rest.startswith("/"):  # these have neither hosts nor logins
        return url
    if user := _USER.match(rest):
        rest = rest[user.end() :]
    before, at, after = rest.rpartition("@")
    if at and ":" in before:  # a slash or a question mark in a password, or another url in the path
        rest = "..." if "?" in before else after
    return f"{scheme}://{_unsigned(rest, web=scheme.lower() in ('http', 'https'))}"


def _unsigned(rest: str, *, web: bool) -> str:
    """Return the url before its query; outside the web, a question mark may belong to a name."""
    place, asks, query = rest.partition("?")
    if asks and not web and "=" not in query and "%3D" not in query:
        return rest
    return (place.partition("#")[0] if web else place) + ("?..." if asks else "")


def scrubbed(text: str) -> str:
    """Redact each url in a foreign text, such as a library's error."""
    return _URL.sub(_shown, text) if "://" in text or "@" in text else text


def _shown(found: re.Match[str]) -> str:
    url = found[0].rstrip("'\"`<>)],;:!")
    url = url if url.endswith("...") else url.rstrip("'\"`<>)],;:!.")
    return redacted(url) + found[0][len(url) :]


# characters that Unicode calls printable although they are invisible: fillers, inherent vowels and variation selectors
# (Default_Ignorable_Code_Point in DerivedCoreProperties.txt), and blanks of Braille, Khitan and musical notation
INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)


def is_visible(text: str) -> bool:
    """Tell whether all characters of a text are visible, and none of them controls a terminal."""
    return text.isprintable() and (text.isascii() or not INVISIBLE.search(text))


def printable(text: str) -> str:
    """Escape characters that could control a terminal or hide: control, bidi, invisible and undecodable ones."""
    if is_visible(text):
        return text
    return "".join(c if is_visible(c) else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def brief(text: str, limit: int = 300) -> str:
    """Shorten a name from a file to a length that fits in a message."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def cut(text: str, limit: int = 300) -> str:
    """Shorten a text in the middle: it begins with a name from a file and ends with a statement about it."""
    if len(text) <= limit:
        return text
    end = limit // 3
    return f"{text[: limit - end - 40]}... ({len(text)} characters) ...{text[len(text) - end :]}"  # within the limit


def listing(names: Iterable[str], limit: int = 20) -> str:
    """Join names for a message, one per indented line; names beyond `limit` are counted."""
    items = list(names)
    lines = [f"  {printable(cut(n))}" for n in items[:limit]]
    lines += [f"  ... and {len(items) - limit:,} more"] * (len(items) > limit)
    return "\n".join(lines)


_BREAK = re.compile(r"\n(?=  )")


def paragraph(text: str) -> str:
    """Make a message safe to print, and limit its length: only its first line begins at the margin.

    A line break stays if an indented line follows, as in our lists. Otherwise it comes from a name and is escaped, so
    that the name cannot fake a line of ours.
    """
    if len(text) <= MAX_LINE and is_visible(text):
        return text
    lines, kept, room = _BREAK.split(text), list[str](), MAX_TEXT
    for line in lines:
        kept.append(printable(cut(line, MAX_LINE)))
        room -= len(kept[-1])
        if room < 0:
            break
    more = [f"  ... and {len(lines) - len(kept):,} more lines"] * (len(lines) > len(kept))
    return "\n".join([*kept, *more])


class Told(ABC):
    """The base of results of verbs: one line in the REPL; print() shows them as the command line does."""

    @abstractmethod
    def sum(self) -> str:
        """Sum up the result in one line."""

    def lines(self) -> list[str]:
        """Return the lines that the command line prints."""
        return [self.sum()]

    def __str__(self) -> str:
        return "\n".join(map(paragraph, self.lines()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {paragraph(self.sum())}>"


def indented(text: str) -> str:
    """Indent the lines of a text, to continue a message."""
    return "\n".join(f"  {line}" for line in text.split("\n"))


def nearest(word: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return the known names that were probably meant by a word, the most similar first; [] if none is similar.

    Only this function defines "near". Case and the special characters of globs and templates do not count. A name is
    near if at most a third of the letters differ, or, for a word of three letters or more, if it contains the word.
    """
    from difflib import get_close_matches  # only a mistake needs it

    bare, bare_names = _bare(word), {n: _bare(n) for n in known}
    spelt = get_close_matches(bare, dict.fromkeys(bare_names.values()), count, NEAR)
    inside = [p for p in dict.fromkeys(bare_names.values()) if len(bare) > 2 and bare in p]
    wanted = dict.fromkeys([*sorted(inside, key=len), *spelt])
    return [n for w in wanted for n in bare_names if bare_names[n] == w][:count]


def did_you_mean(word: str, known: Iterable[str], plural: str = "", *, count: int = 1) -> str:
    """End a message about an unknown word: `; did you mean A, B?` with up to `count` similar names.

    If none is similar, list all known names if there is a plural noun for them (`; the formats are A, B, C`), else ''.
    """
    names = list(known)
    if near := nearest(word, names, count):
        return f"; did you mean {', '.join(map(printable, map(brief, near)))}?"
    if not plural:
        return ""
    return f"; the {plural} are {', '.join(map(printable, map(brief, names)))}" if names else f"; there are no {plural}"


def _bare(text: str) -> str:
    return re.sub(r"[*?\[\]{}]", "", text).lower()[:MAX_WORD]


# --- numbers and tables -----------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def in_bytes(n: int) -> str:
    """Format a size in decimal units."""
    value, unit = float(n), "B"
    for bigger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, bigger
    return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"


@lru_cache(maxsize=4096)
def in_shape(dims: tuple[int, ...]) -> str:
    """Format a shape: 2x3, or scalar."""
    return "x".join(map(str, dims)) or "scalar"


def many(n: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: 1 tensor, 2,000 tensors, 3 hashes."""
    plural = plural or noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")
    return f"{n:,} {noun if n == 1 else plural}"


def in_digits(value: object) -> str:
    """Format a number with at most six significant digits; return text unchanged."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], sides: str = "") -> Iterator[str]:
    """Yield lines of aligned columns, right-aligned if the letter in `sides` is r; cut long cells."""
    cells = [
        row
        if len(text := "".join(row)) <= MAX_CELL and is_visible(text)
        else [printable(brief(cell, MAX_CELL)) for cell in row]
        for row in rows
    ]
    widths = widths_of(head, cells)
    marks = [">" if sides[i : i + 1] == "r" else "<" for i in range(len(head))]
    line = "  ".join(f"{{:{mark}{width}}}" for mark, width in zip(marks, widths, strict=True)).format
    return (line(*row).rstrip() for row in (head, *cells))


def widths_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column; an iterator per row would be slow for a million rows."""
    return [max(len(title), max(map(len, map(itemgetter(i), rows)), default=0)) for i, title in enumerate(head)]


# --- folding ----------------------------------------------------------------------------------------------------


class Fold(NamedTuple):
    """Names that differ only in numbers, as one line: layer_{0..11}/kernel (12)."""

    text: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.text} ({len(self.names)})" if len(self.names) > 1 else self.text


def shortened(names: Sequence[str], limit: int = 4) -> str:
    """List names folded by pattern in one line, with the number of names left out."""
    folded = fold(names)
    left = sum(len(f.names) for f in folded[limit:])
    return ", ".join(brief(str(f)) for f in folded[:limit]) + (f" and {left:,} more" if left else "")


_NUMBER = re.compile(r"[0-9]+")


def fold(names: Iterable[str]) -> list[Fold]:
    """Fold names by pattern, in the order in which the patterns first appear."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_NUMBER.sub("\0", name), []).append(name)
    return [Fold(_folded(shape, found), tuple(found)) for shape, found in groups.items()]


def reasons(wrong: Mapping[str, str]) -> str:
    """List names with their reasons, folded by pattern."""
    alike: dict[str, list[str]] = {}
    for name, why in wrong.items():
        alike.setdefault(" ".join(why.split()), []).append(name)  # a reason may have several lines
    return listing(f"{line}: {why}" for why, names in alike.items() for line in fold(names))


def _folded(shape: str, names: list[str]) -> str:
    columns = zip(*(_NUMBER.findall(n) for n in names), strict=True)
    words = shape.split("\0")
    return "".join(printable(w) + _range(set(c)) for w, c in zip(words, [*columns, ()], strict=False))


def _range(values: set[str]) -> str:
    if len(values) < 2:
        return "".join(values)
    if any(len(v) > 1 and v[0] == "0" for v in values):
        return "{" + ",".join(sorted(values)) + "}"
    order = sorted(map(int, values))
    if order[-1] - order[0] == len(order) - 1:
        return f"{{{order[0]}..{order[-1]}}}"
    return "{" + ",".join(map(str, order)) + "}" if len(order) <= 6 else f"{{{order[0]},{order[1]}..{order[-1]}}}"


@lru_cache(maxsize=2**16)
def natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a sort key that puts layer_2 before layer_10."""
    found = re.findall(r"([0-9]{1,18})|([^0-9]+|[0-9]{19,})", name)
    return tuple((not digits, int(digits or 0), text) for digits, text in found)
