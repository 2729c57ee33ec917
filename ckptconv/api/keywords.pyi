# Made by tools/make_options.py from options.py.

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from ..engine.run import Map, Progress
from ..matching.proposal import Match
from ..rules.converter import Converter
from .options import Pair, Path

class SelectOptions(TypedDict, total=False):
    from_: str | None
    at: str | None
    strip_prefix: str | Sequence[str]
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    opaque: bool
    weights_only: bool
    ema: bool
    keep_going: bool
    partial: bool
    densify: bool

class InspectOptions(SelectOptions, total=False):
    jobs: int | None

class ReadOptions(SelectOptions, total=False):
    converter: Path | Converter | Match | None
    inverse: bool
    param: Mapping[str, Any] | str | Sequence[str]
    ranks: int | None
    rename: Mapping[str, str] | str | Sequence[Pair]
    rename_regex: Mapping[str, str] | str | Sequence[Pair]
    scope: str | Sequence[str]
    like: Any
    dtype: str | Any | None
    max_memory: int | float | str | None
    jobs: int | None
    map: Map | None
    progress: Progress | bool | None
    engine: str

class ConvertOptions(ReadOptions, total=False):
    to: str | None
    max_shard_size: int | float | str | None
    skip_unrepresentable: bool
    force: bool
    verify: bool | None
    sync: bool
    hash: bool | None
    copy_files: bool | None
    resume: bool

class MatchOptions(ReadOptions, total=False):
    force: bool

class ZooOptions(MatchOptions, total=False):
    skip_unrepresentable: bool
    verify: bool | None
    hash: bool | None
