"""The web as it is: servers that redirect, drip, refuse; urls with secrets; names that would be more than names."""

from __future__ import annotations

import gzip
import json
import logging
import socket
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from kit import Run
from webserver import Fault, Serve, Web

import ckptconv
from ckptconv.api.options import Options
from ckptconv.bulk import discover
from ckptconv.bulk.planning import read_ledger
from ckptconv.errors import CkptError, CorruptCheckpoint, StorageError, UnsafeCheckpoint
from ckptconv.reporting.serve import Offered, Shelf
from ckptconv.storage import faults, files, lookups, paths, remote, web

pytest.importorskip("urllib3", reason="the extra http is not installed")


@pytest.fixture
def npz(tmp_path: Path) -> bytes:
    ckptconv.save({"w": np.arange(3.0)}, tmp_path / "src.npz")
    return (tmp_path / "src.npz").read_bytes()


@pytest.mark.parametrize("name", ["my%20model", "my model", "50%25", "a%2Bb+c", "%c3%a9t%C3%A9", "\u00e9t\u00e9"])
def test_the_files_of_a_bundle_are_asked_for_by_one_name(name: str, serve: Serve, tmp_path: Path) -> None:
    """A url may have escapes, which the names of its data files must not get a second time."""
    ckptconv.save({"w": np.arange(3.0)}, tmp_path / f"{unquote(name)}.ckpt", to="tf")
    host, _ = serve(files=tmp_path)
    for typed in (f"{name}.ckpt.index", f"{name}.ckpt"):
        assert ckptconv.open(f"http://{host}/{typed}")["w"].numpy().tolist() == [0, 1, 2]


def to(target: str) -> Fault:
    """A redirect."""
    return lambda server: server.answer(302, Location=target)


