"""Detect the format of a checkpoint, and open it. A format answers two questions:

    where are the bytes?        open(url, how) -> Checkpoint             (headers only)
    where should they go?       writer(url, **options) -> Writer         (pure: offsets, then patches)

A format is a module with these functions (safetensors.py is the shortest complete one):

    sniff(seen) -> int                   0 no; 1 the name fits; 2 the content fits; 3 the content fits no other format;
                                         4 a file of a set that this format reads
    open(url, how: Reading) -> Checkpoint           headers only; reading.py has the options
    decode(coded) -> Iterator[buffer]    only with `Coded` data: the decoded bytes in C order, little-endian;
                                         for a string tensor, one bytes object per element
    writer(url, max_shard_size=None) -> Writer      only if the format can be written

and one row in table.py. Third parties register the same `Format` row under the entry point group `ckptconv.formats`.
Nothing heavy is imported before a format's own function runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ..checkpoint import Checkpoint, Note, uncollected
from ..errors import (
    AmbiguousFormat,
    CkptError,
    CorruptCheckpoint,
    StorageError,
    UnknownFormat,
    UsageError,
)
from ..messages import did_you_mean, printable
from ..storage import plugins
from ..storage.faults import SCARCE, refused
from ..storage.files import Seen, exists, names
from ..storage.lookups import once
from ..storage.paths import join, sibling
from . import foreign, shard_index, signatures
from .hash_metadata import hashes_of, unhashed
from .reading import Reading
from .table import TABLE, Format, get, missing, table
from .tensorflow.locate import DATA

# Formats with the signature of a file are asked first, because importing all others takes longer than converting a
# small file. An entry too many costs time; a missing entry does no harm, because the other formats are asked next.
SIGNATURES: tuple[tuple[Callable[[Seen], bool], tuple[str, ...]], ...] = (
    (lambda seen: seen.size < 0 and not seen.is_dir and f"{seen.base}.index" in seen.files, ("tf",)),
    (lambda seen: seen.is_zip, ("torch", "pt2", "torchscript", "dcp", "npz", "keras3")),
    (signatures.is_hdf5, ("hdf5", "keras", "keras3")),
    (signatures.is_safetensors, ("safetensors",)),
    (signatures.is_npy, ("npy",)),
    (signatures.is_table, ("tf", "tf-v1")),
)
# The same for folders, by the ends of names in them. Each can be Orbax's as well, whose arrays lie in folders below.
FOLDERS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    ((".index", "checkpoint"), ("tf", "tf-v1")),
    (signatures.SAVED_MODELS, ("tf-graph",)),
    ((signatures.DISTRIBUTED,), ("dcp",)),
    ((".npy",), ("npy", "gpt")),
    ((signatures.KERAS_WEIGHTS,), ("keras3",)),
    (("",), ("orbax",)),
)
PLAIN = Reading()
LOOKED_AT = 50  # of the names in a folder that is no checkpoint
INDEX = "hf"  # the format that reads shards under the name of the whole, whatever their own format is


@once()
def detect(url: str, *, but: str = "") -> Format:
    """Find the format of the checkpoint at `url`, by content first and name second, other than the format `but`.

    Raises UnknownFormat with the bytes seen, AmbiguousFormat with the candidates.
    """
    seen = Seen(url)
    claims = _claims(_likely(seen), seen, but)
    best = max(claims.values(), default=0)
    if best < 2:  # none of the formats with this signature knows the content
        claims |= _claims([f for f in TABLE if f.name not in claims], seen, but)
        best = max(claims.values())
    if best < 3:  # no claim is certain: ask installed packages
        claims |= _claims([f for f in table().values() if f not in TABLE], seen, but)
        best = max(claims.values())
    if best < 2:  # at most the name fits
        _refuse_stand_in(seen)
    candidates = [name for name, claim in claims.items() if claim == best and claim > 0]
    if len(candidates) > 1:
        text = f"could be {' or '.join(candidates)}; choose one with from_={candidates[0]!r}"
        raise AmbiguousFormat(text, url=url)
    if not candidates:
        _refuse_damaged(seen)
        what = foreign.other(seen) or f"has an unknown format; it begins with {seen.head[:16].hex(' ')}"
        raise UnknownFormat(f"{what}. `ckptconv formats` lists the formats that can be read{missing()}", url=url)
    return get(candidates[0])


def _likely(seen: Seen) -> Sequence[Format]:
    """The formats with a signature or the suffix of the file; all formats if it has no known signature."""
    if DATA.fullmatch(seen.base):  # its first bytes are those of a tensor
        return TABLE
    names = {name for has, known in SIGNATURES for name in known if has(seen)}
    if seen.is_dir:
        names |= {name for ends, known in FOLDERS for name in known if any(n.endswith(ends) for n in seen.files)}
    suffixed = [f for f in TABLE if f.name in names or f.name == INDEX or seen.base.lower().endswith(f.suffixes)]
    return suffixed if names else TABLE


def _checkpoints(seen: Seen) -> list[str]:
    """The names in a folder that are those of checkpoints, or of the first ones have the content of one."""
    suffixes = tuple(s for f in TABLE for s in f.suffixes)
    known = [n for n in seen.files[:LOOKED_AT] if not n.lower().endswith(suffixes) and _has_content(seen.url, n)]
    return [n for n in seen.files if n.lower().endswith(suffixes) or n in known]


def _has_content(folder: str, name: str) -> bool:
    """Whether a format knows the content of a file; what a link out of the folder leads to is not opened."""
    try:
        seen = Seen(sibling(join(folder, "."), name))
        return max(_claims(_likely(seen), seen, "").values(), default=0) > 1
    except (CkptError, OSError):  # unreadable: it is not recommended
        return False


def _claims(rows: Iterable[Format], seen: Seen, but: str) -> dict[str, int]:
    return {f.name: _claim(f, seen) for f in rows if f.reads and f.name != but}


def _claim(row: Format, seen: Seen) -> int:
    """How certain a format is; 0 if looking at the file raises an unexpected exception.

    Of another package's format that cannot be loaded the file need not be: the others are asked all the same.
    """
    try:
        sniff = row.load().sniff
    except (CkptError, AttributeError) as e:
        if row in TABLE:
            raise
        plugins.leave_out(f"the format {row.name}: {e}")
        return 0
    try:
        return int(sniff(seen))
    except CkptError:
        raise
    except Exception:  # another format can claim the file; otherwise `open` reports the problem
        return 0


def _refuse_stand_in(seen: Seen) -> None:
    """Raise an error that describes what the path is instead of a checkpoint: missing, a pointer, a web page ..."""
    if seen.is_dir:
        what = foreign.folder(seen.files, _checkpoints(seen))
    elif seen.size < 0:
        present = names(seen.folder)
        visible = seen.files or [n for n in present if seen.base.startswith(".") or not n.startswith(".")]
        hint = did_you_mean(seen.base, visible, "similar names" if seen.files else "", count=3)
        if any(n.startswith(f".{seen.base}") and n.endswith(".part") for n in present):
            hint = "; a run that writes it is under way, or was killed: then repeat it with force=True"
        hint = foreign.missing(seen.url) or hint
        raise StorageError(f"no such file, folder or checkpoint prefix{hint}", url=seen.url)
    elif seen.size == 0:
        what = "is empty (0 bytes)"
    elif not (what := foreign.known(seen)):
        return
    raise UnknownFormat(f"{what}. `ckptconv formats` lists the formats that can be read", url=seen.url)


def _refuse_damaged(seen: Seen) -> None:
    """Raise CorruptCheckpoint if the beginning, or for a tiny file the name, identifies a truncated checkpoint."""
    what = foreign.damaged(seen)
    if not what and 0 <= seen.size < 8 and any(seen.base.lower().endswith(s) for f in TABLE for s in f.suffixes):
        what = f"has {seen.size} bytes, too few for a checkpoint (truncated?)"
    if what:
        raise CorruptCheckpoint(what, url=seen.url)


@once()
def open_checkpoint(url: str, how: Reading = PLAIN, *, format: str | None = None) -> Checkpoint:
    """Open the checkpoint at `url`, as `format` if it is given. Any bytes give a Checkpoint or a CkptError."""
    row = get(format) if format else detect(url)
    if not row.reads:
        raise UsageError(f"the format {row.name} can be written but not read")
    try:
        with uncollected():
            return _alone(_apart(row.load().open(url, how)), url)
    except StorageError:
        if format and format != INDEX and not exists(url) and exists(url + shard_index.SUFFIX):
            return open_checkpoint(url, how, format=INDEX)
        raise
    except CkptError:
        raise
    except (MemoryError, RecursionError) as e:
        raise CorruptCheckpoint(f"cannot be read as {row.name}: it is nested too deeply or too large", url=url) from e
    except Exception as e:  # the one place where an unexpected exception in a parser becomes an error of ours
        if isinstance(e, OSError) and e.errno in SCARCE:  # which says nothing of the file
            raise refused(e, url) from e
        raise CorruptCheckpoint(
            f"cannot be read as {row.name}: {type(e).__name__}: {printable(str(e))}", url=url
        ) from e


def _alone(checkpoint: Checkpoint, url: str) -> Checkpoint:
    """Note that a file has only slices of tensors, as each rank of a model-parallel run writes them."""
    if (count := foreign.one_of(url)) < 2:
        return checkpoint
    note = Note("hint", f"is one of {count} parts of a model, each with slices of its tensors; they are not joined")
    return replace(checkpoint, notes=(*checkpoint.notes, note))


def _apart(checkpoint: Checkpoint) -> Checkpoint:
    """Move the hashes that a file carries out of its metadata: they do not apply to outputs made from it."""
    if not (carried := hashes_of(checkpoint.metadata)):
        return checkpoint
    return replace(checkpoint, metadata=unhashed(checkpoint.metadata), hashes=carried)
