"""The table of formats, detection, and the two questions a format answers.

    where are the bytes?        open(url, **options) -> Checkpoint       (headers only)
    where should they go?       writer(url, **options) -> Writer         (pure: offsets, then patches)

A format is a module with these functions (see safetensors.py for the shortest whole one):

    sniff(seen) -> int                   0 no; 1 the name fits; 2 the content fits; 3 the content can be nothing else;
                                         4 it is one file of a whole that this format reads
    open(url, opaque=False) -> Checkpoint           it may also take `salvage` and `densify`, see open_checkpoint
    decode(coded) -> Iterator[buffer]    only if it makes `Coded` data: the decoded bytes in C order, little-endian;
                                         of a string tensor, one bytes object per element
    writer(url, max_shard_size=None) -> Writer      only if it writes

and one line in `TABLE`. Third parties register the same `Format` row under the entry point group `ckptconv.formats`.
Nothing heavy is imported before a format's own function runs.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from inspect import signature
from typing import Any, NamedTuple, Protocol

from ..errors import (
    AmbiguousFormat,
    CkptError,
    CorruptCheckpoint,
    MissingExtra,
    StorageError,
    UnknownFormat,
    Unrepresentable,
    UsageError,
    listing,
)  # fmt: skip
from ..store import File, Seen, is_dir, names
from ..tensor import Checkpoint, Coded, Tensor, hashes_of, unhashed
from . import strangers


class Slot(NamedTuple):
    """Where a tensor's bytes go, C-contiguous and little-endian: `size` bytes at `start` of an output file.

    `payload` replaces the tensor's own elements (a string tensor in the target's encoding).
    """

    file: str
    start: int
    size: int
    payload: bytes | None = None


class Patch(NamedTuple):
    """Bytes that are no tensor: headers, directories, indexes."""

    file: str
    start: int
    data: bytes


class Placement(NamedTuple):
    """The layout of an output before any data exists.

    files: in the order in which they are published (the index last); names relative to the destination's folder.
    slots: one per tensor name; tied names may share one slot. Everything outside slots and patches is zero.
    check: 'crc32', 'crc32c' or '': the checksum of each slot that `seal` wants.
    stale: names in the destination's folder (a regular expression) that belong to an older checkpoint of this name.
    unit: the output is a folder without an index: it is replaced as a whole.
    """

    files: Sequence[File]
    slots: Mapping[str, Slot]
    patches: Sequence[Patch] = ()
    check: str = ""
    stale: str = ""
    unit: bool = False


class Writer(Protocol):
    """Lay out an output. Both methods are pure; the engine does all writing."""

    def place(self, checkpoint: Checkpoint) -> Placement:
        """Choose files and offsets for all tensors; Unrepresentable, naming all, for what the format cannot hold."""

    def seal(self, checks: Mapping[str, int]) -> Sequence[Patch]:
        """Patches that need the checksums of the slots, by tensor name. Files may grow by them."""

    def cannot_hold(self, tensor: Tensor) -> str:
        """Why the format cannot hold this tensor (dtype or name), or ''."""

    # Where `seal` depends on metadata there is `amend(old: bytes, new: bytes)`, too: hashes.py put `new` for `old`.


def refuse_unheld(writer: Writer, checkpoint: Checkpoint, title: str) -> None:
    """Raise Unrepresentable naming every tensor that the format cannot hold, and why."""
    whys = [(name, writer.cannot_hold(tensor)) for name, tensor in checkpoint.tensors.items()]
    bad = [f"{name}: {why}" for name, why in whys if why]
    if bad:
        raise Unrepresentable(
            f"{title} cannot hold {len(bad)} of {len(checkpoint)} tensors; leave them out with --exclude or "
            f"--skip-unrepresentable, or cast them with --dtype:\n{listing(bad)}"
        )


def refuse_shards(checkpoint: Checkpoint, limit: int | None, title: str) -> None:
    """Raise UsageError where one file would pass the size asked for and the format knows no shards."""
    if limit is not None and checkpoint.nbytes > limit:
        raise UsageError(f"{title} is one file; --max-shard-size needs a format that can be split")


class Format(NamedTuple):
    """A row of the table: what it is called, where it lives, and what its files are called."""

    name: str
    title: str
    module: str
    suffixes: tuple[str, ...]
    reads: bool
    writes: bool
    hashes: bool = False  # it has metadata and no checksum of its own: what we write carries hashes (hashes.py)

    def load(self) -> Any:
        """Import the module that implements it."""
        try:
            return import_module(self.module)
        except ImportError as e:
            raise MissingExtra(f"the format {self.name} needs a package that is not installed: {e}") from e


_HERE = "ckptconv.formats."
TABLE: tuple[Format, ...] = (
    Format("tf", "TensorFlow V2 checkpoint", _HERE + "tensorflow.bundle", (".ckpt", ".index"), True, True),
    Format("tf-v1", "TensorFlow V1 checkpoint", _HERE + "tensorflow.v1", (), True, False),
    Format("tf-graph", "TensorFlow SavedModel or graph", _HERE + "tensorflow.graph", (".pb", ".pbtxt"), True, False),
    Format("safetensors", "safetensors", _HERE + "safetensors", (".safetensors",), True, True, True),
    Format("hf", "Hugging Face folder or index", _HERE + "sharded", (), True, True, True),
    Format("torch", "PyTorch", _HERE + "pytorch.archive", (".pt", ".pth", ".bin"), True, True),
    Format("torch-legacy", "PyTorch before 1.6", _HERE + "pytorch.legacy", (), True, False),
    Format("pickle", "pickled dict of arrays", _HERE + "pytorch.bare", (), True, False),
    Format("dcp", "PyTorch distributed checkpoint", _HERE + "pytorch.dcp", (), True, False),
    Format("torchscript", "TorchScript", _HERE + "pytorch.torchscript", (), True, False),
    Format("npz", "NumPy .npz", _HERE + "npz", (".npz",), True, True),
    Format("flax", "Flax msgpack", _HERE + "flax", (".msgpack",), True, True),
    Format("gpt", "GPT of 2018: .npy files end to end", _HERE + "gpt", (), True, False),
    Format("npy", "NumPy .npy, one or a folder of them", _HERE + "npy", (".npy",), True, True),
    Format("keras3", "Keras 3", _HERE + "keras.v3", (".weights.h5", ".weights.json", ".keras"), True, True, True),
    Format("hdf5", "HDF5", _HERE + "hdf5", (".hdf5", ".h5"), True, True, True),
    Format("keras", "Keras legacy HDF5", _HERE + "keras.legacy", ("tf_model.h5", ".h5", ".hdf5"), True, True, True),
)


@lru_cache(maxsize=1)
def table() -> dict[str, Format]:
    """All formats by name: ours and those of installed packages."""
    from importlib.metadata import entry_points

    rows = {f.name: f for f in TABLE}
    for point in entry_points(group="ckptconv.formats"):
        row = point.load()
        rows.setdefault(row.name, row)
    return rows


def get(name: str) -> Format:
    """Look a format up by name; UsageError lists those there are."""
    for row in TABLE:  # installed packages are asked only where ours do not do: that takes longer than all else
        if row.name == name:
            return row
    try:
        return table()[name]
    except KeyError:
        near = _hint(name, table())
        raise UsageError(f"no format is called {name!r}{near}; there are {', '.join(table())}") from None


def _hint(name: str, known: Iterable[str]) -> str:
    """The known name that a misspelt one is nearest to, as the end of a message, or ''."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), 1, 0.7)
    return f"; near is {near[0]}" if near else ""


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
        raise AmbiguousFormat(f"could be {' or '.join(found)}; say which with --from {found[0]}", url=url)
    if not found:
        _refuse_damaged(seen)
        what = strangers.other(seen) or f"is in no format known here; it begins with {seen.head[:16].hex(' ')}"
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
        what = strangers.folder(seen.files, tuple(s for f in TABLE for s in f.suffixes))
    elif seen.size < 0:
        there = names(seen.folder)
        near = f"; beside it are {', '.join(seen.files[:8])}" if seen.files else _hint(seen.base, there)
        if any(n.startswith(f".{seen.base}") and n.endswith(".publish") for n in there):
            near = "; a run was killed while it replaced it: the next one that writes it finishes that first"
        raise StorageError(f"no such file, folder or checkpoint prefix{near}", url=seen.url)
    elif seen.size == 0:
        what = "is empty (0 bytes)"
    elif not (what := strangers.known(seen)):
        return
    raise UnknownFormat(f"{what}. `ckptconv formats` lists what can be read", url=seen.url)


