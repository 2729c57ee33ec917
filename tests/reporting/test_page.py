"""The page as it is seen: what the first screen answers, at all widths, light and dark; files to take along."""

from __future__ import annotations

import json
import runpy
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser, Page, cells, unlike
from kit import ROOT

import ckptconv

pytestmark = pytest.mark.slow
DRAW = np.random.default_rng(0)
WIDTHS = (390, 768, 1280, 1920)


def bert() -> dict[str, np.ndarray]:
    out = {"embeddings.word_embeddings.weight": DRAW.normal(0, 0.02, (900, 48))}
    for i in range(12):
        for part, shape in {
            "attention.self.query": (48, 48), "attention.self.key": (48, 48), "attention.output.dense": (48, 48),
            "intermediate.dense": (96, 48), "output.dense": (48, 96),
        }.items():  # fmt: skip
            out[f"encoder.layer.{i}.{part}.weight"] = DRAW.normal(0, 0.02, shape)
            out[f"encoder.layer.{i}.{part}.bias"] = DRAW.normal(0, 0.01, shape[0])
    return {name: array.astype("f4") for name, array in out.items()}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with faults, a comparison, a conversion and a series."""
    folder = tmp_path_factory.mktemp("pages")
    good = bert()
    bad = {name: array.copy() for name, array in good.items()}
    bad["encoder.layer.3.attention.self.key.weight"][5, 7] = np.nan
    bad["encoder.layer.7.intermediate.dense.weight"][11] = 40
    bad["encoder.layer.9.attention.self.query.weight"] *= 1.5
    bad["head.weight"] = good["encoder.layer.0.output.dense.bias"][None, :4].copy()
    del bad["encoder.layer.11.output.dense.bias"]
    epochs = {f"epoch-{k}": {n: x * (1 + k / 100) for n, x in (bad if k > 2 else good).items()} for k in range(4)}
    for name, arrays in ({"good": good, "bad": bad} | epochs).items():
        ckptconv.save(arrays, folder / f"{name}.safetensors")
    ckptconv.convert(folder / "good.safetensors", folder / "half.safetensors", dtype="float16")

    def report(name: str, *words: str, **options: Any) -> None:
        sources = [folder / f"{word}.safetensors" for word in words]
        ckptconv.report(sources, folder / f"{name}.html", **options)

    report("one", "bad")
    report("two", "good", "bad")
    report("made", "good", "half", dtype="float16")
    report("lost", "good", "bad", dtype="float32")
    report("series", *epochs)
    return folder


def opened(chromium: Browser, pages: Path, name: str, width: int, **more: Any) -> Page:
    return chromium.page((pages / f"{name}.html").as_uri(), width, 844 if width < 500 else 900, **more)


IN_SIGHT = """
    const seen = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const range = document.createRange();
      range.selectNodeContents(walker.currentNode);
      const box = range.getBoundingClientRect();
      if (box.height && box.bottom <= innerHeight && box.right <= innerWidth + 1) seen.push(walker.currentNode.data);
    }
    return seen.join(" ");
