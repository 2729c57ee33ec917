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
import random
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))
with atheris.instrument_imports(include=["ckptconv"]):
    import ckptconv.api
    import ckptconv.bulk.discover
    import ckptconv.bulk.manifest
    import ckptconv.engine.run
    import ckptconv.formats.flax
    import ckptconv.formats.gpt
    import ckptconv.formats.hdf5.file
    import ckptconv.formats.hdf5.worker
    import ckptconv.formats.huggingface
    import ckptconv.formats.keras.legacy
    import ckptconv.formats.keras.v3
    import ckptconv.formats.npz
    import ckptconv.formats.pytorch.archive
    import ckptconv.formats.pytorch.bare
    import ckptconv.formats.pytorch.dcp
    import ckptconv.formats.pytorch.legacy
    import ckptconv.formats.pytorch.torchscript
    import ckptconv.formats.safetensors
    import ckptconv.formats.tensorflow.bundle
    import ckptconv.formats.tensorflow.graph
    import ckptconv.formats.tensorflow.v1
    import ckptconv.formats.zip
    import ckptconv.rules.apply
    import ckptconv.rules.converter
    import ckptconv.rules.library
from families import FAMILIES, LARGEST, dictionary, packed, records

from ckptconv.errors import CkptError

SECONDS = 5.0
MEMORY = 1 << 30  # of address space, beyond what the process has when it starts
CLOCK = 10  # seconds between two lines of the log that tell the time


class Budget(Exception):
    """One input took too long."""


def layouts(family: str, home: Path) -> Callable[[bytes], object]:
    """Make the function that tries one input of a family."""

    def run(data: bytes) -> None:
        if data:
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            FAMILIES[family].attempt(data, home)

    return run


def mutated(family: str, data: bytes, largest: int, seed: int) -> bytes:
    """Change one record of an input that is records, so that its lengths stay right; else libFuzzer's own way."""
    choose = random.Random(seed)
    ways = FAMILIES[family].ways
    if not ways or not data or not ways[data[0] % len(ways)].packed or choose.random() < 0.1:
        return bytes(atheris.Mutate(data, largest))
    pairs = records(data[1:])
    if not pairs:
        return bytes(atheris.Mutate(data, largest))
    at, what = choose.randrange(len(pairs)), choose.random()
    if what < 0.06:
        pairs.insert(choose.randrange(len(pairs) + 1), pairs[at])
    elif what < 0.12 and len(pairs) > 1:
        pairs.pop(at)
    elif what < 0.18:
        other = choose.randrange(len(pairs))
        pairs[at], pairs[other] = (pairs[at][0], pairs[other][1]), (pairs[other][0], pairs[at][1])
    else:
        side = choose.random() < 0.7 or not pairs[at][0]
        changed = bytes(atheris.Mutate(pairs[at][side], max(64, min(largest, len(pairs[at][side]) + 256))))
        pairs[at] = (pairs[at][0], changed) if side else (changed, pairs[at][1])
    made = data[:1] + packed(pairs)
    return made if len(made) <= largest else data


class Judge:
    """Tell what is a finding and write it down."""

    def __init__(self, family: str, work: Path) -> None:
        self.family, self.folder = family, work / "findings"
        self.folder.mkdir(parents=True, exist_ok=True)
        memory = Path("/dev/shm")
        ckptconv.formats.hdf5.sandbox.SECONDS = 3.0  # an input on which the library hangs would cost ten others
        self.attempt = layouts(family, (memory if memory.is_dir() else work) / f"fuzz-{os.getpid()}")

        self.began = self.said = time.monotonic()

    def __call__(self, data: bytes) -> None:
        if time.monotonic() - self.said > CLOCK:
            self.clock()
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

    def clock(self) -> None:
        """Log the time since the start, and the processor time of this process and of children that ended."""
        self.said = time.monotonic()
        spent = sum(os.times()[:2]), sum(os.times()[2:4])
        print(f"clock {self.said - self.began:.1f} {spent[0]:.1f} {spent[1]:.1f}", file=sys.stderr, flush=True)

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
    for seed in FAMILIES[family].seeds():
        (corpus / f"seed-{_short(seed)}").write_bytes(seed)
    judge = Judge(family, work)
    with open("/proc/self/statm") as f:
        now = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    words = work / f"{family}.dict"
    words.write_text(dictionary(FAMILIES[family]))
    options = [f"-max_len={LARGEST}", "-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1", "-len_control=0"]
    options += ["-report_slow_units=60"]
    options += [f"-artifact_prefix={work}/findings/{family}-", f"-dict={words}", *sys.argv[3:]]

    def mutate(data: bytes, largest: int, seed: int) -> bytes:
        return mutated(family, data, largest, seed)

    atheris.Setup([sys.argv[0], *options, str(corpus)], judge, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
