"""Detect the format of a checkpoint, and open it. A format answers two questions:

    where are the bytes?        open(url, how) -> Checkpoint             (headers only)
    where should they go?       writer(url, **options) -> Writer         (pure: offsets, then patches)

A format is a module with these functions (safetensors.py is the shortest complete one):

    sniff(seen) -> int                   0 no; 1 the name fits; 2 the content fits; 3 the content fits no other format;
                                         4 a file of a set that this format reads
    open(url, how: Reading) -> Checkpoint           headers only; table.py has the options
    decode(coded) -> Iterator[buffer]    only with `Coded` data: the decoded bytes in C order, little-endian;
                                         for a string tensor, one bytes object per element
    writer(url, max_shard_size=None) -> Writer      only if the format can be written

and one row in table.py. Third parties register the same `Format` row under the entry point group `ckptconv.formats`.
Nothing heavy is imported before a format's own function runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from ..checkpoint import Checkpoint, uncollected
from ..errors import (
    AmbiguousFormat,
    CkptError,
    CorruptCheckpoint,
    MissingExtra,
    StorageError,
    UnknownFormat,
    UsageError,
)
from ..messages import brief, cut, did_you_mean, is_visible, listing, printable, shortened
from ..storage import archives, plugins
from ..storage.faults import SCARCE, MissingFile, refused
from ..storage.files import Seen, exists, is_dir, is_remote, join, names, split, stat
from ..storage.lookups import cached_lookups
from . import complete, shard_index
from .own_metadata import hashes_of, without_hashes
from .table import (
    DISTRIBUTED,
    KERAS_WEIGHTS,
    NPY,
    OPAQUE,
    SAVED_MODEL,
    TABLE,
    TF_DATA,
    TF_TABLE,
    Format,
    Reading,
    get,
    is_hdf5,
    missing,
    table,
)

PICKLED = re.compile(rb"\x80[\2-\5]|\([dl]p\d")  # protocols 2 to 5, and 0 as it is of a dict or list
# Formats with the signature of a file are asked first, because importing all others takes longer than converting a
# small file. An entry too many costs time; a missing entry does no harm, because the other formats are asked next.
SIGNATURES: tuple[tuple[Callable[[Seen], bool], tuple[str, ...]], ...] = (
    (lambda seen: seen.size < 0 and not seen.is_dir and f"{seen.base}.index" in seen.files, ("tf",)),
    (lambda seen: seen.is_dir, ("orbax",)),  # its arrays lie in folders below
    (is_hdf5, ("hdf5", "keras", "keras3")),
    (lambda seen: seen.head[4:8] == bytes(4) and seen.head[8:9] == b"{", ("safetensors",)),  # a header below 4 GiB
    (lambda seen: seen.head.startswith(NPY), ("npy",)),
    (lambda seen: seen.tail.endswith(TF_TABLE), ("tf", "tf-v1")),
    (lambda seen: PICKLED.match(seen.head) is not None, ("torch-legacy", "pickle", "dcp")),
)
# The same for folders and zips, by the ends of names in them.
INSIDE: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    ((".index", "checkpoint"), ("tf", "tf-v1")),
    ((SAVED_MODEL,), ("tf-graph",)),
    ((DISTRIBUTED,), ("dcp", "megatron")),
    ((".npy",), ("npy", "npz")),
    (("params_0.npy",), ("gpt",)),
    ((".bin",), ("ranks",)),  # as accelerate calls them; else the claim of `hf` would do
    (("data.pkl",), ("torch", "torchscript", "dcp")),
    (("archive_format",), ("pt2",)),
    ((KERAS_WEIGHTS, "model.weights.npz"), ("keras3",)),
)
PLAIN = Reading()
SUFFIXES = tuple(s for f in TABLE for s in f.suffixes)
TRIED, MAX_ARCHIVE = 32, 2**30  # files of a folder or an archive that are looked at for an error; bytes of the archive
INDEX = "hf"  # the format that reads shards under the name of the whole, whatever their own format is


@cached_lookups()
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
        _refuse_other(seen)
    candidates = [name for name, claim in claims.items() if claim == best and claim > 0]
    if len(candidates) > 1:
        text = f"could be {' or '.join(candidates)}; choose one with from_={candidates[0]!r}"
        raise AmbiguousFormat(text, url=url)
    if not candidates:
        _refuse_unclaimed(seen)
    return get(candidates[0])


def _likely(seen: Seen) -> Sequence[Format]:
    """The formats with a signature or the suffix of the file; all formats if it has no known signature."""
    if TF_DATA.fullmatch(seen.base):  # its first bytes are those of a tensor
        return TABLE
    names = {name for has, known in SIGNATURES for name in known if has(seen)}
    inside = [*map(str.casefold, seen.files if seen.is_dir else seen.members)]
    names |= {name for ends, known in INSIDE if any(n.endswith(ends) for n in inside) for name in known}
    suffixed = [f for f in TABLE if f.name in names or f.name == INDEX or seen.base.lower().endswith(f.suffixes)]
    return suffixed if names else TABLE


def _claims(rows: Collection[Format], seen: Seen, but: str) -> dict[str, int]:
    """How certain each format is; 0 if it raises an unexpected exception, or is a package's and cannot be loaded."""
    claims = {f.name: 0 for f in rows if f.reads and f.name != but}
    for row in (f for f in rows if f.name in claims):
        try:
            sniff = row.load().sniff
        except (CkptError, AttributeError) as e:
            if row in TABLE:
                raise
            plugins.leave_out(f"the format {row.name}: {e}")
            continue
        try:
            claims[row.name] = int(sniff(seen))
        except CkptError:
            raise
        except Exception:  # another format can claim the file; otherwise `open` reports the problem
            continue
    return claims


