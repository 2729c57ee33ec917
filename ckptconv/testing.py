"""The contract of a format as tests: subclass `FormatTests`, name the format, and pytest does the rest.

    from ckptconv.testing import FormatTests, Subject

    class TestMine(FormatTests):
        @pytest.fixture
        def subject(self):
            return Subject("mine", "checkpoint.mine")

The format must be in the table (ours, or the entry point group `ckptconv.formats`). Tensors that its writer cannot hold
(`Writer.cannot_hold`) must be refused; all others must be read back bit for bit. For any input bytes, the reader must
return a Checkpoint or raise a CkptError.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from .api.options import Options
from .api.writing import write as write_as_it_is
from .checkpoint import Checkpoint, contiguous, held, view
from .dtypes import DTYPES, DType
from .errors import CkptError, Unrepresentable
from .formats import detect, table
from .formats.placement import Placement
from .moves.part import Held

# --- tiny tensors of every dtype and many unusual shapes and names, which a format must keep or refuse by name --------

SEED = 20


def bits(kind: DType, shape: tuple[int, ...], seed: int = SEED) -> np.ndarray[Any, Any]:
    """Make an array of random bit patterns valid for `kind`, with NaN payloads, infinities and -0.0, by seed."""
    rng = np.random.default_rng(seed)
    if kind.kind == "s":
        texts = [bytes(rng.integers(0, 256, n, dtype="u1")) for n in rng.integers(0, 9, int(np.prod(shape)))]
        out = np.empty(len(texts), object)
        out[:] = texts
        return out.reshape(shape)
    raw: np.ndarray[Any, Any] = rng.integers(0, 256, (*shape, kind.itemsize), dtype="u1")
    if kind.kind == "b":
        raw &= 1
    if small := re.fullmatch(r"(int|uint|float)([24])(_e2m1fn)?", kind.name):
        width = 8 - int(small[2])
        raw = (raw << width).view("i1" if small[1] == "int" else "u1") >> width
    return np.ascontiguousarray(raw).reshape(-1).view(kind.dtype).reshape(shape)


def edges(kind: DType) -> np.ndarray[Any, Any]:
    """Make zeros and the smallest subnormals of both signs, NaNs with payloads, and infinities."""
    word = kind.itemsize * 8
    top, ones = 1 << (word - 1), (1 << word) - 1
    odd = np.array([0, top, 1, top | 1, ones, ones >> 1, ones - 2], f"u{kind.itemsize}").view(kind.dtype)
    return np.concatenate([odd, np.array([np.inf, -np.inf], kind.dtype)])


def zoo() -> Checkpoint:
    """Make tiny tensors of every dtype and of unusual shapes (scalar, empty, many axes), with ordinary names."""
    tensors = [contiguous(f"dtype/{row.name}", row, (2, 3), Held(bits(row, (2, 3)))) for row in DTYPES.values()]
    for row in DTYPES.values():
        if row.kind == "f" and row.itemsize > 1:
            tensors.append(held(f"edges/{row.name}", edges(row)))
    for i, shape in enumerate([(), (1,), (0,), (0, 3), (3, 0, 2), (1, 1, 1), (2, 1, 3, 1, 2), (7, 5)]):
        tensors.append(held(f"shape/s{i}", bits(DTYPES["float32"], shape, i)))
        tensors.append(held(f"shape/b{i}", bits(DTYPES["bool"], shape, i)))
    base = Held(bits(DTYPES["float32"], (24,)))
    f4 = DTYPES["float32"]
    tensors.append(view("view/transposed", f4, (4, 3, 2), base, offset=0, strides=(1, 4, 12)))
    tensors.append(view("view/sliced", f4, (3, 2), base, offset=5, strides=(6, 3)))
    tensors.append(view("view/expanded", f4, (4, 3), base, offset=2, strides=(0, 1)))
    return Checkpoint({t.name: t for t in tensors})


NAMES = (
    "plain", "dots.and.more", "group/inside", "layer_1/kernel", "layer_10/kernel", "layer_2/kernel", "with space",
    "Upper", "upper", "trailing:0", "é/ü", "日本語", "😀", "e\u0301", 'quote"s', "back\\slash", "per%2Fcent",
    "tab\tline\nbreak", "bell\x07", "nul\0byte", "/absolute", "../outside", "a//b", ".", "dir/", ".hidden",
    "__metadata__", "file.npy", "long" * 100, "*?<>|", "half\ud800", "'); --", "-o", "_CHECKPOINTABLE_OBJECT_GRAPH",
)  # fmt: skip
MORE_NAMES = ("", "..", "file")  # with nested groups, these are groups above others; with file suffixes, they clash


def odd_names(names: Sequence[str] = NAMES) -> Checkpoint:
    """Make one small tensor for each of `names`, by default many that are difficult for some format."""
    return Checkpoint({n: held(n, np.array([i, -i], "i4")) for i, n in enumerate(names)})


# --- write, read and compare checkpoints in one format ------------------------------------------------------------

BIG = 2**24  # bytes; larger tensors, whose size a hostile file may only claim, are not read


def write(checkpoint: Checkpoint, path: Path, name: str, **options: Any) -> None:
    """Write `checkpoint` to `path` in the format `name`, without reading it back; raises what `ckptconv.save` raises.

    options: further options of the output, such as `max_shard_size` in bytes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_as_it_is(checkpoint, path, Options(to=name, verify=False, sync=False, force=True, **options))


