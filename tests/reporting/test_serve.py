"""The server of pages: who is refused, what is read, and how a matrix is enlarged in a browser."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_IMODE
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

import numpy as np
import pytest
from browser import Browser
from kit import Run, page_data

import ckptconv
from ckptconv.api.options import Options
from ckptconv.cli.report import found
from ckptconv.moves.sources import Sources
from ckptconv.reporting import serve
from ckptconv.reporting.pictures import matrix, region

DRAW = np.random.default_rng(0)
HOSTILE = "<img src=x onerror=alert(1)>\"'&.npz"


@contextmanager
def serving(what: Path | list[serve.Offered]) -> Iterator[serve.Server]:
    """A server of what is in a folder, or of these."""
    with serve.Server(serve.Shelf(lambda: what if isinstance(what, list) else found([str(what)]), Options())) as made:
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield made
        made.shutdown()


class Got:
    """An answer."""

    def __init__(self, to: serve.Server, path: str, method: str = "GET", **headers: str) -> None:
        port = to.server_address[1]
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        named = {k.replace("_", "-"): v for k, v in headers.items()}
        line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for key, value in {"Host": f"127.0.0.1:{port}", **named}.items():
            line.putheader(key, value)
        line.endheaders()
        answer = line.getresponse()
        self.status, self.headers, self.text = answer.status, dict(answer.headers), answer.read().decode()
        line.close()

    def json(self) -> Any:
        return json.loads(self.text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("zoo")
    arrays = {"big": DRAW.normal(size=(600, 900)).astype("f4"), "small": np.arange(6, dtype="f2")}
    ckptconv.save(arrays, made / "a.safetensors")
    ckptconv.save({n: x + 1 for n, x in arrays.items()}, made / "b.safetensors")
    ckptconv.save(arrays, made / HOSTILE)
    (made / "torn.safetensors").write_bytes(b"\xff" * 64)
    (made.parent / "secret.npz").write_bytes((made / HOSTILE).read_bytes())
    return made


@pytest.fixture(scope="module")
def zoo(folder: Path) -> Iterator[serve.Server]:
    with serving(folder) as made:
        yield made


def base(of: serve.Server) -> str:
    return f"/{of.token}/"


def number(of: serve.Server, name: str) -> str:
    """The page of a checkpoint, by its name in the list."""
    found = re.search(rf'<a href="(\d+)/">{re.escape(name)}</a>', Got(of, base(of)).text)
    assert found, name
    return f"{base(of)}{found[1]}/"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("", {}, 200),
        ("", {"Host": "localhost:1"}, 200),
        ("", {"Host": "evil.example"}, 403),
        ("", {"Host": ""}, 403),
        ("../secret.npz", {}, 404),
        ("..%2fsecret.npz", {}, 404),
        ("/etc/passwd", {}, 404),
        ("0/../../secret.npz", {}, 404),
        ("99/", {}, 422),
        ("٣/", {}, 422),
        ("0/tensor/99", {}, 422),
        ("0/region/0", {}, 422),
        ("0/region/0?at=0,x,0,1", {}, 422),
        ("0/region/0?at=0,601,0,900", {}, 422),
        ("0/region/0?at=9,9,0,900", {}, 422),
        ("series?a=0&b=99", {}, 422),
        ("series?a=0&b=-1", {}, 422),
    ],
)
def test_who_is_answered(zoo: serve.Server, path: str, headers: dict[str, str], status: int) -> None:
    got = Got(zoo, base(zoo) + quote(path, safe="/?=&,%"), **headers)
    assert got.status == status, got.text
    assert {k: got.headers[k] for k in serve.ALWAYS} == serve.ALWAYS
    assert "Access-Control-Allow-Origin" not in got.headers
    assert "SECRET" not in got.text


@pytest.mark.parametrize(
    "path", ["/", "", "//", "/x/", "/x/0/", "/{}x/0/", "/{}", "http://evil.example/{}/x", "http://[{}"]
)
def test_without_the_token_there_is_nothing(zoo: serve.Server, path: str) -> None:
    assert Got(zoo, path.replace("{}", zoo.token) or "*").status == 404


@pytest.mark.parametrize("method", ["POST", "HEAD", "<b>"])
def test_there_is_only_get(zoo: serve.Server, method: str) -> None:
    got = Got(zoo, base(zoo), method)
    assert (got.status, "<b>" in got.text) == (501, False)
    assert {k: got.headers[k] for k in serve.ALWAYS} == serve.ALWAYS


def test_no_process_is_started_with_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Run) -> None:
    """Every user of the machine sees what a browser is started with; the page that leads on is this user's only."""
    pages = list[Path]()

    def started(url: str) -> bool:
        page = Path(url2pathname(urlsplit(url).path))
        pages.append(page)
        assert (S_IMODE(page.stat().st_mode), S_IMODE(page.parent.stat().st_mode)) == (0o600, 0o700)
        token = re.search(r'url=http://127.0.0.1:\d+/([^/"]+)/"', page.read_text())
        assert token is not None
        assert token[1] not in url
        return True

    def interrupted(_: object) -> None:
        assert pages[0].exists()
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", started)
    monkeypatch.setattr(serve.Server, "serve_forever", interrupted)
    ckptconv.save({"w": np.ones(2, "f4")}, tmp_path / "a.npz")
    done = cli("serve", "a.npz", "--open")
    assert (done.returncode, "ended" in done.stderr) == (0, True)
    assert not pages[0].parent.exists()


