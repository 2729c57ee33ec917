"""Errors about a command line name what was meant: words that are not verbs here, and calls without a destination."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from glob import escape, glob
from itertools import pairwise

from ..api.options import synonym
from ..errors import UsageError
from ..messages import did_you_mean, nearest, printable, redacted

VERBS = {  # of other programs: what does the same here
    **dict.fromkeys(("list", "ls", "info", "show"), "inspect SRC"),
    "check": "inspect SRC --check",
    "validate": "verify SRC",
    "compare": "diff A B",
    **dict.fromkeys(("merge", "copy", "export"), "SRC -o DST"),
    "split": "SRC -o DIR --to hf --max-shard-size 5GB",
}
QUESTIONS = {"help": "--help", "version": "--version"}
FLEETING = ("memory://",)  # what is written there ends with the process, which is the command


def unknown_verb(argv: Sequence[str], verbs: Iterable[str]) -> str:
    """What is wrong with the first word, which is not a verb; '' if it may be a source."""
    word = argv[0]
    if not word.replace("-", "").isalnum() or word.startswith("-"):
        return ""
    if word in VERBS and not exists(word):
        return f"no verb is called {word!r}; `ckptconv {VERBS[word]}` does that"
    if glob(f"{escape(word)}*"):
        return ""
    if near := nearest(word, [*verbs, *QUESTIONS]):
        return f"no verb is called {word!r}; did you mean `ckptconv {near[0]}`?"
    if {"-h", "--help"} & {*argv}:  # of what is neither a verb nor a file
        return f"no verb is called {word!r}; there are {', '.join(sorted(verbs))}"
    return ""


def exists(word: str) -> bool:
    """Whether a word is a URL, a path, or the prefix of a checkpoint."""
    return "://" in word or os.path.exists(word) or bool(glob(f"{escape(word)}.index*"))


def option(name: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown option of a verb that has the options `known`."""
    flags = {k.removeprefix("--").replace("-", "_"): k for k in known if k.startswith("--")}
    if "from" in flags:
        flags["from_"] = flags["from"]
    if word := synonym(name.removeprefix("--").replace("-", "_"), flags):
        return f"; {flags[word]} does that"
    if os.path.exists(name):
        return f"; a file that is called so is ./{name}"
    return did_you_mean(name, flags.values(), count=3)


def refuse_empty(argv: Sequence[str]) -> None:
    """UsageError for an option with an empty value, as an unset variable of a shell gives: it would mean none."""
    for before, word in pairwise(("", *argv)):
        option = before if not word else word[:-1] if word.endswith("=") else ""
        if option.startswith("-") and "=" not in option:
            raise UsageError(f"{printable(option)} is empty: give a value, or leave it out")


def refuse_fleeting(output: str) -> None:
    """UsageError for a destination that nobody could read after the command."""
    if output.startswith(FLEETING):
        raise UsageError(f"{printable(output)} is in the memory of this command, and gone when it ends; name a file")


def without_destination(sources: Sequence[str], verb: str) -> UsageError:
    """For `ckptconv X` and `ckptconv A B`: the commands that may have been meant."""
    shown = [printable(shlex.quote(redacted(s))) for s in sources]
    if verb == "zoo":
        return UsageError(f"where to? `ckptconv zoo {' '.join(shown)} -o DIR` converts all that is found")
    if len(shown) == 1:
        return UsageError(
            f"where to? `ckptconv {shown[0]} -o DST` converts; `ckptconv inspect {shown[0]}` lists what is inside"
        )
    if not exists(sources[0]):
        return UsageError(f"neither a verb nor a file is called {sources[0]!r}; `ckptconv --help` lists the verbs")
    first, last = " ".join(shown[:-1]), shown[-1]
    lines = [f"`ckptconv {first} -o {last}` converts"]
    if os.path.exists(sources[-1]) or glob(f"{escape(sources[-1])}*"):
        lines = [f"`ckptconv diff {first} {last}` compares"] * (len(shown) == 2)
        lines += [f"`ckptconv {first} {last} -o DST` merges"]
    return UsageError(f"where to? {'; '.join(lines)}")
