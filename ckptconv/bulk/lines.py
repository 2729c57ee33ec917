"""The lines of a manifest as mappings, one after the other, from CSV, JSON lines, a JSON list, or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from ..errors import CorruptCheckpoint, MissingExtra
from ..storage import files
from ..storage.json import unique

SUFFIXES = (".csv", ".jsonl", ".ndjson", ".parquet", ".json")
MAX_SIZE = 2**28  # bytes of a manifest, and of what the columns of a group of rows in Parquet unpack to
ROWS = 1000  # of Parquet, at a time


def lines(url: str) -> Iterator[dict[str, Any]]:
    """Raises ValueError, csv.Error or RecursionError for what cannot be parsed, and StorageError."""
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
        for found in _listed(text.read()) if suffix == "json" else (value(n) for n in text if n.strip()):
            if not isinstance(found, dict):
                raise ValueError(f"every {'element' if suffix == 'json' else 'line'} must be an object")
            yield found


_DECODER = json.JSONDecoder(object_pairs_hook=unique)


def value(text: str) -> Any:
    """What a text in JSON says; ValueError also where an object gives one key twice."""
    return _DECODER.decode(text)


def _listed(text: str) -> Iterator[Any]:
    """The elements of a JSON list, of which only one at a time is in memory as objects."""
    at = _behind(text, 0)
    if text[at : at + 1] != "[":
        raise ValueError("it is not a list")
    at = _behind(text, at + 1)
    while text[at : at + 1] != "]":
        found, at = _DECODER.raw_decode(text, at)
        yield found
        at = _behind(text, at)
        if text[at : at + 1] == ",":
            at = _behind(text, at + 1)
        elif text[at : at + 1] != "]":
            raise ValueError(f"a comma is missing at character {at}")
    if text[at + 1 :].strip():
        raise ValueError("something follows the list")


def _behind(text: str, at: int) -> int:
    """The place of the next character that is not a space."""
    while text[at : at + 1].isspace():
        at += 1
    return at


def _parquet(url: str) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as e:
        raise MissingExtra(f"a manifest in Parquet needs a package: {e}. Try: pip install 'ckptconv[parquet]'") from e
    with files.fileobj(url) as raw:
        try:
            with parquet.ParquetFile(raw) as table:
                for k in range(table.num_row_groups):
                    group = table.metadata.row_group(k)
                    size = sum(group.column(c).total_uncompressed_size for c in range(group.num_columns))
                    if size > MAX_SIZE:
                        raise ValueError(f"{size} bytes of rows are together, at most {MAX_SIZE} are sensible here")
                for batch in table.iter_batches(ROWS, use_threads=False):
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError, TypeError, MemoryError) as e:
            raise ValueError(str(e).partition("\n")[0] or type(e).__name__) from e


__all__ = ["SUFFIXES", "lines", "value"]
