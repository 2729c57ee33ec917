"""No room weighs more than it may."""

from __future__ import annotations

import runpy

from kit import ROOT

WEIGHT = runpy.run_path(str(ROOT / "tests" / "house" / "weight.py"))


def test_no_room_is_over() -> None:
    found, modules = WEIGHT["weights"]()
    at_most = WEIGHT["AT_MOST"]
    over = {name: count for name, count in found.items() if count > 1000 * at_most[name]}
    assert over == {}, "take something away, or let an issue say by how much to raise it in weight.py"
    assert modules <= WEIGHT["MODULES"]
    assert at_most.keys() == WEIGHT["AIM"].keys() == found.keys()


def test_what_counts_is_code() -> None:
    text = '"""A docstring."""\n\n# a comment\ndef f(x):\n    """Another."""\n    return x + 1\n'
    assert WEIGHT["tokens"](text) == 10
