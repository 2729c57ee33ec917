"""The report in a real browser: hostile names stay text, the table is quick, the keyboard suffices."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser
from kit import Run, in_memory, page_data

import ckptconv
from ckptconv.api.options import Options
from ckptconv.checkpoint import Checkpoint
from ckptconv.messages import printable
from ckptconv.reporting import survey
from ckptconv.reporting.html import default_name, render, report
from ckptconv.rules import passes

HOSTILE = [
    "<script>window.pwned = 1</script>",
    "</script><script>window.pwned = 2</script>",
    "<!--<script>",
    '<img src=x onerror="window.pwned = 3">/kernel',
    "\"><svg onload='window.pwned = 4'>/kernel",
    "'-window.pwned-'",
    "{{ 7 * 7 }}{% raise %}",
    "${window.pwned = 5}`",
    "javascript:window.pwned=6",
    "&lt;b&gt;&amp;",
    "__proto__/constructor/prototype",
    "toString",
    "a\u2028b\u2029c",
    "\u202egpj.exe\u202c",
    "bell\x07nul\x00",
    "e\u0301 \U0001f600 日本語",
    "half\ud800",
    "x" * 5000,
    "/".join("abcdefgh" * 40),
    "",
    " ",
]

WAIT = """
    const wait = (ms) => new Promise((done) => setTimeout(done, ms));
    const until = async (ready) => { for (let i = 0; i < 500 && !ready(); i++) await wait(20); };
    const $ = (id) => document.getElementById(id);
    const key = (node, key) => node.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
"""


browser = pytest.mark.slow  # of a test that opens a page


def hostile_page(jobs: int = 1) -> str:
    arrays = {name: np.arange(i + 1, dtype="f4") for i, name in enumerate(HOSTILE)}
    data = survey.survey(in_memory(arrays, metadata={n: n for n in HOSTILE}), Options(jobs=jobs), values=True)
    return render(data | {"url": HOSTILE[1]})


@pytest.fixture(scope="module")
def hostile() -> str:
    return hostile_page()


class Tags(HTMLParser):
    """Elements with their attributes, as a browser's parser finds them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def inside(chromium: Browser, page: str, driver: str, folder: Path, address: str = "", width: int = 1280) -> Any:
    """Open a page, run a script in it (which may await), and return what it returns."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    shown = chromium.page((folder / "page.html").as_uri() + address, width, 900)
    return shown.run(WAIT + driver)


# --- without a browser ------------------------------------------------------------------------------------------


def test_names_make_no_elements_and_no_handlers(hostile: str) -> None:
    parser = Tags()
    parser.feed(hostile)
    tags = [tag for tag, _ in parser.found]
    assert tags.count("script") == 2
    assert not {"img", "svg", "b/"} & set(tags)
    assert not [a for _, attrs in parser.found for a in attrs if a.startswith("on")]


def test_nothing_is_fetched(hostile: str) -> None:
    parser = Tags()
    parser.feed(hostile)
    outside = [
        v for _, attrs in parser.found for k, v in attrs.items() if k in ("src", "href", "srcset", "action", "data")
    ]
    assert outside == ["#tensors"]
    policy = next(attrs["content"] or "" for tag, attrs in parser.found if tag == "meta" and "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not re.search(r"@import|url\(", hostile)


def test_equal_input_gives_equal_pages(hostile: str) -> None:
    assert hostile_page(3) == hostile


@pytest.mark.slow
def test_page_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are bounded: 40,000 tensors have histograms for half of them and heat maps for a few hundred, and take
    less than 6 MB. Here it is a tenth of all that."""
    most, heats = survey.MAX_HISTOGRAMS // 10, survey.MAX_HEATMAPS // 10
    monkeypatch.setattr(survey, "MAX_HISTOGRAMS", most)
    monkeypatch.setattr(survey, "MAX_HEATMAPS", heats)
    data = survey.survey(in_memory({f"w{i}": np.eye(2, dtype="f4") for i in range(4_000)}), values=True)
    assert sum(map(bool, data["bins"])) == most == 2_000
    assert len(data["heat"]) == heats
    assert len(render(data | {"url": "x"})) < 600_000


