"""A web server that does as a test says; pauses between the tries of a request are short here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import pytest
from webserver import Fault, Quietly, Serve, Web

from ckptconv.storage import web


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server with these attributes; `fault`: what it does with all requests. Its host and its class."""
    servers = []

    def start(fault: Fault | None = None, after: int = 0, **attributes: Any) -> tuple[str, type[Web]]:
        faults = chain(repeat(None, after), repeat(fault))
        kind = type("Served", (Web,), {"seen": [], "faults": faults, **attributes})
        server = Quietly(("127.0.0.1", 0), kind)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_address[1]}", kind

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "FIRST", 0.01)