def test_the_list_escapes_names_and_says_what_is_wrong(zoo: serve.Server) -> None:
    page = Got(zoo, base(zoo)).text
    assert "&lt;img src=x onerror=alert(1)&gt;&quot;&#x27;&amp;.npz" in page
    assert "<img" not in page
    assert "<script" not in page
    assert "4 checkpoints" in page
    torn = Got(zoo, number(zoo, "torn.safetensors"))
    assert torn.status == 422
    assert "torn.safetensors" in torn.text


def test_what_is_new_is_listed_and_numbers_stay(tmp_path: Path) -> None:
    ckptconv.save({"x": np.ones(3, "f4")}, tmp_path / "b.npz")
    with serving(tmp_path) as made:
        only = Got(made, base(made))
        assert (only.status, only.headers["Location"]) == (303, base(made) + "0/")
        ckptconv.save({"x": np.ones(4, "f4")}, tmp_path / "a.npz")
        assert number(made, "b.npz") == base(made) + "0/"
        assert number(made, "a.npz") == base(made) + "1/"
        (tmp_path / "b.npz").unlink()
        assert Got(made, base(made)).headers["Location"] == base(made) + "1/"
        assert Got(made, base(made) + "0/").status == 422


def test_no_link_leads_out_of_what_is_served(tmp_path: Path) -> None:
    """Not what is a link from the start, nor what becomes one, nor what lies in a folder that does."""
    (served := tmp_path / "served" / "sub").mkdir(parents=True)
    (outside := tmp_path / "outside").mkdir()
    for n in "abc":
        ckptconv.save({"SECRET": np.ones(2, "f4")}, outside / f"{n}.npz")
    link = served.parent / "a.npz"
    link.symlink_to("../outside/a.npz")
    with serving(served.parent) as made:
        top = base(made)
        assert Got(made, top).status == 200, "not a redirection to the only one"
        ckptconv.save({"w": np.ones(2, "f4")}, served.parent / "b.npz")
        ckptconv.save({"w": np.ones(2, "f4")}, served / "c.npz")
        ckptconv.save({"w": np.ones(2, "f4")}, served.parent / "d.npz")
        assert "leads out" in Got(made, top).text
        pages = ["0/", "0/all", "0/tensor/0", "pair?a=0&b=3", "pair?a=3&b=0"]
        assert all(Got(made, top + page).status == 422 for page in pages)
        assert [Got(made, f"{top}{k}/").status for k in (1, 2, 3)] == [200] * 3
        (served.parent / "b.npz").unlink()
        (served.parent / "b.npz").symlink_to("../outside/b.npz")
        shutil.rmtree(served)
        served.symlink_to("../outside")
        pages = ["1/tensor/0", "1/", "3/", "pair?a=2&b=1", "pair?a=3&b=2", "series?a=1&b=3"]
        answers = [Got(made, top + page) for page in pages]
        assert [a.status for a in answers] == [422] * 6
        assert Got(made, f"{top}2/").status == 200
        assert not any("SECRET" in a.text for a in answers)


