"""What families have in common: records, ways to lay them out as files, and reading what was laid out.

    { u32le, a, u32le, b } ...    records; lengths that reach past the end are cut

Ways that put records under valid checksums (a table's blocks, a zip's members) are there because mutation alone does
not get past those.
"""

from __future__ import annotations

import importlib
import io
import re
import struct
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

from ckptconv.formats.table import Reading

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "fixtures" / "make"))
import hostile  # noqa: E402

FIXTURES, CONVERTERS = ROOT / "fixtures", ROOT / "converters"
LARGEST = 1 << 17  # bytes of an input
READ = 1 << 20  # bytes of a tensor that is read
OPTIONS = (Reading(), Reading(opaque=True), Reading(salvage=True), Reading(densify=True))

Record = tuple[bytes, bytes]
Laid = tuple[Path, "str | None"]


class Way(NamedTuple):
    """Write files from the bytes into a folder; returns (path to open, format or None: whatever is detected)."""

    lay: Callable[[bytes, Path], Laid]
    seeds: Callable[[], Iterator[bytes]]
    packed: bool = False  # the bytes are records
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # what surrounds the reading


def records(data: bytes) -> list[Record]:
    out, at = list[Record](), 0
    while at + 4 <= len(data):
        (n,) = struct.unpack_from("<I", data, at)
        a, at = data[at + 4 : at + 4 + n], at + 4 + n
        if at + 4 > len(data):
            n = 0
        else:
            (n,) = struct.unpack_from("<I", data, at)
        out.append((a, data[at + 4 : at + 4 + n]))
        at += 4 + n
    return out


def packed(pairs: Iterable[Record]) -> bytes:
    return b"".join(struct.pack("<I", len(a)) + a + struct.pack("<I", len(b)) + b for a, b in pairs)


