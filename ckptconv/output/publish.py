"""Bring finished temporary files under their names, so that a kill leaves the old or the new; and clear what it left.

    .model.safetensors.3f9a01bc.part/      a folder of temporary files, locked while its run lives
    .model.safetensors.3f9a01bc.publish    JSON: the renames and removals of a set of files, until all are done

One file is one rename. A set is published in order, its index last: with shards of new names its rename decides.
Where shards are replaced under their own names the old index goes first, so that for the moment of the renames a reader
finds no index, and never one that mixes old and new. What is to be done is written down before; after a kill the next
run at this destination does the rest. What fails without a kill is undone. A folder without an index is replaced as a
whole.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from zlib import crc32

MARK = r"[0-9a-f]{8}"
PART = re.compile(rf"\.(.+)\.({MARK})\.part", re.DOTALL)
NOTE = re.compile(rf"\.(.+)\.({MARK})\.publish", re.DOTALL)
LONGEST = 200  # bytes of a title: a file's name has at most 255


def short(title: str) -> str:
    """The title as it stands in other names; long ones are cut and told apart by a checksum."""
    raw = os.fsencode(title)
    return title if len(raw) <= LONGEST else f"{raw[: LONGEST - 20].decode(errors='ignore')}-{crc32(raw):08x}"


def part(title: str, mark: str) -> str:
    """The name of a temporary folder."""
    return f".{short(title)}.{mark}.part"


class Publication(NamedTuple):
    """Names are relative to the destination's folder: removed `first`, moved (temporary, final), removed `last`."""

    first: tuple[str, ...]
    moves: tuple[tuple[str, str], ...]
    last: tuple[str, ...]


Steps = list[tuple[str, str]]  # where something is now, and where it was: what there is to undo


def perform(folder: str, todo: Publication, owns: Callable[[str], bool], steps: Steps) -> None:
    """Do all of it, or what is left of it, or, when a step fails, nothing.

    What is replaced is set aside until all is done. `steps` is empty afterwards, unless they cannot be undone.
    """
    stages = {os.path.dirname(final): os.path.dirname(made) for made, final in todo.moves}

    def aside(name: str) -> str:
        at = os.path.join(folder, stages[os.path.dirname(name)], ".old")
        os.makedirs(at, exist_ok=True)
        return os.path.join(at, os.path.basename(name))

    try:
        for made, final in todo.moves:
            if final in todo.first and os.path.lexists(os.path.join(folder, made)):  # the new one is not there yet
                _move(os.path.join(folder, final), aside(final), steps)
        for made, final in todo.moves:
            source, target = os.path.join(folder, made), os.path.join(folder, final)
            if os.path.isdir(source):
                _exchange(source, target, final, owns, steps)
            elif os.path.lexists(source):
                if len(todo.moves) + len(todo.last) > 1 and os.path.lexists(target):
                    _keep(target, aside(final), steps)
                _move(source, target, steps)
        for name in todo.last:
            _move(os.path.join(folder, name), aside(name), steps)
    except BaseException:  # an interrupt, too, leaves what was there
        _undo(steps)
        raise
    steps.clear()
    for made, _ in todo.moves:
        shutil.rmtree(os.path.join(folder, f"{made}.old"), ignore_errors=True)
    for stage in set(stages.values()) - {""}:
        shutil.rmtree(os.path.join(folder, stage), ignore_errors=True)


def _move(source: str, target: str, steps: Steps) -> None:
    """Rename; what is not there is done already."""
    if os.path.lexists(source):
        steps.append((target, source))
        os.replace(source, target)


