"""What code of an attacker in the HDF5 process can send: the process that reads it neither hangs, fills up nor breaks.

The other process of these tests is a script that speaks the protocol of worker.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ckptconv
from ckptconv.errors import CkptError, CorruptCheckpoint, MissingExtra, UnsafeCheckpoint
from ckptconv.formats.hdf5 import file as hdf5, sandbox

h5py = pytest.importorskip("h5py")
SCRIPT = """
import json, os, struct, sys, time
take, out = sys.stdin.buffer, sys.stdout.buffer
def send(kind, body=b"", size=None):
    out.write(struct.pack("<cI", kind, len(body) if size is None else size) + body); out.flush()
def record(**changed):
    send(b"R", json.dumps({"path": "w", "dtype": "float32", "shape": [2], "itemsize": 4, **changed}).encode())
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
    def start() -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-S", "-c", SCRIPT + code]
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)

    monkeypatch.setattr(sandbox, "_start", start)
    monkeypatch.setattr(sandbox, "_idle", {})


INVALID, RECORD, LOST = "an invalid message", "an invalid record", "crashed, or took too much"
MEMORY, ABSENT = "much more memory", "bytes that are not there"
FRAMES = {
    "a frame that is larger than the file can say": ('send(b"R", size=2**26)', LOST),
    "a frame of gigabytes": ('os.dup2(1, 7); send(b"G", size=2**32 - 1)', INVALID),
    "records without end": ('[record(path=f"{i:09999}") for i in range(10**4)]', MEMORY),
    "elements, which were not asked for": ('send(b"D", b"{}")', INVALID),
    "less than it says": ('send(b"R", b"{}", 100)', LOST),
    "a request of 3 bytes": ('send(b"G", b"abc")', LOST),
    "a request for nothing": ("while True: want(0, 0)", ABSENT),
    "bytes behind the file": ("want(size - 1, 2)", ABSENT),
    "bytes up to 2^64": ("want(2**64 - 1, 2**64 - 1)", ABSENT),
    "nested without end": ('send(b"R", b"[" * 10**5)', RECORD),
    "an error of nothing": ('send(b"C")', INVALID),
    "a missing package, after bytes of the file": ("want(0, 8); take.read(8); os._exit(1)", LOST),
    "nothing": ('send(b".")', "no root group"),
    "a number as group": ('record(path="", group=1); send(b".")', RECORD),
    "a field that no record has": ('record(more="x"); send(b".")', RECORD),
    "an offset without end": (GROUP + 'record(offset=1e999); send(b".")', RECORD),
    "a negative shape": (GROUP + 'record(shape=[-1]); send(b".")', "negative"),
    "a shape of 2^80": (GROUP + 'record(shape=[2**80]); send(b".")', "elements"),
    "a shape of a thousand axes": (GROUP + 'record(shape=[1] * 1000); send(b".")', "axes"),
    "a dtype of strangers": (GROUP + 'record(dtype="os.system"); send(b".")', "has the dtype"),
    "text": (GROUP + 'record(dtype="string"); send(b".")', "has the dtype"),
    "an offset behind the file": (GROUP + 'record(offset=10**9); send(b".")', "needs bytes"),
    "bytes that end behind the file": (GROUP + 'record(offset=size - 7); send(b".")', "needs bytes"),
    "bytes that overlap": (GROUP + '[record(path=str(i), offset=0) for i in range(size)]', "overlaps another"),
    "a dataset twice": (GROUP + 'record(); record(shape=[1]); send(b".")', "have one name"),
    "a name of a control character": (GROUP + 'record(path="\\x1b[2J", dtype="x"); send(b".")', "has the dtype"),
    "a terabyte": (GROUP + 'record(shape=[2**38]); send(b".")', "declares 1099511627776 bytes"),
    "a terabyte in parts": (GROUP + '[record(path=str(i), shape=[2**22]) for i in range(9)]', "are declared so far"),
    "memory": (GROUP + 'record(attrs={"a": [[]] * 2 * 10**5})', MEMORY),
    "its own words": ('send(b"U", b"\\x1b[2Jwhat" + b"x" * 9999)', "what"),
}  # fmt: skip
UNSAFE = {"records without end", "a terabyte", "a terabyte in parts", "memory", "its own words"}


