"""What only a terminal shows, and how the program ends: in this process, so that each word can be compared."""

from __future__ import annotations

import io
import os
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
    assert "lossy: in 1 tensor, 3 values became infinite or NaN: dense/bias\n" in short


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
