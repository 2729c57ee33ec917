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
from ckptconv.errors import CorruptCheckpoint, UnsafeCheckpoint
from ckptconv.formats.hdf5 import child, records
from ckptconv.formats.hdf5.child import FRAME
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


INVALID, RECORD = "an invalid message", "an invalid record"
FRAMES = {
    "a huge frame": ('send(b"R", size=2**62)', INVALID),
    "a frame of a gigabyte": ('send(b"R", size=2**30)', INVALID),
    "records without end": ('[record(path=f"{i:09999}") for i in range(10**4)]', INVALID),
    "records without a byte": ('send(b"R")', INVALID),
    "an unknown kind": ('send(b"!")', INVALID),
    "values, which were not asked for": ('send(b"D", b"{}")', INVALID),
    "texts, which were not asked for": ('send(b"S", bytes(4))', INVALID),
    "an end with more": (GROUP + 'send(b".", b"x")', INVALID),
    "more after the end": (GROUP + 'send(b".", b"R" + bytes(8), 0)', "more than it was asked for"),
    "half a frame": ('out.write(b"R12"); out.flush()', "ended with status"),
    "less than it says": ('send(b"R", b"{}", 100)', "ended with status"),
    "a request of 3 bytes": ('send(b"G", b"abc")', INVALID),
    "a request of a megabyte": ('send(b"G", bytes(2**20))', INVALID),
    "a request for nothing": ("while True: want(0, 0)", "bytes that are not there"),
    "bytes behind the file": ("want(size - 1, 2)", "bytes that are not there"),
    "bytes at 2^63": ("want(2**63, 1)", "bytes that are not there"),
    "bytes up to 2^64": ("want(2**64 - 1, 2**64 - 1)", "bytes that are not there"),
    "nested without end": ('send(b"R", b"[" * 10**5)', RECORD),
    "no record": ('send(b"R", b"[]")', RECORD),
    "no text": ('send(b"R", b"\\xff")', RECORD),
    "an error of nothing": ('send(b"E", b"{}")', INVALID),
    "an error of a number": ('send(b"E", b"7")', INVALID),
    "a nested error": ('send(b"E", b"[" * 10**4)', INVALID),
    "a long error": ('send(b"E", json.dumps(["corrupt", "x" * 10**5]).encode())', INVALID),
    "a package to install": ('want(0, 8); take.read(8); send(b"E", b\'["missing", "h5py: use x"]\')', "h5py: use x"),
    "nothing": ('send(b".")', "no root group"),
    "no root": ('record(); send(b".")', "no root group"),
    "an attribute as root": ('record(path="", group=1); send(b".")', RECORD),
    "a path of a number": ('record(path=1); send(b".")', RECORD),
    "a path of half a letter": ('record(path="\\ud800"); send(b".")', RECORD),
    "an offset without end": (GROUP + 'record(offset=1e999); send(b".")', RECORD),
    "an offset of text": (GROUP + 'record(offset="8"); send(b".")', RECORD),
    "a number of 5000 digits": (GROUP + 'send(b"R", b\'{"path": "w", "offset": 1\' + b"0" * 5000 + b"}")', RECORD),
    "a negative shape": (GROUP + 'record(shape=[-1]); send(b".")', "negative"),
    "a shape of 2^80": (GROUP + 'record(shape=[2**80]); send(b".")', "elements"),
    "a shape of text": (GROUP + 'record(shape="ab"); send(b".")', RECORD),
    "a shape of a million axes": (GROUP + 'record(shape=[1] * 30000); send(b".")', RECORD),
    "a terabyte": (GROUP + 'record(shape=[2**38]); send(b".")', "declares 274877906944 elements"),
    "a terabyte of texts": (GROUP + 'record(shape=[2**38], dtype="string"); send(b".")', "declares 2748779"),
    "texts at a place": (GROUP + 'record(dtype="string", offset=8); send(b".")', "needs bytes 8"),
    "a dtype of strangers": (GROUP + 'record(dtype="os.system"); send(b".")', "has the dtype"),
    "a dtype that is a list": (GROUP + 'record(dtype=[]); send(b".")', RECORD),
    "attributes of nothing": (GROUP + 'record(attrs=3); send(b".")', RECORD),
    "an attribute of attributes": (GROUP + 'record(attrs={"a": {}}); send(b".")', RECORD),
    "an attribute of lists of lists": (GROUP + 'record(attrs={"a": eval("[" * 90 + "]" * 90)}); send(b".")', RECORD),
    "an offset behind the file": (GROUP + 'record(offset=10**9); send(b".")', "needs bytes"),
    "bytes that end behind the file": (GROUP + 'record(offset=size - 7); send(b".")', "needs bytes"),
    "a dataset twice": (GROUP + 'record(); record(shape=[1]); send(b".")', "have one name"),
    "a dataset that is a group": (GROUP + 'record(); record(group=True); send(b".")', "have one name"),
    "another name of what is not there": (GROUP + 'record(same="v"); send(b".")', "is not the dataset"),
    "another name of something else": (GROUP + 'record(); record(path="v", same="w", shape=[1])', "is not the dataset"),
    "a name of a control character": (GROUP + 'record(path="\\x1b[2J", dtype="x"); send(b".")', "has the dtype"),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMES)
