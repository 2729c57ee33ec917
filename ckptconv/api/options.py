"""The options of all verbs, each declared once: its keyword, type, default, meaning, and spelling on the command line.

    SELECT     what to read of a source          TARGET       how to write
    CHANGE     names, layouts and dtypes         RESOURCES    what it may cost

Functions take them as keywords, `convert(a, b, dtype="float16", include="bert*")`, and make one `Options` of them; the
command line spells the same keywords with dashes. Nothing here imports what a verb needs to run.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import wraps
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, TypeVar, cast

from ..errors import UsageError
from ..messages import brief, did_you_mean

if TYPE_CHECKING:
    from ..engine.run import Map, Progress
    from ..rules.converter import Converter

MEMORY = 512 * 2**20
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
Path = str | os.PathLike[str]
Pair = str | tuple[str, str]  # FROM=TO
Source = Path | Mapping[str, Any]  # a file, a folder, a URL; an open checkpoint, a dict of arrays, a state dict
# What other programs call our options; of a second keyword where a verb lacks the first.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "overwrite": ("force",),
    "format": ("to", "from_"),
    "torch_dtype": ("dtype",),
    "cast": ("dtype",),
    "filter": ("include",),
    "workers": ("jobs",),
    "key": ("at",),
    "allow_pickle": ("opaque",),
    "tolerance": ("rtol",),
    "into": ("like",),
}


# --- what people write for a value ------------------------------------------------------------------------------------


def _is_pair(value: Any) -> bool:
    if isinstance(value, str):
        return "=" in value[1:]
    return all(isinstance(one, str) for one in value) and bool(value[0])


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {  # by how the type of a field begins: what it takes
    "str | Converter": (
        "a name, a .toml file, a Converter or a Match",
        lambda v: isinstance(v, str) or hasattr(v, "rules"),
    ),
    "str": ("a text", lambda v: isinstance(v, str)),
    "bool": ("True or False", lambda v: v in (True, False)),
    "int": ("a number", lambda v: isinstance(v, int)),
    "Sequence[Pair]": ("'old=new', one or several", lambda v: all(map(_is_pair, v))),
    "Sequence[str]": ("a text or several", lambda v: all(isinstance(one, str) and one for one in v)),
    "Mapping": ("a mapping of names, or texts 'NAME=VALUE'", lambda v: all(isinstance(k, str) for k in v)),
    "Map |": ("a function", callable),
    "Progress": ("a function of (done, total), or True", lambda v: v is None or callable(v)),
    "": ("another kind of value", lambda v: True),
}


def threads(value: Any) -> int:
    """A number of threads, at least one."""
    if isinstance(value, bool) or (count := index(value)) < 1:
        raise UsageError(f"jobs={value!r} is not a number of threads: it is at least 1")
    return count


def size(value: int | float | str) -> int:
    """Bytes of '5GB' (decimal), '512MiB' (binary), '1000', 1000 or 1e3; '5' lacks a unit."""
    count = 0
    if not isinstance(value, str):
        count = int(value) if isinstance(value, float) and value.is_integer() else index(cast("Any", value))
    elif m := re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]i?|(?=b)|(?<=\d{4}))b?\s*", value.lower()):
        count = int(float(m[1]) * UNITS[m[2]])
    if count < 1 or isinstance(value, bool):
        raise UsageError(f"{value!r} is not a size; write it like 512MB, 5GB or 2GiB")
    return count


def is_path(value: Any) -> TypeGuard[Path]:
    """Whether it names a file or folder: text, or what has a path."""
    return isinstance(value, (str, os.PathLike))


def path(value: Any) -> str:
    """A path or URL as text; UsageError for anything else, such as an open checkpoint."""
    if is_path(value) and isinstance(found := os.fspath(value), str):
        return found
    raise UsageError(f"a path is needed, not {type(value).__name__}")


def kind(value: Any) -> str:
    """The name of a dtype, also for numpy.float16 and torch.float16."""
    return value if isinstance(value, str) else str(getattr(value, "__name__", value)).rpartition(".")[2]


def as_tuple(value: str | Iterable[str]) -> tuple[str, ...]:
    """One text or several, as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value)


