"""How the command line spells the options that verbs share; `api.options` declares what they are.

`@takes("include", "force")` gives a verb these options. It receives those that were typed as keywords, and passes them
to the function of the API.
"""

from __future__ import annotations

import functools
import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from ..api.options import CHANGE, KNOWN, SELECT
from ..messages import printable
from . import complete

READING, CHANGING = SELECT, CHANGE
TEXT, TEXTS, NUMBER, SWITCH = str | None, list[str] | None, int | None, bool | None


class Spelling(NamedTuple):
    """What the command line needs to know of an option besides its keyword and its help."""

    kind: Any
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    complete: Callable[[str], list[str]] | None = None


# Those that are not simply a switch, --keyword.
SPELLINGS: dict[str, Spelling] = {
    "from_": Spelling(TEXT, ("--from",), "FORMAT", complete.readable),
    "at": Spelling(TEXT, (), "ENTRY"),
    "strip_prefix": Spelling(TEXTS, (), "PREFIX[,PREFIX]"),
    "include": Spelling(TEXTS, (), "GLOB", complete.tensors),
    "exclude": Spelling(TEXTS, (), "GLOB", complete.tensors),
    "converter": Spelling(TEXT, ("--converter", "-c"), "NAME|FILE|auto", complete.converters),
    "param": Spelling(TEXTS, (), "K=V"),
    "rename": Spelling(TEXTS, (), "FROM=TO"),
    "rename_regex": Spelling(TEXTS, (), "FROM=TO"),
    "scope": Spelling(TEXTS, (), "NAME"),
    "dtype": Spelling(TEXT, (), "DTYPE", complete.dtypes),
    "to": Spelling(TEXT, (), "FORMAT", complete.writable),
    "max_shard_size": Spelling(TEXT, (), "SIZE"),
    "max_memory": Spelling(TEXT, (), "SIZE"),
    "jobs": Spelling(NUMBER, ("--jobs", "-j"), "N"),
    "engine": Spelling(TEXT, (), "local|ray|ray://HOST:PORT"),
    "verify": Spelling(SWITCH, ("--verify/--no-verify",)),
    "hash": Spelling(SWITCH, ("--hash/--no-hash",)),
    "copy_files": Spelling(SWITCH, ("--copy-files/--no-copy-files",)),
    "force": Spelling(bool, ("--force", "-f")),
}

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing on success.")]


def _parameter(keyword: str) -> inspect.Parameter:
    how = SPELLINGS.get(keyword, Spelling(bool))
    flags = how.flags or ("--" + keyword.replace("_", "-"),)
    least = 1 if how.kind == NUMBER else None
    option = typer.Option(
        *flags, help=KNOWN[keyword].meaning.help, metavar=how.metavar, autocompletion=how.complete, min=least
    )
    default = False if how.kind is bool else None
    return inspect.Parameter(
        keyword, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[how.kind, option]
    )


def takes(*keywords: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options of these keywords, after its own; it receives those that were typed."""

    def flattened(verb: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(verb, eval_str=True)
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        shared = [_parameter(k) for k in keywords]
        defaults: dict[str, tuple[Any, ...]] = {p.name: (p.default, []) for p in shared}

        @functools.wraps(verb)
        def run(**typed: Any) -> None:
            verb(**{k: v for k, v in typed.items() if v not in defaults.get(k, ())})

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in kept] + shared
        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
        return run

    return flattened


def command(verb: str, paths: Sequence[str], given: Mapping[str, Any]) -> str:
    """A command line with these options, quoted for a shell."""
    words = ["ckptconv", verb, *paths]
    for keyword, value in given.items():
        values = [f"{k}={v}" for k, v in value.items()] if isinstance(value, dict) else value
        for one in values if isinstance(values, list) else [values]:
            words += [_flag(keyword).partition("/")[0]] + ([] if one is True else [str(one)])
    return printable(" ".join(map(shlex.quote, words)))


def _flag(keyword: str) -> str:
    """The name of an option: -c for the converter, the first of its flags otherwise."""
    flags = SPELLINGS.get(keyword, Spelling(bool)).flags
    return "-c" if keyword == "converter" else flags[0] if flags else "--" + keyword.replace("_", "-")


ALSO = ("rtol", "atol", "pattern", "ledger", "shard", "sort", "follow_links", "graph")  # keywords of single functions
_KEYWORD = re.compile(
    rf"(?<![^\s(`])({'|'.join([*KNOWN, *ALSO])})=(?:(True|False|None|[A-Z]+|[0-9]+)|'([^'\n]*)')?(?![\w{{/])"
)


def spelled(text: str) -> str:
    """A message of the library in terms of the command line: force=True is --force, scope=NAME is --scope NAME."""

    def flag(m: re.Match[str]) -> str:
        name, _, negative = _flag(m[1]).partition("/")
        if m[2] == "False":
            return negative or name
        if m[2] in ("True", "None") or not m[0].partition("=")[2]:
            return name
        value = m[2] or (m[3] if re.fullmatch(r"[\w./:=,+-]+", m[3]) else f"'{m[3]}'")
        return f"{name} {value}"

    return _KEYWORD.sub(flag, text) if "=" in text else text
