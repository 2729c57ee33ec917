"""Processes of the HDF5 library that are forked from one that has imported it: a start takes 5 ms, not 200.

Tests whose subject the process is start it as users do: formats/hdf5/test_jail.py and test_sandbox.py.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache

from kit import ROOT

from ckptconv.formats.hdf5 import sandbox

SERVER = """
import os, signal, socket
from ckptconv.formats.hdf5 import worker
worker.rehearse()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
door = socket.socket(fileno=0)
while ends := socket.recv_fds(door, 1, 2)[1]:
    if not (pid := os.fork()):
        os.dup2(ends[0], 0), os.dup2(ends[1], 1), os.closerange(3, max(ends) + 1)
        worker.main()
    ends.append(os.pidfd_open(pid))
    socket.send_fds(door, [b"p"], ends[2:])
    [os.close(end) for end in ends]
"""


@cache
def _server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    code = f"import sys; sys.path[:] = {[str(ROOT), *sandbox.search_path()]!r}{SERVER}"
    served = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdin=theirs, env=os.environ | sandbox.SETTINGS)
    return ours, served


class Forked:
    """What `sandbox` needs of a process."""

    def __init__(self) -> None:
        self.door, _ = _server()
        (take, send), (receive, give) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(send, "wb"), os.fdopen(receive, "rb")
        socket.send_fds(self.door, [b"p"], [take, give])
        (self.handle,) = socket.recv_fds(self.door, 1, 1)[1]
        for end in (take, give):
            os.close(end)

    def poll(self) -> int | None:
        return self.wait(0)

    def wait(self, seconds: float | None = None) -> int | None:
        return -signal.SIGKILL if select.select([self.handle], [], [], seconds)[0] else None

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def __del__(self) -> None:
        os.close(self.handle)