def test_a_forged_frame_is_an_error(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, says = FRAMES[name]
    forge(code, monkeypatch)
    with pytest.raises(CorruptCheckpoint, match=says) as refused:
        ckptconv.open(file, format="hdf5")["w"].numpy()
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(("asked", "kind"), [("scan", "R"), ("read", "D"), ("read", "S")])
def test_an_answer_has_room_for_so_many_bytes(
    asked: str, kind: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all, not in each frame, and with the head of each."""
    monkeypatch.setattr(child, "MAX_FRAME", 2**20)
    size, head = file.stat().st_size, FRAME.size
    room = child.RECORD_RATIO * size + 2**20 if asked == "scan" else child.RATIO * size + 2**20
    image = child.FileImage("x", str(file), size, lambda: Reader(str(file)), size)
    for sent in (room, room + 1):
        frames = [2**19 - head] * ((sent - head) // 2**19) + [(sent - head) % 2**19 - head]
        forge(f'for n in {frames}: send(b"{kind}", bytes(n))\nsend(b".")', monkeypatch)
        one = child.Child(image)
        if sent == room:
            assert sum(head + len(body) for _, body in one.ask(do=asked)) == room - head
        else:
            with pytest.raises(CorruptCheckpoint, match="sent an invalid message"):
                list(one.ask(do=asked))
        one.close()


def test_records_are_not_kept_without_bound(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that they take here counts, which is many times what they take in the pipe."""
    forge(GROUP + 'record(attrs={"a": [[]] * 10**5}); record(path="v", attrs={"a": [[]] * 10**5})', monkeypatch)
    monkeypatch.setattr(records, "MORE_MEMORY", 20 << 20)
    with pytest.raises(UnsafeCheckpoint, match="more memory than it has bytes"):
        ckptconv.open(file, format="hdf5")


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
        'while True: time.sleep(0.3); record(path=f"{time.time()}")',
        "while True: want(0, 1); take.read(1)",
        "while True: want(0, size); take.read(size)",
        'while True: time.sleep(0.3); out.write(b"R"); out.flush()',
    ],
)
def test_it_cannot_keep_us_waiting(code: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(file, "ab") as f:
        f.write(bytes(2**20))
    monkeypatch.setattr(child, "SILENCE", 1.0)
    monkeypatch.setattr(child, "WAITING", 2 / (child.CPU_TOTAL + 1))
    monkeypatch.setattr(child, "FETCHING", 0)
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
        ('while True: send(b"D")', "float32"), ('while True: send(b"S", bytes(4))', "float32"),
        ('send(b"S", struct.pack("<I", 8) + bytes(8)); send(b".")', "float32"), ('send(b"R", b"{}")', "float32"),
        ('send(b"S", bytes(4)); send(b".")', "string"), ('send(b"S", bytes(400)); send(b".")', "string"),
        ('send(b"D", bytes(2**23 + 1)); send(b".")', "float32"), ('while True: send(b"S", bytes(2**20))', "string"),
    ],
)  # fmt: skip
def test_forged_values_are_errors(code: str, dtype: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = f'{GROUP} record(dtype="{dtype}"); send(b"."); take.readline()\n{code}'
    forge(answer, monkeypatch)
    with pytest.raises(CorruptCheckpoint):
        ckptconv.open(file, format="hdf5")["w"].numpy()
