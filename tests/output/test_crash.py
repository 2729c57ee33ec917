"""Kills and faults: at the destination is the old checkpoint or the complete new one, and nothing else stays."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ckptconv
from ckptconv.api import result, writing
from ckptconv.errors import CkptError, StorageError
from ckptconv.output import destination, staging

KILLS = int(os.environ.get("CKPTCONV_KILLS", "6"))
Names = dict[str, str]
# Destination, target options. The directory outputs and shards hold several files.
TARGETS: dict[str, tuple[str, dict[str, object]]] = {
    "single": ("out.safetensors", {}),
    "shards": ("out.safetensors", {"max_shard_size": 800_000}),
    "bundle": ("out.ckpt", {"to": "tf", "max_shard_size": 800_000}),
    "folder of npy": ("out", {"to": "npy"}),
    "folder of shards": ("out", {"to": "hf", "max_shard_size": 800_000}),
    "torch shards": ("pytorch_model.bin", {"to": "torch", "max_shard_size": 800_000}),
}


def values(seed: int, rows: int = 100) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)
    return {f"w{i}": r.standard_normal((rows + i, 500)).astype("f4") for i in range(10)}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    home = tmp_path_factory.mktemp("in")
    for seed in (0, 1):
        ckptconv.save(values(seed), home / f"{seed}.npz")
    return [home / "0.npz", home / "1.npz"]


def write(source: Path, folder: Path, kind: str, force: bool = False, **more: object) -> result.Report:
    name, options = TARGETS[kind]
    return writing.convert(source, folder / name, force=force, verify=False, **options, **more)


def snapshot(folder: Path) -> Names:
    return {str(p.relative_to(folder)): hashlib.md5(p.read_bytes()).hexdigest()
            for p in sorted(folder.rglob("*")) if p.is_file()}  # fmt: skip


@pytest.fixture(scope="module")
def wanted(sources: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Names, Names]]:
    out = {}
    for kind in TARGETS:
        both = [tmp_path_factory.mktemp("want"), tmp_path_factory.mktemp("want")]
        for folder, source in zip(both, sources, strict=True):
            write(source, folder, kind)
        out[kind] = (snapshot(both[0]), snapshot(both[1]))
    return out


def readable(folder: Path, kind: str) -> str:
    """What a reader finds: 'old', 'new' or 'none'; anything else fails."""
    name, options = TARGETS[kind]
    try:
        found = ckptconv.open(folder / name, from_=str(options["to"]) if "to" in options else None)
        got = {n: t.numpy() for n, t in found.items()}
    except CkptError:
        return "none"
    for what, seed in (("old", 0), ("new", 1)):
        want = values(seed)
        if got.keys() == want.keys() and all(np.array_equal(got[n], want[n]) for n in want):
            return what
    raise AssertionError(f"a third thing: {sorted(got)}")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork is killed")
def test_killed_at_any_moment(sources: list[Path], wanted: dict[str, tuple[Names, Names]], tmp_path: Path) -> None:
    """Each kind of output in turn, with and without a checkpoint to replace."""
    choose, lasts = random.Random(8), dict[str, float]()
    for n in range(KILLS):
        kind, force = list(TARGETS)[n % len(TARGETS)], n // len(TARGETS) % 2 == 0
        folder = tmp_path / str(n)
        folder.mkdir()
        if force:
            write(sources[0], folder, kind)
        began = time.monotonic()
        if not (child := os.fork()):
            write(sources[1], folder, kind, force)
            os._exit(0)
        if kind in lasts:  # how long the last of this kind that was let live took
            time.sleep(choose.uniform(0, 1.1 * lasts[kind]))
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        lasts.setdefault(kind, time.monotonic() - began)
        left = snapshot(folder)
        assert readable(folder, kind) != "none" or not force or any(".part" in name for name in left), sorted(left)
        write(sources[1], folder, kind, force=True)
        assert snapshot(folder) == wanted[kind][1], "the next run leaves litter or something else"


class Killed(BaseException):
    pass


def stopped(
    do: Callable[[], object], step: int, monkeypatch: pytest.MonkeyPatch, names: Sequence[str] = ("replace", "unlink"),
    error: BaseException | None = None,
) -> bool:  # fmt: skip
    """Let a step of the file system fail, and the later ones, if an error is given; else stop dead there, and no
    handler tidies up. False if it was done before."""
    left, close = [step], staging.Output.close

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kw: object) -> object:
            left[0] -= 1
            if left[0] == -1 or (left[0] < 0 and (error is None or "pwrite" in names)):
                raise error or Killed
            return real(*args, **kw)

        return call

    def closed(out: staging.Output) -> None:
        if error or left[0] >= 0:
            close(out)
        elif out._lock >= 0:  # as the system does
            os.close(out._lock)
            out._lock = -1

    with monkeypatch.context() as m:
        for name in names:
            m.setattr(os, name, counted(getattr(os, name)))
        m.setattr(staging.Output, "close", closed)
        with suppress(Killed):
            do()
    return left[0] < 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("force", [False, True])
def test_killed_between_any_two_renames(
    kind: str, force: bool, sources: list[Path], wanted: dict[str, tuple[Names, Names]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Exhaustive where random kills seldom hit: a reader finds the old, the new or an error; the next run goes on."""
    for step in range(200):
        folder = tmp_path / str(step)
        folder.mkdir()
        if force:
            write(sources[0], folder, kind)
        was = stopped(lambda folder=folder: write(sources[1], folder, kind, force), step, monkeypatch)
        if was:
            readable(folder, kind)
            write(sources[1], folder, kind, force=True)
        assert snapshot(folder) == wanted[kind][1], step
        if not was:
            return
    raise AssertionError("it never ended")


