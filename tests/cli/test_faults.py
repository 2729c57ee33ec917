"""Wrong input: one clear message and the documented exit code, never a traceback, and nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import Run

import ckptconv
from ckptconv.cli import show
from ckptconv.cli.main import main
from ckptconv.errors import StorageError
from ckptconv.storage.faults import MissingFile

DATA = "model_epoch_14_gs_27956.data-00000-of-00001"
INDEX = "model_epoch_14_gs_27956.index"


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


# What is done to a copy of the bundle, the exit code, and what the message must say.
DAMAGE: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "no shard": (lambda d: (d / DATA).unlink(), 9, DATA),
    "flipped shard": (lambda d: flip(d / DATA, 5000), 4, "crc32c"),
    "git-lfs shard": (
        lambda d: (d / DATA).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4264812\n"),
        4,
        "git-lfs",
    ),
    "no index": (lambda d: (d / INDEX).unlink(), 9, "model_epoch_14_gs_27956"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_bundle(damage: str, cli: Run, fixtures: Path, tmp_path: Path) -> None:
    do, code, says = DAMAGE[damage]
    shutil.copytree(fixtures / "g2p_en", tmp_path / "g2p")
    do(tmp_path / "g2p")
    done = cli("g2p", "-o", "out.safetensors")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g2p"]


FILES: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 3, "empty"),
    "html": (b"<!DOCTYPE html>\n<html><body>404</body></html>", 3, "HTML"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 3\n", 3, "git-lfs"),
    "gzip": (b"\x1f\x8b\x08\0\0\0\0\0\0\3abc", 3, "unpack it first"),
    "gguf": (b"GGUF\3\0\0\0" + b"\0" * 16, 3, "GGUF"),
    "tflite": (b"\x1c\0\0\0TFL3" + b"\0" * 16, 3, "TensorFlow Lite"),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("name", ["model.safetensors", "model.h5", "model.pt", "model.ckpt", "model.npz", "model.bin"])
def test_no_checkpoint_at_all(kind: str, name: str, cli: Run, tmp_path: Path) -> None:
    content, code, says = FILES[kind]
    (tmp_path / name).write_bytes(content)
    done = cli("inspect", name)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "code", "says"),
    [
        ("model.onnx", b"\x08\x08\x12\x04spox2\0", 3, "ONNX"),
        ("model.keras", b"PK\3\4\x14\0\0\0\x08\0", 4, "truncated?"),
        ("model.pkl", b"\x80\x04\x95\x7e\1\0\0\0\0\0\0}", 4, "truncated?"),
        ("model.pt", b"P", 4, "has 1 bytes"),
        ("model", b"P", 3, "begins with 50"),
        ("model.pt", b"Dear all,\nthe weights are", 3, "is a text that begins with 'Dear all,'"),
        ("net.t7", b"\4\0\0\0\1\0\0\0\3\0\0\0V 1", 3, "torchfile"),
        ("model-0000.params", b"\x12\1" + bytes(30), 3, "mxnet.nd.load"),
        ("a.mat", b"MATLAB 5.0 MAT-file, Platform: GLNXA64" + bytes(90), 3, "scipy.io.loadmat"),
        ("m.bin", b"lmgg" + bytes(20), 3, "old ggml"),
        ("m.bin", b"\x20\1\0\0\0\3" + b"\0\0\6\0" * 4, 3, "llama2.c"),
        ("vgg.caffemodel", b"\n\3vgg" + bytes(30), 3, "caffe.Net"),
        ("yolo.weights", bytes(40), 3, "darknet"),
    ],
)
def test_nearly_a_checkpoint(name: str, content: bytes, code: int, says: str, cli: Run, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    done = cli("inspect", name)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr


FOLDERS: dict[str, tuple[list[str], int, str]] = {
    "nothing": ([], 3, "it is empty"),
    "no checkpoint": (["readme.txt", "x.py"], 3, "no checkpoint itself, only readme.txt, x.py"),
    "one": (["a.npz"], 3, "give one in it (a.npz)"),
    "several": (["a.npz", "b.h5", "c.txt"], 3, "give one in it (a.npz, b.h5)"),
    "folders": (
        ["a/model.safetensors", "b/readme.txt", "c/model.safetensors"],
        3,
        "give one in it (a, c)",
    ),
    "orbax": (["_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt"], 4, "no node of a database"),
    "several models": (
        ["a.safetensors", "b.pt"],
        3,
        "holds several models; give one of them:\n  a.safetensors\n  b.pt",
    ),
    "a training run": (
        ["a.safetensors", "optimizer.pt", "rng_state_0.pth", "training_args.bin"],
        0,
        "a.safetensors is read",
    ),
    "state alone": (["optimizer.bin", "m.pt"], 3, "give one in it (m.pt)"),
    "a package of torch": ([".data/version", "model/model.pkl"], 3, "torch.package.PackageImporter"),
    "likely one": (["model.safetensors", "model.pt"], 0, "only model.safetensors is read; name another"),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_says_what_to_name(kind: str, cli: Run, tmp_path: Path) -> None:
    files, code, says = FOLDERS[kind]
    (tmp_path / "d").mkdir()
    for name in files:
        (tmp_path / "d" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "d" / name).write_bytes(b"")
        if name.endswith((".safetensors", ".npz", ".h5", ".pt")):
            ckptconv.save({"weight": np.ones(3, "f4")}, tmp_path / "d" / name, force=True)
    done = cli("inspect", "d")
    assert done.returncode == code
    assert says in done.stderr


def test_a_zip_of_something_else_says_what_is_in_it(cli: Run, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as z:
        z.writestr("readme.txt", "hello")
    done = cli("inspect", "model.zip")
    assert (done.returncode, done.stdout) == (3, "")
    assert "readme.txt" in done.stderr


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["a.npz"], 2, "`ckptconv a.npz -o DST` converts; `ckptconv inspect a.npz` lists what is inside"),
        (["a.npz", "-o", "x.unknown"], 2, "--to"),
        (["a.npz", "-o", "empty"], 2, "'empty' is a folder"),
        (["a.npz", "-o", "x.npz", "--to", "safetensor"], 2, "did you mean safetensors?"),
        (["a.npz", "-o", "x.npz", "-c", "berd"], 2, "did you mean bert?"),
        (["a.npz", "-o", "x.npz", "--include", "wieght"], 2, "weight"),
        (["a.npz", "-o", "x.npz", "--exclude", "w*"], 2, "leave none of 1 tensors"),
        (["a.npz", "-o", "x.npz", "--dtype", "int8"], 2, "floating-point"),
        (["a.npz", "-o", "x.npz", "--rename", "weight=w", "--rename", "wieght=w"], 2, "wieght; did you mean weight?"),
        (["verify", "a.npz", "--dtype", "float16", "--skip-unrepresentable"], 2, "--dtype, --skip-unrepresentable"),
        (["a.npz", "-o", "x.npz", "--max-memory", "1kB"], 2, "16MB"),
        (["a.npz", "-o", "x.safetensors", "--max-shard-size", "0"], 2, "not a size"),
        (["a.npz", "-o", "b.npz"], 9, "--force"),
        (["a.npz", "-o", "x.npz", "--ema"], 2, "moving averages"),
        (["frobnicate", "x"], 2, "neither a verb nor a file is called 'frobnicate'"),
        (["inpsect", "a.npz"], 2, "did you mean `ckptconv inspect`?"),
        (["a.npz", "-o", "x.npz", "--inclde", "w"], 2, "--include"),
        (["inspect", "a.npz", "b.npz"], 2, "see `ckptconv inspect --help`"),
        (["diff", "a.npz", "b.npz", "--by", "layers"], 2, "not by 'layers'; did you mean layer?"),
    ],
)
def test_usage(args: list[str], code: int, says: str, cli: Run, tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        ckptconv.save({"weight": np.ones(3, "f4")}, tmp_path / name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    done = cli(*args)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_misuse_is_json_too(cli: Run) -> None:
    done = cli("inspect", "--json")
    assert done.returncode == 2
    told = json.loads(done.stdout)["error"]
    assert (told["kind"], told["exit"]) == ("UsageError", 2)
    assert done.stderr == f"error: {told['message']}\n"


def test_an_error_is_named_by_its_public_class(capsys: pytest.CaptureFixture[str]) -> None:
    for e in (StorageError("no", url="u"), MissingFile("no", url="u")):
        assert show.failure(e, machine=True) == 9
        assert json.loads(capsys.readouterr().out)["error"]["kind"] == "StorageError"


@pytest.mark.slow
def test_a_closed_pipe_ends_as_documented(tmp_path: Path) -> None:
    ckptconv.save({f"layer_{i}/w": np.ones(1, "f4") for i in range(20_000)}, tmp_path / "m.safetensors")
    command = [sys.executable, "-m", "ckptconv", "inspect", str(tmp_path / "m.safetensors")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.readline()
        run.stdout.close()
        assert run.stderr.read() == ""
    assert run.returncode == 141


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_output(closed: str, tmp_path: Path) -> None:
    """A file of ours that got the number of a closed stream would also get what is printed."""
    ckptconv.save({"w": np.ones(3, "f4")}, tmp_path / "a.npz")
    line = f'"$0" -m ckptconv a.npz -o "$1" {closed}'
    for redirected, name in ((line, "b.npz"), (line.replace(closed, ""), "c.npz")):
        done = subprocess.run(["sh", "-c", redirected, sys.executable, name], cwd=tmp_path, capture_output=True)
        assert done.returncode == 0
    assert (tmp_path / "b.npz").read_bytes() == (tmp_path / "c.npz").read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full (/dev/full)")
@pytest.mark.parametrize(
    ("redirected", "said"),
    [
        (">/dev/full", b"error: cannot write the output of this command: No space left on device\n"),
        ("2>/dev/full", b""),
        (">/dev/full 2>/dev/full", b""),
    ],
)
def test_an_error_that_cannot_be_printed(redirected: str, said: bytes, tmp_path: Path) -> None:
    line = f'"$0" -m ckptconv inspect no.npz --json {redirected}'
    done = subprocess.run(["sh", "-c", line, sys.executable], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr) == (9, said)


def test_an_interrupt_after_the_output_does_not_deny_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from ckptconv.rules import library

    def interrupted(*args: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(library, "suggestion", interrupted)
    monkeypatch.setattr("ckptconv.cli.show.is_watched", lambda: True)
    ckptconv.save({"w": np.ones(3, "f4")}, tmp_path / "a.npz")
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "a.npz"), "-o", str(tmp_path / "b.npz")])
    assert ended.value.code == 0
    assert "interrupted" not in capsys.readouterr().err
    assert (tmp_path / "b.npz").exists()


@pytest.mark.parametrize(("args", "code"), [((), 130), ((143,), 143)])
def test_an_interrupt_while_what_was_sent_is_read_back_names_it(
    args: tuple[int, ...],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    from ckptconv.api import writing

    confirm = writing.confirm

    def interrupted(*made: Any, **how: Any) -> None:
        if not how.get("at"):  # it is published
            raise KeyboardInterrupt(*args)
        confirm(*made, **how)

    monkeypatch.setattr(writing, "confirm", interrupted)
    monkeypatch.setattr("ckptconv.cli.suggestions.FLEETING", ())
    ckptconv.save({"w": np.ones(3, "f4")}, tmp_path / "a.npz")
    url = f"memory://interrupted/{code}.npz"
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "a.npz"), "-o", url])
    assert ended.value.code == code
    assert capsys.readouterr().err == f"interrupted; {url} was written, and not checked to the end\n"
    assert list(ckptconv.open(url)) == ["w"]
