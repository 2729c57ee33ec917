"""The table of formats, detection, and the two questions a format answers.

    where are the bytes?        open(url, how) -> Checkpoint             (headers only)
    where should they go?       writer(url, **options) -> Writer         (pure: offsets, then patches)

A format is a module with these functions (see safetensors.py for the shortest whole one):

    sniff(seen) -> int                   0 no; 1 the name fits; 2 the content fits; 3 the content can be nothing else;
                                         4 it is one file of a whole that this format reads
    open(url, how: Reading) -> Checkpoint           headers only; reading.py says what may be asked for
    decode(coded) -> Iterator[buffer]    only if it makes `Coded` data: the decoded bytes in C order, little-endian;
                                         of a string tensor, one bytes object per element
    writer(url, max_shard_size=None) -> Writer      only if it writes

and one line in `TABLE`. Third parties register the same `Format` row under the entry point group `ckptconv.formats`.
Nothing heavy is imported before a format's own function runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..checkpoint import Checkpoint, uncollected
from ..errors import (
    AmbiguousFormat,
    CkptError,
    CorruptCheckpoint,
    StorageError,
    UnknownFormat,
    UsageError,
)
from ..storage.files import Seen, exists, names
from . import foreign, shard_index
from .hash_metadata import hashes_of, unhashed
from .reading import Reading
from .table import TABLE, Format, _hint, get, table

PLAIN = Reading()
INDEX = "hf"  # the format that reads shards under the name of the whole, whatever their own format is


def detect(url: str, *, but: str = "") -> Format:
    """Find the format of what lies at `url`, by content first and name second; `but` is not considered.

    Raises UnknownFormat with what was seen, AmbiguousFormat with the candidates.
    """
    seen = Seen(url)
    claims = _claims(TABLE, seen, but)
    best = max(claims.values())
    if best < 3:  # nothing beyond doubt: what do installed packages say?
        claims |= _claims([f for f in table().values() if f.name not in claims], seen, but)
        best = max(claims.values())
    if best < 2:  # at most its name fits
        _refuse_stand_in(seen)
    found = [name for name, claim in claims.items() if claim == best and claim > 0]
    if len(found) > 1:
        raise AmbiguousFormat(f"could be {' or '.join(found)}; say which with from_={found[0]!r}", url=url)
    if not found:
        _refuse_damaged(seen)
        what = foreign.other(seen) or f"is in no format known here; it begins with {seen.head[:16].hex(' ')}"
        raise UnknownFormat(f"{what}. `ckptconv formats` lists what can be read", url=url)
    return get(found[0])


def _claims(rows: Iterable[Format], seen: Seen, but: str) -> dict[str, int]:
    return {f.name: _claim(f, seen) for f in rows if f.reads and f.name != but}


def _claim(row: Format, seen: Seen) -> int:
    """How sure a format is; not at all where its look at a stranger's file fails."""
    sniff = row.load().sniff
    try:
        return int(sniff(seen))
    except CkptError:
        raise
    except Exception:  # `open` would say what is wrong; another format may know better
        return 0


def _refuse_stand_in(seen: Seen) -> None:
    """Say what is there instead of a checkpoint: nothing, a pointer, a web page, another program's file."""
    if seen.is_dir:
        what = foreign.folder(seen.files, tuple(s for f in TABLE for s in f.suffixes))
    elif seen.size < 0:
        there = names(seen.folder)
        near = f"; beside it are {', '.join(seen.files[:8])}" if seen.files else _hint(seen.base, there)
        if any(n.startswith(f".{seen.base}") and n.endswith(".publish") for n in there):
            near = "; a run was killed while it replaced it: the next one that writes it finishes that first"
        raise StorageError(f"no such file, folder or checkpoint prefix{near}", url=seen.url)
    elif seen.size == 0:
        what = "is empty (0 bytes)"
    elif not (what := foreign.known(seen)):
        return
    raise UnknownFormat(f"{what}. `ckptconv formats` lists what can be read", url=seen.url)


def _refuse_damaged(seen: Seen) -> None:
    """Raise CorruptCheckpoint if the beginning, or of a tiny file the name, says what it was before it was cut."""
    what = foreign.damaged(seen)
    if not what and 0 <= seen.size < 8 and any(seen.base.lower().endswith(s) for f in TABLE for s in f.suffixes):
        what = f"has {seen.size} bytes, too few for a checkpoint (truncated?)"
    if what:
        raise CorruptCheckpoint(what, url=seen.url)


def open_checkpoint(url: str, how: Reading = PLAIN, *, format: str | None = None) -> Checkpoint:
    """Open whatever lies at `url`, as `format` if it is given. Any bytes give a Checkpoint or a CkptError."""
    row = get(format) if format else detect(url)
    if not row.reads:
        raise UsageError(f"the format {row.name} can be written but not read")
    try:
        with uncollected():
            return _apart(row.load().open(url, how))
    except StorageError:
        if format and format != INDEX and not exists(url) and exists(url + shard_index.SUFFIX):
            return open_checkpoint(url, how, format=INDEX)
        raise
    except CkptError:
        raise
    except (MemoryError, RecursionError) as e:
        raise CorruptCheckpoint(f"cannot be read as {row.name}: it is nested or sized beyond reason", url=url) from e
    except Exception as e:  # the one place where a parser's surprise becomes our error
        raise CorruptCheckpoint(f"cannot be read as {row.name}: {type(e).__name__}: {e}", url=url) from e


def _apart(found: Checkpoint) -> Checkpoint:
    """Take the hashes that a file carries out of its metadata: they are not for what is made from it."""
    if not (carried := hashes_of(found.metadata)):
        return found
    return replace(found, metadata=unhashed(found.metadata), hashes=carried)