def _refuse_damaged(seen: Seen) -> None:
    """Raise CorruptCheckpoint if the beginning, or of a tiny file the name, says what it was before it was cut."""
    what = strangers.damaged(seen)
    if not what and 0 <= seen.size < 8 and any(seen.base.lower().endswith(s) for f in TABLE for s in f.suffixes):
        what = f"has {seen.size} bytes, too few for a checkpoint (truncated?)"
    if what:
        raise CorruptCheckpoint(what, url=seen.url)


def open_checkpoint(
    url: str, *, format: str | None = None, opaque: bool = False, salvage: bool = False, densify: bool = False
) -> Checkpoint:
    """Open whatever lies at `url`. Any bytes give a Checkpoint or a CkptError.

    salvage: a format that can opens what is left when some of its files are missing or cut, with notes `damaged`.
    densify: a format that can computes sparse and quantised tensors instead of giving their pieces.
    """
    row = get(format) if format else detect(url)
    if not row.reads:
        raise UsageError(f"the format {row.name} can be written but not read")
    try:
        with uncollected():
            module = row.load()
            takes = signature(module.open).parameters
            asked = {"salvage": salvage, "densify": densify}
            more = {name: True for name, on in asked.items() if on and name in takes}
            return _apart(module.open(url, opaque=opaque, **more))
    except CkptError:
        raise
    except (MemoryError, RecursionError) as e:
        raise CorruptCheckpoint(f"cannot be read as {row.name}: it is nested or sized beyond reason", url=url) from e
    except Exception as e:  # the one place where a parser's surprise becomes our error
        raise CorruptCheckpoint(f"cannot be read as {row.name}: {type(e).__name__}: {e}", url=url) from e