@pytest.mark.parametrize("name", FRAMES)
def test_a_forged_frame_is_an_error(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, says = FRAMES[name]
    forge(code, monkeypatch)
    monkeypatch.setattr(hdf5, "MORE_MEMORY", 20 << 20)
    with pytest.raises(CkptError, match=says) as refused:
        ckptconv.open(file, from_="hdf5")["w"].numpy()
    assert type(refused.value) is (UnsafeCheckpoint if name in UNSAFE else CorruptCheckpoint)
    assert "\x1b" not in str(refused.value)
    assert len(str(refused.value)) < 6000


def test_another_name_of_what_is_skipped_is_skipped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forge(GROUP + 'record(skip="why"); record(path="v", same="w"); record(path="u", same="?"); send(b".")', monkeypatch)
    assert [n.names for n in hdf5.look(str(file)).notes] == [("w",), ("v", "u")]


def test_a_process_that_ends_before_it_has_seen_the_file_has_no_h5py(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge("raise ImportError", monkeypatch)
    with pytest.raises(MissingExtra, match="needs the package h5py"):
        ckptconv.open(file, from_="hdf5")


@pytest.mark.parametrize(
    "code",
    [
        "time.sleep(60)",
        "while True: want(0, size)",  # and does not read it
        'while True: time.sleep(0.3); record(path=f"{time.time()}")',
    ],
)
def test_it_cannot_keep_us_waiting(code: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 1.0)
    forge(code, monkeypatch)
    began = time.monotonic()
    with pytest.raises(CorruptCheckpoint, match=LOST):
        ckptconv.open(file, from_="hdf5")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "code",
    [
        'send(b"D", bytes(8) * 10**5); send(b".")', 'send(b".")', 'send(b"D", b"abc"); send(b".")',
        'while True: send(b"D", bytes(2**20))', 'while True: send(b"D")',
    ],
)  # fmt: skip
def test_forged_elements_are_errors(code: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forge(f'{GROUP} record(); send(b"."); take.readline()\n{code}', monkeypatch)
    with pytest.raises(CorruptCheckpoint, match=r"other values|invalid message"):
        ckptconv.open(file, from_="hdf5")["w"].numpy()


# --- which process serves -------------------------------------------------------------------------------------------


def served() -> list[sandbox.Worker]:
    return sandbox._idle[os.getpid()]


def test_a_process_serves_one_file_and_the_last_ones_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some, one more is started ahead."""
    monkeypatch.setattr(sandbox, "_idle", {})
    for i in range(4):
        with h5py.File(tmp_path / f"{i}.h5", "w") as f:
            f.create_dataset("w", data=[1.5], chunks=(1,))
        for _ in range(2):
            assert ckptconv.open(tmp_path / f"{i}.h5")["w"].numpy().tolist() == [1.5]
    assert len(served()) <= 4
    assert [w.name for w in served() if str(tmp_path / "3.h5") in w.name]
    (ahead,) = (w for w in served() if not w.name)
    with h5py.File(tmp_path / "5.h5", "w") as f:
        f.create_dataset("w", data=[1.5], chunks=(1,))
    ckptconv.open(tmp_path / "5.h5")
    assert "5.h5" in ahead.name
    ahead.process.kill()  # as a system that is short of memory does
    ahead.process.wait()
    assert ckptconv.open(tmp_path / "5.h5")["w"].numpy().tolist() == [1.5]


def test_a_process_that_worked_enough_is_replaced(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forge(f'{GROUP} record(); send(b".", b"x")', monkeypatch)
    list(sandbox.ask(hdf5.image(str(file))))
    assert served() == []


def test_the_process_has_little_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    code = "import os, sys; sys.stdout.write(repr(sorted(os.environ)))"
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **more: real([*command[:4], code], **more))
    shown = sandbox._start().communicate()[0].decode()
    assert "AWS_SECRET_ACCESS_KEY" not in shown
    assert "HDF5_PLUGIN_PRELOAD" in shown