def zipped(members: Sequence[Record]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        for name, data in members[:64]:
            info = zipfile.ZipInfo(name.decode("utf-8", "replace") or "x")
            z.writestr(info, data)
    return out.getvalue()


def members(path: Path) -> Iterator[bytes]:
    """The members of a zip as records, if Python's reader takes it."""
    refused = (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, UnicodeError, EOFError)
    with suppress(*refused), zipfile.ZipFile(path) as z:
        if sum(i.file_size for i in z.infolist()) <= LARGEST:
            yield packed([(i.filename.encode(), z.read(i)) for i in z.infolist()])


def globbed(patterns: Iterable[str]) -> Iterator[Path]:
    return (p for s in patterns for p in fixtures(s) if p.is_file())


def fixtures(pattern: str) -> list[Path]:
    """The fixtures that a pattern finds; those below `hostile/` are made first."""
    if pattern.startswith("hostile/"):
        hostile.files(pattern.split("/")[1])
        return sorted(hostile.HOME.parent.glob(pattern))
    return sorted(FIXTURES.glob(pattern))


def in_folder(home: Path) -> bytes:
    """All files of a folder as records: their names and contents."""
    files = sorted(p for p in home.rglob("*") if p.is_file() and not p.is_symlink())
    return packed([(p.relative_to(home).as_posix().encode(), p.read_bytes()) for p in files])


# --- ways -------------------------------------------------------------------------------------------------------


def raw(name: str, format: str | None, *seeds: str) -> Way:
    """The bytes are the file."""

    def lay(data: bytes, folder: Path) -> Laid:
        (folder / name).write_bytes(data)
        return folder / name, format

    return Way(lay, lambda: (p.read_bytes() for p in globbed(seeds)))


def several(names: Sequence[str], open: str, format: str | None, seeds: Callable[[], Iterable[Sequence[bytes]]]) -> Way:
    """The first record's b is the first file, and so on; their a is not used."""

    def lay(data: bytes, folder: Path) -> Laid:
        for name, (_, body) in zip(names, records(data), strict=False):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(body)
        return folder / open, format

    return Way(lay, lambda: (packed([(b"", body) for body in s]) for s in seeds()), packed=True)


def beside(patterns: Sequence[str], *suffixes: str) -> Callable[[], Iterable[Sequence[bytes]]]:
    """Contents of the files that a pattern finds, and of those of the same stem with each suffix."""

    def found() -> Iterator[Sequence[bytes]]:
        for path in globbed(patterns):
            others = [path.with_suffix(s) for s in suffixes]
            yield [path.read_bytes(), *(o.read_bytes() if o.exists() else b"" for o in others)]

    return found


def folder(format: str | None, *seeds: str, any_name: bool = False) -> Way:
    """Records are the files of a folder: names, without anything that leaves it, and contents."""
    odd = re.compile(rb"[/\0]" if any_name else rb"[^\w.%/-]")

    def lay(data: bytes, home: Path) -> Laid:
        home = home / "x"
        home.mkdir()
        for name, body in records(data)[:64]:
            parts = [odd.sub(b"_", p)[:200].decode("utf-8", "surrogateescape") for p in name.split(b"/")[:3]]
            path = home.joinpath(*(p for p in parts if p not in ("", ".", "..")))
            with suppress(OSError):  # a file where a folder is, or the other way round
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(body)
        return home, format

    return Way(lay, lambda: (in_folder(p) for s in seeds for p in fixtures(s) if p.is_dir()), packed=True)


def archive(name: str, format: str | None, *seeds: str) -> Way:
    """Records are the members of a sound zip."""

    def lay(data: bytes, folder: Path) -> Laid:
        (folder / name).write_bytes(zipped(records(data)))
        return folder / name, format

    return Way(lay, lambda: (m for p in globbed(seeds) for m in members(p)), packed=True)


# --- families ----------------------------------------------------------------------------------------------------

JSON = b'"weight_map" "metadata" "dtype" "shape" "data_offsets" "__metadata__" -1 0.5 9223372036854775808 null {} []'
ZIP = rb" PK\x01\x02 PK\x03\x04 PK\x05\x06"


class Family(NamedTuple):
    """Inputs of one kind, and what they become."""

    attempt: Callable[[bytes, Path], int]  # lay one out in an empty folder and read it: how many tensors (rows, rules)
    seeds: Callable[[], Iterator[bytes]]
    spelled: bytes  # words that mean something to the readers, spelled in the middle of their code
    constants: Sequence[str] = ()  # and their constants, by module below ckptconv.formats and name
    ways: Sequence[Way] = ()


def read(path: Path, format: str | None, how: Reading) -> int:
    """Open, and read tensors of a reasonable size."""
    from ckptconv.formats.detect import open_checkpoint

    found, left = open_checkpoint(str(path), how, format=format), 4 * READ
    for tensor in found.values():
        if tensor.nbytes <= min(READ, left):
            left -= tensor.nbytes
            tensor.numpy()
    return len(found)


def of_ways(
    ways: Sequence[Way],
    spelled: bytes,
    constants: Sequence[str],
    read: Callable[[Path, str | None, Reading], int] = read,
    options: Sequence[Reading] = OPTIONS,
) -> Family:
    """Make the family whose first byte says which way, modulo their number; divided by it, which options of `open`."""

    def seeds() -> Iterator[bytes]:
        """All files as they are, then again with each option."""
        for option in range(len(options)):
            for i, way in enumerate(ways):
                yield from (bytes([i + option * len(ways)]) + s for s in way.seeds() if len(s) < LARGEST)

    def attempt(data: bytes, home: Path) -> int:
        more, which = divmod(data[0], len(ways))
        path, format = ways[which].lay(data[1:], home)
        with ways[which].around():
            return read(path, format, options[more % len(options)])

    return Family(attempt, seeds, spelled, constants, ways)


def words(family: Family) -> Iterator[bytes]:
    """Tokens for libFuzzer's dictionary."""
    yield from family.spelled.decode("unicode_escape").encode("latin-1").split(b" ")
    for path in family.constants:
        module, _, name = path.rpartition(".")
        value = getattr(importlib.import_module("ckptconv.formats." + module), name)
        for one in [value] if isinstance(value, str | bytes) else value:
            if isinstance(one, tuple):  # a global of a pickle, in its two spellings
                yield "c{}\n{}\n".format(*one).encode()
                yield from (b"\x8c" + bytes([len(w)]) + w.encode() for w in one)
            else:
                yield one if isinstance(one, bytes) else str(one).encode()


def dictionary(family: Family) -> str:
    """The words as libFuzzer reads them."""
    found = [w for w in dict.fromkeys(words(family)) if 0 < len(w) < 64]
    return "".join('"' + "".join(f"\\x{b:02x}" for b in w) + '"\n' for w in found)