@cached_lookups()
def open_checkpoint(url: str, how: Reading = PLAIN, *, format: str | None = None) -> Checkpoint:
    """Open the checkpoint at `url`, as `format` if it is given. Any bytes give a Checkpoint or a CkptError.

    url: also one packed file, which is opened like a member of an archive.
    """
    try:
        return _opened(url, how, format)
    except UnknownFormat as e:
        if is_remote(url) or not (members := _members(url, how)):
            raise
        if len(members) == 1 and members[0] == join(url, os.path.splitext(split(url)[1])[0]):
            return _opened(members[0], how, None)
        text = f"is an archive; give one of the checkpoints in it:\n{listing(members)}"
        raise UnknownFormat(text, url=url) from e


def _members(url: str, how: Reading) -> list[str]:
    """The paths of the checkpoints in an archive."""
    with suppress(CkptError):
        files = archives.listed(url) if (status := stat(url)) and status.size <= MAX_ARCHIVE else []
        return _that_open([join(url, n) for n in files if n == printable(cut(n))], how)
    return []


def _that_open(paths: Sequence[str], how: Reading = PLAIN) -> list[str]:
    """Those of `TRIED` paths that can be opened and hold tensors; one for each checkpoint. Usual names go first."""
    found, read = list[str](), set[str]()
    for path in sorted(paths, key=lambda n: not n.lower().endswith(SUFFIXES))[:TRIED]:
        with suppress(CkptError):
            known = path not in read and max(_claims(TABLE, Seen(path), "").values()) > 1
            if known and (opened := _opened(path, how, None)).tensors:
                found.append(path)
                read.update(opened.urls)
    return found


def _opened(url: str, how: Reading, format: str | None) -> Checkpoint:
    row = get(format) if format else detect(url)
    if not row.reads:
        raise UsageError(f"the format {row.name} can be written but not read")
    module = row.load()
    try:
        with uncollected():
            found: Checkpoint = module.open(url, how)
            # hashes that a file carries do not apply to outputs made from it
            hashes = hashes_of(found.metadata)
            return replace(found, metadata=without_hashes(found.metadata), hashes=hashes) if hashes else found
    except StorageError:
        if format and format != INDEX and not exists(url) and exists(url + shard_index.SUFFIX):
            return open_checkpoint(url, how, format=INDEX)
        raise
    except CkptError as e:
        e.url = e.url or url  # formats name another file only where they read several
        if OPAQUE in e.message and not _that_open([url], how._replace(opaque=True)):
            e.message = e.message.replace(OPAQUE, "without them no tensor can be read")
        raise
    except ImportError as e:  # which says nothing of the file
        raise MissingExtra(f"the format {row.name} needs a package that is not installed: {e}", url=url) from e
    except (MemoryError, RecursionError) as e:
        raise CorruptCheckpoint(f"cannot be read as {row.name}: it is nested too deeply or too large", url=url) from e
    except Exception as e:  # the one place where an unexpected exception in a parser becomes an error of ours
        if isinstance(e, OSError) and e.errno in SCARCE:  # which says nothing of the file
            raise refused(e, url) from e
        raise CorruptCheckpoint(
            f"cannot be read as {row.name}: {type(e).__name__}: {printable(str(e))}", url=url
        ) from e


