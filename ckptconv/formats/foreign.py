"""Files that are often mistaken for a checkpoint, recognised by their first bytes.

    1f 8b              gzip: may contain a checkpoint
    "GGUF", "TFL3"     models of other programs
    50 4b 03 04        a zip; 80 02 to 80 05: a pickle. Complete ones with tensors are claimed by a format

Specifications: RFC 1952 (gzip), RFC 8878 (zstd), ggml's docs/gguf.md, TensorFlow Lite's schema.fbs, onnx.proto.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ..messages import printable
from ..storage.files import Seen, names, split

MAX_NAMES = 8  # names of files in a message
REPOSITORY = re.compile(r"[A-Za-z0-9][\w-]*/[\w.-]+|[a-z0-9]+(-[a-z0-9]+)+")  # google/bert, bert-base-uncased
CLASS = re.compile(r"([a-z_]\w*(?:\.[a-z_]\w*)*)\.([A-Z]\w*)")  # digits.Digits
UNWRITTEN = (".onnx", ".gguf", ".ggml", ".tflite", ".pte", ".mlmodel", ".mlpackage", ".pb", ".pbtxt")
RANK = re.compile(r"(consolidated\.|mp_rank_)\d+(_model_states\.pt|\.pth|\.safetensors|)")
PACKED = "is compressed with {}; unpack it first"
BEGINNINGS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"version https://git-lfs", "is a git-lfs pointer, not the file itself; run `git lfs pull` in its repository"),
    (0, b"GGUF", "is a GGUF file, which is not read; take the safetensors that it was made from"),
    (4, b"ET12", "is an ExecuTorch program (.pte), which is not read; take the checkpoint that it was made from"),
    (4, b"TFL3", "is a TensorFlow Lite model, which is not read; take the SavedModel that it was made from"),
    (0, b"\x1f\x8b", PACKED.format("gzip")),
    (0, b"\x28\xb5\x2f\xfd", PACKED.format("zstd")),
    (0, b"\xfd7zXZ\0", PACKED.format("xz")),
    (0, b"\x04\x22\x4d\x18", PACKED.format("lz4")),
    *((0, bytes([0x78, level]), PACKED.format("zlib (by joblib?)")) for level in (0x01, 0x5E, 0x9C, 0xDA)),
    (0, b"BZh", PACKED.format("bzip2")),
    (257, b"ustar", "is a tar; unpack it first"),
)


def missing(url: str) -> str:
    """A suggestion for a path that does not exist, as the end of a message, or ''."""
    if not url:
        return ": the path is empty"
    if any(c in url for c in "*?["):
        return "; `ckptconv zoo` takes globs, other verbs take paths"
    if url.startswith("~"):
        return f"; ~ stands for itself here, did you mean {os.path.expanduser(url)}?"
    if "\\" in url:
        return "; folders are separated by /"
    if found := CLASS.fullmatch(url):
        return f"; `ckptconv match` takes a class of Python as {found[1]}:{found[2]}"
    if os.path.isfile(f"{url.rstrip(':')}.py"):
        return f"; `ckptconv match` takes {_callable(os.path.basename(url.rstrip(':')))}"
    if REPOSITORY.fullmatch(url):
        return f"; a repository of the Hugging Face Hub is hf://{url}"
    return ""


def _callable(module: str) -> str:
    name = printable(module)
    return f"a class or function of {name}.py as {name}:NAME"


def known(seen: Seen) -> str:
    """A description of a file that is not a checkpoint, whatever its name, or ''."""
    head = seen.head[:512]
    for at, magic, what in BEGINNINGS:
        if head.startswith(magic, at):
            return what
    if head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        return "is an HTML page, not a checkpoint; the download failed (a login or error page?)"
    if seen.base.lower().endswith(".json") and head.lstrip()[:1] == b"{":
        return "is JSON that lists no tensors; give the file of the weights, or the folder"
    if seen.base.endswith(".py"):
        return f"is a Python file; `ckptconv match` takes {_callable(seen.base[:-3])}"
    if seen.base.lower().endswith(".onnx"):
        return "is an ONNX model by its name, which is not read; take the checkpoint that it was made from"
    return ""


def folder(files: Sequence[str], checkpoints: Sequence[str]) -> str:
    """A description of a folder that is not a checkpoint itself; `checkpoints` are those of its names that are some."""
    if not files:
        return "holds no checkpoint: it is empty"
    if deepspeed := _deepspeed(files):
        return deepspeed
    if checkpoints:
        return f"is not a checkpoint itself; give one in it ({_some(checkpoints)}), or convert all with `ckptconv zoo`"
    return f"holds no checkpoint itself; name one of what it holds ({_some(files)}), or find all with `ckptconv zoo`"


def one_of(url: str) -> int:
    """How many parts of a model there are, if the file or its folder is one of a parallel run's; otherwise 1."""
    for path in (url, split(url)[0]):
        folder, base = split(path)
        if m := RANK.fullmatch(base):
            alike = [n for n in names(folder) if (o := RANK.fullmatch(n)) and (o[1], o[2]) == (m[1], m[2])]
            return max(1, len(alike))
    return 1


def _deepspeed(files: Sequence[str]) -> str:
    """Which file of a DeepSpeed checkpoint to use: the model's file of the newest step."""
    states = sorted(n for n in files if n.startswith("mp_rank_") and n.endswith("_model_states.pt"))
    steps = sorted((n for n in files if n.startswith("global_step") and n[11:].isdigit()), key=lambda n: int(n[11:]))
    if not states and not steps:
        return ""
    model = states[0] if states else f"{steps[-1]}/mp_rank_00_model_states.pt"
    return f"is a DeepSpeed checkpoint; its weights are in {model} (of ZeRO-3 what its zero_to_fp32.py writes)"


def packed(members: Sequence[str]) -> str:
    """A description of a zip that is not a checkpoint itself."""
    return f"is a zip of other files, which can be checkpoints once unpacked: {_some(members)}"


def _some(files: Sequence[str]) -> str:
    return ", ".join(map(printable, files[:MAX_NAMES])) + (", ..." if len(files) > MAX_NAMES else "")


def damaged(seen: Seen) -> str:
    """A description of a truncated file by its beginning, or ''."""
    if seen.head.startswith(b"PK\3\4") and not seen.members:
        return "begins as a zip but has no directory at its end (truncated?)"
    if seen.head[:1] == b"\x80" and seen.head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        return "begins as a pickle but does not end as one (truncated?)"
    return ""


def other(seen: Seen) -> str:
    """A description of a file that no format claims, not even by its name, or ''."""
    if seen.members:
        return packed(list(seen.members))
    if seen.head.startswith((b"(dp", b"(lp")):
        return "is a pickle of protocol 0, which is not read; write it with protocol 2 or later"
    return ""