def _apart(found: Checkpoint) -> Checkpoint:
    """Take the hashes that a file carries (hashes.py) out of its metadata: they are not for what is made from it."""
    if not (carried := hashes_of(found.metadata)):
        return found
    return replace(found, metadata=unhashed(found.metadata), details=found.details | {"hashes": carried})


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the cyclic collector, which would walk hundreds of thousands of fresh tensors again and again, for nothing.

    Of the time to convert 200,000 tensors that was a quarter.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def decode(coded: Coded) -> Iterator[Any]:
    """The decoded bytes of `coded`, in pieces."""
    return get(coded.format).load().decode(coded)  # type: ignore[no-any-return]  # modules are found by name


def target(url: str, name: str | None = None, source: str = "") -> Format:
    """The format to write at `url`: the named one, or the one whose suffix it has; of several the source's own."""
    if name:
        row = get(name)
        if not row.writes:
            raise UsageError(f"the format {name} can be read but not written")
        return row
    fits = _fitting(TABLE, url) or _fitting(table().values(), url)
    if not fits and (url.endswith("/") or is_dir(url)):
        raise UsageError(f"{url!r} is a folder; name a file in it, or use --to with hf or npy, which are folders")
    if not fits:
        known = ", ".join(f"{f.name} ({' '.join(f.suffixes) or '-'})" for f in table().values() if f.writes)
        raise UsageError(f"the name {url!r} does not tell the format; use --to with one of: {known}")
    return max(fits, key=lambda pair: (pair[0], pair[1].name == source))[1]


def _fitting(rows: Iterable[Format], url: str) -> list[tuple[int, Format]]:
    """Formats whose suffix the name has, with the suffix's length."""
    return [(len(s), f) for f in rows if f.writes for s in f.suffixes if url.lower().endswith(s)]