# --- what is often mistaken for a checkpoint ------------------------------------------------------------------------
#
#     1f 8b              gzip: may contain a checkpoint
#     "GGUF", "TFL3"     models of other programs
#     50 4b 03 04        a zip; 80 02 to 80 05: a pickle. Complete ones with tensors are claimed by a format
#
# Specifications: RFC 1952 (gzip), RFC 8878 (zstd), ggml's docs/gguf.md, TensorFlow Lite's schema.fbs, onnx.proto.

REPOSITORY = re.compile(r"[A-Za-z0-9][\w-]*/[\w.-]+|[a-z0-9]+(-[a-z0-9]+)+")  # google/bert, bert-base-uncased
ORIGINAL = "which is not read; take the checkpoint that it was made from"
NAMED = {  # by the ends of names, where the content tells less: what it is, and what reads it
    ".onnx": f"an ONNX model by its name, {ORIGINAL}",
    ".t7": "a Torch7 file by its name, which is not read; numpy.savez writes what the package torchfile reads",
    ".caffemodel": "a Caffe model by its name, which is not read; numpy.savez writes the params of a caffe.Net",
    ".weights": "a darknet model by its name, which is not read; a port in PyTorch loads it, and torch.save writes it",
    ".mlmodel": f"a Core ML model by its name, {ORIGINAL}",
    ".dat": "a file of TorchSharp by its name, which is not read; its importsd.py loads it, and torch.save writes it",
    ".pdmodel": "a program of Paddle by its name, without weights; paddle.save writes those of a layer's state_dict",
    ".pdiparams": "a file of Paddle by its name, which is not read; paddle.save writes a layer's state_dict, which is",
    ".sbs": f"a file of gemma.cpp by its name, {ORIGINAL}",
    ".engine": f"a TensorRT engine by its name, {ORIGINAL}",
    ".mnn": f"an MNN model by its name, {ORIGINAL}",
    ".pbtxt": "a graph as text, which is not read; write it as .pb (google.protobuf.text_format parses it)",
    ".py": "a Python file; `ckptconv match` takes a class or function of it as FILE:NAME, without .py",
    ".mat": "a MATLAB file by its name, which is not read; numpy.savez writes what scipy.io.loadmat reads",
    ".json": "JSON that lists no tensors; give the file of the weights, or the folder",
}
BEGINNINGS = {  # of files, as regular expressions: what they are
    rb"version https://git-lfs": "a git-lfs pointer, not the file itself; run `git lfs pull` in its repository",
    rb"(?i)\s*<(!doctype )?html": "an HTML page, not a checkpoint; the download failed (a login or error page?)",
    rb"lmgg|fmgg|tjgg": f"a file of old ggml, {ORIGINAL}",
    rb"24ka|(?:(?!\0\0)..\0\0){2}(?:[^\0]\0{3}){3}": f"perhaps a model of llama2.c, by its first numbers, {ORIGINAL}",
    rb"ptrt": f"a TensorRT engine, {ORIGINAL}",
    rb"GGUF": "a GGUF file, which is not read; take the safetensors that it was made from",
    rb".{4}ET12": f"an ExecuTorch program (.pte), {ORIGINAL}",
    rb".{4}TFL3": "a TensorFlow Lite model, which is not read; take the SavedModel that it was made from",
    rb'\{.{,300}"(modelTopology|weightsManifest)"': f"a model of TensorFlow.js, {ORIGINAL}",
    rb"\x12\x01\0{6}": "a file of MXNet, which is not read; numpy.savez writes what mxnet.nd.load reads",
    rb"\x1f\x8b|\x28\xb5\x2f\xfd|\xfd7zXZ\0|\x04\x22\x4d\x18|\x78[\x01\x5e\x9c\xda]|BZh": (
        "compressed with gzip, zstd, xz, lz4, zlib (by joblib?) or bzip2; unpack it first"
    ),
    rb".{257}ustar": "a tar; unpack it first, or load and save it with torch if PyTorch before 0.1.10 wrote it",
}
PACKAGE = (
    "is a torch.package archive, which holds code and is not read; load it with torch.package.PackageImporter if you "
    "trust it, and save the model's state_dict"
)


