"""Keras models through other formats and back: which load again, and give the same outputs.

    python benchmarks/keras_order.py [MODEL ...]     a Markdown table: docs/keras.md

Needs keras, tf_keras and tensorflow. The models stand in tests/support/keras_models.py.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from keras_models import MODELS
from keras_trips import ASKED, REFUSED, trips


def cell(found: list[str]) -> str:
    """One word for the trips of a column, which is the worst of them."""
    for word in found:
        if word and not word.startswith((ASKED, REFUSED)):
            return f"**{word}**"
    return next((word.partition(":")[0] for word in found if word), "✓")


def main() -> None:
    warnings.simplefilter("ignore")
    titles: list[str] = []
    for name in sys.argv[1:] or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            found = trips(name, Path(folder))
        if not titles:
            titles = list(found)
            print("| model |", " | ".join(titles), "|")
            print("|-" * (len(titles) + 1) + "|")
        print(f"| {name} |", " | ".join(map(cell, found.values())), "|", flush=True)


if __name__ == "__main__":
    main()