def test_a_redirect_stays_with_the_host_that_was_named(
    serve: Serve, npz: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with its port: another service of this machine answers only to this machine."""
    at, kept = serve(files={"/m.npz": npz})
    elsewhere = at.replace("127.0.0.1", "localhost")
    for target, where in ((at, at), (elsewhere, "localhost")):
        with pytest.raises(StorageError, match=f"redirects to http://{where}, another host"):
            ckptconv.open(f"http://{serve(to(f'http://{target}/m.npz'))[0]}/m.npz")
    assert kept.seen == []
    monkeypatch.setenv("CKPTCONV_REDIRECTS", "example.org, localhost")
    assert list(ckptconv.open(f"http://{serve(to(f'http://{elsewhere}/m.npz'))[0]}/m.npz")) == ["w"]


def test_a_redirect_on_the_same_server_is_followed(serve: Serve, npz: bytes) -> None:
    def moved(server: Web) -> None:
        server.sound() if server.path == "/new" else server.answer(302, Location="/new")

    assert list(ckptconv.open(f"http://{serve(moved, files={'/new': npz})[0]}/m.npz")) == ["w"]


@pytest.mark.parametrize("login", ["me:hush", "me", ":hush"])
def test_a_redirect_brings_no_login(login: str, serve: Serve) -> None:
    """On the same server, too: the request would be sent as somebody whom a stranger chose."""
    host, server = serve(lambda server: server.answer(302, Location=f"http://{login}@{server.headers['Host']}/x"))
    with pytest.raises(StorageError, match="redirects to an address with a login that you did not give") as refused:
        ckptconv.open(f"http://{host}/m.npz")
    assert {path for path, _ in server.seen} == {"/m.npz"}
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    "target",
    [
        "file:///etc/passwd", "ftp://{}/x", "ws://{}/x", "data:,x", "javascript:1", "http://[", "http://{}9999/x",
        "//localhost:{port}/x", "http://169.254.169.254/x", "http://[::1]:{port}/x", "http://127.1:{port}/x",
        "http://2130706433:{port}/x", "http://0x7f.1:{port}/x", "http://127.0.0.1.:{port}/x", "http://me:hush@{}/x",
        "HTTP://LOCALHOST:{port}/x", "http://{}@localhost:{port}/x", "http://localhost:{port}#@{}/x",
    ],
)  # fmt: skip
def test_no_redirect_leads_elsewhere(target: str, serve: Serve, npz: bytes) -> None:
    at, kept = serve(files={"/x": npz})
    host, _ = serve(to(target.format(at, port=at.partition(":")[2])))
    with pytest.raises(StorageError, match="the server redirects to") as refused:
        ckptconv.open(f"http://{host}/m.npz")
    assert kept.seen == []
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("source", "target", "follows"),
    [
        ("https://a.org", "https://a.org", True), ("https://a.org", "https://b.org", False),
        ("https://a.org", "https://x.a.org", False), ("https://a.org", "http://a.org", False),
        ("http://a.org", "https://a.org:443", True), ("http://a.org", "http://a.org:8080", False),
        ("http://a.org:80", "http://a.org", True), ("https://a.org", "https://a.org:80", False),
        ("http://a.org", "ftp://a.org", False), ("https://a.org:8443", "https://a.org:8443", True),
        ("https://huggingface.co", "https://cas-bridge.xethub.hf.co", True),
        ("https://huggingface.co", "https://cas-bridge.xethub.hf.co:8443", False),
        ("https://huggingface.co", "https://evil-hf.co", False),
        ("https://github.com", "https://release-assets.githubusercontent.com", True),
    ],
)  # fmt: skip
def test_where_redirects_may_lead(source: str, target: str, follows: bool) -> None:
    assert web.may_lead(f"{source}/x", f"{target}/y") is follows


def sending(claimed: int, *, drip: bool = True, ranged: bool = False) -> Fault:
    """Claim a size, and send a byte at a time, or a little and then nothing; ranges are sent to the end, but late."""

    def fault(server: Web) -> None:
        start, end = server.span or (0, claimed)
        about = {"Content_Range": f"bytes {start}-{end - 1}/{claimed}"} if ranged and server.span else {}
        server.send_response(206 if about else 200)
        for name, value in {"Content-Length": str(end - start if about else claimed), **about}.items():
            server.send_header(name.replace("_", "-"), value)
        server.end_headers()
        while True:
            server.wfile.write(b"x" * (1 if drip else 1000))
            time.sleep(0.2 if drip else 30)

    return fault


def continuing(server: Web) -> None:
    while True:
        server.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [sending(100_000), sending(100_000, ranged=True), lambda server: time.sleep(30), continuing]
)
def test_a_server_that_drips_or_is_silent_ends(fault: Fault, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTCONV_TIMEOUT", "1")
    monkeypatch.setattr(web, "RATE", 10**9)
    with pytest.raises(StorageError, match="timed out"):
        ckptconv.open(f"http://{serve(fault)[0]}/m.npz")


@pytest.mark.parametrize("fault", [sending(10**9, drip=False), sending(10**9)])
def test_a_size_that_a_server_claims_gives_it_no_time(
    fault: Fault, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ranges, it would take hours."""
    monkeypatch.setenv("CKPTCONV_TIMEOUT", "1")
    monkeypatch.setattr(web, "TRIES", 1)
    began = time.monotonic()
    with pytest.raises(StorageError, match="timed out"):
        ckptconv.open(f"http://{serve(fault)[0]}/m.safetensors")
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("ranged", [False, True])
def test_a_version_that_is_another_now(ranged: bool, serve: Serve, tmp_path: Path) -> None:
    """The header of one file was read, and the values of the one that had come in its place."""
    host, server = serve(files=tmp_path, ranged=ranged, stamps={"ETag": "v0"})
    ckptconv.save({"w": np.zeros(200_000, "f4")}, tmp_path / "m.safetensors", hash=False)
    opened = ckptconv.open(f"http://{host}/m.safetensors")
    np.testing.assert_array_equal(opened["w"].numpy(), np.zeros(200_000, "f4"))
    ckptconv.save({"w": np.ones(200_000, "f4")}, tmp_path / "m.safetensors", hash=False, force=True)
    server.stamps = {"ETag": "v1"}
    remote._whole.cache_clear()  # of what was copied whole, the copy is read again
    with pytest.raises(CorruptCheckpoint, match="changed"):
        opened["w"].numpy()
    with pytest.raises(CorruptCheckpoint, match="changed"):
        ckptconv.save(opened, tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


def test_an_empty_file_has_no_first_byte(serve: Serve) -> None:
    host, _ = serve(lambda server: server.answer(416, Content_Range="bytes */0"))
    with files.Reader(f"http://{host}/empty") as f:
        assert (f.size, f.read(0, 0)) == (0, b"")


PIECE, ENDLESS = 2**16, 2**28  # the latter stands for an answer without end


RANGE, CHUNKED = "Content-Range: bytes {}-/*", "Transfer-Encoding: chunked"
CHUNK = b"%x\r\n%b\r\n" % (PIECE, bytes(PIECE))
PACKED = gzip.compress(bytes(2**24), 1)
LIARS: dict[str, tuple[int, int, list[str], bytes, int, str]] = {
    # the status and the size that it says, headers, what it sends, how much of it at most, what is said
    "a range without end": (206, 10**6, [RANGE, CHUNKED], CHUNK, ENDLESS, "more came"),
    "a whole file without end": (200, 100, [RANGE, CHUNKED], CHUNK, ENDLESS, "more came"),
    "a whole file in place of a range": (200, 10**6, [RANGE, CHUNKED], CHUNK, ENDLESS, "more came"),
    "a range without a name": (206, 10**6, [CHUNKED], CHUNK, ENDLESS, "more came"),
    "another range": (206, 10**6, ["Content-Range: bytes 7-/*", CHUNKED], CHUNK, ENDLESS, "from 7 came"),
    "a bomb": (206, 10**6, [RANGE, "Content-Encoding: gzip", f"Content-Length: {len(PACKED)}"], PACKED, 1,
               "packed, although that was not requested"),
    "a short range": (206, 10**6, [RANGE, "Content-Length: 0"], b"", 0, "0 came"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIARS)
def test_a_server_that_lies_is_not_read_to_its_end(name: str, serve: Serve) -> None:
    status, size, headers, piece, most, says = LIARS[name]
    sent = [0]

    def lie(server: Web) -> None:
        if len(server.seen) == 1:
            server.answer(206, b"x", Content_Range=f"bytes 0-0/{size}")
            return
        lines = [f"HTTP/1.1 {status} OK", *headers, "Connection: close", "", ""]
        server.wfile.write("\r\n".join(lines).format((server.span or (0,))[0]).encode())
        while sent[0] < most:
            server.wfile.write(piece)
            sent[0] += PIECE

    with pytest.raises(CkptError, match=says):
        ckptconv.open(f"http://{serve(lie)[0]}/m.npz")
    assert sent[0] < ENDLESS / 4  # what the buffers of the system hold


@pytest.mark.parametrize("version", ["ETag", "Last-Modified", "both", "length", ""])
def test_a_file_that_changes_is_an_error(version: str, serve: Serve, tmp_path: Path) -> None:
    """Of a server that names no version it cannot be seen."""

    def stamps(count: int, later: int) -> dict[str, str]:
        both = {"ETag": f'"{later}"', "Last-Modified": f"Tue, 24 Nov 2026 08:0{later}:00 GMT"}
        if version == "both":  # of two machines that serve one file, ETags are the same
            return both | {"Last-Modified": f"Tue, 24 Nov 2026 08:0{count % 7}:00 GMT"}
        return {k: v for k, v in both.items() if k == version}

    def changing(server: Web) -> None:
        type(server).stamps = stamps(len(server.seen), len(server.seen) > 4)
        server.sound()

    ckptconv.save({"w": np.zeros(2**20, np.uint8)}, path := tmp_path / "m.safetensors", hash=False)
    host, server = serve(changing, files=tmp_path)
    with lookups.cached_lookups(), files.Reader(f"http://{host}/m.safetensors") as f:
        f.read(2**18, 9)
        server.seen += [("", "")] * 9
        path.write_bytes(path.read_bytes() + b"x" * (version == "length"))
        with pytest.raises(CorruptCheckpoint, match="changed while it was read") if version else nullcontext():
            f.read(2**19, 9)


def test_a_page_of_links_is_not_a_folder(serve: Serve) -> None:
    host, server = serve(files={"/": b"<a href=/m.npz>"})
    with pytest.raises(StorageError, match="a web server does not list its files"):
        discover.discover([f"http://{host}/*.npz"])
    assert "/" not in {path for path, _ in server.seen}


def test_no_server_and_no_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    with pytest.raises(StorageError, match="refuses the connection"):
        ckptconv.open(f"http://127.0.0.1:{port}/m.npz")
    with pytest.raises(StorageError, match="the host is unknown"):
        ckptconv.open("http://no-such-host.invalid/m.npz")


def test_what_is_no_web_server_is_not_a_missing_file(serve: Serve) -> None:
    for url, says in (
        (f"https://{serve()[0]}/m.npz", "no secure connection to the server, which may know http only, not https$"),
        ("http://127.0.0.1:99999/m.npz", "the address is not valid"),
        ("http:///m.npz", "the address is not valid"),
    ):
        with pytest.raises(StorageError, match=says):
            ckptconv.open(url)


@pytest.mark.parametrize(
    "url",
    [
        "reference://x", "local:///etc/passwd", "ftp://127.0.0.1:1/m.npz", "zip://m.npz::missing.zip", "nonsense://x",
        "zip://::", "http://", "http://[", "github://a", "file::reference://x", "simplecache::memory://x", "sftp://h/x",
        "hdfs://h/x", "http://[::1]:1/m.npz?a=b::c",
    ],
)  # fmt: skip
def test_no_url_gives_a_traceback(url: str) -> None:
    with pytest.raises(CkptError):
        ckptconv.open(url)


# --- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x?a=1", "x#y", "..%2fsecret", "%2e%2e%2fsecret", "x%00", "secret?", "secret#"])
def test_a_name_in_an_index_is_a_name(name: str, serve: Serve) -> None:
    """It reaches the file that is called so, and nothing else that the server has."""
    index = json.dumps({"metadata": {}, "weight_map": {"w": name}}).encode()
    host, server = serve(files={"/d/model.safetensors.index.json": index, "/secret": b"hush", "/d/secret": b"hush"})
    with pytest.raises(CkptError):
        ckptconv.open(f"http://{host}/d/model.safetensors.index.json")
    asked = {path for path, _ in server.seen if "index" not in path}
    assert all(unquote(path) == f"/d/{name}" for path in asked), asked
    for folder in ("s3://b/d", "memory://d"):
        if "?" in name or "#" in name:
            with pytest.raises(UnsafeCheckpoint):
                paths.sibling(f"{folder}/index.json", name)


# --- secrets ----------------------------------------------------------------------------------------------------


def test_no_traceback_shows_secrets(serve: Serve) -> None:
    """The cause of an error is kept, as a built-in one, its text without secrets."""

    with socket.create_server(("127.0.0.1", 0)) as door:
        closed = f"127.0.0.1:{door.getsockname()[1]}"
    for host, kind in (
        (closed, "NewConnectionError"), ("no-such-host.invalid", "NameResolution"), ("h:99999", "StorageError"),
        (serve(lambda server: server.answer(403))[0], "Answered"), (serve()[0], "MissingFile"),
    ):  # fmt: skip
        with pytest.raises(CkptError) as refused:
            ckptconv.open(f"http://me:hu'sh-hush@{host}/m.npz?sig=hush and hush")
        e = refused.value
        shown = "".join(traceback.format_exception(type(e), e, e.__traceback__))
        raised = [line for line in shown.split("\n") if not line.startswith(" ")]
        assert "hush" not in "".join(raised)
        assert kind in "".join(raised)


@pytest.mark.parametrize("said", ["got 'me:hush'", "no user hush", "of hf://me:hush@org/x"])
def test_no_message_of_a_library_shows_a_part_of_a_login(said: str) -> None:
    """The client of the Hub names what it takes for a repository."""
    with pytest.raises(StorageError) as refused, faults.translate_errors("hf://me:hush@org/x"):
        raise RuntimeError(said)
    e = refused.value
    assert "hush" not in "".join(traceback.format_exception_only(type(e), e)) + str(e.__cause__)


@pytest.mark.slow
def test_secrets_reach_no_output(
    serve: Serve, npz: bytes, tmp_path: Path, cli: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "ckptconv")
    damaged = npz[:200] + bytes([npz[200] ^ 1]) + npz[201:]  # among the elements
    host, _ = serve(files={f"/d/{name}.npz": npz for name in "mn"} | {"/d/bad.npz": damaged})
    url = f"http://me:hush@{host}/d/m.npz?X-Sig=hush"
    out = tmp_path / "work"
    out.mkdir()
    said = [
        cli("inspect", url, "--json"),
        cli("inspect", url),
        cli("report", url, "-o", out / "r.html"),
        cli("report", url, url.replace("m.npz", "n.npz"), "-o", out / "two.html"),
        cli("match", url, url.replace("m.npz", "n.npz"), "-o", out / "rules.toml"),
        cli("convert", url, "-o", out / "n.safetensors", "--dry-run", "--json"),
        cli("convert", url, "-o", url.replace("m.npz", "there.npz"), "--json"),
        cli("verify", url, url.replace("m.npz", "bad.npz"), "--json"),
        cli("convert", url, "-o", out / "m.safetensors", "--json"),
        cli("diff", url, out / "m.safetensors", "--json"),
        cli("zoo", url, "-o", out / "zoo", "--json"),
        cli("zoo", url, "-o", out / "zoo2", "--dry-run", "--json"),
    ]
    for done in said:
        assert "hush" not in done.stdout + done.stderr, done.args
    both = Shelf(lambda: [Offered(u, u, 1, "") for u in (url, url.replace("m.npz", "n.npz"))], Options())
    pages = [both.listing(), both.page(0, lambda: None), both.page(1, lambda: None, whole=True)]
    assert "hush" not in "".join([*pages, both.series(0, 1, lambda: None, pair=True)])
    sent = ckptconv.convert(url, "memory://me:hush@there/m.npz")
    assert "hush" not in f"{sent} {sent!r} {sent.to_json()} {caplog.text}"
    for path in out.rglob("*"):
        assert "hush" not in path.name
        assert not path.is_file() or b"hush" not in path.read_bytes(), path
    assert (out / "zoo" / "m.safetensors").exists()
    assert all("hush" not in e.line().decode() for e in read_ledger(str(out / "zoo")).values())
