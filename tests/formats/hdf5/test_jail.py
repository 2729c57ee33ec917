"""The filter of the HDF5 child, run by an interpreter of its own: which calls are allowed on which machine."""

from __future__ import annotations

import errno
import os
import re
import signal
import struct
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

import ckptconv
from ckptconv.errors import UnsafeCheckpoint
from ckptconv.formats.hdf5 import sandbox, worker

# The numbers of Linux (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h), written here again.
FREE = {
    "x86_64": {0, 1, 3, 5, 8, 11, 12, 13, 14, 15, 24, 25, 28, 35, 39, 60, 98, 131, 186, 202, 228, 230, 231, 318, 334},
    "aarch64": {
        57, 62, 63, 64, 80, 93, 94, 98, 101, 113, 115, 124, 132, 134, 135, 139, 165, 172, 178, 214, 215, 216, 233, 278,
        293,
    },
}  # fmt: skip
MAPS = {"x86_64": {9, 10}, "aarch64": {222, 226}}  # mmap, mprotect
PROBES = {"x86_64": {335, 336}, "aarch64": set[int]()}  # kernels ask no filter, but end a process that calls them
AUDIT = {"x86_64": 62 | 1 << 31 | 1 << 30, "aarch64": 183 | 1 << 31 | 1 << 30}  # EM_..., 64 bits, little-endian
ALLOWED, REFUSED = 0x7FFF << 16, 5 << 16 | errno.EPERM  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO


def verdict(program: list[tuple[int, int, int, int]], data: bytes) -> int:
    """What the kernel's interpreter returns for one call."""
    at, value = 0, 0
    for _ in range(len(program)):
        code, yes, no, k = program[at]
        at += 1
        if code == 0x20:  # load a word
            (value,) = struct.unpack_from("=I", data, k)
        elif code in (0x15, 0x45):  # jump if equal, if a bit is set
            at += yes if (value == k if code == 0x15 else value & k) else no
        else:
            assert code == 0x06  # return
            return k
    raise AssertionError("the filter does not end")


def call(machine: str, number: int, *args: int, architecture: int = 0) -> bool:
    words = [*args, *[0] * (6 - len(args))]
    data = struct.pack("=IIQ6Q", number, architecture or AUDIT[machine], 0, *words)
    found = verdict(worker.program(machine), data)
    assert found in (ALLOWED, REFUSED)
    return found == ALLOWED


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_only_these_calls_are_allowed(machine: str) -> None:
    assert {n for n in range(460) if call(machine, n)} == FREE[machine] | MAPS[machine]
    everything = [2**64 - 1] * 6
    assert {n for n in range(460) if call(machine, n, *everything)} == FREE[machine]
    assert not any(call(machine, n | 1 << 30) for n in range(460))  # the calls of x32


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_what_is_mapped_is_not_executable(machine: str) -> None:
    for number in MAPS[machine]:
        for protection in range(8):
            assert call(machine, number, 2**64 - 1, 2**64 - 1, protection, 4, 4, 4) is not bool(protection & 4)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_call_of_another_architecture_is_refused(machine: str) -> None:
    (other,) = {*AUDIT.values()} - {AUDIT[machine]}
    for architecture in (other, 3 | 1 << 30):  # EM_386: its numbers mean other calls
        assert not any(call(machine, n, architecture=architecture) for n in range(460))


INSTALLED = [  # what capset and three calls of prctl answer: each may fail; the last shows whether it is obeyed
    ("x86_64 linux", [0, 0, 0, -1], ""), ("x86_64 linux", [-1], "not permitted"),
    ("x86_64 linux", [0, -1], "not permitted"), ("x86_64 linux", [0, 0, -1], "not permitted"),
    ("x86_64 linux", [0, 0, 0, 0], "no effect"), ("riscv64 linux", [], ""), ("x86_64 darwin", [], ""),
]  # fmt: skip


