"""What `convert`, `save` and `load_into` return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..checkpoint import Note
from ..messages import Told, fold, in_bytes, indented, listing, many, printable, shortened


class Noted(Told):
    """What has one line, and notes beside it."""

    def __repr__(self) -> str:
        told = len(self.lines()) - 1
        return super().__repr__()[:-1] + f"; {many(told, 'note')}" * bool(told) + ">"


@dataclass(frozen=True, repr=False)
class Report(Noted):
    """The result of `convert` and `save`.

    sources, destination: the paths. source_format, target_format: the names of their formats. tensors, bytes: the
    number of tensors that were written, and their size. seconds: wall time. files: the paths that were written. notes:
    what the user should know. loss: for each tensor that a cast changed, how many finite values became infinite or NaN,
    and how many values other than zero became zero. verified_bytes: the number of bytes of the sources whose checksums
    were compared. verify: whether the output was read back: True, False, or None for its headers. damaged: tensors that
    were left out, and why. casts: the number of tensors by what they were cast from and to, as in 'float32 to float16'.
    """

    sources: tuple[str, ...]
    destination: str
    source_format: str
    target_format: str
    tensors: int
    bytes: int
    seconds: float
    files: tuple[str, ...]
    notes: tuple[Note, ...]
    loss: Mapping[str, tuple[int, int]]
    verified_bytes: int
    verify: bool | None
    damaged: Mapping[str, str] = field(default_factory=dict)
    casts: Mapping[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """What the command line prints at the end: notes, what a cast lost, and the totals."""
        return [*(n.short for n in self.notes), *lossy(self.loss), self.sum()]

    def sum(self) -> str:
        """One line: how much was written, and where."""
        large = self.seconds > 1 and self.bytes > 10**7  # of less the time is that of starting
        speed = f" ({in_bytes(int(self.bytes / self.seconds))}/s)" if large else ""
        casts = [f"{n:,} cast from {kinds}" for kinds, n in self.casts.items()]
        cast = ", ".join(casts + [f"{len(self.loss)} lossy"] * bool(self.loss))
        size = f"{many(self.tensors, 'tensor')}{f' ({cast})' * bool(cast)}, {in_bytes(self.bytes)}"
        there = self.destination  # a file or a folder, or what all files of a set are called after
        if there not in self.files and not any(f.startswith(f"{there}/") for f in self.files):
            index = (f for f in self.files if f.endswith((".index", ".index.json")))
            there = f"{next(index, there)} ({many(len(self.files), 'file')})"
        return f"{size} in {self.seconds:.2f} s{speed}{', verified' * bool(self.verify)} -> {printable(there)}"

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self) | {
            "casts": dict(self.casts),
            "notes": [n.to_json() for n in self.notes],
        }  # asdict breaks a Counter


@dataclass(frozen=True, repr=False)
class Verified(Told):
    """The result of `verify`.

    tensors, bytes: how much was compared. notes: on what was not: damaged, skipped or read by no reader. hashed,
    checked: of a checkpoint by itself, how many tensors have a hash, and how many bytes a checksum; else None.
    """

    tensors: int
    bytes: int
    notes: tuple[Note, ...] = ()
    hashed: int | None = None
    checked: int | None = None

    def sum(self) -> str:
        """One line: what was compared, and with what."""
        if self.hashed is None:
            size = f"{many(self.tensors, 'tensor')}, {in_bytes(self.bytes)}"
            return f"{size}, bit for bit what the conversion gives"
        proof = [many(self.hashed, "hash")] if self.hashed else []
        proof += [f"checksums of {in_bytes(self.checked)}"] if self.checked else []
        by = f", by {' and '.join(proof)}" if proof else " can be read; the file has no hash or checksum"
        return f"{many(self.tensors, 'tensor')}{by}"

    def lines(self) -> list[str]:
        """What the command line prints: notes on what was left out, and what was compared."""
        return [*map(str, self.notes), f"verified: {self.sum()}"]

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        lost, left = ([n.to_json() for n in self.notes if (n.kind == "damaged") == d] for d in (True, False))
        if self.hashed is None:
            return {"same": True, "tensors": self.tensors, "bytes": self.bytes, "damaged": lost, "notes": left}
        counts = {"tensors": self.tensors, "bytes": self.bytes, "hashed": self.hashed, "checked_bytes": self.checked}
        return {"sound": True, **counts, "notes": left}


@dataclass(frozen=True, repr=False)
class Loaded(Noted):
    """The report of `load_into`.

    loaded: the tensors that were loaded. missing: parameters and persistent buffers that the source lacks, which keep
    their values. unexpected: tensors of the source that the module lacks. mismatched: tensors with different shapes, as
    texts with both shapes. cast: loaded tensors whose dtype differs from that of the source. computed: tensors of the
    source that the module's state dict has, too, but computes, with a hook or `get_extra_state`; they are not loaded.
    loss: for each tensor that a cast changed, how many finite values became infinite or NaN, and how many values other
    than zero became zero. notes: what the user should know of the source and its conversion, as `convert` says it.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()
    cast: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    loss: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the module and the source have the same tensors with the same shapes."""
        return not (self.missing or self.unexpected or self.mismatched or self.computed)

    def sum(self) -> str:
        """One line: how many tensors were loaded or were not."""
        fields = ("loaded", "missing", "unexpected", "mismatched", "cast", "computed")
        counts = [f"{len(names)} {field}" for field in fields if (names := getattr(self, field)) or field == "loaded"]
        return ", ".join(counts)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self) | {"notes": [n.to_json() for n in self.notes]}

    def lines(self) -> list[str]:
        """The report as text, each list folded by number, and notes, but not on what `unexpected` lists."""
        notes = [n.short for n in self.notes if n.kind not in ("dropped", "skipped")]
        return [self.described("loaded"), *map(indented, [*lossy(self.loss), *notes])]

    def described(self, done: str) -> str:
        """The report as text, but for the losses; `done` describes the tensors that fit: "loaded" or "would fit"."""
        lines = [f"{many(len(self.loaded), 'tensor')} {done}"]
        for title, names in (
            ("missing in the source, at their initial values", self.missing),
            ("not in the module", self.unexpected),
            ("with another shape", self.mismatched),
            ("cast to the module's dtype", self.cast),
            (
                "computed by the module's state_dict; convert to a .pt file, which its load_state_dict takes",
                self.computed,
            ),
        ):
            if names:
                lines += [f"  {len(names)} {title}:", indented(listing(map(str, fold(names))))]
        return "\n".join(lines)


def lossy(loss: Mapping[str, tuple[int, int]]) -> list[str]:
    """A line on what casts lost, if they lost anything."""
    infinite, zero = (sum(pair[i] for pair in loss.values()) for i in (0, 1))
    facts = [f"{many(infinite, 'value')} became infinite or NaN"] * bool(infinite)
    facts += [f"{zero:,} became zero"] * bool(zero)
    return [f"lossy: in {many(len(loss), 'tensor')}, {' and '.join(facts)}: {shortened(list(loss))}"] if facts else []