def test_conversion_knows_rules_drops_and_strangers(tmp_path: Path) -> None:
    rules = '[[rule]]\nfrom = "{x}/kernel"\nto = "{x}.weight"\nlayout = "i o -> o i"\n'
    rules += '[[rule]]\nfrom = "junk"\nto = []\n'
    (tmp_path / "r.toml").write_text(rules)
    a = {"a/kernel": np.arange(6, dtype="f4").reshape(2, 3), "b/kernel": np.ones((2, 2), "f4"), "junk": np.ones(1)}
    a["lost/kernel"] = np.ones((2, 2), "f4")
    ckptconv.save({f"m.{n}": array for n, array in a.items()}, tmp_path / "a.npz")
    b = {"a.weight": a["a/kernel"].T.copy(), "b.weight": np.array([[1, 1], [1, 2]], "f4"), "extra": np.ones(3)}
    ckptconv.save(b, tmp_path / "b.safetensors")
    report(
        [tmp_path / "a.npz", tmp_path / "b.safetensors"],
        tmp_path / "r.html",
        strip_prefix="m.",
        converter=str(tmp_path / "r.toml"),
    )
    data = page_data((tmp_path / "r.html").read_text())
    rows = dict(zip(data["names"], data["compared"]["rows"], strict=True))
    assert rows["a.weight"][1:3] == [[["a/kernel", "float32", [2, 3]]], "equal"]
    assert "{x}/kernel" in data["compared"]["rules"][rows["a.weight"][0]]
    assert (rows["b.weight"][2], rows["b.weight"][3]["first"]) == ("values", [1, 1])
    assert rows["extra"][:3] == [-1, [], "only_b"]
    assert [left[0] for left in data["compared"]["left"]] == ["junk", "lost/kernel"]
    assert data["compared"]["missing"] == ["lost.weight"]
    assert {(f["tensor"], f["text"]) for f in data["findings"]} >= {
        ("lost.weight", "the conversion gives float32 [2, 2]"), ("extra", "the conversion gives no such tensor"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "notes"),
    [
        (("w", "module.v"), ["in B: names have prefixes of wrappers; strip_prefix='module.' removes them"]),
        (("w", "v"), ["if these are other names, `match` proposes rules; converter='auto' needs one that fits A"]),
        (("module.w", "module.w"), [f"in {x}: names have prefixes of wrappers; strip_prefix='module.' removes them"
                                    for x in "AB"]),
    ],
)  # fmt: skip
def test_a_page_of_two_says_what_to_do_about_names(names: tuple[str, str], notes: list[str], tmp_path: Path) -> None:
    both = [{name: np.full(2, k, "f4")} for k, name in enumerate(names)]
    report(both, tmp_path / "r.html")
    assert [text for _, text, *_ in page_data((tmp_path / "r.html").read_text())["notes"]] == notes


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("some/model.safetensors", "model.report.html"),
        ("some/folder/", "folder.report.html"),
        (r"C:\models\a.pt", "a.report.html"),
        ("https://user:secret@host/v1.5-pruned.pt?signature=abc", "v1.5-pruned.report.html"),
        ("..", "checkpoint.report.html"),
    ],
)
def test_default_name(source: str, name: str) -> None:
    assert default_name(source) == name


