"""How verbs get the options that they share, which `api.options` declares.

`@takes("include", "force")` gives a verb these options. It receives those that were typed as keywords, and passes them
to the function of the API.
"""

from __future__ import annotations

import functools
import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..api.options import CHANGE, KNOWN, RESOURCES, SELECT, TARGET, Known
from ..errors import UsageError
from ..messages import printable

PYTHON = ("sync", "map", "progress")  # keywords that the command line does not have
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing on success.")]


def takes(*keywords: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options of these keywords, after its own; it receives those that were typed."""

    def flattened(verb: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(verb, eval_str=True)
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        shared = [_parameter(KNOWN[k]) for k in keywords if k not in PYTHON]
        defaults: dict[str, tuple[Any, ...]] = {p.name: (p.default, []) for p in shared}

        @functools.wraps(verb)
        def run(**typed: Any) -> None:
            verb(**{k: v for k, v in typed.items() if v not in defaults.get(k, ())})

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in kept] + shared
        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
        return run

    return flattened


# What most jobs need; help shows other shared options in groups of their own.
COMMON = {"include", "exclude", "weights_only", "converter", "rename", "dtype", "to", "force"}
GROUPS = (
    ("What to read", SELECT),
    ("Names, layouts, dtypes", CHANGE),
    ("How to write", TARGET),
    ("Resources", RESOURCES),
)


class Grouped(TyperCommand):
    """A verb whose help lists the options that most jobs need first, and the others by what they are about."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse them; UsageError for a second value of an option that takes one: the first would be lost."""
        seen = set[Any]()
        for param in self.make_parser(ctx).parse_args([*args])[2]:
            if param in seen and not (param.multiple or getattr(param, "is_flag", True) or ctx.resilient_parsing):
                raise UsageError(f"{param.opts[0]} is given twice; it takes one value")
            seen.add(param)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, as click does, in groups."""
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], **{title: [] for title, _ in GROUPS}}
        for param in self.get_params(ctx):
            name = param.name or ""
            first = name in COMMON or (name == "hash" and ctx.info_name == "inspect")  # which writes nothing
            group = next((t for t, names in GROUPS if name in names and not first), "Options")
            if record := param.get_help_record(ctx):
                rows["Arguments" if param.param_type_name == "argument" else group].append(record)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _parameter(known: Known) -> inspect.Parameter:
    """The parameter of a verb for an option: a text, several, a number, a switch, or a switch that can say no."""
    value: Any = str | None
    if known.kind.startswith(("Sequence", "Mapping")):
        value = list[str] | None
    elif known.keyword == "jobs":
        value = int | None
    elif known.metavar is None:
        value = bool if known.kind == "bool" else bool | None
    option = typer.Option(
        *(known.flags or (_flag(known.keyword),)),
        help=known.help + " Repeatable." * (value == list[str] | None),
        metavar=known.metavar,
    )
    default = False if value is bool else None
    annotation = Annotated[value, option]
    return inspect.Parameter(known.keyword, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


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
    flags = KNOWN[keyword].flags if keyword in KNOWN else ()
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


# --- what the shell offers on TAB -------------------------------------------------------------------------------------


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