def read(path: Path, name: str) -> dict[str, Any]:
    """Open `path` in the format `name` and read all tensors into arrays, by name; CkptError if that fails."""
    found = detect.open_checkpoint(str(path), format=name)
    return {n: t.numpy() for n, t in found.items() if t.nbytes <= BIG}


def holdable(checkpoint: Checkpoint, path: Path, name: str) -> Checkpoint:
    """Keep the tensors that the writer of the format `name` can hold, according to `cannot_hold`."""
    writer = table.get(name).load().writer(str(path))
    return checkpoint.with_tensors({n: t for n, t in checkpoint.items() if not writer.cannot_hold(t)})


def assert_same(checkpoint: Checkpoint, path: Path, name: str) -> Checkpoint:
    """Assert that the file holds exactly these tensors, bit for bit; return the opened checkpoint."""
    found = detect.open_checkpoint(str(path), format=name)
    assert set(checkpoint) == set(found)
    for n, t in checkpoint.items():
        back = found[n]
        assert (back.dtype, back.shape) == (t.dtype, t.shape), n
        got, want = back.numpy(), t.numpy()
        assert got.shape == want.shape, n
        same = list(got.flat) == list(want.flat) if t.dtype.kind == "s" else got.tobytes() == want.tobytes()
        assert same, f"{n}: {got} is not {want}"
    return found


def files_of(path: Path) -> dict[str, bytes]:
    """Read all files at or next to a destination, by path."""
    return {str(p.relative_to(path.parent)): p.read_bytes() for p in sorted(path.parent.rglob("*")) if p.is_file()}


def survives(path: Path, name: str) -> None:
    """Assert that reading gives tensors or a CkptError, both with the given format and with the detected one."""
    for forced in (name, None):
        try:
            found = detect.open_checkpoint(str(path), format=forced)
        except CkptError:
            continue
        for t in found.values():
            if t.nbytes <= BIG:
                try:
                    assert t.numpy().shape == t.shape
                except CkptError:
                    pass


# --- the contract -----------------------------------------------------------------------------------------------------


class Subject(NamedTuple):
    """The format to test, and what it preserves besides names and values.

    name: its name in the table. file: the file name of a destination (a folder's name for formats that write folders).
    order, metadata, ties: whether they survive a round trip. tries: the number of hostile variants to read.
    spell: for a format that accepts only names of a certain form, a function that maps any name to such a form.
    """

    name: str
    file: str
    order: bool = True
    metadata: bool = True
    ties: bool = False
    tries: int = 150
    spell: Callable[[str], str] | None = None

    def named(self, checkpoint: Checkpoint) -> Checkpoint:
        """Map the names of a checkpoint by `spell`."""
        spell = self.spell or str
        tensors = [t.renamed(spell(n)) for n, t in checkpoint.items()]
        return replace(checkpoint, tensors={t.name: t for t in tensors},
                       ties=tuple(tuple(map(spell, g)) for g in checkpoint.ties))  # fmt: skip


