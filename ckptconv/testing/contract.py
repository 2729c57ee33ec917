"""The contract of a format: what is written comes back, what cannot be held is refused, and no bytes do harm."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from ..checkpoint import Checkpoint, contiguous, held, view
from ..dtypes import DTYPES
from ..errors import CkptError, Unrepresentable
from ..formats import detect, table
from ..formats.placement import Placement
from ..moves.part import Held
from .samples import (
    MORE_NAMES,
    NAMES,
    SEED,
    assert_same,
    bits,
    files_of,
    holdable,
    odd_names,
    read,
    survives,
    write,
    zoo,
)


class Subject(NamedTuple):
    """The format to test, and what it keeps besides names and values.

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
        """The checkpoint with its names mapped by `spell`."""
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
        """A file with three small tensors."""
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
        for file in (path, again):  # no other files than those of the placement
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
        """Pieces are cut out, doubled, or overwritten with extreme numbers."""
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
        """Change one file at a time, in as many ways as the subject says; `change` is told how many are done, of 1."""
        rng = random.Random(SEED)
        for name, whole in files_of(path).items():
            for k in range(subject.tries if whole else 0):
                (path.parent / name).write_bytes(change(whole, rng, k / subject.tries))
                survives(path, subject.name)
            (path.parent / name).write_bytes(whole)
