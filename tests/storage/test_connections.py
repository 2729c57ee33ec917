"""Of the kinds of file systems that fsspec knows only those are opened that were examined, or that the user allows."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
from kit import ROOT

import ckptconv
from ckptconv.errors import CkptError, MissingExtra, StorageError, UsageError
from ckptconv.storage import files
from ckptconv.storage.connections import KINDS, connected

READ = {"s3", "s3a", "gs", "gcs", "hf", "http", "https", "memory", "file", "zip"}


def test_what_is_opened_was_examined() -> None:
    """Each of these: its requests end, it follows no redirect elsewhere, and leads to no file that was not named."""
    assert set(KINDS) == READ


@pytest.mark.parametrize("scheme", sorted({*fsspec.available_protocols(), "nonsense"} - READ))
def test_another_kind_is_refused(scheme: str) -> None:
    for url in (
        f"{scheme}://127.0.0.1:1/m.npz",
        f"{scheme}://m.npz::/tmp/x",
        f"zip://m.npz::{scheme}://127.0.0.1:1/x.zip",
    ):
        with pytest.raises(UsageError, match=r"is not opened"):
            files.exists(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://b/x::reference://y", "memory://x::memory://y", "memory://x::local:///etc/passwd", "file::reference://x",
        "zip://m::reference://x", "zip://m::zip://n::local:///x", "a/b::http://h/x", "simplecache::http://h/x",
        "filecache::memory://x", "tar://m.npz::/tmp/x.tar.bz2", "tar::http://h/x.tar", "zip://m", "zip://",
    ],
)  # fmt: skip
def test_no_chain_leads_round_it(url: str) -> None:
    with pytest.raises(UsageError):
        files.exists(url)


@pytest.mark.parametrize("folder", ["local://", "file://", ""])
def test_every_local_path_is_checked_for_links(folder: str, tmp_path: Path) -> None:
    """local:// read them as files of a store, of which none is a link."""
    (tmp_path / "elsewhere").mkdir()
    ckptconv.save({"w": np.arange(3.0)}, tmp_path / "elsewhere" / "x.safetensors")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "x.safetensors").symlink_to(tmp_path / "elsewhere" / "x.safetensors")
    index = {"metadata": {}, "weight_map": {"w": "x.safetensors"}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CkptError, match=r"symlink that leaves|is not opened"):
        ckptconv.open(f"{folder}{tmp_path}/m/model.safetensors.index.json")


@pytest.fixture
def hadoop() -> Iterator[tuple[str, list[str]]]:
    """A server that speaks webhdfs and sends who reads a file to another host."""
    asked = list[str]()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            asked.append(self.path)
            status = {"type": "FILE", "length": 300, "modificationTime": 1, "pathSuffix": "", "accessTime": 1}
            body = json.dumps({"FileStatus": status}).encode()
            self.send_response(307 if "OPEN" in self.path else 200)
            self.send_header("Location", f"http://localhost:{server.server_address[1]}/led")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"webhdfs://127.0.0.1:{server.server_address[1]}/m.npz", asked
    server.shutdown()
    server.server_close()


def test_a_server_of_another_kind_is_not_asked(hadoop: tuple[str, list[str]]) -> None:
    url, asked = hadoop
    with pytest.raises(UsageError, match="CKPTCONV_SCHEMES=webhdfs"):
        ckptconv.open(url)
    assert asked == []


def test_more_kinds_may_be_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ckptconv.save({"w": np.arange(3.0)}, "memory://chains/m.npz")
    monkeypatch.setenv("CKPTCONV_SCHEMES", "simplecache, dir,local, reference")
    assert list(ckptconv.open("simplecache::memory://chains/m.npz")) == ["w"]
    for url in ("tar://m::/x", f"local://{tmp_path}/x", "reference://x", "simplecache::reference://x"):
        with pytest.raises(UsageError, match=r"is not opened"):
            files.exists(url)
    with pytest.raises(UsageError, match="not a chain that can be read"):  # fsspec would unpack it
        files.exists("simplecache::zip://m::memory://x.zip")


def test_an_address_of_ipv6_is_not_a_chain() -> None:
    pytest.importorskip("aiohttp")
    for url in ("http://[::1]:1/m.npz?a=b::c", "https://[2001:db8::1]/m.npz"):
        fs, path = connected(url)
        assert type(fs).__name__ == "HTTPFileSystem"
        assert path == url
    with pytest.raises(StorageError, match=r"^http://\[::1\]:1/m.npz\?\.\.\.: "):
        ckptconv.open("http://[::1]:1/m.npz?sig=hush")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> object:
        raise ImportError("no aiohttp")

    monkeypatch.setattr("ckptconv.storage.lookups._connected", missing)
    with pytest.raises(MissingExtra, match=r"https:// needs another package: no aiohttp.*ckptconv\[http\]"):
        files.exists("zip://m::https://h/x.zip")


def test_no_extra_installs_an_older_aiohttp() -> None:
    """The clients of S3 and of Google's store are content with versions that have known flaws; the Hub's needs none."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    found = {name: re.search(rf'^{name} = \[.*?"(aiohttp[^"]*)"', text, re.MULTILINE) for name in ("http", "s3", "gs")}
    assert len({bound and bound[1] for bound in found.values()}) == 1
    assert found["http"] is not None
