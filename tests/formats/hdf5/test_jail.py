"""The filter of the HDF5 child, run by an interpreter of its own: which calls are allowed on which machine."""

from __future__ import annotations

import errno
import os
import struct
import sys
from types import SimpleNamespace

import pytest

from ckptconv.formats.hdf5 import jail

# The numbers of Linux (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h), written here again.
FREE = {
    "x86_64": {0, 1, 3, 5, 8, 11, 12, 13, 14, 15, 24, 25, 28, 35, 39, 60, 98, 131, 186, 202, 228, 230, 231, 318, 334},
    "aarch64": {
        57, 62, 63, 64, 80, 93, 94, 98, 101, 113, 115, 124, 132, 134, 135, 139, 165, 172, 178, 214, 215, 216, 233, 278,
        293,
    },
}  # fmt: skip
MAPS = {"x86_64": {9, 10}, "aarch64": {222, 226}}  # mmap, mprotect
LIMITS = {"x86_64": {302}, "aarch64": {261}}  # prlimit64
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
    found = verdict(jail.program(machine), data)
    assert found in (ALLOWED, REFUSED)
    return found == ALLOWED


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_only_these_calls_are_allowed(machine: str) -> None:
    assert {n for n in range(460) if call(machine, n)} == FREE[machine] | MAPS[machine] | LIMITS[machine]
    everything = [2**64 - 1] * 6
    assert {n for n in range(460) if call(machine, n, *everything)} == FREE[machine]
    assert not any(call(machine, n | 1 << 30) for n in range(460))  # the calls of x32


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_what_is_mapped_is_not_executable(machine: str) -> None:
    for number in MAPS[machine]:
        for protection in range(8):
            assert call(machine, number, 2**64 - 1, 2**64 - 1, protection, 4, 4, 4) is not bool(protection & 4)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_limits_are_its_own(machine: str) -> None:
    for number in LIMITS[machine]:
        assert [call(machine, number, process, 7, 7, 7) for process in (0, 1, 2**31)] == [True, False, False]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_call_of_another_architecture_is_refused(machine: str) -> None:
    (other,) = {*AUDIT.values()} - {AUDIT[machine]}
    for architecture in (other, 3 | 1 << 30):  # EM_386: its numbers mean other calls
        assert not any(call(machine, n, architecture=architecture) for n in range(460))


@pytest.mark.parametrize(("machine", "platform"), [("riscv64", "linux"), ("x86_64", "darwin")])
def test_elsewhere_nothing_is_done(machine: str, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a library was called")

    monkeypatch.setattr(jail.ctypes, "CDLL", refuse)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine), raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    assert jail.enter() is False


@pytest.mark.parametrize(
    ("answers", "entered", "asked"), [((0, 0), True, [38, 22]), ((0, -1), False, [38, 22]), ((-1, 0), False, [38])]
)
def test_whether_it_could_be_installed(
    answers: tuple[int, int], entered: bool, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PR_SET_NO_NEW_PRIVS with 1 comes before PR_SET_SECCOMP with a filter (2) of the whole program."""
    calls: list[tuple[object, ...]] = []
    left = list(answers)

    class Prctl:
        argtypes: object = None

        def __call__(self, *args: object) -> int:
            calls.append(args)
            return left.pop(0)

    kept = [Prctl()]
    monkeypatch.setattr(jail.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(prctl=kept[0]))
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="x86_64"), raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert jail.enter() is entered
    assert [c[0] for c in calls] == asked
    assert calls[0] == (38, 1, None, 0, 0)  # Linux wants zeros for what it does not use
    assert len(kept[0].argtypes) == 5  # type: ignore[arg-type]
    if len(calls) > 1:
        assert calls[1][1] == 2
        assert calls[1][3:] == (0, 0)
        assert calls[1][2]._obj.length == len(jail.program("x86_64"))  # type: ignore[attr-defined]
        assert struct.calcsize("=HBBI") == 8
