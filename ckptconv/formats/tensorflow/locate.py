"""Find the checkpoint at a path: a prefix, one of its files, a directory, or the `checkpoint` state file.

    P.index  P.data-00000-of-00002  P.data-00001-of-00002  P.meta       a V2 checkpoint with the prefix P
    P  or  P-00000-of-00003 ...                                         a V1 checkpoint
    checkpoint                                                          text: which of several is the newest

The state file's paths are often absolute and from another machine: only files beside it are considered.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ...checkpoint import Note
from ...errors import AmbiguousFormat, CorruptCheckpoint, StorageError, UnknownFormat, UnsafeCheckpoint
from ...messages import brief, listing, many
from ...storage.files import Seen, exists, is_dir, join, names, read_all, sibling, split
from ...storage.paths import beside

DATA = re.compile(r"(.*)\.data-(\d{5})-of-(\d{5})", re.DOTALL)
STATE_FILE = "checkpoint"  # beside the checkpoints of a folder, which share it
STATE = b"model_checkpoint_path"
STATE_LIMIT = 1 << 24
MAX_PATH = 4096


class Location(NamedTuple):
    """An index file (V2) or table files (V1), and notes on how it was chosen."""

    index_file: str  # '' for V1
    tables: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


def prefix_of(url: str) -> str:
    """Strip the suffix of any of a V2 checkpoint's files."""
    data = DATA.fullmatch(url)
    return data[1] if data else url.removesuffix(".index") if url.endswith(".index") else url.removesuffix(".meta")


def prefix_for(url: str) -> str:
    """The prefix that a name stands for: that of the file of this name if there is one, otherwise the name itself."""
    prefix = prefix_of(url)
    if prefix != url and ((exists(url) and exists(prefix + ".index")) or not exists(url + ".index")):
        return prefix
    return url


def find(url: str) -> Location:
    """Locate the checkpoint at `url`. StorageError lists the files found instead."""
    if is_dir(url):
        return _in_folder(url, url)
    folder, base = split(url)
    if base == STATE_FILE and is_state(url):
        return _in_folder(folder, url)
    prefix = prefix_for(url)
    if exists(prefix + ".index"):
        return Location(beside(url, prefix + ".index"))
    base = split(prefix)[1]
    present = names(folder)
    near = [n for n in present if n.startswith(base)]
    if any(".tempstate" in n or "_temp" in n for n in near):
        what = "is incomplete: saving was interrupted, and there is no index, only parts: "
    else:
        what = f"there is no index {base}.index; the folder holds: "
    raise StorageError(what + ", ".join((near or present)[:8]), url=prefix)


def is_state(url: str, given: str = "") -> bool:
    """Whether a file is the text file that lists checkpoints (other programs also use the name `checkpoint`).

    UnsafeCheckpoint if it is a link out of its folder, unless it is itself what was given.
    """
    return exists(url) and not is_dir(url) and begins_state(Seen(beside(given or url, url)).head)


def begins_state(head: bytes) -> bool:
    """Whether these are the first bytes of such a file."""
    return head.lstrip().startswith((STATE, b"all_" + STATE))


def _in_folder(folder: str, given: str) -> Location:
    """The newest checkpoint according to the state file, or the only checkpoint in the folder."""
    present = sorted((n.removesuffix(".index") for n in names(folder) if n.endswith(".index")), key=_by_number)
    state = join(folder, STATE_FILE)
    note: tuple[Note, ...] = ()
    if is_state(state, given):
        path = _newest(state)
        base = re.split(r"[/\\]", path)[-1]  # empty if the files are called .index and so on
        if path and (location := _named(folder, path)):
            return location
        what = f"the state file names {brief(base)!r}, which is missing"
        if len(present) != 1:
            what = f"{what}; the folder holds {many(len(present), 'checkpoint')}:\n{listing(present)}"
            raise StorageError(what, url=state)
        note = (Note("assumed", f"{what}; {present[0]!r} is read instead"),)
    if len(present) == 1:
        return Location(sibling(join(folder, "."), present[0] + ".index"), (), note)
    if present:
        raise AmbiguousFormat(f"holds {len(present)} checkpoints; give one of them:\n{listing(present)}", url=folder)
    if exists(folder.rstrip("/") + ".index"):  # a folder with the name of the prefix beside it
        return Location(beside(given, folder.rstrip("/") + ".index"))
    raise UnknownFormat("holds no checkpoint: there is no file *.index", url=folder)


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(p), "") if p.isdigit() and p.isascii() else (-1, p) for p in re.split(r"(\d+)", name)]


def _newest(state: str) -> str:
    from google.protobuf import text_format

    from . import messages_pb2 as pb

    try:
        text = read_all(state, STATE_LIMIT).decode()
        parsed = text_format.Parse(text, pb.CheckpointState(), allow_unknown_field=True)
    except (text_format.ParseError, ValueError, RecursionError) as e:
        raise CorruptCheckpoint(f"the state file is not a text message ({brief(str(e))})", url=state) from e
    paths = [parsed.model_checkpoint_path, *parsed.all_model_checkpoint_paths]
    return str(next((p for p in paths if p), ""))


def _named(folder: str, path: str) -> Location | None:
    """The checkpoint that a path in a state file names: an index, or tables, whose common name has '?' for numbers."""
    if "\0" in path or len(path) > MAX_PATH:
        raise CorruptCheckpoint(f"the state file names {brief(path)!r}, which is not a path", url=folder)
    words = re.split(r"[/\\]", path)
    if ".." in words and not path.startswith(("/", "\\")) and ":" not in path:
        raise UnsafeCheckpoint(f"the state file names {path!r}, which leaves its folder", url=folder)
    present, base = names(folder), words[-1]
    if base + ".index" in present:
        return Location(sibling(join(folder, "."), base + ".index"))
    alike = [n for n in present if len(n) == len(base) and all(p in ("?", c) for p, c in zip(base, n, strict=True))]
    tables = tuple(sibling(join(folder, "."), n) for n in alike if not is_dir(join(folder, n)))
    return Location("", tables) if tables else None