def renames(value: str | Iterable[str] | Mapping[str, str]) -> tuple[Pair, ...]:
    """One or several 'FROM=TO', or the items of a mapping."""
    return tuple(value.items()) if isinstance(value, Mapping) else as_tuple(value)


def converter(value: Any) -> Any:
    """A name, a path or a Converter; of a Match, the Converter that it proposes."""
    return getattr(value, "converter", value)


def params(value: Mapping[str, Any] | str | Iterable[str]) -> dict[str, Any]:
    """A mapping, or 'NAME=VALUE' texts, in which integers become numbers."""
    if isinstance(value, Mapping):
        return dict(value)
    out: dict[str, Any] = {}
    for pair in as_tuple(value):
        key, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"param takes NAME=VALUE, not {pair!r}")
        out[key] = int(text) if re.fullmatch(r"-?\d+", text) else text
    return out


def names_code(text: str) -> bool:
    """Whether a text is package.module:callable, which names Python code, and not a path or a URL."""
    return re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", text) is not None


def bar(value: Any) -> Callable[[int, int], None] | None:
    """A function of bytes done and bytes in all: as given, or for True one that moves a bar."""
    return _rich() if value is True else value or None


def _rich() -> Callable[[int, int], None]:
    """A bar in a terminal or a notebook; it starts with the first call and ends when all is done."""
    shown = rich_bar()
    task = shown.add_task("")

    def move(done: int, total: int) -> None:
        shown.start()
        shown.update(task, completed=done, total=total)
        if done >= total:
            shown.stop()

    return move


