"""What a run takes away where it writes: files of an older output, and sources among them; and what it says of both.

    convert("s/model.safetensors.index.json", "s/model.safetensors", include="a", force=True)

would replace shards that it reads by one file with a part of them: what is left out would be nowhere. To write a
checkpoint over itself, under the name by which it was given, is what was asked for, as with `cp`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from ..checkpoint import Note
from ..engine.plan import Plan
from ..engine.run import Outcome, older
from ..output.destination import check_replaced, place
from ..storage import files
from ..storage.session import Session, session

LEFT = ("damaged", "skipped", "unread", "dropped")  # the notes on what of a source is not written
OLDER = "files of an older checkpoint of this name, which force=True {}"


def sparing(
    plan: Plan, read: Iterable[str], sources: Sequence[str], destination: str
) -> AbstractContextManager[Session]:
    """In here no file that was read is replaced or removed while something in the sources is left out.

    sources: as they were given. The files of the output itself are replaced if it has the name of one of them, or if
    they are all that was read: a checkpoint is written over itself, by whatever name.
    """
    left = [str(n) for n in plan.notes if n.kind in LEFT and n not in plan.placement.notes]
    if not left:
        return session(spared=())
    named = place(destination) in map(place, sources)
    there, own = ({*map(place, urls)} for urls in (read, _own(plan)))
    return session(spared=there - (own if named or there <= own else set()), left=left)


def foretold(plan: Plan, read: Iterable[str], sources: Sequence[str], destination: str) -> Plan:
    """The plan, with a note on what `force` would remove; an error if that is not spared."""
    gone = older(plan)
    with sparing(plan, read, sources, destination):
        check_replaced(_own(plan), [files.join(plan.folder, name) for name in gone], force=True)
    note = Note("hint", OLDER.format("removes"), tuple(gone))
    return replace(plan, notes=(*plan.notes, note)) if gone else plan


def _own(plan: Plan) -> list[str]:
    return [files.join(plan.folder, f.name) for f in plan.placement.files if not f.shared]


def found(outcome: Outcome) -> list[Note]:
    """What was at the destination, and what became of it."""
    notes = [Note("hint", "left by a killed run and cleared away", outcome.cleared)] if outcome.cleared else []
    return notes + ([Note("hint", OLDER.format("removed"), outcome.removed)] if outcome.removed else [])