@pytest.mark.parametrize(("system", "answers", "says"), INSTALLED)
def test_whether_it_is_installed(system: str, answers: list[int], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere nothing is called."""
    left = [*answers]

    class Call:
        def __call__(self, *_: object) -> int:
            return left.pop(0)

    machine, platform = system.split()
    monkeypatch.setattr(worker.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(prctl=Call(), capset=Call()))
    monkeypatch.setattr(worker.ctypes, "get_errno", lambda: errno.EPERM)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine), raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(OSError, match=says) if says else nullcontext():
        assert worker.enter_jail() is bool(answers)
    assert left == []


def test_no_file_is_read_where_the_jail_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of a child that could not enter it; limits are set all the same."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["w"] = [1.0]
    code = "from ckptconv.formats.hdf5 import worker\ndef enter(): raise OSError(38, 'no such call')\n"
    code += "worker.enter_jail = enter; worker.main()"

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr(sandbox, "_start", start)
    monkeypatch.setattr(sandbox, "_idle", {})
    with pytest.raises(UnsafeCheckpoint, match="does not let the process of the HDF5 library give up its rights"):
        ckptconv.open(tmp_path / "a.h5")
    monkeypatch.setenv("CKPTCONV_UNJAILED", "1")
    (tmp_path / "a.h5").rename(tmp_path / "b.h5")  # what was found of the other one is remembered
    assert ckptconv.open(tmp_path / "b.h5")["w"].numpy().tolist() == [1.0]


@pytest.mark.skipif(sys.platform != "linux", reason="the filter of system calls is Linux's")
def test_a_process_that_serves_is_in_jail(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["w"] = [1.0]
    ckptconv.open(tmp_path / "a.h5")
    (serving,) = (w for w in sandbox._idle[os.getpid()] if str(tmp_path) in w.name)
    proc = Path(f"/proc/{serving.process.pid}")
    status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert {int(status[f"Cap{of}"], 16) for of in ("Inh", "Prm", "Eff")} == {0}
    assert len(list((proc / "fd").iterdir())) == 3  # its pipes, and errors to nowhere
    limits = (proc / "limits").read_text()
    for what in ("core file size", "file size", "open files"):
        assert re.search(rf"^Max {what} +0 +0 ", limits, re.MULTILINE)
    assert re.search(r"^Max address space +\d+ +\d+ ", limits, re.MULTILINE)
    assert re.search(r"^Max cpu time +\d+ +\d+ ", limits, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no such limits there")
def test_a_process_that_goes_in_circles_is_ended() -> None:
    code = (
        "from ckptconv.formats.hdf5 import worker; worker.CPU = 1; worker.rehearse(); worker.seal(0)\nwhile True: pass"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode in (-signal.SIGXCPU, -signal.SIGKILL)


JAILED = """
import ctypes, mmap, resource, sys
from ckptconv.formats.hdf5 import worker
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *args):
    ctypes.set_errno(0)
    return "EPERM" if libc.syscall(number, *map(ctypes.c_long, args)) == -1 and ctypes.get_errno() == 1 else "done"
foreign = None
if {machine!r} == "x86_64":  # mov eax, NUMBER; int 0x80; ret: a call of 32 bits
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(b"\\xb8" + (20).to_bytes(4, "little") + b"\\xcd\\x80\\xc3")
    foreign = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
worker.rehearse()
worker.seal(0)
for base in (0, 1 << 30):
    bad = [n for n in range(600) if (base or n not in {allowed!r}) and call(base + n, -1, 0, 0, 0, 0, 0) != "EPERM"]
    print(bad)
print(foreign and foreign())
for what in range(16):
    soft, hard = 99, 1 << 40
    try:
        resource.setrlimit(what, (soft, hard))
        print("raised", what)
    except (OSError, ValueError):
        pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the filter of system calls is Linux's")
def test_no_other_call_is_answered() -> None:
    """Each number is tried in the jail, also in the ways of 32 bits; and no limit can be raised, by root either."""
    machine = os.uname().machine
    if machine not in FREE:
        pytest.skip("no jail here")
    allowed = FREE[machine] | MAPS[machine] | PROBES[machine]
    code = JAILED.replace("{machine!r}", repr(machine)).replace("{allowed!r}", repr(allowed))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    foreign = "-1" if machine == "x86_64" else "None"
    assert (done.stdout.split("\n"), done.returncode) == (["[]", "[]", foreign, ""], 0), done.stderr
