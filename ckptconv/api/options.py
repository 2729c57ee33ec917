"""The options of all verbs, each declared once: its keyword, its type, its default and what it means.

    Select       what to read of a source          Target       how to write
    Change       names, layouts and dtypes         Resources    what it may cost

Functions take them flat, `convert(a, b, dtype="float16", include="bert*")`, and sort them into the groups; the command
line spells the same keywords with dashes. Nothing here imports what a verb needs to run.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, TypeVar, cast

from ..errors import UsageError
from ..messages import did_you_mean
from .elsewhere import elsewhere
from .values import Cleaned, Verify, bar, kind, params, renames, several, size, threads, verification

if TYPE_CHECKING:
    from ..engine.run import Map, Progress

MEMORY = 512 * 2**20
Path = str | os.PathLike[str]
T = TypeVar("T")


# --- the groups -------------------------------------------------------------------------------------------------------


class Meaning(NamedTuple):
    """What an option is for, its flat keyword, and the function that normalises its value."""

    help: str
    keyword: str = ""
    clean: Callable[[Any], Any] | None = None


def option(default: Any, help: str, keyword: str = "", clean: Callable[[Any], Any] | None = None) -> Any:
    """A field of a group."""
    meaning = {"meaning": Meaning(help, keyword, clean)}
    return field(default_factory=dict, metadata=meaning) if default == {} else field(default=default, metadata=meaning)


def _described(group: type[T]) -> type[T]:
    """Append the fields, and what they mean, to the docstring of a group."""
    lines = [_line(f.name, f.metadata["meaning"]) for f in fields(cast("Any", group))]
    group.__doc__ = "\n".join([f"{group.__doc__}\n", *lines])
    return group


def _line(name: str, meaning: Meaning) -> str:
    return f"    {name:<22}{meaning.help}"


@_described
@dataclass(frozen=True)
class Select(Cleaned):
    """What to read of a source; the same for every verb that reads."""

    format: str | None = option(None, "The format of the source, if detection is ambiguous.", "from_")
    at: str | None = option(None, "Read one entry of a nested checkpoint: state_dict_ema, model.diffusion_model ...")
    strip_prefix: Sequence[str] = option((), "Remove prefixes from names: module.,_orig_mod.", clean=several)
    include: Sequence[str] = option((), "Only tensors whose name matches.", clean=several)
    exclude: Sequence[str] = option((), "Leave out tensors whose name matches.", clean=several)
    opaque: bool = option(
        False, "Read the tensors of pickles that name unknown classes; these are never imported or run."
    )
    weights_only: bool = option(False, "Leave out optimizer slots, step counters and moving averages.")
    ema: bool = option(False, "Replace weights with their moving averages.")
    keep_going: bool = option(False, "Leave out damaged tensors and list them.")
    densify: bool = option(False, "Compute dense tensors from the sparse and quantised ones of PyTorch files.")


@_described
@dataclass(frozen=True)
class Change(Cleaned):
    """What to do to names, layouts and dtypes on the way."""

    converter: str | None = option(None, "Rename and rearrange with a converter: its name, a .toml file, or auto.")
    inverse: bool = option(False, "Apply the inverse of the converter.")
    params: Mapping[str, Any] = option({}, "A parameter of the converter, such as heads=12.", "param", params)
    renames: Sequence[str] = option(
        (), "Rename by a prefix, 'old/=new/', or a template, 'enc/{x...}=dec/{x...}'.", "rename", renames
    )
    regexes: Sequence[str] = option((), r"Rename by a regular expression: '^h_(\d+)=h.\1'.", "rename_regex", several)
    scopes: Sequence[str] = option((), "Put the names of a source under NAME; one for each source.", "scope", several)
    dtype: str | None = option(None, "Cast floating-point tensors to this dtype.", clean=kind)


@_described
@dataclass(frozen=True)
class Target(Cleaned):
    """What to write, and how it is checked."""

    format: str | None = option(None, "The format of the output (default: by its suffix).", "to")
    max_shard_size: int | None = option(
        None, "Split the output into shards of at most this size, such as 5GB.", clean=size
    )
    skip_unrepresentable: bool = option(False, "Leave out tensors that the format of the output cannot hold.")
    force: bool = option(False, "Replace an existing output.")
    verify: Verify = option(
        "receipts", "Read back every byte of the output, or nothing (default: its headers).", clean=verification
    )
    sync: bool = option(True, "Wait until the output is on the disk.")
    hash: bool | None = option(None, "Store content hashes in the metadata (default: if the format has no checksums).")
    copy_files: bool | None = option(
        None, "Copy config, tokenizer and similar files as well (default: between hf folders)."
    )
    resume: bool = option(False, "Continue a run that was killed; if this one is killed, keep what it did.")


@_described
@dataclass(frozen=True)
class Resources(Cleaned):
    """The resources that a run may use: memory in bytes, threads or a cluster."""

    max_memory: int = option(MEMORY, "Limit of the memory for buffers (default: 512MB).", clean=size)
    jobs: int | None = option(None, "Number of threads (default: one per processor, at most 8).", clean=threads)
    map: Map | None = option(None, "A function that runs the jobs, instead of threads.")
    progress: Progress | None = option(
        None, "A function that is called with the bytes done and the bytes in all; True shows a bar.", clean=bar
    )
    engine: str = option("local", "Where jobs run: on this machine, or on a Ray cluster.")

    @property
    def workers(self) -> int:
        """The number of threads."""
        return self.jobs or max(1, min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4))


class Options(NamedTuple):
    """All groups of one call."""

    select: Select
    change: Change
    target: Target
    resources: Resources


class Known(NamedTuple):
    """One option as functions and the command line know it."""

    keyword: str
    group: type[Any]
    field: str
    default: Any
    meaning: Meaning


def _known(group: type[Any]) -> list[Known]:
    rows = []
    for f in fields(group):
        meaning: Meaning = f.metadata["meaning"]
        default = f.default if isinstance(f.default, (bool, str, int, tuple)) else None
        rows.append(Known(meaning.keyword or f.name, group, f.name, default, meaning))
    return rows


KNOWN = {k.keyword: k for group in (Select, Change, Target, Resources) for k in _known(group)}
SELECT, CHANGE, TARGET, RESOURCES = (
    tuple(k.keyword for k in KNOWN.values() if k.group is group) for group in (Select, Change, Target, Resources)
)


def bundle(given: Mapping[str, Any], *allowed: str) -> Options:
    """Sort flat keywords into their groups. A group may be given whole; a keyword beside it replaces its field.

    allowed: the keywords of the function; all, if none is given. Raises UsageError for any other, and suggests similar
    ones.
    """
    groups: dict[str, Any] = {"select": Select(), "change": Change(), "target": Target(), "resources": Resources()}
    allowed = allowed or tuple(KNOWN)
    for name, value in given.items():
        if name in groups:
            groups[name] = value
        elif name not in allowed:
            meant = elsewhere(name, allowed)
            hint = f"; {meant}= does that" if meant else did_you_mean(name, allowed, "options", count=3)
            raise UsageError(f"there is no option {name!r}{hint}")
    for name in given.keys() - groups.keys():
        known, value = KNOWN[name], given[name]
        if value is not None:
            key = known.group.__name__.lower()
            groups[key] = replace(groups[key], **{known.field: value})
    return Options(**groups)


def departing(found: Options, *keywords: str) -> dict[str, Any]:
    """The options of these keywords that differ from their defaults, as JSON values; paths without their folders."""
    groups = dict(zip((Select, Change, Target, Resources), found, strict=True))
    out: dict[str, Any] = {}
    for known in map(KNOWN.__getitem__, keywords):
        value = getattr(groups[known.group], known.field)
        if not value or value == known.default:
            continue
        if known.keyword == "converter":
            value = os.path.basename(value)
        out[known.keyword] = list(value) if isinstance(value, (tuple, list)) else value
    return out


# --- for a type checker, and for help() -------------------------------------------------------------------------------


class SelectOptions(TypedDict, total=False):
    """`Select` as keywords."""

    from_: str | None
    at: str | None
    strip_prefix: str | Sequence[str]
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    opaque: bool
    weights_only: bool
    ema: bool
    keep_going: bool
    densify: bool


class ChangeOptions(TypedDict, total=False):
    """`Change` as keywords."""

    converter: str | None
    inverse: bool
    param: Mapping[str, Any] | str | Sequence[str]
    rename: Mapping[str, str] | str | Sequence[str]
    rename_regex: str | Sequence[str]
    scope: str | Sequence[str]
    dtype: str | None


class TargetOptions(TypedDict, total=False):
    """`Target` as keywords."""

    to: str | None
    max_shard_size: int | str | None
    skip_unrepresentable: bool
    force: bool
    verify: bool | Verify
    sync: bool
    hash: bool | None
    copy_files: bool | None
    resume: bool


class ResourcesOptions(TypedDict, total=False):
    """`Resources` as keywords."""

    max_memory: int | str
    jobs: int | None
    map: Map | None
    progress: Progress | bool | Literal["rich", "tqdm"] | None
    engine: str


class Groups(TypedDict, total=False):
    """Whole groups of options, as keywords."""

    select: Select
    change: Change
    target: Target
    resources: Resources


class SaveOptions(TargetOptions, ResourcesOptions, total=False):
    """The options of `save` besides the format."""


class ReadOptions(SelectOptions, ChangeOptions, ResourcesOptions, Groups, total=False):
    """The options of verbs that compare."""


class ConvertOptions(ReadOptions, TargetOptions, total=False):
    """The options of `convert`."""


class MatchOptions(SelectOptions, ChangeOptions, ResourcesOptions, total=False):
    """The options of verbs that write a page or rules about checkpoints."""

    force: bool


class ZooOptions(MatchOptions, total=False):
    """The options of `zoo`."""

    skip_unrepresentable: bool
    verify: bool | Verify
    hash: bool | None


F = TypeVar("F", bound=Callable[..., Any])


def takes(*keywords: str) -> Callable[[F], F]:
    """Show the flat keywords of a function, and what they mean, in its signature and its docstring."""

    def shown(function: F) -> F:
        own = inspect.signature(function)
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        kinds: Any = {**SelectOptions.__annotations__, **ChangeOptions.__annotations__}
        kinds |= {**TargetOptions.__annotations__, **ResourcesOptions.__annotations__}
        more = [
            inspect.Parameter(
                k, inspect.Parameter.KEYWORD_ONLY, default=KNOWN[k].default,
                annotation=getattr(kinds[k], "__forward_arg__", kinds[k]),
            )
            for k in keywords
        ]  # fmt: skip
        function.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
        lines = "\n".join(_line(k, KNOWN[k].meaning) for k in keywords)
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nOptions:\n{lines}\n"
        return function

    return shown
