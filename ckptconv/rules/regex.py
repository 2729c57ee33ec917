"""Regular expressions whose time is linear in the text: names are strangers', and `re` can take for ever on one.

    layers\\.(\\d+)\\.(?:attn|mlp)\\.     literals, . [classes] \\d \\w \\s, groups, |, * + ? {m,n}, lazy forms, ^ $

A simulation of all paths at once, in the order in which a backtracking engine prefers them, with the groups of each.
Source: Russ Cox, Regular Expression Matching: the Virtual Machine Approach (the machine of Pike).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple
from warnings import catch_warnings, simplefilter

from ..checkpoint import Checkpoint
from ..errors import UsageError
from .passes import renamed
from .templates import halves

MAX_STEPS = 5000  # of a program: counted repetitions are written out
MAX_DEPTH = 50  # of groups in groups
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]")
_FLAGS = re.compile(r"\?[A-Za-z]*-?[A-Za-z]+[:)]")
_POSIX = re.compile(r"\[[:.=][^\]]*[:.=]\]")
_COUNT = re.compile(r"\{(\d+)(,?)(\d*)\}")
_REPEATS = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}


def replaced(checkpoint: Checkpoint, pairs: Sequence[str]) -> Checkpoint:
    """Replace in all names what regular expressions match: 'FROM=TO', one after the other; each must change a name."""
    new = {name: name for name in checkpoint.tensors}
    for pair in pairs:
        pattern, equals, to = halves(pair)
        if not (pattern and equals):
            raise UsageError(f"rename_regex= takes FROM=TO, not {pair!r}")
        regex = Regex(pattern)
        regex.check(to)
        made = {old: regex.sub(to, name) for old, name in new.items()}
        if made == new:
            raise UsageError(f"rename_regex= {pair!r} changes no name; `inspect` lists them")
        if "" in made.values():
            raise UsageError(f"rename_regex= {pair!r} leaves nothing of a name")
        new = made
    return renamed(checkpoint, new.__getitem__, ", ".join(pairs))


class Step(NamedTuple):
    """One instruction: test a character, split in two, note a position, or an end of the text."""

    kind: str  # char, split, save, start, end, match
    test: Callable[[str], object] = bool
    to: tuple[int, ...] = ()  # split: relative, the preferred first; save: the number of the position


class Regex:
    """A compiled expression; UsageError for what is not a regular expression of this kind."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.groups = text, 0, 0
        body = self._either(0)
        if self.at < len(text):
            raise self._wrong("has a closing bracket too many")
        self.anchored = bool(body) and body[0].kind == "start"
        self.steps = [Step("save", to=(0,)), *body, Step("save", to=(1,)), Step("match")]

    def sub(self, to: str, text: str) -> str:
        """Replace every match; \\1 in `to` is a group, \\\\ a backslash."""
        out, at, some = "", 0, False
        while at <= len(text):
            found = self._search(text, at, some=some)
            if found is None:
                break
            start, end = found[0], found[1]
            out += text[at:start] + self._filled(to, text, found)
            at, some = end, end == start  # after an empty match, `re` looks for another one at the same place
        return out + text[at:]

    def check(self, to: str) -> None:
        """Refuse a replacement with a group that does not exist."""
        for m in re.finditer(r"\\(\\|\d+|.?)", to):
            if m[1] != "\\" and not (m[1].isdigit() and 0 < int(m[1]) <= self.groups):
                raise UsageError(f"{m[0]} in the replacement is not a group of {self.text!r}, which has {self.groups}")

    def _filled(self, to: str, text: str, found: list[int]) -> str:
        def one(m: re.Match[str]) -> str:
            if m[1] == "\\":
                return "\\"
            start, end = found[2 * int(m[1])], found[2 * int(m[1]) + 1]
            return text[start:end] if start >= 0 <= end else ""

        return re.sub(r"\\(\\|\d+)", one, to)

    # --- running

    def _search(self, text: str, begin: int, *, some: bool = False) -> list[int] | None:
        """The positions of the first match from `begin` on, and of its groups; `some`: there it is not empty."""
        none = [-1] * (2 * self.groups + 2)
        best: list[int] | None = None
        threads: list[tuple[int, list[int]]] = []
        for at in range(begin, len(text) + 1):
            if best is None and not (at and self.anchored):
                threads.append((0, none))
            if not threads:
                break
            ready = self._ready(threads, at, len(text))
            threads = []
            for pc, saved in ready:
                step = self.steps[pc]
                if step.kind == "match":
                    if some and at == begin:
                        continue
                    best = saved
                    break  # those behind it are less preferred
                if at < len(text) and step.test(text[at]):
                    threads.append((pc + 1, saved))
        return best

    def _ready(self, threads: list[tuple[int, list[int]]], at: int, size: int) -> list[tuple[int, list[int]]]:
        """The steps that wait for a character, or match, in the order of preference; each once."""
        out, seen = list[tuple[int, list[int]]](), set[int]()
        stack = threads[::-1]
        while stack:
            pc, saved = stack.pop()
            if pc in seen:
                continue
            seen.add(pc)
            step = self.steps[pc]
            if step.kind == "split":
                stack += [(pc + d, saved) for d in reversed(step.to)]
            elif step.kind == "save":
                stack.append((pc + 1, [*saved[: step.to[0]], at, *saved[step.to[0] + 1 :]]))
            elif step.kind in ("start", "end"):
                if at == (0 if step.kind == "start" else size):
                    stack.append((pc + 1, saved))
            else:
                out.append((pc, saved))
        return out

    # --- parsing; each returns the steps of what it read

    def _wrong(self, what: str) -> UsageError:
        return UsageError(f"the regular expression {self.text!r} {what}, at character {self.at + 1}")

    def _either(self, depth: int) -> list[Step]:
        if depth > MAX_DEPTH:
            raise self._wrong("nests groups too deeply")
        made = self._sequence(depth)
        while self.text.startswith("|", self.at):
            self.at += 1
            other = self._sequence(depth)
            made = [Step("split", to=(1, len(made) + 2)), *made, Step("split", to=(len(other) + 1,)), *other]
        return made

    def _sequence(self, depth: int) -> list[Step]:
        made: list[Step] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            made += self._repeated(self._atom(depth))
            if len(made) > MAX_STEPS:
                raise self._wrong("repeats too much")
        return made

    def _repeated(self, one: list[Step]) -> list[Step]:
        char = self.text[self.at : self.at + 1]
        count = _COUNT.match(self.text, self.at)
        if char in _REPEATS and char:
            low, high = _REPEATS[char]
            self.at += 1
        elif count:
            low = int(count[1])
            high = int(count[3]) if count[3] else -1 if count[2] else low
            self.at = count.end()
        else:
            return one
        greedy = not self.text.startswith("?", self.at)
        self.at += not greedy
        if self.text[self.at : self.at + 1] in ("*", "+", "?") and self.at < len(self.text):
            raise self._wrong("repeats a repetition")
        if max(low, high) * len(one) > MAX_STEPS or 0 <= high < low:
            raise self._wrong("has a repetition that is too large or ends before it begins")

        def split(*to: int) -> Step:
            return Step("split", to=to if greedy else to[::-1])

        if high < 0:
            loop = [split(1, len(one) + 2), *one, Step("split", to=(-len(one) - 1,))]
            return one * low + loop
        made: list[Step] = []
        for _ in range(high - low):  # each optional one contains those after it
            made = [split(1, len(one) + len(made) + 1), *one, *made]
        return one * low + made

    def _atom(self, depth: int) -> list[Step]:
        char, begin = self.text[self.at], self.at
        if char == "(":
            return self._group(depth)
        if char in "*+?":
            raise self._wrong("repeats nothing")
        self.at += 1
        if char in "^$":
            return [Step("start" if char == "^" else "end")]
        if char == "[":
            found = _CLASS.match(self.text, begin)
            if not found:
                raise self._wrong("has a class without its end")
            if posix := _POSIX.search(self.text, begin + 1, found.end() + 1):
                raise self._wrong(f"has {posix[0]}, which is no class here; write its characters, such as a-z")
            self.at = found.end()
        elif char == "\\":
            if self.at == len(self.text) or self.text[self.at].isdigit() or self.text[self.at] in "bBAZ":
                raise self._wrong("has a backslash that stands for nothing here")
            self.at += 1
        try:
            with catch_warnings():  # `re` warns of a [ or -- in a class, which may mean something else one day
                simplefilter("ignore", FutureWarning)
                test = re.compile(self.text[begin : self.at] if char in ".[\\" else re.escape(char), re.S).fullmatch
        except re.error as e:
            raise self._wrong(f"is not one: {e.msg}") from e
        return [Step("char", test)]

    def _group(self, depth: int) -> list[Step]:
        self.at += 1
        number = 0
        if self.text.startswith("?:", self.at):
            self.at += 2
        elif self.text.startswith("?", self.at):
            flags = _FLAGS.match(self.text, self.at)
            raise self._wrong(
                "sets flags, which are not taken: write [Aa] for letters of either case"
                if flags else "looks around or names a group, which is not possible here"
            )  # fmt: skip
        else:
            self.groups += 1
            number = self.groups
        inner = self._either(depth + 1)
        if not self.text.startswith(")", self.at):
            raise self._wrong("has a group without its end")
        self.at += 1
        return [Step("save", to=(2 * number,)), *inner, Step("save", to=(2 * number + 1,))] if number else inner


__all__ = ["Regex", "replaced"]
