"""Every reader against every writer: what one format gives, every other holds bit for bit or refuses by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import FIXTURES, SUBJECTS

import ckptconv
from ckptconv.checkpoint import Checkpoint
from ckptconv.formats import table
from ckptconv.testing import Subject, assert_same, holdable, write, zoo

GOLDEN = (  # by the real frameworks, in formats that we only read, or with what our own writers never make
    "tf/v1", "tf/v1s-00000-of-00003", "tf/sliced", "tf/strings", "tf/objects-1", "tf/frozen.pb", "torch/script.pt",
    "torch/stream.pt", "torch/dtypes.pt", "torch/nested.pt", "torch/dcp", "flax/chunked.msgpack", "flax/odd.msgpack",
    "keras/net.keras", "keras/legacy3.h5", "keras/full_tf_keras.h5", "keras/shards.weights.json", "tf/saved",
)  # fmt: skip


def by_name(subject: Subject) -> str:
    return subject.name


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The zoo in every format that is written."""
    folder = tmp_path_factory.mktemp("zoo")
    out = {}
    for subject in SUBJECTS:
        path = folder / subject.name / subject.file
        write(holdable(subject.named(zoo()), path, subject.name), path, subject.name)
        out[subject.name] = path
    return out


def assert_converts(source: Path, target: Subject, folder: Path) -> None:
    opened = ckptconv.open(source)
    whole = opened if opened.format == target.name else target.named(opened)
    path = folder / target.file
    kept = holdable(whole, path, target.name)
    if len(kept) < len(whole):
        with pytest.raises(ckptconv.Unrepresentable):
            table.get(target.name).load().writer(str(path)).place(whole)
    if kept and (kept := together(kept, path, target.name)):
        write(kept, path, target.name)
        assert_same(kept, path, target.name)


def together(checkpoint: Checkpoint, path: Path, name: str) -> Checkpoint:
    """Leave out what is refused for its values or its neighbours, such as a tensor that is also a group."""
    try:
        table.get(name).load().writer(str(path)).place(checkpoint)
    except ckptconv.Unrepresentable as e:
        if "nothing records the order" in str(e):  # a legacy Keras file of what Keras did not write
            return checkpoint.with_tensors({})
        kept = {n: t for n, t in checkpoint.items() if n != e.tensor and f"\n  {n}" not in str(e)}
        if len(kept) == len(checkpoint):
            raise
        return together(checkpoint.with_tensors(kept), path, name)
    return checkpoint


@pytest.mark.many
@pytest.mark.parametrize("source", SUBJECTS, ids=by_name)
@pytest.mark.parametrize("target", SUBJECTS, ids=by_name)
def test_written_by_us(source: Subject, target: Subject, written: dict[str, Path], tmp_path: Path) -> None:
    assert_converts(written[source.name], target, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "target"),
    [(s, t) for i, s in enumerate(GOLDEN) for t in SUBJECTS[i % 3 :: 3]],
    ids=lambda v: getattr(v, "name", v),
)
def test_written_by_others(source: str, target: Subject, tmp_path: Path) -> None:
    """Each in a third of the formats."""
    assert_converts(FIXTURES / source, target, tmp_path)


def test_every_format_that_is_written_is_here() -> None:
    assert {s.name for s in SUBJECTS} == {f.name for f in table.TABLE if f.writes}