@pytest.mark.slow
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("fault", [OSError(errno.EIO, "input/output error"), KeyboardInterrupt()])
def test_any_step_of_the_publication_may_fail(
    kind: str, fault: BaseException, sources: list[Path], wanted: dict[str, tuple[Names, Names]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It is undone: other than after a kill there is a next step."""
    old, new = wanted[kind]
    write(sources[0], tmp_path, kind)
    do = partial(write, sources[1], tmp_path, kind, force=True)
    for step in range(200):
        try:
            was = stopped(do, step, monkeypatch, ("replace", "mkdir"), fault)
        except (StorageError, KeyboardInterrupt):
            assert snapshot(tmp_path) == old, step
            assert not any(tmp_path.rglob(".*")), step
            continue
        assert snapshot(tmp_path) == new, step
        if not was:
            return
        write(sources[0], tmp_path, kind, force=True)
    raise AssertionError("it never ended")


# --- litter -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["n" * 243 + ".safetensors", "\N{CJK UNIFIED IDEOGRAPH-540D}" * 81 + ".safetensors"])
def test_names_as_long_as_they_may_be(name: str, sources: list[Path], tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="too long"):
        writing.convert(sources[0], tmp_path / ("n" + name), verify=False)
    assert os.listdir(tmp_path) == []
    for resume in (False, True):
        writing.convert(sources[0], tmp_path / name, force=resume, resume=resume)
        assert os.listdir(tmp_path) == [name]


@pytest.mark.slow
def test_few_files_are_open_where_few_may_be(tmp_path: Path) -> None:
    """256 is what macOS allows by itself: written, read back, and read as shards, of which each is a file as well."""
    files = 300
    code = (
        "import ckptconv, resource, numpy as np\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        f"given = {{f'l{{i}}': np.full(9, i, 'f4') for i in range({files})}}\n"
        "ckptconv.save(given, 'npy', to='npy')\n"
        "ckptconv.save(given, 'm.safetensors', max_shard_size=36)\n"
        "ckptconv.convert('m.safetensors.index.json', 'n.safetensors', max_shard_size=36)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("n-*.safetensors"))) == len(list((tmp_path / "npy").iterdir())) == files


def test_what_a_killed_run_left_is_cleared_and_named(
    sources: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader is told; a run that lives is in nobody's way."""
    stage = ".out.safetensors.index.json.part"
    write(sources[0], tmp_path, "shards")
    assert stopped(lambda: write(sources[1], tmp_path, "shards", force=True), 3, monkeypatch)
    with pytest.raises(StorageError, match="under way, or was killed"):
        ckptconv.open(tmp_path / "out.safetensors")
    report = write(sources[0], tmp_path, "shards", force=True)
    assert [n.names for n in report.notes if "killed" in n.text] == [(stage,)]
    assert stage not in os.listdir(tmp_path)
    with (
        closing(staging.Output(str(tmp_path), [destination.OutputFile("out.safetensors.index.json", 10)], force=True)),
        pytest.raises(StorageError, match="another run is writing this destination"),
    ):
        write(sources[1], tmp_path, "shards", force=True)
    assert readable(tmp_path, "shards") == "old"


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="what a descriptor is of is looked up in /proc")
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("old", [False, True])
def test_what_is_renamed_is_durable_before(
    kind: str, old: bool, sources: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file, then the folders; after the renames the folder again."""
    steps: list[tuple[str, str]] = []

    def noted(what: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(first: int | str, *rest: str) -> None:
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else first
            steps.append((what, os.path.relpath(path, tmp_path)))
            real(first, *rest)

        return call

    if old:
        write(sources[0], tmp_path, kind)
    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    write(sources[1], tmp_path, kind, force=True)
    moved = [i for i, (what, _) in enumerate(steps) if what == "replace"]
    before = {path for what, path in steps[: moved[0]] if what == "fsync"}
    made = [path for what, path in steps if what == "replace" and ".part" in path and ".old" not in path]
    for path in made:  # a file, or a folder of files
        assert any(p == path or p.startswith(f"{path}/") for p in before), (path, steps)
    assert {p[: p.index(".part") + 5] for p in made} <= before or kind.startswith("folder")
    assert ("fsync", ".") in steps[moved[-1] :]


# --- where it goes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TARGETS)
def test_a_folder_on_another_file_system(
    kind: str,
    sources: list[Path],
    wanted: dict[str, tuple[Names, Names]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A link leads there: what is renamed must not cross over."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no other file system at hand (/dev/shm)")
    far = Path(tempfile.mkdtemp(dir=shm))
    monkeypatch.setenv("CKPTCONV_LINKS", str(far))
    try:
        name, _ = TARGETS[kind]
        inside = "folder" in kind
        (tmp_path / (name if inside else "at")).symlink_to(far)
        for force, source in ((False, sources[0]), (True, sources[1])):
            write(source, tmp_path if inside else tmp_path / "at", kind, force)
        assert {f"{name}/{n}" if inside else n: d for n, d in snapshot(far).items()} == wanted[kind][1]
        assert len(os.listdir(tmp_path)) == 1
    finally:
        shutil.rmtree(far)


@pytest.mark.parametrize(
    ("to", "options", "says"),
    [
        ("folder", {"to": "npz"}, "is a folder"),
        ("folder/", {"to": "npz"}, "needs a name"),
        (".", {"to": "npy"}, "needs a name"),
        ("folder/..", {"to": "npy"}, "needs a name"),
        ("file", {"to": "npy"}, "not a folder"),
        ("file", {"to": "hf"}, "not a folder"),
        ("file/m.npz", {}, "not a folder"),
        ("nowhere/m.npz", {}, "not a folder"),
        ("nowhere", {"to": "npz"}, "is a link"),
        ("link", {"to": "npz"}, "is a link"),
    ],
)
def test_what_can_be_no_destination(
    to: str, options: dict[str, object], says: str, sources: list[Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "nowhere").symlink_to("dangling")
    (tmp_path / "link").symlink_to("file")
    before = sorted(tmp_path.rglob("*"))
    for force in (False, True):
        with pytest.raises(StorageError, match=says):
            writing.convert(sources[0], to, force=force, **options)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_bytes() == b"mine"


# --- faults -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fills(
    kind: str, force: bool, number: int, sources: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if force:
        write(sources[0], tmp_path, kind)
    before = snapshot(tmp_path)
    error = OSError(number, os.strerror(number))
    with pytest.raises(StorageError, match=r"full|quota|error"):
        stopped(lambda: write(sources[1], tmp_path, kind, force), 5, monkeypatch, ["pwrite"], error)
    assert snapshot(tmp_path) == before
    assert len(list(tmp_path.iterdir())) == len({n.split("/")[0] for n in before})


WAITING = """
import signal, sys, time
heard = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
for number, usual in heard.items():  # whoever runs the tests, in the background or under nohup, may ignore some
    signal.signal(number, signal.SIG_IGN if number == int(sys.argv[1]) else usual)
from ckptconv.output.staging import Output
def waiting(*_):
    print("go", flush=True)
    time.sleep(60)
Output.write = waiting
from ckptconv.cli import main
main(sys.argv[2:])
"""


@contextmanager
def waiting(arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The command line, stopped where it writes; the first argument is a signal that is ignored, or 0."""
    command = [sys.executable, "-c", WAITING, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"go\n"
            yield child
        finally:
            child.kill()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("kind", ["single", "shards", "folder of npy"])
def test_a_signal_leaves_nothing(kind: str, sent: signal.Signals, sources: list[Path], tmp_path: Path) -> None:
    write(sources[0], tmp_path, kind)
    before = sorted(tmp_path.rglob("*"))
    name, options = TARGETS[kind]
    more = [f"--{option.replace('_', '-').replace('format', 'to')}={value}" for option, value in options.items()]
    command = ["0", str(sources[1]), "-o", str(tmp_path / name), "--force", "-j", "1", *more]
    with waiting(command) as child:
        assert sorted(tmp_path.rglob("*")) != before
        child.send_signal(sent)
        assert child.communicate(timeout=50)[1] == b"interrupted; nothing was written\n"
    assert child.returncode == 128 + sent
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_folder_that_may_not_be_written(mode: int, sources: list[Path], tmp_path: Path) -> None:
    write(sources[0], tmp_path, "single")
    before = snapshot(tmp_path)
    tmp_path.chmod(mode)
    try:
        with pytest.raises(StorageError, match="permission"):
            write(sources[1], tmp_path, "single", True)
    finally:
        tmp_path.chmod(0o755)
    assert snapshot(tmp_path) == before


def replace(path: Path) -> None:
    path.with_name("other").write_bytes(path.read_bytes())
    path.with_name("other").replace(path)


def rewrite_in_secret(path: Path) -> None:
    was = path.stat()
    with path.open("r+b") as f:
        f.seek(3000)
        f.write(b"changed")
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


CHANGES: list[Callable[[Path], object]] = [
    lambda path: os.truncate(path, path.stat().st_size - 100_000),
    lambda path: os.truncate(path, path.stat().st_size + 100),
    lambda path: os.utime(path, ns=(1, 1)), replace, rewrite_in_secret, Path.unlink,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["single", "bundle", "folder of npy"])
def test_a_source_that_changes_meanwhile(
    change: Callable[[Path], object], kind: str, sources: list[Path], tmp_path: Path
) -> None:
    source = tmp_path / "in.safetensors"  # no checksums: only its size, time and number tell
    ckptconv.save(values(1, 400), source)
    home = tmp_path / "out"
    home.mkdir()
    write(sources[0], home, kind)
    before = snapshot(home)

    def disturbed(do: Callable[[object], object], jobs: list[object]) -> object:
        for n, job in enumerate(jobs):
            if n == 1:
                change(source)
            yield do(job)

    name, options = TARGETS[kind]
    small = {"max_memory": 16 << 20, "jobs": 1, "map": disturbed}  # type: ignore[arg-type]
    with pytest.raises(CkptError, match=r"changed|shrank|no such file|truncated"):
        writing.convert(source, home / name, force=True, **options, **small)
    assert snapshot(home) == before


@pytest.mark.parametrize("kind", TARGETS)
def test_refused_before_anything_is_written(
    kind: str, sources: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(sources[0], tmp_path, kind)
    before = snapshot(tmp_path)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a byte was written")

    monkeypatch.setattr(staging.Output, "create", never)
    with pytest.raises(StorageError, match="force=True"):
        write(sources[1], tmp_path, kind)
    assert snapshot(tmp_path) == before