def _refuse_other(seen: Seen) -> None:
    """Raise an error that describes what the path is instead of a checkpoint: missing, a pointer, a web page ..."""
    if seen.is_dir:
        what = _folder(seen.url, seen.files)
    elif seen.size < 0 and (inside := names(seen.url)):
        what = f"is a folder in an archive, which is not read; give a file in it ({shortened(inside)}), or unpack it"
    elif seen.size < 0:
        if not is_remote(seen.url):
            archives.place(seen.url)  # says what is wrong with an archive
        raise MissingFile(f"no such file, folder or checkpoint prefix{_missing_hint(seen)}", url=seen.url)
    else:
        what = _other(seen) if seen.size else "is empty (0 bytes)"
    if what:
        raise UnknownFormat(what, url=seen.url)


def _refuse_unclaimed(seen: Seen) -> None:
    """Raise CorruptCheckpoint for a truncated checkpoint, else UnknownFormat; no format claims it, not even by name."""
    if seen.head.startswith(b"PK\3\4") and not seen.members:
        raise CorruptCheckpoint("begins as a zip but has no directory at its end (truncated?)", url=seen.url)
    if PICKLED.match(seen.head):
        raise CorruptCheckpoint("begins as a pickle but does not end as one (truncated?)", url=seen.url)
    if seen.size < 8 and seen.base.lower().endswith(SUFFIXES):
        raise CorruptCheckpoint(f"has {seen.size} bytes, too few for a checkpoint (truncated?)", url=seen.url)
    if seen.members:
        what = packed(seen.members)
    elif is_visible(text := seen.head[:40].decode("utf-8", "replace").partition("\n")[0]) and len(text) > 2:
        what = f"is a text that begins with {brief(text)!r}"
    else:
        what = f"has an unknown format; it begins with {seen.head[:16].hex(' ')}"
    raise UnknownFormat(f"{what}. `ckptconv formats` lists the formats that can be read{missing()}", url=seen.url)


def _missing_hint(seen: Seen) -> str:
    """A suggestion for a path that does not exist, as the end of a message."""
    url = seen.url
    if any(c in url for c in "*?["):
        return "; `ckptconv zoo` and `ckptconv serve` take globs, other verbs take paths"
    if is_remote(url) and re.search(r"\.(zip|tar|tgz|nemo|gz|bz2|xz)/", url):
        return "; members are read of archives on this machine: copy the archive here"
    if REPOSITORY.fullmatch(url):
        return f"; a repository of the Hugging Face Hub is hf://{url}"
    if not url:
        return ": the path is empty"
    present = names(seen.folder)
    if any(n.startswith(f".{seen.base}") and n.endswith(".part") for n in present):
        return "; a run that writes it is under way, or was killed: then repeat it with force=True"
    visible = seen.files or [n for n in present if seen.base.startswith(".") or not n.startswith(".")]
    if not is_dir(seen.folder or "."):  # in an archive, whose folders are not read
        visible = [n for n in visible if not names(join(seen.folder, n))]
    return did_you_mean(seen.base, visible, "similar names" if seen.files else "", count=3)


def _other(seen: Seen) -> str:
    """A description of a file that is not a checkpoint, whatever its name, or ''."""
    begun = (what for beginning, what in BEGINNINGS.items() if re.match(beginning, seen.head, re.DOTALL))
    named = (what for end, what in NAMED.items() if seen.base.lower().endswith(end))
    return next((f"is {what}" for what in (*begun, *named)), "")


def _folder(url: str, files: Sequence[str]) -> str:
    """A description of a folder that is not a checkpoint itself, with what to give instead."""
    if not files:
        return "holds no checkpoint: it is empty"
    if "data.pkl" in files:
        base = split(url)[1]
        return f"is a file of PyTorch that was unpacked; pack it again, beside it: `zip -r {base}.pt {base}`"
    if ".data" in files:
        return PACKAGE
    if any(".distcp" in n for n in files):
        return (
            f"has no {DISTRIBUTED}, which says what the .distcp files hold; it lies beside them where they were saved"
        )
    if pieces := complete.pieces(url, files):
        return pieces
    if checkpoints := [split(path)[1] for path in _that_open([join(url, n) for n in files])]:
        what = f"is not a checkpoint itself; give one in it ({shortened(checkpoints)})"
        return f"{what}; `ckptconv zoo` converts all, `serve` shows them"
    below = "; `ckptconv zoo` looks into all folders" * any(is_dir(join(url, n)) for n in files)
    return f"holds no checkpoint itself, only {shortened(files)}{below}"


def packed(members: Sequence[str]) -> str:
    """A description of a zip that is not a checkpoint itself."""
    package = any(name.endswith("/.data/extern_modules") for name in members)
    return PACKAGE if package else f"is a zip of other files: {shortened(members)}"
