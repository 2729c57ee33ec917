"""What families have in common: random values, the comparison, the count of outcomes."""

from __future__ import annotations

import random
import re
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import ckptconv
from ckptconv.errors import CkptError

Values = dict[str, np.ndarray]
WORDS = ("w", "kernel", "a b", "é", "日本", "x.y", "0", "-", "layer_1", "LayerNorm", "W")
SPECIAL = bytes((0x00, 0x7F, 0x80, 0xFF, 0x01, 0xC0))


class Case(NamedTuple):
    """A file, the format in which we open it, its framework's reading, and where we write it again (None: nowhere)."""

    path: Path
    format: str | None
    read: Callable[[Path], Values]
    back: Path | None = None
    options: Mapping[str, Any] = {}  # of our reading
    write: Mapping[str, Any] = {}  # of our writing
    via: Path | None = None  # a file of another format on the way there


class Choice(random.Random):
    """Random choices of the case of this number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Outcome(NamedTuple):
    word: str  # what is counted
    finding: str = ""  # empty: as it should be


# --- values -----------------------------------------------------------------------------------------------------


def dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def some_shape(choose: random.Random, axes: int = 4) -> tuple[int, ...]:
    return tuple(choose.choice((0, 1, 1, 2, 3, 5, 8)) for _ in range(choose.randint(0, axes)))


def some_bytes(choose: random.Random, size: int) -> bytes:
    """Any bits; in a third of the cases those of zeros, infinities and NaNs with payloads."""
    return bytes(choose.choices(SPECIAL, k=size)) if choose.random() < 0.3 else choose.randbytes(size)


def array(choose: random.Random, kind: str | np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """An array of random bits, as far as the dtype has them."""
    item = dtype(kind) if isinstance(kind, str) else kind
    count = int(np.prod(shape, dtype=np.int64))
    raw = np.frombuffer(bytearray(some_bytes(choose, count * item.itemsize)), "u1")
    if item == np.bool_:
        raw = raw & 1
    if item.name in ("int4", "uint4", "int2", "uint2", "float4_e2m1fn"):
        width = {"4": 4, "2": 2}[item.name.removeprefix("u").removeprefix("int").removeprefix("float")[0]]
        raw = raw & ((1 << width) - 1)
        if item.name.startswith("int"):  # the sign is extended
            raw = np.where(raw >> (width - 1), raw | (0xFF << width & 0xFF), raw).astype("u1")
    return raw.view(item).reshape(shape) if count else np.zeros(shape, item)


def texts(choose: random.Random, shape: tuple[int, ...]) -> np.ndarray:
    """Byte strings, without NUL at their ends."""
    out = np.empty(shape, object)
    for i in np.ndindex(*shape):
        out[i] = choose.choice((b"", b"a", "é日".encode(), b"x\0y", b"long " * 20, choose.randbytes(3).rstrip(b"\0")))
    return out


def some_name(choose: random.Random, sep: str = "/", words: tuple[str, ...] = WORDS) -> str:
    return sep.join(choose.choice(words) for _ in range(choose.randint(1, 3)))


def native(a: Any) -> np.ndarray:
    """In the byte order of the machine and in C order; texts as objects of bytes."""
    a = np.asarray(a)
    if a.dtype.kind in "SU":
        items = [t.encode("utf-8", "surrogatepass") if isinstance(t, str) else bytes(t) for t in a.reshape(-1).tolist()]
        out = np.empty(len(items), object)
        out[:] = items
        return out.reshape(a.shape)
    if a.dtype.kind == "O":
        return a
    return np.ascontiguousarray(a.astype(a.dtype.newbyteorder("="))).reshape(a.shape)


# --- comparison -------------------------------------------------------------------------------------------------


def unlike(want: np.ndarray, got: np.ndarray) -> str:
    if want.dtype != got.dtype or want.shape != got.shape:
        return f"{want.dtype}{want.shape} is {got.dtype}{got.shape}"
    if want.dtype == object:
        same = list(map(bytes, want.flat)) == list(map(bytes, got.flat))
    else:
        same = want.tobytes() == got.tobytes()
    return "" if same else f"other bits: {want.reshape(-1)[:4]!r} is {got.reshape(-1)[:4]!r}"


def explained(text: str, patterns: Mapping[str, str]) -> str:
    """The reason why this was to be expected, or ''."""
    return next((why for pattern, why in patterns.items() if re.search(pattern, text, re.DOTALL)), "")


class Ours(NamedTuple):
    values: Values
    left: dict[str, str]  # names that notes say are left out: why
    checkpoint: ckptconv.Checkpoint


def ours(case: Case) -> Ours | str:
    try:
        found = ckptconv.open(case.path, from_=case.format, **case.options)
        values = {n: native(t.numpy()) for n, t in found.items()}
    except CkptError as e:
        return f"{type(e).__name__}: {e}"
    left = {re.sub(r": [^:]*$", "", n): note.text for note in found.notes for n in note.names if note.kind != "assumed"}
    left |= {n: note.text for note in found.notes for n in note.names if note.kind != "assumed"}
    return Ours(values, left, found)


def theirs(read: Callable[[Path], Values], path: Path) -> Values | str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {n: native(a) for n, a in read(path).items()}
    except Exception as e:  # whatever it says
        return f"{type(e).__name__}: {e}"


def compared(family: Any, mine: Ours | str, want: Values | str) -> list[Outcome]:
    """Whether both read the same: one outcome, and one for each reason why a tensor was left out."""
    if isinstance(mine, str):
        if "cannot be read as" in mine:
            return [Outcome("only the last net caught it", mine)]
        if isinstance(want, str):
            return [Outcome("both refuse")]
        why = explained(mine, family.REFUSED)
        return [Outcome(f"refused: {why}") if why else Outcome("we refuse", mine)]
    if isinstance(want, str):
        notes = "".join(f"; {n}: {why}" for n, why in mine.left.items())
        why = explained(f"{want}; we read {list(mine.values)}{notes}", family.LENIENT)
        return [Outcome(f"read by us alone: {why}") if why else Outcome("the framework refuses", want)]
    out = []
    for name in want.keys() - mine.values.keys():
        said = next((text for left, text in mine.left.items() if name == left or name.startswith(left + ".")), "")
        why = explained(said, family.REFUSED)
        out.append(Outcome(f"left out: {why}") if why else Outcome("missing", f"{name!r}: {said}"))
    for name, a in mine.values.items():
        if name not in want:
            out.append(Outcome("not the framework's", name))
        elif why := unlike(want[name], a):
            out.append(Outcome("DIFFERENT", f"{name!r}: {why}"))
    return [Outcome("equal" if not out else "the rest equal"), *out]


def returned(family: Any, case: Case, mine: Ours) -> list[Outcome]:
    """Whether the framework reads from our file what we read from its own."""
    assert case.back is not None
    try:
        source = mine.checkpoint
        if case.via is not None:
            ckptconv.save(source, case.via, sync=False)
            source = ckptconv.open(case.via)
        ckptconv.save(source, case.back, **{"to": case.format, "sync": False, **case.write})
    except CkptError as e:
        why = explained(f"{type(e).__name__}: {e}", family.REFUSED)
        return [Outcome(f"not written: {why}") if why else Outcome("not written", f"{type(e).__name__}: {e}")]
    found = theirs(case.read, case.back)
    if isinstance(found, str):
        why = explained(found, getattr(family, "UNLOADED", {}))
        return [Outcome(f"not loaded: {why}") if why else Outcome("the framework refuses what we write", found)]
    found = family.as_named(mine, found) if hasattr(family, "as_named") else found
    for name in mine.values.keys() | found.keys():
        if name not in found or name not in mine.values:
            return [Outcome("WRITTEN DIFFERENTLY", f"{name!r} is in one only")]
        if why := unlike(mine.values[name], found[name]):
            return [Outcome("WRITTEN DIFFERENTLY", f"{name!r}: {why}")]
    return [Outcome("written, equal")]


# --- from memory ------------------------------------------------------------------------------------------------


# --- the run ----------------------------------------------------------------------------------------------------


def one(family: Any, seed: int, folder: Path) -> list[Outcome]:
    around = getattr(family, "around", None)
    with around(random.Random(seed)) if around else nullcontext():
        return outcomes(family, seed, folder)


def outcomes(family: Any, seed: int, folder: Path) -> list[Outcome]:
    case = family.make(Choice(seed), folder)
    mine = ours(case)
    want = theirs(case.read, case.path)
    if hasattr(family, "as_named") and isinstance(mine, Ours) and not isinstance(want, str):
        want = family.as_named(mine, want)
    found = compared(family, mine, want)
    if hasattr(family, "also") and isinstance(mine, Ours) and not isinstance(want, str):
        found += [Outcome("DIFFERENT", what)] if (what := family.also(case, mine)) else []
    if case.back is not None and isinstance(mine, Ours) and mine.values and not any(o.finding for o in found):
        found += returned(family, case, mine)
    return found


def run(name: str, cases: int, seed: int, keep: Path | None = None, step: int = 1) -> tuple[Counter[str], list[str]]:
    """How often each outcome came, and a line for each finding, whose files are copied to `keep`."""
    family = import_module(f"{__package__}.{name}")
    counts: Counter[str] = Counter()
    findings = []
    with tempfile.TemporaryDirectory() as home:
        for number in range(seed, seed + cases * step, step):
            folder = Path(home) / "case"
            folder.mkdir()
            try:
                found = one(family, number, folder)
            except Exception as e:  # of the generator, or an error of ours that is none of ours
                found = [Outcome("EXCEPTION", f"{type(e).__name__}: {e}")]
            counts.update(o.word for o in found)
            findings += [f"{name} {number}: {o.word}: {o.finding.splitlines()[0][:300]}" for o in found if o.finding]
            if keep is not None and any(o.finding for o in found):
                shutil.copytree(folder, keep / f"{name}-{number}", dirs_exist_ok=True)
            shutil.rmtree(folder)
    return counts, findings


def report(name: str, cases: int, seed: int = 0, keep: Path | None = None) -> bool:
    """Run, and print what docs/fuzzing.md records; whether there was a finding."""
    start = time.monotonic()
    counts, findings = run(name, cases, seed, keep)
    family = import_module(f"{__package__}.{name}")
    print(f"{name}: {family.oracle()}; {cases} cases from seed {seed} in {time.monotonic() - start:.0f} s")
    for word, n in counts.most_common():
        print(f"  {n:7} {word}")
    print("\n".join(findings[:40]), flush=True)
    return bool(findings)
