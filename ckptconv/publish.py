"""Bring finished temporary files under their names, so that a kill leaves the old or the new; and clear what it left.

    .model.safetensors.3f9a01bc.part       a temporary file (or a folder of them), locked while its run lives
    .model.safetensors.3f9a01bc.publish    JSON: the renames and removals of a set of files, until all are done

One file is one rename. A set is published in order, its index last: with shards of new names its rename decides.
Where shards are replaced under their own names the old index goes first, so that for the moment of the renames a reader
finds no index, and never one that mixes old and new. What is to be done is written down before; after a kill the next
run at this destination does the rest. A folder without an index is replaced as a whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

MARK = r"[0-9a-f]{8}"
NOTE = ".publish"  # a note that is not yet whole is a temporary file of this name
PART = re.compile(rf"\.(.+)\.({MARK})\.part", re.DOTALL)


class Publication(NamedTuple):
    """Names are relative to the destination's folder: removed `first`, moved (temporary, final), removed `last`."""

    first: tuple[str, ...]
    moves: tuple[tuple[str, str], ...]
    last: tuple[str, ...]


def perform(folder: str, todo: Publication, ours: Callable[[str], bool]) -> None:
    """Do all of it, or what is left of it."""
    for made, final in todo.moves:
        if final in todo.first and os.path.lexists(os.path.join(folder, made)):  # the new one is not there yet
            _gone(os.path.join(folder, final))
    for made, final in todo.moves:
        source, target = os.path.join(folder, made), os.path.join(folder, final)
        old = f"{source}.old"
        if os.path.isdir(source):
            if os.path.isdir(target) and os.listdir(target):
                os.rename(target, old)
            os.rename(source, target)
        elif os.path.lexists(source):
            os.replace(source, target)
        if os.path.isdir(old):
            _keep_strangers(old, target, final, ours)
    for name in todo.last:
        _gone(os.path.join(folder, name))


def _keep_strangers(old: str, new: str, name: str, ours: Callable[[str], bool]) -> None:
    """Bring what is not the checkpoint's from the old folder to the new one."""
    for entry in os.listdir(old):
        if not ours(f"{name}/{entry}") and not os.path.lexists(os.path.join(new, entry)):
            os.rename(os.path.join(old, entry), os.path.join(new, entry))
    shutil.rmtree(old)


def _gone(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


@contextmanager
def noted(folder: str, base: str, mark: str, todo: Publication) -> Iterator[None]:
    """Keep what is to be done written down, durably, until it is done."""
    path = os.path.join(folder, f".{base[:200]}.{mark}.publish")
    draft = os.path.join(folder, f".{base[:200]}{NOTE}.{mark}.part")
    with open(draft, "wb") as f:
        f.write(json.dumps(todo._asdict()).encode())
        f.flush()
        os.fsync(f.fileno())
    os.replace(draft, path)
    sync(folder)
    yield
    os.unlink(path)


def sync(folder: str) -> None:
    """Make a folder's names durable."""
    fd = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def finish(folder: str, base: str, ours: Callable[[str], bool]) -> list[str]:
    """Complete the publications that killed runs left at this destination; returns the names of their notes.

    Only names that belong to the destination are touched, whatever the note says.
    """
    done = []
    for note in _matching(folder, re.compile(rf"\.{re.escape(base[:200])}\.({MARK})\.publish")):
        path = os.path.join(folder, note)
        todo = _read(path, note.split(".")[-2])
        if todo and all(map(ours, (*todo.first, *todo.last, *(final for _, final in todo.moves)))):
            perform(folder, todo, ours)
            os.unlink(path)
            done.append(note)
    return done


def _read(path: str, mark: str) -> Publication | None:
    """A note's content if it is sound: moves start from this mark's temporary files, beside where they go."""
    try:
        with open(path, "rb") as f:
            made: Any = json.loads(f.read(1 << 28))
        todo = Publication(tuple(made["first"]), tuple((str(a), str(b)) for a, b in made["moves"]), tuple(made["last"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    beside = all(os.path.dirname(a) == os.path.dirname(b) and a.endswith(f".{mark}.part") for a, b in todo.moves)
    return todo if beside and all(isinstance(n, str) for n in (*todo.first, *todo.last)) else None


def _matching(folder: str, pattern: re.Pattern[str]) -> list[str]:
    try:
        return sorted(n for n in os.listdir(folder or ".") if pattern.fullmatch(n))
    except OSError:
        return []


# --- whose temporary files --------------------------------------------------------------------------------------


def lock(fd: int) -> bool:
    """Mark an open file as in use by this process, until it is closed or the process ends; False if another has it."""
    try:
        import fcntl
    except ImportError:  # no locks on this system: what killed runs leave is left
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def alone(folder: str) -> Iterator[None]:
    """Wait until no other run publishes in this folder."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    fd = os.open(folder or ".", os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def clear(folder: str, names: Iterable[str], part: Callable[[str, str], str]) -> list[str]:
    """Remove what killed runs left of these files: temporary files (`part` of name and mark) that no run has locked."""
    if os.name == "nt":
        return []
    found = [m for m in map(PART.fullmatch, _matching(folder, PART)) if m]
    known = {part(name, "") for name in names} if found else set()
    known |= {f".{name[:200]}{NOTE}..part" for name in names} if found else set()
    runs: dict[str, list[str]] = {}
    for m in found:
        if part(m[1], "") in known or f".{m[1]}..part" in known:
            runs.setdefault(m[2], []).append(m[0])
    gone = []
    for left in runs.values():
        paths = [os.path.join(folder, name) for name in left]
        if not any(map(_locked, paths)):
            for path in paths:
                shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else _gone(path)
            gone += left
    return sorted(gone)


def _locked(path: str) -> bool:
    """Whether a living run has it open; True, too, for what is no file or folder of ours."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        return not lock(fd)
    finally:
        os.close(fd)


__all__ = ["Publication", "alone", "clear", "finish", "lock", "noted", "perform", "sync"]
