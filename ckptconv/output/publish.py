"""Rename finished temporary files so that a kill leaves the old or the new ones, and clear what killed runs left.

    .model.safetensors.3f9a01bc.part/      a folder of temporary files, locked while its run lives
    .model.safetensors.3f9a01bc.publish    JSON: the renames and removals of a set of files, until all are done

One file is one rename. A set is published in order, its index last: with shards of new names its rename decides.
Where shards are replaced under their own names the old index goes first, so that for the moment of the renames a reader
finds no index, and never one that mixes old and new. What is to be done is written down before, with the identity of
each file (own.py); after a kill the next run at this destination does the rest, if every file that the note names is
still the one that was meant. What fails without a kill is undone. A folder without an index is replaced as a whole.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from zlib import crc32

from ..errors import StorageError
from . import listed, own

MARK = r"[0-9a-f]{8}"
PART = re.compile(rf"\.(.+)\.({MARK})\.part", re.DOTALL)
NOTE = re.compile(rf"\.(.+)\.({MARK})\.publish", re.DOTALL)
MOST = 1 << 23  # bytes of a note; 20,000 shards have 5 MB
LONGEST = 200  # bytes of a title: a file's name has at most 255


def short(title: str) -> str:
    """The title as part of other names; long ones are cut and distinguished by a checksum."""
    raw = os.fsencode(title)
    if len(raw) <= LONGEST:
        return title
    cut = raw[: LONGEST - 20].decode(errors="ignore").encode()  # no half character, which some file systems refuse
    return f"{os.fsdecode(cut)}-{crc32(raw):08x}"


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

    Replaced files are kept aside until every step succeeds. On return `steps` lists only what could not be undone.
    """
    stages = {os.path.dirname(final): os.path.dirname(made) for made, final in todo.moves}

    def aside(name: str) -> str:
        at = os.path.join(folder, stages[os.path.dirname(name)], ".old")
        own.make_folder(at)  # in a temporary folder whose name a later run knows, a stranger may have laid it
        return os.path.join(at, os.path.basename(name))

    try:
        for made, final in todo.moves:
            if final in todo.first and os.path.lexists(os.path.join(folder, made)):  # the new one is not there yet
                _move(os.path.join(folder, final), aside(final), steps)
        for made, final in todo.moves:
            source, target = os.path.join(folder, made), os.path.join(folder, final)
            if os.path.isdir(source) or os.path.isdir(f"{source}.old"):
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
        own.remove_tree(os.path.join(folder, f"{made}.old"))
    for stage in set(stages.values()) - {""}:
        own.remove_tree(os.path.join(folder, stage))


def _move(source: str, target: str, steps: Steps) -> None:
    """Rename a file; one that does not exist was renamed before."""
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
    if os.path.isdir(source):
        if os.path.isdir(target):
            _move(target, old, steps)
        own.unmark(source)
        _move(source, target, steps)
    for entry in os.listdir(old) if os.path.isdir(old) else ():
        mine = owns(f"{name}/{entry}") and own.is_file(os.path.join(old, entry))
        if not mine and not os.path.lexists(os.path.join(target, entry)):
            _move(os.path.join(old, entry), os.path.join(target, entry), steps)


def _undo(steps: Steps) -> None:
    """Undo all steps, the last one first; a step that was begun but not done is skipped."""
    while steps:
        now, was = steps[-1]
        if os.path.lexists(now) and not os.path.lexists(was):
            os.replace(now, was)
        steps.pop()


# --- notes ------------------------------------------------------------------------------------------------------


@contextmanager
def noted(folder: str, title: str, mark: str, todo: Publication, steps: Steps) -> Iterator[None]:
    """Keep a durable record of the steps until they are done or undone."""
    path = os.path.join(folder, f".{short(title)}.{mark}.publish")
    try:
        _write(path, folder, todo, os.O_EXCL)
        sync(folder)
        yield
    finally:
        if not steps:
            _gone(path)
        else:  # neither done nor undone: what was moved there and back has changed its identity
            with suppress(OSError):
                _write(path, folder, todo, os.O_TRUNC)


def _write(path: str, folder: str, todo: Publication, how: int) -> None:
    raw = json.dumps(todo._asdict() | {"files": _identities(folder, todo)}).encode()
    with open(own.open_file(path, os.O_WRONLY | os.O_CREAT | how, 0o600), "wb") as f:
        f.write(raw)
        f.flush()
        os.fsync(f.fileno())


def _identities(folder: str, todo: Publication) -> dict[str, own.Identity]:
    """The identity of all that will be moved; of a folder that is set aside, by its name then."""
    found = {}
    for name in (*todo.first, *todo.last, *(made for made, _ in todo.moves)):
        with suppress(FileNotFoundError):
            found[name] = own.identity(os.path.join(folder, name))
    for made, final in todo.moves:
        old = os.path.join(folder, f"{made}.old")
        replaced = old if os.path.isdir(old) else os.path.join(folder, final)
        if os.path.isdir(replaced):
            found[f"{made}.old"] = own.identity(replaced)
    return found


