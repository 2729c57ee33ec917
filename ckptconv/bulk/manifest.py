"""A manifest: a list of checkpoints to convert, as CSV with a header, JSON lines, a JSON list, or Parquet.

    source,destination,to,converter,options
    bert/model.ckpt,bert.safetensors,,hf-bert,"{""exclude"": [""*/adam_*""]}"

    {"source": "s3://zoo/bert/model.ckpt", "to": "npz", "converter": "hf-bert", "options": {"dtype": "float16"}}

Only `source` is required. Sources are relative to the manifest, destinations to the output folder. The options are
those of `convert`, given in `options` or in columns of their own; a list in a CSV cell is written as JSON. Where no
`to` is given, the suffix of a destination says the format. What the Hub says of a model is a line as well (hub.py).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ..api import Change, Select, Target
from ..api.reading import refuse_nameless
from ..errors import UnsafeCheckpoint, UsageError
from ..messages import did_you_mean, listing, many
from ..storage import files
from . import hub, lines
from .groups import INDEXES

FORMAT = "safetensors"  # that is written where nothing says another
MISTAKES = 100  # after which a manifest is read no further


class Settings(NamedTuple):
    """The options of one conversion."""

    select: Select = Select()
    change: Change = Change()
    target: Target = Target()


class Row(NamedTuple):
    """A checkpoint to convert: the path of its output ('' for the default one), or the folder of that ('' for none)."""

    source: str
    destination: str
    settings: Settings
    folder: str = ""
    problem: UnsafeCheckpoint | None = None


# key of a manifest: the part of the settings, its field, and whether it is a list, a flag or a number
KEYS: dict[str, tuple[str, str, type[Any]]] = {
    "from": ("select", "format", str), "include": ("select", "include", list), "exclude": ("select", "exclude", list),
    "at": ("select", "at", str), "strip_prefix": ("select", "strip_prefix", list),
    "opaque": ("select", "opaque", bool), "weights_only": ("select", "weights_only", bool),
    "ema": ("select", "ema", bool), "converter": ("change", "converter", str), "inverse": ("change", "inverse", bool),
    "params": ("change", "params", dict), "rename": ("change", "renames", list), "dtype": ("change", "dtype", str),
    "rename_regex": ("change", "regexes", list), "to": ("target", "format", str),
    "max_shard_size": ("target", "max_shard_size", int),
    "skip_unrepresentable": ("target", "skip_unrepresentable", bool),
}  # fmt: skip


def is_manifest(source: str) -> bool:
    return source.lower().endswith(lines.SUFFIXES) and not source.endswith(INDEXES)


def read(url: str, default: Settings) -> Iterator[Row]:
    """Parse a manifest; a row without an option has that of `default`. At its end, UsageError lists all mistakes."""
    bad = list[str]()
    folder, shared = files.split(url)[0], dict[str, Settings]()
    try:
        for number, line in enumerate(lines.lines(url), 1):
            try:
                some = list(_of_hub(line, default)) if hub.is_model(line) else [_row(line, folder, default)]
            except (ValueError, TypeError, UsageError) as e:
                bad.append(f"row {number}: {e}")
                if len(bad) == MISTAKES:
                    break
                continue
            for row in some:
                same = default if row.settings is default else shared.setdefault(repr(row.settings), row.settings)
                yield row._replace(settings=same)
    except (ValueError, csv.Error, RecursionError) as e:
        raise UsageError(f"is not a manifest: {e}", url=url) from None
    if bad:
        raise UsageError(f"{many(len(bad), 'row')} of the manifest cannot be parsed:\n{listing(bad)}", url=url)


def _of_hub(line: Mapping[str, Any], default: Settings) -> Iterator[Row]:
    for source, folder, why in hub.checkpoints(line):
        yield Row(source, "", default, folder, UnsafeCheckpoint(why, url=source) if why else None)


def _row(line: Mapping[str, Any], folder: str, default: Settings) -> Row:
    if None in line:  # so csv calls what has no name
        raise ValueError("it has more cells than the header")
    given = {k: v for k, v in line.items() if v not in (None, "")}
    options = given.pop("options", {})
    options = lines.value(options) if isinstance(options, str) else options
    if not isinstance(options, dict):
        raise ValueError("options must be an object")
    if twice := sorted(given.keys() & options.keys()):
        raise ValueError(f"{', '.join(twice)} is given beside its options, and in them")
    given |= options
    source, destination = given.pop("source", ""), given.pop("destination", "")
    if not source:
        raise ValueError(f"it has no source, but {', '.join(given)}" if given else "it has no source")
    if not isinstance(source, str) or not isinstance(destination, str):
        raise ValueError(f"source and destination must be text, not {source!r} and {destination!r}")
    if not files.is_remote(source) and not source.startswith(("/", "file://")):
        source = files.join(folder, source)
    for path in (source, destination):
        refuse_nameless(path)
        files.local(path)  # a url of a file on another host
    if destination.startswith("/") or ".." in destination.split("/") or "://" in destination:
        raise ValueError(f"the destination {destination!r} is not below the output folder")
    destination = "/".join(p for p in destination.split("/") if p not in ("", "."))
    parts = default._asdict()
    for key, value in given.items():
        if key not in KEYS:
            hint = did_you_mean(key, ["source", "destination", "options", *KEYS], "keys")
            raise ValueError(f"unknown key {key!r}{hint}")
        part, name, kind = KEYS[key]
        parts[part] = replace(parts[part], **{name: _value(key, value, kind)})
    return Row(source, destination, Settings(**parts) if given else default)


def _value(key: str, value: Any, kind: type[Any]) -> Any:
    if isinstance(value, str) and kind is not str:
        value = lines.value(value.lower() if kind is bool else value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{key} must be of type {kind.__name__}, not {value!r}")
    return tuple(str(v) for v in value) if kind is list else value
