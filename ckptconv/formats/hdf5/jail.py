"""What the child that runs the HDF5 library may import, and its seccomp filter: computing and the open pipes.

    capset(no capabilities)             root could raise its limits again, and take pages from the machine (madvise)
    prctl(PR_SET_NO_NEW_PRIVS)          without it only root may install a filter
    prctl(PR_SET_SECCOMP, FILTER, p)    p: a BPF program over {nr u32, arch u32, ip u64, args u64[6]}

Other system calls fail with EPERM: opening, linking, renaming and removing files, sockets, forks, exec, signals,
ptrace, setting limits, and reading another process's memory. Memory can be mapped but not made executable. Linux on
x86-64 and AArch64; elsewhere `enter` does nothing and returns False.

Specification: seccomp(2), linux/filter.h, capset(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

NO_NEW_PRIVS, SET_SECCOMP, GET_SECCOMP, FILTER = 38, 22, 21, 2
NO_CAPABILITIES = struct.pack("=Ii", 0x20080522, 0), bytes(24)  # version 3, this process; two sets of three words
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # the latter: fail with errno 1, EPERM
NUMBER, ARCHITECTURE, ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; arguments are 8 bytes each
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JSET|K, BPF_RET|K
EXECUTABLE = 4  # PROT_EXEC

# Calls for computing, allocating, reading and writing open files, and exiting: name -> number by architecture.
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FREE = {
    "x86_64": {
        "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "munmap": 11, "brk": 12, "rt_sigaction": 13,
        "rt_sigprocmask": 14, "rt_sigreturn": 15, "sched_yield": 24, "mremap": 25, "madvise": 28, "nanosleep": 35,
        "getpid": 39, "exit": 60, "getrusage": 98, "sigaltstack": 131, "gettid": 186, "futex": 202,
        "clock_gettime": 228, "clock_nanosleep": 230, "exit_group": 231, "getrandom": 318, "rseq": 334,
    },
    "aarch64": {
        "read": 63, "write": 64, "close": 57, "fstat": 80, "lseek": 62, "munmap": 215, "brk": 214, "rt_sigaction": 134,
        "rt_sigprocmask": 135, "rt_sigreturn": 139, "sched_yield": 124, "mremap": 216, "madvise": 233,
        "nanosleep": 101, "getpid": 172, "exit": 93, "getrusage": 165, "sigaltstack": 132, "gettid": 178, "futex": 98,
        "clock_gettime": 113, "clock_nanosleep": 115, "exit_group": 94, "getrandom": 278, "rseq": 293,
    },
}  # fmt: skip
# Allowed only if the third argument is harmless.
MAPPING = {"x86_64": {"mmap": 9, "mprotect": 10}, "aarch64": {"mmap": 222, "mprotect": 226}}  # third: not executable


def program(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter as (code, jump if true, jump if false, value); a jump is the number of instructions to skip."""
    out = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, MACHINES[machine]), (RETURN, 0, 0, REFUSE), (LOAD, 0, 0, NUMBER)]
    for number in FREE[machine].values():
        out += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    for number in MAPPING[machine].values():
        out += [(EQUAL, 0, 4, number), (LOAD, 0, 0, ARGUMENT + 16), (ANY_BIT, 0, 1, EXECUTABLE)]
        out += [(RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    return [*out, (RETURN, 0, 0, REFUSE)]


class _Program(ctypes.Structure):
    """struct sock_fprog: the number of instructions and their address."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def enter() -> bool:
    """Install the filter for the rest of this process's life; False if there is none for this system.

    OSError if there is one and it cannot be installed, or is not obeyed: an emulator may only say that it did.
    """
    machine = os.uname().machine if sys.platform == "linux" and ctypes.sizeof(ctypes.c_void_p) == 8 else ""
    if machine not in MACHINES:
        return False
    code = b"".join(struct.pack("=HBBI", *i) for i in program(machine))
    libc = ctypes.CDLL(None, use_errno=True)
    prctl = libc.prctl
    prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
    whole = _Program(len(code) // 8, code)
    if (
        libc.capset(*NO_CAPABILITIES)
        or prctl(NO_NEW_PRIVS, 1, None, 0, 0)
        or prctl(SET_SECCOMP, FILTER, ctypes.byref(whole), 0, 0)
    ):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    if prctl(GET_SECCOMP, 0, None, 0, 0) != -1:
        raise OSError(errno.ENOSYS, "the filter of system calls has no effect")
    return True