def _keep(path: str, aside: str, steps: Steps) -> None:
    """Give the old file a second name, so that replacing it can be undone; without links, only another name."""
    if os.path.isdir(path) and not os.path.islink(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    steps.append((aside, path))
    try:
        os.link(path, aside, follow_symlinks=False)
    except OSError:
        os.replace(path, aside)


def _exchange(source: str, target: str, name: str, owns: Callable[[str], bool], steps: Steps) -> None:
    """Bring a folder to its place; what is not the checkpoint's moves over from the one that was there."""
    old = f"{source}.old"
    if os.path.isdir(target):
        _move(target, old, steps)
    _move(source, target, steps)
    for entry in os.listdir(old) if os.path.isdir(old) else ():
        if not owns(f"{name}/{entry}") and not os.path.lexists(os.path.join(target, entry)):
            _move(os.path.join(old, entry), os.path.join(target, entry), steps)


def _undo(steps: Steps) -> None:
    """The last step first; one that was begun but not done is none."""
    while steps:
        now, was = steps[-1]
        if os.path.lexists(now) and not os.path.lexists(was):
            os.replace(now, was)
        steps.pop()


@contextmanager
def noted(folder: str, title: str, mark: str, todo: Publication, steps: Steps) -> Iterator[None]:
    """Keep what is to be done written down, durably, until it is done or undone."""
    path = os.path.join(folder, f".{short(title)}.{mark}.publish")
    try:
        with open(path, "xb") as f:
            f.write(json.dumps(todo._asdict()).encode())
            f.flush()
            os.fsync(f.fileno())
        sync(folder)
        yield
    finally:
        if not steps:
            _gone(path)


def _gone(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def sync(folder: str) -> None:
    """Make a folder's names durable."""
    fd = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def finish(folder: str, titles: Callable[[str], bool], owns: Callable[[str], bool]) -> list[str]:
    """Complete the publications that killed runs left at this destination; returns the names of their notes.

    Only names that belong to the destination are touched, whatever the note says. One that is not whole was being
    written: nothing was done yet.
    """
    done = []
    for title, mark, note in _matching(folder, NOTE):
        if not titles(title):
            continue
        todo = _read(os.path.join(folder, note), mark)
        if todo and all(map(owns, (*todo.first, *todo.last, *(final for _, final in todo.moves)))):
            perform(folder, todo, owns, [])
        _gone(os.path.join(folder, note))
        done.append(note)
    return done


def _read(path: str, mark: str) -> Publication | None:
    """A note's content if it is sound: moves start from this mark's temporary folders, which lie where they go."""
    try:
        with open(path, "rb") as f:
            made: Any = json.loads(f.read(1 << 28))
        todo = Publication(tuple(made["first"]), tuple((str(a), str(b)) for a, b in made["moves"]), tuple(made["last"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    sound = all(_from_stage(made, final, mark) for made, final in todo.moves)
    return todo if sound and all(isinstance(n, str) for n in (*todo.first, *todo.last)) else None


def _from_stage(made: str, final: str, mark: str) -> bool:
    """Whether a move brings out a temporary folder's file under its own name, or the folder itself."""
    stage, base = os.path.split(made)
    stage = stage if os.path.basename(final) == base else made
    return stage.endswith(f".{mark}.part") and os.path.dirname(stage) == os.path.dirname(final)


def _matching(folder: str, pattern: re.Pattern[str]) -> list[tuple[str, str, str]]:
    """Title, mark and the name itself of each match in a folder."""
    try:
        found = [pattern.fullmatch(name) for name in sorted(os.listdir(folder or "."))]
    except OSError:
        return []
    return [(m[1], m[2], m[0]) for m in found if m]


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


def lock_folder(folder: str) -> int:
    """Open and lock a temporary folder, where there are locks; -1 if a run that clears litter was faster.

    OSError for a link that somebody laid out in its place.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with suppress(ImportError):
            import fcntl

            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(folder), os.fstat(fd)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:  # some network file systems have no locks
        return fd
    os.close(fd)
    return -1


def clear(folder: str, titles: Callable[[str], bool]) -> list[str]:
    """Remove the temporary folders of these titles that no run has locked: killed runs left them."""
    if os.name == "nt":
        return []
    gone = []
    for title, _, name in _matching(folder, PART):
        path = os.path.join(folder, name)
        if titles(title) and _removed(path):
            gone.append(name)
    return gone


def _removed(path: str) -> bool:
    """Remove it, locked meanwhile; False if a living run has it, and for what is neither file nor folder of ours."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        if not lock(fd):
            return False
        shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else _gone(path)
        return True
    finally:
        os.close(fd)


__all__ = [
    "Publication",
    "Steps",
    "alone",
    "clear",
    "finish",
    "lock",
    "lock_folder",
    "noted",
    "part",
    "perform",
    "short",
    "sync",
]  # fmt: skip
