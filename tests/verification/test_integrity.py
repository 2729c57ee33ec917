"""Hashes that travel along, checksums that are verified, damaged checkpoints salvaged, and the same bytes again."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import Run, refused, same

import ckptconv
from ckptconv.api import comparing, writing
from ckptconv.api.options import Options
from ckptconv.errors import CkptError, Unrepresentable, VerifyError
from ckptconv.formats.own_metadata import GROUP, HASHES, OPTIONS

FLIPS = int(os.environ.get("CKPTCONV_FLIPS", "20"))
CARRY: dict[str, dict[str, object]] = {
    "m.safetensors": {},
    "s.safetensors": {"max_shard_size": 500},
    "m.pt": {},
    "s.bin": {"to": "torch", "max_shard_size": 500},
    "m.hdf5": {"to": "hdf5"},
    "k.h5": {"to": "keras"},
    "folder": {"to": "hf"},
}
OTHERS: dict[str, dict[str, object]] = {
    "m.npz": {},
    "m.ckpt": {"to": "tf"},
    "m.msgpack": {},
    "npy": {"to": "npy"},
}


def values() -> dict[str, np.ndarray]:
    r = np.random.default_rng(3)
    made = {f"layer{i}.w": r.standard_normal((5, 7 + i)).astype("f4") for i in range(8)}
    made |= {"scalar.x": np.float32(7), "empty.x": np.zeros((0, 3), "i8"), "whole.x": np.arange(6, dtype="i2")}
    return made


@pytest.mark.parametrize("name", CARRY)
def test_hashes_travel_along_and_tell(name: str, tmp_path: Path) -> None:
    want = values()
    ckptconv.save(want, tmp_path / name, hash=True, **CARRY[name])
    found = comparing.verify(tmp_path / name)
    assert found.tensors == found.hashed == len(ckptconv.open(tmp_path / name))
    got = ckptconv.open(tmp_path / name)
    assert sorted(a.tobytes() for a in want.values()) == sorted(t.numpy().tobytes() for t in got.values())
    flipped = 0
    for path in sorted(p for p in tmp_path.rglob("*") if p.is_file()):
        data = path.read_bytes()
        at = data.find(want["layer3.w"].tobytes())
        if at >= 0:
            path.write_bytes(data[: at + 9] + bytes([data[at + 9] ^ 4]) + data[at + 10 :])
            flipped += 1
    assert flipped == 1
    with pytest.raises(VerifyError, match="layer3"):
        comparing.verify(tmp_path / name)


@pytest.mark.parametrize("name", OTHERS)
def test_formats_that_cannot_carry_hashes_say_so(name: str, tmp_path: Path) -> None:
    with pytest.raises(Unrepresentable, match="hash"):
        ckptconv.save(values(), tmp_path / name, hash=True, **OTHERS[name])
    assert not list(tmp_path.iterdir())


def test_frameworks_still_load_what_carries_hashes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    load_file = pytest.importorskip("safetensors.numpy").load_file
    for name in ("m.pt", "m.safetensors"):
        ckptconv.save(values(), tmp_path / name, hash=True)
    got = torch.load(tmp_path / "m.pt", weights_only=True)
    assert all(same(got[n].numpy(), np.asarray(a)) for n, a in values().items())
    got = load_file(tmp_path / "m.safetensors")
    assert all(same(got[n], np.asarray(a)) for n, a in values().items())


@pytest.mark.slow
def test_more_hashes_than_one_entry_holds(tmp_path: Path) -> None:
    ckptconv.save({f"t{i}": np.float32(i) for i in range(GROUP + 3)}, tmp_path / "m.safetensors", hash=True)
    assert comparing.verify(tmp_path / "m.safetensors").hashed == GROUP + 3
    ckptconv.save({f"t{i}": np.float32(i) for i in range(GROUP + 3)}, tmp_path / "m.hdf5", hash=True, to="hdf5")
    assert comparing.verify(tmp_path / "m.hdf5").hashed == GROUP + 3


def test_hashes_are_not_handed_on(tmp_path: Path) -> None:
    """They would be of other tensors."""
    ckptconv.save(values(), tmp_path / "a.safetensors", hash=True, metadata={"kept": "yes"})
    writing.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", exclude=["scalar.x"])
    assert set(ckptconv.open(tmp_path / "b.safetensors").metadata) == {"kept", "format"}
    writing.convert(tmp_path / "a.safetensors", tmp_path / "c.pt", hash=True)
    assert comparing.verify(tmp_path / "c.pt").hashed == len(values())
    assert ckptconv.open(tmp_path / "c.pt").metadata["kept"] == "yes"


@pytest.mark.parametrize(("name", "kind"), [("s.safetensors", "safetensors"), ("s.bin", "torch")])
@pytest.mark.parametrize(("limit", "count"), [(500, 4), (1000, 2)])
def test_a_shard_alone_is_not_what_the_hashes_are_of(
    name: str, kind: str, limit: int, count: int, tmp_path: Path
) -> None:
    ckptconv.save(values(), tmp_path / name, hash=True, max_shard_size=limit, to=kind)
    shards = sorted(tmp_path.glob("*-of-*"))
    assert len(shards) == count
    assert {comparing.verify(shard, from_=kind, partial=True).hashed for shard in shards} == {0}
    assert comparing.verify(shards[0]).hashed == len(values())  # its index makes it a whole


@pytest.mark.parametrize("name", [n for n in CARRY if not n.endswith((".pt", ".bin"))])
def test_formats_without_checksums_carry_hashes_unless_told_otherwise(name: str, tmp_path: Path) -> None:
    ckptconv.save(values(), tmp_path / "a" / name, **CARRY[name])
    assert comparing.verify(tmp_path / "a" / name).hashed == len(ckptconv.open(tmp_path / "a" / name))
    ckptconv.save(values(), tmp_path / "b" / name, hash=False, **CARRY[name])
    assert comparing.verify(tmp_path / "b" / name).hashed == 0
    assert not any(HASHES.encode() in p.read_bytes() for p in (tmp_path / "b").rglob("*") if p.is_file())


@pytest.mark.parametrize("name", [*OTHERS, "m.pt"])
def test_formats_with_checksums_carry_none_unasked(name: str, tmp_path: Path) -> None:
    ckptconv.save(values(), tmp_path / name, **(CARRY | OTHERS)[name])
    assert not any(HASHES.encode() in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


def test_a_tensor_that_was_added_by_something_else(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.numpy").save_file
    ckptconv.save(values(), tmp_path / "m.safetensors")
    raw = (tmp_path / "m.safetensors").read_bytes()
    kept = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    save_file({n: np.asarray(a) for n, a in values().items()} | {"new": np.ones(3)}, tmp_path / "n.safetensors", kept)
    with pytest.raises(VerifyError, match="its hashes are of 11 tensors, but it holds 12"):
        comparing.verify(tmp_path / "n.safetensors")


# --- salvage ----------------------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("what", ["missing", "cut", "flipped"])
@pytest.mark.parametrize("kind", ["tf", "safetensors", "torch"])
def test_keep_going_without_a_shard(kind: str, what: str, tmp_path: Path) -> None:
    name = {"tf": "m.ckpt", "safetensors": "m.safetensors", "torch": "pytorch_model.bin"}[kind]
    ckptconv.save(values(), tmp_path / name, to=kind, max_shard_size=500)
    shard = next(p for p in sorted(tmp_path.iterdir()) if "00002-of" in p.name or "00001-of-00004" in p.name)
    if what == "missing":
        shard.unlink()
    elif what == "cut":
        os.truncate(shard, shard.stat().st_size // 2)
    else:
        flip(shard, 70 if kind == "tf" else 3)
    source = tmp_path / (name if kind == "tf" else f"{name}.index.json")
    with refused():
        writing.convert(source, tmp_path / "out.npz")
    report = writing.convert(source, tmp_path / "out.npz", keep_going=True)
    got, want = ckptconv.open(tmp_path / "out.npz"), values()
    assert report.damaged
    assert set(got) | set(report.damaged) == set(want)
    assert not set(got) & set(report.damaged)
    assert all(same(got[n].numpy(), np.asarray(want[n])) for n in got)


CUT = {  # what is left of the file, and how many of its tensors at least
    "safetensors": ("", "m.safetensors", {0.5: 9, 0.97: 19, 0.999: 19}),
    "legacy": ("torch/stream.pt", "m.pt", {0.9: 4, 0.999: 12}),
}  # fmt: skip


@pytest.mark.parametrize(("what", "left"), [(what, left) for what, row in CUT.items() for left in row[2]])
def test_keep_going_with_a_cut_file(what: str, left: float, fixtures: Path, tmp_path: Path, cli: Run) -> None:
    fixture, name, least = CUT[what]
    path = tmp_path / name
    if fixture:
        shutil.copy(fixtures / fixture, path)
    else:
        ckptconv.save({f"w{i}": np.full(400, i, "f4") for i in range(20)} | {"none": np.zeros((0, 3), "f4")}, path)
    want = {n: t.numpy() for n, t in ckptconv.open(path, opaque=True).items()}
    os.truncate(path, int(path.stat().st_size * left))
    assert cli(name, "-o", "out.npz", "--opaque").returncode == 4
    done = cli(name, "-o", "out.npz", "--opaque", "--keep-going", "--json")
    damaged, got = json.loads(done.stdout)["damaged"], ckptconv.open(tmp_path / "out.npz")
    assert done.returncode == (1 if damaged else 0), done.stderr
    assert (set(got) | set(damaged), set(got) & set(damaged)) == (set(want), set())
    assert len(got) >= least[left]
    assert all(same(got[n].numpy(), want[n]) for n in got)
    assert all("truncated" in why for why in damaged.values())
    assert len({*damaged.values()}) <= 1  # folded: one line, however many


GOING = {  # a verb with --keep-going on damaged.npz, its exit code, and what it says
    "verify": (["verify", "damaged.npz"], 7, "damage in 1 of 2 tensors:\n  bad: does not match the file's own check"),
    "verify, of a cut file": (["verify", "cut.safetensors"], 7, "damage in 1 of 2 tensors"),
    "verify, of a conversion": (["verify", "damaged.npz", "kept.npz"], 1, "(bad)\nverified: 1 tensor"),
    "diff": (["diff", "damaged.npz", "damaged.npz"], 1, "(bad)\ndifferent: 1 tensor equal; 2 damaged"),
    "diff, left": (["diff", "damaged.npz", "kept.npz"], 1, "damaged: in A: does not match the file's own checksums"),
    "diff --json": (["diff", "kept.npz", "damaged.npz", "--json"], 1, '"same": false'),
    "diff, of others": (["diff", "damaged.npz", "damaged.npz", "--include", "good"], 0, "the same: 1 tensor equal"),
    "verify, of others": (["verify", "damaged.npz", "--include", "good"], 0, "verified: 1 tensor"),
    "verify, what a cut file has": (["verify", "cut.safetensors", "--include", "good"], 0, "verified: 1 tensor"),
    "inspect": (["inspect", "damaged.npz"], 1, "damaged: does not match the file's own checksums"),
    "inspect --check": (["inspect", "damaged.npz", "--check"], 1, "1 tensor checked: 1 error"),
    "inspect --json": (["inspect", "damaged.npz", "--check", "--json"], 1, '"check": "damaged", "tensor": "bad"'),
}  # fmt: skip


@pytest.mark.parametrize("what", GOING)
def test_what_was_left_out_is_not_sound(what: str, cli: Run, tmp_path: Path) -> None:
    argv, code, said = GOING[what]
    ckptconv.save({"good": np.arange(9.0), "bad": np.ones(50)}, tmp_path / "damaged.npz")
    raw = (tmp_path / "damaged.npz").read_bytes()
    flip(tmp_path / "damaged.npz", raw.find(np.ones(50).tobytes()) + 5)
    ckptconv.convert(tmp_path / "damaged.npz", tmp_path / "kept.npz", keep_going=True)
    ckptconv.save({"good": np.arange(9.0), "last": np.ones(5)}, tmp_path / "cut.safetensors")
    os.truncate(tmp_path / "cut.safetensors", (tmp_path / "cut.safetensors").stat().st_size - 5)
    done = cli(*argv, "--keep-going")
    assert done.returncode == code, done.stderr
    assert said in done.stderr + done.stdout


LOST = {  # what is taken of a folder that lacks the shard of net.b, and what of it is then said to be damaged
    "all": ([], ["net.b.x", "net.b.y"]),
    "an entry": (["--at", "net"], ["b.x", "b.y"]),
    "by an entry's names": (["--at", "net", "--include", "[ab].x"], ["b.x"]),
    "by stripped names": (["--strip-prefix", "net.", "--include", "net.[ab].*"], ["b.x", "b.y"]),
    "others": (["--include", "net.a.*"], []),
    "all but it": (["--exclude", "net.b.*"], []),
}  # fmt: skip


@pytest.mark.parametrize("what", LOST)
def test_all_verbs_take_the_same_for_damage(what: str, cli: Run, tmp_path: Path) -> None:
    """What is selected and lost, under the name that it would have now."""
    options, lost = LOST[what]
    given = {f"net.{n}.{k}": np.full(300, ord(n), "f4") for n in "abc" for k in "xy"}
    ckptconv.save(given, tmp_path / "m", to="hf", max_shard_size=2500)
    (tmp_path / "m" / "model-00002-of-00003.safetensors").unlink()
    done = cli("m", "-o", "out.npz", "--keep-going", *options, "--json")
    assert (list(json.loads(done.stdout)["damaged"]), done.returncode) == (lost, int(bool(lost)))
    for verb, code in (("verify m", 7), ("verify m out.npz", 1), ("inspect m", 1), ("inspect m --check", 1)):
        done = cli(*verb.split(), "--keep-going", *options)
        assert done.returncode == (code if lost else 0), verb
        assert ("model-00002-of-00003.safetensors is missing" in done.stdout + done.stderr) is bool(lost)
    done = cli("diff", "m", "m", "--keep-going", *options, "--json")
    assert [n["names"] for n in json.loads(done.stdout)["damaged"] if "in A" in n["text"]] == [lost] * bool(lost)


def test_keep_going_with_all_wrong(tmp_path: Path) -> None:
    ckptconv.save({"a": np.ones(9)}, tmp_path / "m.ckpt", to="tf")
    flip(next(tmp_path.glob("*.data*")), 5)
    with pytest.raises(CkptError, match="every tensor is damaged"):
        writing.convert(tmp_path / "m.ckpt", tmp_path / "m.npz", keep_going=True)


# --- single bits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["m.npz", "m.pt", "m.ckpt", "hashed.safetensors"])
def test_every_flipped_bit_is_found(name: str, tmp_path: Path) -> None:
    """Anywhere in tensors or in what describes them; CKPTCONV_FLIPS sets how many."""
    choose = random.Random(5)
    ckptconv.save(values(), tmp_path / name, hash=name.startswith("hashed"))
    files = {p: p.read_bytes() for p in tmp_path.iterdir() if p.name != "checkpoint"}
    regions = [(p, a, b) for p, data in files.items() for a, b in checked(name, p, data)]
    for _ in range(FLIPS):
        path, lo, hi = choose.choices(regions, [b - a for _, a, b in regions])[0]
        at, data = choose.randrange(lo, hi), bytearray(files[path])
        data[at] ^= 1 << choose.randrange(8)
        path.write_bytes(data)
        with refused():
            comparing.verify(tmp_path / name)
        path.write_bytes(files[path])
    comparing.verify(tmp_path / name)


def checked(name: str, path: Path, data: bytes) -> list[tuple[int, int]]:
    """What the format's checksums (or ours) cover: all of a bundle; the members of a zip; tensors that have a hash."""
    if path.name.startswith("m.ckpt"):
        return [(0, len(data) - 48 if path.suffix == ".index" else len(data))]
    if name.startswith("hashed"):
        return [(8 + int.from_bytes(data[:8], "little"), len(data))]
    import zipfile

    out = []
    with zipfile.ZipFile(path) as z:
        for i in z.infolist():
            head = i.header_offset
            start = head + 30 + sum(int.from_bytes(data[head + k : head + k + 2], "little") for k in (26, 28))
            if i.file_size:
                out.append((start, start + i.file_size))
    return out


