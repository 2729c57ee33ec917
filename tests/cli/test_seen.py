"""What only a terminal shows, and how the program ends: in this process, so that each word can be compared."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import typer
from kit import Run

import ckptconv
from ckptconv import UsageError
from ckptconv.cli import show
from ckptconv.messages import version

main = import_module("ckptconv.cli.main")  # the package's own `main` is the function


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ckptconv.save({"dense/kernel": np.ones((2, 3), "f4"), "dense/bias": np.full(3, 1e9, "f4")}, tmp_path / "m.npz")
    return tmp_path / "m.npz"


# --- on a terminal ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "name", "shown"),
    [
        (80, "x" * 60, "x" * 60),
        (67, "abcdefghij" * 6, "abcdefghijabcdefghi…" + "bcdefghij" + "abcdefghij" * 3),
        (30, "abcdefghij" * 6, "abcdefg…" + "fghijabcdefghij"[-14:]),
    ],
)
def test_long_names_are_cut_to_fit(monkeypatch: pytest.MonkeyPatch, columns: int, name: str, shown: str) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(show, "get_terminal_size", lambda: os.terminal_size((columns, 9)))
    show.table(("name", "size"), [(name, "123456"), ("b", "1")], "lr")
    head, first, second = out.getvalue().splitlines()
    assert first == f"{shown}  123456"
    assert (head.split(), second.split()) == (["name", "size"], ["b", "1"])
    assert len(first) <= max(columns, 24)


def test_a_bar_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    for stream, quiet, watched in ((Terminal(), False, True), (Terminal(), True, False), (io.StringIO(), False, False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with show.progress(quiet) as move:
            assert (move is not None) is watched
            if move:
                move(5, 10)
        assert bool(stream.getvalue()) is watched


def test_a_hint_on_a_terminal_only(cli: Run, monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    from ckptconv.rules import library

    monkeypatch.setattr(library, "suggestion", lambda found: "bert-tf" if "dense/bias" in found else "")
    for watched in (False, True):
        monkeypatch.setattr(show, "is_watched", lambda watched=watched: watched)
        said = [cli("inspect", model, *more).stderr for more in ([], ["--json"], ["--include", "*kernel"])]
        assert ["hint: -c bert-tf converts these names" in text for text in said] == [watched, False, False]


# --- what a report says ---------------------------------------------------------------------------------------------


def test_losses_and_all_names_with_verbose(cli: Run, model: Path) -> None:
    done = cli(model, "-o", "n.npz", "--dtype", "float16", "--verbose")
    assert (done.returncode, done.stdout) == (0, "")
    assert "lossy: dense/bias: 3 values became infinite or NaN, 0 became zero\n" in done.stderr
    assert "lossy: dense/kernel" not in done.stderr
    short = cli(model, "-o", "o.npz", "--dtype", "float16").stderr
    assert "lossy: of 1 tensor, 3 values became infinite or NaN: dense/bias\n" in short


MODULE = """
import torch
def net():
    made = torch.nn.Module()
    made.w = torch.nn.Parameter(torch.zeros(2, 3))
    return made
"""


def test_a_module_is_checked_before_it_is_written(cli: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "into_net.py").write_text(MODULE)
    ckptconv.save({"w": np.ones((2, 3), "f4")}, tmp_path / "w.npz")
    dry = cli("w.npz", "-o", "w.pt", "--into", "into_net:net", "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, "")
    assert dry.stderr == "into_net:net: 1 tensor would fit\n"
    assert not (tmp_path / "w.pt").exists()
    wrong = cli("w.npz", "-o", "w.pt", "--into", "net")
    assert (wrong.returncode, wrong.stderr) == (2, "error: --into takes package.module:callable, not 'net'\n")
    for options, said in ((["-q"], False), ([], True)):
        done = cli("w.npz", "-o", "w.pt", "--force", "--into", "into_net:net", *options)
        assert (done.returncode, "into_net:net: " in done.stderr) == (0, said)
    assert (ckptconv.open(tmp_path / "w.pt")["w"].numpy() == 1).all()


def test_what_the_casts_of_a_module_lost_is_said(cli: Run, tmp_path: Path) -> None:
    """And a dtype that the module does not have is refused: it would be cast to, and back."""
    pytest.importorskip("torch")
    (tmp_path / "narrow_net.py").write_text(MODULE)
    ckptconv.save({"w": np.array([[1e300, 1e-300, 0], [1, np.inf, -1e-99]])}, tmp_path / "w.npz")
    line = ("w.npz", "-o", "w.pt", "--into", "narrow_net:net", "--force")
    told = json.loads(cli(*line, "--json").stdout)
    assert (told["loss"], told["casts"]) == ({"w": [1, 2]}, {"float64 to float32": 1})
    shown = cli(*line).stderr
    assert shown.count("lossy: of 1 tensor, 1 values became infinite or NaN and 2 became zero: w\n") == 1
    assert "1 tensor (1 cast from float64 to float32)" in shown
    for options in ([], ["-n"]):
        done = cli(*line, "--dtype", "float16", *options)
        assert (done.returncode, done.stderr) == (
            2, "error: --into writes the dtypes that the module has; convert what it writes with --dtype\n",
        )  # fmt: skip


MISFITS = {  # beside the weight: tensors of the source, and what is wrong with them
    "unexpected": ({"other": np.zeros(2)}, "1 not in the module:"),
    "a shape": ({"w": np.ones((3, 2), "f4")}, "1 with another shape:"),
    "missing": ({"w": None, "b": np.zeros(2, "f4")}, "1 missing in the source"),
}


@pytest.mark.parametrize("what", MISFITS)
def test_a_dry_run_into_a_module_fails_where_the_run_does(what: str, cli: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "misfit_net.py").write_text(MODULE)
    more, said = MISFITS[what]
    tensors = {"w": np.ones((2, 3), "f4")} | more
    ckptconv.save({n: v for n, v in tensors.items() if v is not None}, tmp_path / "w.npz")
    line = ("w.npz", "-o", "w.pt", "--into", "misfit_net:net")
    done = [cli(*line, *options) for options in ([], ["-n"], ["-n", "--json"])]
    assert [d.returncode for d in done] == [6, 6, 6]
    assert all(said in d.stderr for d in done)
    assert json.loads(done[2].stdout)["error"]["exit"] == 6


BUFFER = """
import torch
def net():
    made = torch.nn.Module()
    made.w = torch.nn.Parameter(torch.zeros(2, 3))
    made.register_buffer("mean", torch.zeros(50))
    return made