def test_what_its_owner_writes_again_is_shown(tmp_path: Path) -> None:
    for n in "abc":
        ckptconv.save({"w": np.ones(2, "f4")}, tmp_path / f"{n}.npz")
    with serving(tmp_path) as made:
        assert Got(made, base(made) + "0/").status == 200
        for n in "abc":
            ckptconv.save({"NEW": np.ones(2, "f4")}, tmp_path / f"{n}.npz", force=True)
        for page in ("0/", "pair?a=0&b=1", "series?a=0&b=2"):
            got = Got(made, base(made) + page)
            assert (got.status, "NEW" in got.text) == (200, True), page


def test_values_and_pages(zoo: serve.Server, folder: Path) -> None:
    page = number(zoo, "a.safetensors")
    array = ckptconv.open(folder / "a.safetensors")["big"].numpy()
    got = Got(zoo, f"{page}region/0?at=590,600,896,900").json()
    assert got["texts"] == [[str(x) for x in row] for row in array[590:, 896:]]
    stats = Got(zoo, f"{page}tensor/0").json()
    assert stats["min"] == [float(f"{array.min():.6g}")]
    assert len(stats["bins"][0]) == 44
    assert '"live":{"most"' in Got(zoo, page).text
    b = number(zoo, "b.safetensors").split("/")[-2]
    both = Got(zoo, f"{base(zoo)}pair?a={page.split('/')[-2]}&b={b}").text
    assert '"mode":"comparison"' in both


@pytest.fixture
def run(tmp_path: Path) -> Iterator[serve.Server]:
    """Epochs 0 to 10, the ninth without data."""
    for k in (*range(9), 10):
        ckptconv.save({"net.0.w": np.full((4, 3), 1 + k / 10, "f4")}, tmp_path / f"epoch-{k}.npz")
    offered = [
        serve.Offered(str(tmp_path / f"epoch-{k}.npz"), f"epoch-{k}.npz", 9, "no data" if k == 9 else "")
        for k in range(11)
    ]
    with serving(offered[::-1]) as made:
        yield made


def test_a_series_follows_what_is_listed_between(run: serve.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "LONGEST", 8)
    names = re.findall(r">(epoch-\d+\.npz)</a>", Got(run, base(run)).text)
    assert names == [f"epoch-{k}.npz" for k in (*range(9), 10)], "2 before 10, and 9 has no link"
    ends = [number(run, f"epoch-{k}.npz").split("/")[-2] for k in (2, 10, 0, 1)]

    def urls(a: str, b: str) -> list[str]:
        page = Got(run, f"{base(run)}series?a={a}&b={b}").text
        found = page_data(page)
        assert len(found["moved"]["0"][1]) == len(found["urls"]) - 1
        return [Path(url).stem for url in found["urls"]]

    between = [f"epoch-{k}" for k in (2, 3, 4, 5, 6, 7, 8, 10)]
    assert urls(ends[0], ends[1]) == between
    assert urls(ends[1], ends[0]) == between[::-1]
    assert urls(ends[2], ends[0]) == ["epoch-0", "epoch-1", "epoch-2"]


