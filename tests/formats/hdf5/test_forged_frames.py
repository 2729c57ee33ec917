"""What code of an attacker in the HDF5 child can send: the process that reads it neither hangs, fills up nor breaks.

The child of these tests is a script that speaks the protocol of child.py.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ckptconv
from ckptconv.errors import CkptError, CorruptCheckpoint, UnsafeCheckpoint
from ckptconv.formats.hdf5 import child
from ckptconv.storage.files import Reader

h5py = pytest.importorskip("h5py")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="pipes are another matter there")
SCRIPT = """
import json, os, struct, sys, time
take, out = sys.stdin.buffer, sys.stdout.buffer
def send(kind, body=b"", size=None):
    out.write(struct.pack("<cQ", kind, len(body) if size is None else size) + body); out.flush()
def record(**changed):
    whole = {"path": "w", "dtype": "float32", "shape": [2], "offset": -1, "swap": False, "attrs": {}, **changed}
    send(b"R", json.dumps(whole).encode())
def want(start, size):
    send(b"G", struct.pack("<QQ", start, size))
size = json.loads(take.readline())["size"]
asked = json.loads(take.readline())
"""
GROUP = 'record(path="", group=True);'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "m.h5", "w") as f:
        f.create_dataset("w", data=[1.0, 2.0], chunks=(2,), compression="gzip")
    return tmp_path / "m.h5"


def forge(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-S", "-c", SCRIPT + code]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    monkeypatch.setattr(child, "_spawn", spawn)


FRAMES = {
    "a huge frame": ('send(b"R", size=2**62)', "an invalid message"),
    "a frame of a gigabyte": ('send(b"R", size=2**30)', "an invalid message"),
    "records without end": ('while True: record(path="x" * 10**4)', "an invalid message"),
    "an unknown kind": ('send(b"!")', "an invalid message"),
    "half a frame": ('out.write(b"R12"); out.flush()', "ended with status"),
    "less than it says": ('send(b"R", b"{}", 100)', "ended with status"),
    "a request of 3 bytes": ('send(b"G", b"abc")', "an invalid message"),
    "a request of a megabyte": ('send(b"G", bytes(2**20))', "an invalid message"),
    "bytes behind the file": ("want(size - 1, 2)", "bytes that are not there"),
    "bytes at 2^63": ("want(2**63, 1)", "bytes that are not there"),
    "bytes up to 2^64": ("want(2**64 - 1, 2**64 - 1)", "bytes that are not there"),
    "nested without end": ('send(b"R", b"[" * 10**5)', "."),
    "no record": ('send(b"R", b"[]")', "."),
    "no text": ('send(b"R", b"\\xff")', "."),
    "an error of nothing": ('send(b"E", b"{}")', "an invalid message"),
    "an error of a number": ('send(b"E", b"7")', "an invalid message"),
    "a nested error": ('send(b"E", b"[" * 10**5)', "an invalid message"),
    "a long error": ('send(b"E", json.dumps(["corrupt", "x" * 10**5]).encode())', "an invalid message"),
    "nothing": ('send(b".")', "."),
    "no root": ('record(); send(b".")', "."),
    "an offset without end": (GROUP + 'record(offset=1e999); send(b".")', "."),
    "a negative shape": (GROUP + 'record(shape=[-1]); send(b".")', "."),
    "a shape of 2^80": (GROUP + 'record(shape=[2**80]); send(b".")', "."),
    "a shape of text": (GROUP + 'record(shape="ab"); send(b".")', "."),
    "a dtype of strangers": (GROUP + 'record(dtype="os.system"); send(b".")', "has the dtype"),
    "attributes of nothing": (GROUP + 'record(attrs=3); send(b".")', "."),
    "an offset behind the file": (GROUP + 'record(offset=10**9); send(b".")', "has|needed"),
    "a name of a control character": (GROUP + 'record(path="\\x1b[2J", dtype="x"); send(b".")', "has the dtype"),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMES)
def test_a_forged_frame_is_an_error(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, says = FRAMES[name]
    forge(code, monkeypatch)
    with pytest.raises(CkptError, match=says) as refused:
        ckptconv.open(file, format="hdf5")["w"].numpy()
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("asked", ["scan", "read"])
def test_an_answer_has_room_for_so_many_bytes(asked: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all, not in each frame."""
    monkeypatch.setattr(child, "MAX_FRAME", 2**20)
    size = file.stat().st_size
    room = child.RECORD_RATIO * size + 2**20 if asked == "scan" else child.RATIO * size + 2**20
    image = child.FileImage("x", str(file), size, lambda: Reader(str(file)))
    for sent in (room, room + 1):
        frames = [2**19] * (sent // 2**19) + [sent % 2**19]
        forge(f'for n in {frames}: send(b"D", bytes(n))\nsend(b".")', monkeypatch)
        one = child.Child(image)
        if sent == room:
            assert sum(len(body) for _, body in one.ask(do=asked)) == room
        else:
            with pytest.raises(CorruptCheckpoint, match="sent an invalid message"):
                list(one.ask(do=asked))
        one.close()


def test_what_it_says_is_unsafe_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forge('send(b"E", json.dumps(["unsafe", "\\x1b[2Jwhat"]).encode())', monkeypatch)
    with pytest.raises(UnsafeCheckpoint) as refused:
        ckptconv.open(file, format="hdf5")
    assert "\x1b" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "while True: want(0, size)",  # and does not read it
        'while True: send(b"R", b"", 10**6); time.sleep(60)',
        "time.sleep(60)",
        "while True: time.sleep(0.3); record()",
        'while True: time.sleep(0.3); out.write(b"R"); out.flush()',
    ],
)
def test_it_cannot_keep_us_waiting(code: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(file, "ab") as f:
        f.write(bytes(2**20))
    monkeypatch.setattr(child, "SILENCE", 1.0)
    monkeypatch.setattr(child, "WAITING", 2 / (child.CPU_TOTAL + 1))
    forge(code, monkeypatch)
    began = time.monotonic()
    with pytest.raises(CorruptCheckpoint, match=r"was silent|took too long"):
        ckptconv.open(file, format="hdf5")
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_what_it_asks_for_is_sent_in_pieces(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a file of a gigabyte, which takes no room on the disk, nor in memory."""
    os.truncate(file, 2**30)
    code = "want(0, size); [take.read(2**20) for _ in range(2**10)]; send(b'E', b'[\"corrupt\", \"read\"]')"
    forge(code, monkeypatch)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptCheckpoint, match="read"):
        ckptconv.open(file, format="hdf5")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17  # kB


@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        ('send(b"D", bytes(8) * 10**5); send(b".")', "float32"), ('send(b"D", bytes(7)); send(b".")', "float32"),
        ('send(b".")', "float32"), ('while True: send(b"D", bytes(2**20))', "float32"),
        ('send(b"S", b"abc"); send(b".")', "string"), ('send(b"D", b"abc"); send(b".")', "string"),
        ('send(b"S", struct.pack("<I", 2**32 - 1) + b"abc"); send(b".")', "string"),
    ],
)  # fmt: skip
def test_forged_values_are_errors(code: str, dtype: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = f'{GROUP} record(dtype="{dtype}"); send(b"."); take.readline()\n{code}'
    forge(answer, monkeypatch)
    with pytest.raises(CkptError):
        ckptconv.open(file, format="hdf5")["w"].numpy()