# --- the same again ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CARRY, *OTHERS])
def test_same_input_and_options_same_bytes(name: str, tmp_path: Path) -> None:
    options = (CARRY | OTHERS)[name] | {"hash": name in CARRY}
    source = {"k.h5": "in.h5"}.get(name, "in.npz")  # Keras' order of layers must be recorded
    made = []
    for n, resources in enumerate(({"jobs": 1}, {"max_memory": 16 << 20, "jobs": 3})):
        ckptconv.save(values(), tmp_path / source, force=True, to={"in.h5": "keras"}.get(source))
        writing.convert(tmp_path / source, tmp_path / str(n) / name, **options, **resources)
        home = tmp_path / str(n)
        made.append({str(p.relative_to(home)): p.read_bytes() for p in home.rglob("*") if p.is_file()})
    assert made[0] == made[1]


# --- hashes are compared on the way -----------------------------------------------------------------------------


def renamed(path: Path, old: str, new: str) -> None:
    path.write_bytes(path.read_bytes().replace(f'"{old}":'.encode(), f'"{new}":'.encode()))


RENAMES = [("scalar.x", "scalar.y"), ("layer0.w", "zayer0.w"), ("whole.x", "ahole.x"), ("layer3.w", "layer8.w")]


@pytest.mark.parametrize(("old", "new"), RENAMES)
def test_a_renamed_tensor_is_found(old: str, new: str, cli: Run, tmp_path: Path) -> None:
    ckptconv.save(values(), tmp_path / "m.safetensors")
    renamed(tmp_path / "m.safetensors", old, new)
    with pytest.raises(VerifyError, match="with other names"):
        comparing.verify(tmp_path / "m.safetensors")
    done = cli("m.safetensors", "-o", "n.npz")
    assert (done.returncode, (tmp_path / "n.npz").exists()) == (7, False)
    assert cli("m.safetensors", "-o", "n.npz", "--dry-run").returncode == 7
    assert new in ckptconv.open(tmp_path / "m.safetensors")  # to look at it is no conversion


