"""Any bytes given to a TensorFlow reader yield a Checkpoint or a CkptError, under valid checksums, too.

fuzz/families/tf.py does the same for hours, with object graphs and SavedModels.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from kit import FIXTURES, examples, read_all, sound_or_refused

import ckptconv
from ckptconv.formats.tensorflow import table
from ckptconv.storage.files import Reader

pytestmark = pytest.mark.slow
TF = FIXTURES / "tf"
FUZZ = examples(60)
edits = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6)


def edited(data: bytes, changes: list[tuple[float, int]]) -> bytes:
    out = bytearray(data)
    for at, value in changes if out else ():
        out[int(at * len(out))] = value
    return bytes(out)


def read(path: Path, kind: str) -> None:
    with sound_or_refused():
        read_all(ckptconv.open(path, from_=kind))


@given(changes=edits)
@FUZZ
def test_edited_graphs(tmp_path, changes):
    (tmp_path / "x.pb").write_bytes(edited((TF / "frozen.pb").read_bytes(), changes))
    read(tmp_path / "x.pb", "tf-graph")


TABLES = ["dtypes.index", "sliced.index", "keras3.index", "v1"]


@pytest.mark.parametrize("name", TABLES)
@given(changes=st.dictionaries(st.integers(0, 60), edits, max_size=2), keys=st.booleans())
@FUZZ
def test_edited_entries(tmp_path, name, changes, keys):
    """The table is rebuilt around edited values or keys, so its checksums are right."""
    for file in TF.glob(f"{name.removesuffix('.index')}.data*") if not (tmp_path / name).exists() else ():
        shutil.copy(file, tmp_path)
    with Reader(str(TF / name)) as f:
        pairs = list(table.Table(f))
    for at, change in changes.items():
        key, value = pairs[at % len(pairs)]
        pairs[at % len(pairs)] = (edited(key, change), value) if keys else (key, edited(value, change))
    (tmp_path / name).write_bytes(table.build(sorted(dict(pairs).items())))
    read(tmp_path / name, "tf" if name.endswith("index") else "tf-v1")
