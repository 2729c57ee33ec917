"""Small files beside a model's weights: copied from folder to folder, never over what is there, and only files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import ckptconv
from ckptconv.formats import huggingface as companions

FILES = {"config.json": "{}", "tokenizer.json": '{"a": 1}', "vocab.txt": "a\n", "generation_config.json": ""}
FOREIGN = {"modeling_mine.py": "import os", "README.md": "# x", "optimizer.pt.txt": "x"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ckptconv.save({f"w{i}": np.full((4, 4), i, "f4") for i in range(4)}, tmp_path / "model", to="hf")
    for name, text in (FILES | FOREIGN).items():
        (tmp_path / "model" / name).write_text(text)
    return tmp_path / "model"


def there(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in folder.iterdir() if ".safetensors" not in p.name}


@pytest.mark.parametrize("more", [{}, {"max_shard_size": 100}, {"resume": True}, {"dtype": "float16"}])
def test_they_come_along_from_folder_to_folder(more: dict[str, object], model: Path, tmp_path: Path) -> None:
    plan = ckptconv.dry_run(model, tmp_path / "out", to="hf", **more)
    assert not (tmp_path / "out").exists()
    done = ckptconv.convert(model, tmp_path / "out", to="hf", **more)
    assert there(tmp_path / "out") == FILES
    written = {os.path.relpath(f, tmp_path) for f in done.files}
    assert {f"out/{name}" for name in FILES} < written == {f.name for f in plan.placement.files}
    for notes in (plan.notes, done.notes):
        assert [n.names for n in notes if "copied unchanged" in n.text] == [tuple(sorted(FILES))]
    assert ckptconv.verify(model, tmp_path / "out", dtype=more.get("dtype")).tensors == 4
    assert ckptconv.verify(tmp_path / "out").hashed == 4


@pytest.mark.parametrize(
    ("source", "options", "copied"),
    [
        ("model", {}, True),
        ("model", {"copy_files": False}, False),
        ("model/model.safetensors", {}, False),
        ("model/model.safetensors", {"copy_files": True}, True),
    ],
)
def test_the_option_decides(source: str, options: dict[str, bool], copied: bool, model: Path, tmp_path: Path) -> None:
    ckptconv.convert(tmp_path / source, tmp_path / "out", to="hf", **options)
    assert there(tmp_path / "out") == (FILES if copied else {})


def test_a_private_one_stays_private(model: Path, tmp_path: Path) -> None:
    (model / "config.json").chmod(0o600)
    ckptconv.convert(model, tmp_path / "out", to="hf")
    assert (tmp_path / "out" / "config.json").stat().st_mode & 0o077 == 0


def test_one_that_becomes_a_link_meanwhile_is_copied_as_it_was(model: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("!!")  # as long as what is there

    def swap(*_: int) -> None:
        (model / "config.json").unlink(missing_ok=True)
        (model / "config.json").symlink_to(tmp_path / "secret")

    ckptconv.convert(model, tmp_path / "out", to="hf", progress=swap)
    assert (tmp_path / "out" / "config.json").read_text() == "{}"


def test_only_from_one_source_to_a_folder(model: Path, tmp_path: Path) -> None:
    for sources, target in ((model, "x.npz"), ([model, model], "out")):
        to = {"to": "hf", "scope": ["a", "b"]} if target == "out" else {}
        with pytest.raises(ckptconv.UsageError, match="copies from one source into a folder: use to='hf'"):
            ckptconv.convert(sources, tmp_path / target, copy_files=True, **to)


@pytest.mark.parametrize("force", [False, True])
def test_what_is_there_stays(force: bool, model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("mine")
    done = ckptconv.convert(model, tmp_path / "out", to="hf", force=force)
    assert there(tmp_path / "out") == FILES | {"config.json": "mine"}
    assert [n.names for n in done.notes if "not replaced" in n.text] == [("config.json",)]
    ckptconv.convert(model, tmp_path / "out", to="hf", force=True)
    assert there(tmp_path / "out") == FILES | {"config.json": "mine"}


def test_links_pipes_and_large_files_are_left_out(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("!!")  # not too large
    (model / "vocab.txt").unlink()
    (model / "vocab.txt").symlink_to(tmp_path / "secret")
    (model / "spiece.model").symlink_to(model / "none")
    (model / "merges.txt").mkdir()
    (model / "added_tokens.json").symlink_to("added_tokens.json")
    os.mkfifo(model / "vocab.json")
    monkeypatch.setattr(companions, "MAX_SIZE", 4)
    done = ckptconv.convert(model, tmp_path / "out", to="hf")
    assert there(tmp_path / "out") == {"config.json": "{}", "generation_config.json": ""}
    (note,) = [n for n in done.notes if n.kind == "skipped"]
    left = ("added_tokens.json", "merges.txt", "spiece.model", "tokenizer.json", "vocab.json", "vocab.txt")
    assert note.names == left
    monkeypatch.setattr(companions, "read_all", lambda *_: ckptconv.open("none"))
    with pytest.raises(ckptconv.StorageError, match="none"):  # which is no reason to go on without it
        ckptconv.convert(model, tmp_path / "other", to="hf")
