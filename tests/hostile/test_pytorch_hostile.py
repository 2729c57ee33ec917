"""Files that attack: each is refused with its error, and nothing runs, is imported, or is opened beside the file."""

from __future__ import annotations

import encodings.raw_unicode_escape  # noqa: F401 - Python imports a codec when it is first used
import pickletools
import re
import sys
from pathlib import Path
from typing import Any

import hostile
import pytest

import ckptconv
from ckptconv.formats import table
from ckptconv.formats.pytorch.pickle import Inert, load

HERE = hostile.HOME / "pytorch"
EXPECTED = hostile.files("pytorch")
RUNS = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "socket.",
    "shutil.",
    "compile",
    "exec",
    "import",
    "pickle.find_class",
    "ctypes.",
    "os.remove",
    "os.rename",
    "os.putenv",
    "webbrowser.",
)

watched: list[str] | None = None


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if watched is None:
        return
    if event.startswith(RUNS):
        watched.append(f"{event} {args!r:.100}")
    if event == "open" and isinstance(args[0], str) and not args[0].startswith(str(HERE)):
        watched.append(f"open {args[0]}")


sys.addaudithook(_hook)


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    assert pickletools  # imported now, as is what names an opcode that is refused
    for row in table.table().values():
        row.load()
    for name in ("hidden_data.pt", "script_opens.pt", "stream_opens.pt"):
        ckptconv.open(HERE / name)  # what is imported on first use is imported now
    with pytest.raises(ckptconv.UnsafeCheckpoint):  # so is what gives advice
        ckptconv.open(HERE / "os_system.pt")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def attempt(path: Path, **options: Any) -> Any:
    """Open under watch; return the checkpoint or the error."""
    global watched
    watched = []
    try:
        try:
            return ckptconv.open(path, **options)
        except ckptconv.CkptError as e:
            return e
    finally:
        events, watched = watched, None
        assert not events, events


@pytest.mark.parametrize("name", EXPECTED)
def test_refused(name: str, tmp_path: Path) -> None:
    error, words = EXPECTED[name]
    got = attempt(HERE / name)
    if error:
        assert type(got).__name__ == error, got
        assert re.search(words, got.message), got.message
        assert got.url == str(HERE / name)
        assert got.exit_code == {"UnsafeCheckpoint": 5, "CorruptCheckpoint": 4, "NameCollision": 6}[error]
    else:
        assert words in "".join(note.text for note in got.notes)
        for tensor in got.values():
            assert tensor.numpy().tolist() == [1.0, 2.0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_opaque_runs_nothing_either(name: str, tmp_path: Path) -> None:
    got = attempt(HERE / name, opaque=True)
    assert isinstance(got, (ckptconv.Checkpoint, ckptconv.CkptError))
    assert list(tmp_path.iterdir()) == []


def test_all_unknown_globals_are_listed() -> None:
    message = attempt(HERE / "all_globals.pt").message
    for name in ("os.system", "builtins.eval", "torch.load", "pip.main", "pkgutil.resolve_name", "io.open"):
        assert f"  {name}\n" in message


def test_placeholders_record_and_do_nothing() -> None:
    made = load(b"\x80\x02cos\nsystem\nX\x05\0\0\0touch\x85R}X\x01\0\0\0aK\x01sb.", opaque=True)
    assert isinstance(made, Inert)
    assert (made.path, made.args, made.state) == ("os.system", ("touch",), {"a": 1})
