"""Orbax folders that attack: links, and databases whose nodes lie in wrong places; the rest is in hostile_orbax.py.

Every one is refused in words, quickly, and without reading another folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import cramjam
import pytest
from hostile_orbax import NODE, envelope, interior, leaf, manifest, versions, zarray
from kit import refused

import ckptconv

ARRAY: list[tuple[bytes, object]] = [(b"w/.zarray", zarray(shape=[4], chunks=[4])), (b"w/0", bytes(16))]
KEYS = 2**40


def database(folder: Path, nodes: bytes, size: int, height: int = 0) -> Path:
    """The root, which has this many bytes, and other nodes behind it."""
    home = folder / "m"
    home.mkdir(parents=True)
    (home / "values").write_bytes(nodes)
    (home / "manifest.ocdbt").write_bytes(manifest(versions(0, size, KEYS, height=height)))
    return home


def sound(pairs: list[tuple[bytes, object]]) -> bytes:
    return envelope(NODE, leaf(pairs))


def one(folder: Path, pairs: list[tuple[bytes, object]] = ARRAY) -> Path:
    node = sound(pairs)
    return database(folder, node, len(node))


def above(folder: Path, data: bytes, places: list[tuple[int, int]], *keys: bytes, common: int = 0) -> Path:
    """A root, and behind it the nodes that lie at these places of what follows."""
    root, n = b"", len(keys)
    for _ in range(3):  # until the root is as long as its numbers take
        moved = [(len(root) + at, size) for at, size in places]
        root = envelope(NODE, interior(1, [*keys], [common] * n, moved, [KEYS] * n))
    return database(folder, root + data, len(root), height=1)


def divided(*keys: bytes) -> Callable[[Path], Path]:
    """An array in two leaves, to which these keys lead."""
    first, second = (sound([pair]) for pair in ARRAY)
    places = [(0, len(first)), (len(first), len(second))]
    return lambda folder: above(folder, first + second, places, *keys)


def below(prefix: bytes, pairs: list[tuple[bytes, object]]) -> Callable[[Path], Path]:
    """A leaf all of whose keys begin with what the root says."""
    inner = sound(pairs)
    return lambda folder: above(folder, inner, [(0, len(inner))], prefix, common=len(prefix))


def within(folder: Path) -> Path:
    """A leaf that is the value of another."""
    inner = sound(ARRAY)
    outer = sound([(b"a", inner)])
    return above(folder, outer, [(0, len(outer)), (outer.index(inner), len(inner))], b"a", b"w")


def endless_tower(folder: Path) -> Path:
    """A node of few stored bytes with two hundred thousand children, below which there could be 58 levels more."""
    n = 200_000
    body = interior(59, [b""] * n, [0] * n, [(2**30, 60)] * n, [KEYS] * n)
    node = envelope(NODE, bytes(cramjam.zstd.compress(body, level=19)), packed=1)
    return database(folder, node, len(node), height=59)


def linked_away(name: str) -> Callable[[Path], Path]:
    """One of the checkpoint's files lies outside of it, behind a link."""

    def make(folder: Path) -> Path:
        home = one(folder)
        (home / "checkpoint").write_bytes(b"\x80")
        (home / "_METADATA").write_text('{"tree_metadata": {}}')
        os.rename(home / name, folder / "outside")
        (home / name).symlink_to("../outside")
        return home

    return make


def linked(name: str, to: str) -> Callable[[Path], Path]:
    """Two arrays in chunks of one element, beside whose first three chunks a link has this name."""

    def make(folder: Path) -> Path:
        for i in range(6):
            (folder / "m" / "ab"[i // 3]).mkdir(parents=True, exist_ok=True)
            (folder / "m" / "ab"[i // 3] / f"{i % 3}.0").write_bytes(b"\1\2\3\4")
        for array in "ab":
            (folder / "m" / array / ".zarray").write_bytes(zarray(shape=[4, 1], chunks=[1, 1]))
        (folder / "m" / name).symlink_to(to)
        return folder / "m"

    return make


def linked_step(folder: Path) -> Path:
    home = one(folder)
    (folder / "run").mkdir()
    (folder / "run" / "7").symlink_to(home)
    return folder / "run"


AWAY, HIDDEN = "link|outside|leaves", "holds links to folders or to nothing.*:\n  "
ATTACKS: dict[str, tuple[Callable[[Path], Path], str]] = {
    **{f"{name} is a link": (linked_away(name), AWAY) for name in ("manifest.ocdbt", "_METADATA", "values")},
    "a step is a link": (linked_step, AWAY),
    "an array is a link": (linked("c", "b"), HIDDEN + "c$"),
    "a chunk is a link to nothing": (linked("a/3.0", "4.0"), HIDDEN + "3.0$"),
    "a chunk is a link to itself": (linked("a/3.0", "3.0"), HIDDEN + "3.0$"),
    "the root is one array": (
        lambda f: one(f, [(key[2:], value) for key, value in ARRAY]), "its root is one array, which has no name"
    ),
    "a node lies within another": (within, "the node at byte .* and the node at byte .* share the byte"),
    "a key before the one that leads to its node": (divided(b"w", b"w/00"), "'w/0'.* or where none leads to it"),
    "a key behind the one that leads to the next node": (divided(b"w", b"w/."), "'w/.zarray'.* or where none leads"),
    "a node of nodes begins before itself": (divided(b"w/0", b"w"), "'w' out of order"),
    "towers of children": (endless_tower, "entries in the database's nodes repeat without bound"),
    "a node of no bytes": (lambda f: database(f, b"", 0), "no node of a database"),
    "keys of sixty thousand slashes": (
        lambda f: one(f, [(b"/" * 60_000 + b"%05d" % i, b"") for i in range(300)]), "parts"
    ),
    "a key of 65,536 bytes in two parts": (below(b"a" * 40_000, [(b"b" * 25_536, b"")]), "a key of 65536 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused(attack: str, tmp_path: Path) -> None:
    make, words = ATTACKS[attack]
    source = make(tmp_path)
    began = time.process_time()
    with refused(words):
        for t in ckptconv.open(source, from_="orbax").values():
            t.numpy()
    assert time.process_time() - began < 2


def test_the_parts_of_the_attacks_make_a_sound_database(tmp_path: Path) -> None:
    shared = below(b"w/", [(name[2:], value) for name, value in ARRAY])
    for i, make in enumerate((one, shared, divided(b"", b"w/0"), divided(b"w/.zarray", b"w/.zb"))):
        assert ckptconv.open(make(tmp_path / str(i)))["w"].numpy().tolist() == [0] * 4


def test_small_arrays_in_a_node_are_compared(tmp_path: Path) -> None:
    """As others in memory are, where a rule says that they are the same."""
    home = one(tmp_path, [(key.replace(b"w", name), value) for name in (b"a", b"b") for key, value in ARRAY])
    rule = '[[rule]]\nfrom = ["a", "b"]\nto = "w"\nsame = true'
    (tmp_path / "c.toml").write_text(f'title = "t"\nsource = "s"\ntarget = "t"\n{rule}\n')
    ckptconv.convert(home, tmp_path / "x.npz", converter=str(tmp_path / "c.toml"))
    assert ckptconv.open(tmp_path / "x.npz")["w"].numpy().tolist() == [0] * 4


def test_a_folder_without_arrays(tmp_path: Path) -> None:
    with refused("holds no arrays of Orbax or zarr"):
        ckptconv.open(tmp_path, from_="orbax")
