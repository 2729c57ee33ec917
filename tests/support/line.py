"""A line to a server of this machine: it counts requests and bytes, makes requests wait, and can be cut."""

from __future__ import annotations

import re
import socket
import threading
import time
from contextlib import suppress

REQUEST = re.compile(rb"(?:^|(?<=\n))(?:GET|HEAD|PUT|POST|DELETE) /")


class Line:
    """A TCP proxy: counts the bytes the server sends and the requests it gets, each of which waits `delay` seconds."""

    def __init__(self, port: int) -> None:
        self.received, self.requests, self.most, self.delay, self._to = 0, 0, 0, 0.0, port
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.port = 0
        self.mend()

    def cut(self) -> None:
        """As if the server was killed: connections end, and no more are accepted."""
        for s in (self._door, *self._open):
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def mend(self) -> None:
        self._door = socket.create_server(("127.0.0.1", self.port), backlog=1000)
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._door,), daemon=True).start()

    def _accept(self, door: socket.socket) -> None:
        while True:
            try:
                client, _ = door.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._to))
            for s in (client, server):  # otherwise small writes wait for what was acknowledged
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open |= {client, server}
            self.most = max(self.most, len(self._open) // 2)
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, down: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                begun = 0 if down else len(REQUEST.findall(data))
                with self._lock:
                    self.received += len(data) * down
                    self.requests += begun
                if begun and self.delay:
                    time.sleep(self.delay)
                sink.sendall(data)
        except OSError:
            pass
        self._open -= {source, sink}
        for s in (source, sink):
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        self.received = self.requests = self.most = 0