def rich_bar(**how: Any) -> Any:
    """A bar of rich, `rich.progress.Progress`, for bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), **how)


ACCEPTED: dict[Any, str] = {  # by what normalises a value: what people may give, for help() and type checkers
    converter: "Path | Converter | Match | None",
    kind: "str | Any | None",  # a dtype of NumPy, torch or ml_dtypes
    as_tuple: "str | Sequence[str]",
    renames: "Mapping[str, str] | str | Sequence[Pair]",
    params: "Mapping[str, Any] | str | Sequence[str]",
    size: "int | float | str | None",
    bar: "Progress | bool | None",
}


# --- the options ------------------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """One option as functions and the command line know it.

    keyword: its name. kind: its type, as declared. help: what it is for. clean: normalises its value. metavar: what a
    value looks like on the command line. flags: its spellings there, if they are not simply --keyword.
    """

    keyword: str
    kind: str
    default: Any
    help: str
    clean: Callable[[Any], Any] | None = None
    metavar: str | None = None
    flags: tuple[str, ...] = ()


def option(default: Any, help: str, **how: Any) -> Any:
    """A field of `Options`."""
    known = {"help": help, **how}
    return field(default_factory=dict, metadata=known) if default == {} else field(default=default, metadata=known)


def synonym(word: str, allowed: Iterable[str]) -> str:
    """The keyword that does what `word` does in other programs, or ''."""
    return next((k for k in SYNONYMS.get(word, ()) if k in allowed), "")


def _meant(word: str, allowed: Iterable[str]) -> str:
    """The end of a message about a keyword that a function does not have."""
    if meant := synonym(word, allowed):
        return f"; {meant}= does that"
    if word in KNOWN:
        return "; convert and save take it"
    return f"; ckptconv.{word} is a function" if word in dir(sys.modules["ckptconv"]) else did_you_mean(word, allowed)


@dataclass(frozen=True)
class Select:
    """What to read of a source; the same for every verb that reads."""

    from_: str | None = option(
        None, "The format of the source, such as tf, if several fit.",
        metavar="FORMAT", flags=("--from",),
    )  # fmt: skip
    at: str | None = option(
        None, "Take one entry of a nested checkpoint, such as state_dict_ema or model.diffusion_model.", metavar="ENTRY"
    )
    strip_prefix: Sequence[str] = option(
        (),
        "Remove prefixes from names: module. or module.,_orig_mod. for example.",
        clean=as_tuple,
        metavar="PREFIX[,PREFIX]",
    )
    include: Sequence[str] = option(
        (),
        "Take only tensors whose name matches a glob: 'enc/*', or enc for all below it; * also matches / and dots.",
        clean=as_tuple,
        metavar="GLOB",
    )
    exclude: Sequence[str] = option((), "Leave out tensors whose name matches a glob.", clean=as_tuple, metavar="GLOB")
    opaque: bool = option(
        False, "Read the tensors of a pickle that names unknown classes, such as a whole module; nothing is run."
    )
    weights_only: bool = option(False, "Leave out optimizer slots, step counters and moving averages.")
    ema: bool = option(False, "Replace weights with their moving averages.")
    keep_going: bool = option(False, "Leave out damaged tensors and list them.")
    partial: bool = option(False, "Accept a part of a model, such as one shard or the file of one rank.")
    densify: bool = option(False, "Compute dense tensors from sparse and quantised ones (PyTorch, Keras).")


@dataclass(frozen=True)
class Change:
    """What to do to names, layouts and dtypes on the way."""

    converter: str | Converter | None = option(
        None, "Rename and rearrange with a converter: its name, a .toml file, or auto.", clean=converter,
        metavar="NAME|FILE|auto", flags=("--converter", "-c"),
    )  # fmt: skip
    inverse: bool = option(False, "Apply the inverse of the converter.")
    param: Mapping[str, Any] = option(
        {}, "A parameter of the converter, such as heads=12.", clean=params, metavar="K=V"
    )
    ranks: int | None = option(
        None, "Write the files of this many parallel ranks (with inverse).", clean=int, metavar="N"
    )
    rename: Sequence[Pair] = option(
        (),
        "Rename a whole name (a=b, h.{i}.w={i}/w) or a prefix with its final . or / (bert.=model., h.{i}.=layer/{i}/).",
        clean=renames, metavar="FROM=TO",
    )  # fmt: skip
    rename_regex: Sequence[Pair] = option(
        (), r"Rename by a regular expression: '^h_(\d+)=h.\1'.",
        clean=renames, metavar="FROM=TO",
    )  # fmt: skip
    scope: Sequence[str] = option(
        (),
        "Prefix the names of a source with NAME/ (NAME. if they have dots); one for each source. --rename comes after.",
        clean=as_tuple, metavar="NAME",
    )  # fmt: skip
    like: Any = option(
        None,
        "Take names, order and metadata of a fresh file of the target model, or what package.module:callable builds.",
        metavar="TEMPLATE",
    )  # fmt: skip
    dtype: str | None = option(
        None, "Cast floating-point tensors to this dtype, such as bfloat16.", clean=kind, metavar="DTYPE"
    )


@dataclass(frozen=True)
class Target:
    """What to write, and how it is checked."""

    to: str | None = option(None, "The format of the output (default: by its suffix).", metavar="FORMAT")
    max_shard_size: int | None = option(
        None, "Split the output into shards of at most this size, such as 5GB.", clean=size, metavar="SIZE"
    )
    skip_unrepresentable: bool = option(False, "Leave out tensors that the format of the output cannot hold.")
    force: bool = option(False, "Replace an existing output.", flags=("--force", "-f"))
    verify: bool | None = option(
        None,
        "Read the whole output back and compare it, or read nothing back (default: read its headers).",
        flags=("--verify/--no-verify",),
    )
    sync: bool = option(True, "Wait until the output is on the disk.")
    hash: bool | None = option(
        None, "Store content hashes in the metadata (default: if the format has no checksums).",
        flags=("--hash/--no-hash",),
    )  # fmt: skip
    copy_files: bool | None = option(
        None, "Copy config, tokenizer and similar files as well (default: between hf folders).",
        flags=("--copy-files/--no-copy-files",),
    )  # fmt: skip
    resume: bool = option(False, "Keep a record of what is done, and continue a killed run that kept one.")


@dataclass(frozen=True)
class Resources:
    """What it may cost: memory in bytes, threads or a cluster."""

    max_memory: int = option(MEMORY, "Limit of the memory for buffers (default: 512MB).", clean=size, metavar="SIZE")
    jobs: int | None = option(
        None, "Number of threads (default: one per processor, at most 8).",
        clean=threads, metavar="N", flags=("--jobs", "-j"),
    )  # fmt: skip
    map: Map | None = option(None, "A function that runs the jobs, instead of threads.")
    progress: Progress | None = option(
        None, "A function that is called with the bytes done and the bytes in all; True shows a bar.", clean=bar
    )
    engine: str = option(
        "local", "Where jobs run: on this machine, or on a Ray cluster.", metavar="local|ray|ray://HOST:PORT"
    )


@dataclass(frozen=True, init=False)
class Options(Resources, Target, Change, Select):
    """All options of one call, normalised. None is the default of each; an empty text, as of an unset variable, is not.

    Raises UsageError for a value that is not of the type that the field of its option declares. For a type checker a
    function takes what people write (keywords.pyi), and this what that becomes.
    """

    def __init__(self, **given: Any) -> None:
        for known in KNOWN.values():
            value = made = given.pop(known.keyword, None)
            if value is None:
                vars(self)[known.keyword] = known.default
                continue
            if "" in (value if isinstance(value, list) else [value]):
                raise UsageError(f"{known.keyword}='' is empty: give a value, or leave it out")
            what, of_kind = next(test for kind, test in KINDS.items() if known.kind.startswith(kind))
            try:
                made = os.fspath(made) if known.kind.startswith("str") and is_path(made) else made
                made = known.clean(made) if known.clean else made
                right = made is None or of_kind(made)
            except UsageError:
                raise
            except (TypeError, ValueError, AttributeError):  # of what is no text, number or mapping at all
                right = False
            if not right:
                alone = value[0] if isinstance(value, list) and len(value) == 1 else value
                raise UsageError(f"{known.keyword}= takes {what}, not {brief(repr(alone), 100)}")
            vars(self)[known.keyword] = bool(made) if known.kind.startswith("bool") else made  # NumPy's is not JSON
        if given:
            raise TypeError(f"no options: {given}")

    @property
    def workers(self) -> int:
        """The number of threads."""
        return self.jobs or max(1, min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4))

    @property
    def changes(self) -> bool:
        """Whether names, layouts or dtypes shall change."""
        return self != self.without(*CHANGE)

    def without(self, *keywords: str) -> Options:
        """The same with the defaults of some options."""
        return replace(self, **{k: KNOWN[k].default for k in keywords})


SELECT, CHANGE, TARGET, RESOURCES = (
    tuple(f.name for f in fields(group)) for group in (Select, Change, Target, Resources)
)
KNOWN = {
    f.name: Known(f.name, str(f.type), {} if f.default is MISSING else f.default, **f.metadata) for f in fields(Options)
}


def non_default(how: Options, *keywords: str) -> dict[str, Any]:
    """The options of these keywords that differ from their defaults, as JSON values; paths without their folders."""
    out: dict[str, Any] = {}
    for keyword in keywords:
        value = getattr(how, keyword)
        if not value or value == KNOWN[keyword].default:
            continue
        if keyword in ("converter", "like"):
            value = os.path.basename(value) if is_path(value) else getattr(value, "name", "in memory")
        out[keyword] = list(value) if isinstance(value, (tuple, list)) else value
    return out


# --- functions that take them -----------------------------------------------------------------------------------------


F = TypeVar("F", bound=Callable[..., Any])


def takes(*keywords: str, listed: bool = True) -> Callable[[F], F]:
    """Show the flat keywords of a function in its signature, and if `listed` what they mean in its docstring.

    UsageError for a keyword that is neither one of these nor the function's own.
    """

    def shown(function: F) -> F:
        own = inspect.signature(function)
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                k.keyword, inspect.Parameter.KEYWORD_ONLY, default=k.default, annotation=ACCEPTED.get(k.clean, k.kind)
            )
            for k in map(KNOWN.__getitem__, keywords)
        ]
        made = own.replace(parameters=[*kept, *more])

        @wraps(function)
        def called(*args: Any, **given: Any) -> Any:
            for word in given:
                if word not in made.parameters:
                    raise UsageError(f"there is no option {word!r}{_meant(word, made.parameters)}")
            return function(*args, **given)

        called.__signature__ = made  # type: ignore[attr-defined]
        if listed:
            lines = "\n".join(f"    {k:<22}{KNOWN[k].help}" for k in keywords)
            called.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nOptions:\n{lines}\n"
        return cast("F", called)

    return shown