class FormatTests:
    """The tests that every format must pass; a subclass defines the fixture `subject`."""

    @pytest.fixture
    def subject(self) -> Subject:
        raise NotImplementedError("a subclass of FormatTests has a fixture `subject` that returns a Subject")

    @pytest.fixture
    def path(self, subject: Subject, tmp_path: Path) -> Path:
        return tmp_path / "out" / subject.file

    @pytest.fixture
    def small(self, subject: Subject, path: Path) -> Path:
        """Write a file with three small tensors."""
        w = np.arange(6, dtype="f4").reshape(2, 3)
        arrays = {"b/w": w, "a/w": np.array(7, "i4"), "c/e": np.zeros((0, 2), "f4")}
        write(subject.named(Checkpoint({n: held(n, a) for n, a in arrays.items()})), path, subject.name)
        return path

    # round trips

    def test_zoo_round_trip(self, subject: Subject, path: Path) -> None:
        kept = holdable(subject.named(zoo()), path, subject.name)
        write(kept, path, subject.name)
        assert_same(kept, path, subject.name)

    def test_every_tensor_alone(self, subject: Subject, path: Path) -> None:
        step = 1 if subject.tries >= 100 else 8
        kept = list(holdable(subject.named(zoo()), path, subject.name).items())[::step]
        for i, (n, t) in enumerate(kept):
            own = path.parent / str(i) / path.name
            write(Checkpoint({n: t}), own, subject.name)
            assert_same(Checkpoint({n: t}), own, subject.name)

    @pytest.mark.parametrize("names", [NAMES, MORE_NAMES], ids=["many", "few"])
    def test_odd_names_round_trip(self, subject: Subject, path: Path, names: tuple[str, ...]) -> None:
        if subject.spell:
            pytest.skip("the format accepts only names of a certain form")
        kept = holdable(odd_names(names), path, subject.name)
        write(kept, path, subject.name)
        assert_same(kept, path, subject.name)

    def test_everything_unheld_is_named(self, subject: Subject, path: Path) -> None:
        writer = table.get(subject.name).load().writer(str(path))
        whole = subject.named(zoo())
        unheld = [n for n, t in whole.items() if writer.cannot_hold(t)]
        if not unheld:
            pytest.skip("the format holds every dtype and shape")
        with pytest.raises(Unrepresentable) as caught:
            writer.place(whole)
        assert all(n in str(caught.value) for n in unheld[:20])
        for n in unheld:
            with pytest.raises(Unrepresentable):
                writer.place(Checkpoint({n: whole[n]}))

    def test_nothing_at_all(self, subject: Subject, path: Path) -> None:
        try:
            write(Checkpoint({}), path, subject.name)
        except CkptError:
            return
        assert not read(path, subject.name)

    def test_order(self, subject: Subject, path: Path) -> None:
        names = ["z/w", "m/w10", "m/w9", "a/w", "k/w"]
        whole = subject.named(Checkpoint({n: held(n, np.ones(i + 1, "f4")) for i, n in enumerate(names)}))
        write(whole, path, subject.name)
        found = list(detect.open_checkpoint(str(path), format=subject.name))
        assert sorted(found) == sorted(whole)
        if subject.order:
            assert found == list(whole)

    def test_metadata(self, subject: Subject, path: Path) -> None:
        metadata = {"step": "7", "note": 'é "quoted"\n\\', "empty": ""}
        write(subject.named(Checkpoint({"a/w": held("a/w", np.ones(1, "f4"))}, metadata)), path, subject.name)
        found = detect.open_checkpoint(str(path), format=subject.name).metadata
        assert not subject.metadata or {k: found.get(k) for k in metadata} == metadata

    def test_ties(self, subject: Subject, path: Path) -> None:
        array = np.arange(5000, dtype="f4")
        tensors = {n: held(n, array) for n in ("in/w", "mid/w", "out/w")}
        whole = subject.named(Checkpoint(tensors, ties=(("in/w", "out/w"),)))
        write(whole, path, subject.name)
        found = assert_same(whole, path, subject.name)
        if subject.ties:
            assert [set(g) for g in found.ties] == [set(g) for g in whole.ties]
            assert sum(map(len, files_of(path).values())) < 2.5 * array.nbytes

    def test_what_was_tied_and_changed_apart(self, subject: Subject, path: Path) -> None:
        base = Held(bits(DTYPES["float32"], (9,)))
        tensors = [contiguous("in/w", DTYPES["float32"], (3, 3), base),
                   view("out/w", DTYPES["float32"], (3, 3), base, offset=0, strides=(1, 3))]  # fmt: skip
        whole = subject.named(Checkpoint({t.name: t for t in tensors}, ties=(("in/w", "out/w"),)))
        write(whole, path, subject.name)
        assert not assert_same(whole, path, subject.name).ties

    def test_it_is_recognised(self, subject: Subject, small: Path) -> None:
        assert detect.detect(str(small)).name == subject.name

    # layout of the output

    def test_slots_are_apart_and_inside(self, subject: Subject, path: Path) -> None:
        kept = holdable(subject.named(zoo()), path, subject.name)
        writer = table.get(subject.name).load().writer(str(path))
        placed: Placement = writer.place(kept)
        assert set(placed.slots) == set(kept)
        sizes = {f.name: f.size for f in placed.files}
        taken = {(s.file, s.start, s.start + s.size) for s in placed.slots.values()}
        taken |= {(p.file, p.start, p.start + len(p.data)) for p in placed.patches}
        assert all(0 <= start <= end <= sizes[file] for file, start, end in taken)
        for one, two in pairwise(sorted(t for t in taken if t[1] < t[2])):
            assert one[0] != two[0] or one[2] <= two[1], f"{one} and {two} overlap"
        for n, slot in placed.slots.items():
            assert slot.size == (len(slot.payload) if slot.payload is not None else kept[n].nbytes), n

    def test_output_is_determined(self, subject: Subject, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        kept = holdable(subject.named(zoo()), path, subject.name)
        write(kept, path, subject.name)
        first = files_of(path)
        monkeypatch.setattr(time, "time", lambda: 2e9)
        again = path.parent.parent / "again" / path.name
        write(kept, again, subject.name)
        assert files_of(again) == first
        for file in (path, again):  # only the files of the placement
            placed = table.get(subject.name).load().writer(str(file)).place(kept)
            assert set(files_of(file)) == {f.name for f in placed.files}

    # hostile input

    def test_truncated(self, subject: Subject, small: Path) -> None:
        self._survives(subject, small, lambda whole, rng, share: whole[: int(share * len(whole))])

    def test_flipped(self, subject: Subject, small: Path) -> None:
        def flipped(whole: bytes, rng: random.Random, _: float) -> bytes:
            raw = bytearray(whole)
            for _bit in range(rng.choice([1, 1, 1, 2, 8])):
                raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
            return bytes(raw)

        self._survives(subject, small, flipped)

    def test_spliced(self, subject: Subject, small: Path) -> None:
        """Cut pieces out, double them, or overwrite them with extreme numbers."""
        extreme = [b"\xff" * 8, b"\x00" * 8, b"\xff" * 4, b"\x00\x00\x00\x80", b"\x7f" + b"\xff" * 7, b"9" * 30, b"-1"]

        def spliced(whole: bytes, rng: random.Random, _: float) -> bytes:
            a, b = sorted(rng.randrange(len(whole) + 1) for _end in range(2))
            return whole[:a] + rng.choice([b"", whole[a:b] * 2, *extreme]) + whole[b:]

        self._survives(subject, small, spliced)

    def test_random_bytes(self, subject: Subject, small: Path) -> None:
        def scribbled(whole: bytes, rng: random.Random, _: float) -> bytes:
            return whole[: rng.choice([0, 0, 4, 8, 16, 64])] + rng.randbytes(rng.choice([0, 1, 7, 100, 5000]))

        self._survives(subject, small, scribbled)

    @staticmethod
    def _survives(subject: Subject, path: Path, change: Callable[[bytes, random.Random, float], bytes]) -> None:
        """Change one file at a time, `subject.tries` times each; `change` also gets the share that is done, 0 to 1."""
        rng = random.Random(SEED)
        for name, whole in files_of(path).items():
            for k in range(subject.tries if whole else 0):
                (path.parent / name).write_bytes(change(whole, rng, k / subject.tries))
                survives(path, subject.name)
            (path.parent / name).write_bytes(whole)
