"""Options that several verbs share, and what people type for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from . import complete

if TYPE_CHECKING:
    from ..api import Change, Select

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}

From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FORMAT",
        help="The source's format, if it is ambiguous.",
        autocompletion=complete.readable,
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="GLOB", help="Only tensors whose name fits.", autocompletion=complete.tensors),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="GLOB", help="No tensor whose name fits.", autocompletion=complete.tensors),
]
Converter = Annotated[
    str | None,
    typer.Option(
        "--converter",
        "-c",
        metavar="NAME|FILE|auto",
        help="Rename and rearrange by a converter.",
        autocompletion=complete.converters,
    ),
]
Inverse = Annotated[bool, typer.Option("--inverse", help="Run the converter backwards.")]
Param = Annotated[
    list[str] | None, typer.Option("--param", metavar="K=V", help="A number that the converter asks for.")
]
Rename = Annotated[
    list[str] | None, typer.Option("--rename", metavar="FROM=TO", help="Template: 'enc/{x...}=dec/{x...}'.")
]
Scope = Annotated[
    list[str] | None,
    typer.Option("--scope", metavar="NAME", help="Put a source's names under NAME (one for each source)."),
]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="Cast floating-point tensors.", autocompletion=complete.dtypes)
]
Jobs = Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Threads (as many as processors, at most 8).")]
Engine = Annotated[
    str, typer.Option("--engine", metavar="local|ray|ray://HOST:PORT", help="Where jobs run: here or on a cluster.")
]
Opaque = Annotated[
    bool, typer.Option("--opaque", help="Read tensors out of pickles that name unknown classes; none is ever run.")
]
WeightsOnly = Annotated[
    bool, typer.Option("--weights-only", help="Leave out optimizer slots, step counters and moving averages.")
]
Densify = Annotated[bool, typer.Option("--densify", help="Compute sparse and quantised tensors of PyTorch files.")]
Ema = Annotated[bool, typer.Option("--ema", help="Put the moving averages in the place of the weights.")]
Verify = Annotated[bool | None, typer.Option("--verify/--no-verify", help="Read every byte back, or not even headers.")]
Hash = Annotated[
    bool | None, typer.Option("--hash/--no-hash", help="Carry hashes in the metadata, which `verify FILE` checks.")
]
SkipUnrepresentable = Annotated[
    bool, typer.Option("--skip-unrepresentable", help="Leave out what the target cannot hold.")
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace what exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on success.")]


def select(
    format: str | None,
    include: list[str] | None,
    exclude: list[str] | None,
    opaque: bool,
    weights_only: bool,
    ema: bool,
    keep_going: bool = False,
    densify: bool = False,
) -> Select:
    """Bundle the reading options."""
    from ..api import Select

    return Select(format, include or (), exclude or (), opaque, weights_only, ema, keep_going, densify)


def change(
    converter: str | None,
    inverse: bool,
    param: list[str] | None,
    rename: list[str] | None,
    dtype: str | None,
    scope: list[str] | None = None,
) -> Change:
    """Bundle the options that change names, layouts and dtypes."""
    from ..api import Change

    return Change(converter, inverse, params(param), rename or (), scope or (), dtype)


def verification(verify: bool | None) -> str:
    """What `api.Target` calls it."""
    return {None: "receipts", True: "full", False: "none"}[verify]


def size(text: str) -> int:
    """Bytes of '5GB' (decimal), '512MiB' (binary) or '1000'."""
    m = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*", text.lower())
    if not m or not (bytes_ := int(float(m[1]) * UNITS[m[2]])):
        raise UsageError(f"{text!r} is not a size; write it like 512MB, 5GB or 2GiB")
    return bytes_


def params(pairs: list[str] | None) -> dict[str, Any]:
    """K=V pairs; whole numbers become numbers."""
    out: dict[str, Any] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--param takes NAME=VALUE, not {pair!r}")
        out[key] = int(value) if re.fullmatch(r"-?\d+", value) else value
    return out


def callable_name(text: str) -> bool:
    """Whether a text is package.module:callable, which names Python code, and not a path or a URL."""
    return re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", text) is not None
