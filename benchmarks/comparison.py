"""ckptconv and other tools on the same twenty jobs: who can, how long, how much memory, what was lost.

    python benchmarks/comparison.py FOLDER [--runs 3] [--only TEXT] [--write docs/comparison.md]

FOLDER (2.5 GB) gets the files, written by the real frameworks, and an environment for each tool (pip). The interpreter
needs tensorflow, torch, safetensors and h5py: it is that of ckptconv and of scripts, and the environments see its
packages, so that torch is installed once.

The contenders of a job run in turn (A B C, A B C), each in a process of its own; shown are the median of the wall time,
its ratio to that of ckptconv, and the largest peak of memory (wait4). A run may take LIMIT seconds. What came out is
compared with what was to come out: tensors, dtypes, values, their order where the source has one, and metadata; what a
tool prints is searched for what was asked.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from peers import NAN, TUNED, WAYS, ZERO

import ckptconv
from ckptconv.checkpoint import Checkpoint

HERE, STEM, FORK = Path(__file__).parent, "0.3", multiprocessing.get_context("fork")
TOOLS = {  # an environment each: what pip installs
    "checkpoint-lens": "checkpoint-lens==0.1.2", "ckptkit": "ckptkit[cli]==0.3.0", "gguf": "gguf==0.19.0",
    "mergekit": "mergekit==0.1.5",
    "modelscan": "modelscan==0.8.8", "orbaxport": "orbaxport==1.3.0 orbax-checkpoint==0.12.8",
    "picklescan": "picklescan==1.0.5", "pt-safe-loader": "pt-safe-loader==0.1.4",
    "safetensors-print": "safetensors-print==0.1.0", "transformers": "transformers==4.57.6",
    "weightlens": "weightlens==0.3.0", "weightscope": "weightscope==0.4.3",
}  # fmt: skip


# --- what became of a job: nothing if it is done wholly, otherwise what is missing, or "no" and why ------------------

LIMIT = 40  # seconds of a run


class Done(NamedTuple):
    """A run. code: of the process, None if it took too long; peak in MB; folder: in which it worked."""

    code: int | None
    wall: float
    peak: float
    folder: Path

    @property
    def text(self) -> str:
        """What it printed."""
        return (self.folder / "printed").read_text(encoding="utf-8", errors="replace")

    @property
    def out(self) -> Path:
        """The only thing that was written; a name that does not exist if there is none."""
        return next((p for p in sorted(self.folder.iterdir()) if p.name not in ("PWNED", "printed")), Path("nothing"))


Judge = Callable[[Done, Path], str]  # of a run, and the folder of the files


def failed(done: Done) -> str:
    """Why a run gave nothing: its line that begins with error, or its last words."""
    if done.code is None:
        return f"no: not done after {LIMIT} s"
    lines = [line for line in done.text.splitlines() if line.strip(" │╰╯─")] or [f"exit code {done.code}"]
    line = next((line for line in lines if line.startswith("error: ")), lines[-1]).removeprefix("error: ")
    return f"no: {re.sub(r'/[^ :]*/', '', line).strip()[:90]}"


def lost(expected: Checkpoint, got: Checkpoint, rtol: float | None = None) -> str:
    """What the result lacks."""
    kinds: dict[str, int] = {}
    for pair in ckptconv.diff(expected, got, rtol=rtol).pairs:
        kinds[pair.kind] = kinds.get(pair.kind, 0) + 1
    words = [f"{n} {what}" for kind, n in kinds.items() if (what := WRONG[kind])]
    if not kinds and list(got) != list(expected) and expected.format in ("safetensors", "torch"):
        words.append("order of the tensors")
    if missing := [key for key in ("format", "licence") if key in expected.metadata and key not in got.metadata]:
        words.append(f"metadata ({', '.join(missing)})")
    return ", ".join(words)


WRONG = {
    "only_a": "tensors", "only_b": "tensors too many", "renamed": "tensors with other names", "shape": "shapes",
    "dtype": "dtypes", "values": "tensors with other values",
}  # fmt: skip


def joined(folder: Path) -> Checkpoint:
    """All shards of a folder without an index."""
    shards = [ckptconv.open(p) for p in sorted(folder.glob("*.safetensors"))]
    return shards[0].with_tensors({n: t for c in shards for n, t in c.items()})


def gives(source: str, dtype: str = "", rtol: float | None = None) -> Judge:
    """The output holds what the source holds; in another dtype, or within a tolerance."""

    def judge(done: Done, folder: Path) -> str:
        if done.code or done.code is None or not done.out.exists():
            return failed(done)
        expected = ckptconv.open(folder / source)
        whole = done.out.is_file() or any(done.out.glob("*.index.json"))
        index = "" if whole or len([*done.out.glob("*.safetensors")]) == 1 else "the index of the shards"
        got = ckptconv.open(done.out) if whole else joined(done.out)
        if not dtype:
            return ", ".join(filter(None, (index, lost(expected, got, rtol))))
        wrong = [
            n for n, t in expected.items() if n not in got or str(got[n].dtype) != dtype or got[n].shape != t.shape
        ]
        order = "" if list(got) == list(expected) else "order of the tensors"
        return f"{len(wrong)} tensors" if wrong else order

    return judge


def bert(done: Done, folder: Path) -> str:
    """Every tensor of the source is there, as it is or transposed, under the names that transformers has."""
    if done.code or done.code is None or not done.out.exists():
        return failed(done)
    source, got = ckptconv.open(folder / "0.3.ckpt"), ckptconv.open(done.out)
    named = "bert.encoder.layer.0.attention.self.query.weight" in got
    have = {t.numpy().tobytes() for n, t in got.items() if n.startswith("bert.")}
    missing = sum(not {a.tobytes(), a.T.tobytes()} & have for t in source.values() for a in [t.numpy()])
    more = len(got) - len(source)
    words = [
        f"{missing} tensors" * bool(missing),
        "" if named else "names",
        f"{more} tensors that were not there" * (more > 0),
    ]
    return ", ".join(filter(None, words))


def says(*words: str) -> Judge:
    """What is printed has these words. An exit code of 1 tells that something was found."""

    def judge(done: Done, folder: Path) -> str:
        if done.code not in (0, 1):
            return failed(done)
        printed = done.text
        missing = [w for w in words if w not in printed]
        if missing == list(words):
            return "no: does not say it" if done.code == 0 else failed(done)
        return ("does not say " + ", ".join(missing)) if missing else ""

    return judge


def sums_to(source: str, tensor: str) -> Judge:
    """The last thing printed is the sum of a tensor."""

    def judge(done: Done, folder: Path) -> str:
        if done.code != 0:
            return failed(done)
        expected = float(ckptconv.open(folder / source)[tensor].numpy().sum(dtype="f8"))
        return "" if abs(float(done.text.split()[-1]) - expected) < 1e-6 * abs(expected) else "no: another sum"

    return judge


def refuses(*words: str) -> Judge:
    """An exit code other than 0 and one of these words, nothing written, and no code of the file was run."""

    def judge(done: Done, folder: Path) -> str:
        if (done.folder / "PWNED").exists():
            return "no: **runs the code in the file**"
        if done.code == 0 and not any(w in done.text for w in words):
            return "no: accepts it"
        if done.out.exists():
            return f"no: leaves {done.out.stat().st_size / 1e6:.0f} MB that look like a result"
        if not any(w in done.text for w in words):
            return "does not say why"
        return "" if done.code else "exit code 0"

    return judge


# --- the jobs ----------------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """How a tool does a job. words: a program of its environment, or a function of peers.py, and its arguments."""

    tool: str
    words: str
    env: str = ""

    def command(self, folder: Path) -> list[str]:
        """{f} is the folder of the files."""
        first, *rest = self.words.replace("{f}", str(folder)).split()
        if self.tool == "ckptconv" and first != "one_ours":
            return [sys.executable, "-m", "ckptconv", first, *rest]
        python = str(folder / "tools" / self.env / "bin" / "python") if self.env else sys.executable
        if first.isidentifier() and first in WAYS:
            return [python, str(HERE / "peers.py"), first, *rest]
        return [*([python, "-m", first[3:]] if first.startswith("-m:") else [str(Path(python).parent / first)]), *rest]


class Job(NamedTuple):
    """limit: bytes that a file may have, 0 for any number."""

    title: str
    judge: Judge
    ways: Sequence[Way]
    limit: int = 0


def tool(name: str, words: str) -> Way:
    return Way(name, words, name)


ONE = "bert/encoder/layer_2/output/dense/kernel"
TORN = ("cut off", "truncated", "ncomplete", "beyond", "exceeds", "do not cover")
JOBS = (
    Job("TensorFlow checkpoint to safetensors", gives("0.3.ckpt"), (
        Way("ckptconv", "{f}/0.3.ckpt -o out.safetensors"),
        Way("TensorFlow + safetensors", "tf_safetensors {f}/0.3.ckpt out.safetensors"))),
    Job("TensorFlow's BERT to PyTorch's names and layouts", bert, (
        Way("ckptconv", "{f}/0.3.ckpt -o out.pt -c bert"),
        Way("transformers 4", "bert_transformers {f}/0.3.ckpt out.pt", "transformers"))),
    Job("HDF5 to .pt", gives("0.3.h5"), (
        Way("ckptconv", "{f}/0.3.h5 -o out.pt"),
        Way("h5py + torch", "h5_torch {f}/0.3.h5 out.pt"))),
    Job(".pt to safetensors", gives("0.3.pt"), (
        Way("ckptconv", "{f}/0.3.pt -o out.safetensors"),
        Way("torch + safetensors", "torch_safetensors {f}/0.3.pt out.safetensors"),
        tool("pt-safe-loader", "pt_loader {f}/0.3.pt out.safetensors"))),
    Job("safetensors to .pt", gives("base/model.safetensors"), (
        Way("ckptconv", "{f}/base/model.safetensors -o out.pt"),
        Way("torch + safetensors", "safetensors_torch {f}/base/model.safetensors out.pt"))),
    Job("Orbax to safetensors", gives("orbax"), (
        Way("ckptconv", "{f}/orbax -o out.safetensors"),
        Way("orbax-checkpoint + safetensors", "orbax_safetensors {f}/orbax out.safetensors", "orbaxport"),
        tool("orbaxport", "orbaxport -i {f}/orbax -o out.safetensors --format safetensors"))),
    Job("PyTorch distributed checkpoint to safetensors", gives("dcp"), (
        Way("ckptconv", "{f}/dcp -o out.safetensors"),
        Way("torch dcp + safetensors", "dcp_safetensors {f}/dcp out.safetensors"))),
    Job("into shards of 300 MB", gives("base/model.safetensors"), (
        Way("ckptconv", "{f}/base/model.safetensors -o out/model.safetensors --max-shard-size 300MB"),
        Way("torch + safetensors", "shards {f}/base/model.safetensors out"))),
    Job("a cast to bfloat16", gives("base/model.safetensors", "bfloat16"), (
        Way("ckptconv", "{f}/base/model.safetensors -o out.safetensors --dtype bfloat16"),
        Way("torch + safetensors", "bfloat16 {f}/base/model.safetensors out.safetensors"))),
    Job("one tensor of a .pt", sums_to("0.3.pt", ONE), (
        Way("ckptconv", f"one_ours {{f}}/0.3.pt {ONE}"),
        Way("torch", f"one_torch {{f}}/0.3.pt {ONE}"))),
    Job("a list of 1,000,000 tensors", says("layer_124999"), (
        Way("ckptconv", "inspect {f}/million.safetensors"),
        Way("safetensors", "inspect_safetensors {f}/million.safetensors"),
        tool("ckptkit", "ckptkit info --json {f}/million.safetensors"))),
    Job("find a NaN and a tensor of zeros", says(NAN, ZERO, "[5, 7]"), (
        Way("ckptconv", "inspect --check {f}/sick/model.safetensors"),
        Way("torch + safetensors", "nan_torch {f}/sick/model.safetensors"),
        tool("weightlens", "lens analyze {f}/sick/model.safetensors"),
        tool("ckptkit", "ckptkit validate {f}/sick/model.safetensors"))),
    Job("which tensors changed, and by how much", says(*TUNED), (
        Way("ckptconv", "diff {f}/base/model.safetensors {f}/tuned/model.safetensors --no-fold"),
        Way("torch + safetensors", "diff_torch {f}/base/model.safetensors {f}/tuned/model.safetensors"),
        tool("ckptkit", "ckptkit diff {f}/base/model.safetensors {f}/tuned/model.safetensors"),
        tool("weightscope", "weightscope diff {f}/base {f}/tuned"))),
    Job("a pickle that runs a program", refuses("posix.system", "os.system", "system"), (
        Way("ckptconv", "{f}/evil.pt -o out.safetensors"),
        Way("torch", "load_torch {f}/evil.pt"),
        Way("torch, weights_only=False", "load_trusting {f}/evil.pt"),
        tool("pt-safe-loader", "pt_loader {f}/evil.pt out.safetensors"),
        tool("picklescan", "picklescan -p {f}/evil.pt"),
        tool("modelscan", "modelscan -p {f}/evil.pt"),
        tool("ckptkit", "ckptkit info {f}/evil.pt"),
        tool("weightlens", "lens analyze {f}/evil.pt"),
        tool("checkpoint-lens", "checkpoint-lens inspect {f}/evil.pt"))),
    Job("a file that was cut in half", refuses(*TORN), (
        Way("ckptconv", "{f}/torn.safetensors -o out.pt"),
        Way("safetensors", "inspect_safetensors {f}/torn.safetensors"),
        tool("ckptkit", "ckptkit validate {f}/torn.safetensors"),
        tool("safetensors-print", "safetensors-print {f}/torn.safetensors"),
        tool("weightlens", "lens analyze {f}/torn.safetensors"))),
    Job("a .pt with one flipped bit", refuses("CRC", "crc", "checksum", "corrupted"), (
        Way("ckptconv", "verify {f}/flipped.pt"),
        Way("torch", "load_torch {f}/flipped.pt"),
        Way("Python's zipfile", "-m:zipfile -t {f}/flipped.pt"),
        tool("pt-safe-loader", "pt_loader {f}/flipped.pt out.safetensors"),
        tool("ckptkit", "ckptkit validate {f}/flipped.pt"),
        tool("weightlens", "lens analyze {f}/flipped.pt"))),
    Job("a disk that is full half-way", refuses("File too large", "too large", "space", "27"), (
        Way("ckptconv", "{f}/0.3.pt -o out.safetensors"),
        Way("torch + safetensors", "torch_safetensors {f}/0.3.pt out.safetensors"),
        tool("pt-safe-loader", "pt_loader {f}/0.3.pt out.safetensors")), 150_000_000),
    Job("list a GGUF file", says("layer_2"), (
        Way("ckptconv", "inspect {f}/model.gguf"),
        tool("gguf", "gguf-dump {f}/model.gguf"))),
    Job("the average of two models", gives("average", rtol=1e-6), (
        Way("ckptconv", "{f}/base/model.pt {f}/tuned/model.pt -o out.safetensors"),
        tool("mergekit", "mergekit-pytorch {f}/average.yml out"))),
)  # fmt: skip


# --- running ----------------------------------------------------------------------------------------------------


def run(way: Way, job: Job, files: Path) -> tuple[Done, str]:
    """Run once in an empty folder; the folder is judged and removed."""
    scratch = files / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "COLUMNS": "200",
           "NO_COLOR": "1", **({} if way.tool == "ckptconv" else {"PYTHONPATH": ""})}  # fmt: skip
    before = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (job.limit, job.limit))) if job.limit else None
    with (scratch / "printed").open("wb") as printed:
        began = time.perf_counter()
        process = subprocess.Popen(
            way.command(files), cwd=scratch, env=env, stdout=printed, stderr=printed, stdin=subprocess.DEVNULL,
            preexec_fn=before, start_new_session=True,
        )  # fmt: skip
        status, usage = waited(process.pid)
    wall = time.perf_counter() - began
    code = None if status is None else os.waitstatus_to_exitcode(status)
    done = Done(code, wall, usage.ru_maxrss / 1e3, scratch)
    said = judged(job.judge, done, files)
    shutil.rmtree(scratch)
    return done, said


def judged(judge: Judge, done: Done, files: Path) -> str:
    """Judge in another process: the memory of this one would count as that of the processes it starts."""
    receive, send = FORK.Pipe(False)

    def answer() -> None:
        try:
            send.send(judge(done, files))
        except ckptconv.CkptError as e:
            send.send(f"no: the result cannot be read: {e}")

    process = FORK.Process(target=answer)
    process.start()
    said: str = receive.recv()
    process.join()
    return said


def waited(pid: int) -> tuple[int | None, resource.struct_rusage]:
    """The status and what was used; None if the process had to be ended."""
    timer = threading.Timer(LIMIT, lambda: os.killpg(pid, signal.SIGKILL))
    timer.start()
    _, status, usage = os.wait4(pid, 0)
    late = not timer.is_alive()
    timer.cancel()
    return (None if late else status), usage


def measured(job: Job, files: Path, runs: int) -> list[str]:
    """Run the contenders of a job in turn; a line of the table for each. What is not done is run once."""
    costs: dict[Way, list[Done]] = {way: [] for way in job.ways}
    verdicts: dict[Way, str] = {}
    for _ in range(runs):
        for way in job.ways:
            if not verdicts.get(way, "").startswith("no"):
                done, verdicts[way] = run(way, job, files)
                costs[way].append(done)
    times = {way: statistics.median(d.wall for d in got) for way, got in costs.items()}
    ours, lines = times[job.ways[0]], []
    for way, said in verdicts.items():
        can, _, why = said.partition(": ") if said.startswith("no") else ("yes", "", said)
        peak = max(d.peak for d in costs[way])
        cells = (f"{times[way]:.2f} s", f"{times[way] / ours:.1f}", f"{peak:,.0f} MB") if can == "yes" else ("", "", "")
        name = f"**{way.tool}**" if way is job.ways[0] else way.tool
        lines.append(f"| {job.title if way is job.ways[0] else ''} | {name} | {' | '.join((can, *cells, why))} |")
        print(lines[-1], flush=True)
    return lines


def prepare(files: Path) -> None:
    """Make the files and the environments that are missing."""
    files.mkdir(parents=True, exist_ok=True)
    shared = next(p for p in sys.path if p.endswith("site-packages"))
    for name, packages in TOOLS.items():
        home = files / "tools" / name
        if not (home / "made").exists():
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
            (next(home.glob("lib/python*")) / "site-packages" / "shared.pth").write_text(
                shared + "\n", encoding="utf-8"
            )
            subprocess.run([str(home / "bin" / "pip"), "install", "-q", *packages.split()], check=True)
            (home / "made").touch()
    making = str(HERE / "peers.py")
    for made, command in {
        f"{STEM}.h5": [sys.executable, str(HERE / "make_files.py"), str(files), STEM],
        "dcp": [sys.executable, making, "dcp", str(files), STEM],
        "tuned": [sys.executable, making, "variants", str(files), STEM],
        "average.yml": [sys.executable, making, "odd", str(files), STEM],
        "orbax": [str(files / "tools/orbaxport/bin/python"), making, "orbax", str(files), STEM],
        "model.gguf": [str(files / "tools/gguf/bin/python"), making, "gguf", str(files), STEM],
    }.items():
        if not (files / made).exists():
            subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, metavar="FOLDER")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="jobs whose title has one of these texts, with | between")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the marks in this file")
    args = parser.parse_args()
    files = args.files.absolute()
    prepare(files)
    lines = [f"{time.strftime('%Y-%m-%d')}; {args.runs} of each, in turn; {os.cpu_count()} cores, "
             f"load by other programs {os.getloadavg()[0]:.1f}.\n",
             "| job | tool | can | median | x ckptconv | peak memory | what is lost, or why not |",
             "| :-- | :-- | :-- | --: | --: | --: | :-- |"]  # fmt: skip
    print("\n".join(lines))
    for job in JOBS:
        if any(text in job.title for text in args.only.split("|")):
            lines += measured(job, files, args.runs)
    if args.write:
        text = args.write.read_text(encoding="utf-8")
        (head, rest), mark = text.split(MARKS[0]), MARKS[1]
        tail = rest.split(mark, 1)[1]
        args.write.write_text("\n".join((f"{head}{MARKS[0]}\n", *lines, f"\n{mark}{tail}")), encoding="utf-8")


MARKS = "<!-- measured: benchmarks/comparison.py -->", "<!-- end -->"

if __name__ == "__main__":
    main()
