"""ckptconv formats"""

from __future__ import annotations

from . import show
from .options import Json

EXAMPLES = """Examples:

\b
  ckptconv formats
  ckptconv formats --json | jq '.[] | select(.writes) | .name'
"""


def formats(as_json: Json = False) -> None:
    """List the formats that can be read and written.

    The suffix of an output selects its format.
    """
    from ..formats import table as known

    rows = known.table().values()
    if as_json:
        show.as_json([f._asdict() for f in rows])
        return
    yes = {True: "yes", False: "-"}
    show.table(
        ("format", "reads", "writes", "suffixes", "what"),
        [[f.name, yes[f.reads], yes[f.writes], " ".join(f.suffixes), f.title] for f in rows],
    )
