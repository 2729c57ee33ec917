"""Orbax folders that attack: databases whose nodes lie, links, bombs, cycles, keys and grids without bound.

Each is made here, because its parts are nodes under sound checksums. Every one is refused in words, quickly, and
without reading another folder.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest
from kit import refused

import ckptconv
from ckptconv.formats.orbax.ocdbt import MANIFEST_MAGIC, NODE_MAGIC
from ckptconv.formats.orbax.write import _enveloped
from ckptconv.formats.tensorflow.table import varint
from ckptconv.storage.checksum import crc

FILE = b"d/x"
ZARRAY = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<f4", "compressor": None, "fill_value": None,
          "order": "C", "filters": None}  # fmt: skip
KEYS = 2**40


def files(path: bytes = FILE) -> bytes:
    return varint(1) + varint(len(path)) + varint(0) + path


def packed(magic: int, body: bytes) -> bytes:
    """An envelope of zstd."""
    body = bytes(cramjam.zstd.compress(body, level=19))
    raw = magic.to_bytes(4, "big") + (18 + len(body)).to_bytes(8, "little") + b"\0\1" + body
    return raw + crc("crc32c", raw).to_bytes(4, "little")


def manifest(start: int, size: int, height: int = 0, keys: int = KEYS, path: bytes = FILE) -> bytes:
    config = bytes(16) + varint(0) + varint(100) + varint(10**8) + bytes([4, 0])
    root = [varint(1), varint(1), bytes([height]), varint(0), *map(varint, (start, size, keys, size, 0)), bytes(8)]
    return _enveloped(MANIFEST_MAGIC, b"".join((config, files(path), *root, varint(0))))


def leaf(pairs: dict[bytes, bytes], path: bytes = FILE) -> bytes:
    """A node that holds its values, each key whole."""
    n = len(pairs)
    return b"".join((
        b"\0", files(path), varint(n), bytes(n - 1), *(varint(len(k)) for k in pairs), *pairs,
        *(varint(len(v)) for v in pairs.values()), bytes(n), *pairs.values(),
    ))  # fmt: skip


def far(key: bytes, start: int, size: int, path: bytes = FILE) -> bytes:
    """A node of one value, which lies in a file."""
    return b"".join((
        b"\0", files(path), varint(1), varint(len(key)), key, varint(size), b"\1", b"\0", varint(start)
    ))  # fmt: skip


def interior(height: int, children: list[tuple[int, int]], *keys: bytes, shared: int = 0) -> bytes:
    """A node of nodes, each with the first key that it may have, whole."""
    n, keys = len(children), keys or (b"",) * len(children)
    return b"".join((
        bytes([height]), files(), varint(n), bytes(n - 1), *(varint(len(k)) for k in keys), varint(shared) * n, *keys,
        bytes(n), *(varint(at) for at, _ in children), *(varint(size) for _, size in children),
        varint(KEYS) * n, bytes(2 * n),
    ))  # fmt: skip


def database(folder: Path, *nodes: bytes, height: int = 0, magic: bytes = b"", path: bytes = FILE) -> Path:
    """Nodes (enveloped already), the root first."""
    home = folder / "m"
    (home / "d").mkdir(parents=True)
    (home / "d" / "x").write_bytes(b"".join(nodes))
    (home / "manifest.ocdbt").write_bytes(magic or manifest(0, len(nodes[0]), height, path=path))
    return home


def sound(pairs: dict[bytes, bytes]) -> bytes:
    return _enveloped(NODE_MAGIC, leaf(pairs))


ARRAY = {b"w/.zarray": json.dumps(ZARRAY).encode(), b"w/0": bytes(16)}


def test_the_parts_of_the_attacks_make_a_sound_database(tmp_path: Path) -> None:
    assert ckptconv.open(database(tmp_path, sound(ARRAY)))["w"].numpy().tolist() == [0] * 4
    shared = below(b"w/", {name.removeprefix(b"w/"): value for name, value in ARRAY.items()})
    for i, make in enumerate((shared, divided(b"", b"w/0"), divided(b"w/.zarray", b"w/.zb"))):
        assert ckptconv.open(make(tmp_path / str(i)))["w"].numpy().tolist() == [0] * 4


def with_array(**said: Any) -> Callable[[Path], Path]:
    chunk = said.pop("data", bytes(16))
    return lambda f: database(f, sound({**ARRAY, b"w/.zarray": json.dumps(ZARRAY | said).encode(), b"w/0": chunk}))


def zarr3(folder: Path, codecs: list[Any], chunk: bytes, shape: int = 4) -> Path:
    said = {"zarr_format": 3, "node_type": "array", "shape": [shape], "data_type": "uint8", "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [shape]}},
            "chunk_key_encoding": {"name": "default"}, "codecs": codecs}  # fmt: skip
    return database(folder, sound({b"w/c/0": chunk, b"w/zarr.json": json.dumps(said).encode()}))


def endless_tower(folder: Path) -> Path:
    """A node of few stored bytes with two hundred thousand children, below which there could be 58 levels more."""
    return database(folder, packed(NODE_MAGIC, interior(59, [(2**30, 60)] * 200_000)), height=59)


def itself(folder: Path) -> Path:
    size = len(_enveloped(NODE_MAGIC, interior(1, [(0, 60)])))
    return database(folder, _enveloped(NODE_MAGIC, interior(1, [(0, size)])), height=1)


def twice(folder: Path) -> Path:
    below = sound(ARRAY)
    size = len(_enveloped(NODE_MAGIC, interior(1, [(100, len(below))] * 2, b"", b"x")))
    return database(folder, _enveloped(NODE_MAGIC, interior(1, [(size, len(below))] * 2, b"", b"x")), below, height=1)


def above(folder: Path, data: bytes, places: list[tuple[int, int]], *keys: bytes) -> Path:
    """A root, and behind it the nodes that lie at these places of what follows."""
    root = b""
    for _ in range(3):  # until the root is as long as its numbers take
        root = _enveloped(NODE_MAGIC, interior(1, [(len(root) + at, size) for at, size in places], *keys))
    return database(folder, root, data, height=1)


def within(folder: Path) -> Path:
    """A leaf that is the value of another."""
    inner = sound(ARRAY)
    outer = sound({b"a": inner})
    return above(folder, outer, [(0, len(outer)), (outer.index(inner), len(inner))], b"a", b"w")


def shared_value(folder: Path) -> Path:
    """Two keys whose value is one range of the file."""
    one, other = (_enveloped(NODE_MAGIC, far(key, 0, 16)) for key in (b"v/0", b"w/0"))
    return above(folder, one + other, [(0, len(one)), (len(one), len(other))], b"v", b"w")


def divided(*keys: bytes) -> Callable[[Path], Path]:
    """An array in two leaves, to which these keys lead."""
    one, other = (sound({key: value}) for key, value in ARRAY.items())
    places = [(0, len(one)), (len(one), len(other))]
    return lambda folder: above(folder, one + other, places, *keys)


def below(prefix: bytes, pairs: dict[bytes, bytes]) -> Callable[[Path], Path]:
    """A leaf all of whose keys begin with what the root says."""

    def make(folder: Path) -> Path:
        inner = sound(pairs)
        size = len(_enveloped(NODE_MAGIC, interior(1, [(len(prefix) + 40, len(inner))], prefix, shared=len(prefix))))
        root = _enveloped(NODE_MAGIC, interior(1, [(size, len(inner))], prefix, shared=len(prefix)))
        return database(folder, root, inner, height=1)

    return make


def many_slashes(folder: Path) -> Path:
    return database(folder, sound({b"/" * 60_000 + b"%05d" % i: b"" for i in range(300)}))


def linked_manifest(folder: Path) -> Path:
    home = database(folder, sound(ARRAY))
    os.rename(home / "manifest.ocdbt", folder / "outside")
    (home / "manifest.ocdbt").symlink_to("../outside")
    return home


def linked_tree(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        home = database(folder, sound(ARRAY))
        (folder / "outside").write_text('{"tree_metadata": {}}')
        (home / name).symlink_to("../outside")
        return home

    return make


def with_tree(text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        home = database(folder, sound(ARRAY))
        (home / "_METADATA").write_text(text)
        return home

    return make


def linked_data(folder: Path) -> Path:
    home = database(folder, sound(ARRAY))
    os.rename(home / "d", folder / "outside")
    (home / "d").symlink_to("../outside")
    return home


def linked_chunk(folder: Path) -> Path:
    (folder / "m" / "w").mkdir(parents=True)
    (folder / "m" / "w" / ".zarray").write_text(json.dumps(ZARRAY))
    (folder / "secret").write_bytes(bytes(16))
    (folder / "m" / "w" / "0").symlink_to("../../secret")
    return folder / "m"


def linked(name: str, to: str) -> Callable[[Path], Path]:
    """Two arrays in chunks of one element, beside whose first three chunks a link has this name."""

    def make(folder: Path) -> Path:
        for i in range(6):
            (folder / "m" / "ab"[i // 3] / f"{i % 3}").mkdir(parents=True)
            (folder / "m" / "ab"[i // 3] / f"{i % 3}" / "0").write_bytes(b"\1\2\3\4")
        about = json.dumps(ZARRAY | {"shape": [4, 1], "chunks": [1, 1], "dimension_separator": "/"})
        for array in "ab":
            (folder / "m" / array / ".zarray").write_text(about)
        (folder / "m" / name).parent.mkdir(exist_ok=True)
        (folder / "m" / name).symlink_to(to)
        return folder / "m"

    return make


def linked_step(folder: Path) -> Path:
    home = database(folder, sound(ARRAY))
    (folder / "run").mkdir()
    (folder / "run" / "7").symlink_to(home)
    return folder / "run"


def led_up(folder: Path) -> Path:
    (folder / "secret").write_bytes(bytes(16))
    return database(folder, _enveloped(NODE_MAGIC, far(b"w/0", 0, 16, b"../../secret")))


def value_beyond(folder: Path) -> Path:
    return database(folder, _enveloped(NODE_MAGIC, far(b"w/0", 2**63, 2**63)))


def manifest_of_bombs(folder: Path) -> Path:
    return database(folder, b"", magic=packed(MANIFEST_MAGIC, bytes(2**27)))


SHARDED = {"name": "sharding_indexed", "configuration": {
    "chunk_shape": [2], "codecs": [{"name": "bytes"}], "index_codecs": [{"name": "bytes"}]}}  # fmt: skip


ATTACKS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a file table leads up to a sound chunk": (led_up, "path|names|folder"),
    "a manifest leads up": (lambda f: database(f, sound(ARRAY), path=b"../m/d/x"), "path|names|folder"),
    "an absolute path": (lambda f: database(f, sound(ARRAY), path=b"/etc/passwd"), "path|names|folder"),
    "a path of a thousand folders": (lambda f: database(f, sound(ARRAY), path=b"d/" * 999 + b"x"), "folders deep"),
    "a path that is not UTF-8": (lambda f: database(f, sound(ARRAY), path=b"d/\xff"), "not UTF-8"),
    "a path with a NUL": (lambda f: database(f, sound(ARRAY), path=b"d/x\0"), "path|names|NUL|no such file"),
    "the manifest is a link": (linked_manifest, "link|outside|leaves"),
    "_METADATA is a link": (linked_tree("_METADATA"), "link|outside|leaves"),
    "_METADATA is a list": (with_tree("[]"), "has no tree_metadata"),
    "checkpoint is a link": (linked_tree("checkpoint"), "link|outside|leaves"),
    "the data folder is a link": (linked_data, "link|outside|leaves"),
    "a chunk is a link": (linked_chunk, "link|outside|leaves"),
    "a step is a link": (linked_step, "link|outside|leaves"),
    "a folder of chunks is a link": (linked("a/3", "../b/0"), "holds links to folders .*:\n  3$"),
    "an array is a link": (linked("c", "b"), "holds links to folders .*:\n  c$"),
    "a chunk is a link to nothing": (linked("a/3/0", "../2/1"), "holds links to folders or to nothing.*:\n  0$"),
    "a chunk is a link to itself": (linked("a/3/0", "0"), "holds links to folders or to nothing.*:\n  0$"),
    "the root is one array": (
        lambda f: database(f, sound({key.removeprefix(b"w/"): value for key, value in ARRAY.items()})),
        "its root is one array, which has no name",
    ),
    "a node is its own child": (itself, "referred to twice"),
    "a node has two parents": (twice, "referred to twice"),
    "a value has two keys": (shared_value, "v/0 and w/0 share the byte 0"),
    "a node lies within another": (within, "the node at byte .* and the node at byte .* share the byte"),
    "a key before the one that leads to its node": (divided(b"w", b"w/00"), "'w/0'.* or where none leads to it"),
    "a key behind the one that leads to the next node": (divided(b"w", b"w/."), "'w/.zarray'.* or where none leads"),
    "a node of nodes begins before itself": (divided(b"w/0", b"w"), "'w/.zarray'.* or where none leads"),
    "towers of children": (endless_tower, "entries in the database's nodes repeat without bound"),
    "a node of a terabyte": (lambda f: database(f, b"", magic=manifest(0, 2**40)), "claims"),
    "a node of no bytes": (lambda f: database(f, b"", magic=manifest(0, 0)), "no node of a database"),
    "a height of 255": (lambda f: database(f, sound(ARRAY), height=255), "height"),
    "a varint without end": (lambda f: database(f, _enveloped(NODE_MAGIC, b"\0" + b"\xff" * 99)), "more than 64 bits"),
    "a count beyond the node": (lambda f: database(f, _enveloped(NODE_MAGIC, b"\0" + varint(2**60))), "announces"),
    "the manifest unpacks to 128 MB": (manifest_of_bombs, "does not unpack"),
    "a node unpacks to 128 MB": (lambda f: database(f, packed(NODE_MAGIC, bytes(2**27))), "does not unpack"),
    "keys of sixty thousand slashes": (many_slashes, "parts"),
    "a key longer than one may be, in two parts": (below(b"a" * 40_000, {b"b" * 25_536: b""}), "a key of 65536 bytes"),
    "a value beyond 2^64": (value_beyond, "truncated"),
    "an absent grid of 2^60 chunks": (with_array(shape=[2**60], chunks=[1], data=bytes(4)), "absent"),
    "a chunk far larger than its array": (with_array(chunks=[2**62]), "overflow|too many|has 16 bytes|elements"),
    "sixty-five axes": (with_array(shape=[1] * 65, chunks=[1] * 65), "axes"),
    "a shard smaller than its index": (
        lambda f: zarr3(f, [SHARDED], bytes(31)), "31 bytes has no room for the index of its 2 chunks"
    ),
    "metadata that is nested without end": (
        lambda f: database(f, sound({**ARRAY, b"w/.zarray": b"[" * 100_000})), "nested too deeply"
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused(attack: str, tmp_path: Path) -> None:
    make, words = ATTACKS[attack]
    source = make(tmp_path)
    began = time.process_time()
    with refused(words):
        for t in ckptconv.open(source, format="orbax").values():
            t.numpy()
    assert time.process_time() - began < 2


def test_small_arrays_in_a_node_are_compared(tmp_path: Path) -> None:
    """As others in memory are, where a rule says that they are the same."""
    home = database(tmp_path, sound({k.replace(b"w", n): v for n in (b"a", b"b") for k, v in ARRAY.items()}))
    rule = '[[rule]]\nfrom = ["a", "b"]\nto = "w"\nsame = true'
    (tmp_path / "c.toml").write_text(f'title = "t"\nsource = "s"\ntarget = "t"\n{rule}\n')
    ckptconv.convert(home, tmp_path / "x.npz", converter=str(tmp_path / "c.toml"))
    assert ckptconv.open(tmp_path / "x.npz")["w"].numpy().tolist() == [0] * 4


def test_a_folder_without_arrays(tmp_path: Path) -> None:
    with refused("holds no arrays of Orbax or zarr"):
        ckptconv.open(tmp_path, format="orbax")
