"""What `convert` and `save` return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..checkpoint import Note
from ..messages import in_bytes, many, paragraph, paragraphs, printable, shortened
from .values import Verify


@dataclass(frozen=True, repr=False)
class Report:
    """The result of `convert` and `save`; print() shows it as the command line does.

    sources, destination: the paths. source_format, target_format: the names of their formats. tensors, bytes: the
    number of tensors that were written, and their size. seconds: wall time. files: what was written. notes: what the
    user should know. loss: for each tensor that a cast changed, how many finite values became infinite or NaN, and how
    many values other than zero became zero. verified_bytes: the number of bytes of the sources whose checksums were
    compared. verify: how the output was checked, 'none', 'receipts' (its headers) or 'full'. damaged: tensors that were
    left out, and why. casts: the number of tensors by what they were cast from and to, as in 'float32 to float16'.
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
    verify: Verify
    damaged: Mapping[str, str] = field(default_factory=dict)
    casts: Mapping[str, int] = field(default_factory=dict)

    @property
    def lost(self) -> str:
        """How many values casts made infinite, NaN or zero, in words; '' if none."""
        infinite, zero = (sum(pair[i] for pair in self.loss.values()) for i in (0, 1))
        facts = [f"{infinite:,} values became infinite or NaN"] * bool(infinite)
        facts += [f"{zero:,} became zero"] * bool(zero)
        return " and ".join(facts)

    def lines(self) -> list[str]:
        """What the command line prints at the end: notes, what a cast lost, and the totals."""
        lines = [str(n) for n in self.notes]
        of = many(len(self.loss), "tensor")
        lines += [f"lossy: of {of}, {self.lost}: {shortened(list(self.loss))}"] if self.lost else []
        large = self.seconds > 1 and self.bytes > 10**7  # of less the time is that of starting
        speed = f" ({in_bytes(int(self.bytes / self.seconds))}/s)" if large else ""
        cast = ", ".join(f"{n:,} cast from {kinds}" for kinds, n in self.casts.items())
        size = f"{many(self.tensors, 'tensor')}{f' ({cast})' * bool(cast)}, {in_bytes(self.bytes)}"
        return [*lines, f"{size} in {self.seconds:.2f} s{speed} -> {printable(self.destination)}"]

    def __str__(self) -> str:
        return paragraphs(self.lines())

    def __repr__(self) -> str:
        return f"<Report: {paragraph(self.lines()[-1])}>"

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        out = asdict(self)
        out["casts"] = dict(self.casts)  # of a Counter, asdict makes another that counts the items of the first
        out["notes"] = [{"kind": n.kind, "text": n.text, "names": list(n.names)} for n in self.notes]
        return out


__all__ = ["Report"]
