"""What it takes to open a file, or to do something with it: worst cases of N and 4N, each case in a fork.

Peak memory grows by at most `FACTOR` times the bytes that are read and written. Four times the size takes at most
`GROWTH` times the processor time, which lies between 4 for a linear reader and 16 for a quadratic one. A refusal is an
answer, too. Each fork first does the case of N once more, so that what is imported on first use does not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FACTOR = 64
SLACK = 24 << 20  # bytes by which two processes that do the same may differ
GROWTH = 8
SHORTEST = 0.1  # seconds of processor time: what takes less is taken to last as long
TRIES = 3  # of a machine that is busy, the best counts

Make = Callable[[Path, int], Path]  # write a source of size n into a folder, and say what to open
Work = tuple[str, ...]  # "open" and a format, "serve", or what follows `ckptconv`; {p}, {d}: the source and its folder
NEEDS = os.access("/proc/self/clear_refs", os.W_OK)
OUTPUT = "out-"  # how the names of outputs begin
WHY = "only Linux resets a peak"
HDF5 = "ckptconv.formats.hdf5.sandbox"


class Took(NamedTuple):
    size: int  # of the source and of what is written, in bytes, as they are packed
    peak: int
    seconds: float
    said: str


def fault(make: Make, folder: Path, work: Work) -> str:
    """What grows too fast, with the figures, or ''."""
    homes = [folder / str(n) for n in (1, 4)]
    for home in homes:
        home.mkdir()
    made = [str(make(home, int(home.name))) for home in homes]
    best: list[Took] = []
    for _ in range(TRIES):
        took = [Took(*row) for row in _asked(work, made)]
        best = [a if a.seconds < b.seconds else b for a, b in zip(best or took, took, strict=True)]
        if not (found := _judged(best)):
            return ""
    return found + "".join(f"\n{t.size:>10} bytes: {t.peak >> 20} MB, {t.seconds:.2f} s, {t.said}" for t in best)


def _asked(work: Work, made: Sequence[str]) -> list[Any]:
    """What the process that measures says of each source."""
    asked, answers = (stream for stream in (_measuring().stdin, _measuring().stdout) if stream)
    asked.write(json.dumps([work, made]) + "\n")
    asked.flush()
    rows: list[Any] = json.loads(answers.readline())
    assert rows, f"{work} of {made} ended without a word"
    return rows


@cache
def _measuring() -> subprocess.Popen[str]:
    """A process that has imported what cases have in common, and does each in a fork."""
    return subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _judged(took: Sequence[Took]) -> str:
    """Which bound is exceeded, or ''."""
    first, last = took[0], took[-1]
    if last.peak - first.peak > FACTOR * (last.size - first.size) + SLACK:
        return "memory"
    if last.said == first.said and last.seconds > GROWTH * max(first.seconds, SHORTEST):
        return "time"
    return ""


def v1_slices(folder: Path, n: int, each: int = 200) -> Path:
    """Every tensor in slices of three tables, read in turn."""
    from ckptconv.formats.tensorflow import elements, messages_pb2 as pb, table

    count = each * n
    for k in range(3):
        meta, pairs = pb.SavedTensorSlices(), {}
        for i in range(count):
            name = f"t{i:06d}"
            extent = pb.TensorSliceProto(extent=[{"start": k, "length": 1}])
            meta.meta.tensor.add(name=name.encode(), type=1, shape={"dim": [{"size": 3}]}, slice=[extent])
            data = pb.SavedTensorSlices()
            data.data.name = name.encode()
            data.data.data.float_val.append(k)
            pairs[elements.slice_key(name.encode(), extent)] = data.SerializeToString()
        rows = [(b"", meta.SerializeToString()), *sorted(pairs.items())]
        (folder / f"m-0000{k}-of-00003").write_bytes(table.build(rows))
    return folder / "m-00000-of-00003"


# --- in the child ----------------------------------------------------------------------------------------------------


def _done(work: Work, source: str, output: str) -> str:
    """Do it, and say how it ended."""
    from ckptconv.errors import CkptError

    try:
        if work[0] == "open":
            _opened(source, work[1])
        elif work[0] == "serve":
            _served(source)
        else:
            folder = os.path.dirname(source)
            argv = [w.replace("{p}", source).replace("{d}", folder).replace("{o}", output) for w in work]
            return f"exit {_ran(argv)}"
    except CkptError as e:
        return type(e).__name__
    return "opened"


def _opened(source: str, kind: str) -> None:
    """Open a source, and read some of its tensors."""
    from ckptconv.formats.detect import open_checkpoint
    from ckptconv.formats.table import Reading

    found = open_checkpoint(source, Reading(opaque=True), format=kind)
    for name in list(found)[:: max(1, len(found) // 50)]:
        found[name].numpy()


def _served(source: str) -> None:
    """The page of a checkpoint, as `serve` answers it."""
    import http.client
    import threading

    from ckptconv.api.options import Options
    from ckptconv.reporting import serve

    made = serve.Server(serve.Shelf(lambda: [serve.Offered(source, "x", 1, "")], Options()))
    threading.Thread(target=made.serve_forever, daemon=True).start()
    port = made.server_address[1]
    for path in ("", "0/"):
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        line.request("GET", f"/{made.token}/{path}", headers={"Host": f"127.0.0.1:{port}"})
        answer = line.getresponse()
        assert answer.status in (200, 303), answer.read()
        while answer.read(1 << 16):
            pass
    made.shutdown()
    made.server_close()


def _ran(argv: list[str]) -> object:
    """The exit code of the command line, whose output is dropped."""
    from contextlib import redirect_stderr, redirect_stdout

    from ckptconv.cli.main import main

    with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
        try:
            main(argv)
        except SystemExit as e:
            return e.code
    return 0


def _kilobytes(what: str) -> int:
    with open("/proc/self/status") as f:
        return int(f.read().split(f"{what}:")[1].split()[0])


def _spent() -> float:
    """Seconds of this process and its children, among them those in which the HDF5 library ran, which end."""
    if hdf5 := sys.modules.get(HDF5):
        sys.modules["ckptconv.formats.hdf5.file"]._look.cache_clear()  # what was opened first is opened again
        for process in hdf5._idle.pop(os.getpid(), []):
            process.close()
    return sum(os.times()[:4])


def _measured(work: Work, source: str) -> Took:
    """Peak bytes above what this process takes anyway, seconds, and how it ended; children are included."""
    import resource

    folder, name = os.path.dirname(source), f"{OUTPUT}{os.getpid()}"
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")  # the peak starts again from here
    before, began = _kilobytes("VmRSS"), _spent()
    said = _done(work, source, os.path.join(folder, name))
    spent = _spent() - began
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    kept = [p for p in Path(folder).iterdir() if p.name.startswith(name) or not p.name.startswith(OUTPUT)]
    size = sum(p.stat().st_size for top in kept for p in (top, *top.rglob("*")) if p.is_file())
    return Took(size, 1024 * (_kilobytes("VmHWM") - before + children), spent, said)


def _measure_all() -> None:
    import google.protobuf.text_format  # noqa: F401
    import h5py  # noqa: F401

    import ckptconv.cli.main  # noqa: F401

    for line in sys.stdin:
        work, made = json.loads(line)
        if not (pid := os.fork()):
            _done(work, made[0], os.path.join(os.path.dirname(made[0]), OUTPUT))
            os.write(1, json.dumps([_measured(work, source) for source in made]).encode() + b"\n")
            os._exit(0)
        if os.waitpid(pid, 0)[1]:
            os.write(1, b"null\n")


if __name__ == "__main__":
    _measure_all()