def _gone(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def sync(folder: str) -> None:
    """Make the entries of a folder durable."""
    fd = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def pending(
    folder: str, titles: Callable[[str], bool], owns: Callable[[str], bool]
) -> Iterator[tuple[str, Publication | None]]:
    """The notes that killed runs of ours left at this destination, by name; None for what was being written.

    A note counts only if it names nothing but files of the destination, and if what it would move is still what it was
    when it was written: nobody else knows that. Others are left alone, whoever laid them.
    """
    for title, mark, note in _matching(folder, NOTE):
        if titles(title):
            raw = _content(os.path.join(folder, note))
            todo = _parsed(raw, folder, mark)
            if todo and all(map(owns, (*todo.first, *todo.last, *(final for _, final in todo.moves)))):
                yield note, todo
            elif raw is not None and raw[: len(_BEGIN)] == _BEGIN[: len(raw)] and not raw.endswith(b"}"):
                yield note, None


_BEGIN = b'{"first": ['


def finish(folder: str, titles: Callable[[str], bool], owns: Callable[[str], bool]) -> list[str]:
    """Complete the publications that killed runs left at this destination; returns the names of their notes."""
    done = []
    for note, todo in pending(folder, titles, owns):
        if todo:
            perform(folder, todo, owns, [])
        _gone(os.path.join(folder, note))
        done.append(note)
    return done


def _content(path: str) -> bytes | None:
    try:
        with open(own.open_file(path, os.O_RDONLY), "rb") as f:
            begin = f.read(len(_BEGIN))  # what a stranger laid may be a terabyte that takes no room
            return begin + (f.read(MOST) if begin == _BEGIN else b"")
    except OSError:
        return None


def _parsed(raw: bytes | None, folder: str, mark: str) -> Publication | None:
    """A note's content if it is sound: moves start from this mark's temporary folders, which lie where they go."""
    try:
        made: Any = json.loads(raw or b"")
        todo = Publication(tuple(made["first"]), tuple((str(a), str(b)) for a, b in made["moves"]), tuple(made["last"]))
        files = dict(made["files"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    sound = all(_from_stage(made, final, mark) for made, final in todo.moves)
    sound = sound and all(isinstance(n, str) for n in (*todo.first, *todo.last))
    return todo if sound and _unchanged(folder, todo, files) else None


def _from_stage(made: str, final: str, mark: str) -> bool:
    """Whether a move brings out a temporary folder's file under its own name, or the folder itself."""
    stage, base = os.path.split(made)
    stage = stage if os.path.basename(final) == base else made
    return stage.endswith(f".{mark}.part") and os.path.dirname(stage) == os.path.dirname(final)


def _unchanged(folder: str, todo: Publication, files: dict[Any, Any]) -> bool:
    """Whether all that is still to be moved is what it was when the note was written, in folders of ours."""
    there = {final for made, final in todo.moves if not os.path.lexists(os.path.join(folder, made))}
    first = [name for name in todo.first if name not in there]  # under that name is the new one already
    for name in (*first, *todo.last, *(n for made, _ in todo.moves for n in (made, f"{made}.old"))):
        path = os.path.join(folder, name)
        if not os.path.lexists(path):
            continue  # moved already
        if files.get(name) != own.identity(path) or not (own.is_folder(path) or own.is_file(path)):
            return False
    stages = {os.path.dirname(made) for made, _ in todo.moves} - {""}
    return all(own.is_folder(at) for s in stages if os.path.lexists(at := os.path.join(folder, s)))


def _matching(folder: str, pattern: re.Pattern[str]) -> list[tuple[str, str, str]]:
    """Title, mark and the name itself of each match in a folder, which may have thousands of other names."""
    try:
        found = [pattern.fullmatch(name) for name in listed.names(folder or ".", ".")]
    except StorageError:
        return []
    return [(m[1], m[2], m[0]) for m in found if m]


def marks(folder: str) -> set[str]:
    """The marks of the runs that left a note here: their temporary folders are needed."""
    return {mark for _, mark, _ in _matching(folder, NOTE)}


def clear(
    folder: str, titles: Callable[[str], bool], needed: Collection[str] = (), *, certain: bool = False
) -> list[str]:
    """Remove the temporary folders of these titles that no run has locked: killed runs left them.

    certain: only those of which it is proved that a run of ours made them.
    """
    if os.name == "nt":
        return []
    gone = []
    for title, mark, name in _matching(folder, PART):
        path = os.path.join(folder, name)
        if titles(title) and mark not in needed and (not certain or own.is_marked(path)) and own.remove(path):
            gone.append(name)
    return gone


__all__ = ["Publication", "Steps", "clear", "finish", "marks", "noted", "part", "pending", "perform", "short", "sync"]