"""


def unseen(page: Page, words: list[str]) -> list[str]:
    """Those of the words that the first screen does not have."""
    text = "".join(page.run(IN_SIGHT).split())
    return [w for w in words if "".join(w.split()) not in text]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("one", ["MLP", "attention", "embeddings", "%", "errors and warnings", "NaN", "first at [5, 7]", "outliers",
                 "outside of", "first at [11, 0]"]),
        ("two", ["3 of 120", "common tensors changed", "finite on one side only", "layer. 7", "50 %", "max |d|",
                 "1 / 1", "only in A / only in B", "values of common tensors changed", "errors and warnings new in B"]),
        ("made", ["exact", "float32 → float16: 121 tensors", "the name is kept (121)"]),
        ("series", ["4", "checkpoints", "How the layers moved", "epoch-1", "1.0 %",
                    "tensor with NaN or Inf, first in epoch-3"]),
        ("lost", ["tensors, not what the conversion gives", "tensor that the conversion gives is missing"]),
    ],
)  # fmt: skip
def test_the_first_screen_answers(chromium: Browser, pages: Path, name: str, words: list[str], width: int) -> None:
    assert unseen(opened(chromium, pages, name, width), words) == []


SECTIONS = {  # each answers a question about what the page is about; what would be empty is not there
    "one": "cards share look where depth tensors more",
    "two": "cards changes look depth tensors more",
    "made": "cards changes look tensors more",
    "series": "cards series look tensors more",
}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", SECTIONS)
def test_pages_fit_all_screens(chromium: Browser, pages: Path, name: str, dark: bool) -> None:
    page = opened(chromium, pages, name, 1280, dark=dark)
    shown = page.run("return [...document.querySelectorAll('main > section:not([hidden])')].map((s) => s.id).join(' ')")
    assert shown == SECTIONS[name]
    paper = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(json.loads(paper.replace("rgb(", "[").replace(")", "]"))) < 300) == dark
    for width in WIDTHS:
        page.resize(width, 900)
        wide = page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert (width, wide) == (width, 0)
    assert page.complaints() == []
    assert [url for url in page.requests() if not url.startswith(("file:", "blob:", "data:"))] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_labels_of_the_map_break_between_words(chromium: Browser, pages: Path, width: int) -> None:
    page = opened(chromium, pages, "one", width)
    page.resize(width, 901)
    page.run("await new Promise((done) => setTimeout(done, 50));")
    tiles = page.run(
        "return [...document.querySelectorAll('#map button')].map((b) => ({lines: [...b.querySelectorAll('span')]"
        ".map((s) => s.textContent), label: b.getAttribute('aria-label'), tall: [...b.children].every((s) =>"
        " s.offsetTop + s.offsetHeight <= b.clientHeight + 2 && s.offsetLeft + s.scrollWidth <= b.clientWidth + 2)}))"
    )
    assert len(tiles) > 20
    assert [t for t in tiles if not t["tall"]] == [], "no label is cut"
    for tile in tiles:
        for line in tile["lines"][:-1]:
            assert line[-1] in "._/-:", tile
        assert "".join(tile["lines"]) in tile["label"]


def saved(chromium: Browser, page: Page, folder: Path, name: str, press: str) -> bytes:
    chromium.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder),
                 browserContextId=page.context)  # fmt: skip
    page.click(press)
    end = time.monotonic() + 20
    while not (folder / name).is_file() or not (folder / name).stat().st_size:
        assert time.monotonic() < end, f"{name} was never saved"
        time.sleep(0.05)
    return (folder / name).read_bytes()


def test_the_table_and_charts_can_be_taken_along(chromium: Browser, pages: Path, tmp_path: Path) -> None:
    page = opened(chromium, pages, "one", 1280)
    rows = json.loads(saved(chromium, page, tmp_path, "tensors.json", "#json"))
    assert len(rows) == 121
    found = {row["name"]: row for row in rows}["encoder.layer.3.attention.self.key.weight"]
    assert (found["shape"], found["nan"], found["kind"]) == ([48, 48], 1, "attention")
    assert found["found"] == [{"check": "nan", "text": "1 of 2,304 NaN, first at [5, 7]", "index": [5, 7]}]
    lines = saved(chromium, page, tmp_path, "tensors.csv", "#csv").decode().split("\r\n")
    assert len(lines) == 122
    page.run("location.hash = 'open=5'")
    picture = cells(chromium, saved(chromium, page, tmp_path, "chart.png", "#detail [aria-label^='Save as PNG']"))
    assert picture.shape[1] > 100
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 10, "a line, dots and words"
    several = opened(chromium, pages, "series", 1280)
    moved = json.loads(saved(chromium, several, tmp_path / "series", "tensors.json", "#json"))[0]
    assert [len(moved[key]) for key in ("norms", "steps", "drifts")] == [4, 3, 3]
    assert moved["drifts"] == pytest.approx([0.01, 0.02, 0.03], rel=1e-3)
    assert page.complaints() == []


def test_changes_are_ranked_by_layer_part_and_kind(chromium: Browser, pages: Path, tmp_path: Path) -> None:
    """The page sums as Diff.by does, with norms from statistics of what did not change."""
    page = opened(chromium, pages, "two", 1280)
    found = ckptconv.diff(pages / "good.safetensors", pages / "bad.safetensors")
    for title, by in (("Layers", "layer"), ("Parts", "part"), ("Kinds", "kind")):
        page.run(f"[...document.querySelectorAll('#rankings button')].find((b) => b.textContent === '{title}').click()")
        first = page.run("return document.querySelector('#ranked .bar .cell').textContent")
        expected = found.by(by)  # type: ignore[arg-type]
        assert first == expected[0].name
        assert page.run("return location.hash").endswith(f"by={by}")
        folder = tmp_path / by
        lines = (
            saved(chromium, page, folder, "changes.csv", "#ranked [aria-label^='Save as CSV']").decode().split("\r\n")
        )
        rows = {cells[0]: cells[1:] for cells in (line.split(",") for line in lines[1:])}
        assert rows.keys() == {g.name for g in expected}
        for g in expected:
            tensors, changed, change, norm, apart, _, unpaired = (float(x or "nan") for x in rows[g.name])
            assert (tensors, changed, unpaired) == (g.tensors, g.changed, g.unpaired)
            assert (norm, apart) == pytest.approx((g.norm, g.apart), rel=1e-4)
            assert change == pytest.approx(float("nan") if g.change is None else g.change, rel=1e-4, nan_ok=True)
    assert page.run("return document.querySelector('#where').hidden"), "the map is of one checkpoint"
    page.run("document.querySelector('#ranked .bar').click()")
    assert page.run("return document.querySelector('#found').textContent").startswith("2 of 122 tensors")
    assert page.complaints() == []


@pytest.mark.parametrize(
    ("sides", "words"),
    [
        ([{"w": [0, 0]}, {"w": [1, 2]}], ["tensor that was all zero in A"]),
        ([{"w": [1, 2]}, {"w": [1, np.nan]}], ["tensor with NaN or Inf on one side only", "1 value finite"]),
        ([{"w": [1, 2]}, {"v": [1, 2, 3]}], ["0 names in common", "Nothing is compared:", "`match`", "Only in A (1):"]),
        ([{"w": [1, 2], "u": [4]}, {"v": [1, 2], "t": [3, 3]}], ["1 equal tensor", "Names differ:", "renamed"]),
        ([{"w": [1, 2]}, {"module.w": [1, 3]}], ["0 names in common", "Hint: in B: names have prefixes of wrappers"]),
        ([{"w": [1, 2]}, {"w": [1, 2]}], ["the same", "1 tensor, bit for bit"]),
        ([{"w": [1, 2]}, {"w": [1, 3]}], ["not read"]),
        ([{"alone": [1, 2]}], ["alone"]),
        ([{"n.scale": [2.0, 2], "n.bias": [0, k], "w": [k, k]} for k in (0.0, 1.0, 1.0)],
         ["2 of 3 tensors moved, 2 of them from zero", "35 %", "all zero before"]),
    ],
)  # fmt: skip
def test_changes_that_have_no_share_are_told(
    chromium: Browser, tmp_path: Path, sides: list[dict[str, list[float]]], words: list[str]
) -> None:
    arrays = [{n: np.array(x) for n, x in side.items()} for side in sides]
    made = ckptconv.report(arrays, tmp_path / "r.html", values=words != ["not read"])
    assert unseen(chromium.page(Path(made.path).as_uri(), 390, 844), words) == []


def test_print_has_whole_names(chromium: Browser, pages: Path) -> None:
    page = opened(chromium, pages, "two", 718, dark=True)
    page.ask("Emulation.setEmulatedMedia", media="print")
    page.wait("matchMedia('print').matches")
    page.run("await new Promise((done) => setTimeout(done, 200));")
    found = page.run(
        "const all = [...document.querySelectorAll('#space .name')];"
        "const cut = (n) => n.scrollHeight > n.clientHeight + 3 || n.scrollWidth > n.clientWidth + 1;"
        "return {cut: all.filter(cut).map((n) => n.textContent), names: all.length,"
        " wide: document.documentElement.scrollWidth, pills: document.querySelector('.pills').offsetHeight}"
    )
    assert found == {"cut": [], "names": 122, "wide": 718, "pills": 0}


def test_a_notebook_shows_the_page(chromium: Browser, pages: Path, tmp_path: Path) -> None:
    """In a sandboxed frame, where the address cannot be changed."""
    made = ckptconv.report(pages / "bad.safetensors", destination=tmp_path / "r.html")
    assert made.bytes == (tmp_path / "r.html").stat().st_size
    assert repr(made).startswith("<Page: ")
    (tmp_path / "n.html").write_text(f"<!doctype html><title>n</title><body>{made._repr_html_()}", encoding="utf-8")
    page = chromium.page("about:blank", until="document.body")
    page.ask("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=False, flatten=True)
    page.ask("Page.navigate", url=(tmp_path / "n.html").as_uri())
    page.wait("document.querySelector('iframe')")
    found: list[str] = []
    while not found:
        page.wait("document.querySelector('iframe')")
        attached = [e["params"] for e in chromium.events if e["method"] == "Target.attachedToTarget"]
        found = [p["sessionId"] for p in attached if p["targetInfo"]["type"] == "iframe"]
    frame = Page(chromium, found[0], page.context)
    frame.ask("Runtime.enable")
    frame.wait("document.documentElement?.dataset.ready === 'yes'")
    assert frame.run("return document.querySelector('#cards .warned b').textContent") == "3"
    assert frame.complaints() == []
    assert page.complaints() == []


def test_the_pictures_in_the_docs_show_the_pages_of_today(chromium: Browser) -> None:
    """With a tolerance, for the fonts of other machines; and they are small."""
    made = dict(runpy.run_path(str(ROOT / "tools" / "make_screens.py"))["screens"](chromium, [390]))
    stored = {p.name: p.read_bytes() for p in (ROOT / "docs" / "screens").iterdir()}
    assert stored.keys() == {name.replace("390", width) for name in made for width in ("390", "1280")} | {
        "serve-1280.png"
    }
    assert [name for name, picture in stored.items() if len(picture) > 150_000] == []
    differ = {name: unlike(cells(chromium, stored[name]), cells(chromium, picture)) for name, picture in made.items()}
    assert [name for name, share in differ.items() if share > 0.15] == [], f"run python tools/make_screens.py: {differ}"