"""


@pytest.mark.parametrize("options", [[], ["-q"], ["--json"]])
def test_what_a_module_was_not_given_is_said(options: list[str], cli: Run, tmp_path: Path) -> None:
    """A damaged buffer keeps the value that the module made: the notes on the source go with the output."""
    pytest.importorskip("torch")
    (tmp_path / "buffer_net.py").write_text(BUFFER)
    mean = np.full(50, 3.5, "f4")
    ckptconv.save({"w": np.ones((2, 3), "f4"), "mean": mean}, tmp_path / "w.npz")
    raw = bytearray((tmp_path / "w.npz").read_bytes())
    raw[raw.find(mean.tobytes()) + 5] ^= 0xFF
    (tmp_path / "w.npz").write_bytes(raw)
    done = cli("w.npz", "-o", "w.pt", "--into", "buffer_net:net", "--keep-going", *options)
    assert done.returncode == 1
    if options == ["--json"]:
        told = json.loads(done.stdout)
        assert list(told["damaged"]) == ["mean"]
        assert [(n["kind"], n["names"]) for n in told["notes"]] == [("damaged", ["mean"]), ("assumed", ["mean"])]
    else:
        assert re.search(r"^damaged: .*\(mean\)$", done.stderr, re.M)
        assert "assumed: not in the source: as the module makes them (mean)\n" in done.stderr


# --- the end ------------------------------------------------------------------------------------------------------


@pytest.fixture
def _signals() -> Iterator[None]:
    heard = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in heard.items():
        signal.signal(number, handler)


def ended(argv: list[str]) -> int:
    with pytest.raises(SystemExit) as e:
        main.main(argv)
    return int(e.value.code or 0)


@pytest.mark.usefixtures("_signals")
@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert ended([option]) == 0
    assert capsys.readouterr() == (f"ckptconv {version()}\n", "")


def raising(error: BaseException) -> Callable[[list[str]], None]:
    def run(argv: list[str]) -> None:
        raise error

    return run


@pytest.mark.usefixtures("_signals")
@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (typer.Exit(3), 3, ""),
        (KeyboardInterrupt(), 130, "interrupted; nothing was written\n"),
        (OSError(28, "No space left on device"), 9,
         "error: cannot write the output of this command: No space left on device\n"),
        (UsageError("no"), 2, "error: no\n"),
        (MemoryError(), 9, "error: there is not enough memory; --max-memory bounds what a conversion takes, and fewer "
         "--jobs take less\n"),
    ],
)  # fmt: skip
def test_how_it_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, words: str
) -> None:
    monkeypatch.setattr(main, "_run", raising(error))
    assert ended(["formats"]) == code
    assert capsys.readouterr() == ("", words)


@pytest.mark.usefixtures("_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_DFL)
    main._tidy_when_ended()
    with pytest.raises(KeyboardInterrupt) as e:
        signal.raise_signal(number)
    assert e.value.args == (128 + number,)
    signal.signal(number, signal.SIG_IGN)  # nohup
    main._tidy_when_ended()
    assert signal.getsignal(number) is signal.SIG_IGN