def test_command_line(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    ckptconv.save({"module.w": np.ones(2, "f4")}, tmp_path / "a b.npz")
    assert cli("report", "a b.npz").returncode == 0
    assert "--strip-prefix module. removes" in (tmp_path / "a b.report.html").read_text(), "in words of who made it"
    again = cli("report", "a b.npz", "--open")
    assert (again.returncode, "--force" in again.stderr, shown) == (9, True, [])
    assert cli("report", "a b.npz", "--open", "--force", "--no-values").returncode == 0
    assert shown == [(tmp_path / "a b.report.html").as_uri()]
    page = (tmp_path / "a b.report.html").read_text()
    assert "\"ckptconv report 'a b.npz' --no-values\"" in page, "no --force"
    text = page.partition("<pre>")[2].partition("</pre></noscript>")[0]
    assert re.search(r"module\.w +float32 +2 +2 +8 B\nhint: .* --strip-prefix.*\nnpz: 1 tensor", text), (
        "without scripts"
    )
    before = (tmp_path / "a b.npz").read_bytes()
    refused = cli("report", "a b.npz", "-o", "a b.npz.pt", "-f")
    assert (refused.returncode, "a page is an .html file" in refused.stderr) == (2, True)
    assert (tmp_path / "a b.npz").read_bytes() == before


# --- in a browser -----------------------------------------------------------------------------------------------


@browser
def test_hostile_names_are_only_text(chromium: Browser, hostile: str, tmp_path: Path) -> None:
    driver = """
        const opened = [];
        for (const button of document.querySelectorAll('#map button')) {
          button.click(); await wait(5); $('detail').close();
        }
        location.hash = 'view=list'; await until(() => $('row-1')); await wait(50);
        $('scroll').focus();
        for (let k = 0; k < COUNT; k++) {
          if (!$('row-' + k)) { $('scroll').scrollTop = k * 34; await until(() => $('row-' + k)); }
          $('row-' + k).click();
          opened.push($('detail-name').textContent);
          $('detail').close();
        }
        return { pwned: window.pwned || 0, ready: document.documentElement.dataset.ready, opened, title: document.title,
                 elements: document.querySelectorAll('main img, main script, main svg[onload]').length };
    """.replace("COUNT", str(len(HOSTILE)))
    found = inside(chromium, hostile, driver, tmp_path)
    assert (found["pwned"], found["ready"], found["elements"]) == (0, "yes", 0)
    # what cannot be seen, or turns text round, is shown by its escape, as in a terminal
    assert found["opened"] == [{"": "(empty)", " ": '" "'}.get(n, printable(n)) for n in HOSTILE]
    assert found["title"].startswith("</script><script>")


@browser
def test_ten_thousand_rows(chromium: Browser, tmp_path: Path) -> None:
    one = np.zeros((2, 3), "f4")
    arrays = {f"model/layer_{i // 100}/block_{i % 100}/kernel": one for i in range(10_000)}
    arrays["model/needle"] = np.zeros((1000, 3), "f4")
    page = render(survey.survey(in_memory(arrays), values=False) | {"url": "many"})
    driver = """
        const rows = () => document.querySelectorAll('#space .row').length, first = rows();
        $('search').value = 'needle'; $('search').dispatchEvent(new Event('input')); await until(() => rows() === 1);
        const one = { count: rows(), text: $('found').textContent, name: $('row-0').firstChild.textContent };
        $('search').value = ''; $('search').dispatchEvent(new Event('input')); await until(() => rows() > 1);
        const at = performance.now();
        document.querySelector('[data-sort=size]').click();
        const sorted = { ms: performance.now() - at, name: $('row-0').firstChild.textContent };
        document.querySelector('[data-sort=name]').click();
        $('scroll').scrollTop = 1e9;
        const last = () => [...document.querySelectorAll('#space .row')].pop().firstChild.textContent;
        await until(() => last() === 'model/needle');
        return { first, one, sorted, last: last(), rows: rows(), elements: document.querySelectorAll('*').length };
    """
    found = inside(chromium, page, driver, tmp_path)
    assert found["first"] < 100
    assert found["rows"] < 100
    assert found["elements"] < 4000, "what is drawn is bounded as well"
    assert (found["one"]["count"], found["one"]["name"]) == (1, "model/needle")
    assert found["one"]["text"].startswith("1 of 10,001 tensors")
    assert found["sorted"]["name"] == "model/needle"
    assert found["sorted"]["ms"] < 5000
    assert found["last"] == "model/needle"


@pytest.fixture(scope="module")
def model() -> str:
    arrays = {f"net/layer_{i}/kernel": np.random.default_rng(i).normal(size=(20, 30)).astype("f4") for i in range(12)}
    arrays["net/layer_7/kernel"][3, 4] = np.nan
    arrays["net/layer_7/kernel/Adam"] = np.zeros((20, 30), "f4")
    made = in_memory(arrays)
    return render(survey.survey(passes.roles(made), values=True) | {"url": "model.ckpt"})


@browser
def test_keyboard_alone(chromium: Browser, model: str, tmp_path: Path) -> None:
    driver = """
        key(document.body, '/');
        const searching = document.activeElement.id;
        $('search').value = 'layer_7'; $('search').dispatchEvent(new Event('input')); await wait(50);
        key($('search'), 'Enter');
        const focus = document.activeElement.id;
        key($('scroll'), 'ArrowDown');
        const active = $('scroll').getAttribute('aria-activedescendant');
        key($('scroll'), 'Home'); key($('scroll'), 'Enter'); await wait(20);
        const opened = $('detail').open, name = $('detail-name').textContent;
        const pictures = $('detail').querySelectorAll('svg rect').length;
        const canvas = $('detail').querySelectorAll('canvas').length;
        const warned = $('detail').querySelector('.badge').textContent;
        $('detail').querySelector('.close').click(); await wait(20);
        const back = document.activeElement.id;
        const reachable = [...document.querySelectorAll('button, input, [tabindex="0"], a')].length;
        return { searching, focus, active, opened, name, pictures, canvas, warned, back, reachable };
    """
    found = inside(chromium, model, driver, tmp_path)
    assert (found["searching"], found["focus"], found["active"]) == ("search", "scroll", "row-1")
    assert (found["opened"], found["name"]) == (True, "net/layer_7/kernel")
    assert (found["pictures"], found["canvas"]) == (32, 1)
    assert found["warned"] == "nan 1 of 600 NaN, first at [3, 4]"
    assert found["back"] == "scroll"


@browser
def test_address_keeps_the_view(chromium: Browser, model: str, tmp_path: Path) -> None:
    driver = """await wait(50);
        return { text: $('found').textContent, sort: document.querySelector('[aria-sort=descending]').textContent,
                 first: $('row-0').firstChild.textContent };"""
    found = inside(chromium, model, driver, tmp_path, "#q=kernel&sort=name&down=1&show=weight")
    assert found["text"].startswith("12 of 13")
    assert (found["sort"], found["first"]) == ("Name", "net/layer_11/kernel")


@browser
def test_findings_lead_to_the_tensors(chromium: Browser, model: str, tmp_path: Path) -> None:
    driver = """
        const told = document.querySelector('#findings .error').textContent;
        document.querySelector('#findings .error button').click(); await wait(20);
        return { told, name: $('detail-name').textContent };"""
    found = inside(chromium, model, driver, tmp_path)
    assert found["told"] == "nan error · net/layer_7/kernel 1 of 600 NaN, first at [3, 4]"
    assert found["name"] == "net/layer_7/kernel"


@pytest.fixture(scope="module")
def deep() -> Checkpoint:
    """Thirteen equal layers and an embedding."""
    draw = np.random.default_rng(0).normal
    shapes = {"attention.self.query.weight": (24, 24), "intermediate.dense.weight": (48, 24), "norm.weight": (24,)}
    a = {f"encoder.layer.{i}.{part}": draw(size=s).astype("f4") for i in range(13) for part, s in shapes.items()}
    a["embeddings.word.weight"] = draw(size=(500, 24)).astype("f4")
    return in_memory(a)


@browser
@pytest.mark.parametrize("width", [400, 1280, 1920])
def test_equal_layers_look_equal_on_the_map(chromium: Browser, deep: Checkpoint, tmp_path: Path, width: int) -> None:
    page = render(survey.survey(deep, values=False) | {"url": "deep"})
    driver = """
        const boxes = [...document.querySelectorAll('#map button')].map((b) => ({
          name: b.title.split('\\n')[0], open: b.className, area: b.offsetWidth * b.offsetHeight,
          cut: b.firstElementChild ? b.firstElementChild.scrollWidth - b.clientWidth : 0 }));
        return { boxes, kinds: $('kinds').textContent };"""
    found = inside(chromium, page, driver, tmp_path, width=width)
    layers = [b for b in found["boxes"] if re.fullmatch(r"encoder\.layer\.\d+\.", b["name"])]
    assert len(layers) == 13
    assert len({b["open"] for b in layers}) == 1, "opened together or not at all"
    areas = [b["area"] for b in layers]
    assert max(areas) < 1.1 * min(areas)
    assert max(b["cut"] for b in found["boxes"]) <= 0, "no label is cut"
    assert re.search(r"MLP.*%.*embeddings.*%.*attention.*%.*norms", found["kinds"])
