"""safetensors: a length, a JSON header, the tensors' bytes.

    0    u64le N
    8    N bytes of JSON: {"__metadata__": {"k": "v"},
                           "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
    8+N  the buffer: offsets count from here; the ranges tile it without holes and overlaps

Several files form one checkpoint with `model.safetensors.index.json` (shard_index.py), which huggingface.py reads.
A distributed run of torch saves the parts of tensors that each process holds, which pytorch/ranks.py joins:

    shard-00002-model-00001-of-00001.safetensors       what the second process holds
    __metadata__: {"DCP_SHARDING_INFO": '{"a.w": {"saved_offsets": [2, 0]}}', "DCP_VERSION": "1.0"}

Specification: https://github.com/huggingface/safetensors#format, and the checks of its reader, src/tensor.rs; torch's
HuggingFaceStorageWriter, in torch/distributed/checkpoint/hf_storage.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from json.encoder import encode_basestring
from typing import Any

from ..checkpoint import Checkpoint, Note, Tensor, contiguous
from ..dtypes import DTYPES, DType
from ..errors import CkptError, CorruptCheckpoint, Unrepresentable
from ..messages import brief
from ..moves.part import MAX_ELEMENTS, Span, checked_count
from ..output.destination import OutputFile
from ..storage.files import Reader, Seen, is_remote, local, split
from ..storage.json import parse_json, unique
from . import Located, shard_index
from .placement import Patch, Placement, Slot, is_text, refuse_unheld
from .table import Reading

SUFFIX = ".safetensors"
MAX_HEADER = 100_000_000  # bytes; the reference refuses longer headers
# The reference's dtypes in the order of its enum, which is by alignment; it writes them in reverse order.
ORDER = (
    "BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
    "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64",
)  # fmt: skip
RANK = {spelling: i for i, spelling in enumerate(ORDER)}
_KNOWN = {spelling: spelling for spelling in ORDER}  # so that an entry has no text of its own
ROWS = {row.safetensors: row for row in DTYPES.values() if row.safetensors}
UNSUPPORTED = "6-bit floats, or 4-bit floats whose rows end in half a byte: valid, but no other format can hold them"

INFO = "DCP_SHARDING_INFO"
KEYS = (INFO, "DCP_VERSION")
SHARD = re.compile(r"shard-\d{5,}-model-\d{5,}-of-\d{5,}\.safetensors")
PARTS = "holds parts of tensors, one file of those that each process of a distributed run saved; give their folder"
# The first shard says the same as a file that holds whole tensors, if it was given another name.
ALONE = Note(
    "assumed",
    f"read as whole tensors; its {INFO} does not say that they are, and the first shard of a distributed run "
    "holds only the first part of each",
)


def sniff(seen: Seen) -> int:
    length = int.from_bytes(seen.head[:8], "little")
    if seen.size >= 8 and 2 <= length <= min(MAX_HEADER, seen.size - 8) and seen.head[8:].lstrip()[:1] == b"{":
        return 3
    return 1 if seen.base.endswith(SUFFIX) and not seen.is_dir else 0


def open(url: str, how: Reading) -> Checkpoint:
    """Open a file; CorruptCheckpoint if it holds parts of tensors, unless `partial` is set; with a note if it may."""
    found, starts = read(url, how)
    parts = INFO in found.metadata and (SHARD.fullmatch(split(url)[1]) or any(map(any, starts.values())))
    if parts and not how.partial:
        raise CorruptCheckpoint(PARTS, url=url)
    if parts:
        metadata = {k: v for k, v in found.metadata.items() if k not in KEYS}  # of what is written they are not true
        return replace(found, metadata=metadata, notes=(*found.notes, Note("skipped", PARTS)))
    return replace(found, notes=(*found.notes, *[ALONE] * any(starts.values())))


def read(url: str, how: Reading) -> tuple[Checkpoint, dict[str, tuple[int, ...]]]:
    """Open a file, also one that holds parts of tensors; return also the index at which each begins, if it says so."""
    tensors, skipped, ranges = dict[str, Tensor](), list[str](), list[tuple[int, int, str]]()
    with Reader(url) as f:
        header, start = _header(f)
        metadata = header.pop("__metadata__", None)
        metadata = {} if metadata is None else metadata
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise CorruptCheckpoint("__metadata__ is not a map from strings to strings")
        for name in list(header):
            if not is_text(name):
                raise CorruptCheckpoint(f"the name {brief(name)!r} contains half a surrogate pair")
            with Located(tensor=name):
                row, shape, begin, end = _entry(header.pop(name))  # pop halves the memory
            ranges.append((begin, end, name))
            if row is None:
                skipped.append(name)
            else:
                tensors[name] = contiguous(name, row, shape, Span(url, start + begin, end - begin))
        _check_tiling(ranges, start, f.size, how)
    starts = dict[str, tuple[int, ...]]()
    with suppress(CkptError, AttributeError, KeyError, TypeError):  # another program's metadata
        info = parse_json(metadata[INFO].encode(errors="replace"), url)
        starts = {name: (*part["saved_offsets"],) for name, part in info.items() if name in tensors}
    shared = tuple(f"{a} = {b}" for a, b in metadata.items() if b in tensors and a not in tensors)
    notes = [
        Note("skipped", UNSUPPORTED, tuple(skipped)),
        Note("hint", "by its metadata these are two names of one tensor; only the second is kept", shared),
    ]
    notes = [note for note in notes if note.names]
    return Checkpoint(tensors, metadata, format="safetensors", urls=(url,), notes=tuple(notes)), starts


def _header(f: Reader) -> tuple[dict[str, Any], int]:
    """Read and parse the header; return it and the offset of the buffer."""
    if f.size < 8:
        raise CorruptCheckpoint(f"has {f.size} bytes, a safetensors file has at least 8")
    length = int.from_bytes(f.read(0, 8), "little")
    if length > min(MAX_HEADER, f.size - 8):
        what = f"at most {MAX_HEADER} are allowed" if length > MAX_HEADER else f"but only {f.size - 8} follow"
        raise CorruptCheckpoint(f"claims a header of {length} bytes; {what}")
    header = parse_json(f.read(8, length), f.url, _object)
    if not isinstance(header, dict):
        raise CorruptCheckpoint("the header is not a JSON object")
    return header, 8 + length


def _object(pairs: list[tuple[str, Any]]) -> Any:
    """An object of the header; the entry of a tensor as a tuple, which takes less memory.

    Metadata can have the names of an entry's fields too, but no lists.
    """
    found = unique(pairs)
    spelling, shape, offsets = found.get("dtype"), found.get("shape"), found.get("data_offsets")
    if type(spelling) is not str or type(shape) is not list or type(offsets) is not list or len(offsets) != 2:
        return found
    return (_KNOWN.get(spelling, spelling), tuple(shape), *offsets)


def _entry(entry: Any) -> tuple[DType | None, tuple[int, ...], int, int]:
    """Check one tensor of the header: its row (None: see `UNSUPPORTED`), its shape, and its range in the buffer.

    The row of 4-bit floats counts bytes of two elements, which must not cross the last axis.
    """
    if type(entry) is not tuple:
        raise CorruptCheckpoint("its header entry lacks dtype, shape or two data_offsets")
    spelling, shape, begin, end = entry
    if spelling not in RANK:
        raise CorruptCheckpoint(f"has the unknown dtype {brief(spelling)!r}")
    numbers = (*shape, begin, end)
    if {*map(type, numbers)} != {int} or min(numbers) < 0 or max(numbers) > MAX_ELEMENTS:
        raise CorruptCheckpoint("shape and data_offsets are not all whole numbers >= 0")
    row, count = ROWS.get(spelling), checked_count(shape, arrays=False)
    size = count * (4 if spelling == "F4" else row.itemsize * 8 if row else 6)
    if (end - begin) * 8 != size:
        text = f"{size // 8}{' and a fraction' if size % 8 else ''}"
        raise CorruptCheckpoint(f"occupies bytes {begin} to {end}, but {spelling}{list(shape)} needs {text}")
    if spelling != "F4":
        return row, shape, begin, end
    paired = shape and shape[-1] % 2 == 0
    return (row, (*shape[:-1], shape[-1] // 2), begin, end) if paired else (None, shape, begin, end)


def _check_tiling(ranges: list[tuple[int, int, str]], start: int, size: int, how: Reading) -> None:
    """Check that the sorted ranges cover the buffer, from `start` to the end, without holes and overlaps.

    With `how.salvage`, ranges behind the end of the file are not an error here but when one of them is read.
    """
    at = 0
    for begin, end, name in sorted(ranges):
        if begin != at:
            what = "overlaps the tensor before it" if begin < at else "leaves a hole before it"
            raise CorruptCheckpoint(f"begins at {begin} instead of {at}: it {what}", tensor=name)
        at = end
    end = start + at
    if end < size:
        raise CorruptCheckpoint(f"the tensors end at byte {end}, and the file at byte {size} (trailing bytes)")
    if end > size and not how.salvage:
        whole = sum(start + last <= size for _, last, _ in ranges)
        text = f"is cut off at byte {size} of {end}; {whole} of {len(ranges)} tensors are whole"
        raise CorruptCheckpoint(f"{text}, and keep_going=True takes these")


# --- writing ----------------------------------------------------------------------------------------------------


def writer(url: str, max_shard_size: int | None = None) -> SafetensorsWriter:
    return SafetensorsWriter(split(url)[1], max_shard_size)


@dataclass
class SafetensorsWriter:
    """Lay files out as the reference does, byte for byte: by dtype, widest first, then by name.

    Metadata is kept; if the source has no `format`, it is set to "pt", because transformers refuses files without it.
    Tied names are all written in full, because the format has no aliases.

    base: the name of a single file, relative to the folder of the destination. beside: small files in the same folder,
    by name, of which `copied` are the urls.
    """

    base: str
    max_shard_size: int | None = None
    placed: Placement | None = None
    beside: Mapping[str, bytes] = field(default_factory=dict)
    copied: Sequence[str] = ()
    notes: Sequence[Note] = ()

    def cannot_hold(self, tensor: Tensor) -> str:
        if tensor.dtype.safetensors not in RANK:
            return f"safetensors has no dtype {tensor.dtype}"
        if tensor.dtype.safetensors == "F4" and not tensor.shape:
            return f"safetensors counts the pairs of {tensor.dtype} along the last axis, and a scalar has none"
        if tensor.name == "__metadata__":
            return "safetensors reserves this name for its metadata"
        return "" if is_text(tensor.name) else "the name is not valid Unicode"

    def place(self, checkpoint: Checkpoint) -> Placement:
        refuse_unheld(self, checkpoint, "safetensors")
        placed = self.placed = shard_index.place(self.base, SUFFIX, checkpoint, self.max_shard_size, _lay_out)
        folder = self.base.rpartition("/")[0]
        small = [Patch(f"{folder}/{name}", 0, raw) for name, raw in self.beside.items()]
        files = [*(OutputFile(p.file, len(p.data), shared=True) for p in small), *placed.files]
        patches = [*small, *placed.patches]
        return placed._replace(files=files, patches=patches, notes=self.notes, copied=self.copied)

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        """The metadata, if there is any: in the header of the only file, or in the index."""
        if not metadata or self.placed is None:
            return ()
        if len(self.placed.files) > 1:
            return [shard_index.index(self.base, self.placed.slots, metadata)]
        return [Patch(self.base, 8, _beginning(metadata).encode())]


def _lay_out(file: str, checkpoint: Checkpoint) -> Placement:
    """The header and slots of one file."""
    ranges, entries, at = list[tuple[str, int, int]](), [_beginning(checkpoint.metadata)], 0
    for t in sorted(checkpoint.values(), key=lambda t: (-RANK[t.dtype.safetensors], t.name)):
        name, spelling, size = t.name, t.dtype.safetensors, t.nbytes
        shape = (*t.shape[:-1], t.shape[-1] * 2) if spelling == "F4" else t.shape
        sizes = ",".join(map(str, shape))
        entries.append(
            f'{encode_basestring(name)}:{{"dtype":"{spelling}","shape":[{sizes}],"data_offsets":[{at},{at + size}]}}'
        )
        ranges.append((name, at, size))
        at += size
    raw = (",".join(entries) + "}").encode()
    raw += b" " * (-len(raw) % 8)
    if len(raw) > MAX_HEADER:
        what = f"the header would have {len(raw)} bytes; safetensors allows at most {MAX_HEADER}"
        raise Unrepresentable(f"{what}: divide it, as max_shard_size= does")
    start = 8 + len(raw)
    slots = {name: Slot(file, start + begin, size) for name, begin, size in ranges}
    return Placement([OutputFile(file, start + at)], slots, [Patch(file, 0, len(raw).to_bytes(8, "little") + raw)])


def _beginning(metadata: Mapping[str, str]) -> str:
    """The header up to its first tensor."""
    return '{"__metadata__":' + json.dumps({"format": "pt", **metadata}, ensure_ascii=False, separators=(",", ":"))


MAX_PROVED = 50_000_000  # bytes of headers up to which the reference implementation parses them as well


def prove(found: Checkpoint) -> None:
    """Open the files of a checkpoint with the reference; CorruptCheckpoint if it refuses one or lists other names.

    Only local files are checked, up to `MAX_PROVED` bytes of headers, but always the first one: 200,000 tensors have
    24 MB of headers, which take the reference 0.6 s and 180 MB.
    """
    import safetensors

    urls = [url for url in found.urls if not is_remote(url) and not url.endswith(shard_index.SUFFIX)]
    listed, read = set[str](), 0
    for url in urls:
        with Reader(url) as f:
            read += int.from_bytes(f.read(0, 8), "little")
        if read > MAX_PROVED and url != urls[0]:
            return
        try:
            with safetensors.safe_open(local(url), "numpy") as theirs:
                listed.update(theirs.keys())
        except safetensors.SafetensorError as e:
            version = f"safetensors {safetensors.__version__}"
            raise CorruptCheckpoint(f"the reference implementation ({version}) refuses it: {e}", url=url) from e
    if urls and listed != set(found.tensors):
        raise CorruptCheckpoint("the reference implementation lists other names", url=urls[0])
