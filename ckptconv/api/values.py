"""Normalise what people write for the value of an option."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from operator import index
from typing import Any, Literal, cast

from ..errors import MissingExtra, UsageError
from ..messages import brief

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
Verify = Literal["none", "receipts", "full"]


class Cleaned:
    """A group of options whose values are normalised when it is made, whoever makes it.

    None is the default; an empty text, as an unset variable of a shell gives, is not.
    """

    def __post_init__(self) -> None:
        """Raises UsageError for a value that is none of its option."""
        for f in fields(cast("Any", self)):
            meaning = f.metadata.get("meaning")  # a subclass may have fields of its own
            keyword, value = (meaning and meaning.keyword) or f.name, getattr(self, f.name)
            if value is None:
                value = f.default if f.default_factory is MISSING else f.default_factory()
            empty = isinstance(value, str) and not value
            if meaning and value is not None and not empty:
                value = _made(keyword, value, meaning.clean, str(f.type))
            if empty or (isinstance(value, tuple) and "" in value):
                raise UsageError(f"{keyword}='' is empty: give a value, or leave it out")
            object.__setattr__(self, f.name, value)


def _made(keyword: str, value: Any, clean: Callable[[Any], Any] | None, declared: str) -> Any:
    """The value of an option, normalised; UsageError if it is not of the type that its field declares."""
    what, of_kind = next((test for kind, test in KINDS.items() if declared.startswith(kind)), ("", _anything))
    value = os.fspath(value) if declared.startswith("str") and isinstance(value, os.PathLike) else value
    try:
        made = clean(value) if clean else value
        right = of_kind(made)
    except (TypeError, ValueError):  # of what is no text, number or mapping at all
        right = False
    if not right:
        raise UsageError(f"{keyword}= takes {what or 'another kind of value'}, not {brief(repr(value), 100)}")
    return bool(made) if declared.startswith("bool") and made is not None else made  # numpy's are not JSON


def _anything(value: object) -> bool:
    return True


def texts(value: object) -> bool:
    """Whether it is a tuple of texts."""
    return isinstance(value, tuple) and all(isinstance(v, str) for v in value)


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {  # by how the type of a field begins: what it takes
    "str": ("a text", lambda v: isinstance(v, str)),
    "bool": ("True or False", lambda v: v in (True, False)),
    "int": ("a number", lambda v: isinstance(v, int)),
    "Sequence[str]": ("a text or several", texts),
    "Mapping": ("a mapping of names, or texts 'NAME=VALUE'", lambda v: all(isinstance(k, str) for k in v)),
    "Map": ("a function", callable),
}


def threads(value: Any) -> int:
    """A number of threads, at least one."""
    if isinstance(value, bool) or (count := index(value)) < 1:
        raise UsageError(f"jobs={value!r} is not a number of threads: it is at least 1")
    return count


def size(value: int | float | str) -> int:
    """Bytes of '5GB' (decimal), '512MiB' (binary), '1000', 1000 or 1e3."""
    if not isinstance(value, str):
        count = int(value) if isinstance(value, float) and value.is_integer() else index(cast("Any", value))
        if count < 1 or isinstance(value, bool):
            raise UsageError(f"{value!r} is not a size; write it like 512MB, 5GB or 2GiB")
        return count
    m = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]i?|)b?\s*", value.lower())
    if not m or not (count := int(float(m[1]) * UNITS[m[2]])):
        raise UsageError(f"{value!r} is not a size; write it like 512MB, 5GB or 2GiB")
    return count


def path(value: Any) -> str:
    """A path or URL as text; UsageError for anything else, such as an open checkpoint."""
    if isinstance(value, (str, os.PathLike)) and isinstance(found := os.fspath(value), str):
        return found
    hint = "; save() writes what is in memory" if isinstance(value, Mapping) else ""
    hint = "; give the path of the file instead of the open file" if hasattr(value, "read") else hint
    raise UsageError(f"a path is needed, not {type(value).__name__}{hint}")


def kind(value: Any) -> str:
    """The name of a dtype, also for numpy.float16 and torch.float16."""
    return value if isinstance(value, str) else str(getattr(value, "__name__", value)).rpartition(".")[2]


def several(value: str | Iterable[str]) -> tuple[str, ...]:
    """One text or several, as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value)


def renames(value: str | Iterable[str] | Mapping[str, str]) -> tuple[str, ...]:
    """One or several 'FROM=TO', or a mapping, as texts."""
    if not isinstance(value, Mapping):
        if not texts(found := several(value)):
            raise UsageError(
                f"rename= takes 'FROM=TO', several, or a mapping {{FROM: TO}}, not {brief(repr(value), 100)}"
            )
        return found
    return tuple(re.sub(r"[\\=]", r"\\\g<0>", str(a)) + f"={b}" for a, b in value.items())


def params(value: Mapping[str, Any] | str | Iterable[str]) -> dict[str, Any]:
    """A mapping, or 'NAME=VALUE' texts, in which integers become numbers."""
    if isinstance(value, Mapping):
        return dict(value)
    out: dict[str, Any] = {}
    if not texts(pairs := several(value)):
        raise TypeError("not texts")
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"param takes NAME=VALUE, not {pair!r}")
        out[key] = int(text) if re.fullmatch(r"-?\d+", text) else text
    return out


def verification(value: bool | Verify) -> Verify:
    """The kind of verification; True is 'full' and False 'none'."""
    words: dict[Any, Verify] = {True: "full", False: "none", "none": "none", "receipts": "receipts", "full": "full"}
    if value not in words:
        raise UsageError(f"verify is one of none, receipts, full; not {value!r}")
    return words[value]


def floats() -> list[str]:
    """The names that `dtype` accepts."""
    from ..dtypes import DTYPES

    return [d.name for d in DTYPES.values() if d.kind == "f"]


def names_code(text: str) -> bool:
    """Whether a text is package.module:callable, which names Python code, and not a path or a URL."""
    return re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", text) is not None


def bar(value: Any) -> Callable[[int, int], None] | None:
    """A function of bytes done and bytes in all: as given, or one that moves a bar ('rich', 'tqdm', True for rich)."""
    if callable(value) or value in (None, False):
        return value or None
    if value in (True, "rich"):
        return _rich()
    if value == "tqdm":
        return _tqdm()
    raise UsageError(f"progress is a function of (done, total), True, 'rich' or 'tqdm'; not {value!r}")


def _rich() -> Callable[[int, int], None]:
    """A bar of rich, in a terminal or a notebook; it starts with the first call and ends when all is done."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    shown = Progress(*columns, console=Console(stderr=True))
    task = shown.add_task("")

    def move(done: int, total: int) -> None:
        shown.start()
        shown.update(task, completed=done, total=total)
        if done >= total:
            shown.stop()

    return move


def _tqdm() -> Callable[[int, int], None]:
    """A bar of tqdm, which knows notebooks; it ends when all is done."""
    try:
        from tqdm.auto import tqdm
    except ImportError as e:
        raise MissingExtra("progress='tqdm' needs a package: pip install tqdm") from e
    shown: Any = tqdm(unit="B", unit_scale=True)

    def move(done: int, total: int) -> None:
        shown.total = total
        shown.update(done - shown.n)
        if done >= total:
            shown.close()

    return move
