"""One fuzzing process: `target.py FAMILY WORK [libFuzzer options]`. See run.sh.

Any bytes must give a Checkpoint or a CkptError, in bounded time and memory; so must reading all tensors of a
reasonable size. What breaks that is written to WORK/findings/FAMILY-WHERE with a traceback beside it, once for each
place in the code, and fuzzing goes on. Findings are

    any exception that is no CkptError
    a CkptError that only the last net caught ("cannot be read as ...": the format did not say what is wrong)
    more than `SECONDS` of processor time, or more than `MEMORY` bytes, for one input; the hard limits (libFuzzer's
    -timeout and the address space) end the process, and run.sh starts the next
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
import traceback
from hashlib import blake2b
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))
with atheris.instrument_imports(include=["ckptconv"]):
    import ckptconv.api
    import ckptconv.converter
    import ckptconv.formats.flax
    import ckptconv.formats.hdf5
    import ckptconv.formats.keras.legacy
    import ckptconv.formats.keras.v3
    import ckptconv.formats.npz
    import ckptconv.formats.pytorch.archive
    import ckptconv.formats.pytorch.bare
    import ckptconv.formats.pytorch.legacy
    import ckptconv.formats.pytorch.torchscript
    import ckptconv.formats.safetensors
    import ckptconv.formats.sharded
    import ckptconv.formats.tensorflow.bundle
    import ckptconv.formats.tensorflow.graph
    import ckptconv.formats.tensorflow.saved_model
    import ckptconv.formats.tensorflow.v1
    import ckptconv.formats.zip
    import ckptconv.lint
    import ckptconv.rewrite
    import ckptconv.rules
    import ckptconv.run
from families import FAMILIES, LARGEST, seeds

from ckptconv.errors import CkptError
from ckptconv.formats import open_checkpoint
from ckptconv.tensor import Checkpoint, held

SECONDS = 5.0
MEMORY = 1 << 30  # of address space, beyond what the process has when it starts
READ = 1 << 20  # bytes of a tensor that is read


class Budget(Exception):
    """One input took too long."""


def read(path: Path, format: str | None) -> None:
    found = open_checkpoint(str(path), format=format)
    left = 4 * READ
    for tensor in found.values():
        if tensor.nbytes <= min(READ, left):
            left -= tensor.nbytes
            tensor.numpy()


def layouts(family: str, home: Path) -> object:
    """Make the function that tries one input of a family of formats."""
    ways = FAMILIES[family]

    def attempt(data: bytes) -> None:
        if not data:
            return
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        read(*ways[data[0] % len(ways)].lay(data[1:], home))

    return attempt


def sample() -> Checkpoint:
    """Names of a few families, small."""
    import numpy as np

    names = {
        "bert/embeddings/word_embeddings": (5, 4), "bert/encoder/layer_0/attention/self/query/kernel": (4, 4),
        "bert/encoder/layer_0/attention/self/query/bias": (4,), "bert/encoder/layer_1/output/LayerNorm/gamma": (4,),
        "model.layers.0.mlp.weight": (4, 2), "conv/kernel": (3, 3, 2, 4), "a" * 3000: (1,),
    }  # fmt: skip
    return Checkpoint({n: held(n, np.zeros(s, "f4")) for n, s in names.items()})


def rules(data: bytes, checkpoint: Checkpoint) -> None:
    text = data.decode("utf-8", "replace")
    made = ckptconv.rules.parse(text, "fuzzed")
    made.takes(checkpoint)
    ckptconv.lint.lint(made)
    for one in (lambda: made, lambda: made.inverse):
        try:
            one().apply(checkpoint)
        except CkptError:
            pass


class Judge:
    """Tell what is a finding and write it down."""

    def __init__(self, family: str, work: Path) -> None:
        self.family, self.folder = family, work / "findings"
        self.folder.mkdir(parents=True, exist_ok=True)
        memory = Path("/dev/shm")
        ckptconv.formats.hdf5.child.PATIENCE = 3.0  # an input on which the library hangs would cost ten others
        if family == "rules":
            known = sample()
            self.attempt = lambda data: rules(data, known)
        else:
            self.attempt = layouts(family, (memory if memory.is_dir() else work) / f"fuzz-{os.getpid()}")

    def __call__(self, data: bytes) -> None:
        began = time.process_time()
        try:
            self.attempt(data)
        except CkptError as e:
            if e.__cause__ is not None and e.message.startswith("cannot be read as"):
                self.note(data, e.__cause__)
        except Exception as e:
            self.note(data, e)
        took = time.process_time() - began
        if took > SECONDS:
            self.note(data, Budget(f"{took:.1f} s"))

    def note(self, data: bytes, e: BaseException) -> None:
        frames = [f for f in traceback.extract_tb(e.__traceback__) if "/ckptconv/" in f.filename]
        where = f"{Path(frames[-1].filename).stem}-{frames[-1].name}" if frames else _short(data)
        path = self.folder / f"{self.family}-{type(e).__name__}-{where}"
        if not path.exists():
            path.write_bytes(data)
            path.with_name(path.name + ".txt").write_text("".join(traceback.format_exception(e)))


def _short(data: bytes) -> str:
    return blake2b(data, digest_size=4).hexdigest()


def main() -> None:
    family, work = sys.argv[1], Path(sys.argv[2]).absolute()
    corpus = work / "corpus" / family
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in seeds(family):
        (corpus / f"seed-{_short(seed)}").write_bytes(seed)
    judge = Judge(family, work)
    with open("/proc/self/statm") as f:
        now = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    options = [f"-max_len={LARGEST}", "-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1", "-len_control=0"]
    options += [f"-artifact_prefix={work}/findings/{family}-", *sys.argv[3:]]
    atheris.Setup([sys.argv[0], *options, str(corpus)], judge)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
