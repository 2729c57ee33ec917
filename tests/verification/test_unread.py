"""What no reader looks at is said, and two checkpoints of which a tensor was not read are not said to be the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from kit import FIXTURES, Run

import ckptconv


def lay(folder: Path) -> None:
    """Checkpoints of one tensor `w`, and what is not read beside it."""
    w, days = np.arange(3.0), np.array(["2026-01-01", "2026-01-02"], "M8[D]")
    setting = np.empty((), object)
    setting[()] = {"lr": 0.5}
    np.savez(folder / "plain.npz", w=w)
    np.savez(folder / "day.npz", w=w, day=days[:1])
    shutil.copy(folder / "day.npz", folder / "again.npz")
    np.savez(folder / "other.npz", w=w, day=days[1:])
    np.savez(folder / "two.npz", w=w, day=days[:1], **{"net.day": days})
    np.savez(folder / "moved.npz", w=w + 1, day=days[:1])
    np.savez(folder / "nested.npz", **{"net.w": w, "net.day": days, "o.day": days})
    np.savez(folder / "set.npz", w=w, opt=setting)
    for name, words in (("a.keras", b"a\nb"), ("b.keras", b"b\na")):
        shutil.copy(FIXTURES / "keras" / "net.keras", folder / name)
        with ZipFile(folder / name, "a") as z:
            z.writestr("assets/layers/lookup/vocabulary.txt", words)
    shutil.copytree(FIXTURES / "tf" / "saved", folder / "saved")
    shutil.copytree(FIXTURES / "tf" / "saved", folder / "resaved")
    raw = (folder / "resaved" / "saved_model.pb").read_bytes()
    (folder / "resaved" / "saved_model.pb").write_bytes(raw + b"\x08\x01")  # its version again: another file
    shutil.copy(FIXTURES / "tf" / "frozen.pb", folder)
    ckptconv.convert(folder / "saved", folder / "saved.ckpt")
    ckptconv.convert(folder / "frozen.pb", folder / "frozen.ckpt")


DAY = "arrays whose dtype no checkpoint holds: <M8[D] (day)"
KERAS = "files in the archive that are not weights (assets/layers/lookup/vocabulary.txt)"
VALUES = "values that are not tensors (opt.lr)"
UNKNOWN, SAME = "not known to be the same: 1 tensor equal; 1 unread", "the same: 1 tensor equal"
SAID: dict[str, tuple[str, int, str]] = {
    "other bytes": ("diff day.npz other.npz", 1, f"in A and B: {DAY}\n{UNKNOWN}"),
    "in one": ("diff plain.npz day.npz", 1, f"skipped: in B: {DAY}\nnot known"),
    "more in one": ("diff day.npz two.npz", 1, "1 tensor equal; 3 unread"),
    "quietly": ("diff day.npz plain.npz -q", 1, f"skipped: in A: {DAY}"),
    "within a tolerance": ("diff day.npz plain.npz --rtol 1", 1, "1 tensor equal within the tolerance; 1 unread"),
    "and others that differ": ("diff day.npz moved.npz", 1, "different: 0 tensors equal; 1 with other values, 1 unr"),
    "the same file": ("diff day.npz day.npz", 0, f"in A and B: {DAY}\n{SAME}"),
    "a copy": ("diff day.npz again.npz", 0, f"in A and B: {DAY}\n{SAME}"),
    "selected without it": ("diff day.npz other.npz --include w", 0, SAME),
    "excluded": ("diff day.npz other.npz --exclude d*", 0, SAME),
    "alone": ("diff day.npz other.npz --include day", 2, f"when the file is read:\n  skipped: {DAY}"),
    "in an entry": ("diff nested.npz plain.npz --at net", 1, f"skipped: in A: {DAY}\nnot known"),
    "by a stripped name": ("diff nested.npz plain.npz --strip-prefix net. --include net.w", 0, "the same: 1 tensor"),
    "in what rules rename": ("diff day.npz plain.npz --rename w=w", 1, f"skipped: in A: {DAY}"),
    "settings": ("diff set.npz plain.npz", 0, f"in A: {VALUES}\n{SAME}"),
    "files of an archive": ("diff a.keras b.keras", 0, f"in A and B: {KERAS}\nthe same"),
    "constants of a graph": ("diff saved resaved", 1, "unread: in A and B: constants of a graph"),
    "constants, read": ("diff saved resaved --opaque", 0, "the same"),
    "constants in one": ("diff saved saved.ckpt", 1, "unread: in A: constants of a graph"),
    "axes of a graph": ("diff frozen.pb frozen.ckpt", 0, "in A: 14 constants: shapes, axes, tables or scalars"),
    "verify": ("verify day.npz plain.npz", 0, f"skipped: {DAY}\nverified: 1 tensor, 24 B"),
    "verify a file": ("verify day.npz", 0, f"skipped: {DAY}\nverified: 1 tensor"),
    "inspect --check": ("inspect day.npz --check", 0, f"skipped: {DAY}\n1 tensor checked"),
}  # fmt: skip


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unread")
    lay(folder)
    return folder


@pytest.mark.parametrize("what", SAID)
def test_what_is_not_read_is_said(what: str, cli: Run, laid: Path, tmp_path: Path) -> None:
    argv, code, text = SAID[what]
    shutil.copytree(laid, tmp_path, dirs_exist_ok=True)
    done = cli(*argv.split())
    assert done.returncode == code, done.stderr
    assert text in done.stderr + done.stdout


JSON: dict[str, dict[str, Any]] = {
    "diff day.npz other.npz": {"same": False, "unread": [["day"]], "beside": []},
    "diff day.npz day.npz": {"same": True, "unread": [], "beside": [["day"]]},
    "diff set.npz plain.npz": {"same": True, "unread": [], "beside": [["opt.lr"]]},
    "diff plain.npz plain.npz": {"same": True, "unread": [], "beside": []},
    "verify day.npz plain.npz": {"same": True, "notes": [["day"]]},
    "verify day.npz": {"sound": True, "notes": [["day"]]},
}


@pytest.mark.parametrize("argv", JSON)
def test_what_is_not_read_is_in_json(argv: str, cli: Run, laid: Path, tmp_path: Path) -> None:
    shutil.copytree(laid, tmp_path, dirs_exist_ok=True)
    made = json.loads(cli(*argv.split(), "--json").stdout)
    found = {k: [n["names"] for n in v] if isinstance(v, list) else v for k, v in made.items() if k in JSON[argv]}
    assert found == JSON[argv]


def test_an_open_checkpoint_says_it_as_its_file_does(laid: Path) -> None:
    found = ckptconv.diff(ckptconv.open(laid / "day.npz"), ckptconv.open(laid / "other.npz"))
    assert (found.same, [n.names for n in found.unread]) == (False, [("day",)])
    assert str(found).startswith("not known to be the same: 1 tensor equal; 1 unread\n")