@pytest.mark.parametrize("digit", [b"2 11 ", b'xxh3": "2', b'.0": "'])
def test_damaged_hashes_are_found(digit: bytes, tmp_path: Path) -> None:
    ckptconv.save(values(), tmp_path / "m.safetensors")
    raw = (tmp_path / "m.safetensors").read_bytes()
    digit = digit.replace(b": ", b":")
    assert raw.count(digit) == 1
    at = raw.index(digit) + len(digit) - 1
    for swap in (b"9", b"\x00", b"z"):
        (tmp_path / "m.safetensors").write_bytes(raw[:at] + swap + raw[at + 1 :])
        with refused():
            comparing.verify(tmp_path / "m.safetensors")


SOURCES = ["m.safetensors", "s.safetensors", "m.hdf5", "k.h5", "m.pt"]
CHANGES = [{}, {"dtype": "float16"}, {"rename": ["layer{i}.w=l{i}.v : a b -> b a"]}]


# Each source, target and change, in half of the pairs.
BLESSED = [
    (name, target, CHANGES[(i + j) % 3])
    for i, name in enumerate(SOURCES) for j, target in enumerate(("safetensors", "npz", "tf")) if (i + j) % 2 == 0
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target", "change"), BLESSED)
def test_damage_is_never_blessed(name: str, change: dict[str, object], target: str, tmp_path: Path) -> None:
    """Whatever a conversion does with the bytes, it compares those that it reads with the hashes of the source."""
    want = values() | {"big.w": np.arange(5 << 18, dtype="f4").reshape(5, 1 << 18)}  # more than a chunk of hashes
    ckptconv.save(want, tmp_path / "in" / name, hash=True, **CARRY[name])
    options = {**change, "to": target, "jobs": 2}
    assert writing.convert(tmp_path / "in" / name, tmp_path / "good", **options).verified_bytes > 5_000_000
    for tensor, at in (("layer3.w", 9), ("big.w", 4_500_002)):
        path, where = next(
            (p, p.read_bytes().find(want[tensor].tobytes()))
            for p in sorted((tmp_path / "in").iterdir())
            if want[tensor].tobytes() in p.read_bytes()
        )
        flip(path, where + at)
        with pytest.raises(CkptError, match="does not match the file's own hashes"):
            writing.convert(tmp_path / "in" / name, tmp_path / "out" / "x", **options)
        assert not list((tmp_path / "out").glob("*"))
        flip(path, where + at)


def test_what_was_not_compared_gets_no_new_hashes(tmp_path: Path) -> None:
    """A program that changed tensors and kept the metadata: --no-verify takes them as they are."""
    ckptconv.save(values(), tmp_path / "m.safetensors")
    flip(tmp_path / "m.safetensors", -3)
    with pytest.raises(CkptError, match="verify=False"):
        writing.convert(tmp_path / "m.safetensors", tmp_path / "n.safetensors")
    writing.convert(tmp_path / "m.safetensors", tmp_path / "n.safetensors", verify=False)
    assert comparing.verify(tmp_path / "n.safetensors").hashed == 0


OPENED: dict[str, Callable[[ckptconv.Checkpoint], Any]] = {
    "whole": lambda c: c, "dict": dict, "renamed": lambda c: {f"x.{n}": t for n, t in c.items()},
}  # fmt: skip


@pytest.mark.parametrize("how", OPENED)
@pytest.mark.parametrize("name", ["m.safetensors", "m.hdf5", "some"])
def test_what_was_opened_is_compared_when_it_is_saved(how: str, name: str, tmp_path: Path) -> None:
    """Damage gets no new hash through Python, either."""
    only = {"include": ["s*", "l*"]} if name == "some" else {}
    source = tmp_path / name.replace("some", "m.safetensors")
    ckptconv.save(values(), source, **CARRY[source.name])
    ckptconv.save(OPENED[how](ckptconv.open(source, **only)), tmp_path / "good.safetensors")
    raw = source.read_bytes()
    flip(source, raw.find(values()["layer3.w"].tobytes()) + 3)
    found = ckptconv.open(source, **only)
    with pytest.raises(CkptError, match="verify=False"):
        found["layer3.w"].numpy()
    with pytest.raises(CkptError, match="verify=False"):
        ckptconv.save(OPENED[how](found), tmp_path / "a.safetensors")
    ckptconv.save(OPENED[how](found), tmp_path / "b.safetensors", verify=False)
    assert comparing.verify(tmp_path / "b.safetensors").hashed == 0


# --- how it was made --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in CARRY if not n.endswith((".pt", ".bin"))])
def test_verify_says_with_which_options_it_was_made(name: str, fixtures: Path, tmp_path: Path) -> None:
    source, made = fixtures / "g2p_en", {"converter": "tf-torch", "dtype": "float16"}
    to = CARRY.get(name, {})
    try:
        writing.convert(source, tmp_path / name, verify=False, **made, **to)
    except Unrepresentable:
        pytest.skip("it takes other names")
    with pytest.raises(VerifyError, match=r'options: \{"converter": "tf-torch", "dtype": "float16"\}'):
        comparing.verify(source, tmp_path / name)
    assert comparing.verify(source, tmp_path / name, **made).tensors == 15
    writing.convert(tmp_path / name, tmp_path / "plain.safetensors")
    assert not ckptconv.open(tmp_path / "plain.safetensors").hashes.keys() & {OPTIONS}


def test_the_options_of_a_file_drive_no_terminal(tmp_path: Path) -> None:
    """They come from a stranger: they are shown on one line, escaped and cut."""
    ckptconv.save({"a": np.ones(2, "f4"), "b": np.ones(2, "f4")}, tmp_path / "a.npz")
    for said in ("\x1b[2J", "[1]\nerror: none", "[" * 9000):
        writing.write(
            replace(ckptconv.open(tmp_path / "a.npz", include="a"), metadata={OPTIONS: said}),
            tmp_path / "m.safetensors", Options(force=True, hash=False),
        )  # fmt: skip
        with pytest.raises(VerifyError) as e:
            comparing.verify(tmp_path / "a.npz", tmp_path / "m.safetensors")
        shown = str(e.value).splitlines()[-1]
        assert shown.startswith("  its metadata says that it was made with these options: ")
        assert shown.isprintable()
        assert len(shown) < 500
        assert comparing.verify(tmp_path / "m.safetensors").hashed == 0


def test_only_the_name_of_a_rule_file_is_told(tmp_path: Path) -> None:
    ckptconv.save({"a": np.ones(2, "f4")}, tmp_path / "a.npz")
    (tmp_path / "mine.toml").write_text('[[rule]]\nfrom = "a"\nto = "b"\n')
    writing.convert(tmp_path / "a.npz", tmp_path / "m.safetensors", converter=str(tmp_path / "mine.toml"))
    assert str(tmp_path) not in (tmp_path / "m.safetensors").read_bytes().decode("latin-1")
    with pytest.raises(VerifyError, match=r'options: {"converter": "mine\.toml"}'):
        comparing.verify(tmp_path / "a.npz", tmp_path / "m.safetensors")


def test_what_is_not_one_span_is_compared_as_well(tmp_path: Path) -> None:
    """Whether it is read as an array, saved, or salvaged: truth values of HDF5 are an enumeration there."""
    mask = np.arange(64) % 2 == 0
    path = tmp_path / "m.hdf5"
    ckptconv.save({"mask": mask, "w": np.arange(64, dtype="f4")}, path)
    raw = path.read_bytes()
    at = raw.find(mask.tobytes())
    path.write_bytes(raw[:at] + b"\0" + raw[at + 1 :])
    opened = ckptconv.open(path)
    with pytest.raises(ckptconv.CorruptCheckpoint, match="mask: its content does not match its hash"):
        opened["mask"].numpy()
    for some in ({n: opened[n] for n in opened}, ckptconv.open(path, include="m*"), {"it": opened["mask"]}):
        with pytest.raises(VerifyError, match="its content does not match its hash"):
            ckptconv.save(some, tmp_path / "out.hdf5")
    ckptconv.save({"mask": opened["mask"]}, tmp_path / "out.hdf5", verify=False)  # and no new hash is made of it
    assert ckptconv.verify(tmp_path / "out.hdf5").hashed == 0
    for kept in (ckptconv.open(path, keep_going=True), ckptconv.open(path, keep_going=True, include="*")):
        assert [(n.kind, n.names) for n in kept.notes if n.kind == "damaged"] == [("damaged", ("mask",))]
        assert list(kept) == ["w"]
    done = ckptconv.convert(path, tmp_path / "out.safetensors", keep_going=True)
    assert done.damaged == {"mask": "its content does not match its hash"}
    assert list(ckptconv.open(tmp_path / "out.safetensors")) == ["w"]
