"""A manifest: a list of checkpoints to convert, as CSV with a header, JSON lines, a JSON list, or Parquet.

    source,destination,to,converter,options
    bert/model.ckpt,bert.safetensors,,hf-bert,"{""exclude"": [""*/adam_*""]}"

    {"source": "s3://zoo/bert/model.ckpt", "to": "npz", "converter": "hf-bert", "options": {"dtype": "float16"}}

Only `source` is required. Sources are relative to the manifest, destinations to the output folder. The options are
those of `convert`, given in `options` or in columns of their own; a list in a CSV cell is written as JSON. Without
`to`, the suffix of a destination decides the format.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ..api.options import CHANGE, KNOWN, SELECT, Options
from ..api.reading import refuse_nameless
from ..errors import CorruptCheckpoint, MissingExtra, UsageError
from ..messages import did_you_mean, listing, many
from ..storage import files
from ..storage.json import unique
from .discover import INDEXES
from .ledger import is_below

FORMAT = "safetensors"  # the default target
MISTAKES = 100  # after these, reading a manifest stops
SUFFIXES = (".csv", ".jsonl", ".ndjson", ".parquet", ".json")
MAX_SIZE = 2**28  # bytes of a manifest


class Row(NamedTuple):
    """A checkpoint to convert, and the path of its output ('' for the default one)."""

    source: str
    destination: str
    settings: Options


# the options of a row, by key
KEYS = {
    {"from_": "from", "param": "params"}.get(k, k): KNOWN[k]
    for k in (*SELECT, *CHANGE, "to", "max_shard_size", "skip_unrepresentable")
    if k != "scope"
}
TYPES: dict[str, type[Any]] = {"str": str, "bool": bool, "int": int, "Sequence": list, "Mapping": dict}


def is_manifest(source: str) -> bool:
    return source.lower().endswith(SUFFIXES) and not source.endswith(INDEXES)


def read(url: str, default: Options) -> Iterator[Row]:
    """Yield the rows of a manifest; `default` has the options that a row lacks. At its end, UsageError lists errors."""
    bad = list[str]()
    folder, shared = files.split(url)[0], dict[str, Options]()
    try:
        for number, line in enumerate(_lines(url), 1):
            try:
                row = _row(line, folder, default)
            except (ValueError, TypeError, UsageError) as e:
                bad.append(f"row {number}: {e}")
                if len(bad) == MISTAKES:
                    break
                continue
            yield row._replace(settings=shared.setdefault(repr(row.settings), row.settings))
    except UsageError:
        raise
    except (ValueError, csv.Error, RecursionError) as e:
        raise UsageError(f"is not a manifest: {e}", url=url) from None
    if bad:
        raise UsageError(f"{many(len(bad), 'row')} of the manifest cannot be parsed:\n{listing(bad)}", url=url)


def _row(line: Mapping[str, Any], folder: str, default: Options) -> Row:
    if None in line:  # csv's key for cells without a name
        raise ValueError("it has more cells than the header")
    given = {k: v for k, v in line.items() if v not in (None, "")}
    options = given.pop("options", {})
    options = json_value(options) if isinstance(options, str) else options
    if not isinstance(options, dict):
        raise ValueError("options must be an object")
    if twice := sorted(given.keys() & options.keys()):
        raise ValueError(f"{', '.join(twice)} is given both in its options and outside of them")
    given |= options
    source, destination = given.pop("source", ""), given.pop("destination", "")
    if not source:
        raise ValueError("it has no source")
    if not isinstance(source, str) or not isinstance(destination, str):
        raise ValueError(f"source and destination must be text, not {source!r} and {destination!r}")
    if not files.is_remote(source) and not source.startswith(("/", "file://")):
        source = files.join(folder, source)
    for path in (source, destination):
        refuse_nameless(path)
        files.local(path)  # refuses a file url with a host
    if not is_below(destination or ".") or "://" in destination:
        raise ValueError(f"the destination {destination!r} is not below the output folder")
    destination = "/".join(p for p in destination.split("/") if p not in ("", "."))
    changed = dict[str, Any]()
    for key, value in given.items():
        if key not in KEYS:
            hint = did_you_mean(key, ["source", "destination", "options", *KEYS], "keys")
            raise ValueError(f"unknown key {key!r}{hint}")
        changed[KEYS[key].keyword] = _value(key, value, KEYS[key].kind)
    return Row(source, destination, replace(default, **changed) if given else default)


def _value(key: str, value: Any, declared: str) -> Any:
    kind = next(kind for name, kind in TYPES.items() if declared.startswith(name))
    if isinstance(value, str) and kind is not str:
        value = json_value(value.lower() if kind is bool else value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{key} must be of type {kind.__name__}, not {value!r}")
    return tuple(str(v) for v in value) if kind is list else value


# --- the lines of the file ---


def _lines(url: str) -> Iterator[dict[str, Any]]:
    """Parse a manifest; ValueError, csv.Error or RecursionError if that fails, and StorageError."""
    with files.Reader(url) as f:
        if f.size > MAX_SIZE:
            raise CorruptCheckpoint(f"has {f.size} bytes, a manifest at most {MAX_SIZE}; divide it", url=url)
    suffix = url.lower().rpartition(".")[2]
    if suffix == "parquet":
        yield from _parquet(url)
        return
    with files.fileobj(url) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as text:
        if suffix == "csv":
            rows = csv.DictReader(text)
            names = [name or f"column {k}" for k, name in enumerate(rows.fieldnames or (), 1)]  # tables end in commas
            rows.fieldnames = list(unique([(name, None) for name in names]))
            yield from rows
            return
        values = json_value(text.read()) if suffix == "json" else (json_value(n) for n in text if n.strip())
        if suffix == "json" and not isinstance(values, list):
            raise ValueError("it is not a list")
        for value in values:
            if not isinstance(value, dict):
                raise ValueError(f"every {'element' if suffix == 'json' else 'line'} must be an object")
            yield value


def json_value(text: str) -> Any:
    """Parse JSON; ValueError also for an object with one key twice."""
    return json.loads(text, object_pairs_hook=unique)


def _parquet(url: str) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as e:
        raise MissingExtra(f"a manifest in Parquet needs a package: {e}. Try: pip install 'ckptconv[parquet]'") from e
    with files.fileobj(url) as raw:
        try:
            table = parquet.ParquetFile(raw)
            for group in map(table.metadata.row_group, range(table.num_row_groups)):
                if sum(group.column(c).total_uncompressed_size for c in range(group.num_columns)) > MAX_SIZE:
                    raise ValueError(f"a group of rows has more than {MAX_SIZE} bytes; divide it")
            for batch in table.iter_batches(1000, use_threads=False):
                yield from batch.to_pylist()
        except (pa.ArrowException, OSError, TypeError, MemoryError) as e:
            raise ValueError(str(e).partition("\n")[0] or type(e).__name__) from e