def test_a_series_that_is_none_is_refused(run: serve.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    zero, one, ten = (number(run, f"epoch-{k}.npz").split("/")[-2] for k in (0, 1, 10))
    monkeypatch.setattr(serve, "LONGEST", 9)
    for a, b, words in (
        (zero, zero, "3 to 9 checkpoints; from the first to the last of these there are 1"),
        (zero, one, "there are 2"),
        (zero, ten, "there are 10"),
        (zero, 9, "no data"),  # as listed: 0 to 8, 9, 10
    ):
        got = Got(run, f"{base(run)}series?a={a}&b={b}")
        assert (got.status, words in got.text) == (422, True), got.text


def test_a_file_that_changed_is_said_to_have(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    ckptconv.save({"x": np.zeros((9, 9), "f4")}, path)
    with serving(path) as made:
        Got(made, base(made) + "0/")
        ckptconv.save({"x": np.ones((9, 9), "f4")}, path, force=True)
        late = Got(made, base(made) + "0/tensor/0", Accept="application/json")
        assert (late.status, "changed since it was opened" in late.json()["error"]) == (422, True)
        assert Got(made, base(made) + "0/").status == 200
        assert Got(made, base(made) + "0/tensor/0").json()["min"] == [1]


def sparse(path: Path, gigabytes: int) -> None:
    """A checkpoint of a few tensors that takes no room on the disk: all zero, but for the last value of each."""
    rows, wide = gigabytes * 10**9 // 2**16, 2**14
    header: dict[str, Any] = {}
    for k in range(2):
        at = [k * rows * wide * 2, (k + 1) * rows * wide * 2]
        header[f"layer.{k}"] = {"dtype": "BF16", "shape": [rows, wide], "data_offsets": at}
    text = json.dumps(header).encode()
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for k in (1, 2):
            f.seek(8 + len(text) + k * rows * wide * 2 - 2)
            f.write(b"\x80\x3f")


def test_half_a_terabyte_is_looked_at_without_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse(tmp_path / "big.safetensors", 500)
    asked = list[int]()
    into = serve.files.Reader.into
    monkeypatch.setattr(
        serve.files.Reader, "into", lambda self, at, view: (asked.append(len(view)), into(self, at, view))
    )
    with serving(tmp_path / "big.safetensors") as made:
        page = Got(made, base(made) + "0/").text
        assert "Read all values: 500.0 GB" in page
        assert sum(asked) == 0
        high, wide = json.loads(re.findall(r'"shapes":\[(.*?\])\]', page)[0])
        corner = Got(made, f"{base(made)}0/region/1?at={high - 4},{high},{wide - 3},{wide}").json()
        assert corner["texts"][-1] == ["0", "0", "1"]
        assert sum(asked) == 4 * 3 * 2


@pytest.mark.parametrize(("few", "path", "read"), [(48, "0/", True), (47, "0/", False), (47, "0/all", True)])
def test_all_tensors_are_read_if_they_are_few_or_asked_for(
    few: int, path: str, read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "FEW", few)
    ckptconv.save({"a": np.arange(4, dtype="f4"), "b": np.arange(8, dtype="f4")}, tmp_path / "x.npz")
    with serving(tmp_path / "x.npz") as made:
        page = Got(made, base(made) + path).text
    assert ('"max":[3.0,7.0]' in page, "Read all values: 48 B" in page) == (read, not read)


def test_reading_ends_when_the_browser_has_gone(tmp_path: Path) -> None:
    """All 250 GB would take minutes; the next request gets its turn."""
    sparse(tmp_path / "big.safetensors", 500)
    with serving(tmp_path / "big.safetensors") as made:
        Got(made, base(made) + "0/")
        for _ in range(serve.READERS):
            line = socket.create_connection(made.server_address[:2])
            line.sendall(f"GET {base(made)}0/tensor/0 HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            time.sleep(0.2)
            line.close()
        assert Got(made, f"{base(made)}0/region/0?at=0,4,0,4").status == 200


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "h5"])
def test_a_rectangle_is_what_numpy_finds(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {
        "m": DRAW.normal(size=(150, 170)).astype("f4"), "n": DRAW.normal(size=(3, 5, 31, 40)).astype("f2"),
        "v": DRAW.normal(size=1000), "s": np.float32(3.5), "i": DRAW.integers(-9, 9, (65, 66)),
        "long": DRAW.normal(size=(2, 40000)).astype("f4"),
    }  # fmt: skip
    ckptconv.save(arrays, tmp_path / f"x.{suffix}")
    checkpoint = ckptconv.open(tmp_path / f"x.{suffix}")
    monkeypatch.setattr("ckptconv.reporting.pictures.WINDOW", 40_000)  # many windows
    with Sources() as sources:
        for name, array in arrays.items():
            whole = np.reshape(array, matrix(np.shape(array)))
            for _ in range(6):
                top, bottom, left, right = (
                    int(k) for n in whole.shape for k in sorted(DRAW.choice(n + 1, 2, replace=False))
                )
                cells, texts = region(checkpoint[name], (top, bottom, left, right), sources)
                part = whole[top:bottom, left:right]
                want = np.zeros(cells.shape)
                places = np.ix_(*(np.arange(n) * m // n for n, m in zip(part.shape, want.shape, strict=True)))
                np.maximum.at(want, tuple(np.broadcast_arrays(*places)), np.abs(part.astype("f8")))
                np.testing.assert_allclose(cells, want, rtol=1e-6, err_msg=name)
                assert texts is None or texts == [[str(x) for x in row] for row in part]


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_a_matrix_is_enlarged_to_single_values(
    chromium: Browser, tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "FEW", 0)
    array = DRAW.normal(0, 0.02, (1100, 700)).astype("f4")
    array[234, 345] = np.nan
    arrays = {"layer.0.w": array, "layer.0.b": np.zeros(9, "f4"), HOSTILE: np.ones((2, 2), "f4")}
    ckptconv.save(arrays, tmp_path / "x.safetensors")
    ckptconv.save(arrays, tmp_path / HOSTILE)
    with serving(tmp_path) as made:
        page = chromium.page(made.url, width, 844, until="document.querySelector('.list')")
        page.click("a[href='1/']")
        page.wait("document.documentElement?.dataset.ready === 'yes'")
        assert page.run("return document.querySelectorAll('header a').length") == 2, "the list, and all values"
        names = "JSON.parse(document.querySelector('#data').textContent).names"
        page.run(f"location.hash = 'open=' + {names}.indexOf('layer.0.w')")
        page.wait("document.querySelector('.look canvas') && document.querySelector('#detail rect')")
        assert "NaN" in page.run("return document.querySelector('#detail').textContent")
        for _ in range(2):  # from 1100 x 700 by 138 x 64 to single values
            before = page.run("return document.querySelector('.look [role=status]').textContent")
            page.click(".look canvas")
            page.wait(f"document.querySelector('.look [role=status]').textContent !== {json.dumps(before)} &&"
                      " /Row/.test(document.querySelector('.look [role=status]').textContent)")  # fmt: skip
        assert "is one value" in page.run("return document.querySelector('.look [role=status]').textContent")
        page.run("document.querySelector('.look button').focus()")
        page.key("Enter")
        page.wait("document.querySelector('.numbers td')")
        found = page.run(
            "const t = document.querySelector('.numbers table'), n = (s) => Number(t.querySelector(s).textContent"
            ".replace(/,/g, '')); return [n('th[scope=row]'), n('th[scope=col]'), [...t.rows[1].cells].slice(1)"
            ".map((c) => c.textContent)];"
        )
        row, column, texts = found
        assert texts == [str(x) for x in array[row, column : column + len(texts)]]
        assert len(texts) == (3 if width < 700 else 8)
        page.run(
            "const make = URL.createObjectURL.bind(URL); URL.createObjectURL = (blob) => make(window.taken = blob);"
            "[...document.querySelectorAll('.look .link')].find((b) => b.textContent === 'CSV').click()"
        )
        taken = page.run("return await window.taken.text()").split("\r\n")
        assert taken[:2] == [
            ",".join(["", *map(str, range(column, column + len(texts)))]),
            ",".join([str(row), *texts]),
        ]
        page.run(
            "[...document.querySelectorAll('#detail .link')].find((b) => b.textContent === 'Show the place').click()"
        )
        page.wait("document.querySelector('.numbers .bad')?.textContent === 'nan'")
        wide = page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide == 0
        assert page.complaints() == []
