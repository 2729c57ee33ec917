"""Make docs/screens/*.png: the first screen of the report on a desktop and on a phone, for three questions.

python tools/make_screens.py, where there is a Chromium. Fonts differ from machine to machine, so `make docs` does not
run this; a test says when the pages look different. The checkpoint is fixtures/g2p_en; faults and changes are put in.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import ckptconv
from ckptconv.api.options import Options
from ckptconv.reporting import serve

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))
from browser import Browser  # noqa: E402

SCREENS = ROOT / "docs" / "screens"
SIZES = {1280: 800, 390: 844}
PAGES = {
    "where": ["g2p_en.safetensors"],
    "wrong": ["faulty.safetensors"],
    "changed": ["g2p_en.safetensors", "tuned.safetensors"],
}


def checkpoints() -> None:
    """Write the three checkpoints into the working directory."""
    weights = ckptconv.open(ROOT / "fixtures" / "g2p_en", weights_only=True)
    good = weights.numpy()
    kernels = [n for n, x in good.items() if x.ndim == 2]
    faulty, tuned = ({n: x.copy() for n, x in good.items()} for _ in range(2))
    faulty["rnn/attention_wrapper/gru_cell/gates/kernel"][17, 3] = np.nan
    faulty["rnn/attention_wrapper/attention_layer/kernel"][200] *= 100
    faulty["memory_layer/kernel"][:] = 0
    noise = np.random.default_rng(0)
    for k, name in enumerate(kernels):
        tuned[name] = (tuned[name] * (1 + noise.normal(0, 0.4 / 2**k, tuned[name].shape))).astype("f4")
    tuned["head/kernel"] = tuned.pop("dense/kernel")[:, :40].copy()
    for name, arrays in {"g2p_en": good, "faulty": faulty, "tuned": tuned}.items():
        ckptconv.save(arrays, f"{name}.safetensors")


def screens(browser: Browser, widths: Sequence[int] = tuple(SIZES)) -> Iterator[tuple[str, bytes]]:
    """The name and the content of each picture; it is made in a folder of its own."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            checkpoints()
            for name, sources in PAGES.items():
                made = ckptconv.report(sources, f"{name}.html")
                for width in widths:
                    page = browser.page(Path(made.path).absolute().as_uri(), width, SIZES[width])
                    yield f"{name}-{width}.png", page.png()
            if 1280 in widths:
                yield "serve-1280.png", region(browser)
        finally:
            os.chdir(here)


def region(browser: Browser) -> bytes:
    """The heat map of a matrix with a faulty row, as it is served."""
    faulty = serve.Offered("faulty.safetensors", "faulty.safetensors", 0)
    with serve.Server(serve.Shelf(lambda: [faulty], Options())) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        page = browser.page(served.url, 1280, SIZES[1280])
        names = list(ckptconv.open("faulty.safetensors"))
        page.run(f"location.hash = 'open={names.index('rnn/attention_wrapper/attention_layer/kernel')}'")
        page.wait("document.querySelector('.look canvas')")
        page.run("document.querySelector('.look').scrollIntoView({block: 'end'}); document.activeElement.blur()")
        served.shutdown()
        return page.png()


if __name__ == "__main__":
    SCREENS.mkdir(exist_ok=True)
    with Browser() as chromium:
        for name, picture in screens(chromium):
            (SCREENS / name).write_bytes(picture)
            print(f"{name}: {len(picture):,} bytes")
