"""A sparse file in memory for h5py: bytes that the library does not write are holes."""

from __future__ import annotations

import io
from typing import Any

PAGE = 1 << 12


class Canvas(io.RawIOBase):
    """A file in memory that stores only the pages that are written."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._written: list[tuple[int, int]] = []
        self._at = self.length = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self.length)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def truncate(self, size: int | None = None) -> int:
        self.length = self._at if size is None else size
        return self.length

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        view[:] = self.bytes(self._at, len(view))
        self._at += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._written.append((self._at, self._at + len(view)))
        done = 0
        while done < len(view):
            number, skip = divmod(self._at + done, PAGE)
            page = self._pages.setdefault(number, bytearray(PAGE))
            count = min(PAGE - skip, len(view) - done)
            page[skip : skip + count] = view[done : done + count]
            done += count
        self._at += done
        self.length = max(self.length, self._at)
        return done

    def bytes(self, start: int, size: int) -> bytes:
        out = bytearray(size)
        done = 0
        while done < size:
            number, skip = divmod(start + done, PAGE)
            count = min(PAGE - skip, size - done)
            if number in self._pages:
                out[done : done + count] = self._pages[number][skip : skip + count]
            done += count
        return bytes(out)

    def runs(self) -> list[tuple[int, int]]:
        """The written ranges, sorted and joined, cut at the end of the file."""
        out: list[list[int]] = []
        for start, end in sorted(self._written):
            if out and start <= out[-1][1]:
                out[-1][1] = max(out[-1][1], end)
            else:
                out.append([start, end])
        return [(a, min(b, self.length)) for a, b in out if a < self.length]
